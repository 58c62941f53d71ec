"""The six tools as hosts see them, where errors become answers, and the prompts that a person picks in the host.

`prompts.toml` has what the host's model reads then.
"""

from __future__ import annotations

import contextlib
import json
import logging
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import anyio
import anyio.to_thread
import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import X_MCP_HEADER_KEY

from ava_server.core.errors import AvaError, BadInput, Refused
from ava_server.core.ids import parse_id
from ava_server.core.names import named_role
from ava_server.mcp_server.app import can_ask
from ava_server.mcp_server.card import declares_apps, with_card
from ava_server.mcp_server.elicitation import ClientPerson, asks_alone, client_of_call, question_result, result_of
from ava_server.mcp_server.resources import refuse_cursor
from ava_server.mcp_server.tasks import as_task, declares_tasks
from ava_server.render.host_text import INSTRUCTIONS
from ava_server.render.responses import FAILED, Answer

if TYPE_CHECKING:
    from ava_roles.catalog import Catalog
    from ava_server.mcp_server.app import App
    from ava_server.service.access import Asking
    from ava_server.service.tool_registry import ServiceTool

    Ctx = ServerRequestContext[App, Any]

log = logging.getLogger("ava.tools")
ROLES_CHARS = 1_200
FAULT = "a fault of Ava itself, written to its standard error; try again, and report it if it comes back"
_LOADED = {"anthropic/alwaysLoad": True}
_ASKED = {"anthropic/requiresUserInteraction": True}
"""Claude Code then asks a person before every call, whatever its rules allow (from 2.1.199 on). A client that can show
Ava's own question needs no second one."""
_UNHINTED = types.ToolAnnotations(
    read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=False
)
"""What makes no host ask. A server that has listed them starts nothing without its own question."""
NO_QUESTION = (
    "this connection can no longer show Ava's question, so nothing was decided; a person decides in a terminal, with"
    " `ava approve P-…`"
)


async def list_tools(
    ctx: ServerRequestContext[App, Any], params: types.PaginatedRequestParams | None
) -> types.ListToolsResult:
    """List the tools; the roles are in the description of `spawn_subagent`.

    So are the server's instructions, for a client whose model does not get them otherwise.
    """
    refuse_cursor(params)
    catalog = await roles_now(ctx)
    instructions = "" if client_of_call(ctx).instructions else INSTRUCTIONS
    tools = await anyio.to_thread.run_sync(tools_now, catalog, instructions)
    if can_ask(ctx):
        update: dict[str, Any] = {"meta": _LOADED}
        if asks_alone(ctx):
            ctx.lifespan_context.asks_alone = True
            update["annotations"] = _UNHINTED
        tools = [_with_own_question(tool, update) for tool in tools]
    if declares_apps(ctx):
        tools = [with_card(tool) for tool in tools]
    return types.ListToolsResult(tools=tools)


def _with_own_question(tool: types.Tool, update: dict[str, Any]) -> types.Tool:
    """Return a tool that makes the host ask, changed for a client that can show Ava's question; others as they are."""
    if (tool.meta or {}).keys() >= _ASKED.keys():
        return tool.model_copy(update=update)
    return tool


async def call_tool(
    ctx: ServerRequestContext[App, Any], params: types.CallToolRequestParams
) -> types.CallToolResult | types.InputRequiredResult | dict[str, Any]:
    """Call a tool. Every error becomes an answer, and a start maybe a task. Raises MCPError: there is no such tool."""
    from ava_server.approval.requests import show_value
    from ava_server.approval.start_form import AnsweredLater
    from ava_server.service.tool_registry import TOOLS

    if params.name not in TOOLS:
        text = f"there is no tool {show_value(params.name)}; the tools are {', '.join(TOOLS)}"
        raise MCPError(code=types.INVALID_PARAMS, message=text)
    steps = count(1)

    async def progress(line: str) -> None:
        await ctx.session.report_progress(next(steps), None, line)

    began = anyio.current_time()
    try:
        service = await ctx.lifespan_context.service(ctx)
        asking = asking_of(ctx, params, began)
        if asking.person is None and TOOLS[params.name].approves and ctx.lifespan_context.asks_alone:
            raise Refused(NO_QUESTION)
        answer = await service.call(params.name, params.arguments or {}, progress, asking=asking)
        task = await as_task(ctx, service, answer)
        if task is not None:
            return task
    except AnsweredLater as later:
        return question_result(later)
    except AvaError as error:
        answer = Answer(status=FAILED, message=str(error))
    except Exception as error:
        from ava_audit.errors import AuditError

        if isinstance(error, AuditError):
            answer = Answer(status=FAILED, message=str(error))
        else:
            log.exception("%s failed", params.name)
            answer = Answer(status=FAILED, message=f"{params.name}: {FAULT}")
    return result_of(answer, client_of_call(ctx))


