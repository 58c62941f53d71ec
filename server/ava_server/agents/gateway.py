"""The only server that another agent reaches: it forwards the agent's model requests, once each is reserved.

It speaks the wire of the run's model. A request is authenticated with a secret of the run, read by `bodies.py`,
admitted by the meter, and forwarded with the provider's key; its answer goes back piece by piece as it comes, while a
copy is read for its usage. Each admitted call is settled once, whatever happens to it.
"""

from __future__ import annotations

import hmac
import logging
import os
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import anyio
import uvicorn
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response

from ava_audit.errors import AuditError
from ava_server.agents.seam import Admitted, CallRefused, Meter, Refusal, is_to_repeat
from ava_server.core.errors import ModelError
from ava_server.core.untrusted import HIDE_WITHIN_S, hide_apart
from ava_server.models.base import NOT_SENT, Completion
from ava_server.models.errors import may_have_been_billed
from ava_server.models.json_text import encode
from ava_server.models.wires.stream import READ
from ava_server.web.http_connection import server_config

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from ava_server.agents.bodies import Bodies
    from ava_server.agents.seam import AgentCall
    from ava_server.models.http_model import HttpModel
    from ava_server.models.wires.stream import AnswerStream

log = logging.getLogger("ava.agents")
import_module("uvicorn.lifespan.off")  # a server loads it when it starts, on the event loop

BODY_BYTES = 32 * 1024 * 1024
BODY_S = 30.0
"""Seconds in which a body has to arrive."""
MOST_CALLS = 16
"""Calls of one run at once; the next one is asked to come later."""
MOST_BYTES = 64 * 1024 * 1024
"""Bytes of the bodies of these calls together."""
MOST_CONNECTIONS = 2 * MOST_CALLS
"""Of one run; a further one is closed, for each holds a file of the server's."""
MCP_BYTES = 256 * 1024
"""Bytes of one request to the run's own tools."""
HUNG_UP_S = 5.0
"""Seconds for which an answer is read on for its usage, once the agent has hung up."""
SETTLE_S = 3.0
_PASSED = ("content-type", "request-id", "x-request-id", "retry-after")
_BETA = re.compile(
    r"(?:claude-code|interleaved-thinking|fine-grained-tool-streaming|effort|structured-outputs|mid-conversation-system"
    r"|thinking-token-count)-(?:\d{8}|\d{4}-\d\d-\d\d)"
)
"""Names of Anthropic's beta features that change no price and store nothing, with their dates. Others are left out."""
_BETA_CHARS = 100
_BYTES_OF_TOKEN = 4
"""Bytes of a request for each token, where only an agent's own planning depends on it."""
_STATUS: Mapping[Refusal, tuple[int, str]] = {
    "cap": (400, "billing_error"),
    "model": (404, "not_found_error"),
    "form": (400, "invalid_request_error"),
    "over": (403, "permission_error"),
    "busy": (429, "rate_limit_error"),
}
"""The status and the type of a refusal. The SDKs of agents repeat 408, 409, 429 and 500 upwards: here only `busy`."""
BUSY_S = 5.0
"""Seconds after which an agent is to repeat a request that waited in vain for money that other runs hold."""
_FAILED: Mapping[str, tuple[int, str]] = {
    "rate_limit": (429, "rate_limit_error"),
    "overloaded": (529, "overloaded_error"),
    "auth": (401, "authentication_error"),
    "usage_limit": (402, "billing_error"),
    "bad_request": (400, "invalid_request_error"),
    "rejected": (400, "invalid_request_error"),
    "limit_name": (400, "invalid_request_error"),
    "tier": (400, "invalid_request_error"),
    "timeout": (504, "timeout_error"),
}
"""The same for what a provider answered, by the kind of error; else 502."""


