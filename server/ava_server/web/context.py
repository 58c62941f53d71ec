"""What every page works with: who has sent the request, the frame around a page, templates and static files.

Templates escape every value, and `finalize` removes invisible characters from it: no template can forget either.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache, wraps
from importlib import resources
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

import anyio.to_thread
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from ava_audit.events import Event, SettingsChanged
from ava_audit.units import DAY_US, day_of, format_duration, format_usd, iso_utc, now_us
from ava_audit.view import View, append
from ava_roles.wrap import clean, few_marks
from ava_server.approval.decide import Needs, approval_needs
from ava_server.budget.held_words import held_words
from ava_server.config.pin import PinFile
from ava_server.config.sign_in import SESSION_US
from ava_server.core.errors import AvaError, BadInput, Refused
from ava_server.core.ids import model_named, model_words, state_words
from ava_server.core.names import quote_name, subagent_of
from ava_server.render.reasons import reason_words
from ava_server.render.result import UntrustedText
from ava_server.render.state_look import look_of
from ava_server.render.words import meaning
from ava_server.service.access import Access
from ava_server.service.current import Budget, todays_budgets
from ava_server.web.markdown import html, is_web_address
from ava_server.web.site import HEADERS, VISITOR, Form, Site, Visitor
from ava_server.web.webauthn import RelyingParty, Subject

if TYPE_CHECKING:
    from ava_audit.rows import RunRow
    from ava_audit.store.store import Store
    from ava_server.mcp_server.app import App
    from ava_server.service.runtime import Runtime

GIVE_PIN = "Enter the approval PIN."
CHOOSE_PIN = "Choose an approval PIN, and repeat it: from now on it approves what starts."
GIVE_PASSKEY = "Use your passkey. The page needs JavaScript for that."
GIVE_EITHER = "Use your passkey, or enter the approval PIN."


class Authority:
    """Decides what an approval takes, and checks it; `passkeys` asks browsers for passkeys."""

    def __init__(self, app: App, site: Site) -> None:
        self._app = app
        self.passkeys = RelyingParty(site)

    async def needs(self, visitor: Visitor, of: str | None = None, ids: Sequence[str] = ()) -> Needs:
        """Return what an approval of proposals or runs (`ids`) by a visitor takes now.

        `of` is whose run it is, if it is another user's. Raises ConfigError if it is not known, so nothing can be
        approved.
        """
        proof = await self.proof(visitor)
        return approval_needs(
            "browser",
            await self._app.runtime.policy_on(ids, visitor.user, of or visitor.user),
            pin=proof.pin,
            passkey=proof.passkey,
            scope=None if visitor.token is None else visitor.may("approve"),
            from_terminal=visitor.session.terminal,
        )

    async def proof(self, visitor: Visitor) -> Needs:
        """Return how a visitor can prove that they are the person whose session it is."""
        return Needs(pin=await self.pin_is_set(), passkey=bool(await self.passkeys.own(visitor.user)))

    async def pin_is_set(self) -> bool:
        return await anyio.to_thread.run_sync(lambda: self._pin.is_set)

    async def check(
        self, visitor: Visitor, form: Form, subject: Subject, of: str | None = None, ids: Sequence[str] = ()
    ) -> None:
        """Check what a visitor has given for an approval; a passkey must have been used for exactly this subject.

        A PIN that they choose with it is stored. For `of` and `ids` see `needs`. Raises Refused if it is not enough;
        ConfigError: it cannot be checked.
        """
        needs = await self.needs(visitor, of, ids)
        if needs.refusal is not None:
            raise Refused(needs.refusal)
        if needs.new_pin:
            await self._choose_pin(visitor, form)
        elif not needs.nothing:
            await self._check_proof(needs, visitor, form, subject)

    async def _choose_pin(self, visitor: Visitor, form: Form) -> None:
        new = form.one("new_pin")
        if not new or form.one("new_pin_again") != new:
            raise Refused(CHOOSE_PIN if not new else "The two PINs are not the same; nothing was stored.")
        await anyio.to_thread.run_sync(self._pin.set, new)
        store, who = self._app.runtime.store, visitor.service_session("").who
        store.post(append(Event(who, SettingsChanged(setting="approval_pin", before=None, after="set"))))

    async def check_person(self, visitor: Visitor, form: Form, subject: Subject) -> None:
        """Check that a visitor has given their passkey or the PIN, whatever the policy is."""
        await self._check_proof(await self.proof(visitor), visitor, form, subject)

    async def check_pin(self, pin: str, visitor: Visitor | None) -> None:
        """Check the PIN; wrong ones lock it for the visitor's token or session, or for all who sign in (None)."""
        if not pin:
            raise Refused(GIVE_PIN)
        who = "sign-in"
        if visitor is not None:
            token = visitor.token
            who = f"token {token.id}" if token is not None else f"session {visitor.session.hash[:16]}"
        await anyio.to_thread.run_sync(self._pin.check, pin, who)

    async def _check_proof(self, needs: Needs, visitor: Visitor, form: Form, subject: Subject) -> None:
        signed, pin = form.one("passkey"), form.one("pin")
        if signed and not pin:
            await self.passkeys.check_use(visitor.user, visitor.session.hash, subject, signed)
        elif needs.pin and (pin or not needs.passkey):
            await self.check_pin(pin, visitor)
        else:
            raise Refused(GIVE_EITHER if needs.pin else GIVE_PASSKEY)

    @property
    def _pin(self) -> PinFile:
        return PinFile(self._app.runtime.settings.paths.approval_file)


