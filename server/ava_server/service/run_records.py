"""What a person's screens show of runs and budgets, and what a coder changed; the answers of `record_requests`.

Files that a run delivered can be read: only those that its result names, and only unchanged ones.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ava_audit.events import ToolCall
from ava_audit.rows import ASKING, EXPIRED, HELD, INTERRUPTED, WAITING, RunRow
from ava_audit.units import now_us
from ava_audit.view import View
from ava_roles.errors import RolesError
from ava_roles.wrap import clean, show_controls
from ava_server.approval.proposals import Pending, SpawnLimits, brief_of, pending_proposal
from ava_server.core.errors import Refused
from ava_server.core.ids import label
from ava_server.render.approvals import RunDecision, decisions_on
from ava_server.render.entry_lines import Step, compact, recent_steps
from ava_server.render.responses import RunAnswer
from ava_server.render.run_view import Processes, ProcessesNow, RunView, run_answer, state_now, view_run
from ava_server.run_config.brief import Brief
from ava_server.run_config.config import config_of
from ava_server.run_config.parts import Coding
from ava_server.runs.asking.pending_questions import OpenQuestions
from ava_server.service.current import CurrentRuns, current_rows

if TYPE_CHECKING:
    from ava_audit.redaction import Redactor
    from ava_audit.store.backend import Blobs

ORDER = (WAITING, *ASKING, HELD, INTERRUPTED, "running", "queued", EXPIRED)
"""The states of runs that have not ended, in the order of a list: first what waits for a person."""
TOOL_CHARS = 40
_WHOLE_FILES = 1_000_000
"""Unchanged lines around each change: enough that a diff contains whole files."""


CurrentViews = CurrentRuns[RunView]


@dataclass(frozen=True)
class ListedRuns:
    """Some runs, without their results."""

    runs: list[RunView]


@dataclass(frozen=True)
class RunDiff:
    """What a coder changed, as a unified diff without secrets."""

    text: str


@dataclass(frozen=True)
class RunRecord:
    """A run with its whole result.

    Attributes:
        texts: Its brief, under its name over HTTP; None where it was erased.
        decided: Who decided about it; None from a server of an older version.
    """

    row: RunRow
    answer: RunAnswer
    texts: Brief | None
    decided: tuple[RunDecision, ...] | None = None


@dataclass(frozen=True)
class RunDetail:
    """A run with what its screen shows besides, out of one state of the log.

    Attributes:
        texts: The brief, under its name over HTTP; None where it was erased.
        decided: Who decided about it.
        steps: Its last actions.
        tools: How often it has called each tool.
        waiting: Its proposal, where it waits.
    """

    run: RunView
    texts: Brief | None
    decided: tuple[RunDecision, ...]
    steps: tuple[Step, ...]
    tools: dict[str, int]
    waiting: Pending | None


def current_runs(
    view: View,
    user: str | None,
    processes: Processes,
    at_us: int,
    *,
    served: Callable[[], bool],
    most: int,
    rows: tuple[list[RunRow], list[RunRow]] | None = None,
) -> tuple[dict[str, int], tuple[RunView, ...]]:
    """Return how many runs are in each state or have `ended` or expired lately, and the runs in the order of a list.

    Of runs of a plan that ask a person the same, the list has the first.

    `served`: tells whether any server works on this data root. `most`: how many are returned at most, of those that
    have not ended and of those that have. `rows`: what `current_rows` has found, where the caller knows it.
    """
    processes = ProcessesNow(processes)

    def state(row: RunRow) -> str:
        proposal = view.proposal(row.pending_id) if row.state == WAITING else None
        return state_now(row, proposal, processes.alive, at_us)

    going_on, ended = current_rows(view, user, at_us) if rows is None else rows
    unended = [(state(row), row) for row in going_on]
    unended.sort(key=lambda each: (ORDER.index(each[0]), each[1].created_us))
    questions = OpenQuestions(view, at_us)
    first = questions.first_of_each(row for _state, row in unended)[:most] + ended[:most]
    shown = [
        view_run(view, row, processes, at_us, served=served, result=False, task=True, questions=questions)
        for row in first
    ]
    counts = Counter(state for state, _row in unended)
    return {**counts, "ended": len(ended)}, tuple(shown)


def run_record(view: View, run_id: str, processes: Processes) -> RunRecord:
    run = view.run(run_id)
    assert run is not None
    shown = view_run(view, run, processes, now_us())
    answer = run_answer(shown)
    if shown.wait is not None and shown.wait.line is not None:  # the tools' answer says what a host calls
        answer.waits_for = shown.wait.for_people()
    elif shown.wait is not None and shown.wait.cause == "answer":
        how = shown.wait.for_people()
        answer.waits_for = f"a person. {how[:1].upper()}{how[1:]}"
    return RunRecord(run, answer, brief_of(view, run), decisions_on(view, run))


def run_detail(
    view: View, run: RunRow, processes: Processes, limits: SpawnLimits, *, served: Callable[[], bool], most_steps: int
) -> RunDetail:
    now = now_us()
    calls = (entry.fact for entry in view.entries(run.id, 0, ("ToolCall",)) if entry.generation is not None)
    tools = Counter(compact(fact.tool, TOOL_CHARS) for fact in calls if isinstance(fact, ToolCall))
    proposal = pending_proposal(view, run, limits, now)
    return RunDetail(
        view_run(view, run, processes, now, served=served, task=True),
        brief_of(view, run),
        decisions_on(view, run),
        recent_steps(view, run.id, most_steps),
        dict(tools.most_common()),
        proposal if isinstance(proposal, Pending) else None,
    )


# -- what a coder changed ---------------------------------------------------------------------------------------------


def changes_in(
    run: RunRow,
    state: str,
    changes: dict[str, Any] | None,
    *,
    erased: bool,
    branches: Sequence[Mapping[str, Any]] = (),
) -> tuple[Coding, dict[str, Any]]:
    """Return how a run changed files, and what its result tells of its branch. Raises Refused if there is none.

    `branches` are those of a plan's runs: they are seen and fetched one by one.
    """
    who = label(run)
    if branches:
        ids = [str(branch["subagent_id"]) for branch in branches]
        raise Refused(f"{who} has a branch for each of its subagents that changed files; name one: {', '.join(ids)}")
    coding = config_of(run.config).coding
    if coding is None:
        raise Refused(f"{who} changes no files, so it has no branch; `ava show {run.id}` has its result")
    if not run.ended:
        raise Refused(f"{who} has not ended ({state}); its branch is made at its end")
    if run.result_seq is None:
        raise Refused(f"{who} never ran ({state}), so it has changed nothing")
    if changes is None:
        why = "its content was erased" if erased else "its result names no branch"
        raise Refused(f"the changes of {who} are no longer known: {why}; look for the branch ava/{run.id}")
    if changes["branch"] is None:
        raise Refused(f"{who} has no branch: {changes['not_kept'] or 'it changed nothing'}")
    return coding, changes


def shown_changes(run: RunRow, answer: RunAnswer) -> Mapping[str, Any]:
    erased = answer.untrusted_result is None
    _coding, changes = changes_in(run, answer.state, answer.changes, erased=erased, branches=answer.branches or ())
    return {**changes, "git_folder": config_of(run.config).git_folder}


def diff_of(changes: Mapping[str, Any], home: Path, redactor: Redactor) -> str:
    """Return a run's changes as a unified diff, without secrets and control codes. Blocking. Raises Refused."""
    from ava_audit.redaction import RunRedactor
    from ava_roles.worktree.session import branch_diff  # loads the sandbox

    try:
        branch = Path(changes["repository"]), changes["base"], changes["head"], home
        git_folder = str(changes.get("git_folder", ""))
        text = branch_diff(*branch, git_folder=git_folder)
        text_of_files = branch_diff(*branch, context=_WHOLE_FILES, git_folder=git_folder)
    except RolesError as error:
        what = f"branch {changes['branch']} of {changes['repository']} cannot be shown: {error}"
        if changes.get("pack"):
            what += "; it was made on another machine, and `ava fetch` brings it"
        raise Refused(what) from error
    run_redactor = RunRedactor(redactor)
    lines_of_files = [line[1:] for line in clean(text_of_files)[0].split("\n")]
    run_redactor.learn_private_keys("\n".join(lines_of_files))
    diff = clean(show_controls(text))[0]
    redacted = run_redactor.redact_lines(diff)[0]
    lines: list[str] = []
    hidden = 0
    for before, after in zip(diff.split("\n"), redacted.split("\n"), strict=True):
        if before != after:
            hidden += 1
            sign = before[:1]
            if sign in ("+", "-", " ") and after[:1] != sign:  # a hidden line keeps its sign
                after = sign + after
        lines.append(after)
    if not hidden:
        return diff
    were = "1 line was" if hidden == 1 else f"{hidden:,} lines were"
    note = f"{were} hidden in whole or in part as secrets; see the branch for the originals."
    shown = "\n".join(lines).rstrip("\n")
    return f"{shown}\n\n{note}\n"


