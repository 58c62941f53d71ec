"""Where role files lie: the data root's, the project's, and Claude Code's where a setting says so."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from ava_roles.catalog import Catalog, Folder, Problem
from ava_roles.errors import RoleFileError, WorkspaceRefused
from ava_roles.role_files import folder_fingerprint
from ava_roles.sandbox.workspace import project_at, resolve_workspace
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
    """Return what is trusted, by the real path of the folder of role files; nothing when there is no file. Blocking.

    Raises:
        ConfigError: The file or its folder may not be trusted or read, or it holds something else.
    """
    file = _file(path)
    file.check_folder()
    found = file.entries()
    if not all(_is_entry(entry) for entry in found.values()):
        raise ConfigError(f"{path}: an entry is not as `ava roles trust` writes it. {file.anew}")
    return found


def change_trusted(path: Path, folders: Mapping[str, Hashes]) -> dict[str, dict[str, str]]:
    """Trust of these folders these files and no others; return what was trusted of them before. Blocking.

    Raises:
        ConfigError: The file or its folder may not be trusted, read or written.
    """
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


def _is_entry(entry: object) -> bool:
    hashes = cast("dict[str, object]", entry) if isinstance(entry, dict) else {"": None}
    return all(isinstance(value, str) and _SHA256.fullmatch(value) for value in hashes.values())


OURS: Final = ".ava/roles"
CLAUDE: Final = ".claude/agents"
ROLES_S = 10.0
"""For reading all role files, also those of a project on a disk that does not answer."""


@dataclass(frozen=True)
class RolePlaces:
    """Where role files may lie.

    Attributes:
        root: The data root; None is none.
        project: The project's folder, links resolved; None is none.
        claude_agents: Claude Code's agent files count.
        home: The home folder of the user; None where there is none.
    """

    root: DataRoot | None
    project: Path | None
    claude_agents: bool
    home: Path | None

    @property
    def of_project(self) -> tuple[Folder, ...]:
        """The project's folders, before it is known what of them is trusted."""
        if self.project is None:
            return ()
        labels = (OURS, CLAUDE) if self.claude_agents else (OURS,)
        return tuple(Folder(self.project / label, label, self.project, {}, deep=label == CLAUDE) for label in labels)

    @property
    def of_user(self) -> tuple[Folder, ...]:
        """The user's agents of Claude Code."""
        if self.home is None or not self.claude_agents:
            return ()
        return (Folder(self.home / CLAUDE, f"~/{CLAUDE}", deep=True),)

    @property
    def _of_root(self) -> tuple[Folder, ...]:
        return (Folder(self.root.roles, "roles of the data root"),) if self.root is not None else ()

    def look(self) -> tuple[object, ...]:
        """Return what tells the role files, and what of them is trusted, from what they are later. Blocking.

        No file is read, so that one may look every other second.
        """
        trust: tuple[int, ...] = ()
        if self.root is not None:
            with contextlib.suppress(OSError):
                status = self.root.trusted_roles.stat()
                trust = (status.st_ino, status.st_size, status.st_mtime_ns)
        return (trust, *(folder_fingerprint(folder) for folder in (*self._of_root, *self.of_project, *self.of_user)))

    def load(self, *, by_path: bool = False) -> Catalog:
        """Read every role file there is. Blocking.

        Where it cannot be told what is trusted, nothing of the project is, and the other roles work.

        Args:
            by_path: Files are called by their whole paths in messages, as programs want them.
        """
        project = self.of_project
        problems: tuple[Problem, ...] = ()
        if self.root is not None and any(folder.path.is_dir() for folder in project):
            try:
                trusted = read_trusted(self.root.trusted_roles)
            except ConfigError as error:
                problems = (Problem.of(RoleFileError("trusted role files", str(error))),)
            else:
                project = tuple(replace(folder, trusted=trusted.get(str(folder.path), {})) for folder in project)
        folders = (*self._of_root, *project, *self.of_user)
        catalog = Catalog.load([replace(folder, label=str(folder.path)) if by_path else folder for folder in folders])
        return replace(catalog, problems=(*problems, *catalog.problems))


def project_named(given: str, data_root: Path, home: Path) -> Path:
    """Return the project that a folder belongs to. Blocking.

    Raises:
        WorkspaceRefused: It is no folder, or may be no project.
    """
    return project_at(given, holding=(OURS, CLAUDE), data_root=data_root, home=home)


def places_of(
    settings: Settings, *, asked: str | None = None, client_roots: Sequence[str] = (), cwd: Path, home: Path
) -> RolePlaces:
    """Return where the role files of a proposal may lie. Blocking.

    Its project is its workspace; without one, the working folder when it is inside a git repository. A workspace that
    may not be given leaves it without a project: whoever resolves the proposal says why.
    """

    def rule(asked: str | None, client_roots: Sequence[str], env: str | None, roots: Sequence[Path]) -> Path | None:
        try:
            return resolve_workspace(
                asked=asked,
                client_roots=client_roots,
                env=env,
                cwd=cwd,
                roots=roots,
                data_root=settings.data_root,
                home=home,
            ).path
        except WorkspaceRefused:
            return None

    env = str(settings.default_workspace) if settings.default_workspace else None
    folder = rule(asked, client_roots, env, settings.workspace.roots)
    if folder is None and not (asked or "").strip():
        folder = rule(None, (), None, ())
    try:
        project = project_named(str(folder), settings.data_root, home) if folder is not None else None
    except WorkspaceRefused:  # it went away meanwhile
        project = None
    return RolePlaces(settings.paths, project, settings.roles.claude_agents, home)


def places_here(root: DataRoot | None, settings: Settings | None) -> RolePlaces:
    """Return where the role files of this process's working folder may lie, also where the settings are wrong.

    Blocking.
    """
    try:
        home = Path.home()
    except RuntimeError:  # a user whom this system does not know
        home = None
    if settings is None or home is None:
        return RolePlaces(root, None, False, home)
    try:
        cwd = Path.cwd()
    except OSError:  # it was removed: the other roles work all the same
        return RolePlaces(root, None, settings.roles.claude_agents, home)
    return replace(places_of(settings, cwd=cwd, home=home), root=root)
