"""Bad moments: a log out of reach, entries that cannot be folded, files that are not what they were."""

from __future__ import annotations

import errno
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from support.model_server import Fail, Gate, HangUp, Say, run_model_server
from support.models.search_formats import ANTHROPIC
from support.runs import faults
from support.runs.owners import NOTE
from support.runtime import PRICED, Lab, check_budgets, connect, hand_over, open_lab, scopes_used, wait_for
from support.stdio import read_log

from ava_audit.errors import StoreUnavailable
from ava_audit.events import (
    AssistantMessage,
    CostReserved,
    CostUpdate,
    ErrorOccurred,
    Event,
    RunClaimed,
    SubagentComplete,
    ToolResult,
    Usage,
    Who,
)
from ava_audit.store import store
from ava_audit.store.schema import SCHEMA_VERSION
from ava_audit.view import View
from ava_server.budget.caps import book_overrun
from ava_server.runs.owner.manager import Manager
from ava_server.service.spawn import Spawns

OWN_WORDS = "a fault of Ava itself"


# -- money ----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def no_log_until_the_wrap_up(
    lab: Lab, run_id: str, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[None]:
    """Keep the log out of reach, once a call has come, until a run of 8 s is in the time of its wrap-up."""
    await wait_for(gate.arrived)
    claimed_us = (await lab.run(run_id)).claimed_us or 0
    with faults.hold_write_lock(lab.root), monkeypatch.context() as impatient:
        impatient.setattr(store, "ANSWER_S", 0.2)
        gate.released.set()
        # The work has four fifths of the time; what it was writing then is given up 0.2 s later.
        await faults.wait_until(claimed_us / 1e6 + 8 * 0.8 + 0.5)
        yield


@pytest.mark.slow
@pytest.mark.parametrize("answer", ["a call", "a result"])
async def test_a_paid_answer_that_the_log_could_not_take_is_kept_and_booked_at_what_it_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    gate = Gate()
    calls = NOTE.calls if answer == "a call" else hand_over(summary="found it").calls
    paid = Say("long work", calls, usage={"prompt_tokens": 5_000, "completion_tokens": 900}, gate=gate)
    async with open_lab(tmp_path, [paid, hand_over()], config=PRICED) as lab:
        run_id = await lab.start(timeout=8)
        async with no_log_until_the_wrap_up(lab, run_id, gate, monkeypatch):
            assert await lab.facts(run_id, CostUpdate) == [], "nothing of it could be written"
        run = await lab.ended(run_id)
        settled = await lab.facts(run_id, CostUpdate)
        assert {fact.settlement for fact in settled} == {"billed"}
        assert settled[0].tokens == 5_900
        said = await lab.facts(run_id, AssistantMessage)
        assert "long work" in {message.text for message in said}
        result = await lab.result(run_id)
        assert result["uncosted"] is False
        if answer == "a call":
            assert run.state == "timeout"
            assert len(settled) == 2, "its result was asked for"
            assert (await lab.facts(run_id, CostReserved))[1].last is not None
        else:
            [complete] = await lab.facts(run_id, SubagentComplete)
            assert complete.summary == "found it"
            assert len(lab.server.requests) == 1, "what it had handed over is its result"
        assert run.cost_micros == round(sum(fact.cost_cents for fact in settled) * 10_000)
        await lab.store.read(check_budgets)
        for scope in await lab.store.read(lambda view: scopes_used(view, run)):
            bucket = await lab.store.read(lambda view, scope=scope: view.bucket(scope))  # type: ignore[misc]
            assert (bucket.spent_micros, bucket.held_micros) == (run.cost_micros, 0), scope
        assert len(await lab.store.read(lambda view: scopes_used(view, run))) >= 3, "run, user-day, installation-day"


