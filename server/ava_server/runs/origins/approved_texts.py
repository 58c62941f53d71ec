"""The texts that a person approved, and whether a value stands in them: as a whole, as a number, or word for word.

Numbers are compared as numbers, and an IBAN, card or telephone number also without its blanks. What a model encodes or
rewrites stands in no approved text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal
from functools import cached_property
from itertools import islice
from typing import Any

from ava_roles.texts.passages import filler_words
from ava_roles.wrap import clean
from ava_server.runs.origins.call_values import is_free
from ava_server.runs.origins.compared_text import (
    plain_text,
    split_unspaced,
    stands_in,
    words_of,
    words_of_value,
)

MANY_WORDS = 8
"""From more words on, those that stand alone in approved texts are collected once."""
MOST_READ = 500_000_000
"""Characters of approved texts that are searched for one call; then only words that stand alone are found."""
MOST_NUMBERS = 20_000
"""Numbers with separators in approved texts that are read."""
NUMBER_CHARS = 40
"""Characters of a number that is read."""
NUMBER_DIGITS = 7
"""Digits from which a number may be written with blanks in one text and without in another, as accounts are."""
_SENTENCE_ENDS = ".!?…。！？"
_BETWEEN_SPACES = re.compile(r"\S+")
_ALONE = re.compile(r"[\w@.+-]+")
_NUMBER = re.compile(r"(?<![\w.,])([-+]?\d++(?:[.,'’]\d++| \d{3}(?!\d))*+)(\w*)")
_WRITTEN = [
    (group, point, re.compile(rf"[-+]?(?:\d+|\d{{1,3}}(?:[{group}]\d{{3}})+)(?:[{point}]\d+)?"))
    for group, point in ((",", "."), (".", ","), ("'’ ", "."), ("'’ ", ","))
]
"""How numbers are written: what separates thousands, what separates decimals, and the form."""
_GROUPED = re.compile(r"(\+?)([0-9a-z(][0-9a-z ()/-]*)")
_TWO_NUMBERS = re.compile(r"([1-9][0-9]*) ?[-/] ?([1-9][0-9]*)")
"""A number in groups, as accounts, cards and telephones have it."""
_IBAN = re.compile(r"[a-z]{2}\d{2}[a-z0-9]{11,30}")


class ApprovedTexts:
    """Approved texts, each as `plain_text` returns it."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._text = "\n".join(texts)
        self._left = MOST_READ

    def has(self, leaf: Any) -> bool:
        """Tell whether a value stands in them: whole, as a number, or word for word."""
        if is_free(leaf):
            return True
        if isinstance(leaf, int | float):
            return self._has_number({Decimal(repr(leaf))}) or self._has_grouped(repr(leaf))
        plain = plain_text(leaf)
        hidden_chars = clean(leaf)[1]
        if hidden_chars:
            return False
        if plain.isascii() and not any(char.isalnum() for char in plain):  # `..` is a place, too
            return False
        if not plain.isdecimal() and self._has_within(plain):
            return True
        if self._has_grouped(plain):
            return True
        words = words_of_value(plain) - filler_words()
        if not words:  # "everything" says little, and means much
            return False
        if len(words) > MANY_WORDS:
            words -= self._words_alone
        return all(map(self._has_word, words))

    def _has_word(self, word: str) -> bool:
        if not word.isdecimal() and self._has_within(word):
            return True
        return self._has_number(number_readings(word)) or self._has_grouped(word)

    def _has_grouped(self, value: str) -> bool:
        """Tell whether an IBAN, card or telephone number stands in them as a whole, however both are grouped."""
        form = _grouped_form(value)
        if form is None or self._left <= 0 or _is_range(value):
            return False
        self._left -= len(self._text)
        return any(not _is_range(found[0]) for found in form.finditer(self._text))

    def _has_within(self, value: str) -> bool:
        if self._left <= 0:
            return value in self._words_alone
        self._left -= len(self._text)
        return stands_in(value, self._text)

    def _has_number(self, readings: set[Decimal]) -> bool:
        for number in readings:
            if number in self._separated_numbers:
                return True
            is_whole = number.is_finite() and number == number.to_integral_value()
            if is_whole and f"{number:.0f}" in self._numbers:
                return True
        return False

    @cached_property
    def _words_alone(self) -> set[str]:
        words = (word.rstrip(".") for word in _ALONE.findall(split_unspaced(self._text)))
        return {word for word in words if not word.isdecimal()}

    @cached_property
    def _numbers(self) -> set[str]:
        """The numbers as they are written, without a sign and leading zeros."""
        numbers: set[str] = set()
        for number, letters in _NUMBER.findall(split_unspaced(self._text)):
            if not letters:
                numbers.add(number.lstrip("0+") or "0")
        return numbers

    @cached_property
    def _separated_numbers(self) -> set[Decimal]:
        """What the numbers with separators may mean."""
        separated = (each for each in self._numbers if not each.isdecimal() and len(each) <= NUMBER_CHARS)
        numbers: set[Decimal] = set()
        for each in islice(separated, MOST_NUMBERS):
            numbers |= number_readings(each)
        return numbers


