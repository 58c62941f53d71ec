"""Several servers on one data root decide at once: one approval is used once, and the day's ceiling is everybody's."""

from __future__ import annotations

from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.model_server import Gate, Say, run_model_server
from support.runtime import allow_workspace, settings_of
from support.stdio import Wire, assert_intact, model_env, read_log, serve_stdio

pytestmark = pytest.mark.slow

PROCESSES = 4
DONE = Say(calls=[("submit_result", {"summary": "done", "output": "twelve cents"})])

AUTO = 'approval = "auto"\nauto_approve_cents = 1\nauto_approve_daily_cents = 7\n[limits]\nspawns_per_hour = 100\n'


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "notes.md").write_text("Otter charges twelve cents.\n")
    return folder


async def test_a_hundred_confirmations_in_four_processes_start_one_run(root: Path, workspace: Path) -> None:
    gate = Gate()
    with run_model_server([Say(calls=DONE.calls, gate=gate), DONE]) as models:
        async with AsyncExitStack() as stack:
            wires = [
                await stack.enter_async_context(serve_stdio(root, env=model_env(models.base_url)))
                for _ in range(PROCESSES)
            ]
            made = await wires[0].tool("spawn_subagent", role="researcher", task="Prices", workspace=str(workspace))
            given = {"pending_ids": [made["pending_id"]], "approving": [made["approval_line"]]}
            answers = await all_at_once(wires, "confirm_spawn", [given] * 100)
            assert Counter(answer["status"] for answer in answers) == {"approved": 1, "refused": 99}
            refused = [each["decisions"][0] for each in answers if each["status"] == "refused"]
            assert all("approved already" in each["refused_because"] for each in refused)
            gate.released.set()
            ended = await wires[1].tool("check_subagent", subagent_id=made["subagent_id"], wait_seconds=30)
            assert ended["status"] == "success"
        assert len(models.requests) == 1
    for kind in ("SpawnDecided", "SubagentSpawn", "RunClaimed", "RunStarted", "RunEnded"):
        assert len(read_log(root, kind, run=made["subagent_id"])) == 1, kind
    assert_intact(root)


async def test_servers_that_start_small_runs_automatically_share_the_daily_limit(root: Path, workspace: Path) -> None:
    settings_of(root, None, allow_workspace(AUTO, workspace))
    with run_model_server(lambda _request: DONE) as models:
        async with AsyncExitStack() as stack:
            wires = [
                await stack.enter_async_context(serve_stdio(root, env=model_env(models.base_url)))
                for _ in range(PROCESSES)
            ]
            reviewer = {"role": "code_reviewer", "blocked_tools": ["run_bash", "python_exec"]}  # what only reads
            calls = [
                {**reviewer, "task": f"Look at number {number}", "workspace": str(workspace)} for number in range(40)
            ]
            answers = await all_at_once(wires, "spawn_subagent", calls)
            assert Counter(answer["status"] for answer in answers) == {"approved": 7, "awaiting_approval": 33}
            for answer in answers:
                if answer["status"] == "approved":
                    await wires[0].tool("check_subagent", subagent_id=answer["subagent_id"], wait_seconds=30)
    decided = read_log(root, "SpawnDecided")
    assert [entry.content["channel"] for entry in decided] == ["auto"] * 7
    assert len(read_log(root, "RunStarted")) == 7
    assert_intact(root)


async def all_at_once(wires: list[Wire], tool: str, calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Send the calls to the servers in turn, without waiting for an answer; return the structured answers."""
    sent = [
        (wire, await wire.ask("tools/call", {"name": tool, "arguments": arguments}))
        for number, arguments in enumerate(calls)
        for wire in [wires[number % len(wires)]]
    ]
    answers: list[dict[str, Any]] = []

    async def hear(wire: Wire) -> None:  # one reader for each server
        for other, number in sent:
            if other is wire:
                answers.append((await wire.answer(number, within_s=60))["result"]["structuredContent"])

    async with anyio.create_task_group() as tasks:
        for wire in wires:
            tasks.start_soon(hear, wire)
    return answers
