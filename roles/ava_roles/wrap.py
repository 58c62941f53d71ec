"""Untrusted text, made safe for a prompt: cleaned, marked as data, and unable to close the mark."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from importlib.resources import files

TAGS = ("tool_output", "subagent_result", "project_instructions")
"""Names of the tags that mark untrusted text; nothing inside may look like one of them."""

BAR = "│ "
"""Begins each line of untrusted text that is shown beside Ava's own."""

_NONCE = re.compile(r"[0-9A-Za-z]{8,64}")
_SOURCE_CHARS = 300

_CONTROLS = "\u0000-\u0008\u000b-\u001f\u007f-\u009f"  # C0 and C1, not \n and \t
_ASCII_CONTROLS = re.compile("[\\0-\\x08\\x0b-\\x1f\\x7f]")
_CSI = r"[0-?]*+[ -/]*+[@-~]?+"  # without its last byte: it was cut off
_STRING = r"[^\0-\x08\x0a-\x1f\x7f-\x9f]*+(?:\x07|\x1b\\|\x9c)"
# Characters that a person does not see and a model reads, and whole escape sequences of ECMA-48; none goes on in the
# next line. Variation selectors stay where one selects the look of an emoji (a single U+FE0E or U+FE0F), and are
# removed where they could carry data (in rows, and all others). All begin with one set of characters, because Python
# looks for that much faster than for alternatives. U+200C and U+200D are looked at beforehand (`_joins`).
INVISIBLE = re.compile(
    f"[{_CONTROLS}"
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # bidi marks, embeddings, isolates
    "\u00ad\u034f\u180b-\u180f\u200b\u2060-\u2065\u206a-\u206f\ufeff\ufff9-\ufffb"  # zero width
    "\u115f\u1160\u17b4\u17b5\u3164\uffa0\U0001d173-\U0001d17a"  # fillers and formatting without a glyph
    "\ufe00-\ufe0f\U000e0000-\U000e0fff"  # variation selectors, tag block
    "\ud800-\udfff"  # lone surrogates, which no provider and no database accepts
    "](?:"
    rf"(?<=\x1b)(?:\[{_CSI}|[\]PX^_]{_STRING}|[ -/]*+[0-~])"
    rf"|(?<=\x9b){_CSI}"
    rf"|(?<=[\x90\x98\x9d-\x9f]){_STRING}"
    "|(?<![\ufe0e\ufe0f])"
    "|(?<=[\ufe00-\ufe0f][\ufe0e\ufe0f])"
    ")"
)
_NON_JOINER = "\u200c"
_JOINER = "\u200d"
_BOTH = _NON_JOINER + _JOINER
_JOINERS = re.compile(f"[{_BOTH}]+")
_SKINS = "\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff"
_MOST_MARKS = 5  # between a joiner and the letter that it is about
_KNOWN = 65_536  # neighbours of a joiner
_VIRAMA = 9  # its combining class
_DUAL_JOINING = "\u0628"  # an Arabic letter that joins both ways

_ENDLESS_NUMBER = re.compile(r"&#\d{100,}+;?")
"""A reference to a character that does not exist, and whose number Python may refuse to read."""

_FIRST_TAG = re.compile(rf"<{TAGS[0]}_[0-9A-Za-z]{{8,64}}\b[^>]*>\n")

# `<` and the characters that look like it.
_LESS = "<\u00ab\u02c2\u1438\u2039\u226a\u2329\u276c\u276e\u2770\u27e8\u27ea\u29fc\u3008\u300a\ufe64\uff1c"
# The look-ahead ends at the next such character: a text full of them costs no more than its length.
_OPENING = re.compile(f"[{_LESS}](?=\\s*+([^{_LESS}]{{1,160}}))")
# Letters and digits that look like the letters of the tag names, after NFKD and case folding.
_LIKE_LETTERS = {
    "a": "4@аαɑᴀ",
    "b": "8ьвβʙ",
    "c": "сϲᴄ",
    "e": "3еεᴇ",
    "g": "9ɡɢց",
    "j": "јյᴊ",
    "l": "1!|iıɩιіӏʟꞁ",
    "n": "пηνոɴ",
    "o": "0оοσօᴏ",
    "p": "рρᴘ",
    "r": "гʀ",
    "s": "5$ѕꜱ",
    "t": "7тτᴛ",
    "u": "υʋսцᴜ",
}
_LOOKALIKES: dict[int, str] = {}
for _letter, _chars in _LIKE_LETTERS.items():
    _LOOKALIKES.update(dict.fromkeys(map(ord, _chars), _letter))
_SIGNS = re.compile(r"\A\W+")  # `/` and the like; later in a word, `|` can look like a letter


def unescape_html(text: str) -> str:
    """Return a text with HTML's references as the characters that they stand for, whatever they contain."""
    return html.unescape(_ENDLESS_NUMBER.sub("\ufffd", text))


