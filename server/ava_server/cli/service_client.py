"""The command line as a client of the service: a session at the terminal, and the tools that a host would call.

`LocalApprovals` and `RemoteApprovals` decide about what waits: on this machine's data root, or on another server with a
token and nothing else.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

import anyio
import anyio.to_thread

from ava_audit.rows import QUEUED
from ava_audit.units import now_us
from ava_server.approval.decide import Decided, Kind, PersonAnswer, Shown, tool_call
from ava_server.cli.log_access import find_runs
from ava_server.cli.remote import Connection, RemoteServer, connected
from ava_server.cli.secret_input import ReadPin, ask_pin, needed_pin, read_pin
from ava_server.cli.terminal import tell
from ava_server.core.data_root import working_folder
from ava_server.core.errors import AvaError, BadInput, Refused, with_advice
from ava_server.core.ids import parse_any_id

if TYPE_CHECKING:
    from ava_audit.events import CancelledBy
    from ava_audit.view import View
    from ava_server.approval.proposals import Pending
    from ava_server.config.pin import PinFile
    from ava_server.config.settings import Settings
    from ava_server.render.responses import SpawnAnswer
    from ava_server.runs.extension import PendingExtension
    from ava_server.service.access import Session
    from ava_server.service.runtime import Runtime
    from ava_server.service.service import Service

T = TypeVar("T")

STARTS_WITHIN_S = 3.0
"""How long to watch whether an approved run starts."""
THERE_EVERY_S = 2.0
"""How often to look whether a proposal still waits on another server while its question is open."""
PATH = "/approvals"
_MAY_BE_DECIDED = "The decision may still have been made; without an id, this command shows what still waits."


@asynccontextmanager
async def open_session(
    runtime: Runtime, command: str, *, asked: bool, roots: tuple[str, ...] = (), by: CancelledBy = "person"
) -> AsyncGenerator[Session]:
    """Begin and end a session at the terminal.

    `asked`: a person decides what starts; otherwise the log claims no person's approval. `by` ends what it cancels.
    """
    from importlib.metadata import version

    from ava_audit.events import Event, SessionEnd, SessionStart
    from ava_audit.view import append
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
    runtime.manager.sessions.add(session.id)
    runtime.store.post(append(Event(session.who, begin)))
    try:
        yield session
    finally:
        runtime.store.post(append(Event(session.who, SessionEnd(reason="the command ended"))))


@asynccontextmanager
async def open_service(
    settings: Settings, command: str, *, asked: bool = True, runs: bool = False, roots: tuple[str, ...] = ()
) -> AsyncGenerator[tuple[Runtime, Service]]:
    """Open the data root, and a session at the terminal with its service.

    `asked`: a person decides what starts, and it continues if they close the terminal; otherwise the log claims no
    person's approval or answer, and the runs are this process's own. `runs`: serve this user's runs; False for a short
    look.
    """
    from ava_server.runs.mode import LOOKING, OWN_RUNS, SERVER
    from ava_server.service.runtime import open_runtime
    from ava_server.service.service import Service

    mode = LOOKING if not runs else SERVER if asked else OWN_RUNS
    async with (
        open_runtime(settings, mode) as runtime,
        open_session(runtime, command, asked=asked, roots=roots) as session,
    ):
        yield runtime, Service(runtime, session)


async def propose(service: Service, spawn: dict[str, Any], *, degraded: bool = False) -> SpawnAnswer:
    from ava_server.service.access import ignore_progress

    answer = await service.call("spawn_subagent", spawn, ignore_progress, raises=True, degraded=degraded)
    return cast("SpawnAnswer", answer)


_DONE: Mapping[Kind, str] = {"start": "started", "extend": "raised", "answer": "allowed"}
"""What a yes does that takes the PIN."""


async def unless_decided(
    client: LocalApprovals | RemoteApprovals, shown: Sequence[Shown], work: Callable[[], Awaitable[T]]
) -> T | None:
    """Return what a question gives; None if one of the proposals was decided elsewhere first, which withdraws it."""
    from ava_server.service.outcomes import ask_until  # not needed to read the command line

    return await ask_until(lambda: client.until_decided(shown), work)


class LocalApprovals:
    """Decides on this machine's data root, in a session at its terminal; `read` returns the approval PIN.

    `RemoteApprovals` has the same methods. Both raise an `AvaError` that says why something is refused.
    """

    def __init__(self, runtime: Runtime, session: Session, read: ReadPin = read_pin) -> None:
        self._runtime = runtime
        self._session = session
        self._read_pin = read

    async def waiting(self, ids: list[str]) -> list[Pending]:
        """Return the proposals with these ids, each of which has to wait, or all of this user that do, oldest first."""
        from ava_server.approval.proposals import pending_proposals, waiting_proposal

        limits = self._runtime.spawn_limits_of(self._session.user)
        found = await find_runs(self._runtime.store, ids) if ids else []

        def query(view: View) -> list[Pending]:
            if not ids:
                return pending_proposals(view, self._session.user, limits, now_us())
            waiting: list[Pending] = []
            for run in found:
                if run.user_id != self._session.user:
                    raise Refused(f"{run.pending_id} is {run.user_id}'s proposal; only that user decides about it.")
                one = waiting_proposal(view, run, limits, now_us())
                if isinstance(one, str):
                    raise Refused(one)
                waiting.append(one)
            return waiting

        return await self._runtime.store.read(query)

    async def extensions(self, ids: list[str]) -> list[PendingExtension]:
        """Return what runs with these ids ask for, or all of this user's that ask, the oldest first."""
        from ava_server.service.access import Access
        from ava_server.service.questions import PersonQuestions

        return _named(await PersonQuestions(Access(self._runtime, self._session)).waiting(), ids)

    async def decide(self, shown: Sequence[Shown], answer: PersonAnswer) -> Decided:
        from ava_server.runs.questions import allows_call
        from ava_server.service.service import Service, decide

        one, agrees, extends = shown[0], answer.agrees, shown[0].kind == "extend"
        if one.kind == "answer":
            agrees = await self._runtime.store.read(lambda view: allows_call(view, one.id, one.digest, answer.words))
        if agrees and one.kind in _DONE:
            await self.unlock(shown, f"Nothing was {_DONE[one.kind]}; it still waits.")
        decided = await decide(Service(self._runtime, self._session), shown, answer)
        if extends:
            await self._start_worker()
        return decided

    async def check_can_approve(self, shown: Sequence[Shown]) -> None:
        """Check before any question that the PIN can be given, where an approval takes it."""
        if (pin := await self._needed_pin(shown)) is not None:
            await anyio.to_thread.run_sync(pin.refuse_locked)

    async def unlock(self, shown: Sequence[Shown], outcome: str) -> None:
        """Ask for the PIN, once in a session, where an approval takes it; a refusal ends with the `outcome`."""
        if not self._session.pin_given and (pin := await self._needed_pin(shown)) is not None:
            try:
                await ask_pin(pin, self._read_pin, choosing=True)
            except AvaError as error:
                raise Refused(with_advice(str(error), outcome)) from error
            self._session.pin_given = True

    async def _needed_pin(self, shown: Sequence[Shown]) -> PinFile | None:
        if self._session.channel != "terminal":  # no person decides here, so none could give it
            return None
        policy = await self._runtime.policy_on([one.id for one in shown])
        return needed_pin(self._runtime.settings.paths, policy)

    async def decided_elsewhere(self, shown: Sequence[Shown]) -> dict[str, str]:
        """Return what became of those proposals and requests that no longer wait: a sentence for each, by their ids."""
        from ava_server.service.outcomes import outcomes

        return await outcomes(self._runtime.store, shown, self._runtime.spawn_limits_of(self._session.user))

    async def until_decided(self, shown: Sequence[Shown]) -> None:
        """Return when one of these proposals no longer waits."""
        from ava_server.service.outcomes import until_decided

        await until_decided(self._runtime.store, shown, self._runtime.spawn_limits_of(self._session.user))

    async def approved(self, ids: Sequence[str]) -> list[str]:
        """Return the runs of those proposals that were approved, wherever that was."""
        rows = await self._runtime.store.read(lambda view: [view.proposal(pending_id) for pending_id in ids])
        return [row.run_id for row in rows if row is not None and row.state == "approved"]

    async def describe_start(
        self, waiting: Sequence[Pending], *, then: str = "; `ava status` shows the progress"
    ) -> str:
        """Return a sentence on whether the approved runs start, after watching for a moment."""
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
        """Start a worker if runs belong to one on this machine: there may be no host."""
        from ava_server.core.background import WorkerProcesses
        from ava_server.runs.mode import driver_of

        if driver_of(self._runtime.settings) != "the worker":
            return
        try:
            await WorkerProcesses(self._runtime.settings.paths)()
        except OSError as error:
            tell(f"No worker could be started: {error}")


