"""A checkout before any work: the commit that is checked out, what the user should know, and how to verify it."""

from __future__ import annotations

import json
import os
import re
import shlex
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from ava_roles.errors import WorktreeFailed
from ava_roles.sandbox.git import copy_file
from ava_roles.sandbox.git_folders import NOTHING_OUTSIDE, Accept
from ava_roles.sandbox.paths import shown
from ava_roles.worktree.repository import (
    SUBMODULE_MODE,
    CommitFiles,
    Git,
    UserRepository,
    filtered_files,
    temporary_folder,
    translate_os_errors,
)


@dataclass(frozen=True)
class CheckoutState:
    """The state of a checkout, from whose `head` the work would begin; `branch` is None for a detached HEAD.

    `identity` distinguishes the checkout and its git folders from any that are put in their places. `uncommitted`
    counts the files with uncommitted changes, which are not part of the work. `notes` say what the work leaves out
    (these changes, submodules, Git LFS, git filters), one sentence each.
    """

    head: str
    branch: str | None
    identity: tuple[str, ...]
    uncommitted: int
    notes: tuple[str, ...]


def inspect_checkout(repository: Path, home: Path, accept: Accept = NOTHING_OUTSIDE) -> CheckoutState:
    """Return the state of a checkout. Blocking and quick; it runs nothing of the repository's and changes nothing.

    `accept` decides about a git folder outside of it. Raises NoRepository: no commit to begin at; WorktreeFailed.
    """
    checkout = UserRepository.at(repository, home, accept=accept)
    with temporary_folder("inspecting the repository") as folder:
        git = checkout.git_folder(folder / "git", joined=True)
        head, branch = checkout.head(git)
        files = CommitFiles.of(git, head)
        filtered = filtered_files(git, head, list(files.blobs)) if b"filter" in files.attributes else []
        uncommitted = _count_uncommitted(checkout, git, head)
    filter_names = [name for _file, name in filtered]
    lfs = filter_names.count("lfs")
    filters = sorted(set(filter_names) - {"lfs"})
    notes: list[str] = []
    if uncommitted:
        changed = "1 file has" if uncommitted == 1 else f"{uncommitted:,} files have"
        notes.append(f"{changed} uncommitted changes; the work begins at the last commit, without them")
    if files.submodules:
        some = ", ".join(map(shown, files.submodules[:8]))
        notes.append(f"submodules are empty in the worktree and stay as they are: {some}")
    if lfs:
        notes.append(f"files kept by Git LFS are pointers in the worktree and stay as they are: {lfs:,}")
    if filters:
        notes.append(f"git filters are not run: {', '.join(map(shown, filters))}")
    return CheckoutState(head, branch, checkout.identity, uncommitted, tuple(notes))


def _count_uncommitted(checkout: UserRepository, git: Git, head: str) -> int:
    """Return how many files differ from the last commit, not submodules: their `.git` may lead to anybody's."""
    index = git.own / "index"
    with translate_os_errors("reading the index"):
        copy_file(checkout.folder, "index", index)
        for path in checkout.folder.glob("sharedindex.*"):
            copy_file(checkout.folder, path.name, git.own / path.name)
    indexed = git.on(checkout.root, index)
    changed = set(indexed("ls-files", "-z", "--modified", "--deleted", "--others", "--exclude-standard").names())
    for entry in indexed("ls-files", "-z", "--stage").names():
        stage, _, name = entry.partition("\t")
        if stage.startswith(f"{SUBMODULE_MODE} "):
            changed.discard(name)
    if index.exists():
        changed |= set(indexed("diff-index", "--cached", "-z", "--name-only", "--ignore-submodules=all", head).names())
    return len(changed)


_MAX_FILE_BYTES = 1_000_000
_VIRTUAL_ENVIRONMENTS = (".venv", "venv", "env", ".env")
_NPM_PLACEHOLDER = "no test specified"
_MAKE_TEST = re.compile(r"^test\s*:(?!=)", re.MULTILINE)
_PYTHON_TEST = re.compile(r"((tests?|testing)/(.+/)?)?(test_[^/]*|[^/]*_test)\.py")


@dataclass(frozen=True)
class VerifyCommand:
    """A verify command that fits a project, one line for bash, and what in the project says so."""

    command: str
    why: str


def find_verify_commands(repository: Path, home: Path, accept: Accept = NOTHING_OUTSIDE) -> tuple[VerifyCommand, ...]:
    """Return which of pytest, npm test, cargo test, go test and make test verify a project. Blocking; runs nothing.

    A configured test runner goes before Python test files, and those before a Makefile; several may fit equally well.
    Raises NoRepository: no commit to look at; WorktreeFailed: git is not installed, or fails.
    """
    checkout = UserRepository.at(repository, home, accept=accept)
    with checkout.joined() as git:
        commit, _branch = checkout.head(git)
        project = _Project(git, commit, repository)
        for finders in _LEVELS:
            commands: list[VerifyCommand] = []
            for find in finders:
                command = find(project)
                if command is not None:
                    commands.append(command)
            if commands:
                return tuple(commands)
    return ()


