"""The HTTP transport: `ava serve --http`. One house for all users, each of whom sees only what is theirs.

uvicorn parses HTTP, and nothing else of it is used: no signal handlers, no log, no reloading. The first signal stops
new spawns and lets calls in hand finish; then all ends as it does over stdio, and runs are left to the next start.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import anyio
import anyio.abc
import uvicorn
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from uvicorn.protocols.http.h11_impl import H11Protocol

from ava_server.config.tokens import Tokens
from ava_server.core.shutdown import Shutdown, deaf_to_signals, ending_signals, log_to_stderr
from ava_server.core.threads import received
from ava_server.http.approvals import approvals, metrics
from ava_server.http.auth import HEADER_BYTES, Authentication
from ava_server.http.limits import CONNECTION, RequestLimits, forbidden, too_many
from ava_server.http.settings import Reach, listen, refuse_open
from ava_server.mcp_server.app import HTTP, OF_REQUEST, App
from ava_server.mcp_server.server import build_server

if TYPE_CHECKING:
    from mcp.server.lowlevel.server import Server
    from starlette.types import Receive, Scope, Send

    from ava_server.config.settings import Settings
    from ava_server.config.tokens import Token


HEADERS_WITHIN_S = 10.0
"""How long a client may take to send a request's headers."""
CONNECTIONS = 2_000
AT_ONCE = 100
"""How many are taken in one go: while they come, as many that have been ended are open still."""
_FILES_FOR_OTHERS = 512 + 3 * AT_ONCE
"""Open files that are left for the log, tools, models and commands, and for those."""


class ConnectionLimits:
    """All connections: how many there are, and on which nothing is being answered, the longest silent first."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.open = 0
        self._unknown: dict[Connection, None] = {}
        self._known: dict[Connection, None] = {}

    def idle(self, one: Connection) -> None:
        """Note that nothing is being answered on it, from now on."""
        self.busy(one)
        (self._known if one.known else self._unknown)[one] = None

    def busy(self, one: Connection) -> None:
        """Note that it may not be ended now."""
        self._unknown.pop(one, None)
        self._known.pop(one, None)

    def make_room(self) -> Connection | None:
        """Return which one has to go; None is none of those that are there."""
        for among in (self._unknown, self._known):
            if among:
                return next(iter(among))
        return None


class Connection(H11Protocol):
    """A connection that is broken off when a request's headers do not come in time; uvicorn would wait for ever.

    When there are too many, one goes on which nothing is being answered: one that has shown no token before one that
    has, and of those the one that has said nothing for longest. So nobody needs an address to be told apart from
    others: behind a proxy all have the same.
    """

    def __init__(
        self, line: ConnectionLimits, config: Any, server_state: Any, app_state: dict[str, Any], _loop: Any = None
    ) -> None:
        super().__init__(config, server_state, {**app_state, CONNECTION: self}, _loop)
        self._patience: asyncio.TimerHandle | None = None
        self._line = line
        self._gone = False
        self._idle = self.conn.our_state
        self.known = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request, where there is room or can be made."""
        super().connection_made(transport)
        self._wait()
        self._line.open += 1
        if self._line.open > self._line.most:
            (self._line.make_room() or self).abort()
        if not self._gone:
            self._line.idle(self)

    def data_received(self, data: bytes) -> None:
        """Take data; while no request is being answered it is headers, and they have to come to an end."""
        self._line.busy(self)
        super().data_received(data)
        if self.cycle_over:
            self._wait()
            self._settle()
        else:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        """Count as one on which nothing is being answered."""
        super().on_response_complete()
        if self.cycle_over:
            self._settle()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP; where a request is being answered, or was, break off: it can have no two answers."""
        if not self.cycle_over or self.conn.our_state is not self._idle:
            self.abort()
        else:
            super().send_400_response(msg)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._stop_waiting()
        self._leave()
        super().connection_lost(exc)

    @property
    def cycle_over(self) -> bool:
        """Whether no request is being answered."""
        cycle = cast("Any", self.cycle)  # None before the first request
        return cycle is None or cycle.response_complete

    def let_in(self) -> None:
        """Note that a token that counts has come over it."""
        self.known = True

    def abort(self) -> None:
        """Break it off."""
        self._leave()
        self.transport.abort()

    def _settle(self) -> None:
        if not self._gone:
            self._line.idle(self)

    def _leave(self) -> None:
        """Count no more: whoever comes next has the room."""
        self._line.busy(self)
        if not self._gone:
            self._gone = True
            self._line.open -= 1

    def _wait(self) -> None:
        if self._patience is None:
            self._patience = self.loop.call_later(HEADERS_WITHIN_S, self.abort)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


def most_connections() -> int:
    """Return how many connections there may be at once: as many as files can be open here, and some left over."""
    if sys.platform == "win32":
        return CONNECTIONS
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS + _FILES_FOR_OTHERS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    room = CONNECTIONS if soft == resource.RLIM_INFINITY else min(CONNECTIONS, soft - _FILES_FOR_OTHERS)
    return max(room, 32)


BODY_BYTES = 4 * 1024 * 1024
SESSIONS, SESSIONS_OF_USER = 2_000, 200
"""How many may be open at once: in all, and of one user."""
IDLE_S = 1_800.0
"""A session without a request or an open stream ends after this; its client is told to open another one."""
_AGAIN_S = 60


class Sessions(StreamableHTTPSessionManager):
    """Answers what comes to `/mcp`, and knows whose the sessions are.

    Args:
        server: The MCP server.
    """

    def __init__(self, server: Server[Any]) -> None:
        super().__init__(server, max_request_body_size=BODY_BYTES, max_sessions=SESSIONS, session_idle_timeout=IDLE_S)

    async def answer(self, user: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request of a user."""
        if _opens(scope) and self._open_of(user) >= SESSIONS_OF_USER:
            sentence = (
                f"{SESSIONS_OF_USER} sessions of {user} are open already, and that is what one user may have. Clients"
                f" end theirs with DELETE; one without requests ends after {IDLE_S / 60:.0f} min."
            )
            await too_many(sentence, _AGAIN_S)(scope, receive, send)
        else:
            await self.handle_request(scope, receive, send)

    async def end_without(self, counts: Callable[[str], bool]) -> None:
        """End the sessions whose token does not count any more: `counts` tells it by the token's id."""
        over = [session for session, owner in self._session_owners.items() if not counts(owner["client_id"])]
        for session in over:
            if (transport := self._server_instances.get(session)) is not None:
                await self._discard_session(session, transport)

    @property
    def open(self) -> int:
        """How many are open."""
        return len(self._session_owners)

    def _open_of(self, user: str) -> int:
        return sum(owner["subject"] == user for owner in self._session_owners.values())


