"""Where a run is in its planning, folded from its entries."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ava_audit.events import AssistantMessage, PlanPhase, PlanReady
from ava_server.runs.answer_faults import CUT

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
