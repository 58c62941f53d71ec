"""What the server answers beside MCP: approvals, users and records, each to a token of its own scope.

`/approvals` (`approve`): a person decides from another machine. It is not an MCP tool, so no model can reach it. A
decision there is checked like any other: approval lines letter for letter, the digest of what was shown, and an entry
in the log with the channel `http`.

`/users` (`admin`): the users of the data root and their limits. What opens the server's own folders or grants roles
(`workspaces`, `roles`), and tokens of the operator or that approve or administer, are set only in a terminal on the
server. Limits of a user stay when their tokens are revoked.

The requests for records (`read` or `audit`): what `ava --url URL` shows. The paths and their answers are those of
`service.record_requests`. Nothing is decided or started here, and a user sees what `Access` shows them. A result that
is shown to its user counts as fetched, as with `ava show` on this machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from inspect import Parameter, signature
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal

import anyio
import anyio.to_thread
from pydantic import BaseModel, Discriminator, Field, Tag, TypeAdapter, ValidationError
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from ava_audit.errors import AuditError, BadQuery
from ava_audit.events import Event, SettingsChanged
from ava_audit.rows import RunRow, is_plan_id
from ava_audit.search import LogQuery
from ava_audit.units import DAY_US
from ava_audit.view import View, append
from ava_server.approval.decide import FOLDED_CHARS, SCREEN_CHARS, FoldedScreen, PersonAnswer, Shown, approval_needs
from ava_server.budget.user_limits import STRICTEST_FIRST, day_caps
from ava_server.config.changes import read_users
from ava_server.config.settings import Policy, UserSettings
from ava_server.config.sign_in import Passkeys, passkey_host
from ava_server.config.tokens import Scope as TokenScope
from ava_server.config.tokens import Token, read_tokens
from ava_server.core.errors import AvaError, BadInput, Refused
from ava_server.core.ids import UNKNOWN_ID, parse_id, parse_number
from ava_server.http.limits import error_response, forbidden, invalid_body, json_response, refusal, respond
from ava_server.mcp_server.app import OF_REQUEST, App, session_over_http
from ava_server.render.run_view import carried
from ava_server.service import record_requests as requests
from ava_server.service.access import Access, Session
from ava_server.service.decision_requests import REQUESTS as DECISIONS
from ava_server.service.decision_requests import WAITING, DecisionsHandler
from ava_server.service.service import decide
from ava_server.service.user_accounts import Change
from ava_server.service.user_requests import UsersHandler
from ava_server.web.site import read_body

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from ava_server.core.data_root import DataRoot
    from ava_server.service.current import TokenFacts
    from ava_server.service.run_records import RunRecord

APPROVAL_BYTES = 2 * 1024 * 1024
APPROVALS_CLIENT = "approvals"
_FIELDS = ("status", "decisions", "group_id", "approval_lines")


class ScreenBody(BaseModel, extra="forbid", strict=True):
    """What was on the screen of the person who decides, and, counted, what was folded there."""

    text: str = Field(max_length=SCREEN_CHARS)
    folded: str = Field(max_length=FOLDED_CHARS)


class ProposalsBody(BaseModel, extra="forbid", strict=True):
    """The body of a decision; two or more proposals are approved as one plan, whose cap of time is in seconds.

    `approving` has their approval lines letter for letter, and the line of all of them if there are several; `digests`
    has the digest of each proposal as GET /approvals showed it. `screens` has what was shown of those of which some was
    folded.
    """

    decision: Literal["approve", "reject"]
    pending_ids: list[str] = Field(min_length=1, max_length=50)
    approving: list[str] | None = None
    digests: dict[str, str] = Field(default_factory=dict)
    group_max_cost_cents: float | int | None = None
    group_timeout: float | int | None = None
    screens: dict[str, ScreenBody] = Field(default_factory=dict[str, ScreenBody], max_length=50)


class ExtensionBody(BaseModel, extra="forbid", strict=True):
    """The body of a decision on what a run near a cap asks for; its digest is the one of GET /approvals."""

    decision: Literal["approve", "reject"]
    subagent_id: str
    digest: str


def _kind(body: Any) -> str:
    return "extension" if isinstance(body, dict) and "subagent_id" in body else "proposals"


_BODY: TypeAdapter[ProposalsBody | ExtensionBody] = TypeAdapter(
    Annotated[
        Annotated[ProposalsBody, Tag("proposals")] | Annotated[ExtensionBody, Tag("extension")], Discriminator(_kind)
    ]
)


async def answer_approvals(app: App, scope: Scope, receive: Receive, send: Send) -> None:
    await respond(scope, receive, send, "approve", partial(_answer_approval, app))


async def _answer_approval(app: App, token: Token, request: Request) -> Response:
    if request.method == "GET":
        return await _answer_decision_request(app, token, request)
    if request.method == "POST" and request.url.path == WAITING.path:
        return await _decide(app, token, request)
    return Response(status_code=405, headers={"Allow": "GET, POST"})


async def _answer_decision_request(app: App, token: Token, request: Request) -> Response:
    decision_request, in_path = requests.find_request(DECISIONS, request.url.path, request.query_params)
    if decision_request is None:
        return error_response(404, "Not found. See docs/http.md for the paths.", error="not found")
    try:
        arguments = _arguments_of(decision_request.answer, in_path, request.query_params)
    except ValidationError as wrong:
        raise invalid_body(wrong, "see docs/http.md for the format") from None
    handler = DecisionsHandler(app.runtime.store, token.user, app.runtime.spawn_limits_of)
    return _record_json(await decision_request.answer(handler, **arguments))


async def _decide(app: App, token: Token, request: Request) -> Response:
    try:
        body = _BODY.validate_json(await read_body(request, APPROVAL_BYTES, "; decide on fewer proposals at once"))
    except ValidationError as wrong:
        raise invalid_body(wrong, "see docs/http.md for the format") from None
    approves = body.decision == "approve"
    if approves:
        await _refuse_token_alone(app, token)
    shown = _shown(body)
    answer = PersonAnswer(approves)
    if isinstance(body, ProposalsBody):
        limits = body.model_dump(include={"group_max_cost_cents", "group_timeout"}, exclude_none=True)
        screens = {id: FoldedScreen(screen.text, screen.folded) for id, screen in body.screens.items()}
        answer = PersonAnswer(approves, lines=body.approving, limits=limits, screens=screens)
    service = app.service_for((token, None), lambda: _approver(token))
    app.begin(service.session)
    outcome = await decide(service, shown, answer)
    if isinstance(body, ExtensionBody):
        return json_response(dict(outcome.fields))
    fields = {name: outcome.fields[name] for name in _FIELDS if name in outcome.fields}
    all_refused = all(decision.get("refused_because") is not None for decision in fields.get("decisions", ()))
    return json_response(fields, 409 if all_refused else 200)


def _shown(body: ProposalsBody | ExtensionBody) -> list[Shown]:
    """Return what a decision says that the person was shown; an approval names the digest of each proposal."""
    if isinstance(body, ExtensionBody):
        return [Shown("extend", parse_id("subagent_id", body.subagent_id), body.digest)]
    ids = [parse_id("pending_id", id, "pending_ids") for id in body.pending_ids]
    if body.decision == "reject":
        return [Shown("start", pending_id) for pending_id in ids]
    digests = {parse_id("pending_id", id, "digests"): digest for id, digest in body.digests.items()}
    for pending_id in ids:
        if pending_id not in digests:
            raise BadInput(f"digests: the digest of {pending_id} is missing; send the one from GET /approvals")
    return [Shown("start", pending_id, digests[pending_id]) for pending_id in ids]


async def _refuse_token_alone(app: App, token: Token) -> None:
    """Refuse an approval that needs more than this token, as its user has a passkey for this server."""
    url = app.url or ""
    passkeys = Passkeys(app.runtime.settings.paths.passkeys)
    own = await anyio.to_thread.run_sync(passkeys.of, token.user, passkey_host(url))
    policy = await app.runtime.policy(token.user)
    needs = approval_needs("token", policy, passkey=bool(own), scope="approve" in token.scopes)
    if needs.refusal is not None:
        raise Refused(needs.refusal.format(user=token.user, url=url))


def _approver(token: Token) -> Session:
    session = session_over_http(token, APPROVALS_CLIENT)
    session.channel, session.pin_given, session.by = "http", True, "person"
    return session


# -- users -------------------------------------------------------------------------------------------------------------

USERS_CLIENT = "ava user"
USER_BYTES = 10_000
_Count = Annotated[int, Field(strict=True, ge=0)]


class _Limits(BaseModel, extra="forbid"):
    daily_cents: _Count | None = None
    running: _Count | None = None
    spawns_per_hour: _Count | None = None
    approval: Policy | None = None
    expires: str | None = None


async def answer_users(app: App, scope: Scope, receive: Receive, send: Send) -> None:
    """Handle a request to `/users` (GET) or `/users/NAME` (POST adds, PATCH limits, DELETE removes)."""
    await respond(scope, receive, send, "admin", partial(_answer_users, app))


async def _answer_users(app: App, token: Token, request: Request) -> Response:
    name = request.scope["path"].removeprefix("/users").strip("/")
    allowed = ("POST", "PATCH", "DELETE") if name else ("GET", "HEAD")
    if request.method not in allowed:
        return Response(status_code=405, headers={"Allow": ", ".join(allowed)})
    users = _UsersHandler(app, token)
    if not name:
        return _user_json(await users.listed())
    if request.method == "DELETE":
        return _user_json(await users.removed(name))
    body = await _user_body(request)
    limits = body.model_dump(exclude_none=True)
    if request.method == "POST":
        return _user_json(await users.added(name, **limits))
    if "expires" in limits:
        raise BadInput("expires: it is for a new user's token; leave it out, and create another token on the server")
    return _user_json(await users.limited(name, **limits))


class _UsersHandler(UsersHandler):
    """Answers an administrator, who may only let users run subagents under limits, and take that away again."""

    keeps_limits = True

    def __init__(self, app: App, token: Token) -> None:
        runtime = app.runtime
        root = runtime.settings.paths
        super().__init__(
            root,
            lambda: runtime.settings.model_copy(update={"users": read_users(root)}),
            lambda: nullcontext(runtime.store),
            _recorder(app, token),
        )
        self._runtime = runtime

    async def check_added(self, user: str, scopes: Sequence[TokenScope]) -> None:
        if user == self._runtime.user:
            raise BadInput(
                f"{user} is the operator, who may use the server's secrets, MCP servers and folders: a person on the"
                f" server makes a token of that user, with `ava token create NAME --user {user}`"
            )
        if user in await self._runtime.store.read(View.users):
            raise BadInput(
                f"{user} has runs in the log, which a new user of that name would see: choose another name; if it is"
                f" the same person, somebody on the server adds them again, with `ava user add {user}`"
            )

    async def check_limited(self, user: str, limits: dict[str, Any]) -> None:
        await anyio.to_thread.run_sync(_refuse_looser, self.root, user, limits.get("approval"))

    async def check_removed(self, user: str) -> None:
        await anyio.to_thread.run_sync(_refuse_removal, self.root, user)


_ONLY_THERE = "this can be changed only in a terminal on the server"


def _refuse_looser(root: DataRoot, user: str, approval: Policy | None) -> None:
    """Refuse a weaker policy than the user has. Blocking. Raises BadInput if it is weaker."""
    own = read_users(root).get(user, UserSettings()).approval
    if own is None or approval is None:
        return
    if STRICTEST_FIRST.index(approval) > STRICTEST_FIRST.index(own):
        raise BadInput(f"approval: {user} has {own}, which is stricter than {approval}; {_ONLY_THERE}")


def _refuse_removal(root: DataRoot, user: str) -> None:
    """Raise BadInput for a user whose tokens or passkeys only a person on the server may take away. Blocking."""
    if Passkeys(root.passkeys).of(user):
        raise BadInput(f"{user} has a passkey; {_ONLY_THERE}")
    for token in read_tokens(root.tokens_file).values():
        if token.user == user and set(token.scopes) - {"spawn", "read"}:
            raise BadInput(
                f"{user} has the token {token.name} with the scopes {', '.join(token.scopes)}; {_ONLY_THERE}"
            )


def _recorder(app: App, token: Token) -> Change:
    service = app.service_for((token, USERS_CLIENT), lambda: session_over_http(token, USERS_CLIENT))
    app.begin(service.session)

    async def changed(setting: str, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> None:
        fact = SettingsChanged(setting=setting, before=before, after=after)
        await app.runtime.store.do(append(Event(service.session.who, fact)))

    return changed


async def _user_body(request: Request) -> _Limits:
    body = await read_body(request, USER_BYTES)
    try:
        return _Limits.model_validate_json(body or b"{}")
    except ValidationError as wrong:
        raise invalid_body(
            wrong,
            "over HTTP, an administrator sets daily_cents, running, spawns_per_hour and approval. Folders and roles are"
            " set on the server with `ava user limit`",
        ) from None


def _user_json(answer: BaseModel) -> Response:
    return json_response(answer.model_dump())


# -- records -----------------------------------------------------------------------------------------------------------

RECORDS_CLIENT = "ava"
ANSWER_S = 30.0
"""Seconds that an answer may take."""


async def answer_records(app: App, scope: Scope, receive: Receive, send: Send) -> None:
    token: Token = scope[OF_REQUEST]
    request = Request(scope, receive)
    try:
        response = await _answer_record_request(app, token, request)
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


async def _answer_record_request(app: App, token: Token, request: Request) -> Response:
    record_request, in_path = requests.find_request(requests.REQUESTS, request.url.path, request.query_params)
    if request.method not in ("GET", "HEAD"):
        return Response(status_code=405, headers={"Allow": "GET, HEAD"})
    may_read = "read" in token.scopes or token.reads_all
    if record_request is not requests.TOKEN and not may_read:
        return forbidden(token, "read")
    if record_request is None:
        return error_response(404, "Not found. See docs/http.md for the paths.", error="not found")
    with anyio.fail_after(ANSWER_S):
        arguments = _arguments_of(record_request.answer, in_path, request.query_params)
        return _record_json(await record_request.answer(_Handler(app, token), **arguments))


class _Handler(requests.RecordsHandler):
    bounded = True

    def __init__(self, app: App, token: Token) -> None:
        runtime = app.runtime
        self._app = app
        self._token = token
        self._session = replace(session_over_http(token, RECORDS_CLIENT), url=app.url)
        self._access = Access(runtime, self._session)
        reader = requests.Reader(
            token.user, tuple(token.scopes), self._session.audits, lambda: day_caps(runtime.settings, token.user)
        )
        super().__init__(
            runtime.store,
            reader,
            runtime.instances,
            lambda: runtime.credentials.redactor,
            settings=lambda: runtime.settings,
            owner=runtime.user,
            manager=runtime.manager,
        )

    def run_in(self, view: View, id: str) -> RunRow:
        """Return the run with an id. Raises UnknownId if this user may see none."""
        what = "plan" if is_plan_id(id.upper()) else "subagent"
        try:
            return self._access.run_in(view, id, "subagent_id", reading=True)
        except BadInput:
            raise requests.UnknownId(
                f"There is no {what} {id[:40]} of {self._token.user} here; `ava logs --type spawn` lists all that"
                " were proposed."
            ) from None

    async def token_in_use(self) -> TokenFacts:
        return await self.token()

    async def hand_over(self, record: RunRecord, *, shown: bool) -> RunRecord:
        """Return a record whose texts name this server; its user's first look at it counts as fetching it."""
        answer = record.answer
        if answer.waits_for:
            answer.waits_for = self._access.adapt_text(answer.waits_for)
        if shown and answer.untrusted_result is not None and self._access.owns(record.row):
            service = self._app.service_for((self._token, RECORDS_CLIENT), lambda: self._session)
            self._app.begin(service.session)
            await self._app.runtime.store.do(append(carried(service.session.who, "ava show", record.row.id)))
        return record


