"""The ASGI application of the pages: routes a request, and makes every error a page that says what happened.

Its stream of server-sent events tells an open page that something on it has changed; the page then fetches that part
again.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping, Set
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from weakref import WeakKeyDictionary

import anyio
import anyio.to_thread
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route, Router

from ava_audit.errors import AuditError
from ava_audit.view import View
from ava_roles.errors import RolesError
from ava_server.core.errors import AvaError, BadInput, Refused
from ava_server.web.context import (
    HEAD,
    NO_PAGE,
    NotFound,
    PageContext,
    SignedOut,
    asked_for,
    found_or_404,
    go_to,
    page,
    reader_of,
    static_answer,
    visitor_or_none,
)
from ava_server.web.costs import CostPages
from ava_server.web.deciding import Deciding
from ava_server.web.health import HealthPage
from ava_server.web.log_pages import Events
from ava_server.web.runs import Runs
from ava_server.web.sign_in import PasskeyPages, SignIn
from ava_server.web.site import HEADERS, VISITOR, Site, Visitor, is_own, with_headers

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from ava_server.mcp_server.app import App


log = logging.getLogger("ava.pages")
NOT_YOURS = "This page belongs to another user of this machine."
_FOR_ONE_PROPOSAL = ("/proposals", "/static/", "/passkeys/options", "/sign-out")
"""The paths for a session that shows only some proposals."""
_STATUS: Mapping[type[Exception], int] = {NotFound: 404, BadInput: 400, Refused: 409}


class Pages:
    """The pages of one server, whose data root is open; see `Site` for whom they are."""

    def __init__(self, app: App, site: Site) -> None:
        self._site = site
        context = self._context = PageContext(app, site)
        reports = (CostPages(context), Events(context), HealthPage(context))
        people = (SignIn(context), PasskeyPages(context))
        parts = (*people, Runs(context), Deciding(context), ChangeStream(context), *reports)
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
        """Return None without a valid session. Raises ConfigError as `Site.visitor` does."""
        return await anyio.to_thread.run_sync(self._site.visitor, headers)

    def still_valid(self, visitor: Visitor) -> bool:
        """Tell whether a visitor may still read the answer to their request. Blocking, for a moment."""
        try:
            return self._site.still_valid(visitor)
        except AvaError:
            return False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        visitor: Visitor | None = scope.get(VISITOR)
        if visitor is not None and visitor.session.only and not scope["path"].startswith(_FOR_ONE_PROPOSAL):
            scope[VISITOR] = None  # whoever opened the link of a proposal is not signed in to anything else
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
                known = await anyio.to_thread.run_sync(is_own, tuple(client), tuple(server))
            if connection is not None:
                self._own[connection] = known
        return known

    async def _static(self, request: Request) -> Response:
        return static_answer(request.path_params["name"], request.query_params.get("v", ""))

    async def _nothing_here(self, _scope: Scope, _receive: Receive, _send: Send) -> None:
        raise NotFound(NO_PAGE)

    def _wrong(self, request: Request, status: int, said: str) -> Response:
        title = HTTPStatus(status).phrase
        return self._context.show(
            request, "error.html", {"title": title, "said": said, "visitor": visitor_or_none(request)}, status
        )


AT_MOST_EVERY_S = 0.5
"""Seconds between two events: a busy run writes a hundred entries a second."""
ALIVE_EVERY_S = 15.0
"""Seconds after which a comment shows that the connection lives: proxies close silent ones."""
RECONNECT_MS = 1_000
MOST_LOOKED_AT = 5_000
"""Entries since a page was made; after more, the page is told to look again without a look at them."""


class ChangeStream:
    """The stream of changes."""

    def __init__(self, context: PageContext) -> None:
        self._context = context
        self._users: dict[str, str] = {}

    def routes(self) -> list[Route]:
        return [Route("/stream", found_or_404(self.stream), methods=["GET"])]

    async def stream(self, request: Request) -> Response:
        """Send `changed` for each change of the visitor's runs, or of the run that `run` names.

        With `after`, a change since that `seq` counts too: one that happened while the page was on its way.
        """
        visitor, head = reader_of(request), self._context.store.head
        after = request.query_params.get("after", "")
        seen = min(int(after), head) if after.isascii() and after.isdigit() and len(after) < 19 else head
        only = request.query_params.get("run")
        if only is not None:
            only = (await self._context.access(visitor).run(only, "run", reading=True)).id
        headers = {**HEADERS, "X-Accel-Buffering": "no"}
        if request.method == "HEAD":  # nobody would read the stream, and it would stay open
            return Response(headers=headers, media_type="text/event-stream")
        return StreamingResponse(self._changes(visitor, only, seen), headers=headers, media_type="text/event-stream")

    async def _changes(self, visitor: Visitor, only: str | None, seen: int) -> AsyncGenerator[str]:
        store, told, watch = self._context.store, anyio.current_time(), self._context.runtime.activities
        shown, concerns = watch.now, partial(self._concerns, visitor, only)
        yield f"retry: {RECONNECT_MS}\nevent: open\ndata: {seen}\n\n"
        while True:
            head = seen
            with anyio.move_on_at(told + ALIVE_EVERY_S) as waiting, watch.change_ends(waiting, shown, concerns):
                head = await store.wait_for_entry_after(seen)  # whatever other users do meanwhile
            if anyio.current_time() >= told + ALIVE_EVERY_S:
                told = anyio.current_time()
                yield ": alive\n\n"
            changed, shown = watch.changed_since(shown), watch.now
            if head == seen and not changed:
                continue
            concerned = head - seen > MOST_LOOKED_AT
            if not concerned:
                head, runs = await self._look(seen, changed)
                concerned = any(map(concerns, runs))
            seen = head
            if concerned:
                yield f"event: changed\ndata: {seen}\n\n"
                await anyio.sleep(AT_MOST_EVERY_S)

    async def _look(self, after: int, active: Set[str]) -> tuple[int, Set[str]]:
        """Return the newest `seq`, and the runs that have changed since `after` or are active; notes whose they are."""

        def query(view: View) -> tuple[int, dict[str, str]]:
            changed = {run_id: user for run_id, user, _ended in view.changed_after(after, ("RunEnded",))}
            return view.head(), changed | {run.id: run.user_id for run in map(view.run, active) if run is not None}

        head, users = await self._context.store.read(query)
        self._users = {run_id: user for run_id, user in self._users.items() if run_id in active} | users
        return head, users.keys()

    def _concerns(self, visitor: Visitor, only: str | None, run_id: str) -> bool:
        """Unknown counts as yes."""
        if only is not None:
            return run_id == only
        return visitor.reads_all or self._users.get(run_id, visitor.user) == visitor.user
