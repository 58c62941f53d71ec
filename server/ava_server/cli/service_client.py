"""The command line as a client of the service: a session at the terminal, and the tools that a host would call.

`Approvals` decides about what waits: on this machine's data root, or on another server with a token and nothing else.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Protocol, TypeVar, cast

import anyio
import anyio.to_thread

from ava_audit.rows import QUEUED
from ava_server.approval.decide import Decided, Kind, PersonAnswer, Shown
from ava_server.cli.log_access import find_runs
from ava_server.cli.secret_input import ReadPin, ask_pin, needed_pin, read_pin
from ava_server.cli.terminal import Place, tell
from ava_server.core.data_root import os_user, working_folder
from ava_server.core.errors import AvaError, BadInput, Refused, with_advice
from ava_server.core.ids import parse_any_id

if TYPE_CHECKING:
    from ava_audit.events import CancelledBy
    from ava_server.approval.proposals import Pending
    from ava_server.cli.log_look import LogLook
    from ava_server.config.pin import PinFile
    from ava_server.config.settings import Settings
    from ava_server.render.responses import SpawnAnswer
    from ava_server.runs.asking.pending_questions import PendingExtension
    from ava_server.service.access import Session
    from ava_server.service.decision_requests import DecisionsHandler, Outcomes
    from ava_server.service.record_requests import RecordRequest
    from ava_server.service.runtime import Runtime
    from ava_server.service.service import Service

P = ParamSpec("P")
T = TypeVar("T")

STARTS_WITHIN_S = 3.0
"""How long to watch whether an approved run starts."""
StartSeen = Literal["started", "left to the worker", "waits for a server"]
"""What is seen of approved runs meanwhile; one that is left to the worker waits for a slot or money."""
THERE_EVERY_S = 2.0
"""How often to look whether a proposal still waits on another server while its question is open."""


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
    from ava_server.runs.owner.mode import LOOKING, OWN_RUNS, SERVER
    from ava_server.service.runtime import open_runtime
    from ava_server.service.service import Service

    mode = LOOKING
    if runs:
        mode = SERVER if asked else OWN_RUNS
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


async def unless_decided(client: Approvals, shown: Sequence[Shown], work: Callable[[], Awaitable[T]]) -> T | None:
    """Return what a question gives; None if one of the proposals was decided elsewhere first, which withdraws it."""
    from ava_server.service.open_questions import ask_until  # not needed to read the command line

    return await ask_until(lambda: client.until_decided(shown), work)


class DecisionTransport(Protocol):
    """Carries what a person decides, and what they ask about it, to what carries it out.

    Attributes:
        place: Where that is: a data root, or the address of a server.
    """

    place: Place

    async def send(self, request: RecordRequest[DecisionsHandler, P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the answer. Raises AvaError, AuditError if there is none; ValueError if it has another form."""
        ...

    async def decide(self, shown: Sequence[Shown], answer: PersonAnswer) -> Decided:
        """Have a decision carried out. Raises AvaError, AuditError, RolesError if it was not."""
        ...

    async def wait_for_entry(self, after: int) -> None:
        """Return when the log has an entry with a higher number, or may have, or a question may have expired."""
        ...

    async def needed_pin(self, shown: Sequence[Shown], words: str | None = None) -> PinFile | None:
        """Return the PIN that a yes to these takes, unless it was given; `words` are the answer to a question."""
        ...

    def pin_was_given(self) -> None: ...

    async def watch_start(self, run_ids: Sequence[str]) -> StartSeen | None:
        """Tell whether approved runs start, after watching for a moment; None if that cannot be seen."""
        ...


