"""Decisions on money: who approved, rejected, raised, declined or resumed what. Two indexes find them by time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import Field

from ava_audit.entries import Entry
from ava_audit.events import SessionStart
from ava_audit.rows import RunRow
from ava_audit.view import View

_ANY = "+events.type IN ('SpawnDecided', 'ExtensionDecided', 'RunResumed')"
_DECISION = "trim(CAST(json_extract(events.content, '$.decision') AS TEXT), '\"')"
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
    left = replace(period, until_us=min(period.until_us, ts_us + 1))  # the index starts there, however long the period
    then = " AND (events.ts_us < :ts OR events.seq < :seq) ORDER BY events.ts_us DESC, events.seq DESC LIMIT :limit"
    rows = _select(view, left, "events.ts_us, events.seq", then, ts=ts_us, seq=seq, limit=limit)
    newest = sorted(rows, reverse=True)[:limit]
    found = (_found(view, int(each[1])) for each in newest)
    return [each for each in found if each is not None]


def decision_sums(view: View, period: Period) -> DecisionSums:
    kind = f"CASE WHEN events.type = 'SpawnDecided' THEN {_DECISION} WHEN events.type = 'RunResumed' THEN 'resumed'"
    kind += f" WHEN {_DECISION} = 'approved' THEN 'raised' ELSE 'declined' END"
    what = f"{kind}, count(*), sum(runs.cost_micros), sum(runs.uncosted_micros)"
    counts: dict[str, int] = {}
    cost = uncosted = 0
    for name, count, cost_micros, uncosted_micros in _select(view, period, what, " GROUP BY 1"):
        counts[str(name)] = counts.get(str(name), 0) + int(count)
        if name == "approved":  # each run is approved once
            cost, uncosted = cost + int(cost_micros), uncosted + int(uncosted_micros)
    return DecisionSums(counts, cost, uncosted)


def _select(view: View, period: Period, what: str, then: str, **values: object) -> Iterator[tuple[Any, ...]]:
    """Yield rows of the decisions of a period: without proposals that expired or were superseded."""
    for whose in (_ANY,) if period.user is None else (_OWN, _BY_OTHERS):
        yield from view.select(
            f"SELECT {what} FROM events CROSS JOIN runs ON runs.id = events.run_id WHERE {whose}"  # noqa: S608
            " AND events.ts_us >= :since AND events.ts_us < :until"
            f" AND (events.type <> 'SpawnDecided' OR {_DECISION} IN ('approved', 'rejected')){then}",
            since=period.since_us,
            until=period.until_us,
            **({} if period.user is None else {"user": period.user}),
            **values,
        )


def _found(view: View, seq: int) -> FoundDecision | None:
    entry = view.entry(seq)
    run = view.run(entry.run_id or "") if entry is not None else None
    if entry is None or run is None:
        return None
    [proposed] = view.newer_entries(run.id, 0, 1)
    return FoundDecision(entry, run, proposed, view.session_start(entry.session_id))