NO_PAGE = "There is no page at this address."
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
    """The server, its pages, and what an approval takes."""

    def __init__(self, app: App, site: Site) -> None:
        self.app = app
        self.site = site
        self.authority = Authority(app, site)

    @property
    def runtime(self) -> Runtime:
        return self.app.runtime

    @property
    def store(self) -> Store:
        return self.app.runtime.store

    def access(self, visitor: Visitor) -> Access:
        return Access(self.runtime, visitor.service_session(self.site.url))

    def budgets(self, view: View, visitor: Visitor, at_us: int, *, everybody: bool) -> tuple[Budget, ...]:
        """Return the visitor's, and all users' for a visitor who may see or is looking at all."""
        caps = self.runtime.day_caps(visitor.user)
        return todays_budgets(view, visitor.user, "you", caps, at_us, everybody=everybody or visitor.admin)

    async def named_run(self, request: Request) -> RunRow:
        """Raises BadInput if there is none that the visitor may see."""
        access = self.access(reader_of(request))
        return await access.run(request.path_params["run_id"], "subagent", reading=True)

    def text_of(self, error: Exception) -> str:
        """On another machine nobody learns where the server keeps its files."""
        text = str(error)
        return text if self.site.local else text.replace(str(self.runtime.settings.data_root), "the data root")

    def show(self, request: Request, template: str, values: dict[str, Any], status: int = 200) -> Response:
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


class PagePart:
    """Some of the pages: `routes` of a subclass has their addresses."""

    def __init__(self, context: PageContext) -> None:
        self._context = context


def visitor_or_none(request: Request) -> Visitor | None:
    """Return None without a session."""
    found: Visitor | None = request.scope.get(VISITOR)
    return found


def visitor_of(request: Request) -> Visitor:
    """Raises SignedOut if there is no valid session."""
    found = visitor_or_none(request)
    if found is None:
        raise SignedOut("you are not signed in")
    return found


def reader_of(request: Request) -> Visitor:
    """Return who reads. Raises SignedOut: no valid session; NotFound if the token may not read runs."""
    visitor = visitor_of(request)
    if not visitor.reads:
        raise NotFound("your token lacks the scope read, so there is nothing to see here")
    return visitor


def local_path(given: str) -> str:
    """Return a path of this site to go to; `/` for everything else."""
    if not given.startswith("/") or given.startswith("//"):
        return "/"
    if "\\" in given or not given.isprintable() or len(given) > 500:
        return "/"
    return given


def asked_for(request: Request) -> str:
    """Return the path and query of a request, as an address of this site."""
    path, query = quote(request.scope["path"]), quote(request.scope["query_string"], safe=_IN_ADDRESS)
    return f"{path}?{query}" if query else path


def go_to(path: str) -> Response:
    return RedirectResponse(quote(path, safe=_IN_ADDRESS), 303, headers=dict(HEADERS))