@pytest.mark.slow
async def test_a_web_search_that_the_log_could_not_take_is_booked_at_what_it_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    look = Say(calls=[("web_search", {"query": "podcast prices"})])
    with run_model_server([Fail(200, ANTHROPIC, gate=gate)]) as provider:
        config = f'[search]\nengine = "anthropic"\n[providers.anthropic]\nbase_url = "{provider.base_url}"\n{PRICED}'
        async with open_lab(tmp_path, [look, hand_over()], config=config) as lab:
            run_id = await lab.start(role="web_crawler", workspace=None, timeout=8)
            async with no_log_until_the_wrap_up(lab, run_id, gate, monkeypatch):
                pass
            run = await lab.ended(run_id)
            assert run.state == "timeout"
            reserved, settled = await lab.facts(run_id, CostReserved), await lab.facts(run_id, CostUpdate)
            assert [fact.tool_call is not None for fact in reserved] == [False, True, False]
            assert [fact.settlement for fact in settled] == ["billed", "billed", "billed"]
            assert settled[1].cost_by == {"search": 10_000}, "the search's fee"
            assert run.cost_micros == round(sum(fact.cost_cents for fact in settled) * 10_000)
            await lab.store.read(check_budgets)


async def test_the_parts_of_a_results_cost_have_what_another_process_booked_for_a_late_answer(tmp_path: Path) -> None:
    gate = Gate()
    async with open_lab(tmp_path, [HangUp(), replace(hand_over(), gate=gate)], config=PRICED, check=False) as lab:
        run_id = await lab.start()
        await wait_for(gate.arrived)
        run = await lab.run(run_id)
        [lost] = await lab.facts(run_id, CostUpdate)
        cost = round(lost.cost_cents * 10_000) + 5_000
        parts = {"input": cost}
        late = lost.model_copy(update={"settlement": "billed", "tokens": 9, "overrun": True, "cost_by": parts})
        agent = Who("sess-1", run_id, run.user_id, "ava")
        assert await lab.store.do(
            book_overrun(run_id, Event(agent, late, cost_micros=cost, model=run.model, usage=Usage(input_tokens=9)))
        )
        gate.released.set()
        ended = await lab.ended(run_id)
        result = await lab.result(run_id)
        assert ended.cost_micros == round(result["cost_cents"] * 10_000) > cost
        assert round(sum(result["cost_by"].values()) * 10_000) == ended.cost_micros
        assert "uncosted" not in result["cost_by"]


# -- a log that cannot be written -----------------------------------------------------------------------------------


async def test_a_call_during_a_log_outage_is_answered_after_one_wait_and_recorded_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "ANSWER_S", 1.0)
    async with open_lab(tmp_path, [], check=False) as lab:
        with faults.hold_write_lock(lab.root):
            began = time.monotonic()
            answer = await lab.call("spawn_subagent", role="custom", task="look it up")
            took = time.monotonic() - began
            assert "the log did not answer in time" in answer.message
            assert 1.0 <= took < 1.9, "the caller is not kept waiting a second time for the record of the refusal"
        with anyio.fail_after(20):
            head = lab.store.head  # before the look: what is written after it wakes the wait
            while not await lab.store.read(lambda view: list(view.rows("type = 'ToolResult'"))):
                head = await lab.store.wait_for_entry_after(head)


async def test_a_newer_program_takes_over_runs_of_an_older_one_that_still_runs(tmp_path: Path) -> None:
    gate = Gate()
    async with open_lab(tmp_path, [NOTE, Say("lost", gate=gate), hand_over()], config=PRICED, check=False) as older:
        run_id = await older.start()
        await wait_for(gate.arrived)
        with (
            faults.migrate_to_version(older.root, SCHEMA_VERSION + 1),
            faults.expect_warning("ava.manager", "left to the newer") as left,
        ):
            gate.released.set()
            await left.wait()
        assert (await older.run(run_id)).state == "running", "it is nobody's, and not ended"
        async with open_lab(tmp_path, server=older.server, config=PRICED, check=False) as newer:
            with anyio.fail_after(40):
                run = await newer.ended(run_id)
            assert (run.state, run.generation) == ("success", 2)
            assert await newer.settlements(run_id) == [
                "billed", "unknown", "billed",
            ]  # fmt: skip
            assert await newer.facts(run_id, ErrorOccurred) == []


