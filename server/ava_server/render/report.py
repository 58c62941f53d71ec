"""What was spent and what failed, for `ava report` and the page `/costs`: sums by day, role, model, ending and user."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any

from ava_audit.units import DAY_US, cents, day_of, format_usd
from ava_audit.view import NOT_FAILED as NOT_FAILED
from ava_server.core.ids import model_words, state_words

if TYPE_CHECKING:
    from ava_audit.rows import DaySpending, RunFacts
    from ava_audit.totals import ErrorCount, Spending

NOT_RUN = ("rejected", "expired", "superseded")
"""Endings of what never started."""
NOT_ENDED = "not ended"
FOLDED_DAYS = 4
"""So many empty days in a row are one line of a table."""
MANY_DAYS = 92
"""For more days than this, screens and pages have months; JSON always has days."""
ALL_OTHERS = "all others"
_NUMBERS = re.compile(r"\d+(?:[.,]\d+)*")


@dataclass
class Sum:
    """What belongs to a day, a role, a model, an ending or a user. Money in micro-USD."""

    name: str
    cost: int = 0
    calls: int = 0
    retries: int = 0
    outline: int = 0
    uncosted: int = 0
    overruns: int = 0
    over: int = 0
    ended: int = 0
    failed: int = 0
    found_nothing: int = 0
    spenders: set[str] = field(default_factory=set[str])
    enders: set[str] = field(default_factory=set[str])

    @property
    def empty(self) -> bool:
        return not self.calls and not self.ended

    @property
    def ended_words(self) -> str:
        """How many runs ended, and how many of them failed or found nothing."""
        nothing = f", {self.found_nothing:,} found nothing" if self.found_nothing else ""
        return f"{self.ended:,} ended, {self.failed:,} of them failed{nothing}"

    @property
    def runs(self) -> int:
        """How many runs spent something or ended."""
        return len(self.spenders | self.enders)

    def spend(self, spent: DaySpending) -> None:
        """Add what a run spent on one day."""
        self.cost += spent.cost_micros
        self.calls += spent.calls
        self.retries += spent.retries_micros
        self.outline += spent.plan_micros
        self.uncosted += spent.uncosted_micros
        self.overruns += spent.overruns
        self.over += spent.over_micros
        self.spenders.add(spent.run_id)

    def end(self, run: RunFacts) -> None:
        self.enders.add(run.id)
        self.ended += run.state not in NOT_RUN
        self.failed += run.state not in NOT_FAILED
        self.found_nothing += run.state == "no_answer"

    def as_json(self, what: str | None = None) -> dict[str, Any]:
        """Under its name as `what`; money in US cents."""
        return {
            **({what: self.name} if what else {}),
            "cost_cents": cents(self.cost),
            "model_calls": self.calls,
            "runs_that_spent": len(self.spenders),
            "runs_ended": self.ended,
            "runs_failed": self.failed,
            "runs_that_found_nothing": self.found_nothing,
            "retries_cents": cents(self.retries),
            "plan_cents": cents(self.outline),
            "uncosted_cents": cents(self.uncosted),
            "overruns": self.overruns,
            "overrun_cents": cents(self.over),
        }


@dataclass(frozen=True)
class Reason:
    """Why runs failed: the ending, the reason of the newest of them, how many, and the newest."""

    ending: str
    reason: str
    runs: int
    newest: RunFacts


@dataclass(frozen=True)
class Report:
    """Sums of the days from `first` to `last` (days since 1970, UTC); `user` is None where it covers all users."""

    user: str | None
    first: int
    last: int
    total: Sum
    days: tuple[Sum, ...]
    by: dict[str, tuple[Sum, ...]]
    endings: Counter[str]
    reasons: tuple[Reason, ...]
    errors: tuple[ErrorCount, ...]
    others: int = 0

    @property
    def monthly(self) -> bool:
        return len(self.days) > MANY_DAYS

    @cached_property
    def periods(self) -> Sequence[Sum]:
        """The days, or the months of a long time."""
        if not self.monthly:
            return self.days
        months: dict[str, Sum] = {}
        for day in self.days:
            month = months.setdefault(day.name[:7], Sum(day.name[:7]))
            month.cost += day.cost
            month.calls += day.calls
            month.ended += day.ended
            month.failed += day.failed
            month.found_nothing += day.found_nothing
        return list(months.values())


_KEYS: Mapping[str, Callable[[RunFacts], str]] = {
    "role": lambda run: run.role,
    "model": lambda run: run.model,
    "ending": lambda run: run.state if run.ended_us is not None else NOT_ENDED,
    "user": lambda run: run.user_id,
}
"""What sums are made by."""


class _Sums(dict[str, Sum]):
    """Sums by name; one that is missing is made."""

    def __missing__(self, name: str) -> Sum:
        made = self[name] = Sum(name)
        return made


@cache
def _day_name(day: int) -> str:
    """Return a day, counted from 1970, as `2026-01-31`."""
    return day_of(day * DAY_US)


def report_of(found: Spending | None, first: int, last: int, user: str | None) -> Report:
    """Return the report on the days `first` to `last`, counted from 1970 in UTC, of one user or of all.

    `found` is None where the log does not exist yet.
    """
    from ava_audit.totals import Spending

    spending = found or Spending(None, (), {}, ())
    runs = spending.runs
    ended: list[RunFacts] = []
    for run in runs.values():
        if run.ended_us is not None and first <= run.ended_us // DAY_US <= last:
            ended.append(run)
    failed = [run for run in ended if run.state not in NOT_FAILED]

    def sums(ended_key: Callable[[RunFacts], str], spent_key: Callable[[DaySpending], str]) -> dict[str, Sum]:
        """Add up ended runs and spending under the names that the two keys give them."""
        sums_by_name = _Sums()
        for spent in spending.spent:
            sums_by_name[spent_key(spent)].spend(spent)
        for run in ended:
            sums_by_name[ended_key(run)].end(run)
        return sums_by_name

    def sums_by(key: Callable[[RunFacts], str]) -> tuple[Sum, ...]:
        """Add up by a property of the run, the most expensive first."""
        by_name = sums(key, lambda spent: key(runs[spent.run_id]))
        return tuple(sorted(by_name.values(), key=lambda one: (-one.cost, -one.ended, one.name)))

    days = sums(lambda run: _day_name(_ended_us(run) // DAY_US), lambda spent: _day_name(spent.day))
    log_begins = last
    if spending.first_us is not None:
        # An entry whose clock was set back can lie before the log's first one.
        log_begins = min(spending.first_us // DAY_US, last)
    for day in range(max(first, log_begins), last + 1):
        name = _day_name(day)
        days.setdefault(name, Sum(name))
    [total] = sums_by(lambda _run: "total") or [Sum("total")]
    return Report(
        user=user,
        first=first,
        last=last,
        total=total,
        days=tuple(days[day] for day in sorted(days)),
        by={what: sums_by(key) for what, key in _KEYS.items() if what != "user" or user is None},
        endings=Counter(run.state for run in ended),
        reasons=tuple(_reasons(failed)),
        errors=spending.errors,
        others=spending.others,
    )


def _reasons(failed: Iterable[RunFacts]) -> list[Reason]:
    """Return the most common reason first; reasons that differ only in figures are one."""
    alike: dict[tuple[str, str], list[RunFacts]] = {}
    for run in failed:
        key = _ending_with_kind(run), _NUMBERS.sub("#", run.stop_reason or "")
        alike.setdefault(key, []).append(run)
    reasons: list[Reason] = []
    for (ending, _same), runs in alike.items():
        newest = max(runs, key=lambda run: (_ended_us(run), run.id))
        reasons.append(Reason(ending, newest.stop_reason or "", len(runs), newest))
    reasons.sort(key=lambda reason: (-reason.runs, -_ended_us(reason.newest)))
    return reasons


def _ending_with_kind(run: RunFacts) -> str:
    if run.state == "error" and run.error_kind:
        return f"{run.state} ({run.error_kind})"
    return run.state


def _ended_us(run: RunFacts) -> int:
    return 0 if run.ended_us is None else run.ended_us


def folded(periods: Iterable[Sum]) -> Iterator[tuple[str, Sum | None]]:
    """Yield days or months with their names, None in place of an empty one; many empty ones in a row are one."""
    for empty, group in groupby(periods, key=lambda period: period.empty):
        alike = list(group)
        if empty and len(alike) >= FOLDED_DAYS:
            yield f"{alike[0].name} to {alike[-1].name}", None
            continue
        for period in alike:
            yield period.name, None if empty else period


@dataclass(frozen=True)
class Share:
    """What a role, model or user has cost in each period, in micro-USD."""

    name: str
    costs: tuple[int, ...]


def shares_of(found: Spending, report: Report, what: str, most: int) -> list[Share]:
    """Return the parts (`what`: `role`, `model` or `user`) of each period's cost, the largest first.

    Beyond `most` parts, the smallest are added up as one, which counts among the `most`.
    """
    key = _KEYS[what]
    names = [one.name for one in report.by[what] if one.cost]
    separate = names
    if len(names) > most:
        separate = names[: most - 1]
    place_of = {period.name: place for place, period in enumerate(report.periods)}
    costs = {name: [0] * len(place_of) for name in separate}
    others = [0] * len(place_of)
    for spent in found.spent:
        name = key(found.runs[spent.run_id])
        period = _day_name(spent.day)
        if period not in place_of:  # the periods are months
            period = period[: len("2026-01")]
        costs.get(name, others)[place_of[period]] += spent.cost_micros
    shares = [Share(_part_name(what, name), tuple(by_period)) for name, by_period in costs.items()]
    if len(separate) < len(names):
        shares.append(Share(ALL_OTHERS, tuple(others)))
    return shares


# -- as tables --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TableRow:
    """A row of a table: its name, its figures (empty for nothing), and the length of its bar in any unit."""

    name: str
    figures: tuple[str, ...]
    bar: int = 0


@dataclass(frozen=True)
class Table:
    """Figures by name: what a name is, the head of each column of figures, and the rows."""

    what: str
    head: tuple[str, ...]
    rows: tuple[TableRow, ...]


def period_table(report: Report, shares: Sequence[Share] = ()) -> Table:
    """Return the days or months, oldest first; with `shares`, also what each part cost."""
    place = {period.name: number for number, period in enumerate(report.periods)}
    head = ("Cost", *(share.name for share in shares), "Calls", "Ended", "Failed")
    rows: list[TableRow] = []
    for name, period in folded(report.periods):
        if period is None:
            rows.append(TableRow(name, ("",) * len(head)))
            continue
        parts = [_usd_or_nothing(share.costs[place[name]]) for share in shares]
        counts = f"{period.calls:,}", f"{period.ended:,}", _or_nothing(period.failed)
        rows.append(TableRow(name, (format_usd(period.cost), *parts, *counts), period.cost))
    return Table("Month" if report.monthly else "Day", head, tuple(rows))


def part_table(report: Report, what: str) -> Table:
    """Return the roles, models, endings or users, the most expensive first."""
    is_ending = what == "ending"
    whole = report.total.cost
    rows: list[TableRow] = []
    for one in report.by[what]:
        figures = [format_usd(one.cost), ""]
        if whole:
            figures[1] = f"{100 * one.cost / whole:.0f} %"
        if is_ending:
            figures.append(f"{one.runs:,}")
        else:
            figures += [f"{one.ended:,}", _or_nothing(one.failed)]
        rows.append(TableRow(_part_name(what, one.name), tuple(figures), one.cost))
    counts = ("Runs",) if is_ending else ("Ended", "Failed")
    return Table(what.capitalize(), ("Cost", "Share", *counts), tuple(rows))


def _part_name(what: str, name: str) -> str:
    """Return what people call a model or an ending; others have their own names."""
    if what == "model":
        return model_words(name)
    if what == "ending":
        return state_words(name)
    return name


def _or_nothing(count: int) -> str:
    return f"{count:,}" if count else ""


def _usd_or_nothing(micros: int) -> str:
    return format_usd(micros) if micros else ""


def report_json(report: Report) -> dict[str, Any]:
    """Money is in US cents."""
    return {
        "user": report.user,
        "runs_of_others": report.others,
        "since": day_of(report.first * DAY_US),
        "through": day_of(report.last * DAY_US),
        "timezone": "UTC",
        "total": report.total.as_json(),
        "by_day": [day.as_json("day") for day in report.days],
        **{f"by_{what}": [one.as_json(what) for one in sums] for what, sums in report.by.items()},
        "endings": dict(report.endings.most_common()),
        "failed": [
            {
                "ending": reason.newest.state,
                "error_kind": reason.newest.error_kind,
                "reason": reason.reason,
                "runs": reason.runs,
                "newest": reason.newest.id,
                "look": f"ava show {reason.newest.id}",
            }
            for reason in report.reasons
        ],
        "errors": [
            {
                "kind": error.kind,
                "entries": error.entries,
                "newest": error.last_run,
                "look": f"ava logs {error.last_run} --type error",
            }
            for error in report.errors
        ],
    }
