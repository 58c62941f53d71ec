"""The MCP server: which request is handled by what. `initialize` is answered before anything is opened."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, cast

import anyio
import mcp_types as types
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR
from pydantic import ValidationError

from ava_server.core.errors import BadInput
from ava_server.hosts.installed_skill import has_skill
from ava_server.mcp_server import card
from ava_server.mcp_server.app import App
from ava_server.mcp_server.elicitation import QuestionSeal
from ava_server.mcp_server.resources import access_of
from ava_server.mcp_server.subscriptions import MOST_URIS, ROLES
from ava_server.mcp_server.tasks import followed_tasks, serve_tasks, task_now

if TYPE_CHECKING:
    from ava_server.config.settings import Settings
    from ava_server.service.access import Access

Ctx = ServerRequestContext[App, Any]
_FOLLOWED = re.compile(r"ava://runs/(?P<id>[^/]+)(?:/transcript)?\Z")


class _Server(Server[App]):
    """The SDK's server, which says at the handshake that its lists change."""

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        changing = NotificationOptions(prompts_changed=True, resources_changed=True, tools_changed=True)
        return super().create_initialization_options(
            notification_options or changing, experimental_capabilities, extensions
        )


def build_server(load: Callable[[], Settings], *, transport: str = "stdio", app: App | None = None) -> Server[App]:
    """`load` reads settings after `initialize`; `app` is made of it and `transport` by default."""
    from ava_server.mcp_server import resources, tools
    from ava_server.render.host_text import INSTRUCTIONS

    @asynccontextmanager
    async def lifespan(_server: Server[App]) -> AsyncGenerator[App]:
        serving = app or App(load, transport)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serving.keep_open)
            tasks.start_soon(serving.tell)
            tasks.start_soon(serving.serve_pages)
            try:
                yield serving
            except Exception:
                serving.failed = True
                raise
            finally:
                serving.close()

    server: Server[App] = _Server(
        "ava",
        version=version("ava-subagents"),
        title="Ava",
        instructions=INSTRUCTIONS,
        lifespan=lifespan,
        get_tool_input_schema=tools.input_schema,
        on_list_tools=tools.list_tools,
        on_list_resources=resources.list_resources,
        on_list_resource_templates=resources.list_templates,
        on_read_resource=resources.read_resource,
        on_subscribe_resource=subscribe,
        on_unsubscribe_resource=unsubscribe,
        on_subscriptions_listen=listen,
        on_list_prompts=tools.list_prompts,
        on_get_prompt=tools.get_prompt,
        on_completion=resources.complete,
    )
    server.add_request_handler("tools/call", types.CallToolRequestParams, tools.call_tool)
    serve_tasks(server)
    server.extensions[card.EXTENSION] = {}
    # Hide the text of errors from the present middleware, which records them in spans.
    server.middleware.insert(0, _restore_text)
    server.middleware.insert(0, _drop_odd_token)
    server.middleware.append(_hide_text)
    server.middleware.append(_open_after_answer)
    server.middleware.append(QuestionSeal())
    server.middleware.append(_leave_to_skill)
    return server


async def _leave_to_skill(ctx: Ctx, call_next: CallNext) -> HandlerResult:
    """Give a host that has Ava's skill the short instructions. Over HTTP, its files are on another machine."""
    result = await call_next(ctx)
    if ctx.lifespan_context.transport != "stdio" or not isinstance(result, dict):
        return result
    client = _client_at_handshake(ctx)
    if client is None:
        return result
    try:
        knows_ava = await anyio.to_thread.run_sync(has_skill, client)
    except RuntimeError:  # no more threads can be started: the long instructions do for every host
        return result
    if knows_ava:
        from ava_server.render.host_text import INSTRUCTIONS_WITH_SKILL

        result["instructions"] = INSTRUCTIONS_WITH_SKILL
    return result


def _client_at_handshake(ctx: Ctx) -> str | None:
    """Return what the client calls itself in a request whose answer has the instructions; None for any other."""
    if ctx.method == "initialize":
        return types.InitializeRequestParams.model_validate(ctx.params, by_name=False).client_info.name
    client = ctx.session.client_params
    if ctx.method == "server/discover" and client is not None:
        return client.client_info.name
    return None


