"""`ava report`: what was spent, by day, role, model and ending, and what failed; or the runs of one plan.

`ava report approvals`: who approved what. `ava report estimates`: how good the estimates in proposals were.
"""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, closing, nullcontext
from dataclasses import asdict, replace
from datetime import UTC
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ava_audit.rows import INTERRUPTED
from ava_audit.units import DAY_US, US_PER_S, cents, day_of, format_duration, format_ts, format_usd, iso_utc, now_us
from ava_server.cli import terminal
from ava_server.cli.log_look import LogLook, NoLog, run_at_once
from ava_server.cli.options import Everybody, Json, TokenFile, Until, Url, plans
from ava_server.cli.remote import Connection, chosen_server
from ava_server.cli.terminal import counted, heading, one_line, place_json, say, say_json, tell, write
from ava_server.core.commands import advice
from ava_server.core.data_root import find_data_root, os_user
from ava_server.core.errors import BadInput
from ava_server.core.ids import parse_id, read_span, state_words
from ava_server.render.report import NOT_FAILED, Report, TableRow, part_table, period_table, report_json, report_of

if TYPE_CHECKING:
    from ava_audit.rows import RunRow
    from ava_audit.totals import PlanSum
    from ava_server.approval.estimates import Kept
    from ava_server.cli.records import Records
    from ava_server.render.approvals import Decisions

    Screen = Callable[[Records], Coroutine[Any, Any, None]]
DAYS = 30
Since = Annotated[str | None, typer.Option(metavar="TIME", help=f"Only from this time on; {DAYS} days ago by default.")]
TOP = 8
"""Reasons on a screen at most; JSON has all."""
BAR, LEAST_BAR = 48, 6


