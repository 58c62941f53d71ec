"""The seven hosts that Ava knows.

Where each keeps its configuration, what its entries look like, and what it hands on to a server, as seen in the
versions that docs/hosts.md names.
"""

from __future__ import annotations

import difflib
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from ava_server.config.keys import WELL_KNOWN
from ava_server.core.errors import BadInput
from ava_server.hosts.formats import Format, Json, Toml


@dataclass(frozen=True)
class UserPlace:
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
    files: Callable[[UserPlace], Sequence[Path]]
    servers: str
    entry: Callable[[Launch], dict[str, Any]]
    next: str
    key: str
    env: str = "env"
    element: Element | None = None
    asks: tuple[tuple[str, ...], str] | None = None

    def file(self, place: UserPlace) -> Path:
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


PASSED_ON = (*WELL_KNOWN.values(), "AVA_MODEL_API_KEY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE")
"""Variables that a host with an allow-list is told to hand on: by name, never with a value."""
INPUT = "ava-openrouter-key"


def _claude_desktop(place: UserPlace) -> Sequence[Path]:
    folders = [place.folder("CLAUDE_USER_DATA_DIR", place.config / "Claude")]
    if place.system == "win32":
        local = place.folder("LOCALAPPDATA", place.home / "AppData" / "Local")
        # A packaged one, as all are since February 2026, has an AppData of its own and reads no other.
        folders = sorted(local.glob("Packages/Claude_*/LocalCache/Roaming/Claude")) or folders
    return [folder / "claude_desktop_config.json" for folder in folders]


def _claude_code(place: UserPlace) -> Sequence[Path]:
    return (place.folder("CLAUDE_CONFIG_DIR", place.home) / ".claude.json",)


def _codex(place: UserPlace) -> Sequence[Path]:
    return (place.folder("CODEX_HOME", place.home / ".codex") / "config.toml",)


def _cursor(place: UserPlace) -> Sequence[Path]:
    return (place.home / ".cursor" / "mcp.json",)


def _vscode(place: UserPlace) -> Sequence[Path]:
    return (place.config / "Code" / "User" / "mcp.json",)


def _opencode(place: UserPlace) -> Sequence[Path]:
    folder = place.xdg_config / "opencode"
    return tuple(folder / name for name in ("opencode.jsonc", "opencode.json", "config.json"))


def _gemini(place: UserPlace) -> Sequence[Path]:
    return (place.folder("GEMINI_CLI_HOME", place.home) / ".gemini" / "settings.json",)


def _entry(launch: Launch, **more: Any) -> dict[str, Any]:
    entry: dict[str, Any] = {"command": launch.command, "args": list(launch.args), **more}
    return {**entry, "env": dict(launch.env)} if launch.env else entry


def _typed(launch: Launch) -> dict[str, Any]:
    return {"type": "stdio", **_entry(launch)}


def _for_codex(launch: Launch) -> dict[str, Any]:
    return _entry(launch, required=True, env_vars=list(PASSED_ON))


def _for_vscode(launch: Launch) -> dict[str, Any]:
    return {**_typed(launch), "env": {"OPENROUTER_API_KEY": f"${{input:{INPUT}}}", **launch.env}}


def _for_opencode(launch: Launch) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "local", "command": [launch.command, *launch.args], "enabled": True}
    return {**entry, "environment": dict(launch.env)} if launch.env else entry


HOSTS: Mapping[str, Host] = {
    host.name: host
    for host in (
        Host(
            name="claude-desktop",
            title="Claude Desktop",
            clients=("claude-ai", "local-agent-mode-"),
            format=Json(),
            files=_claude_desktop,
            servers="mcpServers",
            entry=_entry,
            next="Quit Claude Desktop (closing its window is not enough) and start it again.",
            key="Claude Desktop hands none of your variables on to its servers.",
        ),
        Host(
            name="claude-code",
            title="Claude Code",
            clients=("claude-code",),
            format=Json(),
            files=_claude_code,
            servers="mcpServers",
            entry=_typed,
            next=(
                "Start Claude Code anew; /mcp shows the server. One that was running meanwhile may have written its"
                " own state over this: then run this again with all of them ended."
            ),
            key="Or set {variable} before you start Claude Code, which hands all variables on.",
        ),
        Host(
            name="codex",
            title="Codex",
            clients=("codex",),
            format=Toml(),
            files=_codex,
            servers="mcp_servers",
            entry=_for_codex,
            next="Start Codex anew; /mcp shows the server.",
            key=(
                "Or set {variable} before Codex and its background process start (`codex app-server daemon stop` ends"
                " that): they hand on what `env_vars` of the server names."
            ),
            asks=(("mcp_servers", "{name}", "tools", "confirm_spawn", "approval_mode"), "prompt"),
        ),
        Host(
            name="cursor",
            title="Cursor",
            clients=("cursor",),
            format=Json(comments=True, trailing_commas=True),
            files=_cursor,
            servers="mcpServers",
            entry=_entry,
            next="Switch the server on under Settings → Tools & MCP.",
            key='Or hand a variable on: "{variable}": "${{env:{variable}}}" under `env` of the server.',
        ),
        Host(
            name="vscode",
            title="VS Code",
            clients=("Visual Studio Code",),
            format=Json(comments=True, trailing_commas=True),
            files=_vscode,
            servers="servers",
            entry=_for_vscode,
            next="Run the command `MCP: List Servers`, choose the server and start it.",
            key="Or let VS Code ask for it: `ava init vscode` makes it do so for OpenRouter's.",
            element=Element(
                ("inputs",),
                {
                    "type": "promptString",
                    "id": INPUT,
                    "description": "OpenRouter key for Ava; empty if you have stored one (ava key set openrouter)",
                    "password": True,
                },
            ),
        ),
        Host(
            name="opencode",
            title="opencode",
            clients=("opencode",),
            format=Json(comments=True, trailing_commas=True),
            files=_opencode,
            servers="mcp",
            entry=_for_opencode,
            next="Start opencode anew; `opencode mcp list` shows the server.",
            key="Or set {variable} before you start opencode, which hands all variables on.",
            env="environment",
            asks=(("permission", "{name}_confirm_spawn"), "ask"),
        ),
        Host(
            name="gemini",
            title="Gemini CLI",
            clients=("gemini-cli",),
            format=Json(comments=True),
            files=_gemini,
            servers="mcpServers",
            entry=_entry,
            next="Start Gemini CLI anew in a folder that it trusts; /mcp shows the server.",
            key="Gemini CLI hands on no variable whose name has KEY in it.",
        ),
    )
}
"""The hosts by name."""


def find_host(name: str) -> Host:
    """Return a host by the name that `ava init` takes.

    Raises:
        BadInput: There is none of that name.
    """
    host = HOSTS.get(name.lower())
    if host is None:
        near = difflib.get_close_matches(name.lower(), HOSTS, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise BadInput(f"There is no host {name!r}.{hint} Known: {', '.join(HOSTS)}. docs/hosts.md says how others do.")
    return host


def host_of(client: str | None) -> Host | None:
    """Return the host that introduces itself so as an MCP client; None where none is known to."""
    name = (client or "").lower()
    return next((host for host in HOSTS.values() if name.startswith(tuple(map(str.lower, host.clients)))), None)
