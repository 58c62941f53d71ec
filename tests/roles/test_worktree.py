"""The worktree of a run: what is checked is what is kept, and what commands do elsewhere is taken back."""

from __future__ import annotations

import os
import re
import shutil
import stat
import time
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from support.repositories.projects import git, write
from support.repositories.workshops import FIXED, PROJECT, RUN, checkout_state, open_workshop, order, project, run
from support.sandboxes.attacks import CONFINED, needs

from ava_roles.errors import BadNamespace, ToolFailed, WorktreeFailed
from ava_roles.sandbox.sandbox import Kind
from ava_roles.worktree.session import publish_leftover, remove_worktree
from ava_roles.worktree.spec import Branch

SUM = "python3 -c 'import calc; assert calc.add(1, 2) == 3'"


@pytest.fixture(params=CONFINED)
def kind(request: pytest.FixtureRequest) -> Kind:
    kind: Kind = request.param
    needs(kind)
    return kind


def running(mark: str) -> list[str]:
    """Return the command lines of all processes that have a word in them."""
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if mark.encode() in (line := path.read_bytes()):
                found.append(line.decode())
    return found


async def test_the_branch_contains_exactly_what_was_verified(kind: Kind, tmp_path: Path) -> None:
    repository = project(tmp_path / "project")
    before, status = checkout_state(repository), git(repository, "status", "--porcelain")
    async with open_workshop(kind, tmp_path, order(repository)) as shop:
        assert not (await shop.check()).passed
        shop.edits.write("calc.py", FIXED.encode())
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
    assert checkout_state(repository) == before
    assert git(repository, "status", "--porcelain") == status
    assert "missing" not in git(repository, "fsck", "--full")
    remove_worktree(tmp_path / "worktrees" / RUN)
    assert not (tmp_path / "worktrees" / RUN).exists()


async def test_the_baseline_reports_earlier_failures_and_contains_only_committed_files(
    kind: Kind, tmp_path: Path
) -> None:
    repository = project(tmp_path / "project")
    async with open_workshop(kind, tmp_path, order(repository), baseline=False) as shop:
        baseline = await shop.prepare()
        assert baseline.base == git(repository, "rev-parse", "HEAD").strip()
        assert baseline.verify is not None and not baseline.verify.passed
        assert "AssertionError: -1 != 3" in baseline.verify.failing()
        assert "only calc.py may be changed" in baseline.notes
        assert {entry.name for entry in shop.files.entries()} == {"calc.py", "test_calc.py", "docs", ".gitignore"}


async def test_reverts_and_reports_changes_outside_the_namespace(kind: Kind, tmp_path: Path) -> None:
    repository = project(tmp_path / "project")
    async with open_workshop(kind, tmp_path, order(repository), baseline=False) as shop:
        _done, nothing = await run(kind, tmp_path, shop, "cat calc.py; echo more >> calc.py")
        assert nothing == ""
        tree = shop.files.path
        done, said = await run(
            kind,
            tmp_path,
            shop,
            "echo x >> test_calc.py; rm -r docs; echo new > new.txt; mkdir -p a/b; echo x > a/b/c; mkfifo pipe;"
            " ln -s /etc etc; mv .gitignore other; chmod u+s calc.py; echo '*' > .gitignore; chmod 755 test_calc.py",
        )
        without_modes = kind == "landlock" and os.geteuid() != 0
        assert (done.code == 0) is not without_modes, done.output
        for name in ("test_calc.py (as it was)", "docs/guide.md (as it was)", "new.txt (removed)", "a/b/c (removed)",
                     "etc (removed)", "other (removed)", ".gitignore (as it was)", "in a worktree: pipe"):  # fmt: skip
            assert name in said, said
        found = {path.relative_to(tree).as_posix() for path in tree.rglob("*")}
        assert found == {"calc.py", "test_calc.py", "docs", "docs/guide.md", ".gitignore"}
        for name, text in PROJECT.items():
            assert (tree / name).read_text() == (text if name != "calc.py" else f"{text}more\n"), name
        assert not os.access(tree / "test_calc.py", os.X_OK)
        assert not (tree / "calc.py").stat().st_mode & stat.S_ISUID
        branch = shop.keep("More")
    assert branch is not None and [each.path for each in branch.changed] == ["calc.py"]


