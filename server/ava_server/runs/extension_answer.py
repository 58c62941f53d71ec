"""The answer to a run that asks for more: what a person is shown, and the command that decides, once.

Only a person's own answer raises a cap, and only to the value that was shown or below.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel

from ava_audit.events import Channel, Event, ExtensionAsked, ExtensionDecided, UserMessage, Who
from ava_audit.rows import RunRow
from ava_audit.units import local_second
from ava_audit.view import Command, Outcome, View
from ava_server.approval.decide import Shown
from ava_server.approval.decisions import PERSON_CHANNELS
from ava_server.approval.proposals import texts_of
from ava_server.approval.questions import LimitField, Question, Reply, limit_field, number_in
from ava_server.approval.summary import approval_line
from ava_server.budget.run_caps import CAP_OF_ARGUMENT
from ava_server.budget.run_config import RunConfig, Texts, config_of, digest
from ava_server.core.errors import BadInput
from ava_server.core.ids import label
from ava_server.runs.extension import (
    UNITS,
    ExtensionLimits,
    asked_of,
    cap_amount,
    cap_name,
    most_now,
    shortage_words,
    with_cap,
)
from ava_server.runs.lifecycle import situation, transition


class PendingExtension(BaseModel):
    """A request that waits, for commands and programs.

    The digest is that of the configuration which an approval makes. It waits until `expires_us`, since 1970.
    """

    extension_id: str
    subagent_id: str
    pending_id: str
    message: str
    digest: str
    expires_us: int

    @property
    def shown(self) -> Shown:
        return Shown("extend", self.subagent_id, self.digest, text=self.message)


@dataclass(frozen=True)
class WaitingExtension:
    """A request that waits, as a person is shown it; `config` is what an approval would make."""

    run: RunRow
    asked: ExtensionAsked
    config: RunConfig
    texts: Texts

    @property
    def id(self) -> str:
        return self.asked.extension_id

    @property
    def in_a_terminal(self) -> str:
        return f"`ava approve {self.run.id}`"

    @property
    def message(self) -> str:
        """The question: which run, what is left and missing, the new cap, and everything that then holds."""
        asked, name = self.asked, cap_name(self.asked.cap)
        low, high = (cap_amount(asked.cap, each, exact=True) for each in (asked.limit, asked.proposed))
        return (
            f"{label(self.run)} is near its {name} of {low}: {shortage_words(asked)}.\n"
            f"{approval_line(self.config, self.texts)}\n"
            f"Raise the {name} to {high}? If you decline, the run hands in what it has; if you do not answer, it"
            f" does so at {local_second(asked.expires_us)}."
        )

    @property
    def pending(self) -> PendingExtension:
        return PendingExtension(
            extension_id=self.asked.extension_id,
            subagent_id=self.run.id,
            pending_id=self.run.pending_id,
            message=self.message,
            digest=self.asked.digest,
            expires_us=self.asked.expires_us,
        )

    @property
    def field(self) -> LimitField:
        asked = self.asked
        least = min(asked.limit + UNITS[asked.cap], asked.proposed)
        return limit_field(CAP_OF_ARGUMENT[asked.cap], least, asked.proposed)

    def question(self) -> Question:
        return Question(" \n".join(self.message.split("\n")), (self.field,))

    def allowed(self, reply: Reply) -> int | float:
        """Return the cap that a person allows: the proposed one, or less from the form. Raises BadInput."""
        given = number_in(self.field, reply, "nothing was raised")
        if given is None or given == self.field.most:
            return self.asked.proposed
        cap, value = self.asked.cap, self.field.stored(given)
        if not self.asked.limit < value <= self.asked.proposed:
            low, high = cap_amount(cap, self.asked.limit, exact=True), cap_amount(cap, self.asked.proposed, exact=True)
            raise BadInput(f"{self.field.name}: give more than {low} and at most {high}; nothing was raised")
        allowed: int | float = value
        return allowed


def waiting_extension(view: View, run: RunRow, now_us: int) -> WaitingExtension | str:
    """Return the request of a run that waits for an answer, or why none does."""
    asked, texts = asked_of(run), texts_of(view, run)
    if transition(run, "decide", situation(run, now_us)) is None or asked is None or texts is None:
        return _not_waiting(view, run)
    config = with_cap(config_of(run.config), asked.cap, asked.proposed)
    return WaitingExtension(run, asked, config, texts)


def waiting_extensions(view: View, user: str, now_us: int) -> list[WaitingExtension]:
    """Return the requests of a user's runs that wait for an answer, oldest first."""
    found = [waiting_extension(view, run, now_us) for run in view.runs(user=user, states=("queued",), limit=-1)]
    return [one for one in found if isinstance(one, WaitingExtension)]


