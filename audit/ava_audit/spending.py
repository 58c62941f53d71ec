"""What was spent, on which day and by which run, and what failed: the log added up for whoever looks back.

Money counts on the UTC day on which its call was reserved, as it does in the budgets of a day: a call over midnight
belongs to the day on which it began. So the sums of a day are the spend of its budgets, to the micro-dollar.
"""

from __future__ import annotations

from dataclasses import dataclass

from ava_audit.rows import Bucket, GroupRow, RunRow
from ava_audit.times import DAY_US
from ava_audit.view import View


@dataclass(frozen=True)
class Spent:
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
    spent: tuple[Spent, ...]
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
    spent = [Spent(*row) for row in view.select(_SPENT, after, since_us, until_us)]
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