# -- entries that cannot be folded ----------------------------------------------------------------------------------


async def test_a_run_with_unreadable_entries_ends_with_our_own_error_and_others_continue(tmp_path: Path) -> None:
    gate = Gate()
    with run_model_server([NOTE, Say("lost", gate=gate), *[hand_over()] * 4]) as server:
        run_id = await faults.leave_unreadable_run(tmp_path, server, gate)
        async with open_lab(tmp_path, server=server, check=False) as lab:
            other = await lab.start(task="a sound one")
            assert (await lab.ended(other)).state == "success"
            run = await lab.ended(run_id)
            assert (run.state, run.stop_reason, run.error_kind) == ("error", OWN_WORDS, "internal")
            result = await lab.result(run_id)
            assert "dropped twice" in str(result) and "KeyError" not in str(result)
            assert len(await lab.facts(run_id, RunClaimed)) <= 4
            await lab.store.read(check_budgets)
        requests = len(server.requests)
        async with open_lab(tmp_path, server=server, check=False) as lab:
            checked = await lab.call("check_subagent", subagent_id=run_id)
            assert checked.status == "error"
            assert (await lab.ended(await lab.start(task="after a restart"))).state == "success"
            assert (await lab.run(run_id)).state == "error"
        assert len(server.requests) == requests + 1, "nothing more is asked for the one that ended"


# -- deciding and ending while the log is out of reach --------------------------------------------------------------


@pytest.mark.slow
async def test_a_confirm_is_answered_as_approved_even_if_reading_the_run_fails(tmp_path: Path) -> None:
    async with open_lab(tmp_path, runs=False) as lab:
        proposal = await lab.propose()
        answers: list[Any] = []
        answered = anyio.Event()

        async def confirm() -> None:
            answers.append(await lab.approve(proposal, wait_seconds=2))
            answered.set()

        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(confirm)
                await lab.logged(proposal.subagent_id, "SpawnDecided")
                with faults.make_unreadable(lab.store.path):
                    with pytest.raises(StoreUnavailable):
                        await lab.store.read(View.head)
                    await answered.wait()
        [answer] = answers
        assert answer.status == "approved"
        assert answer.decisions[0].status == "approved"
        assert answer.message.startswith("Approved; its state cannot be read")
        assert (await lab.run(proposal.subagent_id)).state == "queued"
        again = await lab.approve(proposal)
        assert again.status != "failed" and len(await lab.store.read(lambda view: view.runs())) == 1


@pytest.mark.slow
async def test_a_cancel_that_the_log_could_not_record_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ava_server.runs.turn.loop.END_S", 1.0)
    gate = Gate()
    async with open_lab(tmp_path, [Say("x", NOTE.calls, gate=gate), hand_over(), hand_over()], config=PRICED) as lab:
        run_id = await lab.start()
        await wait_for(gate.arrived)
        manager = lab.runtime.manager
        with faults.hold_write_lock(lab.root):
            monkeypatch.setattr(store, "ANSWER_S", 0.3)
            with pytest.raises(StoreUnavailable):
                await manager.cancel(run_id, lab.session.who, "enough")
            with anyio.fail_after(40):
                # Its owner cannot write its ending, and lets go of it; nor can it be claimed again.
                while manager.activity(run_id) is not None or manager.out_of_reach is None:  # noqa: ASYNC110
                    await anyio.sleep(0.02)
            assert (await lab.run(run_id)).state == "running"
        monkeypatch.setattr(store, "ANSWER_S", 5.0)
        run = await lab.ended(run_id)
        assert run.state == "cancelled"
        assert len(lab.server.requests) == 1
        await lab.store.read(check_budgets)


# -- polls, descriptors ---------------------------------------------------------------------------------------------


