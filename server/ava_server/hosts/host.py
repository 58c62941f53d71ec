"""The seven hosts: where each keeps its configuration, and what Ava's entry looks like there.

Sources, and the versions in which each was seen, stand in docs/hosts.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ava_server.hosts.formats import Format


@dataclass(frozen=True)
class Place:
    """Where somebody works: what decides where a host's files are.

    Attributes:
        system: `sys.platform`.
        home: The home folder.
        env: The environment.
    """

    system: str
    home: Path
    env: Mapping[str, str]

    @property
    def config(self) -> Path:
        """Where programs keep their configuration: %APPDATA%, Application Support, or ~/.config."""
        if self.system == "win32":
            return self.folder("APPDATA", self.home / "AppData" / "Roaming")
        if self.system == "darwin":
            return self.home / "Library" / "Application Support"
        return self.xdg_config

    @property
    def xdg_config(self) -> Path:
        """$XDG_CONFIG_HOME, which some programs use on every system."""
        return self.folder("XDG_CONFIG_HOME", self.home / ".config")

    def folder(self, variable: str, default: Path) -> Path:
        """Return the folder that a variable names, else the default."""
        given = self.env.get(variable, "").strip()
        return Path(given) if given else default


@dataclass(frozen=True)
class Launch:
    """How a host starts the server: an absolute path, arguments, and variables that are no secrets."""

    command: str
    args: tuple[str, ...] = ("serve",)
    env: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def shell(self) -> str:
        """What a person types in a terminal to run any command of this installation."""
        words = (self.command, *self.args[:-1])
        return " ".join(f'"{word}"' if " " in word else word for word in words)


@dataclass(frozen=True)
class Piece:
    """Something that Ava puts into a configuration.

    Attributes:
        path: Where: the names of nested tables.
        value: What.
        listed: It is an element of the list at `path`, known by its `id`.
    """

    path: tuple[str, ...]
    value: Any
    listed: bool = False


@dataclass(frozen=True)
class Host:
    """A host.

    Attributes:
        name: As `ava init` takes it.
        title: As people call it.
        clients: How the names begin by which it introduces itself as an MCP client.
        format: Of its configuration.
        files: Where its configuration can be: the first one that is there counts, else the first.
        pieces: What Ava puts into it, under a name; the server's entry comes first.
        next: What a person does then.
        key: Another way to a provider's key than `ava key set`, with `{variable}` for the usual name of it.
        env: What the entry calls the variables of the server.
        asks: What makes it ask before each `confirm_spawn`, with `{name}` for the server's: where it stands, and what
            stands there. None where that is not in its configuration.
    """

    name: str
    title: str
    clients: tuple[str, ...]
    format: Format
    files: Callable[[Place], Sequence[Path]]
    pieces: Callable[[str, Launch], tuple[Piece, ...]]
    next: str
    key: str
    env: str = "env"
    asks: tuple[tuple[str, ...], str] | None = None

    def file(self, place: Place) -> Path:
        """Return the file of its configuration, which need not exist."""
        files = self.files(place)
        return next((file for file in files if file.exists() or file.is_symlink()), files[0])
