"""What a run is doing that a worker drives: every reader sees it, from other processes and on both databases."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.log import look_at
from support.model_server import Gate, run_model_server, slow_answer
from support.processes import end, environment_of, lives
from support.stdio import AVA, Stderr, Wire, environment, make_root, model_env, serve_stdio, state_of, until

pytestmark = pytest.mark.slow

BOTH = pytest.mark.parametrize("database", ["sqlite", "postgres"])
THINKING = re.compile(r"Thinking \((\d+) tokens?\)")
WORDS = 120
"""Characters of the scripted answer's text: it comes for some seconds, and then stands still."""


@pytest.mark.requirement("S1-03")
@BOTH
async def test_the_progress_of_a_wait_follows_a_worker_and_its_value_is_a_whole_number_that_grows(
    database: str, tmp_path: Path
) -> None:
    async with elsewhere(database, tmp_path) as there:
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
    async with elsewhere(database, tmp_path) as there:
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
    async with elsewhere(database, tmp_path) as there:
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
    async with elsewhere(database, tmp_path) as there:
        with anyio.fail_after(60):
            while "Thinking" not in await there.shown():  # noqa: ASYNC110
                await anyio.sleep(0.1)
        os.kill(there.worker, signal.SIGKILL)
        if database == "postgres":
            with anyio.fail_after(60):
                while await there.shown():  # noqa: ASYNC110
                    await anyio.sleep(0.1)
            return
        await until(lambda: len(_files(there.root)) == 1 and _owner(there) == _files(there.root)[0].stem, within_s=60)
        assert state_of(there.root, there.run) == "running", "another worker has taken it over"
        assert _files(there.root)[0].stat().st_mode & 0o077 == 0


@dataclass
class Elsewhere:
    """A run that a worker drives, and a server that has not started it.

    `env` has the variables of all servers; `gate` lets the model's answer end.
    """

    host: Wire
    root: Path
    run: str
    env: dict[str, str]
    gate: Gate

    async def shown(self) -> str:
        """What the run does, as the server's tool shows it."""
        answer = await self.host.tool("check_subagent", subagent_id=self.run)
        return str(answer["runs"][0].get("untrusted_activity") or "")

    async def ava(self, *args: str) -> str:
        """What a command prints: another process."""
        found = await anyio.run_process([AVA[0], *args], env={**environment(self.root), **self.env})
        return found.stdout.decode()

    @property
    def worker(self) -> int:
        """The process that drives the run."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and lives(int(entry.name)):
                with suppress(OSError):
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                    folder = environment_of(int(entry.name)).get("AVA_DATA_ROOT", "")
                    starts_it = b"-c" in words  # the process that starts the worker again has its words, too
                    if b"worker" in words and not starts_it and Path(folder).parent == self.root.parent:
                        return int(entry.name)
        raise AssertionError("no worker is running")


@asynccontextmanager
async def elsewhere(database: str, tmp: Path) -> AsyncGenerator[Elsewhere]:
    """A run in a worker: that of the data root, or one on another machine with the same log in Postgres."""
    gate = Gate()
    async with AsyncExitStack() as stack:
        models = stack.enter_context(run_model_server([slow_answer(WORDS, gate)] * 3))
        env = {**model_env(models.base_url), "AVA_BACKGROUND": ""}
        if database == "sqlite":
            root = make_root(tmp / "data")
        else:
            config = f'database_url = "{_address(stack, tmp)}"\nruns_on = "workers"\nlease_s = 3\n'
            root, there = make_root(tmp / "server", config_toml=config), make_root(tmp / "worker", config_toml=config)
            stderr = stack.enter_context(Stderr().checked())
            worker = await anyio.open_process(
                [AVA[0], "worker", "--stay"], env={**environment(there), **env}, stderr=stderr.file
            )
            stack.push_async_callback(end, worker)
            await until(lambda: "takes subagents from the Postgres database" in stderr.text, within_s=60)
        host = await stack.enter_async_context(serve_stdio(root, env=env))
        (tmp / "project").mkdir()
        run = await host.start_run(workspace=str(tmp / "project") if database == "sqlite" else None)
        found = Elsewhere(host, root, run, env, gate)
        try:
            yield found
        finally:
            with suppress(AssertionError, ProcessLookupError):
                os.kill(found.worker, signal.SIGKILL)


def _address(stack: AsyncExitStack, tmp: Path) -> str:
    pytest.importorskip("psycopg", reason="the driver is not installed")
    from support.postgres import postgres_server

    server = postgres_server()
    stack.callback(server.empty_databases)
    return server.database(tmp).replace(f":{server.password}@", "@")


def _files(root: Path) -> list[Path]:
    return list((root / "instances").glob("*.doing"))


def _owner(there: Elsewhere) -> str:
    with look_at(there.root) as db:
        return str(db.execute("SELECT instance FROM runs WHERE id = ?", (there.run,)).fetchone()[0])
