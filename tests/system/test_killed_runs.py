"""Runs whose owner was killed, stopped, or lives where nobody sees it: one owner at a time, nothing paid for twice."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from support import owner
from support.log import look_at
from support.model_server import Gate, ModelServer, Say, Step, run_model_server
from support.processes import processes_of_run, stop
from support.runtime import PRICED, Lab, check_budgets, check_requests, open_lab, wait_for
from support.sample import sample
from support.stdio import AVA, assert_intact, environment, model_env, read_log, state_of, until

from ava_audit.events import AssistantMessage, RunClaimed, RunEnded
from ava_audit.store.locks import LockedInstances

NOTES = ("scratchpad", {"note": "half of it"})
LOOK = [("read_file", {"path": "a.md"}), ("search_codebase", {"query": "tw.lve", "regex": True}), NOTES]
SCRIPT = (
    Say("I look.", calls=LOOK),
    Say("I save it.", calls=[("save_artifact", {"name": "a.csv", "content": "otter,12"})]),
    Say(calls=[("submit_result", {"summary": "done", "output": "twelve cents"})]),
)
LEASE_S = 300
"""With the log in Postgres, a stopped process owns its runs for longer than any of these tests."""


@pytest.mark.slow
async def test_a_kill_after_any_commit_of_a_run_leads_to_the_same_result(tmp_path: Path) -> None:
    """Nothing that was answered is paid for again, and no process and no file of the killed one is left."""
    with run_model_server(script) as server:
        run_id, root, ended = await owned(tmp_path / "whole", server, 0)
        assert ended == 0
        commits = int((root / owner.COMMITS).read_text())
        assert commits >= 12, commits
        types = {entry.type for entry in read_log(root, run=run_id)}
        assert types >= {"RunClaimed", "RunStarted", "CostReserved", "AssistantMessage", "ToolCall", "ToolResult"}, (
            types
        )
        for number in sample(range(1, commits + 1), 4):
            before = len(server.requests)
            run_id, root, ended = await owned(tmp_path / str(number), server, number)
            assert ended == -signal.SIGKILL
            tmp, scratch = root.parent, root.parent / "tmp"
            last = read_log(root, run=run_id)[-1]
            # Begun, and not known to be done: what changes things is not done again, and the model is told so.
            unsure = last.type == "ToolCall" and last.content["tool"] == "save_artifact"
            paid = answers(root, run_id)
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
            assert left_in(scratch) == [] and not (root / "scratch" / run_id).exists(), place
            assert left_in(root / "artifacts") == [f"{run_id}/{name}" for name in saved], place
            assert_intact(root)
            await check_requests(root, server.requests[before:])


@asynccontextmanager
async def owning(
    root: Path, server: ModelServer, prefix: tuple[str, ...] = (), env: Mapping[str, str] | None = None
) -> AsyncGenerator[subprocess.Popen[str]]:
    """A process of its own that claims the runs of a data root, perhaps started by another program."""
    command = [*prefix, sys.executable, owner.__file__, str(root), server.base_url]
    with subprocess.Popen(  # noqa: ASYNC220 - it is only started here
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            line = await anyio.to_thread.run_sync(process.stdout.readline)
            assert line.startswith("open ")
            yield process
        finally:
            os.killpg(process.pid, signal.SIGCONT)
            os.killpg(process.pid, signal.SIGKILL)


async def test_a_run_survives_owners_that_are_killed_during_one_call(tmp_path: Path) -> None:
    gates = [Gate(), Gate(), Gate()]
    with run_model_server([*(Say("lost", gate=gate) for gate in gates), SCRIPT[2]]) as server:
        run_id = await approved(tmp_path, server, max_cost_cents=100)
        root = tmp_path / "data"
        for gate in gates[:2]:
            async with owning(root, server):
                await wait_for(gate.arrived)
        async with owning(root, server) as polite:
            await wait_for(gates[2].arrived)
            polite.stdin.close()  # type: ignore[union-attr]
            await until(lambda: len(read_log(root, "CostUpdate", run=run_id)) == 3)
        async with owning(root, server):
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
        run_id = await approved(tmp_path, server)
        root = tmp_path / "data"
        async with owning(root, server) as stopped:
            await wait_for(gates[0].arrived)
            stop(stopped.pid, root)
            async with owning(root, server), owning(root, server):
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
        run_id = await approved(tmp_path, server, timeout=30, max_cost_cents=100)
        root = tmp_path / "data"
        seen_s: list[float] = []
        for gate in gates[:2]:
            async with owning(root, server) as process:
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


def namespaces() -> tuple[str, ...] | None:
    """What starts a program in a pid namespace of its own, or None: this system does not let us."""
    for flags in (
        ("--pid", "--fork", "--mount-proc"),
        ("--user", "--map-root-user", "--pid", "--fork", "--mount-proc"),
    ):
        command = ("unshare", *flags, "--kill-child")
        if (
            shutil.which("unshare")
            and subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0
        ):
            return command
    return None


@pytest.mark.slow
async def test_owners_in_separate_pid_namespaces_never_own_the_same_run(tmp_path: Path) -> None:
    """Each in a pid namespace of its own, as in two containers: to each the other's pid means nothing."""
    prefix = namespaces()
    if prefix is None:
        pytest.skip("no pid namespaces here")
    gates = [Gate() for _ in range(3)]

    def scripted(request: dict[str, Any]) -> Step:
        turn = sum(message["role"] == "assistant" for message in request["messages"])
        number = int(request["messages"][1]["content"][-1])
        return Say("x", calls=[NOTES], gate=gates[number]) if turn == 0 else SCRIPT[2]

    with run_model_server(scripted) as server:
        root = tmp_path / "data"
        async with open_lab(tmp_path, server=server, config=PRICED, runs=False, check=False) as lab:
            run_ids = [await lab.start(task=f"number {number}") for number in range(3)]
            async with owning(root, server, prefix) as one, owning(root, server, prefix):
                for gate in gates:
                    await wait_for(gate.arrived)
                await anyio.sleep(2.5)  # both have looked at each other's runs, more than once
                assert len(server.requests) == 3, "no run runs twice"
                owners = {(await lab.run(run_id)).instance for run_id in run_ids}
                alive = LockedInstances(root / "instances").alive
                assert all(alive(str(instance)) for instance in owners)
                os.killpg(one.pid, signal.SIGKILL)
                for gate in gates:
                    gate.released.set()
                for run_id in run_ids:
                    assert (await lab.ended(run_id)).state == "success"
                    await _owned_by_one_at_a_time(lab, run_id)
        await check_requests(root, server.requests)


