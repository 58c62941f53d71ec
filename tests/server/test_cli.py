import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from ava_audit.errors import SchemaNewer, StoreUnavailable
from ava_roles.errors import RoleFileError, UnknownRole
from ava_server.cli import app
from ava_server.errors import AvaError, BadInput, ConfigError, ModelTimeout, Refused

VALUE = "sk-or-v1-0a1b2c3d4e5f60718293a4b5c6d7e8f9"


def ava(root: Path | str, *args: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ava_server", *args],
        env={"PATH": os.environ["PATH"], "AVA_DATA_ROOT": str(root), **env},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_a_key_is_stored_from_a_pipe_listed_without_its_value_and_removed(tmp_path: Path) -> None:
    root = tmp_path / "data"
    stored = ava(root, "key", "set", "openrouter", stdin=VALUE + "\n")
    listed = ava(root, "key", "list", BRAVE_API_KEY=VALUE)
    as_json = ava(root, "key", "list", "--json")
    removed = ava(root, "key", "remove", "openrouter")
    again = ava(root, "key", "remove", "openrouter")

    assert stored.stdout.splitlines() == [
        f"Data root: {root}",
        f"Stored the key for openrouter in {root}/keys.toml.",
    ]
    assert listed.stdout.splitlines() == [
        f"Data root: {root}",
        "brave       BRAVE_API_KEY",
        f"openrouter  {root}/keys.toml",
    ]
    assert f'"keys": [{{"provider": "openrouter", "from": "{root}/keys.toml"}}]' in as_json.stdout
    assert removed.stdout.splitlines()[0] == f"Data root: {root}"
    assert (again.returncode, again.stderr.count("\n")) == (2, 1)
    for result in (stored, listed, as_json, removed, again):
        assert VALUE not in result.stdout + result.stderr


def test_a_key_typed_at_a_terminal_is_not_echoed(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "ava_server", "key", "set", "opnerouter"],
        env={"PATH": os.environ["PATH"], "AVA_DATA_ROOT": str(tmp_path)},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    seen = b""
    while b"(not shown): " not in seen:
        seen += os.read(ours, 4096)
    os.write(ours, VALUE.encode() + b"\n")
    while b"Did you mean openrouter?" not in seen:
        seen += os.read(ours, 4096)
    assert process.wait(30) == 0
    os.close(ours)

    assert VALUE.encode() not in seen
    assert VALUE in (tmp_path / "keys.toml").read_text()


def test_an_error_is_one_sentence_without_a_traceback_and_with_its_exit_code(tmp_path: Path) -> None:
    wrong_root = ava("relative/path", "key", "list")
    wrong_value = ava(tmp_path, "key", "set", "openai", stdin="two words of text\n")
    wrong_word = ava(tmp_path, "keys")

    assert (wrong_root.returncode, wrong_value.returncode, wrong_word.returncode) == (30, 2, 2)
    assert wrong_root.stderr.startswith("ava: AVA_DATA_ROOT is ")
    assert "two words" not in wrong_value.stderr
    for result in (wrong_root, wrong_value):
        assert result.stderr.count("\n") == 1
        assert "Traceback" not in result.stderr
    assert "No such command" in wrong_word.stderr


def test_ctrl_c_ends_with_130_and_without_a_traceback(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "ava_server", "key", "set", "openai"],
        env={"PATH": os.environ["PATH"], "AVA_DATA_ROOT": str(tmp_path), "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("Data root: ")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)

    assert process.returncode == 130
    assert "Traceback" not in errors


def test_the_version_and_the_help_name_what_there_is(tmp_path: Path) -> None:
    assert ava(tmp_path, "--version").stdout.startswith("ava 0.")
    assert [word for word in app.COMMANDS if word not in ava(tmp_path, "--help").stdout] == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BadInput("say what"), 2),
        (UnknownRole("say what"), 2),
        (Refused("say what"), 10),
        (ModelTimeout("say what", kind="timeout", sent=True, answered=False, retryable=True), 20),
        (ConfigError("say what"), 30),
        (RoleFileError("say what"), 30),
        (SchemaNewer("say what"), 30),
        (StoreUnavailable("say what"), 70),
        (AvaError("say what"), 70),
        (ExceptionGroup("tasks", [ExceptionGroup("inner", [ConfigError("say what")])]), 30),
        (KeyboardInterrupt(), 130),
        (BaseExceptionGroup("tasks", [KeyboardInterrupt()]), 130),
        (typer.Exit(21), 21),
    ],
)
def test_each_error_has_its_exit_code_wherever_it_was_raised(
    error: BaseException, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert exit_code_of(error, monkeypatch) == code
    assert capsys.readouterr().err == ("ava: say what\n" if code not in (130, 21) else "")


def test_a_bug_beside_an_error_of_ours_is_not_hidden(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    both = ExceptionGroup("tasks", [ConfigError("say what"), ZeroDivisionError("so that")])
    assert exit_code_of(both, monkeypatch) == 70
    assert "ZeroDivisionError: so that" in capsys.readouterr().err


def test_a_bug_keeps_its_traceback(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert exit_code_of(ZeroDivisionError("so that"), monkeypatch) == 70
    text = capsys.readouterr().err
    assert "Traceback" in text
    assert "a fault of Ava's own (ZeroDivisionError)" in text


def exit_code_of(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run a command that raises the error, registered as the others are."""

    def fail() -> None:
        raise error

    class Failing:
        @staticmethod
        def register(app: typer.Typer) -> None:
            app.command("fail")(fail)

    monkeypatch.setitem(sys.modules, "failing_command", Failing)
    monkeypatch.setattr(app, "COMMANDS", {"fail": "failing_command"})
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # Typer sets one
    return app.main(["fail"])


def test_a_command_imports_neither_rich_nor_the_other_commands(tmp_path: Path) -> None:
    program = (
        "import sys; from ava_server.cli.app import main; code = main(['key', 'list']); "
        "sys.exit(code or any(name in sys.modules for name in ('rich', 'mcp', 'tomlkit', 'portalocker')))"
    )
    environment = {"PATH": os.environ["PATH"], "AVA_DATA_ROOT": str(tmp_path)}
    assert subprocess.run([sys.executable, "-c", program], env=environment, check=False).returncode == 0
