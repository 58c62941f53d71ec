"""Which runs hold the money that a run waits for, and what a person can do about it.

Who goes next is decided in `budget/money_line.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ava_audit.rows import RunRow
from ava_audit.units import format_usd
from ava_audit.view import View, loads
from ava_roles.wrap import list_names
from ava_server.budget.caps import money_caps
from ava_server.budget.user_limits import DayCaps
from ava_server.run_config.config import config_of
from ava_server.runs.record.lifecycle import needs_resume, paused

NAMED = 3
"""Runs that hold the money and are named, at most."""


def start_wait(view: View, run: RunRow, caps: DayCaps, now_us: int, gone: frozenset[str]) -> str | None:
    """Return what an approved run waits for before it starts: money that other runs hold; None where it can start.

    One that would not fit with nothing held starts too: its first call says so, and it ends. `gone`: instances that
    are no longer alive.
    """
    config = config_of(run.config)
    if config.free:
        return None
    least = max(config.least_micros, 1)
    short: list[_Lack] = []
    for each in money_caps(view, run, caps, now_us):
        if each.left + view.bucket(each.scope).held_micros < least:
            return None
        if each.left < least:
            short.append(_Lack(each.scope, least - each.left))
    if not short:
        return None
    words = f"starts when {format_usd(least)} is free"
    return _with_holders(words, view, run, short, now_us, lambda instance: instance not in gone)


def awaited_money(view: View, run: RunRow, now_us: int, is_alive: Callable[[str], bool]) -> str | None:
    """Return what a running run waits for now, and who holds it. None: it waits for no money.

    `is_alive` tells whether an instance lives. The amounts are those of this moment, not those of the entry.
    """
    wait = loads(run.money_wait)
    if wait is None:
        return None
    scope = str(wait["scope"])
    need = int(wait["micros"])
    missing = need - (int(wait["limit"]) - view.bucket(scope).committed + run.wrap_in(scope))
    if missing <= 0:
        return f"{format_usd(need)}, behind an older run"
    return _with_holders(format_usd(missing), view, run, [_Lack(scope, missing)], now_us, is_alive)


@dataclass(frozen=True)
class _Lack:
    """What a run lacks in a scope of money, in micro-USD."""

    scope: str
    missing: int


@dataclass(frozen=True)
class _Holding:
    """What is said of runs that hold money, and of what to do about it; `{run}` is one of them."""

    adjective: str
    one: str
    several: str


_RESUME = "`ava resume {run}` or `ava cancel {run}`"
_BACK = "that comes back within a minute, or with `ava resume {run}` or `ava cancel {run}`"
PAUSED = _Holding("paused", "let it go on, or `ava cancel {run}`", "let one go on, or `ava cancel {run}`")
INTERRUPTED = _Holding("interrupted", _RESUME, _RESUME)
AT_WORK = _Holding("at work", "wait for it, or `ava cancel {run}`", "wait for them, or `ava cancel {run}`")
LOST = _Holding("interrupted", _BACK, _BACK)


def _with_holders(
    words: str, view: View, run: RunRow, short: Sequence[_Lack], now_us: int, is_alive: Callable[[str], bool]
) -> str:
    """Add who holds what is missing, and what to do.

    Runs that wait for their provider or for a person are named where the rest does not hold enough: they may return it
    only when a person acts. Else those at work are named, and else those whose process is gone.
    """
    all_holders = [holder for holder in view.unended_holders() if holder.id != run.id]
    for each in short:
        waiting = [holder for holder in _holders_in(all_holders, each.scope) if paused(holder, now_us)]
        held_by_others = view.bucket(each.scope).held_micros - run.held_in(each.scope)
        if held_by_others - _held(waiting, each.scope) < each.missing and waiting:
            kind = INTERRUPTED if all(map(needs_resume, waiting)) else PAUSED
            return f"{words}; {_holder_words(run, waiting, each.scope, kind)}"
    scope = short[0].scope
    at_work: list[RunRow] = []
    lost: list[RunRow] = []
    for holder in _holders_in(all_holders, scope):
        if holder.instance is not None and not is_alive(holder.instance):
            lost.append(holder)
        elif not paused(holder, now_us):
            at_work.append(holder)
    if at_work:
        return f"{words}; {_holder_words(run, at_work, scope, AT_WORK)}"
    if lost:
        return f"{words}; {_holder_words(run, lost, scope, LOST)}"
    return words


def _holders_in(holders: Sequence[RunRow], scope: str) -> list[RunRow]:
    return [holder for holder in holders if holder.held_in(scope) > 0]


def _held(holders: Sequence[RunRow], scope: str) -> int:
    return sum(holder.held_in(scope) for holder in holders)


def _holder_words(run: RunRow, holders: Sequence[RunRow], scope: str, kind: _Holding) -> str:
    """Return which runs hold money, and what to do; other users' runs are not named."""
    money = format_usd(_held(holders, scope))
    own = [holder.id for holder in holders if holder.user_id == run.user_id]
    if not own:
        return f"runs of other users that are {kind.adjective} hold {money}"
    if len(own) == len(holders) == 1:
        return f"{own[0]} holds {money} and is {kind.adjective}: {kind.one.format(run=own[0])}"
    others = "" if len(own) == len(holders) else ", and runs of other users,"
    names = f"{list_names(own, NAMED)}{others}"
    return f"{names} hold {money} and are {kind.adjective}: {kind.several.format(run=own[0])}"
