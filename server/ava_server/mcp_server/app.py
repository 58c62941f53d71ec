"""The state of the MCP server: its runtime and sessions. `initialize` is answered before the data root is opened."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import anyio
from mcp.server.context import ServerRequestContext

from ava_server.core.data_root import NOWHERE, home_folder, working_folder
from ava_server.mcp_server.local_pages import LocalPages
from ava_server.mcp_server.subscriptions import Subscriptions

if TYPE_CHECKING:
    from mcp_types import ElicitationCapability

    from ava_roles.catalog import Catalog
    from ava_server.config.role_folders import RolePlaces
    from ava_server.config.settings import Settings
    from ava_server.config.tokens import Token
    from ava_server.service.access import Session
    from ava_server.service.runtime import Runtime
    from ava_server.service.service import Service

log = logging.getLogger("ava.app")
CLOSE_WITHIN_S = 4.0
HTTP = "http"
CARRY_OUT_S = 10.0
"""Seconds for calls that are carried out although their host has gone: most of it is a start on a busy machine."""
CARRIED_OUT = frozenset(("cancel_subagent", "message_subagent"))
"""The tools whose calls are carried out even if the host no longer waits: it may have come only to steer a run."""
OF_REQUEST = "ava.token"
"""The key of the token in the scope of a request."""
CLIENT_CHARS = 100
MOST_SERVICES = 2_000
"""How many pairs of a token and a client's name are remembered."""
MOST_OF_TOKEN = 50
"""How many of these pairs are remembered for one token."""
FAULT = "a fault of Ava itself ended the server; its standard error has the details"
OPEN_WITHIN_S = 20.0
"""Seconds that a call waits for the data root to open: migrating a large log takes seconds."""


class _Opening:
    """One attempt to open the data root: over when `done`, and failed where it has an error."""

    def __init__(self) -> None:
        self.done = anyio.Event()
        self.error: Exception | None = None


