"""The page of costs: what was spent by day, role, model and user, how runs ended, and today's budgets.

Below it, the page of approvals: who approved what.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from typing import Any
from urllib.parse import urlencode

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ava_audit.totals import DayEndings, Period, day_endings, spending
from ava_audit.units import DAY_US, EPOCH, US_PER_S, day_of, format_duration, format_usd, now_us
from ava_audit.view import View
from ava_roles.wrap import clean
from ava_server.core.errors import BadInput
from ava_server.core.ids import state_words
from ava_server.render.approvals import decisions_of, totals_line
from ava_server.render.report import (
    MANY_DAYS,
    NOT_RUN,
    Report,
    Share,
    Table,
    TableRow,
    part_table,
    period_table,
    report_of,
    shares_of,
)
from ava_server.render.run_view import short_number
from ava_server.render.state_look import look_of
from ava_server.service.current import Budget
from ava_server.web.charts import Chart, Series, draw
from ava_server.web.context import PagePart, reader_of
from ava_server.web.site import Visitor

SPANS = (7, 30, 90)
USUAL_DAYS = 30
MOST_SHARES = 7
"""Parts of a bar: more colours cannot be told apart."""
MOST_REASONS = 8
MOST_DECISIONS = 80
"""Decisions of a page, each of some 700 bytes."""
APPROVALS = "/costs/approvals"
_CURSOR = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})")
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True)
class CostsQuery:
    """What the address asks for; days count from 1970, UTC, and `last` is one of them.

    `span` is how many days up to today, None for a range of dates; `by` is what the bars are divided by.
    """

    first: int
    last: int
    span: int | None
    by: str
    everybody: bool

    def address(self, path: str = "/costs", more: Mapping[str, str] = _NOTHING, **changed: Any) -> str:
        """Return the address of the page with something else asked for."""
        asked = replace(self, **changed)
        if asked.span is not None:
            fields: dict[str, object] = {"days": asked.span}
        else:
            fields = {"from": asked.since, "to": asked.through}
        fields["by"] = asked.by
        if asked.everybody:
            fields["all"] = ""
        return f"{path}?" + urlencode({**fields, **more})

    @property
    def since(self) -> str:
        return day_of(self.first * DAY_US)

    @property
    def through(self) -> str:
        return day_of(self.last * DAY_US)


@dataclass(frozen=True)
class FoundCosts:
    """What the log says. `shares` are the parts of each period's costs, and the budgets are today's.

    `empty`: nothing is in the log yet.
    """

    report: Report
    shares: Sequence[Share]
    endings: Sequence[DayEndings]
    budgets: tuple[Budget, ...]
    empty: bool


@dataclass(frozen=True)
class Drawn:
    """A chart with its table."""

    id: str
    title: str
    chart: Chart
    table: Table


def recent_costs(report: Report, today: int) -> list[tuple[str, int]]:
    """Return what the last 7 days and today have cost, in micro-USD, where the report's days go up to today.

    A time that is no longer than one of these is left out: its cost is that of the report. Days count from 1970.
    """
    if report.last != today:
        return []
    costs = {day.name: day.cost for day in report.days}
    recent: list[tuple[str, int]] = []
    for name, days in (("Last 7 days", 7), ("Today", 1)):
        first = today - days + 1
        if first > report.first:
            names = [day_of(day * DAY_US) for day in range(first, today + 1)]
            recent.append((name, sum(costs.get(each, 0) for each in names)))
    return recent


class CostPages(PagePart):
    """The page of costs."""

    def routes(self) -> list[Route]:
        return [Route("/costs", self.show), Route(APPROVALS, self.approvals)]

    async def show(self, request: Request) -> Response:
        """Show everybody's, with `all` and the right to."""
        visitor = reader_of(request)
        asked, problem = lenient(request, visitor)
        found = await self._context.store.read(lambda view: self._found(view, asked, visitor))
        values = {
            "asked": asked,
            "problem": problem,
            "spans": SPANS,
            "found": found,
            "report": found.report,
            "total": found.report.total,
            "recent": recent_costs(found.report, now_us() // DAY_US),
            "days": period_table(found.report, found.shares if len(found.shares) > 1 else ()),
            "chart": money_chart(asked, found),
            "charts": list(charts_of(asked, found)),
            "tables": {what: _part(found.report, what) for what in found.report.by},
            "address_of": partial(address_of, asked),
            "most_reasons": MOST_REASONS,
        }
        return self._context.show(request, "costs.html", values, 400 if problem else 200)

    async def approvals(self, request: Request) -> Response:
        """Show another user's or everybody's, with the right to."""
        visitor, query = reader_of(request), request.query_params
        asked, problem = lenient(request, visitor)
        user = query.get("user", "").strip() if visitor.reads_all else ""
        whose: str | None = visitor.user
        if user:
            whose = user
        elif asked.everybody:
            whose = None
        period = Period(asked.first * DAY_US, (asked.last + 1) * DAY_US, whose)
        before: tuple[int, int] | None = None
        cursor = _CURSOR.fullmatch(query.get("before", ""))
        if cursor is not None:
            before = int(cursor[1]), int(cursor[2])
        found = await self._context.store.read(lambda view: decisions_of(view, period, before, MOST_DECISIONS))
        more = {"user": user} if user else {}
        older = ""
        if found.next is not None:
            at_us, seq = found.next
            older = asked.address(APPROVALS, {**more, "before": f"{at_us}.{seq}"})
        values = {
            "asked": asked,
            "problem": problem,
            "user": user,
            "found": found,
            "total": "" if before else totals_line(found.sums),
            "before": before,
            "here": asked.address(APPROVALS, more),
            "older": older,
        }
        return self._context.show(request, "approvals.html", values, 400 if problem else 200)

    def _found(self, view: View, asked: CostsQuery, visitor: Visitor) -> FoundCosts:
        user = None if asked.everybody else visitor.user
        found = spending(view, asked.first, asked.last, user)
        report = report_of(found, asked.first, asked.last, user)
        shares = shares_of(found, report, asked.by, MOST_SHARES)
        budgets = self._context.budgets(view, visitor, now_us(), everybody=asked.everybody)
        endings = day_endings(view, asked.first * DAY_US, (asked.last + 1) * DAY_US, user)
        return FoundCosts(report, shares, endings, budgets, found.first_us is None)


def lenient(request: Request, visitor: Visitor) -> tuple[CostsQuery, str]:
    """Return the usual time, with the problem, for what cannot be understood."""
    today, everybody = now_us() // DAY_US, "all" in request.query_params and visitor.reads_all
    try:
        return asked_of(request.query_params, today, visitor), ""
    except BadInput as error:
        return CostsQuery(today - USUAL_DAYS + 1, today, USUAL_DAYS, "role", everybody), str(error)


def asked_of(query: QueryParams, today: int, visitor: Visitor) -> CostsQuery:
    """Return which days a page of costs shows, and of whom. Raises BadInput if a value cannot be understood.

    Days are counted from 1970-01-01, as `today` is.
    """
    everybody = "all" in query and visitor.reads_all
    by = query.get("by", "role")
    allowed = ("role", "model", "user") if everybody else ("role", "model")
    if by not in allowed:
        raise BadInput(f"by: {by[:40]!r} is not one of role and model; user needs the costs of all users")
    if query.get("from") or query.get("to"):
        last = today
        if query.get("to"):
            last = _day("to", query["to"])
        first = last - USUAL_DAYS + 1
        if query.get("from"):
            first = _day("from", query["from"])
        last = min(last, today)  # later days have no costs, and somebody may have typed the year 9999
        if first > last:
            raise BadInput("from: it is later than the last day, or than today")
        return CostsQuery(max(first, 0), last, None, by, everybody)
    days = query.get("days", str(USUAL_DAYS))
    if days not in map(str, SPANS):
        raise BadInput(f"days: {days[:40]!r} is not one of {', '.join(map(str, SPANS))}")
    return CostsQuery(today - int(days) + 1, today, int(days), by, everybody)


def _day(field: str, given: str) -> int:
    try:
        day = (date.fromisoformat(given) - EPOCH.date()).days
    except ValueError:
        day = -1
    if day < 0:
        raise BadInput(f"{field}: {given[:40]!r} is not a date from 1970 on, like 2026-01-31")
    return day


def address_of(asked: CostsQuery, what: str, name: str) -> str:
    """Return the address of what a row of a table counts: runs, or entries of the log; empty without one."""
    everybody = {"all": ""} if asked.everybody else {}
    match what:
        case "Day" if _DAY.fullmatch(name):
            ends = day_of((_day("day", name) + 1) * DAY_US)
            given = {"type": "cost", "since": f"{name}T00:00Z", "until": f"{ends}T00:00Z"}
            return "/events?" + urlencode({**given, **everybody})
        case "Role":
            return "/subagents?" + urlencode({"role": name, **everybody})
        case "User":
            return "/events?" + urlencode({"user": name, "type": "complete", **everybody})
        case _:
            return ""


def periods_of(asked: CostsQuery, report: Report) -> list[str]:
    """Return all days that were asked for, or their months, also those before the first entry of the log.

    Of a span that begins long before the log, as that of all times, the days or months of the log.
    """
    known = [period.name for period in report.periods]
    if report.monthly or asked.last - asked.first >= MANY_DAYS:
        return known
    return [day_of(day * DAY_US) for day in range(asked.first, asked.last + 1)]


def money_chart(asked: CostsQuery, found: FoundCosts) -> Chart | None:
    """Return what each period cost, by its parts."""
    periods, known = periods_of(asked, found.report), [period.name for period in found.report.periods]
    series: list[Series] = []
    for place, share in enumerate(found.shares):
        costs = dict(zip(known, share.costs, strict=True))
        series.append(Series(clean(share.name)[0], f"part{place}", [costs.get(period, 0) for period in periods]))
    return draw(periods, series, _usd)


def charts_of(asked: CostsQuery, found: FoundCosts) -> Iterator[Drawn]:
    """Yield the charts of ended runs: how they ended, how long they waited, and their tokens."""
    periods = periods_of(asked, found.report)
    unit = "Month" if len(periods[0]) == len("2026-01") else "Day"

    def sums(figure: Callable[[DayEndings], int], kind: str | None = None) -> list[int]:
        """Return the sum of a figure for each period; of runs that started, and ended in a way of this kind."""
        counts = Counter[str]()
        for each in found.endings:
            if each.state not in NOT_RUN and kind in (None, look_of(each.state).kind):
                counts[day_of(each.day * DAY_US)[: len(periods[0])]] += figure(each)
        return [counts[period] for period in periods]

    by_ending = [
        Series("success", "good", sums(lambda each: each.runs, "good")),
        Series("no answer", "unanswered", sums(lambda each: each.runs, "unanswered")),
        Series("failed", "failed", sums(lambda each: each.runs, "failed")),
        Series("cancelled", "stopped", sums(lambda each: each.runs, "stopped")),
    ]
    yield from _drawn("ended", "Runs by their ending", unit, periods, by_ending, _count)
    waited = [Series("waited", "wait", sums(lambda each: each.waited_us))]
    yield from _drawn("waited", "Time that runs waited", unit, periods, waited, _waited)
    tokens = [
        Series("read", "part0", sums(lambda each: each.input_tokens)),
        Series("written", "part1", sums(lambda each: each.output_tokens)),
    ]
    yield from _drawn("tokens", "Tokens", unit, periods, tokens, _count)


def _part(report: Report, what: str) -> Table:
    table = part_table(report, what)
    if what == "ending":
        return without_replaced(table)
    return table


def _drawn(
    name: str, title: str, unit: str, periods: Sequence[str], series: Sequence[Series], words: Callable[[float], str]
) -> Iterator[Drawn]:
    """Yield a chart with its table; nothing where all figures are 0."""
    chart = draw(periods, series, words)
    if chart is None:
        return
    rows: list[TableRow] = []
    for place, period in enumerate(periods):
        figures = [one.values[place] for one in series]
        if any(figures):
            rows.append(TableRow(period, tuple(words(figure) if figure else "" for figure in figures)))
    yield Drawn(name, title, chart, Table(unit, tuple(one.name for one in series), tuple(rows)))


def without_replaced(table: Table) -> Table:
    """Return a table of endings without proposals that a newer one replaced, which say nothing of what was done."""
    replaced = state_words("superseded")
    return replace(table, rows=tuple(row for row in table.rows if row.name != replaced))


def _usd(micros: float) -> str:
    return format_usd(round(micros))


def _count(number: float) -> str:
    if number >= 10_000:
        return short_number(round(number))
    return f"{number:,.15g}"


def _waited(microseconds: float) -> str:
    return format_duration(microseconds / US_PER_S)
