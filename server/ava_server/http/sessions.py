"""The sessions of MCP up to 2025-11-25: how many a user may have, which server's they are, and the way there.

Such a session lives in the process that opened it. Its id ends with the name of that process, so any other server of
the same log knows where its requests belong. A made-up name only leads to a live server, which then does not know the
session; the address never comes from the request. A request that was passed on is not passed on again.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import httpx2
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER, StreamableHTTPServerTransport
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.responses import JSONResponse

from ava_audit.errors import AuditError
from ava_server.http.limits import connection_of, error_response, too_many
from ava_server.mcp_server.app import CARRY_OUT_S

if TYPE_CHECKING:
    from mcp.server.auth.middleware.bearer_auth import AuthorizationContext
    from mcp.server.lowlevel.server import Server
    from starlette.types import Message, Receive, Scope, Send

    from ava_server.service.runtime import Runtime


BODY_BYTES = 4 * 1024 * 1024
SESSIONS = 2_000
"""Open sessions at once."""
SESSIONS_OF_USER = 200
"""Open sessions of one user at once."""
IDLE_S = 1_800.0
"""Seconds after which a session without requests or an open stream ends; its client has to open another."""
_AGAIN_S = 60


class Sessions(StreamableHTTPSessionManager):
    """The MCP sessions at `/mcp`, with their owners. The forwarder, for other servers', needs an open data root."""

    def __init__(self, server: Server[Any]) -> None:
        super().__init__(server, max_request_body_size=BODY_BYTES, max_sessions=SESSIONS, session_idle_timeout=IDLE_S)
        self.forwarder: Forwarder | None = None

    async def answer(self, user: str, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        session = headers.get(MCP_SESSION_ID_HEADER)
        version = headers.get(MCP_PROTOCOL_VERSION_HEADER)
        # By the SDK's rules.
        has_sessions = version is None or version in HANDSHAKE_PROTOCOL_VERSIONS
        if has_sessions and session is None and self._count_of(user) >= SESSIONS_OF_USER:
            sentence = (
                f"{SESSIONS_OF_USER} sessions of {user} are open, which is the limit. A client ends its session with"
                f" DELETE; an idle one ends after {IDLE_S / 60:.0f} min."
            )
            await too_many(sentence, _AGAIN_S)(scope, receive, send)
            return
        is_here = session is None or session in self._server_instances
        if has_sessions and session is not None and not is_here and self.forwarder is not None:
            passed_on = await self.forwarder.pass_on(session, scope, receive, send)
            if passed_on:
                return
        try:
            await self.handle_request(scope, receive, send)
        except Exception as error:
            if not _session_ended(error):
                raise

    def _count_of(self, user: str) -> int:
        return sum(owner["subject"] == user for owner in self._session_owners.values())

    def _admit_session(self, requestor: AuthorizationContext | None) -> StreamableHTTPServerTransport | None:
        """Register a new session under an id that says which server it belongs to."""
        transport = super()._admit_session(requestor)
        if transport is None or self.forwarder is None:
            return transport
        sdk_id = transport.mcp_session_id
        assert sdk_id is not None
        session_id = f"{sdk_id}-{self.forwarder.name}"
        transport.mcp_session_id = session_id
        self._server_instances[session_id] = self._server_instances.pop(sdk_id)
        if sdk_id in self._session_owners:
            self._session_owners[session_id] = self._session_owners.pop(sdk_id)
        return transport

    async def end_without(self, counts: Callable[[str], bool]) -> None:
        """End sessions whose token is no longer valid, as `counts` says for a token's id."""
        over = [session for session, owner in self._session_owners.items() if not counts(owner["client_id"])]
        for session in over:
            transport = self._server_instances.get(session)
            if transport is not None:
                await self._discard_session(session, transport)

    @property
    def open(self) -> int:
        return len(self._session_owners)


def _session_ended(error: BaseException | None) -> bool:
    """Tell whether a session ended while a message for it arrived: the SDK then logs an error and answers twice."""
    if error is None or isinstance(error, anyio.ClosedResourceError | anyio.BrokenResourceError):
        return error is not None
    return _session_ended(error.__context__)


def worth_a_line(record: logging.LogRecord) -> bool:
    """Tell whether to show a line of the SDK's log: not if it only says that a session has ended."""
    return not (record.exc_info and _session_ended(record.exc_info[1]))


log = logging.getLogger("ava.peers")
PASSED_ON = "x-ava-passed-on"
"""The header of a request that another server has passed on."""
CONNECT_S = 3.0
WRITE_S = 30.0
READ_S = 60.0
"""The longest silence of an answer; every stream has a comment each 15 s."""
_OF_REQUEST = frozenset({"accept", "authorization", "content-length", "content-type", "last-event-id", "user-agent"})
_OF_ANSWER = frozenset({"allow", "cache-control", "content-length", "content-type", "retry-after", "www-authenticate"})
_OF_MCP = "mcp-"
_OWNER = re.compile(r"[0-9a-f]{32}-([A-Za-z0-9]{1,64})")
_ENDED = (
    "The server of this session ended while it answered; the call may have been carried out. Look before you retry."
)


def owner_of(session: str) -> str | None:
    """Return the process that has opened a session; None for an id that no server has made."""
    match = _OWNER.fullmatch(session)
    return match[1] if match is not None else None


class Forwarder:
    """Passes requests on to other servers, both ways as they come; `host` is the Host header of them all."""

    def __init__(self, runtime: Runtime, host: str) -> None:
        self._instances = runtime.instances
        self._own = runtime.membership
        self.name = self._own.name
        self._marks = {PASSED_ON: self.name, "host": host, "accept-encoding": "identity"}
        # No proxy from the environment, and no redirect: a token goes to the announced address and nowhere else.
        self._client = httpx2.AsyncClient(
            timeout=httpx2.Timeout(CONNECT_S, read=READ_S, write=WRITE_S),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),
            trust_env=False,
            follow_redirects=False,
        )

    async def stay_open(self) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(CONNECT_S):
                await self._client.aclose()

    @contextlib.asynccontextmanager
    async def announced(self, address: str | None) -> AsyncGenerator[None]:
        """Let the others pass requests on to this server meanwhile; without an address they cannot."""
        try:
            if address is not None:
                await anyio.to_thread.run_sync(self._own.announce, address)
            yield
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(CONNECT_S):
                try:
                    await anyio.to_thread.run_sync(self._own.announce, "")
                except (AuditError, OSError) as error:  # its lease ends with it
                    log.debug("the address stays until the lease expires: %s", error)

    async def pass_on(self, session: str, scope: Scope, receive: Receive, send: Send) -> bool:
        """Let the server that owns a session answer a request; return False if there is none, and nothing was sent."""
        headers = Headers(scope=scope)
        owner = owner_of(session)
        if owner is None or owner == self.name or PASSED_ON in headers:
            return False
        address = await anyio.to_thread.run_sync(self._instances.address_of, owner)
        if address is None:
            return False
        await _Relay(self._client, scope, receive, send).run(f"{address}/mcp", self._marks)
        return True


