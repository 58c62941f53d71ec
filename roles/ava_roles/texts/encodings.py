"""The encoding of a text: found by its mark, a label or a guess, and said wherever the text is shown.

The guess is chardet's, from samples of bounded size; then the whole text must decode, or the next candidate is tried.
Names are Python's codecs; `encoding_name` has the names for people.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from ava_roles.texts.markup import find_label

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_NAMES = {
    "utf-8": "UTF-8",
    "utf-16-le": "UTF-16",
    "utf-16-be": "UTF-16 (big-endian)",
    "utf-32-le": "UTF-32",
    "utf-32-be": "UTF-32 (big-endian)",
    "gb18030": "GB18030",
    "big5hkscs": "Big5",
    "cp950": "Big5 (Windows-950)",
    "cp932": "Shift-JIS",
    "euc_jp": "EUC-JP",
    "euc_jis_2004": "EUC-JP (JIS X 0213)",
    "shift_jis_2004": "Shift-JIS (JIS X 0213)",
    "iso2022_jp": "ISO-2022-JP",
    "cp949": "EUC-KR (Windows-949)",
    "iso2022_kr": "ISO-2022-KR",
    "hz": "HZ-GB-2312",
    "mac_roman": "Mac OS Roman",
    "mac_cyrillic": "Mac OS Cyrillic",
    "koi8_r": "KOI8-R",
    "koi8_u": "KOI8-U",
    "cp866": "CP866",
    "cp874": "Windows-874",
    **{f"cp{number}": f"Windows-{number}" for number in range(1250, 1259)},
    **{f"iso8859_{number}": f"ISO-8859-{number}" for number in (1, 2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)},
}
_WIDER = {
    "ascii": "cp1252",
    "iso8859_1": "cp1252",
    "iso8859_9": "cp1254",
    "iso8859_11": "cp874",
    "tis_620": "cp874",
    "big5": "big5hkscs",
    "euc_jis_2004": "euc_jp",
    "shift_jis_2004": "cp932",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
}
"""What browsers read instead of an encoding: a set that has all of its characters, and more."""
_UTF_OF_BROWSERS = {"utf-16": "utf-16-le", "utf-8-sig": "utf-8"}
"""Names of Python for an encoding with a byte order mark, and what browsers take them for."""
_LABELS = {
    **dict.fromkeys(("big5", "cn_big5", "x_x_big5"), "big5hkscs"),
    **dict.fromkeys(("x_sjis", "ms932", "windows_31j", "ms_kanji", "csshiftjis"), "cp932"),
    **dict.fromkeys(
        ("x_gbk", "chinese", "csgb2312", "csiso58gb231280", "gb_2312", "gb_2312_80", "iso_ir_58"), "gb18030"
    ),
    **dict.fromkeys(("x_euc_jp", "cseucpkdfmtjapanese"), "euc_jp"),
    **dict.fromkeys(("ks_c_5601_1987", "ks_c_5601_1989", "ks_c_5601", "korean", "cseuckr", "windows_949"), "cp949"),
    **dict.fromkeys(("csksc56011987", "iso_ir_149", "ksc5601", "ksc_5601"), "cp949"),
    **dict.fromkeys(("cskoi8r", "koi", "koi8"), "koi8_r"),
    "koi8_ru": "koi8_u",
    **dict.fromkeys(("dos_874", "windows_874", "iso_8859_11", "iso8859_11", "iso885911"), "cp874"),
    **dict.fromkeys(("x_mac_roman", "mac", "csmacintosh"), "mac_roman"),
    **dict.fromkeys(("x_mac_cyrillic", "x_mac_ukrainian"), "mac_cyrillic"),
    **dict.fromkeys(("ascii", "us_ascii", "ansi_x3.4_1968", "x_user_defined"), "cp1252"),
    **dict.fromkeys(("logical", "csiso88598i", "iso_8859_8_i", "visual", "csiso88598e", "iso_8859_8_e"), "iso8859_8"),
    **dict.fromkeys(("iso_8859_6_e", "iso_8859_6_i", "csiso88596e", "csiso88596i"), "iso8859_6"),
    "sun_eu_greek": "iso8859_7",
    "csiso885915": "iso8859_15",
    "csisolatin9": "iso8859_15",
    **dict.fromkeys(("unicode_1_1_utf_8", "unicode11utf8", "unicode20utf8", "x_unicode20utf8"), "utf-8"),
    **dict.fromkeys(("unicode", "ucs_2", "iso_10646_ucs_2", "csunicode", "unicodefeff"), "utf-16-le"),
    "unicodefffe": "utf-16-be",
    **{f"x_cp{number}": f"cp{number}" for number in range(1250, 1259)},
    **{f"iso8859{number}": f"iso8859_{number}" for number in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15)},
    "iso88591": "cp1252",
    "iso88599": "cp1254",
}
"""Labels of browsers that Python does not know, or takes for another encoding."""
_CANDIDATES = (
    *("gb18030", "big5hkscs", "cp932", "euc_jis_2004", "cp949", "koi8-r", "koi8-u", "cp866", "cp874"),
    *(f"cp{number}" for number in range(1250, 1259)),
    *(f"iso8859-{number}" for number in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 13, 14, 15, 16)),
)
"""What is guessed; chardet also knows those of DOS, old Macs and mainframes, which would win over these too often."""
_RELATED = {"big5hkscs": ("cp950",), "cp932": ("shift_jis_2004",), "euc_jp": ("euc_jis_2004",)}
"""Sets to try, if a text has characters that the usual one lacks."""

_WINDOWS = {"iso8859_7": "cp1253", "iso8859_8": "cp1255", "iso8859_13": "cp1257", "iso8859_2": "cp1250"}

_ESCAPES = {"iso2022_jp": (b"\x1b$", b"\x1b(J", b"\x1b(I"), "iso2022_kr": (b"\x1b$)C",)}  # all of their bytes are ASCII
_JIS_PIECE = re.compile(rb"(?:\x1b(\([BJI]|\$[@B]))?([^\x1b]*)")
_PRIVATE_USE = re.compile("[\ue000-\uf8ff]")
"""What Python's codec of Shift-JIS makes of bytes that have no meaning."""
_HEAD_BYTES = 1_024
_XML_LABEL = re.compile(r"""<\?xml\s[^>]*?\sencoding\s*=\s*["']([\w.:-]+)""")
_CODING = re.compile(r"""\A(?:[^\n]*\n)?[ \t]*(?:#|//|;|"|%|/\*|\.\\")[^\n]*?coding[:=][ \t]*([\w.-]+)""")
_STYLE_LABEL = re.compile(r"""\A@charset "([\w.:-]+)";""")
_CONTROLS = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")
_HIGH = re.compile(rb"[\x80-\xff]")
_C1 = re.compile(rb"[\x80-\x84\x86-\x9f]")
"""Controls in ISO-8859, which no text has, and letters or quotes in the sets of Windows."""
_SAMPLE_BYTES = 24_000
_SPAN_BYTES = 2_000
_CHARS_FOR_EACH_BROKEN = 3


