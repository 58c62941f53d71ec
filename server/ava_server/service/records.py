"""What a person's screens show of runs and spending, and the handler of the requests for it.

A command calls the handler in its own process, or over HTTP with `--url`, so that both look the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from ava_audit.rows import UNENDED, WAITING, RunRow
from ava_audit.units import HOUR_US, now_us
from ava_audit.view import View
from ava_roles.errors import RolesError
from ava_roles.wrap import clean, show_controls
from ava_server.approval.proposals import texts_of
from ava_server.budget.caps import DayCaps, installation_scope, user_scope, utc_day
from ava_server.budget.run_config import Texts, config_of
from ava_server.core.data_root import home_folder
from ava_server.core.errors import Refused
from ava_server.core.ids import label
from ava_server.render.entries import mirror_lines, names_of
from ava_server.render.responses import RunAnswer
from ava_server.render.run_view import (
    EXPIRED,
    INTERRUPTED,
    Processes,
    ProcessesNow,
    RunView,
    run_answer,
    shown_state,
    view_run,
)
from ava_server.runs.lifecycle import AWAITING_ANSWER, AWAITING_EXTENSION, HELD, awaited

if TYPE_CHECKING:
    from ava_audit.redaction import Redactor
    from ava_audit.search import LogQuery
    from ava_audit.store.store import Store
    from ava_audit.view import Readable
    from ava_server.runs.costs import Costs
    from ava_server.runs.manager import Manager


ORDER = (WAITING, AWAITING_EXTENSION, AWAITING_ANSWER, HELD, INTERRUPTED, "running", "queued", EXPIRED)
"""The states of runs that have not ended, in the order of a list: first what waits for a person."""
RECENT_US = HOUR_US
PAGE_CHARS = 4_000_000
"""Characters of lines in one answer over HTTP."""
_WHOLE_FILES = 1_000_000
"""Unchanged lines around each change; with so many, a diff contains whole files."""


@dataclass(frozen=True)
class Budget:
    """What is spent and held of a day's budget; micro-USD."""

    whose: str
    spent: int
    held: int
    cap: int


def todays_budgets(
    view: View | None, user: str, whose: str, caps: DayCaps, at_us: int, *, everybody: bool
) -> tuple[Budget, ...]:
    """Return what is left of a user's budget today, under the name `whose`, and of everybody's together.

    Without a view there is no log yet, so nothing is spent.
    """
    day = utc_day(at_us)
    days = [(whose, user_scope(user, day), caps.user_micros)]
    days += [("everybody", installation_scope(day), caps.installation_micros)] if everybody else []
    if view is None:
        return tuple(Budget(name, 0, 0, cap) for name, _scope, cap in days)
    found = ((name, view.bucket(scope), cap) for name, scope, cap in days)
    return tuple(Budget(name, bucket.spent_micros, bucket.held_micros, cap) for name, bucket, cap in found)


@dataclass(frozen=True)
class TokenFacts:
    """A token as its server knows it: its user and scopes; and the version of the server's Ava."""

    user: str
    scopes: tuple[str, ...]
    version: str


@dataclass(frozen=True)
class CurrentRuns:
    """What `ava status` shows of a server: the counts of all states, the runs, and today's budgets.

    `others` is how many unfinished runs of other users are left out.
    """

    at_us: int
    counts: dict[str, int]
    runs: tuple[RunView, ...]
    budgets: tuple[Budget, ...]
    token: TokenFacts
    others: int = 0


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
    """A run with its whole result, and what was asked; `texts` is None where that was erased."""

    row: RunRow
    answer: RunAnswer
    texts: Texts | None


@dataclass(frozen=True)
class LogLines:
    """A page of the log as mirror lines, newest first; `names` and `next` are as in `names_of` and `EntryPage`."""

    lines: tuple[str, ...]
    names: dict[str, str]
    next: int | None
    upto: int


