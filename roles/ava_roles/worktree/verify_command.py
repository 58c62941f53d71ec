"""Which command a project is verified by, where nobody has said it.

What the last commit has at its root decides. A project *declares* its tests by pytest's own configuration, by a
`test` script in package.json, by Cargo.toml or by go.mod: one that declares is taken, two are equal, and then a person
has to say. Python tests that are merely there (test_*.py) come after that, and a Makefile's `test` last, because it
mostly calls one of the others.
"""

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

from ava_roles.worktree.git import Git
from ava_roles.worktree.repository import Theirs

_LARGEST = 1_000_000
_ENVIRONMENTS = (".venv", "venv", "env", ".env")
_PLACEHOLDER = "no test specified"
_MAKE = re.compile(r"^test\s*:(?!=)", re.MULTILINE)
_TESTS = re.compile(r"((tests?|testing)/(.+/)?)?(test_[^/]*|[^/]*_test)\.py")


@dataclass(frozen=True)
class Found:
    """The one that fits.

    Attributes:
        command: One line for bash.
        why: What of the project says so.
    """

    command: str
    why: str


@dataclass(frozen=True)
class Several:
    """More than one fits equally.

    Attributes:
        commands: Each of them, with why.
    """

    commands: tuple[Found, ...]


@dataclass(frozen=True)
class Nothing:
    """None fits."""


def find_verify(repository: Path, home: Path) -> Found | Several | Nothing:
    """Return which of pytest, npm test, cargo test, go test and make test verifies a project. Blocking; runs nothing.

    Raises:
        NoRepository: There is no commit to look at; says what to do.
        WorkshopFailed: git is not there, or cannot tell.
    """
    theirs = Theirs.at(repository, home)
    with theirs.joined() as git:
        head, _branch = theirs.head(git)
        files = _Files(git, head)
        for level in (_DECLARED, _THERE, _MADE):
            if fit := [found for each in level if (found := each(files, repository)) is not None]:
                return fit[0] if len(fit) == 1 else Several(tuple(fit))
    return Nothing()


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


def _pytest(files: _Files, repository: Path) -> Found | None:
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
    return Found(_with_pytest(repository), why) if why is not None else None


def _python_tests(files: _Files, repository: Path) -> Found | None:
    name = min((name for name in files.names if _TESTS.fullmatch(name)), default=None)
    return Found(_with_pytest(repository), name) if name is not None else None


def _npm(files: _Files, _repository: Path) -> Found | None:
    package: object = None
    with suppress(ValueError, RecursionError):
        package = json.loads(files.text("package.json"))
    script = _table(package, "scripts").get("test")
    if not isinstance(script, str) or not script.strip() or _PLACEHOLDER in script:
        return None
    return Found("npm test", "the script test in package.json")


def _cargo(files: _Files, _repository: Path) -> Found | None:
    return Found("cargo test", "Cargo.toml") if "Cargo.toml" in files.names else None


def _go(files: _Files, _repository: Path) -> Found | None:
    return Found("go test ./...", "go.mod") if "go.mod" in files.names else None


def _make(files: _Files, _repository: Path) -> Found | None:
    for name in ("GNUmakefile", "makefile", "Makefile"):
        if _MAKE.search(files.text(name)):
            return Found("make test", f"test in {name}")
    return None


_Fits = Callable[[_Files, Path], "Found | None"]
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
