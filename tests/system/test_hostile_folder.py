"""A project may contain modules with the names of those that Ava imports. None of them runs, however Ava is started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.stdio import environment, until

from ava_server.core.background import WorkerProcesses
from ava_server.core.data_root import DataRoot
from ava_server.hosts import launching

DEPENDENCIES = ("anyio", "typer", "signal", "pydantic", "sqlite3", "json")
OURS = ("ava_server", "ava_audit", "ava_roles", "runpy")


def set_trap(folder: Path, *modules: str) -> Path:
    """Write modules that record in a file that they were imported; return that file."""
    caught = folder / "caught"
    for name in modules:
        (folder / f"{name}.py").write_text(f"open({str(caught)!r}, 'a').write({name!r} + ' ')\nraise SystemExit(9)\n")
    return caught


@pytest.mark.slow
def test_what_hosts_start_imports_nothing_from_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caught = set_trap(tmp_path, *DEPENDENCIES, *OURS)
    python = tmp_path / "bin" / "python"  # without an `ava` beside it
    monkeypatch.setattr(sys, "executable", str(python))
    launch = launching.launch(env={})
    assert launch.command == str(python)
    monkeypatch.undo()
    done = subprocess.run(
        [sys.executable, *launch.args],
        cwd=tmp_path, env=environment(tmp_path / "data"), input=b"", capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert not caught.exists(), caught.read_text()
    assert done.returncode == 0


def test_python_m_ava_server_imports_no_dependency_from_the_working_folder(tmp_path: Path) -> None:
    caught = set_trap(tmp_path, *DEPENDENCIES)
    done = subprocess.run(
        [sys.executable, "-m", "ava_server", "--version"],
        cwd=tmp_path, env=environment(tmp_path / "data"), capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert not caught.exists(), caught.read_text()
    assert done.returncode == 0, done.stderr


async def test_a_worker_imports_nothing_from_the_data_root(tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir(mode=0o700)
    (root / "config.toml").write_text("enabled = maybe\n")  # the worker reports this and ends at once
    caught = set_trap(root, *DEPENDENCIES, *OURS)
    workers = WorkerProcesses(DataRoot(root))
    await workers()
    words = root / "worker.log"
    await until(lambda: caught.exists() or "config.toml" in words.read_text())
    assert not caught.exists(), caught.read_text()
