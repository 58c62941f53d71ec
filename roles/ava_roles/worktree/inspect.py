"""What a repository is like before anything is done with it."""

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
from typing import Any, cast

from ava_roles.sandbox.git import take
from ava_roles.sandbox.paths import shown
from ava_roles.worktree.git import Git, UserRepository, temporary_folder, translate_os_errors
from ava_roles.worktree.verify import filtered_files


@dataclass(frozen=True)
class CheckoutState:
    """How a checkout stands.

    Attributes:
        head: The commit that the work would begin at.
        branch: The branch that is checked out; None is a detached HEAD.
        uncommitted: How many files have changes that are not committed, and so are no part of the work.
        submodules: The folders of submodules, which are empty in the worktree.
        lfs: How many files are kept by git LFS, and are pointers in the worktree.
        filters: The names of git filters that files go through, and that are not run.
        notes: What of all that there is to know, in sentences.
    """

    head: str
    branch: str | None
    uncommitted: int
    submodules: tuple[str, ...]
    lfs: int
    filters: tuple[str, ...]
    notes: tuple[str, ...]


def inspect_checkout(repository: Path, home: Path) -> CheckoutState:
    """Return how a checkout stands. Blocking, quick; runs nothing of the repository's, and changes nothing.

    Args:
        repository: The root of the checkout.
        home: The user's home folder, for what their own configuration says.

    Raises:
        NoRepository: There is no commit to begin at; says what to do.
        WorktreeFailed: git is not there, or cannot tell.
    """
    theirs = UserRepository.at(repository, home)
    with temporary_folder("looking at the repository") as aside:
        git = theirs.git_folder(aside / "git", joined=True)
        head, branch = theirs.head(git)
        listed = git("ls-tree", "-r", "-z", "--full-tree", head).names()
        entries = [(entry.partition("\t")[0].split(), entry.partition("\t")[2]) for entry in listed]
        submodules = tuple(name for words, name in entries if words[0] == "160000")
        through = _filtered(git, head, [name for words, name in entries if words[1] == "blob"])
        uncommitted = _uncommitted(theirs, git, head)
    lfs = sum(value == "lfs" for _name, value in through)
    others = tuple(sorted({value for _name, value in through} - {"lfs"}))
    return CheckoutState(
        head, branch, uncommitted, submodules, lfs, others, _notes(uncommitted, submodules, lfs, others)
    )


def _filtered(git: Git, head: str, names: list[str]) -> list[tuple[str, str]]:
    """Return which files go through a filter; quick where no attributes say so."""
    local = git.own / "info" / "attributes"
    rules = [name for name in names if name.rpartition("/")[2] == ".gitattributes"]
    stdin = "".join(f"{head}:{name}\n" for name in rules if "\n" not in name).encode("utf-8", "surrogateescape")
    said = git("cat-file", "--batch", stdin=stdin).out if stdin else b""
    if b"filter" not in said + (local.read_bytes() if local.is_file() else b""):
        return []
    return filtered_files(git, head, names)


def _uncommitted(theirs: UserRepository, git: Git, head: str) -> int:
    """Return how many files differ from the last commit, asked with a copy of the index."""
    index = git.own / "index"
    with translate_os_errors("reading the index"):
        for name in ("index", *(path.name for path in theirs.folder.glob("sharedindex.*"))):
            take(theirs.folder, name, git.own / name)
    asking = git.on(theirs.root, index)
    changed = set(asking("ls-files", "-z", "--modified", "--deleted", "--others", "--exclude-standard").names())
    if index.exists():
        changed |= set(asking("diff-index", "--cached", "-z", "--name-only", "--ignore-submodules=all", head).names())
    return len(changed)


def _notes(uncommitted: int, submodules: tuple[str, ...], lfs: int, others: tuple[str, ...]) -> tuple[str, ...]:
    notes: list[str] = []
    if uncommitted:
        files = "1 file has" if uncommitted == 1 else f"{uncommitted:,} files have"
        notes.append(f"{files} changes that are not committed; the work begins at the last commit, without them")
    if submodules:
        some = ", ".join(map(shown, submodules[:8]))
        notes.append(f"submodules are empty in the worktree and stay as they are: {some}")
    if lfs:
        notes.append(f"files kept by git LFS are pointers in the worktree and stay as they are: {lfs:,}")
    if others:
        notes.append(f"git filters are not run: {', '.join(map(shown, others))}")
    return tuple(notes)


_LARGEST = 1_000_000
_ENVIRONMENTS = (".venv", "venv", "env", ".env")
_PLACEHOLDER = "no test specified"
_MAKE = re.compile(r"^test\s*:(?!=)", re.MULTILINE)
_TESTS = re.compile(r"((tests?|testing)/(.+/)?)?(test_[^/]*|[^/]*_test)\.py")


@dataclass(frozen=True)
class CommandFound:
    """The one that fits.

    Attributes:
        command: One line for bash.
        why: What of the project says so.
    """

    command: str
    why: str