def _opens(scope: Scope) -> bool:
    """Tell whether a request would open a session, as the SDK sees it."""
    headers = Headers(scope=scope)
    if MCP_SESSION_ID_HEADER in headers:
        return False
    version = headers.get(MCP_PROTOCOL_VERSION_HEADER)
    return version is None or version in HANDSHAKE_PROTOCOL_VERSIONS


log = logging.getLogger("ava.http")
KEEP_ALIVE_S = 75.0
"""Longer than proxies keep an idle connection: it is theirs to close, so that no request meets a closed one."""
LAST_WORDS_S = 1.0
TOLD_WITHIN_S = 1.0
"""How long streams have to tell their clients that they end."""
MCP_PATH, APPROVALS_PATH, METRICS_PATH = "/mcp", "/approvals", "/metrics"


def serve(load: Callable[[], Settings], reach: Reach, say: Callable[[str], None]) -> int:
    """Serve MCP clients over HTTP until a signal comes; returns the exit code.

    Args:
        load: Reads the settings.
        reach: How the server may be reached.
        say: Tells a person where it is.

    Raises:
        BadInput: It would be open to others without what keeps them out.
        ConfigError: Settings are wrong, the address cannot be had, or the data root cannot be opened.
    """
    log_to_stderr("ava: %(message)s")
    logging.getLogger("ava.access").setLevel(logging.INFO)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # its warnings are for anybody to bring about
    logging.getLogger("mcp").setLevel(logging.ERROR)  # its warnings name sessions, which are half a credential
    settings = load()
    tokens = Tokens(settings.paths.tokens_file)
    has_tokens = tokens.any()
    refuse_open(reach, tokens=has_tokens)
    if not has_tokens:
        say("There is no token yet, and every request needs one: ava token create NAME --user USER --scope spawn,read")
    return anyio.run(_serve, lambda: settings, reach, tokens, say)