@dataclass(frozen=True)
class Decoded:
    """A text with its encoding. `mark`: its byte order mark, which is not in the text.

    `guessed`: nothing says what the encoding is. `replaced`: how many characters stand for bytes that mean nothing in
    it.
    """

    text: str
    codec: str
    mark: bytes = b""
    guessed: bool = False
    replaced: int = 0

    @property
    def encoding(self) -> str:
        return encoding_name(self.codec)

    @property
    def note(self) -> str:
        """Return what a reader should know: "read as Windows-1251"; empty for valid UTF-8."""
        if self.replaced:
            pieces = "1 broken piece is" if self.replaced == 1 else f"{self.replaced:,} broken pieces are"
            return f"read as {self.encoding}; {pieces} shown as \N{REPLACEMENT CHARACTER}"
        if self.codec == "utf-8":
            return ""
        return f"read as {self.encoding}"


def encoding_name(codec: str) -> str:
    return _NAMES.get(codec, codec)


def decode(data: bytes, label: str = "", *, cut: bool = False) -> Decoded | None:
    """Return bytes as text; None if they are binary. Blocking for at most some tenths of a second per 10 MB.

    The first of these that fits decides: a byte order mark; UTF-8, which no other encoding looks like; `label`, e.g. of
    a header; the label in the text itself, both as browsers read them; a guess. `cut` means that there are more bytes,
    so the last character may be incomplete.
    """
    for mark, codec in _MARKS:
        if data.startswith(mark):
            return _replace_broken(data[len(mark) :], codec, mark, cut=cut)
    labels = list(filter(None, (codec_of_label(label), _label_inside(data))))
    valid = _decode_without_guess(data, labels, cut)
    if valid is not None:
        return valid
    utf16 = _guess_utf16(data)
    if utf16 is not None:
        return _replace_broken(data, utf16, cut=cut, guessed=True)
    if b"\0" in data[:65_536]:
        return None
    with_escapes = _decode_with_escapes(data, cut)
    if with_escapes is not None:
        return with_escapes
    if data.isascii():
        return Decoded(data.decode("ascii"), "utf-8")
    for codec in (*labels, "utf-8"):
        broken = _replace_broken(data, codec, cut=cut)
        if _count_non_ascii(broken.text) - broken.replaced >= _CHARS_FOR_EACH_BROKEN * broken.replaced:
            return broken
    return _guess(data, cut)


