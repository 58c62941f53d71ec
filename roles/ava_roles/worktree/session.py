"""A workshop: the worktree that a run changes, the tree that its changes are checked in, and the branch that stays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock

import anyio
from anyio.from_thread import check_cancelled

from ava_roles.errors import WorktreeFailed
from ava_roles.sandbox.paths import Root
from ava_roles.sandbox.sandbox import Command, Sandbox
from ava_roles.sandbox.workbench import CommandSandbox
from ava_roles.threads import run_sync
from ava_roles.worktree import publish
from ava_roles.worktree.edits import Edits
from ava_roles.worktree.git import UserRepository, translate_os_errors
from ava_roles.worktree.publish import unified_diff
from ava_roles.worktree.spec import Baseline, Branch, WorktreeSpec
from ava_roles.worktree.state import WorktreeFolder
from ava_roles.worktree.trees import Trees, WorktreeSandboxes, remove_folder
from ava_roles.worktree.verify import Verdict, manifests_digest

_KEPT_OUTPUT = 400_000


class WorktreeSession:
    """Surrounds the work of one run on one repository.

    Args:
        order: What was approved.
        here: The folder for it; what an earlier owner of the run left there is taken up.
        sandbox: What runs commands.
        home: The user's home folder.
        read_only: Folders of toolchains that the settings name.
        closed: Folders that are shown in no case.
        network: Commands reach the host's network.

    Attributes:
        say: Takes a sentence about what is being done this second.
    """

    def __init__(
        self,
        order: WorktreeSpec,
        here: Path,
        sandbox: Sandbox,
        *,
        home: Path,
        read_only: Sequence[Path] = (),
        closed: Sequence[Path] = (),
        network: bool = False,
    ) -> None:
        self.say: Callable[[str], None] = lambda _doing: None
        self._order, self._here, self._sandbox = order, here, sandbox
        self._home, self._read_only, self._closed, self._network = home, tuple(read_only), tuple(closed), network
        self._place: WorktreeFolder | None = None
        self._made: tuple[Trees, WorktreeSandboxes, Root, Edits] | None = None
        self._bench = WorktreeSandbox(self, network)
        self._closing = False
        self._keeping = Lock()

    async def prepare(self, *, baseline: bool = True, resumed: bool = False) -> Baseline:
        """Make both trees, or take up those that are there; run the setup and the verify command once.

        Args:
            baseline: Run the commands; a resumed run has had its baseline.
            resumed: The run has worked in its worktree: another one would be without that work.

        Raises:
            NoRepository: There is no commit to begin at.
            BadNamespace: It names what cannot be changed here, such as a path in a submodule.
            WorktreeFailed: The trees cannot be made; says what to do.
            ToolFailed: No command can be started.
        """
        self.say("Taking up the worktree" if resumed else "Making the worktree")
        await run_sync(self._prepare, resumed, abandon_on_cancel=False)
        trees, benches, _files, _edits = self.made
        base = trees.place.known().base
        if not baseline:
            return Baseline(base, benches.notes())
        tree = await run_sync(trees.base_tree, check_cancelled)
        await run_sync(trees.bring, tree, check_cancelled, abandon_on_cancel=False)
        setup = await self._set_up(tree)
        return Baseline(base, benches.notes(), setup, await self._ran(self._order.verify, tree))

    @property
    def files(self) -> Root:
        """The worktree, open."""
        return self.made[2]

    @property
    def edits(self) -> Edits:
        """What edit_file and write_file use."""
        return self.made[3]

    @property
    def bench(self) -> WorktreeSandbox:
        """Where commands work."""
        return self._bench

    @property
    def made(self) -> tuple[Trees, WorktreeSandboxes, Root, Edits]:
        """What there is once `prepare` has been awaited."""
        if self._made is None:
            raise WorktreeFailed("the worktree is not there; it has to be prepared first")
        return self._made

    async def after_command(self) -> str:
        """As `WorktreeBench.after_command`."""
        return await self._bench.after_command()

    async def check(self) -> Verdict:
        """Bring the check tree to what would be committed, and run the verify command there.

        Where a setup command is given, it runs before, if it has not passed since what the project depends on changed.
        What passes after another candidate was at work in that tree is run again in one made anew: only that counts.

        Raises:
            WorktreeFailed: The trees cannot be read or written.
            ToolFailed: The command cannot be started.
        """
        trees = self.made[0]
        tree = await run_sync(trees.candidate, check_cancelled, abandon_on_cancel=False)
        known = await run_sync(trees.place.known)
        if known.checked in (None, tree):
            await run_sync(lambda: trees.place.note(checked=tree))
            return await self._checked(tree)
        await run_sync(lambda: trees.place.note(checked=""))  # no tree is called so: there were several
        verdict = await self._checked(tree)
        if not verdict.passed:
            return verdict
        self.say("Making the tree for the check anew")
        await run_sync(trees.anew, tree, abandon_on_cancel=False)
        return await self._checked(tree)

    async def _checked(self, tree: str) -> Verdict:
        """Run the setup and the verify command on a candidate."""
        trees = self.made[0]
        await run_sync(trees.bring, tree, check_cancelled, abandon_on_cancel=False)
        setup = await self._set_up(tree)
        if setup is not None and not setup.passed:
            return replace(setup, output=f"[the setup command failed: {self._order.setup}]\n{setup.output}")
        return await self._ran(self._order.verify, tree)

    def keep(self, message: str) -> Branch | None:
        """Commit what differs, and make the branch; None when nothing differs. Blocking.

        Raises:
            WorktreeFailed: It cannot be kept; the worktree is as it was.
        """
        with self._keeping:
            return publish.publish_branch(self.made[0], message)

    def close(self) -> None:
        """Close what is open; nothing is removed. Blocks while the work is being kept, which has to have its lock."""
        self._closing = True
        with self._keeping:
            self._close()

    def _close(self) -> None:
        made, self._made = self._made, None
        if made is not None:
            made[2].close()
        place, self._place = self._place, None
        if place is not None:
            place.close()

    def base_tree(self) -> str:
        """Return what the work began at, as git calls such a tree. Blocking."""
        return self.made[0].base_tree()

    def _prepare(self, resumed: bool) -> None:
        if self._made is not None:
            return
        theirs = UserRepository.at(self._order.repository, self._home)
        self._place = place = self._place or WorktreeFolder(self._here)
        trees = Trees(self._order, place, theirs)
        if trees.take_up() is None:
            if resumed:
                raise WorktreeFailed(
                    f"the worktree {self._here} is not there any more, and what the run had changed in it is lost"
                )
            trees.make(check_cancelled)
        benches = WorktreeSandboxes(
            trees, self._sandbox.mounts, self._home, self._read_only, self._closed, check_cancelled
        )
        with translate_os_errors("opening the worktree"):
            root = Root.open(place.tree)
            edits = Edits(root, self._order.namespace, place.edits, trees.submodules)
            self._made = trees, benches, root, edits

    async def _set_up(self, tree: str) -> Verdict | None:
        """Run the setup command where it has to be; None where not."""
        line = self._order.setup
        if line is None:
            return None
        trees = self.made[0]
        mark = await run_sync(manifests_digest, trees.git, tree)
        known = await run_sync(trees.place.known)
        if known.setup == mark:
            return None
        verdict = await self._ran(line, tree)
        if verdict.passed:
            beside = known.beside if known.setup is not None else await run_sync(trees.beside)
            await run_sync(lambda: trees.place.note(setup=mark, beside=beside))
        await run_sync(trees.bring, tree, check_cancelled, abandon_on_cancel=False)
        return verdict

    async def _ran(self, line: str, tree: str) -> Verdict:
        """Run a command line in the tree for checks."""
        self.say(f"Running {line}")
        bench = await run_sync(self.made[1].for_check, abandon_on_cancel=False)
        finished = await self._sandbox.run(
            Command(
                argv=("/bin/bash", "-c", line),
                folder=bench.folder,
                binds=bench.binds,
                environment=bench.environment,
                timeout_s=self._order.verify_timeout_s,
                max_output=_KEPT_OUTPUT,
                network=self._network,
                cpu_s=math.ceil(self._order.verify_timeout_s),
            )
        )
        passed = finished.ended == "exited" and finished.code == 0
        return Verdict(passed, finished.code, finished.ended, finished.output, finished.took_s, tree)


class WorktreeSandbox:
    """Where the commands of a run with a workshop work: its worktree. Stands where a Workbench stands.

    Args:
        workshop: The workshop.
        network: Commands reach the host's network.
    """

    def __init__(self, workshop: WorktreeSession, network: bool) -> None:
        self.network = network
        self._workshop = workshop
        self._told = False
        self._turn = anyio.Lock()

    async def ready(self) -> tuple[CommandSandbox, bool]:
        """Return what commands are given, and whether the model has not been told of it yet."""
        bench = await run_sync(self._workshop.made[1].for_model, abandon_on_cancel=False)
        fresh, self._told = not self._told, True
        return bench, fresh

    async def renew(self) -> str:
        """Make room: remove what git ignores, and what commands keep in their home. The work itself stays.

        Raises:
            WorktreeFailed: It cannot be removed.
        """
        async with self._turn:
            await run_sync(self._workshop.made[0].clear, abandon_on_cancel=False)
        return "what git ignores, and your home folder, were emptied to make room"

    async def after_command(self) -> str:
        """Take back what a command changed outside of the namespace; a sentence for the model, or nothing.

        Also removes what has no business in a worktree: `.git`, pipes, devices; and setuid bits.

        Raises:
            WorktreeFailed: The worktree cannot be read or written.
        """
        async with self._turn:
            return await run_sync(self._workshop.made[0].tidy, check_cancelled, abandon_on_cancel=False)

    def close(self) -> None:
        """Do nothing: the worktree outlives its commands."""


def publish_leftover(order: WorktreeSpec, here: Path, home: Path, message: str) -> Branch | None:
    """Keep what a run that has ended left in its worktree; None where there is nothing. Blocking, without a sandbox.

    Raises:
        WorktreeFailed: It cannot be kept; the worktree is as it was.
    """
    if not (here / "kept.json").is_file():
        return None
    theirs = UserRepository.at(order.repository, home)
    place = WorktreeFolder(here)
    try:
        trees = Trees(order, place, theirs)
        return publish.publish_branch(trees, message) if trees.take_up() is not None else None
    finally:
        place.close()


def remove_worktree(here: Path) -> None:
    """Remove a workshop's folder, with what commands have left in it. Blocking; what is gone already is no fault.

    Raises:
        WorktreeFailed: Something of it cannot be removed, or is still worked with.
    """
    if not here.exists():
        return
    place = WorktreeFolder(here)
    try:
        remove_folder(here)
    finally:
        place.close()


def branch_diff(repository: Path, base: str, head: str, home: Path) -> str:
    """Return the unified diff of two commits of a repository. Blocking; runs nothing of the repository's.

    Raises:
        NoRepository: There is no repository any more.
        WorktreeFailed: One of the commits is not there any more, or git cannot tell.
    """
    for commit in (base, head):
        if not commit or not all(char in "0123456789abcdef" for char in commit):
            raise WorktreeFailed(f"{commit!r:.80} is no commit's id")
    with UserRepository.at(repository, home).joined() as git:
        return unified_diff(git, base, head)
