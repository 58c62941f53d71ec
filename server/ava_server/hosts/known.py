"""The hosts that Ava knows.

For each: where its configuration is, what an entry looks like, and which variables it passes on to a server, as seen in
the versions that docs/hosts.md names.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any

from ava_server.config.keys import KEY_VARIABLES, WELL_KNOWN, address_variables
from ava_server.core.errors import BadInput
from ava_server.core.ids import suggestion
from ava_server.hosts.formats import ConfigFormat, Toml, Yaml
from ava_server.hosts.jsonc import Json

PROGRAM_FOLDERS = (
    "~/.local/bin", "~/.claude/local", "~/.opencode/bin", "~/.npm-global/bin", "~/.bun/bin", "/usr/local/bin",
    "/opt/homebrew/bin",
)  # fmt: skip
"""Where installers of hosts put their programs; not each PATH has them: an alias or a profile of the shell may."""


@dataclass(frozen=True)
class UserPlace:
    """The user's environment, which decides where a host's files are."""

    system: str  # `sys.platform`
    home: Path
    env: Mapping[str, str]

    @property
    def config(self) -> Path:
        """The folder for programs' configuration: %APPDATA%, Application Support, or ~/.config."""
        if self.system == "win32":
            return self.folder("APPDATA", self.home / "AppData" / "Roaming")
        if self.system == "darwin":
            return self.home / "Library" / "Application Support"
        return self.xdg_config

    @property
    def xdg_config(self) -> Path:
        return self.folder("XDG_CONFIG_HOME", self.home / ".config")

    def folder(self, variable: str, default: Path) -> Path:
        """Relative folders in the variable are ignored."""
        path = self.env.get(variable, "").strip()
        if not PurePath(path).is_absolute():
            return default
        return Path(path)


@dataclass(frozen=True)
class Launch:
    """How a host starts the server: an absolute path, arguments, and variables without secrets."""

    command: str
    args: tuple[str, ...] = ("serve",)
    env: Mapping[str, str] = field(default_factory=dict[str, str])

    def shell(self, *words: str) -> str:
        command = (self.command, *self.args[:-1], *words)
        if sys.platform != "win32":
            return shlex.join(command)
        return " ".join(f'"{word}"' if " " in word else word for word in command)

    def typed(self, *words: str) -> str:
        """Return what a person types in this terminal: without the path of a program that is found by its name."""
        program = Path(self.command)
        path = shutil.which(program.stem)
        if len(self.args) > 1 or path is None or Path(path).resolve() != program.resolve():
            return self.shell(*words)
        return shlex.join((program.stem, *words))


@dataclass(frozen=True)
class Element:
    """An element of a list in a host's configuration, identified by its `id`."""

    path: tuple[str, ...]
    value: Mapping[str, Any]


@dataclass(frozen=True)
class Rule:
    """A rule in a host's file."""

    place: tuple[str, ...]  # where it stands
    value: Any
    listed: bool = True  # it is an element of a list at that place


@dataclass(frozen=True)
class ToolRules:
    """Where a host keeps which tools it calls without asking."""

    format: ConfigFormat  # the format of that file
    file: Callable[[UserPlace, Path], Path]  # returns it, from the user's environment and the host's configuration
    of: Callable[[str, Sequence[str]], list[Rule]]  # makes the rules for a server's name and tools
    only_to_list: bool = False  # only an existing list is added to, because a new one would replace the one in the app
    needed: bool = True  # without rules, it asks before each of these tools


@dataclass(frozen=True)
class RemoteForm:
    """How a host connects to another machine's server without its token in a file."""

    entry: Callable[[str], dict[str, Any]]  # makes the server's entry from the URL
    token: str  # how the host gets the token; a sentence for the person
    element: Element | None = None  # what the entry refers to elsewhere in the configuration


