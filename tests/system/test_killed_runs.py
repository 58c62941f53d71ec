"""Runs whose owner was killed, stopped, or lives where nobody sees it: one owner at a time, nothing paid for twice."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from support import owner
from support.log import look_at
from support.model_server import Gate, Say, Step, run_model_server
from support.processes import processes_of_run, stop
from support.runs.killed import (
    NOTES,
    SCRIPT,
    answer_turn,
    approve_run,
    count_answers,
    files_left_in,
    kill_owner_behind,
    run_owner,
)
from support.runtime import PRICED, check_budgets, check_requests, open_lab, wait_for
from support.sample import sample
from support.stdio import AVA, assert_intact, environment, model_env, read_log, state_of, until

from ava_audit.events import AssistantMessage, RunClaimed


@pytest.mark.slow
async def test_a_kill_after_any_commit_of_a_run_leads_to_the_same_result(tmp_path: Path) -> None:
    """Nothing that was answered is paid for again, and no process and no file of the killed one is left."""
    with run_model_server(answer_turn) as server:
        run_id, root, ended = await kill_owner_behind(tmp_path / "whole", server, 0)
        assert ended == 0
        commits = int((root / owner.COMMITS).read_text())
        assert commits >= 12, commits
        types = {entry.type for entry in read_log(root, run=run_id)}
        assert types >= {"RunClaimed", "RunStarted", "CostReserved", "AssistantMessage", "ToolCall", "ToolResult"}, (
            types
        )
        for number in sample(range(1, commits + 1), 4):
            before = len(server.requests)
            run_id, root, ended = await kill_owner_behind(tmp_path / str(number), server, number)
            assert ended == -signal.SIGKILL
            tmp, scratch = root.parent, root.parent / "tmp"
            last = read_log(root, run=run_id)[-1]
            # Begun, and not known to be done: what changes things is not done again, and the model is told so.
            unsure = last.type == "ToolCall" and last.content["tool"] == "save_artifact"
            paid = count_answers(root, run_id)
            asked = len(server.requests) - before
            await until(lambda run=run_id: not processes_of_run(run), within_s=5)  # type: ignore[misc]
            async with open_lab(tmp, server=server, config=PRICED, check=False) as lab:
                with anyio.fail_after(20):
                    run = await lab.ended(run_id)
                result = await lab.result(run_id)
                said = [fact for fact in await lab.facts(run_id, AssistantMessage) if fact.turn is not None]
                await lab.store.read(check_budgets)
            place = f"killed behind commit {number} ({last.type})"
            saved = [] if unsure else ["a.csv"]
            told = [entry.content["output"] for entry in read_log(root, "ToolResult", run=run_id)]
            assert any("outcome unknown" in output for output in told) == unsure, place
            assert run.state == "success", place
            assert result["untrusted_result"]["output"] == "twelve cents", place
            assert [file["name"] for file in result["untrusted_result"]["artifacts"]] == saved, place
            assert len(said) == 3, place
            assert len(server.requests) - before - asked == 3 - paid, f"{place}: what was answered is asked again"
            assert files_left_in(scratch) == [] and not (root / "scratch" / run_id).exists(), place
            assert files_left_in(root / "artifacts") == [f"{run_id}/{name}" for name in saved], place
            assert_intact(root)
            await check_requests(root, server.requests[before:])


async def test_a_run_survives_owners_that_are_killed_during_one_call(tmp_path: Path) -> None:
    gates = [Gate(), Gate(), Gate()]
    with run_model_server([*(Say("lost", gate=gate) for gate in gates), SCRIPT[2]]) as server:
        run_id = await approve_run(tmp_path, server, max_cost_cents=100)
        root = tmp_path / "data"
        for gate in gates[:2]:
            async with run_owner(root, server):
                await wait_for(gate.arrived)
        async with run_owner(root, server) as polite:
            await wait_for(gates[2].arrived)
            polite.stdin.close()  # type: ignore[union-attr]
            await until(lambda: len(read_log(root, "CostUpdate", run=run_id)) == 3)
        async with run_owner(root, server):
            await until(lambda: state_of(root, run_id) == "success", 20)
        settled = [entry.content["settlement"] for entry in read_log(root, "CostUpdate", run=run_id)]
        assert settled == ["unknown", "unknown", "unknown", "billed"]
        assert_intact(root)
        await check_requests(root, server.requests)


@pytest.mark.slow
async def test_a_stopped_owner_that_wakes_up_can_neither_write_nor_spend(tmp_path: Path) -> None:
    """Two live servers, and a third that is stopped: a person has its run go on elsewhere, and then it wakes up."""
    gates = [Gate(), Gate()]
    turns: list[Step] = [Say("lost", calls=[NOTES], gate=gates[0]), Say("x", calls=[NOTES], gate=gates[1])]
    served: list[int] = []

    def scripted(_request: dict[str, Any]) -> Step:
        served.append(len(served))
        return turns[served[-1]] if served[-1] < 2 else SCRIPT[2]

    with run_model_server(scripted) as server:
        run_id = await approve_run(tmp_path, server)
        root = tmp_path / "data"
        async with run_owner(root, server) as stopped:
            await wait_for(gates[0].arrived)
            stop(stopped.pid, root)
            async with run_owner(root, server), run_owner(root, server):
                env = {**environment(root), **model_env(server.base_url), "AVA_MODEL": "test"}
                refused = await anyio.run_process([AVA[0], "resume", run_id], env=env, check=False)
                assert refused.returncode == 10 and b"--force" in refused.stderr, refused.stderr
                command = [AVA[0], "resume", run_id, "--force"]
                async with await anyio.open_process(command, env=env) as resuming:
                    await wait_for(gates[1].arrived)
                    gates[0].released.set()
                    stopped.send_signal(signal.SIGCONT)
                    await anyio.sleep(1)  # it hears its answer now, and would write it
                    gates[1].released.set()
                    with anyio.fail_after(20):
                        assert await resuming.wait() == 0
        assert state_of(root, run_id) == "success"
        mine = [entry for entry in read_log(root, run=run_id) if entry.agent == run_id]
        claimed = [entry.content["generation"] for entry in mine if entry.type == "RunClaimed"]
        assert claimed == [1, 3], "one owner, then one more; the resume itself was the second generation"
        texts = [entry.content["text"] for entry in mine if entry.type == "AssistantMessage"]
        assert "lost" not in texts and len(texts) == 2
        assert [entry.content["settlement"] for entry in mine if entry.type == "CostUpdate"] == [
            "unknown", "billed", "billed",
        ]  # fmt: skip
        assert sum(entry.type == "RunEnded" for entry in mine) == 1
        assert_intact(root)
        await check_requests(root, server.requests)


@pytest.mark.slow
async def test_a_killed_owner_had_the_time_until_it_was_last_seen_and_the_timeout_holds_over_kills(
    tmp_path: Path,
) -> None:
    """Each owner is killed in the middle of a long call, which writes nothing."""
    gates = [Gate(), Gate(), Gate()]
    with run_model_server([*(Say("lost", gate=gate) for gate in gates), SCRIPT[2]]) as server:
        run_id = await approve_run(tmp_path, server, timeout=30, max_cost_cents=100)
        root = tmp_path / "data"
        seen_s: list[float] = []
        for gate in gates[:2]:
            async with run_owner(root, server) as process:
                await wait_for(gate.arrived)
                with look_at(root) as db:
                    sql = "SELECT instance, claimed_us, last_us FROM runs WHERE id = ?"
                    [(instance, claimed_us, last_us)] = db.execute(sql, (run_id,)).fetchall()
                lock = root / "instances" / f"{instance}.lock"
                later_us = last_us + 3_000_000
                await until(lambda lock=lock, later_us=later_us: int(lock.read_text() or 0) > later_us, 20)  # type: ignore[misc]
                os.killpg(process.pid, signal.SIGKILL)
                seen_s.append((int(lock.read_text()) - claimed_us) / 1e6)
                os.utime(lock)  # a copy of the data root has new times
            gate.released.set()
        async with open_lab(tmp_path, server=server, config=PRICED, check=False) as lab:
            await wait_for(gates[2].arrived)
            run = await lab.run(run_id)
            assert run.active_us / 1e6 == pytest.approx(sum(seen_s), abs=0.01), (run.active_us, seen_s)
            seen = [fact.seen_us for fact in await lab.facts(run_id, RunClaimed)]
            assert seen[0] is None and None not in seen[1:] and len(seen) == 3
            run = await lab.ended(run_id, 60)
            gates[2].released.set()
        assert run.state == "timeout" and run.active_us / 1e6 < 30 + 4, run
        assert_intact(root)
