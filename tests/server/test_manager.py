"""Who may run, who owns what, and what becomes of a run whose owner is gone."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from support import owner
from support.log import Life, write
from support.logs.cutting import all_entries, left_behind
from support.model_server import Gate, ModelServer, Say, Script, Step, running_model_server
from support.runtime import PRICED, Lab, arrived, check_budgets, check_requests, hand_over, open_lab
from support.sample import sampled
from support.stdio import until

from ava_audit.errors import StaleOwner
from ava_audit.events import (
    Activity,
    AssistantMessage,
    CostReserved,
    CostUpdate,
    Event,
    Fence,
    RunClaimed,
    RunEnded,
    SpawnDecided,
    SpawnProposed,
    ToolCall,
    ToolResult,
    Who,
)
from ava_audit.rows import RunRow
from ava_audit.store.store import Outcome, append
from ava_audit.view import View
from ava_server.budget.caps import CapRequest, reserve
from ava_server.budget.user_limits import DayCaps, Slots
from ava_server.config.tokens import Token
from ava_server.mcp_server.app import HTTP, App, session_over_http
from ava_server.models.factory import model_of, parameters
from ava_server.runs import endings, manager, setup
from ava_server.runs.claims import claim
from ava_server.runs.context import ConfigNotSupported
from ava_server.runs.history import History
from ava_server.runs.manager import Manager

NOTE = Say(calls=[("scratchpad", {"note": "half of it"})])


@contextmanager
def owning_process(root: Path, server: ModelServer) -> Generator[subprocess.Popen[str]]:
    """A process of its own that claims the runs of a data root."""
    command = [sys.executable, owner.__file__, str(root), server.base_url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline().startswith("open ")
            yield process
        finally:
            process.kill()


async def propose_for(tmp: Path, server: ModelServer, config: str = "", count: int = 1) -> list[str]:
    """Approve runs in a runtime that claims none."""
    async with open_lab(tmp, server=server, config=config, runs=False, check=False) as lab:
        return [await lab.start(task=f"number {number}") for number in range(count)]


# -- slots ----------------------------------------------------------------------------------------------------------


async def test_three_runs_of_a_user_run_at_once_and_the_fourth_waits(tmp_path: Path) -> None:
    gates = [Gate() for _ in range(4)]
    said = [*(Say("done", gate=gate) for gate in gates), Say("done"), Say("done")]
    async with open_lab(tmp_path, said) as lab:
        run_ids = [await lab.start(task=f"number {number}") for number in range(4)]
        for gate in gates[:3]:
            await arrived(gate.arrived)
        states = sorted([(await lab.run(run_id)).state for run_id in run_ids])
        assert states == ["queued", "running", "running", "running"]
        [queued] = [run_id for run_id in run_ids if (await lab.run(run_id)).state == "queued"]
        run_ids += [await lab.start(task=f"later {number}") for number in range(2)]
        checked = await lab.call("check_subagent")
        positions = {run.subagent_id: run.queue_position for run in checked.runs if run.queue_position is not None}
        assert positions == {queued: 1, run_ids[4]: 2, run_ids[5]: 3}
        gates[0].released.set()
        await arrived(gates[3].arrived)
        for gate in gates:
            gate.released.set()
        for run_id in run_ids:
            assert (await lab.ended(run_id)).state == "success"


@pytest.mark.slow
async def test_runs_are_taken_at_once_so_that_their_claims_share_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked, all_there = 0, anyio.Event()
    check = setup.RunSetup.check_config

    async def held(self: setup.RunSetup, run: Any) -> None:
        nonlocal checked
        checked += 1
        if checked == 3:
            all_there.set()
        await all_there.wait()
        await check(self, run)

    with running_model_server(lambda _request: hand_over()) as server:
        runs = await propose_for(tmp_path, server, count=3)
        monkeypatch.setattr(setup.RunSetup, "check_config", held)
        async with open_lab(tmp_path, server=server) as lab:
            for run in runs:
                assert (await lab.ended(run, 60)).state == "success"


async def test_a_run_that_takes_long_to_make_ready_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended, prepare = anyio.Event(), anyio.Event(), setup.RunSetup.prepare

    async def held(self: setup.RunSetup, run: Any, history: History) -> Any:
        if not begun.is_set():
            begun.set()
            await ended.wait()
        return await prepare(self, run, history)

    monkeypatch.setattr(setup.RunSetup, "prepare", held)
    with running_model_server(lambda _request: hand_over()) as server:
        async with open_lab(tmp_path, server=server) as lab:
            first = await lab.start(task="the first")
            with anyio.fail_after(30):
                await begun.wait()
            second = await lab.start(task="the second")
            assert (await lab.ended(second, 60)).state == "success"
            assert (await lab.run(first)).state == "running"
            await anyio.sleep(1.2)  # the next look does not take it again
            ended.set()
            assert (await lab.ended(first, 60)).generation == 1


@pytest.mark.parametrize("ahead", [manager.AHEAD, 1])
async def test_users_take_turns_even_if_one_queued_many_runs_first(
    tmp_path: Path, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "AHEAD", ahead)
    gates = [Gate() for _ in range(7)]
    script = [Say("done", gate=gate) for gate in gates]
    config = "[limits]\nrunning = 3\nrunning_per_user = 3\nspawns_per_hour = 20\n"
    config += "".join(f'[users.{user}]\nworkspaces = ["{tmp_path}"]\n' for user in ("ada", "ben", "eve"))
    with running_model_server(script) as server:
        async with open_lab(tmp_path, server=server, config=config, runs=False, check=False) as lab:
            for user, count in (("ada", 4), ("ben", 2), ("eve", 1)):
                service = lab.as_user(user)
                for number in range(count):
                    given = {"role": "researcher", "task": f"{user} {number}", "workspace": str(lab.workspace)}
                    made: Any = await service.call("spawn_subagent", given, quiet)
                    ids = {"pending_ids": [made.pending_id], "approving": [made.approval_line]}
                    assert (await service.call("confirm_spawn", ids, quiet)).status == "approved"
        async with open_lab(tmp_path, server=server, config=config, everybody=True) as lab:
            order: list[str] = []
            for gate in gates[:3]:
                await arrived(gate.arrived)
            running = await lab.store.read(lambda view: view.runs(states=["running"]))
            assert sorted(run.user_id for run in running) == ["ada", "ben", "eve"], "one each, though ada was first"
            for gate in gates:
                gate.released.set()
            for run in await lab.store.read(lambda view: view.runs()):
                await lab.ended(run.id)
            claims = await lab.store.read(lambda view: list(view.rows("type = 'RunClaimed'")))
            order = [str(row[4]) for row in claims]
            assert Counter(order) == {"ada": 4, "ben": 2, "eve": 1} and set(order[:3]) == {"ada", "ben", "eve"}


async def quiet(_line: str) -> None: ...


async def test_news_cost_the_same_however_many_runs_one_user_has_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "WHOLE_TIMES", 1_000_000)
    seen: list[list[str]] = []
    look, overdue = Manager._look, endings.overdue

    async def looked(self: Manager, tasks: Any) -> None:
        seen.append([])
        await look(self, tasks)

    def noted(run: RunRow, *given: Any) -> Any:
        seen[-1].append(run.user_id)
        return overdue(run, *given)

    monkeypatch.setattr(Manager, "_look", looked)
    monkeypatch.setattr(manager, "overdue", noted)

    gate, one_slot = Gate(), "[limits]\nrunning = 1\n"
    with running_model_server([Say("done", gate=gate)]) as server:
        async with open_lab(tmp_path, server=server, config=one_slot, everybody=True, check=False) as lab:
            await lab.start(task="keeps the only slot")
            await arrived(gate.arrived)
            many = [Life(f"S-1000{number:03}") for number in range(4 * manager.AHEAD)]
            await write(
                lab.store, *(event for life in many for event in (life.proposed(), life.task(), life.decided()))
            )
            await until(lambda: any(len(each) == len(many) for each in seen))
            one = Life("S-200000", user="eve")
            await write(lab.store, one.proposed(), one.task(), one.decided())
            await until(lambda: "eve" in seen[-1])
            assert len(seen[-1]) <= manager.AHEAD + 1, "as many of ben as ever, and eve's"


async def test_a_claim_counts_slots_over_all_live_owners(tmp_path: Path) -> None:
    with running_model_server([]) as server:
        first, second = await propose_for(tmp_path, server, count=2)
        async with open_lab(tmp_path, server=server, runs=False, check=False) as lab:
            who = Who("sess-x", "ava", lab.runtime.user)
            one = Slots(per_user=1, total=10)
            got = await lab.store.do(claim(first, "other", who, frozenset(), one))
            assert not isinstance(got, str)
            full = await lab.store.do(claim(second, "me", who, frozenset(), one))
            assert isinstance(full, str) and "1 slots" in full
            free = await lab.store.do(claim(second, "me", who, frozenset({"other"}), one))
            assert not isinstance(free, str), "a dead owner's run takes no slot"
            none = await lab.store.do(claim(first, "me", who, frozenset({"other"}), Slots(per_user=9, total=1)))
            assert isinstance(none, str)


async def test_claims_in_one_commit_count_each_other_and_what_ended_before_them(tmp_path: Path) -> None:
    async with open_lab(tmp_path, runs=False) as lab:
        runs = [await lab.start(task=str(number)) for number in range(6)]
        slots, taken = Slots(per_user=2, total=9), list[str]()

        async def take(run: str) -> None:
            got = await lab.store.do(claim(run, "mine", lab.session.who, frozenset(), slots), run)
            if not isinstance(got, str):
                taken.append(run)

        async def end(run: str) -> None:
            ended = RunEnded(status="error", stop_reason="")
            await lab.store.do(append(Event(lab.session.who, ended, run_id=run, fence=Fence(run, 1))))

        async with anyio.create_task_group() as tasks:
            for run in runs[:4]:
                tasks.start_soon(take, run)
        assert len(taken) == 2
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(end, taken[0])
            for run in runs[4:]:
                tasks.start_soon(take, run)
        assert len(taken) == 3


async def test_only_one_owner_can_claim_a_run(tmp_path: Path) -> None:
    with running_model_server([]) as server:
        [run_id] = await propose_for(tmp_path, server)
        async with open_lab(tmp_path, server=server, runs=False, check=False) as lab:
            who, slots = Who("sess-x", "ava", lab.runtime.user), Slots(9, 9)
            # Neither knew of the other when it looked: what is not known to be gone is alive.
            answers = [await lab.store.do(claim(run_id, name, who, frozenset(), slots)) for name in ("one", "two")]
            assert not isinstance(answers[0], str)
            assert isinstance(answers[1], str) and "one" in answers[1]
            assert (await lab.run(run_id)).generation == 1


# -- fencing --------------------------------------------------------------------------------------------------------


async def test_a_stale_generation_can_neither_write_nor_spend(tmp_path: Path) -> None:
    with running_model_server([]) as server:
        [run_id] = await propose_for(tmp_path, server, config=PRICED)
        async with open_lab(tmp_path, server=server, config=PRICED, runs=False, check=False) as lab:
            who, slots = Who("sess-x", "ava", lab.runtime.user), Slots(9, 9)
            await lab.store.do(claim(run_id, "one", who, frozenset(), slots))
            await lab.store.do(claim(run_id, "two", who, frozenset({"one"}), slots))
            agent, stale = Who("sess-x", run_id, lab.runtime.user), Fence(run_id, 1)
            head = await lab.store.read(View.head)
            with pytest.raises(StaleOwner):
                await lab.write(Event(agent, Activity(activity="still here"), fence=stale))
            fact = CostReserved(
                turn=1, attempt=1, scopes=(), micros=1, wrap_micros=1, prompt_tokens=1, max_output=1, upto_seq=0,
                request_sha="0" * 64,
            )  # fmt: skip
            asked = CapRequest(fact, tokens=1, wrap_tokens=1)
            with pytest.raises(StaleOwner):
                await lab.store.do(reserve(stale, agent, asked, DayCaps(10**9, 10**9)))
            ended = RunEnded(status="success", stop_reason="I say so")
            with pytest.raises(StaleOwner):
                await lab.store.do(lambda _view, _now: Outcome(None, (Event(agent, ended, fence=stale),)))
            assert await lab.store.read(View.head) == head
            assert (await lab.run(run_id)).state == "running"


# -- owners that are gone -------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_takes_over_the_run_of_a_killed_owner_without_repeating_model_calls(tmp_path: Path) -> None:
    gate = Gate()
    script: Script = [NOTE, Say("lost", gate=gate), hand_over()]
    with running_model_server(script) as server:
        [run_id] = await propose_for(tmp_path, server, config=PRICED)
        with owning_process(tmp_path / "data", server) as process:
            await arrived(gate.arrived)
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
                reasons = [fact.reason for fact in await lab.facts(run_id, RunClaimed)]
                assert reasons == ["start", "takeover"]
                await lab.store.read(check_budgets)
        bodies = [request.body for request in server.requests]
        assert len(bodies) == 3 and bodies[1] == bodies[2], "the resumed run sends what the killed one sent"
        await check_requests(tmp_path / "data", server.requests)


@pytest.mark.slow
async def test_shows_a_run_without_owner_as_interrupted_and_can_cancel_it(tmp_path: Path) -> None:
    gate = Gate()
    with running_model_server([NOTE, Say("lost", gate=gate)]) as server:
        [run_id] = await propose_for(tmp_path, server, config=PRICED)
        with owning_process(tmp_path / "data", server):
            await arrived(gate.arrived)
        async with open_lab(tmp_path, server=server, config=PRICED, runs=False) as lab:
            checked = await lab.call("check_subagent", subagent_id=run_id)
            assert checked.status == "interrupted"
            left = await lab.run(run_id)
            assert left.last_us is not None and left.claimed_us is not None
            active_s = (left.active_us + left.last_us - left.claimed_us) / 1e6
            assert checked.runs[0].elapsed_seconds == round(active_s, 1), "nobody works, so its clock stands still"
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
    with running_model_server(script) as server:
        async with open_lab(tmp_path, server=server) as lab:
            run_id = await lab.start()
            await lab.ended(run_id)
            wanted = await lab.result(run_id)
            entries = await all_entries(lab.store)
        assert wanted["status"] == "success"
        whole = next(number for number, entry in enumerate(entries) if entry.type == "RunEnded")
        first = next(number for number, entry in enumerate(entries) if entry.type == "RunClaimed")
        for count in sampled(range(first + 1, whole + 1), 5):
            before = len(server.requests)
            kept = entries[:count]
            cut = tmp_path / f"cut-{count}"
            async with left_behind(cut, kept, server) as lab:
                with anyio.fail_after(40):
                    await lab.ended(run_id)
                result = await lab.result(run_id)
                await lab.store.read(check_budgets)
                answers = [fact for fact in await lab.facts(run_id, AssistantMessage) if fact.turn is not None]
                results = await lab.facts(run_id, ToolResult)
            place = f"cut behind {kept[-1].type} (entry {count})"
            assert result["status"] == "success", place
            assert result["untrusted_result"]["output"] == wanted["untrusted_result"]["output"], place
            logged = sum(entry.type == "AssistantMessage" and entry.generation is not None for entry in kept)
            assert len(server.requests) - before == 3 - logged, f"{place}: an answer that was paid for is asked again"
            assert len(answers) == 3, place
            last_kept = kept[-1].fact
            if isinstance(last_kept, ToolCall):  # begun and not known to be done: only what just reads is repeated
                unsure = [fact.tool for fact in results if "outcome unknown" in fact.output]
                assert unsure == (["save_artifact"] if last_kept.tool == "save_artifact" else []), place
            await check_requests(cut / "data", server.requests[before:])


# -- two houses -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_two_runtimes_claim_a_queued_run_once(tmp_path: Path) -> None:
    with running_model_server([hand_over()] * 6) as server:
        config = "[limits]\nrunning_per_user = 6"
        run_ids = await propose_for(tmp_path, server, config, count=6)
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
    with running_model_server([Say(calls=NOTE.calls, gate=gates[0]), Say("x", gate=gates[1])]) as server:
        [run_id] = await propose_for(tmp_path, server)
        with owning_process(tmp_path / "data", server):
            await arrived(gates[0].arrived)
            async with open_lab(tmp_path, server=server, runs=False, check=False) as lab:
                await lab.call("message_subagent", subagent_id=run_id, message="and Otter too")
                gates[0].released.set()
                await arrived(gates[1].arrived)
                assert "and Otter too" in server.requests[1].json["messages"][-1]["content"]
                with anyio.fail_after(20):
                    answer = await lab.call("cancel_subagent", subagent_id=run_id)
                assert answer.status == "cancelled"
                assert (await lab.run(run_id)).generation == 1, "its owner ended it"
        await check_requests(tmp_path / "data", server.requests)


async def test_a_run_whose_endpoint_differs_from_the_approved_one_waits_and_says_why(tmp_path: Path) -> None:
    with running_model_server([hand_over()]) as server, running_model_server([]) as elsewhere:
        [run_id] = await propose_for(tmp_path, server)
        async with open_lab(tmp_path, server=elsewhere, check=False) as lab:
            with anyio.fail_after(40):
                while not (found := await waits_for(lab, run_id)):
                    await lab.store.wait_for_entry_after(lab.store.head - 1)
            assert server.base_url in found and "approved" in found
            assert (await lab.run(run_id)).state == "queued"
        assert elsewhere.requests == []


async def test_a_run_with_a_wire_unknown_to_this_version_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    with running_model_server([Say(calls=[("scratchpad", {"note": "x"})]), Say("x", gate=gate)]) as server:
        with monkeypatch.context() as other:
            other.setattr(setup, "parameters", lambda choice: {**parameters(choice), "wire": "telepathy"})
            spoken = {"wire": "chat_completions"}
            other.setattr(setup, "model_of", lambda name, stored, *more: model_of(name, {**stored, **spoken}, *more))
            async with open_lab(tmp_path, server=server, check=False) as lab:
                run_id = await lab.start()
                await arrived(gate.arrived)
        async with open_lab(tmp_path, server=server, check=False) as lab:
            with anyio.fail_after(40):
                while not (found := await waits_for(lab, run_id)):
                    await lab.store.wait_for_entry_after(lab.store.head - 1)
            assert "This version of Ava cannot call custom:test as its run began (wire 'telepathy'" in found
            run = await lab.run(run_id)
            assert (run.state, run.generation) == ("running", 1), "nobody has taken it"


async def test_a_run_waits_for_its_missing_workspace_without_blocking_others(tmp_path: Path) -> None:
    with running_model_server([hand_over()]) as server:
        async with open_lab(tmp_path, server=server, runs=False, check=False) as lab:
            gone = lab.workspace / "gone"
            gone.mkdir()
            waiting = await lab.start(task="one", workspace=str(gone))
            fine = await lab.start(task="two")
            shutil.rmtree(gone)
        async with open_lab(tmp_path, server=server, check=False) as lab:
            assert (await lab.ended(fine)).state == "success"
            assert "gone" in str(await waits_for(lab, waiting))


async def waits_for(lab: Lab, run_id: str) -> str | None:
    """What `check_subagent` says that a run waits for."""
    answer = await lab.call("check_subagent", subagent_id=run_id)
    found: str | None = answer.runs[0].waits_for
    return found


async def test_shutdown_leaves_the_run_to_the_next_process(tmp_path: Path) -> None:
    gate = Gate()
    with running_model_server([NOTE, Say("lost", gate=gate), hand_over()]) as server:
        async with open_lab(tmp_path, server=server, check=False) as lab:
            run_id = await lab.start()
            await arrived(gate.arrived)
        async with open_lab(tmp_path, server=server) as lab:
            run = await lab.ended(run_id)
            assert run.state == "success" and run.generation == 2
            assert len(await lab.facts(run_id, ToolResult)) == 2


async def test_a_client_inventing_names_keeps_only_a_bounded_number_of_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ava_server.mcp_server.app.MOST_SERVICES", 2)
    token = Token("laptop", "ana", ("spawn",), "0" * 64, 0, None)
    async with open_lab(tmp_path) as lab:
        app = App(lambda: lab.runtime.settings, HTTP)
        app._runtime = lab.runtime
        before = len(lab.runtime.manager.sessions)
        names = [f"client-{number}" for number in range(6)]
        services = [app.service_for((token, name), partial(session_over_http, token, name)) for name in names]
        assert len(lab.runtime.manager.sessions) == before + 2
        assert {service.session.id for service in services[-2:]} <= lab.runtime.manager.sessions


def open_files() -> set[Path]:
    return set(Path("/proc/self/fd").iterdir())


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="only there it can be seen what is open")
@pytest.mark.parametrize("missing", ["search", "artifacts"])
async def test_a_failed_run_setup_leaves_no_files_open(tmp_path: Path, missing: str) -> None:
    async with open_lab(tmp_path, runs=False) as lab:
        run = await lab.run((await lab.propose()).subagent_id)
        if missing == "search":  # it was set up when this was approved, and is not any more
            run = replace(run, config=json.dumps({**json.loads(run.config), "search": "kagi"}))
        else:
            (lab.root / "artifacts").mkdir(exist_ok=True)
            (lab.root / "artifacts" / run.id).write_text("in the folder's place")
        open_before = open_files()
        for _ in range(5):
            with suppress(ConfigNotSupported, FileExistsError):
                await lab.runtime.run_setup.prepare(run, History(run.id))
                raise AssertionError("it cannot be prepared")
        assert len(open_files() - open_before) < 5


def of_a_version_to_come(user: str) -> tuple[Event, Event]:
    """A run that was proposed and approved by a program whose configurations this one cannot read."""
    config = {"role": "researcher", "model": "fake:of-a-version-to-come"}
    proposed = SpawnProposed(pending_id="P-00000001", subagent_id="S-000001", digest="0", expires_us=0, config=config)
    decided = SpawnDecided(pending_id="P-00000001", decision="approved")
    who = Who("s", "ava", user)
    return Event(who, proposed, run_id="S-000001"), Event(who, decided, run_id="S-000001")


async def test_lists_an_unreadable_run_and_never_cleans_it_up(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hand_over()], check=False) as lab:
        ended = await lab.ended(await lab.start())
        await lab.store.do(append(*of_a_version_to_come(lab.runtime.user)))
        listed = await lab.call("check_subagent")
        assert {run.subagent_id: run.state for run in listed.runs} == {ended.id: "success", "S-000001": "queued"}
        assert "a newer Ava has proposed it" in next(run for run in listed.runs if run.state == "queued").status_line
        over = RunEnded(status="error", stop_reason="of a version to come")
        await lab.store.do(append(Event(Who("s", "S-000001", lab.runtime.user), over, run_id="S-000001")))
        (lab.root / "worktrees" / "S-000001").mkdir(parents=True)
        await lab.runtime.sweep()
        assert (await lab.call("read_ava_logs")).status == "entries"


@pytest.mark.slow
@pytest.mark.parametrize("when", ["queued", "overdue"])
async def test_an_unreadable_run_does_not_affect_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    monkeypatch.setattr("ava_server.runs.manager.TRY_AGAIN_MOST_S", 0.1)
    async with open_lab(tmp_path, [hand_over()], everybody=True, check=False) as lab:
        manager = lab.runtime.manager
        if when == "overdue":
            monkeypatch.setattr("ava_server.runs.endings.ABANDONED_US", 0)
        await lab.store.do(append(*of_a_version_to_come("ben")))
        tries = 2 if when == "queued" else 0
        with anyio.fail_after(40):
            while manager._notes["S-000001"].faults < tries or "S-000001" not in manager.waiting_for:  # noqa: ASYNC110
                await anyio.sleep(0.02)
        monkeypatch.undo()
        assert "a fault of Ava itself" in manager.waiting_for["S-000001"]
        ended = await lab.ended(await lab.start())
        assert ended.state == "success"
