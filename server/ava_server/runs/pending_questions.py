"""What runs ask a person for, as it is shown and decided: one class, one table of kinds, and one command.

A run near a cap asks for more money, tokens or time; a run with the tool `ask` asks a question, and one that would call
a tool with values that nobody approved asks whether it may. What differs between them is a `QuestionKind`, a row of
`KINDS`; nothing else tells them apart. Only a person's own answer raises a cap, once and to at most what was shown, or
allows a call. A question whose answer is text is also answered by the orchestrator.

Where runs of one plan ask the same, `OpenQuestions` makes one of it: a person sees it once, and one answer is recorded
for each of these runs. Only questions of kinds that `joins` are one: what leaves the machine or changes something there
is asked for each run.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from string import ascii_lowercase
from typing import Any, Literal, NamedTuple, Protocol, cast

from pydantic import BaseModel

from ava_audit.events import Answered, Asked, AskedKind, Channel, Event, ToolCall, UserMessage, Who
from ava_audit.rows import WAITING, RunRow
from ava_audit.units import local_second, now_us
from ava_audit.view import Command, Outcome, View
from ava_roles.wrap import add_bars, clean, one_line
from ava_server.approval.channels import PERSON_CHANNELS
from ava_server.approval.decide import Kind, Shown
from ava_server.approval.outcomes import decided_where
from ava_server.approval.proposals import texts_of
from ava_server.approval.questions import CHOICE, LimitField, Question, Reply, TextField, limit_field, number_in
from ava_server.approval.shown import approval_line
from ava_server.budget.run_config import CAP_OF_ARGUMENT, config_of, digest
from ava_server.core.errors import BadInput, with_advice
from ava_server.core.ids import label
from ava_server.runs.extension import (
    UNITS,
    ExtensionLimits,
    cap_amount,
    cap_name,
    most_now,
    request_words,
    shortage_words,
    with_cap,
)
from ava_server.runs.history import PROJECT_FILES
from ava_server.runs.lifecycle import situation, transition

Given = int | float | str
"""What a person answers: the new cap, or text. None in its place is a no."""
_ERASED = "(erased)"
_CHOICE, _ANSWER = "choice", "answer"
_YES, _NO = ("yes", "y"), ("no", "n")
_HOW_TO_ALLOW = "Answer yes to allow it, also for later calls of this run; anything else does not."
_ONLY_A_PERSON = "only a person's own answer counts: in a terminal, over HTTP, or to Ava's own question"


# -- what waits -------------------------------------------------------------------------------------------------------


_Same = tuple[AskedKind, str, tuple[str, ...], str]
MOST_NAMED = 10
"""Most runs that are named beside a question which they ask too."""


class Asker(NamedTuple):
    """Another run of a plan that waits for the answer to the same question."""

    run_id: str
    ask_id: str
    name: str


@dataclass(frozen=True)
class PendingQuestion:
    """What a run asks a person for, and waits. What the subagent wrote is cleaned, and still untrusted.

    Attributes:
        asked: What the log has of it.
        text: The question; of one whether a call may be made, the values that nobody approved; else empty.
        options: Answers to choose from; may be empty.
        line: The approval line of what a yes makes, where it is another configuration.
        others: The other runs of its plan that ask the same, those first that asked first.
        first: None of them asked before it.
    """

    run: RunRow
    asked: Asked
    text: str = ""
    options: tuple[str, ...] = ()
    line: str = ""
    others: tuple[Asker, ...] = ()
    first: bool = True

    @property
    def id(self) -> str:
        return self.asked.ask_id

    @property
    def ids(self) -> tuple[str, ...]:
        """Its id, and those of the same question of other runs."""
        return (self.id, *(other.ask_id for other in self.others))

    @property
    def same(self) -> _Same:
        """What is equal of questions that a person would read as one."""
        return self.asked.kind, self.text, self.options, self.run.model  # the answer goes to that model

    @property
    def also(self) -> str:
        """Which other runs ask the same, in a sentence; empty where none does."""
        if not self.others:
            return ""
        named = ", ".join(other.name for other in self.others[:MOST_NAMED])
        more = len(self.others) - MOST_NAMED
        who = "Another run" if len(self.others) == 1 else f"{len(self.others)} other runs"
        asks = "asks" if len(self.others) == 1 else "ask"
        return (
            f"{who} of {self.run.plan_id} {asks} the same, and one answer goes to all: {named}"
            f"{f' and {more} more' if more > 0 else ''}."
        )

    @property
    def kind(self) -> QuestionKind:
        return KINDS[self.asked.kind]

    @property
    def shown(self) -> Shown:
        return Shown(self.kind.decision, self.run.id, self.asked.digest or self.id, text=self.message)

    @property
    def in_a_terminal(self) -> str:
        """The command that answers it; a yes to a call names what was asked."""
        return f"`{self.kind.command(self)}`"

    @property
    def to_allow(self) -> bool:
        """Whether it is answered in words, of which only a person's yes, which is an approval, allows a call."""
        return self.kind.in_words and self.kind.is_approval

    @property
    def untrusted(self) -> str:
        """What the subagent or a tool wrote; empty where Ava's own words say all."""
        options = zip(option_keys(self.options), self.options, strict=True)
        return "\n".join((self.text, *(f"{key}. {option}" for key, option in options)))

    @property
    def answer_prompt(self) -> str:
        """What a terminal asks below it; an option is answered by its key."""
        return f"Answer ({self._keys}, or words):" if self.options else "Answer:"

    @property
    def prompt(self) -> str:
        """What a terminal asks below it, where a run's steps are followed."""
        return self.kind.prompt.replace("(", f"({self._keys}, or words; ", 1) if self.options else self.kind.prompt

    @property
    def _keys(self) -> str:
        return ", ".join(option_keys(self.options))

    @property
    def message(self) -> str:
        """The question as a person is asked it, and what their answer does."""
        return self.kind.message(self)

    @property
    def drawn(self) -> str:
        """What a screen draws below its title."""
        return "\n".join(filter(None, (add_bars(self.untrusted), self.also))) if self.kind.in_words else self.message

    @property
    def for_tools(self) -> str:
        """What the run waits for and who can answer it, for a model."""
        return self.kind.for_tools(self)

    @property
    def for_people(self) -> str:
        """What a person can do, and what happens without them."""
        return self.kind.for_people(self)

    @property
    def heading(self) -> str:
        return f"{label(self.run)} {self.kind.asks}"

    def form(self) -> Question:
        return self.kind.form(self, " \n".join(self.message.split("\n")))

    def answer_in(self, reply: Reply) -> Given:
        """Return the answer that a form has. Raises BadInput: it has none that can be used."""
        return self.kind.answer_in(self, reply)

    def approved_by(self, given: Given | None) -> bool:
        """Tell whether an answer is a yes that takes what an approval does."""
        return given is not None and self.kind.is_yes(given)