def _decode_without_guess(data: bytes, labels: Sequence[str], cut: bool) -> Decoded | None:
    """Return a text that is valid in UTF-8, or in the encoding of a label; None otherwise.

    ASCII alone does not count as UTF-8 here: it may have the escape sequences of another encoding.
    """
    if not data.isascii():
        text = _decode_text(data, "utf-8", cut)
        if text is not None:
            return Decoded(text, "utf-8")
    for codec in labels:
        if codec == "utf-8":
            continue
        text = _decode_text(data, codec, cut)
        if text is not None:
            return Decoded(text, codec)
    return None


def _decode_with_escapes(data: bytes, cut: bool) -> Decoded | None:
    """Return a text in an encoding that is known by its escape sequences, such as ISO-2022-JP."""
    for codec, escapes in _ESCAPES.items():
        if any(escape in data for escape in escapes):
            text = _decode_strictly(data, codec, cut)
            if text is None and codec == "iso2022_jp":
                text = _decode_windows_jis(data, cut)
            if text is not None:
                return Decoded(text, codec, guessed=True)
    return None


def _decode_windows_jis(data: bytes, cut: bool) -> str | None:
    """Return ISO-2022-JP as mailers of Windows write it (code page 50221); None if it is something else.

    It has signs that the standard lacks, such as ① and ㈱, at places where Shift-JIS of Windows has them too, and
    katakana of half width. Python has no codec for it.
    """
    if not data.isascii():
        return None
    pieces: list[str] = []
    charset = b"(B"
    at = 0
    while at < len(data):
        match = _JIS_PIECE.match(data, at)
        if match is None or match.end() == at:  # another escape sequence
            return None
        at = match.end()
        charset = match[1] or charset
        if charset == b"(I":
            encoded = bytes(byte | 0x80 if byte > 0x20 else byte for byte in match[2])
        elif charset.startswith(b"("):
            encoded = match[2]
        else:
            encoded = _shift_jis(match[2], cut)
        text = _decode_strictly(encoded, "cp932", cut)
        if text is None or _PRIVATE_USE.search(text):
            return None
        pieces.append(text)
    return "".join(pieces)


def _shift_jis(pairs: bytes, cut: bool) -> bytes:
    """Return pairs of bytes of JIS X 0208 in Shift-JIS; other bytes, such as ends of lines, stay."""
    encoded = bytearray()
    at = 0
    while at < len(pairs):
        row = pairs[at]
        if row < 0x21:
            encoded.append(row)
            at += 1
            continue
        if at + 1 == len(pairs):
            if not cut:
                encoded.append(0x81)  # half a character in Shift-JIS too
            break
        encoded += _shift_jis_pair(row, pairs[at + 1])
        at += 2
    return bytes(encoded)


def _shift_jis_pair(row: int, cell: int) -> bytes:
    """Convert a pair as Lunde, "CJKV Information Processing", does."""
    first = (row + 1) // 2 + (0x70 if row < 0x5F else 0xB0)
    if row % 2 == 0:
        second = cell + 0x7E
    elif cell < 0x60:
        second = cell + 0x1F
    else:
        second = cell + 0x20
    return bytes((first, second))


def _label_inside(data: bytes) -> str | None:
    """Return the codec that a text names in its first 1,024 bytes, as pages, XML, style sheets and programs do.

    In a page, a label of UTF-16 means UTF-8: otherwise it could not be read.
    """
    head = data[:_HEAD_BYTES].decode("latin-1")
    if head.startswith("<\0?\0x"):
        return "utf-16-le"
    if head.startswith("\0<\0?"):
        return "utf-16-be"
    codec = codec_of_label(_find_label(head))
    if codec is not None and codec.startswith("utf-16"):
        return "utf-8"
    return codec


