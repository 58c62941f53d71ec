"""A plan whose owner is killed goes on: no finished step is paid for again, and each step runs once."""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest
from support import owner
from support.log import look_at
from support.model_server import ModelServer, Say, run_model_server
from support.processes import processes_of_run
from support.runtime import PRICED, check_budgets, open_lab, submit
from support.sample import sample
from support.stdio import environment, until

LIST = {"type": "object", "properties": {"items": {"type": "array", "items": {"type": "string"}}}}
CONFIG = f"{PRICED}[limits]\nspawns_per_hour = 1000\n"  # a host approves here, without a person's answer


@pytest.mark.slow
async def test_a_kill_after_any_commit_of_a_plan_pays_no_finished_step_again(tmp_path: Path) -> None:
    with run_model_server(script(3)) as server:
        plan = await approved(tmp_path / "whole", server, 3)
        assert await killed_behind(tmp_path / "whole", server, 0) == 0
        assert counted_runs(tmp_path / "whole" / "data", plan) == (5, 5)
        commits = int((tmp_path / "whole" / "data" / owner.COMMITS).read_text())
        for number in sample(range(1, commits + 1), 6):
            await check_kill(tmp_path / str(number), 3, number, server)


@pytest.mark.slow
async def test_a_plan_of_a_hundred_runs_goes_on_after_kills(tmp_path: Path) -> None:
    with run_model_server(script(98)) as server:
        for number in (2, 40, 150, 300):
            await check_kill(tmp_path / str(number), 98, number, server)


def steps(items: int) -> list[dict[str, Any]]:
    """A plan of one run that lists, one for each item of its list, and one that writes."""
    return [
        {"id": "find", "role": "researcher", "task": "List all.", "output_schema": LIST},
        {"id": "read", "role": "researcher", "foreach": "find.items", "at_most": items, "task": "Read {{item}}."},
        {"id": "write", "role": "researcher", "task": "Write about {{read}}."},
    ]


def script(items: int) -> Any:
    def answer(request: dict[str, Any]) -> Say:
        if "List all." in json.dumps(request["messages"]):
            return submit({"items": [f"item {number}" for number in range(items)]})
        return submit("done")

    return answer


async def approved(tmp: Path, server: ModelServer, items: int) -> str:
    """Return the id of an approved plan that nobody has claimed."""
    await anyio.Path(tmp).mkdir()
    async with open_lab(tmp, server=server, config=CONFIG, runs=False, check=False) as lab:
        proposal = await lab.call("spawn_subagent", workspace=str(lab.workspace), steps=steps(items))
        answer = await lab.approve(proposal)
        assert answer.status == "approved", answer.decisions
        return str(proposal.group_id)


async def killed_behind(tmp: Path, server: ModelServer, number: int) -> int:
    """Let an owner work until it is killed behind so many commits (0: never); return its exit code."""
    root = tmp / "data"
    command = [sys.executable, owner.__file__, str(root), server.base_url, "killed", str(number)]
    ended = await anyio.run_process(command, env=environment(root), check=False, stderr=None)
    return ended.returncode


def counted_runs(root: Path, plan: str) -> tuple[int, int]:
    """Return how many runs a plan has queued, and how many of them have ended."""
    with look_at(root) as db:
        sql = "SELECT count(*), count(ended_us) FROM runs WHERE plan_id = ?"
        (queued, ended) = db.execute(sql, (plan,)).fetchone()
        return int(queued), int(ended)


async def finish(tmp: Path, server: ModelServer, plan: str) -> None:
    """Let another owner end the plan, and compare it with one that was never interrupted."""
    async with open_lab(tmp, server=server, config=CONFIG, check=False) as lab:
        with anyio.fail_after(120):
            row = await lab.ended(plan)
        assert row.state == "success"

        await lab.store.read(check_budgets)
        rows = await lab.store.read(lambda view: view.step_runs(plan))
    counted = Counter((each.step, each.item) for each in rows)
    assert max(counted.values()) == 1, "no step or item has run twice"
    assert all(each.state == "success" for each in rows)


async def check_kill(tmp: Path, items: int, number: int, server: ModelServer) -> None:
    plan = await approved(tmp, server, items)
    before = len(server.requests)
    assert await killed_behind(tmp, server, number) == -signal.SIGKILL
    await until(lambda: not processes_of_run(plan), within_s=5)
    _queued, ended = counted_runs(tmp / "data", plan)
    asked = len(server.requests) - before
    await finish(tmp, server, plan)
    again = len(server.requests) - before - asked
    assert again <= items + 2 - ended, f"killed behind commit {number}: a finished step was paid for again"
