"""The rules that let a host call Ava's harmless tools without asking: each exact, and removed without a trace."""

from __future__ import annotations

import re
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

import pytest
from support.terminal import CONTROLLED, ava, run_on_terminal

from ava_server.core.data_root import os_user
from ava_server.core.errors import ConfigError
from ava_server.hosts.change import (
    QUIET_TOOLS,
    apply,
    change_to_add,
    change_to_allow,
    change_to_forget,
    change_to_remove,
)
from ava_server.hosts.known import HOSTS, Host, Launch, UserPlace
from ava_server.service.tool_registry import TOOLS

WITH_RULES = {name: host for name, host in HOSTS.items() if host.tool_rules is not None}
LAUNCH = Launch("/opt/ava/bin/ava")
CLAUDE = """{
  "model": "opus",
  "permissions": {
    "deny": ["Bash(rm:*)"],
    "allow": ["Bash(ls)", "mcp__ava__check_subagent"]
  }
}
"""
POLICY = """# mine
[[rule]]
toolName = "run_shell_command"  # careful
decision = "ask_user"
priority = 10
"""
CURSOR = """{
\t// what I allow
\t"mcpAllowlist": ["other:*"],
\t"terminalAllowlist": ["git"], // more
}
"""
CODEX = """# mine
model = "gpt"

[mcp_servers.other]
command = "x"  # theirs
"""
OPENCODE = """{
  // theirs
  "permission": {"bash": "ask"},
}
"""
BEFORE = {"claude-code": CLAUDE, "gemini": POLICY, "cursor": CURSOR, "codex": CODEX, "opencode": OPENCODE}


@pytest.fixture(params=list(WITH_RULES.values()), ids=list(WITH_RULES))
def host(request: pytest.FixtureRequest) -> Host:
    chosen: Host = request.param
    return chosen


def test_the_host_with_its_rules_is_the_same_text_again_after_removal(host: Host, place: UserPlace) -> None:
    path = rules_file(host, place)
    put(path, BEFORE[host.name])
    config = host.file(place)
    config_before = config.read_bytes() if config.exists() else None
    apply(change_to_add(host, "ava", LAUNCH, config))
    with_server = config.read_text()
    after = allow(host, place)
    assert after != BEFORE[host.name]
    for line in BEFORE[host.name].splitlines():  # comments too
        if "allow" not in line.lower() and '"bash"' not in line:
            assert line in after
    again = change_to_allow(host, "ava", config, place)
    assert again is not None and again.nothing
    change = change_to_forget(host, "ava", config, place)
    assert change is not None
    apply(change)
    if path != config:
        assert path.read_text() == BEFORE[host.name]
    assert config.read_text() == with_server
    apply(change_to_remove(host, "ava", config))
    assert (config.read_bytes() if config.exists() else None) == config_before
    assert path.read_text() == BEFORE[host.name]
    nothing = change_to_forget(host, "ava", config, place)
    assert nothing is not None and nothing.nothing


def test_a_rule_that_the_person_had_before_stays_theirs(place: UserPlace) -> None:
    host = HOSTS["claude-code"]
    put(rules_file(host, place), CLAUDE)
    assert allow(host, place).count("mcp__ava__check_subagent") == 1
    change = change_to_forget(host, "ava", host.file(place), place)
    assert change is not None and change.after == CLAUDE


def test_removal_keeps_what_was_written_in_the_meantime(place: UserPlace) -> None:
    host = HOSTS["claude-code"]
    path = rules_file(host, place)
    path.parent.mkdir(parents=True)
    allow(host, place)
    path.write_text(path.read_text().replace('"mcp__ava__spawn_subagent"', '"Bash(ls)", "mcp__ava__spawn_subagent"'))
    change = change_to_forget(host, "ava", host.file(place), place)
    assert change is not None and "Bash(ls)" in str(change.after) and "mcp__ava" not in str(change.after)


def test_a_file_with_nothing_but_the_rules_is_removed(host: Host, place: UserPlace) -> None:
    if host.tool_rules is not None and host.tool_rules.only_to_list:
        assert change_to_allow(host, "ava", host.file(place), place) is None  # a new list would replace the app's
        return
    allow(host, place)
    change = change_to_forget(host, "ava", host.file(place), place)
    assert change is not None and change.after is None