def option_keys(options: Sequence[str]) -> list[str]:
    """Return the key of each option: its number, or a letter where an option begins like a number itself.

    No key is what another option says.
    """
    said = {option.strip().casefold() for option in options}
    letters = [letter for letter in ascii_lowercase if letter not in said]
    if len(options) > len(letters) or not any(option.strip()[:1].isdigit() for option in options):
        return [str(number) for number in range(1, len(options) + 1)]
    return letters[: len(options)]


def chosen_option(typed: str, options: Sequence[str]) -> str:
    """Return the option that was typed, or whose key was; else what was typed."""
    if typed in options:
        return typed
    key = typed.strip().casefold()
    written = [option for option in options if option.strip().casefold() == key]
    if written:
        return written[0] if len(written) == 1 else typed
    return dict(zip(option_keys(options), options, strict=True)).get(key, typed)


class QuestionKind(Protocol):
    """What differs between the kinds of questions.

    Attributes:
        title: What a person reads above it.
        noun: What it is called.
        decision: What a yes does, for `approval/decide.py`.
        is_approval: A yes takes what an approval does.
        in_words: The answer is text: a client that shows only yes and no cannot return it.
        joins: One answer can stand for all runs of a plan that ask the same: it lets nothing leave the machine, and
            changes nothing.
        asks: What the run does, in a few words.
        prompt: What a terminal asks below it, where a run's steps are followed.
        unanswered: What a run does whose time to wait is over.
    """

    title: str
    noun: str
    asks: str
    prompt: str
    decision: Kind
    is_approval: bool
    in_words: bool
    joins: bool
    unanswered: str

    def read(self, view: View, run: RunRow, asked: Asked, /) -> PendingQuestion | None:
        """Return it with what is shown; None where that was erased."""
        ...

    def message(self, one: PendingQuestion, /) -> str: ...

    def command(self, one: PendingQuestion, /) -> str: ...

    def activity(self, asked: Asked, /) -> str:
        """Return what the run does when it asks this."""
        ...

    def entry(self, asked: Asked, /) -> tuple[str, str]:
        """Return the title and the text of its entry in a list of what the run did."""
        ...

    def for_tools(self, one: PendingQuestion, /) -> str: ...

    def for_people(self, one: PendingQuestion, /) -> str: ...

    def notice(self, one: PendingQuestion, /) -> str:
        """Return what a model is told of it that has not looked."""
        ...

    def event(self, one: PendingQuestion, /) -> dict[str, Any]:
        """Return what the setting `on_event` tells a program of it."""
        ...

    def form(self, one: PendingQuestion, text: str, /) -> Question: ...

    def answer_in(self, one: PendingQuestion, reply: Reply, /) -> Given: ...

    def yes(self, one: PendingQuestion, words: str | None, /) -> Given:
        """Return what a person gives who agrees, with these words if it is answered in words."""
        ...

    def is_yes(self, given: Given, /) -> bool: ...

    def decide(
        self, view: View, one: PendingQuestion, given: Given | None, by: Decider, now_us: int, /
    ) -> Outcome[QuestionDecision]:
        """Return the decision with its entries, or why it is refused."""
        ...


