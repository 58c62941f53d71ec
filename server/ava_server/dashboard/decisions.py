"""What a person decides in the dashboard, with the commands and checks of `ava approve`, `ava cancel` and `ava send`.

`ask_about` reads the question from the log. `carry_out` opens the service for a moment, and decides on exactly what was
shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ava_audit.rows import WAITING
from ava_audit.units import format_usd, local_second, now_us
from ava_roles.wrap import add_bars
from ava_server.approval.proposals import Pending, pending_proposal, spawn_limits, texts_of
from ava_server.budget.user_limits import policy_in_force
from ava_server.cli.app import refuse_in_subagent
from ava_server.cli.approve import approve_proposals, reject_proposal
from ava_server.cli.service_client import LocalApprovals, ignore_progress, open_service, unexpired
from ava_server.cli.terminal import YES
from ava_server.config.pin import PinFile
from ava_server.core.errors import BadInput, Refused
from ava_server.core.ids import label
from ava_server.runs.extension_answer import PendingExtension, waiting_extension
from ava_server.runs.lifecycle import awaited
from ava_server.runs.questions import WaitingQuestion, waiting_question

if TYPE_CHECKING:
    from ava_audit.rows import RunRow
    from ava_audit.view import View
    from ava_server.config.settings import Settings
    from ava_server.service.runtime import Runtime
    from ava_server.service.service import Service

Kind = Literal["approve", "reject", "cancel", "send"]


@dataclass(frozen=True)
class Decision:
    """A question to a person.

    Attributes:
        kind: What the answer does.
        run: The run.
        title: What it is about.
        text: Everything that the answer is about.
        question: The question.
        declined: What holds if the answer is not yes.
        shown: What is decided on; None for the run itself.
        pin: The answer takes the approval PIN too.
    """

    kind: Kind
    run: RunRow
    title: str
    text: str
    question: str
    declined: str = ""
    shown: Pending | PendingExtension | WaitingQuestion | None = None
    pin: bool = False

    @property
    def words(self) -> bool:
        """Whether the answer is a text of the person's own."""
        return self.kind == "send"

    def agrees(self, answer: str) -> bool:
        """Tell whether an answer is yes; anything else is no."""
        return answer.strip().lower() in YES


def ask_about(kind: Kind, run_id: str, settings: Settings, user: str, view: View) -> Decision:
    """Return the question that a person has to answer first. Blocking.

    Raises:
        BadInput: There is no such run, or a subagent asks.
        Refused: There is nothing to decide; says why.
    """
    refuse_in_subagent(f"ava {kind}")
    run = view.run(run_id)
    if run is None:
        raise BadInput(f"There is no subagent {run_id} in this data root any more.")
    if run.user_id != user:
        raise Refused(f"{label(run)} belongs to {run.user_id}; only that user decides about it.")
    if run.ended:
        raise Refused(f"{label(run)} has ended ({run.state}).")
    match kind:
        case "approve" | "reject":
            return _approval(kind, run, settings, user, view)
        case "cancel":
            return _cancellation(run, view)
        case "send":
            return _message(run, view)


def _approval(kind: Kind, run: RunRow, settings: Settings, user: str, view: View) -> Decision:
    """Return the question whether a proposal starts, or a run near a cap gets more; or whether neither happens."""
    shown, approves = _waiting(run, view, settings), kind == "approve"
    pin = approves and policy_in_force(settings, user)[0] == "human"
    if pin:
        PinFile(settings.paths.approval_file).ready()
    if isinstance(shown, Pending):
        title, text = f"{kind.capitalize()} {shown.pending_id}", f"{shown.message}\n\n{shown.approval_line}"
        question, done = ("Start it?", "approved") if approves else ("Reject it?", "rejected")
    else:
        title, text = f"{shown.extension_id}: {label(run)} asks for more", shown.message
        declines = "Decline it, so that the run hands in what it has?"
        question, done = ("Raise the cap?", "raised") if approves else (declines, "declined")
    return Decision(kind, run, title, text, question, f"Nothing was {done}; it still waits.", shown, pin)


