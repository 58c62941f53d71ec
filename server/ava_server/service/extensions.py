"""More for a run near a cap: asks the person whom a client can ask, and carries out what a person has decided."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ava_audit.events import Channel
from ava_audit.rows import RunRow
from ava_server.approval.questions import Person, Question, Reply
from ava_server.core.errors import Refused
from ava_server.runs.extension import asked_of, extension_limits
from ava_server.runs.extension_answer import (
    ExtensionAnswer,
    PendingExtension,
    WaitingExtension,
    decide_extension,
    waiting_extension,
    waiting_extensions,
)
from ava_server.runs.lifecycle import asking
from ava_server.service.access import Operations

ONLY_PIN = (
    'approval = "human": only the approval PIN allows a run more, in a terminal: `ava approve {run_id}`. No tool can'
)
_UNANSWERED = "The person has not answered; {run_id} still waits: `ava approve {run_id}` in a terminal."


class Extensions(Operations):
    """Decides on what a user's runs ask for; a model never does."""

    async def ask(self, rows: Sequence[RunRow], person: Person | None) -> str | None:
        """Ask the person about the first of these runs that waits for an answer, and return what came of it.

        A question that was closed or not seen is not asked again in this session; the run still waits.

        Raises:
            BadInput: The form's value cannot be used.
            AnsweredLater: The client asks the person and calls again.
        """
        found = await self._to_ask_about(rows) if person is not None else []
        if person is None or not found:
            return None
        first = found[0]
        reply = await person.ask(first.question())
        try:
            decided = await self._carry_out(first, reply)
        except Refused as refused:
            return f"{refused}."
        return decided.text if decided else self._access.adapt_text(_UNANSWERED.format(run_id=first.run.id))

    async def questions(self, rows: Sequence[RunRow]) -> dict[str, Question]:
        """Return what these runs ask a person whom a client can ask: the questions, by the ids of the requests."""
        return {one.asked.extension_id: one.question() for one in await self._to_ask_about(rows)}

    async def answer(self, rows: Sequence[RunRow], extension_id: str, reply: Reply) -> None:
        """Carry out a person's answer to one of these questions; an answer to no open question changes nothing.

        Raises:
            BadInput: The form's value cannot be used.
            Refused: It cannot be allowed any more.
        """
        found = {one.asked.extension_id: one for one in await self._to_ask_about(rows)}
        if (one := found.get(extension_id)) is not None:
            await self._carry_out(one, reply)

    async def _carry_out(self, one: WaitingExtension, reply: Reply) -> ExtensionAnswer | None:
        """Carry out a person's reply; None where they closed the question, which is then not asked here again."""
        if reply.action in ("cancel", "silent"):
            self._session.unanswered.add(one.asked.extension_id)
            return None
        allow = one.allowed(reply) if reply.action == "accept" else None
        return await self._decide(one.run.id, one.asked.digest, allow, "elicitation")

    async def _to_ask_about(self, rows: Sequence[RunRow]) -> list[WaitingExtension]:
        """Return what these runs ask for, as far as this session's person may decide it and has not closed it."""
        now_us = time.time_ns() // 1000
        asking_now = [row for row in rows if self._access.owns(row) and self._may_ask_about(row, now_us)]
        if not asking_now or not self._session.may("spawn"):
            return []
        if await self._runtime.policy(self._session.user) == "human" and not self._session.pin_given:
            return []
        found = await self._store.read(lambda view: [waiting_extension(view, row, now_us) for row in asking_now])
        return [one for one in found if isinstance(one, WaitingExtension)]

    def _may_ask_about(self, row: RunRow, now_us: int) -> bool:
        asked = asked_of(row) if asking(row, now_us) else None
        return asked is not None and asked.extension_id not in self._session.unanswered

    async def waiting(self) -> list[PendingExtension]:
        """Return what this user's runs ask for, oldest first."""
        now_us = time.time_ns() // 1000
        found = await self._store.read(lambda view: waiting_extensions(view, self._session.user, now_us))
        return [one.pending for one in found]

    async def decide(self, run_id: str, shown: str, *, approve: bool) -> ExtensionAnswer:
        """Carry out what a person has decided over this session's own channel.

        Args:
            run_id: The run that asks.
            shown: The digest of what the person was shown.
            approve: Raise the cap to what was proposed; else the run wraps up.

        Raises:
            BadInput: There is no such run.
            Refused: It no longer waits, has changed, or may not be decided here.
        """
        run, now_us = await self._access.run(run_id, "subagent_id"), time.time_ns() // 1000
        found = await self._store.read(lambda view: waiting_extension(view, run, now_us))
        if isinstance(found, str):
            raise Refused(found)
        return await self._decide(run_id, shown, found.asked.proposed if approve else None, self._session.channel)

    async def _decide(self, run_id: str, shown: str, allow: float | None, channel: Channel) -> ExtensionAnswer:
        settings, user = self._runtime.settings, self._session.user
        if allow is not None:
            self._runtime.closing.refuse_new()
            if not settings.enabled:
                raise Refused("subagents are switched off here (enabled = false in config.toml); nothing was raised")
            await self._access.refuse_without_pin(ONLY_PIN.format(run_id=run_id))
        limits = extension_limits(settings, user)
        command = decide_extension(run_id, shown, self._session.who, channel, limits, allow=allow)
        answer = await self._store.do(command)
        if answer.status == "refused":
            raise Refused(answer.text)
        self._runtime.manager.adopt_run(run_id)
        self._runtime.manager.wake()
        return answer
