"""The requests for runs, the log and reports, in one table: `ava` asks in its own process, and with `--url` over HTTP.

The parameters of a request are those of the method that answers it, and its answer is a dataclass. The module loads
little, because `ava logs` starts with it; for the same reason what it needs for one answer is imported there.
"""

import re
from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, Generic, ParamSpec, TypeVar

import anyio.to_thread

from ava_audit.rows import INTERRUPTED, UNENDED, WAITING, RunRow
from ava_audit.search import LogQuery, search
from ava_audit.units import now_us
from ava_audit.view import Readable, View
from ava_server.core.errors import BadInput, Refused
from ava_server.core.ids import parse_any_id, parse_id, parse_number
from ava_server.render.entry_lines import PAGE_ENTRIES, mirror_lines, names_of

if TYPE_CHECKING:
    from ava_audit.entries import Entry
    from ava_audit.redaction import Redactor
    from ava_audit.totals import PlanSum, UserSpending
    from ava_server.approval.estimates import PastEstimates
    from ava_server.budget.user_limits import DayCaps
    from ava_server.config.settings import Settings
    from ava_server.render.approvals import Decisions
    from ava_server.render.run_view import Processes, RunView
    from ava_server.runs.owner.manager import Manager
    from ava_server.runs.record.costs import Costs
    from ava_server.service.current import LogFacts, SelectedRun, TokenFacts
    from ava_server.service.run_records import CurrentViews, ListedRuns, RunDetail, RunDiff, RunRecord
    from ava_server.service.source_view import OpenedSource

H = TypeVar("H")
P = ParamSpec("P")
T = TypeVar("T")
Day = Annotated[int, "days since 1970, UTC"]
Number = Annotated[int, "microseconds since 1970, or the number of an entry"]
MOST_RUNS = 1_000
MOST_IDS = 200
"""How many ids a request over HTTP may name."""
MOST_STEPS = 40
"""How many last actions of the selected run are shown: its pane has as many lines on most screens."""
DETAIL_STEPS = 100
"""How many last actions a run has on a screen of its own."""
PAGE_CHARS = 4_000_000
"""Characters of lines in one answer over HTTP."""


class UnknownId(BadInput):
    """There is no such run for this user."""


class NeedsAudit(Refused):
    """It belongs to other users, and the token lacks the scope `audit`."""


@dataclass(frozen=True)
class Reader:
    """Who asks: a user, their token's scopes, whether they may read what belongs to others, and their day's caps."""

    user: str
    scopes: tuple[str, ...]
    audits: bool
    caps: Callable[[], "DayCaps"]


@dataclass(frozen=True)
class LogLines:
    """A page of the log as mirror lines, newest first; `names` and `next` are as in `names_of` and `EntryPage`."""

    lines: tuple[str, ...]
    names: dict[str, str]
    next: int | None
    upto: int


@dataclass(frozen=True)
class FoundRuns:
    """The runs that ids mean."""

    rows: tuple[RunRow, ...]


def last_run_in(view: View, user: str, *, unended: bool) -> RunRow | None:
    """Return the run or plan that a user proposed last; with `unended`, of those that have not ended or expired."""
    states, before_us = (UNENDED, now_us()) if unended else (None, None)
    found = view.runs(user=user, states=states, expired_before_us=before_us, of_plans=False, limit=1)
    return found[0] if found else None