class Gateway:
    """The gateway of one run, as an ASGI application. `mcp` answers at /mcp, with the same secret."""

    def __init__(self, model: HttpModel, bodies: Bodies, meter: Meter, secret: str, mcp: ASGIApp | None = None) -> None:
        self._model = model
        self._bodies = bodies
        self._meter = meter
        self._secret = secret.encode()
        self._mcp = mcp
        self._open: dict[anyio.CancelScope, int] = {}  # the calls in progress, and the bytes of their bodies
        self._idle = anyio.Event()
        self._closed = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        path = str(scope["path"]).rstrip("/")
        method = str(scope["method"])
        answer: Response | None
        if method == "HEAD" and not path:  # an agent looks whether somebody is there
            answer = Response()
        elif not self._has_secret(headers):
            answer = self._error(401, "authentication_error", "the secret of this run is missing or wrong")
        elif path == "/mcp" and self._mcp is not None:
            try:
                content = await _body(receive, most=MCP_BYTES)
            except CallRefused as why:
                answer = self._error(413, "request_too_large", str(why))
            else:
                await self._mcp(scope, _replayed(content, receive), send)
                return
        else:
            answer = await self._answer_model_api(method, path, scope, receive, send)
        if answer is not None:
            await answer(scope, receive, send)

    async def _answer_model_api(
        self, method: str, path: str, scope: Scope, receive: Receive, send: Send
    ) -> Response | None:
        """Answer a request of the model's API; None where the answer has been sent."""
        wire = self._model.wire
        if method == "GET" and path.endswith("/models"):
            return JSONResponse(self._models())
        if method == "POST":
            if wire.counted(path):
                return await self._in_room(partial(self._count, receive))
            fields = wire.request_at(path)
            if fields is not None:
                unanswered = wire.unanswered_form(path, scope["query_string"].decode("latin-1"))
                work = partial(self._call, Headers(scope=scope), receive, send, fields, unanswered)
                return await self._in_room(work)
        return self._error(404, "not_found_error", f"there is no {method} {path[:100]} here")

    def _has_secret(self, headers: Headers) -> bool:
        """Tell whether a request has the run's secret, in any of the headers in which agents send a key."""
        keys = [headers.get("x-api-key", ""), headers.get("x-goog-api-key", "")]
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            keys.append(token)
        return any(hmac.compare_digest(key.encode(), self._secret) for key in keys)

    def _models(self) -> dict[str, Any]:
        return self._model.wire.model_list(self._bodies.models)

    def _error(self, status: int, kind: str, message: str, wait_s: float | None = None) -> Response:
        headers = {"x-should-retry": "false"}
        if status in (429, 529):
            headers["x-should-retry"] = "true"
        if wait_s is not None:
            headers["retry-after"] = str(max(round(wait_s), 1))
        return JSONResponse(self._model.wire.error_body(status, kind, message, wait_s), status, headers)

    async def _in_room(self, work: Callable[[Callable[[int], None]], Awaitable[Response | None]]) -> Response | None:
        """Answer a request, if there is room for it among those that are open; `work` counts the bytes of its body.

        Returns the answer where none has begun.
        """
        if self._closed:
            return self._over()
        if len(self._open) >= MOST_CALLS:
            return self._error(429, "rate_limit_error", f"{MOST_CALLS} requests of this run are open", 2)

        def take(size: int) -> None:
            self._open[scope] += size
            if sum(self._open.values()) > MOST_BYTES:
                raise CallRefused("form", f"the open requests of this run have more than {MOST_BYTES:,} bytes")

        with anyio.CancelScope() as scope:
            self._open[scope] = 0
            try:
                return await work(take)
            finally:
                del self._open[scope]
                if not self._open:
                    self._idle.set()
        return self._over()

    async def _count(self, receive: Receive, take: Callable[[int], None]) -> Response:
        """Answer how many tokens a request has, without asking anybody: about one for four bytes."""
        try:
            content = await _body(receive, take)
        except CallRefused as why:
            return self._refused(why)
        return JSONResponse({"totalTokens": -(-len(content) // _BYTES_OF_TOKEN)})

    async def close(self) -> None:
        """Cancel and settle what is open, and take no more; at most 4 s."""
        self._closed = True
        self._idle = anyio.Event()
        for scope in self._open:
            scope.cancel()
        if self._open:
            with anyio.move_on_after(SETTLE_S + 1):
                await self._idle.wait()

    async def _call(
        self,
        headers: Headers,
        receive: Receive,
        send: Send,
        in_address: Mapping[str, Any],
        unanswered: str,
        take: Callable[[int], None],
    ) -> Response | None:
        """Forward a request once it is admitted; return the answer where none has been sent.

        `in_address` are fields that its address has. `unanswered`: why a request to this address is refused, or empty.
        """
        unknown_betas = [name for name in _betas(headers) if not _BETA.fullmatch(name)]
        try:
            content = await _body(receive, take)
            if unanswered:
                raise CallRefused("form", unanswered)
            call = await self._read(content, unknown_betas, in_address)
        except CallRefused as why:
            with anyio.CancelScope(shield=True), anyio.move_on_after(SETTLE_S):
                await self._meter.refuse(why)
            return self._refused(why)
        forwarded: _Forwarded | None = None
        waiting, reading = anyio.CancelScope(), anyio.CancelScope()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_watch, receive, waiting, reading)
            try:
                with waiting:
                    forwarded = _Forwarded(await self._meter.admit(call), send, reading)
                if forwarded is not None:
                    await self._answered(forwarded, headers, gone=waiting.cancel_called)
                    if is_to_repeat(forwarded.admitted, forwarded.error) and not waiting.cancel_called:
                        forwarded = _Forwarded(await self._meter.admit(call), send, reading)
                        await self._answered(forwarded, headers, gone=waiting.cancel_called)
            except CallRefused as why:
                return self._refused(why)
            finally:
                tasks.cancel_scope.cancel()
        if forwarded is None or forwarded.begun:
            return None
        failed = forwarded.error
        if failed is None:
            return self._over()
        status, kind = _FAILED.get(failed.kind, (502, "api_error"))
        if failed.kind in ("auth", "limit_name") and failed.retryable:  # a new key, or the limit's other name
            status, kind = _FAILED["overloaded"]
        return self._error(status, kind, str(failed), failed.again_after_s)

    async def _read(self, content: bytes, unknown_betas: Sequence[str], in_address: Mapping[str, Any]) -> AgentCall:
        taken = [f"anthropic-beta {name[:_BETA_CHARS]}" for name in unknown_betas]
        try:
            return await hide_apart(partial(self._bodies.read, content, taken, in_address), len(content))
        except TimeoutError:
            sentence = f"its secrets could not be looked for within {HIDE_WITHIN_S:g} s; send less at once"
            raise CallRefused("form", sentence) from None

    async def _answered(self, forwarded: _Forwarded, headers: Headers, *, gone: bool) -> None:
        """Have an admitted call answered, unless the agent has `gone` by now, and settle it."""
        try:
            if gone:
                forwarded.sent = False
            else:
                await self._forward(forwarded, headers)
        except ModelError as error:
            forwarded.error = error
        except AuditError:  # nobody knows whose the run is, so nothing was sent
            forwarded.sent = False
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(SETTLE_S):
                await forwarded.settle(self._meter)
        if forwarded.completion is not None:
            await forwarded.end()

    def _refused(self, why: CallRefused) -> Response:
        status, kind = _STATUS[why.reason]
        wait_s = None
        if why.reason == "busy":
            wait_s = BUSY_S
        return self._error(status, kind, str(why), wait_s)

    def _over(self) -> Response:
        return self._error(403, "permission_error", "this run is over")

    async def _forward(self, forwarded: _Forwarded, headers: Headers) -> None:
        call, bodies, wire = forwarded.admitted.call, self._bodies, self._model.wire
        tier = wire.tier(refused=not forwarded.admitted.asks_tier)
        passed_headers: dict[str, str] | None = None
        betas = [name for name in _betas(headers) if _BETA.fullmatch(name)]
        if betas:
            passed_headers = {"anthropic-beta": ",".join(betas)}
        with forwarded.reading:
            try:
                async with self._model.exchange(
                    lambda: encode(
                        {**self._model.accepted_body(bodies.limited(call, forwarded.admitted.output)), **tier}
                    ),
                    self._meter.check,
                    lambda: bodies.shown_bytes(call),
                    passed_headers,
                    most_output=forwarded.admitted.output,
                    streaming=call.body.get("stream") is True,
                ) as stream:
                    await forwarded.take(stream)
            except anyio.get_cancelled_exc_class() as cancelled:
                forwarded.sent = NOT_SENT not in getattr(cancelled, "__notes__", ())
                raise


@dataclass
class _Forwarded:
    """A call on its way: what came back of it, and whether anything of it may have been sent."""

    admitted: Admitted
    send: Send
    reading: anyio.CancelScope
    began: float = field(default_factory=time.monotonic)
    begun: bool = False
    sent: bool = True
    completion: Completion | None = None
    error: ModelError | None = None
    _held: list[bytes] = field(default_factory=list[bytes])

    async def take(self, stream: AnswerStream) -> None:
        """Pass an answer on as it comes, but for its end: the agent must not go on before this call is settled."""
        stream.tap = self._held.append
        named = [(name.encode(), stream.headers[name].encode()) for name in _PASSED if name in stream.headers]
        await self.send({"type": "http.response.start", "status": 200, "headers": named})
        self.begun = True
        async for delta in stream:
            if delta is READ and not stream.ended:  # a piece may have the end behind its first events
                await self._pass_on(more=True)
        self.completion = stream.completion

    async def end(self) -> None:
        await self._pass_on(more=False)

    async def _pass_on(self, *, more: bool) -> None:
        content, self._held[:] = b"".join(self._held), ()
        if content or not more:
            await self.send({"type": "http.response.body", "body": content, "more_body": more})

    async def settle(self, meter: Meter) -> None:
        took_ms = round((time.monotonic() - self.began) * 1000)
        if self.completion is not None:
            await meter.answered(self.admitted, self.completion, took_ms)
            return
        may_be_billed = self.sent
        if self.error is not None and not may_have_been_billed(self.error):
            may_be_billed = False
        settlement: Literal["unknown", "not_billed"] = "not_billed"
        if may_be_billed:
            settlement = "unknown"
        await meter.failed(self.admitted, settlement, self.error, took_ms)


def _betas(headers: Headers) -> list[str]:
    """Return the names of the beta features that a request asks for."""
    given = (name.strip() for name in headers.get("anthropic-beta", "").split(","))
    return [name for name in given if name]


async def _watch(receive: Receive, waiting: anyio.CancelScope, reading: anyio.CancelScope) -> None:
    """Once the agent has hung up: wait no more, and read its answer on for a moment, whose end says what it costs."""
    while (await receive())["type"] != "http.disconnect":
        pass
    waiting.cancel()
    reading.deadline = anyio.current_time() + HUNG_UP_S


async def _body(receive: Receive, take: Callable[[int], None] = lambda _size: None, most: int = BODY_BYTES) -> bytes:
    """Return a whole body; `take` counts it as it comes. Raises CallRefused if it is too long, or does not arrive."""
    pieces: list[bytes] = []
    size = 0
    with anyio.move_on_after(BODY_S):
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise CallRefused("form", "the request was not sent to its end")
            pieces.append(message.get("body", b""))
            size += len(pieces[-1])
            take(len(pieces[-1]))
            if size > most:
                raise CallRefused("form", f"the body has more than {most:,} bytes")
            if not message.get("more_body"):
                return b"".join(pieces)
    raise CallRefused("form", f"the body did not arrive within {BODY_S:g} s")


def _replayed(content: bytes, receive: Receive) -> Receive:
    """Return what gives a body that was read once more, and then what comes."""
    given: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]

    async def receive_again() -> Message:
        return given.pop() if given else await receive()

    return receive_again


@asynccontextmanager
async def serving(gateway: Gateway, socket: Path) -> AsyncGenerator[None]:
    """Serve a gateway on a unix socket while the body runs, then settle every call.

    Raises OSError if it cannot listen.
    """
    async with listening(gateway, socket):
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await gateway.close()


@asynccontextmanager
async def listening(app: ASGIApp, socket: Path) -> AsyncGenerator[None]:
    """Serve an application on a unix socket while the body runs. Raises OSError if it cannot listen there."""
    with _short_path(socket) as path:
        config = server_config(app, MOST_CONNECTIONS, uds=path)
        config.load()
        server = uvicorn.Server(config)
        server.lifespan = config.lifespan_class(config)
        await server.startup()  # without its loop, which would take the process's signals
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                with anyio.move_on_after(SETTLE_S):
                    await server.shutdown()
                await anyio.Path(socket).unlink(missing_ok=True)


@contextmanager
def _short_path(socket: Path) -> Generator[str]:
    """Hold a path of a socket by its folder's descriptor: an address has 107 bytes, and a data root may be deep."""
    folder = os.open(socket.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{socket.name}"
    finally:
        os.close(folder)
