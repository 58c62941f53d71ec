"""A host's configuration is changed in place: what is there stays, twice changes nothing, and it can be undone."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ava_server.config.keys import KEY_VARIABLES
from ava_server.core.errors import ConfigError
from ava_server.hosts.change import apply, change_to_add, change_to_remove
from ava_server.hosts.formats import Yaml
from ava_server.hosts.known import HOSTS, Host, Launch

LAUNCH = Launch("/opt/ava/bin/ava", ("serve",), {"AVA_DATA_ROOT": "/srv/ava"})
SECRET = "sk-or-v1-0a1b2c3d4e5f60718293a4b5c6d7e8f9"


@pytest.fixture(params=list(HOSTS.values()), ids=list(HOSTS))
def host(request: pytest.FixtureRequest) -> Host:
    chosen: Host = request.param
    return chosen


@pytest.fixture
def file(tmp_path: Path, host: Host) -> Path:
    return tmp_path / "place" / f"config.{'toml' if host.name == 'codex' else 'yaml' if yaml(host) else 'json'}"


def test_creates_a_missing_file_and_undoing_removes_it(host: Host, file: Path) -> None:
    assert add(host, file) is None
    words = json.dumps(entry(host, file))
    assert '"/opt/ava/bin/ava"' in words and '"serve"' in words and '"/srv/ava"' in words

    apply(change_to_remove(host, "ava", file))
    assert not file.exists()


@pytest.mark.parametrize("text", ["", "{}", "{}\n", "{\n}\n"], ids=repr)
def test_fills_an_empty_file_and_undoing_empties_it(host: Host, file: Path, text: str) -> None:
    put(file, "" if host.name == "codex" or yaml(host) else text)
    before = file.read_bytes()
    add(host, file)
    assert entry(host, file)
    apply(change_to_remove(host, "ava", file))
    assert file.read_bytes() == before


def test_keeps_existing_content_and_undoing_restores_every_byte(host: Host, file: Path) -> None:
    put(file, OTHERS[host.name])
    before = said(host, file)
    backup = add(host, file)

    after = file.read_bytes().decode()
    lines = [line.strip().rstrip(",") for line in OTHERS[host.name].splitlines()]
    changed = ['"mcpServers": {"other"', '"permission": {', '"mcp": {}']  # those that were written on one line
    for line in lines:
        assert line in after or any(line.startswith(begin) for begin in changed), line
    for key, value in before.items():
        now = said(host, file)[key]
        kept = now[: len(value)] if isinstance(value, list) else now
        assert kept == value if not isinstance(value, dict) else value.items() <= now.items()
    assert backup is not None and backup.read_bytes().decode() == OTHERS[host.name]

    apply(change_to_remove(host, "ava", file))
    assert file.read_bytes().decode() == OTHERS[host.name]


@pytest.mark.parametrize("written", ["as it is", "with line ends of Windows", "with a byte order mark"])
def test_keeps_line_endings_and_a_byte_order_mark(host: Host, file: Path, written: str) -> None:
    text = OTHERS[host.name]
    if written.endswith("Windows"):
        text = text.replace("\n", "\r\n")
    if written.endswith("mark"):
        text = f"\ufeff{text}"
    put(file, text)
    add(host, file)
    after = file.read_bytes().decode()
    assert after.startswith("\ufeff") == text.startswith("\ufeff")
    assert ("\r\n" in after) == ("\r\n" in text) and after.replace("\r\n", "").count("\r") == 0
    assert "\r\n" not in text or "\n" not in after.replace("\r\n", "")
    assert entry(host, file)


def test_adding_twice_changes_nothing(host: Host, file: Path) -> None:
    put(file, OTHERS[host.name])
    add(host, file)
    before = file.read_bytes(), sorted(file.parent.iterdir())
    again = change_to_add(host, "ava", LAUNCH, file)
    assert again.nothing and not again.lines
    assert (file.read_bytes(), sorted(file.parent.iterdir())) == before


def test_removing_a_missing_entry_changes_nothing(host: Host, file: Path) -> None:
    assert change_to_remove(host, "ava", file).nothing
    put(file, OTHERS[host.name])
    assert change_to_remove(host, "ava", file).nothing


def test_updates_the_path_of_a_moved_installation_and_keeps_what_the_user_set(host: Host, file: Path) -> None:
    put(file, OTHERS[host.name])
    add(host, file)
    text = file.read_bytes().decode().replace("/srv/ava", "/srv/mine")
    put(file, text.replace("/opt/ava/bin/ava", "/gone/ava"))

    change = change_to_add(host, "ava", Launch("/opt/ava/bin/ava"), file)
    apply(change)
    words = json.dumps(entry(host, file))
    assert "/opt/ava/bin/ava" in words and "/gone" not in words and "/srv/mine" in words
    assert all("/srv/mine" not in line for line in change.lines), "values of a person are not shown"


def test_does_not_touch_another_server_with_the_same_name(host: Host, file: Path) -> None:
    container = host.servers
    theirs = (
        f'[{container}.ava]\ncommand = "/usr/bin/theirs"\n'
        if host.name == "codex"
        else json.dumps({container: {"ava": {"command": "/usr/bin/theirs", "args": ["--serve-it"]}}})
    )
    if yaml(host):
        theirs = "- name: ava" if host.in_list else "ava:"
        theirs = f"{container}:\n  {theirs}\n    command: /usr/bin/theirs\n    args: [--serve-it]\n"
    put(file, theirs)
    with pytest.raises(ConfigError, match=r"not Ava.*left alone.*--name"):
        change_to_add(host, "ava", LAUNCH, file)
    with pytest.raises(ConfigError, match=r"not Ava.*left alone"):
        change_to_remove(host, "ava", file)
    assert file.read_bytes().decode() == theirs
    apply(change_to_add(host, "subagents", LAUNCH, file))
    assert entry(host, file)["command"] == "/usr/bin/theirs"
    assert "subagents" in json.dumps(said(host, file)[container])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"mcpServers": {', "cannot be read"),
        ("[1, 2", "cannot be read"),
        ("{} and more", "cannot be read"),
        ("\x00\x01\x02", "cannot be read"),
    ],
)
def test_does_not_touch_a_broken_file(host: Host, file: Path, text: str, why: str) -> None:
    put(file, text)
    with pytest.raises(ConfigError, match=f"{why}.*left alone"):
        change_to_add(host, "ava", LAUNCH, file)
    assert file.read_bytes().decode() == text
    assert list(file.parent.iterdir()) == [file]


def test_reports_the_line_of_a_comment_where_the_host_allows_none(tmp_path: Path) -> None:
    file = put(tmp_path / "c.json", '{\n  // mine\n  "mcpServers": {}\n}')
    with pytest.raises(ConfigError, match="line 2"):
        change_to_add(HOSTS["claude-desktop"], "ava", LAUNCH, file)


def test_does_not_touch_servers_that_are_not_a_table(tmp_path: Path) -> None:
    file = put(tmp_path / "c.json", '{"mcpServers": ["x"]}')
    with pytest.raises(ConfigError, match=r"mcpServers.*not a table.*left alone"):
        change_to_add(HOSTS["cursor"], "ava", LAUNCH, file)
    put(file, '["x"]')
    with pytest.raises(ConfigError, match="left alone"):
        change_to_add(HOSTS["cursor"], "ava", LAUNCH, file)


def test_does_not_touch_a_file_that_is_not_text(host: Host, file: Path) -> None:
    put(file, "")
    file.write_bytes('{"a": "é"}'.encode("utf-16"))
    with pytest.raises(ConfigError, match=r"UTF-8.*left alone"):
        change_to_add(host, "ava", LAUNCH, file)


@pytest.mark.skipif(os.name != "posix", reason="modes and owners as POSIX has them")
class TestFilesThatMayNotBeChanged:
    def test_does_not_touch_a_read_only_file(self, host: Host, file: Path) -> None:
        put(file, OTHERS[host.name]).chmod(0o444)
        with pytest.raises(ConfigError, match=r"read-only.*left alone"):
            change_to_add(host, "ava", LAUNCH, file)

    @pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a file away")
    def test_does_not_touch_a_file_of_another_user(self, host: Host, file: Path) -> None:
        put(file, OTHERS[host.name])
        os.chown(file, 12345, 12345)
        with pytest.raises(ConfigError, match=r"another user.*left alone"):
            change_to_add(host, "ava", LAUNCH, file)
        assert file.stat().st_uid == 12345

    def test_changes_the_target_of_a_link_and_keeps_the_link(self, host: Host, file: Path, tmp_path: Path) -> None:
        real = put(tmp_path / "dotfiles" / "real", OTHERS[host.name])
        file.parent.mkdir()
        file.symlink_to(real)
        change = change_to_add(host, "ava", LAUNCH, file)
        backup = apply(change)
        assert change.target == real and file.is_symlink() and entry(host, real)
        assert backup is not None and backup.parent == real.parent

    def test_creates_the_missing_target_of_a_link(self, host: Host, file: Path, tmp_path: Path) -> None:
        file.parent.mkdir()
        file.symlink_to(tmp_path / "dotfiles" / "real")
        add(host, file)
        assert file.is_symlink() and entry(host, tmp_path / "dotfiles" / "real")

    def test_does_not_touch_a_link_to_itself(self, host: Host, file: Path) -> None:
        file.parent.mkdir()
        file.symlink_to(file)
        with pytest.raises(ConfigError, match="left alone"):
            change_to_add(host, "ava", LAUNCH, file)

    def test_does_not_touch_a_folder_or_a_pipe_in_place_of_the_file(self, host: Host, file: Path) -> None:
        file.mkdir(parents=True)
        with pytest.raises(ConfigError, match="left alone"):
            change_to_add(host, "ava", LAUNCH, file)
        file.rmdir()
        os.mkfifo(file)
        with pytest.raises(ConfigError, match="left alone"):
            change_to_add(host, "ava", LAUNCH, file)

    def test_a_read_only_folder_leaves_the_file_unchanged(self, host: Host, tmp_path: Path) -> None:
        plain = put(tmp_path / "plain", "a file where a folder should be")
        with pytest.raises(ConfigError, match="left"):
            add(host, plain / "config")

    def test_keeps_the_permissions_of_the_file(self, host: Host, file: Path) -> None:
        put(file, OTHERS[host.name]).chmod(0o640)
        backup = add(host, file)
        assert backup is not None
        assert stat.S_IMODE(file.stat().st_mode) == stat.S_IMODE(backup.stat().st_mode) == 0o640


def test_keeps_what_another_program_wrote_in_the_meantime(host: Host, file: Path) -> None:
    put(file, OTHERS[host.name])
    change = change_to_add(host, "ava", LAUNCH, file)
    put(file, OTHERS[host.name] + "\n")
    with pytest.raises(ConfigError, match="another program"):
        apply(change)
    assert file.read_bytes().decode() == OTHERS[host.name] + "\n"
    assert list(file.parent.iterdir()) == [file]


def test_a_second_backup_never_overwrites_the_first(host: Host, file: Path) -> None:
    put(file, OTHERS[host.name])
    backups = {add(host, file)}
    for _ in range(3):
        backups.add(apply(change_to_remove(host, "ava", file)))
        backups.add(add(host, file))
    assert len(backups) == 7 and all(backup is not None and backup.exists() for backup in backups)


def test_never_writes_or_shows_a_key(host: Host, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ava_server.hosts.launching import launch

    names = (*KEY_VARIABLES, "AVA_MODEL_API_KEY", "AVA_KEY_LOCAL")
    env = {**dict.fromkeys(names, SECRET), "AVA_MODEL": "m", "AVA_DATA_ROOT": "/srv/ava"}
    put(file, OTHERS[host.name].replace(SECRET, "theirs"))
    change = change_to_add(host, "ava", launch(env=env), file)
    apply(change)
    assert SECRET not in file.read_bytes().decode() and SECRET not in "\n".join(change.lines)
    assert "/srv/ava" in file.read_bytes().decode()


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ('{"permission": "allow"}', False),
        ('{"permission": {"ava_confirm_spawn": "allow"}}', False),
        ('{"permission": "ask"}', True),
        ('{"permission": {"bash": "allow"}}', True),
        ("{}", True),
    ],
)
def test_keeps_opencodes_setting_not_to_ask_and_tells_the_user(tmp_path: Path, text: str, asks: bool) -> None:
    host, file = HOSTS["opencode"], put(tmp_path / "opencode.json", text)
    for _ in range(2):
        change = change_to_add(host, "ava", LAUNCH, file)
        assert [note for note in change.notes if "confirm_spawn" in note] == list(change.notes)
        assert bool(change.notes) is not asks
        if not change.nothing:
            apply(change)
    before, after = json.loads(text).get("permission", {}), said(host, file)["permission"]
    assert after == before if isinstance(before, str) else {"ava_confirm_spawn": "ask", **before} == after


@pytest.mark.parametrize("mode", ["prompt", "auto", "approve"])
def test_leaves_the_approval_mode_of_codex_to_the_person(tmp_path: Path, mode: str) -> None:
    host, file = HOSTS["codex"], tmp_path / "config.toml"
    apply(change_to_add(host, "ava", LAUNCH, file))
    assert "approval_mode" not in file.read_text(), "Codex asks by itself where Ava cannot"
    put(file, f'{file.read_text()}\n[mcp_servers.ava.tools.confirm_spawn]\napproval_mode = "{mode}"\n')
    change = change_to_add(host, "ava", LAUNCH, file)
    assert change.nothing and change.notes == ()
    apply(change_to_remove(host, "ava", file))
    assert not file.exists() or "approval_mode" not in file.read_text()


def test_does_not_restore_what_the_user_removed_from_the_entry(tmp_path: Path) -> None:
    host, file = HOSTS["vscode"], tmp_path / "mcp.json"
    apply(change_to_add(host, "ava", Launch("/opt/ava/bin/ava"), file))
    data = json.loads(file.read_bytes())
    del data["servers"]["ava"]["env"], data["inputs"]
    put(file, json.dumps(data))
    assert change_to_add(host, "ava", Launch("/opt/ava/bin/ava"), file).nothing

    host, file = HOSTS["codex"], tmp_path / "config.toml"
    put(file, '[mcp_servers.ava]\ncommand = "/opt/ava/bin/ava"\nargs = ["serve"]\n')
    apply(change_to_add(host, "ava", Launch("/opt/ava/bin/ava"), file))
    assert set(said(host, file)["mcp_servers"]["ava"]) == {"command", "args"}


# -- what an edit must not touch --------------------------------------------------------------------------------------


def undone(host: Host, file: Path, before: str, edit: Callable[[str], str]) -> str:
    """Put Ava in, have a person edit the file, take Ava out again."""
    put(file, before)
    add(host, file)
    put(file, edit(file.read_bytes().decode()))
    apply(change_to_remove(host, "ava", file))
    return file.read_bytes().decode()


def test_never_reverts_what_the_user_changed_in_the_meantime(tmp_path: Path) -> None:
    host, file = HOSTS["cursor"], tmp_path / "mcp.json"
    comment = '{\n  // old\n  "a": 1\n}\n'
    assert undone(host, file, comment, lambda text: text.replace("// old", "// NEW")) == comment.replace("old", "NEW")
    for before, edit in (
        ('{\n  "a": 0,\n  "on": true\n}\n', ('"a": 0', '"a": false')),
        ('{\n  "a": 1,\n  "b": {}\n}\n', ('"b": {}', '"b": []')),
        ('{\n  "x": 1,\n  "y": 2\n}\n', ('"x": 1,\n  "y": 2', '"y": 2,\n  "x": 1')),
    ):
        assert undone(host, file, before, lambda text: text.replace(*edit)) == before.replace(*edit)  # noqa: B023


def test_ignores_a_planted_backup(tmp_path: Path) -> None:
    host, file = HOSTS["cursor"], tmp_path / "mcp.json"
    (tmp_path / "mcp.json.ava-backup-20990101T000000Z").write_text('{"a": true, "mcpServers": {}}')
    text = '{\n  "a": 1\n}\n'
    put(file, text)
    add(host, file)
    apply(change_to_remove(host, "ava", file))
    assert file.read_text() == text


@pytest.mark.parametrize("moved", [False, True], ids=["taken out", "brought up to date"])
def test_keeps_toml_comments_below_avas_tables(tmp_path: Path, moved: bool) -> None:
    host, file = HOSTS["codex"], put(tmp_path / "config.toml", 'model = "x"\n')
    add(host, file)
    below = '\n# PROFILES: ask Bob\n[profiles.fast] # quick\nmodel = "y"\n# the end\n'
    put(file, file.read_text() + below)
    apply(change_to_add(host, "ava", Launch("/new/ava"), file) if moved else change_to_remove(host, "ava", file))
    assert file.read_text().endswith(below)
    assert file.read_text() == ('model = "x"\n' + below) or moved
    assert said(host, file)["profiles"] == {"fast": {"model": "y"}}


def test_keeps_a_table_that_only_a_comment_is_left_in(tmp_path: Path) -> None:
    host, file = HOSTS["cursor"], tmp_path / "mcp.json"
    off = '{\n  "mcpServers": {\n    // "github": {"command": "off for now"}\n  }\n}\n'
    put(file, off)
    add(host, file)
    for backup in tmp_path.glob("*ava-backup*"):
        backup.unlink()
    apply(change_to_remove(host, "ava", file))
    assert "off for now" in file.read_text()
    host, file = HOSTS["codex"], tmp_path / "config.toml"
    off = "[mcp_servers]\n# [mcp_servers.github] off for now\n\n# about model:\n[model]\nx = 1\n"
    put(file, off)
    add(host, file)
    apply(change_to_remove(host, "ava", file))
    assert file.read_text() == off


def test_updating_an_entry_changes_only_its_command(tmp_path: Path) -> None:
    host, file = HOSTS["cursor"], tmp_path / "mcp.json"
    text = (
        '{"mcpServers": {"ava": {\n  // pinned on purpose\n  "command": "/old/ava", /* here */\n  "args": ["serve"],\n'
        '  "x": [1e999, 0.10000000000000000001, 1e2], "note": "a\\ud800b"\n}}}\n'
    )
    put(file, text)
    change = change_to_add(host, "ava", Launch("/opt/ava"), file)
    apply(change)
    assert file.read_text() == text.replace("/old/ava", "/opt/ava")
    assert change.lines == ('mcpServers.ava.command = "/opt/ava"',)
    host, file = HOSTS["codex"], tmp_path / "config.toml"
    text = "[mcp_servers.ava]\ncommand = '/old/ava'  # why\nargs = [ 'serve' ]\ntool_timeout_sec = 0x14\n"
    put(file, text)
    apply(change_to_add(host, "ava", Launch("/opt/ava"), file))
    assert file.read_text().startswith(text.replace("'/old/ava'", '"/opt/ava"'))


def test_keeps_an_entry_that_starts_ava_in_another_way(host: Host, file: Path) -> None:
    add(host, file, Launch("uv", ("run", "--project", "/opt/ava", "--no-dev", "ava", "serve")))
    change = change_to_add(host, "ava", Launch("/other/ava"), file)
    assert change.nothing and "starts Ava with uv" in change.notes[0]
    apply(change_to_remove(host, "ava", file))
    assert not file.exists()


@pytest.mark.parametrize(
    "theirs", [{"command": "npx", "args": ["ava", "serve"]}, None, "ava serve", {"url": "https://x"}]
)
def test_does_not_take_over_an_entry_that_only_looks_like_ava(tmp_path: Path, theirs: object) -> None:
    file = put(tmp_path / "mcp.json", json.dumps({"mcpServers": {"ava": theirs}}))
    with pytest.raises(ConfigError, match="not Ava"):
        change_to_add(HOSTS["cursor"], "ava", LAUNCH, file)


def test_keeps_an_input_that_another_server_uses(tmp_path: Path) -> None:
    host, file = HOSTS["vscode"], tmp_path / "mcp.json"
    apply(change_to_add(host, "one", LAUNCH, file))
    apply(change_to_add(host, "two", LAUNCH, file))
    apply(change_to_remove(host, "one", file))
    assert said(host, file)["inputs"] and "${input:" in file.read_text()
    apply(change_to_remove(host, "two", file))
    assert "inputs" not in file.read_text() if file.exists() else True


@pytest.mark.parametrize("env", ["x", [1], 5])
def test_does_not_touch_variables_that_are_not_a_table(tmp_path: Path, env: object) -> None:
    entry = {"command": "/x/ava", "args": ["serve"], "env": env}
    file = put(tmp_path / "mcp.json", json.dumps({"mcpServers": {"ava": entry}}))
    with pytest.raises(ConfigError, match=r"env .*not a table.*left alone"):
        change_to_add(HOSTS["cursor"], "ava", LAUNCH, file)


def test_does_not_touch_a_file_nested_too_deeply(host: Host, file: Path) -> None:
    deep = "[" * 900 + "]" * 900
    put(file, f"a = {deep}\n" if host.name == "codex" else f'{{"a": {deep}}}')
    try:
        add(host, file)
    except ConfigError as error:
        assert "left alone" in str(error)


def test_removing_the_entry_keeps_the_link_and_its_target(tmp_path: Path) -> None:
    host, link, real = HOSTS["cursor"], tmp_path / "mcp.json", tmp_path / "real.json"
    link.symlink_to(real)
    add(host, link)
    apply(change_to_remove(host, "ava", link))
    assert link.is_symlink() and real.exists() and host.format.parse(real.read_text()) == {}


def test_a_failed_write_leaves_no_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host, file = HOSTS["cursor"], put(tmp_path / "mcp.json", "{}")
    change = change_to_add(host, "ava", LAUNCH, file)

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(ConfigError, match="No space left on device"):
        apply(change)
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == [file] and file.read_text() == "{}"


OTHERS: dict[str, str] = {
    "claude-desktop": """{
  "mcpServers": {
    "other": {"command": "x", "env": {"K": "sk-or-v1-0a1b2c3d4e5f60718293a4b5c6d7e8f9"}}
  },
  "theme": "dark"
}
""",
    "claude-code": """{
  "numStartups": 3,
  "mcpServers": {"other": {"type": "stdio", "command": "x"}},
  "projects": {}
}""",
    "codex": """# mine
