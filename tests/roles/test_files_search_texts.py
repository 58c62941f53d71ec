"""The texts that searches keep: what a search that is cut short, cancelled or crowded leaves to the next."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.foreign.office import p, r, word_file
from support.foreign.searched_files import ask_files

from ava_roles.errors import ParserEnded
from ava_roles.sandbox.path_access import FileMark, FolderEntry
from ava_roles.sandbox.paths import Root
from ava_roles.texts import reading
from ava_roles.texts.extracted import Extracted, Format, Wanted
from ava_roles.texts.headings import HEADINGS_BYTES, headings_of
from ava_roles.texts.kept import KeptTexts
from ava_roles.texts.parser_process import ParserProcess
from ava_roles.texts.passages import Query
from ava_roles.texts.places import SHARE
from ava_roles.texts.reading import FolderReader, FolderTexts
from ava_roles.texts.store import KeptText, TextStore
from ava_roles.threads import run_sync
from ava_roles.tool import ToolContext, need_files


async def test_a_search_that_is_cut_short_counts_each_file_once_and_the_next_goes_on(
    at: ToolContext, new_texts: Callable[[], TextStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ava_roles.texts.store.FRESH_S", -60.0)  # the files are made just now
    for number in range(300):
        (tmp_path / f"note{number:03}.txt").write_text(f"zeppelin {number}")
    keep, enter, kept = TextStore.keep, TextStore.enter, list[str]()
    held, go_on, entered = threading.Event(), threading.Event(), threading.Event()

    def keep_some(store: TextStore, digest: bytes, body: bytes, *more: Any, **named: Any) -> KeptText | None:
        kept.append(body.decode())
        if len(kept) == 100:  # in the middle of a batch
            held.set()
            go_on.wait(20)
        return keep(store, digest, body, *more, **named)

    def enter_and_say(store: TextStore, *given: Any) -> None:
        enter(store, *given)
        if go_on.is_set():
            entered.set()

    monkeypatch.setattr(TextStore, "keep", keep_some)
    monkeypatch.setattr(TextStore, "enter", enter_and_say)
    monkeypatch.setattr(reading, "SHARE", replace(SHARE, of_search=1))
    store, query = new_texts(), Query("zeppelin")
    first = await FolderReader(need_files(at), store).read("", query, 1.0)
    assert held.is_set() and not first.is_whole
    assert first.searched + sum(first.left_out().values()) == len(first.order)
    go_on.set()
    assert await run_sync(entered.wait, 20)
    second = await FolderReader(need_files(at), store).read("", query, 60.0)
    assert second.is_whole and len(second.kept) == len(second.order) - 1
    assert len(kept) <= len(second.order) + 1, "what was kept is not read again"


HEADINGS = {
    "page.html": "<html><title>Airships</title><p>Text <h2 class='x'>The <b>zeppelin</b> &amp; mast</h2>",
    "marked.md": "Notes of May\n\nText.\n\n## Zeppelin\n\nMore text.",
    "first.txt": "\n\nA zeppelin over the town\n\nText.",
    "underlined.rst": "Notes\n\nThe zeppelin\n~~~~~~~~~~~~\n\nText.",
    "badge.md": "<p align=center><img src=x></p>\n<h1>Zeppelin</h1>\n\nText.",
}


@pytest.mark.parametrize("name", HEADINGS)
async def test_with_too_little_time_a_file_whose_heading_matches_is_read_first(
    name: str, at: ToolContext, new_texts: Callable[[], TextStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "z").mkdir()
    (tmp_path / "z" / name).write_text(HEADINGS[name])
    for number in range(150):
        (tmp_path / f"note{number:03}.txt").write_text(f"Note {number}\n\nNo zeppelin in a heading.")
    read, names, go_on = FolderReader._read, list[str](), threading.Event()

    def read_some(reader: FolderReader, entry: FolderEntry, *more: Any) -> Any:
        names.append(entry.name)
        if len(names) > 3:
            go_on.wait(20)
        return read(reader, entry, *more)

    monkeypatch.setattr(FolderReader, "_read", read_some)
    monkeypatch.setattr(reading, "SHARE", replace(SHARE, of_search=1))
    monkeypatch.setattr(reading, "_HEADINGS_SHARE", 0.9)  # 150 headings may take longer than 0.1 s on a busy machine
    found = await FolderReader(need_files(at), new_texts()).read("", Query("Where does the zeppelin land?"), 2.0)
    go_on.set()
    assert names[0] == f"z/{name}" and f"z/{name}" in {*found.kept, *found.loose}
    assert len(found.waiting) > 100


async def test_headings_are_looked_at_for_a_bounded_time(
    at: ToolContext, new_texts: Callable[[], TextStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(150):
        (tmp_path / f"note{number:03}.txt").write_text("x" * 100_000)
    read, caps = Root.read_marked, list[int]()

    def slow(root: Root, rel: str, cap: int) -> tuple[bytes, bool, FileMark]:
        if cap == HEADINGS_BYTES:
            caps.append(cap)
            time.sleep(0.05)
        return read(root, rel, cap)

    monkeypatch.setattr(Root, "read_marked", slow)
    found = await FolderReader(need_files(at), new_texts()).read("", Query("zeppelin"), 60.0)
    assert found.is_whole and 1 <= len(caps) <= 11


@pytest.mark.parametrize("hostile", [b"<h1>", b"<h1 x", b"<title>", b"#", b"# ", b"<", b"-\n---\n", b"\xff\xfe<"])
def test_no_head_of_a_file_takes_long(hostile: bytes) -> None:
    began = time.process_time()
    headings_of((hostile * HEADINGS_BYTES)[:HEADINGS_BYTES])
    assert time.process_time() - began < 0.2


async def test_a_file_whose_parser_ended_is_not_parsed_again_with_the_next_question(
    at: ToolContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hangs.eml").write_text("Subject: zeppelin\n\nIt leaves at noon.")
    parsed: list[str] = []

    def ended(_parser: ParserProcess, kind: Format, _data: bytes, _wanted: Wanted) -> Extracted:
        parsed.append(kind.name)
        raise ParserEnded("this email cannot be read: its parser takes longer than 30 s; ask for another copy")

    monkeypatch.setattr(ParserProcess, "read_document", ended)
    at = replace(at, texts=KeptTexts(tmp_path / ".git" / "texts.db", 1_000_000))
    first, second = [await ask_files(at, "zeppelin") for _again in range(2)]
    assert parsed == ["email"] and first == second and "its parser takes longer than 30 s" in first.unread
    monkeypatch.setattr("ava_roles.texts.store.time.monotonic", lambda: time.perf_counter() + 1e9)
    await ask_files(at, "zeppelin")
    assert parsed == ["email", "email"], "the machine may be less busy"
    at.texts.close()


def test_what_is_said_of_files_does_not_depend_on_which_worker_was_first() -> None:
    said: list[object] = []
    for order in (("a", "b", "c"), ("c", "b", "a")):
        found = FolderTexts()
        for name in order:
            found.note_failed(f"{name}.eml", "it is damaged" if name == "b" else reading.NOT_TEXT)
            found.note(name, KeptText(1, 1, 5, missing=f"pictures of {name}", unread=f"the end of {name}"))
        found.settle(())
        said.append([[*each.items()] for each in (found.failed, found.missing, found.unread, found.left_out())])
    assert said[0] == said[1]


async def test_files_beyond_those_that_one_search_covers_are_not_forgotten(
    at: ToolContext, new_texts: Callable[[], TextStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = new_texts()
    reader = FolderReader(need_files(at), store)
    await reader.read("", Query("main"), 60)
    known = store.known(need_files(at).identity()).keys()
    monkeypatch.setattr(reading, "MAX_ENTRIES", 3)
    assert (await reader.read("", Query("main"), 60)).more
    assert store.known(need_files(at).identity()).keys() == known


async def test_a_file_that_changes_before_its_secrets_are_hidden_is_not_shown(
    at: ToolContext, new_texts: Callable[[], TextStore], tmp_path: Path
) -> None:
    for name in ("gone.txt", "new.txt", "same.txt"):
        (tmp_path / name).write_text(f"{name} zeppelin OPEN-\nSESAME")
    reader = FolderReader(need_files(at), new_texts())
    query = Query("zeppelin")
    found = await reader.read("", query, 60)
    (tmp_path / "gone.txt").unlink()
    (tmp_path / "new.txt").write_text("a zeppelin")

    def hide(text: str) -> str:
        return text.replace("OPEN-\nSESAME", "[hidden]\n")

    files, _ranking = await run_sync(reader.best, found, query, 9, hide)
    shown = {file.path: [each.text for each in file.passages] for file in files}
    assert shown == {"new.txt": ["a zeppelin"], "same.txt": ["same.txt zeppelin [hidden]"]}


async def test_a_search_ends_when_it_is_cancelled_while_it_reads_or_hides(
    at: ToolContext, new_texts: Callable[[], TextStore], tmp_path: Path
) -> None:
    for number in range(4):
        (tmp_path / f"z{number}.txt").write_text("zeppelin")
    query = Query("zeppelin")

    async def search(cancelled_at: int) -> int:
        calls = 0

        def check() -> None:
            nonlocal calls
            calls += 1
            if calls == cancelled_at:
                raise TimeoutError

        reader = FolderReader(need_files(at), new_texts(), check=check)
        found = await reader.read("", query, 60)
        await run_sync(reader.best, found, query, 4, str)
        return calls

    whole = await search(0)
    files = len((await FolderReader(need_files(at), new_texts()).read("", query, 60)).order)
    assert whole >= 3 * files + 4, "for each file when it is found, read and ranked, and before a best one is hidden"
    for number in range(1, whole + 1):
        with pytest.raises((TimeoutError, ExceptionGroup)):
            await search(number)


@pytest.fixture
def new_texts() -> Iterator[Callable[[], TextStore]]:
    """Makes stores in memory, and closes them after the test."""
    with ExitStack() as stores:
        yield lambda: stores.enter_context(closing(TextStore(None)))


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are text elsewhere")
async def test_a_file_whose_name_is_no_utf8_is_read_again_each_time(
    at: ToolContext, new_texts: Callable[[], TextStore], tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("no zeppelin")
    name = os.fsdecode(b"caf\xe9.txt")
    (tmp_path / name).write_text("a zeppelin over the town")
    for _time in range(2):
        texts = await FolderReader(need_files(at), new_texts()).read("", Query("zeppelin"), 30.0)
        assert texts.is_whole and name in texts.order and not texts.failed.get(name)
    found = await ask_files(at, "zeppelin over the town")
    assert "a zeppelin over the town" in found.text


async def test_what_stands_beside_a_document_is_none(at: ToolContext, tmp_path: Path) -> None:
    """A Mac's `._x.docx` and the `~$x.docx` of an open document have its suffix, and hide nothing."""
    beside = b"\x00\x05\x16\x07\x00\x02\x00\x00Mac OS X        " + bytes(40) + b"ATTR" + bytes(100)
    lock = b"\x06Editor" + bytes(48) + "\x06Editor".encode("utf-16-le") + bytes(94)
    (tmp_path / "__MACOSX").mkdir()
    for name, data in (
        ("._rent.docx", beside),
        ("__MACOSX/._rent.pdf", beside),
        ("~$rent.docx", lock),
        ("~$a.xls", lock),
    ):
        (tmp_path / name).write_bytes(data)
    (tmp_path / "~$named-so.docx").write_bytes(word_file(p(r("The rent is 1150 euro."))))
    found = await ask_files(at, "rent")
    assert "1150 euro" in found.text
    assert "cannot be read" not in found.text


COMPANIONS = {
    "an empty file of a Mac": ("._rent.docx", b""),
    "a large file of a Mac": ("._rent.docx", b"\x00\x05\x16\x07" + bytes(10_000_001)),
    "a file of a Mac without its mark": ("._rent.pptx", b"\x00\x01" + bytes(600)),
    "an empty lock": ("~$rent.docx", b""),
    "a lock of an old file": ("~$rent.doc", b"\x06Editor" + bytes(155)),
}


@pytest.mark.parametrize("case", COMPANIONS)
async def test_no_file_that_stands_beside_a_document_is_unread(at: ToolContext, tmp_path: Path, case: str) -> None:
    before = (await ask_files(at, "rent")).unread
    name, data = COMPANIONS[case]
    (tmp_path / name).write_bytes(data)
    got = await ask_files(at, "rent")
    assert before == got.unread == "" and "Cannot be read" not in got.text
    assert "not text" in got.text.split("\n")[0], "it is among what was left out"