def report_command(
    context: typer.Context,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help=f"From the day of this time on; {DAYS} days by default.")
    ] = None,
    until: Until = None,
    everybody: Everybody = False,
    group: Annotated[
        str | None, typer.Option(metavar="G-ID", help="The runs of a plan, its cap and time.", autocompletion=plans)
    ] = None,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Show what was spent and what failed; whole days, in UTC as those of the budgets."""
    server = chosen_server(context, url, token_file)
    if group is not None:
        if since is not None or until is not None:
            raise BadInput("--group: a plan is shown whole; leave --since and --until out")
        screen = partial(_plan, parse_id("group_id", group, "--group"), everybody, as_json)
        return _show(server, screen, owners=True)
    return _show(server, partial(_spending, *days_of(since, until, now_us()), everybody, as_json))


def _show(server: Connection | None, screen: Screen, *, owners: bool = False) -> None:
    """`owners`: the screen asks whether the owners of runs live."""
    from ava_server.cli.records import MemoryTransport, Records, open_server_records

    if server is not None:
        from ava_server.core.threads import run_async

        return run_async(_show_opened, open_server_records(server), screen)
    root = find_data_root()
    log = LogLook(root)
    if log.needs_recovery():
        tell("The newest entries are missing: a process died while it wrote them. `ava logs` recovers them.")
    if not owners:
        return run_at_once(_show_opened(nullcontext(Records(MemoryTransport(root, log))), screen))
    from ava_audit.store.sqlite import backend_of

    with closing(backend_of(root.path).instances(root.instances)) as instances:
        return run_at_once(_show_opened(nullcontext(Records(MemoryTransport(root, log, instances))), screen))


async def _show_opened(opened: AbstractAsyncContextManager[Records], screen: Screen) -> None:
    async with opened as records:
        await screen(records)


async def _spending(first: int, last: int, everybody: bool, as_json: bool, records: Records) -> None:
    from ava_server.service.record_requests import SPENDING

    try:
        found = await records.get(SPENDING, first=first, last=last, all=everybody)
        spent, user = found.spending, found.user
    except NoLog:
        spent, user = None, None if everybody else os_user()
    report = report_of(spent, first, last, user)
    if as_json:
        return say_json({**place_json(records.place), **report_json(report)})
    heading(records.place)
    if spent is None or spent.first_us is None:
        return say("Nothing is in the log yet.")
    return _screen(report)


def days_of(since: str | None, until: str | None, at_us: int) -> tuple[int, int]:
    """Return the first and the last day that are meant, in days since 1970, UTC. Raises BadInput."""
    since_us, until_us = read_span(since, until, at_us, UTC, dashes="--")
    last = (at_us if until_us is None else until_us - 1) // DAY_US
    first = last - DAYS + 1 if since_us is None else since_us // DAY_US
    if first > last:
        raise BadInput("no day lies in that time: --since is not before --until, or is later than today")
    return max(0, first), last


# -- the screen -------------------------------------------------------------------------------------------------------


def _screen(report: Report) -> None:
    total = report.total
    say("\n".join(_head(report)))
    if not total.calls and not total.ended:
        return say("\nNothing was spent, and nothing ended.")
    periods = period_table(report)
    _table(f"By {periods.what.lower()} (UTC)", periods.head, periods.rows)
    for what in report.by:
        parts = part_table(report, what)
        _table(f"By {what}", parts.head, parts.rows)
    return say("\n".join(_failed(report)))


def _head(report: Report) -> Iterator[str]:
    total = report.total
    days, last = report.last - report.first + 1, day_of(report.last * DAY_US)
    span = f"{last} (one day, UTC)" if days == 1 else f"{day_of(report.first * DAY_US)} to {last} ({days} days, UTC)"
    yield f"{span}, of {report.user if report.user is not None else 'all users'}"
    yield (
        f"Spent {format_usd(total.cost)} in {counted(total.calls, 'model call')} by "
        f"{counted(len(total.spenders), 'run')}; {total.ended_words}."
    )
    parts = {
        "retries": total.retries,
        "planning": total.plan,
        "unknown, the most that it can be, because the provider did not say,": total.uncosted,
    }
    if any(parts.values()):
        yield f"Of it: {'; '.join(f'{name} {format_usd(part)}' for name, part in parts.items() if part)}."
    if total.overruns:
        yield (
            f"{counted(total.overruns, 'call')} cost more than the provider's own limits allow, by"
            f" {format_usd(total.over)} in all."
        )
    if report.others:
        how = advice("`ava report --all` counts them")
        yield f"Not counted: {counted(report.others, 'run')} of other users; {how}."


def _failed(report: Report) -> Iterator[str]:
    yield ""
    if report.reasons:
        yield f"What failed: {report.total.failed:,} of {report.total.ended:,} runs that ended"
    else:
        yield "Nothing failed."
    for reason in report.reasons[:TOP]:
        run = reason.newest
        yield f"  {reason.runs:,} x {state_words(reason.ending)}: {one_line(reason.reason) or 'no reason is known'}"
        latest = "" if reason.runs == 1 else "the latest: "
        yield f"      {latest}{one_line(run.role)}, {day_of(run.ended_us or 0)}: {advice(f'ava show {run.id}')}"
    if len(report.reasons) > TOP:
        yield f"  and {len(report.reasons) - TOP} more reasons; --json has all"
    if report.errors:
        yield from ("", "Errors on the way, by kind:")
    for error in report.errors[:TOP]:
        kind = one_line(error.kind) if error.kind is not None else "(erased)"
        yield f"  {error.entries:,} x {kind}: {advice(f'ava logs {error.last_run} --type error')}"


def _table(title: str, head: Sequence[str], rows: Sequence[TableRow]) -> None:
    drawn = sys.stdout.isatty()
    width = terminal.columns(sys.stdout) if drawn else 80
    name_width = max(width - 50, 12) if drawn else 200
    table = [(title, *(name.lower() for name in head))]
    for row in rows:
        figures = (figure or "-" for figure in row.figures)
        table.append((terminal.cut(one_line(row.name), name_width), *figures))
    lines = terminal.aligned(table, right=range(1, len(head) + 1))
    room = min(width - max(map(terminal.cells, lines)) - 3, BAR)
    most = max((row.bar for row in rows), default=0)
    say()
    if drawn and most > 0 and room >= LEAST_BAR:
        _with_bars(lines, [row.bar / most for row in rows], room)
    else:
        write("\n".join(lines))


def _with_bars(lines: Sequence[str], bars: Sequence[float], width: int) -> None:
    from rich.bar import Bar
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=sys.stdout, width=terminal.columns(sys.stdout), highlight=False, markup=False, emoji=False)
    blocks = (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")
    grid = Table.grid(padding=(0, 3, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, width=width)
    grid.add_row(Text(lines[0], style="bold"), "")
    for line, share in zip(lines[1:], bars, strict=True):
        drawn = Bar(1, 0, share, width=width, color="cyan") if share else ""
        grid.add_row(Text(line), drawn if blocks else "#" * round(width * share))
    console.print(grid)


# -- a plan -----------------------------------------------------------------------------------------------------------


async def _plan(plan_id: str, everybody: bool, as_json: bool, records: Records) -> None:
    from ava_server.service.record_requests import PLAN, UnknownId

    try:
        found = await records.get(PLAN, group=plan_id, all=everybody)
    except (NoLog, UnknownId):
        others = "" if everybody else " of yours; --all looks at those of all users"
        raise BadInput(f"--group: there is no plan {plan_id}{others} in this data root.") from None
    at_us = now_us()
    if as_json:
        return say_json({**place_json(records.place), **_plan_json(found, at_us)})
    heading(records.place)
    return _plan_screen(found, at_us)


def _plan_screen(found: PlanSum, at_us: int) -> None:
    from ava_server.budget.held import held_words
    from ava_server.budget.run_config import spent_text
    from ava_server.render.run_view import elapsed_in

    plan, bucket = found.caps, found.bucket
    cap = f"{format_usd(bucket.spent_micros)} of {format_usd(plan.cap_micros, exact=True)} spent"
    share = f" ({100 * bucket.spent_micros / plan.cap_micros:.0f} %)" if plan.cap_micros else ""
    held = f", {held_words(bucket.held_micros)}" if bucket.held_micros else ""
    limit = f" of {format_duration(plan.timeout_s)}" if plan.timeout_s is not None else ", without a limit of its own"
    took_us = _took_us(found, at_us)
    took = "not started" if took_us is None else format_duration(took_us / US_PER_S)
    states = Counter(_state_of(found, run) for run in found.runs)
    endings = ", ".join(f"{count} {state_words(state)}" for state, count in states.most_common())
    say(f"{plan.id} of {plan.user_id}, approved {format_ts(plan.created_us, utc=True)}")
    say(f"Cap: {cap}{share}{held}")
    say(f"Time: {took}{limit}{'' if took_us is None else ', from the start of its first run'}")
    say(f"Runs: {len(found.runs)} ({endings})")

    def row(run: RunRow) -> TableRow:
        state = _state_of(found, run)
        active = format_duration(elapsed_in(run, state, at_us))
        figures = (state_words(state), spent_text(run), f"{run.turns:,}", active)
        return TableRow(f"{run.id} {run.name or run.role}", figures, run.cost_micros)

    _table("Run", ("state", "cost", "turns", "active"), [row(run) for run in found.runs])
    failed = [run for run in found.runs if run.ended and run.state not in NOT_FAILED]
    if failed:
        say("\nWhat failed:")
    for run in failed:
        why = one_line(run.stop_reason) or "no reason is known"
        say(f"  {run.id} {state_words(run.state)}: {why}")
        say(f"      {advice(f'ava show {run.id}')}")


def _plan_json(found: PlanSum, at_us: int) -> dict[str, Any]:
    from ava_server.render.run_view import elapsed_in

    plan, bucket = found.caps, found.bucket
    took_us = _took_us(found, at_us)
    return {
        "group_id": plan.id,
        "user": plan.user_id,
        "approved_at": iso_utc(plan.created_us),
        "started_at": iso_utc(plan.started_us) if plan.started_us is not None else None,
        "spent_cents": cents(bucket.spent_micros),
        "held_cents": cents(bucket.held_micros),
        "cap_cents": cents(plan.cap_micros),
        "elapsed_seconds": None if took_us is None else took_us / US_PER_S,
        "timeout_seconds": plan.timeout_s,
        "endings": dict(Counter(run.state for run in found.runs if run.ended)),
        "runs": [
            {
                "subagent_id": run.id,
                "role": run.role,
                "name": run.name,
                "model": run.model,
                "state": _state_of(found, run),
                "stop_reason": run.stop_reason,
                "error_kind": run.error_kind,
                "cost_cents": cents(run.cost_micros),
                "uncosted_cents": cents(run.uncosted_micros),
                "overrun": bool(run.overrun),
                "turns": run.turns,
                "tool_calls": run.tool_calls,
                "active_seconds": elapsed_in(run, _state_of(found, run), at_us),
            }
            for run in found.runs
        ],
    }


def _state_of(found: PlanSum, run: RunRow) -> str:
    return INTERRUPTED if run.id in found.interrupted else run.state


def _took_us(found: PlanSum, at_us: int) -> int | None:
    """Return how long a plan has taken since its first run began; None where none did."""
    if found.caps.started_us is None:
        return None
    ends = [run.ended_us if run.ended_us is not None else at_us for run in found.runs]
    return max(0, max(ends, default=at_us) - found.caps.started_us)


# -- approvals --------------------------------------------------------------------------------------------------------


def report_approvals_command(
    context: typer.Context,
    since: Since = None,
    until: Until = None,
    user: Annotated[str | None, typer.Option(metavar="USER", help="The runs of this user; default: yours.")] = None,
    everybody: Everybody = False,
    as_json: Json = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="As a CSV file, for a spreadsheet.")] = False,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Show who approved what, through which channel, and what it cost; also rejections, raised caps and resumptions.

    The screen shows the newest ones; --json and --csv have all of the period.
    """
    server = chosen_server(context, url, token_file)
    if as_json and as_csv:
        raise BadInput("--csv: leave out --json; the answer has one of the two forms")
    if user is not None and everybody:
        raise BadInput("--user: leave out --all, which shows all users")
    span = _span(since, until)
    return _show(server, partial(_decisions, *span, user, everybody, as_json, as_csv))


