"""Runs that change files: a checkout to work on, what a model does in it, and what of the checkout may not change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.model_server import Say
from support.repositories.projects import checkout, git, tree
from support.runtime import Lab, hand_over

PROJECT = {
    "adding.py": "def add(a, b):\n    return a - b\n",
    "test_adding.py": (
        "import unittest\nfrom adding import add\n\n"
        "class Adds(unittest.TestCase):\n    def test_adds(self):\n        self.assertEqual(add(1, 2), 3)\n"
    ),
    "README.md": "Adds.\n",
    ".gitignore": "__pycache__/\n",
}
"""A project whose test fails."""
VERIFY = "python3 -m unittest"
RIGHT = ("edit_file", {"path": "adding.py", "old": "a - b", "new": "a + b"})
WRONG = ("edit_file", {"path": "adding.py", "old": "a - b", "new": "a * b"})
STILL_WRONG = ("edit_file", {"path": "adding.py", "old": "a * b", "new": "a / b"})
RIGHTED = ("edit_file", {"path": "adding.py", "old": "a / b", "new": "a + b"})


def make_calls(*calls: tuple[str, dict[str, Any]], summary: str = "Adding adds.") -> list[Say]:
    """A model that makes these calls, one a turn, and hands over after the last."""
    return [*(Say(calls=[call]) for call in calls), hand_over(summary=summary)]


def coder_task(**more: Any) -> dict[str, Any]:
    """What a coder is proposed with; it makes no plan, so that a script is as long as it looks."""
    return {
        "role": "coder",
        "task": "Make add add.",
        "context": "add subtracts at this moment; see test_adding.py.",
        "namespace": ["adding.py"],
        "verify": VERIFY,
        "plan": False,
        **more,
    }


async def run_coder(lab: Lab, within_s: float = 60, **more: Any) -> dict[str, Any]:
    return await lab.outcome(within_s, **coder_task(**more))


class Untouched:
    """Everything of a checkout that a run may not change: all files, and in .git all but objects and one branch."""

    def __init__(self, repository: Path) -> None:
        self.repository = repository
        self._before = self._now()

    def _now(self) -> dict[str, object]:
        found = {name: what for name, what in tree(self.repository).items() if not self._may_be_new(Path(name))}
        found["status"] = git(self.repository, "status", "--porcelain")
        found["stash"] = git(self.repository, "stash", "list")
        found["head"] = git(self.repository, "rev-parse", "HEAD")
        return found

    def _may_be_new(self, path: Path) -> bool:
        parts = path.relative_to(self.repository).parts
        if parts[:2] == (".git", "objects") or parts[:4] == (".git", "refs", "heads", "ava"):
            return True
        if parts[:5] == (".git", "logs", "refs", "heads", "ava"):
            return True
        return parts in ((".git",), (".git", "refs", "heads"), (".git", "logs", "refs", "heads"))  # times of folders

    def check(self) -> None:
        now = self._now()
        changed = [name for name in {*self._before, *now} if self._before.get(name) != now.get(name)]
        assert changed == [], changed


def branches(repository: Path) -> dict[str, str]:
    said = git(repository, "for-each-ref", "--format=%(refname:short) %(objectname)", "refs/heads/")
    found = dict(line.split(" ", 1) for line in said.splitlines())
    return {name: commit for name, commit in found.items() if name.startswith("ava")}


def project(tmp: Path, **files: str) -> Path:
    return checkout(tmp / "workspace", {**PROJECT, **files})


def worktrees(root: Path) -> list[Path]:
    """Return what runs have on the data root in which they change files."""
    return sorted((root / "worktrees").glob("S-*"))
