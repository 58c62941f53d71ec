"""The sessions of MCP up to 2025-11-25: how many a user may have, and which server's they are."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import anyio
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.datastructures import Headers

from ava_server.http.limits import too_many

if TYPE_CHECKING:
    from mcp.server.auth.middleware.bearer_auth import AuthorizationContext
    from mcp.server.lowlevel.server import Server
    from mcp.server.streamable_http import StreamableHTTPServerTransport
    from starlette.types import Receive, Scope, Send

    from ava_server.http.peers import Forwarder

BODY_BYTES = 4 * 1024 * 1024
SESSIONS, SESSIONS_OF_USER = 2_000, 200
"""Open sessions at once: in all, and per user."""
IDLE_S = 1_800.0
"""Seconds after which a session without requests or an open stream ends; its client has to open another."""
_AGAIN_S = 60


class Sessions(StreamableHTTPSessionManager):
    """The MCP sessions at `/mcp`, with their owners.

    Attributes:
        forwarder: Has other servers answer requests for their sessions; None until the data root is open.
    """

    def __init__(self, server: Server[Any]) -> None:
        super().__init__(server, max_request_body_size=BODY_BYTES, max_sessions=SESSIONS, session_idle_timeout=IDLE_S)
        self.forwarder: Forwarder | None = None

    async def answer(self, user: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request of a user."""
        if _opens(scope) and self._open_of(user) >= SESSIONS_OF_USER:
            sentence = (
                f"{SESSIONS_OF_USER} sessions of {user} are open, which is the limit. A client ends its session with"
                f" DELETE; an idle one ends after {IDLE_S / 60:.0f} min."
            )
            await too_many(sentence, _AGAIN_S)(scope, receive, send)
        elif not await self._passed_on(scope, receive, send):
            try:
                await self.handle_request(scope, receive, send)
            except Exception as error:
                if not _session_ended(error):
                    raise

    async def _passed_on(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Have another server answer a request, if the request is for a session there."""
        headers = Headers(scope=scope)
        session = headers.get(MCP_SESSION_ID_HEADER)
        if session is None or session in self._server_instances or self.forwarder is None or not _of_session(headers):
            return False
        return await self.forwarder.passes_on(session, scope, receive, send)

    def _admit_session(self, requestor: AuthorizationContext | None) -> StreamableHTTPServerTransport | None:
        """Register a new session under an id that says which server it belongs to."""
        transport = super()._admit_session(requestor)
        if transport is None or self.forwarder is None:
            return transport
        given = transport.mcp_session_id
        assert given is not None
        transport.mcp_session_id = named = self.forwarder.name_session(given)
        self._server_instances[named] = self._server_instances.pop(given)
        if given in self._session_owners:
            self._session_owners[named] = self._session_owners.pop(given)
        return transport

    async def end_without(self, counts: Callable[[str], bool]) -> None:
        """End sessions whose token is no longer valid, as `counts` says for a token's id."""
        over = [session for session, owner in self._session_owners.items() if not counts(owner["client_id"])]
        for session in over:
            if (transport := self._server_instances.get(session)) is not None:
                await self._discard_session(session, transport)

    @property
    def open(self) -> int:
        """The number of open sessions."""
        return len(self._session_owners)

    def _open_of(self, user: str) -> int:
        return sum(owner["subject"] == user for owner in self._session_owners.values())


def _session_ended(error: BaseException | None) -> bool:
    """Tell whether a session ended while a message for it arrived: the SDK then logs an error and answers twice."""
    if error is None or isinstance(error, anyio.ClosedResourceError | anyio.BrokenResourceError):
        return error is not None
    return _session_ended(error.__context__)


def worth_a_line(record: logging.LogRecord) -> bool:
    """Tell whether to show a line of the SDK's log: not where a session has only ended."""
    return not (record.exc_info and _session_ended(record.exc_info[1]))


def _opens(scope: Scope) -> bool:
    """Tell whether a request opens a session, by the SDK's rules."""
    headers = Headers(scope=scope)
    return MCP_SESSION_ID_HEADER not in headers and _of_session(headers)


def _of_session(headers: Headers) -> bool:
    """Tell whether a request is of a version of the protocol that has sessions, by the SDK's rules."""
    version = headers.get(MCP_PROTOCOL_VERSION_HEADER)
    return version is None or version in HANDSHAKE_PROTOCOL_VERSIONS