@dataclass(frozen=True)
class Host:
    """A host."""

    name: str  # the argument of `ava init`, and the id of its row in `clients.toml`
    title: str  # its name for people
    format: ConfigFormat
    # Where its configuration can be: the first that exists, else the first.
    files: Callable[[UserPlace], Sequence[Path]]
    servers: str  # the table of servers in it
    entry: Callable[[Launch], dict[str, Any]]  # makes the server's entry in that table
    next: str  # what a person does after the change
    key: str  # an alternative to `ava key set`, with `{variable}` for the key's usual variable
    env: str = "env"  # the entry's field for the variables of the server
    in_list: bool = False  # it is a list, whose elements have their server's name
    element: Element | None = None  # what the entry refers to elsewhere in the configuration
    # What makes it ask before each `confirm_spawn`: a place, with `{name}` for the server's name, and a value. None if
    # that is not part of its configuration.
    asks: tuple[tuple[str, ...], str] | None = None
    # Makes the entry for an HTTP server that the host starts before it connects, from the server's URL and the command
    # that starts it and prints its headers; None if the host runs no such command.
    http_entry: Callable[[str, str], dict[str, Any]] | None = None
    tool_rules: ToolRules | None = None  # where it keeps rules for single tools; None if no file has any
    quiet: str = ""  # what its person may do so that it asks less often, besides those rules
    # How it connects to another machine's server; None if its configuration takes no such server.
    remote: RemoteForm | None = None
    program: str = ""  # what starts it in a terminal; empty where nothing does

    @property
    def is_installed(self) -> bool:
        """Whether its program is found by its name, or where installers put programs; else it may still be there."""
        if not self.program:
            return False
        folders = [os.environ.get("PATH", os.defpath), *map(os.path.expanduser, PROGRAM_FOLDERS)]
        return shutil.which(self.program, path=os.pathsep.join(folders)) is not None

    def file(self, place: UserPlace) -> Path:
        files = self.files(place)
        return next((file for file in files if file.exists() or file.is_symlink()), files[0])

    def connecting_to(self, url: str) -> Host:
        """Return this host as it connects to another machine's server. Raises BadInput if it takes no such server."""
        if self.remote is None:
            raise BadInput(
                f"--url: {self.title} takes no server on another machine from its configuration file. Connect another"
                " host to it, or use this machine's own Ava there: ava init " + self.name
            )
        remote = self.remote

        def entry(_launch: Launch) -> dict[str, Any]:
            return remote.entry(url)

        return replace(self, entry=entry, element=remote.element)

    @property
    def element_value(self) -> dict[str, Any]:
        """What the entry refers to elsewhere; empty if it refers to nothing."""
        return dict(self.element.value) if self.element is not None else {}

    def asking(self, name: str) -> tuple[tuple[str, ...], str] | None:
        """Return what makes it ask before each `confirm_spawn` of the server with this name."""
        if self.asks is None:
            return None
        path, value = self.asks
        return tuple(step.format(name=name) for step in path), value


PASSED_ON = (
    *KEY_VARIABLES,
    *(variable for provider in WELL_KNOWN for variable in address_variables(provider)),
    "AVA_MODEL_API_KEY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "SSL_CERT_FILE",
)
"""Variables for the allow-list of hosts that have one: names, never values. An address tells where its key may go."""
INPUT = "ava-openrouter-key"
TOKEN = "AVA_TOKEN"  # noqa: S105 - a variable's name
TOKEN_INPUT = "ava-token"  # noqa: S105 - an input's name
_SET_TOKEN = f"Set {TOKEN} to the token in the environment that starts {{title}}, which reads it from there."
_IN_AVA = (
    "It may start tools without asking you, so you approve in Ava, with a link or `ava approve`. Its own rules may"
    " allow Ava's tools; never confirm_spawn where you have set approval to ask."
)


def _claude_desktop(place: UserPlace) -> Sequence[Path]:
    folders = [place.folder("CLAUDE_USER_DATA_DIR", place.config / "Claude")]
    if place.system == "win32":
        local = place.folder("LOCALAPPDATA", place.home / "AppData" / "Local")
        # Packaged versions (all since February 2026) have their own AppData and read no other.
        folders = sorted(local.glob("Packages/Claude_*/LocalCache/Roaming/Claude")) or folders
    return [folder / "claude_desktop_config.json" for folder in folders]


