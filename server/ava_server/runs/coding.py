"""The work of a run that changes files: its worktree made ready, what it hands over checked, all of it kept.

Where a run is in this follows from the log. `WorktreeReady` has what the model is told of its worktree, letter for
letter; `WorkChecked` how the verify command came out on what was handed over, before anything follows from that. So a
run that is taken up sends the same bytes, counts its attempts on, and runs nothing again that has run.
"""

from __future__ import annotations

import logging
import time
import tomllib
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import anyio
import anyio.to_thread

from ava_audit.events import Activity, CommandRun, WorkChecked, WorktreeReady
from ava_audit.redaction.redact import Redactor
from ava_audit.rows import RunRow
from ava_roles.errors import RolesError, WorktreeFailed
from ava_roles.tool import ToolContext, status_sentence
from ava_roles.worktree.session import WorktreeSession, publish_leftover, remove_worktree
from ava_roles.worktree.spec import Branch
from ava_roles.worktree.verify import Verdict
from ava_roles.wrap import clean, wrap_tool_output
from ava_server.approval.coding import order_of
from ava_server.budget.run_config import Coding, config_of
from ava_server.runs.changes import LATE, KeptChanges, commit_message, how
from ava_server.runs.log import RunLog
from ava_server.runs.result import RunResult
from ava_server.runs.submit import SubmitArgs

log = logging.getLogger("ava.worktrees")


class Worktrees:
    """The folders in which runs that change files work, each named by its run.

    Args:
        folder: Where they are.
        home: The user's home folder.
    """

    def __init__(self, folder: Path, home: Path) -> None:
        self._folder = folder
        self._home = home

    def here(self, run_id: str) -> Path:
        """Return the folder of a run."""
        return self._folder / run_id

    def there(self) -> list[str]:
        """Return the runs that have a folder. Blocking."""
        return sorted(path.name for path in self._folder.glob("S-*"))

    def keep(self, run: RunRow, message: str) -> Branch | None:
        """Bring what a run has changed onto its branch; None where that is nothing. Blocking.

        Raises:
            RolesError: It cannot be done; the folder is as it was.
        """
        here = self.here(run.id)
        return (
            publish_leftover(order_of(run.id, config_of(run.config)), here, self._home, message)
            if here.is_dir()
            else None
        )

    def left(self, run: RunRow, task: str = "") -> KeptChanges | None:
        """Bring onto its branch what a run that nobody works on has changed; None for one that changes no files.

        Blocking.
        """
        coding = config_of(run.config).coding
        if coding is None:
            return None
        try:
            return KeptChanges(self.keep(run, commit_message(run.id, coding, task=task)))
        except (RolesError, OSError) as error:
            log.warning("what %s has changed is not on a branch: %s", run.id, error)
            return KeptChanges(fault=str(error))

    def tidy(self, run: RunRow) -> None:
        """Remove the folder of a run that has ended, once nothing is left in it that is not on its branch. Blocking."""
        here = self.here(run.id)
        if not here.exists():
            return
        kept = self.left(run)
        if kept is not None and kept.fault:
            log.warning("%s stays, because it has what is on no branch", here)
            return
        try:
            remove_worktree(here)
        except (RolesError, OSError) as error:  # the next start sweeps
            log.warning("the worktree of %s was not all removed: %s", run.id, error)


RETRIES = 3
"""Attempts to mend what did not pass, after the first."""
SHOWN_CHARS = 6_000
"""Characters of an output that the model is shown, and the log has: the part that says what failed."""
PASSED_CHARS = 1_000
KEEP_S, KEEP_CANCELLED_S, KEEP_SUCCESS_S = 8.0, 2.0, 60.0
"""How long an ending waits for its branch; a cancel has to be answered within 5 s. It is made all the same.

A success waits longer: it is none before its branch is there.
"""
VERIFICATION = "verification"
WORKSHOP = "workshop"
MAKING = "Making the worktree"
_CUT = "\n[… cut …]\n"


