"""What tools can reach is told by their specs alone: the role trust screen and the proposal say the same of it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.approval.reach import (
    InventedTool,
    UnusedSandbox,
    invented_specs,
    reach_screens,
    things_named,
    things_reached,
    trust_screen,
)
from support.repositories.projects import checkout
from support.runtime import settings_of

from ava_roles.catalog import Catalog
from ava_roles.net.search_engines import Searxng
from ava_roles.role import parse_role
from ava_roles.tool import ToolArgs, ToolSpec
from ava_roles.tools.registry import builtin_tools, tool_specs
from ava_server.approval.resolve_context import ResolveContext
from ava_server.models.model_choice import ModelSettings

BUILT_IN = builtin_tools()


@pytest.mark.parametrize("name", [None, *tool_specs()])
def test_both_screens_name_what_each_tool_can_reach(name: str | None, around: ResolveContext) -> None:
    names = [name, "scratchpad"] if name else ["scratchpad"]
    trust, proposal = reach_screens(names, BUILT_IN, around)
    assert things_named(trust) == things_named(proposal) == things_reached([tool_specs()[name] for name in names])


@settings(max_examples=60)
@given(paint=invented_specs(), others=st.sets(st.sampled_from(sorted(tool_specs()))))
def test_both_screens_name_the_reach_of_any_tools_including_a_new_one(
    around: ResolveContext, paint: ToolSpec, others: set[str]
) -> None:
    tools = {**BUILT_IN, "paint": InventedTool(paint)}
    # A run needs something to work with.
    names = ["paint", *sorted(others | {"read_file"})]
    trust, proposal = reach_screens(names, tools, around)
    specs = [paint, *(tool_specs()[name] for name in names[1:])]
    assert things_named(trust) == things_named(proposal) == things_reached(specs)


@settings(max_examples=30)
@given(paint=invented_specs())
def test_both_screens_name_the_reach_of_a_single_new_tool(around: ResolveContext, paint: ToolSpec) -> None:
    trust, proposal = reach_screens(["paint"], {**BUILT_IN, "paint": InventedTool(paint)}, around)
    assert things_named(trust) == things_named(proposal) == things_reached([paint])
    if not things_reached([paint]):
        assert trust == proposal == "can reach neither files nor the web"


def test_the_trust_screen_names_mcp_servers_without_contacting_them() -> None:
    role = parse_role("---\ndescription: Asks.\ntools: [mcp__lab, mcp__notes__find]\n---\nAsk.\n", "a.md", "asker")
    assert 'it can use the MCP servers "lab" and "notes" (each proposal says what they can do)' in trust_screen(role)


@pytest.mark.parametrize(
    "flags",
    [
        {"search": True},
        {"edits": True, "files": True, "read_only": False},
        {"edits": True, "writes": True, "read_only": False},
        {"artifacts": True, "read_only": False},
        {"writes": True},
        {"commands": True},
    ],
)
def test_rejects_contradictory_tool_flags(flags: dict[str, bool]) -> None:
    with pytest.raises(ValueError, match=r"paint: .* implies "):
        ToolSpec("paint", "Paints.", ToolArgs, **flags)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def around(tmp_path_factory: pytest.TempPathFactory) -> ResolveContext:
    """Return a machine on which every tool is there."""
    tmp = tmp_path_factory.mktemp("reach")
    repository = checkout(tmp / "workspace", {"src/a.py": "x = 1\n"})
    return ResolveContext(
        settings=settings_of(tmp / "data", None, f'[workspace]\nroots = ["{repository}"]\n'),
        models=ModelSettings(base_url="http://127.0.0.1:9/v1", model="test"),
        catalog=Catalog({}),
        tools=BUILT_IN,
        search=Searxng("http://127.0.0.1:9"),
        client_roots=(),
        cwd=repository,
        home=tmp,
        sandbox=UnusedSandbox,  # type: ignore[arg-type]  # nothing is run
        notes=True,
    )