class SessionTransport:
    """Has decisions carried out in this process, in a session at its terminal."""

    def __init__(self, runtime: Runtime, session: Session) -> None:
        self.place: Place = runtime.settings.paths
        self._runtime = runtime
        self._session = session

    async def send(self, request: RecordRequest[DecisionsHandler, P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        from ava_server.service.decision_requests import DecisionsHandler

        store, limits = self._runtime.store, self._runtime.spawn_limits_of
        handler = DecisionsHandler(store, self._session.user, limits, partial(find_runs, store))
        return await request.answer(handler, *args, **kwargs)

    async def decide(self, shown: Sequence[Shown], answer: PersonAnswer) -> Decided:
        from ava_server.service.service import Service, decide

        decided = await decide(Service(self._runtime, self._session), shown, answer)
        if shown[0].kind == "extend":
            await self._start_worker()
        return decided

    async def wait_for_entry(self, after: int) -> None:
        from ava_server.service.open_questions import DECIDED_EVERY_S

        with anyio.move_on_after(DECIDED_EVERY_S):
            await self._runtime.store.wait_for_entry_after(after)

    async def needed_pin(self, shown: Sequence[Shown], words: str | None = None) -> PinFile | None:
        from ava_server.runs.asking.pending_questions import is_approval

        if self._session.channel != "terminal":  # no person decides here, so none could give it
            return None
        if self._session.pin_given:
            return None
        if words is not None and shown[0].kind == "answer":
            [question, *_others] = shown
            allows = await self._runtime.store.read(lambda view: is_approval(view, question.id, question.digest, words))
            if not allows:
                return None
        policy = await self._runtime.policy_on([one.id for one in shown])
        return needed_pin(self._runtime.settings.paths, policy)

    def pin_was_given(self) -> None:
        self._session.pin_given = True

    async def watch_start(self, run_ids: Sequence[str]) -> StartSeen | None:
        store = self._runtime.store
        has_worker = await self._start_worker()
        with anyio.move_on_after(STARTS_WITHIN_S):
            while True:
                seen = store.head
                rows = await store.read(lambda view: [view.run(run_id) for run_id in run_ids])
                if all(row is not None and row.state != QUEUED for row in rows):
                    return "started"
                await store.wait_for_entry_after(seen)
        return "left to the worker" if has_worker else "waits for a server"

    async def _start_worker(self) -> bool:
        """Start a worker if runs belong to one on this machine: there may be no host. Return whether one has them."""
        from ava_server.core.background import WorkerProcesses
        from ava_server.runs.owner.mode import driver_of

        if driver_of(self._runtime.settings) != "the worker":
            return False
        try:
            await WorkerProcesses(self._runtime.settings.paths)()
        except OSError as error:
            tell(f"No worker could be started: {error}")
            return False
        return True


class LookTransport:
    """Has requests answered from looks at a log: what is asked before there is a session to decide in. Blocking.

    Args:
        log: The log.
        settings: Returns the settings.
    """

    def __init__(self, log: LogLook, settings: Callable[[], Settings]) -> None:
        self._log = log
        self._settings = settings

    async def send(self, request: RecordRequest[DecisionsHandler, P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        from ava_server.approval.proposals import spawn_limits
        from ava_server.service.decision_requests import DecisionsHandler

        limits = partial(spawn_limits, self._settings())
        handler = DecisionsHandler(self._log, os_user(), limits, partial(find_runs, self._log))
        return await request.answer(handler, *args, **kwargs)

    async def needed_pin(self, shown: Sequence[Shown]) -> PinFile | None:
        """Return the PIN that a yes to these takes. Blocking."""
        from ava_server.approval.proposals import made_under
        from ava_server.budget.user_limits import policy_in_force

        ids = [one.id for one in shown]
        proposed_under = await self._log.read(lambda view: made_under(view, ids))
        settings = self._settings()
        policy, _why = policy_in_force(settings, os_user(), made_under=proposed_under)
        return needed_pin(settings.paths, policy)


class Approvals:
    """What waits for a person, and what they decide: one client, wherever that is carried out.

    Every method raises an `AvaError` that says why something is refused.

    Args:
        transport: What carries it there.
        read: Returns the approval PIN, where an approval takes it.
    """

    def __init__(self, transport: DecisionTransport, read: ReadPin = read_pin) -> None:
        self._transport = transport
        self._read_pin = read

    async def waiting(self, ids: list[str]) -> list[Pending]:
        """Return the proposals with these ids, each of which has to wait, or all of this user that do, oldest first."""
        from ava_server.service.decision_requests import WAITING

        return (await self._transport.send(WAITING, id=ids)).proposals

    async def extensions(self, ids: list[str]) -> list[PendingExtension]:
        """Return what runs with these ids ask for, or all of this user's that ask, the oldest first."""
        from ava_server.service.decision_requests import WAITING

        extensions = (await self._transport.send(WAITING)).extensions
        if not ids:
            return list(extensions)
        return [one for one in extensions if any(names_run(each, one) for each in ids)]

    async def decide(self, shown: Sequence[Shown], answer: PersonAnswer) -> Decided:
        [one, *_others] = shown
        if answer.agrees and one.kind in _DONE:
            await self._unlock(shown, f"Nothing was {_DONE[one.kind]}; it still waits.", answer.words)
        return await self._transport.decide(shown, answer)

    async def check_can_approve(self, shown: Sequence[Shown]) -> None:
        """Check before any question that the PIN can be given, where an approval takes it."""
        pin = await self._transport.needed_pin(shown)
        if pin is not None:
            await anyio.to_thread.run_sync(pin.refuse_locked)

    async def unlock(self, shown: Sequence[Shown], outcome: str) -> None:
        """Ask for the PIN, once in a session, where an approval takes it; a refusal ends with the `outcome`."""
        await self._unlock(shown, outcome, None)

    async def _unlock(self, shown: Sequence[Shown], outcome: str, words: str | None) -> None:
        pin = await self._transport.needed_pin(shown, words)
        if pin is None:
            return
        try:
            await ask_pin(pin, self._read_pin, choosing=True)
        except AvaError as error:
            raise Refused(with_advice(str(error), outcome)) from error
        self._transport.pin_was_given()

    async def outcomes(self, shown: Sequence[Shown]) -> Outcomes:
        from ava_server.service.decision_requests import OUTCOMES

        return await self._transport.send(OUTCOMES, shown=list(shown))

    async def decided_elsewhere(self, shown: Sequence[Shown]) -> dict[str, str]:
        """Return what became of those proposals and requests that no longer wait: a sentence for each, by their ids."""
        return (await self.outcomes(shown)).sentences

    async def until_decided(self, shown: Sequence[Shown]) -> None:
        """Return when one of these proposals no longer waits."""
        while True:
            outcomes = await self.outcomes(shown)
            if outcomes.sentences:
                return
            await self._transport.wait_for_entry(outcomes.upto)

    async def approved(self, shown: Sequence[Shown]) -> list[str]:
        """Return the runs of those proposals that were approved, wherever that was."""
        return (await self.outcomes(shown)).approved

    async def describe_start(
        self, waiting: Sequence[Pending], *, then: str = "; `ava status` shows the progress"
    ) -> str:
        """Return a sentence on whether the approved runs start, after watching for a moment."""
        starts = await self._transport.watch_start([one.subagent_id for one in waiting])
        several = len(waiting) > 1
        if starts is None:
            what = "them" if several else "it"
            return f"The server at {self._transport.place} starts {what} as soon as there is room."
        if starts == "started":
            who = "They have" if several else "It has"
            return f"{who} started{then}."
        if starts == "left to the worker":
            what = "them" if several else "it"
            return (
                f"The background process starts {what} as soon as there is room; `ava status` shows what it waits for."
            )
        return (
            "It starts as soon as a server of this data root is running and has room: a host with Ava in it, or"
            " `ava worker`."
        )


def names_run(text: str, one: PendingExtension) -> bool:
    try:
        _field, run_id = parse_any_id(text)
        return run_id in (one.subagent_id, one.pending_id)
    except BadInput:  # looking for a proposal with this id says what is wrong
        return False
