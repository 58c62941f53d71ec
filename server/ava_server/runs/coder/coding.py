"""Runs that change files: prepares the worktree, checks the work with the verify command, and keeps it on a branch.

The log says how far a run has come. `WorktreeReady` has the exact text that tells the model about its worktree;
`WorkChecked` has the outcome of the verify command before anything follows from it. So a resumed run sends the same
bytes, keeps counting its attempts, and repeats no command.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
from anyio.from_thread import check_cancelled

from ava_audit.errors import AuditError, BlobRefused
from ava_audit.events import Activity, CommandRun, WorkChecked, WorktreeReady
from ava_audit.redaction import RunRedactor
from ava_audit.rows import RunRow
from ava_roles.errors import RolesError, ToolFailed, WorktreeFailed
from ava_roles.sandbox.paths import Root
from ava_roles.texts.text_files import find_private_key_files
from ava_roles.threads import run_sync
from ava_roles.tool import ToolContext, status_sentence
from ava_roles.worktree.session import WorktreeSession, publish_leftover, remove_worktree
from ava_roles.worktree.spec import Branch, Verdict
from ava_roles.wrap import clean, wrap_tool_output
from ava_server.core.prompts import prompts
from ava_server.run_config.config import config_of
from ava_server.run_config.parts import Coding
from ava_server.runs.coder.travel import Travel
from ava_server.runs.journal.log import RunLog, ms_since
from ava_server.runs.record.changes import (
    ELSEWHERE,
    LATE,
    KeptChanges,
    commit_message,
    describe_command,
)
from ava_server.runs.record.result import RunResult
from ava_server.runs.record.submit import SubmitArgs

log = logging.getLogger("ava.worktrees")


class Worktrees:
    """The worktree folders of runs, each named by its run."""

    def __init__(self, folder: Path, home: Path, travel: Travel) -> None:
        self.travel = travel
        self._folder = folder
        self._home = home

    def folder_of(self, run_id: str) -> Path:
        return self._folder / run_id

    def run_ids(self) -> list[str]:
        """Return the ids of the runs that have a folder. Blocks."""
        return sorted(path.name for path in self._folder.glob("S-*"))

    def is_elsewhere(self, run: RunRow) -> bool:
        """Tell whether a run that has begun has no worktree here, because it was done elsewhere. Blocks."""
        return self.travel.is_possible and run.generation > 0 and not self.folder_of(run.id).is_dir()

    def keep(self, run: RunRow, message: str) -> Branch | None:
        """Commit a run's changes to its branch; None without any. Blocks. On RolesError, the folder is unchanged."""
        here = self.folder_of(run.id)
        return (
            publish_leftover(self.travel.spec(run.id, config_of(run.config)), here, self._home, message)
            if here.is_dir()
            else None
        )

    def keep_changes(self, run: RunRow, task: str = "") -> KeptChanges | None:
        """Commit the changes of a run without an owner to its branch; None for a run that changes no files. Blocks."""
        coding = config_of(run.config).coding
        if coding is None:
            return None
        if self.is_elsewhere(run):
            return KeptChanges(fault=ELSEWHERE)
        try:
            return self.travel.sent(run, self.keep(run, commit_message(run.id, coding, task=task)))
        except (RolesError, AuditError, OSError) as error:
            log.warning("the changes of %s are not on a branch: %s", run.id, error)
            return KeptChanges(fault=str(error))

    def remove(self, run: RunRow) -> None:
        """Remove the folder of an ended run, once everything in it is on its branch. Blocks."""
        here = self.folder_of(run.id)
        if not here.exists():
            return
        kept = self.keep_changes(run)
        if kept is not None and kept.fault:
            log.warning("%s is kept, because not everything in it is on a branch", here)
            return
        try:
            remove_worktree(here)
        except (RolesError, OSError) as error:  # the next start removes the rest
            log.warning("the worktree of %s was not removed completely: %s", run.id, error)