def clean(text: str) -> tuple[str, int]:
    r"""Remove what a person does not see: bidi controls, zero-width characters, the tag block, control characters.

    Returns the text, and how many were removed. Escape sequences, such as colours, go whole and count as one. U+200C
    and U+200D stay where a script or an emoji needs them. Line ends become `\n` and do not count.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if text.isascii() and _ASCII_CONTROLS.search(text) is None:  # as nearly all are: found three times as fast
        return text, 0
    joined = text
    if _NON_JOINER in text or _JOINER in text:
        joined = _JOINERS.sub(lambda match: match[0] if _joins(text, match.start()) else "", text)
    shown, removed = INVISIBLE.subn("", joined)
    return shown, removed + len(text) - len(joined)


_PICTURES = {
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n\r"},
    0x7F: "\u2421",
    **{code: f"\u241b{chr(code - 0x40)}" for code in range(0x80, 0xA0)},  # as the two characters that mean the same
}


def show_controls(text: str) -> str:
    """Return a text that a person decides about, with pictures of control characters (`␛`), which `clean` keeps."""
    if text.isprintable():
        return text
    return text.translate(_PICTURES)


_MOST_STACKED = 4
_ROW_OF_SIGNS = re.compile(rf"[^\w\s\x00-\x7f]{{{_MOST_STACKED + 1},}}")
"""What may be a row of combining marks, which are no letters."""


def few_marks(text: str) -> str:
    """Return a text with at most four combining marks in a row: more paint over the lines above and below."""
    if text.isascii():
        return text
    return _ROW_OF_SIGNS.sub(_without_more_marks, text)


def _without_more_marks(signs: re.Match[str]) -> str:
    kept: list[str] = []
    stacked = 0
    for char in signs[0]:
        stacked = stacked + 1 if _is_mark(char) else 0
        if stacked <= _MOST_STACKED:
            kept.append(char)
    return "".join(kept)


def shown_offsets(text: str) -> list[int]:
    r"""Return the offset of each character of a text that `clean` keeps; the text's line ends are `\n`."""
    candidates: list[int] = []
    for offset, char in enumerate(text):
        if char not in _BOTH or _joins(text, offset):
            candidates.append(offset)
    visible: list[int] = []
    end = 0
    for invisible in INVISIBLE.finditer("".join(text[offset] for offset in candidates)):
        visible += candidates[end : invisible.start()]
        end = invisible.end()
    return visible + candidates[end:]


_LONE_RETURN = re.compile(r"\r(?!\n)")


def seen_offsets(text: str) -> list[int] | None:
    """Return the offset of each character of a text that is seen; None if nothing in it is hidden."""
    if not clean(text)[1]:
        return None
    return shown_offsets(_LONE_RETURN.sub("\n", text))


def _joins(text: str, at: int) -> bool:
    """Tell whether the joiner at a place changes what is seen."""
    if at == 0:
        return False
    joins = _joins_between(text[at - 1 : at], text[at : at + 2])
    if joins is not None:
        return joins
    before = " " + text[max(0, at - _MOST_MARKS) : at]
    after = text[at : at + 1 + _MOST_MARKS]
    return bool(_joins_between(before, after))


def _is_mark(char: str) -> bool:
    return unicodedata.category(char) in ("Mn", "Me") or char in _SKINS


def _first_base(chars: Iterable[str]) -> str:
    """Return the first character that is not a mark; empty if all are."""
    for char in chars:
        if not _is_mark(char):
            return char
    return ""


@lru_cache(_KNOWN)
def _joins_between(before: str, after: str) -> bool | None:
    """Tell whether the joiner with which `after` begins changes what is seen; None if that takes more context.

    By RFC 5892, appendix A, both do so after a virama, and U+200C between letters that would join. U+200D also shows
    the joining form of a letter that joins nothing there, makes one emoji of two, and comes before a virama.
    """
    joiner = after[0]
    after = after[1:]
    nearest = before[-1:]
    following = after[:1]
    if not nearest or not {nearest, following}.isdisjoint(_BOTH):  # in rows, they carry data
        return False
    if unicodedata.combining(nearest) == _VIRAMA:
        return True
    if len(before) == 1 and any(map(_is_mark, nearest + following)):
        return None
    base = _first_base(reversed(before))
    joins_left = _is_joined(f"{base}{_NON_JOINER}{_DUAL_JOINING}")
    joins_right = _is_joined(f"{_DUAL_JOINING}{_NON_JOINER}{_first_base(after)}")
    if joiner == _NON_JOINER:
        return joins_left and joins_right
    if following and unicodedata.combining(following) == _VIRAMA:
        return unicodedata.category(base or " ") == "Lo"
    if joins_left != joins_right:
        return True
    return _is_picture(base) and _is_picture(following)