class RecordsHandler:
    """Answers each `RecordRequest` for one reader. A surface says in `run_in` what they may see.

    Args:
        redactor: Returns what hides the stored keys and secrets. Blocking.
        settings: Returns the settings of this data root. Blocking.
        owner: The user to whom this data root belongs.
        served: Tells whether any server works on this data root.
        manager: This process's own, where it has one: it knows more than the log.
    """

    bounded = False
    """Whether an answer is limited in runs, entries and characters, as it is over HTTP."""
    most_runs = MOST_RUNS
    """Runs in the answer to `current` at most, of those that have not ended and of those that have."""

    def __init__(
        self,
        store: Readable,
        reader: Reader,
        processes: "Processes",
        redactor: Callable[[], "Redactor"],
        *,
        settings: Callable[[], "Settings"],
        owner: str,
        served: Callable[[], bool] = lambda: True,
        manager: "Manager | None" = None,
    ) -> None:
        self.store = store
        self.reader = reader
        self._processes = processes
        self._redactor = redactor
        self._settings = settings
        self._owner = owner
        self._served = served
        self._manager = manager

    async def find(self, ids: Sequence[str]) -> list[RunRow]:
        """Return the runs with these ids of subagents, plans and proposals, each once.

        Raises BadInput if one is not an id, or this reader may see none with it.
        """
        wanted = [parse_any_id(one)[1] for one in ids]
        rows = await self.store.read(lambda view: [self.run_in(view, one) for one in wanted])
        return list({row.id: row for row in rows}.values())

    async def find_last(self, *, unended: bool) -> RunRow | None:
        """Return the run that this reader proposed last; with `unended`, of those that have not ended."""
        return await self.store.read(lambda view: last_run_in(view, self.reader.user, unended=unended))

    def run_in(self, view: View, id: str) -> RunRow:
        """Return the run with an id. Raises UnknownId if this reader may see none."""
        run = view.run(id)
        if run is None:
            raise UnknownId(f"There is no subagent {id[:40]} in this data root.")
        return run

    async def hand_over(self, record: "RunRecord", *, shown: bool) -> "RunRecord":
        """Return a record with the texts of this surface; `shown` says that a person will see it."""
        del shown  # a command notes that once it has shown it
        return record

    async def token_in_use(self) -> "TokenFacts | None":
        """Return the token that asks; None where no token is needed."""
        return None

    def log_facts(self, view: View) -> "LogFacts | None":
        """Return how large the log is, and how complete its copies are; None for anybody but its owner."""
        return None

    def _whose(self, everybody: bool) -> str | None:
        """Return whose runs are asked for; None is everybody's, for an auditor."""
        if everybody and not self.reader.audits:
            raise NeedsAudit("it is not your own")
        return None if everybody else self.reader.user

    async def token(self) -> "TokenFacts":
        from importlib.metadata import version

        from ava_server.service.current import TokenFacts

        return TokenFacts(self.reader.user, self.reader.scopes, version("ava-subagents"))

    async def found(self, id: Sequence[str] = (), last: str = "") -> FoundRuns:
        """Return the runs that ids mean, or the `unended` or `any` last one."""
        if last:
            row = await self.find_last(unended=last == "unended")
            return FoundRuns(() if row is None else (row,))
        return FoundRuns(tuple(await self.find(id[:MOST_IDS] if self.bounded else id)))

    async def listed(self, id: Sequence[str]) -> "ListedRuns":
        """Return runs as they are now, each once, without their results."""
        from ava_server.render.run_view import view_run
        from ava_server.service.run_records import ListedRuns

        at_us = now_us()
        ids = id[:MOST_IDS] if self.bounded else id

        def query(view: View) -> "ListedRuns":
            rows: dict[str, RunRow] = {}
            for one in ids:
                row = self.run_in(view, one)
                rows[row.id] = row
            more: dict[str, Any] = {"served": self._served, "manager": self._manager, "task": len(rows) > 1}
            views = [view_run(view, row, self._processes, at_us, result=False, **more) for row in rows.values()]
            return ListedRuns(views)

        return await self.store.read(query)

    async def current(self, all: bool = False, selected: str | None = None) -> "CurrentViews":
        """Return what goes on, out of one state of the log, with the last actions of the `selected` run of the list."""
        from ava_server.service.current import CurrentRuns, current_rows, todays_budgets

        user = self._whose(all)
        at_us = now_us()
        own = self.reader.user
        caps = self.reader.caps()
        token = await self.token_in_use()

        def query(view: View) -> "CurrentViews":
            counts: dict[str, int] = {"ended": 0}
            runs: tuple[RunView, ...] = ()
            rows = current_rows(view, user, at_us)
            if any(rows):
                from ava_server.service.run_records import current_runs  # importing it takes as long as all of this

                more: dict[str, Any] = {"served": cache(self._served), "most": self.most_runs, "rows": rows}
                counts, runs = current_runs(view, user, self._processes, at_us, **more)
            budgets = todays_budgets(view, own, own, caps, at_us, everybody=self.reader.audits)
            others = 0
            if user is not None and self.reader.audits:
                others = view.unended_of_others(user, at_us)
            selected_run: SelectedRun | None = None
            for run in runs:
                if run.row.id == selected:
                    selected_run = self._selected(view, run.row)
                    break
            return CurrentRuns(
                at_us,
                counts,
                runs,
                budgets,
                token,
                others=others,
                selected=selected_run,
                log=self.log_facts(view),
            )

        return await self.store.read(query)

    def _selected(self, view: View, run: RunRow) -> "SelectedRun":
        from ava_audit.events import SubagentComplete
        from ava_server.approval.proposals import Pending, pending_proposal, spawn_limits
        from ava_server.render.entry_lines import recent_steps
        from ava_server.service.current import SelectedRun

        about = ""
        if run.state == WAITING:
            proposal = pending_proposal(view, run, spawn_limits(self._settings(), run.user_id), now_us())
            about = proposal.message if isinstance(proposal, Pending) else proposal
        elif run.result_seq is not None:
            entry = view.entry(run.result_seq)
            about = entry.fact.summary if entry is not None and isinstance(entry.fact, SubagentComplete) else ""
        return SelectedRun(run.id, recent_steps(view, run.id, MOST_STEPS), about)

    async def record(self, run_id: str, shown: bool = False) -> "RunRecord":
        """Return a run with its whole result; `shown` says that a person will see it."""
        from ava_server.service.run_records import run_record

        record = await self.store.read(lambda view: run_record(view, self.run_in(view, run_id).id, self._processes))
        return await self.hand_over(record, shown=shown)

    async def detail(self, run_id: str) -> "RunDetail":
        """Return a run with what its screen shows besides, out of one state of the log."""
        from ava_server.approval.proposals import spawn_limits
        from ava_server.service.run_records import run_detail

        def query(view: View) -> "RunDetail":
            run = self.run_in(view, run_id)
            settings = self._settings()
            limits = spawn_limits(settings, run.user_id)
            return run_detail(view, run, self._processes, limits, served=self._served, most_steps=DETAIL_STEPS)

        return await self.store.read(query)

    async def costs(self, run_id: str) -> "Costs":
        from ava_server.runs.record.costs import costs_of  # loads the settings and all roles' tools

        return await self.store.read(lambda view: costs_of(view, self.run_in(view, run_id)))

    async def diff(self, run_id: str) -> "RunDiff":
        from ava_roles.sandbox.temporary import temporary_files_in
        from ava_server.core.data_root import home_folder
        from ava_server.service.run_records import RunDiff, diff_of, shown_changes

        record = await self.record(run_id)
        changes = shown_changes(record.row, record.answer)
        redactor = await anyio.to_thread.run_sync(self._redactor)
        settings = await anyio.to_thread.run_sync(self._settings)
        with temporary_files_in(settings.paths.temporary):  # git's own files
            text = await anyio.to_thread.run_sync(diff_of, changes, home_folder(), redactor, abandon_on_cancel=True)
        return RunDiff(text)

    async def source(self, run_id: str, number: str) -> "OpenedSource":
        """Return what a run read of the source of a finding, by the finding's number."""
        from ava_server.service.source_view import open_source

        wanted = parse_number(number, f"{number[:40]!r} is not the number of a source")
        found = await self.store.read(lambda view: self.run_in(view, run_id).id)
        settings = await anyio.to_thread.run_sync(self._settings)
        return await open_source(self.store, found, wanted, settings, self._owner)

    async def log(self, query: LogQuery) -> LogLines:
        """Return the newest entries that match a query as lines. Raises BadQuery if it names an unknown event type."""
        users = query.users
        own = self.reader.user
        ids = query.runs
        limit = query.limit
        if self.bounded:
            ids = ids[:MOST_IDS]
            limit = max(1, min(limit, PAGE_ENTRIES))
        runs: tuple[str, ...] = ()
        if ids:
            runs = await self.store.read(lambda view: tuple(self.run_in(view, id).id for id in ids))
        if not self.reader.audits:
            if users and set(users) != {own}:
                raise NeedsAudit("it is not your own")
            # Every entry of one's own run is one's own; the condition would only make the search slower.
            users = () if runs else (own,)
        page = await search(self.store, replace(query, runs=runs, users=users, limit=limit))
        shown = await self.lines_of(page.entries)
        older = page.next if len(shown.lines) == len(page.entries) else page.entries[len(shown.lines) - 1].seq
        return replace(shown, next=older, upto=page.upto)

    async def lines_of(self, entries: Sequence["Entry"]) -> LogLines:
        lines: list[str] = []
        chars = 0
        for line in await mirror_lines(self.store, entries):
            chars += len(line)
            if lines and self.bounded and chars > PAGE_CHARS:
                break
            lines.append(line.decode())
        return LogLines(tuple(lines), await self.store.read(lambda view: names_of(view, entries)), None, 0)

    async def spending(self, first: Day, last: Day, all: bool = False) -> "UserSpending":
        """Return what was spent from one day to another, both included."""
        from ava_audit.totals import UserSpending, spending

        user = self._whose(all)
        sums = await self.store.read(lambda view: spending(view, first, last, user))
        if not self.reader.audits:
            sums = replace(sums, others=0)
        return UserSpending(user, sums)

    async def plan(self, group: str, all: bool = False) -> "PlanSum":
        from ava_audit.totals import plan_sum
        from ava_server.render.run_view import state_now

        user = self._whose(all)
        plan_id = parse_id("group_id", group, "--group")

        def read(view: View) -> "PlanSum | None":
            found = plan_sum(view, plan_id)
            if found is None:
                return None
            alive, at_us = self._processes.alive, now_us()
            lost = [run.id for run in found.runs if state_now(run, None, alive, at_us) == INTERRUPTED]
            return replace(found, interrupted=tuple(lost))

        found = await self.store.read(read)
        if found is None or user not in (None, found.caps.user_id):
            raise UnknownId(f"There is no plan {plan_id} of {self.reader.user} here.")
        return found

    async def decisions(
        self,
        since: Number,
        until: Number,
        user: str | None = None,
        all: bool = False,
        before_us: Number | None = None,
        before_seq: Number | None = None,
    ) -> "Decisions":
        """Return a page of the decisions of a period, the newest first; `before_us` and `before_seq` begin the next."""
        from ava_audit.totals import Period
        from ava_server.render.approvals import decisions_of

        whose = self._whose(all) if user is None else user
        if whose not in (None, self.reader.user) and not self.reader.audits:
            raise NeedsAudit("it is not your own")
        before = None if before_us is None else (before_us, before_seq or 0)
        return await self.store.read(lambda view: decisions_of(view, Period(since, until, whose), before))

    async def estimates(self, since: Number, until: Number, all: bool = False) -> "PastEstimates":
        from ava_server.approval.estimates import past_estimates

        user = self._whose(all)
        return await self.store.read(lambda view: past_estimates(view, since, until, user))