# -- delivered files --------------------------------------------------------------------------------------------------


MOST_BYTES = 2_000_000
"""More than the limit of an artifact."""


class DeliveredFiles:
    """The files of one run: in its folder, or beside the log if another machine has done the run. Blocking.

    Args:
        blobs: The files beside the log; None if they are in the data root alone.
    """

    def __init__(self, folder: Path, run_id: str, blobs: Blobs | None) -> None:
        self.folder = folder
        self._run_id, self._blobs = run_id, blobs

    def read(self, file: Mapping[str, Any]) -> bytes:
        """Return the content of a file that the result names. Raises Refused if it cannot be read, or has changed."""
        _check_name(file)  # the caller may save the content under this name, so that must be a safe one
        try:
            return self._read_here(file)
        except Refused:
            stored = self._read_stored(file)
            if stored is None:
                raise
            return stored

    def _read_here(self, file: Mapping[str, Any]) -> bytes:
        from ava_roles.sandbox.paths import Root

        try:
            root = Root.open(self.folder)
        except OSError as error:
            raise Refused(f"{self.folder} cannot be read: {error.strerror}") from error
        name = _check_name(file)
        with closing(root):
            try:
                data, _more = root.read(name, MOST_BYTES)
            except (RolesError, OSError) as error:
                raise Refused(f"{name} cannot be read: {error}") from error
        if hashlib.sha256(data).hexdigest() != file.get("sha256"):
            raise Refused(f"{name} was changed after its delivery; the log has its sha256")
        return data

    def _read_stored(self, file: Mapping[str, Any]) -> bytes | None:
        """Return what is beside the log; None if the file is not there."""
        from ava_audit.errors import BlobRefused, StoreUnavailable
        from ava_audit.store.backend import Blob

        if self._blobs is None:
            return None
        try:
            return self._blobs.read(Blob(str(file.get("sha256")), int(file.get("bytes", 0))), self._run_id)
        except BlobRefused:
            return None
        except StoreUnavailable as error:
            raise Refused(str(error)) from error


def _check_name(file: Mapping[str, Any]) -> str:
    from ava_roles.tools.run import is_artifact_name

    name = str(file.get("name"))
    if not is_artifact_name(name):
        raise Refused(f"{name[:100]!r} is not a plain file name")
    return name
