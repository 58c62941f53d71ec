"""Runs of another coding agent whose server is killed: the session goes on, no process stays, no call is paid twice."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.agents.lab import SUBMIT, agent_config, agent_run, priced_agent
from support.model_server import ModelServer, run_model_server
from support.processes import lives, processes_of_run
from support.runtime import allow_workspace
from support.sample import sample
from support.sandboxes.attacks import needs
from support.stdio import assert_intact, make_root, read_log, serve_stdio, until


@asynccontextmanager
async def killable(
    tmp_path: Path, steps: list[dict[str, Any]]
) -> AsyncGenerator[tuple[Path, dict[str, Any], ModelServer]]:
    """A data root whose agent can go on with its session, the arguments of a run, and the model behind it."""
    folder = tmp_path / "installed"
    folder.mkdir(parents=True)
    (tmp_path / "workspace").mkdir()
    (folder / "script.json").write_text(json.dumps({"prompts": [steps], "resumes": True}))
    with run_model_server(lambda _request: priced_agent()) as far:
        config = agent_config(folder, far.base_url, 'background = false\napproval = "ask"\n')
        root = make_root(tmp_path / "data", config_toml=allow_workspace(config, tmp_path / "workspace"))
        yield root, agent_run(task="What does it cost?", workspace=str(tmp_path / "workspace")), far


async def gone(pids: list[int]) -> None:
    """Wait until none of these processes lives."""
    await until(lambda: not any(map(lives, pids)), 5)


async def finished_by_another(root: Path, run_id: str) -> None:
    """Have another server finish a run that its owner has left, and leave nothing behind."""
    async with serve_stdio(root) as second:
        found = await second.tool("check_subagent", subagent_id=run_id, wait_seconds=40)
        assert found["status"] == "success", found
        await until(lambda: not processes_of_run(run_id) and not (root / "scratch" / run_id).exists(), 5)
    assert_intact(root)


async def test_an_interrupted_run_goes_on_with_the_agents_session(tmp_path: Path) -> None:
    """Its owner is killed between two calls; what was paid for is not paid for again."""
    needs("bubblewrap")
    async with killable(tmp_path, [{"ask": "look"}, {"sleep": 2}, {"ask": "go on"}, SUBMIT]) as (root, spawn, far):
        async with serve_stdio(root) as first:
            run_id = await first.start_run(**spawn)
            await until(lambda: read_log(root, "AssistantMessage", run=run_id)[1:], 20)
            await anyio.sleep(0.5)
            pids = processes_of_run(run_id)
            assert pids
            first.process.kill()
        await gone(pids)
        await finished_by_another(root, run_id)
        assert len(far.requests) == 2
    settled = [entry.content["settlement"] for entry in read_log(root, "CostUpdate", run=run_id)]
    assert settled == ["billed", "billed"]


KILLS = [0.15 * number for number in range(1, 21)]
"""Seconds after the approval: while it starts, opens its session, calls its model, hands over."""


@pytest.mark.parametrize("after_s", sample(KILLS, 1))
async def test_a_server_killed_anywhere_leaves_no_process_and_pays_at_most_one_call_twice(
    tmp_path: Path, after_s: float
) -> None:
    needs("bubblewrap")
    steps: list[dict[str, Any]] = []
    for number in range(5):
        steps += [{"ask": f"step {number}"}, {"sleep": 0.15}]
    async with killable(tmp_path, [*steps, SUBMIT]) as (root, spawn, far):
        async with serve_stdio(root) as first:
            run_id = await first.start_run(**spawn)
            await anyio.sleep(after_s)
            pids = processes_of_run(run_id)
            first.process.kill()
        await gone(pids)
        await finished_by_another(root, run_id)
        assert 5 <= len(far.requests) <= 6
    ways = [entry.content["settlement"] for entry in read_log(root, "CostUpdate", run=run_id)]
    assert ways.count("unknown") <= 1 and len(ways) == len(read_log(root, "CostReserved", run=run_id))
