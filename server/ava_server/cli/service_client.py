"""The command line as a client of the service: a session at the terminal, and the tools that a host would call.

`LocalApprovals` and `RemoteApprovals` decide about proposals: on this machine's data root, or on another server with a
token and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

import anyio
import anyio.to_thread

from ava_audit.rows import QUEUED
from ava_server.cli.log_access import find_runs
from ava_server.cli.options import parse_any_id
from ava_server.cli.remote import Connection, RemoteServer, connected
from ava_server.cli.secret_input import ReadPin, read_pin, unlock_session
from ava_server.cli.terminal import tell
from ava_server.core.data_root import working_folder
from ava_server.core.errors import AvaError, BadInput, Refused

if TYPE_CHECKING:
    from ava_audit.events import CancelledBy
    from ava_audit.view import View
    from ava_server.approval.proposals import Pending
    from ava_server.config.settings import Settings
    from ava_server.render.responses import ConfirmAnswer, SpawnAnswer
    from ava_server.runs.extension_answer import PendingExtension
    from ava_server.service.access import Session
    from ava_server.service.questions import Extensions
    from ava_server.service.runtime import Runtime
    from ava_server.service.service import Service

T = TypeVar("T")

STARTS_WITHIN_S = 3.0
"""How long to watch whether an approved run starts."""
PATH = "/approvals"
_MAY_BE_DECIDED = "The decision may still have been made; without an id, this command shows what still waits."


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
    from ava_server.runs.mode import DRIVING, LOOKING, serving
    from ava_server.service.runtime import open_runtime
    from ava_server.service.service import Service

    mode = LOOKING if not runs else serving(settings) if asked else DRIVING
    async with (
        open_runtime(settings, mode) as runtime,
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


# -- decisions --------------------------------------------------------------------------------------------------------


class LocalApprovals:
    """Decides on this machine's data root, in a session at its terminal; `RemoteApprovals` has the same methods.

    Args:
        runtime: What this process has open.
        session: The session.
        read: Returns the approval PIN, where one is needed.
    """

    def __init__(self, runtime: Runtime, session: Session, read: ReadPin = read_pin) -> None:
        self._runtime = runtime
        self._session = session
        self._read_pin = read

    async def waiting(self, ids: list[str]) -> list[Pending]:
        """Return the proposals with these ids, or all of this user that wait, the oldest first.

        Raises:
            BadInput: An id is unknown.
            Refused: A proposal no longer waits.
        """
        from ava_server.approval.proposals import pending_proposal, pending_proposals

        now_us = time.time_ns() // 1000
        limits = self._runtime.spawn_limits_of(self._session.user)
        found = await find_runs(self._runtime.store, ids) if ids else []

        def query(view: View) -> list[Pending]:
            if not ids:
                return pending_proposals(view, self._session.user, limits, now_us)
            waiting: list[Pending] = []
            for run in found:
                if run.user_id != self._session.user:
                    raise Refused(f"{run.pending_id} is {run.user_id}'s proposal; only that user decides about it.")
                one = pending_proposal(view, run, limits, now_us)
                if isinstance(one, str):
                    raise Refused(one)
                waiting.append(unexpired(one, now_us))
            return waiting

        return await self._runtime.store.read(query)

    async def extensions(self, ids: list[str]) -> list[PendingExtension]:
        """Return what runs with these ids ask for, or all of this user's that ask, the oldest first."""
        return _named(await self._extensions().waiting(), ids)

    async def decide_extension(self, one: PendingExtension, *, approve: bool) -> str:
        """Raise the cap of a run, with the PIN where one is needed, or have it wrap up; return what came of it.

        Raises:
            AvaError: The decision was not accepted.
        """
        if approve:
            await self.unlock("Nothing was raised; it still waits.")
        answer = await self._extensions().decide(one.subagent_id, one.digest, approve=approve)
        if self._runtime.settings.background:
            await self._start_worker()
        return answer.text

    async def check_can_approve(self) -> None:
        """Check before any question that something can be approved.

        Raises:
            Refused: It needs a PIN, and there is none, or it is locked.
        """
        from ava_server.config.pin import PinFile

        if await self._runtime.policy() == "human":
            await anyio.to_thread.run_sync(PinFile(self._runtime.settings.paths.approval_file).ready)

    async def decide(self, waiting: Sequence[Pending], decision: str, **more: Any) -> ConfirmAnswer:
        """Approve or reject, with the PIN where one is needed.

        Raises:
            AvaError: The decision was not accepted.
        """
        from ava_server.service.service import Service

        if decision == "approve":
            await self.unlock("Nothing was started; it still waits.")
        return await decide(Service(self._runtime, self._session), waiting, decision, **more)

    def _extensions(self) -> Extensions:
        from ava_server.service.access import Access
        from ava_server.service.questions import Extensions

        return Extensions(Access(self._runtime, self._session))

    async def unlock(self, outcome: str) -> None:
        """Ask for the PIN, once in a session, where only that may decide.

        Raises:
            Refused: It was not given; the text ends with the `outcome`.
        """
        from ava_server.config.pin import PinFile

        if await self._runtime.policy() != "human":
            return
        try:
            await unlock_session(PinFile(self._runtime.settings.paths.approval_file), self._session, self._read_pin)
        except AvaError as error:
            raise Refused(f"{error} {outcome}") from error

    async def describe_start(
        self, waiting: Sequence[Pending], *, then: str = "; `ava status` shows the progress"
    ) -> str:
        """Return a sentence on whether the approved runs start, after watching for a moment."""
        if self._runtime.settings.background:
            await self._start_worker()
        ids = [one.subagent_id for one in waiting]
        with anyio.move_on_after(STARTS_WITHIN_S):
            while True:
                seen = self._runtime.store.head
                rows = await self._runtime.store.read(lambda view: [view.run(run_id) for run_id in ids])
                if all(row is not None and row.state != QUEUED for row in rows):
                    return f"{'It has' if len(rows) == 1 else 'They have'} started{then}."
                await self._runtime.store.wait_for_entry_after(seen)
        return (
            "It starts as soon as a server of this data root is running and has room: a host with Ava in it, or"
            " `ava worker`."
        )

    async def _start_worker(self) -> None:
        """Start a worker, which runs belong to here: there may be no host."""
        from ava_server.runs.worker_process import WorkerProcesses

        try:
            await WorkerProcesses(self._runtime.settings.paths)()
        except OSError as error:
            tell(f"No worker could be started: {error}")