@dataclass(frozen=True)
class Decider:
    """Who decides, and the run under their session, over a channel; with the limits on what they may allow."""

    who: Who
    agent: Who
    channel: Channel
    limits: ExtensionLimits


@dataclass(frozen=True)
class QuestionDecision:
    """What became of an answer: the cap was raised, the run has its answer or goes on without, or why it was refused.

    `text` says the same in a sentence. `run_ids`: the runs that it was recorded for.
    """

    status: Literal["approved", "answered", "declined", "refused"]
    text: str
    run_ids: tuple[str, ...] = ()


def asked_of(run: RunRow) -> Asked | None:
    """Return what a run asks, or asked until its time to wait was over; else None. Raises ValueError as below."""
    return Asked.model_validate_json(run.asked) if run.asked is not None and not run.ended else None


def pending_question(view: View, run: RunRow, now_us: int) -> PendingQuestion | None:
    """Return what a run waits for a person with; None where it waits with nothing.

    Raises ValueError: a newer Ava wrote it.
    """
    return OpenQuestions(view, now_us).of(run)


class OpenQuestions:
    """What runs wait for a person with, in one state of the log. Each question is read once.

    Those of runs of one plan are the same where their kind `joins` and the person would read the same text and the same
    choices. One that comes later joins those that are open.
    """

    def __init__(self, view: View, now_us: int) -> None:
        self._view = view
        self._now_us = now_us
        self._of_plan: dict[str, dict[_Same, list[PendingQuestion]]] = {}

    def of(self, run: RunRow) -> PendingQuestion | None:
        """Return what a run asks, with the others that ask it too. Raises ValueError: a newer Ava wrote it."""
        one = self._read(run)
        if one is None:
            return None
        alike = self.alike(one)
        others = tuple(Asker(each.run.id, each.id, label(each.run)) for each in alike if each.run.id != run.id)
        return replace(one, others=others, first=alike[0].run.id == run.id)

    def once(self, rows: Iterable[RunRow]) -> list[PendingQuestion]:
        """Return what these runs ask, in their order, identical ones once. Raises ValueError: as `of`."""
        found = (self.of(row) for row in self.first_of_each(rows))
        return [one for one in found if one is not None]

    def first_of_each(self, rows: Iterable[RunRow]) -> list[RunRow]:
        """Return these runs without those that ask what another of them asks that asked before."""
        rows = list(rows)
        ids = {row.id for row in rows}
        kept: list[RunRow] = []
        for row in rows:
            one = self._read(row) if row.step is not None else None
            first = row.id if one is None else next(each.run.id for each in self.alike(one) if each.run.id in ids)
            if first == row.id:
                kept.append(row)
        return kept

    def alike(self, one: PendingQuestion) -> list[PendingQuestion]:
        """Return the same question of each run of its plan, itself among them, in the order in which they asked."""
        plan_id = one.run.plan_id
        if one.run.step is None or plan_id is None or not one.kind.joins or one.text == _ERASED:
            return [one]
        if plan_id not in self._of_plan:
            self._of_plan[plan_id] = {}
            for row in self._view.asking_runs(plan_id):
                if (each := self._read(row)) is not None:
                    self._of_plan[plan_id].setdefault(each.same, []).append(each)
        alike = self._of_plan[plan_id].get(one.same, [])
        return alike if any(each.run.id == one.run.id for each in alike) else [one]  # it was answered since its look

    def _read(self, run: RunRow) -> PendingQuestion | None:
        asked = asked_of(run)
        if asked is None or transition(run, "answer", situation(run, self._now_us)) is None:
            return None
        return KINDS[asked.kind].read(self._view, run, asked)


