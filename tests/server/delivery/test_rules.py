"""The rules that make every engine safe, each with the fault that it closes: without the rule, the test shows it."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from support.databases import POSTGRES
from support.engines.memory import MemoryDelivery, MemoryEngine
from support.model_server import Gate, ModelServer, run_model_server
from support.runs import plans
from support.runtime import PRICED, Lab, hand_over, open_lab, wait_for
from support.stdio import until

from ava_server import delivery
from ava_server.delivery import ANY, DeliveryFailed, attempt_of
from ava_server.delivery.outbox import REPEATED, Message, Outbox
from ava_server.runs.owner.control import RunControl
from ava_server.runs.owner.manager import Manager
from ava_server.runs.owner.mode import SHARED_BACKGROUND
from ava_server.runs.owner.offers import BAD_MESSAGES, STOPPING, Offers
from ava_server.runs.turn.loop import AgentRun
from ava_server.service import runtime
from ava_server.service.run_records import run_record

pytestmark = pytest.mark.skipif(POSTGRES, reason="a lock file, which a test can release, says who lives")
CONFIG = 'runs_on = "workers"\nlease_s = 3\n' + PRICED
Labs = Callable[..., AbstractAsyncContextManager[Lab]]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> MemoryEngine:
    """The engine of all labs that a test opens."""
    made = MemoryEngine()
    monkeypatch.setattr(runtime, "open_engine", lambda _settings: made.delivery())
    return made


async def test_an_engine_carries_a_run_to_a_worker_and_forgets_it_at_its_end(
    tmp_path: Path, engine: MemoryEngine
) -> None:
    with run_model_server([hand_over()]) as models:
        async with server(tmp_path, models) as lab, worker(tmp_path, models):
            run = await lab.start()
            assert (await lab.ended(run)).state == "success"
            await until(lambda: engine.answers == [(run, True)])
            assert engine.messages == [] and await claims(lab, run) == ["start"]


async def test_a_worker_takes_only_what_it_is_given(tmp_path: Path, engine: MemoryEngine) -> None:
    engine.is_down = True
    with run_model_server([hand_over()]) as models:
        async with server(tmp_path, models) as lab, worker(tmp_path, models):
            run = await lab.start()
            await until(lambda: lab.runtime.manager.outbox.fault is not None)
            await stays(lambda: engine.answers == [])
            assert (await lab.run(run)).state == "queued"
            await until(lambda: "engine is down" in lab.runtime.manager.waiting_for.get(run, ""))
            engine.is_down = False
            assert (await lab.ended(run)).state == "success"


@pytest.mark.parametrize("naive", [False, True])
async def test_a_worker_that_lost_its_run_does_not_have_its_message_forgotten(
    tmp_path: Path, engine: MemoryEngine, monkeypatch: pytest.MonkeyPatch, naive: bool
) -> None:
    """A zombie wakes up and acknowledges; then its successor dies. With the naive answer, the run is lost."""
    engine.naive = naive
    first, second = Gate(within_s=120), Gate(within_s=120)
    script = [replace(hand_over(), gate=first), replace(hand_over(), gate=second), hand_over()]
    with run_model_server(script) as models:
        async with server(tmp_path, models) as lab, worker(tmp_path, models) as zombie:
            run = await lab.start()
            await wait_for(first.arrived)
            monkeypatch.setattr(Outbox, "put", lambda _self, _message: None)  # the engine is left to itself
            stop(zombie)
            async with worker(tmp_path, models) as successor:
                await wait_for(second.arrived)
                await until(lambda: engine.answers == [(run, False)])
                stop(successor)
                async with worker(tmp_path, models):
                    if naive:
                        await stays(lambda: engine.messages == [])
                        assert await claims(lab, run) == ["start", "takeover"], "nobody will ever take it"
                    else:
                        assert (await lab.ended(run)).state == "success"
                        assert await claims(lab, run) == ["start", "takeover", "takeover"]
                    for gate in (first, second):
                        gate.released.set()


@pytest.mark.parametrize("rule", [True, False])
async def test_rule_1_a_run_that_is_lost_ends_at_once_even_in_a_long_call(
    tmp_path: Path, engine: MemoryEngine, monkeypatch: pytest.MonkeyPatch, rule: bool
) -> None:
    if not rule:
        monkeypatch.setattr(AgentRun, "lose", lambda _self: None)
    first = Gate(within_s=120)
    with run_model_server([replace(hand_over(), gate=first), hand_over()]) as models:
        async with server(tmp_path, models) as lab, worker(tmp_path, models) as zombie:
            run = await lab.start()
            await wait_for(first.arrived)
            stop(zombie)
            async with worker(tmp_path, models):
                await until(lambda: len(models.requests) == 2)
                if rule:
                    await until(lambda: not zombie.owns(run), within_s=10)
                else:
                    await stays(lambda: zombie.owns(run))
                assert (await lab.ended(run)).state == "success"
                first.released.set()


@pytest.mark.parametrize("pushed", [True, False])
async def test_rule_1_a_cancel_reaches_the_owner_whatever_the_engine_does(
    tmp_path: Path, engine: MemoryEngine, pushed: bool
) -> None:
    gate = Gate(within_s=120)
    with run_model_server([replace(hand_over(), gate=gate)]) as models:
        async with server(tmp_path, models) as lab, worker(tmp_path, models):
            run = await lab.start()
            await wait_for(gate.arrived)
            engine.is_down = not pushed
            await lab.call("cancel_subagent", subagent_id=run)
            assert (await lab.run(run)).state == "cancelled"
            await until(lambda: engine.answers == [(run, True)])
            gate.released.set()


async def test_a_cancelled_plan_starts_no_run_that_the_engine_still_has(tmp_path: Path, engine: MemoryEngine) -> None:
    gate = Gate(within_s=120)
    config = CONFIG + "\n[delivery]\nslots = 1\n"
    with run_model_server(lambda _request: replace(hand_over(), gate=gate)) as models:
        async with server(tmp_path, models) as lab, worker(tmp_path, models, config):
            proposal = await plans.propose(lab, [plans.step(f"s{number}", "Look.") for number in range(4)])
            await lab.approve(proposal)
            await wait_for(gate.arrived)
            await until(lambda: sum(one.queue == ANY for one in engine.messages) > 1)
            answered = await lab.call("cancel_subagent", group_id=proposal.group_id)
            assert answered.status == "cancelled", answered
            for row in await plans.rows(lab, proposal.group_id):
                assert (await lab.ended(row.id)).state == "cancelled"
            await until(lambda: engine.messages == [])
            assert len(models.requests) == 1
            gate.released.set()


@pytest.mark.parametrize("rule", [True, False])
async def test_rule_2_a_worker_without_the_log_shows_no_life(
    tmp_path: Path, engine: MemoryEngine, monkeypatch: pytest.MonkeyPatch, rule: bool
) -> None:
    """It reaches the engine, and would keep the run for ever: to the engine it lives, to the log it is dead."""
    gate = Gate(within_s=120)
    with run_model_server([replace(hand_over(), gate=gate), hand_over()]) as models:
        async with server(tmp_path, models) as lab, worker(tmp_path, models) as cut:
            run = await lab.start()
            await wait_for(gate.arrived)
            monkeypatch.setattr(Outbox, "put", lambda _self, _message: None)
            monkeypatch.setattr(cut.offers, "answer", lambda *_given: None)  # it reads nothing of the log any more
            if rule:
                stop(cut)
            else:
                cut._membership.release()
                cut.offers.is_alive = lambda: True  # type: ignore[method-assign]
            async with worker(tmp_path, models):
                if rule:
                    assert (await lab.ended(run)).state == "success"
                else:
                    await stays(lambda: len(models.requests) == 1)
                gate.released.set()


@pytest.mark.parametrize("rule", [True, False])
async def test_rule_3_what_the_engine_has_lost_is_delivered_again(
    tmp_path: Path, engine: MemoryEngine, monkeypatch: pytest.MonkeyPatch, rule: bool
) -> None:
    monkeypatch.setattr(delivery, "SILENT_LEASES", 0.3)
    if not rule:
        monkeypatch.setattr("ava_server.runs.owner.manager.attempt_of", lambda *_given: "0.0")
    with run_model_server([hand_over()]) as models:
        async with server(tmp_path, models) as lab:
            run = await lab.start()
            await until(lambda: engine.messages)
            engine.wipe()
            async with worker(tmp_path, models):
                if rule:
                    assert (await lab.ended(run)).state == "success"
                    assert await claims(lab, run) == ["start"] and lab.runtime.manager.outbox.repeated > 0
                else:
                    await stays(lambda: not engine.messages)
                    assert (await lab.run(run)).state == "queued"
                    assert lab.runtime.manager.outbox.repeated == 0


async def test_a_worker_says_which_runs_it_takes_takes_over_and_leaves(
    tmp_path: Path, engine: MemoryEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    gate = Gate(within_s=120)
    with run_model_server([replace(hand_over(), gate=gate), hand_over()]) as models:
        async with server(tmp_path, models) as lab, worker(tmp_path, models) as first:
            run = await lab.start()
            await wait_for(gate.arrived)
            assert f"{run} taken" in caplog.messages
            stop(first)
            async with worker(tmp_path, models):
                assert (await lab.ended(run)).state == "success"
                await until(lambda: f"{run} has ended" in caplog.messages)
                assert f"{run} taken over from {first.instance}" in caplog.messages
                await until(lambda: any(run in said and "left to its new owner" in said for said in caplog.messages))
                gate.released.set()


async def test_rule_3_what_waits_in_the_engine_is_neither_delivered_nor_counted_again(
    tmp_path: Path, engine: MemoryEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "SILENT_LEASES", 0.3)
    attempts: list[str] = []
    told = MemoryDelivery.deliver

    async def deliver(self: MemoryDelivery, run_id: str, queue: str, attempt: str) -> bool:
        attempts.append(attempt)
        return await told(self, run_id, queue, attempt)

    monkeypatch.setattr(MemoryDelivery, "deliver", deliver)
    with run_model_server([hand_over()]) as models:
        async with server(tmp_path, models) as lab:
            run = await lab.start()
            await until(lambda: len(set(attempts)) >= 3)
            assert len(engine.messages) == 1 and lab.runtime.manager.outbox.repeated == 0
            async with worker(tmp_path, models):
                assert (await lab.ended(run)).state == "success"


@pytest.mark.parametrize("by", ["the server that said it", "another server"])
async def test_why_a_run_waits_is_taken_back_when_it_is_over(tmp_path: Path, engine: MemoryEngine, by: str) -> None:
    async def shown(lab: Lab, run: str) -> str:
        found = await lab.runtime.store.read(lambda view: run_record(view, run, lab.runtime.instances))
        return found.answer.waits_for or ""

    engine.is_down = True
    with run_model_server([hand_over()]) as models:
        async with server(tmp_path, models) as lab, worker(tmp_path, models) as busy:
            run = await lab.start()
            busy.offers.stop_taking()
            await until(lambda: "engine is down" in lab.runtime.manager.waiting_for.get(run, ""))
            while "engine is down" not in await shown(lab, run):  # noqa: ASYNC110
                await anyio.sleep(0.1)
            if by != "another server":
                engine.is_down = False
                await until(lambda: engine.messages)
                with anyio.fail_after(10):
                    while "engine is down" in await shown(lab, run):  # noqa: ASYNC110
                        await anyio.sleep(0.1)
        engine.is_down = False
        async with server(tmp_path, models) as lab, worker(tmp_path, models) as busy:
            busy.offers.stop_taking()
            with anyio.fail_after(10):
                while "engine is down" in await shown(lab, run):  # noqa: ASYNC110
                    await anyio.sleep(0.1)


@pytest.mark.parametrize("rule", [True, False])
async def test_rule_4_a_claim_is_refused_while_the_owner_lives(
    tmp_path: Path, engine: MemoryEngine, monkeypatch: pytest.MonkeyPatch, rule: bool
) -> None:
    gate = Gate(within_s=120)
    with run_model_server([replace(hand_over(), gate=gate), hand_over()]) as models:
        async with server(tmp_path, models) as lab, worker(tmp_path, models) as owner:
            run = await lab.start()
            await wait_for(gate.arrived)
            stop(owner, lease_too=False)  # the engine hears nothing of it, and proposes the run to another one
            if not rule:
                monkeypatch.setattr(RunControl, "gone", lambda self, rows: frozenset(self._owners(rows)))
            async with worker(tmp_path, models) as other:
                if rule:
                    await until(lambda: other.offers.refused >= 2)
                    assert await claims(lab, run) == ["start"]
                    gate.released.set()
                    assert (await lab.ended(run)).state == "success"
                    assert await claims(lab, run) == ["start"] and len(models.requests) == 1
                else:
                    await until(lambda: len(models.requests) == 2)
                    assert await claims(lab, run) == ["start", "takeover"], "a call is paid twice"
                    gate.released.set()
                    await lab.ended(run)


def test_an_attempt_is_the_same_for_all_who_read_the_log_and_changes_with_silence_and_claims() -> None:
    minute_us = 60_000_000
    assert attempt_of(0, minute_us, minute_us, 15) == attempt_of(0, minute_us, 2 * minute_us - 1, 15) == "0.0"
    assert attempt_of(0, minute_us, 2 * minute_us, 15) == "0.1"
    assert attempt_of(1, minute_us, minute_us, 15) == "1.0"
    assert attempt_of(0, 2 * minute_us, minute_us, 15) == "0.0", "a clock that is behind"


# -- one queue holds up no other ---------------------------------------------------------------------------------------


async def test_runs_for_a_machine_that_nobody_has_hold_up_no_other(tmp_path: Path, engine: MemoryEngine) -> None:
    roles = tmp_path / "data" / "roles"
    roles.mkdir(parents=True)
    (roles / "special.md").write_text("---\ndescription: Needs a machine.\nlabels: [gpu]\n---\nLook it up.\n")
    config = CONFIG + "\n[limits]\nrunning_per_user = 2\n"
    with run_model_server([hand_over()]) as models:
        opened = open_lab(tmp_path, server=models, config=config, background=True, check=False)
        async with opened as lab, worker(tmp_path, models):
            special = [await lab.start(role="special") for _ in range(3)]
            await until(lambda: sum(one.queue == "label-gpu" for one in engine.messages) == 2)
            plain = await lab.start()
            assert (await lab.ended(plain)).state == "success"
            assert [(await lab.run(run)).state for run in special] == ["queued"] * 3
            assert sum(one.queue == "label-gpu" for one in engine.messages) == 2, "a queue keeps the slots by itself"


class OneQueueFails(MemoryDelivery):
    """An adapter whose engine fails, or never answers, for one queue; and for one run of another."""

    hangs = False

    async def deliver(self, run_id: str, queue: str, attempt: str) -> bool:
        if queue == "label-gpu":
            if self.hangs:
                await anyio.sleep_forever()
            raise DeliveryFailed("the queue label-gpu is not as Ava makes it")
        if run_id == "S-bad":
            raise DeliveryFailed("the run S-bad cannot be told")
        return await super().deliver(run_id, queue, attempt)


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_message_that_fails_holds_up_no_other(hangs: bool) -> None:
    engine = MemoryEngine()
    adapter = OneQueueFails(engine)
    adapter.hangs = hangs
    outbox = Outbox(adapter, lambda _facts: None)
    outbox.put(Message("S-1", "label-gpu", "0.0"))
    outbox.put(Message("S-bad", ANY, "0.0"))
    outbox.put(Message("S-2", ANY, "0.0"))
    outbox.put_cancel("S-3")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(outbox.run)
        await until(lambda: [one.run_id for one in engine.messages] == ["S-2"], within_s=3)
        outbox.keep_only({"S-1", "S-2"})
        await until(lambda: outbox.fault_of(ANY) is None, within_s=3)
        if not hangs:
            assert outbox.fault_of("label-gpu") == outbox.fault == "the queue label-gpu is not as Ava makes it"
            outbox.keep_only({"S-2"})
            await until(lambda: outbox.fault is None, within_s=3)
        tasks.cancel_scope.cancel()


async def test_what_is_delivered_again_is_counted_once_by_all_servers_together() -> None:
    engine = MemoryEngine()
    told: list[Mapping[str, int]] = []
    servers = [Outbox(engine.delivery(), told.append) for _ in range(2)]

    async def all_told(attempt: str) -> None:
        await until(lambda: {one._told.get("S-1") for one in servers} == {attempt})

    async with anyio.create_task_group() as tasks:
        for server in servers:
            tasks.start_soon(server.run)
        for attempt in ("0.0", "0.1", "1.0", "1.2"):
            for server in servers:
                server.put(Message("S-1", ANY, attempt))
            await all_told(attempt)
            for message in engine.messages:
                message.given = 1  # to a worker that stays silent
        tasks.cancel_scope.cancel()
    assert sum(server.repeated for server in servers) == sum(REPEATED in facts for facts in told) == 2


async def test_an_outdated_worker_gives_back_what_it_was_given_and_takes_nothing_more() -> None:
    class Alive:
        name = "w"

        def holds(self) -> bool:
            return True

        def tell(self, facts: Mapping[str, object]) -> None:
            pass

    offers = Offers(lambda: None, Alive())  # type: ignore[arg-type]
    answers: list[bool] = []

    async def offer(run_id: str) -> None:
        answers.append(await offers(run_id))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(offer, "S-1")
        await until(lambda: offers.open() == {"S-1"})
        offers.leave()
        await until(lambda: answers == [False])
        assert not offers.takes_runs()
        await offer("S-2")
        assert answers == [False, False] and not offers.open()


async def test_a_worker_that_is_being_stopped_takes_nothing_more_and_keeps_what_it_has() -> None:
    told: dict[str, object] = {}

    class Alive:
        name = "w"

        def holds(self) -> bool:
            return True

        def tell(self, facts: Mapping[str, object]) -> None:
            told.update(facts)

    offers = Offers(lambda: None, Alive())  # type: ignore[arg-type]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(offers, "S-1")
        await until(lambda: offers.open() == {"S-1"})
        offers.stop_taking()
        assert told == {STOPPING: True}, "it is no free slot for those who look"
        assert not offers.takes_runs() and offers.open() == {"S-1"} and not await offers("S-2")
        tasks.cancel_scope.cancel()


def test_messages_that_could_not_be_used_are_counted_for_others_to_see() -> None:
    told: dict[str, object] = {}

    class Alive:
        name = "w"

        def tell(self, facts: Mapping[str, object]) -> None:
            told.update(facts)

    offers = Offers(lambda: None, Alive())  # type: ignore[arg-type]
    offers.count_bad_message()
    offers.count_bad_message()
    assert told == {BAD_MESSAGES: 2}


def server(tmp: Path, models: ModelServer) -> AbstractAsyncContextManager[Lab]:
    """A server, which hands approved runs to the engine."""
    return open_lab(tmp, server=models, config=CONFIG, background=True, check=False)


@asynccontextmanager
async def worker(tmp: Path, models: ModelServer, config: str = CONFIG) -> AsyncGenerator[Manager]:
    async with open_lab(tmp, server=models, config=config, mode=SHARED_BACKGROUND, check=False) as lab:
        yield lab.runtime.manager


def stop(manager: Manager, *, lease_too: bool = True) -> None:
    """Have a worker show no life, as if it was stopped; with `lease_too`, others also see that in the log."""
    manager.offers.is_alive = lambda: False  # type: ignore[method-assign]
    if lease_too:
        manager._membership.release()


async def claims(lab: Lab, run: str) -> list[str]:
    return await lab.claim_reasons(run)


async def stays(check: Callable[[], object], for_s: float = 2.5) -> None:
    """Something stays so for a while: what must not come has no event."""
    end = anyio.current_time() + for_s
    while anyio.current_time() < end:
        assert check()
        await anyio.sleep(0.05)
