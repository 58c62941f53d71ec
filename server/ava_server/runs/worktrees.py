"""The worktrees of runs on the disk: what an ended run has left in one goes on its branch, and then it is removed."""

from __future__ import annotations

import logging
from pathlib import Path

from ava_audit.rows import RunRow
from ava_roles.errors import RolesError
from ava_roles.worktree.branch import Branch
from ava_roles.worktree.session import keep_left, remove
from ava_server.approval.coding import order_of
from ava_server.approval.run_config import config_of
from ava_server.runs.changes import Kept, commit_message

log = logging.getLogger("ava.worktrees")


class Worktrees:
    """The folders in which runs that change files work, each named by its run.

    Args:
        folder: Where they are.
        home: The user's home folder.
    """

    def __init__(self, folder: Path, home: Path) -> None:
        self._folder = folder
        self._home = home

    def here(self, run_id: str) -> Path:
        """Return the folder of a run."""
        return self._folder / run_id

    def there(self) -> list[str]:
        """Return the runs that have a folder. Blocking."""
        return sorted(path.name for path in self._folder.glob("S-*"))

    def keep(self, run: RunRow, message: str) -> Branch | None:
        """Bring what a run has changed onto its branch; None where that is nothing. Blocking.

        Raises:
            RolesError: It cannot be done; the folder is as it was.
        """
        here = self.here(run.id)
        return keep_left(order_of(run.id, config_of(run.config)), here, self._home, message) if here.is_dir() else None

    def left(self, run: RunRow, task: str = "") -> Kept | None:
        """Bring onto its branch what a run that nobody works on has changed; None for one that changes no files.

        Blocking.
        """
        coding = config_of(run.config).coding
        if coding is None:
            return None
        try:
            return Kept(self.keep(run, commit_message(run.id, coding, task=task)))
        except (RolesError, OSError) as error:
            log.warning("what %s has changed is not on a branch: %s", run.id, error)
            return Kept(fault=str(error))

    def tidy(self, run: RunRow) -> None:
        """Remove the folder of a run that has ended, once nothing is left in it that is not on its branch. Blocking."""
        here = self.here(run.id)
        if not here.exists():
            return
        kept = self.left(run)
        if kept is not None and kept.fault:
            log.warning("%s stays, because it has what is on no branch", here)
            return
        try:
            remove(here)
        except (RolesError, OSError) as error:  # the next start sweeps
            log.warning("the worktree of %s was not all removed: %s", run.id, error)