async def _open_after_answer(ctx: Ctx, call_next: CallNext) -> HandlerResult:
    try:
        result = await call_next(ctx)
        if ctx.method == "notifications/initialized":
            with suppress(BadInput):  # there are too many connections: this client has to ask
                ctx.lifespan_context.updates.join(ctx, ctx.lifespan_context.caller(ctx))
        return result
    except Exception as error:
        raise _with_text_for_host(error) from error
    finally:
        ctx.lifespan_context.start()
        ctx.lifespan_context.meet(ctx)


async def listen(ctx: Ctx, params: types.SubscriptionsListenRequestParams) -> types.SubscriptionsListenResult:
    """Serve `subscriptions/listen`; the acknowledgement leaves out resources that this user does not have."""
    app = ctx.lifespan_context
    own = await access_of(ctx)
    uris: dict[str, str | None] = {}
    for uri in (params.notifications.resource_subscriptions or [])[:MOST_URIS]:
        with suppress(BadInput):
            uris[uri] = await _run_of(own, uri)
    tasks = await followed_tasks(ctx, params)
    return await app.updates.listen(ctx, params, app.caller(ctx), uris, tasks, partial(task_now, ctx))


async def subscribe(ctx: Ctx, params: types.SubscribeRequestParams) -> types.EmptyResult:
    app, uri = ctx.lifespan_context, str(params.uri)
    try:
        run_id = await _run_of(await access_of(ctx), uri)
        listener = app.updates.join(ctx, app.caller(ctx))
        if len(listener.uris) >= MOST_URIS and uri not in listener.uris:
            raise BadInput(f"a client follows {MOST_URIS} resources at most; unsubscribe from one first")
    except BadInput as error:
        raise MCPError(code=types.INVALID_PARAMS, message=str(error), data={"uri": uri}) from error
    listener.uris[uri] = run_id
    await app.updates.begin()
    return types.EmptyResult()


async def unsubscribe(ctx: Ctx, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
    """Harmless for a resource that is not followed."""
    app = ctx.lifespan_context
    app.updates.join(ctx, app.caller(ctx)).uris.pop(str(params.uri), None)
    return types.EmptyResult()


async def _run_of(own: Access, uri: str) -> str | None:
    """Return the run of a resource, None for the roles. Raises BadInput if the user has none, or it has no updates."""
    if uri == ROLES:
        return None
    match = _FOLLOWED.fullmatch(uri)
    if match is None:
        raise BadInput(
            f"{uri[:100]!r} has no updates; {ROLES}, ava://runs/S-… and ava://runs/S-…/transcript have, and an artifact"
            " changes with its run"
        )
    return (await own.run(match["id"], "uri")).id


def _with_text_for_host(error: Exception) -> Exception:
    """Return an error of Ava as one whose text reaches the host: a resource has no other way to report it."""
    from ava_audit.errors import AuditError
    from ava_roles.errors import RolesError
    from ava_server.core.errors import AvaError

    if isinstance(error, AvaError | AuditError | RolesError):
        return MCPError(code=INTERNAL_ERROR, message=str(error))
    return error


async def _drop_odd_token(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    """Serve a request whose progress token is null or a fraction without progress: the SDK would refuse it.

    The message itself is changed: the SDK reads the parameters of `initialize` a second time.
    """
    params_meta = ctx.params.get("_meta") if ctx.params is not None else None
    if not isinstance(params_meta, dict):
        return await call_next(ctx)
    meta = cast("dict[str, Any]", params_meta)
    token = meta.get("progressToken", "")
    if isinstance(token, str | int) and not isinstance(token, bool):
        return await call_next(ctx)
    del meta["progressToken"]
    return await call_next(replace(ctx, meta=types.RequestParams.model_validate(ctx.params, by_name=False).meta))


class _HiddenError(MCPError):
    """Replaces an error while it passes through a span."""

    def __init__(self, code: int, instead_of: Exception) -> None:
        super().__init__(code=code, message="")
        self.instead_of = instead_of


async def _hide_text(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    try:
        return await call_next(ctx)
    except ValidationError:  # the SDK records no text of it
        raise
    except MCPError as error:
        hidden = _HiddenError(error.code, error)
    except Exception as error:
        hidden = _HiddenError(INTERNAL_ERROR, error)
    raise hidden


async def _restore_text(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    try:
        return await call_next(ctx)
    except _HiddenError as hidden:
        error = hidden.instead_of
    raise error
