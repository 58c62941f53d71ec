"""Cancelling a run wherever it is, and tools that run together, hang or wait."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.model_server import Fail, Gate, Say
from support.properties import BUSY_OR_SHARED
from support.runs.tools import WaitingTool, offer_tool
from support.runtime import PRICED, hand_over, open_lab, wait_for

from ava_audit.entries import Entry
from ava_audit.events import CancelRequested, CostUpdate, RunEnded, ToolResult
from ava_roles.tool import ToolArgs, ToolContext, ToolOutput

NOTED = Say(calls=[("scratchpad", {"note": "half of it"})])


async def test_read_only_calls_of_one_turn_run_concurrently(tmp_path: Path) -> None:
    tool = WaitingTool("wait")
    async with open_lab(tmp_path, [Say(calls=[("wait", {}), ("wait", {})]), hand_over()]) as lab:
        offer_tool(lab, tool)
        run_id = await lab.start()
        with anyio.fail_after(40):
            await tool.together.wait()
        tool.release.set()
        await lab.ended(run_id)
    assert tool.most_inside == 2


async def test_calls_that_are_not_read_only_run_sequentially(tmp_path: Path) -> None:
    tool = WaitingTool("change", read_only=False)
    tool.release.set()
    async with open_lab(tmp_path, [Say(calls=[("change", {}), ("change", {})]), hand_over()]) as lab:
        offer_tool(lab, tool)
        run_id = await lab.start()
        await lab.ended(run_id)
        assert [fact.success for fact in await lab.facts(run_id, ToolResult)] == [True, True, True]
    assert tool.most_inside == 1


async def test_stops_a_tool_at_its_timeout_and_continues_the_run(tmp_path: Path) -> None:
    tool = WaitingTool("wait", timeout_s=0.2)
    async with open_lab(tmp_path, [Say(calls=[("wait", {})]), hand_over()]) as lab:
        offer_tool(lab, tool)
        run_id = await lab.start()
        assert (await lab.ended(run_id)).state == "success"
        result = (await lab.facts(run_id, ToolResult))[0]
    assert not result.success and "Timed out after 0.2 s" in result.output
    assert tool.inside == 0


async def test_cancels_a_run_during_a_model_call(tmp_path: Path) -> None:
    gate = Gate()
    async with open_lab(tmp_path, [Say("late", gate=gate)], config=PRICED) as lab:
        run_id = await lab.start()
        await wait_for(gate.arrived)
        with anyio.fail_after(20):
            answer = await lab.call("cancel_subagent", subagent_id=run_id, reason="no longer needed")
        await wait_for(gate.client_left)
        assert answer.status == "cancelled"
        run = await lab.run(run_id)
        [asked] = await lab.facts(run_id, CancelRequested)
        assert asked.reason == "no longer needed" and run.stop_reason == "cancelled on request"
        [settled] = await lab.facts(run_id, CostUpdate)
        assert settled.settlement == "unknown" and run.cost_micros > 0, "what was sent may be billed"


async def test_a_run_cancelled_while_it_connects_books_nothing(tmp_path: Path) -> None:
    connected, held = anyio.Event(), set[asyncio.StreamWriter]()

    async def says_nothing(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.add(writer)  # a TLS handshake that never ends
        connected.set()

    silent = await asyncio.start_server(says_nothing, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    env = {"AVA_MODEL_BASE_URL": f"https://127.0.0.1:{port}/v1", "AVA_MODEL": "test"}
    try:
        async with open_lab(tmp_path, config=PRICED, env=env) as lab:
            run_id = await lab.start()
            with anyio.fail_after(20):
                await connected.wait()
            assert (await lab.call("cancel_subagent", subagent_id=run_id)).status == "cancelled"
            run = await lab.run(run_id)
            [settled] = await lab.facts(run_id, CostUpdate)
    finally:
        silent.close()
        for writer in held:
            writer.close()
    assert (run.state, run.cost_micros, run.tokens, run.uncosted_micros) == ("cancelled", 0, 0, 0)
    assert settled.settlement == "not_billed" and settled.reserved_micros > 0


async def test_cancels_a_run_during_a_tool_call_and_keeps_its_partial_output(tmp_path: Path) -> None:
    tool = WaitingTool("wait")
    script = [Say(calls=[("scratchpad", {"note": "half of it"})]), Say(calls=[("wait", {})])]
    async with open_lab(tmp_path, script) as lab:
        offer_tool(lab, tool)
        run_id = await lab.start()
        with anyio.fail_after(40):
            await tool.entered.wait()
        with anyio.fail_after(20):
            answer = await lab.call("cancel_subagent", subagent_id=run_id)
    assert answer.runs[0]["state"] == "cancelled"
    assert answer.runs[0]["untrusted_result"]["output"] == "half of it"
    assert tool.inside == 0


async def test_cancels_a_run_that_waits_for_a_retry(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [Fail(429, retry_after="60")]) as lab:
        run_id = await lab.start()
        await lab.logged(run_id, "ErrorOccurred")
        with anyio.fail_after(20):
            answer = await lab.call("cancel_subagent", subagent_id=run_id)
        assert answer.status == "cancelled"
        assert (await lab.run(run_id)).cost_micros == 0


async def test_cancels_a_queued_run_and_a_proposal_immediately(tmp_path: Path) -> None:
    gate = Gate()
    async with open_lab(tmp_path, [Say("x", gate=gate)] * 2, config="[limits]\nrunning_per_user = 1") as lab:
        running = await lab.start()
        await wait_for(gate.arrived)
        queued = await lab.start(task="second")
        proposal = await lab.propose(task="third")
        assert (await lab.call("cancel_subagent", subagent_id=queued)).status == "cancelled"
        assert (await lab.call("cancel_subagent", pending_id=proposal.pending_id)).status == "cancelled"
        assert (await lab.run(queued)).generation == 0, "it never ran"
        refused = await lab.approve(proposal)
        assert refused.status == "refused"
        assert (await lab.run(running)).state == "running"
        gate.released.set()
        await lab.ended(running)
        checked = await lab.call("check_subagent", subagent_id=queued)
        assert checked.runs[0].waits_for is None, "what has ended waits for nothing"


async def test_cancelling_twice_is_harmless(tmp_path: Path) -> None:
    gate = Gate()
    async with open_lab(tmp_path, [Say("late", gate=gate)]) as lab:
        run_id = await lab.start()
        await wait_for(gate.arrived)
        answers: list[Any] = []

        async def cancel() -> None:
            answers.append(await lab.call("cancel_subagent", subagent_id=run_id))

        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(cancel)
                tasks.start_soon(cancel)
            await cancel()
        assert [answer.status for answer in answers] == ["cancelled"] * 3
        assert len(await lab.facts(run_id, RunEnded)) == 1
        assert len(await lab.facts(run_id, CancelRequested)) == 1


async def test_cancels_a_plan_as_a_whole(tmp_path: Path) -> None:
    # A gate each: a client that leaves opens its gate.
    async with open_lab(tmp_path, [Say("late", gate=Gate()), Say("late", gate=Gate())]) as lab:
        first, second = await lab.propose(task="one"), await lab.propose(task="two")
        approved = await lab.approve(first, second, last="2 subagents together, free")
        assert approved.group_id, approved
        with anyio.fail_after(6):
            answer = await lab.call("cancel_subagent", group_id=approved.group_id)
        runs = await lab.store.read(lambda view: view.step_runs(approved.group_id))
    assert answer.status == "cancelled" and [run["state"] for run in answer.runs] == ["cancelled"]
    assert [run.state for run in runs] == ["cancelled", "cancelled"]


async def test_a_tool_that_does_not_stop_does_not_delay_a_cancel(tmp_path: Path) -> None:
    inside, go = threading.Event(), threading.Event()

    class Stubborn(WaitingTool):
        async def __call__(self, args: ToolArgs, at: ToolContext) -> ToolOutput:
            def work() -> None:
                inside.set()
                go.wait(20)

            await anyio.to_thread.run_sync(work)
            return ToolOutput("done at last")

    async with open_lab(tmp_path, [Say(calls=[("stubborn", {})])]) as lab:
        offer_tool(lab, Stubborn("stubborn"))
        run_id = await lab.start()
        await wait_for(inside)
        with anyio.fail_after(20):
            answer = await lab.call("cancel_subagent", subagent_id=run_id)
        go.set()
        assert answer.status == "cancelled"
        assert len(await lab.facts(run_id, RunEnded)) == 1


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.slow
@settings(max_examples=25, suppress_health_check=BUSY_OR_SHARED)
@given(steps=st.integers(1, 400))
async def test_cancelling_at_any_moment_ends_the_run_once(tmp_path_factory: pytest.TempPathFactory, steps: int) -> None:
    script = [Say(calls=[("scratchpad", {"note": f"note {n}"})]) for n in range(8)] + [hand_over()]
    async with open_lab(tmp_path_factory.mktemp("any"), script, config=PRICED) as lab:
        run_id = await lab.start()
        for _ in range(steps):
            await anyio.lowlevel.checkpoint()
        with anyio.fail_after(6):
            await lab.call("cancel_subagent", subagent_id=run_id)
        assert len(await lab.facts(run_id, RunEnded)) == 1
        entries = await lab.entries(run_id)
        assert one_result_a_call(entries)


def one_result_a_call(entries: list[Entry]) -> bool:
    """Tell whether no call has two results."""
    answered = [entry.fact.call_id for entry in entries if isinstance(entry.fact, ToolResult) and entry.generation]
    return len(answered) == len(set(answered))


class Deaf(WaitingTool):
    """A tool that takes no notice of being cancelled, as a library may."""

    async def __call__(self, args: ToolArgs, at: ToolContext) -> ToolOutput:
        self.entered.set()
        while not self.release.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.5)
        return ToolOutput("done at last")


@pytest.mark.slow
async def test_abandons_a_tool_that_ignores_its_timeout_and_continues_the_run(tmp_path: Path) -> None:
    tool = Deaf("deaf", timeout_s=0.2)
    async with open_lab(tmp_path, [Say(calls=[("deaf", {})]), hand_over()]) as lab:
        offer_tool(lab, tool)
        began = time.monotonic()
        result = await lab.outcome()
        assert result["status"] == "success" and time.monotonic() - began < 15
        assert result["tool_receipts"] == {"deaf": {"ok": 0, "failed": 1}}
        tool.release.set()


@pytest.mark.slow
async def test_a_run_with_an_unresponsive_tool_ends_within_five_seconds_of_its_timeout(tmp_path: Path) -> None:
    tool = Deaf("deaf")
    async with open_lab(tmp_path, [NOTED, Say(calls=[("deaf", {})]), hand_over()], config=PRICED) as lab:
        offer_tool(lab, tool)
        run_id = await lab.start(timeout=2)
        began = time.monotonic()
        run = await lab.ended(run_id)
        assert run.state == "timeout" and time.monotonic() - began < 2 + 5
        tool.release.set()


async def test_the_owner_cancels_a_run_with_an_unresponsive_tool_and_keeps_its_output(tmp_path: Path) -> None:
    tool = Deaf("deaf")
    async with open_lab(tmp_path, [NOTED, Say(calls=[("deaf", {})])], config=PRICED) as lab:
        offer_tool(lab, tool)
        run_id = await lab.start()
        await tool.entered.wait()
        with anyio.fail_after(20):
            answer = await lab.call("cancel_subagent", subagent_id=run_id)
            again = await lab.call("cancel_subagent", subagent_id=run_id)
        assert answer.status == again.status == "cancelled"
        assert (await lab.run(run_id)).generation == 1
        assert answer.runs[0]["untrusted_result"]["output"] == "half of it"
        tool.release.set()


@pytest.mark.slow
async def test_ends_a_run_whose_loop_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is that hangs: here the loop itself, cancelled, and deaf to it."""
    release, entered = anyio.Event(), anyio.Event()

    async def deaf(_self: object, *_args: object) -> None:
        entered.set()
        while not release.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.2)

    monkeypatch.setattr("ava_server.runs.turn.loop.AgentRun._act", deaf)
    async with open_lab(tmp_path, [NOTED], config=PRICED) as lab:
        run_id = await lab.start(timeout=2)
        await entered.wait()
        began = time.monotonic()
        run = await lab.ended(run_id)
        assert run.state == "timeout" and run.generation == 2 and time.monotonic() - began < 2 + 5
        release.set()
