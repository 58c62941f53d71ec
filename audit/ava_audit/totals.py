"""Totals of the log for reports and metrics: counts and sums, without any content.

Totals of runs come from the projection each time. Entries are counted once: `EntryCounts` continue where they stopped,
so that each update costs only the new entries. Types whose content stays are counted from the start of the log;
transcripts, whose content is erased some day, from the start of the counts.

Decisions on money (who approved, rejected, raised, declined or resumed what) are found by two indexes, by time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib import resources
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from ava_audit.entries import Entry
from ava_audit.events import CAP_OF_KIND, SessionStart
from ava_audit.rows import QUEUED, RUNNING, WAITING, Bucket, DaySpending, PlanCaps, RunFacts, RunRow
from ava_audit.units import DAY_US
from ava_audit.view import NOT_A_PLAN, View


@dataclass(frozen=True)
class ErrorCount:
    """Errors of one kind that occurred in runs; the kind is None if the content was erased."""

    kind: str | None
    entries: int
    last_run: str


@dataclass(frozen=True)
class Spending:
    """Totals of a time range."""

    first_us: int | None
    spent: tuple[DaySpending, ...]
    runs: dict[str, RunFacts]  # the runs with costs or an end in that time, by id
    errors: tuple[ErrorCount, ...]  # errors, the most frequent kind first
    others: int = 0  # how many runs of other users have costs in that time


@dataclass(frozen=True)
class UserSpending:
    """A user's spending; `user` is None where it covers all users."""

    user: str | None
    spending: Spending


@dataclass(frozen=True)
class PlanSum:
    """A plan with its runs, oldest first, and what its cap has spent and held.

    `interrupted` has the ids of those that have lost their server.
    """

    caps: PlanCaps
    runs: tuple[RunRow, ...]
    bucket: Bucket
    interrupted: tuple[str, ...] = ()


def spending(view: View, first: int, last: int, user: str | None = None) -> Spending:
    """Return the costs, ended runs and errors from one day to another, both included; `user` None means everybody's.

    Days are counted from 1970, UTC.
    """
    if not view.head():
        return Spending(None, (), {}, ())
    ((first_us,),) = view.select("SELECT ts_us FROM events WHERE seq = 1")
    since_us, until_us = first * DAY_US, (last + 1) * DAY_US
    period = {"first": first, "last": last, "user": user}
    spent = tuple(DaySpending(*row) for row in view.select(_SPENT, **period))
    runs = {run.id: run for run in view.ended_runs(RunFacts, since_us, until_us, user)}
    for run_id in {day.run_id for day in spent} - runs.keys():  # those that were still going on
        facts = view.run_facts(run_id)
        if facts is not None:
            runs[run_id] = facts
    errors: list[ErrorCount] = []
    times = {"since": since_us, "until": until_us, "user": user}
    for kind, count, _seq, run_id in view.select(_script("spending_errors.sql"), **times):
        errors.append(ErrorCount(kind, count, run_id))
    ((others,),) = view.select(_OTHERS, **period)
    return Spending(int(first_us), spent=spent, runs=runs, errors=tuple(errors), others=others)


_SPENT = f"""
    SELECT {", ".join(each.name for each in fields(DaySpending))} FROM spending
    WHERE day >= :first AND day <= :last AND (CAST(:user AS TEXT) IS NULL OR user_id = :user)
    ORDER BY day, id
"""  # noqa: S608
_OTHERS = "SELECT count(DISTINCT run_id) FROM spending WHERE day >= :first AND day <= :last AND user_id <> :user"


@cache
def _script(name: str) -> str:
    return resources.files("ava_audit").joinpath(name).read_text("utf-8")


def plan_sum(view: View, plan_id: str) -> PlanSum | None:
    caps = view.plan_caps(plan_id)
    if caps is None:
        return None
    return PlanSum(caps, tuple(view.plan_runs(plan_id)), view.bucket(plan_id))


@dataclass(frozen=True)
class DayEndings:
    """Totals of the runs that ended on one day with one ending; times in microseconds."""

    day: int  # the UTC day, in days since 1970
    state: str
    runs: int
    input_tokens: int  # with those from and to the cache
    output_tokens: int
    waited_us: int  # from their approvals to their ends, less the time that they worked