class App:
    """One server in one process: the runtime, once it is open, and the sessions that use it."""

    def __init__(
        self, load: Callable[[], Settings], transport: str, url: str | None = None, runtime: Runtime | None = None
    ) -> None:
        """`runtime`: what the process has open already; by default the server opens the data root itself."""
        self.transport = transport
        self.asks_alone = False
        self.failed = False
        """The server ends because of a fault of its own."""
        self.url = url
        self._load = load
        self._given = runtime
        self._wanted = anyio.Event()
        self._opening: _Opening | None = None
        self._closing = anyio.Event()
        self._starting = anyio.Lock()
        self._keeping = anyio.CancelScope(shield=True)
        self._runtime: Runtime | None = None
        self._services: dict[tuple[Token | None, *tuple[object, ...]], Service] = {}
        self.updates = Subscriptions(self._role_places)
        self._opened = anyio.Event()
        self._telling = anyio.CancelScope()
        self.pages = LocalPages()
        self._serving_pages = anyio.CancelScope()
        self._host_known = anyio.Event()
        self._host: tuple[str, str, bool] = ("", "", False)

    async def keep_open(self) -> None:
        """Open the data root at its first use, until the server ends; after a failure, the next call tries again."""
        while self._runtime is None:
            await self._wanted.wait()
            self._wanted = anyio.Event()
            opening = self._opening
            if self._closing.is_set() or opening is None:
                return
            try:
                # Shielded: a cancelled server still ends its sessions and stops its runs; `close` sets the deadline.
                with anyio.CancelScope(shield=True) as self._keeping:
                    async with AsyncExitStack() as stack:
                        self._runtime = runtime = await self._enter(stack)
                        opening.done.set()
                        self._opened.set()
                        try:
                            await self._closing.wait()
                        finally:  # without `close`, the runtime has failed
                            reason = "the connection ended" if self._closing.is_set() and not self.failed else FAULT
                            for service in self._services.values():
                                self._end_session(runtime, service, reason)
            except Exception as error:  # the next call reports it; the server goes on
                if self._runtime is not None:
                    raise
                log.error("the data root could not be opened: %s", _reason(error))
                opening.error = error
                opening.done.set()

    async def tell(self) -> None:
        """Notify clients of changes while the data root is open. Not part of `keep_open`, which has to end fast."""
        with self._telling:
            await self._opened.wait()
            await self.updates.follow(self.runtime)

    def meet(self, ctx: ServerRequestContext[App, Any]) -> None:
        """Note which host has connected over stdio, the first time that it says so."""
        client = ctx.session.client_params
        if self.transport == "stdio" and client is not None and not self._host_known.is_set():
            self._host = (client.client_info.name, client.client_info.version, can_ask(ctx))
            self._host_known.set()

    async def serve_pages(self) -> None:
        """Serve the pages once somebody asks for their address; at once for a host whose person approves in Ava.

        `pages.serve` itself waits until somebody asks, or until `pages.begin` is called.
        """
        with self._serving_pages:
            await self._opened.wait()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.pages.serve, self.runtime.settings.paths)
                await self._host_known.wait()
                if await self._approves_in_ava():
                    self.pages.begin()

    async def _approves_in_ava(self) -> bool:
        """Tell whether the person of the host that has connected decides in Ava itself."""
        from ava_extras import has_extra
        from ava_server.approval.decide import approval_needs
        from ava_server.core.errors import AvaError
        from ava_server.hosts.clients import ConnectedHost

        name, version, forms = self._host
        host = ConnectedHost(name[:CLIENT_CHARS], version[:CLIENT_CHARS], forms)
        try:
            self.runtime.settings.refuse_off("nothing is started")
            policy = await self.runtime.policy(through=host)
        except AvaError as error:  # the call that proposes something says it too
            log.info("whether the pages are needed is not known: %s", error)
            return False
        return has_extra("web") and not approval_needs("host", policy).nothing

    async def _enter(self, stack: AsyncExitStack) -> Runtime:
        if self._given is not None:
            return self._given
        for name in ("runtime", "service"):  # it is slow; the first call needs the service too
            await anyio.to_thread.run_sync(import_module, f"ava_server.service.{name}")
        from ava_audit.store.backend import Announcement
        from ava_server.runs.owner.mode import SERVER
        from ava_server.service.runtime import open_runtime

        settings = self._load()
        if self.transport == "memory":  # there, host and server are one
            settings = settings.model_copy(update={"background": False, "runs_on": "here"})
        opening = open_runtime(
            settings, SERVER, everybody=self.transport == HTTP, announce=lambda _runtime: Announcement("server")
        )
        return await stack.enter_async_context(opening)

    def start(self) -> None:
        """Begin to open the data root; a second call changes nothing."""
        if self._opening is None:
            self._open_again()

    def _open_again(self) -> _Opening:
        self._opening = opening = _Opening()
        self._wanted.set()
        return opening

    def close(self) -> None:
        """Begin to close it, within 4 s; a second call changes nothing."""
        if self._runtime is None:  # nothing was acknowledged, so nothing is lost
            self._keeping.cancel()
        elif not self._closing.is_set():
            self._keeping.deadline = anyio.current_time() + CLOSE_WITHIN_S
        self._closing.set()
        self.updates.close()
        self._telling.cancel()
        self._serving_pages.cancel()
        self._wanted.set()

    async def service(self, ctx: ServerRequestContext[App, Any]) -> Service:
        """Return the session's service once the data root is open. Raises AvaError: it could not be opened."""
        runtime = await self.opened()
        service = self._service_of(ctx, runtime)
        if service.session.started and service.session.remote:
            return service
        async with self._starting:  # a second call that comes meanwhile waits for what the first one asks the client
            if not service.session.started:
                await self._start_session(ctx, service.session)
        return service

    async def opened(self) -> Runtime:
        """Return the runtime once the data root is open. Raises AvaError: it could not be opened; says why."""
        from ava_server.core.errors import ConfigError

        opening = self._opening
        if opening is None or opening.error is not None:
            opening = self._open_again()
        if not opening.done.is_set():
            with anyio.move_on_after(OPEN_WITHIN_S):
                await opening.done.wait()
        if opening.error is not None:
            raise ConfigError(_reason(opening.error)) from opening.error
        if self._runtime is None:
            raise ConfigError(f"the data root is not open after {OPEN_WITHIN_S:.0f} s; try again in a moment")
        return self._runtime

    def _service_of(self, ctx: ServerRequestContext[App, Any], runtime: Runtime) -> Service:
        from ava_server.service.access import Session

        if self.transport != HTTP:
            return self.service_for((None, ""), lambda: Session(user=runtime.user, transport=self.transport))
        token = token_of(ctx)
        client = ctx.session.client_params
        name = client.client_info.name[:CLIENT_CHARS] if client is not None else ""
        forms = can_ask(ctx)
        return self.service_for(
            (token, name, forms), lambda: replace(session_over_http(token, name, forms=forms), url=self.url)
        )

    def service_for(self, key: tuple[Token | None, *tuple[object, ...]], session: Callable[[], Session]) -> Service:
        """The `key` is the token, scopes, and the rest."""
        from ava_server.service.service import Service

        service = self._services.get(key)
        if service is None:
            # A client that makes up names loses its own oldest session.
            of_token = [known for known in self._services if known[0] == key[0]]
            if len(of_token) >= MOST_OF_TOKEN or len(self._services) >= MOST_SERVICES:
                oldest = of_token[0] if of_token else next(iter(self._services))
                self._end_session(self.runtime, self._services.pop(oldest))
            service = self._services[key] = Service(self.runtime, session())
            self.runtime.manager.sessions.add(service.session.id)
        return service

    async def remote_roles(self, ctx: ServerRequestContext[App, Any]) -> Catalog | None:
        if self.transport != HTTP:
            return None
        service = await self.service(ctx)
        return await self.runtime.catalog((), remote=service.session.user)

    @property
    def is_open(self) -> bool:
        return self._runtime is not None and not self._closing.is_set()

    def caller(self, ctx: ServerRequestContext[App, Any]) -> str | None:
        """Return the user of a call over HTTP, else None. Raises Refused if it came over HTTP without a token."""
        return token_of(ctx).user if self.transport == HTTP else None

    def _role_places(self, runtime: Runtime) -> RolePlaces:
        """Return where role files are read from. Blocking."""
        from ava_server.config.role_folders import RolePlaces, places_of

        if self.transport == HTTP:
            return RolePlaces(runtime.settings.paths, None, False, None)
        roots = next((service.session.roots for service in self._services.values()), ())
        return places_of(runtime.settings, client_roots=roots, cwd=working_folder() or NOWHERE, home=home_folder())

    @property
    def runtime(self) -> Runtime:
        """Return the runtime; there is one only once the data root is open."""
        assert self._runtime is not None
        return self._runtime

    async def _start_session(self, ctx: ServerRequestContext[App, Any], session: Session) -> None:
        client = ctx.session.client_params
        if client is not None:
            session.client = client.client_info.name[:CLIENT_CHARS]
            session.client_version = client.client_info.version[:CLIENT_CHARS]
        session.protocol = ctx.protocol_version
        session.forms = can_ask(ctx)
        self.begin(session)
        if not session.remote:  # the folders of another machine
            session.roots = await _roots(ctx)

    def begin(self, session: Session) -> None:
        from ava_audit.events import Event, SessionStart
        from ava_audit.store.store import append

        if session.started:
            return
        session.started, here = True, working_folder()
        fact = SessionStart(
            client=session.client,
            client_version=session.client_version,
            protocol=session.protocol,
            transport=session.transport,
            folder=str(here) if here is not None and not session.remote else None,
            token=session.token.name if session.token is not None else None,
        )
        self.runtime.store.post(append(Event(session.who, fact)))

    def _end_session(self, runtime: Runtime, service: Service, reason: str = "the connection ended") -> None:
        from ava_audit.events import Event, SessionEnd
        from ava_audit.store.store import append

        if service.session.started:
            runtime.store.post(append(Event(service.session.who, SessionEnd(reason=reason))))
        runtime.manager.sessions.discard(service.session.id)