def current_runs(
    view: View, user: str | None, processes: Processes, at_us: int, *, served: Callable[[], bool], most: int
) -> tuple[dict[str, int], tuple[RunView, ...]]:
    """Return how many runs are in each state or have `ended` or expired lately, and the runs in the order of a list.

    Args:
        view: The state.
        user: Only this user's; None is everybody's.
        processes: The processes on this log.
        at_us: Now.
        served: Tells whether any server works on this data root.
        most: How many are returned at most, of those that have not ended and of those that have.
    """
    processes = ProcessesNow(processes)

    def state(row: RunRow) -> str:
        proposal = view.proposal(row.pending_id) if row.state == WAITING else None
        expired = proposal is not None and proposal.expires_us <= at_us
        return EXPIRED if expired else awaited(row, at_us) or shown_state(row, processes.alive)

    going_on = view.runs(user=user, states=UNENDED, expired_before_us=at_us - RECENT_US, limit=-1)
    unended = [(state(row), row) for row in going_on]
    unended.sort(key=lambda each: (ORDER.index(each[0]), each[1].created_us))
    # Found by their endings, the newest first, so that the number of all runs does not matter.
    endings = view.select("SELECT run_id, ts_us FROM events WHERE type = 'RunEnded' ORDER BY seq DESC")
    recent = takewhile(lambda ending: ending[1] >= at_us - RECENT_US, endings)
    rows_or_none = (view.run(run_id) for run_id, _ts_us in recent if run_id is not None)
    ended = [row for row in rows_or_none if row is not None and user in (None, row.user_id)]
    rows = [row for _state, row in unended[:most]] + ended[:most]
    shown = [view_run(view, row, processes, at_us, served=served, result=False, task=True) for row in rows]
    return {**Counter(state for state, _row in unended), "ended": len(ended)}, tuple(shown)


def run_record(view: View, run_id: str, processes: Processes) -> RunRecord:
    """Return a run with its whole result."""
    run = view.run(run_id)
    assert run is not None
    shown = view_run(view, run, processes, now_us())
    answer = run_answer(shown)
    if shown.wait is not None and shown.wait.line is not None:  # the tools' answer says what a host calls
        answer.waits_for = shown.wait.for_people()
    return RunRecord(run, answer, texts_of(view, run))


class RecordsHandler:
    """Answers requests for runs: to a command in its own process, and to `--url` over HTTP.

    Args:
        store: The log.
        processes: The processes on it.
        redactor: Returns what hides the stored keys and secrets. Blocking.
        served: Tells whether any server works on this data root.
        manager: This process's own, where it has one: it knows more than the log.
    """

    def __init__(
        self,
        store: Readable,
        processes: Processes,
        redactor: Callable[[], Redactor],
        *,
        served: Callable[[], bool] = lambda: True,
        manager: Manager | None = None,
    ) -> None:
        self.store = store
        self._processes = processes
        self._redactor = redactor
        self._served = served
        self._manager = manager

    def run_in(self, view: View, given: str) -> RunRow:
        """Return the run with an id, which the command has found before."""
        run = view.run(given)
        assert run is not None
        return run

    def runs_in(self, view: View, given: str) -> Sequence[RunRow]:
        """Return the runs that an id of a list means."""
        run = view.run(given)
        return [] if run is None else [run]

    async def answer(self, path: str, params: Mapping[str, Any]) -> object:
        """Return the answer to a request; None for an unknown path.

        Raises:
            AvaError: It cannot be answered; says why.
        """
        match path.strip("/").split("/"):
            case ["runs"]:
                return await self.listed(lambda view: [run for one in params["id"] for run in self.runs_in(view, one)])
            case ["runs", run_id]:
                return await self.record(run_id, shown=bool(params.get("shown")))
            case ["runs", run_id, "costs"]:
                return await self.store.read(lambda view: self._costs(view, run_id))
            case ["runs", run_id, "diff"]:
                found = await self.record(run_id)
                changes = changes_in(found.row, found.answer)
                known = await anyio.to_thread.run_sync(self._redactor)
                text = await anyio.to_thread.run_sync(diff_of, changes, home_folder(), known, abandon_on_cancel=True)
                return RunDiff(text)
            case _:
                return None

    async def listed(self, find: Callable[[View], Iterable[RunRow]]) -> ListedRuns:
        """Return some runs as they are now, each once."""
        at_us = now_us()

        def query(view: View) -> ListedRuns:
            rows = {row.id: row for row in find(view)}.values()
            more: dict[str, Any] = {"served": self._served, "manager": self._manager, "task": len(rows) > 1}
            return ListedRuns([view_run(view, row, self._processes, at_us, result=False, **more) for row in rows])

        return await self.store.read(query)

    async def record(self, run_id: str, *, shown: bool = False) -> RunRecord:
        """Return a run with its whole result; `shown` says that a person will see it."""
        del shown  # a command notes it once it has shown it
        return await self.store.read(lambda view: run_record(view, self.run_in(view, run_id).id, self._processes))

    def _costs(self, view: View, run_id: str) -> Costs:
        from ava_server.runs.costs import costs_of  # loads the settings and all roles' tools

        run = self.run_in(view, run_id)
        return costs_of(run, view.entries(run.id), view.of_type("SettingsChanged"))


