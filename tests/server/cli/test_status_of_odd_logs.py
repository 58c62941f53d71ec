"""`ava status` where the log is held by another process, is not there, cannot be read or is of another version."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from support.runtime import hand_over, open_lab
from support.terminal import ava

from ava_audit.store.locks import WriteLock
from ava_audit.store.schema import SCHEMA_VERSION
from ava_server.cli.status_page import NO_RUNS


def traces(root: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in root.rglob("*")}


async def test_reading_leaves_no_trace_and_waits_for_no_writer(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hand_over()]) as lab:
        await lab.outcome()
    before = traces(lab.root)
    lock = WriteLock(lab.root / "write.lock")
    with lock.held():
        begun = time.monotonic()
        done = await anyio.to_thread.run_sync(lambda: ava(lab.root, "status", "--once"))
        assert time.monotonic() - begun < 20
    lock.close()
    assert done.returncode == 0 and "success" in done.stdout, done.stderr
    after = traces(lab.root)
    assert {name: found for name, found in after.items() if not name.endswith("write.lock")} == {
        name: found for name, found in before.items() if not name.endswith("write.lock")
    }


@pytest.mark.slow
async def test_commands_end_with_a_reason_while_a_stopped_process_holds_the_log(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hand_over()]) as lab:
        await lab.outcome()
    lock = WriteLock(lab.root / "write.lock")
    with lock.held():
        shown = await anyio.to_thread.run_sync(lambda: ava(lab.root, "show"))
        assert shown.returncode == 0 and "## Summary" in shown.stdout, "it can be read"
        added = await anyio.to_thread.run_sync(lambda: ava(lab.root, "user", "add", "eve"))
        assert added.returncode == 30 and "nothing was written" in added.stderr, added
        assert "one that was stopped (Ctrl-Z)" in shown.stderr and "one that was stopped (Ctrl-Z)" in added.stderr
    lock.close()


@pytest.mark.slow
def test_reports_a_place_without_a_log_and_creates_nothing(tmp_path: Path) -> None:
    root = tmp_path / "data"
    done = ava(root, "status", "--once")
    assert done.returncode == 0 and done.stdout.startswith(f"Data root: {root}\n")
    assert NO_RUNS in done.stdout.splitlines()
    assert "  note    log          none yet; the first start makes it" in done.stdout
    assert json.loads(ava(root, "status", "--json").stdout)["health"]["entries"] is None
    assert not root.exists()


def test_an_unreadable_log_is_one_sentence_without_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "ava.db").write_bytes(b"this is no database, " * 400)
    done = ava(tmp_path, "status", "--once")
    assert done.returncode != 0
    assert (
        done.stderr.startswith("ava: the log cannot be read: file is not a database; ") and done.stderr.count("\n") == 1
    )


@pytest.mark.parametrize(
    ("version", "says"),
    [(0, "its beginning is gone"), (SCHEMA_VERSION + 1, "install the newer ava")],
)
async def test_reports_a_log_of_another_version_and_leaves_it_unchanged(
    tmp_path: Path, version: int, says: str
) -> None:
    async with open_lab(tmp_path, [hand_over()], runs=False) as lab:
        root = lab.runtime.settings.data_root
    with contextlib.closing(sqlite3.connect(root / "ava.db")) as db:
        db.execute(f"PRAGMA user_version = {version}")
    done = await anyio.to_thread.run_sync(ava, root, "status", "--once")
    assert (done.returncode, says in done.stderr) == (30, True), done.stderr
    with contextlib.closing(sqlite3.connect(root / "ava.db")) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (version,)
