"""`ava status`: what waits, runs and has ended lately, and what is left of today's money."""

from __future__ import annotations

import getpass
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer

from ava_server.cli.app import heading
from ava_server.cli.root import has_log
from ava_server.cli.terminal import say, say_json
from ava_server.data_root import find_data_root

if TYPE_CHECKING:
    from ava_audit.store import Store
    from ava_audit.view import RunRow, View
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
class Overview:
    """Everything that the screen shows."""

    runs: tuple[tuple[RunRow, RunAnswer], ...]
    budgets: tuple[Budget, ...]


def register(app: typer.Typer) -> None:
    """Add `ava status` to the app."""
    app.command("status")(status_command)


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

    user = getpass.getuser()
    async with open_log(settings.paths, make=not once) as store:
        alive: Alive = Instances(settings.paths.instances).alive if store is not None else lambda _name: False
        while True:
            overview = await _overview(store, settings, user, everybody, alive)
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
    from ava_audit.times import HOUR_US
    from ava_audit.view import UNENDED
    from ava_server.budget import installation_scope, user_scope, utc_day
    from ava_server.status import run_answer

    now_us = time.time_ns() // 1000
    day, limits = utc_day(now_us), settings.limits
    scopes = (
        (user, user_scope(user, day), limits.user_daily_cents),
        ("everybody", installation_scope(day), limits.installation_daily_cents),
    )

    def query(view: View) -> Overview:
        whose = None if everybody else user
        rows = view.runs(user=whose, states=UNENDED) + view.runs(user=whose, ended_since_us=now_us - HOUR_US)
        runs = tuple((row, run_answer(view, row, alive, now_us, result=False)) for row in rows)
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
    going_on = [pair for pair in overview.runs if not pair[0].ended]
    ended = [pair for pair in overview.runs if pair[0].ended]
    for run, answer in sorted(going_on, key=lambda pair: (_order(pair[1].state), pair[0].created_us)):
        lines += _run(run, answer, everybody)
    if ended:
        lines += ["", "Ended within the last hour:"] if lines else ["Ended within the last hour:"]
        for run, answer in sorted(ended, key=lambda pair: pair[0].ended_us or 0, reverse=True):
            lines += _run(run, answer, everybody)
    if not lines:
        lines.append("No subagents: none waits, runs, or ended within the last hour.")
    return [*lines, "", "Today (UTC):", *map(_budget, overview.budgets)]


def _order(state: str) -> int:
    return _ORDER.index(state) if state in _ORDER else len(_ORDER)


def _run(run: RunRow, answer: RunAnswer, everybody: bool) -> list[str]:
    """Return a run in a few lines of at most 80 columns."""
    from ava_server.status import figures

    name = f" ({answer.name})" if answer.name else ""
    owner = f" of {run.user_id}" if everybody else ""
    lines = [f"{run.id}  {answer.state:<17} {run.role}{name}{owner}"]
    if answer.state in ("awaiting_approval", "expired"):
        lines.append(f"  {run.pending_id}, {'expired' if answer.state == 'expired' else 'expires'} {answer.expires_at}")
    elif answer.state == "queued":
        lines.append(f"  number {answer.queue_position} in the queue")
    else:
        lines.append(f"  {figures(run, time.time_ns() // 1000)}")
    if answer.untrusted_activity:
        lines.append(f"  {answer.untrusted_activity}")
    if answer.state == "interrupted":
        lines.append("  nobody has it: the next Ava server of this user goes on with it")
    if run.ended and answer.state != "success" and answer.stop_reason:
        lines.append(f"  {answer.stop_reason}")
    return [line if len(line) <= WIDTH else line[: WIDTH - 1] + "…" for line in lines]


def _budget(budget: Budget) -> str:
    from ava_audit.money import format_usd

    held = f", {format_usd(budget.held)} held for calls in flight" if budget.held else ""
    over = "; nothing more is spent today" if budget.spent + budget.held >= budget.cap else ""
    return f"  {budget.whose}: {format_usd(budget.spent)} of {format_usd(budget.cap)} spent{held}{over}"


def _as_json(settings: Settings, overview: Overview) -> dict[str, Any]:
    return {
        "data_root": str(settings.data_root),
        "runs": [
            {**answer.model_dump(mode="json", exclude_none=True), "user": run.user_id} for run, answer in overview.runs
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
