"""Interrupted runs: taken over by themselves while they are fresh, later only when their user says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from support.logs.cutting import as_event, go_on_from
from support.model_server import Gate, Say, run_model_server
from support.runs.owners import NOTE, leave_paid_run, open_interrupted_run, own_until_call, resume_at_terminal
from support.runtime import PRICED, check_budgets, check_requests, hand_over, open_lab, wait_for

from ava_audit.errors import StaleOwner
from ava_audit.events import (
    Activity,
    CostReserved,
    CostUpdate,
    Event,
    Fence,
    RunClaimed,
    RunResumed,
    Who,
)
from ava_audit.store.store import Store, append
from ava_audit.units import now_us
from ava_server.budget.user_limits import Slots
from ava_server.runs.record import claims
from ava_server.runs.record.claims import NotResumed, claim, resume


async def test_lists_a_long_interrupted_run_without_resuming_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_interrupted_run(tmp_path, monkeypatch, name="prices", task_id="T-7") as (lab, run_id, server):
        await lab.ended(await lab.start(task="another"))  # the manager has looked, and more than once
        checked = await lab.call("check_subagent", subagent_id=run_id)
        assert checked.status == "interrupted"
        assert "confirm_spawn" in checked.runs[0].waits_for and f"ava resume {run_id}" in checked.runs[0].waits_for
        listed = await lab.call("read_ava_logs", last_n=1)
        [notice] = [line for line in listed.notices if run_id in line]
        assert "prices" in notice and "was interrupted" in notice and "confirm_spawn" in notice
        assert (await lab.run(run_id)).generation == 1 and len(server.requests) == 3


async def test_a_run_survives_any_number_of_owners_that_end_during_one_call(tmp_path: Path) -> None:
    gates = [Gate() for _ in range(4)]
    with run_model_server([*(Say("lost", gate=gate) for gate in gates), hand_over()]) as server:
        run_id = await own_until_call(tmp_path, server, gates[0], max_cost_cents=100)
        for gate in gates[1:]:
            await own_until_call(tmp_path, server, gate, run_id)
        async with open_lab(tmp_path, server=server, config=PRICED, check=False) as lab:
            assert (await lab.ended(run_id)).state == "success"
            settled = await lab.facts(run_id, CostUpdate)
            assert [fact.settlement for fact in settled] == ["unknown"] * 4 + ["billed"]
            reserved = [fact.micros for fact in await lab.facts(run_id, CostReserved)]
            assert [fact.cost_cents for fact in settled[:4]] == [micros / 10_000 for micros in reserved[:4]]
            await lab.store.read(check_budgets)


async def test_the_time_until_an_orderly_stop_counts_whoever_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each server stops in the middle of a long call, which writes nothing."""
    gates = [Gate(), Gate()]
    with run_model_server([*(Say("lost", gate=gate) for gate in gates), hand_over()]) as server:
        async with open_lab(tmp_path, server=server, config=PRICED, check=False) as lab:
            run_id = await lab.start(max_cost_cents=100)
            await wait_for(gates[0].arrived)
            claimed_us, stopped_us = (await lab.run(run_id)).claimed_us, now_us()
        async with open_lab(tmp_path, server=server, config=PRICED, check=False) as lab:
            await wait_for(gates[1].arrived)
            taken = (await lab.facts(run_id, RunClaimed))[-1]
            active_us, stopped_later_us = (await lab.run(run_id)).active_us, now_us()
        assert taken.reason == "takeover" and taken.seen_us is not None and taken.seen_us >= stopped_us
        assert claimed_us is not None and active_us == taken.seen_us - claimed_us
        monkeypatch.setattr(claims, "TAKEOVER_WITHIN_US", 0)
        async with open_lab(tmp_path, server=server, config=PRICED, check=False) as lab:
            assert not isinstance(await resume_at_terminal(lab, run_id), NotResumed)
            [resumed] = await lab.facts(run_id, RunResumed)
            assert resumed.seen_us is not None and resumed.seen_us >= stopped_later_us
            lab.runtime.manager.adopted.add(run_id)
            assert (await lab.ended(run_id)).state == "success"
            await lab.store.read(check_budgets)


async def test_a_person_resumes_a_run_whose_lost_calls_have_used_half_its_cost_cap(tmp_path: Path) -> None:
    gates = [Gate(), Gate()]
    with run_model_server([*(Say("lost", gate=gate) for gate in gates), hand_over(), hand_over()]) as server:
        run_id = await own_until_call(tmp_path, server, gates[0], max_cost_cents=36)
        await own_until_call(tmp_path, server, gates[1], run_id)
        async with open_lab(tmp_path, server=server, config=PRICED, check=False) as lab:
            await lab.ended(await lab.start(task="another"))  # the manager has looked, and more than once
            checked = await lab.call("check_subagent", subagent_id=run_id)
            assert checked.status == "interrupted" and f"ava resume {run_id}" in checked.runs[0].waits_for
            assert len(server.requests) == 3
            refused = await lab.call("confirm_spawn", pending_ids=[run_id])
            assert " left" in refused.approval_lines[0]
            asked = {"pending_ids": [run_id], "approving": refused.approval_lines, "wait_seconds": 20}
            answer = await lab.call("confirm_spawn", **asked)
            assert answer.status == "resumed" and answer.runs[0]["state"] == "success", answer
            await lab.store.read(check_budgets)