@dataclass(frozen=True)
class RecordRequest(Generic[H, P, T]):
    """A request to a handler, near or over HTTP.

    Attributes:
        path: Its path over HTTP; a part in braces is a parameter.
        answer: What answers it. Its parameters are those of the request.
        kind: Where the class of the answer is; it is loaded to read an answer.
        told_by: Parameters, any one of which tells it from the next request in the table with the same path.
        method: Its method over HTTP; with another than GET, the parameters are the body.
        lost: What to tell a person if no answer comes.
    """

    path: str
    answer: Callable[Concatenate[H, P], Awaitable[T]]
    kind: str
    told_by: tuple[str, ...] = ()
    method: str = "GET"
    lost: str = ""


_RECORDS = "ava_server.service.run_records"
_CURRENT = "ava_server.service.current"
TOKEN = RecordRequest("/token", RecordsHandler.token, f"{_CURRENT}:TokenFacts")
FOUND = RecordRequest("/runs/found", RecordsHandler.found, f"{__name__}:FoundRuns")
LISTED = RecordRequest("/runs", RecordsHandler.listed, f"{_RECORDS}:ListedRuns", ("id",))
CURRENT = RecordRequest("/runs", RecordsHandler.current, f"{_RECORDS}:CurrentViews")
RECORD = RecordRequest("/runs/{run_id}", RecordsHandler.record, f"{_RECORDS}:RunRecord")
DETAIL = RecordRequest("/runs/{run_id}/detail", RecordsHandler.detail, f"{_RECORDS}:RunDetail")
COSTS = RecordRequest("/runs/{run_id}/costs", RecordsHandler.costs, "ava_server.runs.record.costs:Costs")
DIFF = RecordRequest("/runs/{run_id}/diff", RecordsHandler.diff, f"{_RECORDS}:RunDiff")
SOURCE = RecordRequest(
    "/runs/{run_id}/sources/{number}", RecordsHandler.source, "ava_server.service.source_view:OpenedSource"
)
LOG = RecordRequest("/log", RecordsHandler.log, f"{__name__}:LogLines")
PLAN = RecordRequest("/report", RecordsHandler.plan, "ava_audit.totals:PlanSum", ("group",))
SPENDING = RecordRequest("/report", RecordsHandler.spending, "ava_audit.totals:UserSpending")
DECISIONS = RecordRequest("/report/approvals", RecordsHandler.decisions, "ava_server.render.approvals:Decisions")
ESTIMATES = RecordRequest("/report/estimates", RecordsHandler.estimates, "ava_server.approval.estimates:PastEstimates")
REQUESTS: tuple[RecordRequest[RecordsHandler, ..., Any], ...] = (
    TOKEN, FOUND, LISTED, CURRENT, RECORD, DETAIL, COSTS, DIFF, SOURCE, LOG, PLAN, SPENDING, DECISIONS, ESTIMATES,
)  # fmt: skip
PATHS = tuple(dict.fromkeys(f"/{request.path.split('/')[1]}" for request in REQUESTS))


def find_request(
    requests: Sequence[RecordRequest[H, ..., Any]], path: str, given: Container[str]
) -> tuple[RecordRequest[H, ..., Any] | None, dict[str, str]]:
    """Return the request with a path and parameters, and the parameters in the path; None if there is none."""
    for request in requests:
        pattern = re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", request.path)
        match = re.fullmatch(pattern, path.rstrip("/"))
        if match is None:
            continue
        if not request.told_by or any(name in given for name in request.told_by):
            return request, match.groupdict()
    return None, {}
