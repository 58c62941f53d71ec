"""The first page, with what waits, runs and has ended lately; the list of all runs, filtered, a page at a time.

And two of them beside each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ava_audit.entries import Entry
from ava_audit.events import UserMessage
from ava_audit.retention import is_over
from ava_audit.rows import RUNNING, RunRow
from ava_audit.search import LogQuery, search
from ava_audit.units import format_duration, now_us
from ava_audit.view import NOT_FAILED, ORDERS, RunOrder, RunPhase, View
from ava_server.approval.proposals import Pending, pending_proposals
from ava_server.core.ids import model_words, parse_number
from ava_server.render.plan_view import plan_title
from ava_server.render.result import Text, UntrustedText, result_of
from ava_server.render.run_view import RunView, cost_of, run_answer, view_run
from ava_server.service.current import Budget
from ava_server.service.run_records import current_runs
from ava_server.web.context import PagePart, found_or_404, reader_of
from ava_server.web.deciding import DONE
from ava_server.web.run_page import RunPage
from ava_server.web.site import Visitor

PAGE_RUNS = 50
_SEARCHED = 200
"""Entries of one search; several of them can belong to one run."""
_SEARCHES = 10
_NO_PLACE = "the address names no place of the list"
_TEXT_CHARS = 200
_PHASES: dict[str, RunPhase] = {"waiting": "waiting", "running": "running", "ended": "ended", "failed": "failed"}
_ORDERS: dict[str, RunOrder] = {order: order for order in ORDERS}
COLUMNS: tuple[tuple[str, RunOrder], ...] = (
    ("State", "state"),
    ("Task", "newest"),
    ("Who", "role"),
    ("Cost", "cost"),
    ("Active time", "time"),
    ("When", "newest"),
)
"""The heads of the list, and the order that each leads to."""


@dataclass(frozen=True)
class Filter:
    """Which runs are listed: in a phase, of a role, with these words in ids, names, roles and tasks.

    None and empty take all; `everybody` is for the runs of all users, not the visitor's alone. `replaced`: also
    proposals in whose place a newer one is.
    """

    phase: RunPhase | None = None
    role: str = ""
    text: str = ""
    everybody: bool = False
    replaced: bool = False
    order: RunOrder = "newest"

    def query(self, **more: object) -> str:
        fields: dict[str, object] = {"state": self.phase, "role": self.role, "text": self.text}
        if self.everybody:
            fields["all"] = "1"
        if self.replaced:
            fields["replaced"] = "1"
        if self.order != "newest":
            fields["order"] = self.order
        fields |= more
        return urlencode({name: value for name, value in fields.items() if value})


@dataclass(frozen=True)
class PageOfRuns:
    """A page of the list, and where the next one starts."""

    rows: list[RunRow]
    next: str = ""


MOST_RUNS = 100


@dataclass(frozen=True)
class Now:
    """What the first page shows: proposals, runs that ask their person, all runs, and today's budgets."""

    proposals: list[Pending]
    asking: list[RunView]
    runs: tuple[RunView, ...]
    counts: dict[str, int]
    budgets: tuple[Budget, ...]
    others: int

    @property
    def unended(self) -> list[RunView]:
        """Return runs without those that wait for the person."""
        waiting = {one.subagent_id for one in self.proposals}
        waiting |= {run.row.id for run in self.asking}
        unended: list[RunView] = []
        for run in self.runs:
            if not run.over and run.row.id not in waiting:
                unended.append(run)
        return unended

    @property
    def more_unended(self) -> int:
        """How many runs that have not ended are left out."""
        unended = sum(number for state, number in self.counts.items() if state != "ended")
        return max(0, unended - MOST_RUNS)

    @property
    def more_ended(self) -> int:
        """How many runs that have ended lately are left out."""
        return max(0, self.counts.get("ended", 0) - MOST_RUNS)

    @property
    def ended(self) -> list[RunView]:
        """Return what has ended lately, without proposals in whose place a newer one is."""
        return [run for run in self.runs if run.row.ended and run.row.state != "superseded"]


