"""kill -9 in each phase of a workshop: the work goes on in the same tree, or is kept; nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.repositories.projects import git, write
from support.repositories.workshop_killed import killed_order
from support.repositories.workshops import FIXED, PROJECT, RUN, checkout_state, open_workshop, project
from support.sandboxes.attacks import needs

from ava_roles.sandbox.sandbox import Kind
from ava_roles.worktree.session import publish_leftover, remove_worktree

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parents[1]


EVERYWHERE = [("make", 0.08), ("running 1", 0.02), ("command", 0.15), ("running 3", 0.03), ("keep", 0.04)]
PHASES = [
    *(("bubblewrap", *each) for each in EVERYWHERE),
    *(("landlock", *each) for each in EVERYWHERE),
    *(("bubblewrap", "make", after_s) for after_s in (0.0, 0.15)),
    ("bubblewrap", "running 2", 0.02),
    ("bubblewrap", "edit", 0.01),
    *(("bubblewrap", "check", after_s) for after_s in (0.01, 0.1)),
    *(("bubblewrap", "keep", after_s) for after_s in (0.0, 0.02, 0.06, 0.09)),
    ("bubblewrap", "kept", 0.0),
]


@pytest.mark.parametrize(("kind", "phase", "after_s"), PHASES)
async def test_a_killed_run_continues_in_the_same_worktree(
    kind: Kind, phase: str, after_s: float, tmp_path: Path
) -> None:
    needs(kind)
    many = {f"data/{number}.txt": f"{number}\n" * 50 for number in range(400)}
    repository = project(tmp_path / "project", {**PROJECT, **many})
    before = checkout_state(repository)
    _kill_in(kind, tmp_path, phase, after_s)
    async with open_workshop(kind, tmp_path, killed_order(tmp_path), baseline=False) as shop:
        shop.edits.write("calc.py", FIXED.encode())
        verdict = await shop.check()
        assert verdict.passed, verdict.output
        branch = shop.keep("Kept by the next owner")
        names = {path.name for path in shop.files.path.rglob("*")}
        assert ".git" not in names and "outside.txt" not in names
    assert branch is not None and branch.tree == verdict.tree and branch.name == f"ava/{RUN}"
    assert {each.path for each in branch.changed if not each.path.startswith("more/")} == {"calc.py"}
    assert not [each.path for each in branch.changed if each.path.rpartition("/")[2].startswith(".")]
    assert git(repository, "branch", "--format=%(refname:short)").split() == [branch.name, "master"]
    assert checkout_state(repository) == before
    git(repository, "fsck", "--full")
    remove_worktree(tmp_path / "worktrees" / RUN)
    assert not (tmp_path / "worktrees" / RUN).exists()
    assert not _at_work(tmp_path)


@pytest.mark.parametrize(("kind", "phase", "after_s"), PHASES[::2])
def test_commits_the_work_left_by_a_killed_run(kind: Kind, phase: str, after_s: float, tmp_path: Path) -> None:
    needs(kind)
    repository = project(tmp_path / "project")
    before = checkout_state(repository)
    _kill_in(kind, tmp_path, phase, after_s)
    what, here, home = killed_order(tmp_path), tmp_path / "worktrees" / RUN, tmp_path / "home"
    branch = publish_leftover(what, here, home, "What was left")
    assert publish_leftover(what, here, home, "What was left") == branch
    if phase in ("check", "keep", "kept"):
        assert branch is not None and git(repository, "show", f"{branch.name}:calc.py") == FIXED
    if branch is not None:
        assert {each.path for each in branch.changed if not each.path.startswith("more/")} <= {"calc.py"}
        assert git(repository, "branch", "--format=%(refname:short)").split() == [branch.name, "master"]
    assert checkout_state(repository) == before
    git(repository, "fsck", "--full")
    remove_worktree(here)
    remove_worktree(here)
    assert not here.exists() and not _at_work(tmp_path)
    assert publish_leftover(what, here, home, "Nothing") is None


def test_commits_nothing_for_a_missing_worktree(tmp_path: Path) -> None:
    project(tmp_path / "project")
    write(tmp_path / "worktrees" / RUN, {"kept.json": "{half"})
    assert publish_leftover(killed_order(tmp_path), tmp_path / "worktrees" / RUN, tmp_path / "home", "x") is None
    assert publish_leftover(killed_order(tmp_path), tmp_path / "no", tmp_path / "home", "x") is None


def _kill_in(kind: Kind, folder: Path, phase: str, after_s: float) -> None:
    """Start a run, and kill it so long after it began a phase: `running` by its number, others by name."""
    (folder / "state").mkdir(exist_ok=True)
    (folder / "home").mkdir(exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "support.repositories.workshop_killed", kind, str(folder)],
        cwd=TESTS,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        wanted, _, count = phase.partition(" ")
        left = int(count or 1)
        while left:
            said = process.stdout.readline().strip()
            assert said, "it ended before it came to this"
            left -= said == wanted
        time.sleep(after_s)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _at_work(folder: Path) -> list[str]:
    """Return the processes that have a folder of ours in their words, once those that are ending have ended."""
    until = time.monotonic() + 10
    while True:
        found: list[str] = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                line = path.read_bytes()
            except OSError:
                continue
            if str(folder / "worktrees").encode() in line:
                found.append(line.decode(errors="replace"))
        if not found or time.monotonic() > until:
            return found
        time.sleep(0.05)
