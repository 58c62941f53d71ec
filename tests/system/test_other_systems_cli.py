"""The command line where nothing special to Linux is there: it asks, it runs, and Ctrl-C ends what it began."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.model_server import Gate, Say, run_model_server
from support.stdio import assert_intact, model_env, read_log
from support.terminal import environment, run_on_terminal

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="plays the other systems on this one"),
    pytest.mark.slow,
]

LAUNCHER = Path(__file__).parents[1] / "support" / "commands" / "other_system.py"
DONE = Say(calls=[("submit_result", {"summary": "done", "output": "twelve cents"})])


@pytest.fixture(params=("win32", "darwin", "bare"))
def command(request: pytest.FixtureRequest) -> list[str]:
    return [sys.executable, str(LAUNCHER), str(request.param), "ava", "1", sys.executable]


@pytest.fixture
def asked_for(tmp_path: Path) -> list[str]:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "notes.md").write_text("Otter charges twelve cents.\n")
    return ["run", "researcher", "What does Otter cost?", "--workspace", str(folder)]


def test_the_demo_works(root: Path, command: list[str]) -> None:
    done = subprocess.run(
        [*command, "demo", "--scripted"], env=environment(root), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "RunEnded success" in done.stdout


def test_yes_in_the_terminal_starts_a_run(root: Path, command: list[str], asked_for: list[str]) -> None:
    with run_model_server([DONE]) as models:
        env = {**model_env(models.base_url), "USERNAME": "somebody"}
        with run_on_terminal(root, *asked_for, command=command, env=env) as screen:
            screen.until("Start it? [y/N]")
            assert models.requests == []
            screen.type("yes\n")
            assert screen.ended() == 0
            assert "twelve cents" in screen.text
    assert_intact(root)


def test_ctrl_c_at_the_question_ends_at_once_and_starts_nothing(
    root: Path, command: list[str], asked_for: list[str]
) -> None:
    with run_model_server([DONE]) as models:
        env = {**model_env(models.base_url), "USERNAME": "somebody"}
        with run_on_terminal(root, *asked_for, command=command, env=env) as screen:
            screen.until("Start it? [y/N]")
            began = time.monotonic()
            screen.interrupt()
            assert screen.ended() == 10
            assert time.monotonic() - began < 15
            assert "Traceback" not in screen.text
        assert models.requests == []
    assert read_log(root, "RunStarted") == []
    assert_intact(root)


def test_ctrl_c_cancels_an_active_run_and_shows_partial_results(
    root: Path, command: list[str], asked_for: list[str]
) -> None:
    gate = Gate()
    script = [Say(calls=[("scratchpad", {"note": "first note"})]), Say("never said", gate=gate)]
    with run_model_server(script) as models:
        process = subprocess.Popen(
            [*command, *asked_for, "--yes", "--max-cost", "1"],
            env=environment(root, **model_env(models.base_url), USERNAME="somebody"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert gate.arrived.wait(20)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=20)
    assert process.returncode == 15, errors
    assert "first note" in out
    assert "Traceback" not in errors
    assert [entry.content["status"] for entry in read_log(root, "RunEnded")] == ["cancelled"]
    assert_intact(root)


def test_notes_can_be_saved_read_and_recalled(root: Path, command: list[str], asked_for: list[str]) -> None:
    def memory(*args: str) -> str:
        done = subprocess.run(
            [*command, "memory", *args],
            env=environment(root, USERNAME="somebody"),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
        return done.stdout

    memory("add", "prices", "Otter charges twelve cents.")
    memory("add", "prices", "Per minute.", "--append")
    assert "Otter charges twelve cents.\nPer minute.\n" in memory("show", "prices")
    (root / "memory" / "link.md").symlink_to(root / "memory" / "prices.md")
    assert len(memory().splitlines()) == 2
    script = [Say(calls=[("recall", {"query": "minute"})]), Say(calls=[("recall", {"name": "link"})]), DONE]
    with run_model_server(script) as models:
        done = subprocess.run(
            [*command, *asked_for, "--yes", "--max-cost", "1"],
            env=environment(root, **model_env(models.base_url), USERNAME="somebody"),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    found, link = [entry.content for entry in read_log(root, "ToolResult") if entry.content["tool"] == "recall"]
    assert found["success"] and "Otter charges twelve cents." in found["output"]
    assert not link["success"] and "it is a link" in link["output"]
    memory("remove", "prices", "--yes")
    assert_intact(root)
