"""Recordings: the entries of an ended run, from the log or from a file of lines as the log's mirror has them.

That of a run which a plan has queued begins with the plan's proposal and the decision on it.

`freeze` makes a case of one: with the files that it read, and a check that is proposed from its result.
"""

from __future__ import annotations

import codecs
import io
import json
import os
import posixpath
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from ava_audit.entries import GENESIS, Entry, content_sha, entry_of_line, mirror_line
from ava_audit.events import (
    Fact,
    RunClaimed,
    RunEnded,
    RunStarted,
    SpawnDecided,
    SpawnProposed,
    StepRunQueued,
    SubagentComplete,
    ToolResult,
    UserMessage,
)
from ava_audit.redaction import Redactor
from ava_audit.reducers import step_run_config
from ava_audit.rows import RunRow
from ava_audit.view import View
from ava_roles.errors import FolderReplaced, RolesError, ToolFailed
from ava_roles.role import Role, parse_role
from ava_roles.sandbox.paths import Root, shown
from ava_roles.tools.registry import tool_specs
from ava_roles.worktree.inspect import TrackedFile, read_commit
from ava_roles.worktree.repository import UserRepository
from ava_roles.wrap import list_names
from ava_server.approval.lookup import approval_of
from ava_server.core.errors import BadInput, ConfigError, Refused
from ava_server.core.ids import IN_PROCESS
from ava_server.evals.case import (
    SUITE,
    Case,
    Check,
    Contains,
    Endings,
    Schema,
    Sources,
    Verify,
    output_text,
    read_bytes,
    write_case,
)
from ava_server.run_config.brief import Brief
from ava_server.run_config.config import RunConfig
from ava_server.run_config.parts import Coding
from ava_server.runs.record.quotes import normalize

F = TypeVar("F", bound=Fact)
RECORDING_BYTES = 200_000_000
_NOBODY = "recorded"
"""In place of the user and the session in a file."""


@dataclass(frozen=True)
class Recording:
    """An ended run of Ava's own, with all that was said in it."""

    entries: tuple[Entry, ...]

    @property
    def run_id(self) -> str:
        if self._queued is not None:
            return self._queued.subagent_id
        return self.first(SpawnProposed).subagent_id

    @cached_property
    def config(self) -> RunConfig:
        """What was approved, with what was changed at the approval."""
        return RunConfig.model_validate({**self.proposed.config, **self.decided.changes})

    @cached_property
    def proposed(self) -> SpawnProposed:
        """Its proposal; of a run that a plan has queued, what was approved of it with the plan, as its own."""
        proposed = self.first(SpawnProposed)
        queued = self._queued
        if queued is None:
            return proposed
        plan = RunConfig.model_validate({**proposed.config, **self.first(SpawnDecided).changes})
        for step in plan.steps:
            if step.id == queued.step:
                config = step_run_config(step.config.model_dump(mode="json", exclude_none=True), queued)
                return proposed.model_copy(update={"config": config, "subagent_id": queued.subagent_id})
        raise ValueError(f"the plan {queued.group_id} has no step {queued.step}")

    @property
    def decided(self) -> SpawnDecided:
        """The decision on `proposed`, as if it ran alone: what was changed of a plan is in its steps already."""
        alone: dict[str, Any] = {"group_id": None, "step": None}
        if self._queued is not None:
            alone["changes"] = {}
        return self.first(SpawnDecided).model_copy(update=alone)

    @property
    def _queued(self) -> StepRunQueued | None:
        queued = self.facts(StepRunQueued)
        return queued[0] if queued else None

    @property
    def task(self) -> UserMessage:
        return next(fact for fact in self.facts(UserMessage) if fact.kind == "task")

    @property
    def role(self) -> Role:
        return parse_role(self.config.role_text, self.config.role_source, self.config.role)

    @property
    def brief(self) -> Brief:
        return Brief.of_message(self.task)

    @property
    def result(self) -> dict[str, Any]:
        return self.first(SubagentComplete).result

    @cached_property
    def ended_from_outside(self) -> bool:
        """Whether it was ended while no process worked on it, such as by a cancel in the queue."""
        return any(isinstance(entry.fact, SubagentComplete) and entry.generation is None for entry in self.entries)

    @cached_property
    def redacted(self) -> bool:
        """Whether secrets were replaced in it after it was recorded: its requests then have other bytes."""
        return any(content_sha((entry.content or "").encode()) != entry.content_sha for entry in self.entries)

    def facts(self, kind: type[F]) -> list[F]:
        return [entry.fact for entry in self.entries if isinstance(entry.fact, kind)]

    def first(self, kind: type[F]) -> F:
        return self.facts(kind)[0]

    def lines(self, redactor: Redactor) -> bytes:
        """Return it as lines of JSON, without the names of user and session and without secrets.

        Only the log has the provider's own messages with the secrets that a model wrote.
        """
        return b"".join(mirror_line((*_without_secrets(entry, redactor), GENESIS)) for entry in self.entries)


