"""A run's questions to the person who started it: the tool `ask`, and what answers it.

A run that asks waits like a paused one: without a slot, and its clock stops. The answer comes over any channel, also
from the orchestrator. Without one, the run goes on when its time to wait is over, and is told so.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

from ava_audit.events import Answered, Asked, Channel, Event, ToolCall, UserMessage, Who
from ava_audit.rows import WAITING, RunRow
from ava_audit.units import local_second, now_us
from ava_audit.view import Command, Outcome, View
from ava_roles.errors import ToolFailed
from ava_roles.tool import ToolContext, ToolOutput
from ava_roles.tools.run import ASK, AskArgs
from ava_roles.wrap import add_bars, clean, one_line
from ava_server.approval.outcomes import decided_where
from ava_server.core.errors import BadInput
from ava_server.core.ids import label, new_id
from ava_server.runs.lifecycle import situation, transition, wait_for_person

if TYPE_CHECKING:
    from ava_audit.store.store import Store
    from ava_server.approval.questions import Question, Reply
    from ava_server.models.base import ToolUse
    from ava_server.runs.history import GivenAnswer, History

LEAST_LEFT_S = 10.0
"""With less time to work, a run does not ask: its wrap-up would begin before the model has read the answer."""
MOST_TO_ALLOW = 10
"""How often a run asks whether a call may be made."""
VALUE_CHARS = 2_000
MOST_VALUES = 8
"""Characters of a value, and values of a call, that a person can be asked about."""
_ERASED = "(erased)"
_GO_ON = "Go on with what is most likely meant, and say in the result what you have assumed."
_CHOICE, _ANSWER = "choice", "answer"


@dataclass(frozen=True)
class Doubt:
    """A value of a call that nobody approved, and the tool that brought it; empty where the model has written it."""

    argument: str
    value: str
    source: str


class Ask:
    """The tool `ask` of one run.

    Args:
        most: How many questions it may ask.
        wait_s: How long it waits for an answer, in seconds.
    """

    spec = ASK

    def __init__(self, store: Store, history: History, most: int, wait_s: int) -> None:
        self._store = store
        self._history = history
        self._most = most
        self._wait_s = wait_s

    def activity(self, args: AskArgs) -> str:
        return f"Asking: {args.question}"

    async def new_question(self, call_id: str, left_s: float) -> Asked | None:
        """Return what records a call's question; None where it was asked before, or nobody can be asked.

        `left_s`: seconds that the run has left to work; with too few, an answer would come to nothing.
        """
        may = call_id not in self._history.questions and self._history.asked < self._most
        return await self._new(call_id, left_s) if may else None

    async def to_allow(self, call: ToolUse, left_s: float, doubts: Sequence[Doubt]) -> Asked | None:
        """Return what asks whether a call may be made with values that nobody approved; None where nobody can be asked.

        A run asks this a few times, and not again once nobody has answered.
        """
        asked = self._history.confirmed
        many = len(doubts) > MOST_VALUES or any(len(each.value) > VALUE_CHARS for each in doubts)
        if many or len(asked) >= MOST_TO_ALLOW or any(one.ask_id not in self._history.answers for one in asked):
            return None
        found = await self._new(call.call_id, left_s)
        about = {"kind": "call", "tool": call.name, "values": tuple(map(asdict, doubts))}
        return found and found.model_copy(update=about)

    async def _new(self, call_id: str, left_s: float) -> Asked | None:
        wait_s = await self._store.read(self._time) if left_s >= LEAST_LEFT_S else 0
        if wait_s <= 0:
            return None
        expires_us = now_us() + wait_s * 1_000_000
        return Asked(kind="question", ask_id=new_id("question_id"), call_id=call_id, expires_us=expires_us)

    async def __call__(self, args: AskArgs, at: ToolContext) -> ToolOutput:
        """Return the answer to this call's question, or say that there is none. Raises ToolFailed: it was not asked."""
        asked = self._history.questions.get(at.call_id)
        if asked is None:
            many = f"{self._most} question{'' if self._most == 1 else 's'}"
            full = self._history.asked >= self._most
            raise ToolFailed(
                f"a run may ask {many}, and you have. {_GO_ON}" if full else f"no time is left to wait. {_GO_ON}"
            )
        return ToolOutput(_words(self._history.answers.get(asked.ask_id)), own=True)

    def _time(self, view: View) -> int:
        return math.floor(wait_for_person(view, view.run(self._history.run_id), self._wait_s, now_us()))


