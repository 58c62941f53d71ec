"""Private keys in PEM: whole, cut off, in code, in diffs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from ava_audit.redaction.places import SecretSpan, end_of_match
from ava_audit.redaction.values import DIGIT, LOWER, UPPER, is_mixed

PEM_BEGIN = "-----BEGIN "
PEM_END = "-----END "
_PEM_KIND = re.compile(r"[A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----")
_PEM_LAST = re.compile(r"[A-Z0-9 ]{0,40}-----")
_PEM_BODY = re.compile(r"(?:[A-Za-z0-9+/=\s]|\\[nr])*+")
PEM_LONGEST = 20_000
_PEM_HEADERS = re.compile(
    r"(?:[\s\"'`+,#*>|.-]|\\[nrt])*+(?:(?:Proc-Type|DEK-Info|Version|Comment|Hash|Charset): [A-Za-z0-9 .,:/@-]{0,100}+"
    r"(?:[\s\"'`+,#*>|.-]|\\[nrt])++){1,5}+"
)
_PEM_BREAK = re.compile(r"(?:\s|\\[nrt])++")
_DECORATION = r"[\"'`+,#*>|/.\\-]*+"
_BASE64_CHAR = r"(?:[A-Za-z0-9+/]|\\/|&#x?[0-9A-Fa-f]{2,4};|%[0-9A-Fa-f]{2}|\\u00[0-9a-f]{2})"
_PEM_WORD = re.compile(
    r"(?:(?:[A-Za-z0-9_.-]{1,60}[:-])?[0-9]{1,6}[:|-])?" + _DECORATION + f"({_BASE64_CHAR}*+={{0,2}})" + _DECORATION
)
"""A word of a private key: a piece of base64 with quotes, signs or a line number around it, or only these."""
_LONG_BASE64 = re.compile(_BASE64_CHAR + "{40,}+={0,2}")
_KEY_WIDTH = 40
_SHORT_KEY_WIDTH = 16
_CUT_KEY_WIDTH = 20
_FEWEST_KEY_CHARS = 60
"""A whole private key has more characters; the names in `BEGIN + base64Key + END` have fewer."""


class KeyWord(NamedTuple):
    """A piece of the base64 text of a private key, and its place."""

    text: str
    start: int
    end: int


def find_private_keys(text: str) -> Iterator[SecretSpan]:
    """Find PEM private keys, including one whose end was cut off."""
    for spans, _words in pem_keys(text):
        yield from spans


def pem_keys(text: str) -> Iterator[tuple[list[SecretSpan], list[KeyWord]]]:
    """Yield what to redact of each PEM private key, and its words; no words if other text is between its marks."""
    at = text.find(PEM_BEGIN)
    end = -2
    while at >= 0:
        after = at + len(PEM_BEGIN)
        kind = _PEM_KIND.match(text, after)
        if kind is not None:
            after = kind.end()
            if end != -1 and end < after:
                end = text.find(PEM_END, after)
            spans, words = _pem(text, at, after, end)
            if spans:
                yield spans, words
                after = spans[-1].end
        at = text.find(PEM_BEGIN, after)


def _pem(text: str, start: int, after: int, end: int) -> tuple[list[SecretSpan], list[KeyWord]]:
    """Return what to redact of the key that begins at `start`, and its words.

    Its BEGIN line ends at `after`; `end` is where the next END line begins, negative if there is none.
    """
    if not 0 <= end - after <= PEM_LONGEST:
        return _cut_pem(text, start, after)
    if text.find(PEM_BEGIN, after, end) >= 0:  # that END line is another key's
        return _cut_pem(text, start, after)
    words, stop = _key_words(text, after, end)
    chars = sum(len(word.text) for word in words)
    if stop < end or chars < _FEWEST_KEY_CHARS:
        return list(_long_base64(text, after, end)), []
    end_line = _PEM_LAST.match(text, end + len(PEM_END))
    return [SecretSpan("private-key", start, end_line.end() if end_line else end)], words


def _cut_pem(text: str, start: int, after: int) -> tuple[list[SecretSpan], list[KeyWord]]:
    words, _stop = _key_words(text, after, end_of_match(_PEM_BODY, text, after))
    if not any(len(word.text) >= _CUT_KEY_WIDTH for word in words):
        return [], []
    return [SecretSpan("private-key", start, words[-1].end)], words


def _key_words(text: str, at: int, end: int) -> tuple[list[KeyWord], int]:
    """Return the words of a private key from a place on, and where they stop: at `end` if there is no other text.

    Lines of code between the marks must not count: a coder could hide them from the person who reviews them.
    """
    headers = _PEM_HEADERS.match(text, at, end)
    if headers:
        at = headers.end()
    words: list[KeyWord] = []
    has_last_line = False
    while at < end:
        gap = _PEM_BREAK.search(text, at, end)
        stop, next_at = gap.span() if gap else (end, end)
        match = _PEM_WORD.fullmatch(text, at, stop)
        if match is None:
            return words, at
        word = match[1]
        is_line_number = word.isdigit() and len(word) <= 6
        if word and not is_line_number:
            if has_last_line or not _may_end_a_key(word):
                return words, at
            has_last_line = not _is_key_line(word)
            words.append(KeyWord(word, match.start(1), match.end(1)))
        at = next_at
    return words, end


def _is_key_line(word: str) -> bool:
    if UPPER.search(word) is None or LOWER.search(word) is None:
        return False
    if len(word) >= _KEY_WIDTH:
        return True
    return len(word) >= _SHORT_KEY_WIDTH and DIGIT.search(word) is not None


def _may_end_a_key(word: str) -> bool:
    """Tell whether a word can be the last line of a private key: `exit` and `return` cannot."""
    if len(word) >= _SHORT_KEY_WIDTH:
        return _is_key_line(word)
    return not is_plain_word(word)


def is_plain_word(text: str) -> bool:
    """Tell whether a text is letters that are written as in a word: `exit`, `Exit` or `EXIT`."""
    if not text.isalpha():
        return False
    return text[1:].islower() or text.isupper()


def _long_base64(text: str, start: int, end: int) -> Iterator[SecretSpan]:
    for match in _LONG_BASE64.finditer(text, start, end):
        if _is_key_line(match[0]) and DIGIT.search(match[0]):
            yield SecretSpan("private-key", match.start(), match.end())


KEY_TOKEN = re.compile(r"[A-Za-z0-9+/]{16,}+={0,2}")
_BETWEEN = re.compile(
    r"={0,2}[\"'`+,;|.\\ \t-]{0,12}(?:[\r\n]|\\[nr]){1,4}(?:[A-Za-z0-9_./-]{1,60}[:-](?=[0-9]))?"
    r"(?:[\s\"'`+#*>|.-]|\\[nrt]){0,40}(?:[0-9]{1,6}[:|\t -])?(?:[\s\"'`+#*>|.-]|\\[nrt]){0,40}"
)
_LINE_WIDTH = 40
"""The fewest characters of a line of a private key, except for the last line."""
_BETWEEN_LINES = 40
"""The most characters between two lines of a private key: line ends, quotes, a line number."""


def find_key_ends(text: str) -> Iterator[SecretSpan]:
    """Find the end of a PEM private key whose beginning is missing: lines of one width before an END line."""
    done = 0
    at = text.find(PEM_END)
    while at >= 0:
        after = at + len(PEM_END)
        kind = _PEM_KIND.match(text, after)
        if kind is not None:
            after = kind.end()
            low = max(done, at - PEM_LONGEST)
            start, width = _key_start(text, low, at)
            if start is not None:
                # The last line alone counts only if the BEGIN line is missing: between both, it may be a name in code.
                has_begin = text.rfind(PEM_BEGIN, low, at) >= 0
                if width or not has_begin:
                    yield SecretSpan("private-key", start, after)
            done = after
        at = text.find(PEM_END, after)


def _key_start(text: str, low: int, end: int) -> tuple[int | None, int]:
    """Return where the lines of a key that ends at `end` begin (None: no key), and how wide they are (0: one line)."""
    width = 0
    start = None
    next_start = end
    for token in reversed(list(KEY_TOKEN.finditer(text, low, end))):
        if not _may_be_between_lines(text[token.end() : next_start]):
            break
        line = token[0]
        if start is None:
            if not is_mixed(line):
                break
        elif not width and len(line) >= max(_LINE_WIDTH, end - start - _BETWEEN_LINES):
            width = len(line)
        elif len(line) != width:
            # The first line of an output may begin in the middle of a line of the key.
            if len(line) < width and is_mixed(line):
                return token.start(), width
            return start, width
        start = next_start = token.start()
    return start, width


def _may_be_between_lines(text: str) -> bool:
    if len(text) > _BETWEEN_LINES or "---" in text:
        return False
    return _BETWEEN.fullmatch(text) is not None
