"""How texts are compared, to tell where the values of a call come from: without case, with equal spaces, by the word.

No function takes much longer for a long text than its length: a hostile text must not hold up other runs.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Mapping
from functools import lru_cache

from ava_extras import has_extra, load
from ava_roles.texts.passages import UNSPACED
from ava_roles.wrap import clean

MOST_INSIDE = 1_000
"""How many places inside of longer words are looked at, before a word counts as one that does not stand alone."""
MOST_AROUND = 40
"""Characters beside a place by which it is told whether words end there, in scripts without spaces."""
_AROUND = "()[]{}<>\"'`,.;:!?“”‘’«»、。，；：！？「」『』（）《》"
_SPLIT = re.compile(r"[\s,;|、。，；：！？]+")
_GLUED = re.compile(f"[{UNSPACED}\uac00-\ud7a3]+")
"""Scripts without spaces, and Korean, whose particles follow a word: an address may stand right beside them."""
_HANGUL = re.compile("[\uac00-\ud7a3]")
_UNSPACED_CHAR = re.compile(f"[{UNSPACED}]")
_KANA = re.compile("[\u3040-\u30ff]")
_ONE_SCRIPT = re.compile(
    "[\u0e00-\u0eff]+|[\u1780-\u17ff]+|[\u3040-\u309f]+|[\u30a0-\u30ff]+|[\u3005\u3400-\u9fff\uf900-\ufaff]+"
)
_KOREAN_PARTICLE = (
    "(?:님|씨|들)?"
    "(?:에게서?|한테서?|께서?|에서[는도]?|으?로부터|으?로[는도]?|부터|까지[는도]?|보다|처럼|마다|이?나|이?랑|하고|이?라고"
    "|이?라는|이?며|이?고|에[는도]?|[만도은는이가을를의와과])?"
)
_PARTICLE = re.compile(f"{_KOREAN_PARTICLE}(?:입니다|이에요|예요)?(?![\uac00-\ud7a3])")
"""What may follow a Korean noun without a space."""
_NEGATIONS = frozenset((
    "不", "不要", "不用", "不能", "不得", "不可", "不许", "不許", "不准", "不必", "不会", "不再", "别", "別", "勿",
    "请勿", "切勿", "莫", "毋", "甭", "未", "未经", "没", "没有", "沒", "沒有", "禁止", "严禁", "嚴禁", "无", "無",
    "非", "ไม่", "อย่า", "ห้าม", "งด",
))  # fmt: skip
"""Words of Chinese, Japanese and Thai that deny the word after them."""
_NEGATED = re.compile(
    "[をはもがに]?[しさせわらかがたなばまきりいちえけれめべ]{0,2}(?:ない|ません|ず(?!つ)|ぬ)"
    "|禁止"
    f"|{_KOREAN_PARTICLE} ?(?:하지|금지|말고|없이|말아|안 )"
)
"""What denies the Japanese or Korean word before it."""
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
    if not any(words):
        return {plain}
    if not words[-1]:
        words[-2:] = [plain[plain.rindex(words[-2]) :]]
    if not words[0]:
        words[:2] = [plain[: plain.index(words[1]) + len(words[1])]]
    return set(words)


def split_unspaced(text: str) -> str:
    """Return a text with line ends in place of scripts without spaces."""
    return text if text.isascii() else _GLUED.sub("\n", text)


def stands_in(value: str, text: str) -> bool:
    """Tell whether a value stands in a text, and not as a part of a longer word, address or number.

    In scripts without spaces, both its ends must be ends of words, and no negation may stand beside it.
    """
    at = text.find(value)
    for _each in range(MOST_INSIDE):
        if at < 0:
            return False
        end = at + len(value)
        if _begins_word(text, at) and _ends_word(text, end) and not _is_denied(text, at, end):
            return True
        at = text.find(value, at + 1)
    return False


def _begins_word(text: str, at: int) -> bool:
    before, first = text[at - 1 : at], text[at]
    if not before:
        return True
    if _continues(before, "_@.+-"):
        return False
    if _HANGUL.match(before) and _HANGUL.match(first):
        return False
    return not _is_unspaced(before, first) or at in _pieces_around(text, at)


def _ends_word(text: str, end: int) -> bool:
    last, after = text[end - 1], text[end : end + 2]
    if not after:
        return True
    if _continues(after[0], "_@+-") or (after[0] == "." and after[1:].isalnum()):
        return False
    if _HANGUL.match(last) and _HANGUL.match(after):
        return _PARTICLE.match(text, end) is not None and text[end - 2 : end - 1].isalnum()
    return not _is_unspaced(last, after) or end in _pieces_around(text, end)


def _continues(char: str, signs: str) -> bool:
    return char in signs or (char.isalnum() and _GLUED.match(char) is None)


def _is_denied(text: str, at: int, end: int) -> bool:
    """Tell whether a negation stands right beside a value: without spaces, it is no word of its own to look at."""
    if not text[at - 1 : at].isascii() and _is_unspaced(text[at - 1], text[at]):
        piece = _pieces_around(text, at).get(at, "")
        if piece in _NEGATIONS:
            return True
    return _GLUED.match(text[end - 1]) is not None and _NEGATED.match(text, end) is not None


def _is_unspaced(first: str, second: str) -> bool:
    return _UNSPACED_CHAR.match(first) is not None and _UNSPACED_CHAR.match(second) is not None


def _pieces_around(text: str, place: int) -> Mapping[int, str]:
    """Return the words around a place in a text without spaces: each by where in the text it ends."""
    first = last = place
    while first > 0 and place - first < MOST_AROUND and _UNSPACED_CHAR.match(text[first - 1]):
        first -= 1
    while last < len(text) and last - place < MOST_AROUND and _UNSPACED_CHAR.match(text[last]):
        last += 1
    pieces: dict[int, str] = {}
    for piece in _split_unspaced(text[first:last]):
        first += len(piece)
        pieces[first] = piece
    return pieces


@lru_cache(maxsize=4_096)
def _split_unspaced(run: str) -> tuple[str, ...]:
    """Return the words of a text without spaces, by ICU's dictionaries; without them, the parts of one script."""
    if not has_extra("languages"):
        return tuple(_ONE_SCRIPT.findall(run))
    language = "ja" if _KANA.search(run) else "zh"  # Thai, Lao and Khmer have dictionaries for either
    return tuple(load("languages").WordBreaker(run, language))


def without_words(words: Collection[str], text: str) -> str:
    """Return a text without these words, the longest first."""
    for word in sorted(words, key=len, reverse=True):
        if word in text:
            text = re.sub(rf"(?<![\w@.+-]){re.escape(word)}(?![\w@+-]|\.\w)", "\n", text)
    return text
