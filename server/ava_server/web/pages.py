"""The ASGI application of the pages: routes a request, and makes every error a page that says what happened."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from weakref import WeakKeyDictionary

import anyio.to_thread
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from ava_audit.errors import AuditError
from ava_roles.errors import RolesError
from ava_server.core.errors import AvaError, BadInput, Refused
from ava_server.web import peers
from ava_server.web.context import HEAD, NotFound, PageContext, SignedOut, asked_for, go_to, visitor_or_none
from ava_server.web.costs import Costs
from ava_server.web.deciding import Deciding
from ava_server.web.events import Events
from ava_server.web.health import Health
from ava_server.web.live import Live
from ava_server.web.overview import Overview
from ava_server.web.passkeys import PasskeyPages
from ava_server.web.render import page, static_answer
from ava_server.web.requests import with_headers
from ava_server.web.runs import Runs
from ava_server.web.sign_in import SignIn
from ava_server.web.site import Site, Visitor

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from ava_server.mcp_server.app import App

log = logging.getLogger("ava.pages")
NOT_YOURS = "This page belongs to another user of this machine."
NO_PAGE = "There is no page at this address."
_STATUS: Mapping[type[Exception], int] = {NotFound: 404, BadInput: 400, Refused: 409}


class Pages:
    """The pages of one server; see `Site` for whom they are.

    Args:
        app: The server; its data root is open.
        site: For whom the pages are.
    """

    def __init__(self, app: App, site: Site) -> None:
        self._site = site
        context = self._context = PageContext(app, site)
        reports = (Costs(context), Events(context), Health(context))
        people = (SignIn(context), PasskeyPages(context))
        parts = (*people, Overview(context), Runs(context), Deciding(context), Live(context), *reports)
        self._paths = [route for part in parts for route in part.routes()]
        self._router = Router(
            [*self._paths, Route("/static/{name}", self._static, methods=["GET"])],
            redirect_slashes=False,
            default=self._nothing_here,
        )
        self._own: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()

    def takes(self, scope: Scope, headers: Headers) -> bool:
        """Tell whether a request is for a page: it has no token, and the path is one, or a browser asks."""
        if "authorization" in headers:
            return False
        path = scope["path"]
        known = path.startswith("/static/") or any(route.path_regex.match(path) for route in self._paths)
        return known or "text/html" in headers.get("accept", "")

    async def visitor(self, headers: Headers) -> Visitor | None:
        """Return who has sent a request, None without a valid session.

        Raises:
            ConfigError: Sessions or tokens cannot be read.
        """
        return await anyio.to_thread.run_sync(self._site.visitor, headers)

    def still_valid(self, visitor: Visitor) -> bool:
        """Tell whether a visitor may still read the answer to their request. Blocking, for a moment."""
        try:
            return self._site.still_valid(visitor)
        except AvaError:
            return False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        scope[HEAD] = self._context.store.head  # before anything is read, so that the stream misses no change
        request = Request(scope, receive)
        send = with_headers(send)
        if self._site.local and not await self._from_own_user(scope):
            answer: Response | None = self._wrong(request, 403, NOT_YOURS)
        else:
            answer = await self._routed(request, scope, receive, send)
        if answer is not None:
            await answer(scope, receive, send)

    async def _routed(self, request: Request, scope: Scope, receive: Receive, send: Send) -> Response | None:
        """Have the route answer; return the page for an error."""
        try:
            await self._router(scope, receive, send)
        except SignedOut:
            return self._to_sign_in(request)
        except (NotFound, BadInput, Refused) as error:
            status = next(status for kind, status in _STATUS.items() if isinstance(error, kind))
            return self._wrong(request, status, self._context.text_of(error))
        except (AvaError, AuditError, RolesError) as error:
            return self._wrong(request, 503, self._context.text_of(error))
        except Exception:
            log.exception("a page could not be made")
            return self._wrong(request, 500, "This is a fault of Ava itself; the server's output has the details.")
        return None

    def _to_sign_in(self, request: Request) -> Response:
        """Return the way to the sign-in page for a request without a session."""
        path = asked_for(request)
        if request.headers.get("hx-request") == "true":
            answer = Response(status_code=401)
            answer.headers["HX-Redirect"] = "/sign-in"
            return answer
        if request.method != "GET":
            return self._wrong(request, 401, "Your session has ended, so nothing was done. Sign in and try again.")
        if request.headers.get("sec-fetch-site") == "cross-site":
            # After a link on another site the browser sends no cookie; from our own page it does.
            return page("same_site.html", {"to": path})
        return go_to("/sign-in" if path == "/" else f"/sign-in?to={quote(path, safe='/')}")

    async def _from_own_user(self, scope: Scope) -> bool:
        """Tell whether the connection belongs to this user; asked once for each connection."""
        connection = scope.get("state", {}).get("ava.connection")
        known = self._own.get(connection) if connection is not None else None
        if known is None:
            client, server = scope.get("client"), scope.get("server")
            known = False
            if client and server:
                known = await anyio.to_thread.run_sync(peers.is_own, tuple(client), tuple(server))
            if connection is not None:
                self._own[connection] = known
        return known

    async def _static(self, request: Request) -> Response:
        found = static_answer(request.path_params["name"], request.query_params.get("v", ""))
        if found is None:
            raise NotFound(NO_PAGE)
        return found

    async def _nothing_here(self, _scope: Scope, _receive: Receive, _send: Send) -> None:
        raise NotFound(NO_PAGE)

    def _wrong(self, request: Request, status: int, said: str) -> Response:
        title = HTTPStatus(status).phrase
        return self._context.show(
            request, "error.html", {"title": title, "said": said, "visitor": visitor_or_none(request)}, status
        )
