"""Signing in and out: with the code of `ava ui`, a passkey or the PIN on this machine, with a token over HTTP.

Over HTTP a passkey signs nobody in: it is asked for in addition to the token, when something is approved.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ava_server.core.errors import Refused
from ava_server.web.context import PageContext, go_to, local_path, signed_in, visitor_of, visitor_or_none
from ava_server.web.requests import Form, read_form
from ava_server.web.site import VISITOR
from ava_server.web.webauthn import SIGN_IN

if TYPE_CHECKING:
    from ava_server.config.tokens import Token

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


class Attempts:
    """Counts what was wrong in the last minute."""

    def __init__(self) -> None:
        self._failed: list[float] = []

    def wrong(self, why: str) -> tuple[str, int]:
        """Return what is answered, with the status."""
        since = time.monotonic() - WITHIN_S
        self._failed = [*(at for at in self._failed if at > since), time.monotonic()][-FAILURES - 1 :]
        return (TOO_MANY, 429) if len(self._failed) > FAILURES else (why, 403)


class SignIn:
    """The pages that need no session."""

    def __init__(self, context: PageContext) -> None:
        self._context = context
        self._site = context.site
        self._attempts = Attempts()

    def routes(self) -> list[Route]:
        return [
            Route("/enter", self.enter, methods=["GET"]),
            Route("/sign-in", self.show, methods=["GET"]),
            Route("/sign-in", self.sign_in, methods=["POST"]),
            Route("/sign-out", self.sign_out, methods=["POST"]),
        ]

    async def enter(self, request: Request) -> Response:
        """Exchange the one-time code in the address for a session."""
        if request.method == "HEAD":  # a program that looks at addresses must not use up the code
            return await self._page(request, "", 200)
        code = request.query_params.get("code", "")
        cookie = await anyio.to_thread.run_sync(self._site.sessions.redeem, code) if self._site.local else None
        if cookie is None:
            return await self._page(request, *self._attempts.wrong(WRONG_CODE))
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
            cookie = await (self._on_this_machine(form) if self._site.local else self._with_token(form.one("token")))
        except Refused as error:
            return await self._page(request, str(error), 403, to)
        if cookie is None:
            return await self._page(request, *self._attempts.wrong(UNKNOWN), to)
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

    async def _on_this_machine(self, form: Form) -> str:
        user, authority = self._context.runtime.user, self._context.authority
        if signed := form.one("passkey"):
            await authority.passkeys.check_use(user, "", SIGN_IN, signed)
        else:
            await authority.check_pin(form.one("pin"))
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