def day_endings(view: View, since_us: int, until_us: int, user: str | None = None) -> list[DayEndings]:
    """Return the totals of runs that ended from `since_us` to before `until_us`; `user` None means everybody's."""
    waited = "ended_us - queued_us - active_us"
    sums = (
        "count(*), sum(input_tokens + cache_read_tokens + cache_write_tokens), sum(output_tokens),"
        f" sum(CASE WHEN queued_us IS NOT NULL AND {waited} > 0 THEN {waited} ELSE 0 END)"
    )
    sql = (
        f"SELECT ended_us / 86400000000 AS day, state, {sums} FROM runs"  # noqa: S608
        " WHERE ended_us >= ? AND ended_us < ? AND (CAST(? AS TEXT) IS NULL OR user_id = ?) AND +id LIKE 'S-%'"
        " GROUP BY 1, 2"
    )
    rows = view.select(sql, since_us, until_us, user, user)
    return [DayEndings(int(day), str(state), *map(int, figures)) for day, state, *figures in rows]


Labels = tuple[Any, ...]
"""The model or None, and the values of the fields by which a type is counted."""

PERMANENT: Mapping[str, tuple[str, ...]] = {
    "CostUpdate": ("settlement", "attempt"),
    "GuardrailTripped": ("guardrail", "action"),
    "RunClaimed": ("reason",),
    "SessionStart": ("transport",),
    "SpawnDecided": ("decision", "channel"),
}
"""Types whose content is never erased, and the fields by which they are counted."""
ERASABLE: Mapping[str, tuple[str, ...]] = {"ErrorOccurred": ("kind",), "ToolResult": ("tool", "success", "unusable")}
"""The same for transcripts; only entries that a run itself wrote count."""


@dataclass(frozen=True)
class RunSums:
    """Totals of the runs of one role, model and state. Money in micro-USD, times in microseconds."""

    role: str
    model: str
    state: str
    runs: int
    first_us: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cost_micros: int
    uncosted_micros: int
    turns: int
    tool_calls: int
    active_us: int


@dataclass(frozen=True)
class WaitingRuns:
    """Runs that wait for something: their number, and since when the first has waited (microseconds UTC)."""

    runs: int = 0
    since_us: int | None = None


@dataclass(frozen=True)
class CurrentCounts:
    """What the current runs add up to."""

    waiting: WaitingRuns  # runs that wait for an approval and have not expired
    queued: WaitingRuns
    paused: WaitingRuns  # runs whose provider takes no calls yet
    running: Mapping[str, int]  # the number of runs by owner; the owner may be dead
    in_flight: int  # model calls that are not settled
    held_micros: int


class Counted(NamedTuple):
    """A number of entries, and their total duration in milliseconds."""

    entries: int
    took_ms: int

    def plus(self, entries: int, took_ms: int) -> Counted:
        return Counted(self.entries + entries, self.took_ms + took_ms)


NO_COUNT = Counted(0, 0)


@dataclass
class EntryCounts:
    """Counts of entries by type and labels."""

    since: int  # the `seq` after which transcripts count
    upto: int = 0  # the `seq` up to which all entries have been counted
    counts: dict[str, dict[Labels, Counted]] = field(default_factory=dict[str, dict[Labels, Counted]])

    def of(self, type_name: str) -> Mapping[Labels, Counted]:
        return self.counts.get(type_name, {})

    def add(self, news: NewCounts) -> None:
        """Add new counts, unless these entries were added meanwhile."""
        if news.after != self.upto:
            return
        self.upto = news.upto
        for type_name, labels, entries, took_ms in news.counts:
            counts = self.counts.setdefault(type_name, {})
            counts[labels] = counts.get(labels, NO_COUNT).plus(entries, took_ms)


@dataclass(frozen=True)
class NewCounts:
    """The entries of (`after`, `upto`] that the counts lack, by type and labels."""

    after: int
    upto: int
    counts: tuple[tuple[str, Labels, int, int], ...]


def run_sums(view: View) -> list[RunSums]:
    sums = ", ".join(f"sum({each.name})" for each in fields(RunSums)[5:])
    rows = view.select(
        f"SELECT role, model, state, count(*), min(created_us), {sums} FROM runs WHERE {NOT_A_PLAN}"  # noqa: S608
        " GROUP BY role, model, state"
    )
    return [RunSums(*row) for row in rows]


@dataclass(frozen=True)
class StartWaits:
    """How many runs waited from approval to first claim, within each bound (the last has none), and the sum."""

    runs: tuple[int, ...]
    total_us: int


