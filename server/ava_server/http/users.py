"""`/users`: the users of the data root and their limits, for tokens of the scope `admin`.

What opens the server's own folders or grants roles (`workspaces`, `roles`), and tokens of the operator or that approve
or administer, are set only in a terminal on the server. Limits of a user stay when their tokens are revoked.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import anyio.to_thread
from pydantic import BaseModel, Field, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from ava_audit.events import Event, SettingsChanged
from ava_audit.units import now_us
from ava_audit.view import View, append
from ava_server.budget.user_limits import STRICTEST_FIRST
from ava_server.config.changes import read_users
from ava_server.config.settings import Policy, UserSettings
from ava_server.config.sign_in import Passkeys
from ava_server.config.tokens import expiry, read_tokens, user_name
from ava_server.core.errors import BadInput
from ava_server.http.limits import invalid_body, json_response, respond
from ava_server.mcp_server.app import App, session_over_http
from ava_server.service.users import (
    AddedUser,
    Change,
    LimitedUser,
    ListedUsers,
    RemovedUser,
    add_user,
    limit_user,
    list_users,
    remove_user,
    unended_runs,
)
from ava_server.web.requests import read_body

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from ava_server.config.tokens import Token
    from ava_server.core.data_root import DataRoot

CLIENT = "ava user"
BODY_BYTES = 10_000
_Count = Annotated[int, Field(strict=True, ge=0)]


class _Limits(BaseModel, extra="forbid"):
    daily_cents: _Count | None = None
    running: _Count | None = None
    spawns_per_hour: _Count | None = None
    approval: Policy | None = None
    expires: str | None = None


async def answer_users(app: App, scope: Scope, receive: Receive, send: Send) -> None:
    """Handle a request to `/users` (GET) or `/users/NAME` (POST adds, PATCH limits, DELETE removes)."""
    await respond(scope, receive, send, "admin", partial(_answer, app))


async def _answer(app: App, token: Token, request: Request) -> Response:
    settings, root = app.runtime.settings, app.runtime.settings.paths
    name = request.scope["path"].removeprefix("/users").strip("/")
    allowed = ("POST", "PATCH", "DELETE") if name else ("GET", "HEAD")
    if request.method not in allowed:
        return Response(status_code=405, headers={"Allow": ", ".join(allowed)})
    if not name:
        return _json(ListedUsers(users=await list_users(settings, app.runtime.store)))
    if (user := user_name(name)) == app.runtime.user and request.method == "POST":
        raise BadInput(
            f"{user} is the operator, who may use the server's secrets, MCP servers and folders: a person on the server"
            f" makes a token of that user, with `ava token create NAME --user {user}`"
        )
    changed = _recorder(app, token)
    if request.method == "DELETE":
        await anyio.to_thread.run_sync(_refuse_removal, root, user)
        removed = await remove_user(root, user, changed, keep_limits=True)
        unended = await app.runtime.store.read(lambda view: unended_runs(view, user))
        revoked = [one.name for one in removed.tokens]
        return _json(RemovedUser(revoked=revoked, limited=removed.limited, unended=unended))
    given = await _body(request)
    limits = given.model_dump(exclude={"expires"}, exclude_none=True)
    if request.method == "POST":
        if user in await app.runtime.store.read(View.users):
            raise BadInput(
                f"{user} has runs in the log, which a new user of that name would see: choose another name; if it is"
                f" the same person, somebody on the server adds them again, with `ava user add {user}`"
            )
        ends_us = expiry(given.expires, now_us())
        made, text = await add_user(root, user, limits, ("spawn", "read"), ends_us, changed)
        return _json(AddedUser(name=made.name, token=text, scopes=list(made.scopes), expires=given.expires))
    if given.expires is not None:
        raise BadInput("expires: it is for a new user's token; leave it out, and create another token on the server")
    if not limits:
        raise BadInput("give at least one limit: daily_cents, running, spawns_per_hour or approval")
    await anyio.to_thread.run_sync(_refuse_looser, root, user, given.approval)
    await limit_user(root, user, limits, changed)
    fresh = settings.model_copy(update={"users": await anyio.to_thread.run_sync(read_users, root)})
    [facts] = [one for one in await list_users(fresh, app.runtime.store) if one.name == user]
    return _json(LimitedUser(user=facts))


_ONLY_THERE = "this can be changed only in a terminal on the server"


def _refuse_looser(root: DataRoot, user: str, approval: Policy | None) -> None:
    """Refuse a weaker policy than the user has. Blocking. Raises BadInput: it is weaker."""
    own = read_users(root).get(user, UserSettings()).approval
    if own is not None and approval is not None and STRICTEST_FIRST.index(approval) > STRICTEST_FIRST.index(own):
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
    service = app.service_for((token, CLIENT), lambda: session_over_http(token, CLIENT))
    app.begin(service.session)

    async def changed(setting: str, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> None:
        fact = SettingsChanged(setting=setting, before=before, after=after)
        await app.runtime.store.do(append(Event(service.session.who, fact)))

    return changed


async def _body(request: Request) -> _Limits:
    body = await read_body(request, BODY_BYTES)
    try:
        return _Limits.model_validate_json(body or b"{}")
    except ValidationError as wrong:
        raise invalid_body(
            wrong,
            "over HTTP, an administrator sets daily_cents, running, spawns_per_hour and approval. Folders and roles are"
            " set on the server with `ava user limit`",
        ) from None


def _json(answer: BaseModel) -> Response:
    return json_response(answer.model_dump())
