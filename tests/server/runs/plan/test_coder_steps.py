"""A step whose runs change files is done only if their command passed, however they end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.model_server import Say
from support.repositories.coding import RIGHT, coder_task, project
from support.runs import plans
from support.runtime import PRICED, hand_over, open_lab, submit

pytestmark = pytest.mark.usefixtures("confined")

REPORT = plans.step("report", "Say what {{fix}} has changed.")
TEXT = {"output_schema": {"type": "string"}}


def work(request: dict[str, Any]) -> Say:
    """Make the change in the first turn of a coder and hand over in the second; other runs hand over at once."""
    if "Say what" in json.dumps(request["messages"][:2]):
        return submit("it says so")
    if any(message["role"] == "assistant" for message in request["messages"]):
        return hand_over()
    return Say(calls=[RIGHT])


AT_A_CAP = pytest.mark.parametrize(
    "caps", [{"max_iterations": 2}, {"max_tool_calls": 1}, {"max_iterations": 2, **TEXT}], ids=str
)


@AT_A_CAP
async def test_a_coder_whose_command_did_not_pass_is_not_done_at_a_cap(tmp_path: Path, caps: Mapping[str, Any]) -> None:
    project(tmp_path)
    async with open_lab(tmp_path, work, config=PRICED) as lab:
        fix = {**coder_task(verify="false"), "id": "fix", **caps}
        plan = await plans.finish(lab, [fix, REPORT], state="error")
        result = await lab.result(plan.id)
        rows = await plans.rows(lab, plan.id)
    assert [(line["step"], line["state"]) for line in result["steps"]] == [("fix", "failed"), ("report", "skipped")]
    assert [(row.step, row.state in ("iteration_limit", "tool_limit")) for row in rows] == [("fix", True)]
    assert result["untrusted_result"]["output"] == {"report": None}
    assert "its verify command failed" in result["steps"][0]["why"]


@AT_A_CAP
async def test_a_coder_whose_command_passed_at_a_cap_is_done(tmp_path: Path, caps: Mapping[str, Any]) -> None:
    project(tmp_path)
    async with open_lab(tmp_path, work, config=PRICED) as lab:
        plan = await plans.finish(lab, [{**coder_task(), "id": "fix", **caps}, REPORT])
        [fix, _report] = await plans.rows(lab, plan.id)
        made = await lab.result(fix.id)
        calls = len(lab.server.requests)
        again = await lab.call("spawn_subagent", retry_of=plan.id)
    assert fix.state in ("iteration_limit", "tool_limit") and made["changes"]["verified"]
    assert str(fix.stop_reason).endswith("; its verify command passed") and calls == 3
    assert f"every step of plan {plan.id} is done and unchanged" in again.message


async def test_a_coder_whose_command_passed_is_done(tmp_path: Path) -> None:
    project(tmp_path)
    async with open_lab(tmp_path, work, config=PRICED) as lab:
        await plans.finish(lab, [{**coder_task(), "id": "fix"}, REPORT])
