"""`/approvals`, where a person decides from another machine with a token that has the scope `approve`.

It is not an MCP tool, so no model can reach it. A decision there is checked like any other: approval lines
letter for letter, the digest of what was shown, and an entry in the log with the channel `http`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import anyio.to_thread
from pydantic import BaseModel, Discriminator, Field, Tag, TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from ava_audit.units import now_us
from ava_server.approval.decide import PersonAnswer, Shown, approval_needs
from ava_server.approval.proposals import pending_proposals
from ava_server.config.sign_in import Passkeys, passkey_host
from ava_server.core.errors import BadInput, Refused
from ava_server.core.ids import parse_id
from ava_server.http.limits import invalid_body, json_response, respond
from ava_server.mcp_server.app import App, session_over_http
from ava_server.runs.extension import waiting_extensions
from ava_server.service.service import decide
from ava_server.web.requests import read_body

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from ava_server.config.tokens import Token
    from ava_server.service.access import Session


BODY_BYTES = 256 * 1024
CLIENT = "approvals"
_FIELDS = ("status", "decisions", "group_id", "approval_lines")


class ProposalsBody(BaseModel, extra="forbid", strict=True):
    """The body of a decision; two or more proposals are approved as one group, whose cap of time is in seconds.

    `approving` has their approval lines letter for letter, and the group's line if there are several; `digests` has the
    digest of each proposal as GET /approvals showed it.
    """

    decision: Literal["approve", "reject"]
    pending_ids: list[str] = Field(min_length=1, max_length=50)
    approving: list[str] | None = None
    digests: dict[str, str] = Field(default_factory=dict)
    group_max_cost_cents: float | int | None = None
    group_timeout: float | int | None = None


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


async def approvals(app: App, scope: Scope, receive: Receive, send: Send) -> None:
    await respond(scope, receive, send, "approve", partial(_answer, app))


async def _answer(app: App, token: Token, request: Request) -> Response:
    if request.method == "GET":
        return await _waiting(app, token)
    if request.method == "POST":
        return await _decided(app, token, request)
    return Response(status_code=405, headers={"Allow": "GET, POST"})


async def _waiting(app: App, token: Token) -> Response:
    at_us, limits = now_us(), app.runtime.spawn_limits_of(token.user)
    found = await app.runtime.store.read(lambda view: pending_proposals(view, token.user, limits, at_us))
    asking = await app.runtime.store.read(lambda view: waiting_extensions(view, token.user, at_us))
    extensions = [one.pending.model_dump() for one in asking]
    return json_response(
        {"user": token.user, "proposals": [one.model_dump() for one in found], "extensions": extensions}
    )


async def _decided(app: App, token: Token, request: Request) -> Response:
    try:
        wanted = _BODY.validate_json(await read_body(request, BODY_BYTES, "; decide on fewer proposals at once"))
    except ValidationError as wrong:
        raise invalid_body(wrong, "see docs/http.md for the format") from None
    approves = wanted.decision == "approve"
    if approves:
        await _refuse_token_alone(app, token)
    shown, answer = _shown(wanted), PersonAnswer(approves)
    if isinstance(wanted, ProposalsBody):
        limits = wanted.model_dump(include={"group_max_cost_cents", "group_timeout"}, exclude_none=True)
        answer = PersonAnswer(approves, lines=wanted.approving, limits=limits)
    service = app.service_for((token, None), lambda: _session(token))
    app.begin(service.session)
    decided = await decide(service, shown, answer)
    if isinstance(wanted, ExtensionBody):
        return json_response(dict(decided.fields))
    kept = {name: decided.fields[name] for name in _FIELDS if name in decided.fields}
    refused = all(made.get("refused_because") is not None for made in kept.get("decisions", ()))
    return json_response(kept, 409 if refused else 200)


def _shown(wanted: ProposalsBody | ExtensionBody) -> list[Shown]:
    """Return what a decision says that it was shown; an approval names the digest of each."""
    if isinstance(wanted, ExtensionBody):
        return [Shown("extend", parse_id("subagent_id", wanted.subagent_id), wanted.digest)]
    ids = [parse_id("pending_id", given, "pending_ids") for given in wanted.pending_ids]
    if wanted.decision == "reject":
        return [Shown("start", pending_id) for pending_id in ids]
    digests = {parse_id("pending_id", given, "digests"): digest for given, digest in wanted.digests.items()}
    if missing := [pending_id for pending_id in ids if pending_id not in digests]:
        raise BadInput(f"digests: the digest of {missing[0]} is missing; send the one from GET /approvals")
    return [Shown("start", pending_id, digests[pending_id]) for pending_id in ids]


async def _refuse_token_alone(app: App, token: Token) -> None:
    """Refuse an approval that takes more than this token: its user has a passkey for this server."""
    url, passkeys = app.url or "", Passkeys(app.runtime.settings.paths.passkeys)
    own = await anyio.to_thread.run_sync(passkeys.of, token.user, passkey_host(url))
    policy = await app.runtime.policy(token.user)
    needs = approval_needs("token", policy, passkey=bool(own), scope="approve" in token.scopes)
    if needs.refusal is not None:
        raise Refused(needs.refusal.format(user=token.user, url=url))


def _session(token: Token) -> Session:
    session = session_over_http(token, CLIENT)
    session.channel, session.pin_given, session.by = "http", True, "person"
    return session
