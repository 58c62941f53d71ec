"""A workshop: the worktree that a run changes, the tree that its changes are checked in, and the branch that stays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ava_roles.confine.paths import Root
from ava_roles.confine.sandbox import Sandbox
from ava_roles.workshop.branch import Baseline, Branch
from ava_roles.workshop.order import WorkOrder
from ava_roles.workshop.verdict import Verdict

if TYPE_CHECKING:
    from ava_roles.confine.workbench import Bench
    from ava_roles.workshop.edits import Edits


class WorktreeBench:
    """Where the commands of a run with a workshop work: its worktree. Stands where a Workbench stands.

    Attributes:
        network: Commands reach the host's network.
    """

    network: bool

    async def ready(self) -> tuple[Bench, bool]:
        """Return what commands are given, and whether it was made just now."""
        raise NotImplementedError

    async def after_command(self) -> str:
        """Take back what a command changed outside of the namespace; a sentence for the model, or nothing.

        Also removes what has no business in a worktree: `.git`, pipes, devices; and setuid bits.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Do nothing: the worktree outlives its commands."""


class Workshop:
    """Surrounds the work of one run on one repository.

    Args:
        order: What was approved.
        here: The folder for it; what an earlier owner of the run left there is taken up.
        sandbox: What runs commands.
        home: The user's home folder.
        read_only: Folders of toolchains that the settings name.
        closed: Folders that are shown in no case.
        network: Commands reach the host's network.
    """

    def __init__(
        self,
        order: WorkOrder,
        here: Path,
        sandbox: Sandbox,
        *,
        home: Path,
        read_only: Sequence[Path] = (),
        closed: Sequence[Path] = (),
        network: bool = False,
    ) -> None:
        raise NotImplementedError

    async def prepare(self, *, baseline: bool = True) -> Baseline:
        """Make both trees, or take up those that are there; run the setup and the verify command once.

        Args:
            baseline: Run the commands; a resumed run has had its baseline.

        Raises:
            NoRepository: There is no commit to begin at.
            BadNamespace: It names what cannot be changed here, such as a path in a submodule.
            WorkshopFailed: The trees cannot be made; says what to do.
            ToolFailed: No command can be started.
        """
        raise NotImplementedError

    @property
    def files(self) -> Root:
        """The worktree, open."""
        raise NotImplementedError

    @property
    def edits(self) -> Edits:
        """What edit_file and write_file use."""
        raise NotImplementedError

    @property
    def bench(self) -> WorktreeBench:
        """Where commands work."""
        raise NotImplementedError

    async def after_command(self) -> str:
        """As `WorktreeBench.after_command`."""
        return await self.bench.after_command()

    async def check(self) -> Verdict:
        """Bring the check tree to what would be committed, and run the verify command there.

        Raises:
            WorkshopFailed: The trees cannot be read or written.
            ToolFailed: The command cannot be started.
        """
        raise NotImplementedError

    def keep(self, message: str) -> Branch | None:
        """Commit what differs, and make the branch; None when nothing differs. Blocking.

        Raises:
            WorkshopFailed: It cannot be kept; the worktree is as it was.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Close what is open; nothing is removed."""


def keep_left(order: WorkOrder, here: Path, home: Path, message: str) -> Branch | None:
    """Keep what a run that has ended left in its worktree; None where there is nothing. Blocking, without a sandbox.

    Raises:
        WorkshopFailed: It cannot be kept; the worktree is as it was.
    """
    raise NotImplementedError


def remove(here: Path) -> None:
    """Remove a workshop's folder, with what commands have left in it. Blocking; what is gone already is no fault.

    Raises:
        WorkshopFailed: Something of it cannot be removed.
    """
    raise NotImplementedError


def diff(repository: Path, base: str, head: str, home: Path) -> str:
    """Return the unified diff of two commits of a repository. Blocking; runs nothing of the repository's.

    Raises:
        NoRepository: There is no repository any more.
        WorkshopFailed: One of the commits is not there any more, or git cannot tell.
    """
    raise NotImplementedError