def _span(since: str | None, until: str | None) -> tuple[int, int]:
    """Return a time, end exclusive; the last `DAYS` by default. Raises BadInput if there is none between."""
    at_us = now_us()
    since_us, until_us = read_span(since, until, at_us, dashes="--")
    until_us = at_us + 1 if until_us is None else until_us
    since_us = max(0, until_us - DAYS * DAY_US) if since_us is None else since_us
    if since_us >= until_us:
        raise BadInput("no time lies between: --since is not before --until, or is later than now")
    return since_us, until_us


async def _decisions(
    since_us: int, until_us: int, user: str | None, everybody: bool, as_json: bool, as_csv: bool, records: Records
) -> None:
    from ava_server.render.approvals import NOTHING, decisions_json

    try:
        found = await records.decisions(since_us, until_us, user, everybody=everybody, whole=as_json or as_csv)
    except NoLog:
        found = NOTHING
    if as_csv:
        return _write_csv(found)
    if as_json:
        return say_json({**place_json(records.place), **decisions_json(found, since_us, until_us)})
    heading(records.place)
    return _decisions_screen(found, since_us, until_us)


def _decisions_screen(found: Decisions, since_us: int, until_us: int) -> None:
    from ava_server.render.approvals import ERASED, totals_line

    whose = "all users" if found.user is None else found.user
    say(f"{format_ts(since_us)} to {format_ts(until_us)}, of {one_line(whose)}: {totals_line(found.sums)}")
    for one in found.rows:
        cost = "" if one.cost_micros is None else f"; cost {format_usd(one.cost_micros)}"
        cap = f", {one.cap}" if one.cap else ""
        state = ("ended: " if one.ended else "") + state_words(one.state)
        first = f"{one.run_id} {one.name or one.role}: {one.decision}{cap}{cost}; {state}"
        whose = f", for {one.user}" if one.by != one.user else ""
        through = (("client", one.client), ("token", one.token))
        how = one.how + "".join(f"; {what} {value}" for what, value in through if value)
        say(f"\n{format_ts(one.at_us)}  {one_line(first)}")
        say(f"  {one_line(f'{one.by}{whose}: {how}; digest {one.digest[:12]}')}")
        say(f"  {ERASED if one.task is None else one_line(one.task)}")
    if found.next is not None:
        say(f"\nOlder ones: --until {shlex.quote(iso_utc(found.rows[-1].at_us))}, or all of them with --json or --csv.")


