"""The tools that list, search and read files, as tests of them call them."""

from __future__ import annotations

import anyio

from ava_roles.tool import ToolContext, ToolOutput
from ava_roles.tools.files import FindFiles, FindFilesArgs, SearchAndRead, SearchAndReadArgs, SearchArgs, SearchCodebase


async def search_lines(at: ToolContext, query: str, **more: object) -> ToolOutput:
    """Search the workspace for lines with an expression or a text."""
    with anyio.fail_after(20):
        return await SearchCodebase()(SearchArgs.model_validate({"query": query, **more}), at)


async def find_files(at: ToolContext, pattern: str, **more: object) -> ToolOutput:
    """List the files of the workspace that match a pattern."""
    with anyio.fail_after(20):
        return await FindFiles()(FindFilesArgs.model_validate({"pattern": pattern, **more}), at)


async def ask_files(at: ToolContext, query: str, **more: object) -> ToolOutput:
    """Ask the workspace a question, answered with passages."""
    with anyio.fail_after(60):
        return await SearchAndRead()(SearchAndReadArgs.model_validate({"query": query, **more}), at)
