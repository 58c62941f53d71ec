"""Verification: any change of the log is found and named, and the projections are what follows from it."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.log import AVA, Life, message, tamper_with, without_triggers, write_each, write_texts
from support.logs.store import open_store
from support.logs.tampering import bytes_of_entry, insert_entry, only_fault, renumber
from support.properties import BUSY_OR_SHARED

from ava_audit import chain_process
from ava_audit import verify as verification
from ava_audit.chain_process import intact_slices
from ava_audit.entries import ENTRY_COLUMNS, GENESIS, HEADER, VerifyReport, content_sha, entry_hash
from ava_audit.errors import BadQuery, StoreUnavailable
from ava_audit.events import CostReserved, CostUpdate
from ava_audit.maintenance import index_new_entries
from ava_audit.mirror import Mirror, mirror_faults
from ava_audit.retention import erase_run
from ava_audit.store.store import Store
from ava_audit.verify import verify

N = len(HEADER)


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "SLICE", 3)


@pytest.fixture
async def root(tmp_path: Path) -> Path:
    """The data root of a log of ten messages."""
    async with open_store(tmp_path) as log:
        await write_texts(log, [f"message {number}" for number in range(1, 11)])
    return tmp_path


@pytest.fixture
def file(root: Path) -> Path:
    """The file of such a log."""
    return root / "ava.db"


async def test_an_unchanged_log_verifies_and_reports_its_head(root: Path) -> None:
    report = verify(root)
    with tamper_with(root) as db:
        head = db.execute("SELECT hash FROM events WHERE seq = 10").fetchone()[0]
    assert report == VerifyReport(entries=10, seq=10, head=head.hex(), faults=(), projections=True)
    assert report.ok


async def test_an_empty_log_verifies(tmp_path: Path) -> None:
    async with Store.open(tmp_path):
        pass
    assert verify(tmp_path) == VerifyReport(0, 0, GENESIS.hex(), (), True)


@pytest.mark.parametrize("seq", [1, 3, 4, 10])
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("content", '{"text":"message X","kind":"message"}'),
        ("ts_us", 1),
        ("user_id", "eve"),
        ("type", "AssistantMessage"),
        ("duration_ms", 7),
        ("run_id", "S-ffffff"),
        ("content_sha", bytes(32)),
        ("hash", bytes(32)),
    ],
)
async def test_reports_a_changed_entry(seq: int, column: str, value: Any, root: Path) -> None:
    with tamper_with(root) as db:
        db.execute(f"UPDATE events SET {column} = ? WHERE seq = ?", (value, seq))
    kind, where = only_fault(verify(root))
    assert (kind, where) == ("changed", seq)


@pytest.mark.parametrize("renumbered", [False, True])
@pytest.mark.parametrize(("first", "last"), [(1, 1), (4, 4), (4, 6), (8, 9)])
async def test_reports_missing_entries(first: int, last: int, renumbered: bool, root: Path) -> None:
    with tamper_with(root) as db:
        db.execute("DELETE FROM events WHERE seq BETWEEN ? AND ?", (first, last))
        if renumbered:
            renumber(db, last + 1, first - last - 1)
    kind, where = only_fault(verify(root))
    if renumbered and last == 9:  # the last entry alone has no successor that still holds on to it
        assert where == first
    else:
        assert (kind, where) == ("missing", first)


@pytest.mark.parametrize("hashed", [False, True])
@pytest.mark.parametrize("seq", [2, 5, 10])
async def test_reports_an_inserted_entry(seq: int, hashed: bool, root: Path) -> None:
    with tamper_with(root) as db:
        insert_entry(db, seq, hashed=hashed)
    assert only_fault(verify(root)) == ("inserted", seq)


@pytest.mark.parametrize(("one", "other"), [(1, 2), (3, 4), (2, 9), (9, 10)])
async def test_reports_reordered_entries(one: int, other: int, root: Path) -> None:
    with tamper_with(root) as db:
        db.execute("UPDATE events SET seq = -seq WHERE seq IN (?, ?)", (one, other))
        db.execute("UPDATE events SET seq = ? WHERE seq = ?", (other, -one))
        db.execute("UPDATE events SET seq = ? WHERE seq = ?", (one, -other))
    assert only_fault(verify(root)) == ("reordered", one)


async def test_a_cut_off_end_is_detected_only_against_a_known_head(root: Path) -> None:
    head = verify(root).head
    assert verify(root, head=head.upper()).ok
    with tamper_with(root) as db:
        db.execute("DELETE FROM events WHERE seq > 8")
    assert verify(root).ok
    (fault,) = verify(root, head=head).faults
    assert fault.kind == "head"
    assert "cut off" in fault.text


async def test_finds_an_older_head_in_a_log_that_has_grown(root: Path) -> None:
    head = verify(root).head
    async with Store.open(root) as log:
        await write_texts(log, ["more"])
    assert verify(root, head=head).ok


async def test_verifying_since_a_known_entry_checks_only_later_entries(root: Path) -> None:
    with tamper_with(root) as db:
        db.execute("UPDATE events SET user_id = 'eve' WHERE seq = 2")
        middle = db.execute("SELECT hash FROM events WHERE seq = 5").fetchone()[0].hex()
    report = verify(root, since=middle)
    assert (report.ok, report.entries, report.projections) == (True, 5, False)
    gone = verify(root, since="ab" * 32)
    assert (gone.ok, gone.entries, gone.faults[0].kind) == (False, 0, "head")
    with pytest.raises(BadQuery, match="64 hexadecimal digits"):
        verify(root, head="pirate")


async def test_a_head_counts_only_within_the_checked_range(root: Path) -> None:
    with tamper_with(root) as db:
        hashes = [row[0].hex() for row in db.execute("SELECT hash FROM events ORDER BY seq")]
    assert verify(root, head=GENESIS.hex()).ok, "every log has grown from an empty one"
    assert verify(root, since=GENESIS.hex()).entries == 10
    assert verify(root, since=hashes[4], head=hashes[8]).ok
    assert verify(root, since=hashes[4], head=hashes[4]).ok
    with tamper_with(root) as db:  # the end is gone, and its hash put where no check comes by
        db.execute("DELETE FROM events WHERE seq > 8")
        db.execute("UPDATE events SET hash = ? WHERE seq = 2", (bytes.fromhex(hashes[8]),))
    assert [fault.kind for fault in verify(root, since=hashes[4], head=hashes[8]).faults] == ["head"]


@pytest.mark.parametrize("seq", [0, -7])
async def test_reports_an_entry_before_the_first(seq: int, root: Path) -> None:
    with tamper_with(root) as db:
        columns = ENTRY_COLUMNS.removeprefix("seq, ")
        db.execute(f"INSERT INTO events (seq, {columns}) SELECT ?, {columns} FROM events WHERE seq = 4", (seq,))
    assert only_fault(verify(root)) == ("inserted", seq)


@pytest.mark.sqlite_only("Postgres stores no invalid text")
@pytest.mark.parametrize("column", ["content", "user_id", "type", "model"])
async def test_reports_invalid_utf8_as_a_changed_entry(column: str, file: Path) -> None:
    with without_triggers(file) as db:
        db.execute(f"UPDATE events SET {column} = CAST(x'7B80FF7D' AS TEXT) WHERE seq = 5")
    assert only_fault(verify(file)) == ("changed", 5)
    with without_triggers(file) as db:
        db.execute("UPDATE budgets SET scope = scope")
        db.execute("INSERT INTO budgets VALUES (CAST(x'80FF' AS TEXT), 1, 1)")
        middle = db.execute("SELECT hash FROM events WHERE seq = 5").fetchone()[0].hex()
    assert verify(file, since=middle).ok


@pytest.mark.sqlite_only("Postgres stores no invalid text")
async def test_reports_invalid_utf8_in_a_projection(file: Path) -> None:
    with without_triggers(file) as db:
        db.execute("INSERT INTO budgets VALUES (CAST(x'80FF' AS TEXT), 1, 1)")
    assert [fault.kind for fault in verify(file).faults] == ["projection"]


@pytest.mark.sqlite_only("Postgres has strict types")
@pytest.mark.parametrize("value", [b"bytes", 7, None, 1.5])
@pytest.mark.parametrize("column", ["content", "hash", "content_sha", "user_id"])
async def test_a_table_without_strict_types_hides_no_changes(column: str, value: object, file: Path) -> None:
    with without_triggers(file) as db:
        db.execute("ALTER TABLE events RENAME TO strict_events")
        db.execute("CREATE TABLE events AS SELECT * FROM strict_events")
        assert {fault.kind for fault in verify(file).faults} == {"schema"}
        db.execute(f"UPDATE events SET {column} = ? WHERE seq = 3", (value,))
        db.execute("DROP TABLE strict_events")
    if (column, value) == ("content", None):
        assert "erased" in {fault.kind for fault in verify(file).faults}
    else:
        assert only_fault(verify(file)) == ("changed", 3)


@pytest.mark.sqlite_only("damages the file")
async def test_reports_where_a_damaged_file_becomes_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "ava.db"
    async with Store.open(tmp_path) as log:
        await write_texts(log, ["x" * 500] * 200)
        await log.checkpoint()
    db = sqlite3.connect(path)
    page = db.execute("PRAGMA page_size").fetchone()[0]
    (root,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'events'").fetchone()
    db.close()
    raw = bytearray(path.read_bytes())
    leaf = int.from_bytes(raw[(root - 1) * page + 12 + 20 :][:2], "big")  # a cell of the table's root: a child page
    child = int.from_bytes(raw[(root - 1) * page + leaf :][:4], "big")
    raw[(child - 1) * page : child * page] = b"\xee" * page
    path.write_bytes(raw)
    report = verify(path)
    (fault,) = report.faults
    assert fault.kind == "damaged"
    assert 0 < report.entries < 200
    assert f"from entry {report.entries + 1} on" in fault.text


@pytest.mark.sqlite_only("looks at the files")
async def test_verifying_creates_no_files_and_leaves_the_log_unchanged(file: Path) -> None:
    before = {each.name: each.read_bytes() for each in file.parent.iterdir()}
    assert verify(file).ok
    assert {each.name: each.read_bytes() for each in file.parent.iterdir()} == before


async def test_reports_progress(root: Path) -> None:
    told: list[tuple[int, int]] = []
    verify(root, on_progress=lambda done, of: told.append((done, of)))
    assert told == [(3, 10), (6, 10), (9, 10), (10, 10)]


async def test_an_erased_transcript_verifies_but_an_erased_fact_does_not(tmp_path: Path) -> None:
    life = Life("S-aaaaaa")
    root = tmp_path
    async with open_store(tmp_path) as log:
        await write_each(log, life.all_events())
        await erase_run(log, life.run_id, (), AVA, "a test")
    assert verify(root).ok
    with tamper_with(root) as db:
        db.execute("UPDATE events SET content = NULL WHERE type = 'CostUpdate'")
    assert only_fault(verify(root))[0] == "changed"


TAMPERED: dict[str, Callable[[Any], object]] = {
    "runs S-aaaaaa differs from the log in cost_micros": lambda db: db.execute("UPDATE runs SET cost_micros = 0"),
    "runs lacks id S-aaaaaa": lambda db: db.execute("DELETE FROM runs"),
    "budgets has scope gift": lambda db: db.execute("INSERT INTO budgets VALUES ('gift', -5, 0)"),
    "proposals P-aaaaaa00 differs from the log in state, channel": lambda db: db.execute(
        "UPDATE proposals SET state = 'rejected', channel = NULL"
    ),
}


@pytest.mark.parametrize("text", TAMPERED)
async def test_reports_a_changed_projection_and_the_entry_it_was_compared_at(text: str, tmp_path: Path) -> None:
    async with open_store(tmp_path) as log:
        await write_each(log, Life("S-aaaaaa").all_events())
    with tamper_with(tmp_path) as db:
        TAMPERED[text](db)
    (fault,) = verify(tmp_path).faults
    assert fault.kind == "projection"
    assert text in fault.text
    assert "at entry 11" in fault.text


@pytest.mark.sqlite_only("damages the file")
@settings(max_examples=60, suppress_health_check=BUSY_OR_SHARED)
@given(data=st.data())
def test_detects_a_change_of_any_byte_of_an_entry(data: st.DataObject, whole_log: bytes, tmp_path: Path) -> None:
    path = tmp_path / "changed.db"
    path.write_bytes(whole_log)
    seq = data.draw(st.integers(1, 11))
    column = data.draw(st.sampled_from([*HEADER[1:], "content", "content_sha", "hash"]))
    with without_triggers(path) as db:
        (old,) = db.execute(f"SELECT {column} FROM events WHERE seq = ?", (seq,)).fetchone()
        new: object
        if isinstance(old, int):
            new = old ^ (1 << data.draw(st.integers(0, 20)))
        elif old is None:
            numbers = ("generation", "cost_micros", "duration_ms")
            new = 1 if column in numbers or column.endswith("tokens") else "x"
        else:
            raw = bytearray(old.encode() if isinstance(old, str) else old)
            place = data.draw(st.integers(0, len(raw) - 1))
            raw[place] ^= 1 << data.draw(st.integers(0, 6))
            new = bytes(raw) if isinstance(old, bytes) else raw.decode("ascii")
        db.execute(f"UPDATE events SET {column} = ? WHERE seq = ?", (new, seq))
    report = verify(path)
    assert report.faults
    assert report.faults[0].seq == seq
    path.unlink()


@pytest.mark.sqlite_only("damages the file")
@settings(max_examples=100, suppress_health_check=BUSY_OR_SHARED)
@given(seq=st.integers(1, 11), place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_detects_any_flipped_bit_in_the_file_and_names_the_entry(
    seq: int, place: float, bit: int, whole: Path, tmp_path: Path
) -> None:
    file = tmp_path / "changed.db"
    raw = bytearray(whole.read_bytes())
    bytes_of = bytes_of_entry(whole, bytes(raw), seq)
    raw[bytes_of[int(place * len(bytes_of))]] ^= 1 << bit
    file.write_bytes(raw)
    faults = verify(file).faults
    file.unlink()
    assert faults and faults[0].seq == seq, faults


@pytest.fixture
def whole(whole_log: bytes, tmp_path: Path) -> Path:
    path = tmp_path / "whole.db"
    path.write_bytes(whole_log)
    return path


@pytest.fixture
def whole_log(tmp_path: Path) -> bytes:
    async def live() -> None:
        async with Store.open(tmp_path) as log:
            await write_each(log, Life("S-aaaaaa").all_events())
            await log.checkpoint()

    anyio.run(live)
    return (tmp_path / "ava.db").read_bytes()


async def test_verifies_a_log_that_is_being_written(tmp_path: Path) -> None:
    async with open_store(tmp_path) as log:
        await write_texts(log, ["x"] * 50)
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                life = Life(f"S-{number:06x}")
                tasks.start_soon(write_each, log, life.all_events())
            for _ in range(3):
                assert (await anyio.to_thread.run_sync(verify, tmp_path)).ok
        assert verify(tmp_path).entries == 50 + 20 * 11


@pytest.mark.sqlite_only("damages the file")
async def test_reports_a_missing_log_and_a_file_that_is_not_a_log(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="there is no log"):
        verify(tmp_path)
    (tmp_path / "ava.db").write_bytes(b"garbage" * 1000)
    (fault,) = verify(tmp_path).faults
    assert (fault.kind, "cannot be read as a log" in fault.text) == ("damaged", True)
    for content in (b"", b"\0" * 50):
        (tmp_path / "ava.db").write_bytes(content)
        (fault,) = verify(tmp_path).faults
        assert (fault.kind, fault.seq) == ("damaged", 0), content


@pytest.mark.sqlite_only("SQLite's own triggers; test_postgres.py has those of Postgres")
@pytest.mark.parametrize(
    ("statements", "told"),
    [
        (["DROP TRIGGER events_keep"], ["the trigger events_keep was removed"]),
        (
            ["DROP TRIGGER events_fixed", "CREATE TRIGGER events_fixed BEFORE UPDATE ON events BEGIN SELECT 1; END"],
            ["the trigger events_fixed was changed"],
        ),
        (
            ["CREATE TRIGGER quiet AFTER INSERT ON runs BEGIN DELETE FROM runs WHERE id = NEW.id; END"],
            ["the trigger quiet was added"],
        ),
    ],
)
async def test_reports_a_changed_trigger_even_if_the_chain_is_valid(
    statements: list[str], told: list[str], file: Path
) -> None:
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as db:
        for statement in statements:
            db.execute(statement)
    report = verify(file)
    assert {fault.kind for fault in report.faults} == {"schema"}
    assert [fault.text.partition(":")[0] for fault in report.faults] == told
    assert (report.entries, report.projections) == (10, True)


RUN_ALONE = (
    "INSERT INTO runs (id, pending_id, user_id, session_id, role, model, state, created_us, queued_us)"
    " VALUES ('S-ffffff', 'P-f', 'ben', 's', 'custom', 'm', 'queued', 1, 1)"
)


@pytest.mark.sqlite_only("connects to the file")
@pytest.mark.parametrize(
    ("statement", "told"),
    [
        (RUN_ALONE, "runs has id S-ffffff, which does not follow from the log"),
        (
            "INSERT INTO configs (id, config) VALUES ('S-ffffff', '{}')",
            "configs has id S-ffffff, which does not follow",
        ),
        ("DELETE FROM configs", "configs lacks id S-aaaaaa"),
        ("UPDATE configs SET config = '{}'", "configs S-aaaaaa differs from the log in config"),
    ],
)
async def test_compares_a_run_table_by_table(statement: str, told: str, tmp_path: Path) -> None:
    async with Store.open(tmp_path) as log:
        await write_each(log, Life("S-aaaaaa").all_events())
    with contextlib.closing(sqlite3.connect(tmp_path / "ava.db", isolation_level=None)) as db:
        db.execute(statement)
    (fault,) = verify(tmp_path).faults
    assert fault.kind == "projection" and told in fault.text


async def test_reports_content_that_does_not_match_the_event_type(
    root: Path,
) -> None:
    with tamper_with(root) as db:
        row = list(db.execute(f"SELECT {ENTRY_COLUMNS} FROM events WHERE seq = 10").fetchone())
        row[HEADER.index("type")], content = "SessionEnd", '{"reason":'
        before = db.execute("SELECT hash FROM events WHERE seq = 9").fetchone()[0]
        sha = content_sha(content.encode())
        digest = entry_hash(before, row[: len(HEADER)], sha)
        values = (row[HEADER.index("type")], content, sha, digest)
        db.execute("UPDATE events SET type = ?, content = ?, content_sha = ?, hash = ? WHERE seq = 10", values)
    (fault,) = verify(root).faults
    assert (fault.kind, fault.seq) == ("changed", 10) and "is unchanged, but cannot be applied" in fault.text


async def test_reports_content_erased_without_a_record(tmp_path: Path) -> None:
    root = tmp_path
    async with Store.open(tmp_path) as log:
        await write_each(log, [*Life("S-aaaaaa").all_events(), *Life("S-bbbbbb").all_events()])
        await erase_run(log, "S-aaaaaa", (), AVA, "a test")
    assert verify(root).ok
    with tamper_with(root) as db:  # the triggers let it through
        db.execute("UPDATE events SET content = NULL WHERE run_id = 'S-bbbbbb' AND type = 'ToolResult'")
    (fault,) = verify(root).faults
    assert (fault.kind, "the content of an entry was erased without a record" in fault.text) == ("erased", True)


async def test_reports_a_copied_entry_with_its_position_and_source(root: Path) -> None:
    for at, of in ((6, 2), (11, 10)):
        with tamper_with(root) as db:
            renumber(db, at, 1)
            row = db.execute(f"SELECT {ENTRY_COLUMNS} FROM events WHERE seq = ?", (of,)).fetchone()
            db.execute(f"INSERT INTO events ({ENTRY_COLUMNS}) VALUES ({', '.join('?' * len(row))})", (at, *row[1:]))
        report = verify(root)
        assert only_fault(report) == ("inserted", at)
        assert f"a copy of entry {of}" in report.faults[0].text
        assert report.entries == at - 1
        with tamper_with(root) as db:
            db.execute("DELETE FROM events WHERE seq = ?", (at,))
            renumber(db, at + 1, -1)
        assert verify(root).ok


@pytest.mark.sqlite_only("SQLite's own schema; test_postgres.py has that of Postgres")
@pytest.mark.parametrize("table", ["events", "runs", "configs", "budgets", "live", "words"])
async def test_reports_a_removed_table_by_name(table: str, file: Path) -> None:
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute("DROP TRIGGER events_keep" if table == "events" else "SELECT 1")
        db.execute(f"DROP TABLE {table}")
    faults = verify(file).faults
    assert {fault.kind for fault in faults} == {"schema"}
    assert f"the table {table} was removed" in " ".join(fault.text for fault in faults)


@pytest.mark.parametrize("how", ["changed", "lost", "twice", "added"])
async def test_reports_mirror_files_that_differ_from_the_log(
    root: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ava_audit.mirror.RECHECK_S", 0.0)
    logs = root / "logs"
    async with Store.open(root) as log:
        await write_each(log, Life("S-aaaaaa").all_events())
        mirror = Mirror(log, logs)
        await mirror.catch_up()
    assert verify(root, mirror=logs).ok
    file = logs / "subagents" / "S-aaaaaa.jsonl"
    first, second, third, *more = file.read_bytes().splitlines(keepends=True)
    spoiled = {
        "changed": [first, second.replace(b":", b";", 1), third, *more],
        "lost": [first, third, *more],
        "twice": [first, second, third, *more, more[-1]],
        "added": [first, second, third, *more, b"{}\n"],
    }[how]
    file.write_bytes(b"".join(spoiled))
    (fault,) = verify(root, mirror=logs).faults
    seq = fault.seq
    assert (fault.kind, fault.text) == (
        "mirror",
        f"logs/subagents/S-aaaaaa.jsonl differs from the log at entry {seq}; "
        "remove it: the next server to start rewrites it",
    )
    file.unlink()
    async with Store.open(root) as log:
        await Mirror(log, logs).catch_up()
    assert file.read_bytes() == b"".join([first, second, third, *more])
    assert verify(root, mirror=logs).ok


async def test_reports_a_settlement_of_a_call_that_was_never_reserved(tmp_path: Path) -> None:
    life = Life("S-aaaaaa")
    events = life.all_events()
    kept = [event for event in events if not isinstance(event.fact, CostReserved)]
    async with Store.open(tmp_path) as log:
        await write_each(log, kept)
        (settled,) = await log.read(lambda view: view.of_type("CostUpdate"))
    (fault,) = verify(tmp_path).faults
    assert (fault.kind, fault.seq) == ("unreserved", settled.seq)
    assert "a model call of S-aaaaaa that no entry reserves" in fault.text


async def test_a_call_that_was_given_up_may_be_settled_again(tmp_path: Path) -> None:
    """Its owner may have its answer after another process has booked it as unknown."""
    life = Life("S-aaaaaa")
    events = life.all_events()
    place = next(number for number, event in enumerate(events) if isinstance(event.fact, CostUpdate))
    async with Store.open(tmp_path) as log:
        await write_each(log, [*events[: place + 1], *events[place:]])
    assert verify(tmp_path).ok


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("emptied", "index"),
        ("UPDATE progress SET seq = 11 WHERE name = 'words'", "index"),
        ("UPDATE progress SET seq = 5 WHERE name = 'words'", "index"),
        ("UPDATE progress SET seq = 99 WHERE name = 'words'", "progress"),
        ("INSERT INTO progress (name, seq) VALUES ('retention', 12)", "progress"),
    ],
)
async def test_reports_maintenance_that_noted_more_or_less_than_it_did(
    statement: str, kind: str, tmp_path: Path, database: str
) -> None:
    if statement == "emptied":
        statement = "DELETE FROM words"
        if database == "sqlite":
            statement = "INSERT INTO words (words) VALUES ('delete-all')"
    async with Store.open(tmp_path) as log:
        await write_each(log, Life("S-aaaaaa").all_events()[:-1])
        await index_new_entries(log)
        await write_each(log, [message("not indexed yet")])
        assert (await anyio.to_thread.run_sync(verify, tmp_path)).ok
        await log.maintain(lambda db: db.execute(statement))
    kinds = [fault.kind for fault in verify(tmp_path).faults]
    assert kind in kinds and set(kinds) <= {"index", "progress"}


async def test_reports_a_mirror_file_that_is_taken_for_whole_and_lacks_its_end(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ava_audit.mirror.RECHECK_S", 0.0)
    async with Store.open(root) as log:
        await Mirror(log, root / "logs").catch_up()
        await write_texts(log, ["more"])
        assert (await anyio.to_thread.run_sync(partial(verify, root, mirror=root / "logs"))).ok, "it is only behind"
        await log.maintain(lambda db: db.execute("UPDATE progress SET seq = 11 WHERE name = 'mirror'"))
    (fault,) = verify(root, mirror=root / "logs").faults
    assert (fault.kind, fault.seq) == ("mirror", 11)


async def test_reports_mirrored_entries_that_are_missing_from_the_log(root: Path) -> None:
    logs = root / "logs"
    async with Store.open(root) as log:
        await write_each(log, Life("S-aaaaaa").all_events())
        mirror = Mirror(log, logs)
        await mirror.repair_all()
        await mirror.catch_up()
    (day,) = (logs / "ava").iterdir()
    assert verify(root, mirror=logs).ok
    whole = day.read_bytes()
    day.write_bytes(whole + b'{"torn": ')
    assert verify(root, mirror=logs).ok
    day.write_bytes(b"")
    assert verify(root, mirror=logs).ok, "a file that was cut is no fault of the log"
    day.write_bytes(whole)
    with tamper_with(root) as db:
        db.execute("DELETE FROM events WHERE seq > 10")
        for table in ("runs", "configs", "proposals", "budgets", "spending"):
            db.execute(f"DELETE FROM {table}")
    assert {fault.kind for fault in verify(root).faults} == {"progress"}, "the mirror was further"
    with tamper_with(root) as db:
        db.execute("UPDATE progress SET seq = 10")
    assert verify(root).ok, "nothing in the log itself tells that its end was cut"
    faults = verify(root, mirror=logs).faults
    assert {fault.kind for fault in faults} == {"mirror"}
    assert [fault.text.partition(",")[0] for fault in faults] == [
        f"logs/ava/{day.name} has entry 20",
        "logs/subagents/S-aaaaaa.jsonl has entry 21",
    ]
    assert [fault.seq for fault in mirror_faults(None, logs)] == [20, 21], "nor when the log is gone"


@pytest.fixture
def two_processes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have even short logs checked by two processes; tells which entries the second one has checked."""
    monkeypatch.setattr(verification, "LONG", 0)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    checked: list[int] = []

    @contextlib.contextmanager
    def noted(path: Path, size: int) -> Iterator[Iterator[tuple[int, bytes]]]:
        with intact_slices(path, size) as slices:
            yield (checked.append(upto) or (upto, digest) for upto, digest in slices)  # type: ignore[func-returns-value]

    monkeypatch.setattr(verification, "intact_slices", noted)
    return checked


