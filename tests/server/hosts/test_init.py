"""`ava init` as a person types it, and what a server says of a missing key in each host."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.stdio import AVA, connect_stdio, serve_stdio
from support.terminal import ava

from ava_roles import BUILT_IN
from ava_roles.skills import read_skill
from ava_server.approval.requests import SpawnArgs
from ava_server.config.keys import find_key
from ava_server.core.errors import BadInput
from ava_server.hosts.clients import client_of, known_clients
from ava_server.hosts.known import HOSTS
from ava_server.hosts.launching import key_advice, launch
from ava_server.hosts.skill import skill_text
from ava_server.service.tool_registry import TOOLS

pytestmark = pytest.mark.slow

SECRET = "sk-or-v1-0a1b2c3d4e5f60718293a4b5c6d7e8f9"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def init(home: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return ava(home / "data", "init", *args, env={"HOME": str(home), **env}, cwd=home)


def test_shows_and_writes_the_change_keeps_a_backup_and_says_what_to_do_next(home: Path) -> None:
    file = home / ".cursor" / "mcp.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"mcpServers": {"other": {"command": "x", "env": {"K": SECRET}}}}))
    done = init(home, "cursor")
    first, second, *rest = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert first == f"Data root: {home / 'data'}"
    assert second == f"Cursor: {file}"
    shown = "\n".join(rest)
    assert '+     "ava": {' in shown and AVA[0] in shown and "Settings → Tools & MCP" in shown
    (backup,) = home.glob(".cursor/mcp.json.ava-backup-*")
    assert str(backup) in shown
    assert SECRET not in done.stdout + done.stderr
    assert set(json.loads(file.read_text())["mcpServers"]) == {"other", "ava"}


@pytest.mark.parametrize("host", HOSTS)
def test_print_only_writes_nothing_repeating_changes_nothing_and_remove_undoes_it(home: Path, host: str) -> None:
    shown = init(home, host, "--print")
    assert shown.returncode == 0 and "serve" in shown.stdout
    assert list(home.iterdir()) == []

    assert init(home, host).returncode == 0
    files = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    again = init(home, host)
    assert "Nothing to change" in again.stdout
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == files

    assert init(home, host, "--remove").returncode == 0
    left = [path.name for path in home.rglob("*") if path.is_file()]
    assert all(".ava-backup-" in name for name in left)
    assert "Nothing to change" in init(home, host, "--remove").stdout


async def test_the_written_entry_starts_the_server_that_this_shell_uses(home: Path, tmp_path: Path) -> None:
    init(home, "claude-desktop", AVA_MODEL="qwen3", OPENROUTER_API_KEY=SECRET)
    file = home / ".config" / "Claude" / "claude_desktop_config.json"
    entry = json.loads(file.read_text())["mcpServers"]["ava"]
    assert Path(entry["command"]).is_absolute()
    assert entry["env"] == {"AVA_DATA_ROOT": str(home / "data"), "AVA_MODEL": "qwen3"}
    started = [entry["command"], *entry["args"]]
    async with serve_stdio(tmp_path / "another", command=started, env=entry["env"], cwd=Path("/")) as wire:
        assert (await wire.tool("check_subagent"))["status"] == "list"
    assert (home / "data" / "ava.db").exists() and not (tmp_path / "another" / "ava.db").exists()


def test_accepts_a_folder_a_name_and_a_file(home: Path) -> None:
    (home / "project").mkdir()
    done = init(home, "vscode", "--workspace", str(home / "project"), "--name", "helpers", "--file", "mine.json")
    assert done.returncode == 0, done.stderr
    entry = json.loads((home / "mine.json").read_text())["servers"]["helpers"]
    assert entry["env"]["AVA_WORKSPACE"] == str(home / "project")


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("claudecode",), 2, "Did you mean claude-code?"),
        (("codex", "--name", "a_b"), 2, "--name is 'a_b'"),
        (("codex", "--workspace", "nowhere"), 2, "--workspace"),
        (("cursor", "--file", "."), 30, "left alone"),
        ((), 2, "needs a host"),
    ],
)
def test_reports_a_wrong_argument_in_one_sentence(home: Path, args: tuple[str, ...], code: int, says: str) -> None:
    done = init(home, *args)
    assert (done.returncode, says in done.stderr, "Traceback" in done.stderr) == (code, True, False)
    assert list(home.iterdir()) == []


def test_reports_a_broken_configuration_and_leaves_it_unchanged(home: Path) -> None:
    file = home / ".claude.json"
    file.write_text('{"mcpServers": {},}')
    done = init(home, "claude-code")
    assert done.returncode == 30 and "left alone" in done.stderr and "line 1" in done.stderr
    assert file.read_text() == '{"mcpServers": {},}'
    assert list(home.iterdir()) == [file]


def test_writes_down_a_data_root_that_only_this_shell_knows(tmp_path: Path) -> None:
    assert launch(env={}).env == {}
    assert launch(env={"XDG_DATA_HOME": str(tmp_path)}).env.keys() <= {"AVA_DATA_ROOT"}
    assert launch(env={"AVA_DATA_ROOT": str(tmp_path)}).env == {"AVA_DATA_ROOT": str(tmp_path)}
    assert launch(str(tmp_path), env={}).env == {"AVA_WORKSPACE": str(tmp_path)}
    with pytest.raises(BadInput, match="--workspace"):
        launch("not/absolute", env={})


@pytest.mark.parametrize("client", [name for client in known_clients() if client.id in HOSTS for name in client.names])
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_missing_key_is_reported_with_what_to_do_in_this_host(tmp_path: Path, client: str, mode: str) -> None:
    asked = {"role": "researcher", "task": "Read https://example.org/", "model": "openrouter:x/y"}
    with anyio.fail_after(30):
        async with connect_stdio(tmp_path / "data", mode=mode, cwd=tmp_path, name=client) as host:
            answer: dict[str, Any] = (await host.call_tool("spawn_subagent", asked)).structured_content or {}
    assert answer["status"] == "failed"
    own = HOSTS[client_of(client).id].key
    assert own.format(variable="OPENROUTER_API_KEY") in answer["message"]
    assert f"{AVA[0]} key set openrouter" in answer["message"]
    assert str(tmp_path / "data") in answer["message"], "the key belongs to this server's data root"


async def test_without_a_model_the_proposal_says_how_to_add_one_and_a_new_key_works_at_once(
    tmp_path: Path,
) -> None:
    root, folder = tmp_path / "data", tmp_path / "folder"
    folder.mkdir()
    (folder / "notes.md").write_text("The ferry leaves at six.\n")
    asked = {"role": "researcher", "task": "When does the ferry leave?", "workspace": str(folder)}
    with anyio.fail_after(60):
        async with connect_stdio(root, cwd=tmp_path, name="claude-ai") as host:

            async def propose() -> dict[str, Any]:
                return (await host.call_tool("spawn_subagent", asked)).structured_content or {}

            before = await propose()
            assert before["model"] == "offline/extractive"
            assert "key set openrouter" in before["message"] and "Claude Desktop" in before["message"]

            stored = await anyio.to_thread.run_sync(lambda: ava(root, "key", "set", "openrouter", stdin=SECRET + "\n"))
            assert stored.returncode == 0
            after = await propose()
            assert after["model"].startswith("openrouter:")
            assert "key set" not in after["message"]
            refused = (await host.call_tool("spawn_subagent", {**asked, "task": f"Use {SECRET}"})).structured_content
            assert SECRET not in json.dumps(refused), "the new key is hidden too"


def test_ends_with_what_is_to_be_done_and_what_works_and_with_all_the_rest(home: Path) -> None:
    todo = _to_do(init(home, "claude-desktop").stdout)
    assert todo[0].startswith("Quit Claude Desktop"), todo
    assert todo[1].startswith("Choose the approval PIN before the first approval: `ava pin set`. In Claude Desktop")
    assert re.fullmatch(r"Set up a language model: `\S*ava key set openrouter`\. Without one .*", todo[2]), todo
    assert todo[3:] == ["Works already: Claude Desktop has Ava (`ava init claude-desktop --all` tells more)"]

    todo = _to_do(init(home, "claude-desktop", "--all", OPENROUTER_API_KEY=SECRET).stdout)
    assert todo[0].startswith("Choose the approval PIN"), "the host needs no new start: nothing was changed"
    assert todo[1] == "Works already: Claude Desktop has Ava · a language model is set up"
    assert len(todo) == 3 and todo[2].startswith("Claude Desktop asks before each tool.")


def _to_do(said: str) -> list[str]:
    """Return the steps, and what stands below them; not the one that a test's folder adds, which may be temporary."""
    lines = said.partition("To do:\n")[2].splitlines()
    numbered = [re.match(r"\d+\. ", line) for line in lines]
    steps = [line for line, number in zip(lines, numbered, strict=True) if number is not None]
    assert [step.partition(".")[0] for step in steps] == [str(place) for place in range(1, len(steps) + 1)]
    below = lines[len(steps) :]
    plain = [step.partition(" ")[2] for step in steps]
    return [step for step in plain if not step.startswith("Install Ava in a permanent place")] + below


