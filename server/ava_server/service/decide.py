"""Carry out what a person has decided, about exactly what a screen of Ava's own has shown, for all kinds of decision.

Each is a call of the service, so it is checked and recorded like any other. What a host's client asks its person is in
`client_approval.py` and `questions.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ava_audit.rows import WAITING
from ava_server.approval.decide import Decided, PersonAnswer, Shown, tool_call
from ava_server.approval.proposals import changed_since
from ava_server.core.errors import Refused
from ava_server.core.ids import label
from ava_server.service.access import ignore_progress

if TYPE_CHECKING:
    from ava_audit.view import Readable
    from ava_server.service.service import Service


async def decide(service: Service, shown: Sequence[Shown], answer: PersonAnswer) -> Decided:
    """Carry out a decision.

    `shown`: what they were shown: one, or several proposals, which are approved as one group.

    Raises:
        AvaError: It was not accepted, or is about something else than what was shown.
        AuditError: The log cannot be written.
        RolesError: It was not accepted.
    """
    one, user = shown[0], service.session.user
    if one.kind == "extend":
        service.refuse_without("spawn")
        made = await service.extensions.decide(one.id, one.digest, approve=answer.agrees)
        return Decided({"status": made.status, "subagent_id": one.id, "message": made.text})
    if one.kind == "start" and answer.agrees:
        await refuse_changed(service.store, user, shown)
    if one.kind in ("answer", "resume"):
        run = await service.store.read(lambda view: view.run(one.id))
        # A run of another user does not exist for this one, as the call below says.
        if one.kind == "answer" and run is not None and run.user_id == user and run.question != one.digest:
            raise Refused(f"{label(run)} no longer waits for this answer; nothing was sent.")
        if one.kind == "resume" and run is not None and run.state == WAITING:  # the call would start it
            raise Refused(f"{one.id} does not wait to be resumed; nothing was done")
    tool, given = tool_call(shown, answer)
    return Decided((await service.call(tool, given, ignore_progress, raises=True)).structured())


async def refuse_changed(store: Readable, user: str, shown: Sequence[Shown]) -> None:
    """Refuse an approval of anything but what was shown: a digest differs."""
    digests = {one.id: one.digest for one in shown}
    if why := await store.read(lambda view: changed_since(view, user, digests)):
        raise Refused(why)
