"""The requests for decisions: what waits for a person, and what became of it; the same locally and over HTTP.

What a person decides is carried out by `service.decide`. A command calls it in its own process; with `--url` it sends
the decision over HTTP, and the server calls it.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ava_audit.rows import RunRow
from ava_audit.units import now_us
from ava_audit.view import Readable, View
from ava_server.approval.decide import Shown
from ava_server.approval.proposals import Pending, SpawnLimits, pending_proposals, waiting_proposal
from ava_server.core.errors import Refused
from ava_server.core.ids import parse_any_id
from ava_server.runs.asking.pending_questions import PendingExtension, pending_requests
from ava_server.service.open_questions import outcome_of
from ava_server.service.record_requests import RecordRequest, UnknownId

MOST_SHOWN = 100
"""How many decisions one request may ask about; more than a table shows."""


Find = Callable[[Sequence[str]], Awaitable[list[RunRow]]]


@dataclass(frozen=True)
class WaitingDecisions:
    """What waits for a person: proposals, and requests of runs for more, each the oldest first."""

    user: str
    proposals: list[Pending]
    extensions: list[PendingExtension]


@dataclass(frozen=True)
class Outcomes:
    """What became of what a person was asked about.

    Attributes:
        sentences: A sentence for each that no longer waits, by its id.
        approved: The runs of those proposals that were approved.
        upto: The newest entry of the log at this time.
    """

    sentences: dict[str, str]
    approved: list[str]
    upto: int


class DecisionsHandler:
    """Answers each request for decisions, for one user.

    Args:
        store: The log.
        user: Whose decisions these are.
        limits: Returns what limits new runs of a user. Blocking.
        find: Finds runs by ids of proposals and runs, where a surface has its own way; it sees runs of all users.
    """

    def __init__(
        self, store: Readable, user: str, limits: Callable[[str], SpawnLimits], find: Find | None = None
    ) -> None:
        self.store = store
        self.user = user
        self._limits_of = limits
        self._find = find or self._own_runs

    @property
    def _limits(self) -> SpawnLimits:
        return self._limits_of(self.user)

    async def _own_runs(self, ids: Sequence[str]) -> list[RunRow]:
        """Return the runs with these ids of proposals and runs. Raises BadInput if this user may see none with one."""
        wanted = [parse_any_id(one)[1] for one in ids]
        return await self.store.read(lambda view: [self._run_in(view, one) for one in wanted])

    def _run_in(self, view: View, id: str) -> RunRow:
        proposal = view.proposal(id) if id.startswith("P-") else None
        run = view.run(proposal.run_id if proposal is not None else id)
        if run is None or run.user_id != self.user:
            raise UnknownId(f"{id} does not wait here; without an id, all that wait are shown.")
        return run

    async def waiting(self, id: Sequence[str] = ()) -> WaitingDecisions:
        """Return what waits: the proposals with these ids, each of which has to wait, or all of this user that do.

        Raises BadInput if there is none with an id; Refused: one no longer waits.
        """
        runs = await self._find(id) if id else []
        at_us = now_us()
        limits = self._limits

        def query(view: View) -> WaitingDecisions:
            if id:
                proposals = [self._proposal_in(view, run, at_us) for run in runs]
            else:
                proposals = pending_proposals(view, self.user, limits, at_us)
            extensions = pending_requests(view, self.user, at_us)
            return WaitingDecisions(self.user, proposals, extensions)

        return await self.store.read(query)

    def _proposal_in(self, view: View, run: RunRow, at_us: int) -> Pending:
        if run.user_id != self.user:
            raise Refused(f"{run.pending_id} is {run.user_id}'s proposal; only that user decides about it.")
        proposal = waiting_proposal(view, run, self._limits, at_us)
        if isinstance(proposal, str):
            raise Refused(proposal)
        return proposal

    async def outcomes(self, shown: Sequence[Shown]) -> Outcomes:
        """Return what became of those of them that no longer wait."""
        at_us = now_us()
        limits = self._limits

        def outcome(view: View, one: Shown) -> str | None:
            run = _shown_run(view, one)
            if run is not None and run.user_id != self.user:
                return f"{one.id} is not known any more."
            return outcome_of(view, one, limits, at_us)

        def query(view: View) -> Outcomes:
            sentences: dict[str, str] = {}
            for one in shown[:MOST_SHOWN]:
                sentence = outcome(view, one)
                if sentence is not None:
                    sentences[one.id] = sentence
            return Outcomes(sentences, self._approved_among(view, sentences), view.head())

        return await self.store.read(query)

    def _approved_among(self, view: View, ids: Iterable[str]) -> list[str]:
        """Return the runs of those proposals of this user that were approved."""
        approved: list[str] = []
        for id in ids:
            proposal = view.proposal(id) if id.startswith("P-") else None
            if proposal is not None and proposal.state == "approved" and proposal.user_id == self.user:
                approved.append(proposal.run_id)
        return approved


def _shown_run(view: View, one: Shown) -> RunRow | None:
    proposal = view.proposal(one.id) if one.kind == "start" else None
    return view.run(proposal.run_id if proposal is not None else one.id)


WAITING = RecordRequest("/approvals", DecisionsHandler.waiting, f"{__name__}:WaitingDecisions")
OUTCOMES = RecordRequest("/approvals/outcomes", DecisionsHandler.outcomes, f"{__name__}:Outcomes")
REQUESTS: tuple[RecordRequest[DecisionsHandler, ..., Any], ...] = (WAITING, OUTCOMES)