def _program(folder: Path, name: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("#!/bin/sh\n")
    (folder / name).chmod(0o755)


def test_a_host_on_the_path_is_not_asked_for(home: Path) -> None:
    asked = "Is Claude Code installed?"
    assert asked in init(home, "claude-code", "--print", PATH="/usr/bin:/bin").stdout
    _program(home / "bin", "claude")
    done = init(home, "claude-code", "--print", PATH=f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert asked not in done.stdout and "Claude Code reads it when it starts." in done.stdout


def test_a_host_that_its_installer_put_outside_the_path_is_not_asked_for(home: Path) -> None:
    (home / ".claude").mkdir()
    _program(home / ".claude" / "local", "claude")
    done = init(home, "claude-code", "--print", PATH="/usr/bin:/bin")
    assert "Is Claude Code installed?" not in done.stdout and "reads it when it starts." in done.stdout


def test_a_command_is_named_without_its_path_where_the_path_finds_this_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = launch(env={})
    own = Path(started.command).parent
    monkeypatch.setenv("PATH", str(own))
    assert started.typed("key", "set", "openrouter") == "ava key set openrouter"
    _program(tmp_path / "bin", "ava")
    for path in (str(tmp_path), f"{tmp_path / 'bin'}{os.pathsep}{own}"):
        monkeypatch.setenv("PATH", path)
        assert started.typed("key", "list") == f"{started.command} key list", "it is not found, or another one is"


def test_the_bundle_points_to_its_settings_dialog() -> None:
    advice = key_advice("openrouter", "claude-ai", {"AVA_HOST": "bundle"})
    assert "Settings → Extensions → Ava → Configure" in advice and "terminal" not in advice
    assert key_advice("brave", "claude-ai", {"AVA_HOST": "bundle"}) == advice
    assert "key set openai" in key_advice("openai", "claude-ai", {"AVA_HOST": "bundle"})
    assert "AVA_MODEL_API_KEY" in key_advice("custom", "codex-mcp-client", {})


def test_the_variable_in_the_advice_is_the_one_that_is_read(tmp_path: Path) -> None:
    for provider in ("my-prov", "LM-Studio", "openai"):
        named = re.search(r"Or set (\S+) before", key_advice(provider, "claude-code", {}))
        assert named is not None
        assert find_key(provider, tmp_path / "keys.toml", {named[1]: SECRET}) is not None, named[1]


@pytest.mark.skipif(sys.platform == "win32", reason="no home folder by HOME there")
def test_the_doctor_lists_the_hosts_that_start_ava_and_whether_it_exists(home: Path) -> None:
    def hosts() -> list[dict[str, str]]:
        done = ava(home / "data", "doctor", "--json", env={"HOME": str(home)}, cwd=home)
        return [found for found in json.loads(done.stdout)["findings"] if found["name"] in ("host", "hosts")]

    (nobody,) = hosts()
    assert nobody["state"] == "note" and "ava init HOST" in nobody["what_to_do"]
    init(home, "codex")
    init(home, "gemini", "--name", "helpers")
    gone = home / ".gemini" / "settings.json"
    gone.write_text(gone.read_text().replace(AVA[0], "/gone/ava"))
    (home / ".claude.json").write_text("{")
    found = {entry["text"].partition(" starts ")[0].partition(":")[0]: entry for entry in hosts()}
    assert {name: entry["state"] for name, entry in found.items()} == {
        "Codex": "ok", "Gemini CLI": "warning", "Claude Code": "warning",
    }  # fmt: skip
    assert "/gone/ava, which does not exist" in found["Gemini CLI"]["text"]
    assert "ava init gemini" in found["Gemini CLI"]["what_to_do"]
    assert os.fspath(home / ".claude.json") in found["Claude Code"]["text"]

    codex = home / ".codex" / "config.toml"
    codex.write_text(codex.read_text().replace('"OPENAI_API_BASE", ', "").replace('"KAGI_API_KEY", ', ""))
    (home / ".cursor").mkdir()
    env = {"GROQ_API_KEY": "${env:GROQ_API_KEY}", "GROQ_BASE_URL": "${env:GROQ_BASE_URL}", "BRAVE_API_KEY": "own"}
    entry = {"command": AVA[0], "args": ["serve"], "env": env}
    (home / ".cursor" / "mcp.json").write_text(json.dumps({"mcpServers": {"ava": entry}}))
    flagged = [entry["text"].partition(" (")[0] for entry in hosts() if " passes on " in entry["text"]]
    assert flagged == [
        "Codex passes on OPENAI_API_KEY, but not OPENAI_API_BASE",
        "Cursor passes on GROQ_API_KEY, but not GROQ_API_BASE",
    ]

    skill = home / ".agents" / "skills" / "delegate-with-ava" / "SKILL.md"
    init(home, "codex", "--skill")
    assert not [entry for entry in hosts() if "skill" in entry["text"]]
    skill.write_text(f"{skill_text()}Older.\n")
    (old,) = [entry for entry in hosts() if "skill" in entry["text"]]
    assert old["text"] == f"Codex has the skill of another version of Ava, or a changed one ({skill})"
    assert old["state"] == "note" and "ava init codex --skill" in old["what_to_do"]


@pytest.mark.parametrize(("host", "place"), [("claude-code", ".claude"), ("codex", ".agents")])
def test_the_skill_is_installed_only_when_asked_for_and_removed_again(home: Path, host: str, place: str) -> None:
    file = home / place / "skills" / "delegate-with-ava" / "SKILL.md"
    assert init(home, host).returncode == 0 and not file.exists(), "nobody is there to ask"
    assert f"would be in {file}" in init(home, host, "--print").stdout and not file.exists()
    assert f"Wrote {file}" in init(home, host, "--skill").stdout
    assert read_skill(file.parent, "ours").name == "delegate-with-ava"
    file.write_text(f"{file.read_text()}\nOld.\n")
    assert f"Wrote {file}" in init(home, host, "--skill").stdout and not file.read_text().endswith("Old.\n")
    assert "SKILL.md" not in init(home, host, "--skill").stdout
    assert f"Removed {file}" in init(home, host, "--remove").stdout and not file.parent.exists()


def test_a_skill_of_somebody_else_is_kept(home: Path) -> None:
    file = home / ".claude" / "skills" / "delegate-with-ava" / "SKILL.md"
    file.parent.mkdir(parents=True)
    file.write_text("Mine.\n")
    done = init(home, "claude-code", "--skill")
    assert done.returncode != 0 and "is not Ava's, and is kept" in done.stderr and file.read_text() == "Mine.\n"
    init(home, "claude-code", "--remove")
    assert file.read_text() == "Mine.\n"
    assert "is not known to read skills" in init(home, "cursor", "--skill").stderr


def test_the_skill_says_what_is_true_of_the_tools() -> None:
    """Each tool, argument and role that it names exists."""
    text = skill_text()
    named = set(re.findall(r"`([a-z_]+)`", text))
    of_steps = {"id", "after", "foreach"}
    assert named - {*SpawnArgs.model_fields, *BUILT_IN, *TOOLS, *of_steps, "untrusted_result"} == set()
