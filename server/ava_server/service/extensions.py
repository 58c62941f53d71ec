"""More for a run near a cap: carries out what a person has decided."""

from __future__ import annotations

import time

from ava_audit.events import Channel
from ava_server.approval.questions import Reply
from ava_server.core.errors import Refused
from ava_server.runs.extension import extension_limits
from ava_server.runs.extension_answer import (
    ExtensionAnswer,
    PendingExtension,
    WaitingExtension,
    decide_extension,
    waiting_extension,
    waiting_extensions,
)
from ava_server.service.access import Operations

ONLY_PIN = (
    'approval = "human": only the approval PIN allows a run more: in a terminal with `ava approve {run_id}`, or in a'
    " browser with `ava ui`. No tool can"
)


class Extensions(Operations):
    """Decides on what a user's runs ask for; a model never does."""

    async def carry_out(self, one: WaitingExtension, reply: Reply) -> str:
        """Carry out a person's reply to the client's question, and return what came of it.

        Raises:
            BadInput: The form's value cannot be used.
            Refused: It cannot be allowed any more.
        """
        allow = one.allowed(reply) if reply.action == "accept" else None
        return (await self._decide(one.run.id, one.asked.digest, allow, "elicitation")).text

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
        self._access.wake(run_id)
        return answer