def recording_in(view: View, run: RunRow) -> Recording:
    """Return the recording of a run of a log. Raises Refused if it cannot be run again; says why."""
    entries = view.entries(run.id)
    approval = approval_of(view, run)
    if approval.run_id != run.id:
        entries = [*approval.entries, *entries]
    return recording_of(run.id, entries)


def recording_of(run_id: str, entries: Sequence[Entry]) -> Recording:
    """Return the recording that these entries of a run are. Raises Refused if it cannot be run again; says why."""
    if any(entry.fact is None for entry in entries):
        raise Refused(f"{run_id}: its words were erased, so that its requests cannot be made again; choose another run")
    recording = Recording(tuple(entries))
    has_task = any(fact.kind == "task" for fact in recording.facts(UserMessage))
    if not has_task or not recording.facts(SpawnProposed) or not recording.facts(SpawnDecided):
        raise Refused(f"{run_id}: its proposal, task or approval is not there; record it again from its log")
    try:
        if recording.config.steps:
            raise Refused(
                f"{run_id}: a plan asks no model itself; name one of its runs, which `ava show {run_id}` lists"
            )
        runner, _ = recording.config.runner, recording.role
    except (ValueError, RolesError) as error:
        why = str(error).partition("\n")[0]
        raise Refused(f"{run_id}: what was approved is not valid ({why}); record it again from its log") from None
    if runner != IN_PROCESS:
        raise Refused(
            f"{run_id}: another agent ({runner}) did its work and wrote its own requests; only runs of Ava's own can be"
            " run again"
        )
    if not recording.facts(SubagentComplete) or not recording.facts(RunEnded):
        raise Refused(f"{run_id}: it has not ended yet; wait for it with `ava wait {run_id}`")
    if not recording.facts(RunStarted) or not recording.facts(RunClaimed):
        raise Refused(f"{run_id}: it ended before it asked a model anything, so there is nothing to run again")
    return recording


def read_recording(path: Path) -> Recording:
    """Return the recording in a file. Blocking. Raises ConfigError if it is none; Refused if it cannot be run again."""
    entries: list[Entry] = []
    try:
        for number, line in enumerate(io.BytesIO(read_bytes(path, RECORDING_BYTES)), 1):
            try:
                entries.append(entry_of_line(line))
                _ = entries[-1].fact
            except (ValueError, RecursionError) as error:
                why = str(error).partition("\n")[0]
                raise ConfigError(f"{path}:{number}: it is not an entry of a log ({why})") from None
    except OSError as error:
        raise ConfigError(f"{path}: it cannot be read ({error.strerror})") from error
    return recording_of(path.name, entries)


def _without_secrets(entry: Entry, redactor: Redactor) -> Entry:
    """Return an entry without secrets and names; its hashes stay those of the log."""
    content = json.loads(entry.content or "{}")
    redacted = redactor.redact_json(content)
    text = entry.content
    if redacted != content:
        text = json.dumps(redacted, ensure_ascii=False, separators=(",", ":"))
    return entry._replace(session_id=_NOBODY, user_id=_NOBODY, content=text)


# -- a case of it ------------------------------------------------------------------------------------------------------

MOST_FILES = 1_000
MOST_FILE_BYTES = 10_000_000
MOST_BYTES = 50_000_000
"""The most that is kept of a workspace: files, bytes of each, and bytes in all."""
MOST_TRACKED = 20_000
"""Files of a commit that are kept, of at most `MOST_BYTES` in all."""
MOST_FIGURES = 5
MOST_NAMED = 10
_FIGURE = re.compile(r"\w*\d[\w.,:%/€$£-]*\d%?|\d%")
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_BINARY = re.compile(r"[\0-\x07\x0e-\x1a\x1c-\x1f]")
_KEPT = ("context_from", "role", "workspace", "name", "task_id", "rationale")
"""Arguments of the call that are not the case's own: it has them elsewhere, or they are of this data root."""


