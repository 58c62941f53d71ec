"""The ways in which files beneath a folder are reached: by the kernel, step by step, and as any system can."""

from __future__ import annotations

from pathlib import Path

from ava_roles.sandbox.path_access import DescriptorPaths, PlainPaths
from ava_roles.sandbox.paths import Root


def kernel(path: Path) -> Root:
    """Return a root in which the kernel itself stays beneath the folder."""
    return Root(path, DescriptorPaths(path))


def stepwise(path: Path) -> Root:
    """Return a root that is walked name by name, through no link."""
    return Root(path, DescriptorPaths(path, kernel=False))


def plain(path: Path) -> Root:
    """Return a root that uses nothing that only Linux has."""
    return Root(path, PlainPaths(path))


WAYS = [kernel, stepwise, plain]
