"""The kinds of questions that a run asks a person: how each is shown and answered, and what an answer does.

A run near a cap asks for more money, tokens or time. A run with the tool `ask` asks a question, and one that would call
a tool with values that nobody approved asks whether it may. All that differs between them is a `QuestionKind`, a row of
`KINDS`. Only a person's own answer raises a cap, once and to at most what was shown, or allows a call. A question whose
answer is text may also be answered by the orchestrator.

`pending_questions.py` finds the questions that are open, and records the answers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from string import ascii_lowercase
from typing import Any, Literal, NamedTuple, Protocol, cast

from ava_audit.events import ActReason, Answered, Asked, AskedKind, Channel, Event, ToolCall, UserMessage, Who
from ava_audit.rows import RunRow
from ava_audit.units import local_second
from ava_audit.view import Outcome, View
from ava_roles.wrap import add_bars, clean, one_line
from ava_server.approval.channels import PERSON_CHANNELS
from ava_server.approval.decide import Kind, Shown
from ava_server.approval.proposals import brief_of
from ava_server.approval.shown import approval_line
from ava_server.approval.start_form import (
    CHOICE,
    NO,
    YES,
    LimitField,
    Question,
    Reply,
    TextField,
    fit_lines,
    limit_field,
    number_in,
)
from ava_server.core.errors import BadInput, with_advice
from ava_server.core.ids import label
from ava_server.core.names import quote_names
from ava_server.run_config.config import RunConfig, config_of
from ava_server.run_config.digest import digest
from ava_server.run_config.run_cap import CAP_OF_ARGUMENT
from ava_server.runs.asking.extension import (
    UNITS,
    ExtensionLimits,
    cap_amount,
    cap_name,
    most_now,
    request_words,
    shortage_words,
    with_cap,
)
from ava_server.runs.asking.look_alikes import warn_of_look_alikes
from ava_server.runs.asking.questions import shown_options
from ava_server.runs.record.history import FOR_RUN, PROJECT_FILES

Answer = int | float | str
"""What a person answers: the new cap, or text. None in its place is a no."""
ERASED = "(erased)"
"""In place of a question whose text was erased."""
MOST_NAMED = 10
"""Most runs that are named beside a question which they ask too."""
_CHOICE, _ANSWER = "choice", "answer"
"""The fields of a form: one of the options, and the person's own words."""
_QUOTES = re.compile('[“”"]')
_LOCATION_CHARS = 200
_YES, _NO = ("yes", "y"), ("no", "n")
YES_FOR_RUN = "Yes, for this run"
_HOW_TO_ALLOW = "Answer yes to allow it, also for later calls of this run; anything else does not."
_HOW_TO_ALLOW_ACT = (
    "Answer yes to allow this call, or `run` to allow all calls of this tool in this run (values that are not from your"
    " task are still asked about); anything else does not."
)
_ACTS: Mapping[ActReason, str] = {
    "role": "Its role has you asked before each call of it.",
    "destroys": "Its server says that it can destroy something.",
    "again": "It has made the same call before, which succeeded or may have.",
    "no_values": "Nothing that it passes can be compared with your task.",
}
"""Why a call itself is asked about, in a sentence."""
_ONLY_A_PERSON = "only a person's own answer counts: in a terminal, over HTTP, or to Ava's own question"


# -- what waits -------------------------------------------------------------------------------------------------------


Identity = tuple[AskedKind, str, tuple[str, ...], str]
"""Kind, text, options and model of a question."""


class Asker(NamedTuple):
    """Another run of a plan that waits for the answer to the same question."""

    run_id: str
    ask_id: str
    name: str


