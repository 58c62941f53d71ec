"""`ava status`: what waits, runs and has ended lately, and what is left of today's money."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import anyio.to_thread
import typer

from ava_server.cli.app import heading
from ava_server.cli.root import has_log
from ava_server.cli.terminal import cut, say, say_json
from ava_server.data_root import find_data_root
from ava_server.os_user import os_user

if TYPE_CHECKING:
    from ava_audit.rows import RunRow
    from ava_audit.store import Store
    from ava_audit.view import View
    from ava_server.answers import RunAnswer
    from ava_server.settings import Settings
    from ava_server.status import Alive

REDRAW_S = 1.0
WIDTH = 80
_CLEAR = "\x1b[H\x1b[2J\x1b[3J"
_ORDER = ("awaiting_approval", "queued", "interrupted", "running")


@dataclass(frozen=True)
class Budget:
    """What a day's budget has left; micro-USD."""

    whose: str
    spent: int
    held: int
    cap: int


@dataclass(frozen=True)
class Shown:
    """A run as the screen shows it: with the beginning of its task, and when its proposal expires."""

    run: RunRow
    answer: RunAnswer
    task: str
    expires_us: int | None


@dataclass(frozen=True)
class Overview:
    """Everything that the screen shows."""

    runs: tuple[Shown, ...]
    budgets: tuple[Budget, ...]
    serving: bool = False


def register(app: typer.Typer) -> None:
    """Add `ava status` to the app."""
    app.command("status", short_help="What waits, runs or has just ended, and today's spending.")(status_command)


