"""Workshops on real repositories, and everything of a repository that work on it must leave as it was.

before = checkout_state(project)
async with open_workshop("bubblewrap", tmp_path, order(project)) as shop: ...
assert checkout_state(project) == before
"""

from __future__ import annotations

import hashlib
import stat
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from ava_roles.sandbox.sandbox import Command, Finished, Kind
from ava_roles.sandbox.supervised import SupervisedSandbox
from ava_roles.sandbox.toolchains import HostFolders
from ava_roles.worktree.session import WorktreeSession
from ava_roles.worktree.spec import WorktreeSpec
from support.repositories.projects import checkout, git
from support.sandboxes.attacks import sandbox

RUN = "S-20260101-abcdef"
PROJECT = {
    "calc.py": "def add(a, b):\n    return a - b\n",
    "test_calc.py": (
        "import unittest\nfrom calc import add\n\n\n"
        "class TestAdd(unittest.TestCase):\n    def test_add(self):\n        self.assertEqual(add(1, 2), 3)\n"
    ),
    "docs/guide.md": "guide\n",
    ".gitignore": "__pycache__/\n*.local\n.venv/\n",
}
VERIFY = "python3 -m unittest -q"
FIXED = "def add(a, b):\n    return a + b\n"


def project(folder: Path, files: Mapping[str, str] = PROJECT) -> Path:
    """Make a checkout of a person with a name, a stash, and changes that are not committed."""
    checkout(folder, files)
    git(folder, "config", "user.name", "Kim Person")
    git(folder, "config", "user.email", "kim@example.org")
    (folder / "stashed.txt").write_text("stashed\n")
    git(folder, "stash", "push", "-q", "-u")
    (folder / "new.txt").write_text("not committed\n")
    (folder / "staged.txt").write_text("staged\n")
    git(folder, "add", "staged.txt")
    return folder


def order(repository: Path, **more: object) -> WorktreeSpec:
    """What was approved: the one file, and the tests of unittest."""
    given: dict[str, object] = {"namespace": ("calc.py",), "verify": VERIFY, "verify_timeout_s": 30.0, **more}
    return WorktreeSpec(RUN, repository, **given)  # type: ignore[arg-type]


def checkout_state(repository: Path, but: tuple[str, ...] = ("ava/", "ava-")) -> dict[str, object]:
    """Return everything of a checkout and its repository but objects and branches of ours: contents, modes, times."""
    found: dict[str, object] = {}
    for path in sorted(repository.rglob("*")):
        name = path.relative_to(repository).as_posix()
        rest = name.removeprefix(".git/logs/").removeprefix(".git/").removeprefix("refs/heads/")
        if name.startswith(".git/objects") or (name.startswith(".git/") and f"{rest}/".startswith(but)):
            continue
        status = path.lstat()
        if stat.S_ISDIR(status.st_mode):
            found[name] = (status.st_mode, status.st_uid)
        elif stat.S_ISLNK(status.st_mode):
            found[name] = (status.st_mode, status.st_uid, path.readlink())
        else:
            content = hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(status.st_mode) else ""
            found[name] = (status.st_mode, status.st_uid, status.st_ino, status.st_mtime_ns, content)
    return found


@asynccontextmanager
async def open_workshop(
    kind: Kind, aside: Path, what: WorktreeSpec, *, here: str = RUN, baseline: bool = True, home: Path | None = None
) -> AsyncGenerator[WorktreeSession]:
    """Hold a workshop that is prepared; what it made is there afterwards."""
    box = sandbox(kind, _made(aside / "state"))
    shop = WorktreeSession(what, aside / "worktrees" / here, box, HostFolders(home or _made(aside / "home")))
    try:
        await shop.prepare(baseline=baseline)
        yield shop
    finally:
        shop.close()


async def run(kind: Kind, aside: Path, shop: WorktreeSession, line: str) -> tuple[Finished, str]:
    """Run a command of the model's in the worktree; return how it ended, and what was taken back."""
    bench, _fresh = await shop.bench.ready()
    box: SupervisedSandbox = sandbox(kind, _made(aside / "state"))
    done = await box.run(
        Command(("/bin/bash", "-c", line), bench.folder, bench.binds, bench.environment, timeout_s=30.0)
    )
    return done, await shop.bench.after_command()


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