def pending_requests(view: View, user: str, now_us: int) -> list[PendingExtension]:
    """Return the requests for more of a user's runs that wait for an answer, oldest first."""
    questions = OpenQuestions(view, now_us)
    waiting = questions.once(view.runs(user=user, states=("queued",), limit=-1))
    return [pending_request(one) for one in waiting if one.asked.for_more]


class PendingExtension(BaseModel):
    """A request for more that waits, for commands and programs.

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


def pending_request(one: PendingQuestion) -> PendingExtension:
    return PendingExtension(
        extension_id=one.id,
        subagent_id=one.run.id,
        pending_id=one.run.pending_id,
        message=one.message,
        digest=one.asked.digest,
        expires_us=one.asked.expires_us,
    )


def closed_question(view: View, run: RunRow, shown: str, now_us: int) -> str:
    """Return what became of a question that a run no longer waits with, in a sentence without its full stop.

    `shown`: the digest of what the person was shown, which is that of `PendingQuestion.shown`.
    """
    for entry in reversed(view.entries(run.id, 0, ("Answered",))):
        decided = entry.fact
        if isinstance(decided, Answered) and shown == (decided.digest or decided.ask_id):
            ended = f"; it has ended ({run.state})" if run.ended else ""
            where = decided_where(entry, decided.channel)
            return f"{decided.ask_id} of {label(run)} was {decided.decision} already, {where}{ended}"
    if run.ended:
        return f"{label(run)} has ended ({run.state})"
    if pending_question(view, run, now_us) is not None:
        return f"what {label(run)} asks has changed since it was shown; look at it again"
    if (asked := asked_of(run)) is not None:
        return f"{label(run)} got no answer in time and {KINDS[asked.kind].unanswered}"
    return f"{label(run)} no longer waits for an answer: it is {run.state}"


# -- the answer -------------------------------------------------------------------------------------------------------


def decide_question(run_id: str, shown: str, given: Given | None, by: Decider) -> Command[QuestionDecision]:
    """Decide on what a run asks, once.

    `shown`: the digest of what the person was shown. `given`: their answer; None to decline.
    """

    def command(view: View, now_us: int) -> Outcome[QuestionDecision]:
        run = view.run(run_id)
        if run is None or run.user_id != by.who.user_id:
            return _refused(f"no subagent {run_id} of yours is known")
        found = pending_question(view, run, now_us)
        if found is None or found.shown.digest != shown:
            return _refused(closed_question(view, run, shown, now_us))
        return _decide_for_all(view, found, given, by, now_us)

    return command


def _decide_for_all(
    view: View, one: PendingQuestion, given: Given | None, by: Decider, now_us: int
) -> Outcome[QuestionDecision]:
    """Decide for a run and for all that ask the same: each has its own entries."""
    decided = one.kind.decide(view, one, given, by, now_us)
    if decided.value.status == "refused":
        return decided
    events, run_ids = list(decided.events), [one.run.id]
    for other in OpenQuestions(view, now_us).alike(one):
        if other.run.id != one.run.id:
            by_other = replace(by, agent=by.agent._replace(agent_id=other.run.id))
            events += other.kind.decide(view, other, given, by_other, now_us).events
            run_ids.append(other.run.id)
    text = decided.value.text
    if one.others:
        more = "1 other run" if len(one.others) == 1 else f"{len(one.others)} other runs"
        text = f"{text} So {'does' if len(one.others) == 1 else 'do'} {more} that asked the same."
    return Outcome(replace(decided.value, text=text, run_ids=tuple(run_ids)), tuple(events))


def deliver(run_id: str, text: str, by: Decider) -> Command[str | PendingQuestion | QuestionDecision]:
    """Deliver a message to a run; where the run waits with a question in words, the message is its answer.

    The value is what became of that answer, the run's state where it reads the message later, or why it never does:
    `ended`, `waiting`, or the question that takes more than a message: whether a call may be made.
    """

    def command(view: View, now_us: int) -> Outcome[str | PendingQuestion | QuestionDecision]:
        run = view.run(run_id)
        if run is None or run.ended:
            return Outcome("ended")
        if run.state == WAITING:
            return Outcome("waiting")
        found = pending_question(view, run, now_us)
        if found is None or not found.kind.in_words:
            return Outcome(run.state, (Event(by.agent, UserMessage(text=text, kind="message"), run_id=run.id),))
        if found.to_allow:
            return Outcome(found)
        decided = _decide_for_all(view, found, text, by, now_us)
        return Outcome(decided.value, decided.events)

    return command


def is_approval(view: View, run_id: str, shown: str, given: Given | None) -> bool:
    """Tell whether an answer to the question with which a run waits takes what an approval does."""
    run = view.run(run_id)
    found = pending_question(view, run, now_us()) if run is not None else None
    return found is not None and found.shown.digest == shown and found.approved_by(given)


def _refused(why: str) -> Outcome[QuestionDecision]:
    return Outcome(QuestionDecision("refused", why))


# -- more for a run near a cap ----------------------------------------------------------------------------------------


class _More:
    """More money, tokens or time; the request's own kind says of which cap."""

    title = "It asks for more"
    noun = "Request for more"
    asks = "asks for more"
    prompt = "Raise the cap? Without a yes, it hands in what it has."
    decision: Kind = "extend"
    is_approval = True
    in_words = False
    joins = False
    unanswered = "is wrapping up; the cap stays as it is"

    def read(self, view: View, run: RunRow, asked: Asked) -> PendingQuestion | None:
        texts = texts_of(view, run)
        if texts is None:
            return None
        line = approval_line(with_cap(config_of(run.config), asked.cap, asked.proposed), texts)
        return PendingQuestion(run, asked, line=line)

    def message(self, one: PendingQuestion) -> str:
        """Return which run it is, what is left and missing, the new cap, and everything that then holds."""
        asked, name = one.asked, cap_name(one.asked.cap)
        low, high = (cap_amount(asked.cap, each, exact=True) for each in (asked.limit, asked.proposed))
        return (
            f"{label(one.run)} is near its {name} of {low}: {shortage_words(asked)}.\n"
            f"{one.line}\n"
            f"Raise the {name} to {high}? If you decline, the run hands in what it has; if you do not answer, it"
            f" does so at {local_second(asked.expires_us)}."
        )

    def command(self, one: PendingQuestion) -> str:
        return f"ava approve {one.run.id}"

    def activity(self, asked: Asked) -> str:
        return f"Asks a person to {request_words(asked)}"

    def entry(self, asked: Asked) -> tuple[str, str]:
        low, high = cap_amount(asked.cap, asked.limit), cap_amount(asked.cap, asked.proposed)
        return f"Near its {cap_name(asked.cap)} of {low}: asks for {high}", ""

    def for_tools(self, one: PendingQuestion) -> str:
        return (
            f"a person to {request_words(one.asked)}. Answer with {one.in_a_terminal} or `ava reject {one.run.id}`; a"
            f" model cannot answer. If nobody answers, the run wraps up at {local_second(one.asked.expires_us)}"
        )

    def for_people(self, one: PendingQuestion) -> str:
        until = local_second(one.asked.expires_us)
        return f"a person may {request_words(one.asked)}: {one.in_a_terminal}; without an answer it wraps up at {until}"

    def notice(self, one: PendingQuestion) -> str:
        return f"{label(one.run)} waits for {one.for_tools}. Tell the person"

    def event(self, one: PendingQuestion) -> dict[str, Any]:
        return {"extension_id": one.id, "request": request_words(one.asked)}

    def _field(self, asked: Asked) -> LimitField:
        least = min(asked.limit + UNITS[asked.cap], asked.proposed)
        return limit_field(CAP_OF_ARGUMENT[asked.cap], least, asked.proposed)

    def form(self, one: PendingQuestion, text: str) -> Question:
        return Question(text, (self._field(one.asked),))

    def answer_in(self, one: PendingQuestion, reply: Reply) -> Given:
        """Return the cap that a person allows: the proposed one, or less from the form."""
        asked, field = one.asked, self._field(one.asked)
        given = number_in(field, reply, "nothing was raised")
        if given is None or given == field.most:
            return asked.proposed
        value: int | float = field.stored(given)
        if not asked.limit < value <= asked.proposed:
            low, high = (cap_amount(asked.cap, each, exact=True) for each in (asked.limit, asked.proposed))
            raise BadInput(f"{field.name}: give more than {low} and at most {high}; nothing was raised")
        return value

    def yes(self, one: PendingQuestion, _words: str | None) -> Given:
        return one.asked.proposed

    def is_yes(self, _given: Given) -> bool:
        return True

    def decide(
        self, view: View, one: PendingQuestion, given: Given | None, by: Decider, now_us: int
    ) -> Outcome[QuestionDecision]:
        run, asked, texts = one.run, one.asked, texts_of(view, one.run)
        if texts is None or isinstance(given, str):
            return _refused("it takes a yes or a no")
        config, name = config_of(run.config), cap_name(asked.cap)
        changes: dict[str, int | float] = {}
        if given is not None:
            if by.channel not in PERSON_CHANNELS:
                return _refused(_ONLY_A_PERSON)
            if not asked.limit < given <= asked.proposed:
                return _refused("an answer raises the cap to what was proposed, or to less")
            raised = with_cap(config, asked.cap, asked.proposed)
            most, why = most_now(view, run, raised, asked.cap, run.active_us / 1e6, by.limits, now_us)
            if given > most:
                return _refused(f"{why} does not allow that; at most {cap_amount(asked.cap, max(most, 0))} fits")
            changes[CAP_OF_ARGUMENT[asked.cap].field] = given
        config = config.model_copy(update=changes)
        decision: Literal["approved", "declined"] = "declined" if given is None else "approved"
        decided = Answered(
            kind=asked.kind,
            ask_id=asked.ask_id,
            decision=decision,
            channel=by.channel,
            digest=asked.digest,
            decision_digest=digest(config, texts),
            changes=changes,
        )
        said = f"{decision} {asked.ask_id}, {name}"
        if given is None:
            text = f"{label(run)} wraps up; nothing was raised."
        else:
            said = f"{said}: {approval_line(config, texts)}"
            text = f"The {name} of {label(run)} is {cap_amount(asked.cap, given, exact=True)} now; it continues."
        told = Event(by.who, UserMessage(text=said, kind="decision"), run_id=run.id)
        return Outcome(QuestionDecision(decision, text), (told, Event(by.who, decided, run_id=run.id)))


