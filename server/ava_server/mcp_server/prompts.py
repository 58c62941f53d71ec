"""The prompts that a person picks in the host; `prompts.toml` has what the host's model then reads."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError

from ava_server.core.errors import BadInput
from ava_server.core.ids import parse_id
from ava_server.mcp_server.resources import refuse_cursor

if TYPE_CHECKING:
    from ava_server.mcp_server.app import App

    Ctx = ServerRequestContext[App, Any]


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
        """Return its words with what was given. Raises BadInput: an argument is missing, or is not an id."""
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
    rows = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))["prompt"]
    return tuple(Prompt(arguments=tuple(Argument(**one) for one in row.pop("arguments")), **row) for row in rows)


async def list_prompts(ctx: Ctx, params: types.PaginatedRequestParams | None) -> types.ListPromptsResult:
    """List the prompts; the roles stand in the description of the argument that takes one."""
    from ava_server.mcp_server.tools import roles_now

    refuse_cursor(params)
    names = ", ".join((await roles_now(ctx)).by_name)
    more = {"role": f" One of: {names}. Without one, your model chooses."}
    return types.ListPromptsResult(
        prompts=[
            types.Prompt(
                name=prompt.name,
                title=prompt.title,
                description=prompt.description,
                arguments=[
                    types.PromptArgument(
                        name=argument.name,
                        description=argument.description + more.get(argument.name, ""),
                        required=bool(argument.missing),
                    )
                    for argument in prompt.arguments
                ],
            )
            for prompt in all_prompts()
        ]
    )


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