@pytest.mark.parametrize("name", ["ava", "confirm-spawn", "a", "spawn-subagent", "mcp-ava", "0"])
def test_no_rule_covers_a_tool_that_starts_spends_or_stops(host: Host, place: UserPlace, name: str) -> None:
    """Attack each rule with every other tool of Ava, by any pattern that a host might see in it."""
    text = BEFORE[host.name].replace("mcp__ava__check_subagent", "Read")
    put(rules_file(host, place), text)
    before = strings(_parsed(host, text))
    added = [text for text in strings(_parsed(host, allow(host, place, name))) if text not in before]
    forbidden = set(TOOLS) - set(QUIET_TOOLS)
    assert forbidden == {"confirm_spawn", "message_subagent", "cancel_subagent"}
    for text in added:
        assert not re.search(r"[*?\[\](){}|^$\\+]", text), "a pattern may cover more than it says"
        assert text not in ("trust", "mcp__ava", f"mcp__{name}", f"mcp__{name}__", f"{name}:", f"{name}_")
        for tool in forbidden:
            assert tool not in text
            for full in (tool, f"mcp__{name}__{tool}", f"{name}:{tool}", f"{name}_{tool}", f"mcp_{name}_{tool}"):
                assert not fnmatchcase(full, text)
    assert sum(tool in text for text in added for tool in QUIET_TOOLS) == 3


def test_a_gemini_rule_names_its_tools_and_its_server() -> None:
    rules = HOSTS["gemini"].tool_rules
    assert rules is not None
    [rule] = rules.of("ava", QUIET_TOOLS)
    wanted = {"mcpName": "ava", "toolName": list(QUIET_TOOLS), "decision": "allow", "priority": 200}
    assert rule.value == wanted


@pytest.mark.parametrize("text", ["{", '{"permissions": []}', '{"permissions": {"allow": "Bash"}}', "[1]", "\udcff"])
def test_a_broken_file_of_rules_is_refused_and_left_alone(place: UserPlace, text: str) -> None:
    host = HOSTS["claude-code"]
    path = rules_file(host, place)
    path.parent.mkdir(parents=True)
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match="left alone"):
        change_to_allow(host, "ava", host.file(place), place)
    assert path.read_bytes() == text.encode(errors="surrogateescape") and len(list(path.parent.iterdir())) == 1


def test_the_persons_own_choice_for_a_tool_is_kept(place: UserPlace) -> None:
    host = HOSTS["codex"]
    mine = (
        '[mcp_servers.ava]\ncommand = "/opt/ava/bin/ava"\nargs = ["serve"]\n\n[mcp_servers.ava.tools.spawn_subagent]\n'
    )
    put(host.file(place), f'{mine}approval_mode = "prompt"\n')
    tools: dict[str, Any] = _parsed(host, allow(host, place))["mcp_servers"]["ava"]["tools"]
    modes = {tool: table["approval_mode"] for tool, table in tools.items()}
    assert modes == {"spawn_subagent": "prompt", "check_subagent": "approve", "read_ava_logs": "approve"}


def test_the_rules_of_a_project_are_the_persons_own_there(tmp_path: Path, place: UserPlace) -> None:
    rules = HOSTS["claude-code"].tool_rules
    assert rules is not None
    project = tmp_path / "project"
    assert rules.file(place, project / ".mcp.json") == project / ".claude" / "settings.local.json"
    elsewhere = UserPlace("linux", tmp_path, {"CLAUDE_CONFIG_DIR": "/c"})
    assert rules.file(elsewhere, Path("/c/.claude.json")) == Path("/c/settings.json")


def _parsed(host: Host, text: str) -> Any:
    assert host.tool_rules is not None
    return host.tool_rules.format.parse(text)


# -- as a person types it ---------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def init(home: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return ava(home / "data", "init", *args, env={"HOME": str(home)}, cwd=home)


@pytest.mark.slow
def test_without_a_terminal_rules_are_only_written_with_the_option(home: Path) -> None:
    done = init(home, "claude-code", "--all")
    assert done.returncode == 0 and "--allow-tools" in done.stdout
    assert not (home / ".claude").exists()
    assert init(home, "claude-code", "--no-allow-tools").stdout.count("allow") == 0
    done = init(home, "claude-code", "--print", "--allow-tools")
    assert '+       "mcp__ava__spawn_subagent",' in done.stdout and not (home / ".claude").exists()
    done = init(home, "claude-code", "--allow-tools")  # the server is there already
    assert done.returncode == 0 and "mcp__ava__read_ava_logs" in (home / ".claude" / "settings.json").read_text()
    done = init(home, "claude-code", "--remove")
    assert done.returncode == 0 and '-       "mcp__ava__spawn_subagent",' in done.stdout
    assert not (home / ".claude" / "settings.json").exists() and not (home / ".claude.json").exists()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs a pty")
