"""Signing in and out: with the code of `ava ui`, a passkey or the PIN on this machine, with a token over HTTP.

Over HTTP a passkey signs nobody in: it is asked for in addition to the token, when something is approved.

A session alone adds no passkey, because a model may have one. It takes the one-time code of `ava passkey add`, which a
person gets in a terminal, or the PIN on this machine. To remove one takes one of the passkeys, or the PIN.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

import anyio
import anyio.to_thread
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ava_audit.errors import AuditError
from ava_audit.events import Event, SettingsChanged
from ava_audit.view import append
from ava_server.config.sign_in import Passkey, passkey_name
from ava_server.config.tokens import Token
from ava_server.core.errors import AvaError, BadInput, Refused
from ava_server.web.context import (
    NotFound,
    PageContext,
    SignedOut,
    go_to,
    local_path,
    signed_in,
    visitor_of,
    visitor_or_none,
)
from ava_server.web.site import HEADERS, VISITOR, Form, Visitor, read_form, read_json
from ava_server.web.webauthn import NOT_HERE, SIGN_IN, Subject

WRONG_CODE = (
    "This address was used before, or it is older than 10 minutes. Run `ava ui` again. If you have not opened it"
    " yourself, somebody else has: sign out everywhere with `ava ui --sign-out`."
)
UNKNOWN = "This token is unknown: it is misspelt, revoked or expired."
TOO_MANY = "Too many wrong attempts. Try again in a minute."
FAILURES, WITHIN_S = 20, 60.0
"""Wrong tokens and codes of all visitors, in so many seconds, after which a wrong one is told to wait.

