"""The files that say what a project depends on: when one changes, what was installed for it may not fit any more."""

from __future__ import annotations

import hashlib

from ava_roles.worktree.git import Git

_MANIFESTS = frozenset(
    {
        "package.json",
        "package-lock.json",
        "npm-shrinkwrap.json",
        "pnpm-lock.yaml",
        "yarn.lock",
        "bun.lock",
        "pyproject.toml",
        "setup.py",
        "setup.cfg",
        "poetry.lock",
        "uv.lock",
        "pdm.lock",
        "Pipfile",
        "Pipfile.lock",
        "environment.yml",
        "Cargo.toml",
        "Cargo.lock",
        "go.mod",
        "go.sum",
        "Gemfile",
        "Gemfile.lock",
        "composer.json",
        "composer.lock",
        "CMakeLists.txt",
    }
)


def mark_of(git: Git, tree: str) -> str:
    """Return a mark of a commit or tree that changes when one of these files does."""
    listed = git("ls-tree", "-r", "-z", "--full-tree", tree).names()
    wanted = (entry for entry in listed if _is_manifest(entry.partition("\t")[2]))
    return hashlib.sha256("\0".join(wanted).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _is_manifest(name: str) -> bool:
    last = name.rpartition("/")[2]
    return last in _MANIFESTS or (last.startswith("requirements") and last.endswith(".txt"))
