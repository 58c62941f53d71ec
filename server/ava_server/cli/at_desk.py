"""The terminal at the desk: a session of its own, and the tools that a host would call, called by a person."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ava_server.errors import Refused

if TYPE_CHECKING:
    from ava_audit.events import CancelledBy
    from ava_server.answers import Answer, ConfirmAnswer, SpawnAnswer
    from ava_server.desk import Desk
    from ava_server.house import House
    from ava_server.session import Session


@asynccontextmanager
async def session(
    house: House, command: str, *, asked: bool, roots: tuple[str, ...] = (), by: CancelledBy = "person"
) -> AsyncGenerator[Session]:
    """Begin and end a session at the terminal.

    Args:
        house: The open data root.
        command: The command that is running, as the log names it.
        asked: A person decides what starts; where nobody does, the log claims no person's approval.
        roots: Folders that a workspace may lie in.
        by: Whose word it is when this session ends a run.
    """
    from ava_audit.events import Event, SessionEnd, SessionStart
    from ava_audit.store import Outcome
    from ava_server.session import Session

    own = Session(
        user=house.user,
        transport="terminal",
        client=command,
        client_version=version("ava-subagents"),
        channel="terminal" if asked else "host_call",
        roots=roots,
        by=by,
    )
    start = SessionStart(
        client=command, client_version=own.client_version, transport="terminal", folder=str(Path.cwd())
    )
    house.manager.adopt_session(own.id)
    house.store.post(lambda _view, _now_us: Outcome(None, (Event(own.who, start),)))
    try:
        yield own
    finally:
        end = Event(own.who, SessionEnd(reason="the command ended"))
        house.store.post(lambda _view, _now_us: Outcome(None, (end,)))


async def propose(desk: Desk, spawn: dict[str, Any]) -> SpawnAnswer:
    """Propose a subagent.

    Raises:
        AvaError: It may not be, or an argument cannot be used.
    """
    from ava_server.answers import SpawnAnswer

    proposal = await desk.call("spawn_subagent", spawn, silent, raises=True)
    assert isinstance(proposal, SpawnAnswer)
    return proposal


async def start(desk: Desk, proposal: SpawnAnswer) -> str | None:
    """Approve a proposal and return the run's id.

    Raises:
        Refused: It may not be started; says why.
    """
    decided = await decide(desk, proposal, "approve", approving=[proposal.approval_line or ""])
    decision = decided.decisions[0]
    if decided.status != "approved":
        raise Refused(f"Not started: {decision.refused_because}.")
    return decision.subagent_id


async def decide(desk: Desk, proposal: SpawnAnswer, decision: str, **more: Any) -> ConfirmAnswer:
    """Decide about a proposal.

    Raises:
        AvaError: It cannot be decided.
    """
    from ava_server.answers import ConfirmAnswer

    given = {"pending_ids": [proposal.pending_id], "decision": decision, **more}
    answer: Answer = await desk.call("confirm_spawn", given, silent, raises=True)
    assert isinstance(answer, ConfirmAnswer)
    return answer


async def silent(_line: str) -> None:
    """Say nothing: progress is watched in the log."""
