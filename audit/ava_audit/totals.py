"""What the log adds up to, for whoever watches a server from outside: counts and sums, and no words of anybody.

Runs are added up from their projection at each look. Entries are counted once: a `Tally` goes on where it stopped, so
that a look costs what is new since the last one. Of entries that are kept whole it counts all that the log has; of
transcripts, whose content is erased some day, what was written since the tally was begun.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ava_audit.rows import QUEUED, RUNNING, WAITING, Bucket, GroupRow, RunRow
from ava_audit.units import DAY_US
from ava_audit.view import View


@dataclass(frozen=True)
class DaySpending:
    """The settled calls of one run that were reserved on one day, added up; micro-USD.

    Attributes:
        run_id: The run.
        day: The UTC day, in days since 1970.
        calls: How many.
        cost_micros: What they cost.
        retries_micros: Of it, for asking again what had been paid for.
        plan_micros: Of it, for planning.
        uncosted_micros: Of it, booked at the worst case because nobody said what the call cost.
        overruns: Calls that cost or counted more than was reserved.
        over_micros: By how much these cost more.
    """

    run_id: str
    day: int
    calls: int
    cost_micros: int
    retries_micros: int
    plan_micros: int
    uncosted_micros: int
    overruns: int
    over_micros: int


@dataclass(frozen=True)
class RunFacts:
    """What a report says of a run."""

    id: str
    user_id: str
    role: str
    model: str
    state: str
    stop_reason: str | None
    error_kind: str | None
    ended_us: int | None


@dataclass(frozen=True)
class ErrorCount:
    """Errors of one kind that runs met on their way; the kind is None where its words were erased."""

    kind: str | None
    entries: int
    last_run: str


@dataclass(frozen=True)
class Spending:
    """A time, added up.

    Attributes:
        first_us: When the log begins, None for an empty one.
        spent: By run and day.
        runs: Those that spent something in that time or ended in it, by id.
        errors: What runs met, the most frequent first.
    """

    first_us: int | None
    spent: tuple[DaySpending, ...]
    runs: dict[str, RunFacts]
    errors: tuple[ErrorCount, ...]


@dataclass(frozen=True)
class GroupSum:
    """A group with its members, oldest first, and what its cap has spent and held."""

    group: GroupRow
    runs: tuple[RunRow, ...]
    bucket: Bucket


_RUN = "id, user_id, role, model, state, stop_reason, error_kind, ended_us"
# A settlement belongs to the newest reservation of its run before it. One of a call that is not in flight (any more)
# books nothing, here as in the budgets. The pluses keep SQLite at the index of the run, which has few entries, where
# the log has many of these types.
_SPENT = f"""\
SELECT e.run_id, r.ts_us / {DAY_US} AS day, count(*), sum(coalesce(e.cost_micros, 0)),
       sum(coalesce(json_extract(e.content, '$.cost_by.retries'), 0)),
       sum(coalesce(json_extract(e.content, '$.cost_by.plan'), 0)),
       sum(iif(json_extract(e.content, '$.settlement') = 'unknown', coalesce(e.cost_micros, 0), 0)),
       sum(json_extract(e.content, '$.overrun')),
       sum(iif(json_extract(e.content, '$.overrun'),
               max(0, coalesce(e.cost_micros, 0) - json_extract(e.content, '$.reserved_micros')), 0))
FROM events AS e CROSS JOIN events AS r ON r.seq = (
    SELECT b.seq FROM events AS b
    WHERE b.run_id = e.run_id AND b.seq < e.seq AND +b.type = 'CostReserved'
    ORDER BY b.seq DESC LIMIT 1)
WHERE e.type = 'CostUpdate' AND e.seq > ? AND e.run_id IS NOT NULL
  AND +r.ts_us >= ? AND +r.ts_us < ?
  AND json_extract(e.content, '$.turn') = json_extract(r.content, '$.turn')
  AND json_extract(e.content, '$.attempt') = json_extract(r.content, '$.attempt')
  AND NOT EXISTS (
    SELECT 1 FROM events AS b
    WHERE b.run_id = e.run_id AND b.seq > r.seq AND b.seq < e.seq AND +b.type = 'CostUpdate'
      AND json_extract(b.content, '$.turn') = json_extract(e.content, '$.turn')
      AND json_extract(b.content, '$.attempt') = json_extract(e.content, '$.attempt'))
