"""The questions of runs that wait for a person, and the commands that record the answers.

Where runs of one plan ask the same, `OpenQuestions` makes one question of theirs: a person sees it once, and one answer
is recorded for each of these runs. This holds only for kinds that `joins`: what leaves the machine or changes something
there is asked for each run. `question_kinds.py` says how each kind is shown, and what an answer does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pydantic import BaseModel

from ava_audit.events import Answered, Asked, Event, UserMessage
from ava_audit.rows import WAITING, RunRow
from ava_audit.units import now_us
from ava_audit.view import Command, Outcome, View
from ava_server.approval.decide import Shown
from ava_server.approval.outcomes import decided_where
from ava_server.core.errors import with_advice
from ava_server.core.ids import label
from ava_server.runs.asking.question_kinds import (
    ERASED,
    KINDS,
    Answer,
    Asker,
    Decider,
    Identity,
    PendingQuestion,
    QuestionDecision,
    refuse_answer,
)
from ava_server.runs.record.lifecycle import situation, transition

# -- what waits -------------------------------------------------------------------------------------------------------


def asked_of(run: RunRow) -> Asked | None:
    """Return what a run asks, or asked until its time to wait was over; None if it asked nothing, or has ended.

    Raises ValueError: a newer Ava wrote it.
    """
    if run.asked is None or run.ended:
        return None
    return Asked.model_validate_json(run.asked)


def pending_question(view: View, run: RunRow, now_us: int) -> PendingQuestion | None:
    """Return the question with which a run waits for a person, or None.

    Raises ValueError: a newer Ava wrote it.
    """
    return OpenQuestions(view, now_us).of(run)


class OpenQuestions:
    """The questions with which runs wait for a person, in one state of the log. Each is read once.

    Questions of runs of one plan are the same where their kind `joins` and the person would read the same text and the
    same choices. One that comes later joins those that are open.
    """

    def __init__(self, view: View, now_us: int) -> None:
        self._view = view
        self._now_us = now_us
        self._by_plan: dict[str, dict[Identity, list[PendingQuestion]]] = {}

    def of(self, run: RunRow) -> PendingQuestion | None:
        """Return what a run asks, with the others that ask it too. Raises ValueError: a newer Ava wrote it."""
        question = self._read(run)
        if question is None:
            return None
        alike = self.alike(question)
        others = [Asker(each.run.id, each.id, label(each.run)) for each in alike if each.run.id != run.id]
        return replace(question, others=tuple(others), first=alike[0].run.id == run.id)

    def once(self, rows: Iterable[RunRow]) -> list[PendingQuestion]:
        """Return what these runs ask, in their order, identical questions once. Raises ValueError: as `of`."""
        questions: list[PendingQuestion] = []
        for row in self.first_of_each(rows):
            question = self.of(row)
            if question is not None:
                questions.append(question)
        return questions

    def first_of_each(self, rows: Iterable[RunRow]) -> list[RunRow]:
        """Return these runs without those whose question another of them asked before."""
        rows = list(rows)
        ids = {row.id for row in rows}
        kept: list[RunRow] = []
        for row in rows:
            question = self._read(row) if row.step is not None else None
            if question is None:
                kept.append(row)
                continue
            first_id = next(each.run.id for each in self.alike(question) if each.run.id in ids)
            if first_id == row.id:
                kept.append(row)
        return kept

    def alike(self, question: PendingQuestion) -> list[PendingQuestion]:
        """Return the same question of each run of its plan, itself among them, in the order in which they asked."""
        plan_id = question.run.plan_id
        if question.run.step is None or plan_id is None or not question.kind.joins or question.text == ERASED:
            return [question]
        if plan_id not in self._by_plan:
            self._by_plan[plan_id] = self._questions_of_plan(plan_id)
        alike = self._by_plan[plan_id].get(question.identity, [])
        if any(each.run.id == question.run.id for each in alike):
            return alike
        return [question]  # it was answered after its row was read

    def _questions_of_plan(self, plan_id: str) -> dict[Identity, list[PendingQuestion]]:
        questions: dict[Identity, list[PendingQuestion]] = {}
        for row in self._view.asking_runs(plan_id):
            question = self._read(row)
            if question is not None:
                questions.setdefault(question.identity, []).append(question)
        return questions

    def _read(self, run: RunRow) -> PendingQuestion | None:
        asked = asked_of(run)
        if asked is None or transition(run, "answer", situation(run, self._now_us)) is None:
            return None
        return KINDS[asked.kind].read(self._view, run, asked)


class PendingExtension(BaseModel):
    """A request for more that waits, for commands and programs.

    The digest is that of the configuration which an approval makes. The request waits until `expires_us`, in
    microseconds since 1970.
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


