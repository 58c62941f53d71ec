"""The worktree of a run: the user's checkout stays as it was, and one branch is new."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest
from support.attacks import CONFINED, needs
from support.projects import git
from support.workshops import FIXED, RUN, VERIFY, order, project, run, sealed, working

from ava_roles.confine.sandbox import Kind
from ava_roles.workshop.workshop import keep_left, remove


@pytest.fixture(params=CONFINED)
def kind(request: pytest.FixtureRequest) -> Kind:
    kind: Kind = request.param
    needs(kind)
    return kind


async def test_what_was_checked_is_what_is_on_the_branch_and_nothing_else_is_new(kind: Kind, tmp_path: Path) -> None:
    repository = project(tmp_path / "project")
    before, status = sealed(repository), git(repository, "status", "--porcelain")
    async with working(kind, tmp_path, order(repository)) as shop:
        assert not (await shop.check()).passed
        shop.files.replace("calc.py", FIXED.encode())
        verdict = await shop.check()
        assert verdict.passed, verdict.output
        branch = shop.keep("Mend add\n\nIt subtracted.\n\nAva-Run: S-1")
    assert branch is not None and branch.name == f"ava/{RUN}"
    assert branch.tree == verdict.tree == git(repository, "rev-parse", f"{branch.name}^{{tree}}").strip()
    assert git(repository, "log", "-1", "--format=%an <%ae> %cn %P%n%B", branch.name).strip() == (
        f"Kim Person <kim@example.org> Kim Person {branch.base}\nMend add\n\nIt subtracted.\n\nAva-Run: S-1"
    )
    assert [(each.path, each.added, each.removed, each.kind, each.test) for each in branch.changed] == [
        ("calc.py", 1, 1, "changed", False)
    ]
    assert git(repository, "branch", "--format=%(refname:short)").split() == [branch.name, "master"]
    assert sealed(repository) == before
    assert git(repository, "status", "--porcelain") == status
    assert "missing" not in git(repository, "fsck", "--full")
    remove(tmp_path / "worktrees" / RUN)
    assert not (tmp_path / "worktrees" / RUN).exists()
    assert git(repository, "show", f"{branch.name}:calc.py") == FIXED