def _find_label(head: str) -> str:
    """Return the label in the beginning of a text; empty without one."""
    page = head.lstrip()
    if page.startswith("<"):
        label = find_label(head)
        if label:
            return label
        match = _XML_LABEL.match(page)
    else:
        match = _STYLE_LABEL.match(head) or _CODING.match(head)
    return "" if match is None else match[1]


def codec_of_label(label: str) -> str | None:
    """Return Python's name of the codec that browsers use for a label; None for an unknown label."""
    plain = label.strip().lower()[:40].replace("-", "_").replace(":", "_")
    if plain.startswith("iso_8859"):  # iso_8859_1:1987
        plain = re.sub(r"_(?:19|20)\d\d\Z", "", plain)
    if plain in _LABELS:
        return _LABELS[plain]
    try:
        python_name = codecs.lookup(plain).name
    except (LookupError, ValueError):
        return None
    if python_name in _UTF_OF_BROWSERS:
        codec = _UTF_OF_BROWSERS[python_name]
    elif python_name.startswith("utf"):
        codec = python_name
    else:
        codec = python_name.replace("-", "_")
    codec = _WIDER.get(codec, codec)  # a page labelled latin_1 is read as cp1252
    return codec if codec in _NAMES else None


def _guess(data: bytes, cut: bool) -> Decoded:
    candidates = _ranked(_sample(data))
    has_c1 = _C1.search(data) is not None
    for codec in candidates:
        if has_c1 and codec.startswith("iso8859"):
            codec = _WINDOWS.get(codec, "cp1252")
        for each in (codec, *_RELATED.get(codec, ())):
            text = _decode_strictly(data, each, cut)
            if text is None:
                continue
            windows = _WINDOWS.get(each)
            if windows is not None and _decode_strictly(data, windows, cut) == text:
                return Decoded(text, windows, guessed=True)  # the commoner one, where nothing tells them apart
            return Decoded(text, each, guessed=True)
    return _replace_broken(data, candidates[0], cut=cut, guessed=True)


def _ranked(sample: bytes) -> list[str]:
    """Return the encodings that a sample may have, the likeliest first; Windows-1252 is always one."""
    import chardet

    high = set(_HIGH.findall(sample))
    if len(high) == 1 and min(high).decode("cp1252", "replace").isalpha():
        return ["cp1252"]  # one letter tells chardet nothing
    likeliest = chardet.detect(sample, compat_names=False, include_encodings=_CANDIDATES)
    others = chardet.detect_all(sample, ignore_threshold=True, compat_names=False, include_encodings=_CANDIDATES)
    ranked: dict[str, None] = {}
    for guess in (likeliest, *others):
        name = guess["encoding"]
        codec = codec_of_label(name) if name else None
        if codec is not None:
            ranked[codec] = None
    ranked["cp1252"] = None
    return list(ranked)


