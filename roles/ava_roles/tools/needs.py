"""What a tool needs of its place, or a sentence that says what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from ava_roles.errors import ToolFailed

if TYPE_CHECKING:
    from ava_roles.memory import Memory
    from ava_roles.net.fetch import Fetcher
    from ava_roles.sandbox.paths import Root
    from ava_roles.sandbox.sandbox import Sandbox
    from ava_roles.sandbox.workbench import BenchMaker
    from ava_roles.tools.base import Place
    from ava_roles.tools.searches import Search
    from ava_roles.worktree.edits import Edits

_Thing = TypeVar("_Thing")


def need_files(at: Place) -> Root:
    """Return the workspace.

    Raises:
        ToolFailed: The run has none.
    """
    return _there(at.files, "this run has no workspace, so no files can be read; work with what the task contains")


def need_fetch(at: Place) -> Fetcher:
    """Return the fetcher.

    Raises:
        ToolFailed: The run may not reach the network.
    """
    return _there(at.fetch, "this run may not reach the network; work with what the task contains")


def need_search(at: Place) -> Search:
    """Return the web search.

    Raises:
        ToolFailed: The run has none.
    """
    return _there(at.search, "this run has no web search; read pages that you know with read_webpages")


def need_artifacts(at: Place) -> Root:
    """Return the folder for files to hand over.

    Raises:
        ToolFailed: The run has none.
    """
    return _there(at.artifacts, "this run has no folder for artifacts; put the content into the result instead")


def need_memory(at: Place) -> Memory:
    """Return the notes that may be recalled.

    Raises:
        ToolFailed: The run has none.
    """
    return _there(at.memory, "this run has no memory to recall; work with what the task contains")


def need_edits(at: Place) -> Edits:
    """Return the files that may be changed.

    Raises:
        ToolFailed: The run has none.
    """
    return _there(at.edits, "this run has no worktree, so no file can be changed; say in the result what should be")


def need_sandbox(at: Place) -> tuple[Sandbox, BenchMaker]:
    """Return what runs commands, and where they work.

    Raises:
        ToolFailed: The run may run none.
    """
    if at.sandbox is None or at.bench is None:
        raise ToolFailed("this run may not run commands; go on by reading")
    return at.sandbox, at.bench


def _there(thing: _Thing | None, missing: str) -> _Thing:
    if thing is None:
        raise ToolFailed(missing)
    return thing
