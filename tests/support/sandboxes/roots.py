"""The ways in which files beneath a folder are reached: by the kernel, step by step, and as any system can.

Also two names that are exchanged all the time, by which nothing may be led astray.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from ava_roles.sandbox.path_access import DescriptorPaths, PlainPaths
from ava_roles.sandbox.paths import Root


def kernel(path: Path) -> Root:
    """Return a root in which the kernel itself stays beneath the folder."""
    return Root(path, DescriptorPaths(path))


def stepwise_root(path: Path) -> Root:
    """Return a root that is walked name by name, through no link."""
    return Root(path, DescriptorPaths(path, kernel=False))


def plain(path: Path) -> Root:
    """Return a root that uses nothing that only Linux has."""
    return Root(path, PlainPaths(path))


WAYS = [kernel, stepwise_root, plain]


@contextmanager
def swap_names(one: Path, other: Path) -> Generator[None]:
    """Exchange two names as fast as the kernel can."""
    libc = ctypes.CDLL(None, use_errno=True)
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            libc.renameat2(-100, os.fsencode(one), -100, os.fsencode(other), 2)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