def asking_of(ctx: ServerRequestContext[App, Any], params: types.CallToolRequestParams, began: float) -> Asking:
    from ava_server.service.access import Asking

    client = ClientPerson(ctx, params, began)
    return Asking(
        person=client if can_ask(ctx) else None,
        pages=client if client.opens else None,
        links=client.links,
        as_task=declares_tasks(ctx),
        proposal=client.proposal,
    )


async def roles_now(ctx: ServerRequestContext[App, Any]) -> Catalog:
    """Return the roles that lists name: those of the user over HTTP, else those of this process's working folder."""
    from ava_roles.catalog import Catalog
    from ava_server.config import role_folders
    from ava_server.core.threads import read_apart

    catalog = await ctx.lifespan_context.remote_roles(ctx)
    if catalog is not None:
        return catalog
    with anyio.move_on_after(role_folders.ROLES_S):
        return await read_apart(_catalog)
    # A folder of role files does not answer; a spawn reports it.
    return await anyio.to_thread.run_sync(Catalog.load)


@cache
def _fixed_tools() -> tuple[types.Tool, ...]:
    from ava_server.service.tool_registry import TOOLS

    return tuple(_listed(tool) for tool in TOOLS.values())


def _listed(tool: ServiceTool) -> types.Tool:
    meta: dict[str, Any] = {}
    if tool.loaded:
        meta |= _LOADED
    if tool.approves:
        meta |= _ASKED
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=_without_bounds(small(tool.args.model_json_schema())),
        output_schema=small(tool.answer.model_json_schema(mode="serialization"), output=True),
        annotations=types.ToolAnnotations(
            read_only_hint=tool.read_only,
            destructive_hint=None if tool.read_only else tool.destructive,
            idempotent_hint=tool.idempotent,
            open_world_hint=tool.open_world,
        ),
        _meta=meta or None,
    )


@cache
def _schemas() -> dict[str, Mapping[str, Any]]:
    schemas = {tool.name: tool.input_schema for tool in _fixed_tools()}
    return {name: schema for name, schema in schemas.items() if X_MCP_HEADER_KEY in json.dumps(schema)}


def input_schema(name: str) -> Mapping[str, Any] | None:
    """Return a tool's schema if headers repeat its arguments; without this, the SDK lists all for each HTTP call."""
    return _schemas().get(name)


def tools_now(catalog: Catalog | None = None, instructions: str = "") -> list[types.Tool]:
    """Return the tools, with the current roles; without a catalog, it reads the role files. Blocking.

    `instructions` stand before the roles, because a host may cut the end of a long description.
    """
    catalog = _catalog() if catalog is None else catalog
    spawn, *others = _fixed_tools()
    parts = [spawn.description or ""]
    if instructions:
        parts.append(instructions)
    parts.append(f"Roles:\n{catalog.describe(ROLES_CHARS)}{_limits_of(catalog)}")
    text = "\n".join(parts)
    return [spawn.model_copy(update={"description": text}), *others]


def _catalog() -> Catalog:
    """The client's own folders are known only in a call."""
    from ava_server.config.role_folders import places_here
    from ava_server.config.settings import load_settings
    from ava_server.core.data_root import find_data_root

    root = settings = None
    with contextlib.suppress(AvaError):  # every call reports the error; the tools are listed anyway
        root = find_data_root()
        settings = load_settings()
    return places_here(root, settings).load()


def _limits_of(catalog: Catalog) -> str:
    from ava_roles.mcp_client.server_tools import server_of
    from ava_roles.tools.registry import builtin_tools
    from ava_server.config.search_engine import without_search

    tools = builtin_tools()
    if not _searches():
        tools = without_search(tools)
    without_web_search: list[str] = []
    without_others: list[str] = []
    for role in catalog.roles:
        # The tools of a foreign server are looked for at the proposal.
        missing = [need for need in role.needs if need not in tools and server_of(need) is None]
        if missing == ["web_search"]:
            without_web_search.append(role.name)
        elif missing:
            without_others.append(role.name)
    lines = ""
    if without_web_search:
        names = ", ".join(map(named_role, without_web_search))
        lines += f"\nNo search here, so {names} works only when the task names the pages (https://…)."
    if without_others:
        lines += f"\nThis version cannot run {', '.join(map(named_role, without_others))} yet."
    return lines


def _searches() -> bool:
    from ava_server.config.credentials import model_settings
    from ava_server.config.keys import read_keys
    from ava_server.config.search_engine import searches_by_default
    from ava_server.config.settings import load_settings

    try:
        settings = load_settings()
        stored = read_keys(settings.paths.keys)
        return searches_by_default(settings.search, stored, model_settings(settings, stored))
    except (AvaError, OSError):  # every call reports the error; the tools are listed anyway
        return False