@pytest.mark.slow
async def test_restores_a_folder_replaced_by_a_link_and_writes_nothing_through_it(kind: Kind, tmp_path: Path) -> None:
    repository = project(tmp_path / "project", {**PROJECT, "src/one.py": "1\n", "src/two.py": "2\n"})
    outside = tmp_path / "outside"
    write(outside, {"one.py": "outside\n", "docs/guide.md": "outside\n"})
    inside = tmp_path / "worktrees" / RUN
    async with open_workshop(kind, tmp_path, order(repository, namespace=("calc.py", "src")), baseline=False) as shop:
        line = f"rm -r docs src calc.py; ln -s {outside}/docs docs; ln -s {outside} src; ln -s / calc.py"
        await run(kind, tmp_path, shop, line)
        verdict = await shop.check()
        branch = shop.keep("Links")
        assert not (inside / "tree/docs").is_symlink() and (inside / "tree/docs/guide.md").read_text() == "guide\n"
        assert (inside / "check/src").is_symlink() and (inside / "check/calc.py").readlink() == Path("/")
        write(inside / "new", {"two.py": "2\n"})
        shop.files.path.joinpath("src").unlink()
        (inside / "new").rename(shop.files.path / "src")
        await shop.check()
        assert not (inside / "check/src").is_symlink() and (inside / "check/src/two.py").read_text() == "2\n"
    assert branch is not None and branch.tree == verdict.tree
    assert {each.path: each.kind for each in branch.changed} == {
        "calc.py": "changed", "src": "added", "src/one.py": "removed", "src/two.py": "removed"
    }  # fmt: skip
    assert (outside / "one.py").read_text() == "outside\n" and (outside / "docs/guide.md").read_text() == "outside\n"
    assert sorted(path.name for path in outside.iterdir()) == ["docs", "one.py"]


PLANTED = """
plant() {
  mkdir -p "$1/hooks" "$1/objects" "$1/refs" "$1/info"
  echo 'ref: refs/heads/x' > "$1/HEAD"
  {
    printf '[core]\\nrepositoryformatversion = 0\\nfsmonitor = touch %s; false\\nhooksPath = %s/hooks\\n' MARK "$1"
    printf '[filter "m"]\\nclean = touch %s; cat\\nsmudge = touch %s; cat\\nrequired = true\\n' MARK MARK
  } > "$1/config"
  printf '#!/bin/sh\\ntouch %s\\n' MARK > "$1/hooks/post-checkout"
  cp "$1/hooks/post-checkout" "$1/hooks/post-index-change"
  chmod +x "$1"/hooks/*
}
plant .git; plant docs/.git; plant src/deep/.git; plant src/.GIT; plant src/elsewhere; plant src/'git~1'
mkdir -p src/filed; echo "gitdir: ../elsewhere" > src/filed/.git; echo x > src/filed/x
mkdir -p sub; echo "gitdir: ../src/elsewhere" > sub/.git
echo '* filter=m diff=m working-tree-encoding=UTF-99 ident' > .gitattributes
echo '* filter=m diff=m' > src/.gitattributes
printf '[submodule "x"]\\n\\tpath = src/deep\\n\\turl = ./x\\n\\tupdate = !touch MARK\\n' > .gitmodules
ln -s /etc/passwd src/.gitmodules
echo kept > src/kept.txt; echo '*' > src/deep/.gitignore; echo 'ignored.txt' > src/.gitignore; echo x > src/ignored.txt
"""


