"""A server, workers, the database and the engine of a test, each data root a machine."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio
from anyio.abc import Process

from ava_server.config.keys import set_key
from ava_server.config.settings import load_settings
from support.engines.nats import NatsServer
from support.engines.servers import Engine, delivery_config
from support.engines.worker_machines import DONE, LEASE_S, WORKER, wait_until_it_takes_runs
from support.model_server import Gate, ModelServer, Say, run_model_server
from support.postgres import PostgresServer
from support.processes import end
from support.runtime import PRICED
from support.stdio import (
    Stderr,
    Wire,
    assert_intact,
    environment,
    make_root,
    model_env,
    read_log,
    serve_stdio,
    state_of,
    until,
)

LIMITS = "\n[limits]\nrunning = 8\nrunning_per_user = 8\nspawns_per_hour = 100\n"


@asynccontextmanager
async def start_live_and_waiting(now: Fleet, gate: Gate, stack: AsyncExitStack) -> AsyncGenerator[list[str]]:
    """Two runs that wait for their model at two workers, and two that wait for a worker with a label."""
    (now.root / "roles").mkdir()
    text = "---\ndescription: Needs a special machine.\nlabels: [gpu]\n---\nLook it up.\n"
    (now.root / "roles" / "special.md").write_text(text)
    for name in ("one", "two"):
        await stack.enter_async_context(now.worker(name))
    live = [await now.start() for _ in range(2)]
    for run in live:
        await now.until_claimed(run, 1)
    waiting = [await now.start(role="special") for _ in range(2)]
    await anyio.sleep(1.5)
    yield [*live, *waiting]
    gate.released.set()
    await stack.enter_async_context(now.worker("gpu", "--label", "gpu"))
    await now.until_done(*live, *waiting)
    assert [now.claims(run) for run in (*live, *waiting)] == [["start"]] * 4, "nobody was robbed"
    await now.check(*live, *waiting)


@dataclass
class Fleet:
    """A server, the workers, the database and the engine of a test."""

    tmp: Path
    postgres: PostgresServer
    engine: Engine | None
    models: ModelServer
    host: Wire = field(init=False)

    @property
    def url(self) -> str:
        return self.postgres.address(self.tmp)

    @property
    def root(self) -> Path:
        return self.tmp / "server"

    def machine(self, name: str) -> Path:
        """A data root with the configuration that all machines have."""
        config = f'database_url = "{self.url}"\nruns_on = "workers"\nlease_s = {LEASE_S}\n'
        config += PRICED.replace("custom:test", "custom:scripted") + LIMITS
        if self.engine is not None:
            config += delivery_config(self.engine)
        root = make_root(self.tmp / name, config_toml=config)
        if isinstance(self.engine, NatsServer) and self.engine.rights:
            user = "server" if name == "server" else "worker"
            set_key("nats", self.engine.key(user), load_settings(root, {}).paths.keys)
        return root

    @asynccontextmanager
    async def worker(self, name: str, *more: str, url: str = "") -> AsyncGenerator[Process]:
        with Stderr().checked() as stderr:
            root = self.machine(name)
            env = {**environment(root), **model_env(self.models.base_url)}
            command = [*WORKER, "--database-url", url or self.url, *more]
            process = await anyio.open_process(command, env=env, stderr=stderr.file)
            try:
                await wait_until_it_takes_runs(process, stderr)
                yield process
            finally:
                await end(process)

    async def start(self, **more: object) -> str:
        return await self.host.start_run(workspace=None, **more)

    def claims(self, run: str) -> list[str]:
        return [str(entry.content["reason"]) for entry in read_log(self.root, "RunClaimed", run=run)]

    async def until_claimed(self, run: str, times: int, within_s: float = 60) -> None:
        await until(lambda: len(self.claims(run)) >= times, within_s=within_s)

    async def until_done(self, *runs: str, within_s: float = 120) -> None:
        await until(lambda: all(state_of(self.root, run) == "success" for run in runs), within_s=within_s)

    async def check(self, *runs: str) -> None:
        """Each run has one ending, and the log is whole."""
        for run in runs:
            assert len(read_log(self.root, "RunEnded", run=run)) == 1
        assert_intact(self.root)


@asynccontextmanager
async def open_fleet(
    tmp: Path, postgres: PostgresServer, engine: Engine | None, script: object
) -> AsyncGenerator[Fleet]:
    """Open a fleet with its server, whose model answers by a script."""
    with run_model_server(script) as models:  # type: ignore[arg-type]
        found = Fleet(tmp, postgres, engine, models)
        async with serve_stdio(found.machine("server"), env=model_env(models.base_url)) as found.host:
            yield found


def gate_answers(*gates: Gate) -> Callable[[object], Say]:
    """The first answers wait for these gates, one each; all others come at once."""
    left = list(gates)
    return lambda _request: replace(DONE, gate=left.pop(0)) if left else DONE
