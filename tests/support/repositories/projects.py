"""Projects as people have them: a checkout, and toolchains below a home folder.

project = checkout(tmp_path / "workspace", {"src/main.py": "print(1)"})
before = tree(project)
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path


def git(folder: Path, *args: str) -> str:
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_OPTIONAL_LOCKS": "0"}
    who = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "protocol.file.allow=always")
    done = subprocess.run(
        ["git", *who, *args], cwd=folder, env=env, capture_output=True, text=True, timeout=20, check=True
    )
    return done.stdout


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Write files; one that begins with `#!` can be run."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755 if text.startswith("#!") else 0o644)


def checkout(folder: Path, files: Mapping[str, str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    write(folder, files)
    if not (folder / ".git").exists():  # a second init spoils a repository with reftable
        git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "first")
    return folder


def tree(folder: Path) -> dict[str, object]:
    """Return everything about a folder: names, kinds, contents and times; what links lead to is not part of it."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else None
        found[str(path)] = (status.st_mode, status.st_uid, status.st_ino, status.st_mtime_ns, content)
    return found


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()}


def environment_of(python: Path, project: Path, packages: Mapping[str, str]) -> Path:
    """Make a project's .venv with a Python, and put modules into it."""
    subprocess.run(
        [python, "-m", "venv", "--without-pip", "--symlinks", project / ".venv"], timeout=60, check=True, env={}
    )
    (site,) = (project / ".venv" / "lib").glob("python*/site-packages")
    write(site, packages)
    return project / ".venv"