class _Relay:
    def __init__(self, client: httpx2.AsyncClient, scope: Scope, receive: Receive, send: Send) -> None:
        self._client = client
        self._scope = scope
        self._receive = receive
        self._send = send
        self._whole = anyio.Event()
        self._arrived = anyio.Event()  # the other server has begun its answer
        self._begun = False

    async def run(self, url: str, marks: dict[str, str]) -> None:
        """Pass it on, and its answer back, until one side ends. Raises TimeoutError if the client does not read."""
        failed: list[TimeoutError] = []
        async with anyio.create_task_group() as tasks:

            async def until_gone() -> None:
                await self._whole.wait()
                while (await self._receive())["type"] != "http.disconnect":
                    pass
                with anyio.move_on_after(CARRY_OUT_S):  # the call of a client that has gone still gets there
                    await self._arrived.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(until_gone)
            try:
                await self._answer(url, marks)
            except TimeoutError as error:  # raised below, not inside a group
                failed.append(error)
            tasks.cancel_scope.cancel()
        if failed:
            raise failed[0]

    async def _answer(self, url: str, marks: dict[str, str]) -> None:
        original = Headers(scope=self._scope)
        has_body = "transfer-encoding" in original or original.get("content-length", "0") != "0"
        if not has_body:
            self._whole.set()
        content = self._body() if has_body else None
        headers = {**dict(_headers_to_pass(original, _OF_REQUEST)), **marks}
        try:
            request = self._client.build_request(self._scope["method"], url, headers=headers, content=content)
            answer = await self._client.send(request, stream=True)
            self._arrived.set()
            try:
                await self._pass_back(answer)
            finally:
                with anyio.CancelScope(shield=True), anyio.move_on_after(1):
                    await answer.aclose()
        except (httpx2.ConnectError, httpx2.ConnectTimeout):  # no server has seen the request
            log.info("the server of a session does not answer at %s", url)
            error = {"code": -32600, "message": "Session not found"}  # the client opens another one
            lost = JSONResponse({"jsonrpc": "2.0", "id": None, "error": error}, 404)
            await lost(self._scope, self._receive, self._send)
        except (httpx2.TransportError, httpx2.InvalidURL) as error:
            log.warning("the server of a session at %s ended while it answered: %s", url, type(error).__name__)
            await self._break_off()

    async def _pass_back(self, answer: httpx2.Response) -> None:
        headers = [(name.encode(), value.encode()) for name, value in _headers_to_pass(answer.headers, _OF_ANSWER)]
        self._begun = True
        await self._send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
        async for piece in answer.aiter_raw():
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _break_off(self) -> None:
        """Tell the client that no answer comes, or cut the connection in the middle of one."""
        if not self._begun:
            await error_response(502, _ENDED, error="ended")(self._scope, self._receive, self._send)
            return
        connection = connection_of(self._scope)
        if connection is not None:
            connection.abort()

    async def _body(self) -> AsyncIterator[bytes]:
        while True:
            message: Message = await self._receive()
            if message["type"] == "http.disconnect":
                self._whole.set()
                return
            body = message.get("body", b"")
            if body:
                yield body
            if not message.get("more_body", False):
                self._whole.set()
                return


def _headers_to_pass(headers: Headers | httpx2.Headers, names: frozenset[str]) -> Iterator[tuple[str, str]]:
    for name, value in headers.items():
        if name.lower() in names or name.lower().startswith(_OF_MCP):
            yield name, value
