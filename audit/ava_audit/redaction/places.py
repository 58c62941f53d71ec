"""Where secrets may stand: quick searches of a text, and the count of what they cost."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import NamedTuple


class SecretSpan(NamedTuple):
    """The place of a secret in a text, and its name; never its value."""

    name: str
    start: int
    end: int


def lower_bytes(text: str) -> bytes:
    """Return a text in lower case, one byte a character: a place is the same in both, for searches of any case."""
    return text.encode("latin-1", "replace").lower()


_DENSE_PLACES = 32
_DENSE_CHARS = 2_048
_BETWEEN_DENSE = 8
_SKIPPED_CHARS = 128
"""A search that continues farther ahead than this starts again."""


class PlacesBefore:
    """Finds where a literal is followed by a pattern.

    Where they stand everywhere, one regular expression goes on: it is several times as quick there.
    """

    def __init__(
        self,
        text: str,
        literals: tuple[str, ...],
        pattern: re.Pattern[str],
        low: bytes | None = None,
        are_too_many: Callable[[], bool] = lambda: False,
    ) -> None:
        """Search a text for a pattern, only near the literals that begin it.

        `low`: the text as `lower_bytes` returns it, where the literals are names, which count in any case; None where
        they must match exactly. `are_too_many`: called once if the literals turn out to stand almost everywhere;
        whether to give up then. The value of a name has at least eight characters, or an element of XML around it.
        """
        self.gave_up = False
        self._are_too_many = are_too_many
        self._text = text
        self._literals = literals
        self._pattern = pattern
        self._size = len(literals[0])
        self._apart = low is not None
        self._find: Callable[[int], int]
        if low is None:
            self._find = partial(text.find, literals[0])
        else:
            self._find = partial(low.find, literals[0].lower().encode())
        self._first = self._places = 0
        self._rest: Iterator[re.Match[str]] | None = None
        self._last = 0

    @property
    def dense(self) -> bool:
        """Whether the literals are everywhere, as in a text that was made to be slow."""
        return self._rest is not None

    def find(self, start: int) -> tuple[int, re.Match[str]] | None:
        """Return the first place from `start` on, and the match of the pattern; use its groups only."""
        while self._rest is None:
            at = self._find(start)
            if at < 0:
                return None
            if self._are_dense(at):
                self.gave_up = self._are_too_many()
                if self.gave_up:
                    return None
                return self._find_in_rest(start)
            if self._text.startswith(self._literals, at):
                match = self._pattern.match(self._text, at + self._size)
                if match is not None:
                    return at, match
            start = at + self._size
        return self._find_in_rest(start)

    def _find_in_rest(self, start: int) -> tuple[int, re.Match[str]] | None:
        if self._rest is None or start - self._last > _SKIPPED_CHARS:
            pattern = _pattern_behind(self._literals, self._pattern, apart=self._apart)
            self._rest = pattern.finditer(self._text, start)
        for match in self._rest:
            self._last = match.start()
            if self._last >= start:
                return self._last, match
        return None

    def _are_dense(self, at: int) -> bool:
        self._places += 1
        if self._places < _DENSE_PLACES:
            return False
        first, self._first, self._places = self._first, at, 0
        return at - first < _DENSE_CHARS


def matches_after(text: str, literal: str, pattern: re.Pattern[str]) -> Iterator[tuple[int, re.Match[str]]]:
    """Yield where a literal is followed by a pattern, and the match; use only its groups."""
    places = PlacesBefore(text, (literal,), pattern)
    place = places.find(0)
    while place is not None:
        yield place
        place = places.find(place[0] + len(literal))


@cache
def _pattern_behind(literals: tuple[str, ...], pattern: re.Pattern[str], *, apart: bool) -> re.Pattern[str]:
    either = "|".join(map(re.escape, literals))
    # Three more of them follow too soon for a value of eight characters between two.
    again = f"(?!(?:[^\\n<>]{{0,{_BETWEEN_DENSE}}}?(?:{either})){{3}})" if apart else ""
    return re.compile(f"(?:{either}){again}(?={pattern.pattern})", pattern.flags)


_HARDLY_APART = 24


def as_one(before: str, value: str, after: str = "", flags: re.RegexFlag = re.NOFLAG) -> re.Pattern[str]:
    """Return a pattern for what may be a value in a text with names everywhere; its group is what to hide.

    Values that are hardly apart are one: to replace thousands of them takes several times as long as to find them.
    """
    value = f"(?:{value})(?={after})"
    return re.compile(f"{before}({value}(?:{after}(?s:.){{0,{_HARDLY_APART}}}?{before}{value}){{0,99}}+)", flags)


_IN_VALUES = "[A-Za-z0-9_+/=.~!@#%^&*-]"
WORDS_OF_VALUES = as_one(
    f"(?<![A-Za-z0-9_+/.~!@#%^&*-])(?={_IN_VALUES}{{8}})(?=[A-Za-z_+/=.~!@#%^&*-]{{0,63}}+[0-9])(?=[0-9_+/=.~!@#%^&*-]{{0,63}}+[A-Za-z])",
    f"{_IN_VALUES}++",
)
"""Words with a digit and a letter."""
_COST_IN_ANY = 128
_CHARS_OF_COST = 25
_CHARS_OF_MARK = 10
# What a look costs:
LOOK = 1  # at a place
FOUND = 1  # a secret that it finds
JUDGED = 2  # a value to judge
TABLE = 8  # a table or a list


class Looks:
    """Counts what the looks at the places of a text cost.

    A text with one secret in 75 characters is below the most. Above it, values are hidden by regular expressions and
    are not judged: rather too much than too little.
    """

    def __init__(self, text: str) -> None:
        self._chars = len(text)
        self._left = _COST_IN_ANY + len(text) // _CHARS_OF_COST

    def are_too_many(self, marks: int) -> bool:
        """Tell whether there are too many marks even to look at what follows each of them."""
        return marks > _COST_IN_ANY + self._chars // _CHARS_OF_MARK

    def take(self, cost: int = JUDGED) -> bool:
        """Count a look, and tell whether the text may have it."""
        self._left -= cost
        return self._left >= 0


def find_values(text: str, literals: tuple[str, ...], pattern: re.Pattern[str]) -> Iterator[SecretSpan]:
    """Find each literal with a pattern behind it, however the value looks; several that are close are one."""
    for match in _marks_with(literals, pattern).finditer(text):
        yield SecretSpan("secret", *match.span())


@cache
def _marks_with(literals: tuple[str, ...], pattern: re.Pattern[str]) -> re.Pattern[str]:
    either = f"(?:{'|'.join(map(re.escape, literals))})"
    return re.compile(f"(?:{either}(?:{pattern.pattern})(?:(?s:.){{0,9}}?(?={either}))?){{1,99}}+", pattern.flags)


TOKEN_REST = re.compile(r"[A-Za-z0-9_+/=.~-]*+")


def end_of_match(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Return where the match of a pattern at a place ends; the place itself without one."""
    match = pattern.match(text, at)
    return match.end() if match else at


def places_of(text: str, literal: str, start: int = 0, end: int | None = None) -> Iterator[tuple[int, int]]:
    size = len(literal)
    at = text.find(literal, start, end)
    while at >= 0:
        after = at + size
        yield at, after
        at = text.find(literal, after, end)
