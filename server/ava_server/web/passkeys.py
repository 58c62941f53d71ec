"""The page of a visitor's passkeys, and what its scripts ask for.

A session alone adds no passkey, because a model may have one. It takes the one-time code of `ava passkey add`, which a
person gets in a terminal, or the PIN on this machine. To remove one takes one of the passkeys, or the PIN.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import anyio.to_thread
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ava_audit.errors import AuditError
from ava_audit.events import Event, SettingsChanged
from ava_audit.view import append
from ava_server.config.sign_in import Passkey, passkey_name
from ava_server.core.errors import AvaError, BadInput, Refused
from ava_server.web.context import NotFound, PageContext, SignedOut, go_to, visitor_of
from ava_server.web.requests import HEADERS, read_form, read_json
from ava_server.web.webauthn import NOT_HERE, SIGN_IN, Subject

if TYPE_CHECKING:
    from ava_server.web.site import Visitor

WRONG_CODE = (
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
                raise Refused(WRONG_CODE)
            return found.name
        if not self._site.local or not await self._context.authority.pin_is_set():
            raise Refused(NO_PROOF)
        name = passkey_name(name)
        await self._context.authority.check_pin(pin)
        return name

    async def _page(self, request: Request, *, code: str = "", done: str = "", said: str = "") -> Response:
        visitor, site = visitor_of(request), self._site
        known = await anyio.to_thread.run_sync(site.passkeys.of, visitor.user)
        coded = await anyio.to_thread.run_sync(site.sessions.passkey_code, code, visitor.user) if code else None
        values = {
            "here": [each for each in known if each.host == site.host],
            "elsewhere": [each for each in known if each.host != site.host],
            "means": await self._context.authority.proof(visitor),
            "adds": self._passkeys.is_possible,
            "why_not": NOT_HERE,
            "by_pin": site.local and await self._context.authority.pin_is_set(),
            "code": code if coded is not None else "",
            "new_name": coded.name if coded is not None else "",
            "said": said or (WRONG_CODE if code and coded is None else ""),
            "done": done,
        }
        return self._context.show(request, "passkeys.html", values, 409 if said else 200)

    async def _record(self, visitor: Visitor, passkey: Passkey, before: Any, after: Any) -> None:
        fact = SettingsChanged(setting=f"passkeys.{passkey.name}", before=before, after=after)
        who = visitor.service_session(self._site.url).who
        await self._context.store.do(append(Event(who, fact)))
