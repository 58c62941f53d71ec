"""Planning: three model calls before the work (analysis, plan, review), of which the plan is kept.

They are ordinary turns: reserved, settled and logged, with the same prefix and tools. The log says how far planning has
come: `CostReserved.phase` names the step of a call, and `PlanReady` ends planning. Until then the three are one
conversation; after that only the plan stays in it, as the model's own first message.

An unusable step is dropped and not repeated: without an analysis the model still plans, without a review the plan is
used as it is, and without a plan the run works like one that does not plan.
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
    """The planning of one run.

    Attributes:
        wanted: The run plans before it works.
    """

    def __init__(self, run_log: RunLog, *, wanted: bool) -> None:
        self.wanted = wanted
        self._log = run_log
        self._history = run_log.history

    def phase(self) -> PlanPhase | None:
        """Return the step of the next call; None for a call of the work."""
        if self._history.turn == 0:
            return "analysis" if self.wanted else None
        return self._history.planning.next_phase()

    async def settle(self, *, leaving: bool = False) -> None:
        """Record the outcome of planning once it is known, or at once where planning cannot go on (`leaving`)."""
        ready = self._history.planning.outcome(leaving=leaving)
        if ready is not None:
            await self._log.record(*([] if ready.plan else [Activity(activity=NO_PLAN)]), ready)

    def prompt_of(self, phase: PlanPhase) -> str:
        """Return the prompt of a planning call, with the names of the run's tools."""
        assert self._history.prefix is not None, "a run starts with its prefix"
        tools = ", ".join(str(tool["name"]) for tool in self._history.prefix.tools)
        return _texts()[phase].replace("{tools}", tools)

    async def record_start(self, reserved: CostReserved) -> None:
        """Record that a step has begun, where the reserved call is one."""
        if reserved.phase is not None and reserved.attempt == 1:
            await self._log.record(Activity(activity=DOING[reserved.phase]))

    async def takes(self, answer: Completion | RunResult) -> bool:
        """Take the answer of a planning call, or the error in its place; False for an answer of the work."""
        if not self._history.planning.on:
            return False
        if isinstance(answer, Completion):
            return True
        await self.settle(leaving=True)
        return answer.status == "error"


def to_work() -> str:
    """Return what the first turn of work tells the model about its plan."""
    return _texts()["work"]


@cache
def _texts() -> dict[str, str]:
    return {
        name: str(text).strip()
        for name, text in tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8")).items()
    }