@asynccontextmanager
async def open_remote(server: RemoteServer) -> AsyncGenerator[RemoteApprovals]:
    async with connected(server) as connection:
        yield RemoteApprovals(connection)


class RemoteApprovals:
    """Decides on another server, with a token of the scope `approve`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def waiting(self, ids: list[str]) -> list[Pending]:
        from ava_server.approval.proposals import Pending

        wanted = [parse_any_id(given)[1] for given in ids]
        found = self._valid(list[Pending], (await self._connection.request("GET", PATH)).get("proposals"))
        if not wanted:
            return found
        by_id = {name: one for one in found for name in (one.pending_id, one.subagent_id)}
        if missing := [each for each in wanted if each not in by_id]:
            there = self._connection.address
            raise Refused(f"{missing[0]} does not wait at {there}; without an id, all that wait are shown.")
        return list({by_id[each].pending_id: by_id[each] for each in wanted}.values())

    async def extensions(self, ids: list[str]) -> list[PendingExtension]:
        from ava_server.runs.extension import PendingExtension

        given = (await self._connection.request("GET", PATH)).get("extensions", [])  # an older server has none
        return _named(self._valid(list[PendingExtension], given), ids)

    async def decide(self, shown: Sequence[Shown], answer: PersonAnswer) -> Decided:
        from ava_server.render.responses import ConfirmAnswer

        if shown[0].kind == "extend":
            decision = "approve" if answer.agrees else "reject"
            body: dict[str, Any] = {"decision": decision, "subagent_id": shown[0].id, "digest": shown[0].digest}
            return Decided(await self._post(body))
        _tool, body = tool_call(shown, answer)
        if answer.agrees:
            body["digests"] = {one.id: one.digest for one in shown}
        return Decided(self._valid(ConfirmAnswer, await self._post(body)).structured())

    async def decided_elsewhere(self, shown: Sequence[Shown]) -> dict[str, str]:
        """Return what no longer waits there; this token cannot read what became of it."""
        found = {one.pending_id for one in await self.waiting([])}
        found |= {one.subagent_id for one in await self.extensions([])}
        there = self._connection.address
        return {one.id: f"{one.id} no longer waits at {there}." for one in shown if one.id not in found}

    async def until_decided(self, shown: Sequence[Shown]) -> None:
        """Return when one of these proposals no longer waits."""
        while not await self.decided_elsewhere(shown):  # noqa: ASYNC110 - it is on another machine
            await anyio.sleep(THERE_EVERY_S)

    async def approved(self, ids: Sequence[str]) -> list[str]:
        """This token cannot read what became of them."""
        return []

    async def check_can_approve(self, shown: Sequence[Shown]) -> None:
        """The token replaces the PIN, and the server says what is missing."""

    async def unlock(self, shown: Sequence[Shown], outcome: str) -> None:
        """The token replaces the PIN."""

    async def describe_start(self, waiting: Sequence[Pending]) -> str:
        """This token cannot read whether they start."""
        return f"The server at {self._connection.address} has {'it' if len(waiting) == 1 else 'them'}."

    def _valid(self, kind: type[T], value: Any) -> T:
        from pydantic import TypeAdapter

        try:
            return TypeAdapter(kind).validate_python(value)
        except ValueError:
            raise self._connection.not_ava() from None

    async def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        return await self._connection.request("POST", PATH, body=body, doubt=_MAY_BE_DECIDED)


def names_run(given: str, one: PendingExtension) -> bool:
    try:
        return parse_any_id(given)[1] in (one.subagent_id, one.pending_id)
    except BadInput:  # looking for a proposal with this id says what is wrong
        return False


def _named(waiting: list[PendingExtension], ids: list[str]) -> list[PendingExtension]:
    """Return all of them without ids."""
    return [one for one in waiting if not ids or any(names_run(given, one) for given in ids)]
