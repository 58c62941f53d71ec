"""Questions of runs to a person: asked through the client where it can, and answered on any surface.

The client asks within a call, or as the question of a task. A question that its person has closed or not seen is not
asked again in the session; the run still waits. Where only the PIN allows more, the person is sent to the run's page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import quote

from ava_audit.events import Channel
from ava_audit.rows import RunRow
from ava_audit.units import now_us
from ava_audit.view import View
from ava_server.approval.decide import ONLY_PERSON, FoldedScreen
from ava_server.approval.requests import MessageArgs, parse
from ava_server.approval.start_form import PageOpener, PageQuestion, Person, Question, Reply
from ava_server.core.errors import Refused
from ava_server.core.ids import label
from ava_server.runs.asking.extension import extension_limits
from ava_server.runs.asking.pending_questions import (
    OpenQuestions,
    PendingExtension,
    closed_question,
    decide_question,
    deliver,
    pending_question,
    pending_requests,
)
from ava_server.runs.asking.question_kinds import Answer, Decider, PendingQuestion, QuestionDecision
from ava_server.service.access import Operations
from ava_server.service.open_questions import ask_until, outcomes, until_decided

_UNANSWERED = "The person has not answered; {run_id} still waits: {how} in a terminal."
_UNDECIDED = "The person has not decided; {run_id} still waits: at {page}, or {how} in a terminal."
_ASKED = (
    "Ava asks for your decision. Allow it on the page with your approval PIN, or decline there; then continue here."
)


class PersonQuestions(Operations):
    """Asks the person of a session what runs wait for, and carries out the replies; no model raises a cap."""

    async def waiting(self) -> list[PendingExtension]:
        """Return what this user's runs ask for more of, oldest first."""
        at_us = now_us()
        return await self._store.read(lambda view: pending_requests(view, self._session.user, at_us))

    async def decide(self, run_id: str, shown: str, *, approve: bool, words: str | None = None) -> QuestionDecision:
        """Carry out what a person has decided over this session's own channel.

        `shown`: the digest of what the person was shown. `approve`: raise the cap to what was proposed, or answer with
        these `words`; else the run wraps up, or goes on without an answer.

        Raises:
            BadInput: The words cannot be used.
            Refused: It no longer waits, has changed, or may not be decided here.
        """
        run = await self._access.run(run_id, "subagent_id")
        at_us = now_us()
        question = await self._store.read(lambda view: pending_question(view, run, at_us))
        if question is None:
            raise Refused(await self._store.read(lambda view: closed_question(view, run, shown, at_us)))
        answer = question.kind.yes(question, words) if approve else None
        return await self._decide(question, shown, answer, self._session.channel)

    async def _decide(
        self,
        question: PendingQuestion,
        shown: str,
        answer: Answer | None,
        channel: Channel,
        screen: FoldedScreen | None = None,
    ) -> QuestionDecision:
        """Decide with a person's answer, or with their no (None); `screen`: what they saw, where that was not all.

        Raises BadInput, Refused.
        """
        run_id = question.run.id
        if isinstance(answer, str):
            answer = parse(MessageArgs, {"subagent_id": run_id, "message": answer}).message
            self._access.refuse_keys({"answer": answer})
            answer = self._access.redact(answer)
        if answer is not None and question.asked.for_more:
            self._runtime.closing.refuse_new()
            self._runtime.settings.refuse_off("nothing was raised")
        if question.approved_by(answer):
            await self._access.refuse_without_pin([run_id], ONLY_PERSON[question.kind.decision].format(ids=run_id))
        decider = self._decider(question.run, channel)
        if screen is not None:
            decider = replace(decider, screen=self._access.screen_for_log(screen).text)
        decision = await self._store.do(decide_question(run_id, shown, answer, decider))
        if decision.status == "refused":
            raise Refused(decision.text)
        for waiting_id in decision.run_ids:
            self._access.wake(waiting_id)
        return decision

    def _decider(self, run: RunRow, channel: Channel) -> Decider:
        limits = extension_limits(self._runtime.settings, self._session.user)
        return Decider(self._session.who, self._access.agent_of(run), channel, limits)

    async def message(self, run: RunRow, text: str) -> str | PendingQuestion | QuestionDecision:
        """Deliver a message to a run, which may be the answer to its question; see `deliver`.

        Raises Refused if it is a plan.
        """
        if run.is_plan and not run.ended:
            raise Refused(f"{label(run)} is a plan, and reads no messages; give the subagent_id of one of its runs")
        return await self._store.do(deliver(run.id, text, self._decider(run, self._session.channel)))

    async def ask(self, rows: Sequence[RunRow], person: Person | None) -> str | None:
        """Ask the person about the first of these runs that waits for them, and return what came of it.

        A client that shows only yes and no cannot return an answer in words: there, the model passes it on.
        """
        if person is None:
            return None
        askable = [one for one in await self._waiting(rows) if person.fills_forms or not one.kind.in_words]
        if not askable:
            return None
        question = askable[0]
        shown = [question.shown]
        limits = self._runtime.spawn_limits_of(self._session.user)
        reply = await ask_until(
            lambda: until_decided(self._store, shown, limits),
            lambda: person.ask(question.form(), question.answer_in),
        )
        elsewhere = await outcomes(self._store, shown, limits)
        if elsewhere:
            return " ".join(elsewhere.values())
        try:
            outcome = await self._carry_out(question, reply or Reply("cancel"))
        except Refused as refused:
            return f"{refused}."
        if outcome:
            return outcome
        return self._access.adapt_text(_UNANSWERED.format(run_id=question.run.id, how=question.in_a_terminal))

    async def send(self, rows: Sequence[RunRow], pages: PageOpener | None) -> str | None:
        """Send the person to the page of the first of these runs that only the PIN allows more, and wait for that."""
        if pages is None:
            return None
        need_pin: list[PendingQuestion] = []
        for one in await self._waiting(rows, by_pin=True):
            if one.kind.is_approval and await self._access.needs_pin([one.run.id]):
                need_pin.append(one)
        if not need_pin:
            return None
        address = await pages.address()
        if address is None:
            return None
        question = need_pin[0]
        run_id = question.run.id
        page = PageQuestion(f"{_ASKED}\n{question.message}", f"{address}/subagents/{quote(run_id)}")

        shown = [question.shown]
        limits = self._runtime.spawn_limits_of(self._session.user)
        await pages.open(page, lambda: until_decided(self._store, shown, limits), self._session.opened)
        elsewhere = await outcomes(self._store, shown, limits)
        if elsewhere:
            self._session.opened.discard(page.sha())
            return " ".join(elsewhere.values())
        self._session.unanswered.update(question.ids)
        return self._access.adapt_text(_UNDECIDED.format(run_id=run_id, page=page.url, how=question.in_a_terminal))

    async def open(self, rows: Sequence[RunRow]) -> dict[str, Question]:
        """Return the questions of these runs to a person whom a client can ask, by their ids; identical ones once."""
        return {one.id: one.form() for one in await self._waiting(rows)}

    async def answer(self, rows: Sequence[RunRow], question_id: str, reply: Reply) -> str | None:
        """Carry out a person's answer to one of these questions, and return what came of it.

        An answer to no open question changes nothing; then None is returned.

        Raises:
            BadInput: What is in the form cannot be used; the question stays open.
            Refused: It cannot be allowed any more.
        """
        by_id: dict[str, PendingQuestion] = {}
        for waiting in await self._waiting(rows, by_pin=True):  # a no takes no PIN
            by_id.update(dict.fromkeys(waiting.ids, waiting))
        question = by_id.get(question_id)
        if question is None:
            return None
        return await self._carry_out(question, reply)

    async def _carry_out(self, question: PendingQuestion, reply: Reply) -> str | None:
        """Carry out a reply and return what came of it; None where the person closed the question."""
        if reply.action in ("cancel", "silent"):
            self._session.unanswered.update(question.ids)
            return None
        answer = question.answer_in(reply) if reply.action == "accept" else None
        screen = question.form().screen
        decision = await self._decide(question, question.shown.digest, answer, "elicitation", screen)
        return decision.text

    async def _waiting(self, rows: Sequence[RunRow], *, by_pin: bool = False) -> list[PendingQuestion]:
        """Return the questions of these runs and of their plans' runs that this session's person may answer.

        Identical questions of a plan's runs are one, and those that the person has closed are left out. `by_pin`: the
        person can give the approval PIN.
        """
        owned = [row for row in rows if self._access.owns(row) and (row.asked or row.is_plan)]
        if not owned or not self._session.may("spawn"):
            return []
        at_us = now_us()

        def query(view: View) -> list[PendingQuestion]:
            asking: list[RunRow] = []
            for row in owned:
                if row.is_plan:  # it asks through its runs
                    asking.extend(view.asking_runs(row.id))
                else:
                    asking.append(row)
            return OpenQuestions(view, at_us).once(asking)

        answerable: list[PendingQuestion] = []
        for one in await self._store.read(query):
            if one.id in self._session.unanswered:
                continue
            if not by_pin and one.kind.is_approval and await self._access.needs_pin([one.run.id]):
                continue
            answerable.append(one)
        return answerable
