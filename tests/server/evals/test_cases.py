"""Cases: what a run becomes as one, and what is refused as one."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.model_server import Say
from support.repositories.coding import PROJECT, RIGHT, coder_task, make_calls, project
from support.repositories.projects import git
from support.runtime import Lab, hand_over, open_lab
from support.sandboxes.attacks import needs_confinement

from ava_audit.redaction import Redactor
from ava_server.core.errors import BadInput, Refused
from ava_server.evals.case import Case, SuiteFaults, load_cases, write_case
from ava_server.evals.recording import Recording, freeze, read_recording, recording_of
from ava_server.suites.cells import frozen_copy

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


async def test_secrets_are_replaced_in_text_of_any_encoding_and_what_is_no_text_is_named(tmp_path: Path) -> None:
    secret = "hunter2-of-the-house"
    text = f"café\nthe door is {secret}\nkey: {KEY}\n"
    encodings = ("latin-1", "cp1252", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32")
    async with open_lab(tmp_path, [READ, ANSWER]) as lab:
        recording = await ended_run(lab)
        for name in encodings:
            (lab.workspace / f"{name}.txt").write_bytes(text.encode(name))
        (lab.workspace / "clean.bin").write_bytes(b"\x89PNG\r\n\xff\xd8\0\1\2\3")
        (lab.workspace / "told.bin").write_bytes(b"\xff\xd8\0\1" + secret.encode() + b"\xff\2")
    made = freeze(recording, tmp_path / "suite", "reactor", Redactor({"door": secret}), whole=True)
    kept = {path.name: path.read_bytes() for path in (tmp_path / "suite" / "reactor").iterdir() if path.is_file()}
    for name in encodings:
        said = kept[f"{name}.txt"].decode(name)
        assert "café\nthe door is [redacted:door]\nkey: [redacted:" in said and KEY not in said, said
    assert "clean.bin" in kept and "told.bin" not in kept
    assert made.left_out == (
        "told.bin, which is not text and has a secret", "the search for secrets in what is not text: clean.bin",
    )  # fmt: skip


async def test_a_run_without_an_answer_becomes_a_case_that_an_answer_fails(tmp_path: Path) -> None:
    async with open_lab(tmp_path, []) as lab:
        recording = await ended_run(lab, task="Who sank the Titanic?", model="offline")
    assert recording.result["status"] == "no_answer"
    with pytest.raises(BadInput, match="`suite`"):
        freeze(recording, tmp_path / "suite", "Suite", Redactor({}))
    freeze(recording, tmp_path / "suite", "none", Redactor({}))
    [case] = load_cases(tmp_path / "suite")
    assert case.failures(recording.result) == []
    assert case.failures({**recording.result, "status": "success"})


def test_a_check_passes_only_what_it_asks_for(tmp_path: Path) -> None:
    def failures(check: dict[str, Any], **result: Any) -> list[str]:
        case = Case.model_validate({"id": "one", "folder": tmp_path, "task": "x", "checks": [check]})
        return case.failures({"status": "success", **result})

    for value, other in ((1, True), (0, False), ([1], [True]), ({"a": 0}, {"a": False})):
        equals = {"kind": "equals", "value": value}
        assert failures(equals, untrusted_result={"output": value}) == []
        assert failures(equals, untrusted_result={"output": other})
        assert failures({**equals, "value": other}, untrusted_result={"output": value})
    finding = {"findings": [{"source_url": "a.md", "quote": QUOTE}]}
    for verdict, passes in (("found", True), ("near", False), ("not_found", False)):
        checked = [{"finding": 1, "verdict": verdict}]
        found = failures({"kind": "sources", "paths": ["a.md"]}, untrusted_result=finding, quotes_checked=checked)
        assert (found == []) == passes, verdict


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
    "digits": (f"task = {'9' * 5_000}\n", 1, "a number in it is too long"),
    "nested": (f"task = {'[' * 20_000}\n", 1, "nested too deep"),
    "dotted": (f'task = "x"\n[arguments]\na{".b" * 5_000} = 1\n', 2, "arguments: only what JSON has"),
    "date": ('task = "x"\n[arguments]\noutput_schema = {const = 2020-01-01}\n', 2, "arguments: only what JSON has"),
    "hex": (f'task = "x"\n[[checks]]\nkind = "equals"\nvalue = 0x{"f" * 5_000}\n', 2, "checks: only what JSON has"),
    "infinite": ('task = "x"\n[arguments]\nmax_cost_cents = inf\n', 2, "arguments: only what JSON has"),
}


def test_every_fault_of_every_case_is_named_with_its_line(tmp_path: Path) -> None:
    for name, (text, _line, _why) in FAULTS.items():
        (tmp_path / f"{name}.toml").write_text(text)
    (tmp_path / "suite.toml").write_text("not = 'a case'")
    (tmp_path / "endless.toml").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(SuiteFaults) as refused:
        load_cases(tmp_path)
    lines = str(refused.value).splitlines()
    for name in ("endless", "pipe"):
        lines.remove(f"{tmp_path / name}.toml:1: it is not a regular file")
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


# -- coders -----------------------------------------------------------------------------------------------------------


async def coder_run(tmp_path: Path, files: dict[str, str] | None = None, **more: Any) -> Recording:
    """Return a coder's run that mends `adding.py` of a project with a history and a remote."""
    needs_confinement(tmp_path)
    repository = project(tmp_path, **(files or {}))
    git(repository, "remote", "add", "origin", "https://git.example/secret-name.git")
    (repository / "not-tracked.txt").write_text("private")
    async with open_lab(tmp_path, make_calls(RIGHT)) as lab:
        run_id = await lab.start(**{**coder_task(), "workspace": str(repository), **more})
        await lab.ended(run_id, 60)
        return recording_of(run_id, await lab.entries(run_id))


