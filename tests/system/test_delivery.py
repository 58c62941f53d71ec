"""One suite for every way in which workers hear of runs: the same faults, and the log says that nothing was lost.

Each data root of its own is a machine. `none` is the log itself, and the reference for the engines.
"""

from __future__ import annotations

import signal
from collections.abc import Generator
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from support.engines.fleet import gate_answers, open_fleet, start_live_and_waiting
from support.engines.nats import run_nats
from support.engines.servers import KINDS, Engine, run_engine, why_missing
from support.engines.worker_machines import DONE, LEASE_S
from support.model_server import Gate
from support.network.cable import run_cables
from support.stdio import state_of, until

pytest.importorskip("psycopg", reason="the driver is not installed")
pytest.importorskip("nats", reason="the client of NATS is not installed")
pytest.importorskip("temporalio", reason="the client of Temporal is not installed")

from support.postgres import PostgresServer, postgres_server

from ava_server.config.settings import load_settings
from ava_server.service.checks import Setup
from ava_server.service.checks.delivery import delivery

pytestmark = pytest.mark.slow
NO_RIGHT = "does not let the user worker take runs of the queue label-gpu"

AWAY_S = 12.0
"""How long the engine or the log is away: several leases."""


async def test_a_zombie_wakes_up_and_then_its_successor_dies(
    tmp_path: Path, postgres: PostgresServer, engine: Engine | None
) -> None:
    """SIGSTOP, a takeover, SIGCONT, kill -9 of the new owner: a third one has the run, whoever forgot it."""
    first, second = Gate(within_s=200), Gate(within_s=200)
    async with open_fleet(tmp_path, postgres, engine, gate_answers(first, second)) as now:
        async with now.worker("one") as zombie:
            run = await now.start()
            await until(first.arrived.is_set, within_s=60)
            async with now.worker("two") as successor:
                zombie.send_signal(signal.SIGSTOP)
                began = anyio.current_time()
                await now.until_claimed(run, 2)
                assert anyio.current_time() - began < 3 * LEASE_S + 4
                await until(second.arrived.is_set, within_s=60)
                first.released.set()
                zombie.send_signal(signal.SIGCONT)
                await anyio.sleep(2 * LEASE_S)
                assert now.claims(run) == ["start", "takeover"], "it does not get its run back"
                successor.kill()
                await now.until_done(run)
        assert now.claims(run) == ["start", "takeover", "takeover"]
        second.released.set()
        await now.check(run)


async def test_labels_are_kept_and_a_run_without_a_worker_for_them_waits_and_says_so(
    tmp_path: Path, postgres: PostgresServer, engine: Engine | None
) -> None:
    async with open_fleet(tmp_path, postgres, engine, lambda _request: DONE) as now:
        (now.root / "roles").mkdir()
        text = "---\ndescription: Needs a special machine.\nlabels: [gpu]\n---\nLook it up.\n"
        (now.root / "roles" / "special.md").write_text(text)
        async with now.worker("plain"):
            special, plain = await now.start(role="special"), await now.start()
            await now.until_done(plain)
            waits = "no worker with the label gpu" if engine is not None else "a machine with the label gpu"

            async def says() -> bool:
                return waits in str(await now.host.tool("check_subagent", subagent_id=special))

            with anyio.fail_after(90):
                while not await says():  # noqa: ASYNC110
                    await anyio.sleep(1)
            assert now.claims(special) == []
            async with now.worker("gpu", "--label", "gpu"):
                await now.until_done(special)
        await now.check(special, plain)


