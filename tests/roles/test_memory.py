"""Memory: what counts as a note, what is passed over, and how `recall` lists, searches and reads it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import anyio
import pytest

from ava_roles.errors import ToolFailed
from ava_roles.memory import MAX_NOTES, NOTE_BYTES, Memory, is_note_name
from ava_roles.tool import ToolContext, ToolOutput
from ava_roles.tools.run import PAGE_CHARS, Recall, RecallArgs

posix = pytest.mark.skipif(sys.platform == "win32", reason="no owners, modes or pipes there")


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    folder = tmp_path / "memory"
    folder.mkdir(mode=0o700)
    (folder / "prices.md").write_text("# Prices\n\nOtter charges twelve cents a minute.\n")
    (folder / "house-rules.md").write_text("Write amounts in euros.\n")
    return Memory(folder)


async def recall(memory: Memory | None, **given: object) -> ToolOutput:
    with anyio.fail_after(40):
        return await Recall()(RecallArgs.model_validate(given), ToolContext(memory=memory))


async def test_lists_notes_with_first_line_date_and_size_when_called_without_arguments(memory: Memory) -> None:
    os.utime(memory.path("prices"), (1_790_000_000, 1_790_000_000))
    os.utime(memory.path("house-rules"), (0, 0))
    got = await recall(memory)
    assert got.text.splitlines() == [
        "2 notes:",
        "house-rules (1970-01-01, 24 bytes): Write amounts in euros.",
        "prices (2026-09-21, 47 bytes): Prices",
    ]
    assert (got.count, got.sources) == (2, ())


async def test_a_question_returns_the_best_matching_passages_with_the_note_name(memory: Memory) -> None:
    got = await recall(memory, query="what do minutes of Otter cost?")
    assert got.text == ("1 of 2 fit best:\n\n## prices, lines 1 to 3\n# Prices\n\nOtter charges twelve cents a minute.")
    assert (await recall(memory, query="euros", name="prices")).text.startswith("No passage fits in 1 note. ")
    assert (await recall(memory, query="walrus")).count == 0


async def test_reads_a_note_in_pages_without_gaps(memory: Memory) -> None:
    text = "".join(f"{number} seals\n" for number in range(3_000))
    memory.path("seals").write_text(text)
    pages: list[str] = []
    offset = 0
    while True:
        page = (await recall(memory, name="seals", offset=offset)).text
        body, mark, _rest = page.partition(f"\n[characters {offset} to ")
        pages.append(body)
        offset += PAGE_CHARS
        if not mark:
            break
    whole = "".join(pages)
    assert len(pages) > 2 and whole.partition("\n\n")[2] == text
    with pytest.raises(ToolFailed, match="give a smaller offset"):
        await recall(memory, name="seals", offset=len(whole))


@pytest.mark.parametrize("name", ["walrus", "../prices", "/etc/passwd", "prices\n", "PRICES", "a\x1b[31m", "con"])
async def test_reports_a_missing_note_and_lists_the_existing_ones(memory: Memory, name: str) -> None:
    if name == "prices\n":  # white space around a name is not part of it
        assert "twelve" in (await recall(memory, name=name)).text
        return
    with pytest.raises(ToolFailed, match="there are: house-rules, prices") as told:
        await recall(memory, name=name)
    assert str(told.value).isprintable()


async def test_hides_secrets_before_truncating(memory: Memory) -> None:
    value = "value-0123456789abcdef"
    memory.path("long").write_text(f"{'x' * 90}{value} and more\n{'y ' * 590}{value} seals\n")
    at = ToolContext(memory=memory, hide=lambda text: text.replace(value, "[redacted:X]"))
    for given in ({}, {"name": "long"}, {"query": "seals"}, {"query": "value"}):
        text = (await Recall()(RecallArgs.model_validate(given), at)).text
        assert "value-" not in text and "abcdef" not in text


async def test_tells_a_run_that_it_has_no_memory(tmp_path: Path) -> None:
    with pytest.raises(ToolFailed, match="no memory"):
        await recall(None)
    assert (await recall(Memory(tmp_path / "nowhere"))).text == "There are no notes."


@posix
async def test_reports_and_skips_files_that_are_not_notes_without_blocking(memory: Memory) -> None:
    outside = memory.folder.parent / "outside.md"
    outside.write_text("a secret of somebody")
    (memory.folder / "link.md").symlink_to(outside)
    (memory.folder / "hard.md").hardlink_to(outside)
    os.mkfifo(memory.folder / "pipe.md")
    (memory.folder / "folder.md").mkdir()
    (memory.folder / "huge.md").write_bytes(b"x" * (NOTE_BYTES + 1))
    (memory.folder / "latin.md").write_bytes("größer".encode("latin-1"))
    (memory.folder / "binary.md").write_bytes(b"a\0b")
    (memory.folder / "two\nlines.md").write_text("x")
    (memory.folder / "Upper.md").write_text("x")
    (memory.folder / "notes.txt").write_text("x")
    (memory.folder / ".swap.md").write_text("an editor's")
    open_to_others = memory.folder.parent
    open_to_others.chmod(0o755)
    memory.folder.chmod(0o755)
    (memory.folder / "theirs.md").write_text("x")
    (memory.folder / "theirs.md").chmod(0o666)

    found = memory.read()
    assert [note.name for note in found.notes] == ["house-rules", "prices"]
    assert {each.file: each.why.split(";")[0] for each in found.passed_over} == {
        "link.md": "it is a link",
        "hard.md": "it may not be read, or has a second name elsewhere (a hard link)",
        "pipe.md": "it is not a regular file",
        "folder.md": "it is a folder",
        "huge.md": "it has 100,001 bytes, more than 100,000",
        "latin.md": "it is not UTF-8 text",
        "binary.md": "it is not text",
        "two\nlines.md": "its name has to be lower case letters, digits, - and _, a letter or digit first, at most 64,"
        " and .md",
        "Upper.md": "its name has to be lower case letters, digits, - and _, a letter or digit first, at most 64,"
        " and .md",
        "notes.txt": "its name does not end with .md",
        "theirs.md": "it can be written to by others",
    }
    listed = (await recall(memory)).text
    assert "[11 in the folder cannot be read as notes" in listed and "somebody" not in listed
    for name in ("link", "hard", "pipe", "huge", "latin", "theirs"):
        with pytest.raises(ToolFailed, match=f"the note {name} cannot be read"):
            await recall(memory, name=name)


@posix
async def test_does_not_read_a_folder_that_others_can_reach_and_write_to(memory: Memory) -> None:
    memory.folder.chmod(0o777)
    memory.folder.parent.chmod(0o700)
    assert not memory.is_empty()
    memory.folder.parent.chmod(0o755)
    with pytest.raises(ToolFailed, match="can be written to by others"):
        await recall(memory)
    assert memory.is_empty()


@posix
async def test_does_not_follow_a_link_in_place_of_the_folder(memory: Memory, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(memory.folder)
    with pytest.raises(ToolFailed, match="is not a folder, or is a link to one"):
        await recall(Memory(link))
    assert Memory(link).is_empty()


def test_reports_notes_beyond_the_maximum_number(tmp_path: Path) -> None:
    for number in range(MAX_NOTES + 2):
        (tmp_path / f"{number:03}.md").write_text("x")
    found = Memory(tmp_path).read()
    assert len(found.notes) == MAX_NOTES
    assert [each.file for each in found.passed_over] == [f"{MAX_NOTES}.md", f"{MAX_NOTES + 1}.md"]


@pytest.mark.parametrize(
    ("name", "may_be"),
    [
        *((name, True) for name in ("a", "0", "house-rules", "a_b", "a" * 64, "console", "com10")),
        *((name, False) for name in ("", "-a", "_a", "A", "a.b", "a b", "ä", "a\n", "a/b", "a" * 65, "nul", "com1")),
    ],
)
def test_accepts_only_note_names_that_are_valid_on_every_system(name: str, may_be: bool) -> None:
    assert is_note_name(name) is may_be