def pending_requests(view: View, user: str, now_us: int) -> list[PendingExtension]:
    """Return the requests for more of a user's runs that wait for an answer, oldest first."""
    waiting = OpenQuestions(view, now_us).once(view.runs(user=user, states=("queued",), limit=-1))
    return [pending_request(question) for question in waiting if question.asked.for_more]


def pending_request(question: PendingQuestion) -> PendingExtension:
    return PendingExtension(
        extension_id=question.id,
        subagent_id=question.run.id,
        pending_id=question.run.pending_id,
        message=question.message,
        digest=question.asked.digest,
        expires_us=question.asked.expires_us,
    )


def closed_question(view: View, run: RunRow, shown: str, now_us: int) -> str:
    """Return why a question can no longer be answered, in a sentence without its full stop.

    `shown`: the digest of what the person was shown, which is that of `PendingQuestion.shown`.
    """
    for entry in reversed(view.entries(run.id, 0, ("Answered",))):
        answered = entry.fact
        if isinstance(answered, Answered) and shown == (answered.digest or answered.ask_id):
            ended = f"; it has ended ({run.state})" if run.ended else ""
            where = decided_where(entry, answered.channel)
            return f"{answered.ask_id} of {label(run)} was {answered.decision} already, {where}{ended}"
    if run.ended:
        return f"{label(run)} has ended ({run.state})"
    if pending_question(view, run, now_us) is not None:
        return f"what {label(run)} asks has changed since it was shown; look at it again"
    asked = asked_of(run)
    if asked is not None:
        return f"{label(run)} got no answer in time and {KINDS[asked.kind].unanswered}"
    return f"{label(run)} no longer waits for an answer: it is {run.state}"


# -- the answer -------------------------------------------------------------------------------------------------------


def is_approval(view: View, run_id: str, shown: str, answer: Answer | None) -> bool:
    """Tell whether an answer to the question with which a run waits takes what an approval does."""
    run = view.run(run_id)
    question = pending_question(view, run, now_us()) if run is not None else None
    return question is not None and question.shown.digest == shown and question.approved_by(answer)


def decide_question(run_id: str, shown: str, answer: Answer | None, by: Decider) -> Command[QuestionDecision]:
    """Decide on what a run asks, once.

    `shown`: the digest of what the person was shown. `answer`: None to decline.
    """

    def command(view: View, now_us: int) -> Outcome[QuestionDecision]:
        run = view.run(run_id)
        if run is None or run.user_id != by.who.user_id:
            return refuse_answer(f"no subagent {run_id} of yours is known")
        question = pending_question(view, run, now_us)
        if question is None or question.shown.digest != shown:
            return refuse_answer(closed_question(view, run, shown, now_us))
        return _decide_for_all(view, question, answer, by, now_us)

    return command


def deliver(run_id: str, text: str, by: Decider) -> Command[str | PendingQuestion | QuestionDecision]:
    """Deliver a message to a run; where the run waits with a question in words, the message is its answer.

    The value is the outcome of that answer, the run's state where it reads the message later, or why it never does:
    `ended`, `waiting`, or the question that takes more than a message: whether a call may be made.
    """

    def command(view: View, now_us: int) -> Outcome[str | PendingQuestion | QuestionDecision]:
        run = view.run(run_id)
        if run is None or run.ended:
            return Outcome("ended")
        if run.state == WAITING:
            return Outcome("waiting")
        question = pending_question(view, run, now_us)
        if question is None or not question.kind.in_words:
            message = UserMessage(text=text, kind="message")
            return Outcome(run.state, (Event(by.agent, message, run_id=run.id),))
        if question.to_allow:
            return Outcome(question)
        decided = _decide_for_all(view, question, text, by, now_us)
        return Outcome(decided.value, decided.events)

    return command


def _decide_for_all(
    view: View, question: PendingQuestion, answer: Answer | None, by: Decider, now_us: int
) -> Outcome[QuestionDecision]:
    """Decide for a run and for all that ask the same: each has its own entries."""
    decided = question.kind.decide(view, question, answer, by, now_us)
    if decided.value.status == "refused":
        return decided
    events = list(decided.events)
    run_ids = [question.run.id]
    for other in OpenQuestions(view, now_us).alike(question):
        if other.run.id == question.run.id:
            continue
        by_other = replace(by, agent=by.agent._replace(agent_id=other.run.id))
        events += other.kind.decide(view, other, answer, by_other, now_us).events
        run_ids.append(other.run.id)
    text = decided.value.text
    if len(question.others) == 1:
        text = with_advice(text, "So does 1 other run that asked the same.")
    elif question.others:
        text = with_advice(text, f"So do {len(question.others)} other runs that asked the same.")
    return Outcome(replace(decided.value, text=text, run_ids=tuple(run_ids)), tuple(events))
