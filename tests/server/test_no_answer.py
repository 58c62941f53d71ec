"""A run whose reader found no answer ends as that: in the log, lists, reports, results and pages it is no success."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.runtime import Lab, open_lab
from support.terminal import ava

from ava_audit.events import RunEnded, SubagentComplete
from ava_roles.tool import ToolOutput
from ava_roles.tools.files import SearchAndRead
from ava_server.cli.results import exit_code, result_text
from ava_server.models.offline import NOT_FINISHED
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
    assert {one["ending"]: one["runs_failed"] for one in report["by_ending"]} == {"no_answer": 0, "success": 0}
    assert {one["ending"]: one["runs_that_found_nothing"] for one in report["by_ending"]} == {
        "no_answer": 1,
        "success": 0,
    }
    assert report["failed"] == []
    screen = ava(root, "report").stdout
    assert "2 ended, 0 of them failed, 1 found nothing." in screen and "Nothing failed." in screen
    status = ava(root, "status", "--once").stdout
    states = {words[0]: words[1:3] for line in status.splitlines() if len(words := line.split()) > 2}
    assert (states[without.subagent_id], states[found.subagent_id][0]) == (["no", "answer"], "success")
    errors = ava(root, "logs", "--type", "error").stdout
    assert without.subagent_id in errors and found.subagent_id not in errors
    assert ava(root, "wait", without.subagent_id).returncode == 17


@pytest.mark.parametrize(
    ("output", "says"),
    [
        ("Timed out after 60 s. Ask for less at once.", "search_and_read did not finish within 60 s"),
        (
            "1 files fit best (9,000 searched); not searched: 1,200 beyond the limits of one search: give a path\n"
            "Of 9,000 passages have: zebras 0, sleep 0\n\nTry other words.",
            "Files searched: 9,000. Not searched: 1,200 beyond the limits",
        ),
        ("Failed.\nthe folder cannot be read", "search_and_read returned nothing: the folder cannot be read"),
    ],
)
async def test_what_was_not_read_is_said_first_and_is_no_missing_answer(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, output: str, says: str
) -> None:
    async def search(*_args: object) -> ToolOutput:
        return ToolOutput(output.removeprefix("Failed.\n"), success=not output.startswith(("Timed", "Failed")))

    monkeypatch.setattr(SearchAndRead, "__call__", search)
    answer = await run(lab, "Where do zebras sleep?")
    assert (answer.state, answer.error and answer.error["kind"]) == ("error", "unread")
    assert exit_code(await lab.run(answer.subagent_id)) == 22
    result = answer.untrusted_result
    assert result is not None
    assert result.summary.startswith(f"{NOT_FINISHED} {says}")
    assert str(result.caveats[0]).startswith(says)
    told, shown = run_text(answer), result_text(answer)
    for text in (told, shown):
        assert "No answer found" not in text and "no passage" not in text.lower()
        assert "it is not known whether there is an answer" in text
    report = json.loads(ava(lab.root, "report", "--json").stdout)
    assert report["failed"][0]["reason"].startswith("not everything was read")
