"""The command line as a client of the service: a session at the terminal, and the tools that a host would call."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

from ava_server.core.data_root import working_folder
from ava_server.core.errors import Refused

if TYPE_CHECKING:
    from ava_audit.events import CancelledBy
    from ava_server.approval.proposals import Pending
    from ava_server.config.settings import Settings
    from ava_server.service.access import Session
    from ava_server.service.responses import ConfirmAnswer, SpawnAnswer
    from ava_server.service.runtime import Runtime
    from ava_server.service.service import Service


@asynccontextmanager
async def open_session(
    runtime: Runtime, command: str, *, asked: bool, roots: tuple[str, ...] = (), by: CancelledBy = "person"
) -> AsyncGenerator[Session]:
    """Begin and end a session at the terminal.

    Args:
        runtime: The open data root.
        command: The running command, as the log names it.
        asked: A person decides what starts; otherwise the log claims no person's approval.
        roots: Folders that may contain a workspace.
        by: Who ends a run that this session cancels.
    """
    from importlib.metadata import version

    from ava_audit.events import Event, SessionEnd, SessionStart
    from ava_audit.store.store import Outcome
    from ava_server.service.access import Session

    session = Session(
        user=runtime.user,
        transport="terminal",
        client=command,
        client_version=version("ava-subagents"),
        channel="terminal" if asked else "host_call",
        roots=roots,
        by=by,
        admin=runtime.settings.paths.owned,
    )
    here = working_folder()
    begin = SessionStart(
        client=command,
        client_version=session.client_version,
        transport="terminal",
        folder=str(here) if here is not None else None,
    )
    runtime.manager.adopt_session(session.id)
    runtime.store.post(lambda _view, _now_us: Outcome(None, (Event(session.who, begin),)))
    try:
        yield session
    finally:
        end = Event(session.who, SessionEnd(reason="the command ended"))
        runtime.store.post(lambda _view, _now_us: Outcome(None, (end,)))


@asynccontextmanager
async def open_service(
    settings: Settings, command: str, *, asked: bool = True, runs: bool = False, roots: tuple[str, ...] = ()
) -> AsyncGenerator[tuple[Runtime, Service]]:
    """Open the data root, and a session at the terminal with its service.

    Args:
        settings: The settings.
        command: The running command, as the log names it.
        asked: A person decides what starts, and it continues if they close the terminal; otherwise the log claims no
            person's approval or answer, and the runs are this process's own.
        runs: Serve this user's runs; False for a process that is gone in a moment.
        roots: Folders that may contain a workspace.
    """
    from ava_server.service.runtime import open_runtime
    from ava_server.service.service import Service

    async with (
        open_runtime(settings, runs=runs, driver="worker" if asked else "this process") as runtime,
        open_session(runtime, command, asked=asked, roots=roots) as session,
    ):
        yield runtime, Service(runtime, session)


async def propose(service: Service, spawn: dict[str, Any], *, degraded: bool = False) -> SpawnAnswer:
    """Propose a subagent.

    Args:
        service: The service.
        spawn: The arguments of `spawn_subagent`.
        degraded: Accept that tools which its role needs are missing.

    Raises:
        AvaError: It is refused, or an argument is wrong.
    """
    answer = await service.call("spawn_subagent", spawn, ignore_progress, raises=True, degraded=degraded)
    return cast("SpawnAnswer", answer)


async def start(
    service: Service, proposals: Sequence[SpawnAnswer | Pending], *, group_line: str | None = None, **limits: Any
) -> str | None:
    """Approve proposals as they were shown, and return their group's id; None for a single one.

    Args:
        service: The service.
        proposals: The proposals that were shown.
        group_line: The approval line of all together.
        limits: The limits of all together.

    Raises:
        Refused: They may not start; says why.
    """
    lines = [proposal.approval_line or "" for proposal in proposals]
    approving = [*lines, *([group_line] if group_line else [])]
    answer = await decide(service, proposals, "approve", approving=approving, **limits)
    refuse_unless_approved(answer, "Not started")
    return answer.group_id


def refuse_unless_approved(answer: ConfirmAnswer, outcome: str) -> None:
    """Raise with the reasons if an approval was refused.

    Raises:
        Refused: It was.
    """
    from ava_server.approval.decisions import OTHER_REFUSED

    if answer.status != "approved":
        reasons = dict.fromkeys(one.refused_because for one in answer.decisions if one.refused_because)
        shown = [why for why in reasons if why != OTHER_REFUSED] or list(reasons)
        raise Refused(f"{outcome}: {'; '.join(shown)}.")


async def decide(
    service: Service, proposals: Sequence[SpawnAnswer | Pending], decision: str, **more: Any
) -> ConfirmAnswer:
    """Approve or reject proposals.

    Raises:
        AvaError: The decision was not accepted.
    """
    given = {"pending_ids": [proposal.pending_id for proposal in proposals], "decision": decision, **more}
    return cast("ConfirmAnswer", await service.call("confirm_spawn", given, ignore_progress, raises=True))


async def ignore_progress(_line: str) -> None:
    """Take a line of progress and show nothing: commands watch the log."""
