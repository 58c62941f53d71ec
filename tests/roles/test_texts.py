"""Texts of files are kept once, found by their words, and gone when they are erased."""

from __future__ import annotations

import os
import re
import sqlite3
import stat
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ava_roles.passages import FilePassage, Query, index_terms
from ava_roles.sandbox.path_access import FileMark
from ava_roles.sandbox.paths import Root
from ava_roles.texts.store import KeptTexts, TextStore
from ava_roles.tool import ToolContext
from ava_roles.tools import parser_process, reading
from ava_roles.tools.extracted import Extracted, Part
from ava_roles.tools.files import ReadFile, ReadFileArgs, SearchAndRead, SearchAndReadArgs

SENTENCE = "The zeppelin leaves the mooring mast at a quarter past noon."
MARK = FileMark(1, 2, 3, 4, 5)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "folder"
    made.mkdir()
    (made / "words.txt").write_text(f"{SENTENCE}\n")
    (made / "other.txt").write_text("Nothing of interest.\n")
    old = 1_700_000_000
    for each in made.iterdir():
        os.utime(each, (old, old))
    return made


@pytest.fixture
def at(folder: Path, tmp_path: Path) -> Iterator[ToolContext]:
    texts, root = KeptTexts(tmp_path / "texts.db", 1_000_000_000), Root.open(folder)
    yield ToolContext(files=root, texts=texts, run_id="S-1")
    root.close()
    texts.close()


async def ask(at: ToolContext, question: str) -> str:
    return (await SearchAndRead()(SearchAndReadArgs(query=question), at)).text


def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note the files that are read from now on."""
    seen: list[str] = []
    read = Root.read_marked

    def noted(self: Root, rel: str, cap: int) -> tuple[bytes, bool, FileMark]:
        if not rel.endswith(".gitignore"):
            seen.append(rel)
        return read(self, rel, cap)

    monkeypatch.setattr(Root, "read_marked", noted)
    return seen


def test_what_has_no_place_of_its_own_is_named_by_its_lines_as_read_file_shows_them() -> None:
    text = Extracted((Part("", "# Lease\n\nThe rent."), Part("footnotes", "[footnote 1] Net."), Part("", "The end.")))
    assert [(each.where, each.text) for each in reading.passages_of(text)] == [
        ("lines 1 to 3", "# Lease\n\nThe rent."),
        ("footnotes, 1 line", "[footnote 1] Net."),
        ("line 8", "The end."),
    ]
    assert text.text().split("\n")[7] == "The end."


async def test_a_second_question_reads_only_what_it_quotes(at: ToolContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ava_roles.texts.store.FRESH_S", -60.0)  # the files are made just now
    first = await ask(at, "When does the zeppelin leave?")
    seen = reads(monkeypatch)
    assert await ask(at, "When does the zeppelin leave?") == first
    assert SENTENCE in first and set(seen) == {"words.txt"}


async def test_a_young_file_is_read_again(at: ToolContext, monkeypatch: pytest.MonkeyPatch) -> None:
    await ask(at, "zeppelin")
    seen = reads(monkeypatch)
    await ask(at, "zeppelin")
    assert set(seen) == {"words.txt", "other.txt"}


async def test_the_answer_is_the_same_with_an_empty_and_a_full_store(at: ToolContext, folder: Path) -> None:
    for number in range(30):
        (folder / f"n{number}.md").write_text(f"# Note {number}\n\nThe mast number {number} is free at noon.\n" * 9)
    questions = ["When does the zeppelin leave?", "Which mast is free?", "note 7", "leaving masts"]
    full = [await ask(at, question) for question in questions]
    again = [await ask(at, question) for question in questions]
    empty = [await ask(replace(at, texts=KeptTexts()), question) for question in questions]
    assert full == again == empty


async def test_other_folders_have_no_part_in_what_is_found(at: ToolContext, tmp_path: Path) -> None:
    alone = await ask(at, "zeppelin at noon")
    other = tmp_path / "other"
    other.mkdir()
    for number in range(50):
        (other / f"z{number}.txt").write_text(f"zeppelins at noon and zeppelins at night {number}\n" * 20)
    root = Root.open(other)
    assert "z1" in await ask(replace(at, files=root, run_id="S-2"), "zeppelin at noon")
    root.close()
    assert await ask(at, "zeppelin at noon") == alone


async def test_a_changed_file_is_found_as_it_is_now(at: ToolContext, folder: Path) -> None:
    await ask(at, "zeppelin")
    (folder / "words.txt").write_text("The airship has left.\n")
    (folder / "other.txt").unlink()
    assert "0 files fit best (1 searched)" in await ask(at, "zeppelin")
    assert "The airship has left." in await ask(at, "airship")


async def test_an_erased_text_is_nowhere_in_the_file(at: ToolContext, folder: Path, tmp_path: Path) -> None:
    (folder / "both.txt").write_text("Both runs read the timetable.\n")
    await ask(at, "zeppelin")
    (folder / "words.txt").unlink()  # the second run never sees it
    await ask(replace(at, run_id="S-2"), "timetable")
    (folder / "words.txt").write_text(f"{SENTENCE}\n")
    await ask(at, "zeppelin")
    kept = KeptTexts(tmp_path / "texts.db", 1_000_000)
    assert kept.erase_run("S-1") == 1
    at.texts.close()
    assert bytes_of(tmp_path).isdisjoint({b"zeppelin", b"mooring"})
    again = TextStore(tmp_path / "texts.db")
    assert {text.id for _mark, _entered, text in again.known(Root.open(folder).identity()).values()} != set()
    again.close()


def bytes_of(folder: Path) -> set[bytes]:
    """Return the words in the store's files, as they are on the disk."""
    return {word for each in folder.glob("texts.db*") for word in re.findall(rb"[a-z]{4,}", each.read_bytes())}