@dataclass(frozen=True)
class Frozen:
    """A new case: its file, how many files with how many bytes are with it, and what was left out, in sentences.

    Attributes:
        base: The commit whose tracked files are with it; None unless a coder made the run.
    """

    case: Case
    path: Path
    files: int
    left_out: tuple[str, ...]
    bytes: int = 0
    base: str | None = None


def freeze(
    recording: Recording,
    folder: Path,
    case_id: str,
    redactor: Redactor,
    *,
    workspace: bool = True,
    whole: bool = False,
    contains: Sequence[str] = (),
) -> Frozen:
    """Write a run as a case into a folder, which is made where it is missing. Blocking.

    With `workspace` the files that the run read are kept, with `whole` all of its workspace; of a coder's run, all that
    its base commit tracks. The case's output has to contain the texts of `contains`, or pass the checks that are
    proposed from the run's result.

    Raises:
        BadInput: The name is taken or none.
        Refused: Its workspace or base commit is gone or too large, a file with a key in it is no text, or no check that
            could fail follows from its result.
        SuiteFaults: The check that was given can never fail.
    """
    _check_case_id(case_id)
    checks: Sequence[Check] = (Contains(texts=tuple(contains)),)
    if not contains:
        checks = propose_checks(recording)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".new-") as path:
        new = Path(path)
        files, left_out = _copy_files(recording, new, redactor, workspace=workspace, whole=whole)
        case = _case_of(recording, folder, case_id, checks, redactor, with_files=files > 0)
        coding = recording.config.coding
        base = None
        if coding is not None and files:
            base = coding.base
        size = _size(new)
        file = _write(case, recording.lines(redactor), new)
        return Frozen(case, file, files, tuple(left_out), size, base)


def _check_case_id(case_id: str) -> None:
    """Raises BadInput if a case cannot have this id: its files would be hidden, elsewhere, or the suite's own."""
    is_file_name = re.fullmatch(r"[\w.-]{1,80}", case_id) is not None
    is_hidden = case_id.startswith(".")
    is_suite_file = f"{case_id}.toml".lower() == SUITE
    if not is_file_name or is_hidden or is_suite_file:
        raise BadInput(f"--id: {case_id!r} cannot name a case; use letters, digits, `-` and `_`, but not `suite`")


def _copy_files(
    recording: Recording, target: Path, redactor: Redactor, *, workspace: bool, whole: bool
) -> tuple[int, list[str]]:
    """Copy the files that a case keeps; return how many, and what was left out."""
    config = recording.config
    files = 0
    left_out: list[str] = []
    if config.coding is not None and workspace:
        files, left_out = _copy_base(recording.run_id, config.coding, target, redactor)
    elif config.coding is not None:
        left_out.append(f"its repository {config.coding.repository} (commit {config.coding.base[:12]})")
    elif config.workspace is not None and workspace:
        files, left_out = _copy_workspace(recording, Path(config.workspace), target, redactor, whole=whole)
    if config.context_from:
        run_ids = ", ".join(run.id for run in config.context_from)
        left_out.append(f"the results of {run_ids}, which it could read")
    inputs = [each["name"] for each in recording.task.inputs or ()]
    if inputs:
        left_out.append(f"what other runs of its plan handed over to it: {list_names(inputs, MOST_NAMED)}")
    return files, left_out


def _case_of(
    recording: Recording, folder: Path, case_id: str, checks: Sequence[Check], redactor: Redactor, *, with_files: bool
) -> Case:
    config, brief, redact = recording.config, recording.brief, redactor.redact_json
    return Case(
        id=case_id,
        folder=folder,
        task=redact(brief.task),
        role=config.role,
        context=redact(brief.context),
        system_prompt=redact(brief.system_prompt),
        workspace=case_id if with_files else None,
        recording=f"{case_id}.jsonl",
        arguments={name: redact(value) for name, value in config.asked.items() if name not in _KEPT},
        checks=tuple(_redact_check(check, redactor) for check in checks),
    )


def _size(folder: Path) -> int:
    size = 0
    for path in folder.rglob("*"):
        if path.is_file() or path.is_symlink():
            size += path.lstat().st_size
    return size


def _redact_check(check: Check, redactor: Redactor) -> Check:
    """Return a check without secrets: it was made of what the run wrote."""
    fields = redactor.redact_json(check.model_dump(mode="json", by_alias=True))
    return type(check).model_validate(fields)


