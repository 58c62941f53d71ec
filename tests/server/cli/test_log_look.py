"""A log that is only looked at: while a process opens it, changes it and goes, and on a medium that is only read."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import subprocess
from pathlib import Path

import anyio
import pytest
from support.commands.fork_server import COMMAND
from support.log import child
from support.model_server import Gate, Say, run_model_server
from support.stdio import environment, model_env, serve_stdio, until

from ava_audit.store.look import OpenedLog, look_at
from ava_audit.view import View
from ava_server.cli.log_look import LogLook, run_at_once
from ava_server.core.data_root import DataRoot

SERVE = """
import sys, anyio
from pathlib import Path
from ava_audit.events import Event, SettingsChanged, Who
from ava_audit.store.store import Store, append
async def main():
    who = Who("sess-1", "ava", "ann")
    async with Store.open(Path(sys.argv[1])) as store:
        await store.do(append(*[Event(who, SettingsChanged(setting=f"s{n}", after="x" * 600)) for n in range(1_000)]))
anyio.run(main)
"""


def serve(root: Path) -> None:
    """Open the log in another process, write so much that its pages move, and close it."""
    subprocess.run(child(SERVE, root), check=True, timeout=60)


def entries(view: View) -> int:
    """Count the entries by reading an index and all of their rows."""
    return len(view.of_type("SettingsChanged"))


@pytest.mark.parametrize("begun", [False, True], ids=["before the first query", "between two queries"])
def test_a_server_that_comes_and_goes_meanwhile_does_not_make_the_log_look_damaged(tmp_path: Path, begun: bool) -> None:
    serve(tmp_path)
    found: list[int] = []

    async def work(log: LogLook) -> None:
        if begun:
            found.append(await log.read(View.head))
        serve(tmp_path)
        found.append(await log.read(entries))
        found.append(await log.read(View.head))

    run_at_once(work(LogLook(DataRoot(tmp_path))))
    assert found == [*([1_000] if begun else []), 2_000, 2_000]


def test_what_was_read_while_the_file_changed_is_read_again(tmp_path: Path) -> None:
    serve(tmp_path)
    looks: list[int] = []

    def use(log: OpenedLog) -> int:
        if not looks:
            serve(tmp_path)
        looks.append(1)
        return entries(View(log.db))

    assert look_at(tmp_path, use) == 2_000
    assert len(looks) == 2


def test_a_log_whose_disk_was_full_when_it_was_opened_is_read_without_room(tmp_path: Path) -> None:
    serve(tmp_path)
    beside = [tmp_path / "ava.db-wal", tmp_path / "ava.db-shm"]  # SQLite leaves them empty then
    for path in beside:
        path.touch()
    assert look_at(tmp_path, lambda log: entries(View(log.db))) == 1_000
    assert [path.stat().st_size for path in beside] == [0, 0], "on a full disk, none of them can grow"


def test_an_error_of_a_log_that_nobody_changed_is_told(tmp_path: Path) -> None:
    serve(tmp_path)
    path = tmp_path / "ava.db"
    with path.open("r+b") as file:
        file.seek(8_192)
        file.write(b"\0" * (path.stat().st_size - 8_192))
    with pytest.raises(Exception, match="malformed"):
        look_at(tmp_path, lambda log: entries(View(log.db)))


READ_ONLY = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && shift && exec "$@"'


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs a user namespace")
@pytest.mark.parametrize("left", ["closed", "alone", "killed", "copied"])
async def test_commands_that_read_work_on_a_medium_that_is_only_read(tmp_path: Path, left: str) -> None:
    """After a kill, the newest entries are in a file beside the database; a copy lacks the other one, their index.

    A log that every process has left has no file beside it.
    """
    gate = Gate()
    with run_model_server([Say("One moment.", gate=gate)]) as models:
        async with serve_stdio(tmp_path / "data", env=model_env(models.base_url), cwd=tmp_path) as host:
            run_id = await host.start_run(task="What does an otter cost?")
            await until(gate.arrived.is_set)
            if left in ("killed", "copied"):
                host.process.kill()
                await host.process.wait()
        gate.released.set()
    root = tmp_path / "data"
    if left == "copied":
        (root / "ava.db-shm").unlink()
    if left == "alone":
        with contextlib.closing(sqlite3.connect(root / "ava.db")) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        assert not (root / "ava.db-wal").exists()
    mount = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", READ_ONLY, "sh", str(root))
    if (await anyio.run_process([*mount, "true"], check=False)).returncode:
        pytest.skip("nothing can be mounted in a user namespace here")
    before = {path.name: path.read_bytes() for path in root.iterdir() if path.is_file()}
    for words, says in {
        ("status", "--once"): run_id,
        ("logs", "--all"): run_id,
        ("logs", "--search", "otter"): "otter",
        ("show", run_id): "What does an otter cost?",
        ("report",): "Spent",
        ("verify",): "entries",
    }.items():
        done = await anyio.run_process([*mount, *COMMAND, *words], env=environment(root), check=False)
        shown, said = done.stdout.decode(), done.stderr.decode()
        if left == "copied" and words[0] != "verify":
            assert "newest entries are missing" in said or "recovers its last" in shown, (words, shown, said)
        elif left == "copied":
            assert "copy the folder, and check the copy" in said, said
        else:
            assert (done.returncode, says in shown) == (0, True), (words, shown, said)
        assert "Traceback" not in said
    assert {path.name: path.read_bytes() for path in root.iterdir() if path.is_file()} == before