@dataclass(frozen=True)
class CommandAmbiguous:
    """More than one fits equally.

    Attributes:
        commands: Each of them, with why.
    """

    commands: tuple[CommandFound, ...]


@dataclass(frozen=True)
class CommandNotFound:
    """None fits."""


def find_verify_command(repository: Path, home: Path) -> CommandFound | CommandAmbiguous | CommandNotFound:
    """Return which of pytest, npm test, cargo test, go test and make test verifies a project. Blocking; runs nothing.

    Raises:
        NoRepository: There is no commit to look at; says what to do.
        WorktreeFailed: git is not there, or cannot tell.
    """
    theirs = UserRepository.at(repository, home)
    with theirs.joined() as git:
        head, _branch = theirs.head(git)
        files = _Files(git, head)
        for level in (_DECLARED, _THERE, _MADE):
            if fit := [found for each in level if (found := each(files, repository)) is not None]:
                return fit[0] if len(fit) == 1 else CommandAmbiguous(tuple(fit))
    return CommandNotFound()


class _Files:
    """The files of a commit."""

    def __init__(self, git: Git, commit: str) -> None:
        self._git, self._commit = git, commit
        self.names = frozenset(git("ls-tree", "-r", "-z", "--name-only", "--full-tree", commit).names())

    def text(self, name: str) -> str:
        """Return the text of one; empty where there is none."""
        if name not in self.names:
            return ""
        said = self._git.said("cat-file", "blob", f"{self._commit}:{name}")
        return said.out[:_LARGEST].decode("utf-8", "replace")


def _pytest(files: _Files, repository: Path) -> CommandFound | None:
    why = None
    if "pytest.ini" in files.names or ".pytest.ini" in files.names:
        why = "pytest.ini"
    elif "pytest" in _table(_toml(files.text("pyproject.toml")), "tool"):
        why = "[tool.pytest.ini_options] in pyproject.toml"
    elif re.search(r"^\[pytest\]", files.text("tox.ini"), re.MULTILINE):
        why = "[pytest] in tox.ini"
    elif re.search(r"^\[tool:pytest\]", files.text("setup.cfg"), re.MULTILINE):
        why = "[tool:pytest] in setup.cfg"
    elif found := sorted(files.names & {"conftest.py", "test/conftest.py", "tests/conftest.py"}):
        why = found[0]
    return CommandFound(_with_pytest(repository), why) if why is not None else None


def _python_tests(files: _Files, repository: Path) -> CommandFound | None:
    name = min((name for name in files.names if _TESTS.fullmatch(name)), default=None)
    return CommandFound(_with_pytest(repository), name) if name is not None else None


def _npm(files: _Files, _repository: Path) -> CommandFound | None:
    package: object = None
    with suppress(ValueError, RecursionError):
        package = json.loads(files.text("package.json"))
    script = _table(package, "scripts").get("test")
    if not isinstance(script, str) or not script.strip() or _PLACEHOLDER in script:
        return None
    return CommandFound("npm test", "the script test in package.json")


def _cargo(files: _Files, _repository: Path) -> CommandFound | None:
    return CommandFound("cargo test", "Cargo.toml") if "Cargo.toml" in files.names else None


def _go(files: _Files, _repository: Path) -> CommandFound | None:
    return CommandFound("go test ./...", "go.mod") if "go.mod" in files.names else None


def _make(files: _Files, _repository: Path) -> CommandFound | None:
    for name in ("GNUmakefile", "makefile", "Makefile"):
        if _MAKE.search(files.text(name)):
            return CommandFound("make test", f"test in {name}")
    return None


_Fits = Callable[[_Files, Path], "CommandFound | None"]
_DECLARED: tuple[_Fits, ...] = (_pytest, _npm, _cargo, _go)
_THERE: tuple[_Fits, ...] = (_python_tests,)
_MADE: tuple[_Fits, ...] = (_make,)


def _with_pytest(repository: Path) -> str:
    """Return how pytest is called: with the project's own interpreter, where it has one.

    The environment lies in the checkout and is shown in the same place of the tree for checks.
    """
    for name in _ENVIRONMENTS:
        program = repository / name / "bin" / "python"
        if (repository / name / "pyvenv.cfg").is_file() and os.path.lexists(program):
            return f"{shlex.quote(f'{name}/bin/python')} -m pytest"
    return "python3 -m pytest"


def _toml(text: str) -> Mapping[str, Any]:
    with suppress(tomllib.TOMLDecodeError, RecursionError):
        return tomllib.loads(text)
    return {}


def _table(value: object, key: str) -> Mapping[str, Any]:
    """Return a table within a table, or an empty one."""
    inner: object = cast("dict[str, Any]", value).get(key) if isinstance(value, dict) else None
    return cast("dict[str, Any]", inner) if isinstance(inner, dict) else {}