def _write(case: Case, recording: bytes, workspace: Path) -> Path:
    """Write all of a case or nothing, and return its file. Raises BadInput if its name is taken."""
    folder = case.folder
    lines = folder / f"{case.id}.jsonl"
    names = [f"{case.id}.toml", lines.name]
    if case.workspace:
        names.append(case.id)
    for name in names:
        if (folder / name).exists():
            raise BadInput(f"--id: there is a {name} in {folder} already; give another --id")
    lines.write_bytes(recording)
    try:
        if case.workspace:
            shutil.copytree(workspace, folder / case.id, symlinks=True)
        return write_case(case)
    except BaseException:
        lines.unlink()
        shutil.rmtree(folder / case.id, ignore_errors=True)
        raise


def propose_checks(recording: Recording) -> tuple[Check, ...]:
    """Return checks that the run's own result passes and an empty answer fails. Raises Refused if there are none."""
    result, config = recording.result, recording.config
    if result["status"] == "no_answer":
        return (Endings(any=("no_answer",)),)
    changes: Mapping[str, Any] = result.get("changes") or {}
    verify: Mapping[str, Any] = changes.get("verify") or {}
    before: Mapping[str, Any] = verify.get("before") or {}
    checks: list[Check] = []
    failed_before = before.get("passed") is False
    if failed_before and changes.get("verified") and changes.get("files"):
        checks.append(Verify())
    if config.output_schema is not None:
        schema = Schema(schema=config.output_schema)
        if schema.fault() is None:
            checks.append(schema)
    findings = _quoted_findings(result)
    figures = _figures(findings, normalize(output_text(result)), recording.brief.task)
    if figures:
        checks.append(Contains(texts=figures))
    sources: dict[str, None] = {}
    for finding in findings:
        if finding.get("source_url"):
            sources[str(finding["source_url"])] = None
    if sources:
        checks.append(Sources(paths=tuple(sources)[:MOST_FIGURES]))
    if not checks and before.get("passed"):
        raise Refused(
            f"{recording.run_id}: its verify command passed before the work already, so it cannot tell whether the work"
            ' was done. Say what its answer has to contain (--contains "TEXT"), or run the coder again with a --verify'
            " that fails until the work is done, such as a new test outside its namespace"
        )
    if result["status"] != "success" or not checks:
        raise Refused(
            f"{recording.run_id}: from its result ({result['status']}) follows no check that could fail: no quote was"
            " found in a source, there is no schema, and no verify command failed before and passed after. Say what its"
            ' answer has to contain: --contains "TEXT"'
        )
    return tuple(checks)


