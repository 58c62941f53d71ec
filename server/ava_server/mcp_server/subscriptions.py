"""Notifications of changes to clients: of runs that they follow, and of lists.

Up to protocol 2025-11-25, a client subscribes to resources (`resources/subscribe`) and is notified of changes to every
list. From 2026-07-28 on, it opens a stream (`subscriptions/listen`) and names there what it wants to hear about. News
of runs comes from the log, whichever process drives them; role files are checked every two seconds. While nobody
listens, nothing is checked.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import anyio
import anyio.abc
import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.subscriptions import (
    SUBSCRIPTION_ID_META_KEY,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
    event_matches,
    event_to_notification,
)

from ava_audit.errors import AuditError
from ava_server.core.errors import AvaError, BadInput, Refused
from ava_server.core.shutdown import ENDS_SOON
from ava_server.core.threads import read_apart

if TYPE_CHECKING:
    from mcp.server.session import ServerSession


@dataclass(frozen=True)
class TaskChanged:
    """A task has changed, or something that its status message says."""

    task_id: str


Heard = ServerEvent | TaskChanged


class TaskNotification(types.Notification[dict[str, Any], Literal["notifications/tasks"]]):
    """A task as it is now."""

    method: Literal["notifications/tasks"] = "notifications/tasks"
    params: dict[str, Any]


class Listener:
    """A client that is notified: a connection of the handshake era, or a stream of the stateless era.

    It gets each change once, at its own pace: a slow client gets no backlog. `uris` has the run of each resource that
    it follows (None is the roles), `tasks` the ids of tasks, which are those of their runs; `user` None is the user of
    this machine. `scope` ends the task that notifies a connection.
    """

    def __init__(
        self,
        user: str | None,
        wanted: types.SubscriptionFilter | None = None,
        uris: dict[str, str | None] | None = None,
        tasks: Collection[str] = (),
    ) -> None:
        self.user = user
        self.uris = uris if uris is not None else {}
        self.tasks = tasks
        self.scope = anyio.CancelScope()
        self._wanted, self._streamed = wanted, frozenset(self.uris)
        self._events: dict[Heard, None] = {}
        self._news = anyio.Event()
        self._closed = False

    def tell(self, event: Heard) -> None:
        """Send an event, if the client wants it, as soon as the client accepts it."""
        wanted = self._wanted
        if wanted is None or isinstance(event, TaskChanged) or event_matches(wanted, self._streamed, event):
            self._events[event] = None
            self._news.set()

    def close(self) -> None:
        self._closed = True
        self._news.set()

    async def next(self) -> Heard | None:
        """Wait for a change; None once it was closed and nothing is pending."""
        while not self._events:
            if self._closed:
                return None
            await self._news.wait()
            self._news = anyio.Event()
        event = next(iter(self._events))
        del self._events[event]
        return event

    async def speak(self, session: ServerSession) -> None:
        with self.scope, suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            while (event := await self.next()) is not None:
                assert not isinstance(event, TaskChanged), "this era has no tasks"
                await session.send_notification(event_to_notification(event, {}))

    async def serve(self, ctx: Ctx, task_now: TaskNow) -> types.SubscriptionsListenResult:
        """Serve a stream: acknowledge it, and notify its client until that leaves or `close` is called."""
        meta: dict[str, Any] = {SUBSCRIPTION_ID_META_KEY: ctx.request_id}

        async def send(notification: Any) -> None:
            await ctx.session.send_notification(notification, related_request_id=ctx.request_id)

        assert self._wanted is not None, "a stream names what it wants"
        params = types.SubscriptionsAcknowledgedNotificationParams(notifications=self._wanted, _meta=meta)
        await send(types.SubscriptionsAcknowledgedNotification(params=params))
        while (event := await self.next()) is not None:
            if not isinstance(event, TaskChanged):
                await send(event_to_notification(event, meta))
                continue
            task = await task_now(event.task_id)
            if task is not None:
                await send(TaskNotification(params={**task, "_meta": meta}))
        return types.SubscriptionsListenResult(_meta=meta)


TaskNow = Callable[[str], Awaitable[dict[str, Any] | None]]
"""Returns a task as the protocol has it now; None where there is none any more."""

if TYPE_CHECKING:
    from ava_server.config.role_folders import RolePlaces
    from ava_server.service.runtime import Runtime

    Ctx = ServerRequestContext[Any, Any]

log = logging.getLogger("ava.updates")
RUNS_EVERY_S = 1.0
ACTIVITIES_EVERY_S = 0.4
ROLES_EVERY_S = 2.0
MOST_CLIENTS = 2_000
"""Most streams and connections at once."""
MOST_URIS = 200
"""Most resources that one of them follows."""
ROLES = "ava://roles"
_SHOWN_IN_LISTS = ("SpawnProposed", "SpawnDecided", "RunClaimed", "RunStarted", "RunEnded")
"""Entries after which a run appears in the list of resources, or has another title there."""


class Subscriptions:
    """Notifies clients of changes, each only of what belongs to its user. `places` finds role folders, and blocks."""

    def __init__(self, places: Callable[[Runtime], RolePlaces]) -> None:
        self._places = places
        self._runtime: Runtime | None = None
        self._speaking: anyio.abc.TaskGroup | None = None
        self._somebody = anyio.Event()
        self._listeners: set[Listener] = set()
        self._connections: dict[str, tuple[Listener, ServerSession]] = {}
        self._seen = 0
        self._closed = False
        self._roles: tuple[object, ...] | None = None

    async def follow(self, runtime: Runtime) -> None:
        self._runtime, self._seen = runtime, runtime.store.head
        try:
            async with anyio.create_task_group() as self._speaking:
                for listener, session in self._connections.values():
                    self._speaking.start_soon(listener.speak, session)
                self._speaking.start_soon(self._follow_runs, runtime)
                await self._follow_roles(runtime)
        finally:
            self._speaking = None

    def close(self) -> None:
        """End every stream with a message to its client, and open no others. A second call is harmless."""
        self._closed = True
        for listener in self._listeners:
            listener.close()

    async def begin(self) -> None:
        """Look at the role files now: later changes are reported."""
        from ava_server.config.role_folders import ROLES_S

        if self._roles is None and self._runtime is not None:
            with anyio.move_on_after(ROLES_S):
                self._roles = await self._look(self._runtime)

    # -- who listens ------------------------------------------------------------------------------------------------

    def join(self, ctx: Ctx, user: str | None) -> Listener:
        """Notify a handshake-era connection until it ends; a second call is harmless. Raises BadInput: too many."""
        key = _connection(ctx)
        if key not in self._connections:
            listener = Listener(user)
            self._add(listener)
            self._connections[key] = listener, ctx.session
            if self._speaking is not None:
                self._speaking.start_soon(listener.speak, ctx.session)
            # Nothing public in the SDK tells when a connection has ended.
            connection = ctx.session._connection  # pyright: ignore[reportPrivateUsage]
            connection.exit_stack.callback(self._leave, key)
        return self._connections[key][0]

    def _leave(self, key: str) -> None:
        listener, _session = self._connections.pop(key)
        listener.scope.cancel()
        self._remove(listener)

    async def listen(
        self,
        ctx: Ctx,
        params: types.SubscriptionsListenRequestParams,
        user: str | None,
        uris: dict[str, str | None],
        tasks: Collection[str],
        task_now: TaskNow,
    ) -> types.SubscriptionsListenResult:
        """Serve a stateless-era stream. Raises BadInput: too many; Refused: about to stop."""
        if self._closed:
            raise Refused(ENDS_SOON)
        asked = params.notifications
        wanted = types.SubscriptionFilter(
            tools_list_changed=asked.tools_list_changed or None,
            prompts_list_changed=asked.prompts_list_changed or None,
            resources_list_changed=asked.resources_list_changed or None,
            resource_subscriptions=list(uris) or None,
            **({"taskIds": list(tasks)} if tasks else {}),
        )
        await self.begin()
        listener = Listener(user, wanted, uris, tasks)
        self._add(listener)
        try:
            return await listener.serve(ctx, task_now)
        finally:
            self._remove(listener)

    def _add(self, listener: Listener) -> None:
        if len(self._listeners) >= MOST_CLIENTS:
            raise BadInput(f"{MOST_CLIENTS:,} clients are told of changes already; ask for what has changed instead")
        if not self._listeners and self._runtime is not None:
            self._seen = self._runtime.store.head
        self._listeners.add(listener)
        self._somebody.set()

    def _remove(self, listener: Listener) -> None:
        self._listeners.discard(listener)
        if not self._listeners:
            self._roles = None  # nobody needs it

    async def _wait_for_somebody(self) -> None:
        while not self._listeners:
            if self._somebody.is_set():  # two tasks wait for it
                self._somebody = anyio.Event()
            await self._somebody.wait()

    # -- what has changed -------------------------------------------------------------------------------------------

    async def _follow_runs(self, runtime: Runtime) -> None:
        shown = runtime.activities.now
        while True:
            await self._wait_for_somebody()
            head = self._seen
            followed = self._followed()
            with anyio.move_on_after(RUNS_EVERY_S) as waiting, ExitStack() as looking:
                if followed:
                    ends = runtime.activities.change_ends(waiting, shown, followed.__contains__)
                    looking.enter_context(ends)
                head = await runtime.store.wait_for_entry_after(self._seen)
            active = runtime.activities.changed_since(shown)
            shown = runtime.activities.now
            for listener in list(self._listeners) if active else ():  # each has been checked to be its run's user
                _tell(listener, active.__contains__)
            if head == self._seen:
                await anyio.sleep(ACTIVITIES_EVERY_S)
                continue
            try:
                changed = await runtime.store.read(lambda view: view.changed_after(self._seen, _SHOWN_IN_LISTS))
            except AuditError as error:  # a tool call reports it; here it is tried again
                log.info("what has changed could not be read: %s", error)
            else:
                self._seen = head
                self._tell_of_runs(runtime, changed)
            await anyio.sleep(RUNS_EVERY_S)

    def _followed(self) -> set[str]:
        run_ids: set[str] = set()
        for listener in self._listeners:
            run_ids.update(run_id for run_id in listener.uris.values() if run_id is not None)
            run_ids.update(listener.tasks)
        return run_ids

    def _tell_of_runs(self, runtime: Runtime, changed: Sequence[tuple[str, str, bool]]) -> None:
        owners = {run_id: user for run_id, user, _listed in changed}
        listed = {user for _run_id, user, in_list in changed if in_list}
        for listener in list(self._listeners):
            user = listener.user or runtime.user
            if user in listed:
                listener.tell(ResourcesListChanged())
            _tell(listener, {run_id for run_id, owner in owners.items() if owner == user}.__contains__)

    async def _follow_roles(self, runtime: Runtime) -> None:
        while True:
            await self._wait_for_somebody()
            look = await self._look(runtime)
            if self._roles is not None and look is not None and look != self._roles:
                for listener in list(self._listeners):
                    listener.tell(ToolsListChanged())
                    listener.tell(PromptsListChanged())
                    _tell(listener, lambda run_id: run_id is None)
            self._roles = look or self._roles
            await anyio.sleep(ROLES_EVERY_S)

    async def _look(self, runtime: Runtime) -> tuple[object, ...] | None:
        try:
            return await read_apart(lambda: self._places(runtime).look())
        except (AvaError, OSError, RuntimeError) as error:  # e.g. the working folder was removed
            log.info("the role files cannot be looked at: %s", error)
            return None


def _tell(listener: Listener, changed: Callable[[str | None], bool]) -> None:
    """Notify a client of each resource and task that it follows whose run has changed; None stands for the roles."""
    for uri, run_id in listener.uris.items():
        if changed(run_id):
            listener.tell(ResourceUpdated(uri))
    for task_id in listener.tasks:
        if changed(task_id):
            listener.tell(TaskChanged(task_id))


def _connection(ctx: Ctx) -> str:
    """Return the key of a connection of the handshake era; except over HTTP there is only one."""
    return ctx.request.headers.get("mcp-session-id", "") if ctx.request is not None else ""
