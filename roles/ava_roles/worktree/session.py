"""One run's work on a repository: its worktree, the verification of its changes, and the branch that is published."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import anyio
from anyio.from_thread import check_cancelled

from ava_roles.errors import WorktreeFailed
from ava_roles.sandbox.command_workspace import CommandSandbox
from ava_roles.sandbox.counted_tests import CountedTests, is_of_tests
from ava_roles.sandbox.git_folders import only
from ava_roles.sandbox.path_access import remove_tree
from ava_roles.sandbox.paths import Root
from ava_roles.sandbox.sandbox import Command, Sandbox
from ava_roles.sandbox.toolchains import HostFolders
from ava_roles.threads import run_sync
from ava_roles.worktree.publish import publish_branch, unified_diff
from ava_roles.worktree.repository import UserRepository, manifests_digest, translate_os_errors
from ava_roles.worktree.spec import Baseline, Branch, Edits, Verdict, WorktreeSpec
from ava_roles.worktree.state import WorktreeFolder
from ava_roles.worktree.trees import Trees, WorktreeSandboxes

_MAX_OUTPUT_BYTES = 400_000
_SEVERAL = ""
"""Stands for the checked candidate in the record once there were several; no tree has this name."""


class PreparedWorktree(NamedTuple):
    """A worktree that is ready for work."""

    trees: Trees
    sandboxes: WorktreeSandboxes
    files: Root
    edits: Edits


class WorktreeSession:
    """One run's work on one repository, as approved, in the folder `path`, where an earlier owner may have left some.

    `say` takes a sentence about what is being done this second.
    """

    def __init__(
        self, spec: WorktreeSpec, path: Path, sandbox: Sandbox, host: HostFolders, *, network: bool = False
    ) -> None:
        self.say: Callable[[str], None] = lambda _doing: None
        self._spec, self._path, self._sandbox = spec, path, sandbox
        self._host, self._network = host, network
        self._folder: WorktreeFolder | None = None
        self._prepared: PreparedWorktree | None = None
        self._publishing = Lock()
        self.bench = WorktreeSandbox(self, network)

    async def prepare(self, *, baseline: bool = True, resumed: bool = False) -> Baseline:
        """Create both trees, or use those that exist; run the setup and the verify command once.

        Without `baseline`, no command is run: a resumed run has had it. If `resumed`, a new worktree would lack the
        run's work. Raises FolderReplaced: the repository is not the one that was approved; NoRepository: there is no
        commit to begin at; BadNamespace: the namespace names what cannot be changed here, such as a path in a
        submodule; WorktreeFailed: the trees cannot be created; says what to do; ToolFailed: no command can be started.
        """
        if resumed:
            self.say("Opening the worktree again")
        else:
            self.say("Creating the worktree")
        await run_sync(self._prepare, resumed, abandon_on_cancel=False)
        trees, sandboxes, _files, _edits = self.prepared
        base = trees.folder.record().base
        if not baseline:
            return Baseline(base, sandboxes.notes())
        tree = await run_sync(trees.base_tree, check_cancelled)
        await run_sync(trees.check_out, tree, check_cancelled, abandon_on_cancel=False)
        setup = await self._run_setup(tree)
        return Baseline(base, sandboxes.notes(), setup, await self._run(self._spec.verify, tree))

    @property
    def files(self) -> Root:
        return self.prepared.files

    @property
    def edits(self) -> Edits:
        return self.prepared.edits

    async def check(self) -> Verdict:
        """Run the verify command on what would be committed, in the check tree.

        The setup command runs before, unless it has passed since the project's dependencies changed. If a candidate
        passes after others were checked in the same tree, it is checked again in an empty one: only that counts. Raises
        WorktreeFailed: the trees cannot be read or written; ToolFailed: the command cannot be started.
        """
        trees = self.prepared.trees
        tree = await run_sync(trees.candidate, check_cancelled, abandon_on_cancel=False)
        checked = (await run_sync(trees.folder.record)).checked
        only = checked in (None, tree)
        await run_sync(lambda: trees.folder.update(checked=tree if only else _SEVERAL))
        verdict = await self._check(tree)
        if only or not verdict.passed:
            return verdict
        self.say("Emptying the check tree")
        await run_sync(trees.reset_check, tree, abandon_on_cancel=False)
        return await self._check(tree)

    def keep(self, message: str) -> Branch | None:
        """Commit what differs, and make the branch; None if nothing differs. Blocking."""
        with self._publishing:
            return publish_branch(self.prepared.trees, message)

    def close(self) -> None:
        """Close the worktree; nothing is removed. Blocks while the branch is being made."""
        with self._publishing:
            prepared, self._prepared = self._prepared, None
            if prepared is not None:
                prepared.files.close()
            folder, self._folder = self._folder, None
            if folder is not None:
                folder.close()

    def base_tree(self) -> str:
        """Blocking."""
        return self.prepared.trees.base_tree()

    @property
    def prepared(self) -> PreparedWorktree:
        """What exists once `prepare` has ended. Raises WorktreeFailed if it has not."""
        if self._prepared is None:
            raise WorktreeFailed("the worktree does not exist; prepare it first")
        return self._prepared

    def _prepare(self, resumed: bool) -> None:
        if self._prepared is not None:
            return
        spec = self._spec
        repository = UserRepository.at(spec.repository, self._host.home, spec.identity, only(spec.git_folder))
        self._folder = folder = self._folder or WorktreeFolder(self._path)
        trees = Trees(spec, folder, repository)
        if trees.reopen() is None:
            if resumed:
                raise WorktreeFailed(f"the worktree {self._path} is gone, and with it what the run had changed")
            trees.create(check_cancelled)
        sandboxes = WorktreeSandboxes(trees, self._sandbox.mounts, self._host, check_cancelled)
        with translate_os_errors("opening the worktree"):
            root = Root.open(folder.tree)
            edits = Edits(root, spec.namespace, folder.edits, trees.submodules)
            self._prepared = PreparedWorktree(trees, sandboxes, root, edits)

    async def _check(self, tree: str) -> Verdict:
        await run_sync(self.prepared.trees.check_out, tree, check_cancelled, abandon_on_cancel=False)
        setup = await self._run_setup(tree)
        if setup is not None and not setup.passed:
            return replace(setup, output=f"[the setup command failed: {self._spec.setup}]\n{setup.output}")
        return await self._run(self._spec.verify, tree)

    async def _run_setup(self, tree: str) -> Verdict | None:
        line = self._spec.setup
        if line is None:
            return None
        trees = self.prepared.trees
        digest = await run_sync(manifests_digest, trees.git, tree)
        record = await run_sync(trees.folder.record)
        if record.setup == digest:
            return None
        verdict = await self._run(line, tree)
        if verdict.passed:
            beside = record.beside if record.setup is not None else await run_sync(trees.setup_files)
            await run_sync(lambda: trees.folder.update(setup=digest, beside=beside))
        await run_sync(trees.check_out, tree, check_cancelled, abandon_on_cancel=False)
        return verdict

    async def _run(self, line: str, tree: str) -> Verdict:
        self.say(f"Running {line}")
        sandbox = await run_sync(self.prepared.sandboxes.for_check, abandon_on_cancel=False)
        finished = await self._sandbox.run(
            Command(
                argv=("/bin/bash", "-c", line),
                folder=sandbox.folder,
                binds=sandbox.binds,
                environment=sandbox.environment,
                timeout_s=self._spec.verify_timeout_s,
                max_output=_MAX_OUTPUT_BYTES,
                network=self._network,
                cpu_s=math.ceil(self._spec.verify_timeout_s),
                heard=CountedTests(self.say).hear if is_of_tests(line) else None,
            )
        )
        passed = finished.ended == "exited" and finished.code == 0
        return Verdict(passed, finished.code, finished.ended, finished.output, finished.took_s, tree)


class WorktreeSandbox:
    """Where the commands of a run with a worktree run: in the worktree. Used in place of a CopiedWorkspace."""

    def __init__(self, session: WorktreeSession, network: bool) -> None:
        self.network = network
        self._session = session
        self._announced = False
        self._lock = anyio.Lock()

    async def ready(self) -> tuple[CommandSandbox, bool]:
        sandbox = await run_sync(self._session.prepared.sandboxes.for_model, abandon_on_cancel=False)
        fresh, self._announced = not self._announced, True
        return sandbox, fresh

    async def renew(self) -> str:
        """Remove ignored files and the home of the commands; the work itself stays. Raises WorktreeFailed."""
        async with self._lock:
            await run_sync(self._session.prepared.trees.free_space, abandon_on_cancel=False)
        return "ignored files, and your home folder, were removed to free space"

    async def after_command(self) -> str:
        """Undo what a command changed outside of the namespace, or left that no worktree may have; say so to the model.

        That is `.git`, pipes, devices, setuid bits. Raises WorktreeFailed if the worktree cannot be read or written.
        """
        async with self._lock:
            return await run_sync(self._session.prepared.trees.undo_outside, check_cancelled, abandon_on_cancel=False)

    def close(self) -> None:
        """Do nothing: the worktree outlives its commands."""


def publish_leftover(spec: WorktreeSpec, path: Path, home: Path, message: str) -> Branch | None:
    """Publish what an ended run left in its worktree; None if nothing. Blocking."""
    if not (path / "kept.json").is_file():
        return None
    repository = UserRepository.at(spec.repository, home, spec.identity, only(spec.git_folder))
    with closing(WorktreeFolder(path)) as folder:
        trees = Trees(spec, folder, repository)
        return publish_branch(trees, message) if trees.reopen() is not None else None


def remove_worktree(path: Path) -> None:
    """Remove a session's folder, if it exists. Blocking. Raises WorktreeFailed: it cannot be removed, or is in use."""
    if not path.exists():
        return
    with closing(WorktreeFolder(path)), translate_os_errors(f"removing {path}"):
        remove_tree(path)


def branch_diff(repository: Path, base: str, head: str, home: Path, context: int = 3, git_folder: str = "") -> str:
    """Return the unified diff of two commits. Blocking; runs nothing of the repository's.

    Raises NoRepository if the repository is gone; WorktreeFailed if one of the commits is gone, or git fails.
    """
    for commit in (base, head):
        if not commit or not all(char in "0123456789abcdef" for char in commit):
            raise WorktreeFailed(f"{commit!r:.80} is not the id of a commit")
    with UserRepository.at(repository, home, accept=only(git_folder)).joined() as git:
        return unified_diff(git, base, head, context)