def _quoted_findings(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the findings whose quotes were found in what the run read."""
    numbers: set[int] = set()
    for check in result.get("quotes_checked") or ():
        if check["verdict"] == "found":
            numbers.add(check["finding"])
    findings: Sequence[Mapping[str, Any]] = result["untrusted_result"].get("findings") or ()
    return [finding for number, finding in enumerate(findings, 1) if number in numbers]


def _figures(findings: Sequence[Mapping[str, Any]], output: str, task: str) -> tuple[str, ...]:
    """Return the numbers of the quotes that are also in the output, and not in the task."""
    figures: dict[str, None] = {}
    for finding in findings:
        for figure in _FIGURE.findall(normalize(str(finding.get("quote")))):
            if figure in output and figure not in task:
                figures[figure] = None
    return tuple(figures)[:MOST_FIGURES]


def _copy_workspace(
    recording: Recording, workspace: Path, target: Path, redactor: Redactor, *, whole: bool
) -> tuple[int, list[str]]:
    """Copy what a run read of its workspace, or all of it; return how many files, and what was left out."""
    size = count = 0
    left_out: list[str] = []
    not_text: list[str] = []
    with closing(_open(recording, workspace)) as root:
        if whole:
            names = [entry.name for entry in root.walk()]
        else:
            names = _names_read(recording)
        if len(names) > MOST_FILES:
            left_out.append(f"{len(names) - MOST_FILES:,} files beyond the first {MOST_FILES:,}")
        for name in names[:MOST_FILES]:
            try:
                data, more = root.read(name, MOST_FILE_BYTES)
            except ToolFailed as error:
                left_out.append(str(error))
                continue
            if more or size + len(data) > MOST_BYTES:
                left_out.append(f"{shown(name)}, which is too large")
                continue
            redacted, is_text = _redact_bytes(data, redactor)
            if not is_text:
                if redacted != data:
                    left_out.append(f"{shown(name)}, which is not text and has a secret")
                    continue
                not_text.append(shown(name))
            path = target.joinpath(*root.parts(name))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(redacted)
            size += len(data)
            count += 1
        if not_text:
            left_out.append(f"the search for secrets in what is not text: {list_names(not_text, MOST_NAMED)}")
        runs_commands = not {"run_bash", "python_exec"}.isdisjoint(recording.config.tools)
        if runs_commands and not whole:
            left_out.append("files that only its commands read (--whole keeps all)")
    return count, left_out


def _copy_base(run_id: str, coding: Coding, target: Path, redactor: Redactor) -> tuple[int, list[str]]:
    """Copy what the base commit of a coder's run tracks; return how many files, and what was left out or replaced."""
    replaced: list[str] = []
    outside: list[str] = []
    try:
        checkout = UserRepository.at(Path(coding.repository), Path.home(), coding.identity)
        tracked = read_commit(checkout, coding.base, MOST_TRACKED, MOST_BYTES)
    except (RolesError, OSError) as error:
        raise Refused(
            f"{run_id}: the files of its repository {coding.repository} cannot be kept: {error}. --no-workspace makes a"
            " case of the recording alone"
        ) from error
    count = 0
    for file in tracked:
        is_link = file.kind == "link"
        leads_outside = is_link and not _stays_inside(file)
        if leads_outside or file.kind == "submodule":
            outside.append(shown(file.name))
            continue
        data, is_text = _redact_bytes(file.data, redactor)
        if data != file.data:
            if is_link or not is_text:
                raise Refused(
                    f"{run_id}: {shown(file.name)} has a key in it and is no text, so it cannot be replaced there; take"
                    " it out of the repository and run the coder again, or --no-workspace makes a case of the recording"
                    " alone"
                )
            replaced.append(shown(file.name))
        path = target.joinpath(*PurePosixPath(file.name).parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        if is_link:
            path.symlink_to(os.fsdecode(data))
        else:
            mode = 0o644
            if file.kind == "program":
                mode = 0o755
            path.write_bytes(data)
            path.chmod(mode)
        count += 1
    left_out: list[str] = []
    if outside:
        left_out.append(f"submodules, and links to other places: {list_names(outside, MOST_NAMED)}")
    if replaced:
        left_out.append(f"keys, which were replaced in {list_names(replaced, MOST_NAMED)}")
    return count, left_out


def _stays_inside(link: TrackedFile) -> bool:
    """Tell whether a link leads to a place beneath the root of its tree."""
    target = PurePosixPath(os.fsdecode(link.data))
    place = posixpath.normpath(PurePosixPath(link.name).parent / target)
    return not target.is_absolute() and place.split("/")[0] not in ("..", ".git")


def _open(recording: Recording, workspace: Path) -> Root:
    try:
        return Root.open_approved(workspace, recording.config.workspace_identity)
    except (OSError, FolderReplaced) as error:
        raise Refused(
            f"{recording.run_id}: its workspace {workspace} is gone or is another folder by now, so it cannot be kept;"
            " --no-workspace makes a case of the recording alone"
        ) from error


def _names_read(recording: Recording) -> list[str]:
    """Return the files that the run's tools name as their sources."""
    tools = {name for name, spec in tool_specs().items() if spec.files}
    places: set[str] = set()
    for result in recording.facts(ToolResult):
        if result.tool in tools and result.success:
            places.update(str(source["location"]) for source in result.sources)
    places.discard(".")
    return sorted(places)


def _redact_bytes(data: bytes, redactor: Redactor) -> tuple[bytes, bool]:
    """Return a file's bytes without secrets, and whether it is text; latin-1 decodes everything."""
    by_mark = [name for mark, name in _MARKS if data.startswith(mark)][:1]
    guessed: list[str] = []
    if not by_mark and data.count(0) * 4 > len(data):
        guessed = ["utf-16-le", "utf-16-be"]
    is_text = False
    for encoding in (*by_mark, *guessed, "utf-8", "latin-1"):
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError:
            continue
        if not _BINARY.search(text):
            is_text = True
        redacted, secrets = redactor.redact_lines(text)
        if secrets:
            return redacted.encode(encoding, "replace"), is_text
        if encoding not in guessed:
            break
    return data, is_text
