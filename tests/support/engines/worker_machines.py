"""Workers on machines of their own that share a log in Postgres."""

from __future__ import annotations

import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import anyio
import anyio.to_thread
from anyio.abc import Process

from support.model_server import Gate, ModelServer, Say, Step, run_model_server
from support.processes import end
from support.runtime import PRICED
from support.stdio import (
    AVA,
    Stderr,
    assert_intact,
    environment,
    make_root,
    model_env,
    read_log,
    serve_stdio,
    state_of,
    until,
)

LEASE_S = 3
CONFIG = f'runs_on = "workers"\nlease_s = {LEASE_S}\n' + PRICED.replace("custom:test", "custom:scripted")
NOTE = Say("I look.", [("scratchpad", {"note": "half of it"})])
DONE = Say(calls=[("submit_result", {"summary": "done", "output": "twelve cents"})])
WORKER = (*AVA[:-1], "worker")


def told_of_run(root: Path, run: str) -> str | None:
    """What a run is doing, as every server shows it."""
    from support.log import look_at

    with look_at(root) as db:
        row = db.execute("SELECT text FROM live WHERE run_id = ?", (run,)).fetchone()
        return None if row is None else str(row[0])


async def wait_for_success(root: Path, runs: list[str]) -> None:
    """Wait until all of these runs have succeeded."""
    await until(lambda: all(state_of(root, run) == "success" for run in runs), within_s=300)


@dataclass
class LateTakeover:
    """A run that `live` has taken over from `woken`, which was stopped until the block begins.

    `live` waits for an answer of the model, which `finish` lets go.
    """

    run: str
    root: Path
    woken: Process
    models: ModelServer
    gate: Gate

    async def keeps_its_owner(self) -> None:
        """For longer than a lease, the run stays with its owner, and the model is asked nothing more."""
        await anyio.sleep(LEASE_S + 1)
        assert [reason for _owner, reason in claim_reasons(self.root, self.run)] == ["start", "takeover"]
        assert state_of(self.root, self.run) == "running"
        assert len(self.models.requests) == 2, "one call of each owner"

    async def finish(self) -> None:
        """Let the owner end the run, and compare who has written what."""
        self.gate.released.set()
        await until(lambda: state_of(self.root, self.run) == "success", within_s=40)
        (one, _start), (other, _takeover) = claim_reasons(self.root, self.run)
        assert one != other
        (ended,) = read_log(self.root, "SubagentComplete", run=self.run)
        assert "twelve cents" in str(ended.content), "the result of the owner"
        settled = [entry.content["settlement"] for entry in read_log(self.root, "CostUpdate", run=self.run)]
        assert settled == ["unknown", "billed", "billed"], "each call once: nobody knows what the first one cost"
        assert len(self.models.requests) == 3
        assert_intact(self.root)


@asynccontextmanager
async def take_over_late(root: Path, tmp: Path, url: str, late: Step) -> AsyncGenerator[LateTakeover]:
    """A worker is stopped during a call and loses its run; then `late` answers its call, and it wakes up."""
    first, second = Gate(), Gate()
    script: list[Step] = [replace(late, gate=first), replace(NOTE, gate=second), DONE]
    with run_model_server(script) as models:
        async with (
            serve_stdio(root, env=model_env(models.base_url)) as host,
            run_worker(make_machine(tmp, "woken", url), url, models.base_url) as woken,
        ):
            run = await host.start_run(workspace=None)
            await until(first.arrived.is_set, within_s=40)
            async with run_worker(make_machine(tmp, "live", url), url, models.base_url):
                woken.send_signal(signal.SIGSTOP)
                await until(second.arrived.is_set, within_s=LEASE_S + 40)
                first.released.set()
                woken.send_signal(signal.SIGCONT)
                yield LateTakeover(run, root, woken, models, second)


def make_machine(tmp: Path, name: str, url: str, more: str = "") -> Path:
    """Make a data root that shares the log at an address."""
    return make_root(tmp / name, config_toml=f'database_url = "{url}"\n{CONFIG}{more}')


@asynccontextmanager
async def run_worker(root: Path, url: str, base_url: str, *more: str) -> AsyncGenerator[Process]:
    """A worker on a machine; killed if the test has not ended it."""
    with Stderr().checked() as stderr:
        env = {**environment(root), **(model_env(base_url) if base_url else {})}
        process = await anyio.open_process([*WORKER, "--database-url", url, *more], env=env, stderr=stderr.file)
        try:
            await wait_until_it_takes_runs(process, stderr)
            yield process
        finally:
            await end(process)


async def wait_until_it_takes_runs(worker: Process, stderr: Stderr) -> None:
    """Wait until a worker says so. Fails at once, with what it wrote, if it ends instead."""

    def takes_runs() -> bool:
        assert worker.returncode is None, stderr.text
        return "takes subagents from the Postgres database" in stderr.text

    await until(takes_runs, within_s=90)


def claim_reasons(root: Path, run: str) -> list[tuple[str, str]]:
    """Return who has claimed a run, and why, in order."""
    return [(entry.content["instance"], entry.content["reason"]) for entry in read_log(root, "RunClaimed", run=run)]
