"""No mistake of a user ends in a traceback: every command, with whatever may be wrong around it."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.terminal import COMMAND, environment
from support.tool_examples import must_list

from ava_server.cli.app import COMMANDS

pytestmark = pytest.mark.slow

WELL = (0, 1, 2, 10, 15, 30)
"""Nothing wrong, a fault found, usage, not approved, cancelled, configuration."""
EACH: dict[str, tuple[str, ...]] = {
    "serve": ("serve",),
    "run": ("run", "custom", "a task"),
    "approve": ("approve", "P-00000000"),
    "reject": ("reject", "P-00000000"),
    "resume": ("resume", "S-000000"),
    "worker": ("worker", "--nonsense"),
    "connect": ("connect", "--port", "0"),
    "status": ("status", "--once"),
    "ui": ("ui", "--sign-out"),
    "show": ("show", "S-000000"),
    "report": ("report",),
    "wait": ("wait", "S-000000"),
    "send": ("send", "S-000000", "hello"),
    "cancel": ("cancel", "S-000000"),
    "logs": ("logs",),
    "fetch": ("fetch", "S-000000"),
    "erase": ("erase", "S-000000"),
    "backup": ("backup", "copy"),
    "restore": ("restore", "copy"),
    "export": ("export", "copy"),
    "import": ("import", "copy"),
    "migrate": ("migrate",),
    "verify": ("verify",),
    "pin": ("pin", "remove"),
    "passkey": ("passkey", "add", "laptop"),
    "models": ("models",),
    "roles": ("roles",),
    "key": ("key", "list"),
    "secret": ("secret", "list"),
    "memory": ("memory",),
    "config": ("config", "list"),
    "token": ("token", "list"),
    "user": ("user", "list"),
    "demo": ("demo", "/proc/nowhere"),
    "init": ("init", "codex", "--print"),
    "agents": ("agents",),
    "hosts": ("hosts",),
    "eval": ("eval", "replay", "S-000000"),
    "doctor": ("doctor",),
    "completion": ("completion", "bash"),
}
"""A way to call each command that needs nothing to be there."""
WRONG: tuple[tuple[str, ...], ...] = (
    ("statsu",), ("--nonsense",), ("run", "reseacher", "x", "--yes", "--max-cost", "0.1"), ("run", "--modle", "x"),
    ("run", "custom"), ("run", "custom", "x", "--max-cost", "much"), ("run", "custom", "x", "--timeout", "soon"),
    ("run", "custom", "x", "--output-schema", "/"), ("run", "custom", "x", "--output-schema", "/nowhere"),
    ("run", "custom", "x", "--workspace", "/nowhere"), ("run", "custom", "x", "--out", "/nowhere/x"),
    ("run", "custom", "x", "--retry", "S-1"), ("run", "custom", "x", "--context-from", "nobody"),
    ("run", "custom", "x", "--max-tokens", "-1"), ("run", "custom", "\udce4 x"),
    ("show",), ("show", "S-12345g"), ("show", "P-12"), ("show", "\udcff"), ("show", "S-000000", "--cost", "--diff"),
    ("logs", "--type", "tol"), ("logs", "--since", "noon-ish"), ("logs", "--last", "0"), ("logs", "--level", "eror"),
    ("logs", "--agent", "me"), ("logs", "--search", '"'), ("logs", "export", "--output", "/nowhere/x"),
    ("logs", "export", "--output", "/"), ("logs", "--user", "\udcff"),
    ("report", "--since", "2099-01-01"), ("report", "--group", "S-1"), ("report", "--until", "x"),
    ("approve", "P-1", "--group-max", "x"), ("reject", "nobody"), ("cancel",), ("cancel", "G-1"), ("wait", "x"),
    ("send", "S-000000"), ("erase", "x"), ("backup", "/"), ("backup",),
    ("restore", "/nowhere"), ("restore", "/"), ("verify", "--head", "x"), ("verify", "--jsonl", "/nowhere"),
    ("verify", "--jsonl", "/"), ("models", "nobody"), ("roles", "show", "codr"), ("roles", "check", "/nowhere"),
    ("roles", "check", "/"), ("roles", "new", "a b"), ("roles", "trust", "/nowhere"), ("key", "set"),
    ("key", "set", "openruter"), ("key", "lst"), ("secret", "set", "a b"), ("memory", "show", "../x"),
    ("memory", "add", "x" * 300, "y"), ("config", "set", "\udcff", "1"), ("config", "get", "a.b.c"),
    ("config", "set", "mirror", "\udcff"), ("config",), ("token", "create", "a b"), ("token", "revoke", "nobody"),
    ("init",), ("init", "codx"), ("init", "codex", "--file", "/"), ("init", "codex", "--name", "a b"),
    ("hosts", "cluade"), ("agents", "lst"), ("agents", "list", "cluade"),
    ("eval",), ("eval", "replay"), ("eval", "replay", "/nowhere"), ("eval", "replay", "/"),
    ("eval", "replay", "S-000000", "--role", "/nowhere"), ("eval", "replay", "S-000000", "--model", "nobody"),
    ("eval", "add", "S-000000", "--to", "/"), ("eval", "run", "nowhere"), ("eval", "run", "\udcff"),
    ("eval", "run", "starter", "--yes"), ("eval", "run", "starter", "--model", "nobody"),
    ("eval", "run", "starter", "--tries", "-1"), ("eval", "run", "starter", "--role", "codr"),
    ("eval", "run", "starter", "--html", "/nowhere/x"), ("eval", "run", "starter", "--html", "/"),
    ("eval", "compare", "x", "/"), ("completion", "basj"),
    ("--url", "ftp://x", "approve"), ("--token-file", "/", "approve"),
    ("--url", "http://127.0.0.1:9", "--token-file", "/nowhere", "approve"), ("serve", "--host", "x"),
)  # fmt: skip


NO_MISTAKE = (("logs", "--search", '"'), ("logs", "--user", "\udcff"))
"""Odd, and answered: nothing is found."""


def test_this_test_covers_every_command() -> None:
    must_list("tests/system/test_cli_errors.py: EACH", EACH, COMMANDS, "command")
    assert set(EACH) == set(COMMANDS)


@pytest.mark.parametrize("args", WRONG, ids=lambda args: " ".join(args).encode("ascii", "replace").decode())
def test_wrong_arguments_are_reported_without_a_traceback(tmp_path: Path, args: tuple[str, ...]) -> None:
    done = ava(tmp_path / "data", args, tmp_path)
    well(done, args)
    assert done.returncode != 0 or args in NO_MISTAKE, args


def _file(root: Path) -> None:
    root.write_text("a file")


def _broken(root: Path) -> None:
    root.mkdir(mode=0o700)
    (root / "config.toml").write_text("[[[ = ")


def _folder(root: Path) -> None:
    (root / "config.toml").mkdir(parents=True)
    (root / "keys.toml").mkdir()
    (root / "memory").write_text("a file")
    (root / "roles").write_text("a file")


def _no_database(root: Path) -> None:
    root.mkdir(mode=0o700)
    (root / "ava.db").write_bytes(b"no database" * 1_000)


def _database_folder(root: Path) -> None:
    (root / "ava.db").mkdir(parents=True)
    root.chmod(0o700)


def _nothing(_root: Path) -> None:
    return


SURROUNDINGS: dict[str, tuple[Callable[[Path], None], dict[str, str]]] = {
    "the data root is a file": (_file, {}),
    "config.toml is broken": (_broken, {}),
    "files are folders": (_folder, {}),
    "the log is none": (_no_database, {}),
    "the log is a folder": (_database_folder, {}),
    "the data root cannot be made": (_nothing, {"AVA_DATA_ROOT": "/proc/nowhere"}),
    "the data root is relative": (_nothing, {"AVA_DATA_ROOT": "here"}),
    "nobody knows the locale": (_nothing, {"LANG": "xx_YY", "LC_ALL": "xx_YY", "PYTHONUTF8": "0"}),
    "there is no home": (_nothing, {"HOME": "/nowhere/at/all"}),
    "a setting is wrong": (_nothing, {"AVA_LIMITS__RUNING": "3"}),
}


@pytest.mark.parametrize("name", EACH)
@pytest.mark.parametrize("around", SURROUNDINGS)
def test_every_command_reports_faults_of_its_environment(tmp_path: Path, around: str, name: str) -> None:
    prepare, env = SURROUNDINGS[around]
    root = tmp_path / "data"
    prepare(root)
    well(ava(root, EACH[name], tmp_path, **env), (around, name))


@pytest.mark.parametrize("name", EACH)
def test_a_removed_working_folder_causes_no_traceback(tmp_path: Path, name: str) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = 'cd "$0" && rmdir "$0" && exec "$@"'
    done = subprocess.run(
        ["sh", "-c", script, str(gone), *COMMAND, *EACH[name]],
        env=environment(tmp_path / "data"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=90,
        check=False,
    )
    well(done, name)


@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", ">&-", ">/dev/full", "| true"])
@pytest.mark.parametrize("name", EACH)
def test_closed_streams_cause_no_traceback(tmp_path: Path, name: str, closed: str) -> None:
    if not Path("/dev/full").exists() or shutil.which("sh") is None:
        pytest.skip("this system has no such thing")
    done = subprocess.run(
        ["sh", "-c", f'"$@" {closed}', "sh", *COMMAND, *EACH[name]],
        env=environment(tmp_path / "data"),
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=90,
        check=False,
    )
    said = done.stdout + done.stderr
    assert b"Traceback" not in said and b"fault of Ava's own" not in said, said.decode("utf-8", "replace")
    assert done.returncode in (*WELL, 141), (done.returncode, said.decode("utf-8", "replace"))


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read and write everything")
@pytest.mark.parametrize("name", EACH)
def test_reports_unreadable_files(tmp_path: Path, name: str) -> None:
    root = tmp_path / "data"
    root.mkdir()
    (root / "config.toml").write_text("")
    (root / "config.toml").chmod(0)
    well(ava(root, EACH[name], tmp_path), name)
    (root / "config.toml").chmod(0o600)
    root.chmod(0o500)
    well(ava(root, EACH[name], tmp_path), name)


def well(done: subprocess.CompletedProcess[bytes], what: object) -> None:
    said = (done.stdout or b"") + (done.stderr or b"")
    assert b"Traceback" not in said and b"fault of Ava's own" not in said, f"{what}: {said.decode('utf-8', 'replace')}"
    assert done.returncode in WELL, f"{what}: {done.returncode}, {said.decode('utf-8', 'replace')}"


def ava(root: Path | str, args: tuple[str, ...], cwd: Path, **env: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*COMMAND, *args],
        env=environment(root, **env),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=90,
        check=False,
    )