async def test_a_planted_git_folder_runs_nothing_and_is_not_committed(kind: Kind, tmp_path: Path) -> None:
    repository = project(tmp_path / "project")
    before, mark = checkout_state(repository), tmp_path / "mark"
    everyone = tmp_path / "everyone"
    everyone.mkdir()
    async with open_workshop(kind, tmp_path, order(repository, namespace=("calc.py", "src")), baseline=False) as shop:
        done, said = await run(kind, tmp_path, shop, PLANTED.replace("MARK", str(mark)))
        assert done.code == 0, done.output
        assert "cannot be in a worktree" in said and ".git" in said and ".gitattributes (removed)" in said
        shop.edits.write("calc.py", FIXED.encode())
        verdict = await shop.check()
        assert verdict.passed, verdict.output
        branch = shop.keep("Planted")
        names = {
            path.name.lower() for path in (*shop.files.path.rglob("*"), *(shop.files.path.parent / "check").rglob("*"))
        }
        assert names.isdisjoint({".git", "git~1", ".gitmodules"})
    assert branch is not None and branch.tree == verdict.tree
    kept = {each.path for each in branch.changed if not each.path.startswith("src/elsewhere/")}
    assert kept == {"calc.py", "src/.gitattributes", "src/.gitignore", "src/filed/x", "src/kept.txt"}
    assert branch.notes[-1].startswith("no git filter was run, although ")
    assert not mark.exists() and checkout_state(repository) == before
    git(repository, "fsck", "--full", "--strict")


async def test_files_left_by_commands_do_not_affect_verification(kind: Kind, tmp_path: Path) -> None:
    files = {
        **PROJECT,
        "calc.py": "import config\n\n\ndef add(a, b):\n    return a + b\n",
        "config.py": "import secret\n",
    }
    repository = project(
        tmp_path / "project", {**files, ".gitignore": PROJECT[".gitignore"] + "secret.py\nsitecustomize.py\n"}
    )
    async with open_workshop(kind, tmp_path, order(repository, namespace=(".",)), baseline=False) as shop:
        line = (
            'echo > secret.py; echo \'import sys, types; sys.modules["secret"] = types.ModuleType("secret")\''
            " > sitecustomize.py; mkdir -p ~/.local/lib/python3.11/site-packages;"
            " for v in 9 10 11 12 13 14; do mkdir -p ~/.local/lib/python3.$v/site-packages; cp secret.py"
            " ~/.local/lib/python3.$v/site-packages; done; python3 -m unittest -q"
        )
        done, _said = await run(kind, tmp_path, shop, line)
        assert done.code == 0, "in the worktree it passes"
        verdict = await shop.check()
        assert not verdict.passed and "No module named 'secret'" in verdict.failing()
        assert shop.keep("Nothing") is None


async def test_files_left_by_a_check_do_not_affect_the_next_one(kind: Kind, tmp_path: Path) -> None:
    line = (
        "test ! -e left.txt && test ! -e .git && grep -q guide docs/guide.md && cat calc.py;"
        " echo x > left.txt; echo x > docs/guide.md; mkdir .git; ln -s / link; echo '*' > docs/.gitignore;"
        " exit $(test -e made.local; echo $?)"
    )
    repository = project(tmp_path / "project")
    async with open_workshop(
        kind, tmp_path, order(repository, verify=f"({line}); touch made.local; test -e made.local")
    ) as shop:
        for _ in range(3):
            verdict = await shop.check()
            assert verdict.passed and verdict.output == PROJECT["calc.py"]
        assert shop.keep("Nothing") is None


@pytest.mark.slow
async def test_a_check_runs_the_new_file_and_no_stale_bytecode(
    tmp_path: Path,
) -> None:
    needs("bubblewrap")
    repository = project(tmp_path / "project")
    assert len(FIXED) == len(PROJECT["calc.py"]), "Python tells them apart by size and second alone"
    async with open_workshop("bubblewrap", tmp_path, order(repository)) as shop:
        for text in (FIXED, PROJECT["calc.py"]) * 3:
            shop.edits.write("calc.py", text.encode())
            assert (await shop.check()).passed == (text == FIXED)