def _write_csv(found: Decisions) -> None:
    import csv
    import io

    from ava_server.render.approvals import COLUMNS, csv_cells

    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([COLUMNS, *map(csv_cells, found.rows)])
    write(file.getvalue().rstrip("\n"))


# -- estimates --------------------------------------------------------------------------------------------------------


def report_estimates_command(
    context: typer.Context,
    since: Since = None,
    until: Until = None,
    everybody: Everybody = False,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Show how many runs stayed within what their proposals said: half of them should, and nine in ten.

    Only runs count that came to their own end or to a cap.
    """
    server, span = chosen_server(context, url, token_file), _span(since, until)
    return _show(server, partial(_estimates, *span, everybody, as_json))


async def _estimates(since_us: int, until_us: int, everybody: bool, as_json: bool, records: Records) -> None:
    from ava_server.service.record_requests import ESTIMATES

    try:
        found = await records.get(ESTIMATES, since=since_us, until=until_us, all=everybody)
    except NoLog:
        from ava_server.approval.estimates import PastEstimates, RoleEstimates

        found = PastEstimates(None if everybody else os_user(), RoleEstimates(""), ())
    if as_json:
        span = {"since": iso_utc(since_us), "until": iso_utc(until_us)}
        return say_json({**place_json(records.place), **span, **asdict(found)})
    heading(records.place)
    total, whose = found.total, "all users" if found.user is None else one_line(found.user)
    say(
        f"{format_ts(since_us)} to {format_ts(until_us)}, of {whose}: {counted(total.runs, 'run')} with an estimate,"
        f" {total.without:,} without, because fewer than five similar ones had ended before."
    )
    if not total.runs:
        return None
    say("The estimates were right if half of the runs stayed within the likely one, and 90 % within nine in ten.")
    head = ("runs", "likely cost", "nine in ten", "likely time", "nine in ten")
    rows = [one for one in found.roles if one.runs] + [replace(total, role="all")] * (len(found.roles) > 1)
    return _table("Role", head, [TableRow(one.role, (f"{one.runs:,}", *map(_kept, one.kinds))) for one in rows])


def _kept(kept: Kept) -> str:
    return f"{kept.within:,} of {kept.of:,} ({100 * kept.within / kept.of:.0f} %)" if kept.of else ""