def start_waits(view: View, bounds_us: Sequence[int]) -> StartWaits:
    """Count how long runs waited for their first claim, by ascending upper bounds (microseconds); at least 0."""
    wait = "(CASE WHEN started_us > queued_us THEN started_us - queued_us ELSE 0 END)"
    within = "".join(f" WHEN {wait} <= {int(bound)} THEN {place}" for place, bound in enumerate(bounds_us))
    rows = view.select(
        f"SELECT CASE{within} ELSE {len(bounds_us)} END, count(*), sum({wait}) FROM runs"  # noqa: S608
        " WHERE started_us IS NOT NULL AND queued_us IS NOT NULL GROUP BY 1"
    )
    counts = [0] * (len(bounds_us) + 1)
    total_us = 0
    for place, runs, runs_us in rows:
        counts[place] = runs
        total_us += int(runs_us)
    return StartWaits(tuple(counts), total_us)


@dataclass(frozen=True)
class UserSums:
    """Totals of the runs of one user in one state. Money in micro-USD, times in microseconds UTC."""

    user: str
    state: str
    runs: int
    first_us: int
    cost_micros: int


def user_sums(view: View) -> list[UserSums]:
    sums = "user_id, state, count(*), min(created_us), sum(cost_micros)"
    sql = f"SELECT {sums} FROM runs WHERE {NOT_A_PLAN} GROUP BY user_id, state"  # noqa: S608
    return [UserSums(*row) for row in view.select(sql)]


def current_runs(view: View, now_us: int) -> CurrentCounts:
    (waiting,) = view.select(
        f"SELECT count(*), min(created_us) FROM proposals WHERE state = '{WAITING}' AND expires_us > ?",  # noqa: S608
        now_us,
    )  # fmt: skip
    queued = view.select(
        "SELECT coalesce(waits_until_us, 0) > ?, count(*), min(queued_us) FROM runs WHERE state = ? GROUP BY 1",
        now_us, QUEUED,
    )  # fmt: skip
    by_pause = {bool(paused): WaitingRuns(runs, since_us) for paused, runs, since_us in queued}
    running = view.runs(states=(RUNNING,), limit=-1)
    by_instance = Counter(run.instance or "" for run in running)
    in_flight = sum(len(run.calls_in_flight) for run in running)
    ((held_micros,),) = view.select(
        "SELECT coalesce(sum(held_micros), 0) FROM budgets WHERE scope IN (SELECT id FROM runs WHERE state IN (?, ?))",
        QUEUED, RUNNING,
    )  # fmt: skip
    return CurrentCounts(
        waiting=WaitingRuns(*waiting),
        queued=by_pause.get(False, WaitingRuns()),
        paused=by_pause.get(True, WaitingRuns()),
        running=by_instance,
        in_flight=in_flight,
        held_micros=held_micros,
    )


def count_new_entries(view: View, known: EntryCounts) -> NewCounts:
    after, upto = known.upto, view.head()
    counts: list[tuple[str, Labels, int, int]] = []
    for type_name, names in PERMANENT.items():
        counts += _count_entries(view, type_name, names, after, upto, "")
    for type_name, names in ERASABLE.items():
        first = max(after, known.since)
        counts += _count_entries(view, type_name, names, first, upto, " AND events.generation IS NOT NULL")
    return NewCounts(after, upto, tuple(counts))


def _count_entries(
    view: View, type_name: str, fields: tuple[str, ...], after: int, upto: int, only: str
) -> Iterator[tuple[str, Labels, int, int]]:
    """Count the entries of a type within (`after`, `upto`] by model and fields; an erased entry has no fields."""
    columns = ", ".join(f"json_extract(events.content, '$.{name}')" for name in fields)
    by = ", ".join(str(number) for number in range(1, len(fields) + 2))
    rows = view.select(
        f"SELECT coalesce(events.model, runs.model), {columns}, count(*), coalesce(sum(events.duration_ms), 0)"  # noqa: S608
        " FROM events LEFT JOIN runs ON runs.id = events.run_id"
        f" WHERE events.type = ? AND events.seq > ? AND events.seq <= ?{only} GROUP BY {by}",
        type_name, after, upto,
    )  # fmt: skip
    for *labels, entries, took_ms in rows:
        yield type_name, tuple(labels), entries, took_ms


