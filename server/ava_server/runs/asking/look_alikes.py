"""Words with letters that look like Latin ones and are not, as in an address that imitates another."""

from __future__ import annotations

import re
import unicodedata

_WORD = re.compile(r"[^\W\d_]+")
_TWINS = frozenset("АВЕЅІЈКМНОРСТХҮԚԜаеіјӏорсухѕһԁԛԝΑΒΕΖΗΙΚΜΝΟΡΤΥΧνο")
"""Cyrillic and Greek letters that look like Latin ones in most fonts."""
_LIKE_LATIN = ("CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE", "COPTIC", "LISU", "MATHEMATICAL", "FULLWIDTH")
"""How Unicode's names of such letters begin."""


def warn_of_look_alikes(value: str) -> str:
    """Return a warning if a word mixes Latin letters with look-alikes, or consists of look-alikes; else empty."""
    if value.isascii():
        return ""
    for word in _WORD.findall(value):
        letters = _letter_of_each_script(word)
        look_alike = next((letters[script] for script in letters if script in _LIKE_LATIN), "")
        if not look_alike:
            continue
        mixes_scripts = "LATIN" in letters
        only_look_alikes = len(word) > 2 and all(map(_looks_latin, word))
        if mixes_scripts or only_look_alikes:
            return f"; in {word[:40]}, {look_alike} is {unicodedata.name(look_alike).title()}"
    return ""


def _letter_of_each_script(word: str) -> dict[str, str]:
    """Return the first letter of each script in a word, by the first word of its Unicode name."""
    letters: dict[str, str] = {}
    for char in reversed(word):
        script = unicodedata.name(char, "?").split()[0]
        letters[script] = char
    return letters


def _looks_latin(char: str) -> bool:
    return char in _TWINS or unicodedata.normalize("NFKC", char).isascii()
