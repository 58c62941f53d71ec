"""Where programs are looked for that run outside of a sandbox, or that say what is shown in one."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path


def read_small(path: Path, most: int) -> bytes:
    """Return the beginning of a regular file; a link is followed. Blocking, but never for somebody who would write.

    A link to a device could hold as much as there is memory, or be what the server itself reads from.

    Raises:
        OSError: It is no regular file, or cannot be read.
    """
    if not stat.S_ISREG(path.stat().st_mode):  # to open a device may do something by itself
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # it has become something else meanwhile
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        return file.read(most)


RUN_ID = "AVA_RUN_ID"
"""Under this variable `ava serve` and `ava run` refuse to start: a subagent starts no subagents."""
_NEEDED = ("SYSTEMROOT",)
"""Without it no program finds the system's own libraries on Windows; other systems have nothing of the kind."""


def child_environment(run_id: str, given: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the whole environment of a child process of a run.

    Args:
        run_id: The run's id; a child of a nameless one is marked all the same.
        given: What this child needs beyond that; nothing in it takes the mark away.
    """
    needed = {name: os.environ[name] for name in _NEEDED if name in os.environ}
    return {**needed, **(given or {}), RUN_ID: run_id or "unnamed"}


def path_apart_from(path: str, project: Path | None) -> str:
    """Return the folders of a PATH but for those that a project brings, and those that depend on where one stands.

    npx and direnv put a project's own folders first, and what lies there was written by whoever made the project.
    """
    kept: list[str] = []
    for folder in path.split(os.pathsep):
        if Path(folder).is_absolute():
            with suppress(OSError, RuntimeError):  # a loop of links
                if project is None or not Path(folder).resolve().is_relative_to(project.resolve()):
                    kept.append(folder)
    return os.pathsep.join(kept)


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,80}")


def first_word(file: Path) -> str:
    """Return the first word of a small file, if it can be a version's name."""
    with suppress(OSError, UnicodeDecodeError, IndexError):
        word = read_small(file, 200).decode().split()[0]
        return word if _NAME.fullmatch(word) else ""
    return ""


def version_of(program: Path) -> tuple[int, ...]:
    """Return the version that the folder of an installed program is called by, to be compared."""
    return tuple(map(int, re.findall(r"\d+", program.parent.parent.name)))


def channel_of(workspace: Path) -> str:
    """Return which toolchain a project asks for."""
    for name in ("rust-toolchain.toml", "rust-toolchain"):
        with suppress(OSError, UnicodeDecodeError):
            text = read_small(workspace / name, 10_000).decode()
            if found := re.search(r'channel\s*=\s*"([^"]+)"', text) or re.match(r"\s*(\S+)\s*$", text):
                return found[1] if _NAME.fullmatch(found[1]) else "none"
    return "none"


def default_toolchain(settings: Path) -> str:
    """Return which toolchain rustup's settings name."""
    with suppress(OSError, UnicodeDecodeError):
        found = re.search(r'default_toolchain\s*=\s*"([^"]+)"', read_small(settings, 100_000).decode())
        if found and _NAME.fullmatch(found[1]):
            return found[1]
    return "none"