def keep(store: TextStore, name: str, text: str, run: str = "S-1") -> int:
    kept = store.keep(name.encode() * 32, text.encode(), [FilePassage("line 1", text)])
    store.enter("folder", [(name, MARK, 9, kept.id)], run)
    return kept.id


def test_the_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    store = TextStore(tmp_path / "texts.db")
    keep(store, "a", SENTENCE)
    assert {stat.S_IMODE(each.stat().st_mode) for each in tmp_path.glob("texts.db*")} == {0o600}
    store.close()


@pytest.mark.parametrize("damage", [b"garbage" * 9_000, b"SQLite format 3\0" + b"x" * 9_000])
def test_a_damaged_file_is_made_anew_and_that_is_said(
    damage: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "texts.db").write_bytes(damage)
    store = TextStore(tmp_path / "texts.db")
    assert store.known("folder") == {}
    keep(store, "a", SENTENCE)
    assert "is damaged" in caplog.text
    store.close()


async def test_a_store_that_breaks_is_made_anew_and_the_question_is_answered(
    at: ToolContext, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = await ask(at, "zeppelin")
    at.texts.close()
    pages = (tmp_path / "texts.db").stat().st_size // 4_096
    with (tmp_path / "texts.db").open("r+b") as file:
        for page in range(1, pages):
            file.seek(page * 4_096)
            file.write(b"\xff" * 4_096)
    assert await ask(at, "zeppelin") == whole
    assert caplog.text.count("cannot be used") == 1 and "malformed" in caplog.text
    assert await ask(at, "zeppelin") == whole
    store = TextStore(tmp_path / "texts.db")
    assert at.files is not None and store.known(at.files.identity())
    store.close()


async def test_on_a_full_disk_files_are_read_without_the_store(
    at: ToolContext, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole = await ask(at, "zeppelin")
    writing = TextStore._writing

    def full(self: TextStore) -> object:
        if self._path is not None:
            raise sqlite3.OperationalError("database or disk is full")
        return writing(self)

    monkeypatch.setattr(TextStore, "_writing", full)
    assert [await ask(at, "zeppelin") for _again in range(2)] == [whole, whole]
    assert caplog.text.count("disk is full") == 1


async def test_a_document_is_parsed_once_for_reading_and_for_searching(
    at: ToolContext, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "letter.eml").write_text(f"Subject: Airships\n\n{SENTENCE}\n")
    os.utime(folder / "letter.eml", (1_700_000_000, 1_700_000_000))
    assert SENTENCE in (await ReadFile()(ReadFileArgs(path="letter.eml"), at)).text
    monkeypatch.setattr(parser_process, "_started", lambda: pytest.fail("a parser was started"))
    assert "## letter.eml" in await ask(at, "zeppelin")
    assert SENTENCE in (await ReadFile()(ReadFileArgs(path="letter.eml"), at)).text


def test_what_was_used_least_goes_first(tmp_path: Path) -> None:
    store = TextStore(tmp_path / "texts.db", most_bytes=400_000)
    for number in range(300):
        keep(store, f"{number:03}", " ".join(f"word{number}x{other}" for other in range(300)))
    assert store.expire(0) > 0
    names = set(store.known("folder"))
    assert "299" in names and "000" not in names
    assert (tmp_path / "texts.db").stat().st_size < 600_000
    store.close()


def test_texts_that_nobody_used_for_long_are_removed(tmp_path: Path) -> None:
    kept = KeptTexts(tmp_path / "texts.db", 1_000_000)
    store = TextStore(tmp_path / "texts.db")
    keep(store, "a", SENTENCE)
    kept.expire(90)
    assert set(store.known("folder")) == {"a"}
    kept.expire(-1)
    assert store.known("folder") == {}
    store.close()


def test_several_threads_and_processes_use_it_side_by_side(tmp_path: Path) -> None:
    stores = [TextStore(tmp_path / "texts.db") for _ in range(2)]
    failed: list[Exception] = []

    def work(number: int) -> None:
        try:
            for each in range(10):
                keep(stores[number % 2], f"{each}", f"{SENTENCE} {each}")
        except Exception as error:  # shown below
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == [] and len(stores[0].known("folder")) == 10
    for store in stores:
        store.close()


WORDS = (
    "leaving",
    "left",
    "Zeppelins",
    "über",
    "Übergabe",
    "価格",
    "価格は",
    "서울에서",
    "서울",
    "noon",
    "Straße",
    "x",
)
TEXTS = st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map(" ".join), min_size=1, max_size=8)


@settings(max_examples=60, deadline=None)
@given(TEXTS, st.sampled_from(WORDS))
def test_the_index_leaves_out_no_passage_that_matches(texts: list[str], word: str) -> None:
    store = TextStore(None)
    kept = store.keep(b"1" * 32, b"", [FilePassage("line 1", text) for text in texts])
    expressions = reading.expressions_of(Query(word), store)
    found = None if expressions is None else store.find_passages([kept.id], expressions).get(kept.id, set())
    matching = {at for at, text in enumerate(texts) if any(Query(word).matches(text).counts)}
    assert found is None or matching <= found
    store.close()


def test_an_index_has_words_by_their_beginnings_without_marks() -> None:
    assert index_terms("Über 価格は noon") >= {"ube·über", "価格", "格は", "noon"}