def session_over_http(token: Token, client: str, *, forms: bool = False) -> Session:
    """Return the session of a token and a client, which may ask its person; it has the same id after a restart."""
    from ava_server.service.access import Session

    connection = f"{token.id}\0{client}"
    if forms:
        connection += "\0"
    label = hashlib.sha256(connection.encode("utf-8", "replace")).hexdigest()[:12]
    return Session(user=token.user, transport=HTTP, id=f"sess-{label}", client=client or None, forms=forms, token=token)


def _elicitation(ctx: ServerRequestContext[App, Any]) -> ElicitationCapability | None:
    capabilities = ctx.session.client_capabilities
    return capabilities.elicitation if capabilities is not None else None


def can_ask(ctx: ServerRequestContext[App, Any]) -> bool:
    kinds = _elicitation(ctx)
    # A client of before 2025-11-25 names no kinds, and means forms.
    return kinds is not None and (kinds.form is not None or kinds.url is None)


def can_open(ctx: ServerRequestContext[App, Any]) -> bool:
    kinds = _elicitation(ctx)
    return kinds is not None and kinds.url is not None


def token_of(ctx: ServerRequestContext[App, Any]) -> Token:
    """Return the token that a call over HTTP came with. Raises Refused if there is none."""
    from ava_server.config.tokens import Token
    from ava_server.core.errors import Refused

    token = ctx.request.scope.get(OF_REQUEST) if ctx.request is not None else None
    if not isinstance(token, Token):
        raise Refused("this call has no token")
    return token


async def _roots(ctx: ServerRequestContext[App, Any]) -> tuple[str, ...]:
    capabilities = ctx.session.client_capabilities
    if capabilities is None or capabilities.roots is None or not ctx.session.can_send_request:
        return ()
    import warnings

    with anyio.move_on_after(2), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # roots are deprecated, and still how hosts of the handshake era name a folder
        try:
            answer = await ctx.session.list_roots()  # pyright: ignore[reportDeprecated]
        except Exception as error:  # a client may declare roots and fail to list them
            log.info("the client did not name its folders: %s", error)
            return ()
        return tuple(str(root.uri) for root in answer.roots)
    return ()


def _reason(error: Exception) -> str:
    from ava_server.core.shortage import shortage_in

    return shortage_in(error) or str(error)
