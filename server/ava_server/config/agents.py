"""Other coding agents that can do a run: the table `agents.toml`, with what `[agents.NAME]` of config.toml changes."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from ava_server.core.errors import BadInput
from ava_server.core.ids import IN_PROCESS
from ava_server.models.providers import RemoteWire

if TYPE_CHECKING:
    from ava_server.config.settings import Settings

ACP = "acp:"


@dataclass(frozen=True)
class AgentSpec:
    """A coding agent; `agents.toml` explains the fields."""

    name: str
    title: str
    command: tuple[str, ...]
    wires: tuple[RemoteWire, ...]
    first_bytes: int
    first_tools: int = 0
    providers: str = ""
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    off: tuple[str, ...] = ()
    npm: str = ""
    models: tuple[str, ...] = ()

    @property
    def runner(self) -> str:
        return f"{ACP}{self.name}"

    @property
    def digest(self) -> str:
        """A digest of what it runs and may use, without what is only shown or estimated."""
        parts: list[object] = [self.name, self.command, self.wires, self.providers, sorted(self.variables.items())]
        parts += [sorted(self.files.items()), self.off]
        if self.models:  # the digests of agents without this newer field stay the same
            parts.append(self.models)
        line = json.dumps(parts, ensure_ascii=False)
        return hashlib.sha256(line.encode("utf-8", "replace")).hexdigest()


@cache
def _built_in() -> Mapping[str, AgentSpec]:
    table = tomllib.loads(files("ava_server.config").joinpath("agents.toml").read_text(encoding="utf-8"))
    return {each.name: each for each in TypeAdapter(list[AgentSpec]).validate_python(table["agent"])}


def agents_of(settings: Settings) -> Mapping[str, AgentSpec]:
    """Return the agents that are built in, and those of the settings."""
    agents = dict(_built_in())
    for name, changes in settings.agents.items():
        agent = agents.get(name) or AgentSpec(name, name, (name,), ("chat_completions",), _UNKNOWN_BYTES)
        agents[name] = replace(agent, **changes.model_dump(exclude_unset=True))
    return agents


_UNKNOWN_BYTES = 60_000
"""The size of an unknown agent's first request, for the estimate."""


def agent_of(runner: str, settings: Settings) -> AgentSpec | None:
    """Return None where Ava itself does the run. Raises BadInput if the agent is not known."""
    if runner == IN_PROCESS:
        return None
    agents = agents_of(settings)
    agent = agents.get(runner.removeprefix(ACP)) if runner.startswith(ACP) else None
    if agent is None:
        names = ", ".join(known.runner for known in agents.values())
        raise BadInput(
            f"runner: {runner[:80]!r} is not known; give {IN_PROCESS}, {names}, or add [agents.NAME] to config.toml"
        )
    return agent