class Runs(PagePart):
    """The first page, the list of runs, the pages of each, and two of them beside each other."""

    def routes(self) -> list[Route]:
        return [
            Route("/", self.overview, methods=["GET"]),
            Route("/subagents", found_or_404(self.listed), methods=["GET"]),
            Route("/compare", found_or_404(self.compare), methods=["GET"]),
            *RunPage(self._context).routes(),
        ]

    async def overview(self, request: Request) -> Response:
        """Show everybody's to who may see them, unless they ask for their own with `mine`."""
        visitor = reader_of(request)
        everybody = visitor.reads_all and "mine" not in request.query_params
        now = await self._context.store.read(lambda view: self._now(view, visitor, everybody))
        values = {
            "now": now,
            "titles": {one.pending_id: card_title(one) for one in now.proposals},
            "everybody": everybody,
            "owners": _owners(now.runs, visitor),
            "approves": visitor.may("approve"),
            "steers": visitor.service_session(self._context.site.url).may("spawn"),
            "done": DONE.get(request.query_params.get("done", ""), ""),
            "stream": "/stream",
        }
        return self._context.show(request, "overview.html", values)

    def _now(self, view: View, visitor: Visitor, everybody: bool) -> Now:
        runtime, user, at_us = self._context.runtime, visitor.user, now_us()
        whose = None if everybody else user
        counts, runs = current_runs(view, whose, runtime.instances, at_us, served=lambda: True, most=MOST_RUNS)
        others = 0
        if visitor.reads_all and not everybody:
            others = view.unended_of_others(user, at_us)
        return Now(
            proposals=pending_proposals(view, user, runtime.spawn_limits_of(user), at_us),
            asking=[run for run in runs if run.row.user_id == user and run.question is not None],
            runs=runs,
            counts=counts,
            budgets=self._context.budgets(view, visitor, at_us, everybody=everybody),
            others=others,
        )

    async def listed(self, request: Request) -> Response:
        visitor = reader_of(request)
        wanted = _filter(request.query_params, visitor)
        after = request.query_params.get("after", "")
        if wanted.text:
            found = await self._with_text(wanted, visitor, after)
        else:
            found = await self._newest(wanted, visitor, after)
        processes = self._context.runtime.instances
        user = None if wanted.everybody else visitor.user

        def query(view: View) -> dict[str, Any]:
            now = now_us()
            shown = [view_run(view, row, processes, now, result=False, task=True) for row in found.rows]
            return {"runs": shown, "owners": _owners(shown, visitor), "roles": view.roles(user)}

        values = await self._context.store.read(query)
        values |= {
            "wanted": wanted,
            "here": _address(wanted.query(after=after)),
            "older": _address(wanted.query(after=found.next)) if found.next else "",
            "phases": [(name, wanted.query(state=name)) for name in _PHASES],
            "everything": wanted.query(state=None),
            "columns": [(name, order, wanted.query(order=_turned(name, order, wanted))) for name, order in COLUMNS],
            "with_replaced": wanted.query(replaced="" if wanted.replaced else "1"),
            "later": bool(after),
            "stream": "/stream",
        }
        return self._context.show(request, "runs.html", values)

    async def _newest(self, wanted: Filter, visitor: Visitor, after: str) -> PageOfRuns:
        before: tuple[int, str] | None = None
        value: int | str | None = None
        if after:
            before, value = _place(after, wanted.order)
        user = None if wanted.everybody else visitor.user
        role = wanted.role or None
        rows = await self._context.store.read(
            lambda view: view.newest_runs(
                wanted.phase,
                now_us(),
                user=user,
                role=role,
                before=before,
                limit=PAGE_RUNS + 1,
                replaced=wanted.replaced,
                order=wanted.order,
                value=value,
            )
        )
        if len(rows) <= PAGE_RUNS:
            return PageOfRuns(rows)
        last = rows[PAGE_RUNS - 1]
        column, _direction = ORDERS[wanted.order]
        return PageOfRuns(rows[:PAGE_RUNS], f"{last.created_us}~{last.id}~{getattr(last, column)}")

    async def _with_text(self, wanted: Filter, visitor: Visitor, after: str) -> PageOfRuns:
        """Search the log for the proposals of runs, and for their tasks."""
        rows: dict[str, RunRow] = {}
        before = parse_number(after, _NO_PLACE) if after else None
        users = () if wanted.everybody else (visitor.user,)
        for _ in range(_SEARCHES):
            asked = LogQuery(
                users=users, types=("SpawnProposed", "UserMessage"), search=wanted.text, limit=_SEARCHED,
                before_seq=before,
            )  # fmt: skip
            page = await search(self._context.store, asked)
            found = await self._context.store.read(lambda view, page=page: _runs_of(view, page.entries, wanted))  # type: ignore[misc]
            for row in found:
                if row.id not in rows:
                    if len(rows) == PAGE_RUNS:
                        last = list(rows.values())[-1]
                        return PageOfRuns([*rows.values()], str(_first_seq(last)))
                    rows[row.id] = row
            if page.next is None:
                return PageOfRuns([*rows.values()])
            before = min([page.next, *(_first_seq(row) for row in found[-1:])])
        return PageOfRuns([*rows.values()], str(before))

    async def compare(self, request: Request) -> Response:
        """Show the runs `a` and `b`."""
        access = self._context.access(reader_of(request))
        ids: list[str] = []
        for name in ("a", "b"):
            given = request.query_params.get(name, "").strip()
            run = await access.run(given, "run", reading=True)
            ids.append(run.id)
        both = await self._context.store.read(lambda view: [self._compared(view, run_id) for run_id in ids])
        labels: dict[str, None] = {}
        for one in both:
            labels |= dict.fromkeys(one["facts"])
        return self._context.show(request, "compare.html", {"both": both, "labels": list(labels)})

    def _compared(self, view: View, run_id: str) -> dict[str, Any]:
        row = view.run(run_id)
        assert row is not None
        run = view_run(view, row, self._context.runtime.instances, now_us(), task=True)
        result = result_of(run_answer(run))
        facts: dict[str, Text] = {
            "Role": row.role,
            "Model": UntrustedText(model_words(row.model)),
            "Cost": cost_of(run),
            "Active time": format_duration(run.elapsed_s),
        }
        if run.plan is None:
            facts["Turns"] = f"{row.turns:,}"
            facts["Tool calls"] = f"{row.tool_calls:,}"
        facts["Tokens"] = f"{row.tokens:,}"
        if result is not None:
            for fact in result.figures:
                facts[fact.label] = fact.value
        return {"row": row, "run": run, "facts": facts, "result": result}


