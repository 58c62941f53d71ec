"""A server that is killed while one of its runs changes files: the next one goes on, and one branch comes of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from support import owner
from support.model_server import Gate, ModelServer, Say, run_model_server
from support.processes import processes_of_run, stop
from support.repositories.coding import PROJECT, RIGHT, Untouched, branches, coder_task, project, worktrees
from support.repositories.projects import git
from support.runtime import hand_over, open_lab, wait_for

from ava_audit.events import RunClaimed, ToolResult, WorkChecked, WorktreeReady
from ava_roles.sandbox.path_access import remove_tree

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("confined")]

MANY = {f"many/{number:04}.txt": f"{number}\n" for number in range(3_000)}
"""Files that take a moment to be written."""
SLOW = "sleep 1.5; python3 -m unittest"


def making(root: Path, run_id: str, requests: int) -> bool:
    return bool(list(root.glob("worktrees/S-*/tree/many/*")))


def baseline(root: Path, run_id: str, requests: int) -> bool:
    return requests == 0 and bool(known(root)) and bool(processes_of_run(run_id))


def working(root: Path, run_id: str, requests: int) -> bool:
    return requests == 1 and "a + b" in "".join(path.read_text() for path in root.glob("worktrees/S-*/tree/adding.py"))


def commanding(root: Path, run_id: str, requests: int) -> bool:
    return requests == 2 and bool(list(root.glob("worktrees/S-*/tree/left.txt")))


def checking(root: Path, run_id: str, requests: int) -> bool:
    return requests == 3 and bool(processes_of_run(run_id))


def keeping(root: Path, run_id: str, requests: int) -> bool:
    return known(root).get("branch") is not None


PHASES: dict[str, Callable[[Path, str, int], bool]] = {
    "the worktree is made": making,
    "the baseline runs": baseline,
    "the model has edited": working,
    "a command of the model runs": commanding,
    "the work is checked": checking,
    "the branch is made": keeping,
}


@pytest.mark.parametrize("phase", PHASES)
async def test_a_kill_at_any_moment_loses_nothing(tmp_path: Path, phase: str) -> None:
    slow = phase in ("the worktree is made", "the branch is made")  # else over before anybody sees it
    repository = project(tmp_path, **(MANY if slow else {}))
    untouched = Untouched(repository)
    script = [
        Say(calls=[RIGHT]),
        Say(calls=[("run_bash", {"command": "echo kept >> left.txt; sleep 1"})]),
        hand_over(summary="Adding adds."),
    ]
    root = tmp_path / "data"
    with run_model_server(lambda request: script[sum(m["role"] == "assistant" for m in request["messages"])]) as server:
        async with open_lab(tmp_path, server=server, runs=False, check=False) as lab:
            run_id = await lab.start(**coder_task(namespace=["adding.py", "left.txt"], verify=SLOW))
        command = [sys.executable, owner.__file__, str(root), server.base_url]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as owning:  # noqa: ASYNC220
            with anyio.fail_after(40):
                while not PHASES[phase](root, run_id, len(server.requests)):
                    assert owning.poll() is None
                    await anyio.sleep(0.002)
            os.kill(owning.pid, signal.SIGKILL)
        with anyio.fail_after(40):
            while processes_of_run(run_id):  # noqa: ASYNC110 - nobody tells
                await anyio.sleep(0.02)
        assert worktrees(root), "what it had is still there"
        async with open_lab(tmp_path, server=server) as lab:
            row = await lab.ended(run_id, within_s=60)
            result = await lab.result(run_id)
            assert row.state == "success", result
            assert len(await lab.facts(run_id, RunClaimed)) == 2
            assert len(await lab.facts(run_id, WorktreeReady)) == 1
            checks = await lab.facts(run_id, WorkChecked)
            unsure = [each for each in await lab.facts(run_id, ToolResult) if "outcome unknown" in each.output]
            with anyio.fail_after(40):
                while worktrees(root):  # noqa: ASYNC110 - nothing tells when it goes
                    await anyio.sleep(0.02)
    assert [check.verify.passed for check in checks] == [True]
    assert branches(repository) == {f"ava/{run_id}": result["changes"]["head"]}
    assert git(repository, "show", f"ava/{run_id}:adding.py") == PROJECT["adding.py"].replace("-", "+")
    assert git(repository, "show", f"ava/{run_id}:left.txt") == "kept\n"
    assert git(repository, "rev-list", "--count", f"HEAD..ava/{run_id}") == "1\n"
    begun = {"a command of the model runs": {1}, "the model has edited": {0, 1}}  # that is over, or just not written
    assert len(unsure) in begun.get(phase, {0})
    untouched.check()


async def test_a_resumed_run_whose_worktree_is_gone_does_not_succeed(tmp_path: Path) -> None:
    repository = project(tmp_path)
    gate = Gate()
    script = [Say(calls=[RIGHT]), Say(calls=[("scratchpad", {"note": "x"})], gate=gate), hand_over()]
    root = tmp_path / "data"
    with run_model_server(
        lambda request: script[min(sum(m["role"] == "assistant" for m in request["messages"]), 2)]
    ) as server:
        async with open_lab(tmp_path, server=server, runs=False, check=False) as lab:
            run_id = await lab.start(**coder_task())
        command = [sys.executable, owner.__file__, str(root), server.base_url]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as owning:  # noqa: ASYNC220
            await wait_for(gate.arrived, within_s=40)
            os.kill(owning.pid, signal.SIGKILL)
        gate.released.set()
        for folder in worktrees(root):
            remove_tree(folder)
        async with open_lab(tmp_path, server=server, check=False) as lab:
            assert (await lab.ended(run_id, within_s=60)).state == "error"
            result = await lab.result(run_id)
    assert result["error"]["kind"] == "workshop"
    assert "is gone, and with it what the run had changed" in result["untrusted_result"]["error_text"]
    assert branches(repository) == {} and len(server.requests) == 2


async def killed_at_work(tmp: Path, server: ModelServer, gate: Gate) -> str:
    """Have a run's owner killed while its model answers, with an edit made; return the run."""
    async with open_lab(tmp, server=server, runs=False, check=False) as lab:
        run_id = await lab.start(**coder_task())
    command = [sys.executable, owner.__file__, str(tmp / "data"), server.base_url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as owning:  # noqa: ASYNC220
        await wait_for(gate.arrived, 30)
        owning.kill()
    gate.released.set()
    return run_id


@pytest.mark.parametrize("how", ["cancelled", "abandoned"])
async def test_a_run_that_ends_without_an_owner_keeps_its_work(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = project(tmp_path)
    untouched = Untouched(repository)
    gate = Gate()
    with run_model_server([Say(calls=[RIGHT]), Say("late", gate=gate)]) as server:
        run_id = await killed_at_work(tmp_path, server, gate)
        async with open_lab(tmp_path, server=server, runs=False) as lab:
            await lab.runtime.sweep()
            assert worktrees(lab.root), "it could go on"
            if how == "cancelled":
                with anyio.fail_after(20):
                    await lab.call("cancel_subagent", subagent_id=run_id, reason="enough")
            else:
                monkeypatch.setattr("ava_server.runs.record.endings.ABANDONED_US", 0)
                gone = frozenset({str((await lab.run(run_id)).instance)})
                assert await lab.runtime.manager.control.end_overdue(run_id, gone)
            assert (await lab.run(run_id)).state == how
            changes = (await lab.result(run_id))["changes"]
            assert worktrees(lab.root) == []
    assert branches(repository) == {changes["branch"]: changes["head"]} and not changes["verified"]
    assert git(repository, "show", f"ava/{run_id}:adding.py") == PROJECT["adding.py"].replace("-", "+")
    message = git(repository, "log", "-1", "--format=%B", f"ava/{run_id}")
    assert message.startswith("Unfinished: Make add add.\n") and "Not verified" in message
    untouched.check()


async def test_the_next_start_saves_work_that_could_not_be_saved_at_the_end(tmp_path: Path) -> None:
    """The repository is not there when the run ends: the result says so, and nothing is lost."""
    repository = project(tmp_path)
    gate = Gate()
    with run_model_server([Say(calls=[RIGHT]), Say("late", gate=gate)]) as server:
        run_id = await killed_at_work(tmp_path, server, gate)
        async with open_lab(tmp_path, server=server, runs=False, check=False) as lab:
            repository.rename(tmp_path / "elsewhere")
            await lab.call("cancel_subagent", subagent_id=run_id)
            changes = (await lab.result(run_id))["changes"]
            assert changes["branch"] is None and str(repository) in changes["not_kept"]
            assert worktrees(lab.root), "it has what is on no branch"
            (tmp_path / "elsewhere").rename(repository)
            await lab.runtime.sweep()
            assert worktrees(lab.root) == []
    assert git(repository, "show", f"ava/{run_id}:adding.py") == PROJECT["adding.py"].replace("-", "+")


async def test_a_cancel_with_a_stopped_owner_answers_in_time_and_the_work_is_saved_later(
    tmp_path: Path,
) -> None:
    repository = project(tmp_path)
    gate = Gate()
    with run_model_server([Say(calls=[RIGHT]), Say("late", gate=gate)]) as server:
        async with open_lab(tmp_path, server=server, runs=False, check=False) as lab:
            run_id = await lab.start(**coder_task())
        command = [sys.executable, owner.__file__, str(tmp_path / "data"), server.base_url]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as owning:  # noqa: ASYNC220
            try:
                await wait_for(gate.arrived, 30)
                stop(owning.pid, tmp_path / "data")
                async with open_lab(tmp_path, server=server, runs=False, check=False) as lab:
                    with anyio.fail_after(5.5):
                        answer = await lab.call("cancel_subagent", subagent_id=run_id)
                    assert answer.runs[0]["state"] == "cancelled"
                    assert "is made right after" in answer.runs[0]["changes"]["not_kept"]
            finally:
                owning.kill()
                gate.released.set()
        async with open_lab(tmp_path, server=server, runs=False, check=False) as lab:
            await lab.runtime.sweep()
            assert worktrees(lab.root) == []
    assert git(repository, "show", f"ava/{run_id}:adding.py") == PROJECT["adding.py"].replace("-", "+")


async def test_a_resumed_run_with_no_time_left_keeps_its_work(tmp_path: Path) -> None:
    repository = project(tmp_path)
    gate, last = Gate(), Gate()
    script = [Say(calls=[RIGHT]), Say("late", gate=gate), Say("late", gate=last), hand_over()]
    with run_model_server(script) as server:
        async with open_lab(tmp_path, server=server, runs=False, check=False) as lab:
            run_id = await lab.start(**coder_task(timeout=5))
        command = [sys.executable, owner.__file__, str(tmp_path / "data"), server.base_url]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as owning:  # noqa: ASYNC220
            await wait_for(last.arrived, 30)  # its work is over, and it is asked for what it has
            owning.kill()
        gate.released.set()
        last.released.set()
        async with open_lab(tmp_path, server=server, check=False) as lab:
            row = await lab.ended(run_id, within_s=60)
            changes = (await lab.result(run_id))["changes"]
    assert row.state == "timeout"
    assert (changes["branch"], changes["not_kept"]) == (f"ava/{run_id}", None), changes
    assert git(repository, "show", f"ava/{run_id}:adding.py") == PROJECT["adding.py"].replace("-", "+")


def known(root: Path) -> dict[str, object]:
    """What is written down of the worktree."""
    for folder in worktrees(root):
        with suppress(OSError, ValueError):
            found: dict[str, object] = json.loads((folder / "kept.json").read_text())
            return found
    return {}
