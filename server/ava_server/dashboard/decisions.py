"""What a person decides in the dashboard, with the commands and checks of `ava approve`, `ava cancel` and `ava send`.

`ask_about` asks for what is decided on, as those commands do. `carry_out` opens the service for a moment, and decides
on exactly what was shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ava_audit.rows import WAITING, RunRow
from ava_audit.units import now_us
from ava_roles.wrap import add_bars
from ava_server.approval.decide import FoldedScreen, PersonAnswer, Shown
from ava_server.approval.proposals import Pending
from ava_server.cli.app import refuse_in_subagent
from ava_server.cli.approve import approve_proposals, reject_proposal
from ava_server.cli.service_client import Approvals, SessionTransport, open_service
from ava_server.cli.start_question import can_fold
from ava_server.cli.status_overview import OverviewReader
from ava_server.cli.terminal import YES
from ava_server.config.settings import Settings
from ava_server.core.errors import Refused
from ava_server.core.ids import label, state_words
from ava_server.run_config.config import spent_text
from ava_server.runs.asking.question_kinds import PendingQuestion
from ava_server.runs.record.lifecycle import awaited
from ava_server.service.decision_requests import OUTCOMES
from ava_server.service.decision_requests import WAITING as WAITING_DECISIONS

Kind = Literal["approve", "reject", "cancel", "send"]


@dataclass(frozen=True)
class DecisionQuestion:
    """A question to a person, under `text`: everything that the answer is about.

    `shown` is what is decided on, `declined` what holds if the answer is not yes, and `pin` means that a yes takes the
    approval PIN too. Of a `proposal` some is folded first.
    """

    kind: Kind
    run: RunRow
    title: str
    text: str
    question: str
    shown: Shown
    declined: str = ""
    pin: bool = False
    proposal: Pending | None = None

    @property
    def words(self) -> bool:
        return self.kind == "send"

    def agrees(self, answer: str) -> bool:
        return answer.strip().lower() in YES


async def ask_about(kind: Kind, run_id: str, reader: OverviewReader) -> DecisionQuestion:
    """Return the question that a person has to answer first. It reads the log, and waits for no one.

    Raises BadInput if there is no such run, or a subagent asks; Refused if there is nothing to decide.
    """
    refuse_in_subagent(f"ava {kind}")
    run = await reader.records.find_one(run_id)
    if run.user_id != reader.user:
        raise Refused(f"{label(run)} belongs to {run.user_id}; only that user decides about it.")
    if run.ended:
        raise Refused(f"{label(run)} has ended ({state_words(run.state)}).")
    match kind:
        case "approve" | "reject":
            return await _approval(kind, run, reader)
        case "cancel":
            return await _cancellation(run, reader)
        case "send":
            return await _message(run, reader)


async def why_withdrawn(decision: DecisionQuestion, reader: OverviewReader) -> str | None:
    """Return what became of the subject of an open question that was decided elsewhere, or None while it stands.

    Blocking, as `ask_about`.
    """
    proposal = Shown("start", decision.run.pending_id)
    found = await reader.decisions.send(OUTCOMES, shown=[decision.shown, proposal])
    if (outcome := found.sentences.get(decision.shown.id)) is not None:
        return outcome
    if decision.run.state == WAITING:
        run = await reader.records.find_one(decision.run.id)
        if run.state != WAITING:  # a yes would end what runs by now
            return found.sentences.get(proposal.id)
    return None


async def _approval(kind: Kind, run: RunRow, reader: OverviewReader) -> DecisionQuestion:
    """Return the question whether a proposal starts, or a run near a cap gets more; or whether neither happens."""
    approves = kind == "approve"
    folds: Pending | None = None
    if run.state == WAITING:
        [proposal] = (await reader.decisions.send(WAITING_DECISIONS, id=[run.id])).proposals
        shown = proposal.shown
        title = f"{kind.capitalize()} {proposal.pending_id}"
        text = f"{proposal.message}\n\n{proposal.approval_line}"
        question, done = ("Start it?", "approved") if approves else ("Reject it?", "rejected")
        if approves and can_fold(proposal):
            folds = proposal
    else:
        more = await _more(run, reader)
        shown = more.shown
        title = f"{more.id}: {more.heading}"
        text = more.message
        question, done = "Decline it, so that the run hands in what it has?", "declined"
        if approves:
            question, done = "Raise the cap?", "raised"
    takes_pin = approves and await _takes_pin(shown, reader)
    declined = f"Nothing was {done}; it still waits."
    return DecisionQuestion(kind, run, title, text, question, shown, declined, takes_pin, folds)


async def _more(run: RunRow, reader: OverviewReader) -> PendingQuestion:
    """Return what a run near a cap asks for. Raises Refused if it asks for nothing, or in words."""
    asked = await _question(run, reader)
    if asked is not None and not asked.kind.in_words:
        return asked
    hint = "; it asks a question; press s to answer" if asked is not None else ""
    raise Refused(
        f"{label(run)} waits for no approval: it is {awaited(run, now_us()) or state_words(run.state)}{hint}."
    )


async def _question(run: RunRow, reader: OverviewReader) -> PendingQuestion | None:
    [view] = await reader.records.views([run.id])
    return view.question


async def _takes_pin(shown: Shown, reader: OverviewReader) -> bool:
    """Tell whether an approval takes the PIN; an error if that cannot be given."""
    if (pin := await reader.decisions.needed_pin([shown])) is not None:
        pin.ready()
    return pin is not None


async def _cancellation(run: RunRow, reader: OverviewReader) -> DecisionQuestion:
    brief = (await reader.records.record(run.id, shown=False)).texts
    task = add_bars(brief.task) if brief is not None else "(erased)"
    proposal = run.state == WAITING
    end = "It was never approved, and costs nothing." if proposal else "What it has so far is kept as its result."
    text = f"{label(run)}: {state_words(run.state)}, {spent_text(run)} so far\n{task}\n{end}"
    question = "Withdraw it?" if proposal else "Cancel it?"
    shown = Shown("cancel", run.id)
    return DecisionQuestion("cancel", run, f"Cancel {label(run)}", text, question, shown, "Nothing was cancelled.")


async def _message(run: RunRow, reader: OverviewReader) -> DecisionQuestion:
    if run.state == WAITING:
        raise Refused(f"{label(run)} waits for approval; to change it, cancel it and propose it again.")
    asked = await _question(run, reader)
    if asked is None or not asked.kind.in_words:
        text = (
            f"{label(run)} reads the message before its next turn. It may steer the work, and changes no limit. It goes"
            f" to the model {run.model}: give no passwords or keys."
        )
        return DecisionQuestion("send", run, f"Send a message to {label(run)}", text, "Message:", Shown("send", run.id))
    pin = asked.to_allow and await _takes_pin(asked.shown, reader)
    return DecisionQuestion("send", run, asked.heading, asked.message, asked.answer_prompt, asked.shown, pin=pin)


async def carry_out(
    decision: DecisionQuestion, settings: Settings, answer: str, pin: str, screen: FoldedScreen | None = None
) -> str:
    """Return what came of it. `answer` is the text of a message; `screen` is what was shown, if some was folded."""

    async def read() -> str:
        if not pin:
            raise Refused("An approval PIN has been set meanwhile; press the key again to enter it.")
        return pin

    refuse_in_subagent(f"ava {decision.kind}")
    shown, approves = decision.shown, decision.kind == "approve"
    async with open_service(settings, "ava status") as (runtime, service):
        client = Approvals(SessionTransport(runtime, service.session), read)
        if shown.kind == "start":
            [now] = await client.waiting([shown.id])
            if now.shown != shown:
                raise Refused(f"{shown.id} has changed since it was shown; look at it again.")
            if not approves:
                return await reject_proposal(client, now)
            screens = {} if screen is None else {now.pending_id: screen}
            return (
                f"{await approve_proposals(client, [now], {}, screens)} {await client.describe_start([now], then='')}"
            )
        if shown.kind == "extend":
            return (await client.decide([shown], PersonAnswer(approves))).text
        decided = await client.decide([shown], PersonAnswer(True, answer if decision.words else None))
    return decided.text or f"{label(decision.run)} has ended: {state_words(decided.status)}."
