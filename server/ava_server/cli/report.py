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
from ava_audit.units import (
    DAY_US,
    US_PER_S,
    cents,
    counted,
    day_of,
    format_duration,
    format_ts,
    format_usd,
    iso_utc,
    now_us,
)
from ava_server.cli import terminal
from ava_server.cli.log_look import LogLook, NoLog, run_at_once
from ava_server.cli.options import Everybody, Json, TokenFile, Until, Url, plans
from ava_server.cli.remote import Connection, chosen_server
from ava_server.cli.terminal import heading, one_line, place_json, say, say_json, tell, write
from ava_server.core.commands import advice
from ava_server.core.data_root import find_data_root, os_user
from ava_server.core.errors import BadInput
from ava_server.core.ids import parse_id, read_span, state_words
from ava_server.core.names import named_role, quote_name
from ava_server.render.reasons import reason_words
from ava_server.render.report import NOT_FAILED, Report, TableRow, part_table, period_table, report_json, report_of

if TYPE_CHECKING:
    from ava_audit.rows import RunRow
    from ava_audit.totals import PlanSum
    from ava_server.approval.estimates import Kept
    from ava_server.cli.record_client import Records
    from ava_server.render.approvals import Decisions, MadeDecision

    Screen = Callable[[Records], Coroutine[Any, Any, None]]
DAYS = 30
Since = Annotated[str | None, typer.Option(metavar="TIME", help=f"Only from this time on; {DAYS} days ago by default.")]
TOP = 8
"""Reasons on a screen at most; JSON has all."""
NO_REASON = "no reason is known"
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
    if group is None:
        first, last = days_of(since, until, now_us())
        return _show(server, partial(_spending, first, last, everybody, as_json))
    if since is not None or until is not None:
        raise BadInput("--group: a plan is shown whole; leave --since and --until out")
    plan_id = parse_id("group_id", group, "--group")
    return _show(server, partial(_plan, plan_id, everybody, as_json), owners=True)


def _show(server: Connection | None, screen: Screen, *, owners: bool = False) -> None:
    """Open the records and show a screen of them. `owners`: the screen asks whether the owners of runs live."""
    from ava_server.cli.record_client import MemoryTransport, Records, open_server_records

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
        answer = await records.get(SPENDING, first=first, last=last, all=everybody)
        spent, user = answer.spending, answer.user
    except NoLog:
        spent, user = None, _user_without_log(everybody)
    report = report_of(spent, first, last, user)
    if as_json:
        return say_json({**place_json(records.place), **report_json(report)})
    heading(records.place)
    if spent is None or spent.first_us is None:
        return say("Nothing is in the log yet.")
    return _screen(report)


def _user_without_log(everybody: bool) -> str | None:
    """Return whose runs a report without a log is about; None for those of all users."""
    if everybody:
        return None
    return os_user()


def days_of(since: str | None, until: str | None, at_us: int) -> tuple[int, int]:
    """Return the first and the last day that are meant, in days since 1970, UTC. Raises BadInput."""
    since_us, until_us = read_span(since, until, at_us, UTC, dashes="--")
    last_us = at_us
    if until_us is not None:
        last_us = until_us - 1
    last = last_us // DAY_US
    first = last - DAYS + 1
    if since_us is not None:
        first = since_us // DAY_US
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
    _table(f"By {periods.what.lower()}", periods.head, periods.rows)
    for what in report.by:
        parts = part_table(report, what)
        _table(f"By {what}", parts.head, parts.rows)
    return say("\n".join(_failure_lines(report)))


def _head(report: Report) -> Iterator[str]:
    total = report.total
    yield f"{_days_text(report)}, of {_whose(report.user)}"
    yield (
        f"Spent {format_usd(total.cost)} in {counted(total.calls, 'model call')} by "
        f"{counted(len(total.spenders), 'run')}; {total.ended_words}."
    )
    parts = {
        "retries": total.retries,
        "planning": total.outline,
        "unknown, the most that it can be, because the provider did not say,": total.uncosted,
    }
    costs = [f"{name} {format_usd(cost)}" for name, cost in parts.items() if cost]
    if costs:
        yield f"Of it: {'; '.join(costs)}."
    if total.overruns:
        yield (
            f"{counted(total.overruns, 'call')} cost more than the provider's own limits allow, by"
            f" {format_usd(total.over)} in all."
        )
    if report.others:
        how = advice("`ava report --all` counts them")
        yield f"Not counted: {counted(report.others, 'run')} of other users; {how}."