@asynccontextmanager
async def open_remote(server: RemoteServer) -> AsyncGenerator[RemoteApprovals]:
    """Connect to the server of `--url`.

    Raises:
        BadInput: Address or token cannot be used.
    """
    async with connected(server) as connection:
        yield RemoteApprovals(connection)


class RemoteApprovals:
    """Decides on another server, with a token of the scope `approve`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._address = connection.address

    async def waiting(self, ids: list[str]) -> list[Pending]:
        """Return the proposals with these ids, or all of the token's user that wait, the oldest first.

        Raises:
            BadInput: An id has the wrong form.
            Refused: A proposal does not wait.
        """
        from ava_server.approval.proposals import Pending

        wanted = [parse_any_id(given)[1] for given in ids]
        found = self._valid(list[Pending], (await self._connection.get(PATH)).get("proposals"))
        if not wanted:
            return found
        by_id = {name: one for one in found for name in (one.pending_id, one.subagent_id)}
        if missing := [each for each in wanted if each not in by_id]:
            raise Refused(f"{missing[0]} does not wait at {self._address}; without an id, all that wait are shown.")
        return list({by_id[each].pending_id: by_id[each] for each in wanted}.values())

    async def extensions(self, ids: list[str]) -> list[PendingExtension]:
        """Return what runs with these ids ask for, or all of the token's user that ask, the oldest first."""
        from ava_server.runs.extension_answer import PendingExtension

        given = (await self._connection.get(PATH)).get("extensions", [])  # an older server has none
        return _named(self._valid(list[PendingExtension], given), ids)

    async def decide_extension(self, one: PendingExtension, *, approve: bool) -> str:
        """Raise the cap of a run, or have it wrap up; return what came of it.

        Raises:
            AvaError: The decision was not accepted.
        """
        decision = "approve" if approve else "reject"
        given = {"decision": decision, "subagent_id": one.subagent_id, "digest": one.digest}
        return str((await self._post(given)).get("message", ""))

    async def check_can_approve(self) -> None:
        """Do nothing: the token replaces the PIN, and the server says what is missing."""

    async def unlock(self, outcome: str) -> None:
        """Do nothing: the token replaces the PIN."""

    async def decide(self, waiting: Sequence[Pending], decision: str, **more: Any) -> ConfirmAnswer:
        """Approve or reject.

        Raises:
            AvaError: The decision was not accepted.
        """
        from ava_server.render.responses import ConfirmAnswer

        given: dict[str, Any] = {"pending_ids": [one.pending_id for one in waiting], "decision": decision, **more}
        if decision == "approve":
            now_us = time.time_ns() // 1000
            given["digests"] = {one.pending_id: unexpired(one, now_us).digest for one in waiting}
        return self._valid(ConfirmAnswer, await self._post(given))

    async def describe_start(self, waiting: Sequence[Pending]) -> str:
        """Return that the server has the runs; this token cannot read whether they start."""
        return f"The server at {self._address} has {'it' if len(waiting) == 1 else 'them'}."

    def _valid(self, kind: type[T], value: Any) -> T:
        from pydantic import TypeAdapter

        try:
            return TypeAdapter(kind).validate_python(value)
        except ValueError:
            raise self._connection.not_ava() from None

    async def _post(self, decision: Mapping[str, Any]) -> dict[str, Any]:
        return await self._connection.request("POST", PATH, body=decision, doubt=_MAY_BE_DECIDED)


def names_run(given: str, one: PendingExtension) -> bool:
    """Tell whether an id names the run that asks for more."""
    try:
        return parse_any_id(given)[1] in (one.subagent_id, one.pending_id)
    except BadInput:  # looking for a proposal with this id says what is wrong
        return False


def _named(waiting: list[PendingExtension], ids: list[str]) -> list[PendingExtension]:
    """Return those of these requests whose run has one of the ids; all of them without ids."""
    return [one for one in waiting if not ids or any(names_run(given, one) for given in ids)]


def unexpired(proposal: Pending, now_us: int) -> Pending:
    """Return the proposal.

    Raises:
        Refused: It has expired.
    """
    if proposal.expires_us <= now_us:
        raise Refused(f"{proposal.pending_id} has expired; ask your host to propose it again.")
    return proposal