def _entry(launch: Launch, **more: Any) -> dict[str, Any]:
    entry: dict[str, Any] = {"command": launch.command, "args": list(launch.args), **more}
    return {**entry, "env": dict(launch.env)} if launch.env else entry


def _stdio_entry(launch: Launch) -> dict[str, Any]:
    return {"type": "stdio", **_entry(launch)}


def _vscode_entry(launch: Launch) -> dict[str, Any]:
    return {**_stdio_entry(launch), "env": {"OPENROUTER_API_KEY": f"${{input:{INPUT}}}", **launch.env}}


def _opencode_entry(launch: Launch) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "local", "command": [launch.command, *launch.args], "enabled": True}
    return {**entry, "environment": dict(launch.env)} if launch.env else entry


def _cline_data(place: UserPlace) -> Path:
    return place.folder("CLINE_DATA_DIR", place.folder("CLINE_DIR", place.home / ".cline") / "data")


def _goose_entry(launch: Launch) -> dict[str, Any]:
    entry = {"name": "Ava", "type": "stdio", "enabled": True, "cmd": launch.command, "args": list(launch.args)}
    return {**entry, "envs": dict(launch.env), "timeout": 300}


def _claude_settings(place: UserPlace, config: Path) -> Path:
    """Return the person's own file for the project of a `.mcp.json`, else the user's."""
    if config.name == ".mcp.json":
        return config.parent / ".claude" / "settings.local.json"
    return place.folder("CLAUDE_CONFIG_DIR", place.home / ".claude") / "settings.json"


def _claude_rules(name: str, tools: Sequence[str]) -> list[Rule]:
    return [Rule(("permissions", "allow"), f"mcp__{name}__{tool}") for tool in tools]


def _codex_rules(name: str, tools: Sequence[str]) -> list[Rule]:
    places = [("mcp_servers", name, "tools", tool, "approval_mode") for tool in tools]
    return [Rule(place, "approve", listed=False) for place in places]


def _gemini_rules(name: str, tools: Sequence[str]) -> list[Rule]:
    return [Rule(("rule",), {"mcpName": name, "toolName": list(tools), "decision": "allow", "priority": 200})]


def _gemini_home(place: UserPlace) -> Path:
    return place.folder("GEMINI_CLI_HOME", place.home) / ".gemini"


def _with_headers(reference: str, address: str = "url", **more: Any) -> Callable[[str], dict[str, Any]]:
    """Return what makes an entry whose bearer token is a reference that the host resolves."""
    headers = {"Authorization": f"Bearer {reference}"}
    return lambda url: {**more, address: url, "headers": dict(headers)}