def _arguments_of(answer: Callable[..., Any], in_path: Mapping[str, str], query: QueryParams) -> dict[str, Any]:
    """Return the arguments of the method that answers. Raises BadInput or ValidationError if one is invalid."""
    arguments: dict[str, Any] = dict(in_path)
    for name, parameter in islice(signature(answer).parameters.items(), 1, None):
        if parameter.annotation == Sequence[str]:
            arguments[name] = query.getlist(name)
        elif name not in in_path and (name in query or parameter.default is Parameter.empty):
            arguments[name] = _READERS[parameter.annotation](query.get(name, ""))
    return arguments


def _day(text: str) -> int:
    most = sys.maxsize // DAY_US
    day = parse_number(text, f"{text[:40]!r} is not a day; give days since 1970", len(str(most)))
    return min(day, most - 1)


def _number(text: str) -> int:
    return parse_number(text, f"{text[:40]!r} is not a number of microseconds since 1970, or of an entry")


_READERS: Mapping[Any, Callable[[str], Any]] = {
    str: str,
    str | None: str,
    bool: lambda _text: True,  # the parameter alone is enough
    requests.Day: _day,
    requests.Number: _number,
    requests.Number | None: _number,
    LogQuery: lambda text: TypeAdapter(LogQuery).validate_json(text or "{}"),
    Sequence[Shown]: lambda text: TypeAdapter(list[Shown]).validate_json(text or "[]"),
}


def _record_json(value: object) -> Response:
    body = TypeAdapter(type(value)).dump_json(value)
    return Response(body, media_type="application/json", headers={"Cache-Control": "no-store"})