def status_command(
    once: Annotated[bool, typer.Option("--once", help="Show it once; as it also is without a terminal.")] = False,
    everybody: Annotated[bool, typer.Option("--all", help="The runs of all users, not only yours.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Show what waits, runs and has ended within the hour, and today's spending; until Ctrl-C, or once."""
    from ava_server.settings import load_settings

    has_log(find_data_root())
    anyio.run(_status, load_settings(), once or as_json or not sys.stdout.isatty(), everybody, as_json)


async def _status(settings: Settings, once: bool, everybody: bool, as_json: bool) -> None:
    from ava_audit.locks import Instances
    from ava_server.cli.reading import open_log
    from ava_server.waits import any_alive

    user = os_user()
    async with open_log(settings.paths, make=not once) as store:
        instances = Instances(settings.paths.instances) if store is not None else None
        alive: Alive = instances.alive if instances is not None else lambda _name: False
        while True:
            overview = await _overview(store, settings, user, everybody, alive)
            overview = replace(overview, serving=await anyio.to_thread.run_sync(any_alive, instances))
            if as_json:
                say_json(_as_json(settings, overview))
                return
            if not once:
                typer.echo(_CLEAR, nl=False)
            heading(settings.paths)
            say("\n".join(_screen(overview, everybody)))
            if once or store is None:
                return
            await anyio.sleep(REDRAW_S)


async def _overview(store: Store | None, settings: Settings, user: str, everybody: bool, alive: Alive) -> Overview:
    from ava_audit.money import micros_from_cents
    from ava_audit.rows import UNENDED
    from ava_audit.times import HOUR_US
    from ava_server.budget import installation_scope, user_scope, utc_day
    from ava_server.proposal_words import beginning
    from ava_server.proposing import texts_of
    from ava_server.status import run_answer

    now_us = time.time_ns() // 1000
    day, limits = utc_day(now_us), settings.limits
    scopes = (
        (user, user_scope(user, day), limits.user_daily_cents),
        ("everybody", installation_scope(day), limits.installation_daily_cents),
    )

    def shown(view: View, row: RunRow) -> Shown:
        texts, proposal = texts_of(view, row), view.proposal(row.pending_id)
        answer = run_answer(view, row, alive, now_us, result=False)
        task = beginning(texts.task) if texts is not None else "(erased)"
        return Shown(row, answer, task, proposal.expires_us if proposal is not None else None)

    def query(view: View) -> Overview:
        whose = None if everybody else user
        rows = view.runs(user=whose, states=UNENDED) + view.runs(user=whose, ended_since_us=now_us - HOUR_US)
        runs = tuple(shown(view, row) for row in rows)
        buckets = [(name, view.bucket(scope), cap) for name, scope, cap in scopes]
        return Overview(
            runs,
            tuple(Budget(n, b.spent_micros, b.held_micros, micros_from_cents(c)) for n, b, c in buckets),
        )

    if store is None:
        return Overview((), tuple(Budget(name, 0, 0, micros_from_cents(cap)) for name, _scope, cap in scopes))
    return await store.read(query)


def _screen(overview: Overview, everybody: bool) -> list[str]:
    lines: list[str] = []
    going_on = [shown for shown in overview.runs if not shown.run.ended]
    ended = [shown for shown in overview.runs if shown.run.ended]
    for shown in sorted(going_on, key=lambda shown: (_order(shown.answer.state), shown.run.created_us)):
        lines += _run(shown, everybody, overview.serving)
    if ended:
        lines += ["", "Ended within the last hour:"] if lines else ["Ended within the last hour:"]
        for shown in sorted(ended, key=lambda shown: shown.run.ended_us or 0, reverse=True):
            lines += _run(shown, everybody, overview.serving)
    if not lines:
        lines.append("No subagents: none waits, runs, or ended within the last hour.")
    return [*lines, "", "Today (UTC):", *map(_budget, overview.budgets)]


def _order(state: str) -> int:
    return _ORDER.index(state) if state in _ORDER else len(_ORDER)


def _run(shown: Shown, everybody: bool, serving: bool) -> list[str]:
    """Return a run in a few lines of at most 80 columns."""
    from ava_server.status import clock_us, figures
    from ava_server.waits import NO_SERVER, interrupted_words

    run, answer = shown.run, shown.answer
    name = f" ({answer.name})" if answer.name else ""
    owner = f" of {run.user_id}" if everybody else ""
    lines = [f"{run.id}  {answer.state:<17} {run.role}{name}{owner}"]
    ending = f", ended {_clock(run.ended_us)}" if run.ended_us is not None else ""
    lines.append(f"  asked {_clock(run.created_us)}{ending}: {shown.task}")
    if answer.state in ("awaiting_approval", "expired") and shown.expires_us is not None:
        expired = answer.state == "expired"
        lines.append(f"  {run.pending_id}, {'expired' if expired else 'expires'} {_clock(shown.expires_us)}")
        if not expired and not everybody:
            lines.append(f"  ava approve {run.pending_id}, or ava reject {run.pending_id}")
    elif answer.state == "queued":
        place = f"number {answer.queue_position} in the queue" if answer.queue_position is not None else "paused"
        lines.append(": ".join(part for part in (f"  {place}", answer.waits_for) if part))
        if not serving:
            lines.append(f"  {NO_SERVER}")
    else:
        lines.append(f"  {figures(run, clock_us(run, answer.state, time.time_ns() // 1000))}")
    if answer.untrusted_activity:
        lines.append(f"  {answer.untrusted_activity}")
    if answer.state == "interrupted":
        lines.append(f"  {interrupted_words(run, answer.waits_for, time.time_ns() // 1000)}")
    if run.ended and answer.state != "success" and answer.stop_reason:
        lines.append(f"  {answer.stop_reason}")
    return [cut(line, WIDTH) for line in lines]


def _clock(ts_us: int) -> str:
    """Return a time as the clock on the wall has it; with its day where that is not today."""
    from ava_audit.times import format_ts

    day, _, clock = format_ts(ts_us).partition(" ")
    today = format_ts(time.time_ns() // 1000).partition(" ")[0]
    return clock[:5] if day == today else f"{day} {clock[:5]}"


def _budget(budget: Budget) -> str:
    from ava_audit.money import format_usd

    held = f", {format_usd(budget.held)} held for calls in flight" if budget.held else ""
    over = "; nothing more is spent today" if budget.spent + budget.held >= budget.cap else ""
    return f"  {budget.whose}: {format_usd(budget.spent)} of {format_usd(budget.cap)} spent{held}{over}"


def _as_json(settings: Settings, overview: Overview) -> dict[str, Any]:
    return {
        "data_root": str(settings.data_root),
        "runs": [
            {**shown.answer.model_dump(mode="json", exclude_none=True), "task": shown.task, "user": shown.run.user_id}
            for shown in overview.runs
        ],
        "today": [
            {
                "whose": budget.whose,
                "spent_cents": budget.spent / 10_000,
                "held_cents": budget.held / 10_000,
                "cap_cents": budget.cap / 10_000,
            }
            for budget in overview.budgets
        ],
    }