async def test_a_run_and_doctor_name_the_fault_of_the_worker_that_has_its_label(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    """`--label gpu` with the documented user of workers that have no labels."""
    if (why := why_missing("nats")) is not None:
        pytest.skip(why)
    with run_nats(tmp_path / "engine", rights=True) as engine:
        async with open_fleet(tmp_path, postgres, engine, lambda _request: DONE) as now:
            (now.root / "roles").mkdir()
            text = "---\ndescription: Needs a special machine.\nlabels: [gpu]\n---\nLook it up.\n"
            (now.root / "roles" / "special.md").write_text(text)
            async with now.worker("gpu", "--label", "gpu"):
                special, plain = await now.start(role="special"), await now.start()
                await now.until_done(plain)

                async def says() -> bool:
                    shown = str(await now.host.tool("check_subagent", subagent_id=special))
                    return "no worker with the label gpu can take it; the one on " in shown and NO_RIGHT in shown

                with anyio.fail_after(120):
                    while not await says():  # noqa: ASYNC110
                        await anyio.sleep(1)
                settings = load_settings(now.root, {})
                found = await anyio.to_thread.run_sync(
                    lambda: list(delivery(Setup({}, settings.paths, settings))), abandon_on_cancel=True
                )
                (shown,) = [each for each in found if each.name == "workers"]
                assert (
                    shown.state == "fault"
                    and f"takes nothing from label-gpu: the NATS server at {engine.address}" in shown.text
                )
                await now.host.tool("cancel_subagent", subagent_id=special)


async def test_a_cancel_reaches_a_queued_run_and_a_running_one(
    tmp_path: Path, postgres: PostgresServer, engine: Engine | None
) -> None:
    gate = Gate(within_s=200)
    async with open_fleet(tmp_path, postgres, engine, gate_answers(gate)) as now:
        queued = await now.start()
        await now.host.tool("cancel_subagent", subagent_id=queued)
        assert state_of(now.root, queued) == "cancelled"
        async with now.worker("one"):
            running = await now.start()
            await until(gate.arrived.is_set, within_s=60)
            began = anyio.current_time()
            await now.host.tool("cancel_subagent", subagent_id=running)
            assert state_of(now.root, running) == "cancelled" and anyio.current_time() - began < 4
            gate.released.set()
            last = await now.start()
            await now.until_done(last)
        assert now.claims(queued) == [] and now.claims(running) == ["start"]
        await now.check(queued, running, last)


async def test_a_worker_that_reaches_the_engine_and_not_the_log_loses_its_runs_to_others(
    tmp_path: Path, postgres: PostgresServer, engine: Engine | None
) -> None:
    first = Gate(within_s=200)
    async with open_fleet(tmp_path, postgres, engine, gate_answers(first)) as now:
        with run_cables(postgres.port, ["127.0.0.1"]) as (cable,):
            database = now.url.rpartition("/")[2]
            url = postgres.url(database, tcp=True).replace(f":{postgres.port}/", f":{cable.port}/")
            async with now.worker("cut", url=url):
                run = await now.start()
                await until(first.arrived.is_set, within_s=60)
                cable.unplug()
                async with now.worker("well"):
                    await now.until_done(run)
                    more = [await now.start() for _ in range(3)]
                    await now.until_done(*more)
                assert now.claims(run) == ["start", "takeover"]
                first.released.set()
                cable.plug_in(reset=True)
            await now.check(run, *more)


@pytest.mark.parametrize("fault", ["engine away", "store deleted", "log away"])
async def test_runs_that_live_and_runs_that_wait_outlast(
    tmp_path: Path, postgres: PostgresServer, engine: Engine | None, fault: str
) -> None:
    if engine is None and fault != "log away":
        pytest.skip("there is no engine")
    gate = Gate(within_s=300)
    async with open_fleet(tmp_path, postgres, engine, gate_answers(gate, gate)) as now, AsyncExitStack() as stack:  # noqa: SIM117
        async with start_live_and_waiting(now, gate, stack):
            if fault == "log away":
                postgres.stop(signal.SIGQUIT)  # in this thread: the server ends with the one that started it
                await anyio.sleep(AWAY_S)
                postgres.start()
                await anyio.sleep(2 * LEASE_S)
            elif fault == "engine away":
                assert engine is not None
                engine.stop()
                await anyio.sleep(AWAY_S)
                engine.start()
            else:
                assert engine is not None
                engine.wipe()


@pytest.fixture(params=KINDS)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Engine | None]:
    if (why := why_missing(request.param)) is not None:
        pytest.skip(why)
    with run_engine(request.param, tmp_path / "engine") as server:
        yield server


@pytest.fixture
def postgres() -> Generator[PostgresServer]:
    server = postgres_server()
    yield server
    server.empty_databases()