@pytest.mark.parametrize("answer", ["y", "n", ""])
def test_in_a_terminal_the_rules_are_shown_before_the_question(home: Path, answer: str) -> None:
    env = {"HOME": str(home)}
    with run_on_terminal(home / "data", "init", "gemini", cwd=home, command=CONTROLLED, env=env) as screen:
        screen.until("Add these rules? [y/N]")
        assert str(home / ".gemini" / "policies" / "ava.toml") in screen.text
        assert 'toolName = ["spawn_subagent", "check_subagent", "read_ava_logs"]' in screen.text
        assert not (home / ".gemini" / "policies").exists()
        screen.type(f"{answer}\n")
        screen.until("Choose the PIN now? [y/N]")  # there, a person approves in Ava
        screen.type("\n")
        assert screen.ended() == 0
    assert (home / ".gemini" / "policies" / "ava.toml").exists() == (answer == "y")
    assert (home / ".gemini" / "settings.json").exists()


@pytest.mark.slow
def test_warns_where_a_proposal_may_start_by_itself(home: Path) -> None:
    assert "nobody is asked" not in init(home, "gemini", "--allow-tools", "--print").stdout
    put(home / "data" / "config.toml", 'approval = "auto"\n')
    (home / "data").chmod(0o700)
    assert "starts cheap proposals without a question" in init(home, "gemini", "--allow-tools", "--print").stdout
    put(home / "data" / "config.toml", f'approval = "auto"\n[users.{os_user()}]\napproval = "ask"\n')
    assert "starts cheap proposals" not in init(home, "gemini", "--allow-tools", "--print").stdout


@pytest.mark.slow
def test_one_command_keeps_one_backup_of_a_file_with_the_entry_and_the_rules(home: Path) -> None:
    file = home / ".config" / "opencode" / "opencode.json"
    before = '{"theme": "dark"}\n'
    put(file, before)
    assert init(home, "opencode", "--allow-tools").returncode == 0
    [backup] = file.parent.glob("*.ava-backup-*")
    assert backup.read_text() == before
    changed = file.read_text()
    assert "ava" in changed and "check_subagent" in changed
    backup.unlink()
    assert init(home, "opencode", "--remove").returncode == 0
    [backup] = file.parent.glob("*.ava-backup-*")
    assert backup.read_text() == changed and "ava" not in file.read_text()


@pytest.mark.slow
def test_a_broken_file_of_rules_is_reported_in_a_sentence(home: Path) -> None:
    put(home / ".claude" / "settings.json", '{"permissions": {')
    done = init(home, "claude-code", "--allow-tools")
    assert done.returncode != 0 and "settings.json cannot be read" in done.stderr and "Traceback" not in done.stderr
    assert (home / ".claude" / "settings.json").read_text() == '{"permissions": {'


@pytest.mark.slow
@pytest.mark.parametrize("host", [name for name, host in HOSTS.items() if host.tool_rules is None])
def test_a_host_without_such_rules_says_what_to_choose_there(home: Path, host: str) -> None:
    done = init(home, host, "--allow-tools")
    to_do = done.stdout.partition("To do:")[2].partition("Works already:")[0]
    assert done.returncode == 0 and "never confirm_spawn" in to_do


@pytest.fixture
def place(tmp_path: Path) -> UserPlace:
    return UserPlace("linux", tmp_path, {})


def rules_file(host: Host, place: UserPlace) -> Path:
    assert host.tool_rules is not None
    return host.tool_rules.file(place, host.file(place))


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())


def allow(host: Host, place: UserPlace, name: str = "ava") -> str:
    """Add the rules, and return the file."""
    change = change_to_allow(host, name, host.file(place), place)
    assert change is not None
    apply(change)
    return rules_file(host, place).read_text()


def strings(data: Any) -> list[str]:
    """Return every text in some data, keys included."""
    found: list[str] = []
    if isinstance(data, dict):
        for key, value in cast("dict[str, Any]", data).items():
            found += [key, *strings(value)]
    elif isinstance(data, list):
        for part in cast("list[Any]", data):
            found += strings(part)
    else:
        found.append(str(data))
    return found