class _Project:
    def __init__(self, git: Git, commit: str, root: Path) -> None:
        self._git, self._commit, self._root = git, commit, root
        self.names = frozenset(git("ls-tree", "-r", "-z", "--name-only", "--full-tree", commit).names())

    def text(self, name: str) -> str:
        if name not in self.names:
            return ""
        done = self._git.run("cat-file", "blob", f"{self._commit}:{name}")
        return done.out[:_MAX_FILE_BYTES].decode("utf-8", "replace")

    def pytest(self, why: str) -> VerifyCommand:
        """The interpreter is that of the checkout's virtual environment, which the check tree shows."""
        for name in _VIRTUAL_ENVIRONMENTS:
            python = self._root / name / "bin" / "python"
            if (self._root / name / "pyvenv.cfg").is_file() and os.path.lexists(python):
                return VerifyCommand(f"{shlex.quote(f'{name}/bin/python')} -m pytest", why)
        return VerifyCommand("python3 -m pytest", why)


def _pytest_settings(project: _Project) -> VerifyCommand | None:
    if "pytest.ini" in project.names or ".pytest.ini" in project.names:
        return project.pytest("pytest.ini")
    with suppress(tomllib.TOMLDecodeError, RecursionError):
        if "pytest" in _table(tomllib.loads(project.text("pyproject.toml")), "tool"):
            return project.pytest("[tool.pytest.ini_options] in pyproject.toml")
    for name, section in (("tox.ini", "pytest"), ("setup.cfg", "tool:pytest")):
        if re.search(rf"^\[{section}\]", project.text(name), re.MULTILINE):
            return project.pytest(f"[{section}] in {name}")
    for name in ("conftest.py", "test/conftest.py", "tests/conftest.py"):
        if name in project.names:
            return project.pytest(name)
    return None


def _python_tests(project: _Project) -> VerifyCommand | None:
    names = [name for name in project.names if _PYTHON_TEST.fullmatch(name)]
    return project.pytest(min(names)) if names else None


def _npm_script(project: _Project) -> VerifyCommand | None:
    package: object = None
    with suppress(ValueError, RecursionError):
        package = json.loads(project.text("package.json"))
    script = _table(package, "scripts").get("test")
    if not isinstance(script, str) or not script.strip() or _NPM_PLACEHOLDER in script:
        return None
    return VerifyCommand("npm test", "the script test in package.json")


def _cargo(project: _Project) -> VerifyCommand | None:
    return VerifyCommand("cargo test", "Cargo.toml") if "Cargo.toml" in project.names else None


def _go(project: _Project) -> VerifyCommand | None:
    return VerifyCommand("go test ./...", "go.mod") if "go.mod" in project.names else None


def _make(project: _Project) -> VerifyCommand | None:
    for name in ("GNUmakefile", "makefile", "Makefile"):
        if _MAKE_TEST.search(project.text(name)):
            return VerifyCommand("make test", f"test in {name}")
    return None


_LEVELS: tuple[tuple[Callable[[_Project], VerifyCommand | None], ...], ...] = (
    (_pytest_settings, _npm_script, _cargo, _go),
    (_python_tests,),
    (_make,),
)


def _table(value: object, key: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        return {}
    inner: object = cast("dict[str, Any]", value).get(key)
    return cast("dict[str, Any]", inner) if isinstance(inner, dict) else {}


@dataclass(frozen=True)
class TrackedFile:
    """A file of a commit, with `data` that is the target for a link. A submodule has no data."""

    name: str
    kind: Literal["file", "program", "link", "submodule"]
    data: bytes


_TREE_KINDS: Mapping[str, Literal["file", "program", "link", "submodule"]] = {
    "100644": "file",
    "100755": "program",
    "120000": "link",
    SUBMODULE_MODE: "submodule",
}


def read_commit(checkout: UserRepository, commit: str, most_files: int, most_bytes: int) -> list[TrackedFile]:
    """Return all files that a commit tracks, as they are stored: no attribute and no filter changes them. Blocking.

    Raises WorktreeFailed if there are more than `most_files` or `most_bytes`, or git cannot read them.
    """
    with checkout.joined() as git:
        rows: list[tuple[str, str, str, int]] = []
        for line in git("ls-tree", "-r", "-z", "-l", "--full-tree", commit).names():
            fields, _tab, name = line.partition("\t")
            mode, _type, sha, size_text = fields.split()
            size = 0
            if size_text.isdecimal():  # a submodule has `-`
                size = int(size_text)
            rows.append((name, mode, sha, size))
        total = sum(size for _name, _mode, _sha, size in rows)
        if len(rows) > most_files or total > most_bytes:
            raise WorktreeFailed(
                f"commit {commit[:12]} has {len(rows):,} files with {total:,} bytes; at most {most_files:,} files and"
                f" {most_bytes:,} bytes are copied"
            )
        blobs = [sha for _name, mode, sha, _size in rows if mode != SUBMODULE_MODE]
        content = git("cat-file", "--batch", stdin="".join(f"{sha}\n" for sha in blobs).encode()).out
    files: list[TrackedFile] = []
    position = 0
    for name, mode, _sha, length in rows:
        data = b""
        if mode != SUBMODULE_MODE:
            position = content.index(b"\n", position) + 1
            data = content[position : position + length]
            position += length + 1
        files.append(TrackedFile(name, _TREE_KINDS.get(mode, "file"), data))
    return files
