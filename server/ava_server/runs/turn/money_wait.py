"""The wait of a run for money that other runs hold: before it starts, and before a call.

Who goes next is decided in the log (`budget/money_line.py`); here is only when a run asks again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import anyio

from ava_audit.errors import AuditError
from ava_audit.rows import RunRow
from ava_audit.units import format_usd
from ava_audit.view import Command, View
from ava_roles.wrap import list_names
from ava_server.budget.caps import end_money_wait, money_caps
from ava_server.budget.money_line import CapLeft, MoneyWait, Patience
from ava_server.budget.user_limits import DayCaps
from ava_server.run_config.config import config_of
from ava_server.runs.record.lifecycle import paused
from ava_server.runs.turn.context import ActiveRun, RunLeft

T = TypeVar("T")

MONEY_NEWS = (
    "CostReserved", "CostUpdate", "MoneyAwaited", "RunPaused", "Asked", "RunClaimed",
    "RunEnded", "UserMessage",
)  # fmt: skip
"""The types of entries after which a waiting run may continue."""
ASK_AGAIN_S = 1.0
"""Seconds after which it asks again without such an entry: an owner may have died, or a day may have begun."""
PAUSE_S = 0.02
"""Seconds between two requests at least: what is settled together is looked at together."""
END_S = 3.0
NAMED = 3
"""Runs that hold the money and are named, at most."""


def start_wait(view: View, run: RunRow, caps: DayCaps, now_us: int, gone: frozenset[str]) -> str | None:
    """Return what an approved run waits for before it starts: money that other runs hold; None where it can start.

    One that would not fit with nothing held starts too: its first call says so, and it ends. The words name who holds
    what is missing, and say what to do: paused runs may return it only when a person acts.
    """
    config = config_of(run.config)
    if config.free:
        return None
    least = max(config.least_micros, 1)
    short: list[CapLeft] = []
    for each in money_caps(view, run, caps, now_us):
        if each.left + view.bucket(each.scope).held_micros < least:
            return None
        if each.left < least:
            short.append(each)
    if not short:
        return None
    words = f"starts when {format_usd(least)} is free"
    all_holders = view.unended_holders()
    for each in short:
        holders = [holder for holder in all_holders if holder.held_in(each.scope) > 0]
        waiting = [holder for holder in holders if paused(holder, now_us)]
        if each.left + view.bucket(each.scope).held_micros - _held(waiting, each.scope) < least:
            return f"{words}; {_holder_words(run, waiting, each.scope, PAUSED)}"
    scope = short[0].scope
    holders = [holder for holder in all_holders if holder.held_in(scope) > 0]
    lost = [holder for holder in holders if holder.instance in gone]
    at_work = [holder for holder in holders if holder not in lost and not paused(holder, now_us)]
    if at_work:
        return f"{words}; {_holder_words(run, at_work, scope, AT_WORK)}"
    if lost:
        return f"{words}; {_holder_words(run, lost, scope, LOST)}"
    return words


@dataclass(frozen=True)
class _Holding:
    """What is said of runs that hold money, and of what to do about it; `{run}` is one of them."""

    adjective: str
    one: str
    several: str


PAUSED = _Holding("paused", "let it go on, or `ava cancel {run}`", "let one go on, or `ava cancel {run}`")
AT_WORK = _Holding("at work", "wait for it, or `ava cancel {run}`", "wait for them, or `ava cancel {run}`")
LOST = _Holding("interrupted", "that comes back within a minute", "that comes back within a minute")


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


class MoneyQueue:
    """Reserves calls of one run, and waits where other runs hold the money."""

    def __init__(self, run: ActiveRun) -> None:
        self._run = run
        self._log = run.log

    async def ask(
        self,
        command: Callable[[Patience], Command[T]],
        then: Callable[[T], None],
        least: Callable[[], int],
        *,
        most_s: float = math.inf,
        may_leave: bool = False,
    ) -> T:
        """Return the answer to a reservation; a MoneyWait only if it has waited `most_s` or the run's timeout in vain.

        `command` makes the reservation, `then` folds its answer, and `least` is asked once it has to wait: the worst
        case of the smallest useful form of the call. With `may_leave` it raises RunLeft once the run is to be left.
        """
        answer = await self._log.do(command(Patience()), then)
        if not isinstance(answer, MoneyWait):
            return answer
        waits = Waiting(self._run, most_s)
        smallest = least()
        self._run.say("")  # what it waits for, its view says
        with self._run.clock.stopped():
            try:
                while isinstance(answer, MoneyWait) and not waits.over():
                    if may_leave and self._run.leaves():
                        raise RunLeft
                    seen = self._log.head
                    answer = await self._log.do(command(Patience(await self._run.gone(), smallest)), then)
                    if isinstance(answer, MoneyWait):
                        await self._log.wait_for(MONEY_NEWS, seen, min(ASK_AGAIN_S, waits.left_s()))
            finally:
                if isinstance(answer, MoneyWait):
                    await self._end()
        self._run.say("Working")
        return answer

    async def _end(self) -> None:
        """Record that the run waits no longer: its time is over, it is cancelled, or left to another process."""
        with anyio.CancelScope(shield=True), anyio.move_on_after(END_S):
            try:
                await self._log.do(end_money_wait(self._log.fence, self._log.who))
            except AuditError:  # the next owner's claim ends the wait
                return


class Waiting:
    """How long one wait may last: `most_s`, and with all earlier waits of the run together its timeout."""

    def __init__(self, run: ActiveRun, most_s: float) -> None:
        self._run = run
        self._until = time.monotonic() + most_s

    def left_s(self) -> float:
        timeout_left_s = self._run.config.timeout_s - self._run.clock.stopped_s
        return max(min(self._until - time.monotonic(), timeout_left_s), 0.0)

    def over(self) -> bool:
        return self.left_s() <= 0.0