_BOUNDS = {
    "additionalProperties",
    "exclusiveMinimum",
    "maxItems",
    "maxLength",
    "maximum",
    "minItems",
    "minLength",
    "minimum",
}


def _without_bounds(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return an input schema without bounds that sensible calls keep; a call beyond one gets an error that names it."""
    properties: dict[str, Any] = {}
    for name, about in schema["properties"].items():
        properties[name] = {key: value for key, value in about.items() if key not in _BOUNDS}
    small_schema: dict[str, Any] = {"type": "object", "properties": properties}
    if "required" in schema:
        small_schema["required"] = schema["required"]
    return small_schema


def small(schema: Any, *, output: bool = False) -> Any:
    """Return a JSON schema without parts that only cost tokens: titles, null alternatives, empty defaults."""
    if isinstance(schema, list):
        return [small(item, output=output) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    less: dict[str, Any] = {}
    for key, value in cast("dict[str, Any]", schema).items():
        if key in ("properties", "$defs"):
            members = cast("dict[str, Any]", value).items()
            less[key] = {name: small(item, output=output) for name, item in members}
        elif not _says_nothing(key, value, output=output):
            less[key] = small(value, output=output)
    options: list[Any] = less.get("anyOf", [])
    kept = [option for option in options if option != {"type": "null"}]
    if len(kept) == 1 and len(kept) < len(options):
        del less["anyOf"]
        less = {**kept[0], **less}
    return less


def _says_nothing(key: str, value: Any, *, output: bool) -> bool:
    if key == "additionalProperties" and value is True:
        return True
    if key == "default":
        return value in (None, [], {}, "", 0)
    if key == "title":
        return isinstance(value, str)
    return output and key == "additionalProperties" and value is not False


# -- prompts ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Argument:
    """An argument of a prompt; `prompts.toml` says what the fields mean."""

    name: str
    description: str
    missing: str = ""
    id_field: str = ""
    words: str = ""


@dataclass(frozen=True)
class Prompt:
    """A prompt: its words have a place for each argument that must be given."""

    name: str
    title: str
    description: str
    words: str
    arguments: tuple[Argument, ...]

    def text(self, given: Mapping[str, str]) -> str:
        """Return its words with what was given. Raises BadInput if an argument is missing, or is not an id."""
        values: dict[str, str] = {}
        more = ""
        for argument in self.arguments:
            value = given.get(argument.name, "").strip()
            if argument.missing and not value:
                raise BadInput(f"{self.name} needs a {argument.name}: {argument.missing}")
            if argument.id_field and value:
                value = parse_id(argument.id_field, value)
            values[argument.name] = value
            if argument.words and value:
                more += argument.words.format(value)
        return self.words.format(**values) + more


@cache
def all_prompts() -> tuple[Prompt, ...]:
    rows = tomllib.loads(Path(__file__).with_name("prompts.toml").read_text("utf-8"))["prompt"]
    return tuple(Prompt(arguments=tuple(Argument(**one) for one in row.pop("arguments")), **row) for row in rows)


async def list_prompts(ctx: Ctx, params: types.PaginatedRequestParams | None) -> types.ListPromptsResult:
    """List the prompts; the roles are in the description of the argument that takes one."""
    refuse_cursor(params)
    catalog = await roles_now(ctx)
    prompts = [_listed_prompt(prompt, catalog) for prompt in all_prompts()]
    return types.ListPromptsResult(prompts=prompts)


def _listed_prompt(prompt: Prompt, catalog: Catalog) -> types.Prompt:
    arguments: list[types.PromptArgument] = []
    for argument in prompt.arguments:
        description = argument.description
        if argument.name == "role":
            description += f" One of: {', '.join(catalog.by_name)}. Without one, your model chooses."
        arguments.append(
            types.PromptArgument(name=argument.name, description=description, required=bool(argument.missing))
        )
    return types.Prompt(name=prompt.name, title=prompt.title, description=prompt.description, arguments=arguments)


async def get_prompt(ctx: Ctx, params: types.GetPromptRequestParams) -> types.GetPromptResult:
    prompt = next((prompt for prompt in all_prompts() if prompt.name == params.name), None)
    if prompt is None:
        known = ", ".join(prompt.name for prompt in all_prompts())
        raise MCPError(code=types.INVALID_PARAMS, message=f"no prompt {params.name[:80]!r}; there are {known}")
    try:
        text = prompt.text(params.arguments or {})
    except BadInput as error:
        raise MCPError(code=types.INVALID_PARAMS, message=str(error)) from error
    message = types.PromptMessage(role="user", content=types.TextContent(type="text", text=text))
    return types.GetPromptResult(description=prompt.description, messages=[message])