async def log_lines(store: Store, query: LogQuery) -> LogLines:
    """Return the newest entries that match a query as lines, as many as fit into one answer.

    Raises:
        BadQuery: The query names an unknown event type.
        StoreUnavailable: The log cannot be read.
    """
    from ava_audit.search import search

    page = await search(store, query)
    lines: list[str] = []
    chars = 0
    for line in await mirror_lines(store, page.entries):
        chars += len(line)
        if lines and chars > PAGE_CHARS:
            break
        lines.append(line.decode())
    names = await store.read(lambda view: names_of(view, page.entries))
    older = page.next if len(lines) == len(page.entries) else page.entries[len(lines) - 1].seq
    return LogLines(tuple(lines), names, older, page.upto)


# -- what a coder changed ---------------------------------------------------------------------------------------------


def changes_in(run: RunRow, answer: RunAnswer) -> Mapping[str, Any]:
    """Return what the result of a run tells of its branch. Raises Refused: there is none; says why."""
    who = label(run)
    if config_of(run.config).coding is None:
        raise Refused(f"{who} changes no files, so there is nothing to compare; `ava show {run.id}` has its result")
    if not run.ended:
        raise Refused(f"{who} has not ended ({answer.state}); its branch is made at its end")
    if run.result_seq is None:
        raise Refused(f"{who} never ran ({answer.state}), so it has changed nothing")
    if answer.changes is None:
        why = "its content was erased" if answer.untrusted_result is None else "its result names no branch"
        raise Refused(f"the changes of {who} are no longer known: {why}; look for the branch ava/{run.id}")
    if answer.changes["branch"] is None:
        raise Refused(f"{who} has no branch: {answer.changes['not_kept'] or 'it changed nothing'}")
    return {**answer.changes, "git_folder": config_of(run.config).git_folder}


def diff_of(changes: Mapping[str, Any], home: Path, known: Redactor) -> str:
    """Return a run's changes as a unified diff, with secrets replaced and without terminal control codes. Blocking.

    Args:
        changes: What the result says about its branch.
        home: The user's home folder.
        known: Replaces the stored keys and secrets.

    Raises:
        Refused: They are gone.
    """
    from ava_audit.redaction import RunRedactor
    from ava_roles.worktree.session import branch_diff  # loads the sandbox

    try:
        of = Path(changes["repository"]), changes["base"], changes["head"], home
        git_folder = str(changes.get("git_folder", ""))
        text = branch_diff(*of, git_folder=git_folder)
        whole = branch_diff(*of, context=_WHOLE_FILES, git_folder=git_folder)
    except RolesError as error:
        what = f"branch {changes['branch']} of {changes['repository']} cannot be shown: {error}"
        if changes.get("pack"):
            what += "; it was made on another machine, and `ava fetch` brings it"
        raise Refused(what) from error
    redactor = RunRedactor(known)
    redactor.learn_private_keys("\n".join(line[1:] for line in clean(whole)[0].split("\n")))
    return _without_secrets(clean(show_controls(text))[0], redactor)


def _without_secrets(diff: str, redactor: Redactor) -> str:
    """Return a diff with secrets replaced and each line's sign kept; the end says how many lines that concerns."""
    lines: list[str] = []
    hidden = 0
    for before, after in zip(diff.split("\n"), redactor.redact_lines(diff)[0].split("\n"), strict=True):
        sign = before[:1] if before != after and before[:1] != after[:1] else ""
        lines.append((sign if sign in ("+", "-", " ") else "") + after)
        hidden += before != after
    if not hidden:
        return diff
    were = "1 line was" if hidden == 1 else f"{hidden:,} lines were"
    return (
        "\n".join(lines).rstrip("\n")
        + f"\n\n{were} hidden in whole or in part as secrets; see the branch for the originals.\n"
    )
