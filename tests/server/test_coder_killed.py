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
from support.coding import PROJECT, RIGHT, Untouched, asked, branches, project, worktrees
from support.house import hand_over, open_lab
from support.model_server import Say, running_model_server
from support.processes import marked
from support.projects import git

from ava_audit.events import RunClaimed, ToolResult, WorkChecked, WorktreeReady
from ava_roles.confine.sandbox import Unavailable, find_sandbox

MANY = {f"many/{number:04}.txt": f"{number}\n" for number in range(3_000)}
"""Files that take a moment to be written."""
SLOW = "sleep 1.5; python3 -m unittest"


@pytest.fixture(scope="module", autouse=True)
def _confined(tmp_path_factory: pytest.TempPathFactory) -> None:
    found = find_sandbox("auto", tmp_path_factory.mktemp("state"))
    if isinstance(found, Unavailable):
        pytest.skip(f"{found.why}; {found.what_to_do}")


def known(root: Path) -> dict[str, object]:
    """What is written down of the worktree."""
    for folder in worktrees(root):
        with suppress(OSError, ValueError):
            found: dict[str, object] = json.loads((folder / "kept.json").read_text())
            return found
    return {}


def making(root: Path, run_id: str, requests: int) -> bool:
    return bool(list(root.glob("worktrees/S-*/tree/many/*")))


def baseline(root: Path, run_id: str, requests: int) -> bool:
    return requests == 0 and bool(known(root)) and bool(marked(run_id))


def working(root: Path, run_id: str, requests: int) -> bool:
    return requests == 1 and "a + b" in "".join(path.read_text() for path in root.glob("worktrees/S-*/tree/adding.py"))


def commanding(root: Path, run_id: str, requests: int) -> bool:
    return requests == 2 and bool(list(root.glob("worktrees/S-*/tree/left.txt")))


def checking(root: Path, run_id: str, requests: int) -> bool:
    return requests == 3 and bool(marked(run_id))


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
async def test_a_kill_at_any_time_loses_nothing(tmp_path: Path, phase: str) -> None:
    repository = project(tmp_path, **MANY)
    untouched = Untouched(repository)
    script = [
        Say(calls=[RIGHT]),
        Say(calls=[("run_bash", {"command": "echo kept >> left.txt; sleep 1"})]),
        hand_over(summary="Adding adds."),
    ]
    root = tmp_path / "data"
    with running_model_server(
        lambda request: script[sum(m["role"] == "assistant" for m in request["messages"])]
    ) as server:
        async with open_lab(tmp_path, server=server, runs=False, check=False) as lab:
            run_id = await lab.start(**asked(namespace=["adding.py", "left.txt"], verify=SLOW))
        command = [sys.executable, owner.__file__, str(root), server.base_url]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as owning:  # noqa: ASYNC220
            with anyio.fail_after(40):
                while not PHASES[phase](root, run_id, len(server.requests)):
                    assert owning.poll() is None
                    await anyio.sleep(0.002)
            os.kill(owning.pid, signal.SIGKILL)
        with anyio.fail_after(10):
            while marked(run_id):  # noqa: ASYNC110 - nobody tells
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
            with anyio.fail_after(10):
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
