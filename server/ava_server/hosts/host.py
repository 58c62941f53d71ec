"""What a host is: where it keeps its configuration, and what Ava's entry looks like there."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
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
        """Return the folder that a variable names, else the default; a relative one means a different folder to all."""
        given = self.env.get(variable, "").strip()
        return Path(given) if PurePath(given).is_absolute() else default


@dataclass(frozen=True)
class Launch:
    """How a host starts the server: an absolute path, arguments, and variables that are no secrets."""

    command: str
    args: tuple[str, ...] = ("serve",)
    env: Mapping[str, str] = field(default_factory=dict[str, str])

    def shell(self, *words: str) -> str:
        """Return what a person types in a terminal to run another command of this installation."""
        command = (self.command, *self.args[:-1], *words)
        if sys.platform != "win32":
            return shlex.join(command)
        return " ".join(f'"{word}"' if " " in word else word for word in command)


@dataclass(frozen=True)
class Element:
    """An element of a list in a host's configuration, known by its `id`."""

    path: tuple[str, ...]
    value: Mapping[str, Any]


@dataclass(frozen=True)
class Host:
    """A host.

    Attributes:
        name: As `ava init` takes it.
        title: As people call it.
        clients: How the names begin by which it introduces itself as an MCP client.
        format: Of its configuration.
        files: Where its configuration can be: the first one that is there counts, else the first.
        servers: The table of the servers in it.
        entry: The server's entry in that table.
        next: What a person does once it is there.
        key: Another way to a provider's key than `ava key set`, with `{variable}` for the usual name of it.
        env: What the entry calls the variables of the server.
        element: What the entry refers to elsewhere in the configuration.
        asks: What makes it ask before each `confirm_spawn`, with `{name}` for the server's: where it stands, and what
            stands there. None where that is not in its configuration.
    """

    name: str
    title: str
    clients: tuple[str, ...]
    format: Format
    files: Callable[[Place], Sequence[Path]]
    servers: str
    entry: Callable[[Launch], dict[str, Any]]
    next: str
    key: str
    env: str = "env"
    element: Element | None = None
    asks: tuple[tuple[str, ...], str] | None = None

    def file(self, place: Place) -> Path:
        """Return the file of its configuration, which need not exist."""
        files = self.files(place)
        return next((file for file in files if file.exists() or file.is_symlink()), files[0])

    @property
    def element_value(self) -> dict[str, Any]:
        """What the entry refers to elsewhere; nothing where it does not."""
        return dict(self.element.value) if self.element is not None else {}

    def asking(self, name: str) -> tuple[tuple[str, ...], str] | None:
        """Return what makes it ask before each `confirm_spawn` of the server of that name."""
        if self.asks is None:
            return None
        path, value = self.asks
        return tuple(step.format(name=name) for step in path), value