async def test_commits_tool_caches_only_if_the_repository_tracks_them(kind: Kind, tmp_path: Path) -> None:
    tracked = {"__pycache__/kept.txt": "kept\n", "data/frozen.pyc": "old\n"}
    repository = project(tmp_path / "project", {**PROJECT, ".gitignore": "*.local\n", **tracked})
    async with open_workshop(kind, tmp_path, order(repository, namespace=(".",)), baseline=False) as shop:
        shop.edits.write("calc.py", FIXED.encode())
        line = (
            "mkdir -p src/__pycache__ .pytest_cache/v node/.nyc_output __pycache__ data"
            " && for file in src/__pycache__/a.cpython-311.pyc .pytest_cache/v/x .pytest_cache/.gitignore lone.pyc"
            " node/.nyc_output/x __pycache__/new.txt data/frozen.pyc data/other.pyc src/pycache.py; do"
            " echo new > $file; done"
        )
        done, said = await run(kind, tmp_path, shop, line)
        assert (done.code, said) == (0, "")
        branch = shop.keep("With caches")
    assert branch is not None
    assert {each.path for each in branch.changed} == {
        "calc.py", "src/pycache.py", "__pycache__/new.txt", "data/frozen.pyc",
    }  # fmt: skip


async def test_commands_write_no_bytecode_and_keep_caches_out_of_the_project(kind: Kind, tmp_path: Path) -> None:
    repository = project(tmp_path / "project", {**PROJECT, ".gitignore": ""})
    async with open_workshop(kind, tmp_path, order(repository, namespace=(".",)), baseline=False) as shop:
        line = "python3 -m unittest -q; env | grep -E '^(PYTEST_ADDOPTS|(MYPY|RUFF)_CACHE_DIR|PYTHONDONT)' | sort"
        done, said = await run(kind, tmp_path, shop, line)
        assert said == ""
        assert re.findall(r"^(\w+)=", done.output, re.M) == [
            "MYPY_CACHE_DIR", "PYTHONDONTWRITEBYTECODE", "RUFF_CACHE_DIR",
        ]  # fmt: skip
        assert not list(shop.files.path.rglob("__pycache__"))
        assert shop.keep("Nothing") is None


async def test_a_command_with_a_namespace_is_not_told_of_removed_caches(kind: Kind, tmp_path: Path) -> None:
    repository = project(tmp_path / "project", {**PROJECT, ".gitignore": ""})
    async with open_workshop(kind, tmp_path, order(repository), baseline=False) as shop:
        done, said = await run(
            kind, tmp_path, shop, "mkdir docs/__pycache__; echo x > docs/__pycache__/a.pyc; echo x > docs/b"
        )
        assert done.code == 0
        assert "docs/b (removed)" in said and "pycache" not in said
        assert not (shop.files.path / "docs/__pycache__/a.pyc").exists()


@pytest.mark.slow
async def test_an_endless_verification_is_stopped_with_all_its_processes(kind: Kind, tmp_path: Path) -> None:
    repository = project(tmp_path / "project")
    mark = f"{time.time():.6f}"
    line = f"(setsid sleep 1{mark} &) ; sleep 2{mark} & echo begun; wait"
    async with open_workshop(
        kind, tmp_path, order(repository, verify=line, verify_timeout_s=1.0), baseline=False
    ) as shop:
        verdict = await shop.check()
        assert not verdict.passed and verdict.ended == "timeout" and verdict.code is None
        assert verdict.output == "begun\n"
        assert not running(mark)
        shop.edits.write("calc.py", FIXED.encode())
        with anyio.move_on_after(0.7) as scope:
            await shop.check()
        assert scope.cancelled_caught
        assert not running(mark)
        branch = shop.keep("Not verified")
    assert branch is not None


@pytest.mark.slow
async def test_work_cancelled_at_any_moment_can_still_be_committed(tmp_path: Path) -> None:
    needs("bubblewrap")
    many = {f"data/{number}.txt": f"{number}\n" for number in range(3_000)}
    repository = project(tmp_path / "project", {**PROJECT, **many})
    cut = 0
    async with open_workshop("bubblewrap", tmp_path, order(repository, verify="true"), baseline=False) as shop:
        for number in range(31):
            shop.edits.write("calc.py", f"{number}\n".encode())
            with anyio.move_on_after(0.008 * number) as scope:
                await shop.check()
            cut += scope.cancelled_caught
            if number % 10 == 0:
                branch = shop.keep(f"Number {number}")
                assert branch is not None and git(repository, "show", f"{branch.name}:calc.py") == f"{number}\n"
        assert cut > 5
        verdict = await shop.check()
        branch = shop.keep("The last")
        assert verdict.passed and branch is not None and branch.tree == verdict.tree


