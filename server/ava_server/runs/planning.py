"""Planning: an analysis, a plan and its review, three model calls before the work, of which the plan is kept.

They are turns like all others: reserved, settled and logged, with the prefix and the tools of every turn. Where a run
is in them follows from the log: `CostReserved.phase` says what a call was for, and `PlanReady` ends it. Until then the
three are one conversation; from then on the plan alone stands there, as the model's own first message.

A step that brings nothing of use is dropped, and never asked for again: without an analysis it is planned all the same,
without a review the plan is used as it is, and without a plan the run works as one that makes none.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ava_audit.events import Activity, AssistantMessage, CostReserved, PlanPhase, PlanReady
from ava_server.models.base import Completion
from ava_server.runs.invalid_answers import CUT

if TYPE_CHECKING:
    from ava_server.runs.log import RunLog
    from ava_server.runs.result import RunResult


_THEN: Mapping[PlanPhase, PlanPhase] = {"analysis": "plan", "plan": "review"}
_KEEP = re.compile(r"\W*keep\W*", re.IGNORECASE)
_STEP = re.compile(r"^[\s#*_]*(?:(?:step\s+)?\d+[\s.:)*]|[-*•]\s)", re.IGNORECASE | re.MULTILINE)


@dataclass
class PlanState:
    """Where a run is in its planning, folded from its entries.

    Attributes:
        phase: What the last reserved call was for; None for one of the work.
        heard: That call has been answered.
        draft: The plan as it was written first; empty before that, and where the answer was of no use.
        corrected: The plan as the review gave it anew.
        reviewed: The review was of use: it corrected the plan, or said to keep it.
        ready: What planning came to, once it is over.
    """

    phase: PlanPhase | None = None
    heard: bool = False
    draft: str = ""
    corrected: str = ""
    reviewed: bool = False
    ready: PlanReady | None = None

    @property
    def on(self) -> bool:
        """Whether planning has begun and is not over."""
        return self.phase is not None and self.ready is None

    def asked(self, phase: PlanPhase | None) -> None:
        """Fold a reservation."""
        self.phase, self.heard = phase, False

    def answered(self, said: AssistantMessage) -> bool:
        """Fold an answer; tell whether it is of use, and stays until planning is over."""
        self.heard = True
        text = "" if said.calls or not said.text.strip() else said.text
        if self.phase == "plan":
            self.draft = text
        elif self.phase == "review":
            if said.stop_reason not in CUT and _STEP.search(text):
                self.corrected = text
            self.reviewed = bool(self.corrected or _KEEP.fullmatch(text))
            return bool(self.corrected)
        return bool(text)

    def next_phase(self) -> PlanPhase | None:
        """Return what the next call is for: this phase again while it is unanswered, else the one after it."""
        if not self.on or self.phase is None:
            return None
        return _THEN.get(self.phase) if self.heard else self.phase

    def outcome(self, *, leaving: bool = False) -> PlanReady | None:
        """Return what planning comes to if nothing more is asked for it; None while it goes on, or where there is none.

        Args:
            leaving: It ends here, whatever was still to come.
        """
        if not self.on:
            return None
        over = self.heard and (self.phase == "review" or (self.phase == "plan" and not self.draft))
        if not over and not leaving:
            return None
        return PlanReady(plan=self.corrected or self.draft, reviewed=self.reviewed)


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
