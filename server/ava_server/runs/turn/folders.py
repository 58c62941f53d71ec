"""The folders of runs: opened in time, checked against what was approved, and removed at the end."""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import anyio.to_thread

from ava_audit.rows import RunRow
from ava_roles.errors import FolderReplaced, WorkspaceRefused, WorktreeFailed
from ava_roles.sandbox.git_folders import Accept, NoGitFolder, only
from ava_roles.sandbox.path_access import make_folders, remove_tree
from ava_roles.sandbox.paths import Root
from ava_roles.sandbox.sandbox import Sandbox
from ava_roles.sandbox.toolchains import HostFolders
from ava_roles.tool import Tool
from ava_roles.tools.registry import specs_of
from ava_roles.worktree.repository import UserRepository
from ava_roles.worktree.session import WorktreeSession
from ava_server.approval.scope import git_folder_of, git_folder_rule, make_workbench, runs_commands
from ava_server.budget import user_limits
from ava_server.core.data_root import home_folder
from ava_server.core.ids import IN_PROCESS
from ava_server.run_config.config import RunConfig, config_of
from ava_server.runs.coder.coding import Worktrees
from ava_server.runs.coder.travel import Travel
from ava_server.runs.turn.context import ConfigNotSupported
from ava_server.runs.turn.resources import RunResources
from ava_server.runs.turn.workspace import open_workspace

if TYPE_CHECKING:
    from ava_roles.sandbox.command_workspace import CopiedWorkspace

log = logging.getLogger("ava.setup")

OPEN_S = 5.0
"""Seconds that opening a folder may take."""
OPEN_THREADS = 4
"""Threads that do nothing but open folders."""
BRING_S = 30.0
"""Seconds that unpacking the copy of a folder may take."""
T = TypeVar("T")


@dataclass(frozen=True)
class OpenFolders:
    """The open folders of a run: what it reads, what it hands over, and where it changes files or runs commands."""

    files: Root | None = None
    artifacts: Root | None = None
    worktree: WorktreeSession | None = None
    bench: CopiedWorkspace | None = None

    def close(self) -> None:
        if self.worktree is not None:
            self.worktree.close()
        if self.bench is not None:
            with contextlib.suppress(OSError):  # a command is still being ended; the folder is removed with the run
                self.bench.close()
        for root in (self.files, self.artifacts):
            if root is not None:
                root.close()


