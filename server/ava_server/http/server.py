"""The HTTP transport, `ava serve --http`: one runtime for all users, each of whom sees only their own runs.

The background process listens in the same way, with the runtime that it has (`listen`).

uvicorn only parses HTTP here: its signal handlers, log and reloading are off. The first signal stops new spawns and
lets calls in progress finish; then the server ends as over stdio, and its runs continue at the next start.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import uvicorn

from ava_extras import has_extra, missing
from ava_server.config.tokens import Token, TokenFile
from ava_server.core.background import LocalServer, http_server
from ava_server.core.shortage import raise_limit
from ava_server.core.shutdown import GracefulShutdown, ignore_signals, log_to_stderr
from ava_server.core.threads import run_server
from ava_server.http.http_settings import Reach, inner_url, listen_everywhere, refuse_open
from ava_server.http.limits import HEADER_BYTES, Authentication, RequestLimits, error_response, forbidden
from ava_server.http.sessions import Forwarder, Sessions, worth_a_line
from ava_server.mcp_server.app import HTTP, OF_REQUEST, App
from ava_server.mcp_server.server import build_server
from ava_server.service.record_requests import PATHS as RECORD_PATHS
from ava_server.web.http_connection import server_config
from ava_server.web.site import Site

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from ava_server.config.settings import Settings
    from ava_server.service.runtime import Runtime
    from ava_server.web.asgi import Pages


CONNECTIONS = 2_000
AT_ONCE = 100
"""Connections accepted at once: while they arrive, as many closed ones are still open."""
_FILES_FOR_OTHERS = 512 + 3 * AT_ONCE
"""Open files reserved for the log, tools, models and commands, and for connections being accepted."""


def most_connections() -> int:
    """Return the most connections at once: as many as the limit on open files allows, less a reserve."""
    limit = raise_limit(CONNECTIONS + _FILES_FOR_OTHERS)
    if limit is None:
        return CONNECTIONS
    return max(min(CONNECTIONS, limit - _FILES_FOR_OTHERS), 32)


log = logging.getLogger("ava.http")
ROOT_EVERY_S = 1.0
"""How often a server that ends when it is idle sees whether its data root is still there."""
KEEP_ALIVE_S = 75.0
"""Longer than proxies keep an idle connection, so that they close it and never use a closed one."""
LAST_WORDS_S = 1.0
TOLD_WITHIN_S = 1.0
"""Seconds for streams to tell their clients that they end."""
MCP_PATH = "/mcp"
APPROVALS_PATH = "/approvals"
METRICS_PATH = "/metrics"
USERS_PATH = "/users"


def serve(load: Callable[[], Settings], reach: Reach, say: Callable[[str], None]) -> int:
    """Serve MCP clients over HTTP until a signal comes; returns the exit code. `say` prints a line for the person.

    Raises BadInput if a public address without tokens or name; ConfigError: wrong settings, address or data root.
    """
    log_to_stderr("ava: %(message)s")
    logging.getLogger("ava.access").setLevel(logging.INFO)
    _quiet_libraries()
    settings = load()
    tokens = TokenFile(settings.paths.tokens_file)
    has_tokens = tokens.any()
    refuse_open(reach, tokens=has_tokens)
    if not has_tokens:
        say("No token exists, and every request needs one: ava token create NAME --user USER --scope spawn,read")
    return run_server(_serve, lambda: settings, reach, tokens, say)


def _quiet_libraries() -> None:
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # any client can cause its warnings
    logging.getLogger("mcp").setLevel(logging.ERROR)  # its warnings name sessions, which are half a credential
    logging.getLogger("mcp.server.streamable_http").addFilter(worth_a_line)


async def _serve(load: Callable[[], Settings], reach: Reach, tokens: TokenFile, say: Callable[[str], None]) -> int:
    ending = GracefulShutdown(reach.drain_s, reach.shutdown_delay_s)

    async def begin() -> None:
        await ending.asked.wait()
        ending.begin(0, after_s=reach.drain_s + reach.shutdown_delay_s)

    with ExitStack() as held:
        listener = _Listener(load, http_server(load().paths), reach, tokens, held)
        async with anyio.create_task_group() as tasks:
            await tasks.start(ending.watch)
            tasks.start_soon(begin)
            with ending.serving:
                await listener.serve(ending, say)
            ending.begin(0)
            tasks.cancel_scope.cancel()
    ignore_signals()
    return ending.code or 0


async def listen(runtime: Runtime, server: LocalServer, reach: Reach, ending: GracefulShutdown) -> None:
    """Listen as a server of this machine, with the runtime of this process, until it ends or has been idle too long.

    `ending` is of this server alone; its signals are the process's. Raises ConfigError if the address cannot be used.
    """
    _quiet_libraries()
    tokens = TokenFile(runtime.settings.paths.tokens_file)
    with ExitStack() as held:
        listener = _Listener(lambda: runtime.settings, server, reach, tokens, held, runtime)
        with ending.serving:
            await listener.serve(ending, lambda _line: None)


class _Listener:
    """Answers requests on one address, with its own limits, idle time and end.

    Args:
        server: Which server of this machine it is.
        held: Closes the sockets.
        runtime: What the process has open already; by default it opens the data root itself, and ends with it.
    """

    def __init__(
        self,
        load: Callable[[], Settings],
        server: LocalServer,
        reach: Reach,
        tokens: TokenFile,
        held: ExitStack,
        runtime: Runtime | None = None,
    ) -> None:
        sockets = listen_everywhere(reach, other_port=server.serves_pages)
        self._sockets = [held.enter_context(contextlib.closing(each)) for each in sockets]
        # The system chooses the port if none was given.
        self._reach = replace(reach, port=self._sockets[0].getsockname()[1])
        self._load = load
        self._tokens = tokens
        self._is_guest = runtime is not None
        self._server = server
        self._app = App(load, HTTP, self._reach.base_url, runtime)
        self._limits = RequestLimits()

    async def serve(self, ending: GracefulShutdown, say: Callable[[str], None]) -> None:
        """Serve until the end is asked for; then let calls in progress finish."""
        app = self._app
        reach = self._reach
        limits = self._limits
        sessions = Sessions(build_server(self._load, transport=HTTP, app=app))
        paths = _Paths(app, sessions, ending)
        http = _Server(paths, reach, self._tokens, limits, _pages(app, self._server, reach, self._tokens))
        async with sessions.run(), anyio.create_task_group() as serving:
            app.start()
            await app.opened()
            sessions.forwarder = forwarder = Forwarder(app.runtime, urlsplit(reach.base_url).netloc)
            serving.start_soon(forwarder.stay_open)
            serving.start_soon(http.serve, self._sockets)
            serving.start_soon(limits.watch_tokens, partial(sessions.end_without, self._tokens.holds_id))
            if reach.idle_s is not None:
                serving.start_soon(_end_when_idle, limits, reach.idle_s, self._server.root.path, ending)
            # One process has one address for the other servers of the log: that for hosts.
            announcing = nullcontext() if self._server.serves_pages else forwarder.announced(inner_url(reach))
            async with announcing, self._announce() as first:  # it ends before another user can have the port
                if first or not self._is_guest:  # of two that start at once, one serves
                    say(_serving(reach))
                    await ending.wait()
            await self._drain(ending)
            http.should_exit = True
            serving.cancel_scope.deadline = anyio.current_time() + LAST_WORDS_S
            app.close()

    async def _drain(self, ending: GracefulShutdown) -> None:
        """End the streams, and let calls finish."""
        limits = self._limits
        closing = self._app.runtime.closing
        if not self._is_guest:
            closing.begin()
        self._app.updates.close()
        with anyio.move_on_after(TOLD_WITHIN_S):
            await limits.streams_ended()
        limits.end_listening()
        with ending.draining:
            ending.draining.deadline = anyio.current_time() + self._reach.drain_s
            await limits.empty()
        if closing.begun:
            closing.finish()
        with anyio.move_on_after(LAST_WORDS_S):
            await limits.empty()

    @asynccontextmanager
    async def _announce(self) -> AsyncGenerator[bool]:
        """Let others on this machine find a server that listens only there; yield whether it is the first one."""
        with ExitStack() as held:
            first = True
            if self._reach.loopback:
                announcing = self._server.announced(self._reach.port, keep=self._server.serves_pages)
                first = await anyio.to_thread.run_sync(held.enter_context, announcing)
            yield first


def _serving(reach: Reach) -> str:
    where = f"at {reach.url}, on {reach.host} port {reach.port}"
    if not has_extra("web"):
        return f"Serving MCP clients {where}. Press Ctrl-C to stop. {missing('web')}"
    return f"Serving MCP clients {where}, and pages for people at {reach.base_url}. Press Ctrl-C to stop."


def _pages(app: App, server: LocalServer, reach: Reach, tokens: TokenFile) -> Pages | None:
    if not has_extra("web"):
        return None
    from ava_server.web.asgi import Pages

    return Pages(app, Site.of(server.root, reach.base_url, tokens, local=server.serves_pages))


async def _end_when_idle(limits: RequestLimits, idle_s: float, root: Path, ending: GracefulShutdown) -> None:
    """End after `idle_s` without a request, or once the data root was removed or moved."""
    while await anyio.to_thread.run_sync(root.is_dir):
        left_s = idle_s - limits.idle_s()
        if left_s <= 0:
            break
        await anyio.sleep(min(left_s, ROOT_EVERY_S))
    ending.hurry()
    ending.asked.set()


class _Paths:
    def __init__(self, app: App, sessions: Sessions, ending: GracefulShutdown) -> None:
        self._app = app
        self._sessions = sessions
        self._ending = ending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        token: Token = scope[OF_REQUEST]
        if not self._app.is_open or self._ending.serving.cancel_called:
            await error_response(503, "Try again in a moment.", error="not ready")(scope, receive, send)
        elif scope["path"] == MCP_PATH:
            if {"spawn", "read", "audit", "admin"} & set(token.scopes):
                await self._sessions.answer(token.user, scope, receive, send)
            else:
                await forbidden(token, "spawn or read")(scope, receive, send)
        elif scope["path"] == APPROVALS_PATH or scope["path"].startswith(f"{APPROVALS_PATH}/"):
            from ava_server.http.answers import answer_approvals  # not loaded before somebody asks

            await answer_approvals(self._app, scope, receive, send)
        elif scope["path"] == METRICS_PATH and has_extra("team"):
            from ava_server.http.metrics import answer_metrics  # not loaded before somebody scrapes

            await answer_metrics(self._app, scope, receive, send, self._sessions.open)
        elif scope["path"] == USERS_PATH or scope["path"].startswith(f"{USERS_PATH}/"):
            from ava_server.http.answers import answer_users  # not loaded before somebody asks

            await answer_users(self._app, scope, receive, send)
        elif scope["path"].startswith(RECORD_PATHS):
            from ava_server.http.answers import answer_records  # not loaded before somebody asks

            await answer_records(self._app, scope, receive, send)
        else:
            there = (
                f"Not found. Paths: {MCP_PATH} for MCP clients, {APPROVALS_PATH}, {USERS_PATH} and"
                f" {', '.join(RECORD_PATHS)} for `ava --url URL`, {METRICS_PATH} for Prometheus."
            )
            await error_response(404, there, error="not found")(scope, receive, send)

    def why_not_ready(self) -> str | None:
        """Return why it is not ready; it says nothing of its users' work."""
        if self._ending.asked.is_set():
            return "it is stopping"
        return self.why_not_serving()

    def why_not_serving(self) -> str | None:
        if self._ending.stopping:
            return "it is stopping"
        if not self._app.is_open or self._ending.serving.cancel_called:
            return "it is starting"
        if self._app.runtime.store.forked:
            return "the log in the database has lost entries that this server knows, or is another one: restart it"
        if self._app.runtime.manager.out_of_reach is not None:
            return "the log cannot be reached"
        return None


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: `GracefulShutdown` handles them."""

    def __init__(
        self, paths: _Paths, reach: Reach, tokens: TokenFile, limits: RequestLimits, pages: Pages | None
    ) -> None:
        authentication = Authentication(paths, reach, tokens, limits, paths, pages)
        more = {"timeout_keep_alive": KEEP_ALIVE_S, "h11_max_incomplete_event_size": HEADER_BYTES}
        super().__init__(server_config(authentication, most_connections(), backlog=AT_ONCE, **more))

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield
