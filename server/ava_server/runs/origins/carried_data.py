"""What may be data in a value that leaves the machine, and what of it stands in a text that the run has read.

A value is compared also by its letters and digits alone, forwards and backwards, so that signs between them hide
nothing.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from typing import Any
from urllib.parse import unquote, unquote_plus

from ava_roles.wrap import clean
from ava_server.runs.origins.compared_text import plain_text

DATA_CHARS = 8
"""Characters of a word with a digit or an `@` from which it counts as data."""
DATA_WORDS = 5
"""Words in a row from which they count as data."""
DATA_DIGITS = 11
"""Digits from which they count as data, whatever stands between them."""
GLUED_CHARS = 12
"""Characters of words without a space from which they count as data, whatever stands between them."""
SPELLED_CHARS = 3
"""Characters of a word up to which several in a row count as one that signs have split."""
MOST_UNQUOTED = 10
"""How often percent signs are decoded; what is encoded more often counts as hidden."""
_WORD = re.compile(r"[^\W_]+")
_SIGNS = re.compile(r"[\W_]+")
_DATA = re.compile(r"[\w@.+-]+|[^\s/?&=#:,;|\"'<>()]+")
_DIGITS = re.compile(rf"\d{{{DATA_DIGITS},}}")
_OTHER_DIGIT = re.compile(r"[^\D0-9]")
_SHORT_NUMBER = re.compile(r"[\d.:-]{,10}")
"""A version, a date, an amount: it tells little, and searches are full of them."""
_BASE64 = re.compile(r"[A-Za-z0-9+_-]{11,}")
_HEX = re.compile(r"(?:[0-9A-Fa-f]{2}[:\s-]?){8,}")


class CarriedData:
    """What may be data in a value that leaves the machine, also in what base64 or hex encodes in it.

    Rows of words; words with digits; and, whatever stands between them, digits, the letters of glued or spelled words,
    and windows of words with digits. Rows and windows count backwards, too. A piece is a text; a row, and a window in
    a tuple of its own, are tuples.
    """

    def __init__(self, value: str = "") -> None:
        plain, is_decoded = _unquote(value)
        self.hidden = clean(plain)[1] > 0 or not is_decoded  # what nobody sees can hold anything
        self._rows: set[tuple[str, ...]] = set()
        self._pieces: set[str] = set()
        self._close: set[str] = set()
        self._windows: set[str] = set()
        for text in _decode_all(plain):
            words = self._add_text(_fold(plain_text(text)))
            self._add_digits("".join(words))
        words = _WORD.findall(_fold(plain_text(plain)))
        backwards = [word[::-1] for word in reversed(words)]
        self._rows.update(_rows(backwards))
        self._add_digits("".join(backwards))
        for joined in ("".join(words), "".join(backwards)):
            self._windows.update(_windows(joined, DATA_CHARS))
            self._windows.update(_windows(joined, GLUED_CHARS))

    @classmethod
    def union(cls, several: Iterable[CarriedData]) -> CarriedData:
        union = cls()
        for each in several:
            union._rows |= each._rows
            union._pieces |= each._pieces
            union._close |= each._close
            union._windows |= each._windows
        return union

    @property
    def most(self) -> int:
        """How many pieces have to be looked for one by one."""
        return len(self._pieces) + len(self._close)

    def __iter__(self) -> Iterator[Any]:
        return chain(self._rows, self._pieces, self._close, ((window,) for window in self._windows))

    def found_in(self, text: str) -> set[Any]:
        """Return what of it stands in a text."""
        text = _fold(text)
        found: set[Any] = {piece for piece in self._pieces if piece in text}
        for word in _data_words(text):
            for window in self._windows_of(word):
                found.add((window,))
        if self._rows or self._close:
            words = _WORD.findall(text)
            found |= self._rows.intersection(_rows(words))
            found |= self._close_in("".join(words), text)
        return found

    def _close_in(self, joined: str, text: str) -> set[str]:
        """Return the digits and glued words that stand in the joined words of a text."""
        found: set[str] = set()
        for piece in self._close:
            if piece in joined and (piece not in text or _is_data(piece)):
                found.add(piece)
        return found

    def _windows_of(self, word: str) -> Iterator[str]:
        """Yield the windows of a word that the value has; a short word counts if all of it is there."""
        if len(word) < GLUED_CHARS:
            windows = list(_windows(word, DATA_CHARS))
            if self._windows.issuperset(windows):
                yield from windows
            return
        for window in _windows(word, GLUED_CHARS):
            if window in self._windows and any(map(str.isdigit, window)):
                yield window

    def _add_text(self, plain: str) -> list[str]:
        """Add the rows, pieces and glued words of a text, and return its words."""
        words = _WORD.findall(plain)
        self._rows.update(_rows(words))
        for found in _DATA.findall(plain):
            self._pieces.update(filter(_is_data, (found, *_SIGNS.split(found))))
        for word in (*words, *_join_short_words(words)):
            last = len(word) - GLUED_CHARS
            if last >= 0:
                starts = {*range(0, last, GLUED_CHARS // 2), last}
                self._close.update(word[at : at + GLUED_CHARS] for at in starts)
        return words

    def _add_digits(self, joined: str) -> None:
        for digits in _DIGITS.findall(joined):
            self._close.update(_windows(digits, DATA_DIGITS))


def _windows(text: str, chars: int) -> Iterator[str]:
    """Yield each part of a text that is `chars` long, one for each place."""
    for at in range(len(text) - chars + 1):
        yield text[at : at + chars]


def _data_words(text: str) -> Iterator[str]:
    """Yield the letters and digits of each word of a text that counts as data."""
    if not any(map(str.isdigit, text)):
        return
    for found in _DATA.findall(text):
        if _is_data(found):
            word = "".join(_WORD.findall(found))
            if len(word) >= DATA_CHARS and any(map(str.isdigit, word)):
                yield word


def _join_short_words(words: Sequence[str]) -> Iterator[str]:
    """Yield the words that very short ones in a row make: signs may have split a longer word."""
    for is_short, several in groupby(words, lambda word: len(word) <= SPELLED_CHARS):
        if is_short:
            yield "".join(several)


def _rows(words: Sequence[str]) -> Iterator[tuple[str, ...]]:
    return zip(*(words[at:] for at in range(DATA_WORDS)), strict=False)


def _is_data(word: str) -> bool:
    if len(word) < DATA_CHARS or _SHORT_NUMBER.fullmatch(word):
        return False
    return any(char.isdigit() or char == "@" for char in word)


class _NoMarks(dict[int, str | None]):
    """A table for `str.translate` that leaves combining marks out; it looks each character up once."""

    def __missing__(self, code: int) -> str | None:
        char = chr(code)
        self[code] = None if unicodedata.category(char) in ("Mn", "Me") else char
        return self[code]


_NO_MARKS = _NoMarks()


def _fold(plain: str) -> str:
    """Return a text with one form for letters and digits that look alike, such as fullwidth ones and accented ones."""
    if plain.isascii():
        return plain
    letters = unicodedata.normalize("NFKD", plain).translate(_NO_MARKS)
    folded = unicodedata.normalize("NFKC", letters).lower()
    return _OTHER_DIGIT.sub(lambda found: str(unicodedata.decimal(found[0])), folded)


def _unquote(value: str) -> tuple[str, bool]:
    """Return a text without percent encoding, and whether all of it was decoded: it may be encoded several times."""
    plain = unquote_plus(value)
    for _each in range(MOST_UNQUOTED):
        again = unquote(plain)
        if again == plain:
            return plain, True
        plain = again
    return plain, False


def _decode_all(plain: str) -> Iterator[str]:
    """Yield a text, and each text that base64 or hex may encode in it."""
    yield plain
    for encoded in {*_BASE64.findall(plain), *_BASE64.findall(plain.replace("/", "_"))}:
        body = encoded.replace("-", "+").replace("_", "/")
        for begin in range(4):  # what stands before it may look like a part of it
            text = body[begin:]
            with contextlib.suppress(binascii.Error):
                yield base64.b64decode(text + "=" * (-len(text) % 4)).decode(errors="replace")
    for encoded in _HEX.findall(plain):
        digits = "".join(filter(str.isalnum, encoded))
        for begin in range(2):
            end = len(digits) - (len(digits) - begin) % 2
            yield bytes.fromhex(digits[begin:end]).decode(errors="replace")