class RunFolders:
    """Opens the folders of runs, and removes what is theirs.

    Attributes:
        threads: The threads that do nothing but open folders.
    """

    def __init__(self, resources: RunResources, travel: Travel, worktrees: Worktrees) -> None:
        self.threads = anyio.CapacityLimiter(OPEN_THREADS)
        self._resources = resources
        self._travel = travel
        self._worktrees = worktrees

    async def open(
        self, run: RunRow, config: RunConfig, tools: Mapping[str, Tool], scratch: Path, sandbox: Sandbox | None
    ) -> OpenFolders:
        """Open the folders of a run. Raises ConfigNotSupported, FolderReplaced: see `prepare`."""
        if self._travel.is_elsewhere(config):
            await self._receive_folder(run)
        files, artifacts = await self.in_time(lambda: self._open_folders(config, run))
        place = OpenFolders(files, artifacts)
        if sandbox is None:
            return place
        if config.coding is not None:
            return replace(place, worktree=self._worktree(run, config, sandbox))
        if config.runner != IN_PROCESS or runs_commands(config.tools, tools):
            bench = make_workbench(run, config, files, scratch, sandbox, self._resources.settings)
            return replace(place, bench=bench)
        return place

    async def in_time(self, work: Callable[[], T]) -> T:
        """Open something in one of a few threads kept for that. Raises ConfigNotSupported: its disk does not answer."""
        try:
            with anyio.fail_after(OPEN_S):
                return await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self.threads)
        except TimeoutError:
            raise ConfigNotSupported(f"its folders do not answer within {OPEN_S:g} s") from None

    async def _receive_folder(self, run: RunRow) -> None:
        """Unpack the copy of a run's folder."""
        try:
            with anyio.fail_after(BRING_S):
                await anyio.to_thread.run_sync(self._travel.unpack_folder, run, abandon_on_cancel=True)
        except TimeoutError:
            raise ConfigNotSupported(f"the copy of its folder was not there within {BRING_S:g} s") from None

    def _worktree(self, run: RunRow, config: RunConfig, sandbox: Sandbox) -> WorktreeSession:
        """Return the worktree of a run that changes files; it is created when the run starts."""
        settings = self._resources.settings
        return WorktreeSession(
            self._travel.spec(run.id, config),
            self._worktrees.folder_of(run.id),
            sandbox,
            HostFolders(Path.home(), settings.sandbox.read_only, (settings.data_root,)),
            network=config.network,
        )

    def check(self, config: RunConfig, user: str) -> None:
        """Check that a run's workspace and repository are the ones that were approved."""
        if self._travel.is_elsewhere(config):
            return  # a copy is unpacked when the work begins
        if config.workspace:
            self._open_workspace(config, config.workspace, user).close()
        if config.coding is not None:
            with contextlib.suppress(WorktreeFailed):  # other errors are reported when the work begins
                accept = only(config.git_folder)
                UserRepository.at(Path(config.coding.repository), Path.home(), config.coding.identity, accept)

    def _open_workspace(self, config: RunConfig, workspace: str, user: str) -> Root:
        """Open the workspace of a run."""
        settings = self._resources.settings
        folder = Path(workspace)
        owner = user == self._resources.user
        try:
            root = open_workspace(settings, folder, config.workspace_identity, user, owner=owner)
        except OSError as error:
            raise ConfigNotSupported(f"its workspace {workspace} cannot be opened: {error.strerror}") from error
        except WorkspaceRefused as error:
            raise FolderReplaced(str(error)) from error
        try:
            if config.coding is not None or runs_commands(config.tools, self._resources.tools):
                roots = user_limits.workspace_roots(settings, user, owner=owner)
                allow = user_limits.named_folders(settings, user)
                data_root, home = settings.data_root, home_folder()
                accept = git_folder_rule(roots, data_root=data_root, home=home, allow=allow, owner=owner)
                self._check_git_folder(config, folder, accept)
        except BaseException:
            root.close()
            raise
        return root

    @staticmethod
    def _check_git_folder(config: RunConfig, folder: Path, accept: Accept) -> None:
        """Check that git uses nothing outside a workspace's checkout except what the approval names."""
        try:
            found = git_folder_of(folder, home_folder(), accept)
        except NoGitFolder as error:
            raise FolderReplaced(str(error)) from error
        except OSError as error:
            raise ConfigNotSupported(f"the git folder of {folder} cannot be read: {error.strerror}") from error
        if found != config.git_folder:
            raise FolderReplaced(
                f"{folder} has its git folder in {found or folder}, and {config.git_folder or folder} was approved"
            )

    def _open_folders(self, config: RunConfig, run: RunRow) -> tuple[Root | None, Root | None]:
        """Open the folders that a run reads and hands over files in; a run that changes files reads its worktree."""
        files = None
        if config.coding is not None:
            self.check(config, run.user_id)
        elif self._travel.is_elsewhere(config):
            files = Root.open(self._travel.folder_of(run.id))
        elif config.workspace:
            files = self._open_workspace(config, config.workspace, run.user_id)
        if not any(spec.artifacts for spec in specs_of(config.tools, self._resources.tools)):
            return files, None
        folder = self._resources.settings.paths.artifacts / run.id
        try:
            make_folders(folder, self._resources.settings.data_root)
            return files, Root.open(folder)
        except BaseException:
            if files is not None:
                files.close()
            raise

    def close(self, run: RunRow, place: OpenFolders, ended: bool) -> None:
        place.close()
        if ended:
            self.remove(run)

    def artifacts(self, run_id: str) -> list[dict[str, Any]]:
        """Return name, size in bytes and sha256 of each file that a run has handed over. Blocks."""
        folder = self._resources.settings.paths.artifacts / run_id
        found = list_artifacts(folder)
        self._travel.send_artifacts(run_id, folder, found)
        return [{**file, "name": self._resources.credentials.redactor.redact(file["name"])[0]} for file in found]

    def remove(self, run: RunRow) -> None:
        """Remove an ended run's worktree, its scratch folder and its artifacts folder, if that is empty. Blocks."""
        if config_of(run.config).coding is not None:
            self._worktrees.remove(run)
        self.remove_scratch(run.id)

    def remove_scratch(self, run_id: str) -> None:
        """Remove an ended run's scratch folder, and its artifacts folder, if that is empty. Blocks."""
        try:
            remove_tree(self._resources.settings.paths.scratch / run_id)
        except OSError as error:  # the next start removes the rest
            log.warning("the scratch folder of %s was not removed completely: %s", run_id, error)
        with contextlib.suppress(OSError):  # not empty, or never created
            (self._resources.settings.paths.artifacts / run_id).rmdir()


def list_artifacts(folder: Path) -> list[dict[str, Any]]:
    """Return name, size in bytes and sha256 of each file that a run handed over."""
    try:
        paths = sorted(folder.iterdir()) if folder.is_dir() else []
    except OSError as error:  # a run ends with its result even where its files cannot be listed
        log.warning("the artifacts in %s cannot be listed: %s", folder.name, error)
        return []
    artifacts: list[dict[str, Any]] = []
    for path in paths:
        if path.is_file() and not path.is_symlink():
            try:
                data = path.read_bytes()
            except OSError as error:
                log.warning("%s cannot be listed: %s", path.name, error)
                continue
            artifacts.append({"name": path.name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()})
    return artifacts
