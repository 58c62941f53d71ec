"""What belongs to a run, whichever kind it is: its proposal and who decided on it.

A run that a plan has queued was proposed and approved with its plan; any other one by itself. Nothing else looks for
either in the log. The texts of a run are found by `brief_of` in `proposals.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ava_audit.entries import Entry
from ava_audit.events import AssistantMessage, SpawnDecided, SpawnProposed
from ava_audit.rows import RunRow
from ava_audit.view import View
from ava_server.core.ids import AGENT

SHOWN_WITHIN = 10
"""Among so many of a run's first entries is its proposal as it was shown: all of them were written at once."""


@dataclass(frozen=True)
class Approval:
    """How a run was proposed, and what was decided.

    Attributes:
        run_id: The run that was proposed: the run itself, or the plan that has queued it.
        proposed: The entry of its `SpawnProposed`; None where a newer Ava wrote it.
        decided: The entry of its `SpawnDecided`; None while nobody has decided.
    """

    run_id: str
    proposed: Entry | None
    decided: Entry | None

    @property
    def proposal(self) -> SpawnProposed | None:
        fact = self.proposed.fact if self.proposed is not None else None
        return fact if isinstance(fact, SpawnProposed) else None

    @property
    def decision(self) -> SpawnDecided | None:
        fact = self.decided.fact if self.decided is not None else None
        return fact if isinstance(fact, SpawnDecided) else None

    @property
    def entries(self) -> Sequence[Entry]:
        """The entries that there are, in their order."""
        return [entry for entry in (self.proposed, self.decided) if entry is not None]


def proposed_run_id(view: View, run: RunRow) -> str:
    """Return the run that was proposed where this one comes from: itself, or the plan that has queued it."""
    proposal = view.proposal(run.pending_id)
    return proposal.run_id if proposal is not None else run.id


def approval_of(view: View, run: RunRow) -> Approval:
    """Return how a run was proposed and decided; of a run that a plan has queued, how its plan was."""
    run_id = proposed_run_id(view, run)
    return Approval(run_id, view.first_entry(run_id, "SpawnProposed"), view.first_entry(run_id, "SpawnDecided"))


def proposal_of(view: View, run: RunRow) -> str:
    """Return the proposal of a run, or of the plan that has queued it, as it was shown; empty where it was erased."""
    for entry in view.newer_entries(proposed_run_id(view, run), 0, SHOWN_WITHIN):
        if entry.who.agent_id == AGENT and isinstance(entry.fact, AssistantMessage):
            return entry.fact.text
    return ""
