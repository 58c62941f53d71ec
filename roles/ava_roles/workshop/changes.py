"""What differs between two commits, and which of it decides whether the verification passes."""

from __future__ import annotations

import re
from typing import Literal

from ava_roles.workshop.branch import Changed
from ava_roles.workshop.gits import Git

_PLAIN = ("--no-ext-diff", "--no-textconv", "--no-renames", "--ignore-submodules=all")
_Kind = Literal["added", "changed", "removed"]
_KINDS: dict[str, _Kind] = {"A": "added", "D": "removed"}
_DECIDES = frozenset(
    {
        "conftest.py", "pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg", "setup.py", "noxfile.py",
        "sitecustomize.py", "usercustomize.py", ".coveragerc", "package.json", ".npmrc", ".mocharc.json", ".mocharc.js",
        ".mocharc.cjs",
        ".mocharc.yml", ".mocharc.yaml", "makefile", "gnumakefile", "justfile", "cargo.toml", "build.rs",
        "go.mod", "go.work", "cmakelists.txt", "tsconfig.json", ".gitattributes", ".gitignore",
    }
)  # fmt: skip
_CONFIGURED = re.compile(r"(jest|vitest|vite|karma|playwright|cypress|ava|babel|nyc)(\.[a-z]+)*\.config\.[a-z]+", re.I)
_FOLDERS = frozenset(
    {"test", "tests", "__tests__", "spec", "specs", "testing", "testdata", "__snapshots__", "__mocks__"}
)
_TEST = re.compile(
    r"(test_.*|.*_test|.*_spec|tests?|.*[._-](test|tests|spec))\.[a-z0-9]+|.*(Test|Tests|Spec|IT)\.(java|kt|scala|cs|swift)",
)


def is_test(path: str) -> bool:
    """Tell whether a path is a test, or decides what a verify command runs."""
    *folders, name = path.split("/")
    if name.lower() in _DECIDES or _CONFIGURED.fullmatch(name) or path.startswith(".cargo/"):
        return True
    return not _FOLDERS.isdisjoint(folder.lower() for folder in folders) or _TEST.fullmatch(name) is not None


def changes(git: Git, base: str, head: str) -> tuple[Changed, ...]:
    """Return what differs between two commits or trees, file by file; a renamed one is removed and added."""
    status = git("diff-tree", "-r", "-z", "--name-status", *_PLAIN, base, head).names()
    kinds: dict[str, _Kind] = {}
    for letter, name in zip(status[::2], status[1::2], strict=True):
        kinds[name] = _KINDS.get(letter, "changed")
    counted: dict[str, tuple[int, int]] = {}
    for line in git("diff-tree", "-r", "-z", "--numstat", *_PLAIN, base, head).names():
        added, removed, name = line.split("\t", 2)
        counted[name] = (int(added) if added.isdigit() else 0, int(removed) if removed.isdigit() else 0)
    return tuple(Changed(name, *counted.get(name, (0, 0)), kind, is_test(name)) for name, kind in sorted(kinds.items()))


def diff_of(git: Git, base: str, head: str) -> str:
    """Return the unified diff of two commits."""
    said = git("diff-tree", "-r", "-p", "-M", "--no-color", "--no-ext-diff", "--no-textconv", base, head)
    return said.out.decode("utf-8", "replace")
