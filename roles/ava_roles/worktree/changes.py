"""What differs between two commits, and which of it decides whether the verification passes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal

from ava_roles.worktree.branch import Changed
from ava_roles.worktree.git import Git

_PLAIN = ("--no-ext-diff", "--no-textconv", "--no-renames", "--ignore-submodules=all")
_Kind = Literal["added", "changed", "removed"]
_KINDS: dict[str, _Kind] = {"A": "added", "D": "removed"}
_DECIDES = frozenset(
    {
        "conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml",
        "pyproject.toml", "tox.ini", "setup.cfg", "setup.py", "noxfile.py",
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


_SAYS = (
    "Makefile", "makefile", "GNUmakefile", "justfile", "package.json", "tox.ini", "noxfile.py", "pyproject.toml",
    "setup.cfg",
)  # fmt: skip
"""Files at the root that say what a command such as `make test` runs."""
_NO_PART = re.compile(r"[\s;&|()<>'\"=,:\[\]{}`$]+")
_SAID_MOST = 200_000


def is_test(path: str, words: Iterable[str] = ()) -> bool:
    """Tell whether a path is a test, or decides what a verify command runs.

    Args:
        path: The file, relative to the root.
        words: The words of the commands, and of files that say what these run: a path, a program or a module.
    """
    if any(_is_meant(path, word) for word in words):
        return True
    *folders, name = path.split("/")
    if name.lower() in _DECIDES or _CONFIGURED.fullmatch(name) or path.startswith(".cargo/"):
        return True
    return not _FOLDERS.isdisjoint(folder.lower() for folder in folders) or _TEST.fullmatch(name) is not None


def _is_meant(path: str, word: str) -> bool:
    """Tell whether a word of a command means a file: by its path, or as a program or module that the file shadows."""
    word = word.removeprefix("./")
    if path == word:
        return True
    module = word.replace(".", "/")
    return "/" not in word and path in (f"{module}.py", *(f"{module}/{part}.py" for part in ("__main__", "__init__")))


def _words(git: Git, commit: str, commands: Sequence[str]) -> set[str]:
    """Return the words of commands, and of what they name or take their orders from, as a commit has it."""
    words = {word for line in commands for word in _NO_PART.split(line) if word}
    there = set(git("ls-tree", "-r", "-z", "--name-only", "--full-tree", commit).names())
    says = [name for name in {*_SAYS, *(word.removeprefix("./") for word in words)} if name in there]
    for name in says:
        said = git("cat-file", "blob", f"{commit}:{name}").out[:_SAID_MOST].decode("utf-8", "replace")
        words |= {word.removeprefix("./") for word in _NO_PART.split(said) if "/" in word or "." in word}
    return words


def changes(git: Git, base: str, head: str, commands: Sequence[str] = ()) -> tuple[Changed, ...]:
    """Return what differs between two commits or trees, file by file; a renamed one is removed and added.

    Args:
        git: git, with our directory.
        base: What the work began at.
        head: What it came to.
        commands: The command lines that decide whether the work passes.
    """
    status = git("diff-tree", "-r", "-z", "--name-status", *_PLAIN, base, head).names()
    kinds: dict[str, _Kind] = {}
    for letter, name in zip(status[::2], status[1::2], strict=True):
        kinds[name] = _KINDS.get(letter, "changed")
    counted: dict[str, tuple[int, int]] = {}
    for line in git("diff-tree", "-r", "-z", "--numstat", *_PLAIN, base, head).names():
        added, removed, name = line.split("\t", 2)
        counted[name] = (int(added) if added.isdigit() else 0, int(removed) if removed.isdigit() else 0)
    words = _words(git, base, commands)
    return tuple(
        Changed(name, *counted.get(name, (0, 0)), kind, is_test(name, words)) for name, kind in sorted(kinds.items())
    )


def diff_of(git: Git, base: str, head: str) -> str:
    """Return the unified diff of two commits."""
    said = git("diff-tree", "-r", "-p", "-M", "--no-color", "--no-ext-diff", "--no-textconv", base, head)
    return said.out.decode("utf-8", "replace")
