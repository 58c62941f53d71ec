"""Where role files are: in the data root, in the project, and, if a setting says so, in Claude Code's folders."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from ava_roles.catalog import Catalog, Folder, Remark, folder_fingerprint, role_file_names
from ava_roles.errors import WorkspaceRefused
from ava_roles.sandbox.workspace import Workspace, project_above, project_at, repository_of, resolve_workspace
from ava_server.core.data_root import home_folder, working_folder
from ava_server.core.errors import ConfigError
from ava_server.core.files import PrivateFile

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

    from ava_server.config.settings import Settings
    from ava_server.core.data_root import DataRoot


Hashes = Mapping[str, str]
"""The sha256 in hex of each trusted file of one folder, by its name."""
_SHA256 = re.compile(r"[0-9a-f]{64}")


def read_trusted(path: Path) -> dict[str, dict[str, str]]:
    """Return the trusted files, by the real path of their folder. Blocking. Raises ConfigError."""
    return _file(path).read(_hashes, "ava roles trust")


def change_trusted(path: Path, folders: Mapping[str, Hashes]) -> dict[str, dict[str, str]]:
    """Trust exactly these files of these folders; return what was trusted of them before. Blocking."""
    file = _file(path)
    file.make_folder()
    before: dict[str, dict[str, str]] = {}

    def edit(document: TOMLDocument) -> None:
        stored: dict[str, Any] = document.unwrap()
        for folder, hashes in folders.items():
            if folder in stored:
                before[folder] = stored[folder]
                del document[folder]
            if hashes:
                document[folder] = dict(sorted(hashes.items()))

    file.change(lambda: read_trusted(path), edit)
    return before


def _file(path: Path) -> PrivateFile:
    return PrivateFile(path, "trusted role files", "ava roles trust", "ava roles trust")


def _hashes(_folder: str, stored: object) -> dict[str, str]:
    if not isinstance(stored, dict):
        raise ValueError
    for value in cast("dict[str, object]", stored).values():
        if not isinstance(value, str) or not _SHA256.fullmatch(value):
            raise ValueError
    return cast("dict[str, str]", stored)


OURS: Final = ".ava/roles"
CLAUDE: Final = ".claude/agents"
_TO_USE = "to use them as roles, set claude_agents = true under [roles] in config.toml"
ROLES_S = 10.0
"""Limit for reading all role files: a project may be on a disk that does not answer."""


@dataclass(frozen=True)
class RolePlaces:
    """The folders that may hold role files."""

    root: DataRoot | None  # the data root, if there is one
    project: Path | None  # the project's folder with links resolved, if there is one
    claude_agents: bool  # Claude Code's agent files are roles as well
    home: Path | None  # the user's home folder, if there is one

    @property
    def of_project(self) -> tuple[Folder, ...]:
        """The project's folders, none of whose files is trusted yet."""
        if self.project is None:
            return ()
        own = Folder(self.project / OURS, OURS, self.project, {})
        return (own, *self._agents_of_project) if self.claude_agents else (own,)

    @property
    def _agents_of_project(self) -> tuple[Folder, ...]:
        if self.project is None:
            return ()
        return (Folder(self.project / CLAUDE, CLAUDE, self.project, {}, deep=True),)

    @property
    def of_user(self) -> tuple[Folder, ...]:
        return self._agents_of_user if self.claude_agents else ()

    @property
    def _agents_of_user(self) -> tuple[Folder, ...]:
        if self.home is None:
            return ()
        return (Folder(self.home / CLAUDE, f"~/{CLAUDE}", deep=True),)

    def unread(self) -> str:
        """Return which Claude Code agents are left unread, and how to use them. Blocking.

        It names no file: a project's author chose the names, and a model may see this.
        """
        if self.claude_agents:
            return ""
        counts: list[str] = []
        for folder in (*self._agents_of_project, *self._agents_of_user):
            count = len(role_file_names(folder))
            if count:
                counts.append(f"{count} in {folder.label}")
        if not counts:
            return ""
        return f"agent files of Claude Code are not used ({', '.join(counts)}); {_TO_USE}"

    @property
    def _of_root(self) -> tuple[Folder, ...]:
        if self.root is None:
            return ()
        return (Folder(self.root.roles, "roles of the data root"),)

    def look(self) -> tuple[object, ...]:
        """Return a value that changes with a role file or its trust. Blocking, but quick: no file is read."""
        trust: tuple[int, ...] = ()
        if self.root is not None:
            with contextlib.suppress(OSError):
                status = self.root.trusted_roles.stat()
                trust = (status.st_ino, status.st_size, status.st_mtime_ns)
        folders = (*self._of_root, *self.of_project, *self.of_user)
        return (trust, *map(folder_fingerprint, folders))

    def load(self, *, by_path: bool = False) -> Catalog:
        """Read every role file. Blocking. With `by_path`, for programs, messages name files by their whole paths.

        If the list of trusted files cannot be read, no file of the project is trusted; the other roles work.
        """
        project = self.of_project
        problems: tuple[Remark, ...] = ()
        if self.root is not None and any(folder.path.is_dir() for folder in project):
            try:
                trusted = read_trusted(self.root.trusted_roles)
            except ConfigError as error:
                problems = (Remark("trusted role files", str(error)),)
            else:
                project = tuple(replace(folder, trusted=trusted.get(str(folder.path), {})) for folder in project)
        folders = [*self._of_root, *project, *self.of_user]
        if by_path:
            folders = [replace(folder, label=str(folder.path)) for folder in folders]
        catalog = Catalog.load(folders)
        return replace(catalog, problems=(*problems, *catalog.problems), unread=self.unread())