@pytest.mark.sqlite_only("a log on a server is checked by one process")
async def test_two_processes_report_what_one_does(tmp_path: Path, two_processes: list[int]) -> None:
    async with Store.open(tmp_path) as log:
        await write_each(log, [*Life("S-aaaaaa").all_events(), *Life("S-bbbbbb").all_events()])
        await erase_run(log, "S-aaaaaa", (), AVA, "a test")
        whole = log.head
    told: list[tuple[int, int]] = []
    report = verify(tmp_path, head=verify(tmp_path).head, on_progress=lambda done, of: told.append((done, of)))
    assert report.ok and (report.entries, report.projections) == (whole, True)
    assert two_processes[-1] == whole and told[-1] == (whole, whole)
    with tamper_with(tmp_path) as db:
        db.execute("UPDATE events SET content = NULL WHERE run_id = 'S-bbbbbb' AND type = 'ToolResult'")
        db.execute("UPDATE runs SET cost_micros = 0 WHERE id = 'S-bbbbbb'")
    assert [fault.kind for fault in verify(tmp_path).faults] == ["projection", "erased"]


OTHER_PROCESSES = {
    "noise": "print('a warning of something else', flush=True)",
    "half a line": "import sys; sys.stdout.write('12'); sys.stdout.flush()",
    "no hash": "print('12 zz', flush=True)",
    "silence": "import time; time.sleep(60)",
    "no start": "raise SystemExit(1)",
}