RETRIES = 3
"""Attempts after the first to make the work pass."""
SHOWN_CHARS = 6_000
"""Characters of a failed command's output that the log has and the model is shown."""
PASSED_CHARS = 1_000
KEEP_S, KEEP_CANCELLED_S, KEEP_SUCCESS_S = 8.0, 2.0, 60.0
"""Seconds that an ending waits for its branch; a cancel has to be answered within 5 s. The commit continues after that.

Work that has passed waits longer, because it needs its branch.
"""
VERIFICATION = "verification"
WORKSHOP = "workshop"
MAKING = "Making the worktree"
_CUT = "\n[… cut …]\n"


class CodingWork:
    """The work of one run in its worktree.

    Args:
        nonce: The run's own random word in the wrapper of untrusted text.
    """

    def __init__(
        self,
        worktree: WorktreeSession,
        worktrees: Worktrees,
        coding: Coding,
        run_log: RunLog,
        redactor: RunRedactor,
        nonce: str,
        say: Callable[[str], None],
    ) -> None:
        self._worktree = worktree
        self._worktrees = worktrees
        self._coding = coding
        self._log = run_log
        self._history = run_log.history
        self._redactor = redactor
        self._nonce = nonce
        self._ready = False
        worktree.say = lambda doing: say(self._hide(doing))

    async def begin(self) -> RunResult | None:
        """Prepare the worktree, or open the one that is there; return an ending where that fails."""
        try:
            unpack = self._worktrees.travel.unpack_repository
            await anyio.to_thread.run_sync(unpack, self._log.run, abandon_on_cancel=True)
            if self._history.worktree is not None:
                await self._worktree.prepare(baseline=False, resumed=True)
                await learn_private_keys(self._redactor, self._worktree.files, self._log)
                self._ready = True
                return None
            await self._log.record(Activity(activity=MAKING))
            began = time.monotonic()
            baseline = await self._worktree.prepare()
            await learn_private_keys(self._redactor, self._worktree.files, self._log)
            self._ready = True
        except (RolesError, BlobRefused) as error:
            return self._failure("the worktree could not be made", error)
        setup = None if baseline.setup is None else await self._run_of(baseline.setup)
        verify = None if baseline.verify is None else await self._run_of(baseline.verify)
        notice = self._hide(self._ready_words(baseline.notes, setup, verify))
        ready = WorktreeReady(base=baseline.base, told=notice, setup=setup, verify=verify)
        await self._log.record(ready, duration_ms=ms_since(began))
        return None

    def place(self, place: ToolContext) -> ToolContext:
        """Return the place of the run's tool calls: the worktree, which has to be ready."""
        shop = self._worktree
        return replace(place, files=shop.files, edits=shop.edits, bench=shop.bench)

    async def check(self, call_id: str | None, *, last: bool = False) -> WorkChecked | RunResult:
        """Return the outcome of the verify command on the work; after a crash, a recorded outcome is used again.

        `last`: the run has reached a cap, so the model is told nothing of it.
        """
        known = self._history.check
        if known is not None and known.call_id == call_id:
            return known
        before = self._history.last_check
        number = 1 if before is None else before.number + 1
        await self._log.record(Activity(activity=status_sentence(f"Running {self._coding.verify}", self._hide)))
        began = time.monotonic()
        try:
            verdict = await self._worktree.check()
        except RolesError as error:
            return self._failure("the work could not be checked", error)
        verify = await self._run_of(verdict)
        notice = "" if verify.passed or last else self._failed_words(verify, number)
        checked = WorkChecked(
            number=number, verify=verify, tree=verdict.tree, call_id=call_id, turn=self._history.turn, told=notice
        )
        await self._log.record(checked, duration_ms=ms_since(began))
        return checked

    def ending_after_failures(self, checked: WorkChecked, submitted: SubmitArgs) -> RunResult | None:
        """Return the ending of a run whose work has failed too often, or None."""
        if checked.number <= RETRIES:
            return None
        return RunResult(
            "error",
            f"verification failed {checked.number} times",
            submitted,
            error_kind=VERIFICATION,
            error_message=f"`{self._coding.verify}` {describe_command(checked.verify)}",
            what_to_do="Look at the branch and at what fails; then propose it again with retry_of and a narrower task.",
        )

    async def keep(self, ended: RunResult) -> KeptChanges:
        """Commit the run's changes to its branch, whatever ended the run."""
        if self._history.worktree is None:  # it was never ready, so nothing was changed
            return KeptChanges()
        work: Callable[[str], Branch | None] = partial(self._keep_unopened, self._log.run)
        if self._ready:
            work = self._worktree.keep
        passed = None
        check = self._history.last_check
        if ended.verified and check is not None:
            passed = check.verify
            work = partial(self._keep_checked, check.tree)
        summary = task_text = ""
        if ended.submitted is not None:
            summary = self._hide(ended.submitted.summary)
        if self._history.task is not None:
            task_text = self._history.task.text
        message = commit_message(
            self._log.run.id,
            self._coding,
            summary=summary,
            task=task_text,
            before=self._history.worktree.verify,
            passed=passed,
            status=ended.status,
        )
        kept = KeptChanges(fault=LATE)
        with anyio.move_on_after(self.patience_s(ended)):
            try:
                kept = await anyio.to_thread.run_sync(self._commit_and_send, work, message, abandon_on_cancel=True)
            except (RolesError, AuditError) as error:
                kept = KeptChanges(fault=self._hide(str(error)))
        return kept

    def _commit_and_send(self, work: Callable[[str], Branch | None], message: str) -> KeptChanges:
        """Commit the work, and send the branch to where the repository is. Blocks."""
        return self._worktrees.travel.sent(self._log.run, work(message))

    @staticmethod
    def patience_s(ended: RunResult) -> float:
        """Return how many seconds `keep` may take."""
        if ended.verified:
            return KEEP_SUCCESS_S
        if ended.status == "cancelled":
            return KEEP_CANCELLED_S
        return KEEP_S

    def _keep_checked(self, tree: str, message: str) -> Branch | None:
        """Commit the work, and check that it is exactly what passed. Blocks."""
        branch = self._worktree.keep(message)
        committed = self._worktree.base_tree() if branch is None else branch.tree
        if committed != tree:
            where = "nothing is on a branch" if branch is None else f"it is on the branch {branch.name}"
            raise WorktreeFailed(f"the worktree has changed since it was checked; {where}")
        return branch

    def _keep_unopened(self, run: RunRow, message: str) -> Branch | None:
        """Commit what an earlier owner has left, where this one has not opened the worktree yet. Blocks."""
        self._worktree.close()  # it may hold the folder open
        return self._worktrees.keep(run, message)

    def _failure(self, what: str, error: Exception) -> RunResult:
        return RunResult(
            "error", what, error_kind=WORKSHOP, error_message=self._hide(str(error)),
            what_to_do="Fix what the error says, then propose it again with retry_of.",
        )  # fmt: skip

    # -- words --------------------------------------------------------------------------------------------------------

    def _ready_words(self, notes: str, setup: CommandRun | None, verify: CommandRun | None) -> str:
        coding, texts = self._coding, prompts("ava_server.runs.coder", "coding")
        paths = ", ".join(f"`{path}`" for path in coding.namespace)
        namespace = texts["only"].format(paths=paths)
        if coding.namespace == (".",):
            namespace = texts["everything"]
        parts = [
            texts["ready"].format(
                repository=coding.repository,
                base=coding.base[:12],
                branch=coding.branch or "detached HEAD",
                namespace=namespace,
                verify=coding.verify,
            ),
            notes,
        ]
        if setup is not None:
            name = "setup" if setup.passed else "setup_failed"
            parts.append(texts[name].format(setup=coding.setup, how=describe_command(setup)))
            if not setup.passed:
                parts.append(self._wrap(setup.output, "setup"))
        if verify is None:
            parts.append(texts["before_not_run"])
        else:
            name = "before_passed" if verify.passed else "before_failed"
            parts.append(texts[name].format(how=describe_command(verify)))
            if not verify.passed:
                parts.append(self._wrap(verify.output, "verify"))
        return "\n".join(part for part in parts if part)

    def _failed_words(self, verify: CommandRun, number: int) -> str:
        texts = prompts("ava_server.runs.coder", "coding")
        left = RETRIES + 1 - number
        words = texts["more"].format(count=left)
        if left == 0:
            words = texts["none_left"].format(count=left)
        elif left == 1:
            words = texts["one_more"].format(count=left)
        notice = texts["failed"].format(verify=self._coding.verify, how=describe_command(verify), left=words)
        return self._hide(f"{notice}\n{self._wrap(verify.output, 'verify')}")

    def _wrap(self, output: str, tool: str) -> str:
        return wrap_tool_output(output or "(no output)", tool=tool, nonce=self._nonce)

    async def _run_of(self, verdict: Verdict) -> CommandRun:
        """Return how a command ended, for the log: bounded, without secrets and invisible characters."""
        return await anyio.to_thread.run_sync(self._shorten_output, verdict)

    def _shorten_output(self, verdict: Verdict) -> CommandRun:
        most = PASSED_CHARS if verdict.passed else SHOWN_CHARS
        hidden = self._hide(verdict.output)  # before it is cut: half a secret is not recognized
        output = replace(verdict, output=hidden).failing(most)
        if len(output) > most:
            output = output[: most // 4] + _CUT + output[len(output) - (most - most // 4 - len(_CUT)) :]
        return CommandRun(
            passed=verdict.passed,
            code=verdict.code,
            ended=verdict.ended,
            took_s=round(verdict.took_s, 1),
            output=output,
        )

    def _hide(self, text: str) -> str:
        return self._redactor.redact(clean(text)[0])[0]


def ending_at_cap(ended: RunResult, checked: WorkChecked | RunResult | None) -> RunResult:
    """Return the ending of a run that handed over at a cap: it says whether the verify command passed.

    `checked` is None where the run's time was over before the command ended.
    """
    passed = isinstance(checked, WorkChecked) and checked.verify.passed
    match checked:
        case WorkChecked():
            how = "passed" if passed else "failed"
        case RunResult():
            how = f"did not run: {checked.stop_reason}"
        case None:
            how = "did not run to its end: the run's time was over"
    return replace(ended, stop_reason=f"{ended.stop_reason}; its verify command {how}", verified=passed)


def fail_unkept(ended: RunResult, kept: KeptChanges) -> RunResult:
    """Return the ending of a run whose work passed and could not be kept: an error, not a success."""
    return replace(
        ended,
        status="error",
        verified=False,
        stop_reason="its work passed, and could not be brought onto a branch",
        error_kind=WORKSHOP,
        error_message=kept.fault,
        what_to_do="Fix what the error says; the next start of Ava commits the work to its branch.",
    )


async def learn_private_keys(redactor: RunRedactor, files: Root, run_log: RunLog) -> None:
    """Replace every part of the private keys in these files from now on."""

    def learn() -> None:
        with suppress(ToolFailed):  # whatever needs the files reports the error
            for text in find_private_key_files(files, check_cancelled):
                redactor.learn_private_keys(clean(text)[0])

    await run_sync(learn)
    await tell_too_many_keys(redactor, run_log)


async def tell_too_many_keys(redactor: RunRedactor, run_log: RunLog) -> None:
    """Say once in a run's log that it has more private keys than it can recognise in pieces."""
    if redactor.full and not redactor.told_full:
        redactor.told_full = True
        await run_log.record(Activity(activity=TOO_MANY_KEYS))


TOO_MANY_KEYS = "Too many private keys in the files: Ava hides pieces of only about 500"