class CodingWork:
    """The worktree of one run in the hands of its owner.

    Args:
        workshop: Where it works.
        worktrees: The folders of all such runs.
        coding: What was approved.
        run_log: The run's own log.
        redactor: Replaces configured secret values before the model sees them.
        nonce: The run's own random word in the wrapper of untrusted text.
        say: Shows a sentence in the status line.
    """

    def __init__(
        self,
        workshop: WorktreeSession,
        worktrees: Worktrees,
        coding: Coding,
        run_log: RunLog,
        redactor: Redactor,
        nonce: str,
        say: Callable[[str], None],
    ) -> None:
        self._workshop = workshop
        self._worktrees = worktrees
        self._coding = coding
        self._log = run_log
        self._history = run_log.history
        self._redactor = redactor
        self._nonce = nonce
        self._ready = False
        workshop.say = lambda doing: say(self._hidden(doing))

    async def begin(self) -> RunResult | None:
        """Make the worktree ready, or take up the one that is there; an ending where that cannot be."""
        try:
            if self._history.worktree is not None:
                await self._workshop.prepare(baseline=False, resumed=True)
                self._ready = True
                return None
            await self._log.record(Activity(activity=MAKING))
            began = time.monotonic()
            baseline = await self._workshop.prepare()
            self._ready = True
        except RolesError as error:
            return self._failed("the worktree could not be made", error)
        setup = None if baseline.setup is None else await self._run_of(baseline.setup)
        verify = None if baseline.verify is None else await self._run_of(baseline.verify)
        told = self._hidden(self._ready_words(baseline.notes, setup, verify))
        await self._log.record(
            WorktreeReady(base=baseline.base, told=told, setup=setup, verify=verify), duration_ms=_since_ms(began)
        )
        return None

    def place(self, place: ToolContext) -> ToolContext:
        """Return the place of the run's calls: the worktree, which has to be ready."""
        shop = self._workshop
        return replace(place, files=shop.files, edits=shop.edits, bench=shop.bench)

    async def check(self, call_id: str | None) -> WorkChecked | RunResult:
        """Return how the verify command came out on what was handed over; what has been checked is not run again."""
        if self._history.check is not None:
            return self._history.check
        before = self._history.last_check
        number = 1 if before is None else before.number + 1
        await self._log.record(Activity(activity=status_sentence(f"Running {self._coding.verify}", self._hidden)))
        began = time.monotonic()
        try:
            verdict = await self._workshop.check()
        except RolesError as error:
            return self._failed("the work could not be checked", error)
        verify = await self._run_of(verdict)
        told = "" if verify.passed else self._failed_words(verify, number)
        checked = WorkChecked(
            number=number, verify=verify, tree=verdict.tree, call_id=call_id, turn=self._history.turn, told=told
        )
        await self._log.record(checked, duration_ms=_since_ms(began))
        return checked

    def given_up(self, checked: WorkChecked, submitted: SubmitArgs) -> RunResult | None:
        """Return the ending of a run whose work has not passed often enough, or None."""
        if checked.number <= RETRIES:
            return None
        return RunResult(
            "error",
            f"verification failed {checked.number} times",
            submitted,
            error_kind=VERIFICATION,
            error_message=f"`{self._coding.verify}` {how(checked.verify)}",
            what_to_do="Look at the branch and at what fails; then have it mended with retry_of and a narrower task.",
        )

    async def keep(self, ended: RunResult) -> KeptChanges:
        """Bring what the run has changed onto its branch, whatever ended it."""
        if self._history.worktree is None:  # nobody has worked in it
            return KeptChanges()
        check = self._history.last_check
        task = self._history.task
        message = commit_message(
            self._log.run.id,
            self._coding,
            summary=ended.submitted.summary if ended.submitted is not None else "",
            task=task.text if task is not None else "",
            before=self._history.worktree.verify,
            passed=check.verify if ended.status == "success" and check is not None else None,
            status=ended.status,
        )
        work = self._workshop.keep if self._ready else partial(self._as_it_was_left, self._log.run)
        if ended.status == "success" and check is not None:
            work = partial(self._as_it_was_checked, check.tree)
        kept = KeptChanges(fault=LATE)
        with anyio.move_on_after(self.patience_s(ended)):
            try:
                kept = KeptChanges(await anyio.to_thread.run_sync(work, message, abandon_on_cancel=True))
            except RolesError as error:
                kept = KeptChanges(fault=self._hidden(str(error)))
        return kept

    @staticmethod
    def patience_s(ended: RunResult) -> float:
        """Return how long `keep` may take."""
        return {"cancelled": KEEP_CANCELLED_S, "success": KEEP_SUCCESS_S}.get(ended.status, KEEP_S)

    def _as_it_was_checked(self, tree: str, message: str) -> Branch | None:
        """Keep what has passed: nothing else may be called verified. Blocking."""
        branch = self._workshop.keep(message)
        if (self._workshop.base_tree() if branch is None else branch.tree) != tree:
            where = "nothing is on a branch" if branch is None else f"it is on the branch {branch.name}"
            raise WorktreeFailed(f"what is in the worktree is not what was checked; {where}")
        return branch

    def _as_it_was_left(self, run: RunRow, message: str) -> Branch | None:
        """Keep what an earlier owner has left, where this one did not come to taking it up. Blocking."""
        self._workshop.close()  # it may hold what is to be looked at
        return self._worktrees.keep(run, message)

    def _failed(self, what: str, error: RolesError) -> RunResult:
        return RunResult(
            "error", what, error_kind=WORKSHOP, error_message=self._hidden(str(error)),
            what_to_do="Mend what the error says, then propose it again with retry_of.",
        )  # fmt: skip

    # -- words --------------------------------------------------------------------------------------------------------

    def _ready_words(self, notes: str, setup: CommandRun | None, verify: CommandRun | None) -> str:
        coding, texts = self._coding, _texts()
        paths = ", ".join(f"`{path}`" for path in coding.namespace)
        whole = coding.namespace == (".",)
        parts = [
            texts["ready"].format(
                repository=coding.repository,
                base=coding.base[:12],
                branch=coding.branch or "detached HEAD",
                namespace=texts["everything"] if whole else texts["only"].format(paths=paths),
                verify=coding.verify,
            ),
            notes,
        ]
        if setup is not None:
            name = "setup" if setup.passed else "setup_failed"
            parts.append(texts[name].format(setup=coding.setup, how=how(setup)))
            parts.append("" if setup.passed else self._wrapped(setup.output, "setup"))
        if verify is None:
            parts.append(texts["before_not_run"])
        else:
            parts.append(texts["before_passed" if verify.passed else "before_failed"].format(how=how(verify)))
            parts.append("" if verify.passed else self._wrapped(verify.output, "verify"))
        return "\n".join(part for part in parts if part)

    def _failed_words(self, verify: CommandRun, number: int) -> str:
        texts, left = _texts(), RETRIES + 1 - number
        words = texts["none_left"] if left == 0 else texts["one_more"] if left == 1 else texts["more"]
        said = texts["failed"].format(verify=self._coding.verify, how=how(verify), left=words.format(count=left))
        return self._hidden(f"{said}\n{self._wrapped(verify.output, 'verify')}")

    def _wrapped(self, output: str, tool: str) -> str:
        return wrap_tool_output(output or "(no output)", tool=tool, nonce=self._nonce)

    async def _run_of(self, verdict: Verdict) -> CommandRun:
        """Return how a command ended, as the log has it: bounded, without secrets, and what nobody sees taken out."""
        return await anyio.to_thread.run_sync(self._bounded, verdict)

    def _bounded(self, verdict: Verdict) -> CommandRun:
        most = PASSED_CHARS if verdict.passed else SHOWN_CHARS
        output = replace(verdict, output=self._hidden(verdict.output)).failing(most)  # half a secret is not recognised
        if len(output) > most:
            output = output[: most // 4] + _CUT + output[len(output) - (most - most // 4 - len(_CUT)) :]
        return CommandRun(
            passed=verdict.passed,
            code=verdict.code,
            ended=verdict.ended,
            took_s=round(verdict.took_s, 1),
            output=output,
        )

    def _hidden(self, text: str) -> str:
        return self._redactor.redact(clean(text)[0])[0]


def unkept(ended: RunResult, kept: KeptChanges) -> RunResult:
    """Return the ending of a run whose work passed, and could not be kept: no success."""
    return replace(
        ended,
        status="error",
        stop_reason="its work passed, and could not be brought onto a branch",
        error_kind=WORKSHOP,
        error_message=kept.fault,
        what_to_do="Mend what the error says; the next start of Ava brings the work onto its branch.",
    )


def _since_ms(began: float) -> int:
    return round((time.monotonic() - began) * 1000)


@cache
def _texts() -> dict[str, str]:
    return {
        name: str(text).strip()
        for name, text in tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8")).items()
    }
