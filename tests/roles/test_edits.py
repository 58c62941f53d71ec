"""`edit_file` and `write_file`: what they change to the byte, and what they say when they do not."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ava_roles.errors import AccessRefused, ToolFailed
from ava_roles.sandbox.paths import Root
from ava_roles.tool import ToolContext, ToolOutput
from ava_roles.tools.editable_text import EditableText, normalize_line_ends
from ava_roles.tools.edits import EditFile, EditFileArgs, WriteFile, WriteFileArgs
from ava_roles.worktree.spec import Edits
from ava_roles.wrap import clean


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    tree = Tree(tmp_path)
    yield tree
    tree.root.close()


async def test_replaces_a_single_match_and_shows_its_lines(tree: Tree) -> None:
    tree.put(b"import os\n\n\ndef f():\n    x = 1\n    return x\n")
    got = await tree.edit("    x = 1\n", "    x = 2\n    y = 3\n")
    assert tree.data() == b"import os\n\n\ndef f():\n    x = 2\n    y = 3\n    return x\n"
    assert got.text.split("\n") == [
        "edited src/a.py: 1 place, 1 line removed, 2 added",
        "     3",
        "     4  def f():",
        "-    5      x = 1",
        "+    5      x = 2",
        "+    6      y = 3",
        "     7      return x",
    ]


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (b"a\nb\nc", "c", "d", b"a\nb\nd"),
        (b"a\nb\nc\n", "b\nc\n", "", b"a\n"),
        (b"abc", "b", "", b"ac"),
        (b"a", "a", "", b""),
        (b"one two one-two", "one two ", "x\ny\n", b"x\ny\none-two"),
        (b"a\r\nb\r\nc\r\n", "a\nb", "x\ny\nz", b"x\r\ny\r\nz\r\nc\r\n"),
        (b"a\r\nb\r\nc\r\n", "a\r\nb", "x\r\ny", b"x\r\ny\r\nc\r\n"),
        (b"a\nb\n", "a\r\nb", "x\r\ny", b"x\ny\n"),
        (b"a\r\nb\nc\r\n", "b", "x\ny", b"a\r\nx\ny\nc\r\n"),
        (b"a\r\nb\nc\r\nd", "d", "x\ny", b"a\r\nb\nc\r\nx\r\ny"),
        (b"a\r\nb\nc\r\n", "a\nb\n", "", b"c\r\n"),
        (b"a\rb\r", "a\nb", "x\ny\nz", b"x\ry\rz\r"),
        (b"a\r\r\nb", "b", "c", b"a\r\r\nc"),
        (b"\xef\xbb\xbfa\nb\n", "a\n", "x\n", b"\xef\xbb\xbfx\nb\n"),
        (b"\xef\xbb\xbf\xef\xbb\xbfa", "a", "b", b"\xef\xbb\xbf\xef\xbb\xbfb"),
        ("ä\u2028b\x0cc\n".encode(), "\u2028b\x0c", "\x85", "ä\x85c\n".encode()),
        ("\U0001f600 x\n".encode(), "x", "\U0001f600", "\U0001f600 \U0001f600\n".encode()),
        (b"\n\n\n", "\n\n\n", "\n", b"\n"),
    ],
)
async def test_changes_only_the_edited_bytes(tree: Tree, before: bytes, old: str, new: str, after: bytes) -> None:
    tree.put(before)
    await tree.edit(old, new)
    assert tree.data() == after


async def test_keeps_a_file_executable(tree: Tree) -> None:
    tree.put(b"#!/bin/sh\nexit 1\n")
    (tree.path / "src/a.py").chmod(0o755)
    await tree.edit("exit 1", "exit 0")
    await tree.write("#!/bin/sh\nexit 2\n")
    assert (tree.path / "src/a.py").stat().st_mode & 0o777 == 0o755


async def test_reports_the_lines_of_several_matches_even_overlapping_ones(tree: Tree) -> None:
    tree.put(b"x = 1\ny = 2\nx = 1\n\nx = 1\n")
    said = await tree.not_edited("x = 1\n", "x = 2\n")
    assert "at 3 places, beginning in lines 1, 3, 5;" in said and "replace_all" in said
    tree.put(b"aaa\n")
    assert "at 2 places, beginning in lines 1;" in await tree.not_edited("aa", "b")
    tree.put(b"x\n" * 5_000)
    said = await tree.not_edited("x", "y")
    assert "1,000 places or more" in said and len(said) < 400


async def test_replaces_all_matches_from_the_start_and_reports_where(tree: Tree) -> None:
    tree.put(b"aaa b\r\n" + b"b\r\n" * 9)
    got = await tree.edit("aa", "c\nd", replace_all=True)
    assert tree.data().startswith(b"c\r\nda b\r\nb\r\n") and "1 place," in got.text
    got = await tree.edit("b", "x", replace_all=True)
    assert tree.data() == b"c\r\nda x\r\n" + b"x\r\n" * 9
    assert "10 places, 10 lines removed, 10 added" in got.text and "and in lines 5, 6, 7, 8, 9, 10, 11" in got.text
    tree.put(b"a\nb\na\nb\na\nb\n")
    await tree.edit("a\nb\n", "c\n", replace_all=True)
    assert tree.data() == b"c\nc\nc\n"
    tree.put(b"f(a, a)\n")
    assert "2 places, 1 line removed, 1 added" in (await tree.edit("a", "b", replace_all=True)).text


async def test_rejects_an_edit_without_effect_or_without_a_search_text(tree: Tree) -> None:
    tree.put(b"a\r\nb\r\n")
    assert "the same" in await tree.not_edited("a", "a")
    assert "the same" in await tree.not_edited("a\r\nb", "a\nb")
    assert "old is empty" in await tree.not_edited("", "x")
    assert "old is empty" in await tree.not_edited("", "x", replace_all=True)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x89PNG\0\x1a", "binary"),
        (b"\xef\xbb\xbfa\xff", "not valid UTF-8"),
        ("Grüße, Tür und Öl".encode() + b"\xff", "not valid UTF-8"),
        ("hello".encode("utf-16") + b"\0", "not valid UTF-16"),
        (b"\x87\x90" + "契約番号は8842です。".encode("cp932"), "byte for byte"),
    ],
)
async def test_does_not_edit_files_that_are_not_plain_text(tree: Tree, data: bytes, why: str) -> None:
    tree.put(data)
    with pytest.raises(ToolFailed, match=why):
        await tree.edit("a", "b")
    assert tree.data() == data


@pytest.mark.parametrize(("text", "why"), [("a\0b", "zero byte"), ("a\ud800b", "half characters")])
async def test_does_not_write_characters_that_no_text_file_contains(tree: Tree, text: str, why: str) -> None:
    tree.put(b"abc\n")
    assert why in await tree.not_edited("abc", text)
    assert "is not in" in await tree.not_edited(text, "x")
    with pytest.raises(ToolFailed, match=why):
        await tree.write(text, "src/new.py")
    assert not (tree.path / "src/new.py").exists()


async def test_does_not_write_a_redaction_placeholder_over_the_hidden_value(tree: Tree) -> None:
    tree.put(b'KEY = "sk-something"\nNAME = "x"\n')
    said = await tree.not_edited('NAME = "x"\n', 'KEY = "[redacted:openai]"\n')
    assert "[redacted:openai] is not text of src/a.py" in said
    with pytest.raises(ToolFailed, match="hidden from you"):
        await tree.write('KEY = "[redacted:openai]"\n')
    tree.put(b'assert said == "[redacted:X]"\n')
    await tree.edit('assert said == "[redacted:X]"', 'assert "[redacted:X]" in said')
    assert tree.data() == b'assert "[redacted:X]" in said\n', "what the file has already is its own"


async def test_changes_and_shows_nothing_outside_the_namespace(tree: Tree) -> None:
    tree.put(b"a\n", "README.md")
    for act in (tree.edit("a", "b", "README.md"), tree.write("b", "README.md"), tree.write("b", "../new")):
        with pytest.raises(AccessRefused, match="outside of"):
            await act
    with pytest.raises(AccessRefused) as refused:
        await tree.edit("zzz", "b", "README.md")
    assert "Nearest" not in str(refused.value)
    assert tree.data("README.md") == b"a\n"


LINES = st.text(st.sampled_from("ab \n\r\t\ufeff\u2028\u00e4\x0c"), max_size=30)


@given(LINES, st.booleans())
def test_parsing_a_document_preserves_its_bytes(text: str, mark: bool) -> None:
    data = (b"\xef\xbb\xbf" if mark else b"") + text.encode()
    assert EditableText.of(data).data() == data


@given(LINES, LINES.filter(bool), LINES)
def test_replacing_all_equals_plain_replacement_and_keeps_other_line_endings(text: str, old: str, new: str) -> None:
    editable, old, new = EditableText.of(text.encode()), normalize_line_ends(old), normalize_line_ends(new)
    edited, regions = editable.replaced(editable.places_to_replace(old), old, new)
    assert edited.text == editable.text.replace(old, new)
    assert len(edited.ends) == edited.text.count("\n")
    assert edited.mark == editable.mark
    if "\r" not in text:
        assert "\r" not in edited.data().decode()
    untouched = set(range(len(edited.lines)))
    for region in regions:
        untouched -= set(range(region.new_from, region.new_to))
        assert editable.lines[region.old_from : region.old_to] or not editable.lines
    shifted = {
        at - sum(each.new_to - each.new_from - each.old_to + each.old_from for each in regions if each.new_to <= at)
        for at in untouched
    }
    assert [edited.lines[at] for at in sorted(untouched)] == [editable.lines[at] for at in sorted(shifted)]


@pytest.mark.parametrize(
    ("data", "old", "new", "after"),
    [
        ("a\u200bb = c\n", "ab = c", "ab = d", "ab = d\n"),
        ("print('\x1b[31mred\x1b[0m')\n", "'red'", "'blue'", "print('blue')\n"),
        ("\x1b[31mred\x1b[0m\n", "red", "blue", "\x1b[31mblue\x1b[0m\n"),
        ("a\u200db\r\nc\r\n", "ab\nc", "x\ny", "x\r\ny\r\n"),
        ("a\u200bb\n", "ab", "ab", "ab\n"),
        ("می\u200cخواهم\n", "می\u200cخواهم", "x", "x\n"),
    ],
)
async def test_changes_a_line_with_characters_that_are_not_shown(
    tree: Tree, data: str, old: str, new: str, after: str
) -> None:
    tree.put(data.encode())
    assert old in clean(data.replace("\r\n", "\n"))[0], "what the model was shown"
    said = (await tree.edit(old, new)).text
    assert tree.data() == after.encode()
    assert ("not shown to you are gone" in said) == (old not in data.replace("\r\n", "\n"))


async def test_refuses_places_that_differ_only_in_what_is_not_shown(tree: Tree) -> None:
    tree.put("a\u200bb\na\u2060b\n".encode())
    assert "differ in invisible characters" in await tree.not_edited("ab", "c", replace_all=True)


# -- the nearest places ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "old", "says"),
    [
        (
            b"def f():\n\tx = 1\n",
            "def f():\n    x = 1\n",
            "only white space differs: line 2 begins with 1 tab, in old",
        ),
        (b"a\nreturn 2  \nb\n", "return 2\nb", "only white space differs: line 2 ends in 2 blanks, in old in no white"),
        (b"f(a,  b)\n", "f(a, b)", "only white space differs: white space within line 1"),
        ("f(a,\u00a0b)\n".encode(), "f(a, b)", "only white space differs: white space within line 1"),
        (b"x = 1\n\ny = 2\n", "x = 1\ny = 2", "only white space differs: blank lines, or where lines end"),
        (
            b"x = 1\n \t z\ny = 2\n",
            "x = 1\n  z\ny = 2",
            "line 2 begins with 1 blank and 1 tab and 1 blank, in old",
        ),
        (b"Value = One\n", "value = one", "upper and lower case in line 1"),
        ("say(\u2018hi\u2019)\n".encode(), "say('hi')", "line 1 has U+2018 where old has U+0027, which looks alike"),
        ("a\u200bb = c + d\ne = f\n".encode(), "ab = c + d\ne = g", "line 2 differs"),
        (b"one = two + three\nfour = five\n", "one = two + three\nfour = six", "line 2 differs"),
    ],
)
async def test_the_nearest_match_explains_how_it_differs(tree: Tree, data: bytes, old: str, says: str) -> None:
    tree.put(data)
    said = await tree.not_edited(old, "z")
    assert says in said, said
    assert "Quote it exactly" in said


async def test_shows_at_most_three_near_matches_best_first(tree: Tree) -> None:
    like = [f"total = price * amount + fee{number}" for number in range(6)]
    tree.put("\n".join(line for each in like for line in (each, *["pass"] * 20)).encode())
    said = await tree.not_edited("total  = price * amount + fee3", "z")
    assert said.count("\nline ") == 3 and said.index("\nline 64 (only white space") < said.index("\nline 1 ")
    assert "    64  total = price * amount + fee3" in said
    assert "nor anything similar" in await tree.not_edited("nothing of this kind is here", "z")
    assert "nor anything similar" in await tree.not_edited("   \n\t\n ", "z")


async def test_finds_a_near_match_within_a_long_line(tree: Tree) -> None:
    tree.put(b"a\nresult = call(first_name, second_name, third = compute(x, y), fourth = other_thing(z)) # why not\n")
    assert "\nline 2 " in await tree.not_edited("third = compute(x,y)", "z")


def grown(lines: int, seed: int = 1) -> list[str]:
    """A file such as people write: few words, many times."""
    dice = random.Random(seed)
    words = ("self", "return", "if", "else", "for", "in", "range", "value", "result", "data", "config", "path", "name")
    return [
        "    " * dice.randint(0, 4) + " ".join(dice.choices(words, k=dice.randint(3, 10))) + f" {dice.randint(0, 999)}"
        for _ in range(lines)
    ]


@pytest.mark.slow
async def test_finds_near_matches_in_a_long_file_quickly(tree: Tree) -> None:
    lines = grown(20_000)
    tree.put("\n".join(lines).encode())
    wanted = "\n".join(lines[12_345:12_357]).replace("return", "retrun").replace("    ", "\t")
    ab = ("ab ba " * 60 + "\n") * 4_000
    began = time.process_time()
    said = await tree.not_edited(wanted, "z")
    assert "lines 12,346 to 12,357" in said
    tree.put(ab.encode())
    await tree.not_edited("\n".join(["ba ab cc " * 40] * 200), "z")
    tree.put(b"x\n" * 900_000)
    await tree.not_edited("x\nz", "y")
    tree.put(b"(" * 1_999_999)
    await tree.not_edited("(" * 1_000 + ")", "y")
    assert time.process_time() - began < 6, "it takes 2 s"


async def test_keeps_the_output_short_for_long_lines(tree: Tree) -> None:
    tree.put(("word " * 2_000 + "\n").encode() * 100)
    assert len(await tree.not_edited("word " * 1_000 + "wort\n" * 50, "z")) < 8_000
    got = await tree.edit("word " * 2_000 + "\n", "new " * 4_000 + "\n", replace_all=True)
    assert len(got.text) < 16_000


async def test_rejects_a_result_over_two_megabytes_or_with_too_many_matches(tree: Tree) -> None:
    tree.put(b"x, " * 1_000)
    assert "more than 2,000,000" in await tree.not_edited("x", "y" * 3_000, replace_all=True)
    tree.put(b"x" * 1_000_000)
    assert "more than 20,000 places" in await tree.not_edited("x", "y", replace_all=True)


# -- write_file ------------------------------------------------------------------------------------------------------


async def test_writes_a_new_file_and_creates_its_folders(tree: Tree) -> None:
    got = await tree.write("one\ntwo", "src/new/deep/b.txt")
    assert tree.data("src/new/deep/b.txt") == b"one\ntwo"
    assert got.text == "wrote src/new/deep/b.txt: a new file, 2 lines, 7 bytes"
    assert (await tree.write("", "src/__init__.py")).text.endswith("a new file, 0 lines, 0 bytes")


async def test_shows_what_was_replaced_and_does_not_rewrite_equal_content(tree: Tree) -> None:
    tree.put(b"one\ntwo\nthree\n")
    got = await tree.write("one\n2\nthree\n")
    assert got.text.split("\n") == [
        "wrote src/a.py: 3 lines in place of 3 lines; 1 line removed, 1 added",
        "     1  one",
        "-    2  two",
        "+    2  2",
        "     3  three",
    ]
    before = (tree.path / "src/a.py").stat().st_ino
    assert "nothing was written" in (await tree.write("one\n2\nthree\n")).text
    assert (tree.path / "src/a.py").stat().st_ino == before
    assert "[the file now ends without a line break]" in (await tree.write("one")).text


async def test_keeps_the_line_endings_and_byte_order_mark_of_an_existing_file(tree: Tree) -> None:
    tree.put(b"\xef\xbb\xbfa\r\nb\r\n")
    got = await tree.write("a\nc\n")
    assert tree.data() == b"\xef\xbb\xbfa\r\nc\r\n" and "are kept" in got.text
    tree.put(b"a\r\nb\n")
    await tree.write("x\ny\n")
    assert tree.data() == b"x\r\ny\n", "line by line, of a mixture"
    tree.put(b"a\r\nb\rc\nd\r\ne")
    await tree.write("a\nb\nx\ny\nd\ne")
    assert tree.data() == b"a\r\nb\rx\ny\r\nd\r\ne"
    tree.put(b"a\nb\n")
    await tree.write("x\r\ny\r\n")
    assert tree.data() == b"x\r\ny\r\n", "who writes it wants it"


async def test_reports_the_size_of_replaced_binary_content(tree: Tree) -> None:
    tree.put(b"\x89PNG\0\x1a")
    assert "in place of 6 bytes (it is binary)" in (await tree.write("text\n")).text
    assert tree.data() == b"text\n"


async def test_refuses_to_write_too_much_or_to_replace_too_large_a_file(tree: Tree) -> None:
    tree.put(b"x" * 2_000_001)
    with pytest.raises(ToolFailed, match="too large"):
        await tree.write("x")
    with pytest.raises(ToolFailed, match="more than 2,000,000"):
        await tree.write("ä" * 1_000_001, "src/b.py")
    assert not (tree.path / "src/b.py").exists()


async def test_both_tools_report_a_missing_worktree() -> None:
    with pytest.raises(ToolFailed, match="no worktree"):
        await EditFile()(EditFileArgs(path="a", old="b", new="c"), ToolContext())
    with pytest.raises(ToolFailed, match="no worktree"):
        await WriteFile()(WriteFileArgs(path="a", content="c"), ToolContext())


class Tree:
    """A worktree whose folder `src` may be changed."""

    def __init__(self, here: Path) -> None:
        self.path = here / "tree"
        (self.path / "src").mkdir(parents=True)
        self.root = Root.open(self.path)
        self.at = ToolContext(edits=Edits(self.root, ["src"], here / "edits"))

    def put(self, data: bytes, name: str = "src/a.py") -> None:
        (self.path / name).write_bytes(data)

    def data(self, name: str = "src/a.py") -> bytes:
        return (self.path / name).read_bytes()

    async def edit(self, old: str, new: str, name: str = "src/a.py", *, replace_all: bool = False) -> ToolOutput:
        with anyio.fail_after(40):
            args = EditFileArgs.model_construct(path=name, old=old, new=new, replace_all=replace_all)
            return await EditFile()(args, self.at)

    async def write(self, content: str, name: str = "src/a.py") -> ToolOutput:
        with anyio.fail_after(40):
            return await WriteFile()(WriteFileArgs.model_construct(path=name, content=content), self.at)

    async def not_edited(self, old: str, new: str, name: str = "src/a.py", *, replace_all: bool = False) -> str:
        """Return why an edit failed; nothing was changed."""
        before = self.data(name)
        with pytest.raises(ToolFailed) as failed:
            await self.edit(old, new, name, replace_all=replace_all)
        assert self.data(name) == before
        return str(failed.value)
