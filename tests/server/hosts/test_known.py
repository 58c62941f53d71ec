"""Where each host keeps its configuration, on each system, and by which name it is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from ava_server.config.keys import WELL_KNOWN, address_variables, find_key
from ava_server.core.errors import BadInput
from ava_server.hosts.clients import client_of
from ava_server.hosts.known import HOSTS, PASSED_ON, Launch, UserPlace, find_host

HOME = Path("/home/someone")
LINUX, MAC, WINDOWS = ("linux", "darwin", "win32")


@pytest.mark.parametrize(
    ("name", "system", "path"),
    [
        ("claude-desktop", LINUX, ".config/Claude/claude_desktop_config.json"),
        ("claude-desktop", MAC, "Library/Application Support/Claude/claude_desktop_config.json"),
        ("claude-desktop", WINDOWS, "AppData/Roaming/Claude/claude_desktop_config.json"),
        *(("claude-code", system, ".claude.json") for system in (LINUX, MAC, WINDOWS)),
        *(("codex", system, ".codex/config.toml") for system in (LINUX, MAC, WINDOWS)),
        *(("cursor", system, ".cursor/mcp.json") for system in (LINUX, MAC, WINDOWS)),
        ("vscode", LINUX, ".config/Code/User/mcp.json"),
        ("vscode", MAC, "Library/Application Support/Code/User/mcp.json"),
        ("vscode", WINDOWS, "AppData/Roaming/Code/User/mcp.json"),
        *(("opencode", system, ".config/opencode/opencode.jsonc") for system in (LINUX, MAC, WINDOWS)),
        *(("gemini", system, ".gemini/settings.json") for system in (LINUX, MAC, WINDOWS)),
    ],
)
def test_finds_the_file_of_each_host_on_each_system(name: str, system: str, path: str) -> None:
    assert HOSTS[name].file(UserPlace(system, HOME, {})) == HOME / path


@pytest.mark.parametrize(
    ("name", "system", "variable", "path"),
    [
        ("claude-desktop", LINUX, "XDG_CONFIG_HOME", "Claude/claude_desktop_config.json"),
        ("claude-desktop", WINDOWS, "APPDATA", "Claude/claude_desktop_config.json"),
        ("claude-desktop", MAC, "CLAUDE_USER_DATA_DIR", "claude_desktop_config.json"),
        ("claude-code", LINUX, "CLAUDE_CONFIG_DIR", ".claude.json"),
        ("codex", MAC, "CODEX_HOME", "config.toml"),
        ("vscode", LINUX, "XDG_CONFIG_HOME", "Code/User/mcp.json"),
        ("vscode", WINDOWS, "APPDATA", "Code/User/mcp.json"),
        ("opencode", MAC, "XDG_CONFIG_HOME", "opencode/opencode.jsonc"),
        ("gemini", LINUX, "GEMINI_CLI_HOME", ".gemini/settings.json"),
    ],
)
def test_the_hosts_own_variable_moves_its_file_unless_it_is_empty(
    name: str, system: str, variable: str, path: str
) -> None:
    assert HOSTS[name].file(UserPlace(system, HOME, {variable: "/else/where"})) == Path("/else/where") / path
    assert HOSTS[name].file(UserPlace(system, HOME, {variable: " "})) == HOSTS[name].file(UserPlace(system, HOME, {}))


def test_a_packaged_claude_desktop_has_its_own_appdata(tmp_path: Path) -> None:
    left_over = tmp_path / "AppData" / "Roaming" / "Claude" / "claude_desktop_config.json"
    left_over.parent.mkdir(parents=True)
    left_over.write_text("{}")
    place = UserPlace(WINDOWS, tmp_path, {})
    assert HOSTS["claude-desktop"].file(place) == left_over
    packaged = tmp_path / "AppData/Local/Packages/Claude_pzs8sxrjxfjjc/LocalCache/Roaming/Claude"
    packaged.mkdir(parents=True)
    assert HOSTS["claude-desktop"].file(place) == packaged / "claude_desktop_config.json"


@pytest.mark.parametrize("there", ["opencode.jsonc", "opencode.json", "config.json"])
def test_opencode_uses_whichever_file_exists(tmp_path: Path, there: str) -> None:
    folder = tmp_path / ".config" / "opencode"
    folder.mkdir(parents=True)
    (folder / there).write_text("{}")
    assert HOSTS["opencode"].file(UserPlace(LINUX, tmp_path, {})) == folder / there


@pytest.mark.parametrize(
    ("client", "name"),
    [
        ("claude-ai", "claude-desktop"),
        ("local-agent-mode-ava", "claude-desktop"),
        ("claude-code", "claude-code"),
        ("codex-mcp-client", "codex"),
        ("cursor-vscode", "cursor"),
        ("Visual Studio Code", "vscode"),
        ("Visual Studio Code - Insiders", "vscode"),
        ("opencode", "opencode"),
        ("gemini-cli-mcp-client", "gemini"),
        ("mcp", None),
        ("", None),
        (None, None),
    ],
)
def test_recognizes_a_host_by_its_client_name(client: str | None, name: str | None) -> None:
    assert (client_of(client).id or None) == name


def test_rejects_an_unknown_host_and_lists_the_known_ones() -> None:
    with pytest.raises(BadInput, match=r"Did you mean claude-code\?.*vscode"):
        find_host("claudecode")
    assert find_host("Codex") is HOSTS["codex"]


def test_writes_the_server_in_the_form_each_host_expects() -> None:
    entries = {name: host.entry(Launch("/opt/ava", ("serve",), {"AVA_MODEL": "m"})) for name, host in HOSTS.items()}
    for name, entry in entries.items():
        command = entry["cmd" if name == "goose" else "command"]
        assert command == (["/opt/ava", "serve"] if name == "opencode" else "/opt/ava")
        assert entry[HOSTS[name].env]["AVA_MODEL"] == "m"
    assert {name: host.servers for name, host in HOSTS.items()} == {
        **dict.fromkeys(("claude-desktop", "claude-code", "cursor", "gemini"), "mcpServers"),
        **dict.fromkeys(("copilot", "qwen-code", "cline", "continue"), "mcpServers"),
        "codex": "mcp_servers", "vscode": "servers", "opencode": "mcp", "goose": "extensions",
    }  # fmt: skip
    assert entries["claude-code"]["type"] == entries["vscode"]["type"] == "stdio"
    assert entries["codex"]["required"] is True
    assert {"OPENROUTER_API_KEY", "OPENAI_API_KEY", "GROQ_API_KEY", "ANTHROPIC_BASE_URL", "OPENAI_BASE_URL"} < set(
        entries["codex"]["env_vars"]
    )
    assert HOSTS["codex"].asking("mine") is None and client_of("codex-mcp-client").hints
    assert HOSTS["opencode"].asking("mine") == (("permission", "mine_confirm_spawn"), "ask")
    # Gemini CLI writes what it makes of "$NAME" back into the file when it adds a server: a key, in the clear.
    assert "$" not in str(entries["gemini"]) and "trust" not in entries["gemini"]
    asked = HOSTS["vscode"].element_value
    assert entries["vscode"]["env"]["OPENROUTER_API_KEY"] == f"${{input:{asked['id']}}}" and asked["password"] is True


@pytest.mark.parametrize("provider", WELL_KNOWN)
def test_a_gateways_key_goes_only_to_the_gateway_when_a_host_passes_variables_on(tmp_path: Path, provider: str) -> None:
    for address in address_variables(provider):
        shell = {WELL_KNOWN[provider]: "gw-4f9a8b7c6d5e4f3a2b1c", address: "https://gateway.example/v1"}
        assert find_key(provider, tmp_path / "keys.toml", shell) is None
        passed = {name: value for name, value in shell.items() if name in PASSED_ON}
        assert find_key(provider, tmp_path / "keys.toml", passed) is None, address


def test_ignores_a_relative_folder() -> None:
    assert HOSTS["codex"].file(UserPlace(LINUX, HOME, {"CODEX_HOME": "~/codex"})) == HOME / ".codex" / "config.toml"
