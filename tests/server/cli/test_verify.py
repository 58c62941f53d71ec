"""`ava verify` as people and scripts use it: real processes on real logs."""

import contextlib
import json
import re
import sqlite3
import stat
import sys
from pathlib import Path

import anyio
import pytest
from support.log import AVA, Life, message, without_triggers, write_command, write_each, write_texts
from support.terminal import ava, run_on_terminal

from ava_audit.mirror import Mirror
from ava_audit.store.store import Store

pytestmark = pytest.mark.slow

HEAD = re.compile(r"^Head: ([0-9a-f]{64})$", re.MULTILINE)


def fill(root: Path, *texts: str) -> None:
    async def work() -> None:
        async with Store.open(root) as store:
            await write_each(store, Life("S-aaaaaa").all_events() if not texts else [message(text) for text in texts])

    anyio.run(work)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A log of a whole run."""
    root = tmp_path / "data"
    root.mkdir(mode=0o700)
    fill(root)
    return root


def tamper(root: Path, *statements: str) -> None:
    """Change the log as somebody does who knows the file."""
    with without_triggers(root / "ava.db") as db:
        for statement in statements:
            db.execute(statement)


def head_of(root: Path) -> str:
    found = HEAD.search(ava(root, "verify").stdout)
    assert found is not None
    return found[1]


def test_reports_an_intact_log_with_its_head_and_the_time_taken(root: Path) -> None:
    done = ava(root, "verify")
    assert (done.returncode, done.stderr) == (0, "")
    first, checked, projections, head, note = done.stdout.splitlines()
    assert first == f"Data root: {root}"
    took = r"11 entries checked in \d+ m?s: none was changed, removed, added or moved, up to entry 11\."
    assert re.fullmatch(took, checked)
    assert projections == "Runs, proposals, plans, budgets and spending match the log at entry 11."
    assert HEAD.fullmatch(head)
    assert "ava verify --head HASH" in note


def test_accepts_a_noted_head_and_reports_a_missing_one_as_a_fault(root: Path) -> None:
    head = head_of(root)
    fill(root, "more")
    assert ava(root, "verify", "--head", head).returncode == 0
    since = ava(root, "verify", "--since-head", head)
    assert (since.returncode, "1 entry after the given head checked" in since.stdout) == (0, True)
    assert "were not compared" in since.stdout
    tamper(root, "DELETE FROM events WHERE seq > 10")
    assert ava(root, "verify", "--since-head", "0" * 64).returncode == 0, "a cut end does not show by itself"
    for option in ("--head", "--since-head"):
        done = ava(root, "verify", option, head)
        assert done.returncode == 1
        assert f"FAULT: the log has no entry with the hash {head}: its end was cut off" in done.stdout


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("UPDATE events SET user_id = 'eve' WHERE seq = 4", "entry 4 was changed"),
        ("DELETE FROM events WHERE seq = 5", "entry 5 is missing"),
        ("UPDATE events SET content = CAST(x'FF' AS TEXT) WHERE seq = 2", "the content of entry 2 was changed"),
        ("UPDATE runs SET cost_micros = 0", "at entry 11 runs S-aaaaaa differs from the log in cost_micros"),
        ("UPDATE budgets SET held_micros = 7", "at entry 11 budgets"),
    ],
)
def test_a_fault_is_named_and_sets_exit_code_one(root: Path, statement: str, says: str) -> None:
    tamper(root, statement)
    done = ava(root, "verify")
    assert (done.returncode, done.stderr) == (1, "")
    assert f"FAULT: {says}" in done.stdout
    assert "Note it elsewhere" not in done.stdout
    told = json.loads(ava(root, "verify", "--json").stdout)
    assert (told["ok"], says in told["faults"][0]["text"]) == (False, True)


def test_json_output_is_one_object(root: Path) -> None:
    done = ava(root, "verify", "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, told.pop("duration_ms") >= 0) == (0, True)
    assert told == {
        "data_root": str(root), "ok": True, "entries": 11, "seq": 11, "head": head_of(root), "projections": True,
        "faults": [],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--head", "pirate"), "--head: 'pirate' is not the hash of an entry: it must have 64 hexadecimal digits"),
        (("--since-head", "ab" * 31), "--since-head: 'abab"),
        (("--head", ""), "--head: '' is not the hash"),
        (("--jsonl", "/nowhere/x.jsonl"), "--jsonl: /nowhere/x.jsonl cannot be read: No such file"),
        (("--jsonl", "/"), "--jsonl: / cannot be read: Is a directory"),
        (("--jsonl", "x", "--head", "ab" * 32), "--jsonl: a file is checked by itself"),
    ],
)
def test_rejects_an_invalid_hash_or_file_in_one_sentence_with_exit_code_two(
    root: Path, args: tuple[str, ...], says: str
) -> None:
    done = ava(root, "verify", *args)
    assert done.returncode == 2
    assert done.stderr.startswith(f"ava: {says}")
    assert done.stderr.count("\n") == 1


def test_creates_nothing_where_there_is_nothing(tmp_path: Path) -> None:
    root = tmp_path / "data"
    done = ava(root, "verify")
    assert (done.returncode, f"Head: {'0' * 64}" in done.stdout) == (0, True)
    assert ava(root, "verify", "--head", "0" * 64).returncode == 0
    lost = ava(root, "verify", "--head", "ab" * 32)
    assert (lost.returncode, "FAULT: the log has no entry" in lost.stdout) == (1, True)
    assert not root.exists()


def test_verifying_does_not_change_the_data_root(root: Path) -> None:
    before = {path.name: path.read_bytes() for path in root.iterdir()}
    assert ava(root, "verify").returncode == 0
    assert {path.name: path.read_bytes() for path in root.iterdir()} == before


def test_a_file_that_is_not_a_database_is_a_fault(root: Path) -> None:
    (root / "ava.db").write_bytes(b"garbage" * 1_000)
    done = ava(root, "verify")
    assert (done.returncode, done.stderr) == (1, "")
    assert "cannot be read as a log: file is not a database" in done.stdout


def test_verifies_a_log_while_it_is_being_written(root: Path) -> None:
    codes: list[int] = []

    async def work() -> None:
        async with Store.open(root) as store, anyio.create_task_group() as tasks:

            async def write() -> None:
                while len(codes) < 2:
                    await write_texts(store, ["x"] * 20)

            async def check() -> None:
                for _ in range(2):
                    command = [sys.executable, "-m", "ava_server", "verify"]
                    done = await anyio.run_process(command, check=False, env={"AVA_DATA_ROOT": str(root)})
                    codes.append(done.returncode)

            tasks.start_soon(write)
            tasks.start_soon(check)

    anyio.run(work)
    assert codes == [0, 0]


def test_a_long_check_shows_its_progress_and_ends_on_ctrl_c(tmp_path: Path) -> None:
    async def long() -> None:
        async with Store.open(tmp_path) as store:
            for _ in range(40):
                await store.do(write_command(*(message("x", AVA) for _ in range(1_000))))

    anyio.run(long)
    with run_on_terminal(tmp_path, "verify") as screen:
        screen.until("of 40,000 entries checked")
        screen.interrupt()
        assert screen.ended() == 130
    assert "Traceback" not in screen.text
    assert "Head:" not in screen.text
    with run_on_terminal(tmp_path, "verify", columns=200) as screen:
        assert screen.ended() == 0
    assert "\x1b[K40,000 entries checked" in screen.text, "the progress makes way for what was found"


def test_every_mirror_file_and_an_export_verify(root: Path, tmp_path: Path) -> None:
    async def mirrored() -> None:
        async with Store.open(root) as store:
            mirror = Mirror(store, root / "logs")
            await mirror.repair_all()
            await mirror.catch_up()

    anyio.run(mirrored)
    files = sorted((root / "logs").rglob("*.jsonl"))
    assert [file.parent.name for file in files] == ["ava", "subagents"]
    export = tmp_path / "whole.jsonl"
    assert ava(root, "logs", "export", "-o", str(export)).returncode == 0
    for file in (*files, export):
        done = ava("/nowhere", "verify", "--jsonl", str(file))
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"File: {file}\n")
        assert ("places" in done.stdout or "place " in done.stdout) == (file != export)
    assert f"Last entry: 11, with the hash {head_of(root)}" in done.stdout
    piped = ava(root, "verify", "--jsonl", "-", "--json", stdin=export.read_text())
    assert json.loads(piped.stdout)["head"] == head_of(root)


def test_names_a_changed_line_of_a_file(root: Path, tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    assert ava(root, "logs", "export", "-o", str(file)).returncode == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join([*lines[:6], lines[6].replace("web_search", "read_file"), *lines[7:]]))
    done = ava(root, "verify", "--jsonl", str(file))
    assert (done.returncode, done.stderr) == (1, "")
    assert "FAULT: line 7: its content was changed" in done.stdout
    assert "6 lines before it are unchanged." in done.stdout


def mirrored(root: Path) -> None:
    async def work() -> None:
        async with Store.open(root) as store:
            mirror = Mirror(store, root / "logs")
            await mirror.repair_all()
            await mirror.catch_up()

    anyio.run(work)


@pytest.mark.parametrize("how", ["removed", "emptied", "cut"])
def test_verify_and_doctor_report_a_log_that_lacks_entries_of_its_mirror(root: Path, how: str) -> None:
    mirrored(root)
    assert ava(root, "verify").returncode == 0
    for path in root.glob("ava.db*"):
        if how == "removed":
            path.unlink()
        elif how == "emptied":
            path.write_bytes(b"")
    if how == "cut":
        tamper(root, "DELETE FROM events WHERE seq > 3", *(f"DELETE FROM {name}" for name in ("runs", "configs")))
        tamper(root, "DELETE FROM proposals", "DELETE FROM budgets")
    done = ava(root, "verify")
    assert done.returncode == 1 and "FAULT: " in done.stdout, done.stdout
    if how != "cut":
        told = ava(root, "doctor")
        assert told.returncode == 1 and "which the log lacks" in " ".join(told.stdout.split())


def test_verify_and_doctor_report_a_missing_table(root: Path) -> None:
    with contextlib.closing(sqlite3.connect(root / "ava.db")) as db:
        db.execute("DROP TABLE budgets")
    done = ava(root, "verify")
    assert (done.returncode, "FAULT: the table budgets was removed" in done.stdout) == (1, True)
    told = ava(root, "doctor")
    assert told.returncode == 1 and "the table budgets was removed" in told.stdout