GROUP BY e.run_id, day
"""  # noqa: S608
_ERRORS = """\
SELECT json_extract(events.content, '$.kind'), count(*), max(events.seq), events.run_id
FROM events CROSS JOIN runs ON runs.id = events.run_id
WHERE events.type = 'ErrorOccurred' AND events.seq > ? AND +events.ts_us >= ? AND +events.ts_us < ?
  AND events.generation IS NOT NULL AND (? IS NULL OR runs.user_id = ?)
GROUP BY 1 ORDER BY 2 DESC, 3 DESC
"""


def spending(view: View, since_us: int, until_us: int, user: str | None = None) -> Spending:
    """Return what was spent and what ended within a time.

    Args:
        view: The state.
        since_us: Its beginning (microseconds UTC).
        until_us: Its end, which is not part of it.
        user: Only this user's runs; None is everybody's.
    """
    ((first_us,),) = view.select("SELECT ts_us FROM events WHERE seq = 1") if view.head() else ((None,),)
    if first_us is None:
        return Spending(None, (), {}, ())
    after = _before(view, since_us)
    spent = [DaySpending(*row) for row in view.select(_SPENT, after, since_us, until_us)]
    of_spent = {each.run_id for each in spent}
    rows = view.select(f"SELECT {_RUN} FROM runs WHERE ? IS NULL OR user_id = ?", user, user)  # noqa: S608
    runs = {
        row[0]: RunFacts(*row)
        for row in rows
        if row[0] in of_spent or (row[-1] is not None and since_us <= row[-1] < until_us)
    }
    errors = view.select(_ERRORS, after, since_us, until_us, user, user)
    return Spending(
        int(first_us),
        tuple(each for each in spent if each.run_id in runs),
        runs,
        tuple(ErrorCount(kind, count, run_id) for kind, count, _seq, run_id in errors),
    )


def group_sum(view: View, group_id: str) -> GroupSum | None:
    """Return a group, or None."""
    group = view.group(group_id)
    if group is None:
        return None
    return GroupSum(group, tuple(view.group_runs(group_id)), view.bucket(group_id))


def _before(view: View, since_us: int) -> int:
    """Return a `seq` before every entry of a time on, also where the clock was set back meanwhile."""
    ((first,),) = view.select("SELECT min(seq) FROM events WHERE ts_us >= ?", since_us)
    return view.head() if first is None else int(first) - 1


Labels = tuple[Any, ...]
"""A model, or None, and the values of the fields that a type is counted by."""

PERMANENT: Mapping[str, tuple[str, ...]] = {
    "CostUpdate": ("settlement", "attempt"),
    "GuardrailTripped": ("guardrail", "action"),
    "RunClaimed": ("reason",),
    "SessionStart": ("transport",),
    "SpawnDecided": ("decision", "channel"),
}
"""Types whose content stays in the log for good, and by which of its fields they are counted."""
ERASABLE: Mapping[str, tuple[str, ...]] = {"ErrorOccurred": ("kind",), "ToolResult": ("tool", "success", "unusable")}
"""The same for transcripts, of which only a run's own entries count."""


@dataclass(frozen=True)
class RunSums:
    """Runs of one role, model and state, added up. Money in micro-USD, times in microseconds."""

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
    """Runs that wait for something: how many, and since when the first of them does (microseconds UTC)."""

    runs: int = 0
    since_us: int | None = None


@dataclass(frozen=True)
class CurrentRuns:
    """What is going on now.

    Attributes:
        waiting: Runs that wait for an approval that can still be given.
        queued: Runs that may start as soon as there is a slot.
        paused: Runs whose provider takes no calls yet.
        running: Runs that have an owner, by its name; whether it lives is not known here.
        in_flight: Calls of models that have not been settled.
        held_micros: What is held for them, and for the wrap-ups after them.
    """

    waiting: WaitingRuns
    queued: WaitingRuns
    paused: WaitingRuns
    running: Mapping[str, int]
    in_flight: int
    held_micros: int


