"""Where each host keeps its configuration, on each system, and by which name it is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from ava_server.errors import BadInput
from ava_server.hosts.host import Launch, Place
from ava_server.hosts.known import HOSTS, find_host, host_of

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
def test_a_host_is_found_where_that_system_has_it(name: str, system: str, path: str) -> None:
    assert HOSTS[name].file(Place(system, HOME, {})) == HOME / path


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
def test_a_variable_of_the_host_leads_elsewhere_and_an_empty_one_does_not(
    name: str, system: str, variable: str, path: str
) -> None:
    assert HOSTS[name].file(Place(system, HOME, {variable: "/else/where"})) == Path("/else/where") / path
    assert HOSTS[name].file(Place(system, HOME, {variable: " "})) == HOSTS[name].file(Place(system, HOME, {}))


def test_a_packaged_claude_desktop_has_an_appdata_of_its_own(tmp_path: Path) -> None:
    left_over = tmp_path / "AppData" / "Roaming" / "Claude" / "claude_desktop_config.json"
    left_over.parent.mkdir(parents=True)
    left_over.write_text("{}")
    place = Place(WINDOWS, tmp_path, {})
    assert HOSTS["claude-desktop"].file(place) == left_over
    packaged = tmp_path / "AppData/Local/Packages/Claude_pzs8sxrjxfjjc/LocalCache/Roaming/Claude"
    packaged.mkdir(parents=True)
    assert HOSTS["claude-desktop"].file(place) == packaged / "claude_desktop_config.json"


@pytest.mark.parametrize("there", ["opencode.jsonc", "opencode.json", "config.json"])
def test_opencode_is_changed_in_the_file_that_is_there(tmp_path: Path, there: str) -> None:
    folder = tmp_path / ".config" / "opencode"
    folder.mkdir(parents=True)
    (folder / there).write_text("{}")
    assert HOSTS["opencode"].file(Place(LINUX, tmp_path, {})) == folder / there


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
def test_a_host_is_known_by_the_name_of_its_client(client: str | None, name: str | None) -> None:
    host = host_of(client)
    assert (host.name if host else None) == name


def test_an_unknown_host_is_told_with_the_known_ones() -> None:
    with pytest.raises(BadInput, match=r"Did you mean claude-code\?.*vscode"):
        find_host("claudecode")
    assert find_host("Codex") is HOSTS["codex"]


def test_the_server_is_written_as_each_host_wants_it() -> None:
    launch = Launch("/opt/ava", ("serve",), {"AVA_MODEL": "m"})
    entries = {name: host.pieces("ava", launch)[0] for name, host in HOSTS.items()}
    common = {"command": "/opt/ava", "args": ["serve"]}
    for name, piece in entries.items():
        started = piece.value["command"]
        assert started == (["/opt/ava", "serve"] if name == "opencode" else "/opt/ava")
        assert piece.value[HOSTS[name].env]["AVA_MODEL"] == "m"
    assert entries["claude-desktop"].path == entries["cursor"].path == ("mcpServers", "ava")
    assert common.items() <= entries["claude-desktop"].value.items()
    assert entries["claude-code"].value["type"] == entries["vscode"].value["type"] == "stdio"
    assert entries["codex"].value["required"] is True
    assert "OPENROUTER_API_KEY" in entries["codex"].value["env_vars"]
    assert entries["codex"].value["tools"] == {"confirm_spawn": {"approval_mode": "prompt"}}
    # Gemini CLI writes what it makes of "$NAME" back into the file when it adds a server: a key, in the clear.
    assert "$" not in str(entries["gemini"].value) and "trust" not in entries["gemini"].value
    vscode = HOSTS["vscode"].pieces("ava", launch)
    assert vscode[0].value["env"]["OPENROUTER_API_KEY"] == f"${{input:{vscode[1].value['id']}}}"
    assert vscode[1].path == ("inputs",) and vscode[1].value["password"] is True
    assert HOSTS["opencode"].pieces("mine", launch)[1].path == ("permission", "mine_confirm_spawn")
