"""The HTTP transport: `ava serve --http`. One house for all users, each of whom sees only what is theirs.

uvicorn parses HTTP, and nothing else of it is used: no signal handlers, no log, no reloading. The first signal stops
new spawns and lets calls in hand finish; then all ends as it does over stdio, and runs are left to the next start.
"""

from __future__ import annotations

import contextlib
import logging
import signal
from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import anyio
import anyio.abc
import uvicorn
from starlette.responses import JSONResponse

from ava_server.config.tokens import Tokens
from ava_server.core.blocking import received
from ava_server.core.shutdown import Ending, deaf_to_signals, ending_signals
from ava_server.core.stderr_log import log_to_stderr
from ava_server.http.approvals import approvals
from ava_server.http.auth import HEADER_BYTES, Guard
from ava_server.http.connection import AT_ONCE, Connection, Line, most_connections
from ava_server.http.errors import forbidden
from ava_server.http.limits import Hands
from ava_server.http.metrics import metrics
from ava_server.http.sessions import Sessions
from ava_server.http.settings import Reach, listen, refuse_open
from ava_server.mcp_server.app import HTTP, OF_REQUEST, App, build_server

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from ava_server.config.settings import Settings
    from ava_server.config.tokens import Token

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
    hands, ending = Hands(), Draining(reach.drain_s)
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
                    app.house.closing.begin()
                    app.updates.close()
                    with anyio.move_on_after(TOLD_WITHIN_S):
                        await hands.told()
                    hands.end_listening()
                    with ending.draining:
                        ending.draining.deadline = anyio.current_time() + reach.drain_s
                        await hands.empty()
                    app.house.closing.finish()
                    with anyio.move_on_after(LAST_WORDS_S):
                        await hands.empty()
                    http.should_exit = True
                    serving.cancel_scope.deadline = anyio.current_time() + LAST_WORDS_S
                    app.close()
            ending.begin(0)
            tasks.cancel_scope.cancel()
    deaf_to_signals()
    return ending.code or 0


class Draining(Ending):
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

    def __init__(self, app: App, sessions: Sessions, ending: Draining) -> None:
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
        return "the log is out of reach" if self._app.house.manager.out_of_reach is not None else None


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: what ends this server is decided here."""

    def __init__(self, paths: _Paths, reach: Reach, tokens: Tokens, hands: Hands) -> None:
        guard = Guard(paths, reach, tokens, hands, paths.why_not_ready)
        config = uvicorn.Config(
            cast("Any", guard),
            loop="none",
            http=cast("Any", partial(Connection, Line(most_connections()))),
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