async def test_a_forced_resume_fences_out_a_live_owner(tmp_path: Path) -> None:
    gate = Gate()
    script = [NOTE, Say("lost", gate=gate), hand_over()]
    with run_model_server(script) as server:
        async with open_lab(tmp_path, server=server, config=PRICED, check=False) as one:
            run_id = await one.start()
            await wait_for(gate.arrived)
            async with open_lab(tmp_path, server=server, config=PRICED, check=False) as two:
                left = await resume_at_terminal(two, run_id)
                assert isinstance(left, NotResumed) and "is alive" in left.why
                assert not isinstance(await resume_at_terminal(two, run_id, force=True), NotResumed)
                two.runtime.manager.adopted.add(run_id)
                run = await two.ended(run_id)
                assert run.state == "success" and run.generation == 3
                gate.released.set()
                with pytest.raises(StaleOwner):
                    agent, stale = Who("sess-x", run_id, two.runtime.user), Fence(run_id, 1)
                    await one.write(Event(agent, Activity(activity="still here"), fence=stale))
                assert await two.settlements(run_id) == ["billed", "unknown", "billed"]
            assert len(server.requests) == 3
        await check_requests(tmp_path / "data", server.requests)


@pytest.mark.slow
async def test_accepts_a_paid_result_although_no_time_is_left(tmp_path: Path) -> None:
    """Its owner was killed between the answer's commit and the ending, at the end of its time."""
    with run_model_server([NOTE, hand_over()]) as server:
        run_id, before, after = await leave_paid_run(tmp_path / "first", server)
        root = tmp_path / "cut" / "data"
        root.mkdir(parents=True, mode=0o700)
        async with Store.open(root) as store:
            for number, entry in enumerate([*before, *after]):
                if number == len(before):
                    await anyio.sleep(3.1)  # its owner was active for so long
                await store.do(append(as_event(entry)))
        asked = len(server.requests)
        async with open_lab(tmp_path / "cut", server=server, config=PRICED, check=False, beneath=tmp_path) as lab:
            run = await lab.ended(run_id)
            result = await lab.result(run_id)
            await lab.store.read(check_budgets)
    assert len(server.requests) == asked, "nothing is asked again"
    assert run.state == "timeout" and result["untrusted_result"]["output"] == "the answer"
    assert result["confidence"] == 0.5


async def test_an_abandoned_run_keeps_its_paid_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with run_model_server([NOTE, hand_over()]) as server:
        run_id, before, after = await leave_paid_run(tmp_path / "first", server)
        async with go_on_from(tmp_path / "cut", [*before, *after], server, runs=False) as lab:
            monkeypatch.setattr("ava_server.runs.record.endings.ABANDONED_US", 0)
            row = await lab.run(run_id)
            assert await lab.runtime.manager.control.end_overdue(run_id, frozenset({str(row.instance)}))
            result = await lab.result(run_id)
    assert result["status"] == "abandoned" and result["untrusted_result"]["output"] == "the answer"
    assert "as this was handed over" in str(result["untrusted_result"]["caveats"])


async def test_a_claim_overtaken_by_another_owner_starts_nothing(tmp_path: Path) -> None:
    """An instance that is stopped between its claim and the look at it finds the run another's, or its own no more."""
    gate = Gate()
    async with open_lab(tmp_path, [Say("x", gate=gate), hand_over()], config=PRICED, runs=False, check=False) as lab:
        run_id = await lab.start()
        manager, ask = lab.runtime.manager, lab.store.do

        async def overtaken(command: Any, about: str | None = None) -> Any:
            value = await ask(command, about)
            if (await lab.run(run_id)).state == "running":
                lab.store.do = ask  # type: ignore[method-assign]
                who, gone = lab.session.who, frozenset({manager.instance})
                await ask(
                    resume(run_id, who, "terminal", gone, lab.runtime.spawn_limits_of(lab.runtime.user), force=True)
                )
                await ask(claim(run_id, "another", who, gone, Slots(9, 9)))
            return value

        lab.store.do = overtaken  # type: ignore[method-assign]
        async with anyio.create_task_group() as tasks:
            await manager._take(await lab.run(run_id), frozenset(), tasks)
        assert manager.activity(run_id) is None
        assert (await lab.run(run_id)).instance == "another" and lab.server.requests == []
