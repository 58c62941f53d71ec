"""Sessions of clients of the handshake era: how many a user may have open, and that each ends with its token."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.datastructures import Headers

from ava_server.http.errors import too_many

if TYPE_CHECKING:
    from mcp.server.lowlevel.server import Server
    from starlette.types import Receive, Scope, Send

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
