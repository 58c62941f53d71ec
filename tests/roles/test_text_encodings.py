"""Texts in other encodings are read and said to be, and an edit changes no other byte; long lines; names alike."""

from __future__ import annotations

import codecs
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ava_roles.errors import ToolFailed
from ava_roles.sandbox.paths import Root, shown
from ava_roles.texts.encodings import codec_of_label, decode, describe_change_of_encoding
from ava_roles.tool import ToolContext
from ava_roles.tools.editable_text import EditableText, NotWritable
from ava_roles.tools.edits import EditFile, EditFileArgs, WriteFile, WriteFileArgs
from ava_roles.tools.files import (
    FindFiles,
    FindFilesArgs,
    ReadFile,
    ReadFileArgs,
    SearchAndRead,
    SearchAndReadArgs,
    SearchArgs,
    SearchCodebase,
)
from ava_roles.worktree.spec import Edits

GERMAN = "Der Mietvertrag beginnt am ersten März, und die Kündigung muss schriftlich erfolgen. Größe: 80.\n"
POLISH = "Umowa najmu obowiązuje od stycznia, a wypowiedzenie musi być złożone na piśmie. Książka leży.\n"
RUSSIAN = "Договор аренды начинается первого марта, и плата вносится заранее. Сколько стоит квартира?\n"
UKRAINIAN = "Договір оренди починається першого березня. Її квартира має дві кімнати та ґанок.\n"
GREEK = "Η σύμβαση μίσθωσης αρχίζει την πρώτη Μαρτίου και το ενοίκιο πληρώνεται εκ των προτέρων.\n"
TURKISH = "Kira sözleşmesi Mart'ta başlıyor ve kira peşin ödeniyor. Çocuklar okula gitti; şirketin ığdırı.\n"
CHINESE = "租赁合同从三月一日开始,租金需要提前支付。孩子们穿过广场去学校,那里有一座古老的塔。\n"
TRADITIONAL = "租賃合約從三月一日開始,租金需要提前支付。孩子們穿過廣場去學校,那裡有一座古老的塔。\n"
JAPANESE = "賃貸契約は三月一日から始まり、家賃は前払いです。子供たちは広場を通って学校に行きました。\n"
KOREAN = "임대 계약은 삼월 일일부터 시작되며 임대료는 선불입니다. 아이들은 광장을 지나 학교에 갔습니다.\n"
TEXTS = [
    ("cp1252", GERMAN, "Windows-1252"),
    ("cp1250", POLISH, "Windows-1250"),
    ("iso8859_2", POLISH, "ISO-8859-2"),
    ("cp1251", RUSSIAN, "Windows-1251"),
    ("koi8_r", RUSSIAN, "KOI8-R"),
    ("iso8859_5", RUSSIAN, "ISO-8859-5"),
    ("koi8_u", UKRAINIAN, "KOI8-U"),
    ("cp1253", GREEK, "Windows-1253"),
    ("cp1254", TURKISH, "Windows-1254"),
    ("gb2312", CHINESE, "GB18030"),
    ("big5", TRADITIONAL, "Big5"),
    ("cp932", JAPANESE, "Shift-JIS"),
    ("euc_jp", JAPANESE, "EUC-JP"),
    ("iso2022_jp", JAPANESE, "ISO-2022-JP"),
    ("euc_kr", KOREAN, "EUC-KR (Windows-949)"),
    ("utf_16_le", RUSSIAN, "UTF-16"),
    ("utf_16_be", JAPANESE, "UTF-16 (big-endian)"),
    ("utf_16", GERMAN, "UTF-16"),
    ("utf_32", GERMAN, "UTF-32"),
]
each_encoding = pytest.mark.parametrize(("codec", "text", "name"), TEXTS, ids=[each[0] for each in TEXTS])


@pytest.fixture
def at(tmp_path: Path) -> ToolContext:
    return ToolContext(files=Root.open(tmp_path))


