"""A commit that travels: the same snapshot each time, unpacked as its only commit, and a branch that comes back."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
from support.repositories.projects import checkout, git, tree, write

from ava_roles.errors import FolderReplaced, NoRepository, RolesError, WorktreeFailed
from ava_roles.worktree.inspect import inspect_checkout
from ava_roles.worktree.publish import (
    PACK,
    SETTINGS,
    TravelledBranch,
    bring_branch,
    has_commit,
    pack_branch,
    pack_snapshot,
    unpack_snapshot,
)
from ava_roles.worktree.repository import UserRepository
from ava_roles.worktree.spec import Branch

FILES = {"src/a.py": "a = 1\n", "src/deep/b.py": "b = 2\n", "README.md": "Read.\n", ".gitignore": "*.log\n"}
LIMIT = 10_000_000
RUN = "S-1"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    repository = checkout(tmp_path / "owner", FILES)
    write(repository, {"src/a.py": "a = 2\n"})
    git(repository, "commit", "-qam", "second")
    return repository


def test_the_same_commit_makes_the_same_bytes_however_git_stores_it(
    tmp_path: Path, repository: Path, home: Path
) -> None:
    before = tree(repository)
    assert packed(repository, home, tmp_path / "loose") is None
    assert tree(repository) == before, "the repository is only read"
    git(repository, "gc", "-q", "--aggressive")
    assert packed(repository, home, tmp_path / "packed") is None
    assert (tmp_path / "loose").read_bytes() == (tmp_path / "packed").read_bytes()


def test_an_unpacked_repository_has_the_commit_and_nothing_else(tmp_path: Path, repository: Path, home: Path) -> None:
    place = unpacked(tmp_path, repository, home)
    assert commit_of(place) == commit_of(repository)
    assert git(place, "rev-list", "HEAD").split() == [commit_of(repository)]
    assert git(place, "show", "HEAD:src/deep/b.py") == "b = 2\n"
    assert git(place, "for-each-ref") == "" and [path.name for path in place.iterdir()] == [".git"]
    git(place, "fsck", "--strict")


def test_files_are_written_and_commits_are_signed_as_the_owners_git_would(
    tmp_path: Path, repository: Path, home: Path
) -> None:
    (home / ".gitconfig").write_text('[user]\n\tname = "O \\"W\\" Ner"\n[core]\n\tautocrlf = input\n\tpager = evil\n')
    git(repository, "config", "user.email", "owner@example.com")
    git(repository, "config", "core.fsmonitor", "/bin/evil")
    (home / ".config" / "git").mkdir(parents=True)
    (home / ".config" / "git" / "ignore").write_text("*.mine\n")
    (repository / ".git" / "info").mkdir(exist_ok=True)
    (repository / ".git" / "info" / "attributes").write_text("*.py text\n")
    place = unpacked(tmp_path, repository, home)
    other = tmp_path / "other"
    other.mkdir()
    (other / ".gitconfig").write_text("[user]\n\tname = Another\n[core]\n\tautocrlf = true\n[author]\n\tname = X\n")
    found = UserRepository.at(place, other)
    named = {name: found.settings.get(name) for name in ("user.name", "core.autocrlf", "author.name", "core.pager")}
    assert named == {"user.name": 'O "W" Ner', "core.autocrlf": "input", "author.name": "", "core.pager": None}
    assert "core.fsmonitor" not in found.settings
    assert Path(found.excludes()).read_text() == "*.mine\n"
    assert (place / ".git" / "info" / "attributes").read_text() == "*.py text\n"


def test_a_repository_with_sha256_names_travels(tmp_path: Path, home: Path) -> None:
    repository = tmp_path / "owner"
    repository.mkdir()
    git(repository, "init", "-q", "--object-format=sha256")
    write(repository, FILES)
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "first")
    place = unpacked(tmp_path, repository, home)
    branch = worked(place, {"src/a.py": "a = 3\n"})
    pack_branch(place, home, branch, tmp_path / "pack")
    assert brought(tmp_path / "pack", branch, repository, home) == f"ava/{RUN}"
    assert len(branch.head) == 64 and commit_of(repository, f"ava/{RUN}") == branch.head


@pytest.mark.parametrize("by", ["files", "compressed"])
def test_a_commit_over_the_bound_does_not_travel(tmp_path: Path, repository: Path, home: Path, by: str) -> None:
    write(repository, {"big": "x" * 3_000_000 if by == "files" else os.urandom(150_000).hex()})
    git(repository, "add", "big")
    git(repository, "commit", "-qm", "big")
    why = packed(repository, home, tmp_path / "snapshot", 100_000)
    assert why == ("its files have 3 MB" if by == "files" else "it has 0 MB compressed")
    assert not (tmp_path / "snapshot").exists()


def rewritten(snapshot: Path, changes: dict[str, bytes | None]) -> None:
    """Write a snapshot again, with members changed, added, or (None) left out."""
    with tarfile.open(snapshot) as tar:
        found = {member.name: (tar.extractfile(member) or io.BytesIO()).read() for member in tar}
    with tarfile.open(snapshot, "w") as tar:
        for name, data in {**found, **changes}.items():
            if data is not None:
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"../evil": b"x"}, "it has ../evil"),
        ({"config": b"[core]\n\tpager = evil\n"}, "it has config"),
        ({"ignore": None}, "it lacks ignore"),
        ({PACK: b"PACK"}, "index-pack failed"),
        ({SETTINGS: b"{"}, "cannot be unpacked"),
    ],
)
def test_a_snapshot_of_another_form_leaves_nothing(
    tmp_path: Path, repository: Path, home: Path, changes: dict[str, bytes | None], why: str
) -> None:
    packed(repository, home, tmp_path / "snapshot")
    rewritten(tmp_path / "snapshot", changes)
    (tmp_path / "root").mkdir()
    with pytest.raises(WorktreeFailed, match=why):
        unpack_snapshot(tmp_path / "snapshot", tmp_path / "root/S/r", tmp_path / "root", commit_of(repository))
    assert [path for path in (tmp_path / "root").rglob("*") if path.name != "S"] == []
    assert not (tmp_path / "evil").exists() and not (tmp_path / "root" / "evil").exists()


def test_settings_in_a_snapshot_can_set_nothing_else(tmp_path: Path, repository: Path, home: Path) -> None:
    packed(repository, home, tmp_path / "snapshot")
    evil = {"core.fsmonitor": "evil", "user.name": 'x"\n[core]\n\tfsmonitor = evil\n', "extensions.objectformat": ""}
    rewritten(tmp_path / "snapshot", {SETTINGS: json.dumps(evil).encode()})
    (tmp_path / "root").mkdir()
    place = tmp_path / "root" / "S" / "r"
    unpack_snapshot(tmp_path / "snapshot", place, tmp_path / "root", commit_of(repository))
    assert "core.fsmonitor" not in UserRepository.at(place, home).settings


def test_a_snapshot_of_another_commit_is_refused(tmp_path: Path, repository: Path, home: Path) -> None:
    packed(repository, home, tmp_path / "snapshot")
    (tmp_path / "root").mkdir()
    with pytest.raises(RolesError):
        unpack_snapshot(
            tmp_path / "snapshot", tmp_path / "root/S/r", tmp_path / "root", commit_of(repository, "HEAD~1")
        )
    assert not (tmp_path / "root/S/r").exists()


def test_a_branch_comes_back_with_the_same_commit(tmp_path: Path, repository: Path, home: Path) -> None:
    identity = inspect_checkout(repository, home).identity
    place = unpacked(tmp_path, repository, home)
    branch = worked(place, {"src/a.py": "a = 3\n", "src/new.py": "new = 1\n"})
    pack_branch(place, home, branch, tmp_path / "pack")
    (repository / "src" / "a.py").write_text("uncommitted\n")
    before = {name: what for name, what in tree(repository).items() if "/.git" not in f"/{name}"}
    index = (repository / ".git" / "index").read_bytes()
    assert not has_commit(repository, home, branch.head)
    name = brought(tmp_path / "pack", branch, repository, home, "src", identity=identity)
    assert name == f"ava/{RUN}" and has_commit(repository, home, branch.head)
    assert commit_of(repository, name) == branch.head and commit_of(repository, f"{name}^") == branch.base
    assert git(repository, "cat-file", "commit", name) == git(place, "cat-file", "commit", branch.head)
    assert {name: what for name, what in tree(repository).items() if "/.git" not in f"/{name}"} == before
    assert (repository / ".git" / "index").read_bytes() == index
    git(repository, "fsck", "--strict")
    assert brought(tmp_path / "pack", branch, repository, home, identity=identity) == name, "again: nothing to do"


def test_an_existing_branch_is_never_changed(tmp_path: Path, repository: Path, home: Path) -> None:
    place = unpacked(tmp_path, repository, home)
    branch = worked(place, {"src/a.py": "a = 3\n"})
    pack_branch(place, home, branch, tmp_path / "pack")
    git(repository, "branch", f"ava/{RUN}", "HEAD~1")
    assert brought(tmp_path / "pack", branch, repository, home) == f"ava-{RUN}"
    assert commit_of(repository, f"ava/{RUN}") == commit_of(repository, "HEAD~1")
    assert commit_of(repository, f"ava-{RUN}") == branch.head


@pytest.mark.parametrize(
    ("changes", "namespace", "why"),
    [
        ({"README.md": "Evil.\n"}, ("src",), "changes README.md, which S-1 may not change"),
        ({"src/.git/config": "[core]\n"}, (".",), "hasDotgit|\\.git"),
    ],
)
def test_a_branch_that_was_not_approved_is_refused(
    tmp_path: Path, repository: Path, home: Path, changes: dict[str, str], namespace: tuple[str, ...], why: str
) -> None:
    place = unpacked(tmp_path, repository, home)
    try:
        branch = worked(place, changes)
    except subprocess.CalledProcessError:  # git itself refuses to make it: made with its plumbing
        branch = forged(place)
    pack_branch(place, home, branch, tmp_path / "pack")
    with pytest.raises(WorktreeFailed, match=why):
        brought(tmp_path / "pack", branch, repository, home, *namespace)
    assert git(repository, "for-each-ref", "refs/heads/ava") == ""
    assert not has_commit(repository, home, branch.head)


def forged(place: Path) -> Branch:
    """Make a commit with a folder `.git` in it."""

    def made(*words: str, stdin: bytes) -> str:
        command = ["git", "-C", str(place), "-c", "user.name=W", "-c", "user.email=w@w", *words]
        return subprocess.run(command, input=stdin, check=True, capture_output=True).stdout.decode().strip()

    base = commit_of(place)
    blob = made("hash-object", "-w", "--stdin", stdin=b"[core]\n")
    inner = made("mktree", stdin=f"100644 blob {blob}\tconfig\n".encode())
    outer = made("mktree", stdin=f"040000 tree {inner}\t.git\n".encode())
    return Branch(f"ava/{RUN}", base, made("commit-tree", outer, "-p", base, "-m", "evil", stdin=b""), (), outer)


def test_a_commit_on_another_parent_is_refused(tmp_path: Path, repository: Path, home: Path) -> None:
    branch = worked(repository, {"src/a.py": "a = 9\n"}, "HEAD~1")
    pack_branch(repository, home, branch, tmp_path / "pack")
    claimed = Branch(branch.name, commit_of(repository), branch.head, (), branch.tree)
    with pytest.raises(WorktreeFailed, match="does not follow the approved commit"):
        brought(tmp_path / "pack", claimed, repository, home)


def test_a_pack_without_the_commit_is_refused(tmp_path: Path, repository: Path, home: Path) -> None:
    place = unpacked(tmp_path, repository, home)
    branch, other = worked(place, {"src/a.py": "a = 3\n"}), worked(place, {"src/a.py": "a = 4\n"})
    pack_branch(place, home, other, tmp_path / "pack")
    with pytest.raises(WorktreeFailed, match="lacks its commit"):
        brought(tmp_path / "pack", branch, repository, home)


def test_a_repository_that_was_replaced_or_lacks_the_base_gets_nothing(
    tmp_path: Path, repository: Path, home: Path
) -> None:
    identity = inspect_checkout(repository, home).identity
    place = unpacked(tmp_path, repository, home)
    branch = worked(place, {"src/a.py": "a = 3\n"})
    pack_branch(place, home, branch, tmp_path / "pack")
    unrelated = checkout(tmp_path / "unrelated", {"x": "y"})
    with pytest.raises(NoRepository, match="lacks the commit"):
        brought(tmp_path / "pack", branch, unrelated, home)
    shutil.copytree(repository, tmp_path / "copy", symlinks=True)
    shutil.rmtree(repository)
    (tmp_path / "copy").rename(repository)
    with pytest.raises(FolderReplaced):
        brought(tmp_path / "pack", branch, repository, home, identity=identity)
    assert brought(tmp_path / "pack", branch, repository, home) == f"ava/{RUN}", "into a clone, if asked for"


def commit_of(repository: Path, name: str = "HEAD") -> str:
    return git(repository, "rev-parse", name).strip()


def packed(repository: Path, home: Path, path: Path, limit: int = LIMIT) -> str | None:
    return pack_snapshot(repository, home, commit_of(repository), limit, path)


def unpacked(tmp: Path, repository: Path, home: Path) -> Path:
    assert packed(repository, home, tmp / "snapshot") is None
    (tmp / "elsewhere").mkdir()
    place = tmp / "elsewhere" / "S-1" / "repository"
    unpack_snapshot(tmp / "snapshot", place, tmp / "elsewhere", commit_of(repository))
    return place


def worked(place: Path, changes: dict[str, str], parent: str = "HEAD") -> Branch:
    """Commit changes in an unpacked repository, as the worktree would."""
    base = commit_of(place, parent)
    aside = {**os.environ, "GIT_INDEX_FILE": str(place / "index"), "GIT_WORK_TREE": str(place.parent / "tree")}
    (place.parent / "tree").mkdir(exist_ok=True)

    def run(*words: str, stdin: str | None = None) -> str:
        command = ["git", "-C", str(place), "-c", "user.name=W", "-c", "user.email=w@w", *words]
        return subprocess.run(
            command, env=aside, input=stdin, check=True, capture_output=True, text=True
        ).stdout.strip()

    run("read-tree", base)
    for name, text in changes.items():
        blob = run("hash-object", "-w", "--stdin", stdin=text)
        run("update-index", "--add", "--cacheinfo", f"100644,{blob},{name}")
    written = run("write-tree")
    head = run("commit-tree", written, "-p", base, "-m", "work")
    return Branch(f"ava/{RUN}", base, head, (), written)


def brought(pack: Path, branch: Branch, repository: Path, home: Path, *namespace: str, **more: Any) -> str:
    expected = TravelledBranch(RUN, branch.base, branch.head, namespace or (".",))
    return bring_branch(pack, expected, repository, home, **more)