@dataclass(frozen=True)
class PendingQuestion:
    """A question of a run that waits for its answer. What the subagent wrote is cleaned, and still untrusted.

    Attributes:
        asked: The entry of the log.
        text: The question; for a call that needs permission, the values that nobody approved; else empty.
        options: Answers to choose from; may be empty.
        line: The approval line of the configuration that a yes makes, where it makes one.
        others: The other runs of its plan that ask the same, in the order in which they asked.
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
    def identity(self) -> Identity:
        """Equal for questions that a person would read as one. The answer goes to the model, so that is part of it."""
        return self.asked.kind, f"{self.text}\n{self.marks}", self.options, self.run.model

    @property
    def also(self) -> str:
        """Which other runs ask the same, in a sentence; empty where none does."""
        if not self.others:
            return ""
        names = quote_names([other.name for other in self.others], MOST_NAMED)
        who = "Another run" if len(self.others) == 1 else f"{len(self.others)} other runs"
        asks = "asks" if len(self.others) == 1 else "ask"
        return f"{who} of {self.run.plan_id} {asks} the same, and one answer goes to all: {names}."

    @property
    def marks(self) -> str:
        """What no approved text has in the options, and where it is from; empty where all of it was approved."""
        if self.asked.kind != "question" or not self.asked.values:
            return ""
        parts: list[str] = []
        for each in self.asked.values:
            source = _source_words(each["source"])
            if "location" in each:
                source = f"{source}, {one_line(each['location'], _LOCATION_CHARS)}"
            quoted = _QUOTES.sub("'", one_line(each["value"]))
            parts.append(f"“{quoted}” ({source}{warn_of_look_alikes(each['value'])})")
        new = "; ".join(dict.fromkeys(parts))
        return f"Not from your task, in the options: {new}. Choosing an option approves what is named here of it."

    @property
    def kind(self) -> QuestionKind:
        return KINDS[self.asked.kind]

    @property
    def shown(self) -> Shown:
        return Shown(self.kind.decision, self.run.id, self.asked.digest or self.id, text=self.message)

    @property
    def in_a_terminal(self) -> str:
        """The command that answers it; a yes to a call names the question."""
        return f"`{self.kind.command(self)}`"

    @property
    def to_allow(self) -> bool:
        """Whether it is answered in words, and only a person's yes, which is an approval, allows a call."""
        return self.kind.in_words and self.kind.is_approval

    @property
    def for_run(self) -> bool:
        """Whether a yes may also be one to all calls of the tool in the run."""
        return bool(self.asked.act)

    @property
    def untrusted(self) -> str:
        """What the subagent or a tool wrote; empty where all words are Ava's own."""
        lines = [self.text]
        for key, option in zip(option_keys(self.options), self.options, strict=True):
            lines.append(f"{key}. {option}")
        return "\n".join(lines)

    @property
    def answer_prompt(self) -> str:
        """The prompt of a terminal below it; an option is answered by its key."""
        if not self.options:
            return "Answer:"
        return f"Answer ({self._keys}, or words):"

    @property
    def prompt(self) -> str:
        """The prompt of a terminal below it, where a run's steps are followed."""
        if not self.options:
            return self.kind.prompt
        return self.kind.prompt.replace("(", f"({self._keys}, or words; ", 1)

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
        if not self.kind.in_words:
            return self.message
        return "\n".join(filter(None, (add_bars(self.untrusted), self.marks, self.also)))

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
        """Return it for a host; where a yes or no decides, with room for both and with what the person does not see."""
        lines = self.message.split("\n")
        screen = None
        if not self.kind.in_words:
            lines, screen = fit_lines(lines, f"`ava wait {self.run.id}` and Ava's page of the run show all.")
        return replace(self.kind.form(self, " \n".join(lines)), screen=screen)

    def answer_in(self, reply: Reply) -> Answer:
        """Return the answer in a form. Raises BadInput if it has none that can be used."""
        return self.kind.answer_in(self, reply)

    def approved_by(self, answer: Answer | None) -> bool:
        """Tell whether an answer is a yes that takes what an approval does."""
        return answer is not None and self.kind.is_yes(self, answer)


def option_keys(options: Sequence[str]) -> list[str]:
    """Return the key of each option: its number, or a letter where an option itself begins with a digit.

    No key equals the text of an option.
    """
    texts = {option.strip().casefold() for option in options}
    letters = [letter for letter in ascii_lowercase if letter not in texts]
    starts_with_digit = any(option.strip()[:1].isdigit() for option in options)
    if starts_with_digit and len(options) <= len(letters):
        return letters[: len(options)]
    return [str(number) for number in range(1, len(options) + 1)]