_ANY = "+events.type IN ('SpawnDecided', 'Answered', 'RunResumed')"
_DECISION = "trim(CAST(json_extract(events.content, '$.decision') AS TEXT), '\"')"
_KIND = "trim(CAST(json_extract(events.content, '$.kind') AS TEXT), '\"')"
_MORE = ", ".join(f"'{kind}'" for kind in CAP_OF_KIND)
_OF_PROPOSALS = (
    "EXISTS (SELECT 1 FROM runs AS own JOIN proposals ON proposals.pending_id = own.pending_id"
    " AND proposals.run_id = own.id WHERE own.plan_id = runs.id)"
)
"""A plan whose runs were proposed by themselves, and approved together."""
_ON_MONEY = (
    f"CASE events.type WHEN 'SpawnDecided' THEN {_DECISION} IN ('approved', 'rejected')"
    f" AND NOT (substr(runs.id, 1, 2) = 'G-' AND {_OF_PROPOSALS})"
    f" WHEN 'Answered' THEN {_KIND} IN ({_MORE}) ELSE true END"
)
"""Which of them are decisions about money: neither a proposal without an answer, nor the answer to a question.

Of several proposals that were approved together each counts, and their plan does not.
"""
_OWN = f"{_ANY} AND events.user_id = :user AND runs.user_id = :user"
_BY_OTHERS = "events.type = 'RunResumed' AND events.user_id <> :user AND runs.user_id = :user"
"""Others can only resume a user's run: an administrator, or the data root's owner."""


@dataclass(frozen=True)
class Period:
    """A time range (microseconds UTC, the end is exclusive) and whose runs it is about; None is everybody's."""

    since_us: int
    until_us: int
    user: str | None = None


@dataclass(frozen=True)
class DecisionSums:
    """Totals of a period: the decisions of each kind, and the cost so far of the runs approved in it (micro-USD)."""

    counts: dict[str, int]
    cost_micros: Annotated[int, Field(ge=0, le=2**53)]
    uncosted_micros: Annotated[int, Field(ge=0, le=2**53)]


@dataclass(frozen=True)
class FoundDecision:
    """A decision, its run, the run's `SpawnProposed` entry, and the start of the session that decided, if known."""

    entry: Entry
    run: RunRow
    proposed: Entry
    began: SessionStart | None


def decision_page(view: View, period: Period, before: tuple[int, int] | None, limit: int) -> list[FoundDecision]:
    """Return the decisions of a period, newest first; at most `limit`."""
    ts_us, seq = before if before is not None else (period.until_us, 0)
    older = replace(period, until_us=min(period.until_us, ts_us + 1))  # so that the index starts at the page
    then = " AND (events.ts_us < :ts OR events.seq < :seq) ORDER BY events.ts_us DESC, events.seq DESC LIMIT :limit"
    rows = _select(view, older, "events.ts_us, events.seq", then, ts=ts_us, seq=seq, limit=limit)
    newest = sorted(rows, reverse=True)[:limit]
    decisions = [_decision(view, int(decision_seq)) for _ts_us, decision_seq in newest]
    return [decision for decision in decisions if decision is not None]


def decision_sums(view: View, period: Period) -> DecisionSums:
    kind = (
        f"CASE WHEN events.type = 'SpawnDecided' THEN {_DECISION} WHEN events.type = 'RunResumed' THEN 'resumed'"
        f" WHEN {_DECISION} = 'approved' THEN 'raised' ELSE 'declined' END"
    )
    columns = f"{kind}, count(*), sum(runs.cost_micros), sum(runs.uncosted_micros)"
    counts: Counter[str] = Counter()
    cost = uncosted = 0
    for name, count, cost_micros, uncosted_micros in _select(view, period, columns, " GROUP BY 1"):
        counts[str(name)] += int(count)
        if name == "approved":  # each run is approved once
            cost += int(cost_micros)
            uncosted += int(uncosted_micros)
    return DecisionSums(dict(counts), cost, uncosted)


def _select(view: View, period: Period, columns: str, then: str, **values: object) -> Iterator[tuple[Any, ...]]:
    """Yield rows of the decisions about money of a period."""
    values |= {"since": period.since_us, "until": period.until_us}
    conditions: tuple[str, ...] = (_ANY,)
    if period.user is not None:
        values["user"] = period.user
        conditions = (_OWN, _BY_OTHERS)
    for condition in conditions:
        yield from view.select(
            f"SELECT {columns} FROM events CROSS JOIN runs ON runs.id = events.run_id WHERE {condition}"  # noqa: S608
            " AND events.ts_us >= :since AND events.ts_us < :until"
            f" AND {_ON_MONEY}{then}",
            **values,
        )


def _decision(view: View, seq: int) -> FoundDecision | None:
    entry = view.entry(seq)
    if entry is None:
        return None
    run = view.run(entry.run_id or "")
    if run is None:
        return None
    [proposed] = view.newer_entries(run.id, 0, 1)
    return FoundDecision(entry, run, proposed, view.session_start(entry.session_id))
