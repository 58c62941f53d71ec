"""What every page works with, and what is common to all: who has sent the request, and the frame around a page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from ava_server.budget.caps import installation_scope, user_scope, utc_day
from ava_server.core.errors import AvaError, BadInput
from ava_server.service.access import Access
from ava_server.service.records import Budget
from ava_server.web.authority import Authority
from ava_server.web.render import page
from ava_server.web.requests import HEADERS
from ava_server.web.site import VISITOR, Site, Visitor

if TYPE_CHECKING:
    from ava_audit.store.store import Store
    from ava_audit.view import View
    from ava_server.mcp_server.app import App
    from ava_server.service.runtime import Runtime

HEAD = "ava.head"
"""Where a request's scope has the newest `seq` of the log at its arrival."""
_IN_ADDRESS = "/?&=%:+"
Handler = Callable[[Request], Awaitable[Response]]
NAVIGATION = (
    ("/", "Overview"),
    ("/subagents", "Subagents"),
    ("/costs", "Costs"),
    ("/events", "Log"),
    ("/health", "Health"),
)


class NotFound(AvaError):
    """There is no such page, or nothing of this id that the visitor may see."""


class SignedOut(AvaError):
    """The request has no valid session."""


class PageContext:
    """The server, its pages, and what an approval takes.

    Attributes:
        app: The server.
        site: For whom the pages are.
        authority: Checks what an approval takes.
    """

    def __init__(self, app: App, site: Site) -> None:
        self.app = app
        self.site = site
        self.authority = Authority(app, site)

    @property
    def runtime(self) -> Runtime:
        """What this process has open."""
        return self.app.runtime

    @property
    def store(self) -> Store:
        """The log."""
        return self.app.runtime.store

    def access(self, visitor: Visitor) -> Access:
        """Return what a visitor may see."""
        return Access(self.runtime, visitor.service_session(self.site.url))

    def budgets(self, view: View, visitor: Visitor, at_us: int, *, everybody: bool) -> list[Budget]:
        """Return today's budgets: the visitor's, and all users' for a visitor who may see or is looking at all."""
        day, caps = utc_day(at_us), self.runtime.day_caps(visitor.user)
        spent = [("you", view.bucket(user_scope(visitor.user, day)), caps.user_micros)]
        if everybody or visitor.admin:
            spent.append(("everybody", view.bucket(installation_scope(day)), caps.installation_micros))
        return [Budget(whose, found.spent_micros, found.held_micros, cap) for whose, found, cap in spent]

    def text_of(self, error: Exception) -> str:
        """Return an error's text; on another machine nobody learns where the server keeps its files."""
        text = str(error)
        return text if self.site.local else text.replace(str(self.runtime.settings.data_root), "the data root")

    def show(self, request: Request, template: str, values: dict[str, Any], status: int = 200) -> Response:
        """Return a page inside the frame that all pages share."""
        visitor = visitor_or_none(request)
        frame = {
            "visitor": visitor,
            "navigation": NAVIGATION,
            "path": request.scope["path"],
            "local": self.site.local,
            "stream": None,
        }
        if values.get("stream"):
            stream, head = values["stream"], request.scope[HEAD]
            values = {**values, "stream": f"{stream}{'&' if '?' in stream else '?'}after={head}"}
        return page(template, {**frame, **values}, status)


def visitor_or_none(request: Request) -> Visitor | None:
    """Return who has sent a request, None without a session."""
    found: Visitor | None = request.scope.get(VISITOR)
    return found


def visitor_of(request: Request) -> Visitor:
    """Return who has sent a request.

    Raises:
        SignedOut: It has no valid session.
    """
    found = visitor_or_none(request)
    if found is None:
        raise SignedOut("you are not signed in")
    return found


def reader_of(request: Request) -> Visitor:
    """Return who has sent a request that shows runs.

    Raises:
        SignedOut: It has no valid session.
        NotFound: Its token may not read.
    """
    visitor = visitor_of(request)
    if not visitor.reads:
        raise NotFound("your token lacks the scope read, so there is nothing to see here")
    return visitor


def local_path(given: str) -> str:
    """Return a path of this site to go to; `/` for everything else."""
    plain = given.startswith("/") and not given.startswith(("//", "/\\")) and given.isprintable() and "\\" not in given
    return given if plain and len(given) <= 500 else "/"


def asked_for(request: Request) -> str:
    """Return the path and query of a request, as an address of this site."""
    path, query = quote(request.scope["path"]), quote(request.scope["query_string"], safe=_IN_ADDRESS)
    return f"{path}?{query}" if query else path


def go_to(path: str) -> Response:
    """Return a redirect to a path of this site, as a GET."""
    return RedirectResponse(quote(path, safe=_IN_ADDRESS), 303, headers=dict(HEADERS))


def found_or_404(answer: Handler) -> Handler:
    """Make an id that does not exist for the visitor a page that says so."""

    @wraps(answer)
    async def checked(request: Request) -> Response:
        try:
            return await answer(request)
        except BadInput as error:
            raise NotFound(str(error)) from error

    return checked
