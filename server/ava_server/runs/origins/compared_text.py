"""How texts are compared, to tell where the values of a call come from: without case, with equal spaces, by the word.

No function takes much longer for a long text than its length: a hostile text must not hold up other runs.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection

from ava_roles.texts.passages import UNSPACED
from ava_roles.wrap import clean

MOST_INSIDE = 1_000
"""How many places inside of longer words are looked at, before a word counts as one that does not stand alone."""
_AROUND = "()[]{}<>\"'`,.;:!?“”‘’«»、。，；：！？「」『』（）《》"
_SPLIT = re.compile(r"[\s,;|、。，；：！？]+")
_GLUED = re.compile(f"[{UNSPACED}\uac00-\ud7a3]+")
"""Scripts without spaces, and Korean, whose particles follow a word: an address may stand right beside them."""
_ROW_OF_ACCENTS = re.compile(r"[^\w\s\x00-\x7f]{30}")
"""As long as rows are in Unicode's Stream-Safe Text Format (UAX 15): to compose longer ones takes quadratic time."""


def plain_text(text: str) -> str:
    """Return a text as it is compared: cleaned, in lower case, with single spaces, and composed (NFC)."""
    plain = " ".join(clean(text)[0].lower().split())
    if plain.isascii():
        return plain
    return unicodedata.normalize("NFC", _ROW_OF_ACCENTS.sub("\\g<0>\u034f", plain))  # U+034F is not an accent


def words_of(plain: str) -> set[str]:
    return {word.strip(_AROUND) for word in _SPLIT.split(plain)} - {""}


def words_of_value(plain: str) -> set[str]:
    """Return the words of a value with all signs around them: `:main` is another branch than `main`, or none.

    A sign that separates words is a part of the word beside it where it begins or ends the value.
    """
    words = _SPLIT.split(plain)
    if not words[-1]:
        words[-2:] = [plain[plain.rindex(words[-2]) :]]
    if not words[0]:
        words[:2] = [plain[: plain.index(words[1]) + len(words[1])]]
    return set(words)


def split_unspaced(text: str) -> str:
    """Return a text with line ends in place of scripts without spaces."""
    return text if text.isascii() else _GLUED.sub("\n", text)


def stands_in(value: str, text: str) -> bool:
    """Tell whether a value stands in a text, and not as a part of a longer word, address or number."""
    at = text.find(value)
    for _each in range(MOST_INSIDE):
        if at < 0:
            return False
        end = at + len(value)
        if not _is_inside(text[at - 1 : at], text[end : end + 2]):
            return True
        at = text.find(value, at + 1)
    return False


def _is_inside(before: str, after: str) -> bool:
    """Tell whether a word continues to one of its sides: the character before it, and the two after it."""
    if before and _continues(before, "_@.+-"):
        return True
    if not after:
        return False
    if _continues(after[0], "_@+-"):
        return True
    return after[0] == "." and after[1:].isalnum()


def _continues(char: str, signs: str) -> bool:
    return char in signs or (char.isalnum() and _GLUED.match(char) is None)


def without_words(words: Collection[str], text: str) -> str:
    """Return a text without these words, the longest first."""
    for word in sorted(words, key=len, reverse=True):
        if word in text:
            text = re.sub(rf"(?<![\w@.+-]){re.escape(word)}(?![\w@+-]|\.\w)", "\n", text)
    return text