def chosen_option(typed: str, options: Sequence[str]) -> str:
    """Return the option whose text or key was typed; what was typed where it is neither."""
    if typed in options:
        return typed
    key = typed.strip().casefold()
    same_text = [option for option in options if option.strip().casefold() == key]
    if len(same_text) == 1:
        return same_text[0]
    if same_text:
        return typed
    by_key = dict(zip(option_keys(options), options, strict=True))
    return by_key.get(key, typed)


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
        prompt: The prompt of a terminal below it, where a run's steps are followed.
        unanswered: What a run does when its time to wait is over.
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
        """Return the question with what is shown of it; None where that was erased."""
        ...

    def message(self, question: PendingQuestion, /) -> str: ...

    def command(self, question: PendingQuestion, /) -> str: ...

    def activity(self, asked: Asked, /) -> str:
        """Return what the run does when it asks this."""
        ...

    def entry(self, asked: Asked, /) -> tuple[str, str]:
        """Return the title and the text of its entry in a list of what the run did."""
        ...

    def for_tools(self, question: PendingQuestion, /) -> str: ...

    def for_people(self, question: PendingQuestion, /) -> str: ...

    def notice(self, question: PendingQuestion, /) -> str:
        """Return the notice for a model that has not looked at it."""
        ...

    def event(self, question: PendingQuestion, /) -> dict[str, Any]:
        """Return its fields for the program of the setting `on_event`."""
        ...

    def form(self, question: PendingQuestion, text: str, /) -> Question: ...

    def answer_in(self, question: PendingQuestion, reply: Reply, /) -> Answer: ...

    def yes(self, question: PendingQuestion, words: str | None, /) -> Answer:
        """Return the answer of a person who agrees, with these words if it is answered in words."""
        ...

    def is_yes(self, question: PendingQuestion, answer: Answer, /) -> bool: ...

    def decide(
        self, view: View, question: PendingQuestion, answer: Answer | None, by: Decider, now_us: int, /
    ) -> Outcome[QuestionDecision]:
        """Return the decision with its entries, or why it is refused."""
        ...


@dataclass(frozen=True)
class Decider:
    """Who decides, and the run under their session, over a channel; with the limits on what they may allow.

    `screen` is what they saw of a request for more, where that was not all.
    """

    who: Who
    agent: Who
    channel: Channel
    limits: ExtensionLimits
    screen: str | None = None


@dataclass(frozen=True)
class QuestionDecision:
    """The outcome of an answer: the cap was raised, the run has its answer or continues without, or why it was refused.

    `text` says the same in a sentence. `run_ids`: the runs that it was recorded for.
    """

    status: Literal["approved", "answered", "declined", "refused"]
    text: str
    run_ids: tuple[str, ...] = ()


def refuse_answer(why: str) -> Outcome[QuestionDecision]:
    return Outcome(QuestionDecision("refused", why))


