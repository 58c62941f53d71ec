"""The folder of a worktree session, and the record in it: enough to continue after a crash."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ava_roles.errors import WorktreeFailed
from ava_roles.sandbox.removal import remove_tree
from ava_roles.worktree.git import translate_os_errors

_LOCK_TIMEOUT_S = 30.0
"""A git process that a killed server left behind has ended by then."""


@dataclass(frozen=True)
class WorktreeRecord:
    """What is known of a worktree. The field names are part of a file: they must not change.

    Attributes:
        base: The commit that the work begins at.
        repository: The root of the user's checkout.
        setup: The digest of the manifests for which the setup command has run; None if it has not.
        beside: Files that it created in the check tree and that git does not ignore.
        dependencies: Folders of the user's checkout that are shown in the trees.
        checked: The only candidate that was checked in the check tree; None before the first, empty after several.
        branch: The name of the branch; None before the first publication.
        head: The commit that is on the branch, or is about to be.
        previous: The commit that Ava put there before.
    """

    base: str
    repository: str
    setup: str | None = None
    beside: tuple[str, ...] = ()
    dependencies: tuple[str, ...] = ()
    checked: str | None = None
    branch: str | None = None
    head: str | None = None
    previous: str | None = None


class WorktreeFolder:
    """The folder of a session, locked by one owner at a time.

    Args:
        path: The folder; created if missing.

    Raises:
        WorktreeFailed: It cannot be created, or a git process of an earlier owner is still using it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tree, self.check, self.git = path / "tree", path / "check", path / "git"
        self.home, self.check_home = path / "home", path / "check-home"
        self.code, self.edits, self.trash = path / "code", path / "edits", path / "trash"
        with translate_os_errors("creating the worktree's folder"):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
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
        """Return the record; None if the trees were never completed."""
        try:
            values = json.loads((self.path / "kept.json").read_text("utf-8", "surrogateescape"))
            names = {name: tuple(map(str, values.pop(name))) for name in ("beside", "dependencies")}
            return replace(WorktreeRecord(**values), **names)  # type: ignore[arg-type]
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def record(self) -> WorktreeRecord:
        """Return the record of trees that exist.

        Raises:
            WorktreeFailed: It is gone.
        """
        record = self.load()
        if record is None:
            raise WorktreeFailed(f"the record of the worktree is gone from {self.path}; start the run again")
        return record

    def save(self, record: WorktreeRecord) -> None:
        """Write the record atomically."""
        with translate_os_errors("saving the worktree's record"):
            new = self.path / "kept.new"
            with new.open("w", encoding="utf-8", errors="surrogateescape") as file:
                json.dump(asdict(record), file)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self.path / "kept.json")

    def update(self, **values: object) -> WorktreeRecord:
        """Change fields of the record, and return it."""
        record = replace(self.record(), **values)  # type: ignore[arg-type]
        self.save(record)
        return record

    def clear(self) -> None:
        """Remove everything except the lock."""
        (self.path / "kept.json").unlink(missing_ok=True)
        for folder in (self.tree, self.check, self.git, self.home, self.check_home, self.code, self.edits, self.trash):
            remove_tree(folder)

    def close(self) -> None:
        """Release the lock; closing twice is harmless."""
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