class Counted(NamedTuple):
    """How many entries, and how long what they tell of took, in milliseconds."""

    entries: int
    took_ms: int

    def plus(self, entries: int, took_ms: int) -> Counted:
        """Return it with more."""
        return Counted(self.entries + entries, self.took_ms + took_ms)


NO_COUNT = Counted(0, 0)


@dataclass
class Tally:
    """Entries that have been counted, by type and labels.

    Attributes:
        since: The `seq` after which entries of transcripts count.
        upto: The `seq` up to which all entries have been counted.
    """

    since: int
    upto: int = 0
    counts: dict[str, dict[Labels, Counted]] = field(default_factory=dict[str, dict[Labels, Counted]])

    def of(self, type_name: str) -> Mapping[Labels, Counted]:
        """Return what was counted of a type."""
        return self.counts.get(type_name, {})

    def add(self, news: NewCounts) -> None:
        """Take up what was counted since; what others have taken up meanwhile is not taken twice."""
        if news.after != self.upto:
            return
        self.upto = news.upto
        for type_name, labels, entries, took_ms in news.counts:
            counts = self.counts.setdefault(type_name, {})
            counts[labels] = counts.get(labels, NO_COUNT).plus(entries, took_ms)


@dataclass(frozen=True)
class NewCounts:
    """What a tally lacks: the entries of (`after`, `upto`], counted by type and labels."""

    after: int
    upto: int
    counts: tuple[tuple[str, Labels, int, int], ...]


def run_sums(view: View) -> list[RunSums]:
    """Return all runs, added up by role, model and state."""
    rows = view.select(
        "SELECT role, model, state, count(*), min(created_us), sum(input_tokens), sum(output_tokens),"
        " sum(cache_read_tokens), sum(cache_write_tokens), sum(cost_micros), sum(uncosted_micros), sum(turns),"
        " sum(tool_calls), sum(active_us) FROM runs GROUP BY role, model, state"
    )
    return [RunSums(*row) for row in rows]


def current_runs(view: View, now_us: int) -> CurrentRuns:
    """Return what is going on at a moment."""
    waiting = WaitingRuns(
        *next(
            view.select(
                "SELECT count(*), min(proposals.created_us) FROM runs JOIN proposals USING (pending_id)"
                " WHERE runs.state = ? AND proposals.expires_us > ?",
                WAITING, now_us,
            )
        )
    )  # fmt: skip
    lines = view.select(
        "SELECT coalesce(not_before_us, 0) > ?, count(*), min(queued_us) FROM runs WHERE state = ? GROUP BY 1",
        now_us, QUEUED,
    )  # fmt: skip
    queued = {bool(paused): WaitingRuns(runs, since_us) for paused, runs, since_us in lines}
    running = Counter[str]()
    in_flight = 0
    owners = "SELECT coalesce(instance, ''), count(*), count(in_flight) FROM runs WHERE state = ? GROUP BY 1"
    for owner, runs, calls in view.select(owners, RUNNING):
        running[owner] += runs
        in_flight += calls
    ((held,),) = view.select(
        "SELECT coalesce(sum(held_micros), 0) FROM budgets WHERE scope IN (SELECT id FROM runs WHERE state IN (?, ?))",
        QUEUED, RUNNING,
    )  # fmt: skip
    return CurrentRuns(
        waiting, queued.get(False, WaitingRuns()), queued.get(True, WaitingRuns()), running, in_flight, held
    )


def count_new_entries(view: View, tally: Tally) -> NewCounts:
    """Return what a tally lacks."""
    after, upto = tally.upto, view.head()
    counts: list[tuple[str, Labels, int, int]] = []
    for type_name, fields in PERMANENT.items():
        counts += _counted(view, type_name, fields, after, upto, "")
    for type_name, fields in ERASABLE.items():
        counts += _counted(view, type_name, fields, max(after, tally.since), upto, " AND events.generation IS NOT NULL")
    return NewCounts(after, upto, tuple(counts))


def _counted(
    view: View, type_name: str, fields: tuple[str, ...], after: int, upto: int, only: str
) -> Iterator[tuple[str, Labels, int, int]]:
    """Count the entries of a type within (`after`, `upto`] by model and fields; what was erased has no fields."""
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
