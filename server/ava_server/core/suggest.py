"""What somebody may have meant who wrote a name that nobody knows."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(given: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known name that is most like the one given, in whatever case; None where none is."""
    names = {name.casefold(): name for name in known}
    found = difflib.get_close_matches(given.strip().casefold()[:80], names, n=1, cutoff=cutoff)
    return names[found[0]] if found else None


def did_you_mean(given: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return `did you mean NAME? ` for a sentence to go on with; nothing where no name is like it."""
    name = nearest(given, known, cutoff)
    return f"did you mean {name}? " if name is not None else ""