def card_title(one: Pending) -> str:
    """Return what would start, on one line: the beginning of its task, or what a plan is."""
    summary = one.summary
    if summary is None:  # from a server of an older version
        return one.approval_line
    if summary.steps:
        return plan_title(summary.name, [step.id for step in summary.steps])
    return summary.task


def _place(after: str, order: RunOrder) -> tuple[tuple[int, str], int | str]:
    """Return the time and id of the last run of a page, and its value in the order's column.

    Raises BadInput if the address names none.
    """
    created, _, rest = after.partition("~")
    run_id, _, value = rest.partition("~")
    before = parse_number(created, _NO_PLACE), run_id
    if order in ("role", "state"):
        return before, value
    return before, parse_number(value, _NO_PLACE)


def _address(query: str) -> str:
    return f"/subagents?{query}" if query else "/subagents"


def _turned(name: str, order: RunOrder, wanted: Filter) -> RunOrder | str:
    """Return the order that the head of a column leads to; a second click on "When" turns it round."""
    if name == "When" and wanted.order == "newest":
        return "oldest"
    return "" if order == "newest" else order


def _owners(runs: Iterable[RunView], visitor: Visitor) -> bool:
    """Tell whether rows say whose they are: where one of them is another user's."""
    return any(run.row.user_id != visitor.user for run in runs)


def _filter(query: QueryParams, visitor: Visitor) -> Filter:
    return Filter(
        phase=_PHASES.get(query.get("state", "")),
        role=query.get("role", "")[:_TEXT_CHARS],
        text=query.get("text", "").strip()[:_TEXT_CHARS],
        everybody="all" in query and visitor.reads_all,
        replaced="replaced" in query,
        order=_ORDERS.get(query.get("order", ""), "newest"),
    )


def _runs_of(view: View, entries: tuple[Entry, ...], wanted: Filter) -> list[RunRow]:
    """Return the runs of a filter whose proposals or tasks these entries are, in their order."""
    ids: dict[str, None] = {}
    for entry in entries:
        if entry.run_id is not None and _is_proposal_or_task(entry):
            ids[entry.run_id] = None
    rows: list[RunRow] = []
    for run_id in ids:
        row = view.run(run_id)
        if row is not None and _fits(view, row, wanted):
            rows.append(row)
    return rows


def _is_proposal_or_task(entry: Entry) -> bool:
    if entry.type == "SpawnProposed":
        return True
    return isinstance(entry.fact, UserMessage) and entry.fact.kind == "task"


def _first_seq(row: RunRow) -> int:
    """The proposal is written just before its task."""
    return (row.task_seq or 1) - 1


def _fits(view: View, row: RunRow, wanted: Filter) -> bool:
    if wanted.role and row.role != wanted.role:
        return False
    if row.state == "superseded" and not wanted.replaced:
        return False
    if wanted.phase is None:
        return True
    if wanted.phase == "failed":
        return row.ended and row.state not in NOT_FAILED
    return wanted.phase == _phase(view, row)


def _phase(view: View, row: RunRow) -> RunPhase:
    if is_over(view, row, now_us()):
        return "ended"
    if row.state == RUNNING:
        return "running"
    return "waiting"
