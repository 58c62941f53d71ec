"""A run by another agent looks like any other: in the log, its result, its costs, the report and its page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.agents.lab import USAGE, agent_lab, agent_run
from support.model_server import Say
from support.sandboxes.attacks import needs
from support.terminal import ava

from ava_server.web.timeline import Place, read_page

STEPS: list[dict[str, Any]] = [
    {"ask": "look"},
    {"ask": "title", "model": "other", "survives": True, "aside": True},
    {"permit": {"kind": "execute", "title": "ls", "toolCallId": "a"}},
    {"ask": "", "results": {"toolu_0_0": "twelve cents"}},
    {"ava": "submit_result", "args": {"summary": "It costs twelve cents.", "output": "twelve cents"}},
]


async def test_every_view_shows_a_run_by_another_agent(tmp_path: Path) -> None:
    needs("bubblewrap")
    answers = [Say("I look.", calls=[("Bash", {"command": "cat prices.md"})], usage=USAGE), Say("Done.", usage=USAGE)]
    async with agent_lab(tmp_path, answers, [STEPS]) as lab:
        run_id = await lab.start(**agent_run(name="prices"))
        run = await lab.ended(run_id, 60)
        assert run.state == "success"
        page = await lab.store.read(lambda view: read_page(view, run_id, Place("oldest"), run.cost_micros))
        titles = [item.shown.title for item in page.items if item.shown is not None]
        assert {"Session of the agent", "Not sent", "Permission", "Bash", "Answer of the model"} <= {*titles}
        answer = await lab.call("check_subagent", subagent_id=run_id)
        assert answer.runs[0].status == "success" and answer.runs[0].model == "far:far-sonnet"
        entries = await lab.call("read_ava_logs", subagent_id=run_id)
        assert "AgentNote" in str(entries)
        again = await lab.call("spawn_subagent", retry_of=run_id)
        assert "by acp:scripted" in again.approval_line
    shown = ava(lab.root, "show", run_id, "--cost")
    assert shown.returncode == 0, shown.stderr
    lines = ava(lab.root, "logs", run_id, "--all").stdout
    assert "AgentRequest turn 1: far-sonnet, 1 new messages after 0" in lines and "tool" in lines
    assert json.loads(ava(lab.root, "report", "--json").stdout)["total"]["cost_cents"] == run.cost_micros / 10_000
    assert ava(lab.root, "verify").returncode == 0
    assert ava(lab.root, "erase", run_id, "--yes").returncode == 0
    assert "twelve" not in ava(lab.root, "logs", run_id, "--all").stdout
