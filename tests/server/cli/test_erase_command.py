"""`ava erase` as a command: without a server, after a question, again after a kill, and what it refuses."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from pathlib import Path
from subprocess import DEVNULL

import anyio
import anyio.to_thread
import pytest
from support.logs.erasing import (
    OTHERS,
    PLANTED,
    TASK,
    check_log,
    open_two_runs,
    play_words,
    run_erase,
    words_by_file,
)
from support.model_server import Gate
from support.runtime import open_lab, wait_for
from support.terminal import COMMAND, environment, run_on_terminal

from ava_audit.events import LogErased


async def test_works_without_a_server_and_says_when_already_erased(tmp_path: Path) -> None:
    async with open_two_runs(tmp_path) as two:
        pass
    assert set(words_by_file(two.root)) == set(PLANTED)
    copy = two.root / "ava.schema-1.20261129T031000Z.db"
    copy.touch()
    first = await run_erase(two.root, two.run_id.removeprefix("S-").upper(), "--yes")
    assert f"{copy} is the log from before a migration" in first.stdout
    copy.unlink()
    again = await run_erase(two.root, two.run_id)
    assert first.returncode == 0, first.stderr
    assert first.stdout.splitlines()[0] == f"Data root: {two.root}"
    assert "Erased for ever" in first.stderr and "Kept" in first.stderr and "Not reached" in first.stderr
    assert (again.returncode, "was already erased" in again.stderr) == (0, True)
    assert words_by_file(two.root) == {}
    await check_log(two.root)
    db = sqlite3.connect(two.root / "ava.db")
    facts = [
        LogErased.model_validate_json(row[0])
        for row in db.execute("SELECT content FROM events WHERE type = 'LogErased'")
    ]
    db.close()
    assert [(fact.run_id, fact.whole) for fact in facts] == [(two.run_id, True)]


@pytest.mark.slow
async def test_asks_for_confirmation_and_a_no_erases_nothing(tmp_path: Path) -> None:
    async with open_two_runs(tmp_path) as two:
        pass
    root = two.root

    def on_screen(answer: str) -> int:
        with run_on_terminal(root, "erase", two.run_id) as screen:
            screen.until("for ever? [y/N]")
            screen.type(answer)
            return screen.ended()

    assert await anyio.to_thread.run_sync(on_screen, "\n") == 10
    piped = await run_erase(root, two.run_id)
    assert (piped.returncode, "--yes" in piped.stderr) == (2, True)
    assert set(words_by_file(root)) == set(PLANTED)
    assert await anyio.to_thread.run_sync(on_screen, "y\n") == 0
    assert words_by_file(root) == {}


async def test_refuses_a_running_run_and_erases_nothing(tmp_path: Path) -> None:
    gate = Gate()
    (tmp_path / "workspace").mkdir()
    async with open_lab(tmp_path, play_words(gate), check=False) as lab:
        waiting = await lab.propose(task=OTHERS[0])
        run_id = await lab.start(task=TASK)
        await wait_for(gate.arrived)
        entries = await lab.entries(run_id)
        for given in (run_id, waiting.pending_id):
            refused = await run_erase(lab.root, given, "--yes")
            assert (refused.returncode, "has not ended" in refused.stderr) == (2, True)
            assert "cancel" in refused.stderr
        assert await lab.entries(run_id) == entries
        gate.released.set()
        await lab.ended(run_id)
        await lab.call("cancel_subagent", pending_id=waiting.pending_id)
        assert (await run_erase(lab.root, waiting.pending_id, "--yes")).returncode == 0
    assert words_by_file(lab.root, OTHERS[:1]) == {}
    assert words_by_file(lab.root, [TASK]) != {}


async def test_reports_an_unknown_run_and_an_empty_data_root(tmp_path: Path) -> None:
    empty = await run_erase(tmp_path / "none", "S-aaaaaa", "--yes")
    assert (empty.returncode, "no subagent S-aaaaaa" in empty.stderr) == (2, True)
    assert not (tmp_path / "none").exists()
    assert (await run_erase(tmp_path, "nonsense", "--yes")).returncode == 2


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="it is killed by a signal")
async def test_the_next_process_finishes_a_killed_erase(tmp_path: Path) -> None:
    async with open_two_runs(tmp_path) as two:
        pass
    killed = 0
    for tenths in range(4, 30):  # at another place each time, until one was not killed
        async with await anyio.open_process(
            [*COMMAND, "erase", two.run_id, "--yes"], env=environment(two.root), stdout=DEVNULL, stderr=DEVNULL
        ) as process:
            with anyio.move_on_after(tenths / 10):
                await process.wait()
                break
            try:
                os.kill(process.pid, signal.SIGKILL)
            except ProcessLookupError:  # it has ended in this moment
                break
            killed += 1
    assert killed
    assert (await run_erase(two.root, two.run_id, "--yes")).returncode == 0
    assert words_by_file(two.root) == {}
    await check_log(two.root)