# -- a question, and a doubtful call ----------------------------------------------------------------------------------


class _InWords:
    """A question of the run, whose answer is text."""

    title = "It asks you"
    noun = "Question"
    asks = "asks you"
    prompt = "Your answer (Enter alone: it continues without one):"
    decision: Kind = "answer"
    is_approval = False
    in_words = True
    joins = True
    unanswered = "goes on without"

    def read(self, view: View, run: RunRow, asked: Asked, /) -> PendingQuestion | None:
        calls = (entry.fact for entry in reversed(view.entries(run.id, 0, ("ToolCall",))))
        call = next((fact for fact in calls if isinstance(fact, ToolCall) and fact.call_id == asked.call_id), None)
        given: Any = call.args if call is not None else None
        args = cast("dict[str, Any]", given) if isinstance(given, dict) else {"question": _ERASED}
        options = (one_line(str(option)) for option in args.get("options") or ())
        # A form shows each option on one line, once, and returns it as it stands.
        different = tuple(dict.fromkeys(filter(None, options)))
        return PendingQuestion(run, asked, clean(str(args.get("question", "")))[0], different)

    def message(self, one: PendingQuestion, /) -> str:
        return (
            f"{label(one.run)} asks you, in its own words:\n{one.drawn}\n"
            f"Your answer goes to the model {one.run.model}: give no passwords or keys. It changes no limit. Without"
            f" an answer, the subagent continues at {local_second(one.asked.expires_us)}."
        )

    def command(self, one: PendingQuestion, /) -> str:
        return f'ava send {one.run.id} "…"'

    def activity(self, _asked: Asked, /) -> str:
        return "Waits for an answer to its question"

    def entry(self, asked: Asked, /) -> tuple[str, str]:
        return "Asks a person, and waits for the answer", asked.search_text()

    def for_tools(self, one: PendingQuestion, /) -> str:
        how = "ask the person, and pass the answer on with message_subagent"
        if self.is_approval:
            how = f"only the person answers it, in Ava's form or pages, or with {one.in_a_terminal}"
        until = local_second(one.asked.expires_us)
        told = with_advice(f"an answer to its question (untrusted_question): {how}", one.also)
        return with_advice(told, f"Without one, it continues at {until}")

    def for_people(self, one: PendingQuestion, /) -> str:
        until = local_second(one.asked.expires_us)
        also = f". {one.also}" if one.also else ""
        return f"answer its question with {one.in_a_terminal}; without an answer it continues at {until}{also}"

    def notice(self, one: PendingQuestion, /) -> str:
        return f"{label(one.run)} asks the person a question; check_subagent shows it, and who can answer it"

    def event(self, one: PendingQuestion, /) -> dict[str, Any]:
        return {"question_id": one.id, "question": one.text, "options": list(one.options)}

    def form(self, one: PendingQuestion, text: str, /) -> Question:
        own = TextField(_ANSWER, "Or in your own words" if one.options else "Your answer")
        return Question(text, (TextField(_CHOICE, "Your answer", one.options), own) if one.options else (own,))

    def answer_in(self, one: PendingQuestion, reply: Reply, /) -> Given:
        choice, own = (_text(reply.content, name) for name in (_CHOICE, _ANSWER))
        if choice and choice not in one.options:
            raise BadInput(f"{_CHOICE}: {choice[:100]!r} is not one of the options; the question still waits")
        answer = "\n".join(filter(None, (choice, own)))
        if not answer:
            raise BadInput(f"{_ANSWER}: the form returned no answer; the question still waits")
        return answer

    def yes(self, _one: PendingQuestion, words: str | None) -> Given:
        return words or ""

    def is_yes(self, _given: Given, /) -> bool:
        return False

    def _answers(self, _text: str, /) -> bool:
        """Tell whether a text is the answer, and not only something that is said besides a no."""
        return True

    def decide(
        self, _view: View, one: PendingQuestion, given: Given | None, by: Decider, _now_us: int
    ) -> Outcome[QuestionDecision]:
        run, text = one.run, None if given is None else str(given)
        if self.is_approval and by.channel == "host_call":
            return _refused(_ONLY_A_PERSON)
        if text is not None:
            text = chosen_option(text, one.options)
        answers = text is not None and self._answers(text)
        decision: Literal["answered", "declined"] = "answered" if answers else "declined"
        decided = Answered(kind=one.asked.kind, ask_id=one.id, decision=decision, channel=by.channel)
        events = [Event(by.who, decided, run_id=run.id)]
        if answers or (text or "no").strip().casefold() not in _NO:
            # What a person says besides no, the run reads as a message.
            message = UserMessage(text=text or "", kind="answer" if answers else "message")
            events.insert(0, Event(by.agent, message, run_id=run.id))
        what = "continues" if text is None else "has the answer to its question and continues"
        return Outcome(QuestionDecision(decision, f"{label(run)} {what}."), tuple(events))