HOSTS: Mapping[str, Host] = {
    host.name: host
    for host in (
        Host(
            name="claude-desktop",
            title="Claude Desktop",
            format=Json(),
            files=_claude_desktop,
            servers="mcpServers",
            entry=_entry,
            next="Quit Claude Desktop (closing its window is not enough) and start it again.",
            key="Claude Desktop passes none of your variables on to its servers.",
            quiet=(
                "Claude Desktop asks before each tool. Choose to always allow spawn_subagent, check_subagent and"
                " read_ava_logs, and never confirm_spawn."
            ),
        ),
        Host(
            name="claude-code",
            title="Claude Code",
            program="claude",
            format=Json(),
            files=lambda place: [place.folder("CLAUDE_CONFIG_DIR", place.home) / ".claude.json"],
            servers="mcpServers",
            entry=_stdio_entry,
            next=(
                "Restart Claude Code; /mcp shows the server. A Claude Code that was running may have overwritten the"
                " change: then quit all of them and run this again."
            ),
            http_entry=lambda url, command: {"type": "http", "url": url, "headersHelper": command},
            remote=RemoteForm(_with_headers(f"${{{TOKEN}}}", type="http"), _SET_TOKEN.format(title="Claude Code")),
            key="Or set {variable} before you start Claude Code, which passes all variables on.",
            tool_rules=ToolRules(Json(), _claude_settings, _claude_rules),
            quiet=(
                "With these rules, a start takes two questions: Claude Code's about confirm_spawn, and Ava's, with the"
                " whole proposal. Where the model proposes with ask, only Ava's comes. Ava's question always comes, so"
                ' you may answer the first with "don\'t ask again".'
            ),
        ),
        Host(
            name="codex",
            title="Codex",
            program="codex",
            format=Toml(),
            files=lambda place: [place.folder("CODEX_HOME", place.home / ".codex") / "config.toml"],
            servers="mcp_servers",
            entry=lambda launch: _entry(launch, required=True, env_vars=list(PASSED_ON)),
            next="Restart Codex; /mcp shows the server.",
            key=(
                "Or set {variable} before Codex and its background process start (`codex app-server daemon stop` ends"
                " that): they pass on the variables in the server's `env_vars`."
            ),
            tool_rules=ToolRules(Toml(), lambda _place, config: config, _codex_rules, needed=False),
            quiet=(
                "Codex asks about none of them, and leaves the question before a start to Ava, unless the approval_mode"
                ' of confirm_spawn is "prompt".'
            ),
            remote=RemoteForm(
                lambda url: {"url": url, "bearer_token_env_var": TOKEN},
                _SET_TOKEN.format(title="Codex") + " A background process of Codex keeps the value of its start.",
            ),
        ),
        Host(
            name="cursor",
            title="Cursor",
            program="cursor",
            format=Json(comments=True, trailing_commas=True),
            files=lambda place: [place.home / ".cursor" / "mcp.json"],
            servers="mcpServers",
            entry=_entry,
            next="Switch the server on under Settings → Tools & MCP.",
            key='Or pass a variable on: "{variable}": "${{env:{variable}}}" under `env` of the server.',
            tool_rules=ToolRules(
                Json(comments=True, trailing_commas=True),
                lambda _place, config: config.parent / "permissions.json",
                lambda name, tools: [Rule(("mcpAllowlist",), f"{name}:{tool}") for tool in tools],
                only_to_list=True,
            ),
            quiet=(
                "Cursor asks before each tool that is not in its allowlist. Add spawn_subagent, check_subagent and"
                " read_ava_logs there (Settings → Agents → Approvals & Execution), and never confirm_spawn."
            ),
            remote=RemoteForm(_with_headers(f"${{env:{TOKEN}}}"), _SET_TOKEN.format(title="Cursor")),
        ),
        Host(
            name="vscode",
            title="VS Code",
            program="code",
            format=Json(comments=True, trailing_commas=True),
            files=lambda place: [place.config / "Code" / "User" / "mcp.json"],
            servers="servers",
            entry=_vscode_entry,
            next="Run the command `MCP: List Servers`, choose the server and start it.",
            key="Or let VS Code ask for it: `ava init vscode` sets that up for OpenRouter's.",
            quiet=(
                "VS Code asks before each tool. With the command `Chat: Manage Tool Approval`, allow spawn_subagent,"
                " check_subagent and read_ava_logs, and never confirm_spawn."
            ),
            element=Element(
                ("inputs",),
                {
                    "type": "promptString",
                    "id": INPUT,
                    "description": "OpenRouter key for Ava; empty if you have stored one (ava key set openrouter)",
                    "password": True,
                },
            ),
            remote=RemoteForm(
                _with_headers(f"${{input:{TOKEN_INPUT}}}", type="http"),
                "VS Code asks for the token when it first starts the server, and keeps it in its own secret storage.",
                Element(
                    ("inputs",),
                    {
                        "type": "promptString",
                        "id": TOKEN_INPUT,
                        "description": "Token for Ava, as `ava token create` on the server showed it",
                        "password": True,
                    },
                ),
            ),
        ),
        Host(
            name="opencode",
            title="opencode",
            program="opencode",
            format=Json(comments=True, trailing_commas=True),
            files=lambda place: [
                place.xdg_config / "opencode" / name for name in ("opencode.jsonc", "opencode.json", "config.json")
            ],
            servers="mcp",
            entry=_opencode_entry,
            next="Restart opencode; `opencode mcp list` shows the server.",
            key="Or set {variable} before you start opencode, which passes all variables on.",
            env="environment",
            asks=(("permission", "{name}_confirm_spawn"), "ask"),
            tool_rules=ToolRules(
                Json(comments=True, trailing_commas=True),
                lambda _place, config: config,
                lambda name, tools: [Rule(("permission", f"{name}_{tool}"), "allow", listed=False) for tool in tools],
                needed=False,
            ),
            quiet="opencode asks only before confirm_spawn.",
            remote=RemoteForm(
                _with_headers(f"{{env:{TOKEN}}}", type="remote", enabled=True, oauth=False),
                _SET_TOKEN.format(title="opencode"),
            ),
        ),
        Host(
            name="gemini",
            title="Gemini CLI",
            program="gemini",
            format=Json(comments=True),
            files=lambda place: [_gemini_home(place) / "settings.json"],
            servers="mcpServers",
            entry=_entry,
            next="Restart Gemini CLI in a folder that it trusts; /mcp shows the server.",
            key="Gemini CLI passes on no variable whose name contains KEY.",
            tool_rules=ToolRules(
                Toml(), lambda place, _config: _gemini_home(place) / "policies" / "ava.toml", _gemini_rules
            ),
            remote=RemoteForm(
                _with_headers(f"${{{TOKEN}}}", "httpUrl"),
                _SET_TOKEN.format(title="Gemini CLI")
                + " When it changes this file itself, it may write the token in place of the variable.",
            ),
        ),
        Host(
            name="copilot",
            title="Copilot CLI",
            program="copilot",
            format=Json(comments=True),
            files=lambda place: [place.folder("COPILOT_HOME", place.home / ".copilot") / "mcp-config.json"],
            servers="mcpServers",
            entry=lambda launch: {"type": "local", **_entry(launch), "tools": ["*"]},
            next="Restart Copilot CLI; /mcp shows the server.",
            key="Or set {variable} before you start Copilot CLI, and name it under `env` of the server.",
            quiet=(
                "Copilot CLI asks before each tool, and then Ava asks. In each repository, choose not to be asked again"
                " for spawn_subagent, check_subagent and read_ava_logs, and never confirm_spawn; or start it with"
                " --allow-tool='ava(spawn_subagent)' and the same for the other two. Ava's question stays."
            ),
        ),
        Host(
            name="qwen-code",
            title="qwen-code",
            program="qwen",
            format=Json(comments=True),
            files=lambda place: [place.folder("QWEN_HOME", place.home / ".qwen") / "settings.json"],
            servers="mcpServers",
            entry=_entry,
            next="Restart qwen-code; /mcp shows the server.",
            key="Or set {variable} before you start qwen-code.",
            quiet=_IN_AVA,
        ),
        Host(
            name="cline",
            title="Cline CLI",
            program="cline",
            format=Json(),
            files=lambda place: [_cline_data(place) / "settings" / "cline_mcp_settings.json"],
            servers="mcpServers",
            entry=_entry,
            next="Restart Cline.",
            key="Or set {variable} before you start Cline.",
            quiet=_IN_AVA,
        ),
        Host(
            name="continue",
            title="Continue CLI",
            program="cn",
            format=Yaml(),
            files=lambda place: [place.folder("CONTINUE_GLOBAL_DIR", place.home / ".continue") / "config.yaml"],
            servers="mcpServers",
            in_list=True,
            entry=_entry,
            next="Restart Continue.",
            key="Or set {variable} before you start Continue, and name it under `env` of the server.",
            quiet=_IN_AVA,
        ),
        Host(
            name="goose",
            title="goose",
            program="goose",
            format=Yaml(),
            files=lambda place: [place.xdg_config / "goose" / "config.yaml"],
            servers="extensions",
            entry=_goose_entry,
            next="Restart goose.",
            key="Or set {variable} before you start goose, and list it under `env_keys` of the extension.",
            env="envs",
            quiet=_IN_AVA,
        ),
    )
}


def find_host(name: str) -> Host:
    """Raises BadInput if there is none of that name."""
    host = HOSTS.get(name.lower())
    if host is None:
        raise BadInput(
            f"There is no host {name!r}.{suggestion(name, HOSTS)} Known: {', '.join(HOSTS)}. For others see"
            " docs/hosts.md."
        )
    return host
