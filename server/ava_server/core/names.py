"""Names that a model or a caller chose, as Ava's own sentences have them: quoted, and said to be what they are.

Bare, a step with the id `nothing` would turn a warning into its opposite.
"""

from __future__ import annotations

from collections.abc import Sequence

from ava_roles.wrap import list_names, one_line

QUOTES = dict.fromkeys(map(ord, '"“”„‟«»＂″‴‶〝〞〟❝❞ʺ˝״⹂🙶🙷🙸'), "'")
"""Characters that a reader may take for the end of a quotation."""
NAME_CHARS = 120


def quote_name(name: str) -> str:
    """Return a name in quotes that nothing in it can close."""
    return f'"{one_line(name, NAME_CHARS).translate(QUOTES)}"'


def named(kind: str, name: str) -> str:
    """`the step "find"`."""
    return f"the {kind} {quote_name(name)}"


def named_all(kind: str, names: Sequence[str], most: int) -> str:
    """`the steps "find", "read" and 3 more`, with at most `most` names; of a single one `the step "find"`."""
    if len(names) == 1:
        return named(kind, names[0])
    return f"the {kind}s {quote_names(names, most)}"


def quote_names(names: Sequence[str], most: int) -> str:
    """`"find", "read" and 3 more`, where what they are has been said."""
    return list_names([quote_name(name) for name in names], most)