A right one always signs in: it cannot be guessed, and otherwise anybody could lock everybody out.
"""


class SignIn:
    """The pages that need no session."""

    def __init__(self, context: PageContext) -> None:
        self._context = context
        self._site = context.site
        self._failed: list[float] = []

    def routes(self) -> list[Route]:
        return [
            Route("/enter", self.enter, methods=["GET"]),
            Route("/sign-in", self.show, methods=["GET"]),
            Route("/sign-in", self.sign_in, methods=["POST"]),
            Route("/sign-out", self.sign_out, methods=["POST"]),
        ]

    async def enter(self, request: Request) -> Response:
        """Exchange the one-time code in the address for a session."""
        if request.method == "HEAD":  # a program that checks links must not use up the code
            return await self._page(request, "", 200)
        cookie: str | None = None
        if self._site.local:
            code = request.query_params.get("code", "")
            cookie = await anyio.to_thread.run_sync(self._site.sessions.redeem, code)
        if cookie is None:
            return await self._page(request, *self._wrong(WRONG_CODE))
        return signed_in(self._site, cookie, local_path(request.query_params.get("to", "/")))

    async def show(self, request: Request) -> Response:
        to = local_path(request.query_params.get("to", "/"))
        if visitor_or_none(request) is not None:
            return go_to(to)
        ended = self._site.cookie_in(request.headers) is not None
        return await self._page(request, "Your session has ended. Sign in again." if ended else "", 401, to)

    async def sign_in(self, request: Request) -> Response:
        form = await read_form(request, None)
        to = local_path(form.one("to"))
        try:
            cookie = await self._cookie_for(form)
        except Refused as error:
            return await self._page(request, str(error), 403, to)
        if cookie is None:
            return await self._page(request, *self._wrong(UNKNOWN), to)
        return signed_in(self._site, cookie, to)

    async def sign_out(self, request: Request) -> Response:
        visitor = visitor_of(request)
        await read_form(request, visitor)
        # First, so that the answer still arrives: requests of an ended session are refused while they are answered.
        request.scope[VISITOR] = None
        await anyio.to_thread.run_sync(self._site.sessions.end, visitor.session.hash)
        answer = await self._page(request, "You are signed out.", 200)
        answer.headers["Set-Cookie"] = self._site.cookie_header("", seconds=0)
        return answer

    def _wrong(self, why: str) -> tuple[str, int]:
        """Return what is answered, with the status; what was wrong in the last minute counts."""
        since = time.monotonic() - WITHIN_S
        self._failed = [*(at for at in self._failed if at > since), time.monotonic()][-FAILURES - 1 :]
        return (TOO_MANY, 429) if len(self._failed) > FAILURES else (why, 403)

    async def _cookie_for(self, form: Form) -> str | None:
        """Return the cookie of a new session; None for an unknown token. Raises Refused: the proof is wrong."""
        if self._site.local:
            return await self._on_this_machine(form)
        return await self._with_token(form.one("token"))

    async def _on_this_machine(self, form: Form) -> str:
        user, authority = self._context.runtime.user, self._context.authority
        if signed := form.one("passkey"):
            await authority.passkeys.check_use(user, "", SIGN_IN, signed)
        else:
            await authority.check_pin(form.one("pin"), None)
        return await anyio.to_thread.run_sync(lambda: self._site.sessions.open(user, terminal=True))

    async def _with_token(self, given: str) -> str | None:
        token: Token | None = await anyio.to_thread.run_sync(self._site.tokens.find, given)
        if token is None:
            return None
        return await anyio.to_thread.run_sync(lambda: self._site.sessions.open(token.user, token=token.id))

    async def _page(self, request: Request, said: str, status: int, to: str = "/") -> Response:
        local, authority = self._site.local, self._context.authority
        pin = local and await authority.pin_is_set()
        passkey = local and bool(await authority.passkeys.own(self._context.runtime.user))
        values = {"said": said, "to": to, "pin": pin, "passkey": passkey, "visitor": None}
        return self._context.show(request, "sign_in.html", values, status)


# -- passkeys ----------------------------------------------------------------------------------------------------------

WRONG_PASSKEY_CODE = (
    "This code is not valid: it was used, is older than 10 minutes, or is for another user. Get another one with `ava"
    " passkey add NAME` in a terminal."
)
NO_PROOF = "To add a passkey takes the code of `ava passkey add NAME`, which a person runs in a terminal, or the PIN."
NO_PASSKEY = "The browser has sent no passkey; nothing was added. The page needs JavaScript for that."
ENDED = "Your session has ended. Sign in and try again."
DONE = {"added": "The passkey is added. Approvals take it from now on.", "removed": "The passkey is removed."}


class _Form(BaseModel, extra="forbid", strict=True):
    """A form that is about to be sent, as the script has it."""

    path: str = Field(max_length=500)
    fields: list[tuple[str, str]] = Field(max_length=400, strict=False)


class _NewPasskey(BaseModel, extra="forbid", strict=True):
    """What the form for a new passkey says."""

    name: str = ""
    code: str = ""
    pin: str = ""


class _Nothing(BaseModel, extra="forbid"):
    pass


def _as_json(
    context: PageContext, answer: Callable[[Request], Awaitable[dict[str, Any]]]
) -> Callable[[Request], Awaitable[Response]]:
    """Answer a script with a value, or with a sentence on why there is none."""

    @wraps(answer)
    async def answered(request: Request) -> Response:
        try:
            return JSONResponse(await answer(request), headers=dict(HEADERS))
        except SignedOut:
            status, said = 401, ENDED
        except (BadInput, Refused) as error:
            status, said = 409, str(error)
        except (AvaError, AuditError) as error:
            status, said = 503, context.text_of(error)
        return JSONResponse({"error": said}, status, headers=dict(HEADERS))

    return answered


class PasskeyPages:
    """The page of passkeys, and the addresses that its scripts use."""

    def __init__(self, context: PageContext) -> None:
        self._context = context
        self._site = context.site
        self._passkeys = context.authority.passkeys

    def routes(self) -> list[Route]:
        context = self._context
        return [
            Route("/passkeys", self.show, methods=["GET"]),
            Route("/passkeys/new", self.show, methods=["GET"]),
            Route("/passkeys", self.add, methods=["POST"]),
            Route("/passkeys/new/options", _as_json(context, self.begin_adding), methods=["POST"]),
            Route("/passkeys/options", _as_json(context, self.begin_use), methods=["POST"]),
            Route("/passkeys/{passkey_id}/remove", self.remove, methods=["POST"]),
            Route("/sign-in/options", _as_json(context, self.begin_sign_in), methods=["POST"]),
        ]

    async def show(self, request: Request) -> Response:
        visitor_of(request)
        done = DONE.get(request.query_params.get("done", ""), "")
        return await self._page(request, code=request.query_params.get("code", ""), done=done)

    async def add(self, request: Request) -> Response:
        visitor = visitor_of(request)
        form = await read_form(request, visitor)
        code = form.one("code")
        try:
            if not form.one("passkey"):
                raise Refused(NO_PASSKEY)
            name = await self._allowed_name(visitor, form.one("name"), code, form.one("pin"), use_up=True)
            user, session = visitor.user, visitor.session.hash
            passkey = await self._passkeys.add(user, session, name, form.one("passkey"))
        except (BadInput, Refused) as error:
            return await self._page(request, said=str(error))
        await self._record(visitor, passkey, None, passkey.on_record())
        return go_to("/passkeys?done=added")

    async def remove(self, request: Request) -> Response:
        """Once its user has given a passkey or the PIN."""
        visitor = visitor_of(request)
        form = await read_form(request, visitor)
        own = await self._passkeys.own(visitor.user)
        found = next((each for each in own if each.id == request.path_params["passkey_id"]), None)
        if found is None:
            raise NotFound("You have no such passkey for this site.")
        try:
            subject = Subject.of(request.url.path, form.pairs())
            await self._context.authority.check_person(visitor, form, subject)
        except Refused as error:
            return await self._page(request, said=str(error))
        removed = await anyio.to_thread.run_sync(self._site.passkeys.remove, visitor.user, found.name)
        if removed is not None:
            await self._record(visitor, removed, removed.on_record(), None)
        return go_to("/passkeys?done=removed")

    async def begin_adding(self, request: Request) -> dict[str, Any]:
        """Return what the browser needs to create a passkey, to a visitor who has a code or the PIN."""
        visitor = visitor_of(request)
        given = await read_json(request, visitor, _NewPasskey)
        name = await self._allowed_name(visitor, given.name, given.code.strip(), given.pin.strip(), use_up=False)
        return await self._passkeys.begin_adding(visitor.user, visitor.session.hash, name)

    async def begin_use(self, request: Request) -> dict[str, Any]:
        visitor = visitor_of(request)
        given = await read_json(request, visitor, _Form)
        subject = Subject.of(given.path, given.fields)
        return await self._passkeys.begin_use(visitor.user, visitor.session.hash, subject)

    async def begin_sign_in(self, request: Request) -> dict[str, Any]:
        """On this machine."""
        await read_json(request, None, _Nothing)
        if not self._site.local:
            raise Refused("Sign in with your token.")
        return await self._passkeys.begin_use(self._context.runtime.user, "", SIGN_IN)

    async def _allowed_name(self, visitor: Visitor, name: str, code: str, pin: str, *, use_up: bool) -> str:
        """Return the name of the passkey that a visitor may add: that of their code, or any with the PIN.

        With `use_up`, the code counts for nothing afterwards. Raises Refused: neither a valid code nor the PIN;
        BadInput.
        """
        if code:
            sessions = self._site.sessions
            find = sessions.take_passkey_code if use_up else sessions.passkey_code
            found = await anyio.to_thread.run_sync(find, code, visitor.user)
            if found is None or found.name is None:
                raise Refused(WRONG_PASSKEY_CODE)
            return found.name
        if not self._site.local or not await self._context.authority.pin_is_set():
            raise Refused(NO_PROOF)
        name = passkey_name(name)
        await self._context.authority.check_pin(pin, visitor)
        return name

    async def _page(self, request: Request, *, code: str = "", done: str = "", said: str = "") -> Response:
        visitor, site, authority = visitor_of(request), self._site, self._context.authority
        status = 409 if said else 200
        here: list[Passkey] = []
        elsewhere: list[Passkey] = []
        for each in await anyio.to_thread.run_sync(site.passkeys.of, visitor.user):
            if each.host == site.host:
                here.append(each)
            else:
                elsewhere.append(each)
        new_name: str | None = ""
        if code:
            coded = await anyio.to_thread.run_sync(site.sessions.passkey_code, code, visitor.user)
            if coded is None:
                code, said = "", said or WRONG_PASSKEY_CODE
            else:
                new_name = coded.name
        values = {
            "here": here,
            "elsewhere": elsewhere,
            "means": await authority.proof(visitor),
            "adds": self._passkeys.is_possible,
            "why_not": NOT_HERE,
            "by_pin": site.local and await authority.pin_is_set(),
            "code": code,
            "new_name": new_name,
            "said": said,
            "done": done,
        }
        return self._context.show(request, "passkeys.html", values, status)

    async def _record(self, visitor: Visitor, passkey: Passkey, before: Any, after: Any) -> None:
        fact = SettingsChanged(setting=f"passkeys.{passkey.name}", before=before, after=after)
        who = visitor.service_session(self._site.url).who
        await self._context.store.do(append(Event(who, fact)))
