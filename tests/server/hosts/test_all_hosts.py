"""`ava init --all` and `ava hosts`: every host that is found, one question, and who approves where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from support.terminal import CONTROLLED, Screen, ava, run_on_terminal

from ava_server.config.pin import PinFile
from ava_server.core.data_root import DataRoot
from ava_server.hosts.clients import known_clients

pytestmark = pytest.mark.slow

PIN = "839217"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The home of somebody with Claude Code, Cline and Continue, one of which cannot be changed."""
    folder = tmp_path / "home"
    for place in (".cline/data/settings", ".continue", ".qwen"):
        (folder / place).mkdir(parents=True)
    (folder / ".claude.json").write_text('{"mcpServers": {}}\n')
    (folder / ".continue" / "config.yaml").write_text("name: mine\nversion: 1.0.0\nschema: v1\n")
    (folder / ".qwen" / "settings.json").write_text("{ broken")
    return folder


def all_hosts(home: Path, answers: list[tuple[str, str]]) -> tuple[int, str]:
    env = {"HOME": str(home)}
    with run_on_terminal(home / "data", "init", "--all", cwd=home, command=CONTROLLED, env=env) as screen:
        return ended(screen, answers), screen.text


def ended(screen: Screen, answers: list[tuple[str, str]]) -> int:
    code: int = screen.ended_after(answers)
    return code


def test_adds_ava_to_every_host_after_one_question_connects_and_offers_the_pin(home: Path) -> None:
    code, screen = all_hosts(
        home,
        [("Change 3 files?", "y"), ("Choose the PIN now?", "y"), ("New approval PIN (", PIN), ("once more", PIN)],
    )
    assert code == 0 and "with 6 tools" in screen, screen
    assert "It is left out" in screen and "In Cline CLI, Continue CLI you approve in Ava" in " ".join(screen.split())
    assert "ava" in json.loads((home / ".claude.json").read_text())["mcpServers"]
    assert "ava" in json.loads((home / ".cline/data/settings/cline_mcp_settings.json").read_text())["mcpServers"]
    [server] = yaml.safe_load((home / ".continue/config.yaml").read_text())["mcpServers"]
    assert server["name"] == "ava" and server["args"] == ["serve"]
    assert (home / ".qwen" / "settings.json").read_text() == "{ broken"
    PinFile(DataRoot(home / "data").approval_file).check(PIN)


def test_a_no_changes_nothing(home: Path) -> None:
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    code, screen = all_hosts(home, [("Change 3 files?", "n")])
    assert code == 0 and "Nothing was changed." in screen
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == before


def test_without_a_terminal_or_a_host_nothing_is_changed(home: Path, tmp_path: Path) -> None:
    before = (home / ".claude.json").read_bytes()
    done = ava(home / "data", "init", "--all", env={"HOME": str(home)}, cwd=home)
    assert done.returncode == 10 and "no terminal" in done.stderr
    assert (home / ".claude.json").read_bytes() == before
    (tmp_path / "empty").mkdir()
    done = ava(tmp_path / "data", "init", "--all", env={"HOME": str(tmp_path / "empty")}, cwd=tmp_path)
    assert done.returncode == 2 and "No configuration of a known host was found" in done.stderr


def test_shows_who_approves_in_each_host_and_all_facts_of_one(tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    (root / "config.toml").write_text('[hosts.cline]\napproval = "ask"\n')
    shown = json.loads(ava(root, "hosts", "--json").stdout)["hosts"]
    assert [row["host"] for row in shown] == [client.id for client in known_clients() if client.id]
    approves = {row["host"]: row["approves"] for row in shown}
    assert (approves["claude-code"], approves["claude-desktop"], approves["cline"]) == ("ask", "human", "ask")
    one = ava(root, "hosts", "claude-desktop").stdout
    assert "you, in Ava" in one and "claude-ai" in one
    wrong = ava(root, "hosts", "claude-dekstop")
    assert wrong.returncode == 2 and "Did you mean claude-desktop?" in wrong.stderr