def new_parts(text: str, approved: ApprovedTexts) -> list[str]:
    """Return the parts of a text that do not stand in approved texts: each a row of words."""
    if approved.has(text) or approved.has(text.rstrip(_SENTENCE_ENDS)):
        return []
    parts: list[str] = []
    begin = end = -1
    for found in _BETWEEN_SPACES.finditer(text):
        words = words_of(plain_text(found[0])) - filler_words()
        if not words:
            continue
        if all(map(approved.has, words)):
            parts.append(text[begin:end])
            begin = end = -1
        else:
            begin = found.start() if begin < 0 else begin
            end = found.end()
    parts.append(text[begin:end])
    return list(filter(None, parts)) or [text]


def _grouped_form(value: str) -> re.Pattern[str] | None:
    """Return a pattern that finds a number with any blanks in it; None if it is no IBAN, card or telephone number.

    The pattern does not match a part of a longer number, nor of one that continues after a blank.
    """
    grouped = _GROUPED.fullmatch(value)
    if grouped is None:
        return None
    chars = "".join(filter(str.isalnum, grouped[2]))
    if len(chars) > NUMBER_CHARS or sum(map(str.isdigit, chars)) < NUMBER_DIGITS:
        return None
    if not chars.isdecimal() and not _is_iban(chars):
        return None
    plus = r"\+" if grouped[1] else ""
    before = rf"(?<![\w@+])(?<!\d[ .,/-]){plus}\(?"
    after = r"(?![\w@])(?![ .,/-]\d)"
    return re.compile(before + "[ ()/-]{0,2}".join(chars) + after)


def _is_range(written: str) -> bool:
    """Tell whether digits may be two numbers, from the smaller one to the larger one: `1200-1350`."""
    two = _TWO_NUMBERS.fullmatch(written)
    return two is not None and int(two[1]) < int(two[2])


def _is_iban(chars: str) -> bool:
    """Tell whether the check digits of an IBAN (ISO 13616) hold, so that no other word counts as one."""
    if not _IBAN.fullmatch(chars):
        return False
    digits = "".join(str(int(char, 36)) for char in chars[4:] + chars[:4])
    return int(digits) % 97 == 1


def number_readings(word: str) -> set[Decimal]:
    """Return what a written number can mean: 1,250 is another number in German. The parts of a date are numbers."""
    readings: set[Decimal] = set()
    for group, point, form in _WRITTEN:
        if form.fullmatch(word):
            readings.add(Decimal(re.sub(f"[{group}]", "", word).replace(point, ".")))
    if " " in word or (not readings and re.fullmatch(r"[-+]?\d[\d.,'’ ]*", word)):
        readings.update(map(Decimal, re.findall(r"\d+", word)))
    return readings
