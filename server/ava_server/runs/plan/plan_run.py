"""A plan as its owner drives it: it starts the runs of its steps, and ends when they have. It takes no slot itself."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping

import anyio

from ava_audit.errors import OutcomeUnknown, StaleOwner
from ava_audit.events import Who
from ava_audit.rows import RunRow
from ava_audit.store.store import Store
from ava_audit.units import now_us
from ava_audit.view import Outcome, View
from ava_server.core.awake_clock import AwakeClock
from ava_server.core.ids import new_id
from ava_server.core.threads import each_at_once
from ava_server.runs.journal.clock import RunClock
from ava_server.runs.journal.log import RunLog
from ava_server.runs.plan.plan import PlanInputs, advance
from ava_server.runs.record.endings import ON_REQUEST, cancel_reason, cancel_steps, end_plan
from ava_server.runs.record.history import History
from ava_server.runs.record.lifecycle import agent_of
from ava_server.runs.record.plan_time import plan_time
from ava_server.runs.record.result import RunResult
from ava_server.runs.turn.context import RunLeft

log = logging.getLogger("ava.plan")

PLAN_NEWS = ("RunClaimed", "RunEnded")
"""The types of entries after which a plan may continue."""
LOOK_EVERY_S = 1.0
"""Seconds between two looks without news: money may have been returned, or the time may be over."""
PAUSE_S = 0.02
"""Seconds between two commands at least: runs that end together are looked at together."""
END_S = 10.0
OVERDUE_S = 3.0
RUNS_END_S = 2.0
"""Seconds that the runs of a cancelled plan have to end before it ends without them."""


class PlanRun:
    """One plan, as its owner drives it; to the manager it is a run like any other.

    Attributes:
        activity: What it is doing, in a few words.
        cancelled: Somebody has asked for its end.
        done: Its ending is on the record.
    """

    def __init__(
        self,
        store: Store,
        run: RunRow,
        inputs: PlanInputs,
        on_activity: Callable[[], None],
        cancel_run: Callable[[str, Who, str], Awaitable[object]],
    ) -> None:
        """`cancel_run` ends a run for somebody, with a reason, and keeps what it has done."""
        self.id = run.id
        self.user = run.user_id
        self.activity = "Starting its steps"
        self.cancelled = False
        self.done = False
        self._inputs = inputs
        self._who = agent_of(run)
        self._log = RunLog(store, run, self._who, History(run.id))
        self._log.on_hold = self.say
        self._on_activity = on_activity
        self._cancel_run = cancel_run
        self._clock = RunClock(run.active_us / 1e6)
        self._scope = anyio.CancelScope()
        self._leaves = False
        self._cancel_reason: str | None = None
        self._awake = AwakeClock()
        self._cancelled_at: float | None = None

    async def drive(self, _seconds_left: float | None = None) -> None:
        """Start runs until the plan is over, and record that. A cancellation from outside leaves it to another owner.

        What is left of its time is read from the log, because it begins with its first run.
        """
        try:
            ended = RunResult("cancelled", ON_REQUEST)
            with self._scope:
                ended = await self._until_over()
            if self.cancelled:
                await self._cancel_runs()
                on_record = await self._log.read(lambda view: cancel_reason(view, self.id))
                ended = RunResult("cancelled", ON_REQUEST, reason=self._cancel_reason or on_record)
            with anyio.CancelScope(shield=True), anyio.move_on_after(END_S):
                await self._end(ended)
                self.done = True
        except StaleOwner as stale:
            log.info("%s: %s; left to its new owner", self.id, stale)
        except OutcomeUnknown as error:  # the next owner reads what the log has
            log.error("%s: %s", self.id, error)
        except RunLeft:
            log.info("%s: left to another process", self.id)

    def cancel(self, reason: str | None) -> None:
        """End the plan and its runs as cancelled; a second call changes nothing."""
        if not self.cancelled:
            self.cancelled, self._cancel_reason = True, reason
            self._cancelled_at = self._awake.now_s()
            self._scope.cancel()

    def leave(self) -> None:
        """Stop at the next step, so that another process can continue."""
        self._leaves = True

    def lose(self) -> None:
        """Do nothing: its next step is refused, and it pays for none."""

    def overdue(self) -> RunResult | None:
        """Return how the plan should have ended by now; None while it is in time."""
        if self._cancelled_at is not None and self._awake.now_s() > self._cancelled_at + OVERDUE_S:
            return RunResult("cancelled", ON_REQUEST, reason=self._cancel_reason)
        return None

    def say(self, doing: str) -> None:
        """Show in the status line what the plan is doing; does not wait."""
        if doing != self.activity:
            self.activity = doing
            self._on_activity()

    async def _until_over(self) -> RunResult:
        while True:
            if self._leaves:
                raise RunLeft
            seen = self._log.head
            left_s = await self._log.read(lambda view: plan_time(view.plan_caps(self.id), now_us()))
            command = advance(self._log.fence, self._who, self._inputs, lambda: new_id("subagent_id"))
            answer = await self._log.do(command)
            if answer.finish is not None:
                return RunResult(answer.finish.status, answer.finish.why)
            self.say(answer.doing)
            await self._cancel_each({cancel.run_id: cancel.why for cancel in answer.cancels})
            if answer.moved:
                await anyio.sleep(PAUSE_S)
            else:
                await self._log.wait_for(PLAN_NEWS, seen, LOOK_EVERY_S if left_s is None else min(left_s, LOOK_EVERY_S))

    async def _cancel_each(self, reasons: Mapping[str, str]) -> None:
        """End these runs at once, each for its reason."""

        async def cancel(run_id: str) -> None:
            await self._cancel_run(run_id, self._who, reasons[run_id])

        await each_at_once(cancel, reasons)

    async def _cancel_runs(self) -> None:
        """End all runs, and wait for that a moment: what they cost and have done is then in the results.

        Those that wait leave the queue first, in one transaction: each run that ends would let one of them begin.
        """
        reason = self._cancel_reason or ON_REQUEST

        def command(view: View, at_us: int) -> Outcome[None]:
            plan = view.run(self.id)
            return Outcome(None, () if plan is None else cancel_steps(view, plan, reason, at_us))

        with anyio.CancelScope(shield=True), anyio.move_on_after(RUNS_END_S):
            await self._log.do(command)
            rows = await self._log.read(lambda view: view.step_runs(self.id))
            await self._cancel_each({row.id: reason for row in rows if not row.ended})
        with anyio.CancelScope(shield=True), anyio.move_on_after(RUNS_END_S):
            while True:
                seen = self._log.head
                rows = await self._log.read(lambda view: view.step_runs(self.id))
                if all(row.ended for row in rows):
                    return
                await self._log.wait_for(PLAN_NEWS, seen, LOOK_EVERY_S)

    async def _end(self, ended: RunResult) -> None:
        fence, who, active_us = self._log.fence, self._who, round(self._clock.active_s * 1e6)

        def command(view: View, at_us: int) -> Outcome[None]:
            plan = view.owned_run(fence)
            return Outcome(None, end_plan(view, plan, ended, who, active_us, at_us))

        await self._log.do(command)