def _days_text(report: Report) -> str:
    first, last = day_of(report.first * DAY_US), day_of(report.last * DAY_US)
    days = report.last - report.first + 1
    if days == 1:
        return f"{last} (one day, UTC)"
    return f"{first} to {last} ({days} days, UTC)"


def _whose(user: str | None) -> str:
    if user is None:
        return "all users"
    return user


def _failure_lines(report: Report) -> Iterator[str]:
    yield ""
    if report.reasons:
        yield f"What failed: {report.total.failed:,} of {report.total.ended:,} runs that ended"
    else:
        yield "Nothing failed."
    for reason in report.reasons[:TOP]:
        run = reason.newest
        why = one_line(reason_words(reason.reason)) or NO_REASON
        yield f"  {reason.runs:,} x {state_words(reason.ending)}: {why}"
        example = f"{named_role(run.role)}, {day_of(run.ended_us or 0)}: {advice(f'ava show {run.id}')}"
        if reason.runs > 1:
            example = f"the latest: {example}"
        yield f"      {example}"
    if len(report.reasons) > TOP:
        yield f"  and {len(report.reasons) - TOP} more reasons; --json has all"
    if report.errors:
        yield ""
        yield "Errors on the way, by kind:"
    for error in report.errors[:TOP]:
        kind = "(erased)"
        if error.kind is not None:
            kind = one_line(error.kind)
        yield f"  {error.entries:,} x {kind}: {advice(f'ava logs {error.last_run} --type error')}"


def _table(title: str, head: Sequence[str], rows: Sequence[TableRow]) -> None:
    """Print a table; on a terminal with enough room, with a bar for each row."""
    on_terminal = sys.stdout.isatty()
    width, name_width = 80, 200
    if on_terminal:
        width = terminal.columns(sys.stdout)
        name_width = max(width - 50, 12)
    table = [(title, *map(str.lower, head))]
    for row in rows:
        figures = [figure or "-" for figure in row.figures]
        table.append((terminal.cut(one_line(row.name), name_width), *figures))
    right = range(1, len(head) + 1)
    lines = terminal.aligned(table, right=right)
    if on_terminal and max(map(terminal.cells, lines)) > width:
        lines = terminal.aligned(table, right=right, gap=" ")
        excess = max(0, max(map(terminal.cells, lines)) - width)
        names = max(8, max(terminal.cells(row[0]) for row in table) - excess)
        table = [(terminal.cut(name, names), *figures) for name, *figures in table]
        lines = terminal.aligned(table, right=right, gap=" ")
    bar_width = min(width - max(map(terminal.cells, lines)) - 3, BAR)
    longest = max((row.bar for row in rows), default=0)
    say()
    if on_terminal and longest > 0 and bar_width >= LEAST_BAR:
        _with_bars(lines, [row.bar / longest for row in rows], bar_width)
    else:
        write("\n".join(lines))


