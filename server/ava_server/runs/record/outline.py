"""How far the outline of a run has come, folded from its entries: analysis, plan, review.

An outline is what a run plans for itself before it works. The log, people and models call it planning; in the code, a
plan is one of subagents.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ava_audit.events import AssistantMessage, OutlinePhase, PlanReady
from ava_server.runs.record.invalid_answers import CUT

_NEXT_PHASE: Mapping[OutlinePhase, OutlinePhase] = {"analysis": "plan", "plan": "review"}
_KEEP = re.compile(r"\W*keep\W*", re.IGNORECASE)
"""A review that leaves the outline as it is."""
_STEP = re.compile(r"^[\s#*_]*(?:(?:step\s+)?\d+[\s.:)*]|[-*•]\s)", re.IGNORECASE | re.MULTILINE)
"""The beginning of a step: without one, a review has not corrected the outline."""


@dataclass(slots=True)
class OutlineState:
    """How far the outline of a run has come.

    Attributes:
        phase: The step that the last reserved call was for; None for a call of the work.
        has_answer: That call has an answer.
        draft: The first version of the outline; empty before that, and where the answer was unusable.
        corrected: The version of the review; empty where it kept the draft.
        reviewed: The review was usable: it corrected the outline, or said to keep it.
    """

    phase: OutlinePhase | None = None
    has_answer: bool = False
    draft: str = ""
    corrected: str = ""
    reviewed: bool = False
    ready: PlanReady | None = None

    @property
    def is_on(self) -> bool:
        """Whether the outline has been begun and is not over."""
        return self.phase is not None and self.ready is None

    def begin_call(self, phase: OutlinePhase | None) -> None:
        self.phase = phase
        self.has_answer = False

    def add_answer(self, said: AssistantMessage) -> bool:
        """Fold an answer; tell whether it is usable and stays in the conversation until the outline is over."""
        self.has_answer = True
        text = said.text
        if said.calls or not text.strip():
            text = ""
        if self.phase == "review":
            return self._add_review(text, is_cut=said.stop_reason in CUT)
        if self.phase == "plan":
            self.draft = text
        return bool(text)

    def _add_review(self, text: str, *, is_cut: bool) -> bool:
        if not is_cut and _STEP.search(text):
            self.corrected = text
        self.reviewed = bool(self.corrected or _KEEP.fullmatch(text))
        return bool(self.corrected)

    def next_phase(self) -> OutlinePhase | None:
        """Return the step of the next call: the same one while it has no answer, else the one after it."""
        if self.ready is not None or self.phase is None:
            return None
        if not self.has_answer:
            return self.phase
        return _NEXT_PHASE.get(self.phase)

    def outcome(self, *, leaving: bool = False) -> PlanReady | None:
        """Return the final outline; None while it goes on, or where there is none.

        Args:
            leaving: The outline ends now, whichever steps are left.
        """
        if not self.is_on:
            return None
        if not leaving and not self._is_over():
            return None
        return PlanReady(plan=self.corrected or self.draft, reviewed=self.reviewed)

    def _is_over(self) -> bool:
        if not self.has_answer:
            return False
        has_no_draft = self.phase == "plan" and not self.draft
        return self.phase == "review" or has_no_draft