async def _serve(load: Callable[[], Settings], reach: Reach, tokens: Tokens, say: Callable[[str], None]) -> int:
    found = listen(reach)
    hands, ending = RequestLimits(), GracefulShutdown(reach.drain_s)
    with contextlib.closing(found):
        app = App(load, HTTP)
        server = build_server(load, transport=HTTP, app=app)
        sessions = Sessions(server)
        http = _Server(_Paths(app, sessions, ending), reach, tokens, hands)
        async with anyio.create_task_group() as tasks:
            await tasks.start(ending.watch)
            with ending.serving:
                async with sessions.run(), anyio.create_task_group() as serving:
                    app.start()
                    await app.opened()
                    serving.start_soon(http.serve, [found])
                    serving.start_soon(hands.look, partial(sessions.end_without, tokens.holds_id))
                    port: int = found.getsockname()[1]
                    shown = replace(reach, port=port)
                    say(f"Serving MCP clients at {shown.url}, on {reach.host} port {port}; Ctrl-C ends it.")
                    await ending.asked.wait()
                    app.runtime.closing.begin()
                    app.updates.close()
                    with anyio.move_on_after(TOLD_WITHIN_S):
                        await hands.told()
                    hands.end_listening()
                    with ending.draining:
                        ending.draining.deadline = anyio.current_time() + reach.drain_s
                        await hands.empty()
                    app.runtime.closing.finish()
                    with anyio.move_on_after(LAST_WORDS_S):
                        await hands.empty()
                    http.should_exit = True
                    serving.cancel_scope.deadline = anyio.current_time() + LAST_WORDS_S
                    app.close()
            ending.begin(0)
            tasks.cancel_scope.cancel()
    deaf_to_signals()
    return ending.code or 0


class GracefulShutdown(Shutdown):
    """An end in two steps: the first signal lets calls in hand finish, the second waits for nothing.

    Attributes:
        asked: The first signal has come.
        draining: Surrounds the wait for calls in hand.
    """

    def __init__(self, drain_s: float) -> None:
        super().__init__()
        self.asked = anyio.Event()
        self.draining = anyio.CancelScope()
        self._drain_s = drain_s

    async def watch(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Begin the end at the first signal, and end at once at the next."""
        with received(*ending_signals()) as signals:
            task_status.started()
            async for number in signals:
                if self.asked.is_set():
                    self.draining.cancel()
                    continue
                self.begin(128 + number if number == signal.SIGINT else 0, after_s=self._drain_s)
                self.asked.set()


class _Paths:
    """What answers a request that was let in, by its path."""

    def __init__(self, app: App, sessions: Sessions, ending: GracefulShutdown) -> None:
        self._app = app
        self._sessions = sessions
        self._ending = ending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        token: Token = scope[OF_REQUEST]
        if not self._app.is_open or self._ending.serving.cancel_called:
            await JSONResponse({"error": "not ready", "error_description": "Try again in a moment."}, 503)(
                scope, receive, send
            )
        elif scope["path"] == MCP_PATH:
            if {"spawn", "read", "audit"} & set(token.scopes):
                await self._sessions.answer(token.user, scope, receive, send)
            else:
                await forbidden(token, "spawn or read")(scope, receive, send)
        elif scope["path"] == APPROVALS_PATH:
            await approvals(self._app, scope, receive, send)
        elif scope["path"] == METRICS_PATH:
            await metrics(self._app, scope, receive, send, self._sessions.open)
        else:
            there = (
                f"There are {MCP_PATH} for MCP clients, {APPROVALS_PATH} for `ava --url URL approve`, and"
                f" {METRICS_PATH} for Prometheus."
            )
            await JSONResponse({"error": "not found", "error_description": there}, 404)(scope, receive, send)

    def why_not_ready(self) -> str | None:
        """Return why nothing can be done now, in words that say nothing of what is done here; None when all is well."""
        if self._ending.asked.is_set():
            return "it is being stopped"
        if not self._app.is_open or self._ending.serving.cancel_called:
            return "it is starting"
        return "the log is out of reach" if self._app.runtime.manager.out_of_reach is not None else None


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: what ends this server is decided here."""

    def __init__(self, paths: _Paths, reach: Reach, tokens: Tokens, hands: RequestLimits) -> None:
        guard = Authentication(paths, reach, tokens, hands, paths.why_not_ready)
        config = uvicorn.Config(
            cast("Any", guard),
            loop="none",
            http=cast("Any", partial(Connection, ConnectionLimits(most_connections()))),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=AT_ONCE,
            timeout_keep_alive=cast("int", KEEP_ALIVE_S),
            timeout_graceful_shutdown=1,
            h11_max_incomplete_event_size=HEADER_BYTES,
        )
        super().__init__(config)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals to `Draining`."""
        yield
