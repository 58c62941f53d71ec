"""A run whose reader found no answer ends as that: in the log, lists, reports, results and pages it is no success."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.runtime import Lab, open_lab
from support.terminal import ava

from ava_audit.events import RunEnded, SubagentComplete
from ava_server.cli.results import result_text
from ava_server.render.host_text import run_text
from ava_server.render.responses import RunAnswer

TEXT = "The lamp is lit by the keeper every evening at dusk.\n"


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    async with open_lab(tmp_path, [], check=False) as lab:
        (lab.workspace / "a.md").write_text(TEXT)
        yield lab


async def run(lab: Lab, task: str) -> RunAnswer:
    await lab.ended(run_id := await lab.start(task=task, model="offline"))
    answer = await lab.call("check_subagent", subagent_id=run_id)
    return RunAnswer.model_validate(answer.runs[0].model_dump())


async def test_no_answer_is_an_ending_in_the_log_and_the_result(lab: Lab) -> None:
    without, found = await run(lab, "Where do zebras sleep?"), await run(lab, "Who lights the lamp at dusk?")
    assert (without.state, found.state) == ("no_answer", "success")
    [ended] = await lab.facts(without.subagent_id, RunEnded)
    [complete] = await lab.facts(without.subagent_id, SubagentComplete)
    assert ended.status == complete.status == complete.result["status"] == "no_answer"
    assert ended.severity == complete.severity == "warning"
    told, shown = run_text(without), result_text(without)
    assert f"[{without.subagent_id} no_answer]\n" in told and "Ended because: no passage answers the task" in told
    assert "Ended as no_answer: no passage answers the task.\n" in shown
    assert "may be incomplete" not in told + shown, "it is all that there was to hand over"


async def test_lists_and_reports_do_not_count_no_answer_as_a_success(lab: Lab) -> None:
    without, found = await run(lab, "Where do zebras sleep?"), await run(lab, "Who lights the lamp at dusk?")
    root = lab.root
    report = json.loads(ava(root, "report", "--json").stdout)
    assert {one["ending"]: one["runs_failed"] for one in report["by_ending"]} == {"no_answer": 1, "success": 0}
    [why] = report["failed"]
    assert (why["ending"], why["reason"], why["runs"]) == ("no_answer", "no passage answers the task", 1)
    status = ava(root, "status", "--once").stdout
    states = {words[0]: words[1:3] for line in status.splitlines() if len(words := line.split()) > 2}
    assert (states[without.subagent_id], states[found.subagent_id][0]) == (["no", "answer"], "success")
    errors = ava(root, "logs", "--type", "error").stdout
    assert without.subagent_id in errors and found.subagent_id not in errors
    assert ava(root, "wait", without.subagent_id).returncode == 17
