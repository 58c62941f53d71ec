"""What killed processes leave is in the data root, closed to others, and removed at a start and by the keeper."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import anyio
import pytest
from support.repositories.projects import checkout
from support.runtime import open_lab
from support.stdio import until

from ava_audit import maintenance
from ava_audit.store.locks import try_hold
from ava_roles.sandbox import temporary
from ava_roles.sandbox.paths import Root
from ava_roles.sandbox.selection import find_sandbox
from ava_roles.texts.store import TextStore
from ava_roles.tool import ToolContext
from ava_roles.tools.files import SearchAndRead, SearchAndReadArgs
from ava_roles.worktree.inspect import inspect_checkout

HOLD = """
import sys, time
from pathlib import Path
from ava_roles.sandbox.temporary import temporary_folder
with temporary_folder("ava-git-", Path(sys.argv[1])) as folder:
    print(folder, flush=True)
    time.sleep(60)
"""


def leave(root: Path) -> list[Path]:
    """Create what killed processes leave, too old to belong to a process that is just starting."""
    left = [root / "sandbox" / "probe-dead", root / "temporary" / "ava-git-dead", root / "instances" / "dead.lock"]
    for folder in left[:2]:
        (folder / "within").mkdir(parents=True)
        (folder / "within" / "file").write_text("x")
        os.utime(folder, (0, 0))
    left[2].parent.mkdir(exist_ok=True)
    left[2].touch()
    return left


async def test_a_start_and_the_keeper_remove_what_killed_processes_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "SWEEP_EVERY_S", 0.05, raising=False)
    root = tmp_path / "data"
    left = leave(root)
    async with open_lab(tmp_path, runs=True):
        await until(lambda: not any(path.exists() for path in left))
        for path in leave(root):
            await until(lambda path=path: not path.exists())  # type: ignore[misc]


async def test_the_keeper_removes_the_texts_of_files_that_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "SWEEP_EVERY_S", 0.05, raising=False)
    file = tmp_path / "folder" / "letter.txt"
    file.parent.mkdir()
    file.write_text("The zeppelin leaves at noon.\n")
    async with open_lab(tmp_path, runs=True) as lab:
        with closing(Root.open(file.parent)) as folder:
            at = ToolContext(files=folder, texts=lab.runtime.texts, run_id="S-1")
            found = await SearchAndRead()(SearchAndReadArgs(query="zeppelin"), at)
        assert "leaves at noon" in found.text
        file.unlink()
        with closing(TextStore(lab.runtime.settings.paths.texts)) as texts:
            await until(lambda: texts.count() == 0)


async def test_git_and_probes_leave_nothing_outside_the_data_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere, used, real = tmp_path / "system", list[Path](), tempfile.mkdtemp
    elsewhere.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(elsewhere))

    def noted(suffix: str | None = None, prefix: str | None = None, dir: Path | None = None) -> str:
        made = real(suffix, prefix, dir)
        used.append(Path(made))
        return made

    monkeypatch.setattr(tempfile, "mkdtemp", noted)
    repository = checkout(tmp_path / "project", {"a.py": "x\n"})
    async with open_lab(tmp_path):
        await anyio.to_thread.run_sync(inspect_checkout, repository, tmp_path / "home")
        await anyio.to_thread.run_sync(find_sandbox, "auto", tmp_path / "data" / "sandbox")
    assert used
    assert [path for path in used if not path.is_relative_to(tmp_path / "data")] == []
    assert [path for path in used if path.exists()] == []


def test_only_folders_of_dead_owners_are_removed(tmp_path: Path) -> None:
    owners = [
        subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        dead, alive = (Path(owner.stdout.readline().strip()) for owner in owners if owner.stdout is not None)
        owners[0].kill()
        owners[0].wait()
        assert dead.is_dir()
        temporary.remove_leftovers(tmp_path)
        assert dead.is_dir(), "its owner may not have locked it yet"
        for folder in (dead, alive):
            os.utime(folder, (time.time() - temporary.STALE_S - 5,) * 2)
        temporary.remove_leftovers(tmp_path)
        assert (dead.exists(), alive.exists()) == (False, True)
        dead.mkdir()
        for ahead_s, removed in ((5, False), (3_600, True)):  # the clock was set back
            for folder in (dead, alive):
                os.utime(folder, (time.time() + ahead_s,) * 2)
            temporary.remove_leftovers(tmp_path)
            assert (dead.exists(), alive.exists()) == (not removed, True)
    finally:
        for owner in owners:
            owner.kill()
            owner.communicate()


@pytest.mark.skipif(os.name != "posix", reason="modes mean nothing there")
async def test_the_folders_of_runs_are_closed_to_others(tmp_path: Path) -> None:
    root = tmp_path / "data"
    for name in ("artifacts", "scratch", "worktrees"):
        (root / name / "S-aaaaaa").mkdir(parents=True)
        for folder in (root / name, root / name / "S-aaaaaa"):
            folder.chmod(0o755)
    async with open_lab(tmp_path):
        open_to_others = [
            str(path.relative_to(root)) for path in root.rglob("*") if path.is_dir() and path.stat().st_mode & 0o077
        ]
    assert open_to_others == []


async def test_the_lock_of_a_living_process_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "SWEEP_EVERY_S", 0.05)
    folder = tmp_path / "data" / "instances"
    folder.mkdir(parents=True)
    held = try_hold(folder / "alive.lock")
    assert held is not None
    (folder / "dead.lock").touch()
    with held:
        async with open_lab(tmp_path):
            await until(lambda: not (folder / "dead.lock").exists())
            assert (folder / "alive.lock").exists()
