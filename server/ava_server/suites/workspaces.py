"""The folders that the runs of a suite read: copies in a fixed place, so that each try finds the same files.

A copy is named by the hash of its files, lies in the folder for temporary files and belongs to its user alone. A case
that changes files (`namespace`) gets a git repository with one commit, always the same one.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ava_server.core.data_root import os_user
from ava_server.core.errors import ConfigError
from ava_server.core.files import is_own, make_private_folder

_DATE = "2026-01-01T00:00:00Z"
_GIT_S = 60


def frozen_copy(folder: Path | None, *, repository: bool) -> tuple[Path, str]:
    """Return a copy of a folder, and the hash of its files; of an empty folder where there is none. Blocking.

    `repository`: the copy is a git repository whose only commit has the files.

    Raises:
        ConfigError: It cannot be made, or somebody else could change it.
    """
    name = folder.name if folder is not None else "empty"
    try:
        sha = tree_hash(folder)
        key = hashlib.sha256(f"{sha} {name}".encode("utf-8", "surrogateescape")).hexdigest()[:16]
        place = _private_place() / f"{key}{'-git' if repository else ''}"
        copy = place / name
        if not _is_copy(copy, sha):
            _copy(folder, copy, sha, repository=repository)
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"the workspace {folder or 'of a case without one'} cannot be copied: {error}") from error
    return copy, sha


def tree_hash(folder: Path | None) -> str:
    """Return the hash of the names, contents and executable bits in a folder, without its `.git`. Blocking."""
    found = hashlib.sha256()
    for path in _files(folder) if folder is not None else ():
        content = str(path.readlink()).encode() if path.is_symlink() else path.read_bytes()
        kind = "link" if path.is_symlink() else "program" if os.access(path, os.X_OK) else "file"
        name = path.relative_to(folder).as_posix() if folder is not None else ""
        found.update(f"{kind} {len(content)} {name}\0".encode() + content)
    return found.hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if ".git" not in path.relative_to(folder).parts and (path.is_symlink() or path.is_file()):
            yield path


def _private_place() -> Path:
    number = getattr(os, "getuid", None)  # Windows has none, and its folder for temporary files is the user's own
    place = Path(tempfile.gettempdir()).resolve() / f"ava-evals-{number() if number is not None else os_user()}"
    make_private_folder(place)
    found = place.lstat()
    open_to_others = number is not None and bool(found.st_mode & 0o077)
    if not stat.S_ISDIR(found.st_mode) or not is_own(found) or open_to_others:
        raise ConfigError(f"{place} is open to others, so no workspace is copied there; remove it, or set TMPDIR.")
    return place


def _is_copy(copy: Path, sha: str) -> bool:
    return copy.is_dir() and tree_hash(copy) == sha


def _copy(folder: Path | None, target: Path, sha: str, *, repository: bool) -> None:
    """Put a copy in its place at once. One that another process has put there meanwhile stays: runs may read it."""
    place = target.parent
    made = Path(tempfile.mkdtemp(dir=place.parent, prefix="new-"))
    old = made.with_name(f"{made.name}-old")
    try:
        copy = made / target.name
        if folder is None:
            copy.mkdir()
        else:
            shutil.copytree(folder, copy, symlinks=True, ignore=shutil.ignore_patterns(".git"))
        if repository:
            _commit(copy)
        if place.exists() and not _is_copy(target, sha):
            place.rename(old)  # somebody has changed it
        try:
            made.rename(place)
        except OSError:
            if not _is_copy(target, sha):
                raise
    finally:
        for left in (made, old):
            shutil.rmtree(left, ignore_errors=True)


def _commit(folder: Path) -> None:
    """Make a repository of a folder; no configuration, template or hook of this machine has a say in it."""
    git = shutil.which("git")
    if git is None:
        raise ConfigError("git is not installed, and a case of a coder needs it")
    who = {f"GIT_{role}_{what}": value for role in ("AUTHOR", "COMMITTER")
           for what, value in (("NAME", "suite"), ("EMAIL", "suite@localhost"), ("DATE", _DATE))}  # fmt: skip
    env = {"PATH": os.environ.get("PATH", ""), "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, **who}
    for words in (
        ("init", "-q", "-b", "main", "--template="),
        ("add", "-A", "-f"),
        ("-c", "core.hooksPath=/dev/null", "commit", "-q", "--no-verify", "--allow-empty", "-m", "The case"),
    ):
        subprocess.run([git, *words], cwd=folder, env=env, check=True, capture_output=True, timeout=_GIT_S)  # noqa: S603
