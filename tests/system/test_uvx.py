"""From the wheel with uvx, in an empty home: the demo, and `ava init`, which installs Ava first if it is told to."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.repository import REPOSITORY, SETUP_S, environment, from_nothing, run
from support.terminal import CONTROLLED, run_on_terminal

pytestmark = [from_nothing, pytest.mark.skipif(shutil.which("uv") is None, reason="no uv here")]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    run(["uv", "build", "-q", "--wheel", "-o", str(out)], REPOSITORY, os.environ, SETUP_S)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def init(home: Path, wheel: Path, answer: str) -> tuple[Mapping[str, str], str]:
    """Run `uvx ava-subagents init claude-code`; return Claude Code's entry, and what the terminal showed."""
    command = [*CONTROLLED[:4], "uvx", "--from", str(wheel), "ava-subagents"]
    with run_on_terminal(
        home / "data", "init", "claude-code", "--no-allow-tools", cwd=home, command=command, env=environment(home)
    ) as screen:
        screen.until("Install it first?", within_s=SETUP_S)
        screen.type(f"{answer}\n")
        code = screen.ended(within_s=SETUP_S)
    assert code == 0, screen.text
    return json.loads((home / ".claude.json").read_text("utf-8"))["mcpServers"]["ava"], screen.text


def test_the_demo_runs_in_an_empty_home(home: Path, wheel: Path) -> None:
    assert "success" in run(["uvx", "--from", str(wheel), "ava-subagents", "demo"], home, environment(home), SETUP_S)


def test_init_installs_it_first_and_the_entry_outlives_the_cache(home: Path, wheel: Path) -> None:
    entry, _shown = init(home, wheel, "y")
    assert entry["command"] == str(home / ".local" / "bin" / "ava")
    shutil.rmtree(home / ".cache")
    assert run([entry["command"], "--version"], home, environment(home), 60).startswith("ava ")


def test_a_no_names_the_cache_in_the_entry_and_says_that_it_is_cleared(home: Path, wheel: Path) -> None:
    entry, shown = init(home, wheel, "n")
    assert entry["command"].startswith(str(home / ".cache" / "uv"))
    assert "that is a cache, which is cleared from time to time" in " ".join(shown.split())
    assert not (home / ".local" / "bin").exists()