async def test_a_case_of_a_coder_has_the_files_of_its_base_commit_alone(tmp_path: Path) -> None:
    recording = await coder_run(tmp_path, {"settings.py": f'KEY = "{KEY}"\n', "run.sh": "echo\n"})
    suite = tmp_path / "suite"
    made = freeze(recording, suite, "adds", Redactor({}))
    kept = {path.name: path.read_text() for path in (suite / "adds").iterdir()}
    assert kept == {**PROJECT, "run.sh": "echo\n", "settings.py": kept["settings.py"]}
    assert KEY not in kept["settings.py"] and made.left_out == ("keys, which were replaced in settings.py",)
    assert made.files == len(kept) and made.bytes == sum(len(text.encode()) for text in kept.values())
    assert made.base == recording.config.coding.base if recording.config.coding is not None else False
    [case] = load_cases(suite)
    assert [check.kind for check in case.checks] == ["verify"]
    assert case.failures(recording.result) == []
    copy, _sha = frozen_copy(case.path("adds"), repository=True)
    assert git(copy, "log", "--format=%s").splitlines() == ["The case"]
    assert git(copy, "remote") == "" and git(copy, "status", "--porcelain") == ""
    assert git(copy, "show", "HEAD:adding.py") == PROJECT["adding.py"]


async def test_a_coder_that_changed_nothing_solves_nothing(tmp_path: Path) -> None:
    recording = await coder_run(tmp_path)
    freeze(recording, tmp_path / "suite", "adds", Redactor({}), contains=["the answer"])
    [case] = load_cases(tmp_path / "suite")
    result = {**recording.result, "untrusted_result": {"output": "the answer"}}
    assert case.failures(result) == []
    assert case.failures({**result, "changes": {**result["changes"], "files": 0}}) == ["the coder changed nothing"]


async def test_a_verify_command_that_passes_on_the_untouched_base_is_no_check(tmp_path: Path) -> None:
    recording = await coder_run(tmp_path, verify="true")
    assert recording.result["changes"]["verified"]
    with pytest.raises(Refused, match=r"passed before the work already.*--contains.*a new test outside its namespace"):
        freeze(recording, tmp_path / "suite", "adds", Redactor({}))
    assert not (tmp_path / "suite").exists()
    case = Case.model_validate({"id": "one", "folder": tmp_path, "task": "x", "checks": [{"kind": "verify"}]})
    assert case.failures(recording.result) == [
        "the verify command passes without any work; add a check of the answer, or a test that fails"
    ]


async def test_a_repository_with_a_key_in_what_is_no_text_or_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = await coder_run(tmp_path, {"told.bin": "\x00\x01\x02" + KEY + "\x03"})
    suite = tmp_path / "suite"
    with pytest.raises(Refused, match=r"told\.bin has a key in it and is no text"):
        freeze(recording, suite, "adds", Redactor({}))
    monkeypatch.setattr("ava_server.evals.recording.MOST_BYTES", 100)
    with pytest.raises(Refused, match=r"cannot be kept: commit .* at most 20,000 files and 100 bytes"):
        freeze(recording, suite, "adds", Redactor({}))
    assert list(suite.iterdir()) == []
    made = freeze(recording, suite, "adds", Redactor({}), workspace=False)
    assert made.files == 0 and made.left_out[0].startswith("its repository ")


async def test_a_case_keeps_programs_and_links_of_its_own_and_names_what_leads_elsewhere(tmp_path: Path) -> None:
    needs_confinement(tmp_path)
    repository = project(tmp_path)
    (repository / "docs").mkdir()
    (repository / "docs" / "readme").symlink_to("../README.md")
    (repository / "docs" / "passwords").symlink_to("/etc/passwd")
    (repository / "docs" / "up").symlink_to("../../elsewhere")
    (repository / "check.sh").write_text("echo\n")
    (repository / "check.sh").chmod(0o755)
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "more")
    async with open_lab(tmp_path, make_calls(RIGHT)) as lab:
        run_id = await lab.start(**{**coder_task(), "workspace": str(repository)})
        await lab.ended(run_id, 60)
        recording = recording_of(run_id, await lab.entries(run_id))
    git(repository, "rm", "-qf", "README.md", "check.sh")  # what the checkout has meanwhile does not matter
    git(repository, "commit", "-qm", "less")
    made = freeze(recording, tmp_path / "suite", "adds", Redactor({}))
    kept = tmp_path / "suite" / "adds"
    assert (
        str((kept / "docs" / "readme").readlink()) == "../README.md"
        and (kept / "docs" / "readme").read_text() == "Adds.\n"
    )
    assert [path.name for path in (kept / "docs").iterdir()] == ["readme"]
    assert os.access(kept / "check.sh", os.X_OK) and not os.access(kept / "README.md", os.X_OK)
    assert made.left_out == ("submodules, and links to other places: docs/passwords, docs/up",)