def activity_when_asked(asked: Asked) -> str:
    """Return what a run does when it asks this, for a line of its progress."""
    return KINDS[asked.kind].activity(asked)


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
        brief = brief_of(view, run)
        if brief is None:
            return None
        raised = with_cap(config_of(run.config), asked.cap, asked.proposed)
        return PendingQuestion(run, asked, line=approval_line(raised, brief))

    def message(self, question: PendingQuestion) -> str:
        """Return which run it is, what is left and missing, the new cap, and everything that then holds."""
        asked = question.asked
        name = cap_name(asked.cap)
        low, high = _exact_limits(asked)
        return (
            f"{label(question.run)} is near its {name} of {low}: {shortage_words(asked)}.\n"
            f"{question.line}\n"
            f"Raise the {name} to {high}? If you decline, the run hands in what it has; if you do not answer, it"
            f" does so at {local_second(asked.expires_us)}."
        )

    def command(self, question: PendingQuestion) -> str:
        return f"ava approve {question.run.id}"

    def activity(self, asked: Asked) -> str:
        return f"Asks a person to {request_words(asked)}"

    def entry(self, asked: Asked) -> tuple[str, str]:
        low = cap_amount(asked.cap, asked.limit)
        high = cap_amount(asked.cap, asked.proposed)
        return f"Near its {cap_name(asked.cap)} of {low}: asks for {high}", ""

    def for_tools(self, question: PendingQuestion) -> str:
        until = local_second(question.asked.expires_us)
        return (
            f"a person to {request_words(question.asked)}. Answer with {question.in_a_terminal} or"
            f" `ava reject {question.run.id}`; a model cannot answer. If nobody answers, the run wraps up at {until}"
        )

    def for_people(self, question: PendingQuestion) -> str:
        request = request_words(question.asked)
        until = local_second(question.asked.expires_us)
        return f"a person may {request}: {question.in_a_terminal}; without an answer it wraps up at {until}"

    def notice(self, question: PendingQuestion) -> str:
        return f"{label(question.run)} waits for {question.for_tools}. Tell the person"

    def event(self, question: PendingQuestion) -> dict[str, Any]:
        return {"extension_id": question.id, "request": request_words(question.asked)}

    def form(self, question: PendingQuestion, text: str) -> Question:
        return Question(text, (self._field(question.asked),))

    def answer_in(self, question: PendingQuestion, reply: Reply) -> Answer:
        """Return the cap that a person allows: the proposed one, or less from the form."""
        asked = question.asked
        field = self._field(asked)
        entered = number_in(field, reply, "nothing was raised")
        if entered is None or entered == field.most:
            return asked.proposed
        value: int | float = field.stored(entered)
        if not asked.limit < value <= asked.proposed:
            low, high = _exact_limits(asked)
            raise BadInput(f"{field.name}: give more than {low} and at most {high}; nothing was raised")
        return value

    def _field(self, asked: Asked) -> LimitField:
        least = min(asked.limit + UNITS[asked.cap], asked.proposed)
        return limit_field(CAP_OF_ARGUMENT[asked.cap], least, asked.proposed)

    def yes(self, question: PendingQuestion, _words: str | None) -> Answer:
        return question.asked.proposed

    def is_yes(self, _question: PendingQuestion, _answer: Answer) -> bool:
        return True

    def decide(
        self, view: View, question: PendingQuestion, answer: Answer | None, by: Decider, now_us: int
    ) -> Outcome[QuestionDecision]:
        run, asked = question.run, question.asked
        brief = brief_of(view, run)
        if brief is None or isinstance(answer, str):
            return refuse_answer("it takes a yes or a no")
        config = config_of(run.config)
        name = cap_name(asked.cap)
        changes: dict[str, int | float] = {}
        if answer is not None:
            why = _why_not_raised(view, question, config, answer, by, now_us)
            if why is not None:
                return refuse_answer(why)
            changes[CAP_OF_ARGUMENT[asked.cap].field] = answer
        config = config.model_copy(update=changes)
        decision: Literal["approved", "declined"] = "declined" if answer is None else "approved"
        answered = Answered(
            kind=asked.kind,
            ask_id=asked.ask_id,
            decision=decision,
            channel=by.channel,
            digest=asked.digest,
            decision_digest=digest(config, brief),
            changes=changes,
        )
        if answer is None:
            note = f"{decision} {asked.ask_id}, {name}"
            sentence = f"{label(run)} wraps up; nothing was raised."
        else:
            note = f"{decision} {asked.ask_id}, {name}: {approval_line(config, brief)}"
            sentence = f"The {name} of {label(run)} is {cap_amount(asked.cap, answer, exact=True)} now; it continues."
        message = UserMessage(text=note, kind="decision", screen=by.screen)
        events = (Event(by.who, message, run_id=run.id), Event(by.who, answered, run_id=run.id))
        return Outcome(QuestionDecision(decision, sentence), events)


def _exact_limits(asked: Asked) -> tuple[str, str]:
    """Return the cap as it is, and the proposed one."""
    low = cap_amount(asked.cap, asked.limit, exact=True)
    high = cap_amount(asked.cap, asked.proposed, exact=True)
    return low, high


