"""Which version of a toolchain a project asks for, or its user has chosen, as their files say."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from ava_roles.sandbox.small_files import read_small

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