def script(request: dict[str, Any]) -> Step:
    """Answer by the turn that a request stands at."""
    return SCRIPT[sum(message["role"] == "assistant" for message in request["messages"])]


async def approved(tmp: Path, server: ModelServer, **more: Any) -> str:
    """A run that is approved, and that nobody has claimed."""
    (tmp / "workspace").mkdir(parents=True)
    (tmp / "workspace" / "a.md").write_text("Otter charges twelve cents.\n")
    async with open_lab(tmp, server=server, config=f"lease_s = {LEASE_S}\n{PRICED}", runs=False, check=False) as lab:
        return await lab.start(**more)


def answers(root: Path, run: str) -> int:
    """How many answers of the model the log has."""
    return sum(entry.agent == run for entry in read_log(root, "AssistantMessage", run=run))


def left_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


async def owned(tmp: Path, server: ModelServer, kill_behind: int) -> tuple[str, Path, int]:
    """An approved run whose owner was killed behind a commit, or never (0); its id, data root and the exit code."""
    run_id = await approved(tmp, server)
    scratch, root = tmp / "tmp", tmp / "data"
    scratch.mkdir()
    command = [sys.executable, owner.__file__, str(root), server.base_url, "killed", str(kill_behind)]
    env = {**environment(root), "TMPDIR": str(scratch)}
    ended = await anyio.run_process(command, env=env, check=False, stderr=None)
    return run_id, root, ended.returncode


async def _owned_by_one_at_a_time(lab: Lab, run_id: str) -> None:
    generations = [fact.generation for fact in await lab.facts(run_id, RunClaimed)]
    assert generations == list(range(1, len(generations) + 1)) and len(generations) <= 2
    assert len(await lab.facts(run_id, RunEnded)) == 1
