"""What runs wait for a person with, where the client can ask one: more for a run near a cap, or a run's own question.

The client asks within a call, or as the question of a task. A question that its person has closed or not seen is not
asked again in the session; the run still waits. Where only the PIN allows more, the person is sent to the run's page.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

import anyio

from ava_audit.events import Channel
from ava_audit.rows import RunRow
from ava_audit.units import now_us
from ava_audit.view import View
from ava_server.approval.decide import ONLY_PERSON, Shown
from ava_server.approval.questions import PageOpener, PageQuestion, Person, Question, Reply
from ava_server.approval.requests import MessageArgs, parse
from ava_server.core.errors import Refused
from ava_server.core.ids import label
from ava_server.runs.extension import (
    ExtensionAnswer,
    PendingExtension,
    WaitingExtension,
    decide_extension,
    extension_limits,
    waiting_extension,
    waiting_extensions,
)
from ava_server.runs.questions import WaitingQuestion, answer_question, waiting_question
from ava_server.service.access import Operations
from ava_server.service.outcomes import ask_until, outcomes, until_decided

Waiting = WaitingExtension | WaitingQuestion
LOOK_S = 1.0
_UNANSWERED = "The person has not answered; {run_id} still waits: {how} in a terminal."
_UNDECIDED = "The person has not decided; {run_id} still waits: at {page}, or {how} in a terminal."
_ASKED = (
    "Ava asks for your decision. Allow it on the page with your approval PIN, or decline there; then continue here."
)


class PersonQuestions(Operations):
    """Asks the person of a session what runs wait for, and carries out the replies; no model raises a cap."""

    async def waiting(self) -> list[PendingExtension]:
        """Return what this user's runs ask for, oldest first."""
        at_us = now_us()
        found = await self._store.read(lambda view: waiting_extensions(view, self._session.user, at_us))
        return [one.pending for one in found]

    async def decide(self, run_id: str, shown: str, *, approve: bool) -> ExtensionAnswer:
        """Carry out what a person has decided over this session's own channel.

        `shown`: the digest of what the person was shown. `approve`: raise the cap to what was proposed; else the run
        wraps up.

        Raises:
            Refused: It no longer waits, has changed, or may not be decided here.
        """
        run, at_us = await self._access.run(run_id, "subagent_id"), now_us()
        found = await self._store.read(lambda view: waiting_extension(view, run, at_us))
        if isinstance(found, str):
            raise Refused(found)
        return await self._extend(found, shown, found.asked.proposed if approve else None, self._session.channel)

    async def _extend(
        self, one: WaitingExtension, shown: str, allow: float | None, channel: Channel
    ) -> ExtensionAnswer:
        """Raise a cap to what a person allows, or have the run wrap up (None); see `decide_extension`."""
        settings, run_id = self._runtime.settings, one.run.id
        if allow is not None:
            self._runtime.closing.refuse_new()
            settings.refuse_off("nothing was raised")
            await self._access.refuse_without_pin([run_id], ONLY_PERSON["extend"].format(ids=run_id))
        limits = extension_limits(settings, self._session.user)
        answer = await self._store.do(decide_extension(run_id, shown, self._session.who, channel, limits, allow=allow))
        if answer.status == "refused":
            raise Refused(answer.text)
        self._access.wake(run_id)
        return answer

    async def ask(self, rows: Sequence[RunRow], person: Person | None) -> str | None:
        """Ask the person about the first of these runs that waits for them, and return what came of it.

        A client that shows only yes and no cannot return an answer in words: there, the model passes it on.
        """
        if person is None:
            return None
        found = [one for one in await self._waiting(rows) if person.fills_forms or isinstance(one, WaitingExtension)]
        if not found:
            return None
        first = found[0]
        use = first.allowed if isinstance(first, WaitingExtension) else first.answer_in
        shown, limits = [_shown(first)], self._runtime.spawn_limits_of(self._session.user)
        reply = await ask_until(
            lambda: until_decided(self._store, shown, limits), lambda: person.ask(first.question(), use)
        )
        if elsewhere := await outcomes(self._store, shown, limits):
            return " ".join(elsewhere.values())
        try:
            decided = await self._carry_out(first, reply or Reply("cancel"))
        except Refused as refused:
            return f"{refused}."
        left = _UNANSWERED.format(run_id=first.run.id, how=first.in_a_terminal)
        return decided or self._access.adapt_text(left)

    async def send(self, rows: Sequence[RunRow], pages: PageOpener | None) -> str | None:
        """Send the person to the page of the first of these runs that only the PIN allows more, and wait for that."""
        if pages is None:
            return None
        found: list[Waiting] = []
        for one in await self._waiting(rows, by_pin=True):
            if _is_approval(one) and await self._access.needs_pin([one.run.id]):
                found.append(one)
        address = await pages.address() if found else None
        if address is None:
            return None
        first, run_id = found[0], found[0].run.id
        question = PageQuestion(f"{_ASKED}\n{first.message}", f"{address}/subagents/{quote(run_id)}")

        async def decided() -> None:
            while True:
                seen = self._store.head
                if not await self._waits(first):
                    return
                with anyio.move_on_after(LOOK_S):  # it also ends without an entry, when its time is over
                    await self._store.wait_for_entry_after(seen)

        await pages.open(question, decided, self._session.opened)
        if not await self._waits(first):
            self._session.opened.discard(question.sha())
            limits = self._runtime.spawn_limits_of(self._session.user)
            return " ".join((await outcomes(self._store, [_shown(first)], limits)).values())
        self._session.unanswered.add(first.id)
        left = _UNDECIDED.format(run_id=run_id, page=question.url, how=first.in_a_terminal)
        return self._access.adapt_text(left)

    async def _waits(self, one: Waiting) -> bool:
        def query(view: View) -> bool:
            row, at_us = view.run(one.run.id), now_us()
            found = row and (waiting_question(view, row, at_us) or waiting_extension(view, row, at_us))
            return isinstance(found, Waiting) and found.id == one.id

        return await self._store.read(query)

    async def open(self, rows: Sequence[RunRow]) -> dict[str, Question]:
        """Return the questions of these runs to a person whom a client can ask, by their ids."""
        return {one.id: one.question() for one in await self._waiting(rows)}

    async def answer(
        self, rows: Sequence[RunRow], question_id: str, reply: Reply, channel: Channel = "elicitation"
    ) -> str | None:
        """Carry out a person's answer to one of these questions, and return what came of it.

        An answer to no open question changes nothing; then None is returned.

        Raises:
            BadInput: What is in the form cannot be used; the question stays open.
            Refused: It cannot be allowed any more.
        """
        found = {one.id: one for one in await self._waiting(rows, by_pin=True)}  # a no takes no PIN
        one = found.get(question_id)
        return await self._carry_out(one, reply, channel) if one is not None else None

    async def _carry_out(self, one: Waiting, reply: Reply, channel: Channel = "elicitation") -> str | None:
        """Carry out a reply and return what came of it; None where the person closed the question."""
        if reply.action in ("cancel", "silent"):
            self._session.unanswered.add(one.id)
            return None
        if isinstance(one, WaitingExtension):
            allow = one.allowed(reply) if reply.action == "accept" else None
            return (await self._extend(one, one.asked.digest, allow, "elicitation")).text
        text = None
        if reply.action == "accept":
            answer = parse(MessageArgs, {"subagent_id": one.run.id, "message": one.answer_in(reply)}).message
            self._access.refuse_keys({"answer": answer})
            text = self._access.redact(answer)
            if one.allowed_by(text):
                await self._access.refuse_without_pin([one.run.id], ONLY_PERSON["answer"])
        agent, who = self._access.agent_of(one.run), self._session.who
        command = answer_question(one.run.id, one.id, text, agent, who, channel)
        if not await self._store.do(command):
            limits = self._runtime.spawn_limits_of(self._session.user)
            elsewhere = await outcomes(self._store, [_shown(one)], limits)
            raise Refused(" ".join(elsewhere.values()).removesuffix("."))
        self._access.wake(one.run.id)
        return f"{label(one.run)} has its answer and continues." if text is not None else f"{label(one.run)} continues."

    async def _waiting(self, rows: Sequence[RunRow], *, by_pin: bool = False) -> list[Waiting]:
        """Return what these runs wait with, as far as this session's person may answer it and has not closed it.

        With `by_pin`, they can give the approval PIN.
        """
        owned = [row for row in rows if self._access.owns(row) and row.asked]
        if not owned or not self._session.may("spawn"):
            return []
        at_us = now_us()

        def query(view: View) -> list[Waiting]:
            found = (waiting_question(view, row, at_us) or waiting_extension(view, row, at_us) for row in owned)
            return [one for one in found if not isinstance(one, str)]

        answerable: list[Waiting] = []
        for one in await self._store.read(query):
            if one.id in self._session.unanswered:
                continue
            if not by_pin and _is_approval(one) and await self._access.needs_pin([one.run.id]):
                continue
            answerable.append(one)
        return answerable


def _shown(one: Waiting) -> Shown:
    """Return what the person is asked about."""
    if isinstance(one, WaitingExtension):
        return one.pending.shown
    return Shown("answer", one.run.id, one.id)


def _is_approval(one: Waiting) -> bool:
    """Tell whether a yes takes what an approval does."""
    return isinstance(one, WaitingExtension) or one.to_allow