def _is_joined(text: str) -> bool:
    """Tell whether the letters around a U+200C would join without it; not if one of the two is missing."""
    from idna.core import valid_contextj

    try:
        return len(text) == 3 and valid_contextj(text, 1)
    except ValueError:  # a character without a name
        return False


def _is_picture(char: str) -> bool:
    return char != "" and any(first <= ord(char) <= last for first, last in _pictographs())


@cache
def _pictographs() -> list[tuple[int, int]]:
    """Return the ranges of code points of emoji, each with its first and its last one."""
    text = files("ava_roles").joinpath("pictographs.txt").read_text(encoding="utf-8")
    ranges: list[tuple[int, int]] = []
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        for word in line.split():  # `231A-231B`, or one code point
            ends = word.split("-")
            ranges.append((int(ends[0], 16), int(ends[-1], 16)))
    return ranges


def one_line(text: str | None, most: int | None = None) -> str:
    """Return a text on one line without invisible characters; if it is longer than `most`, cut with `…`."""
    line = " ".join(clean(text or "")[0].split())
    if most is None or len(line) <= most:
        return line
    return line[: most - 1] + "…"


def list_names(names: Sequence[str], most: int = 8) -> str:
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def wrap_tool_output(text: str, *, tool: str, nonce: str, source: str | None = None, removed: int = 0) -> str:
    """Return a tool's output as the model is shown it.

    `text` is already redacted and cut; `source` is the URL or path that it comes from. `nonce` is the run's own random
    word (8 to 64 letters and digits), a part of the tag's name. The opening tag says how many invisible characters were
    removed, here and (`removed`) before. Raises ValueError if the nonce is not of that form.
    """
    about = {"tool": tool} if source is None else {"tool": tool, "source": source}
    return _wrap(text, TAGS[0], nonce, about, removed)


def wrap_project_file(text: str, *, path: str, nonce: str) -> str:
    """Return a project's text about itself as the model is shown it; arguments as `wrap_tool_output` has them."""
    return _wrap(text, TAGS[2], nonce, {"path": path}, 0)


def _wrap(text: str, tag: str, nonce: str, about: Mapping[str, str], removed: int) -> str:
    if not _NONCE.fullmatch(nonce):
        raise ValueError("a nonce is 8 to 64 letters and digits")
    body, more = clean(text)
    removed += more
    tag = f"{tag}_{nonce}"
    opening = f"<{tag}" + "".join([f' {name}="{_attribute(value)}"' for name, value in about.items()])
    if removed:
        opening += f' invisible_characters_removed="{removed}"'
    return f"{opening}>\n{_escape(body)}\n</{tag}>"


def cut_tool_output(wrapped: str, chars: int, result_id: str) -> str:
    """Return a wrapped output, or plain text, cut to its first `chars`, with a note how to read on, by `result_id`."""
    begin = 0
    end = len(wrapped)
    opening = _FIRST_TAG.search(wrapped)
    closing = wrapped.rfind("\n</")
    if opening is not None and closing >= opening.end():
        begin = opening.end()
        end = closing
    if end - begin <= chars:
        return wrapped
    note = f"[cut: {chars:,} of {end - begin:,} characters; read_tool_result {result_id} with offset {chars} goes on]"
    return f"{wrapped[: begin + chars]}{wrapped[end:]}\n{note}"


def escape_result(text: str) -> str:
    return _escape(clean(text)[0])


def add_bars(text: str, bar: str = BAR) -> str:
    """Return untrusted text with a bar at the start of each line, so that none can pass for one of Ava's."""
    return "\n".join(f"{bar}{line}".rstrip() for line in text.splitlines() or [""])


def _escape(text: str) -> str:
    """Replace `<`, and what looks like it, by `&lt;` where something like one of the tag names follows."""

    def escape_tag(match: re.Match[str]) -> str:
        is_tag = _skeleton(match[1]).startswith(_skeletons())
        return "&lt;" if is_tag else match[0]

    return _OPENING.sub(escape_tag, text)


@cache
def _skeletons() -> tuple[str, ...]:
    return tuple(map(_skeleton, TAGS))


def _skeleton(text: str) -> str:
    """Reduce text to the plain letters that it looks like, without case, accents, spaces or signs."""
    folded = unicodedata.normalize("NFKD", text).casefold()
    letters = _SIGNS.sub("", folded).translate(_LOOKALIKES)
    return "".join(char for char in letters if "a" <= char <= "z")


def _attribute(value: str) -> str:
    line = one_line(value, _SOURCE_CHARS)
    for char, entity in (("&", "&amp;"), ('"', "&quot;"), ("<", "&lt;"), (">", "&gt;")):
        line = line.replace(char, entity)
    return _escape(line)