async def test_runs_the_setup_command_once_and_again_when_dependencies_change(kind: Kind, tmp_path: Path) -> None:
    repository = project(tmp_path / "project", {**PROJECT, "requirements.txt": "one\n"})
    line = "cat requirements.txt >> made.local; echo x >> docs/guide.md; echo built > built.txt"
    what = order(repository, namespace=(".",), setup=line, verify="cat made.local built.txt; grep -c x docs/guide.md")
    async with open_workshop(kind, tmp_path, what, baseline=False) as shop:
        baseline = await shop.prepare()
        assert baseline.setup is not None and baseline.setup.passed
        assert baseline.verify is not None and baseline.verify.output == "one\nbuilt\n0\n"
        assert (await shop.check()).output == "one\nbuilt\n0\n"
        shop.edits.write("requirements.txt", b"two\n")
        assert (await shop.check()).output == "one\ntwo\nbuilt\n0\n"
        assert (await shop.check()).output == "one\ntwo\nbuilt\n0\n"
        branch = shop.keep("Two")
    assert branch is not None and [each.path for each in branch.changed] == ["requirements.txt"]


async def test_a_failed_setup_fails_the_check_and_is_retried(kind: Kind, tmp_path: Path) -> None:
    repository = project(tmp_path / "project")
    what = order(repository, setup="echo no; exit 3", verify="true")
    async with open_workshop(kind, tmp_path, what, baseline=False) as shop:
        for _ in range(2):
            verdict = await shop.check()
            assert not verdict.passed and verdict.code == 3
            assert "[the setup command failed: echo no; exit 3]\nno" in verdict.output


async def test_packages_of_the_checkout_are_readable_and_never_committed(kind: Kind, tmp_path: Path) -> None:
    repository = project(tmp_path / "project", {**PROJECT, ".gitignore": "node_modules/\n"})
    write(repository, {"node_modules/left/index.js": "left\n", "data/big.csv": "1\n"})
    before = checkout_state(repository)
    what = order(repository, namespace=(".",), carry=("data",), verify="cat node_modules/left/index.js data/big.csv")
    async with open_workshop(kind, tmp_path, what) as shop:
        assert (await shop.check()).output == "left\n1\n"
        done, said = await run(kind, tmp_path, shop, "cat node_modules/left/index.js && echo x > node_modules/left/new")
        assert done.output.startswith("left\n") and done.code != 0 and said == ""
        await run(kind, tmp_path, shop, "rm -rf node_modules data 2>/dev/null; true")
        assert (await shop.check()).passed
        assert shop.keep("Nothing") is None
    assert publish_leftover(what, tmp_path / "worktrees" / RUN, tmp_path / "home", "left") is None
    remove_worktree(tmp_path / "worktrees" / RUN)
    assert checkout_state(repository) == before


async def test_does_not_follow_a_link_on_the_way_to_the_packages(tmp_path: Path, kind: Kind) -> None:
    repository = project(tmp_path / "project", {**PROJECT, ".gitignore": "node_modules/\n"})
    outside = tmp_path / "outside"
    outside.mkdir()
    (repository / "web").symlink_to(outside)
    git(repository, "add", "web")
    git(repository, "commit", "-qm", "a link")
    (repository / "web").unlink()
    write(repository, {"web/node_modules/left/index.js": "left\n"})
    async with open_workshop(kind, tmp_path, order(repository, verify="true")) as shop:
        await run(kind, tmp_path, shop, "true")
        assert (await shop.check()).passed
    assert list(outside.iterdir()) == []