async def test_twenty_polls_with_nothing_to_list_log_at_most_once(tmp_path: Path) -> None:
    async with open_lab(tmp_path, runs=False) as lab:
        before = await lab.store.read(View.head)
        for _ in range(20):
            assert (await lab.call("check_subagent")).status == "list"
        await lab.write()  # what was posted before it is written by now
        new = await lab.store.read(lambda view: [view.entry(seq) for seq in range(before + 1, view.head() + 1)])
        types = [entry.type for entry in new if entry is not None]
        assert types in ([], ["ToolCall", "ToolResult"])


@pytest.mark.parametrize(
    "error", [OSError(errno.EMFILE, "Too many open files"), StoreUnavailable("out of reach"), RuntimeError("a bug")]
)
async def test_what_fails_after_a_proposal_is_recorded_does_not_make_the_caller_propose_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def fails(*_given: Any) -> None:
        raise error

    monkeypatch.setattr(Spawns, "_release", fails)
    async with open_lab(tmp_path, runs=False) as lab:
        proposal = await lab.propose()
        [run] = await lab.store.read(lambda view: view.runs())
        assert run.id == proposal.subagent_id
        await lab.write()
        results = await lab.store.read(lambda view: view.of_type("ToolResult"))
        assert [entry.fact.success for entry in results if isinstance(entry.fact, ToolResult)] == [True]


async def test_cancels_a_run_with_unreadable_entries(tmp_path: Path) -> None:
    gate = Gate()
    with run_model_server([NOTE, Say("lost", gate=gate)]) as server:
        run_id = await faults.leave_unreadable_run(tmp_path, server, gate)
        async with open_lab(tmp_path, server=server, runs=False, check=False) as lab:
            with anyio.fail_after(6):
                answer = await lab.call("cancel_subagent", subagent_id=run_id)
            assert answer.status == "cancelled"
            await lab.store.read(check_budgets)


async def test_a_cancel_call_ends_the_run_while_the_log_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    async with open_lab(tmp_path, [Say("x", NOTE.calls, gate=gate), hand_over(), hand_over()], config=PRICED) as lab:
        run_id = await lab.start()
        await wait_for(gate.arrived)
        with faults.hold_write_lock(lab.root):
            monkeypatch.setattr(store, "ANSWER_S", 0.3)
            answer = await lab.call("cancel_subagent", subagent_id=run_id)
            assert answer.status == "failed" and "log" in answer.message
        monkeypatch.setattr(store, "ANSWER_S", 5.0)
        gate.released.set()
        run = await lab.ended(run_id)
        assert run.state == "cancelled"
        assert len(lab.server.requests) == 1


# -- a clock that jumps ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jump_s", [-3_600, 3_600])
async def test_a_clock_jump_of_an_hour_neither_ends_a_run_nor_changes_its_duration(
    jump_s: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, off_s = time.time_ns, 0
    monkeypatch.setattr(time, "time_ns", lambda: real() + off_s * 10**9)
    gate = Gate()
    async with open_lab(tmp_path, [Say("x", NOTE.calls, gate=gate), *[hand_over()] * 2], config=PRICED) as lab:
        run_id = await lab.start(timeout=60)
        await wait_for(gate.arrived)
        off_s = jump_s
        gate.released.set()
        run = await lab.ended(run_id)
        assert (run.state, (await lab.result(run_id))["duration_seconds"] < 30) == ("success", True)
        assert 0 <= run.active_us < 30_000_000
        assert (await lab.outcome(task="and the next one"))["status"] == "success"
        assert (await lab.call("read_ava_logs", last_n=5)).status == "entries"
        off_s = 0
        assert (await lab.call("check_subagent", subagent_id=run_id)).status == "success"


async def test_a_fault_that_ends_the_server_is_on_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(_self: Manager, _tasks: object) -> None:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        async with connect(tmp_path) as (client, _models):
            await client.call_tool("check_subagent", {})
            monkeypatch.setattr(Manager, "_look", broken)
            with anyio.fail_after(40):
                while True:
                    await client.call_tool("check_subagent", {})
                    await anyio.sleep(0.1)
    assert [entry.content["reason"] for entry in read_log(tmp_path / "data", "SessionEnd")] == [
        "a fault of Ava itself ended the server; its standard error has the details"
    ]
