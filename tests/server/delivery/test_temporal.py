"""The adapter for Temporal against Temporal's own development server, with a store on disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from support.engines.bodies import Worker, instant_worker
from support.stdio import until

pytest.importorskip("temporalio", reason="the client is not installed")

from support.engines.temporal import TemporalServer, why_missing

from ava_server.delivery import ANY, PLANS, DeliveryFailed, EnginePlace, queues_for
from ava_server.delivery.temporal import TemporalDelivery

pytestmark = pytest.mark.skipif(why_missing() is not None, reason=str(why_missing()))
LEASE_S = 2.0


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Generator[TemporalServer]:
    server = TemporalServer(tmp_path_factory.mktemp("temporal") / "server")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def place(started: TemporalServer, tmp_path: Path) -> EnginePlace:
    return EnginePlace(started.address, tmp_path.name.replace("_", "-")[:30], None, None, LEASE_S, "a")


async def test_a_run_is_delivered_once_and_forgotten_when_the_worker_says_so(place: EnginePlace) -> None:
    worker = Worker()
    async with working(place, worker):
        await delivered(place, "S-1")
        await delivered(place, "S-1")
        await until(lambda: worker.runs == ["S-1"])
        await anyio.sleep(1.5 * LEASE_S)
        assert worker.runs == ["S-1"], "the same attempt is one delivery, and it shows life"
        worker.gate.set()
        await until(lambda: not worker.held)

        async def state() -> dict[str, int]:
            return dict((await TemporalDelivery(place).state()).taken)

        with anyio.fail_after(20):
            while await state():  # noqa: ASYNC110
                await anyio.sleep(0.2)


async def test_a_worker_that_is_stopped_leaves_no_task_behind(place: EnginePlace) -> None:
    worker = Worker()
    before = asyncio.all_tasks()
    async with working(place, worker, labels=("gpu", "eu")):
        await delivered(place, "S-1")
        await until(lambda: worker.runs == ["S-1"])
        assert len(asyncio.all_tasks() - before) > 1
    assert asyncio.all_tasks() <= before


async def test_what_may_not_be_forgotten_comes_again_and_a_new_attempt_ends_the_old_one(place: EnginePlace) -> None:
    worker = instant_worker(answer=False)
    async with working(place, worker):
        await delivered(place, "S-1")
        await until(lambda: len(worker.runs) >= 2, within_s=30)
        worker.answer = True
        await delivered(place, "S-1", attempt="0.1")
        count = len(worker.runs)
        await until(lambda: len(worker.runs) > count, within_s=30)


async def test_what_waits_is_not_delivered_again_and_what_a_worker_has_is(place: EnginePlace) -> None:
    worker, sender = Worker(), TemporalDelivery(place)
    await delivered(place, "S-1")
    await anyio.sleep(1)
    assert not await sender.deliver("S-1", ANY, "0.1"), "no worker has looked at it"
    async with working(place, worker):
        await until(lambda: worker.held == {"S-1"}, within_s=30)
        assert await sender.deliver("S-1", ANY, "0.2")
        worker.gate.set()


async def test_slots_are_kept_plans_take_none_and_labels_count(place: EnginePlace) -> None:
    worker, gpu = Worker(), instant_worker()
    async with working(place, worker):
        for number in range(4):
            await delivered(place, f"S-{number}")
        await delivered(place, "S-gpu", "label-gpu")
        await until(lambda: len(worker.held) == 2)
        await delivered(place, "G-1", PLANS)
        await until(lambda: len(worker.held) == 3, within_s=20)
        await anyio.sleep(LEASE_S)
        assert worker.most == 3 and "S-gpu" not in worker.runs
        worker.gate.set()
        await until(lambda: len(worker.runs) == 5, within_s=30)
        async with working(place, gpu, 1, ("gpu",)):
            await until(lambda: gpu.runs == ["S-gpu"], within_s=30)


async def test_a_worker_never_has_more_runs_than_slots_whatever_queue_they_come_from(place: EnginePlace) -> None:
    worker = Worker()
    queues = queues_for(("eu", "gpu"))
    async with working(place, worker, slots=1, labels=("eu", "gpu")):
        for number, queue in enumerate([*queues[1:], *queues[1:]]):
            await delivered(place, f"S-{number}", queue)
        await until(lambda: len(worker.held) == 1, within_s=60)
        await anyio.sleep(2 * LEASE_S)
        assert worker.most == 1 and len(worker.runs) == 1
        worker.gate.set()
        await until(lambda: len(worker.runs) == 8, within_s=60)
        assert len(set(worker.runs)) == 8 and worker.most == 1


@pytest.mark.parametrize("why", ["it showed no life", "it was delivered again"])
async def test_a_run_keeps_its_slot_after_its_activity_was_cancelled(place: EnginePlace, why: str) -> None:
    """The worker still drives it, as the log says; a second run would be one too many."""
    worker = Worker()
    async with working(place, worker, slots=1, labels=("gpu",)):
        await delivered(place, "S-1")
        await until(lambda: worker.runs == ["S-1"], within_s=60)
        if why == "it showed no life":
            worker.alive = False
            await anyio.sleep(3 * LEASE_S)
            worker.alive = True
        else:
            await delivered(place, "S-1", attempt="0.1")
        await delivered(place, "S-2", "label-gpu")
        await anyio.sleep(4 * LEASE_S)
        assert worker.runs == ["S-1"] and worker.most == 1
        worker.gate.set()
        await until(lambda: "S-2" in worker.runs, within_s=60)
        assert worker.most == 1


async def test_a_worker_that_cannot_reach_the_log_shows_no_life_and_takes_nothing(place: EnginePlace) -> None:
    cut, well = Worker(), instant_worker()
    async with working(place, cut):
        await delivered(place, "S-1")
        await until(lambda: cut.runs == ["S-1"])
        cut.alive = False
        async with working(place, well):
            await until(lambda: well.runs == ["S-1"], within_s=10 * LEASE_S)
            await delivered(place, "S-2")
            await until(lambda: "S-2" in well.runs, within_s=20)
        assert cut.runs == ["S-1"]


async def test_a_server_that_is_away_and_a_namespace_that_is_not_there_are_one_sentence(place: EnginePlace) -> None:
    for address, says in (
        ("temporal://127.0.0.1:1", "does not answer; runs wait until it does"),
        ("temporal://127.0.0.1:abc", "cannot be used (Port could not be cast to integer value as 'abc')"),
        (f"{place.address}/nowhere", "make the namespace, or give another one at the end of the address"),
    ):
        adapter = TemporalDelivery(EnginePlace(address, "ava", None, None, LEASE_S, "a"))
        with pytest.raises(DeliveryFailed) as failed:
            await adapter.deliver("S-1", ANY, "0.0")
        assert says in str(failed.value) and "\n" not in str(failed.value)
        assert (await adapter.state()).fault


async def test_a_restart_with_its_store_loses_nothing(tmp_path: Path) -> None:
    server = TemporalServer(tmp_path / "own")
    server.start()
    place = EnginePlace(server.address, "ava", None, None, LEASE_S, "a")
    try:
        await delivered(place, "S-1")
        server.stop()
        server.start()
        worker = instant_worker()
        async with working(place, worker):
            await until(lambda: worker.runs == ["S-1"], within_s=60)
    finally:
        server.stop()


@asynccontextmanager
async def working(
    place: EnginePlace, worker: Worker, slots: int = 2, labels: tuple[str, ...] = ()
) -> AsyncGenerator[None]:
    adapter = TemporalDelivery(place)
    async with adapter.connected(), anyio.create_task_group() as tasks:
        tasks.start_soon(adapter.work, "w", queues_for(labels), slots, worker)
        yield
        tasks.cancel_scope.cancel()


async def delivered(place: EnginePlace, run_id: str, queue: str = ANY, attempt: str = "0.0") -> None:
    """Deliver a run, trying again while a server that has just started makes its namespace."""
    adapter = TemporalDelivery(place)
    with anyio.fail_after(60):
        while True:
            try:
                await adapter.deliver(run_id, queue, attempt)
                return
            except DeliveryFailed:
                await anyio.sleep(0.5)