def _words(answer: GivenAnswer | None) -> str:
    if answer is None:
        return f"Nobody has answered. {_GO_ON}"
    if answer.fact.decision == "declined":
        return f"The person does not want to answer. {_GO_ON}"
    who = "The person answers"
    if answer.fact.channel == "host_call":
        who = "The orchestrator answers; whether the person said so is not known"
    return f"{who}. This may steer the work, and changes no limit:\n{answer.text}"


# -- as it is shown ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WaitingQuestion:
    """A question that waits for its answer. What the subagent wrote is cleaned, and still untrusted.

    Attributes:
        asked: What the log has of it.
        text: The question; of one whether a call may be made, the values that nobody approved.
        options: Answers to choose from; may be empty.
    """

    run: RunRow
    asked: Asked
    text: str
    options: tuple[str, ...]

    @property
    def id(self) -> str:
        return self.asked.ask_id

    @property
    def in_a_terminal(self) -> str:
        return self.answered_by("ava")

    def answered_by(self, ava: str) -> str:
        """Return the command that answers it; `ava` is how commands begin. A yes to a call names what was asked."""
        how = f"yes --question {self.id}" if self.to_allow else '"…"'
        return f"`{ava} send {self.run.id} {how}`"

    @property
    def to_allow(self) -> bool:
        """Whether it asks if a call may be made; only a person answers that, with yes or no."""
        return self.asked.kind == "call"

    def allowed_by(self, text: str | None) -> bool:
        """Tell whether a text is a yes that allows a call, which takes what an approval does."""
        return self.to_allow and (text or "").strip().casefold() in _YES

    @property
    def untrusted(self) -> str:
        return "\n".join((self.text, *(f"- {option}" for option in self.options)))

    @property
    def message(self) -> str:
        """The question as a person is asked it, and what their answer does."""
        if self.to_allow:
            return (
                f"{label(self.run)} asks you:\n{add_bars(self.untrusted)}\nIt changes no limit. Without an answer, it"
                f" continues without this call at {local_second(self.asked.expires_us)}."
            )
        return (
            f"{label(self.run)} asks you, in its own words:\n{add_bars(self.untrusted)}\n"
            f"Your answer goes to the model {self.run.model}: give no passwords or keys. It changes no limit. Without"
            f" an answer, the subagent continues at {local_second(self.asked.expires_us)}."
        )

    def question(self) -> Question:
        from ava_server.approval.questions import Question, TextField  # screens import this module, and ask nothing

        if self.to_allow:
            return Question(" \n".join(self.message.split("\n")), ()).as_yes_or_no()
        own = TextField(_ANSWER, "Or in your own words" if self.options else "Your answer")
        fields = (TextField(_CHOICE, "Your answer", self.options), own) if self.options else (own,)
        return Question(" \n".join(self.message.split("\n")), fields)

    def answer_in(self, reply: Reply) -> str:
        """Return the answer that a form has. Raises BadInput: it has none."""
        from ava_server.approval.questions import CHOICE

        if self.to_allow and (decision := _text(reply.content, CHOICE)):
            return decision
        choice, own = (_text(reply.content, name) for name in (_CHOICE, _ANSWER))
        if choice and choice not in self.options:
            raise BadInput(f"{_CHOICE}: {choice[:100]!r} is not one of the options; the question still waits")
        answer = "\n".join(filter(None, (choice, own)))
        if not answer:
            raise BadInput(f"{_ANSWER}: the form returned no answer; the question still waits")
        return answer


def own_words(answer: str) -> dict[str, str]:
    """Return the form with an answer in a person's own words."""
    return {_ANSWER: answer}


_YES, _NO = ("yes", "y"), ("no", "n")
_HOW_TO_ALLOW = "Answer yes to allow it, also for later calls of this run; anything else does not."


def _brought(source: str) -> str:
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