def signed_in(site: Site, cookie: str, to: str) -> Response:
    """Return the way to a path of this site, with a session that has just begun."""
    answer = go_to(to)
    answer.headers["Set-Cookie"] = site.cookie_header(cookie, seconds=SESSION_US // 1_000_000)
    return answer


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
    """Return a value of a template for autoescape, without what nobody sees or what paints over other lines.

    `Markup` has been escaped already.
    """
    if isinstance(value, Markup):
        return value
    return few_marks(clean(value.text if isinstance(value, UntrustedText) else str(value))[0])


def when(us: int | None) -> str:
    """To the second, for a `<time>` element's datetime; a long list has many."""
    return f"{iso_utc(us)[:19]}Z" if us is not None else ""


_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def ago(us: int | None) -> str:
    """`4 min ago`, `in 2 h`. `ago` in `static/ava.js` says the same."""
    if us is None:
        return ""
    seconds = (now_us() - us) // 1_000_000
    if seconds == 0:
        return "now"
    size, unit = next(each for each in _UNITS if abs(seconds) >= each[0])
    words = f"{abs(seconds) // size} {unit}"
    if seconds > 0:
        return f"{words} ago"
    return f"in {words}"


def usd4(micros: int) -> str:
    """Return micro-USD with four decimal places, for lists of calls, which cost cents or less."""
    return f"${micros / 1_000_000:,.4f}"


def _day_after_epoch(days: int) -> str:
    return day_of(days * DAY_US)


def budget_words(budget: Budget) -> str:
    """Return what is spent, reserved and left of a day's budget: reserved money is neither spent nor free.

    `$0.03 of $10.00 spent, $0.30 reserved for work in progress, $9.67 left`.
    """
    parts = [f"{format_usd(budget.spent)} of {format_usd(budget.cap)} spent"]
    if budget.held:
        parts.append(held_words(budget.held))
    left = budget.cap - budget.spent - budget.held
    parts.append(f"{format_usd(left)} left" if left > 0 else "nothing left")
    return ", ".join(parts)


@cache
def environment() -> Environment:
    made = Environment(
        loader=PackageLoader("ava_server.web", "templates"),
        autoescape=True,
        finalize=finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(ago=ago, when=when, usd=format_usd, usd4=usd4, duration=format_duration)
    made.filters.update(state=state_words, model=model_words, reason=reason_words)
    made.filters.update(model_named=model_named, meaning=meaning)
    made.filters["quote_name"] = quote_name
    made.filters["subagent_of"] = subagent_of
    made.filters["day"] = _day_after_epoch
    made.filters["budget"] = budget_words
    made.filters["look"] = cast("Any", look_of)
    made.filters["markdown"] = html
    made.tests["web_address"] = is_web_address
    made.globals["static"] = static_url
    return made


def page(name: str, values: Mapping[str, Any], status: int = 200) -> Response:
    body = environment().get_template(name).render(values)
    return Response(body, status, headers=dict(HEADERS), media_type="text/html")


@cache
def static_files() -> Mapping[str, tuple[bytes, str]]:
    """Return files by name, with their type: a name in a request is never a path, and is not kept."""
    folder = resources.files("ava_server.web").joinpath("static")
    kinds = {each: TYPES.get(PurePosixPath(each.name).suffix) for each in folder.iterdir()}
    return {each.name: (each.read_bytes(), kind) for each, kind in kinds.items() if kind is not None}


@cache
def static_url(name: str) -> str:
    """It changes with the file, so that browsers may keep it."""
    return f"/static/{name}?v={hashlib.sha256(static_files()[name][0]).hexdigest()[:10]}"


def static_answer(name: str, version: str) -> Response:
    """With the right version in the address, browsers keep the file. Raises NotFound if there is none of this name."""
    found = static_files().get(name)
    if found is None:
        raise NotFound(NO_PAGE)
    kept = version and static_url(name).endswith(f"?v={version}")
    cache_control = "public, max-age=31536000, immutable" if kept else "no-cache"
    return Response(found[0], headers={**HEADERS, "Cache-Control": cache_control, "Content-Type": found[1] + _CHARSET})
