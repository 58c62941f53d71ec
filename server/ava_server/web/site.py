"""For whom the pages are, who has sent a request, and which user of this machine a connection comes from.

Also what a request may carry: its forms, each with the session's CSRF token, and the headers of every answer.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from urllib.parse import parse_qs, urlsplit

from pydantic import BaseModel, ValidationError
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import Message, Send

from ava_server.config.sign_in import BrowserSession, BrowserSessions, Passkeys, csrf_token, passkey_host
from ava_server.config.tokens import Scope, Token, TokenFile
from ava_server.core.data_root import DataRoot
from ava_server.core.errors import BadInput, Refused
from ava_server.service.access import Session

VISITOR = "ava.visitor"
"""The key of the visitor in a request's scope."""
_COOKIES_BYTES = 8_192


@dataclass(frozen=True)
class Visitor:
    """Somebody who has signed in; the token is None for the user of this machine.

    `admin`: they are the data root's owner, who may see and cancel the runs of all users.
    """

    session: BrowserSession
    csrf: str = field(repr=False)
    token: Token | None
    admin: bool = False

    @property
    def user(self) -> str:
        return self.session.user

    def may(self, scope: Scope) -> bool:
        """On this machine everything is allowed."""
        return self.token is None or scope in self.token.scopes

    @property
    def is_person(self) -> bool:
        """Whether it is certain that a person has signed in: a model may run `ava ui`, or have a host's token."""
        return self.session.terminal if self.token is None else self.may("approve")

    @property
    def reads_all(self) -> bool:
        return self.admin or (self.token is not None and self.token.reads_all)

    @property
    def reads(self) -> bool:
        return self.may("read") or self.reads_all

    def service_session(self, url: str, *, agreed: bool = False) -> Session:
        """It has the same id after a restart.

        `agreed`: they have given what only a person has, or this session's approvals need nothing more.
        """
        person = agreed or self.is_person
        return Session(
            user=self.user,
            transport="http" if self.token is not None else "browser",
            id=f"sess-{hashlib.sha256(f'browser {self.session.id}'.encode()).hexdigest()[:12]}",
            client="browser",
            url=url,
            channel="browser" if person else "host_call",
            by="person" if person else "model",
            pin_given=agreed,
            token=self.token,
            admin=self.admin,
        )


@dataclass(frozen=True)
class Site:
    """The pages of one server, at an address without a path; the passkeys are those of all users.

    `local`: it serves this machine's user alone (`ava ui`); else people sign in with a token. `owned`: the data root
    belongs to this user of the system.
    """

    url: str
    local: bool
    sessions: BrowserSessions
    tokens: TokenFile
    passkeys: Passkeys
    owned: bool

    @classmethod
    def of(cls, root: DataRoot, url: str, tokens: TokenFile, *, local: bool) -> Site:
        """Return the pages of a data root."""
        sessions, passkeys = BrowserSessions(root.browser_sessions), Passkeys(root.passkeys)
        return cls(url, local, sessions, tokens, passkeys, root.owned)

    @property
    def secure(self) -> bool:
        return self.url.startswith("https://")

    @property
    def host(self) -> str:
        """Passkeys belong to it."""
        return passkey_host(self.url)

    @property
    def cookie(self) -> str:
        """The name of the session's cookie; cookies do not distinguish ports, so the name does."""
        return "__Host-ava" if self.secure else f"ava-{urlsplit(self.url).port or 80}"

    def visitor(self, headers: Headers) -> Visitor | None:
        """Return None without a valid session. Blocking. Raises ConfigError: sessions or tokens cannot be read."""
        cookie = self.cookie_in(headers)
        if not cookie:
            return None
        session = self.sessions.find(cookie)
        if session is None:
            return None
        is_local = session.token is None
        if is_local is not self.local:
            return None
        if session.token is None:
            return Visitor(session, csrf_token(cookie), None, self.owned)
        token = self.tokens.with_id(session.token)
        if token is None or token.user != session.user:  # an operator may give a token another user
            return None
        return Visitor(session, csrf_token(cookie), token)

    def still_valid(self, visitor: Visitor) -> bool:
        """Blocking. Raises ConfigError: session or token cannot be read."""
        token = visitor.token
        return self.sessions.current(visitor.session.hash) is not None and (token is None or self.tokens.holds(token))

    def cookie_in(self, headers: Headers) -> str | None:
        """Return None if there is none, or several."""
        found: list[str] = []
        for line in headers.getlist("cookie"):
            for pair in line[:_COOKIES_BYTES].split(";"):
                name, _, value = pair.strip().partition("=")
                if name == self.cookie:
                    found.append(value)
        return found[0] if len(found) == 1 else None

    def cookie_header(self, value: str, *, seconds: int) -> str:
        """With 0 seconds it removes the cookie."""
        secure = "; Secure" if self.secure else ""
        return f"{self.cookie}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}"


