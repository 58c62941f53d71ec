"""Tools that nobody has heard of, and what the screens before an approval say that they reach."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from ava_roles.catalog import Catalog, Folder, RoleFile, UntrustedFile
from ava_roles.role import Role, parse_role
from ava_roles.tool import Tool, ToolArgs, ToolContext, ToolOutput, ToolSpec
from ava_roles.tools import registry
from ava_roles.tools.registry import tool_specs
from ava_server.approval.requests import SpawnArgs
from ava_server.approval.resolve import resolve_run_config
from ava_server.approval.resolve_context import ResolveContext
from ava_server.approval.shown import proposal_message
from ava_server.approval.summary import DayLeft
from ava_server.cli.role_screens import trust_lines
from ava_server.run_config.parts import EarlierRun

NUMBERS = count()
SAYS = {
    "files": r"can read (files of the workspace|/\S+)",
    "edits": r"change (files|src) on a new branch of it",
    "network": r"(reach|read) the web",
    "commands": r"run (commands|Python)",
    "memory": r"the notes in memory",
    "results": r"the results? of (\d )?earlier subagents?",
    "changes": r"change things with paint",
}
"""How both screens name each thing that a tool can reach."""


@st.composite
def invented_specs(draw: st.DrawFn) -> ToolSpec:
    """Draw a tool that nobody has heard of, with any flags that go together."""
    flags = draw(st.sets(st.sampled_from([*SAYS.keys() - {"changes"}, "search", "artifacts", "writes"])))
    flags |= {"network"} if "search" in flags else set()
    flags |= {"files", "writes"} if "edits" in flags else set()
    flags |= {"writes"} if "artifacts" in flags else set()
    changes = bool(flags & {"writes", "commands"})
    given: dict[str, Any] = dict.fromkeys(flags, True)
    return ToolSpec("paint", "Paints.", ToolArgs, read_only=not changes and draw(st.booleans()), **given)


@dataclass(frozen=True)
class InventedTool:
    """A tool that is added by the recipe: a spec, and its place in the registry."""

    spec: ToolSpec

    def activity(self, args: ToolArgs) -> str:
        return "Painting"

    async def __call__(self, args: ToolArgs, at: ToolContext) -> ToolOutput:
        return ToolOutput("painted")


@dataclass(frozen=True)
class UnusedSandbox:
    """A sandbox that runs nothing."""

    kind: str = "bubblewrap"
    mounts: bool = True


def trust_screen(role: Role) -> str:
    """Return what a person is shown before they trust a role file, on one line."""
    file = RoleFile(Folder(Path("/srv"), "roles", Path("/srv")), "role.md", role.source, role.text.encode())
    return " ".join(" ".join(trust_lines(UntrustedFile(role.name, file, False, role), None, {})).split())


def reach_screens(names: list[str], tools: Mapping[str, Tool], around: ResolveContext) -> tuple[str, str]:
    """Return what the role trust screen and the proposal say of a role with these tools."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "builtin_tools", lambda: tools)
        tool_specs.cache_clear()
        try:
            specs = [tool_specs()[name] for name in names]
            text = f"---\ndescription: Number {next(NUMBERS)}.\ntools: [{', '.join(names)}]\n"
            text += f"disallowedTools: [{', '.join(tool_specs().keys() - set(names))}]\n---\nWork.\n"
            role = parse_role(text, "roles/painter.md", "painter")
            assert set(role.tools) == set(names)
            edits = any(spec.edits for spec in specs)
            args = SpawnArgs(
                role="painter",
                task="Paint it.",
                workspace=str(around.cwd),
                context="The wall." if edits else None,
                namespace=["src"] if edits else None,
                verify="true" if edits else None,
            )
            earlier: tuple[EarlierRun, ...] = ()
            if any(spec.results for spec in specs):
                earlier = (EarlierRun(id="S-000001", role="researcher", ending="success"),)
                args = args.model_copy(update={"context_from": ["S-000001"]})
            config, brief = resolve_run_config(
                args, replace(around, catalog=Catalog({"painter": role}), tools=tools), earlier
            )
            assert set(config.tools) == {*names} - {"read_skill"}  # the role lists no skill
            message = proposal_message(config, brief, DayLeft(10**9, 10**9, "your", "")).splitlines()[1]
            assert message.startswith(f"It {config.reach}")
            return f"can {trust_screen(role).partition(' it can ')[2]}", config.reach
        finally:
            tool_specs.cache_clear()


def things_named(sentence: str) -> set[str]:
    """Return what a sentence says that tools can reach."""
    return {what for what, pattern in SAYS.items() if re.search(pattern, sentence)}


def things_reached(specs: list[ToolSpec]) -> set[str]:
    """Return what the specs say that tools can reach."""
    found = {what for what in SAYS for spec in specs if getattr(spec, what)}
    # The command that checks changed files runs, and commands see the files.
    found |= {"commands"} if "edits" in found else set()
    return found | ({"files"} if "commands" in found else set())
