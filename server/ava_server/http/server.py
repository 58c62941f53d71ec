"""The HTTP transport, `ava serve --http`: one runtime for all users, each of whom sees only their own runs.

uvicorn only parses HTTP here: its signal handlers, log and reloading are off. The first signal stops new spawns and
lets calls in progress finish; then the server ends as over stdio, and its runs continue at the next start.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import uvicorn

from ava_extras import has_extra, missing
from ava_server.config.sign_in import BrowserSessions, Passkeys
from ava_server.config.tokens import Token, TokenFile
from ava_server.core.background import http_server, pages_server
from ava_server.core.data_root import DataRoot
from ava_server.core.shortage import raise_limit
from ava_server.core.shutdown import GracefulShutdown, ignore_signals, log_to_stderr
from ava_server.core.threads import run_server
from ava_server.http.limits import HEADER_BYTES, Authentication, RequestLimits, error_response, forbidden
from ava_server.http.sessions import Forwarder, Sessions, worth_a_line
from ava_server.http.settings import Reach, inner_url, listen_everywhere, refuse_open
from ava_server.mcp_server.app import HTTP, OF_REQUEST, App
from ava_server.mcp_server.server import build_server
from ava_server.service.record_requests import PATHS as RECORD_PATHS
from ava_server.web.http_connection import server_config
from ava_server.web.site import Site

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from ava_server.config.settings import Settings
    from ava_server.web.pages import Pages


CONNECTIONS = 2_000
AT_ONCE = 100
"""Connections accepted at once: while they arrive, as many closed ones are still open."""
_FILES_FOR_OTHERS = 512 + 3 * AT_ONCE
"""Open files reserved for the log, tools, models and commands, and for connections being accepted."""


def most_connections() -> int:
    """Return the most connections at once: as many as the limit on open files allows, less a reserve."""
    limit = raise_limit(CONNECTIONS + _FILES_FOR_OTHERS)
    return CONNECTIONS if limit is None else max(min(CONNECTIONS, limit - _FILES_FOR_OTHERS), 32)


log = logging.getLogger("ava.http")
ROOT_EVERY_S = 1.0
"""How often a server that ends when it is idle sees whether its data root is still there."""
KEEP_ALIVE_S = 75.0
"""Longer than proxies keep an idle connection, so that they close it and never use a closed one."""
LAST_WORDS_S = 1.0
TOLD_WITHIN_S = 1.0
"""Seconds for streams to tell their clients that they end."""
MCP_PATH, APPROVALS_PATH, METRICS_PATH, USERS_PATH = "/mcp", "/approvals", "/metrics", "/users"


def serve(load: Callable[[], Settings], reach: Reach, say: Callable[[str], None]) -> int:
    """Serve MCP clients over HTTP until a signal comes; returns the exit code. `say` prints a line for the person.

    Raises BadInput: a public address without tokens or name; ConfigError: wrong settings, address or data root.
    """
    log_to_stderr("ava: %(message)s")
    logging.getLogger("ava.access").setLevel(logging.INFO)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # any client can cause its warnings
    logging.getLogger("mcp").setLevel(logging.ERROR)  # its warnings name sessions, which are half a credential
    logging.getLogger("mcp.server.streamable_http").addFilter(worth_a_line)
    settings = load()
    tokens = TokenFile(settings.paths.tokens_file)
    has_tokens = tokens.any()
    refuse_open(reach, tokens=has_tokens)
    if not has_tokens and not reach.pages:
        say("No token exists, and every request needs one: ava token create NAME --user USER --scope spawn,read")
    return run_server(_serve, lambda: settings, reach, tokens, say)


async def _serve(load: Callable[[], Settings], reach: Reach, tokens: TokenFile, say: Callable[[str], None]) -> int:
    limits, ending = RequestLimits(), GracefulShutdown(reach.drain_s, reach.shutdown_delay_s)
    with ExitStack() as held:
        found = [held.enter_context(contextlib.closing(each)) for each in listen_everywhere(reach)]
        reach = replace(reach, port=found[0].getsockname()[1])  # the system chooses the port if none was given
        app = App(load, HTTP, reach.base_url)
        server = build_server(load, transport=HTTP, app=app)
        sessions = Sessions(server)
        http = _Server(_Paths(app, sessions, ending), reach, tokens, limits, _pages(app, load().paths, reach, tokens))
        async with anyio.create_task_group() as tasks:
            await tasks.start(ending.watch)
            with ending.serving:
                async with sessions.run(), anyio.create_task_group() as serving:
                    app.start()
                    await app.opened()
                    sessions.forwarder = Forwarder(app.runtime, urlsplit(reach.base_url).netloc)
                    serving.start_soon(sessions.forwarder.stay_open)
                    serving.start_soon(http.serve, found)
                    serving.start_soon(limits.watch_tokens, partial(sessions.end_without, tokens.holds_id))
                    if reach.idle_s is not None:
                        serving.start_soon(_end_when_idle, limits, reach.idle_s, load().paths.path, ending)
                    async with (
                        sessions.forwarder.announced(inner_url(reach)),
                        _announced(load().paths, reach) as first,  # it ends before another user can have the port
                    ):
                        if first or not reach.pages:  # of two that start at once, one serves the pages
                            say(_serving(reach))
                            await ending.wait()
                    app.runtime.closing.begin()
                    app.updates.close()
                    with anyio.move_on_after(TOLD_WITHIN_S):
                        await limits.streams_ended()
                    limits.end_listening()
                    with ending.draining:
                        ending.draining.deadline = anyio.current_time() + reach.drain_s
                        await limits.empty()
                    app.runtime.closing.finish()
                    with anyio.move_on_after(LAST_WORDS_S):
                        await limits.empty()
                    http.should_exit = True
                    serving.cancel_scope.deadline = anyio.current_time() + LAST_WORDS_S
                    app.close()
            ending.begin(0)
            tasks.cancel_scope.cancel()
    ignore_signals()
    return ending.code or 0


def _serving(reach: Reach) -> str:
    if reach.pages:
        return f"Serving the pages at {reach.base_url}. Press Ctrl-C to stop."
    where = f"at {reach.url}, on {reach.host} port {reach.port}"
    if not has_extra("web"):
        return f"Serving MCP clients {where}. Press Ctrl-C to stop. {missing('web')}"
    return f"Serving MCP clients {where}, and pages for people at {reach.base_url}. Press Ctrl-C to stop."


def _pages(app: App, root: DataRoot, reach: Reach, tokens: TokenFile) -> Pages | None:
    if not has_extra("web"):
        return None
    from ava_server.web.pages import Pages

    sessions, passkeys = BrowserSessions(root.browser_sessions), Passkeys(root.passkeys)
    return Pages(app, Site(reach.base_url, reach.pages, sessions, tokens, passkeys, root.owned))


@asynccontextmanager
async def _announced(root: DataRoot, reach: Reach) -> AsyncGenerator[bool]:
    """Let hosts on this machine find a server that listens only there; yield whether it is the first one."""
    with ExitStack() as held:
        first = True
        if reach.loopback:
            server = pages_server(root) if reach.pages else http_server(root)
            announcing = server.announced(reach.port, keep=reach.pages)
            first = await anyio.to_thread.run_sync(held.enter_context, announcing)
        yield first


async def _end_when_idle(limits: RequestLimits, idle_s: float, root: Path, ending: GracefulShutdown) -> None:
    """End after so long without a request, or when there is no data root: it was removed or moved."""
    while await anyio.to_thread.run_sync(root.is_dir):
        left_s = idle_s - limits.idle_s()
        if left_s <= 0:
            break
        await anyio.sleep(min(left_s, ROOT_EVERY_S))
    ending.begin(0)
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
        """Return why it is not ready, without a word on its users' work."""
        return "it is stopping" if self._ending.asked.is_set() else self.why_not_serving()

    def why_not_serving(self) -> str | None:
        if self._ending.stopping:
            return "it is stopping"
        if not self._app.is_open or self._ending.serving.cancel_called:
            return "it is starting"
        return "the log cannot be reached" if self._app.runtime.manager.out_of_reach is not None else None


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
