"""The tools that are built in, by name."""

from __future__ import annotations

from collections.abc import Mapping

from ava_roles.tool import Tool
from ava_roles.tools.artifacts import SaveArtifact
from ava_roles.tools.edits import EditFile, WriteFile
from ava_roles.tools.files import ReadFile
from ava_roles.tools.memory import Recall
from ava_roles.tools.search import SearchAndRead, SearchCodebase
from ava_roles.tools.shell import PythonExec, RunBash
from ava_roles.tools.web import HttpGet, ReadWebpages
from ava_roles.tools.web_search import WebSearch


def builtin_tools() -> Mapping[str, Tool]:
    """Return the built-in tools; make them once for all runs, so that a site's robots.txt is asked once."""
    tools: tuple[Tool, ...] = (
        ReadFile(),
        SearchCodebase(),
        SearchAndRead(),
        WebSearch(),
        ReadWebpages(),
        HttpGet(),
        EditFile(),
        WriteFile(),
        RunBash(),
        PythonExec(),
        SaveArtifact(),
        Recall(),
    )
    return {tool.spec.name: tool for tool in tools}
