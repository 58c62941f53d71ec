"""Whether runs of this version can change files: whether there are worktrees to change them in."""

from __future__ import annotations

from collections.abc import Mapping

from ava_roles.tools.base import Tool

WORKSHOPS = False
"""Runs whose tools change files get a worktree."""


def without_edits(tools: Mapping[str, Tool]) -> dict[str, Tool]:
    """Return the tools that are there: those that change files of a worktree only where runs get one."""
    return {name: tool for name, tool in tools.items() if WORKSHOPS or not tool.spec.edits}
