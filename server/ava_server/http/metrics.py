"""`/metrics`: how this data root is doing, for a Prometheus that has a token of the scope `audit`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import JSONResponse, Response

from ava_audit.errors import AuditError
from ava_server.http.errors import forbidden
from ava_server.mcp_server.app import OF_REQUEST, App

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from ava_server.config.tokens import Token


async def metrics(app: App, scope: Scope, receive: Receive, send: Send, open_sessions: int) -> None:
    """Answer one request.

    Args:
        app: The server.
        scope: The request.
        receive: Its body.
        send: Takes the answer.
        open_sessions: How many clients of the handshake era have a session.
    """
    token: Token = scope[OF_REQUEST]
    if "audit" not in token.scopes:
        response: Response = forbidden(token, "audit")
    elif scope["method"] in ("GET", "HEAD"):
        response = await _rendered(app, open_sessions)
    else:
        response = Response(status_code=405, headers={"Allow": "GET, HEAD"})
    await response(scope, receive, send)


async def _rendered(app: App, open_sessions: int) -> Response:
    from ava_server.telemetry.metrics import CONTENT_TYPE, render  # a server that nobody scrapes does without it

    try:
        body = await render(app.house, open_sessions=open_sessions)
    except AuditError as error:
        return JSONResponse({"error": "not ready", "error_description": str(error)}, 503)
    return Response(body, headers={"content-type": CONTENT_TYPE, "cache-control": "no-store"})
