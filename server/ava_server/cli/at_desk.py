"""The terminal at the service: a session of its own, and the tools that a host would call, called by a person."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from ava_server.core.data_root import working_folder
from ava_server.core.errors import Refused

if TYPE_CHECKING:
    from ava_audit.events import CancelledBy
    from ava_server.service.access import Session
    from ava_server.service.responses import Answer, ConfirmAnswer, SpawnAnswer
    from ava_server.service.runtime import Runtime
    from ava_server.service.service import Service


@asynccontextmanager
async def session(
    runtime: Runtime, command: str, *, asked: bool, roots: tuple[str, ...] = (), by: CancelledBy = "person"
) -> AsyncGenerator[Session]:
    """Begin and end a session at the terminal.

    Args:
        runtime: The open data root.
        command: The command that is running, as the log names it.
        asked: A person decides what starts; where nobody does, the log claims no person's approval.
        roots: Folders that a workspace may lie in.
        by: Whose word it is when this session ends a run.
    """
    from ava_audit.events import Event, SessionEnd, SessionStart
    from ava_audit.store.store import Outcome
    from ava_server.service.access import Session

    own = Session(
        user=runtime.user,
        transport="terminal",
        client=command,
        client_version=version("ava-subagents"),
        channel="terminal" if asked else "host_call",
        roots=roots,
        by=by,
    )
    here = working_folder()
    start = SessionStart(
        client=command,
        client_version=own.client_version,
        transport="terminal",
        folder=str(here) if here is not None else None,
    )
    runtime.manager.adopt_session(own.id)
    runtime.store.post(lambda _view, _now_us: Outcome(None, (Event(own.who, start),)))
    try:
        yield own
    finally:
        end = Event(own.who, SessionEnd(reason="the command ended"))
        runtime.store.post(lambda _view, _now_us: Outcome(None, (end,)))


async def propose(service: Service, spawn: dict[str, Any], *, degraded: bool = False) -> SpawnAnswer:
    """Propose a subagent.

    Args:
        service: Where.
        spawn: The arguments of `spawn_subagent`.
        degraded: It may go without tools that its role needs and that are not there.

    Raises:
        AvaError: It may not be, or an argument cannot be used.
    """
    from ava_server.service.responses import SpawnAnswer

    proposal = await service.call("spawn_subagent", spawn, silent, raises=True, degraded=degraded)
    assert isinstance(proposal, SpawnAnswer)
    return proposal


async def start(
    service: Service, proposals: Sequence[SpawnAnswer], *, last: str | None = None, **more: Any
) -> str | None:
    """Approve proposals and return the id of their group, which one alone has not.

    Args:
        service: Where.
        proposals: What was shown.
        last: The line of several together.
        more: The limits of several together.

    Raises:
        Refused: They may not be started; says why.
    """
    from ava_server.approval.decisions import OTHER_REFUSED

    lines = [proposal.approval_line or "" for proposal in proposals]
    decided = await decide(service, proposals, "approve", approving=[*lines, *([last] if last else [])], **more)
    if decided.status != "approved":
        reasons = dict.fromkeys(one.refused_because for one in decided.decisions if one.refused_because)
        telling = [why for why in reasons if why != OTHER_REFUSED] or list(reasons)
        raise Refused(f"Not started: {'; '.join(telling)}.")
    return decided.group_id


async def decide(service: Service, proposals: Sequence[SpawnAnswer], decision: str, **more: Any) -> ConfirmAnswer:
    """Decide about proposals.

    Raises:
        AvaError: It cannot be decided.
    """
    from ava_server.service.responses import ConfirmAnswer

    given = {"pending_ids": [proposal.pending_id for proposal in proposals], "decision": decision, **more}
    answer: Answer = await service.call("confirm_spawn", given, silent, raises=True)
    assert isinstance(answer, ConfirmAnswer)
    return answer


async def silent(_line: str) -> None:
    """Say nothing: progress is watched in the log."""