def _why_not_raised(
    view: View, question: PendingQuestion, config: RunConfig, value: float, by: Decider, now_us: int
) -> str | None:
    """Return why a cap may not be raised to this value, or None."""
    run, asked = question.run, question.asked
    if by.channel not in PERSON_CHANNELS:
        return _ONLY_A_PERSON
    if not asked.limit < value <= asked.proposed:
        return "an answer raises the cap to what was proposed, or to less"
    raised = with_cap(config, asked.cap, asked.proposed)
    most, limit = most_now(view, run, raised, asked.cap, run.active_us / 1e6, by.limits, now_us)
    if value > most:
        return f"{limit} does not allow that; at most {cap_amount(asked.cap, max(most, 0))} fits"
    return None


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
        args = _args_of_call(view, run, asked.call_id)
        text = clean(str(args.get("question", "")))[0]
        # A form shows each option on one line, once, and returns it as it stands.
        return PendingQuestion(run, asked, text, shown_options(args))

    def message(self, question: PendingQuestion, /) -> str:
        until = local_second(question.asked.expires_us)
        return (
            f"{label(question.run)} asks you, in its own words:\n{question.drawn}\n"
            f"Your answer goes to the model {question.run.model}: give no passwords or keys. It changes no limit."
            f" Without an answer, the subagent continues at {until}."
        )

    def command(self, question: PendingQuestion, /) -> str:
        return f'ava send {question.run.id} "…"'

    def activity(self, _asked: Asked, /) -> str:
        return "Waits for an answer to its question"

    def entry(self, asked: Asked, /) -> tuple[str, str]:
        return "Asks a person, and waits for the answer", asked.search_text()

    def for_tools(self, question: PendingQuestion, /) -> str:
        how = "ask the person, and pass the answer on with message_subagent"
        if self.is_approval:
            how = f"only the person answers it, in Ava's form or pages, or with {question.in_a_terminal}"
        until = local_second(question.asked.expires_us)
        words = with_advice(f"an answer to its question (untrusted_question): {how}", question.also)
        return with_advice(words, f"Without one, it continues at {until}")

    def for_people(self, question: PendingQuestion, /) -> str:
        until = local_second(question.asked.expires_us)
        words = f"answer its question with {question.in_a_terminal}; without an answer it continues at {until}"
        return f"{words}. {question.also}" if question.also else words

    def notice(self, question: PendingQuestion, /) -> str:
        return f"{label(question.run)} asks the person a question; check_subagent shows it, and who can answer it"

    def event(self, question: PendingQuestion, /) -> dict[str, Any]:
        return {"question_id": question.id, "question": question.text, "options": list(question.options)}

    def form(self, question: PendingQuestion, text: str, /) -> Question:
        if not question.options:
            return Question(text, (TextField(_ANSWER, "Your answer"),))
        choice = TextField(_CHOICE, "Your answer", question.options)
        return Question(text, (choice, TextField(_ANSWER, "Or in your own words")))

    def answer_in(self, question: PendingQuestion, reply: Reply, /) -> Answer:
        choice = _text_in(reply.content, _CHOICE)
        own_words = _text_in(reply.content, _ANSWER)
        if choice and choice not in question.options:
            raise BadInput(f"{_CHOICE}: {choice[:100]!r} is not one of the options; the question still waits")
        answer = "\n".join(filter(None, (choice, own_words)))
        if not answer:
            raise BadInput(f"{_ANSWER}: the form returned no answer; the question still waits")
        return answer

    def yes(self, _question: PendingQuestion, words: str | None) -> Answer:
        return words or ""

    def is_yes(self, _question: PendingQuestion, _answer: Answer, /) -> bool:
        return False

    def _answers(self, _question: PendingQuestion, _text: str, /) -> bool:
        """Tell whether a text is the answer, rather than words beside a no."""
        return True

    def decide(
        self, _view: View, question: PendingQuestion, answer: Answer | None, by: Decider, _now_us: int
    ) -> Outcome[QuestionDecision]:
        run = question.run
        if self.is_approval and by.channel == "host_call":
            return refuse_answer(_ONLY_A_PERSON)
        text: str | None = None
        what = "continues"
        if answer is not None:
            text = chosen_option(str(answer), question.options)
            what = "has the answer to its question and continues"
        decision: Literal["answered", "declined"] = "declined"
        kind: Literal["answer", "message"] = "message"
        if text is not None and self._answers(question, text):
            decision, kind = "answered", "answer"
        events: list[Event] = []
        says_only_no = (text or "no").strip().casefold() in _NO
        if decision == "answered" or not says_only_no:  # what a person says besides no, the run reads as a message
            message = UserMessage(text=text or "", kind=kind)
            events.append(Event(by.agent, message, run_id=run.id))
        answered = Answered(kind=question.asked.kind, ask_id=question.id, decision=decision, channel=by.channel)
        events.append(Event(by.who, answered, run_id=run.id))
        return Outcome(QuestionDecision(decision, f"{label(run)} {what}."), tuple(events))


