"""The requests for records over HTTP, with a token of the scope `read` or `audit`: what `ava --url URL` shows.

The paths and their answers are those of `service.record_requests`. Nothing is decided or started here, and a user sees
what `Access` shows them. A result that is shown to its user counts as fetched, as with `ava show` on this machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from inspect import Parameter, signature
from itertools import islice
from typing import TYPE_CHECKING, Any

import anyio
from pydantic import TypeAdapter, ValidationError
from starlette.datastructures import QueryParams
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from ava_audit.errors import AuditError, BadQuery
from ava_audit.rows import RunRow
from ava_audit.search import LogQuery
from ava_audit.units import DAY_US
from ava_audit.view import View, append
from ava_server.budget.user_limits import day_caps
from ava_server.core.errors import AvaError, BadInput
from ava_server.core.ids import UNKNOWN_ID
from ava_server.http.limits import error_response, forbidden, refusal
from ava_server.mcp_server.app import OF_REQUEST, App, session_over_http
from ava_server.render.run_view import carried
from ava_server.service import record_requests as requests
from ava_server.service.access import Access

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from ava_server.config.tokens import Token
    from ava_server.service.records import RunRecord

CLIENT = "ava"
ANSWER_S = 30.0
"""Seconds that an answer may take."""


async def answer_records(app: App, scope: Scope, receive: Receive, send: Send) -> None:
    token: Token = scope[OF_REQUEST]
    given = HttpRequest(scope, receive)
    try:
        request, in_path = requests.find_request(given.url.path, given.query_params)
        if given.method not in ("GET", "HEAD"):
            response: Response = Response(status_code=405, headers={"Allow": "GET, HEAD"})
        elif request is not requests.TOKEN and not ("read" in token.scopes or token.reads_all):
            response = forbidden(token, "read")
        elif request is None:
            response = error_response(404, "Not found. See docs/http.md for the paths.", error="not found")
        else:
            with anyio.fail_after(ANSWER_S):
                arguments = _arguments_of(request.answer, in_path, given.query_params)
                response = _json(await request.answer(_Handler(app, token), **arguments))
    except TimeoutError:
        response = error_response(503, f"the log did not answer within {ANSWER_S:.0f} s; try again")
    except requests.NeedsAudit:
        response = forbidden(token, "audit")
    except requests.UnknownId as error:
        response = error_response(404, str(error), error=UNKNOWN_ID)
    except (BadQuery, ValidationError) as error:
        response = error_response(400, str(error))
    except (AvaError, AuditError) as error:
        response = refusal(error)
    await response(scope, receive, send)


class _Handler(requests.RecordsHandler):
    bounded = True

    def __init__(self, app: App, token: Token) -> None:
        runtime = app.runtime
        self._app = app
        self._token = token
        self._session = replace(session_over_http(token, CLIENT), url=app.url)
        self._access = Access(runtime, self._session)
        reader = requests.Reader(
            token.user, tuple(token.scopes), self._session.audits, lambda: day_caps(runtime.settings, token.user)
        )
        super().__init__(
            runtime.store, reader, runtime.instances, lambda: runtime.credentials.redactor, manager=runtime.manager
        )

    def run_in(self, view: View, given: str) -> RunRow:
        """Return the run with an id. Raises UnknownId: this user may see none."""
        with self._known(given, "subagent"):
            return self._access.run_in(view, given, "subagent_id", reading=True)

    def runs_in(self, view: View, given: str) -> Sequence[RunRow]:
        """Return the run of an id of a list, or its group's runs. Raises UnknownId: this user may see none."""
        if not given.upper().startswith("G-"):
            return [self.run_in(view, given)]
        with self._known(given, "group"):
            return self._access.group_in(view, given, reading=True)

    @contextmanager
    def _known(self, given: str, what: str) -> Generator[None]:
        try:
            yield
        except BadInput:
            raise requests.UnknownId(
                f"There is no {what} {given[:40]} of {self._token.user} here; `ava logs --type spawn` lists all that"
                " were proposed."
            ) from None

    async def hand_over(self, found: RunRecord, *, shown: bool) -> RunRecord:
        """Return a record whose texts name this server; its user's first look at it counts as fetching it."""
        answer = found.answer
        answer.waits_for = answer.waits_for and self._access.adapt_text(answer.waits_for)
        if shown and answer.untrusted_result is not None and self._access.owns(found.row):
            service = self._app.service_for((self._token, CLIENT), lambda: self._session)
            self._app.begin(service.session)
            await self._app.runtime.store.do(append(carried(service.session.who, "ava show", found.row.id)))
        return found


def _arguments_of(answer: Callable[..., Any], in_path: Mapping[str, str], query: QueryParams) -> dict[str, Any]:
    """Return the arguments of what answers. Raises BadInput or ValidationError: one is not of its kind."""
    arguments: dict[str, Any] = dict(in_path)
    for name, parameter in islice(signature(answer).parameters.items(), 1, None):
        if parameter.annotation == Sequence[str]:
            arguments[name] = query.getlist(name)
        elif name not in in_path and (name in query or parameter.default is Parameter.empty):
            arguments[name] = _READERS[parameter.annotation](query.get(name, ""))
    return arguments


def _day(given: str) -> int:
    if not given.isdecimal() or len(given) > len(str(sys.maxsize // DAY_US)):
        raise BadInput(f"{given[:40]!r} is not a day; give days since 1970")
    return min(int(given), sys.maxsize // DAY_US - 1)


def _number(given: str) -> int:
    if not given.isdecimal() or len(given) >= len(str(sys.maxsize)):
        raise BadInput(f"{given[:40]!r} is not a number of microseconds since 1970, or of an entry")
    return int(given)


_READERS: Mapping[Any, Callable[[str], Any]] = {
    str: str,
    str | None: str,
    bool: lambda _given: True,  # that it is given is enough
    requests.Day: _day,
    requests.Number: _number,
    requests.Number | None: _number,
    LogQuery: lambda given: TypeAdapter(LogQuery).validate_json(given or "{}"),
}


def _json(value: object) -> Response:
    body = TypeAdapter(type(value)).dump_json(value)
    return Response(body, media_type="application/json", headers={"Cache-Control": "no-store"})