async def test_refuses_a_path_in_a_submodule(tmp_path: Path) -> None:
    needs("bubblewrap")
    inner, repository = project(tmp_path / "inner"), project(tmp_path / "project")
    git(repository, "submodule", "add", "-q", str(inner), "sub")
    git(repository, "commit", "-qm", "submodule")
    with pytest.raises(BadNamespace, match="is in the submodule sub"):
        async with open_workshop("bubblewrap", tmp_path, order(repository, namespace=("sub/calc.py",))):
            pass


async def test_submodules_and_lfs_pointers_stay_unchanged(kind: Kind, tmp_path: Path) -> None:
    inner = project(tmp_path / "inner")
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "a" * 64 + "\nsize 12345\n"
    files = {**PROJECT, "big.bin": pointer, ".gitattributes": "*.bin filter=lfs -text\n"}
    repository = project(tmp_path / "project", files)
    git(repository, "submodule", "add", "-q", str(inner), "sub")
    git(repository, "commit", "-qm", "submodule")
    async with open_workshop(kind, tmp_path, order(repository, namespace=(".",)), baseline=False) as shop:
        line = "rmdir sub; echo x > sub; echo real > big.bin; echo new > new.txt"
        _done, said = await run(kind, tmp_path, shop, line)
        assert "big.bin (as it was)" in said and "sub" in said
        with pytest.raises(ToolFailed):
            shop.edits.write("sub/x", b"x")
        await run(kind, tmp_path, shop, "echo x > sub/inside; rm big.bin")
        branch = shop.keep("New")
    assert branch is not None and [each.path for each in branch.changed] == ["new.txt"]


async def test_removes_files_that_git_rejects_or_that_are_nested_too_deep(kind: Kind, tmp_path: Path) -> None:
    repository = project(tmp_path / "project")
    async with open_workshop(kind, tmp_path, order(repository, namespace=(".",)), baseline=False) as shop:
        line = (
            "mkdir -p '.git ' '.Git.' 'git~1'; touch '.git /x'; i=0; mkdir deep; cd deep; while [ $i -lt 190 ]; do"
            " mkdir d 2>/dev/null && cd d; i=$((i+1)); done;"
            " for j in 1 2 3 4 5 6 7 8 9 10 11 12 13; do mkdir d && cd d; done;"
            " touch bottom; cd /; true"
        )
        _done, said = await run(kind, tmp_path, shop, line)
        assert "cannot be in a worktree" in said
        await run(kind, tmp_path, shop, "mkdir closed; echo x > closed/x; chmod 000 closed/x closed")
        branch = shop.keep("Closed")
    assert branch is not None and [each.path for each in branch.changed] == ["closed/x"]
    remove_worktree(tmp_path / "worktrees" / RUN)
    assert not (tmp_path / "worktrees" / RUN).exists()


async def test_later_work_continues_on_the_same_branch(kind: Kind, tmp_path: Path) -> None:
    repository = project(tmp_path / "project")
    before = checkout_state(repository)
    async with open_workshop(kind, tmp_path, order(repository), baseline=False) as shop:
        shop.edits.write("calc.py", "unfinished\n".encode("utf-16"))
        first, same = shop.keep("First"), shop.keep("Another message")
        shop.edits.write("calc.py", FIXED.encode())
        second = shop.keep("Second")
        git(repository, "branch", "-f", f"ava/{RUN}", "master")
        third = shop.keep("Third")
        git(repository, "update-ref", "-d", f"refs/heads/ava-{RUN}")
        assert shop.keep("As after a crash between commit and branch") == third
    assert first is not None and second is not None and third is not None
    assert first == same and second.name == first.name and second.head != first.head
    changed = "the encoding of 1 changed file was UTF-8, now UTF-16"
    assert changed in first.notes and changed not in second.notes
    assert second.base == first.base and git(repository, "rev-parse", f"{second.head}^").strip() == second.base
    assert third.name == f"ava-{RUN}", "a branch that somebody has moved is theirs"
    assert checkout_state(repository) == before


async def test_reports_that_git_is_not_installed(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = project(tmp_path / "project")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "defpath", str(tmp_path))
    with pytest.raises(WorktreeFailed, match="git is not installed"):
        async with open_workshop(kind, tmp_path, order(repository)):
            pass


