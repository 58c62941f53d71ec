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
from ava_roles.texts.extracted import OLE_MAGIC
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


def assert_nothing_failed(lab: Lab, answer: RunAnswer) -> None:
    """Check each surface that counts, lists or colours runs, and the exit code."""
    root, run_id = lab.root, answer.subagent_id
    report = json.loads(ava(root, "report", "--json").stdout)
    assert report["failed"] == [] and {one["runs_failed"] for one in report["by_ending"]} == {0}
    errors = ava(root, "logs", "--type", "error").stdout
    assert not re.search(rf"{run_id} (SubagentComplete|RunEnded|ErrorOccurred)", errors), "only calls may have failed"
    assert re.search(rf"^∅ no answer +{run_id} ", ava(root, "status", "--once").stdout, re.MULTILINE)
    waited = ava(root, "wait", run_id)
    assert waited.returncode == 22 and "Error" not in waited.stdout and "Ended as no answer" in waited.stdout
    assert "What to do" not in run_text(answer)


OLD_FILE = OLE_MAGIC + bytes(600)


async def test_a_file_that_cannot_be_read_is_named_and_makes_no_error_of_no_answer(lab: Lab) -> None:
    for number in range(12):
        (lab.workspace / f"n{number}.md").write_text(TEXT)
    (lab.workspace / "plan.doc").write_bytes(OLD_FILE)
    answer = await run(lab, "Where do zebras sleep?")
    assert (answer.state, answer.error) == ("no_answer", None)
    result = answer.untrusted_result
    assert result is not None
    file = (
        "plan.doc: this Word document cannot be read: it is in an old binary format; ask for a copy saved as .docx, "
        "or open it in Word or LibreOffice and save it so."
    )
    first, *rest = result.summary.split(". ", 1)
    assert first == "No answer found: none of the searched text has zebras, sleep"
    assert (
        rest[0].startswith(f"{NOT_ALL_READ} Files searched: 13. Not searched: 1 document that cannot be read. ")
        and file in rest[0]
    )
    assert [caveat for caveat in result.caveats if "plan.doc" in str(caveat)] == [file], "it is said once"
    assert answer.stop_reason == "no passage answers the task; not everything was read"
    assert_nothing_failed(lab, answer)


NOT_KNOWN = {
    "more than a tenth": ("Where do zebras sleep?", 7, "a.doc"),
    "named": ("What does plan.doc say of zebras?", 40, "plan.doc"),
    "named without its ending": ("Where do zebras sleep in the budget of 2019?", 40, "Budget 2019.doc"),
}


@pytest.mark.parametrize("case", NOT_KNOWN)
async def test_where_the_answer_may_stand_in_an_unread_file_it_is_not_known(lab: Lab, case: str) -> None:
    task, others, unread = NOT_KNOWN[case]
    for number in range(others):
        (lab.workspace / f"n{number}.md").write_text(TEXT)
    (lab.workspace / unread).write_bytes(OLD_FILE)
    answer = await run(lab, task)
    result = answer.untrusted_result
    assert answer.state == "no_answer" and result is not None
    assert result.summary.startswith(NOT_FINISHED)
    [named] = [str(caveat) for caveat in result.caveats if unread in str(caveat)]
    assert named.startswith(f"{unread}: this Word document cannot be read: ") and named in result.summary
    assert answer.stop_reason == "not everything was read, so it is not known whether there is an answer"
    assert exit_code(await lab.run(answer.subagent_id)) == 22


async def test_of_a_file_that_the_question_names_the_unread_end_counts(lab: Lab) -> None:
    for number in range(20):
        (lab.workspace / f"n{number}.md").write_text(TEXT)
    (lab.workspace / "long.txt").write_bytes(b"The harbour has boats.\n" * 450_000)
    assert (
        await run(lab, "Where do zebras sleep?")
    ).stop_reason == "no passage answers the task; not everything was read"
    answer = await run(lab, "Where do zebras sleep, in long.txt?")
    assert answer.stop_reason == "not everything was read, so it is not known whether there is an answer"


async def test_every_unread_file_has_its_reason(lab: Lab) -> None:
    (lab.workspace / "a.doc").write_bytes(OLD_FILE)
    (lab.workspace / "b.docx").write_bytes(b"PK damaged")
    (lab.workspace / "c.txt").write_bytes(b"a" * 10_000_001)
    result = (await run(lab, "Where do zebras sleep?")).untrusted_result
    assert result is not None
    caveats = [str(caveat) for caveat in result.caveats]
    reasons = {
        "a.doc": "an old binary format",
        "b.docx": "damaged or not a .docx file",
        "c.txt": "too large or damaged",
    }
    for name, reason in reasons.items():
        [caveat] = [caveat for caveat in caveats if caveat.startswith(f"{name}: ")]
        assert reason in caveat


def assert_not_everything_was_read(lab: Lab, answer: RunAnswer, says: str) -> None:
    assert (answer.state, answer.error) == ("no_answer", None)
    result = answer.untrusted_result
    assert result is not None
    assert result.summary.startswith(f"{NOT_FINISHED} {says}")
    assert str(result.caveats[0]).startswith(says)
    told, shown = run_text(answer), result_text(answer)
    for text in (told, shown):
        assert "No answer found" not in text and "no passage" not in text.lower()
        assert "it is not known whether there is an answer" in text
        assert "set a model" not in text and "ava key set" not in text, "a model could read no more of it"


async def test_a_search_that_runs_out_of_time_is_said_first_and_is_no_missing_answer(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    many_files(lab.workspace)
    monkeypatch.setattr(SearchAndRead, "spec", replace(SearchAndRead.spec, timeout_s=0.001))
    answer = await run(lab, "Where do zebras sleep?")
    assert_not_everything_was_read(lab, answer, "search_and_read did not finish within 0.001 s, and returned nothing.")
    assert_nothing_failed(lab, answer)
    [result] = [each for each in await lab.facts(answer.subagent_id, ToolResult) if each.tool == "search_and_read"]
    assert result.unread == "search_and_read did not finish within 0.001 s, and returned nothing."


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
