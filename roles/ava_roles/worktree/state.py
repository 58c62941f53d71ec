"""The folder of a workshop, and what is written down in it: enough to go on with it after a crash."""

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

_TAKEN_S = 30.0
"""A git that a killed server has left comes to its end by then."""


@dataclass(frozen=True)
class WorktreeRecord:
    """What is known of a workshop.

    Attributes:
        base: The commit that the work begins at.
        repository: The root of the user's checkout.
        setup: For which manifests the setup command has run; None if it has not.
        beside: What that has made in the tree for checks and git does not ignore.
        dependencies: Folders of the user's checkout that are shown in the trees.
        checked: The only candidate that has been at work in the tree for checks; None where none has, empty: several.
        branch: What the branch is called; None where nothing was kept yet.
        head: The commit that is, or is to be, on it.
        previous: The commit of ours that was on it before.
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
    """The folder of a workshop, held by one owner at a time.

    Args:
        here: The folder; made if it is not there.

    Raises:
        WorktreeFailed: It cannot be made, or a git of an earlier owner is still at work in it.
    """

    def __init__(self, here: Path) -> None:
        self.here = here
        self.tree, self.check, self.git = here / "tree", here / "check", here / "git"
        self.home, self.check_home = here / "home", here / "check-home"
        self.code, self.edits, self.trash = here / "code", here / "edits", here / "trash"
        with translate_os_errors("making the worktree's folder"):
            here.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(here / "lock", os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        try:
            self._hold()
        except BaseException:
            self.close()
            raise

    @property
    def held(self) -> tuple[int, ...]:
        """What every git holds, so that nobody takes the folder up while one is at work."""
        return (self._lock,)

    def kept(self) -> WorktreeRecord | None:
        """Return what is known; None where no trees were made to their end."""
        try:
            said = json.loads((self.here / "kept.json").read_text("utf-8", "surrogateescape"))
            names = {name: tuple(map(str, said.pop(name))) for name in ("beside", "dependencies")}
            return replace(WorktreeRecord(**said), **names)  # type: ignore[arg-type]
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def known(self) -> WorktreeRecord:
        """Return what is known of trees that are there."""
        kept = self.kept()
        if kept is None:
            raise WorktreeFailed(f"what was written down of the worktree is gone from {self.here}; start the run again")
        return kept

    def keep(self, kept: WorktreeRecord) -> None:
        """Write down what is known, in one step."""
        with translate_os_errors("writing down what is known of the worktree"):
            new = self.here / "kept.new"
            with new.open("w", encoding="utf-8", errors="surrogateescape") as file:
                json.dump(asdict(kept), file)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self.here / "kept.json")

    def note(self, **known: object) -> WorktreeRecord:
        """Write down something more, and return all of it."""
        kept = replace(self.known(), **known)  # type: ignore[arg-type]
        self.keep(kept)
        return kept

    def clear(self) -> None:
        """Remove everything but the hold on it."""
        (self.here / "kept.json").unlink(missing_ok=True)
        for folder in (self.tree, self.check, self.git, self.home, self.check_home, self.code, self.edits, self.trash):
            remove_tree(folder)

    def close(self) -> None:
        """Let it go; twice is harmless."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    def _hold(self) -> None:
        try:
            import fcntl
        except ImportError:  # a system without: no command is confined there, so none of this is used
            return
        until = time.monotonic() + _TAKEN_S
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            if time.monotonic() > until:
                raise WorktreeFailed(f"another process is at work in {self.here}; wait until it has ended")
            time.sleep(0.05)
