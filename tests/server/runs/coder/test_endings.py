"""However a coder's run ends or pauses, its work is kept on its branch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from support.model_server import Fail, Gate, Say, Step
from support.processes import processes_of_run
from support.repositories.coding import (
    RIGHT,
    Untouched,
    branches,
    coder_task,
    make_calls,
    project,
    run_coder,
    worktrees,
)
from support.repositories.projects import git
from support.runtime import Lab, hand_over, open_lab, wait_for

from ava_audit.events import RunPaused, WorkChecked, WorktreeReady
from ava_server.render.host_text import text_of

pytestmark = pytest.mark.usefixtures("confined")


@pytest.mark.slow
async def test_an_answer_without_a_submit_call_is_verified_too(tmp_path: Path) -> None:
    project(tmp_path)
    script = [Say("It is done."), Say(calls=[RIGHT]), Say("Now it is done.")]
    async with open_lab(tmp_path, script) as lab:
        result = await run_coder(lab)
        checks = await lab.facts(result["subagent_id"], WorkChecked)
        told = str(lab.server.requests[1].json["messages"][-1]["content"])
    assert result["status"] == "success", result
    assert [check.verify.passed for check in checks] == [False, True]
    assert "AssertionError" in told and "3 more attempts are left" in told


@pytest.mark.slow
@pytest.mark.parametrize("how", ["passed", "failed", "did not run to its end"])
async def test_work_handed_over_at_a_cap_is_checked_once_and_stays_on_the_branch(tmp_path: Path, how: str) -> None:
    repository = project(tmp_path)
    ways: dict[str, dict[str, Any]] = {
        "passed": {},
        "failed": {"verify": "false"},
        "did not run to its end": {"verify": "grep -q 'a - b' adding.py || sleep 60", "timeout": 6},
    }
    given = ways[how]
    async with open_lab(tmp_path, make_calls(RIGHT)) as lab:
        result = await run_coder(lab, max_iterations=2, **given)
        checks = await lab.facts(result["subagent_id"], WorkChecked)
        await gone(lab)
    changes = result["changes"]
    assert result["status"] == "iteration_limit" and changes["verified"] == (how == "passed")
    assert f"; its verify command {how}" in result["stop_reason"]
    assert [check.verify.passed for check in checks] == {"passed": [True], "failed": [False]}.get(how, [])
    assert git(repository, "show", f"{changes['branch']}:adding.py").endswith("a + b\n")
    message = " ".join(git(repository, "log", "-1", "--format=%B", changes["branch"]).split())
    said = f"Not verified: the run ended as iteration_limit before its work passed `{changes['verify']['command']}`"
    assert (said in message) == (how != "passed")
    assert ("Verified: `" in message) == (how == "passed")


@pytest.mark.slow
@pytest.mark.parametrize("when", ["baseline", "work", "check"])
async def test_a_cancel_is_answered_in_time_and_keeps_the_work(tmp_path: Path, when: str) -> None:
    repository = project(tmp_path)
    untouched = Untouched(repository)
    gate = Gate()
    script = {
        "baseline": [hand_over()],
        "work": [Say(calls=[RIGHT]), Say("late", gate=gate)],
        "check": [Say(calls=[RIGHT]), hand_over()],
    }
    slow = {"baseline": "sleep 60", "work": "true", "check": "grep -q 'a - b' adding.py || sleep 60"}
    async with open_lab(tmp_path, script[when]) as lab:
        run_id = await lab.start(**coder_task(verify=slow[when]))
        if when == "work":
            await wait_for(gate.arrived, 20)
        else:
            await lab.logged(run_id, "Activity", {"baseline": 1, "check": 3}[when], within_s=60)
            with anyio.fail_after(20):
                while not processes_of_run(run_id):  # noqa: ASYNC110 - nothing tells
                    await anyio.sleep(0.02)
        with anyio.fail_after(20):
            answer = await lab.call("cancel_subagent", subagent_id=run_id, reason="enough")
        assert answer.runs[0]["state"] == "cancelled"
        result = await lab.result(run_id)
        gate.released.set()
        await gone(lab)
    assert not processes_of_run(run_id)
    changes = result["changes"]
    if when == "baseline":
        assert (changes["branch"], changes["not_kept"]) == (None, None) and branches(repository) == {}
    else:
        assert branches(repository) == {changes["branch"]: changes["head"]} and not changes["verified"]
        assert git(repository, "show", f"{changes['branch']}:adding.py").endswith("a + b\n")
    untouched.check()


@pytest.mark.slow
async def test_a_baseline_that_uses_all_the_time_ends_the_run_before_a_model_call(tmp_path: Path) -> None:
    repository = project(tmp_path)
    async with open_lab(tmp_path, [hand_over()]) as lab:
        result = await run_coder(lab, verify="sleep 60", timeout=3)
        assert lab.server.requests == []
        await gone(lab)
    assert result["status"] == "timeout"
    assert (result["changes"]["branch"], result["changes"]["not_kept"]) == (None, None)
    assert result["changes"]["verify"]["before"] is None and branches(repository) == {}


@pytest.mark.slow
async def test_the_timeout_of_the_run_cuts_off_an_endless_verify_command(tmp_path: Path) -> None:
    repository = project(tmp_path)
    hangs = "grep -q 'a - b' adding.py || sleep 60"
    async with open_lab(tmp_path, make_calls(RIGHT)) as lab:
        result = await run_coder(lab, verify=hangs, timeout=6)
    assert result["status"] == "timeout" and not result["changes"]["verified"], result
    assert result["stop_reason"] == "timeout of 6 s; its verify command did not run to its end: the run's time was over"
    assert result["untrusted_result"]["summary"] == "Adding adds.", "it was handed over in time"
    assert git(repository, "show", f"{result['changes']['branch']}:adding.py").endswith("a + b\n")


@pytest.mark.slow
async def test_a_paused_run_resumes_in_its_worktree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ava_server.runs.turn.model_call.PAUSE_FROM_S", 0.5)
    repository = project(tmp_path)
    script: list[Step] = [Say(calls=[RIGHT]), Fail(429, retry_after="1"), hand_over()]
    async with open_lab(tmp_path, script) as lab:
        result = await run_coder(lab)
        assert len(await lab.facts(result["subagent_id"], RunPaused)) == 1
        assert len(await lab.facts(result["subagent_id"], WorktreeReady)) == 1
        await gone(lab)
    assert result["status"] == "success", result
    assert git(repository, "show", f"{result['changes']['branch']}:adding.py").endswith("a + b\n")


async def test_a_run_whose_repository_disappears_fails_and_its_work_is_kept_when_it_returns(
    tmp_path: Path,
) -> None:
    repository = project(tmp_path)

    def answer(request: dict[str, Any]) -> Step:
        if not any(message["role"] == "assistant" for message in request["messages"]):
            return Say(calls=[RIGHT])
        repository.rename(tmp_path / "elsewhere")
        return hand_over()

    async with open_lab(tmp_path, answer) as lab:
        result = await run_coder(lab)
        assert (result["status"], result["error"]["kind"]) == ("error", "workshop"), result
        assert result["changes"]["branch"] is None and result["changes"]["not_kept"]
        assert worktrees(lab.root), "it has what is on no branch"
        (tmp_path / "elsewhere").rename(repository)
        await lab.runtime.sweep()
        assert worktrees(lab.root) == []
    [branch] = branches(repository)
    assert git(repository, "show", f"{branch}:adding.py").endswith("a + b\n")


async def test_a_branch_that_takes_longer_than_the_cancel_limit_is_made_right_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ava_server.runs.coder.coding.KEEP_CANCELLED_S", 0.01)
    repository = project(tmp_path)
    gate = Gate()
    async with open_lab(tmp_path, [Say(calls=[RIGHT]), Say("late", gate=gate)]) as lab:
        run_id = await lab.start(**coder_task())
        await wait_for(gate.arrived, 20)
        with anyio.fail_after(20):
            answer = await lab.call("cancel_subagent", subagent_id=run_id)
        gate.released.set()
        assert "is made right after" in answer.runs[0]["changes"]["not_kept"]
        assert "What it changed is NOT on a branch" in text_of(answer)
        await gone(lab)
    assert git(repository, "show", f"ava/{run_id}:adding.py").endswith("a + b\n")


async def test_cancelling_a_paused_run_keeps_its_work(tmp_path: Path) -> None:
    repository = project(tmp_path)
    async with open_lab(tmp_path, [Say(calls=[RIGHT]), Fail(429, retry_after="3600")]) as lab:
        run_id = await lab.start(**coder_task())
        await lab.logged(run_id, "RunPaused", within_s=60)
        await anyio.sleep(0.2)  # its owner lets go of it
        with anyio.fail_after(20):
            answer = await lab.call("cancel_subagent", subagent_id=run_id)
        assert (answer.runs[0]["state"], answer.runs[0]["changes"]["branch"]) == ("cancelled", f"ava/{run_id}")
        await gone(lab)
    assert git(repository, "show", f"ava/{run_id}:adding.py").endswith("a + b\n")


async def test_cancelling_a_paused_run_waits_for_its_branch_no_longer_than_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = project(tmp_path)
    async with open_lab(tmp_path, [Say(calls=[RIGHT]), Fail(429, retry_after="3600")]) as lab:
        run_id = await lab.start(**coder_task())
        await lab.logged(run_id, "RunPaused", within_s=60)
        with anyio.fail_after(20):
            while lab.runtime.manager.activity(run_id) is not None:  # noqa: ASYNC110 - nothing tells that it let go
                await anyio.sleep(0.02)
        monkeypatch.setattr("ava_server.runs.owner.control.ANSWER_S", 0.0)
        monkeypatch.setattr("ava_server.runs.owner.control.LEAST_S", 0.001)
        with anyio.fail_after(20):
            answer = await lab.call("cancel_subagent", subagent_id=run_id)
        assert answer.runs[0]["state"] == "cancelled"
        assert "is made right after" in answer.runs[0]["changes"]["not_kept"]
        await gone(lab)
    assert git(repository, "show", f"ava/{run_id}:adding.py").endswith("a + b\n")


async def gone(lab: Lab) -> None:
    """Wait until nothing is left of worktrees: they go right after the ending."""
    with anyio.fail_after(40):
        while worktrees(lab.root):  # noqa: ASYNC110 - nothing tells when it goes
            await anyio.sleep(0.02)
