"""A run that a worker drives, and a server that has not started it."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from support.engines.worker_machines import wait_until_it_takes_runs
from support.log import look_at
from support.model_server import Gate, run_model_server, slow_answer
from support.processes import end, environment_of, lives
from support.stdio import AVA, Stderr, Wire, environment, make_root, model_env, serve_stdio

WORDS = 120
"""Characters of the scripted answer's text: it comes for some seconds, and then stands still."""


@dataclass
class RunElsewhere:
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
async def open_run_elsewhere(database: str, tmp: Path) -> AsyncGenerator[RunElsewhere]:
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
            await wait_until_it_takes_runs(worker, stderr)
        host = await stack.enter_async_context(serve_stdio(root, env=env))
        (tmp / "project").mkdir()
        run = await host.start_run(workspace=str(tmp / "project") if database == "sqlite" else None)
        found = RunElsewhere(host, root, run, env, gate)
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


def owner_of(there: RunElsewhere) -> str:
    """Return the process that owns the run."""
    with look_at(there.root) as db:
        return str(db.execute("SELECT instance FROM runs WHERE id = ?", (there.run,)).fetchone()[0])