def _waiting(run: RunRow, view: View, settings: Settings) -> Pending | PendingExtension:
    """Return the proposal or the request for more that waits.

    Raises:
        Refused: None does; says why.
    """
    now = now_us()
    if run.state == WAITING:
        proposal = pending_proposal(view, run, spawn_limits(settings, run.user_id), now)
        if isinstance(proposal, str):
            raise Refused(proposal)
        return unexpired(proposal, now)
    extension = waiting_extension(view, run, now)
    if isinstance(extension, str):
        hint = "; it asks a question; press s to answer" if waiting_question(view, run, now) is not None else ""
        raise Refused(f"{label(run)} waits for no approval: it is {awaited(run, now) or run.state}{hint}.")
    return extension.pending


def _cancellation(run: RunRow, view: View) -> Decision:
    texts = texts_of(view, run)
    task = add_bars(texts.task) if texts is not None else "(erased)"
    proposal = run.state == WAITING
    text = f"{label(run)}: {run.state}, {format_usd(run.cost_micros)} so far\n{task}"
    end = "It was never approved, and costs nothing." if proposal else "What it has so far is kept as its result."
    return Decision(
        "cancel", run, f"Cancel {label(run)}", f"{text}\n{end}",
        "Withdraw it?" if proposal else "Cancel it?", "Nothing was cancelled.",
    )  # fmt: skip


def _message(run: RunRow, view: View) -> Decision:
    if run.state == WAITING:
        raise Refused(f"{label(run)} waits for approval; to change it, cancel it and propose it again.")
    asked = waiting_question(view, run, now_us())
    if asked is None:
        text = (
            f"{label(run)} reads the message before its next turn. It may steer the work, and changes no limit. It goes"
            f" to the model {run.model}: give no passwords or keys."
        )
        return Decision("send", run, f"Send a message to {label(run)}", text, "Message:")
    text = (
        f"{label(run)} asks you, in its own words:\n{add_bars(asked.untrusted)}\nYour answer goes to the model"
        f" {run.model}: give no passwords or keys. It changes no limit. Without an answer, the"
        f" subagent continues at {local_second(asked.asked.expires_us)}."
    )
    return Decision("send", run, f"{label(run)} asks you a question", text, "Answer:", shown=asked)


async def carry_out(decision: Decision, settings: Settings, answer: str, pin: str) -> str:
    """Do what a person has decided, and return what came of it.

    Args:
        decision: What the person was shown.
        settings: The settings.
        answer: What they have written, for a message.
        pin: The approval PIN, where they were asked for it.

    Raises:
        AvaError: It was not accepted.
        AuditError: The log cannot be written.
        RolesError: It was not accepted.
    """

    async def read() -> str:
        if not pin:
            raise Refused("An approval PIN has been set meanwhile; press the key again to enter it.")
        return pin

    refuse_in_subagent(f"ava {decision.kind}")
    async with open_service(settings, "ava status") as (runtime, service):
        client = LocalApprovals(runtime, service.session, read)
        match decision.kind, decision.shown:
            case "approve" | "reject", Pending() as shown:
                return await _decide_proposal(client, shown, approve=decision.kind == "approve")
            case "approve" | "reject", PendingExtension() as asked:
                return await client.decide_extension(asked, approve=decision.kind == "approve")
            case "cancel", _:
                return await _cancel(service, decision.run)
            case _:
                return await _send(runtime, service, decision, answer)


async def _decide_proposal(client: LocalApprovals, shown: Pending, *, approve: bool) -> str:
    [now] = await client.waiting([shown.pending_id])
    if (now.digest, now.message, now.approval_line) != (shown.digest, shown.message, shown.approval_line):
        raise Refused(f"{shown.pending_id} has changed since it was shown; look at it again.")
    if not approve:
        return await reject_proposal(client, shown)
    approved = await approve_proposals(client, [shown], {})
    return f"{approved} {await client.describe_start([shown], then='')}"


async def _cancel(service: Service, run: RunRow) -> str:
    answer: Any = await service.call("cancel_subagent", {"subagent_id": run.id}, ignore_progress, raises=True)
    return str(answer.message or f"{label(run)} has ended: {answer.status}.")


async def _send(runtime: Runtime, service: Service, decision: Decision, message: str) -> str:
    run, shown = decision.run, decision.shown
    if isinstance(shown, WaitingQuestion):
        current = await runtime.store.read(lambda view: view.run(run.id))
        if current is None or current.question != shown.run.question:
            raise Refused(f"{label(run)} no longer waits for this answer; nothing was sent.")
    given = {"subagent_id": run.id, "message": message}
    answer: Any = await service.call("message_subagent", given, ignore_progress, raises=True)
    return str(answer.message or answer.status)