def _not_waiting(view: View, run: RunRow) -> str:
    entry = view.last_entry(run.id, "ExtensionDecided")
    if run.ended:
        return f"{label(run)} has ended ({run.state}); nothing can be raised"
    if run.extension is not None:
        return f"{label(run)} got no answer in time and is wrapping up; the cap stays as it is"
    if entry is not None and isinstance(entry.fact, ExtensionDecided):
        decided = entry.fact
        return f"{decided.extension_id} of {label(run)} has already been {decided.decision} ({decided.channel})"
    return f"{label(run)} does not ask for more"


@dataclass(frozen=True)
class ExtensionAnswer:
    """What became of an answer: the cap was raised, the run wraps up, or the answer was refused, with the reason."""

    status: Literal["approved", "declined", "refused"]
    text: str


def decide_extension(
    run_id: str, shown: str, who: Who, channel: Channel, limits: ExtensionLimits, *, allow: int | float | None
) -> Command[ExtensionAnswer]:
    """Decide on what a run asks for, once: raise the cap, or have the run wrap up.

    `shown`: the digest of what the person was shown. `allow`: the new cap; None to decline.
    """

    def command(view: View, now_us: int) -> Outcome[ExtensionAnswer]:
        run = view.run(run_id)
        if run is None or run.user_id != who.user_id:
            return _refused(f"no subagent {run_id} of yours is known")
        if allow is not None and channel not in PERSON_CHANNELS:
            return _refused("only a person's own answer counts: in a terminal, over HTTP, or to Ava's own question")
        found = waiting_extension(view, run, now_us)
        if isinstance(found, str):
            return _refused(found)
        asked = found.asked
        if shown != asked.digest:
            return _refused(f"{asked.extension_id} has changed since it was shown (its digest differs); look again")
        name, changes = cap_name(asked.cap), dict[str, int | float]()
        if allow is not None:
            if not asked.limit < allow <= asked.proposed:
                return _refused("an answer raises the cap to what was proposed, or to less")
            most, why = most_now(view, run, found.config, asked.cap, run.active_us / 1e6, limits, now_us)
            if allow > most:
                return _refused(f"{why} does not allow that; at most {cap_amount(asked.cap, max(most, 0))} fits")
            changes[CAP_OF_ARGUMENT[asked.cap].field] = allow
        config = config_of(run.config).model_copy(update=changes)
        decided = ExtensionDecided(
            extension_id=asked.extension_id,
            decision="declined" if allow is None else "approved",
            channel=channel,
            digest=asked.digest,
            decision_digest=digest(config, found.texts),
            changes=changes,
        )
        said = f"{decided.decision} {asked.extension_id}, {name}"
        if allow is None:
            text = f"{label(run)} wraps up; nothing was raised."
        else:
            said = f"{said}: {approval_line(config, found.texts)}"
            text = f"The {name} of {label(run)} is {cap_amount(asked.cap, allow, exact=True)} now; it continues."
        told = Event(who, UserMessage(text=said, kind="decision"), run_id=run.id)
        return Outcome(ExtensionAnswer(decided.decision, text), (told, Event(who, decided, run_id=run.id)))

    return command


def _refused(why: str) -> Outcome[ExtensionAnswer]:
    return Outcome(ExtensionAnswer("refused", why))
