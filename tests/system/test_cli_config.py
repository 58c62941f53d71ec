"""`ava config` as a person uses it: settings shown with their origin, and changed with their comments kept."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest
from support.http_server import serve_http
from support.terminal import ava

FILE = """# mine
approval = "ask"  # because of the team

[limits]
# few
running = 4
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "config.toml").write_text(FILE)
    return tmp_path


def config(root: Path, *args: str, code: int = 0, env: dict[str, str] | None = None) -> str:
    done = ava(root, "config", *args, env=env)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stderr if code else done.stdout


def test_lists_every_setting_with_its_value_and_origin(root: Path) -> None:
    rows = {}
    for line in config(root, "list", env={"AVA_MIRROR": "false"}).splitlines()[1:]:
        name, value, origin = line.split()
        rows[name] = (value, origin)
    assert rows["limits.running"] == ("4", "config.toml") and rows["approval"] == ('"ask"', "config.toml")
    assert rows["mirror"] == ("false", "AVA_MIRROR") and rows["limits.running_per_user"] == ("3", "default")
    whole = json.loads(config(root, "list", "--json"))
    assert {"name": "limits.running", "value": 4, "from": "config.toml"} in whole["settings"]
    assert config(root, "get", "limits.running") == "4\n"


def test_sets_and_unsets_a_value_and_keeps_comments_and_permissions(root: Path) -> None:
    file = root / "config.toml"
    file.chmod(0o644)
    said = config(root, "set", "limits.running", "6")
    assert f"limits.running is now 6 in {file}; before, it was 4." in said and "restart" not in said
    config(root, "set", "on_event", '["/usr/bin/true", "x"]')
    config(root, "set", "providers.mine.base_url", "https://models.example/v1")
    text = file.read_text()
    assert text.startswith(FILE.replace("4", "6").split("[limits]")[0].rstrip()) and "# few\nrunning = 6" in text
    assert config(root, "get", "on_event") == '["/usr/bin/true", "x"]\n'
    assert config(root, "get", "providers.mine.base_url") == '"https://models.example/v1"\n'
    assert "limits.running is now its default" in config(root, "unset", "limits.running")
    config(root, "set", 'prices."local:a"', "{input = 1, output = 2}")
    assert 'prices."local:a" is now not set' in config(root, "unset", 'prices."local:a"'), "it has no default"
    assert config(root, "get", "limits.running") == "10\n"
    if sys.platform != "win32":
        assert stat.S_IMODE(file.stat().st_mode) == 0o644


def test_creates_the_file_for_its_owner_alone_and_follows_a_link(tmp_path: Path) -> None:
    config(tmp_path / "new", "set", "mirror", "false")
    made = tmp_path / "new" / "config.toml"
    assert made.read_text() == "mirror = false\n" and stat.S_IMODE(made.stat().st_mode) == 0o600
    (tmp_path / "dotfiles.toml").write_text("mirror = true\n")
    made.unlink()
    made.symlink_to(tmp_path / "dotfiles.toml")
    config(tmp_path / "new", "set", "mirror", "false")
    assert made.is_symlink() and (tmp_path / "dotfiles.toml").read_text() == "mirror = false\n"


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("set", "limits.runing", "3"), 2, 'did you mean "limits.running"?'),
        (("get", "limits.runing"), 2, "did you mean"),
        (("set", "limits.running", "--", "-1"), 30, "limits.running is -1"),
        (("set", "limits.running", "many"), 30, 'limits.running is "many"'),
        (("set", "approval", "never"), 30, "approval is"),
        (("set", "limits", "3"), 30, "limits"),
        (("set", "approval.x", "3"), 2, "approval has no settings below it"),
        (("set", "", "3"), 2, "is not a setting"),
        (("set", "providers.mine.api_key", "sk-ant-api03-" + "a1B2" * 20), 30, "key"),
    ],
)
def test_a_value_that_cannot_be_is_refused_and_the_file_stays(
    root: Path, args: tuple[str, ...], code: int, says: str
) -> None:
    error = config(root, *args, code=code)
    assert says.replace('"', "") in error.replace('"', "") and "Traceback" not in error
    assert (root / "config.toml").read_text() == FILE


@pytest.mark.slow
async def test_says_when_running_processes_have_the_old_value_and_when_a_variable_overrides_it(root: Path) -> None:
    async with serve_http(root):
        assert "restart the hosts, or `ava serve`" in config(root, "set", "limits.running", "5")
    said = config(root, "set", "mirror", "true", env={"AVA_MIRROR": "false"})
    assert "In this shell AVA_MIRROR overrides it." in said


def test_a_subagent_changes_no_setting(root: Path) -> None:
    assert "ava config" in config(root, "set", "mirror", "false", code=2, env={"AVA_RUN_ID": "S-aaaaaa"})
    assert (root / "config.toml").read_text() == FILE


def test_a_broken_file_is_named_and_not_replaced(root: Path) -> None:
    (root / "config.toml").write_text("approval = [")
    assert "is not valid TOML" in config(root, "set", "mirror", "false", code=30)
    assert (root / "config.toml").read_text() == "approval = ["
    (root / "config.toml").write_text("limits.running = ")
    for words in (("set", "mirror", "false"), ("get", "mirror")):
        assert "Invalid value (at end of document)" in config(root, *words, code=30)


def test_a_byte_order_mark_is_not_read_and_stays(root: Path) -> None:
    (root / "config.toml").write_text("mirror = false\n", "utf-8-sig")
    assert "false" in config(root, "get", "mirror")
    config(root, "set", "mirror", "true")
    assert (root / "config.toml").read_bytes() == b"\xef\xbb\xbfmirror = true\n"
    ran = ava(root, "run", "researcher", "x", "--yes", "--max-cost", "1", cwd=Path("/"))
    assert "no language model is used" in ran.stderr, ran.stderr