@each_encoding
async def test_reads_it_and_says_as_what(at: ToolContext, tmp_path: Path, codec: str, text: str, name: str) -> None:
    (tmp_path / "a.txt").write_bytes(text.encode(codec))
    got = await ReadFile()(ReadFileArgs(path="a.txt"), at)
    head, _, body = got.text.partition("\n\n")
    assert body == text.rstrip("\n")
    assert f"(text, read as {name}, " in head


@each_encoding
async def test_an_edit_changes_only_its_bytes(tmp_path: Path, codec: str, text: str, name: str) -> None:
    whole = text * 3 + "mark = 1\r\n" + text
    data = whole.encode(codec)
    editable = EditableText.of(data)
    assert editable.encoding == name
    at = editable.places("mark = 1")
    edited, _regions = editable.replaced(at, "mark = 1", "mark = 22")
    assert edited.data() == whole.replace("mark = 1", "mark = 22").encode(codec)


MARKS = {"utf-8": codecs.BOM_UTF8, "utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE}
KEPT = [
    ("utf-8", MARKS["utf-8"], GREEK),
    ("utf-16-le", MARKS["utf-16-le"], RUSSIAN),
    ("utf-16-be", MARKS["utf-16-be"], JAPANESE),
    *((codec, b"", text) for codec, text, _name in TEXTS if codec not in ("iso2022_jp", "utf_16", "utf_32")),
]
"""Encodings whose files are edited; ISO-2022-JP is not one, for its bytes depend on those before."""


@pytest.mark.parametrize(("codec", "mark", "text"), KEPT, ids=[f"{codec} {mark.hex()}" for codec, mark, _text in KEPT])
async def test_both_tools_keep_encoding_mark_and_line_ends(tmp_path: Path, codec: str, mark: bytes, text: str) -> None:
    (tmp_path / "tree").mkdir()
    path = tmp_path / "tree" / "a.txt"
    at = ToolContext(edits=Edits(Root.open(path.parent), ["."], tmp_path / "aside"))
    whole = text.strip() + "\r\n" + text * 2 + "mark = 1\r\n" + text.strip()

    def encoded(words: str) -> bytes:
        return mark + words.encode(codec)

    path.write_bytes(encoded(whole))
    await EditFile()(EditFileArgs(path="a.txt", old="mark = 1\n", new="mark = 22\n"), at)
    edited = whole.replace("mark = 1", "mark = 22")
    assert path.read_bytes() == encoded(edited)
    await WriteFile()(WriteFileArgs(path="a.txt", content=edited.replace("\r\n", "\n").replace("22", "333")), at)
    assert path.read_bytes() == encoded(edited.replace("22", "333"))


@st.composite
def files(draw: st.DrawFn) -> tuple[str, bytes, list[str], list[str], int]:
    """Return an encoding, a mark, lines with their ends, and the number of the line that has an `@`."""
    codec, mark, text = draw(st.sampled_from(KEPT))
    lines = [text.strip()[draw(st.integers(0, 9)) :] for _line in range(draw(st.integers(1, 5)))]
    ends = draw(st.lists(st.sampled_from(["\n", "\r\n", "\r"]), min_size=len(lines), max_size=len(lines)))
    if draw(st.booleans()):
        ends[-1] = ""
    return codec, mark, lines, ends, draw(st.integers(0, len(lines) - 1))


@given(files(), st.text("ab 1\n", max_size=9))
def test_an_edit_changes_no_other_byte(file: tuple[str, bytes, list[str], list[str], int], new: str) -> None:
    codec, mark, lines, ends, at = file
    before = "".join(line + end for line, end in zip(lines[:at], ends[:at], strict=True)) + lines[at]
    after = "".join(end + line for end, line in zip(ends[at:], [*lines[at + 1 :], ""], strict=True))
    editable = EditableText.of(mark + f"{before}@{after}".encode(codec))
    edited, _regions = editable.replaced(editable.places("@"), "@", new)
    end = ends[at] or (ends[at - 1] if at else "\n")
    assert edited.data() == mark + (before + new.replace("\n", end) + after).encode(codec)


@given(files(), st.text("ab 1", max_size=9))
def test_a_whole_file_that_is_written_keeps_what_it_leaves(
    file: tuple[str, bytes, list[str], list[str], int], new: str
) -> None:
    codec, mark, lines, ends, at = file
    lines[at] += "#"
    whole = "".join(line + end for line, end in zip(lines, ends, strict=True))
    before = EditableText.of(mark + whole.encode(codec))
    written = EditableText.of(before.text.replace("#", new).encode()).like(before)
    assert written.data() == mark + whole.replace("#", new).encode(codec)


@pytest.mark.parametrize("regex", [False, True])
async def test_both_searches_say_how_a_file_was_read(at: ToolContext, tmp_path: Path, regex: bool) -> None:
    (tmp_path / "a.txt").write_bytes(RUSSIAN.encode("cp1251"))
    (tmp_path / "b.txt").write_text("квартира\n", encoding="utf-8")
    lines = await SearchCodebase()(SearchArgs(query="квартира", regex=regex), at)
    assert "\n- a.txt: read as Windows-1251\n" in lines.text and "b.txt: read" not in lines.text
    found = await SearchAndRead()(SearchAndReadArgs(query="сколько стоит квартира"), at)
    assert "\n- a.txt: read as Windows-1251\n" in found.text and RUSSIAN.strip() in found.text


def test_utf8_with_a_few_broken_bytes_stays_utf8() -> None:
    decoded = decode(GERMAN.encode() + b"\xff\n")
    assert decoded is not None
    assert decoded.text == GERMAN + "\N{REPLACEMENT CHARACTER}\n"
    assert decoded.note == "read as UTF-8; 1 broken piece is shown as \N{REPLACEMENT CHARACTER}"
    cut = decode(GERMAN.encode() + "ü".encode()[:1], cut=True)
    assert cut is not None and (cut.text, cut.note) == (GERMAN, "")


def test_labels_mean_what_browsers_take_them_for() -> None:
    pairs = {"gb2312": "gb18030", "Shift_JIS": "cp932", "iso-8859-1": "cp1252", "ks_c_5601-1987": "cp949"}
    assert {label: codec_of_label(label) for label in pairs} == pairs
    assert codec_of_label("rot13") is None and codec_of_label("no such") is None
    assert codec_of_label("utf-7") is None, "it hides markup"
    labelled = decode("①円".encode("cp932"), "Shift_JIS")
    assert labelled is not None and labelled.text == "①円"


def test_a_change_of_encoding_is_described_and_a_change_of_words_is_not() -> None:
    old = RUSSIAN.encode("cp1251")
    assert describe_change_of_encoding(old, RUSSIAN.encode()) == "Windows-1251, now UTF-8"
    assert describe_change_of_encoding(old, old + "Да.\n".encode("cp1251")) == ""
    assert describe_change_of_encoding(b"a\n", "ä\n".encode()) == ""
    assert describe_change_of_encoding(b"a\n", b"\xef\xbb\xbfa\n") == "UTF-8, now UTF-8 with a byte order mark"


def test_a_character_that_the_encoding_lacks_is_named() -> None:
    editable = EditableText.of(RUSSIAN.encode("cp1251"))
    edited, _regions = editable.replaced(editable.places("марта"), "марта", "三月")
    with pytest.raises(NotWritable, match=r"三 \(U\+4E09, .*\) in line 1 is not in Windows-1251"):
        edited.data()


async def test_a_file_of_one_long_line_is_read_to_its_end(at: ToolContext, tmp_path: Path) -> None:
    text = "".join(f"{number:07}," for number in range(20_000))
    (tmp_path / "a.json").write_text(text)
    got, column = "", 1
    for _call in range(60):
        answer = await ReadFile()(ReadFileArgs(path="a.json", column=column), at)
        assert len(answer.text) <= ReadFile.spec.max_chars
        body, more, place = answer.text.partition("\n\n")[2].partition("\n\n[goes on: offset 1, column ")
        got += body
        if not more:
            break
        column = int(place.rstrip("]"))
    assert got == text
    with pytest.raises(ToolFailed, match="has 160,000 characters"):
        await ReadFile()(ReadFileArgs(path="a.json", column=200_000), at)


async def test_a_secret_across_two_pieces_of_a_line_is_hidden(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 3_995 + "SECRETWORD" + "y" * 5_000)
    at = ToolContext(files=Root.open(tmp_path), hide=lambda text: text.replace("SECRETWORD", "[hidden]"))
    pieces = [(await ReadFile()(ReadFileArgs(path="a.txt", column=column), at)).text for column in (1, 4_001, 3_990)]
    assert not any("SECRE" in piece or "TWORD" in piece for piece in pieces)


COMPOSED, DECOMPOSED = unicodedata.normalize("NFC", "Größe.txt"), unicodedata.normalize("NFD", "Größe.txt")


@pytest.mark.parametrize(("stored", "name"), [(COMPOSED, DECOMPOSED), (DECOMPOSED, COMPOSED)], ids=["NFC", "NFD"])
async def test_a_name_is_found_in_both_forms(at: ToolContext, tmp_path: Path, stored: str, name: str) -> None:
    (tmp_path / stored).write_text("inside\n")
    assert "inside" in (await ReadFile()(ReadFileArgs(path=name), at)).text
    assert "1 file matches" in (await FindFiles()(FindFilesArgs(pattern=name), at)).text
    assert "inside" in (await SearchCodebase()(SearchArgs(query="inside", path=name), at)).text


@pytest.mark.parametrize("name", ["two\nlines.txt", "bell\x07.txt", "a\u2028b.txt"])
async def test_a_file_is_read_by_the_name_that_is_shown(at: ToolContext, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("inside\n")
    assert "inside" in (await ReadFile()(ReadFileArgs(path=shown(name)), at)).text
    (tmp_path / name.replace("\n", "\r").replace("\x07", "\x08").replace("\u2028", "\u2029")).write_text("other\n")
    with pytest.raises(ToolFailed, match="2 names look like"):
        await ReadFile()(ReadFileArgs(path=shown(name)), at)


def test_an_edit_by_the_other_form_of_a_name_makes_no_second_file(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / unicodedata.normalize("NFD", "ä.txt")).write_text("a\n")
    edits = Edits(Root.open(tree), ["."], tmp_path / "aside")
    edits.write(unicodedata.normalize("NFC", "ä.txt"), b"b\n")
    assert [path.read_bytes() for path in tree.iterdir()] == [b"b\n"]


@pytest.mark.parametrize("label", ["", "iso-2022-jp"])
def test_reads_iso_2022_jp_as_mailers_of_windows_write_it(label: str) -> None:
    signs = {"①": b"-!", "㈱": b"-j", "契": b"7@", "約": b"Ls"}  # row 13 is not in the standard
    encoded = b"No. \x1b$B" + b"".join(signs.values()) + b"\x1b(B,\r\n\x1b(I1\x1b(J!\r\n"
    decoded = decode(encoded, label)
    assert decoded is not None
    assert decoded.text == "No. ①㈱契約,\r\nｱ!\r\n"
    assert decoded.note == "read as ISO-2022-JP"


@pytest.mark.parametrize("encoded", [b"\x1b$Babc\x1b(B", b"\x1b$B-!\x1b$(Q0!\x1b(B", b"\x1b$B|~\x7f\x7f\x1b(B"])
def test_escapes_that_mean_nothing_leave_the_text_as_it_is(encoded: bytes) -> None:
    decoded = decode(encoded)
    assert decoded is not None and decoded.text == encoded.decode()