class _Call(_InWords):
    """Whether a call may be made; only a person answers that, with yes or no."""

    is_approval = True
    joins = False

    def read(self, _view: View, run: RunRow, asked: Asked, /) -> PendingQuestion | None:
        # The value comes last, so that nothing in it can pass for what Ava says of it.
        lines = [
            f"{one_line(each['argument'])} ({_brought(each['source'])}{warn_of_look_alikes(each['value'])}):"
            f" {one_line(each['value'])}"
            for each in asked.values
        ]
        text = "\n".join([f"May it call {asked.tool} with this, which is not from your task?", *lines, _HOW_TO_ALLOW])
        return PendingQuestion(run, asked, clean(text)[0])

    def message(self, one: PendingQuestion, /) -> str:
        return (
            f"{label(one.run)} asks you:\n{add_bars(one.untrusted)}\nIt changes no limit. Without an answer, it"
            f" continues without this call at {local_second(one.asked.expires_us)}."
        )

    def command(self, one: PendingQuestion, /) -> str:
        return f"ava send {one.run.id} yes --question {one.id}"

    def form(self, _one: PendingQuestion, text: str, /) -> Question:
        return Question(text, ()).as_yes_or_no()

    def answer_in(self, one: PendingQuestion, reply: Reply, /) -> Given:
        return _text(reply.content, CHOICE) or super().answer_in(one, reply)

    def is_yes(self, given: Given, /) -> bool:
        return isinstance(given, str) and given.strip().casefold() in _YES

    def _answers(self, text: str, /) -> bool:
        return self.is_yes(text)