def _args_of_call(view: View, run: RunRow, call_id: str) -> dict[str, Any]:
    """Return the arguments of a call of the tool `ask`; only a placeholder for the question where they were erased."""
    for entry in reversed(view.entries(run.id, 0, ("ToolCall",))):
        fact = entry.fact
        if isinstance(fact, ToolCall) and fact.call_id == call_id:
            args: Any = fact.args
            if isinstance(args, dict):
                return cast("dict[str, Any]", args)
            break
    return {"question": ERASED}


def _text_in(content: Mapping[str, Any], name: str) -> str:
    value = content.get(name)
    return value.strip() if isinstance(value, str) else ""


class _Call(_InWords):
    """Whether a call may be made; only a person answers that, with yes or no."""

    is_approval = True
    joins = False

    def read(self, _view: View, run: RunRow, asked: Asked, /) -> PendingQuestion | None:
        lines: list[str] = []
        not_from_task = f"May it call {asked.tool} with this, which is not from your task?"
        how_to_allow = _HOW_TO_ALLOW
        if asked.act:
            lines.append(f"May it call {asked.tool}? {_ACTS[asked.act]}")
            lines += [f"{one_line(each['argument'])}: {one_line(each['value'])}" for each in asked.given]
            not_from_task = "Of this, it has not from your task:"
            how_to_allow = _HOW_TO_ALLOW_ACT
        if asked.values:
            lines.append(not_from_task)
        for each in asked.values:
            source = _source_words(each["source"])
            warning = warn_of_look_alikes(each["value"])
            # The value comes last, so that nothing in it can pass for what Ava says of it.
            lines.append(f"{one_line(each['argument'])} ({source}{warning}): {one_line(each['value'])}")
        lines.append(how_to_allow)
        return PendingQuestion(run, asked, clean("\n".join(lines))[0])

    def message(self, question: PendingQuestion, /) -> str:
        return (
            f"{label(question.run)} asks you:\n{add_bars(question.untrusted)}\nIt changes no limit. Without an answer,"
            f" it continues without this call at {local_second(question.asked.expires_us)}."
        )

    def command(self, question: PendingQuestion, /) -> str:
        return f"ava send {question.run.id} yes --question {question.id}"

    def form(self, question: PendingQuestion, text: str, /) -> Question:
        if question.for_run:
            return Question(text, (TextField(CHOICE, "Your decision", (YES, YES_FOR_RUN, NO)),))
        return Question(text, ()).as_yes_or_no()

    def answer_in(self, question: PendingQuestion, reply: Reply, /) -> Answer:
        return _text_in(reply.content, CHOICE) or super().answer_in(question, reply)

    def is_yes(self, question: PendingQuestion, answer: Answer, /) -> bool:
        if not isinstance(answer, str):
            return False
        words = (*_YES, *FOR_RUN) if question.for_run else _YES
        return answer.strip().casefold() in words

    def _answers(self, question: PendingQuestion, text: str, /) -> bool:
        return self.is_yes(question, text)


def _source_words(source: str) -> str:
    if source == PROJECT_FILES:
        return "from the project's own files about itself"
    return f"from a result of {source}" if source else "its own words"


KINDS: Mapping[AskedKind, QuestionKind] = {
    "money": _More(),
    "tokens": _More(),
    "time": _More(),
    "question": _InWords(),
    "call": _Call(),
}
