"""What a run is doing that a worker drives: every reader sees it, from other processes and on both databases."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.log import look_at
from support.runs.elsewhere import WORDS, open_run_elsewhere, owner_of
from support.stdio import serve_stdio, state_of, until

pytestmark = pytest.mark.slow

BOTH = pytest.mark.parametrize("database", ["sqlite", "postgres"])
THINKING = re.compile(r"Thinking \((\d+) tokens?\)")


@pytest.mark.requirement("S1-03")
@BOTH
async def test_the_progress_of_a_wait_follows_a_worker_and_its_value_is_a_whole_number_that_grows(
    database: str, tmp_path: Path
) -> None:
    async with open_run_elsewhere(database, tmp_path) as there:
        given = {"name": "check_subagent", "arguments": {"subagent_id": there.run, "wait_seconds": 40}}
        await there.host.ask("tools/call", {**given, "_meta": {"progressToken": "one"}})
        told: list[dict[str, Any]] = []
        counts: set[str] = set()
        with anyio.fail_after(60):
            while len(counts) < 4:  # before, it said "running" every five seconds
                message = await there.host.receive()
                assert "id" not in message, message
                if message["method"] == "notifications/progress":
                    told.append(message["params"])
                    counts |= set(THINKING.findall(message["params"]["message"]))
    values = [one["progress"] for one in told]
    assert all(isinstance(value, int) for value in values), values
    assert values == sorted(set(values))
    assert {one["progressToken"] for one in told} == {"one"}


@pytest.mark.requirement("S1-03")
@BOTH
async def test_every_reader_shows_it_and_the_log_gets_no_commit_for_it(database: str, tmp_path: Path) -> None:
    async with open_run_elsewhere(database, tmp_path) as there:
        final = f"Thinking ({WORDS // 4} tokens)"
        with anyio.fail_after(60):
            while await there.shown() != final:  # noqa: ASYNC110 - it happens in another process
                await anyio.sleep(0.1)
        assert final in await there.ava("status", "--once")
        resource = await there.host.request("resources/read", {"uri": f"ava://runs/{there.run}"})
        shown = json.loads(resource["result"]["contents"][0]["text"])
        assert shown["untrusted_activity"] == final
        async with serve_stdio(there.root, env=there.env) as other:
            answer = await other.tool("check_subagent", subagent_id=there.run)
            assert answer["runs"][0]["untrusted_activity"] == final
        with look_at(there.root) as db:
            noted = db.execute("SELECT text FROM live WHERE run_id = ?", (there.run,)).fetchone()
        assert noted is None or "Thinking" not in noted[0]


@BOTH
async def test_a_stopped_worker_is_not_shown_as_thinking_for_ever(database: str, tmp_path: Path) -> None:
    async with open_run_elsewhere(database, tmp_path) as there:
        with anyio.fail_after(60):
            while "Thinking" not in await there.shown():  # noqa: ASYNC110
                await anyio.sleep(0.1)
        worker = there.worker
        os.kill(worker, signal.SIGSTOP)
        try:
            with anyio.fail_after(60):
                while await there.shown():  # noqa: ASYNC110
                    await anyio.sleep(0.1)
        finally:
            os.kill(worker, signal.SIGCONT)


@BOTH
async def test_a_killed_worker_is_not_shown_and_leaves_nothing_behind(database: str, tmp_path: Path) -> None:
    async with open_run_elsewhere(database, tmp_path) as there:
        with anyio.fail_after(60):
            while "Thinking" not in await there.shown():  # noqa: ASYNC110
                await anyio.sleep(0.1)
        os.kill(there.worker, signal.SIGKILL)
        if database == "postgres":
            with anyio.fail_after(60):
                while await there.shown():  # noqa: ASYNC110
                    await anyio.sleep(0.1)
            return
        await until(lambda: len(_files(there.root)) == 1 and owner_of(there) == _files(there.root)[0].stem, within_s=60)
        assert state_of(there.root, there.run) == "running", "another worker has taken it over"
        assert _files(there.root)[0].stat().st_mode & 0o077 == 0


def _files(root: Path) -> list[Path]:
    return list((root / "instances").glob("*.doing"))
