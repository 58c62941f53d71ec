"""Planning: an analysis, a plan and its review, three model calls before the work, of which the plan is kept.

They are turns like all others: reserved, settled and logged, with the prefix and the tools of every turn. Where a run
is in them follows from the log: `CostReserved.phase` says what a call was for, and `PlanReady` ends it. Until then the
three are one conversation; from then on the plan alone stands there, as the model's own first message.

A step that brings nothing of use is dropped, and never asked for again: without an analysis it is planned all the same,
without a review the plan is used as it is, and without a plan the run works as one that makes none.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ava_audit.events import Activity, CostReserved, PlanPhase
from ava_server.models.base import Completion

if TYPE_CHECKING:
    from ava_server.runs.log import RunLog
    from ava_server.runs.result import RunResult

DOING: Mapping[PlanPhase, str] = {
    "analysis": "Analysing the task",
    "plan": "Planning",
    "review": "Reviewing the plan",
}
"""The sentence in the status line."""
NO_PLAN = "Working without a plan: none could be made"


class Planner:
    """The planning of one run in the hands of its owner.

    Attributes:
        wanted: The run plans before it works.
    """

    def __init__(self, run_log: RunLog, *, wanted: bool) -> None:
        self.wanted = wanted
        self._log = run_log
        self._history = run_log.history

    def phase(self) -> PlanPhase | None:
        """Return what the next call is for; None for one of the work."""
        if self._history.turn == 0:
            return "analysis" if self.wanted else None
        return self._history.planning.next_phase()

    async def settle(self, *, leaving: bool = False) -> None:
        """Record what planning came to, as soon as that is known; at once when it cannot go on."""
        ready = self._history.planning.outcome(leaving=leaving)
        if ready is not None:
            await self._log.record(*([] if ready.plan else [Activity(activity=NO_PLAN)]), ready)

    def asking_for(self, phase: PlanPhase) -> str:
        """Return what a planning call tells the model, the names of the tools that it has among it."""
        assert self._history.prefix is not None, "a run starts with its prefix"
        tools = ", ".join(str(tool["name"]) for tool in self._history.prefix.tools)
        return _texts()[phase].replace("{tools}", tools)

    async def began(self, reserved: CostReserved) -> None:
        """Record that a step was begun, where the call that was reserved is one."""
        if reserved.phase is not None and reserved.attempt == 1:
            await self._log.record(Activity(activity=DOING[reserved.phase]))

    async def takes(self, answer: Completion | RunResult) -> bool:
        """Take the answer of a planning call, or the error in its place; False for what is not planning's."""
        if not self._history.planning.on:
            return False
        if isinstance(answer, Completion):
            return True
        await self.settle(leaving=True)
        return answer.status == "error"


def to_work() -> str:
    """Return what the first turn of work tells the model of its plan."""
    return _texts()["work"]


@cache
def _texts() -> dict[str, str]:
    return {
        name: str(text).strip()
        for name, text in tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8")).items()
    }
