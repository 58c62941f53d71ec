"""What a run needs and delivers, as it goes from one machine to another through the database.

With the log in Postgres, a run may be done on another machine than the one where it was proposed. A proposal stores the
approved commit beside the log, and its digest is a part of what is approved; the proposal of a plan stores what its
steps need. A worker on another data root checks the digest, unpacks the commit in its own data root, and stores the
branch there when the run ends; the result has that digest. `service/fetch.py` brings the branch to its repository. With
the embedded database, nothing travels.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from ava_audit.errors import AuditError, BlobRefused
from ava_audit.rows import RunRow
from ava_audit.store.backend import Blob, Blobs
from ava_roles.errors import FolderReplaced, RolesError, WorktreeFailed
from ava_roles.sandbox.git_folders import Accept
from ava_roles.sandbox.paths import Root
from ava_roles.sandbox.temporary import temporary_folder
from ava_roles.sandbox.workspace_copy import pack_folder, unpack_folder
from ava_roles.worktree.snapshot import pack_branch, pack_snapshot, unpack_snapshot
from ava_roles.worktree.spec import Branch, WorktreeSpec
from ava_server.approval.resolve_coding import worktree_spec
from ava_server.approval.scope import git_folder_rule
from ava_server.config.settings import Settings
from ava_server.core.errors import Refused
from ava_server.core.files import create_file
from ava_server.run_config.config import RunConfig, StepConfig, config_of
from ava_server.run_config.parts import StoredFile
from ava_server.runs.record.changes import KeptChanges

log = logging.getLogger("ava.travel")
PACK_S = 45.0
"""How long storing a copy of a repository or folder may take: hosts wait about a minute for an answer."""
MB = 1_000_000
OVERHEAD = 10 * MB
"""How much larger than its content a stored file may be: headers, and the files that say what git ignores."""
REPOSITORY, FOLDER = "repository", "folder"
"""The copy of a repository, in the folder of the run's worktree; and that of a folder, in its scratch folder."""


def blob_of(file: StoredFile) -> Blob:
    return Blob(file.sha256, file.size)


class Travel:
    """Sends and receives what goes through the database, for one process. Methods that are not coroutines block.

    Args:
        blobs: The files beside the log; None if nothing travels.
    """

    def __init__(self, settings: Settings, blobs: Blobs | None, home: Path) -> None:
        self.blobs = blobs
        self._settings, self._home = settings, home
        self._paths = settings.paths
        self._origin = ""

    @property
    def origin(self) -> str:
        """The name of this data root among all that share the log. Raises OSError if it cannot be read or written."""
        if not self._origin:
            if not self._paths.origin.exists():  # another process may do it at the same time
                name = secrets.token_hex(16)
                fresh = self._paths.origin.with_name(f".origin.{name}")
                create_file(fresh, f"{name}\n".encode())
                try:
                    with contextlib.suppress(FileExistsError):
                        self._paths.origin.hardlink_to(fresh)  # never a file without its content
                finally:
                    fresh.unlink()
            self._origin = self._paths.origin.read_text("ascii").strip()
        return self._origin

    @property
    def is_possible(self) -> bool:
        """Whether anything travels: the log is shared."""
        return self.blobs is not None

    def git_folder_rule(self) -> Accept:
        """Return the rule for the git folder of a checkout that the person at this machine names."""
        folders = self._settings.named_folders
        return git_folder_rule(None, data_root=self._settings.data_root, home=self._home, allow=folders, owner=True)

    def is_elsewhere(self, config: RunConfig) -> bool:
        """Tell whether a run's folder or repository belongs to another data root's machine."""
        return self._paths.is_elsewhere(config.origin)

    def missing(self, config: RunConfig) -> str | None:
        """Return what a run needs and is on another machine only; None if everything is here, or has travelled."""
        if not self.is_elsewhere(config):
            return None
        needed, name = config.folder, "folder_mb"
        if config.coding is not None:
            needed, name = config.coding.snapshot, "repository_mb"
        why = config.travel_note or "it does not travel"
        if self.blobs is not None and needed is not None:
            limit_mb = int(getattr(self._settings.travel, name))
            if needed.size <= limit_mb * MB + OVERHEAD:
                return None
            why = f"its copy has {needed.size / MB:,.1f} MB, and travel.{name} is {limit_mb} here"
        return f"{config.workspace} is on the machine where it was proposed, because {why}"

    # -- at the proposal ----------------------------------------------------------------------------------------------

    async def send_input(self, config: RunConfig, runs: Sequence[str]) -> RunConfig:
        """Return a proposal's configuration with what it needs stored beside the log; `runs` are the ids it may get.

        Raises:
            Refused: It took too long.
            AuditError: The database cannot be written.
            OSError: There is no room for the copy.
        """
        try:
            with anyio.fail_after(PACK_S):
                return await anyio.to_thread.run_sync(self._pack_folder, config, runs, abandon_on_cancel=True)
        except TimeoutError:
            what = config.workspace or "the folders of its steps"
            raise Refused(
                f"a copy of {what} for other machines was not stored within {PACK_S:g} s; lower the limits in [travel]"
                " of config.toml (0: nothing is copied), or try again"
            ) from None

    def _pack_folder(self, config: RunConfig, runs: Sequence[str]) -> RunConfig:
        if self.blobs is None:
            return config
        if not config.steps:
            return self._with_input(config, runs, {})
        sent: dict[Hashable, StoredFile | str] = {}
        steps: list[StepConfig] = []
        for step in config.steps:
            own = self._with_input(step.config, runs, sent)
            steps.append(step.model_copy(update={"config": own}))
        return config.model_copy(update={"steps": tuple(steps)})

    def _with_input(self, config: RunConfig, runs: Sequence[str], sent: dict[Hashable, StoredFile | str]) -> RunConfig:
        """Return a run's configuration with what it needs stored; `sent` has what others of the same plan need."""
        if config.workspace is None:
            return config
        coding = config.coding
        same = (
            config.workspace,
            config.workspace_identity,
            config.git_folder,
            coding and (coding.repository, coding.base),
        )
        if same not in sent:
            sent[same] = self._store_input(config, runs)
        file = sent[same]
        if isinstance(file, str):
            return config.model_copy(update={"origin": self.origin, "travel_note": file})
        if coding is None:
            return config.model_copy(update={"origin": self.origin, "folder": file})
        coding = coding.model_copy(update={"snapshot": file})
        return config.model_copy(update={"origin": self.origin, "coding": coding})

    def _store_input(self, config: RunConfig, runs: Sequence[str]) -> StoredFile | str:
        """Store what a run needs beside the log; return why it does not travel where it does not."""
        assert self.blobs is not None, "otherwise nothing travels"
        name = "repository_mb" if config.coding is not None else "folder_mb"
        limit_mb = int(getattr(self._settings.travel, name))
        if not limit_mb:
            return f"travel.{name} is 0"
        with temporary_folder("ava-travel-") as aside:
            path = aside / "packed"
            try:
                why = self._pack(config, limit_mb * MB, aside, path)
            except (RolesError, OSError) as error:
                why = str(error)
            if why is not None:
                return f"what it works on is not copied (travel.{name} is {limit_mb}): {why}"
            stored = self.blobs.put(path, runs, "input")
        return StoredFile(sha256=stored.sha256, size=stored.size)

    def _pack(self, config: RunConfig, limit: int, aside: Path, path: Path) -> str | None:
        """Write what a run needs to a file; return why it does not travel, or None."""
        coding = config.coding
        if coding is not None:
            return pack_snapshot(Path(coding.repository), self._home, coding.base, limit, path, config.git_folder)
        assert config.workspace is not None, "otherwise nothing has to travel"
        with contextlib.closing(Root.open_approved(Path(config.workspace), config.workspace_identity)) as root:
            return pack_folder(root, self._home, limit, aside, path, config.git_folder)

    def release(self, runs: Sequence[str]) -> None:
        """Forget what was stored for runs that were not proposed after all."""
        if self.blobs is not None and runs:
            try:
                self.blobs.release(runs, "input")
            except (AuditError, OSError) as error:  # the next sweep does it
                log.warning("what was stored for a proposal is still there: %s", error)

    # -- on the machine that does the work ----------------------------------------------------------------------------

    def spec(self, run_id: str, config: RunConfig) -> WorktreeSpec:
        """Return the worktree spec of a run: with its repository, or with the copy of it on this machine."""
        spec = worktree_spec(run_id, config)
        if not self.is_elsewhere(config):
            return spec
        return replace(spec, repository=self._paths.worktrees / run_id / REPOSITORY, identity=(), git_folder="")

    def unpack_repository(self, run: RunRow) -> None:
        """Make the copy of a run's repository, if its own is on another machine.

        Raises:
            WorktreeFailed: It is not what was approved; nothing of it is left.
            StoreUnavailable: The database cannot be read.
        """
        config = config_of(run.config)
        if config.coding is None or not self.is_elsewhere(config):
            return
        place = self.spec(run.id, config).repository
        snapshot = config.coding.snapshot
        if place.exists():
            return
        if self.blobs is None or snapshot is None:
            raise WorktreeFailed("the repository is on another machine and did not travel")
        with temporary_folder("ava-travel-") as aside:
            self.blobs.fetch(blob_of(snapshot), self._proposed_as(run), aside / "snapshot")
            unpack_snapshot(aside / "snapshot", place, self._settings.data_root, config.coding.base)

    def _proposed_as(self, run: RunRow) -> str:
        """Return the id under which a run's input was stored: its own, or that of the plan which has started it."""
        assert self.blobs is not None, "otherwise nothing travels"
        if run.plan_id is None or self.blobs.has(run.id, "input"):
            return run.id
        return run.plan_id

    def folder_of(self, run_id: str) -> Path:
        return self._paths.scratch / run_id / FOLDER

    def unpack_folder(self, run: RunRow) -> None:
        """Make the copy of a run's folder, if its own is on another machine.

        Raises:
            FolderReplaced: It is not what was approved; nothing of it is left.
            StoreUnavailable: The database cannot be read.
            OSError: It cannot be written.
        """
        config = config_of(run.config)
        place = self.folder_of(run.id)
        if config.coding is not None or not self.is_elsewhere(config) or place.exists():
            return
        if self.blobs is None or config.folder is None:
            raise FolderReplaced("its folder is on another machine and did not travel")
        with temporary_folder("ava-travel-") as aside:
            try:
                self.blobs.fetch(blob_of(config.folder), self._proposed_as(run), aside / "folder")
            except BlobRefused as error:
                raise FolderReplaced(f"the copy of {config.workspace} is not the approved one: {error}") from error
            unpack_folder(aside / "folder", place, self._settings.data_root, config.folder.size)

    def sent(self, run: RunRow, branch: Branch | None) -> KeptChanges:
        """Return what became of a run's changes, once its branch is where the owner can get it.

        Raises:
            RolesError: The branch cannot be packed.
            AuditError: The database cannot be written.
        """
        config = config_of(run.config)
        if branch is None or self.blobs is None or not self.is_elsewhere(config):
            return KeptChanges(branch)
        with temporary_folder("ava-travel-") as aside:
            pack_branch(self.spec(run.id, config).repository, self._home, branch, aside / "pack")
            stored = self.blobs.put(aside / "pack", (run.id,), "result")
        return KeptChanges(branch, pack=StoredFile(sha256=stored.sha256, size=stored.size))

    def send_artifacts(self, run_id: str, folder: Path, files: Sequence[dict[str, Any]]) -> None:
        """Store the files that a run has handed over, so that every server has them."""
        if self.blobs is None:
            return
        try:
            for file in files:
                if file["bytes"] <= self._settings.travel.artifact_mb * MB:
                    self.blobs.put(folder / file["name"], (run_id,), "artifact")
        except (AuditError, OSError) as error:  # the ending does not wait: they are on this machine
            log.warning("files of %s are only on this machine: %s", run_id, error)