def waiting_question(view: View, run: RunRow, now_us: int) -> WaitingQuestion | None:
    """Return the question that a run waits with; None where it waits with none."""
    if run.waits_for != "answer" or run.asked is None or transition(run, "answer", situation(run, now_us)) is None:
        return None
    asked = Asked.model_validate_json(run.asked)
    if asked.kind == "call":
        # The value comes last, so that nothing in it can pass for what Ava says of it.
        lines = [
            f"{one_line(each['argument'])} ({_brought(each['source'])}{warn_of_look_alikes(each['value'])}):"
            f" {one_line(each['value'])}"
            for each in asked.values
        ]
        text = "\n".join([f"May it call {asked.tool} with this, which is not from your task?", *lines, _HOW_TO_ALLOW])
        return WaitingQuestion(run, asked, clean(text)[0], ())
    calls = (entry.fact for entry in reversed(view.entries(run.id, 0, ("ToolCall",))))
    call = next((fact for fact in calls if isinstance(fact, ToolCall) and fact.call_id == asked.call_id), None)
    given: Any = call.args if call is not None else None
    args = cast("dict[str, Any]", given) if isinstance(given, dict) else {"question": _ERASED}
    options = (one_line(str(option)) for option in args.get("options") or ())
    # A form shows each option on one line, once, and returns it as it stands.
    different = tuple(dict.fromkeys(filter(None, options)))
    return WaitingQuestion(run, asked, clean(str(args.get("question", "")))[0], different)


def closed_question(view: View, run: RunRow, question_id: str) -> str:
    """Return why a run waits no longer for the answer to a question, in a sentence."""
    entry = view.last_entry(run.id, "Answered")
    if entry is not None and isinstance(entry.fact, Answered) and entry.fact.ask_id == question_id:
        return f"It was {entry.fact.decision} already, {decided_where(entry, entry.fact.channel)}."
    if run.ended:
        return f"It has ended ({run.state})."
    waits = waiting_question(view, run, now_us())
    return "It asks something else now." if waits is not None else f"It is {run.state}."


# -- the answer -------------------------------------------------------------------------------------------------------


def deliver(
    run_id: str, text: str, agent: Who, who: Who, channel: Channel, question_id: str = ""
) -> Command[str | WaitingQuestion]:
    """Deliver a message to a run; where the run waits with a question, the message is its answer.

    The value is `answered`, the run's state where it reads the message later, or why it never does: `ended`, `waiting`,
    `other` where it does not wait with `question_id`, or the question that takes more than a message: whether a call
    may be made, which only a person answers, by its id.

    `agent`: the run under the session that writes.
    """

    def command(view: View, now_us: int) -> Outcome[str | WaitingQuestion]:
        run = view.run(run_id)
        found = waiting_question(view, run, now_us) if run is not None else None
        if question_id and (found is None or found.id != question_id):
            return Outcome("other")
        if run is None or run.ended:
            return Outcome("ended")
        if run.state == WAITING:
            return Outcome("waiting")
        if found is not None:
            if found.to_allow and (not question_id or channel == "host_call"):
                return Outcome(found)
            return Outcome("answered", _answered(found, text, agent, who, channel))
        return Outcome(run.state, (Event(agent, UserMessage(text=text, kind="message"), run_id=run.id),))

    return command


def allows_call(view: View, run_id: str, question_id: str, text: str | None) -> bool:
    """Tell whether a text is a yes to the question with which a run waits, whether a call may be made."""
    run = view.run(run_id)
    found = waiting_question(view, run, now_us()) if run is not None else None
    return found is not None and found.id == question_id and found.allowed_by(text)


def answer_question(
    run_id: str, question_id: str, text: str | None, agent: Who, who: Who, channel: Channel
) -> Command[bool]:
    """Answer one question of a run, or decline to (no text); False where it does not wait any more.

    The other arguments are those of `deliver`.
    """

    def command(view: View, now_us: int) -> Outcome[bool]:
        run = view.run(run_id)
        found = waiting_question(view, run, now_us) if run is not None else None
        if found is None or found.asked.ask_id != question_id or (found.to_allow and channel == "host_call"):
            return Outcome(False)
        return Outcome(True, _answered(found, text, agent, who, channel))

    return command


def _answered(found: WaitingQuestion, text: str | None, agent: Who, who: Who, channel: Channel) -> tuple[Event, ...]:
    word = (text or "no").strip().casefold()
    allows = found.allowed_by(text) if found.to_allow else text is not None
    decided = Answered(
        kind=found.asked.kind, ask_id=found.id, decision="answered" if allows else "declined", channel=channel
    )
    # What a person says besides no, the run reads as a message.
    message = UserMessage(text=text or "", kind="answer" if allows else "message")
    said = () if word in _NO and not allows else (Event(agent, message, run_id=found.run.id),)
    return (*said, Event(who, decided, run_id=found.run.id))