_TABLES = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
_LOCAL, _REMOTE, _UID, _INODE = 1, 2, 7, 9
"""Columns of these tables: the local and the remote address, the owner of the socket, and its inode."""


def is_own(client: tuple[str, int], server: tuple[str, int]) -> bool:
    """Tell whether a connection within this machine, between these, comes from this process's user or root. Blocking.

    Where the system has no such table, as outside Linux, the answer is yes: the session is then the only protection.
    """
    if not _TABLES[0].exists():
        return True
    owner = owner_of(client, server)
    return owner in (0, os.geteuid())


def owner_of(client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """Return the number of the user whose socket is the other end of a connection; None if it is not found. Blocking.

    A socket that its program has closed has no inode, and root for its owner: it counts as not found.

    The format is that of proc(5): addresses in hex, each group of four bytes in the order of this machine.
    """
    wanted = {(_in_hex(*client, mapped), _in_hex(*server, mapped)) for mapped in (False, True)}
    for table in _TABLES:
        try:
            lines = table.read_text("ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            columns = line.split()
            if (columns[_LOCAL], columns[_REMOTE]) in wanted and columns[_INODE] != "0":
                return int(columns[_UID])
    return None


def _in_hex(host: str, port: int, mapped: bool) -> str:
    """Return an address as the tables have it; `mapped` is an IPv4 address in an IPv6 socket."""
    address = ipaddress.ip_address(host)
    if mapped and address.version == 4:
        address = ipaddress.IPv6Address(f"::ffff:{address}")
    packed = address.packed
    groups = [packed[at : at + 4] for at in range(0, len(packed), 4)]
    if sys.byteorder == "little":
        groups = [group[::-1] for group in groups]
    return f"{b''.join(groups).hex().upper()}:{port:04X}"


# -- forms and headers -------------------------------------------------------------------------------------------------

M = TypeVar("M", bound=BaseModel)
FORM_BYTES = 256 * 1024
MOST_FIELDS = 400
CSRF = "csrf"
CSRF_HEADER = "x-csrf-token"
NOT_FROM_HERE = "This form does not come from this page, or your session has changed. Go back, reload, and try again."
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # with no-referrer, browsers send `Origin: null` with forms
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers of every answer."""


def with_headers(send: Send) -> Send:
    """Return a `send` that gives every answer these headers, also those that the router makes."""

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return sent


class Form:
    """The fields of a form that was sent."""

    def __init__(self, fields: Mapping[str, list[str]]) -> None:
        self._fields = fields

    def one(self, name: str) -> str:
        """Return a field without white space around it; empty if it is missing."""
        return self._fields.get(name, [""])[0].strip()

    def all(self, name: str) -> list[str]:
        return self._fields.get(name, [])

    def pairs(self) -> list[tuple[str, str]]:
        return [(name, value) for name, values in self._fields.items() for value in values]


async def read_form(request: Request, visitor: Visitor | None) -> Form:
    """Return a form that a page of this site has sent; `visitor` is None if it needs no session.

    Raises BadInput: too large or no form; Refused: it comes from elsewhere.
    """
    body = await _body(request)
    try:
        form = Form(parse_qs(body.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict"))
    except ValueError:
        raise BadInput("the form cannot be read") from None
    _check_csrf(form.one(CSRF), visitor)
    return form


async def read_json(request: Request, visitor: Visitor | None, model: type[M]) -> M:
    """Return what a script of this site has sent, with the CSRF token in a header; see `read_form`."""
    _check_csrf(request.headers.get(CSRF_HEADER, ""), visitor)
    try:
        return model.model_validate_json(await _body(request))
    except ValidationError:
        raise BadInput("the request cannot be read") from None


async def _body(request: Request) -> bytes:
    if request.headers.get("sec-fetch-site", "same-origin") != "same-origin" or "origin" not in request.headers:
        raise Refused(NOT_FROM_HERE)  # the server has compared the origin already
    return await read_body(request, FORM_BYTES, what="form")


async def read_body(request: Request, most: int, advice: str = "", *, what: str = "body") -> bytes:
    """Raises BadInput if it is longer; the text calls it `what`, and ends with the `advice`."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > most:
            raise BadInput(f"the {what} is longer than {most:,} bytes{advice}")
    return body


def _check_csrf(given: str, visitor: Visitor | None) -> None:
    if visitor is not None and not hmac.compare_digest(given.encode(), visitor.csrf.encode()):
        raise Refused(NOT_FROM_HERE)
