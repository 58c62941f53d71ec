"""What a request may carry: its forms, each with the session's CSRF token, and the headers of every answer."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import parse_qs

from pydantic import BaseModel, ValidationError
from starlette.datastructures import MutableHeaders
from starlette.requests import Request

from ava_server.core.errors import BadInput, Refused

if TYPE_CHECKING:
    from starlette.types import Message, Send

    from ava_server.web.site import Visitor

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
    """Raises BadInput: it is longer; the text calls it `what`, and ends with the `advice`."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > most:
            raise BadInput(f"the {what} is longer than {most:,} bytes{advice}")
    return body


def _check_csrf(given: str, visitor: Visitor | None) -> None:
    if visitor is not None and not hmac.compare_digest(given.encode(), visitor.csrf.encode()):
        raise Refused(NOT_FROM_HERE)