def _with_bars(lines: Sequence[str], bars: Sequence[float], width: int) -> None:
    from rich.bar import Bar
    from rich.console import Console
    from rich.text import Text

    console = Console(file=sys.stdout, width=terminal.columns(sys.stdout), highlight=False, markup=False, emoji=False)
    blocks = (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")
    longest = max(map(terminal.cells, lines))
    console.print(Text(lines[0], style="bold"))
    for line, share in zip(lines[1:], bars, strict=True):
        bar = "#" * round(width * share)
        if blocks and share:
            bar = "".join(segment.text for segment in console.render(Bar(1, 0, share, width=width)))
        text = Text(line)
        if bar.strip():
            text.append(" " * (longest - terminal.cells(line) + 3))
            text.append(bar.rstrip(), style="cyan")
        console.print(text, no_wrap=True)


# -- a plan -----------------------------------------------------------------------------------------------------------


async def _plan(plan_id: str, everybody: bool, as_json: bool, records: Records) -> None:
    from ava_server.service.record_requests import PLAN, UnknownId

    try:
        plan = await records.get(PLAN, group=plan_id, all=everybody)
    except (NoLog, UnknownId):
        others = "" if everybody else " of yours; --all looks at those of all users"
        raise BadInput(f"--group: there is no plan {plan_id}{others} in this data root.") from None
    at_us = now_us()
    if as_json:
        return say_json({**place_json(records.place), **_plan_json(plan, at_us)})
    heading(records.place)
    return _plan_screen(plan, at_us)


def _plan_screen(plan: PlanSum, at_us: int) -> None:
    caps = plan.caps
    states = Counter(_state_of(plan, run) for run in plan.runs)
    endings = [f"{count} {state_words(state)}" for state, count in states.most_common()]
    say(f"{caps.id} of {caps.user_id}, approved {format_ts(caps.created_us, utc=True)}")
    say(f"Cap: {_plan_cost(plan)}")
    say(f"Time: {_plan_time(plan, at_us)}")
    say(f"Runs: {len(plan.runs)} ({', '.join(endings)})")
    _table("Run", ("state", "cost", "turns", "active"), [_run_row(plan, run, at_us) for run in plan.runs])
    failed = [run for run in plan.runs if run.ended and run.state not in NOT_FAILED]
    if not failed:
        return
    say("\nWhat failed:")
    for run in failed:
        reason = one_line(reason_words(run.stop_reason or "")) or NO_REASON
        say(f"  {run.id} {state_words(run.state)}: {reason}")
        say(f"      {advice(f'ava show {run.id}')}")


def _plan_cost(plan: PlanSum) -> str:
    from ava_server.budget.held_words import held_words

    cap, spent, held = plan.caps.cap_micros, plan.bucket.spent_micros, plan.bucket.held_micros
    text = f"{format_usd(spent)} of {format_usd(cap, exact=True)} spent"
    if cap:
        text += f" ({100 * spent / cap:.0f} %)"
    if held:
        text += f", {held_words(held)}"
    return text


def _plan_time(plan: PlanSum, at_us: int) -> str:
    limit = ", without a limit of its own"
    if plan.caps.timeout_s is not None:
        limit = f" of {format_duration(plan.caps.timeout_s)}"
    elapsed_us = _elapsed_us(plan, at_us)
    if elapsed_us is None:
        return f"not started{limit}"
    return f"{format_duration(elapsed_us / US_PER_S)}{limit}, from the start of its first run"


def _run_row(plan: PlanSum, run: RunRow, at_us: int) -> TableRow:
    from ava_server.render.run_view import elapsed_in
    from ava_server.run_config.config import spent_text

    state = _state_of(plan, run)
    active = format_duration(elapsed_in(run, state, at_us))
    figures = (state_words(state), spent_text(run), f"{run.turns:,}", active)
    return TableRow(f"{run.id} {run.name or run.role}", figures, run.cost_micros)


def _plan_json(plan: PlanSum, at_us: int) -> dict[str, Any]:
    caps, bucket = plan.caps, plan.bucket
    started_at = None
    if caps.started_us is not None:
        started_at = iso_utc(caps.started_us)
    elapsed_us = _elapsed_us(plan, at_us)
    elapsed_s = None
    if elapsed_us is not None:
        elapsed_s = elapsed_us / US_PER_S
    return {
        "group_id": caps.id,
        "user": caps.user_id,
        "approved_at": iso_utc(caps.created_us),
        "started_at": started_at,
        "spent_cents": cents(bucket.spent_micros),
        "held_cents": cents(bucket.held_micros),
        "cap_cents": cents(caps.cap_micros),
        "elapsed_seconds": elapsed_s,
        "timeout_seconds": caps.timeout_s,
        "endings": dict(Counter(run.state for run in plan.runs if run.ended)),
        "runs": [_run_json(plan, run, at_us) for run in plan.runs],
    }


def _run_json(plan: PlanSum, run: RunRow, at_us: int) -> dict[str, Any]:
    from ava_server.render.run_view import elapsed_in

    state = _state_of(plan, run)
    return {
        "subagent_id": run.id,
        "role": run.role,
        "name": run.name,
        "model": run.model,
        "state": state,
        "stop_reason": run.stop_reason,
        "error_kind": run.error_kind,
        "cost_cents": cents(run.cost_micros),
        "uncosted_cents": cents(run.uncosted_micros),
        "overrun": bool(run.overrun),
        "turns": run.turns,
        "tool_calls": run.tool_calls,
        "active_seconds": elapsed_in(run, state, at_us),
    }


def _state_of(plan: PlanSum, run: RunRow) -> str:
    if run.id in plan.interrupted:
        return INTERRUPTED
    return run.state


def _elapsed_us(plan: PlanSum, at_us: int) -> int | None:
    """Return how long a plan has taken since its first run began; None where none did."""
    if plan.caps.started_us is None:
        return None
    ends = [at_us if run.ended_us is None else run.ended_us for run in plan.runs]
    return max(0, max(ends, default=at_us) - plan.caps.started_us)


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
    if until_us is None:
        until_us = at_us + 1
    if since_us is None:
        since_us = max(0, until_us - DAYS * DAY_US)
    if since_us >= until_us:
        raise BadInput("no time lies between: --since is not before --until, or is later than now")
    return since_us, until_us


async def _decisions(
    since_us: int, until_us: int, user: str | None, everybody: bool, as_json: bool, as_csv: bool, records: Records
) -> None:
    from ava_server.render.approvals import NOTHING, decisions_json

    try:
        decisions = await records.decisions(since_us, until_us, user, everybody=everybody, whole=as_json or as_csv)
    except NoLog:
        decisions = NOTHING
    if as_csv:
        return _write_csv(decisions)
    if as_json:
        return say_json({**place_json(records.place), **decisions_json(decisions, since_us, until_us)})
    heading(records.place)
    return _decisions_screen(decisions, since_us, until_us)


def _decisions_screen(decisions: Decisions, since_us: int, until_us: int) -> None:
    from ava_server.render.approvals import ERASED, totals_line

    whose = one_line(_whose(decisions.user))
    say(f"{format_ts(since_us)} to {format_ts(until_us)}, of {whose}: {totals_line(decisions.sums)}")
    for one in decisions.rows:
        task = ERASED if one.task is None else one_line(one.task)
        say(f"\n{format_ts(one.at_us)}  {one_line(_decision_text(one))}")
        say(f"  {one_line(_decider_text(one))}")
        say(f"  {task}")
    if decisions.next is not None:
        oldest = shlex.quote(iso_utc(decisions.rows[-1].at_us))
        say(f"\nOlder ones: --until {oldest}, or all of them with --json or --csv.")


def _decision_text(one: MadeDecision) -> str:
    name = quote_name(one.name) if one.name else named_role(one.role)
    text = f"{one.run_id} {name}: {one.decision}"
    if one.cap:
        text += f", {one.cap}"
    if one.cost_micros is not None:
        text += f"; cost {format_usd(one.cost_micros)}"
    if one.state == one.decision:
        return text
    state = state_words(one.state)
    if one.ended:
        state = f"ended: {state}"
    return f"{text}; {state}"


def _decider_text(one: MadeDecision) -> str:
    """Return who decided, for whom and how."""
    text = one.by
    if one.by != one.user:
        text += f", for {one.user}"
    text += f": {one.how}"
    if one.client:
        text += f"; client {one.client}"
    if one.token:
        text += f"; token {one.token}"
    return f"{text}; digest {one.digest[:12]}"


def _write_csv(decisions: Decisions) -> None:
    import csv
    import io

    from ava_server.render.approvals import COLUMNS, csv_cells

    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([COLUMNS, *map(csv_cells, decisions.rows)])
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
    server = chosen_server(context, url, token_file)
    since_us, until_us = _span(since, until)
    return _show(server, partial(_estimates, since_us, until_us, everybody, as_json))


async def _estimates(since_us: int, until_us: int, everybody: bool, as_json: bool, records: Records) -> None:
    from ava_server.service.record_requests import ESTIMATES

    try:
        estimates = await records.get(ESTIMATES, since=since_us, until=until_us, all=everybody)
    except NoLog:
        from ava_server.approval.estimates import PastEstimates, RoleEstimates

        estimates = PastEstimates(_user_without_log(everybody), RoleEstimates(""), ())
    if as_json:
        span = {"since": iso_utc(since_us), "until": iso_utc(until_us)}
        return say_json({**place_json(records.place), **span, **asdict(estimates)})
    heading(records.place)
    total, whose = estimates.total, one_line(_whose(estimates.user))
    say(
        f"{format_ts(since_us)} to {format_ts(until_us)}, of {whose}: {counted(total.runs, 'run')} with an estimate,"
        f" {total.without:,} without, because fewer than five similar ones had ended before."
    )
    if not total.runs:
        return None
    say("The estimates were right if half of the runs stayed within the likely one, and 90 % within nine in ten.")
    head = ("runs", "likely cost", "nine in ten", "likely time", "nine in ten")
    roles = [one for one in estimates.roles if one.runs]
    if len(estimates.roles) > 1:
        roles.append(replace(total, role="all"))
    rows = [TableRow(one.role, (f"{one.runs:,}", *map(_share_text, one.kinds))) for one in roles]
    return _table("Role", head, rows)


def _share_text(share: Kept) -> str:
    if not share.of:
        return ""
    return f"{share.within:,} of {share.of:,} ({100 * share.within / share.of:.0f} %)"