async def test_a_stale_lock_on_avas_branch_does_not_block_a_commit(tmp_path: Path) -> None:
    needs("bubblewrap")
    repository = project(tmp_path / "project")
    async with open_workshop("bubblewrap", tmp_path, order(repository), baseline=False) as shop:
        shop.edits.write("calc.py", FIXED.encode())
        write(repository, {f".git/refs/heads/ava/{RUN}.lock": ""})
        branch = shop.keep("Kept")
    assert branch is not None and branch.name == f"ava/{RUN}"
    assert not list((repository / ".git").rglob("*.lock"))


async def test_committing_the_same_work_twice_at_once_creates_one_branch(tmp_path: Path) -> None:
    needs("bubblewrap")
    repository = project(tmp_path / "project")
    left: list[Branch | None] = []
    kept: list[Branch | None] = []

    def keep() -> None:
        left.append(publish_leftover(order(repository), tmp_path / "worktrees" / RUN, tmp_path / "home", "Left"))

    async with (
        anyio.create_task_group() as tasks,
        open_workshop("bubblewrap", tmp_path, order(repository), baseline=False) as shop,
    ):
        shop.edits.write("calc.py", FIXED.encode())
        for _ in range(2):
            tasks.start_soon(anyio.to_thread.run_sync, keep)
        await anyio.sleep(0.2)
        assert left == [], "nobody else works in the tree while its owner does"
        kept.append(shop.keep("Kept"))
    (branch,) = kept
    assert branch is not None and left == [branch, branch]
    assert git(repository, "branch", "--format=%(refname:short)").split() == [branch.name, "master"]


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")
async def test_verifies_a_node_project_with_its_own_test_runner(kind: Kind, tmp_path: Path) -> None:
    files = {
        "add.js": "exports.add = (a, b) => a - b;\n",
        "test/add.test.js": (
            "const test = require('node:test');\nconst assert = require('node:assert');\n"
            "const { add } = require('../add.js');\ntest('adds', () => assert.strictEqual(add(1, 2), 3));\n"
        ),
        "package.json": '{"name": "x", "scripts": {"test": "node --test"}}\n',
    }
    repository = project(tmp_path / "project", files)
    async with open_workshop(
        kind, tmp_path, order(repository, namespace=("add.js",), verify="node --test"), baseline=False
    ) as shop:
        before = await shop.check()
        assert not before.passed and "-1 !== 3" in before.failing(1_000), before.output
        shop.edits.write("add.js", b"exports.add = (a, b) => a + b;\n")
        assert (await shop.check()).passed


async def test_ignores_git_settings_that_would_start_a_program(tmp_path: Path) -> None:
    needs("bubblewrap")
    repository = project(tmp_path / "project")
    git(repository, "config", "core.fsmonitor", "touch /tmp/never")
    async with open_workshop("bubblewrap", tmp_path, order(repository), baseline=False):
        said = (tmp_path / "worktrees" / RUN / "git/config").read_text()
    assert "fsmonitor" not in said and "hook" not in said.lower()


async def test_exceeding_the_disk_limit_removes_ignored_files_but_never_the_work(tmp_path: Path) -> None:
    needs("bubblewrap")
    repository = project(tmp_path / "project")
    async with open_workshop("bubblewrap", tmp_path, order(repository)) as shop:
        bench, fresh = await shop.bench.ready()
        again, told = await shop.bench.ready()
        assert fresh and not told and bench.size is not None and again.size == bench.size
        write(tmp_path / "worktrees" / RUN / "tree", {"__pycache__/big.pyc": "x" * 100_000, "calc.py": FIXED})
        await run("bubblewrap", tmp_path, shop, "echo kept > ~/note")
        assert "removed to free space" in await shop.bench.renew()
        assert not (tmp_path / "worktrees" / RUN / "tree" / "__pycache__").exists()
        assert shop.edits.read("calc.py").decode() == FIXED
        assert (await run("bubblewrap", tmp_path, shop, "cat ~/note"))[0].code != 0
        assert (await shop.bench.ready())[0].size == bench.size, "what was written counts on"
        assert (await shop.check()).passed
