"""The folder of a worktree session, its record, which is enough to continue after a crash, and its cleanup."""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ava_roles.errors import WorktreeFailed
from ava_roles.sandbox.path_access import ONLY_DIR, make_folders, remove_tree
from ava_roles.worktree.repository import translate_os_errors

_LOCK_TIMEOUT_S = 30.0
"""A git process that a killed server left behind has ended by then."""


@dataclass(frozen=True)
class WorktreeRecord:
    """What is known of a worktree. The field names are part of a file: they must not change."""

    base: str  # the commit that the work begins at
    repository: str  # the root of the user's checkout
    setup: str | None = None  # the digest of the manifests for which the setup command has run; None if it has not
    beside: tuple[str, ...] = ()  # files that it created in the check tree and that git does not ignore
    dependencies: tuple[str, ...] = ()  # folders of the user's checkout that are shown in the trees
    # The only candidate that was checked in the check tree; None before the first, empty after several.
    checked: str | None = None
    branch: str | None = None  # the name of the branch; None before the first publication
    head: str | None = None  # the commit that is on the branch, or is about to be
    previous: str | None = None  # the commit that Ava put there before


class WorktreeFolder:
    """A session's folder, locked by one owner at a time. Raises WorktreeFailed: an earlier owner's git uses it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tree, self.check, self.git = path / "tree", path / "check", path / "git"
        self.home, self.check_home = path / "home", path / "check-home"
        self.code, self.edits, self.trash = path / "code", path / "edits", path / "trash"
        with translate_os_errors("creating the worktree's folder"):
            make_folders(path, path.parent.parent)  # the data root
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        try:
            self._acquire()
        except BaseException:
            self.close()
            raise

    @property
    def inherited(self) -> tuple[int, ...]:
        """Descriptors that each git process inherits, so that the folder stays locked while one is running."""
        return (self._lock,)

    def load(self) -> WorktreeRecord | None:
        """Return None if the trees were never completed."""
        try:
            values = json.loads((self.path / "kept.json").read_text("utf-8", "surrogateescape"))
            names = {name: tuple(map(str, values.pop(name))) for name in ("beside", "dependencies")}
            return replace(WorktreeRecord(**values), **names)  # type: ignore[arg-type]
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def record(self) -> WorktreeRecord:
        """Return the record of trees that exist. Raises WorktreeFailed if it is gone."""
        record = self.load()
        if record is None:
            raise WorktreeFailed(f"the record of the worktree is gone from {self.path}; start the run again")
        return record

    def save(self, record: WorktreeRecord) -> None:
        with translate_os_errors("saving the worktree's record"):
            new = self.path / "kept.new"
            with new.open("w", encoding="utf-8", errors="surrogateescape") as file:
                json.dump(asdict(record), file)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self.path / "kept.json")

    def update(self, **values: object) -> WorktreeRecord:
        record = replace(self.record(), **values)  # type: ignore[arg-type]
        self.save(record)
        return record

    def clear(self) -> None:
        (self.path / "kept.json").unlink(missing_ok=True)
        for folder in (self.tree, self.check, self.git, self.home, self.check_home, self.code, self.edits, self.trash):
            remove_tree(folder)

    def close(self) -> None:
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    def _acquire(self) -> None:
        try:
            import fcntl
        except ImportError:  # on such a system no command can be confined, so worktrees are not used
            return
        deadline = time.monotonic() + _LOCK_TIMEOUT_S
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            if time.monotonic() > deadline:
                raise WorktreeFailed(f"another process is using {self.path}; wait until it has ended")
            time.sleep(0.05)


_MAX_DEPTH = 200
_GIT_NAMES = re.compile(r"(\.git|git~1)[ .]*([\\:].*)?", re.IGNORECASE | re.DOTALL)
"""Names that some system takes for `.git`; git refuses to work with them."""


_CACHE_FOLDERS = frozenset(
    {
        "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", ".tox", ".nox",
        ".ipynb_checkpoints", ".nyc_output", ".parcel-cache", ".turbo", ".sass-cache", ".gradle",
    }
)  # fmt: skip
_CACHE_FILE = re.compile(r".*\.py[co]|\.eslintcache|\.stylelintcache", re.DOTALL)


def cache_of(name: str) -> str | None:
    """Return the tool cache, a folder or a file, that a path belongs to, or None."""
    parts = name.split("/")
    for depth, part in enumerate(parts[:-1], 1):
        if part in _CACHE_FOLDERS:
            return "/".join(parts[:depth])
    return name if _CACHE_FILE.fullmatch(parts[-1]) else None


def is_git_name(name: str) -> bool:
    return _GIT_NAMES.fullmatch(name) is not None


def remove_unwanted(tree: Path, trash: Path, check: Callable[[], None] = lambda: None) -> list[str]:
    """Remove `.git`, pipes, sockets, devices and folders nested too deep; make the rest readable and writable for us.

    Returns what was removed, relative to the tree. No process may be working in it. `trash` is a path on the same file
    system that does not exist; it is gone afterwards. `check` is called for every folder; it raises to stop. Raises
    OSError: something cannot be read or removed.
    """
    removed: list[str] = []
    stack: list[tuple[int, str, list[str]]] = []

    def enter(name: str, prefix: str, parent: int | None) -> None:
        folder = os.open(name, ONLY_DIR, dir_fd=parent)
        stack.append((folder, prefix, []))
        stack[-1][2].extend(_clean_folder(folder, prefix, len(stack) >= _MAX_DEPTH, trash, removed))

    with _trash_folder(trash):
        try:
            tree.chmod(stat.S_IMODE(tree.lstat().st_mode) | stat.S_IRWXU)
            enter(os.fspath(tree), "", None)
            while stack:
                folder, prefix, subfolders = stack[-1]
                if not subfolders:
                    os.close(stack.pop()[0])
                    continue
                check()
                name = subfolders.pop()
                enter(name, f"{prefix}{name}/", folder)
        finally:
            for folder, _prefix, _subfolders in stack:
                os.close(folder)
    return removed


def remove_names(tree: Path, names: Iterable[str], trash: Path) -> None:
    """Remove names of a tree, and the folders that become empty. Raises OSError if something cannot be removed."""
    with _trash_folder(trash):
        for name in names:
            *above, last = name.split("/")
            with suppress(FileNotFoundError, NotADirectoryError):
                with _open_folder(tree, above) as folder:
                    _remove(last, folder, trash)
                with suppress(OSError):  # the first folder that is not empty
                    for depth in range(len(above), 0, -1):
                        with _open_folder(tree, above[: depth - 1]) as folder:
                            os.rmdir(above[depth - 1], dir_fd=folder)


@contextmanager
def _trash_folder(trash: Path) -> Generator[None]:
    remove_tree(trash)
    trash.mkdir(mode=0o700)
    try:
        yield
    finally:
        remove_tree(trash)


def _clean_folder(folder: int, prefix: str, deepest: bool, trash: Path, removed: list[str]) -> list[str]:
    """Remove what a worktree must not have from a folder (its descriptor), and give its files plain modes.

    Returns the names of its subfolders; appends the paths of what was removed to `removed`.
    """
    subfolders: list[str] = []
    with os.scandir(folder) as scan:
        names = [entry.name for entry in scan]
    for name in names:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        mode = stat.S_IMODE(status.st_mode)
        is_folder = stat.S_ISDIR(status.st_mode)
        if is_folder and mode & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(name, mode | stat.S_IRWXU, dir_fd=folder)
        is_too_deep = is_folder and deepest
        if is_too_deep or _is_forbidden(name, status):
            _remove(name, folder, trash)
            removed.append(prefix + name)
        elif is_folder:
            subfolders.append(name)
        elif stat.S_ISREG(status.st_mode):
            plain_mode = (mode | stat.S_IRUSR | stat.S_IWUSR) & 0o777
            if mode != plain_mode:
                os.chmod(name, plain_mode, dir_fd=folder)
    return subfolders


def _is_forbidden(name: str, status: os.stat_result) -> bool:
    """Tell whether a worktree must not have an entry: a name of git, a linked .gitmodules, a pipe, socket or device."""
    if is_git_name(name):
        return True
    if stat.S_ISLNK(status.st_mode):
        return name.lower() == ".gitmodules"
    return not (stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode))


def _remove(name: str, folder: int, trash: Path) -> None:
    place = trash / os.urandom(8).hex()
    try:
        os.unlink(name, dir_fd=folder)
    except OSError:  # a folder
        os.rename(name, place, src_dir_fd=folder)
        remove_tree(place)


@contextmanager
def _open_folder(tree: Path, parts: list[str]) -> Generator[int]:
    folder = os.open(tree, ONLY_DIR)
    try:
        for part in parts:
            below = os.open(part, ONLY_DIR, dir_fd=folder)
            os.close(folder)
            folder = below
        yield folder
    finally:
        os.close(folder)
