"""Texts of files are kept once, found by their words, and gone when they are erased."""

from __future__ import annotations

import gzip
import os
import re
import sqlite3
import stat
import threading
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import anyio
import openpyxl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ava_roles.errors import AccessRefused, ToolFailed
from ava_roles.sandbox.path_access import FileMark
from ava_roles.sandbox.paths import Root
from ava_roles.texts import parser_process, reading
from ava_roles.texts import store as store_module
from ava_roles.texts.encodings import decode
from ava_roles.texts.extracted import FORMATS, Extracted, Format, Part, Wanted, format_of
from ava_roles.texts.formats import PARSERS
from ava_roles.texts.kept import KeptTexts
from ava_roles.texts.page_text import read_page_text
from ava_roles.texts.parser_process import ParserProcess
from ava_roles.texts.passages import FilePassage, Query, index_terms
from ava_roles.texts.reading import TextReader
from ava_roles.texts.store import TextStore, remove_store
from ava_roles.tool import ToolContext
from ava_roles.tools.files import ReadFile, ReadFileArgs, SearchAndRead, SearchAndReadArgs

SENTENCE = "The zeppelin leaves the mooring mast at a quarter past noon."
MARK = FileMark(1, 2, 3, 4, 5)


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


async def test_a_second_question_looks_into_no_picture_again(
    at: ToolContext, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ava_roles.texts.store.FRESH_S", -60.0)
    for number in range(9):
        (folder / f"{number}.png").write_bytes(b"\x89PNG\0\0\0" + bytes([number]) * 90_000)
        (folder / f"{number}.gz").write_bytes(gzip.compress(os.urandom(90_000) + b"\0"))
    first = await ask(at, "zeppelin")
    assert "18 not text" in first
    seen = reads(monkeypatch)
    assert await ask(at, "zeppelin") == first and set(seen) == {"words.txt"}
    (folder / "0.png").write_text("A zeppelin, in words.")
    assert "A zeppelin, in words." in await ask(at, "zeppelin")


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
    packed = packed_texts(tmp_path / "texts.db", SENTENCE)
    assert len(packed) == 2 and all(in_files(tmp_path, each) for each in packed), "a text whole, and its passage"
    kept = KeptTexts(tmp_path / "texts.db", 1_000_000)
    assert kept.erase_run("S-1") == 1
    at.texts.close()
    assert bytes_of(tmp_path).isdisjoint({b"zeppelin", b"mooring"})
    assert not any(in_files(tmp_path, each[at : at + 12]) for each in packed for at in range(len(each) - 12))
    again = TextStore(tmp_path / "texts.db")
    assert {text.id for _mark, _entered, text in again.known(Root.open(folder).identity()).values()} != set()
    again.close()


def bytes_of(folder: Path) -> set[bytes]:
    """Return the words in the store's files, as they are on the disk."""
    return {word for each in folder.glob("texts.db*") for word in re.findall(rb"[a-z]{4,}", each.read_bytes())}


def packed_texts(path: Path, words: str) -> list[bytes]:
    """Return the packed texts of a store that have these words."""
    with closing(sqlite3.connect(path)) as db:
        found = [row[0] for row in db.execute("SELECT body FROM texts UNION ALL SELECT text FROM passages")]
    return [each for each in found if words.encode() in zlib.decompress(each)]


def in_files(folder: Path, piece: bytes) -> bool:
    return any(piece in each.read_bytes() for each in folder.glob("texts.db*"))


def keep(store: TextStore, name: str, text: str, run: str = "S-1") -> int:
    kept = store.keep(name.encode() * 32, text.encode(), [FilePassage("line 1", text)])
    assert kept is not None
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
    assert caplog.text.count("is damaged") == 1 and "malformed" in caplog.text
    assert await ask(at, "zeppelin") == whole
    store = TextStore(tmp_path / "texts.db")
    assert at.files is not None and store.known(at.files.identity())
    store.close()


async def test_on_a_full_disk_files_are_read_without_the_store_and_its_texts_can_be_erased(
    at: ToolContext, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await ask(at, "zeppelin")
    prepare = store_module._prepare

    def full(db: sqlite3.Connection) -> None:
        prepare(db)
        if db.execute("PRAGMA database_list").fetchone()[2]:  # not the one in memory
            pages = db.execute("PRAGMA page_count").fetchone()[0]
            db.execute(f"PRAGMA max_page_count = {pages}")

    monkeypatch.setattr(store_module, "_prepare", full)
    for number in range(20):
        (folder / f"w{number}.txt").write_text(f"{words(number)} and the mooring mast number {number}")
    whole = await ask(replace(at, texts=KeptTexts()), "mooring masts")
    at.texts.close()
    assert [await ask(at, "mooring masts") for _again in range(2)] == [whole, whole]
    assert caplog.text.count("database or disk is full") == 1
    assert at.texts.erase_all() > 0
    assert bytes_of(tmp_path).isdisjoint({b"zeppelin", b"mooring"})


def test_texts_are_erased_where_a_full_disk_takes_no_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TextStore(tmp_path / "texts.db")
    keep(store, "a", SENTENCE)
    kept = KeptTexts(tmp_path / "texts.db", 1_000_000)
    store.close()

    def full(_store: TextStore) -> None:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    monkeypatch.setattr(TextStore, "_scrub", full)
    kept.erase_all()
    assert bytes_of(tmp_path) == set()


async def test_a_store_that_another_process_made_anew_is_opened_anew(at: ToolContext, tmp_path: Path) -> None:
    whole = await ask(at, "zeppelin")
    remove_store(tmp_path / "texts.db")
    assert await ask(at, "zeppelin") == whole
    with closing(TextStore(tmp_path / "texts.db")) as store:
        assert store.count() == 2


@pytest.mark.parametrize("column", ["passages.text", "passages.place", "texts.body", "texts.failed", "files.mark"])
async def test_whatever_part_is_damaged_the_answer_is_the_same_and_damage_is_said_once(
    column: str, at: ToolContext, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ava_roles.texts.store.FRESH_S", -60.0)
    whole = await ask(at, "zeppelin")
    at.texts.close()
    table, _, name = column.partition(".")
    db = sqlite3.connect(tmp_path / "texts.db")
    db.execute(f"UPDATE {table} SET {name} = CAST(x'ff00fe' AS {'BLOB' if name in ('text', 'body') else 'TEXT'})")
    db.commit()
    db.close()
    assert [await ask(at, "zeppelin") for _again in range(2)] == [whole, whole]
    assert caplog.text.count("is damaged") == 1


async def test_a_document_is_parsed_once_for_reading_and_for_searching(
    at: ToolContext, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "letter.eml").write_text(f"Subject: Airships\n\n{SENTENCE}\n")
    os.utime(folder / "letter.eml", (1_700_000_000, 1_700_000_000))
    assert SENTENCE in (await ReadFile()(ReadFileArgs(path="letter.eml"), at)).text
    monkeypatch.setattr(parser_process, "_started", lambda: pytest.fail("a parser was started"))
    assert "## letter.eml" in await ask(at, "zeppelin")
    assert SENTENCE in (await ReadFile()(ReadFileArgs(path="letter.eml"), at)).text


def words(number: int) -> str:
    return " ".join(f"word{number}x{other}" for other in range(300))


def age(path: Path, hours: int) -> None:
    """Make all texts of a store look as if they were used last so many hours earlier."""
    db = sqlite3.connect(path)
    db.execute("UPDATE texts SET used_us = used_us - ?", (hours * 3_600_000_000,))
    db.commit()
    db.close()


def test_the_store_never_grows_beyond_its_bound_and_what_was_used_least_goes_first(tmp_path: Path) -> None:
    store = TextStore(tmp_path / "texts.db", most_bytes=400_000)
    sizes: list[int] = []
    for number in range(500):
        keep(store, f"{number:03}", words(number))
        age(tmp_path / "texts.db", 3)
        sizes.append(sum(each.stat().st_size for each in tmp_path.glob("texts.db*")))
    names = set(store.known("folder"))
    assert "499" in names and "000" not in names and len(names) > 20
    assert max(sizes[300:]) < 1.2 * max(sizes[:300]), (max(sizes[300:]), max(sizes[:300]), sizes[::50])
    store.close()


def test_what_may_be_in_use_is_not_removed_for_something_new(tmp_path: Path) -> None:
    store = TextStore(tmp_path / "texts.db", most_bytes=40_000)
    passages = [[FilePassage("line 1", words(number))] for number in range(30)]
    kept = [store.keep(b"%032d" % number, b"", each) for number, each in enumerate(passages)]
    assert kept[0] is not None and kept[-1] is None
    assert store.find(b"%032d" % 0) == kept[0]
    store.close()


async def test_a_folder_with_more_text_than_is_kept_is_searched_whole(at: ToolContext, folder: Path) -> None:
    for number in range(30):
        (folder / f"w{number}.txt").write_text(f"{words(number)} and the mooring mast number {number}")
    small = replace(at, texts=KeptTexts(at.texts._path, 40_000))
    whole = await ask(replace(at, texts=KeptTexts()), "mooring masts")
    assert [await ask(small, "mooring masts") for _again in range(2)] == [whole, whole]
    small.texts.close()


def test_texts_that_nobody_used_for_long_are_removed(tmp_path: Path) -> None:
    kept = KeptTexts(tmp_path / "texts.db", 1_000_000)
    store = TextStore(tmp_path / "texts.db")
    keep(store, "a", SENTENCE)
    kept.expire(90)
    assert set(store.known("folder")) == {"a"}
    kept.expire(-1)
    assert store.known("folder") == {}
    store.close()


def test_a_run_that_forgets_files_removes_no_text_that_another_is_about_to_enter(tmp_path: Path) -> None:
    ours, theirs = TextStore(tmp_path / "texts.db"), TextStore(tmp_path / "texts.db")
    kept = ours.keep(b"1" * 32, b"", [FilePassage("line 1", SENTENCE)])
    assert kept is not None
    keep(theirs, "gone", "another text")
    theirs.leave("folder", ["gone"])
    ours.enter("folder", [("here", MARK, 9, kept.id)], "S-1")
    assert {path: text for path, (_mark, _entered, text) in ours.known("folder").items()} == {"here": kept}
    ours.close()
    theirs.close()


def test_a_text_that_was_removed_before_it_is_entered_is_left_out(tmp_path: Path) -> None:
    store = TextStore(tmp_path / "texts.db")
    number = keep(store, "a", SENTENCE)
    store.erase_all()
    store.enter("folder", [("a", MARK, 9, number)], "S-1")
    assert store.known("folder") == {} and not store.are_kept([number])
    assert keep(store, "b", SENTENCE) != number, "a number never means another text"
    store.close()


def test_the_text_of_a_file_that_has_changed_goes(tmp_path: Path) -> None:
    store = TextStore(tmp_path / "texts.db")
    old = keep(store, "a", SENTENCE)
    new = store.keep(b"2" * 32, b"", [FilePassage("line 1", "The airship has left.")])
    assert new is not None
    store.enter("folder", [("a", MARK, 9, new.id)], "S-1")
    assert not store.are_kept([old]) and store.are_kept([new.id])
    store.close()


async def test_a_search_whose_texts_are_removed_meanwhile_is_made_again(
    at: ToolContext, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = await ask(at, "zeppelin")
    find = TextStore.find_passages
    erased: list[int] = []

    def find_after_removal(store: TextStore, *asked: Any) -> dict[int, set[int]]:
        if len(erased) < removals:
            erased.append(store.erase_all())
        return find(store, *asked)

    monkeypatch.setattr(TextStore, "find_passages", find_after_removal)
    removals = 1
    assert await ask(at, "zeppelin") == whole and erased == [2]
    removals = 9
    (folder / "other.txt").unlink()
    result = await SearchAndRead()(SearchAndReadArgs(query="zeppelin"), at)
    assert "1 removed meanwhile from what is kept: ask again" in result.text and result.unread


async def test_a_text_is_used_by_whoever_reads_or_searches_its_file(
    at: ToolContext, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ava_roles.texts.store.FRESH_S", -60.0)
    (folder / "letter.eml").write_text(f"Subject: Airships\n\n{SENTENCE}\n")
    (folder / "broken.docx").write_bytes(b"PK no archive")
    await ask(at, "zeppelin")
    age(tmp_path / "texts.db", 50)
    await ask(at, "noon")
    assert used_lately(tmp_path / "texts.db") == 4, "also what has no text"
    age(tmp_path / "texts.db", 50)
    await ReadFile()(ReadFileArgs(path="letter.eml"), at)
    assert used_lately(tmp_path / "texts.db") == 1


def used_lately(path: Path) -> int:
    db = sqlite3.connect(path)
    count: int = db.execute("SELECT count(*) FROM texts WHERE used_us > (unixepoch() - 3600) * 1000000").fetchone()[0]
    db.close()
    return count


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
    assert kept is not None
    expressions = reading.expressions_of(Query(word), store)
    found = None if expressions is None else store.find_passages([kept.id], expressions).get(kept.id, set())
    matching = {at for at, text in enumerate(texts) if any(Query(word).matches(text).counts)}
    assert found is None or matching <= found
    store.close()


def test_an_index_has_words_by_their_beginnings_without_marks() -> None:
    assert index_terms("Über 価格は noon") >= {"ube·über", "価格", "格は", "noon"}


async def test_a_text_that_another_run_removed_with_its_file_is_no_loss(
    at: ToolContext, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = TextStore.find_passages

    def find_without(store: TextStore, *asked: Any) -> dict[int, set[int]]:
        (folder / "other.txt").unlink(missing_ok=True)
        assert at.files is not None
        store.leave(at.files.identity(), ["other.txt"])
        return find(store, *asked)

    monkeypatch.setattr(TextStore, "find_passages", find_without)
    result = await SearchAndRead()(SearchAndReadArgs(query="zeppelin"), at)
    assert SENTENCE in result.text and "1 gone meanwhile" in result.text and not result.unread


async def test_runs_that_ask_about_a_folder_at_once_have_each_document_parsed_once(
    at: ToolContext, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        (folder / f"{number}.eml").write_text(f"Subject: Airships\n\n{SENTENCE} {number}\n")
    parse, parsed = ParserProcess.read_document, list[bytes]()

    def noted(parser: ParserProcess, kind: Format, data: bytes, wanted: Wanted) -> Extracted:
        parsed.append(data)
        return parse(parser, kind, data, wanted)

    monkeypatch.setattr(ParserProcess, "read_document", noted)
    answers: list[str] = []

    async def one(number: int) -> None:
        answers.append(await ask(replace(at, run_id=f"S-{number}"), "zeppelin"))

    async with anyio.create_task_group() as tasks:
        for number in range(4):
            tasks.start_soon(one, number)
    assert len(set(parsed)) == len(parsed) == 6
    assert len(answers) == 4 and len(set(answers)) == 1


# -- the key of a text ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["page.html", "page.xhtml", "page.txt"])
async def test_another_search_of_the_same_bytes_changes_no_quote(first: str, at: ToolContext, tmp_path: Path) -> None:
    names = ["page.html", "page.xhtml", "page.txt"]
    names.sort(key=lambda name: name != first)
    alone: list[str] = []
    together: list[str] = []
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text('<html><body><p>zeppelin <b hidden="hidden"/>at noon</p></body></html>')
        with closing(Root.open(tmp_path / name)) as root:
            alone.append(await ask(replace(at, files=root, texts=KeptTexts()), "zeppelin"))
            together.append(await ask(replace(at, files=root), "zeppelin"))
    assert together == alone
    assert len({text.replace(name, "") for name, text in zip(names, alone, strict=True)}) == 3


def other_than(value: object) -> object:
    """Return a value of the same type, and another one."""
    if isinstance(value, bool):
        return not value
    return 7 if value is None or isinstance(value, int) else f"{value}x"


NAMES = ["notes.txt", "cells.csv", "page.html", "page.xhtml", *(each.suffixes[0].join(("a", "")) for each in FORMATS)]


@pytest.mark.parametrize("name", NAMES)
def test_every_argument_of_what_reads_a_file_is_in_the_key_of_its_text(name: str) -> None:
    reader = TextReader.of(name, format_of(name))
    taken = {
        "decode": list(signature(decode).parameters)[1:],
        "page": list(signature(read_page_text).parameters)[1:],
        "document": list(signature(Wanted).parameters),
        "rows": ["tables"],
        "packages": ["are_here"],
    }
    for step, arguments in reader.arguments.items():
        assert sorted(arguments) == sorted(taken[step]), f"{step} takes arguments that are not in the key"
        for argument, value in arguments.items():
            changed = {**reader.arguments, step: {**arguments, argument: other_than(value)}}
            assert replace(reader, arguments=changed).digest("0") != reader.digest("0"), f"{argument} of {step}"
    assert reader.digest("1") != reader.digest("0")


def test_a_parser_takes_nothing_but_the_data_and_what_is_in_the_key() -> None:
    assert {each.name for each in FORMATS} == set(PARSERS)
    for name, parser in PARSERS.items():
        _data, wanted = signature(parser).parameters.values()
        assert wanted.annotation in ("Wanted", Wanted), name


def test_no_two_readers_share_a_key() -> None:
    readers = [TextReader.of(name, format_of(name)) for name in NAMES]
    assert len({reader.digest("0") for reader in readers}) == len(NAMES)


def test_a_folder_with_the_name_of_a_page_changes_no_page_in_it() -> None:
    assert TextReader.of("old.xhtml/a.html", None) == TextReader.of("a.html", None) != TextReader.of("A.XHT.GZ", None)


async def test_a_document_that_lacked_its_packages_is_read_when_they_are_there(
    at: ToolContext, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = openpyxl.Workbook()
    assert book.active is not None
    book.active["A1"] = SENTENCE
    book.save(folder / "plan.xlsx")
    with monkeypatch.context() as without, pytest.raises(ToolFailed, match="no extra `documents`"):
        for module in (reading, parser_process):
            without.setattr(module, "has_extra", lambda _name: False)
        await ReadFile()(ReadFileArgs(path="plan.xlsx"), at)
    assert SENTENCE in (await ReadFile()(ReadFileArgs(path="plan.xlsx"), at)).text


# -- files that are gone ----------------------------------------------------------------------------------------------


async def test_the_text_of_a_file_that_is_gone_goes_without_a_search(
    at: ToolContext, folder: Path, tmp_path: Path
) -> None:
    await ask(at, "zeppelin")
    assert at.texts.check_files() == 0
    (folder / "words.txt").unlink()
    (folder / "other.txt").write_text("It has changed.\n")
    assert at.texts.check_files() == 2
    at.texts.close()
    assert bytes_of(tmp_path).isdisjoint({b"zeppelin", b"mooring", b"interest"})


def take_away(folder: Path, away: Path, how: str) -> None:
    folder.rename(away)
    if how == "another folder":
        folder.mkdir()
    elif how == "a file":
        folder.touch()
    elif how == "a link":
        folder.symlink_to(away)


@pytest.mark.parametrize("how", ["moved away", "another folder", "a file", "a link"])
async def test_a_folder_that_is_not_there_says_nothing_about_its_files(
    how: str, at: ToolContext, folder: Path, tmp_path: Path
) -> None:
    await ask(at, "zeppelin")
    take_away(folder, tmp_path / "away", how)
    assert at.texts.check_files() == 0
    assert used_lately(tmp_path / "texts.db") == 2


async def test_a_folder_that_cannot_be_opened_says_nothing_about_its_files(
    at: ToolContext, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "sub").mkdir()
    (folder / "sub/deep.txt").write_text(f"{SENTENCE} Deep.\n")
    await ask(at, "zeppelin")
    open_file = Root.open_file

    def refused(root: Root, rel: str) -> Any:
        if rel.startswith("sub/"):
            raise AccessRefused("sub/deep.txt may not be accessed by this user")
        return open_file(root, rel)

    with monkeypatch.context() as closed:  # root may open everything
        closed.setattr(Root, "open_file", refused)
        assert at.texts.check_files() == 0
        closed.setattr(Root, "open_approved", lambda *_given: (_ for _ in ()).throw(PermissionError("closed")))
        (folder / "words.txt").unlink()
        assert at.texts.check_files() == 0
    assert used_lately(tmp_path / "texts.db") == 3
    assert at.texts.check_files() == 1


async def test_each_round_looks_at_the_next_files_and_then_at_the_first_again(at: ToolContext, folder: Path) -> None:
    for number in range(5):
        (folder / f"n{number}.txt").write_text(f"note {number}\n")
    await ask(at, "zeppelin")  # 7 files
    for number in range(5):
        (folder / f"n{number}.txt").unlink()
    assert [at.texts.check_files(3) for _round in range(4)] == [3, 2, 0, 0]
    (folder / "other.txt").unlink()
    assert sum(at.texts.check_files(3) for _round in range(2)) == 1


async def test_a_file_that_was_read_again_meanwhile_keeps_its_text(at: ToolContext, folder: Path) -> None:
    await ask(at, "zeppelin")
    (folder / "words.txt").write_text("The airship has left.\n")

    async def forget_late(store: TextStore) -> int:
        before = store.next_files(9)
        await ask(at, "airship")
        return store.forget(before)

    assert await at.texts.use(forget_late) == 1, "the file that was not read again"
    assert at.files is not None
    identity = at.files.identity()

    async def known(store: TextStore) -> set[str]:
        return set(store.known(identity))

    assert await at.texts.use(known) == {"words.txt"}


async def test_files_of_a_boot_before_are_looked_at_in_their_folder(
    at: ToolContext, folder: Path, tmp_path: Path
) -> None:
    await ask(at, "zeppelin")
    at.texts.close()
    with closing(sqlite3.connect(tmp_path / "texts.db")) as db:
        inode = os.stat(folder).st_ino  # noqa: PTH116
        for table in ("files", "folders"):
            db.execute(f"UPDATE {table} SET folder = ?", (f"99:{inode}:an-earlier-boot",))
        db.execute("UPDATE files SET mark = '99' || substr(mark, instr(mark, ':'))")
        db.commit()
    assert at.texts.check_files() == 0
    (folder / "words.txt").unlink()
    assert at.texts.check_files() == 1


async def test_the_path_of_a_folder_goes_with_its_last_text(at: ToolContext, folder: Path, tmp_path: Path) -> None:
    await ask(at, "zeppelin")
    assert in_files(tmp_path, bytes(folder))
    at.texts.erase_run("S-1")
    at.texts.close()
    assert not in_files(tmp_path, bytes(folder))


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
