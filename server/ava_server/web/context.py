"""What every page works with: who has sent the request, the frame around a page, templates and static files.

Templates escape every value, and `finalize` removes invisible characters from it: no template can forget either.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from functools import cache, wraps
from importlib import resources
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from ava_audit.units import format_duration, format_usd, iso_utc
from ava_roles.wrap import clean
from ava_server.core.errors import AvaError, BadInput
from ava_server.render.document import UntrustedText
from ava_server.service.access import Access
from ava_server.service.records import Budget, todays_budgets
from ava_server.web.authority import Authority
from ava_server.web.markdown import html, is_web_address
from ava_server.web.requests import HEADERS
from ava_server.web.site import VISITOR, Site, Visitor

if TYPE_CHECKING:
    from ava_audit.rows import RunRow
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

    def budgets(self, view: View, visitor: Visitor, at_us: int, *, everybody: bool) -> tuple[Budget, ...]:
        """Return today's budgets: the visitor's, and all users' for a visitor who may see or is looking at all."""
        caps = self.runtime.day_caps(visitor.user)
        return todays_budgets(view, visitor.user, "you", caps, at_us, everybody=everybody or visitor.admin)

    async def named_run(self, request: Request) -> RunRow:
        """Return the run that an address names, if the visitor may see it. Raises BadInput: there is none."""
        access = self.access(reader_of(request))
        return await access.run(request.path_params["run_id"], "subagent", reading=True)

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
    """Return who has sent a request. Raises SignedOut: it has no valid session."""
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


def number_in(given: str, problem: str) -> int:
    """Return a number of the log that an address names. Raises BadInput: it is none; `problem` says so."""
    if not (given.isascii() and given.isdecimal() and len(given) <= 18):
        raise BadInput(problem)
    return int(given)


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


TYPES: Mapping[str, str] = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
"""The static files that are served, by their ending."""
_CHARSET = "; charset=utf-8"


def finalize(value: object) -> str:
    """Return a value of a template for autoescape, without what nobody sees; `Markup` has been escaped already."""
    if isinstance(value, Markup):
        return value
    return clean(value.text if isinstance(value, UntrustedText) else str(value))[0]


def when(us: int | None) -> str:
    """Return a time for a `<time>` element's datetime."""
    return iso_utc(us) if us is not None else ""


def second(us: int) -> str:
    """Return a time for a `<time>` element's datetime, to the second; a long list has many."""
    return f"{iso_utc(us)[:19]}Z"


def usd(micros: int) -> str:
    """Return micro-USD as dollars."""
    return format_usd(micros)


@cache
def environment() -> Environment:
    """Return the templates."""
    made = Environment(
        loader=PackageLoader("ava_server.web", "templates"),
        autoescape=True,
        finalize=finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(when=when, second=second, usd=usd, duration=format_duration)
    made.filters["markdown"], made.tests["web_address"] = html, is_web_address
    made.globals["static"] = static_url
    return made


def page(name: str, values: Mapping[str, Any], status: int = 200) -> Response:
    """Return a rendered template as the answer."""
    body = environment().get_template(name).render(values)
    return Response(body, status, headers=dict(HEADERS), media_type="text/html")


@cache
def static_files() -> Mapping[str, tuple[bytes, str]]:
    """Return each static file and its type, by its name: a name in a request is never a path, and is not kept."""
    folder = resources.files("ava_server.web").joinpath("static")
    kinds = {each: TYPES.get(PurePosixPath(each.name).suffix) for each in folder.iterdir()}
    return {each.name: (each.read_bytes(), kind) for each, kind in kinds.items() if kind is not None}


@cache
def static_url(name: str) -> str:
    """Return the address of a static file; it changes with the file, so that browsers may keep it."""
    return f"/static/{name}?v={hashlib.sha256(static_files()[name][0]).hexdigest()[:10]}"


def static_answer(name: str, version: str) -> Response | None:
    """Return a static file as the answer; with the right version in the address, browsers keep it."""
    found = static_files().get(name)
    if found is None:
        return None
    kept = version and static_url(name).endswith(f"?v={version}")
    cache_control = "public, max-age=31536000, immutable" if kept else "no-cache"
    return Response(found[0], headers={**HEADERS, "Cache-Control": cache_control, "Content-Type": found[1] + _CHARSET})