KINDS: Mapping[AskedKind, QuestionKind] = {
    "money": _More(),
    "tokens": _More(),
    "time": _More(),
    "question": _InWords(),
    "call": _Call(),
}


def activity_when_asked(asked: Asked) -> str:
    """Return what a run does when it asks this, for a line of its progress."""
    return KINDS[asked.kind].activity(asked)


def _brought(source: str) -> str:
    if source == PROJECT_FILES:
        return "from the project's own files about itself"
    return f"from a result of {source}" if source else "its own words"


def warn_of_look_alikes(value: str) -> str:
    """Return a warning of a word with Latin letters and others that look the same, or of these alone; else empty."""
    for word in re.findall(r"[^\W\d_]+", value) if not value.isascii() else ():
        kinds = {unicodedata.name(char, "?").split()[0]: char for char in reversed(word)}
        other = next((kinds[kind] for kind in kinds if kind in _LIKE_LATIN), "")
        if other and ("LATIN" in kinds or (len(word) > 2 and all(map(_looks_latin, word)))):
            return f"; in {word[:40]}, {other} is {unicodedata.name(other).title()}"
    return ""


def _looks_latin(char: str) -> bool:
    return char in _TWINS or unicodedata.normalize("NFKC", char).isascii()


_TWINS = frozenset("АВЕЅІЈКМНОРСТХҮԚԜаеіјӏорсухѕһԁԛԝΑΒΕΖΗΙΚΜΝΟΡΤΥΧνο")
"""Cyrillic and Greek letters that look like Latin ones in most fonts."""
_LIKE_LATIN = ("CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE", "COPTIC", "LISU", "MATHEMATICAL", "FULLWIDTH")


def _text(content: Mapping[str, Any], name: str) -> str:
    given = content.get(name)
    return given.strip() if isinstance(given, str) else ""
