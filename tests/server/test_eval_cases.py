"""Cases: what a run becomes as one, and what is refused as one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.model_server import Say
from support.runtime import Lab, hand_over, open_lab

from ava_audit.redaction import Redactor
from ava_server.core.errors import Refused
from ava_server.evals.case import Case, SuiteFaults, load_cases, write_case
from ava_server.evals.freeze import freeze
from ava_server.evals.recording import Recording, read_recording, recording_of

READ = Say(calls=[("read_file", {"path": "plant/report.md"})])
QUOTE = "The reactor cost 4.2 million in 2031"
ANSWER = hand_over(
    output="It cost 4.2 million.", findings=[{"claim": "cost", "source_url": "plant/report.md", "quote": QUOTE}]
)
KEY = "sk-ant-api03-" + "Zq9" * 30


async def ended_run(lab: Lab, **more: Any) -> Recording:
    (lab.workspace / "plant").mkdir(exist_ok=True)
    (lab.workspace / "plant" / "report.md").write_text(f"{QUOTE}.\nkey: {KEY}\n")
    (lab.workspace / "unread.md").write_text("nobody reads this")
    run_id = await lab.start(**more)
    await lab.ended(run_id)
    return recording_of(run_id, await lab.entries(run_id))


async def test_a_run_becomes_a_case_with_what_it_read_and_a_check_that_its_result_passes(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [READ, ANSWER]) as lab:
        recording = await ended_run(lab)
    suite = tmp_path / "suite"
    made = freeze(recording, suite, "reactor", Redactor({}))
    [case] = load_cases(suite)
    assert case == made.case.model_copy(update={"folder": suite})
    assert [check.kind for check in case.checks] == ["contains", "sources"]
    assert case.failures(recording.result) == []
    assert case.workspace == "reactor"
    assert [path.name for path in (suite / "reactor").rglob("*.md")] == ["report.md"]
    assert read_recording(suite / "reactor.jsonl").result == recording.result
    wrong = json.loads(json.dumps(recording.result).replace("4.2 million", "5.1 million"))
    assert case.failures(wrong) == ['the output lacks "4.2"']


async def test_no_secret_is_left_in_a_case(tmp_path: Path) -> None:
    secret = "hunter2-of-the-house"
    async with open_lab(tmp_path, [READ, ANSWER]) as lab:
        recording = await ended_run(lab, task=f"What did it cost? The door is {secret}.")
    suite = tmp_path / "suite"
    freeze(recording, suite, "reactor", Redactor({"door": secret}), whole=True)
    files = [path for path in suite.rglob("*") if path.is_file()]
    assert len(files) == 4
    assert not [path for path in files if secret in path.read_text() or KEY in path.read_text()]
    assert recording.run_id in (suite / "reactor.jsonl").read_text()
    assert '"userId":"recorded"' in (suite / "reactor.jsonl").read_text()


async def test_a_run_whose_result_proves_nothing_needs_a_check_of_its_own(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hand_over()]) as lab:
        recording = await ended_run(lab)
    with pytest.raises(Refused, match="follows no check that could fail"):
        freeze(recording, tmp_path / "suite", "one", Redactor({}))
    with pytest.raises(SuiteFaults, match="it can never fail: an empty text stands in every output"):
        freeze(recording, tmp_path / "suite", "one", Redactor({}), contains=[" "])
    assert list((tmp_path / "suite").iterdir()) == []
    freeze(recording, tmp_path / "suite", "one", Redactor({}), contains=["the answer"])
    assert [case.id for case in load_cases(tmp_path / "suite")] == ["one"]


async def test_a_workspace_that_is_gone_is_said_and_may_be_left_out(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [READ, ANSWER]) as lab:
        recording = await ended_run(lab)
    shutil.rmtree(tmp_path / "workspace")
    with pytest.raises(Refused, match="is gone or is another folder by now"):
        freeze(recording, tmp_path / "suite", "one", Redactor({}))
    assert freeze(recording, tmp_path / "suite", "one", Redactor({}), workspace=False).files == 0


FAULTS = {
    "syntax": ('task = "x\n', 1, "Illegal character"),
    "unknown": ('task = "x"\ncolour = "red"\n[[checks]]\nkind = "verify"\n', 2, "colour: Extra inputs"),
    "no-checks": ('task = "x"\n', 1, "checks: Field required"),
    "kind": (
        'task = "x"\n[[checks]]\nkind = "verify"\n[[checks]]\nkind = "guess"\n',
        4,
        "checks[2]: Input tag 'guess'",
    ),
    "outside": ('task = "x"\nworkspace = "../other"\n[[checks]]\nkind = "verify"\n', 2, "has to lie in the folder"),
    "gone": ('task = "x"\nworkspace = "papers"\n[[checks]]\nkind = "verify"\n', 2, "there is no folder 'papers'"),
    "any-value": ('task = "x"\n[[checks]]\nkind = "schema"\nschema = {}\n', 2, "this schema allows every value"),
    "absent": ('task = "x"\n[[checks]]\nkind = "absent"\ntexts = ["sorry"]\n', 2, "the checks can never fail"),
    "empty": ('task = "x"\n[[checks]]\nkind = "contains"\ntexts = []\n', 2, "it can never fail"),
}


def test_every_fault_of_every_case_is_named_with_its_line(tmp_path: Path) -> None:
    for name, (text, _line, _why) in FAULTS.items():
        (tmp_path / f"{name}.toml").write_text(text)
    (tmp_path / "suite.toml").write_text("not = 'a case'")
    with pytest.raises(SuiteFaults) as refused:
        load_cases(tmp_path)
    lines = str(refused.value).splitlines()
    assert len(lines) == len(FAULTS)
    for name, (_text, line, why) in FAULTS.items():
        [found] = [each for each in lines if each.startswith(str(tmp_path / f"{name}.toml"))]
        assert found.startswith(f"{tmp_path / name}.toml:{line}: ") and why in found, found


def test_a_case_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    fields: dict[str, Any] = {
        "task": 'Say "what"\nit cost.',
        "arguments": {"max_cost_cents": 5.0, "output_schema": {"type": "object", "required": ["cost"]}},
        "checks": [
            {"kind": "schema", "schema": {"type": "object", "required": ["cost"]}},
            {"kind": "equals", "value": 4},
        ],
    }
    case = Case.model_validate({**fields, "id": "one", "folder": tmp_path})
    write_case(case)
    assert load_cases(tmp_path) == [case]
    with pytest.raises(FileExistsError):
        write_case(case)