def project_named(folder: str, data_root: Path, home: Path) -> Path:
    """Return the project to which a folder belongs. Blocking. Raises WorkspaceRefused if it cannot belong to one."""
    return project_at(folder, holding=(OURS, CLAUDE), data_root=data_root, home=home)


def workspace_of(
    settings: Settings, *, asked: str | None, client_roots: Sequence[str], cwd: Path, home: Path
) -> Workspace | WorkspaceRefused:
    """Return the workspace of a proposal, or why it is refused. Blocking."""
    try:
        return resolve_workspace(
            asked=asked,
            client_roots=client_roots,
            env=str(settings.default_workspace) if settings.default_workspace else None,
            cwd=cwd,
            roots=settings.workspace.roots,
            data_root=settings.data_root,
            home=home,
            allow=settings.named_folders,
        )
    except WorkspaceRefused as refusal:
        return refusal


def places_of(
    settings: Settings,
    *,
    asked: str | None = None,
    client_roots: Sequence[str] = (),
    cwd: Path,
    home: Path,
    found: Workspace | WorkspaceRefused | None = None,
) -> RolePlaces:
    """Return the folders with role files for a proposal. Blocking.

    Its project is its workspace (`found`, if that is known) or, without one, the working folder if that is inside a git
    repository. With a refused workspace there is no project; resolving the proposal says why.
    """
    found = found or workspace_of(settings, asked=asked, client_roots=client_roots, cwd=cwd, home=home)
    folder = found.path if isinstance(found, Workspace) else None
    if folder is None and not (asked or "").strip():
        with contextlib.suppress(WorkspaceRefused):
            folder = resolve_workspace(
                asked=None,
                client_roots=(),
                env=None,
                cwd=cwd,
                roots=(),
                data_root=settings.data_root,
                home=home,
                allow=settings.named_folders,
            ).path
    project = project_above(folder, holding=(OURS, CLAUDE), home=home) if folder is not None else None
    return RolePlaces(settings.paths, project, settings.roles.claude_agents, home)


def checkout_here() -> Path | None:
    """Return this process's checkout, or working folder, whose programs npx or direnv may put on the PATH. Blocking."""
    folder = working_folder()
    if folder is None:
        return None
    return repository_of(folder, home_folder()) or folder


def places_here(root: DataRoot | None, settings: Settings | None) -> RolePlaces:
    """Return the places for this process's working folder, even with invalid settings. Blocking."""
    try:
        home = Path.home()
    except RuntimeError:  # the system does not know this user
        home = None
    if settings is None or home is None:
        return RolePlaces(root, None, False, None)
    cwd = working_folder()
    if cwd is None:
        return RolePlaces(root, None, settings.roles.claude_agents, home)
    return replace(places_of(settings, cwd=cwd, home=home), root=root)