model = "gpt"  # the good one

[mcp_servers.other]
command = "x"

[profiles.p]
model = "y"
""",
    "cursor": """{
\t"mcpServers": {
\t\t// a comment
\t\t"other": {"command": "x"}, // another
\t}
}
""",
    "vscode": """{
  "inputs": [
    // mine
    {"type": "promptString", "id": "k"}
  ],
  "servers": {
    "other": {}
  }
}
""",
    "opencode": """{
  // theirs
  "$schema": "https://opencode.ai/config.json",
  "permission": {"bash": "ask"},
  "mcp": {},
}
""",
    "gemini": """{
  /* kept */
  "ui": {"theme": "x"},
  "mcpServers": {
    "other": {"command": "x"}
  }
}
""",
    "copilot": """{
  "mcpServers": {
    "other": {"type": "local", "command": "x", "args": [], "tools": ["*"]}
  }
}
""",
    "qwen-code": """{
  // theirs
  "mcpServers": {
    "other": {"command": "x"}
  },
  "ui": {}
}
""",
    "cline": """{
  "mcpServers": {
    "other": {"command": "x", "disabled": true}
  }
}
""",
    "continue": """# mine
name: my assistant
version: 1.0.0
schema: v1
mcpServers:
  - name: other  # theirs
    command: x

models:
  - name: m
    provider: openai
""",
    "goose": """GOOSE_PROVIDER: openai
extensions:
  developer:
    enabled: true  # theirs
    type: builtin
    name: developer
# the end
GOOSE_MODE: smart_approve
""",
}
"""For each host a configuration with something in it, in the manner of that host."""


def yaml(host: Host) -> bool:
    return isinstance(host.format, Yaml)


def put(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text.encode())
    return file


def add(host: Host, file: Path, launch: Launch = LAUNCH) -> Path | None:
    return apply(change_to_add(host, "ava", launch, file))


def said(host: Host, file: Path) -> Any:
    return host.format.parse(file.read_bytes().decode().removeprefix("\ufeff"))


def entry(host: Host, file: Path) -> Any:
    servers = said(host, file)[host.servers]
    return next(each for each in servers if each["name"] == "ava") if host.in_list else servers["ava"]
