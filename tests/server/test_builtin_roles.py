"""Every built-in role does a whole piece of work: each of its tools once, on a real site and a real repository.

Only the model is scripted. What it is shown of each tool has to hold what is really there, what it hands over has to be
found in that again, and the checkout is the same afterwards, down to the times of its files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.repositories.projects import git, tree
from support.runs.builtin_roles import WorkingModel, calls_of_tool, open_role_ground

from ava_audit.events import ToolResult
from ava_roles import BUILT_IN
from ava_roles.catalog import Catalog

pytestmark = pytest.mark.usefixtures("confined")

MORE: Mapping[str, Mapping[str, Any]] = {"custom": {"system_prompt": "You compare prices."}}


@pytest.mark.slow
@pytest.mark.requirement("S2-01")
@pytest.mark.parametrize("role", [name for name in BUILT_IN if name != "coder"])  # runs/coder/test_verified_branch.py
async def test_a_built_in_role_works_with_all_its_tools(tmp_path: Path, role: str) -> None:
    model = WorkingModel("")
    async with open_role_ground(tmp_path, model) as (lab, before):
        earlier = await lab.start(task="an earlier piece of work")
        await lab.ended(earlier)
        model.earlier = earlier
        limits = {"max_iterations": 40, "max_tool_calls": 60, "max_tokens": 300_000}
        made = await lab.propose(role=role, task="Compare.", context_from=[earlier], **limits, **MORE.get(role, {}))
        model.tools = made.tools
        assert set(made.tools) == set(Catalog.load([]).get(role).tools), "each tool of the role is there"
        await lab.approve(made)
        row = await lab.ended(made.subagent_id, within_s=60)
        result = await lab.result(made.subagent_id)
        shown = await lab.facts(made.subagent_id, ToolResult)
        artifacts = tmp_path / "data" / "artifacts" / made.subagent_id
        assert (artifacts / "prices.csv").read_text() == "Otter,12\n"
    assert row.state == "success", result
    wanted = [(name, expected) for name in model.made for given, expected in calls_of_tool(name)]
    for name in dict.fromkeys(model.made):
        outputs = [each.output for each in shown if each.tool == name]
        for expected, output in zip([text for _given, text in calls_of_tool(name)], outputs, strict=True):
            assert expected in output, (name, output)
    assert len(wanted) >= len(set(made.tools)) and set(model.made) == set(made.tools)
    failed = {name: counts["failed"] for name, counts in result["tool_receipts"].items() if counts["failed"]}
    refused = {"read_webpages": 1} if "read_webpages" in made.tools else {}  # by robots.txt
    assert failed == {"read_tool_result": 1, **refused}
    assert [quote["verdict"] for quote in result["quotes_checked"]] == ["found"]
    digest = hashlib.sha256(b"Otter,12\n").hexdigest()
    assert result["untrusted_result"]["artifacts"] == [{"name": "prices.csv", "bytes": 9, "sha256": digest}]
    assert list((tmp_path / "data" / "scratch").glob("S-*")) == [], "nothing of the run's own is left"
    assert tree(tmp_path / "workspace") == before, "the checkout is as it was"
    assert git(tmp_path / "workspace", "status", "--porcelain") == ""
