"""The same work whoever runs the server: an ordinary user, root, root for somebody else; and a full disk."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from support.repositories.projects import git, write
from support.repositories.workshop_as import work_as
from support.repositories.workshops import FIXED, RUN, checkout_state, open_workshop, order, project
from support.sandboxes.attacks import CONFINED, needs
from support.sandboxes.plain_user import PLAIN, plain_python

from ava_roles.errors import WorktreeFailed
from ava_roles.sandbox import linux
from ava_roles.sandbox.sandbox import Kind
from ava_roles.worktree.session import publish_leftover, remove_worktree

SUPPORT = Path(__file__).parents[1] / "support"
EXPECTED = {
    "passed": [True, True],
    "output": "tool",
    "same": True,
    "changed": ["calc.py", "src/closed", "src/kept.txt", "src/link"],
    "sealed": True,
    "gone": True,
}


def _came_out(found: dict[str, object]) -> None:
    said = str(found["said"])
    assert {name: found[name] for name in EXPECTED} == EXPECTED, found
    for name in (".git", "docs/.git", "docs/guide.md (as it was)", "new.txt (removed)", "pipe"):
        assert name in said


@pytest.mark.parametrize("kind", CONFINED)
async def test_work_succeeds_for_the_current_user(kind: Kind, tmp_path: Path) -> None:
    needs(kind)
    _came_out(await work_as(kind, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("kind", CONFINED)
def test_work_succeeds_for_an_ordinary_user(kind: Kind, for_all: Path) -> None:
    needs(kind)
    if not linux.is_root():
        pytest.skip("this is an ordinary user already")
    if kind == "landlock" and linux.landlock_abi() < 6:
        pytest.skip("the kernel's Landlock cannot keep signals from processes of the same user")
    found = plain_python()
    if found is None:
        pytest.skip("no interpreter here that an ordinary user may run")
    program, path = found
    done = subprocess.run(
        [program, "-B", str(SUPPORT / "repositories" / "workshop_as.py"), str(PLAIN), str(for_all), kind],
        env={"PYTHONPATH": path, "PATH": os.environ["PATH"]},
        cwd="/", capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    _came_out(json.loads(done.stdout))


@pytest.mark.skipif(not linux.is_root(), reason="needs root")
async def test_files_created_by_root_belong_to_the_owner_of_the_repository(tmp_path: Path) -> None:
    needs("bubblewrap")
    repository = project(tmp_path / "project")
    for path in (repository, *repository.rglob("*")):
        os.chown(path, PLAIN, PLAIN, follow_symlinks=False)
    before = checkout_state(repository)
    async with open_workshop("bubblewrap", tmp_path, order(repository)) as shop:
        shop.edits.write("calc.py", FIXED.encode())
        assert (await shop.check()).passed
        branch = shop.keep("Mend add")
    assert branch is not None and checkout_state(repository) == before
    others = [path for path in repository.rglob("*") if path.lstat().st_uid != PLAIN]
    assert others == []


def _full(size: int) -> Iterator[Path]:
    """Hold a file system of so many bytes."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", name], capture_output=True, check=False
        )
        if done.returncode:
            pytest.skip("nothing can be mounted here")
        try:
            yield Path(name)
        finally:
            subprocess.run(["umount", "-l", name], check=True)


@pytest.fixture
def small_disk() -> Iterator[Path]:
    yield from _full(1_500_000)


async def test_a_full_disk_during_creation_is_reported_and_leaves_nothing(small_disk: Path, tmp_path: Path) -> None:
    needs("bubblewrap")
    repository = project(tmp_path / "project")
    write(repository, {"big.bin": "".join(f"{n}\n" for n in range(400_000))})
    git(repository, "add", "big.bin")
    git(repository, "commit", "-qm", "big")
    before = checkout_state(repository)
    (small_disk / "worktrees").mkdir()
    with pytest.raises(WorktreeFailed, match="the disk is full"):
        async with open_workshop("bubblewrap", small_disk, order(repository)):
            pass
    assert checkout_state(repository) == before
    remove_worktree(small_disk / "worktrees" / RUN)
    assert list((small_disk / "worktrees").iterdir()) == []


async def test_a_full_disk_during_a_commit_creates_no_branch_and_allows_a_retry(
    small_disk: Path, tmp_path: Path
) -> None:
    needs("bubblewrap")
    repository = project(small_disk / "project")
    text = "".join(f"{n * 7919 % 1_000_003}\n" for n in range(30_000))
    async with open_workshop("bubblewrap", tmp_path, order(repository), baseline=False) as shop:
        shop.edits.write("calc.py", text.encode())
        filler = small_disk / "filler"
        with filler.open("wb", buffering=0) as file:
            try:
                while file.write(b"x" * 4096):
                    pass
            except OSError:
                pass
        before = checkout_state(repository)
        with pytest.raises(WorktreeFailed, match="disk is full"):
            shop.keep("Mend add")
        assert (
            checkout_state(repository) == before
            and git(repository, "branch", "--format=%(refname:short)") == "master\n"
        )
        filler.unlink()
        git(repository, "fsck", "--full")
    branch = publish_leftover(order(repository), tmp_path / "worktrees" / RUN, tmp_path / "home", "Mend add")
    assert branch is not None and git(repository, "show", f"{branch.name}:calc.py") == text


async def test_reports_an_exceeded_file_size_limit_as_a_full_disk(tmp_path: Path) -> None:
    needs("bubblewrap")
    repository = project(tmp_path / "project", {"big.txt": "x" * 3_000_000, "calc.py": "1\n"})
    before = checkout_state(repository)
    code = (
        "import resource, sys, anyio; from pathlib import Path; from support.repositories.workshops import *\n"
        "async def main():\n"
        "    here = Path(sys.argv[1])\n"
        "    async with open_workshop('bubblewrap', here, order(here / 'project'), baseline=False): pass\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))\n"
        "try: anyio.run(main)\n"
        "except Exception as e: print(type(e).__name__, e)\n"
    )
    done = await anyio.run_process(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=SUPPORT.parent,
        env={**os.environ, "PYTHONPATH": str(SUPPORT.parent)},
        check=False,
    )
    said = done.stdout.decode()
    assert said.startswith("WorktreeFailed") and "file size" in said, said
    assert (
        checkout_state(repository) == before and resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    )
    assert not (tmp_path / "worktrees" / RUN / "tree").exists()