def _sample(data: bytes) -> bytes:
    """Return the lines with non-ASCII bytes, from the beginning on and then from the middle, within a bound.

    A piece begins at a line or at the first such byte. It ends where no character of a multibyte encoding is cut: bytes
    below 0x30 are whole characters there.
    """
    pieces: list[bytes] = []
    size = 0
    done = 0
    for start, most in ((0, _SAMPLE_BYTES // 2), (data.find(b"\n", len(data) // 2), _SAMPLE_BYTES)):
        at = max(start, done)
        while size < most:
            high = _HIGH.search(data, at)
            if high is None:
                break
            first = high.start()
            begin = data.rfind(b"\n", max(at, first - 200), first) + 1 or first
            end = data.find(b"\n", first, begin + _SPAN_BYTES)
            if end < 0:
                end = _end_of_whole_characters(data, first, begin + _SPAN_BYTES)
            pieces.append(data[begin:end])
            size += end - begin
            at = done = data.find(b"\n", end)
            if at < 0:
                return b"\n".join(pieces)
    return b"\n".join(pieces)


def _end_of_whole_characters(data: bytes, start: int, end: int) -> int:
    if end >= len(data):
        return len(data)
    for at in range(end, start, -1):
        if data[at] < 0x30:
            return at
    return end


def _guess_utf16(data: bytes) -> str | None:
    """Return which UTF-16 a text without a mark is: read as it, the text has few scripts and no odd characters."""
    sample = data[: _SAMPLE_BYTES // 4 * 2]
    if len(sample) < 4 or _CONTROLS.search(sample) is None:
        return None
    if len(sample) % 2:  # it is the whole text, which ends with half a character
        return None
    best = None
    least = 0.2
    for codec in ("utf-16-le", "utf-16-be"):
        text = _decode_strictly(sample, codec, cut=True)
        if text is None:
            continue
        oddness = _oddness(text)
        if oddness < least:
            best = codec
            least = oddness
    return best


_ODD = frozenset(("Cc", "Cn", "Co", "Cs"))


def _oddness(text: str) -> float:
    """Return how unlike a text this is: near 0 for an ordinary one, 1 for a text in the wrong byte order."""
    blocks: set[int] = set()
    ordinary = letters_and_digits = 0
    for char in text:
        if unicodedata.category(char) in _ODD and char not in "\t\n\r\f":
            return 1.0
        if char.isalpha():
            blocks.add(_block(char))
            letters_and_digits += 1
        elif char.isdigit():
            letters_and_digits += 1
        if _is_ordinary(char):
            ordinary += 1
    if not ordinary or letters_and_digits < len(text) / 4:
        return 1.0
    oddness = len(blocks) / (len(text) + 40)  # many scripts are odd, less so in a very short text
    if ordinary < len(text) / 50:  # hardly any common character
        oddness += 0.1
    return oddness


def _is_ordinary(char: str) -> bool:
    """Tell whether a character is ASCII that is seen or white space, or a Japanese letter or sign."""
    code = ord(char)
    if code < 0x80:
        return 0x20 <= code < 0x7F or char in "\t\n\r"
    return 0x3000 <= code <= 0x30FF


def _block(char: str) -> int:
    """Return the block of 256 characters that one belongs to; those of Chinese and of Korean count as one each."""
    code = ord(char)
    if 0x4E00 <= code <= 0x9FFF:
        return 0x4E
    if 0xAC00 <= code <= 0xD7A3:
        return 0xAC
    return code >> 8


def _decode_text(data: bytes, codec: str, cut: bool) -> str | None:
    """Return None if the bytes are not valid, or have a zero character early, as only binary files do."""
    text = _decode_strictly(data, codec, cut)
    if text is None or "\0" in text[:65_536]:
        return None
    return text


def _decode_strictly(data: bytes, codec: str, cut: bool) -> str | None:
    try:
        return codecs.getincrementaldecoder(codec)("strict").decode(data, final=not cut)
    except UnicodeDecodeError:
        return None


def _replace_broken(data: bytes, codec: str, mark: bytes = b"", *, cut: bool, guessed: bool = False) -> Decoded:
    text = codecs.getincrementaldecoder(codec)("replace").decode(data, final=not cut)
    replaced = 0
    if "\N{REPLACEMENT CHARACTER}" in text and _decode_strictly(data, codec, cut) is None:
        replaced = text.count("\N{REPLACEMENT CHARACTER}")
    return Decoded(text, codec, mark, guessed, replaced)


def _count_non_ascii(text: str) -> int:
    return len(text) - len(text.encode("ascii", "ignore"))


def describe_change_of_encoding(old: bytes, new: bytes) -> str:
    """Return "Windows-1251, now UTF-8"; empty if both texts have one encoding, or one of them is binary."""
    before = decode(old)
    after = decode(new)
    if before is None or after is None:
        return ""
    if not before.text or not after.text:
        return ""
    if before.mark == after.mark and _is_same_encoding(before, after, old, new):
        return ""
    return f"{_name_with_mark(before)}, now {_name_with_mark(after)}"


def _name_with_mark(text: Decoded) -> str:
    if text.mark == codecs.BOM_UTF8:
        return f"{text.encoding} with a byte order mark"
    return text.encoding


def _is_same_encoding(before: Decoded, after: Decoded, old: bytes, new: bytes) -> bool:
    """Tell whether one encoding reads both: two guesses may differ, and ASCII is part of nearly each."""
    if before.codec == after.codec:
        return True
    if before.codec == "utf-8":
        return old.isascii() and not after.codec.startswith("utf")
    if after.codec == "utf-8":
        return new.isascii() and not before.codec.startswith("utf")
    if before.codec.startswith("utf") or after.codec.startswith("utf"):
        return False
    return _decode_strictly(new, before.codec, cut=False) is not None
