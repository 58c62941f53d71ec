"""A run's questions to the person who started it: the tool `ask`, and what answers it.

A run that asks waits like a paused one: without a slot, and its clock stops. The answer comes over any channel, also
from the orchestrator. Without one, the run continues when its time to wait is over, and the model reads that nobody has
answered.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ava_audit.events import ActReason, Asked
from ava_audit.units import now_us
from ava_audit.view import View
from ava_roles.errors import ToolFailed
from ava_roles.tool import ToolContext, ToolOutput
from ava_roles.tools.run import ASK, AskArgs
from ava_roles.wrap import one_line
from ava_server.core.ids import new_id
from ava_server.runs.record.plan_time import wait_for_person

if TYPE_CHECKING:
    from ava_audit.store.store import Store
    from ava_server.models.base import ToolUse
    from ava_server.runs.record.history import History, QuestionAnswer

LEAST_LEFT_S = 10.0
"""With less time to work, a run does not ask: its wrap-up would begin before the model has read the answer."""
MOST_TO_ALLOW = 10
"""How often a run asks whether a call may be made."""
VALUE_CHARS = 2_000
"""Most characters of a value that a person is asked about."""
MOST_VALUES = 8
"""Most values of a call that a person is asked about."""
MOST_GIVEN = 20
"""Most values of a call that are shown where the call itself is asked about."""
GIVEN_CHARS = 200
"""Most characters of such a value."""
_GO_ON = "Go on with what is most likely meant, and say in the result what you have assumed."


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
        """Return the entry of a call's question; None where it was asked before, or nobody can be asked.

        `left_s`: seconds that the run has left to work; with too few, an answer would be of no use.
        """
        if call_id in self._history.questions or self._history.question_count >= self._most:
            return None
        return await self._new(call_id, left_s)

    async def to_allow(
        self, call: ToolUse, left_s: float, doubts: Sequence[Doubt], act: ActReason, given: tuple[dict[str, str], ...]
    ) -> Asked | None:
        """Return the question whether a call may be made, or None.

        `doubts`: its values that nobody approved. `act`: why the call itself is asked about, and `given` what it
        passes. A run asks this at most `MOST_TO_ALLOW` times, and not again after one that got no answer.
        """
        if len(doubts) > MOST_VALUES or any(len(each.value) > VALUE_CHARS for each in doubts):
            return None
        earlier = self._history.call_questions
        if len(earlier) >= MOST_TO_ALLOW or any(each.ask_id not in self._history.answers for each in earlier):
            return None
        question = await self._new(call.call_id, left_s)
        if question is None:
            return None
        values = tuple(map(asdict, doubts))
        about = {"kind": "call", "tool": call.name, "values": values, "act": act, "given": given}
        return question.model_copy(update=about)

    async def _new(self, call_id: str, left_s: float) -> Asked | None:
        wait_s = await self._store.read(self._time) if left_s >= LEAST_LEFT_S else 0
        if wait_s <= 0:
            return None
        expires_us = now_us() + wait_s * 1_000_000
        return Asked(kind="question", ask_id=new_id("question_id"), call_id=call_id, expires_us=expires_us)

    async def __call__(self, args: AskArgs, at: ToolContext) -> ToolOutput:
        """Return the answer to this call's question, or say that there is none. Raises ToolFailed: it was not asked."""
        question = self._history.questions.get(at.call_id)
        if question is not None:
            return ToolOutput(_words(self._history.answers.get(question.ask_id)), own=True)
        if self._history.question_count < self._most:
            raise ToolFailed(f"no time is left to wait. {_GO_ON}")
        many = "1 question" if self._most == 1 else f"{self._most} questions"
        raise ToolFailed(f"a run may ask {many}, and you have. {_GO_ON}")

    def _time(self, view: View) -> int:
        return math.floor(wait_for_person(view, view.run(self._history.run_id), self._wait_s, now_us()))


def shown_options(args: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the options of a call of `ask` as a person is shown them: each on one line, and once."""
    options = [one_line(str(option)) for option in args.get("options") or ()]
    return tuple(dict.fromkeys(filter(None, options)))


def _words(answer: QuestionAnswer | None) -> str:
    if answer is None:
        return f"Nobody has answered. {_GO_ON}"
    if answer.fact.decision == "declined":
        return f"The person does not want to answer. {_GO_ON}"
    who = "The person answers"
    if answer.fact.channel == "host_call":
        who = "The orchestrator answers; whether the person said so is not known"
    return f"{who}. This may steer the work, and changes no limit:\n{answer.text}"
