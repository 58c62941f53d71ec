"""What becomes of a run whose owner is gone, and that only its present owner writes and spends."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from support.budget.spender import Spender
from support.logs.cutting import all_entries, go_on_from
from support.model_server import Gate, ModelServer, Say, Script, Step, run_model_server
from support.runs.owners import NOTE, approve_runs, claim_as, owner_process
from support.runtime import PRICED, check_budgets, check_requests, hand_over, open_lab, wait_for
from support.sample import sample

from ava_audit.entries import Entry
from ava_audit.errors import StaleOwner
from ava_audit.events import (
    Activity,
    AssistantMessage,
    CostReserved,
    CostUpdate,
    Event,
    RunClaimed,
    RunEnded,
    ToolCall,
    ToolResult,
)
from ava_audit.store.backend import SHOWN_S
from ava_audit.view import View
from ava_server.budget.user_limits import DayCaps

# -- fencing --------------------------------------------------------------------------------------------------------


async def test_a_stale_generation_can_neither_write_nor_spend(tmp_path: Path) -> None:
    with run_model_server([]) as server:
        [run_id] = await approve_runs(tmp_path, server, config=PRICED)
        async with open_lab(tmp_path, server=server, config=PRICED, runs=False, check=False) as lab:
            await claim_as(lab, run_id, "one")
            await claim_as(lab, run_id, "two", gone={"one"})
            stale = Spender(run_id, lab.runtime.user, None)  # its fence is that of the first claim
            head = await lab.store.read(View.head)
            for fact in (Activity(activity="still here"), RunEnded(status="success", stop_reason="I say so")):
                with pytest.raises(StaleOwner):
                    await lab.write(Event(stale.who, fact, fence=stale.fence))
            with pytest.raises(StaleOwner):
                await lab.store.do(stale.reserve(1, wrap=1, days=DayCaps(10**9, 10**9)))
            assert await lab.store.read(View.head) == head
            assert (await lab.run(run_id)).state == "running"


# -- owners that are gone -------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_takes_over_the_run_of_a_killed_owner_without_repeating_model_calls(tmp_path: Path) -> None:
    gate = Gate()
    script: Script = [NOTE, Say("lost", gate=gate), hand_over()]
    with run_model_server(script) as server:
        [run_id] = await approve_runs(tmp_path, server, config=PRICED)
        with owner_process(tmp_path / "data", server) as process:
            await wait_for(gate.arrived)
            async with open_lab(tmp_path, server=server, config=PRICED, check=False) as lab:
                assert (await lab.run(run_id)).state == "running"
                process.send_signal(signal.SIGKILL)
                await anyio.to_thread.run_sync(process.wait)
                gate.released.set()
                with anyio.fail_after(20):
                    await lab.logged(run_id, "RunClaimed", 2)
                run = await lab.ended(run_id)
                assert run.state == "success" and run.generation == 2
                settled = await lab.facts(run_id, CostUpdate)
                reserved = await lab.facts(run_id, CostReserved)
                assert [fact.settlement for fact in settled] == ["billed", "unknown", "billed"]
                assert settled[1].cost_cents == reserved[1].micros / 10_000
                assert [(fact.turn, fact.attempt) for fact in reserved] == [(1, 1), (2, 1), (2, 2)]
                assert len([fact for fact in await lab.facts(run_id, AssistantMessage) if fact.turn == 1]) == 1
                assert (await lab.result(run_id))["uncosted"] is True
                assert await lab.claim_reasons(run_id) == ["start", "takeover"]
                await lab.store.read(check_budgets)
        bodies = [request.body for request in server.requests]
        assert len(bodies) == 3 and bodies[1] == bodies[2], "the resumed run sends what the killed one sent"
        await check_requests(tmp_path / "data", server.requests)


@pytest.mark.slow
async def test_shows_a_run_without_owner_as_interrupted_and_can_cancel_it(tmp_path: Path) -> None:
    gate = Gate()
    with run_model_server([NOTE, Say("lost", gate=gate)]) as server:
        [run_id] = await approve_runs(tmp_path, server, config=PRICED)
        with owner_process(tmp_path / "data", server):
            await wait_for(gate.arrived)
        async with open_lab(tmp_path, server=server, config=PRICED, runs=False) as lab:
            checked = await lab.call("check_subagent", subagent_id=run_id)
            assert checked.status == "interrupted"
            left = await lab.run(run_id)
            assert left.last_us is not None and left.claimed_us is not None
            active_s = (left.active_us + left.last_us - left.claimed_us) / 1e6
            elapsed_s = checked.runs[0].elapsed_seconds
            assert round(active_s, 1) <= elapsed_s <= round(active_s + SHOWN_S, 1), "it stands still without its owner"
            with anyio.fail_after(3):  # there is nobody whose answer would be waited for
                answer = await lab.call("cancel_subagent", subagent_id=run_id, reason="enough")
            assert answer.status == "cancelled"
            run = await lab.run(run_id)
            result = await lab.result(run_id)
            assert run.cost_micros > 0
            assert result["cost_cents"] == run.cost_micros / 10_000, "the true spend is in every ending"
            assert result["tokens_used"] == run.tokens
            assert sum(result["cost_by"].values()) == pytest.approx(result["cost_cents"])
            assert result["untrusted_result"]["output"] == "half of it"


SCRIPT = (
    Say(calls=[("scratchpad", {"note": "half of it"}), ("read_file", {"path": "a.md"})]),
    Say("I save it.", calls=[("save_artifact", {"name": "a.csv", "content": "1,2"})]),
)
ENDINGS = {
    "a submitted result": Say(calls=[("submit_result", {"summary": "done", "output": "the answer"})]),
    "plain text": Say("the answer"),
}


@pytest.mark.slow
@pytest.mark.parametrize("last", ENDINGS.values(), ids=ENDINGS)
async def test_a_kill_after_any_entry_gives_the_same_result_without_repeated_calls(tmp_path: Path, last: Say) -> None:
    """The log is cut behind each entry of a run in turn: that is what a kill at that moment leaves."""

    def script(request: dict[str, Any]) -> Step:
        return (*SCRIPT, last)[sum(message["role"] == "assistant" for message in request["messages"])]

    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace/a.md").write_text("twelve cents")
    with run_model_server(script) as server:
        async with open_lab(tmp_path, server=server) as lab:
            run_id = await lab.start()
            await lab.ended(run_id)
            wanted = await lab.result(run_id)
            entries = await all_entries(lab.store)
        assert wanted["status"] == "success"
        types = [entry.type for entry in entries]
        for count in sample(range(types.index("RunClaimed") + 1, types.index("RunEnded") + 1), 5):
            await check_cut(tmp_path / f"cut-{count}", entries[:count], server, run_id, wanted)


async def check_cut(folder: Path, kept: list[Entry], server: ModelServer, run_id: str, wanted: dict[str, Any]) -> None:
    """Let a run go on from the entries that were kept; its result is the wanted one, and nothing is paid twice."""
    before = len(server.requests)
    async with go_on_from(folder, kept, server) as lab:
        with anyio.fail_after(40):
            await lab.ended(run_id)
        result = await lab.result(run_id)
        await lab.store.read(check_budgets)
        answers = [fact for fact in await lab.facts(run_id, AssistantMessage) if fact.turn is not None]
        results = await lab.facts(run_id, ToolResult)
    place = f"cut behind {kept[-1].type} (entry {len(kept)})"
    assert result["status"] == "success", place
    assert result["untrusted_result"]["output"] == wanted["untrusted_result"]["output"], place
    logged = sum(entry.type == "AssistantMessage" and entry.generation is not None for entry in kept)
    assert len(server.requests) - before == 3 - logged, f"{place}: an answer that was paid for is asked again"
    assert len(answers) == 3, place
    last_kept = kept[-1].fact
    if isinstance(last_kept, ToolCall):  # begun and not known to be done: only what just reads is repeated
        unsure = [fact.tool for fact in results if "outcome unknown" in fact.output]
        assert unsure == (["save_artifact"] if last_kept.tool == "save_artifact" else []), place
    await check_requests(folder / "data", server.requests[before:])


# -- two houses -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_two_runtimes_claim_a_queued_run_once(tmp_path: Path) -> None:
    with run_model_server([hand_over()] * 6) as server:
        config = "[limits]\nrunning_per_user = 6"
        run_ids = await approve_runs(tmp_path, server, config, count=6)
        async with (
            open_lab(tmp_path, server=server, config=config, check=False) as one,
            open_lab(tmp_path, server=server, config=config, check=False) as two,
        ):
            assert one.runtime.manager.instance != two.runtime.manager.instance
            for run_id in run_ids:
                assert (await one.ended(run_id)).state == "success"
                assert (await two.ended(run_id)).state == "success"
                assert len(await one.facts(run_id, RunClaimed)) == 1
                assert len(await two.facts(run_id, RunEnded)) == 1
        assert len(server.requests) == 6


@pytest.mark.slow
async def test_a_cancel_and_a_message_reach_a_run_of_another_process(tmp_path: Path) -> None:
    gates = [Gate(), Gate()]
    with run_model_server([Say(calls=NOTE.calls, gate=gates[0]), Say("x", gate=gates[1])]) as server:
        [run_id] = await approve_runs(tmp_path, server)
        with owner_process(tmp_path / "data", server):
            await wait_for(gates[0].arrived)
            async with open_lab(tmp_path, server=server, runs=False, check=False) as lab:
                await lab.call("message_subagent", subagent_id=run_id, message="and Otter too")
                gates[0].released.set()
                await wait_for(gates[1].arrived)
                assert "and Otter too" in server.requests[1].json["messages"][-1]["content"]
                with anyio.fail_after(20):
                    answer = await lab.call("cancel_subagent", subagent_id=run_id)
                assert answer.status == "cancelled"
                assert (await lab.run(run_id)).generation == 1, "its owner ended it"
        await check_requests(tmp_path / "data", server.requests)


async def test_shutdown_leaves_the_run_to_the_next_process(tmp_path: Path) -> None:
    gate = Gate()
    with run_model_server([NOTE, Say("lost", gate=gate), hand_over()]) as server:
        async with open_lab(tmp_path, server=server, check=False) as lab:
            run_id = await lab.start()
            await wait_for(gate.arrived)
        async with open_lab(tmp_path, server=server) as lab:
            run = await lab.ended(run_id)
            assert run.state == "success" and run.generation == 2
            assert len(await lab.facts(run_id, ToolResult)) == 2