@pytest.mark.sqlite_only("a log on a server is checked by one process")
@pytest.mark.parametrize("how", OTHER_PROCESSES)
async def test_whatever_the_second_process_does_the_log_is_checked(
    tmp_path: Path, two_processes: list[int], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(chain_process, "_START", OTHER_PROCESSES[how])
    monkeypatch.setattr(chain_process, "SILENT_S", 1.0)
    async with Store.open(tmp_path) as log:
        await write_each(log, Life("S-aaaaaa").all_events())
        whole = log.head
    report = verify(tmp_path)
    assert (report.ok, report.entries, two_processes) == (True, whole, [])
    with tamper_with(tmp_path) as db:
        db.execute("UPDATE events SET content = content || ' ' WHERE seq = 8")
    assert [(fault.kind, fault.seq) for fault in verify(tmp_path).faults][:1] == [("changed", 8)]


@pytest.mark.sqlite_only("a log on a server is checked by one process")
async def test_ctrl_c_at_any_moment_leaves_no_thread_that_holds_up_the_exit(
    file: Path, two_processes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[threading.Timer] = []
    start = threading.Timer.start

    def interrupted(timer: threading.Timer) -> None:
        made.append(timer)
        start(timer)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Timer, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        verify(file)
    (watch,) = made
    watch.join(5)
    assert watch.daemon and not watch.is_alive() and two_processes == []


CHANGES = {
    "UPDATE events SET content = replace(content, 'message', 'massage') WHERE seq = 8": ("changed", 8),
    "UPDATE events SET content = CAST(content AS BLOB) WHERE seq = 8": ("changed", 8),
    "UPDATE events SET content = 7 WHERE seq = 8": ("changed", 8),
    "UPDATE events SET user_id = CAST(user_id AS BLOB) WHERE seq = 8": ("changed", 8),
    "UPDATE events SET user_id = CAST(x'7B80FF7D' AS TEXT) WHERE seq = 8": ("changed", 8),
    "UPDATE events SET content = NULL, type = 'SessionEnd' WHERE seq = 8": ("changed", 8),
    "DELETE FROM events WHERE seq = 8": ("missing", 8),
    "DELETE FROM events WHERE seq = 1": ("missing", 1),
}


@pytest.mark.sqlite_only("changes types and bytes in the file")
@pytest.mark.parametrize("change", CHANGES)
async def test_a_second_process_hides_no_change(change: str, file: Path, two_processes: list[int]) -> None:
    with without_triggers(file) as db:
        db.execute("ALTER TABLE events RENAME TO strict_events")
        db.execute("CREATE TABLE events AS SELECT * FROM strict_events")
        db.execute("DROP TABLE strict_events")
        db.execute(change)
    assert only_fault(verify(file)) == CHANGES[change]
    assert two_processes == [seq for seq in (3, 6) if seq < CHANGES[change][1]]


@pytest.mark.sqlite_only("a log on a server is checked by one process")
@pytest.mark.parametrize("program", ["/nowhere/python", "false"])
async def test_verifies_alone_if_the_second_process_fails(
    program: str, file: Path, two_processes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", shutil.which(program) or program)
    assert verify(file).ok
    assert two_processes == []


@pytest.mark.sqlite_only("a log on a server is checked by one process")
async def test_leaves_no_process_behind_when_it_is_stopped(
    file: Path, two_processes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def noted(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(start(*args, **options))
        return started[-1]

    def stop(_done: int, _of: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("subprocess.Popen", noted)
    with pytest.raises(KeyboardInterrupt):
        verify(file, on_progress=stop)
    assert [process.returncode is not None for process in started] == [True]
    assert two_processes == [3]
