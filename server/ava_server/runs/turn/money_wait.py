"""The wait of a run for money that other runs hold, before a call.

Who goes next is decided in the log (`budget/money_line.py`); here is only when a run asks again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TypeVar

import anyio

from ava_audit.errors import AuditError
from ava_audit.view import Command
from ava_server.budget.caps import end_money_wait
from ava_server.budget.money_line import MoneyWait, Patience
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
