"""How far the planning of a run has come, folded from its entries."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ava_audit.events import AssistantMessage, PlanPhase, PlanReady
from ava_server.runs.invalid_answers import CUT

_THEN: Mapping[PlanPhase, PlanPhase] = {"analysis": "plan", "plan": "review"}
_KEEP = re.compile(r"\W*keep\W*", re.IGNORECASE)
_STEP = re.compile(r"^[\s#*_]*(?:(?:step\s+)?\d+[\s.:)*]|[-*•]\s)", re.IGNORECASE | re.MULTILINE)


@dataclass
class PlanState:
    """How far the planning of a run has come.

    Attributes:
        phase: The step that the last reserved call was for; None for a call of the work.
        has_answer: That call has an answer.
        draft: The first version of the plan; empty before that, and where the answer was unusable.
        corrected: The plan as the review rewrote it.
        reviewed: The review was usable: it corrected the plan, or said to keep it.
        ready: The outcome of planning, once it is over.
    """

    phase: PlanPhase | None = None
    has_answer: bool = False
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
        self.phase, self.has_answer = phase, False

    def answered(self, said: AssistantMessage) -> bool:
        """Fold an answer; tell whether it is usable and stays until planning is over."""
        self.has_answer = True
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
        """Return the step of the next call: the same one while it has no answer, else the one after it."""
        if not self.on or self.phase is None:
            return None
        return _THEN.get(self.phase) if self.has_answer else self.phase

    def outcome(self, *, leaving: bool = False) -> PlanReady | None:
        """Return the outcome of planning, or None while it goes on, or where there is no planning.

        Args:
            leaving: Planning ends now, whichever steps are left.
        """
        if not self.on:
            return None
        over = self.has_answer and (self.phase == "review" or (self.phase == "plan" and not self.draft))
        if not over and not leaving:
            return None
        return PlanReady(plan=self.corrected or self.draft, reviewed=self.reviewed)
