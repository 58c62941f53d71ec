"""`/token`, `/runs`, `/log` and `/report`: what `ava --url URL` shows, with a token of the scope `read` or `audit`.

Nothing is decided or started here, and a user sees what `Access` shows them. A result that is shown to its user counts
as fetched, as with `ava show` on this machine.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import anyio
from pydantic import TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from ava_audit.decisions import Period
from ava_audit.errors import AuditError, BadQuery
from ava_audit.rows import UNENDED, RunRow
from ava_audit.search import LogQuery
from ava_audit.totals import GroupSum, UserSpending, group_sum, spending
from ava_audit.units import DAY_US, now_us
from ava_audit.view import View, append
from ava_server.budget.user_limits import day_caps
from ava_server.core.errors import AvaError, BadInput, Refused
from ava_server.core.ids import UNKNOWN_ID, parse_id
from ava_server.http.limits import error_response, forbidden, refusal
from ava_server.mcp_server.app import OF_REQUEST, App, session_over_http
from ava_server.render.approvals import Decisions, decisions_of
from ava_server.render.entries import PAGE_ENTRIES
from ava_server.render.run_view import carried
from ava_server.service import records
from ava_server.service.access import Access

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from ava_server.config.tokens import Token

CLIENT = "ava"
ANSWER_S = 30.0
"""Seconds that an answer may take."""
MOST_RUNS, MOST_IDS = 1_000, 200
_LAST: Mapping[str, tuple[str, ...] | None] = {"any": None, "unended": UNENDED}


_NO_PATH = "Not found. See docs/http.md for the paths."


class _UnknownId(BadInput):
    """There is no such run or group for this user."""


class _NeedsAudit(Refused):
    """The token lacks the scope `audit`."""


async def answer_records(app: App, scope: Scope, receive: Receive, send: Send) -> None:
    """Handle a request to one of the paths."""
    token: Token = scope[OF_REQUEST]
    request = Request(scope, receive)
    path = request.url.path
    try:
        if request.method not in ("GET", "HEAD"):
            response: Response = Response(status_code=405, headers={"Allow": "GET, HEAD"})
        elif path == "/token":
            response = _json(_facts(token))
        elif not ("read" in token.scopes or token.reads_all):
            response = forbidden(token, "read")
        else:
            with anyio.fail_after(ANSWER_S):
                found = await _Reader(app, token, request).answer(path, dict(request.query_params))
            response = _json(found) if found is not None else error_response(404, _NO_PATH, error="not found")
    except TimeoutError:
        response = error_response(503, f"the log did not answer within {ANSWER_S:.0f} s; try again")
    except _NeedsAudit:
        response = forbidden(token, "audit")
    except _UnknownId as error:
        response = error_response(404, str(error), error=UNKNOWN_ID)
    except (BadQuery, ValidationError) as error:
        response = error_response(400, str(error))
    except (AvaError, AuditError) as error:
        response = refusal(error)
    await response(scope, receive, send)


class _Reader(records.RecordsHandler):
    """Answers one request of a user, who sees what `Access` shows them."""

    def __init__(self, app: App, token: Token, request: Request) -> None:
        runtime = app.runtime
        super().__init__(
            runtime.store, runtime.instances, lambda: runtime.credentials.redactor, manager=runtime.manager
        )
        self._app = app
        self._token = token
        self._asked = request.query_params
        self._session = replace(session_over_http(token, CLIENT), url=app.url)
        self._access = Access(runtime, self._session)

    async def answer(self, path: str, params: Mapping[str, Any]) -> object:
        """Return the answer to a path with its query; None for an unknown path.

        Raises AvaError: it cannot be answered; says why.
        """
        match path.strip("/").split("/"):
            case ["runs"] if "last" in params:
                return await self.listed(self._last)
            case ["runs"] if "id" not in params:
                return await self._current()
            case ["log"]:
                return await self._log()
            case ["report"]:
                return await self._report()
            case ["report", "approvals"]:
                return await self._decisions()
            case _:
                return await super().answer(path, {**params, "id": self._asked.getlist("id")[:MOST_IDS]})

    def _whose(self) -> str | None:
        """Return whose runs are asked for; None is everybody's, for an auditor."""
        if "all" not in self._asked:
            return self._token.user
        if not self._session.audits:
            raise _NeedsAudit("it is not your own")
        return None

    def run_in(self, view: View, given: str) -> RunRow:
        """Return the run with an id. Raises _UnknownId: this user may see none."""
        with self._known(given, "subagent"):
            return self._access.run_in(view, given, "subagent_id", reading=True)

    def runs_in(self, view: View, given: str) -> Sequence[RunRow]:
        """Return the run of an id of a list, or its group's runs. Raises _UnknownId: this user may see none."""
        if not given.upper().startswith("G-"):
            return [self.run_in(view, given)]
        with self._known(given, "group"):
            return self._access.group_in(view, given, reading=True)

    @contextmanager
    def _known(self, given: str, what: str) -> Generator[None]:
        try:
            yield
        except BadInput:
            raise _UnknownId(
                f"There is no {what} {given[:40]} of {self._token.user} here; `ava logs --type spawn` lists all that"
                " were proposed."
            ) from None

    def _last(self, view: View) -> Sequence[RunRow]:
        found = view.runs(user=self._token.user, states=_LAST.get(self._asked["last"]), limit=-1)
        return [max(found, key=lambda row: row.created_us)] if found else []

    async def record(self, run_id: str, *, shown: bool = False) -> records.RunRecord:
        """Return a run with its whole result; its user's first look at it counts as fetching it."""
        found = await super().record(run_id)
        answer = found.answer
        answer.waits_for = answer.waits_for and self._access.adapt_text(answer.waits_for)
        if shown and answer.untrusted_result is not None and self._access.owns(found.row):
            service = self._app.service_for((self._token, CLIENT), lambda: self._session)
            self._app.begin(service.session)
            await self._app.runtime.store.do(append(carried(service.session.who, "ava show", found.row.id)))
        return found

    async def _current(self) -> records.CurrentRuns:
        user, at_us = self._whose(), now_us()
        own, caps = self._token.user, day_caps(self._access.runtime.settings, self._token.user)
        processes = self._access.runtime.instances

        def query(view: View) -> records.CurrentRuns:
            counts, runs = records.current_runs(view, user, processes, at_us, served=lambda: True, most=MOST_RUNS)
            budgets = records.todays_budgets(view, own, own, caps, at_us, everybody=self._session.audits)
            others = 0 if user is None else view.unended_of_others(user)
            return records.CurrentRuns(at_us, counts, runs, budgets, _facts(self._token), others)

        return await self.store.read(query)

    async def _log(self) -> records.LogLines:
        store = self._app.runtime.store
        given = TypeAdapter(LogQuery).validate_json(self._asked.get("query", "{}"))
        named = given.runs[:MOST_IDS]
        runs = await store.look(lambda view: tuple(self.run_in(view, one).id for one in named))
        users, own = given.users, self._token.user
        if not self._session.audits:
            if users and set(users) != {own}:
                raise _NeedsAudit("it is not your own")
            # Of a run of one's own, all is one's own; the condition would only make the search slower.
            users = () if runs else (own,)
        limit = max(1, min(given.limit, PAGE_ENTRIES))
        return await records.log_lines(store, replace(given, runs=runs, users=users, limit=limit))

    async def _report(self) -> GroupSum | UserSpending:
        user = self._whose()
        if "group" in self._asked:
            group_id = parse_id("group_id", self._asked["group"], "--group")
            group = await self.store.read(lambda view: group_sum(view, group_id))
            if group is None or user not in (None, group.group.user_id):
                raise _UnknownId(f"There is no group {group_id} of {self._token.user} here.")
            return group
        first, last = (_day(self._asked.get(name, "")) for name in ("first", "last"))
        found = await self.store.read(lambda view: spending(view, first * DAY_US, (last + 1) * DAY_US, user))
        return UserSpending(user, found)

    async def _decisions(self) -> Decisions:
        since_us, until_us = (_number(self._asked.get(name, "")) for name in ("since", "until"))
        user, before = self._asked.get("user", self._whose()), None
        if user not in (None, self._token.user) and not self._session.audits:
            raise _NeedsAudit("it is not your own")
        period = Period(since_us, until_us, user)
        if "before_us" in self._asked:
            before = _number(self._asked["before_us"]), _number(self._asked.get("before_seq", ""))
        return await self.store.read(lambda view: decisions_of(view, period, before))


def _facts(token: Token) -> records.TokenFacts:
    return records.TokenFacts(token.user, tuple(token.scopes), version("ava-subagents"))


def _day(given: str) -> int:
    if not given.isdecimal() or len(given) > len(str(sys.maxsize // DAY_US)):
        raise BadInput(f"{given[:40]!r} is not a day; give days since 1970")
    return min(int(given), sys.maxsize // DAY_US - 1)


def _number(given: str) -> int:
    if not given.isdecimal() or len(given) >= len(str(sys.maxsize)):
        raise BadInput(f"{given[:40]!r} is not a number of microseconds since 1970, or of an entry")
    return int(given)


def _json(value: object) -> Response:
    body = TypeAdapter(type(value)).dump_json(value)
    return Response(body, media_type="application/json", headers={"Cache-Control": "no-store"})
