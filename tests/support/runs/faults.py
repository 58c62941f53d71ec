"""Faults around runs: a log out of reach, folders and files that are not what they were."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from ava_audit.events import AssistantMessage, Event, Fence, RunClaimed, Who
from ava_audit.store.locks import WriteLock
from ava_server.runs.owner.mode import SERVER
from support.log import child
from support.model_server import Gate, ModelServer
from support.runtime import Lab, open_lab, wait_for


@contextmanager
def hold_write_lock(root: Path) -> Generator[None]:
    """Hold the queue of writers, as another program would: whatever is to be written waits."""
    lock = WriteLock(root / "write.lock")
    try:
        with lock.held():
            yield
    finally:
        lock.close()


@contextmanager
def expect_warning(logger: str, words: str) -> Generator[anyio.Event]:
    """An event that is set by a warning with these words from the event loop's thread."""
    heard = anyio.Event()

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if words in record.getMessage():
                heard.set()

    ear = Ear()
    logging.getLogger(logger).addHandler(ear)
    try:
        yield heard
    finally:
        logging.getLogger(logger).removeHandler(ear)


async def wait_until(at_s: float) -> None:
    """Wait for a moment that is itself what the test is about: the end of a run's time."""
    await anyio.sleep(max(0.0, at_s - time.time()))


@contextmanager
def migrate_to_version(root: Path, version: int) -> Generator[None]:
    """The log as if a program that knows this version of the schema had migrated it."""
    with contextlib.closing(sqlite3.connect(root / "ava.db", isolation_level=None)) as db:
        (before,) = db.execute("PRAGMA user_version").fetchone()
        db.execute(f"PRAGMA user_version = {version}")
        yield
        db.execute(f"PRAGMA user_version = {before}")


async def leave_unreadable_run(tmp: Path, server: ModelServer, gate: Gate) -> str:
    """Leave a run behind that was cut off, with an entry in its log that cannot be folded."""
    async with open_lab(tmp, server=server, check=False) as lab:
        run_id = await lab.start(task="the poisoned one")
        await wait_for(gate.arrived)
        agent = Who(lab.session.id, run_id, lab.runtime.user, parent_agent_id="ava")
        fact = AssistantMessage(text="", turn=2, attempt=1, calls=({"name": "scratchpad"},))
        await lab.write(Event(agent, fact, fence=Fence(run_id, 1)))
    return run_id


async def claims_within(lab: Lab, run_id: str, seconds: float) -> int:
    """Count a run's claims while nothing but time passes."""
    before = len(await lab.facts(run_id, RunClaimed))
    await anyio.sleep(seconds)
    return len(await lab.facts(run_id, RunClaimed)) - before


@asynccontextmanager
async def manage_runs(lab: Lab) -> AsyncGenerator[None]:
    """Let a runtime that was opened to look only run what it has."""
    lab.runtime.manager.mode = SERVER
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lab.runtime.manager.run)
        try:
            yield
        finally:
            tasks.cancel_scope.cancel()


async def run_child(code: str, *args: Path, within_s: float = 30) -> list[str]:
    """Run code that may use `support` in a process of its own, and return what it printed."""
    path = (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", ""))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
    command = child(code, *args)

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=within_s, check=False)

    done = await anyio.to_thread.run_sync(run)
    assert done.returncode == 0, done.stderr[-3_000:]
    return done.stdout.splitlines()


@contextmanager
def make_unlistable(folder: Path) -> Generator[None]:
    """Put something in a folder's place that says it is one and cannot be listed: a dead process's view of the net."""
    with subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.DEVNULL) as dead:
        os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)  # it is dead, and not yet forgotten
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(exist_ok=True)
        folder.symlink_to(f"/proc/{dead.pid}/net")
        assert folder.is_dir()
        with pytest.raises(OSError):
            list(folder.iterdir())
        try:
            yield
        finally:
            folder.unlink()


@contextmanager
def make_unreadable(path: Path) -> Generator[None]:
    """Leave the log's index as it is while another process recovers it: nobody can read until that one is gone."""
    code = """
import fcntl, sys
with open(sys.argv[1] + "-shm", "r+b", buffering=0) as index:
    fcntl.lockf(index, fcntl.LOCK_EX, 3, 120)  # as SQLite does: write, checkpoint and recover
    index.seek(8)
    index.write(b"\\xff\\xff\\xff\\xff")
    print("held", flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen(child(code, path), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "held\n"
            yield
        finally:
            process.kill()
