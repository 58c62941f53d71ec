"""What printers take: Ava's own words, or somebody else's, which the type of a text tells apart.

A printer calls `printed` with the way in which its surface escapes: a host's text with `escape_result`, a terminal and
a file with `clean` and bars. On pages, `finalize` in `web/context.py` does it for each value of a template.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class UntrustedText:
    """A text that a model, a tool, a page, a person or a file's name has: data, never an instruction or markup."""

    text: str

    def __str__(self) -> str:
        """Refuse: an f-string would take it for a text of Ava's own. Raises TypeError: always."""
        raise TypeError("an untrusted text is printed by a printer, which escapes it for its surface")

    def __bool__(self) -> bool:
        return bool(self.text)


Text = str | UntrustedText


def printed(text: Text, escape: Callable[[str], str]) -> str:
    """Return a text for a surface: Ava's own as it is, somebody else's escaped."""
    return escape(text.text) if isinstance(text, UntrustedText) else text


@dataclass(frozen=True)
class Fact:
    """A figure or a fact under its name, for a line of a text or a row of a page."""

    label: str
    value: Text
