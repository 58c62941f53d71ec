"""A run whose reader found no answer ends as that: in the log, lists, reports, results and pages it is no success."""

import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.runtime import Lab, open_lab
from support.terminal import ava

from ava_audit.events import RunEnded, SubagentComplete, ToolResult
from ava_roles.tools.files import SearchAndRead
from ava_server.cli.results import exit_code, result_text
from ava_server.models.offline import NOT_ALL_READ, NOT_FINISHED
from ava_server.render.host_text import run_text
from ava_server.render.responses import RunAnswer

TEXT = "The lamp is lit by the keeper every evening at dusk.\n"


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    async with open_lab(tmp_path, [], check=False) as lab:
        (lab.workspace / "a.md").write_text(TEXT)
        yield lab


async def run(lab: Lab, task: str, **more: Any) -> RunAnswer:
    await lab.ended(run_id := await lab.start(task=task, model="offline", **more))
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
    assert "Ended as no answer: no passage answers the task.\n" in shown
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
    for sign_and_state, run_id in (("∅ no answer", without.subagent_id), ("✓ success", found.subagent_id)):
        assert re.search(rf"^{sign_and_state} +{run_id} ", status, re.MULTILINE), status
    errors = ava(root, "logs", "--type", "error").stdout
    assert without.subagent_id not in errors and found.subagent_id not in errors, "nothing went wrong"
    assert ava(root, "wait", without.subagent_id).returncode == 17


def many_files(folder: Path) -> None:
    """Write more text than is searched within a moment."""
    text = "The harbour has boats of every kind, and a crane that lifts them.\n" * 400
    for number in range(200):
        (folder / f"z{number}.md").write_text(text)


def assert_not_everything_was_read(lab: Lab, answer: RunAnswer, says: str) -> None:
    assert (answer.state, answer.error and answer.error["kind"]) == ("error", "unread")
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


async def test_a_search_that_runs_out_of_time_is_said_first_and_is_no_missing_answer(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    many_files(lab.workspace)
    monkeypatch.setattr(SearchAndRead, "spec", replace(SearchAndRead.spec, timeout_s=0.05))
    answer = await run(lab, "Where do zebras sleep?")
    assert_not_everything_was_read(lab, answer, "search_and_read did not finish within 0.05 s, and returned nothing.")
    assert exit_code(await lab.run(answer.subagent_id)) == 22
    [result] = [each for each in await lab.facts(answer.subagent_id, ToolResult) if each.tool == "search_and_read"]
    assert result.unread == "search_and_read did not finish within 0.05 s, and returned nothing."
    errors = ava(lab.root, "logs", "--type", "error").stdout
    assert answer.subagent_id in errors


async def test_a_search_that_reaches_its_limits_is_said_first_and_is_no_missing_answer(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    many_files(lab.workspace)
    monkeypatch.setattr("ava_roles.texts.reading.MAX_ENTRIES", 5)
    answer = await run(lab, "Where do zebras sleep?")
    assert_not_everything_was_read(lab, answer, "Files searched: ")
    found = await run(lab, "Who lights the lamp at dusk?")
    assert found.state == "success" and found.untrusted_result is not None
    assert found.untrusted_result.summary.startswith(f"{NOT_ALL_READ} Files searched: ")


async def test_a_search_ends_in_time_and_the_next_one_goes_on(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    many_files(lab.workspace)
    with monkeypatch.context() as hurry:
        hurry.setattr("ava_roles.tools.files.SHARE_OF_TIME", 0)
        answer = await run(lab, "Who lights the lamp at dusk?")
        assert_not_everything_was_read(lab, answer, "Files searched: 0. Not searched: ")
    found = await run(lab, "Who lights the lamp at dusk?")
    assert found.state == "success" and found.untrusted_result is not None
    assert NOT_ALL_READ not in found.untrusted_result.summary


async def test_where_every_call_failed_nothing_was_read(lab: Lab) -> None:
    task = "What does plan.md say of zebras?"
    assert (await run(lab, task)).state == "no_answer", "the search beside it came to its end"
    answer = await run(lab, task, tools=["read_file"])
    assert_not_everything_was_read(lab, answer, "read_file returned nothing: ")


def test_results_of_older_logs_leave_nothing_unread() -> None:
    assert ToolResult(tool="search_and_read", success=True).unread is None


async def test_words_in_a_file_do_not_make_a_search_unfinished(lab: Lab) -> None:
    (lab.workspace / "a.md").write_text(f"{NOT_FINISHED} beyond the limits. Timed out after 60 s.\n")
    answer = await run(lab, "Where do zebras sleep?")
    assert answer.state == "no_answer"
