"""The tools that a role may name, in the order in which a role that does not choose gets them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

from ava_roles.tool import Tool, ToolSpec
from ava_roles.tools.edits import EditFile, WriteFile
from ava_roles.tools.files import FindFiles, ReadFile, SearchAndRead, SearchCodebase
from ava_roles.tools.run import RUN_SPECS, Recall, SaveArtifact
from ava_roles.tools.shell import PythonExec, RunBash
from ava_roles.tools.web import HttpGet, ReadWebpages, WebSearch


def builtin_tools() -> Mapping[str, Tool]:
    """Return tools that need nothing of the server, once per process: runs share fetched robots.txt rules."""
    tools: tuple[Tool, ...] = (
        WebSearch(),
        ReadWebpages(),
        ReadFile(),
        FindFiles(),
        SearchCodebase(),
        SearchAndRead(),
        HttpGet(),
        EditFile(),
        WriteFile(),
        RunBash(),
        PythonExec(),
        SaveArtifact(),
        Recall(),
    )
    return {tool.spec.name: tool for tool in tools}


def specs_of(names: Iterable[str], tools: Mapping[str, Tool]) -> list[ToolSpec]:
    """Return the specs of tools by name: of those given, else of those in the registry; unknown names are left out."""
    known = {**tool_specs(), **{name: tool.spec for name, tool in tools.items()}}
    return [known[name] for name in names if name in known]


@cache
def tool_specs() -> Mapping[str, ToolSpec]:
    """Return the spec of every tool that a role may name, available here or not; MCP servers' tools are not known."""
    return {spec.name: spec for spec in (*(tool.spec for tool in builtin_tools().values()), *RUN_SPECS)}
