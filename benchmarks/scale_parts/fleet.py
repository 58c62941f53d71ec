"""A server and workers on one log, each a process: with Postgres, each worker has a data root of its own."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import Process
from support.engines.servers import KINDS, Engine, delivery_config, run_engine
from support.log import look_at
from support.model_server import Gate, ModelServer, Say, run_model_server
from support.postgres import PostgresServer
from support.stdio import AVA, Stderr, Wire, environment, make_root, model_env, serve_stdio, until

from scale_parts import engine

LEASE_S = 3
WORKER = (*AVA[:-1], "worker", "--stay")
AT_ONCE = 5
"""Requests that a host sends before it waits for their answers."""
START_S = 60.0
CONFIG = """
runs_on = "workers"
lease_s = {lease_s}

[limits]
running = {running}
running_per_user = {running}
spawns_per_hour = 1000000
"""
_TASK = re.compile(r"(quick|hold) number (\d+)")


@dataclass
class Models:
    """A model server that hands over a result at once, or never answers a task that begins with `hold`.

    Attributes:
        server: The server.
        asked_s: When the first request of each task came, by number.
        arrived: The tasks that are held.
    """

    server: ModelServer
    asked_s: dict[int, float] = field(default_factory=dict[int, float])

    @classmethod
    @contextmanager
    def running(cls) -> Generator[Models]:
        """Run one until the context ends."""
        found: list[Models] = []
        with run_model_server(lambda request: found[0].answer(request)) as server:
            found.append(cls(server))
            yield found[0]

    def answer(self, request: dict[str, Any]) -> Say:
        """Return what the model says."""
        now = time.time()
        task = _TASK.search(json.dumps(request))
        assert task is not None
        self.asked_s.setdefault(int(task[2]), now)
        done = [("submit_result", {"summary": "done", "output": "nothing"})]
        return Say(calls=done, gate=Gate(within_s=600) if task[1] == "hold" else None)


@dataclass
class Fleet:
    """The processes on one log.

    Attributes:
        host: A host's connection to the server.
        root: The server's data root.
        models: The model server.
        database: The name of the database; empty with SQLite.
        delivers: The server of the engine that delivers runs; None where the log does.
        enqueued_s: When runs were given to the engine, by id; nothing where Ava delivers.
    """

    host: Wire
    root: Path
    models: Models
    database: str
    _url: str
    _config: str
    _enqueue: Callable[[Sequence[str]], Awaitable[None]] | None
    delivers: Engine | None = None
    enqueued_s: dict[str, float] = field(default_factory=dict[str, float])
    _made: int = 0
    _tasks: int = 0

    def machine(self) -> Path:
        """Return the data root of a new worker: with SQLite, it is the server's."""
        if not self._url:
            return self.root
        self._made += 1
        return make_root(self.root.parent / f"worker-{self._made}", config_toml=self._config)

    @asynccontextmanager
    async def worker(self) -> AsyncGenerator[Process]:
        """A worker that is ready; killed at the end."""
        root = self.machine()
        with Stderr().checked() as stderr:
            env = {**environment(root), **model_env(self.models.server.base_url)}
            command = (sys.executable, engine.__file__, self._url) if self._enqueue else WORKER
            process = await anyio.open_process(command, env=env, stdout=stderr.file, stderr=stderr.file)
            try:
                await until(lambda: "takes subagents from" in stderr.text, within_s=START_S)
                yield process
            finally:
                with anyio.CancelScope(shield=True):
                    if process.returncode is None:
                        process.send_signal(signal.SIGCONT)
                        process.kill()
                    await process.wait()
                    await process.aclose()

    @asynccontextmanager
    async def workers(self, count: int) -> AsyncGenerator[None]:
        """Some workers."""
        async with AsyncExitStack() as stack:
            for _ in range(count):
                await stack.enter_async_context(self.worker())
            yield

    async def approve(self, count: int, kind: str = "quick") -> dict[int, str]:
        """Have some runs approved; return their ids by the numbers of their tasks."""
        found: dict[int, str] = {}
        while len(found) < count:
            numbers = range(self._tasks, self._tasks + min(AT_ONCE, count - len(found)))
            self._tasks = numbers.stop
            given = [{"role": "researcher", "task": f"Do {kind} number {number}"} for number in numbers]
            proposed = await self._tools("spawn_subagent", given)
            lines = [{"pending_ids": [one["pending_id"]], "approving": [one["approval_line"]]} for one in proposed]
            answers = await self._tools("confirm_spawn", lines)
            assert all(answer["status"] == "approved" for answer in answers), answers
            ids = [str(one["subagent_id"]) for one in proposed]
            if self._enqueue is not None:
                self.enqueued_s |= dict.fromkeys(ids, time.time())
                await self._enqueue(ids)
            found |= zip(numbers, ids, strict=True)
        return found

    async def _tools(self, tool: str, given: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        ids = [await self.host.ask("tools/call", {"name": tool, "arguments": each}) for each in given]
        answers = [(await self.host.answer(request, START_S))["result"] for request in ids]
        assert not any(answer.get("isError") for answer in answers), answers
        return [answer["structuredContent"] for answer in answers]

    async def until_ended(self, within_s: float) -> None:
        """Wait until no run waits or is running."""
        unended = "SELECT count(*) FROM runs WHERE state IN ('queued', 'running')"
        with anyio.fail_after(within_s):
            while await anyio.to_thread.run_sync(self.count, unended):  # noqa: ASYNC110 - in other processes
                await anyio.sleep(0.25)

    def count(self, sql: str) -> int:
        """Return a number from the log."""
        with look_at(self.root) as db:
            return int(db.execute(sql).fetchone()[0])

    def state(self, run: str) -> str:
        """Return the state of a run."""
        with look_at(self.root) as db:
            return str(db.execute("SELECT state FROM runs WHERE id = ?", (run,)).fetchone()[0])

    def times_s(self, kind: str) -> dict[str, list[float]]:
        """Return when entries of a type were written, by run."""
        found: dict[str, list[float]] = {}
        with look_at(self.root) as db:
            sql = "SELECT run_id, ts_us FROM events WHERE type = ? ORDER BY seq"
            for run, ts_us in db.execute(sql, (kind,)).fetchall():
                found.setdefault(str(run), []).append(ts_us / 1_000_000)
        return found


@asynccontextmanager
async def fleet(
    kind: str, folder: Path, server: PostgresServer, running: int, lease_s: int = LEASE_S
) -> AsyncGenerator[Fleet]:
    """A server on a log of its own, and a model server; `running` is how many runs may be running.

    `kind` is where the log is, or what delivers runs in front of a log in Postgres.
    """
    config, database, url = CONFIG.format(running=running, lease_s=lease_s), "", ""
    if kind != "SQLite":
        url = server.database(folder).replace(f":{server.password}@", "@")
        database = url.rpartition("/")[2]
        config = f'database_url = "{url}"\n{config}'
    async with AsyncExitStack() as stack:
        delivers = stack.enter_context(run_engine(kind if kind in KINDS else "none", folder / "engine"))
        if delivers is not None:
            config += delivery_config(delivers)
        root = make_root(folder / "server", config_toml=config)
        models = stack.enter_context(Models.running())
        host = await stack.enter_async_context(serve_stdio(root, env=model_env(models.server.base_url)))
        enqueue = await stack.enter_async_context(engine.enqueuing(url)) if kind == engine.NAME else None
        yield Fleet(host, root, models, database, url, config, enqueue, delivers)
