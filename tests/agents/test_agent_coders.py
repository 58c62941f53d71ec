"""Another coding agent that changes a repository: what passes counts, and a review does not see its words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.agents.lab import USAGE, agent_lab, agent_run
from support.model_server import Say
from support.repositories.coding import Untouched, branches, coder_task, project
from support.repositories.projects import git, write
from support.sandboxes.attacks import needs

from ava_audit.events import (
    UserMessage,
    WorkChecked,
)


def adding(operator: str) -> dict[str, Any]:
    return {"write": "adding.py", "text": f"def add(a, b):\n    return a {operator} b\n"}


HANDED: dict[str, Any] = {"ava": "submit_result", "args": {"summary": "Adding adds."}}


async def test_a_coders_work_counts_by_what_passes_and_not_by_what_the_agent_says(tmp_path: Path) -> None:
    needs("bubblewrap")
    repository = project(tmp_path)
    untouched = Untouched(repository)
    outside = {"write": "README.md", "text": "mine\n"}
    prompts = [[adding("*"), outside, HANDED], [{"say": "It works now."}], [adding("+"), HANDED]]
    async with agent_lab(tmp_path, [], prompts) as lab:
        run_id = await lab.start(**agent_run(**coder_task(plan=None)))
        await lab.ended(run_id, 90)
        result = await lab.result(run_id)
        assert result["status"] == "success", result
        checks = await lab.facts(run_id, WorkChecked)
        assert [check.verify.passed for check in checks] == [False, False, True]
        assert result["changes"]["verified"] and branches(repository) == {f"ava/{run_id}": result["changes"]["head"]}
        assert [each["path"] for each in result["untrusted_result"]["changed"]["files"]] == ["adding.py"]
    untouched.check()


async def test_a_coder_that_never_passes_is_given_up(tmp_path: Path) -> None:
    needs("bubblewrap")
    project(tmp_path)
    async with agent_lab(tmp_path, [], [[adding("*"), HANDED]] * 5) as lab:
        run_id = await lab.start(**agent_run(**coder_task(plan=None)))
        await lab.ended(run_id, 90)
        result = await lab.result(run_id)
        assert (result["status"], result["stop_reason"]) == ("error", "verification failed 4 times"), result


@pytest.mark.requirement("N-35")
async def test_an_agent_that_reviews_does_not_see_how_the_change_wants_to_be_reviewed(tmp_path: Path) -> None:
    """It would read these files by itself: so they are not in its copy, and it is told those of the default branch."""
    needs("bubblewrap")
    answers = [Say("I look.", usage=USAGE)]
    steps: list[dict[str, Any]] = [
        {"ask": "How does it look?"},
        {
            "run": "cat AGENTS.md CLAUDE.md CONTEXT.md sub/* .claude/settings.json .github/instructions/*;"
            " cat node_modules/x/CLAUDE.md node_modules/y.js; ls -A"
        },
    ]
    checkout = project(tmp_path)
    write(checkout, {"AGENTS.md": "OURS\n"})
    git(checkout, "add", "-A")
    git(checkout, "commit", "-qm", "rules")
    git(checkout, "branch", "-M", "main")
    git(checkout, "switch", "-qc", "change")
    write(checkout, {"AGENTS.md": "EVIL\n", "CLAUDE.md": "EVIL\n", ".claude/settings.json": "EVIL\n"})
    write(checkout, {"CONTEXT.md": "EVIL\n", "sub/CONTEXT.md": "EVIL\n", "sub/AGENTS.local.md": "EVIL\n"})
    write(checkout, {".github/instructions/x.instructions.md": "EVIL\n", "node_modules/x/CLAUDE.md": "EVIL\n"})
    git(checkout, "add", "-A")
    git(checkout, "commit", "-qm", "evil")
    write(checkout, {"node_modules/y.js": "a package"})
    async with agent_lab(tmp_path, answers, [steps]) as lab:
        run_id = await lab.start(**{**agent_run(), "role": "code_reviewer"})
        run = await lab.ended(run_id, 60)
        said = (await lab.result(run_id))["untrusted_result"]["output"]
        assert run.state == "success" and "adding.py" in said and "EVIL" not in said and "a package" in said
        sent = "\n".join(json.dumps(request.json) for request in lab.server.requests)
        told = json.dumps([fact.model_dump(mode="json") for fact in await lab.facts(run_id, UserMessage)])
        assert "OURS" in told and "EVIL" not in told and "EVIL" not in sent
