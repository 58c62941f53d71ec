"""Decides which folder a run may read: its workspace."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from ava_roles.errors import WorkspaceRefused

# Their subfolders are home folders.
HOMES = ("/home", "/var/home", "/export/home", "/Users")
ROOT_HOMES = ("/root", "/var/root")
# /proc shows the environment of running programs, and so their keys.
KERNEL = ("/proc", "/sys", "/dev")
# They belong to the administrator and to services. A folder in them is a workspace only if a setting names it.
SYSTEM = ("/etc", "/run", "/var")
# Exceptions: temporary folders (on macOS, the user's are in /var/folders), and folders for people's own data, which
# some systems keep in /var.
OPEN = ("/var/folders", "/var/tmp", "/srv", "/mnt", "/opt")  # noqa: S108
# Disks that a desktop mounts are in a folder with the name of the user who is logged in.
MEDIA = "/run/media"
_WINDOWS_DRIVE = re.compile(r"/[A-Za-z]:")


@dataclass(frozen=True)
class Workspace:
    """The folder that a run may read, links resolved; None if there is none.

    `given`: the call itself named it; only then may a role with web tools see it. `why`: where it comes from, or why
    there is none and how to give one. `named`: a person or the client named it or a folder above it, or the rule found
    it. Without that, only the call names it: then a person has to see the path before it is read.
    """

    path: Path | None
    given: bool
    why: str
    named: bool = True


def resolve_workspace(
    *,
    asked: str | None,
    client_roots: Sequence[str],
    env: str | None,
    cwd: Path,
    roots: Sequence[Path],
    data_root: Path,
    home: Path,
    allow: Sequence[Path],
    only_roots: bool = False,
) -> Workspace:
    """Return the workspace of a run: the folder that the call names, else the one that the rule finds.

    The rule: the client's root, if it has exactly one; else `env`; else `cwd`, if it is in a git repository; else none.
    A client root that is refused is skipped. An `env` that is refused is not, because a person set it: then there is no
    workspace, and `why` says what is wrong.

    A folder that the call names must lie beneath a configured root. If none is configured, all roots of the client and
    the folder that the rule found count as roots. Without any of these, every folder is accepted that is not always
    refused, and the approval, which shows the path, decides.

    `WorkspaceRule` defines which folders are refused, no matter who names them. Blocks: it reads the file system.

    `asked` is the call's `workspace`: an absolute path, one from `~`, one relative to what the rule found, or a
    `file://` URI; blank for none. The client's roots are `file://` URIs or paths, and `env` is `AVA_WORKSPACE`. With
    `only_roots`, as over HTTP, there is no workspace at all without configured roots. Raises WorkspaceRefused: the
    folder that the call names is refused; says why, and which folders are allowed.
    """
    path = asked or ""
    is_named = path.strip() != ""
    if only_roots and not roots:
        missing = "no folder is set for this user; a person can add one to workspaces in [users.NAME]"
        if is_named:
            raise WorkspaceRefused(f"workspace: {missing}")
        return Workspace(None, False, f"no workspace: {missing}")
    rule = WorkspaceRule.of(home, data_root, allow)
    resolved_roots = tuple(root.resolve() for root in roots)
    if env is None or not env.strip():
        env = ""
    default, clients = _find_default(rule, resolved_roots, client_roots, env, cwd)
    if not is_named:
        return default
    if env and default.path is None:  # a wrong setting has to be corrected
        raise WorkspaceRefused(f"workspace: cannot be given: {default.why}")
    return _named_workspace(rule, path, resolved_roots, default, clients)


def _named_workspace(
    rule: WorkspaceRule, path: str, roots: tuple[Path, ...], default: Workspace, clients: tuple[Path, ...]
) -> Workspace:
    """Return the folder that the call names as workspace. Raises WorkspaceRefused."""
    allowed = list(roots)
    if not roots:
        allowed += dict.fromkeys(clients)
        if default.path is not None and default.path not in allowed:
            allowed.append(default.path)
    try:
        folder = _folder(rule, path, allowed, relative_to=default.path)
    except WorkspaceRefused as refusal:
        beneath = f"beneath {' or '.join(map(str, allowed))}" if allowed else "of one project"
        hint = ", or have a person set other roots ([workspace] in config.toml)"
        if isinstance(refusal, _NoFolder):
            hint = " that exists and can be read"
        raise WorkspaceRefused(f"workspace: {refusal}; give a folder {beneath}{hint}") from None
    return Workspace(folder, True, "given in the call", named=bool(allowed))


def recheck_workspace(
    folder: Path, *, roots: Sequence[Path] | None, data_root: Path, home: Path, allow: Sequence[Path]
) -> None:
    """Apply the rule to an approved workspace again, as links, folders and settings may have changed. Blocks.

    It must be in one of `roots` (None: anywhere allowed). Raises WorkspaceRefused if it is refused now; says why.
    """
    if roots is not None and not _Look().is_within(folder, (str(root.resolve()) for root in roots)):
        raise WorkspaceRefused(f"{folder} is outside the allowed folders")
    refusal = WorkspaceRule.of(home, data_root, allow).refusal(folder)
    if refusal is not None:
        raise WorkspaceRefused(refusal)


def project_at(name: str, *, holding: Sequence[str], data_root: Path, home: Path) -> Path:
    """Return the nearest folder, up to the root of its git repository, that has one in `holding`; else itself. Blocks.

    Raises WorkspaceRefused if it is not a folder, or is always refused as a workspace; says why.
    """
    folder = _folder(WorkspaceRule.of(home, data_root, None), name, ())
    return project_above(folder, holding=holding, home=home)


def project_above(folder: Path, *, holding: Sequence[str], home: Path) -> Path:
    """Return the project that a folder belongs to, which may be a workspace. Blocks."""
    repository = repository_of(folder, home)
    above = folder.parents if repository is not None else ()
    for candidate in (folder, *above):
        if any((candidate / name).is_dir() for name in holding):
            return candidate
        if candidate == repository:
            break
    return folder


def repository_of(folder: Path, home: Path) -> Path | None:
    """Return the git repository that contains a folder, unless that is a home folder. Blocks."""
    return _repository(WorkspaceRule.of(home, home, None), folder)


class _NoFolder(WorkspaceRefused): ...


@dataclass(frozen=True)
class WorkspaceRule:
    """Which folders may be a workspace.

    Always refused: `/` and the kernel's folders; a home folder, its parents, and its dot-folders; the data root, its
    parents and its contents. Refused unless `allow` names them, or a folder above them: `/etc`, `/run`, `/var` and the
    homes of other users, with the folders in them. A home in one of these system folders is the user's own only if the
    user database says so. `allow` with None allows all; `/` in it has no effect.
    """

    home: Path
    data_root: Path
    allow: tuple[Path, ...] | None
    look: _Look = field(default_factory=lambda: _Look(), compare=False, repr=False)

    @classmethod
    def of(cls, home: Path, data_root: Path, allow: Sequence[Path] | None) -> WorkspaceRule:
        allowed = tuple(folder.resolve() for folder in allow) if allow is not None else None
        return cls(home.resolve(), data_root.resolve(), allowed)

    def leads_home(self, upwards: Sequence[str]) -> bool:
        """Tell whether the first of a folder and all above it is anyone's home folder."""
        if self.look.is_any(upwards[0], (str(self.home), *ROOT_HOMES)):
            return True
        if len(upwards) == 1:
            return False
        if len(upwards) == 3 and Path(upwards[1]).name.lower() == "users":  # C:\\Users
            return True
        return self.look.is_any(upwards[1], HOMES)

    def refusal(self, folder: Path) -> str | None:
        """Return why a folder, with its links resolved, is refused; None if it may be a workspace. Blocks."""
        is_within = self.look.is_within
        path, data_root = str(folder), str(self.data_root)
        upwards = _upwards(path)
        if len(upwards) == 1:
            return f"{folder} is the whole file system"
        if is_within(folder, KERNEL):
            return f"{folder} belongs to the kernel"
        if is_within(folder, (data_root,)) or is_within(self.data_root, (path,)):
            return f"{folder} is, lies in or contains Ava's own folder {self.data_root}"
        if self.leads_home(upwards):
            return f"{folder} is a home folder"
        if is_within(self.home, (path,)) or self.look.is_any(path, HOMES):
            return f"{folder} contains home folders"
        dot_folder = self._dot_folder_of_home(folder, upwards)
        if dot_folder is not None:
            return f"{folder} lies in {dot_folder}, a dot-folder of a home folder"
        closed = self._closed(folder)
        if closed is None:
            return None
        return f"{folder} lies in {closed}, and no setting names it (workspace.allow in config.toml)"

    def _dot_folder_of_home(self, folder: Path, upwards: Sequence[str]) -> str | None:
        for place, part in enumerate(folder.parts):
            if part.startswith(".") and self.leads_home(upwards[len(upwards) - place :]):
                return part
        return None

    def _closed(self, folder: Path) -> str | None:
        """Return the system folder or other user's home that contains a folder, unless `allow` names it; else None."""
        if self.allow is None:
            return None
        if self.look.is_within(folder, self._open_folders(self.allow)):
            return None
        for system in SYSTEM:
            if self.look.is_within(folder, (system,)):
                return f"{system}, a system folder"
        upwards = _upwards(str(folder))
        for index, parent in enumerate(upwards[1:], 1):
            if self.leads_home(upwards[index:]) and not _is_own(Path(parent)):
                return f"{parent}, another user's home"
        return None

    def _open_folders(self, allow: Sequence[Path]) -> list[str]:
        """Return the folders in which one may be a workspace although a system folder or another home contains it."""
        folders: list[str] = list(OPEN)
        for allowed in allow:
            if allowed.parent != allowed:  # not the whole file system
                folders.append(str(allowed))
        if self._is_users_home():
            folders.append(str(self.home))
        user = _user()
        if user is not None and user.name:
            folders.append(f"{MEDIA}/{user.name}")  # the user's removable disks; only root can create this folder
        return folders

    def _is_users_home(self) -> bool:
        """Tell whether the home is the user's and not a system folder: a variable may name any folder as home."""
        home = str(self.home)
        system_folders: list[str] = []
        for system in SYSTEM:
            system_folders += _upwards(system)
        if self.look.is_any(home, system_folders):
            return False
        if not self.look.is_within(self.home, SYSTEM):
            return True
        user = _user()
        if user is None or not user.home.is_absolute():
            return False
        return self.look.is_any(str(user.home), (home,))


def _find_default(
    rule: WorkspaceRule, roots: tuple[Path, ...], client_roots: Sequence[str], env: str, cwd: Path
) -> tuple[Workspace, tuple[Path, ...]]:
    """Return the workspace that the rule finds, and the client's roots that are not refused."""
    clients: list[Path] = []
    reasons: list[str] = []
    for root in dict.fromkeys(client_roots):
        try:
            clients.append(_folder(rule, root, roots))
        except WorkspaceRefused as refusal:
            reasons.append(f"the client's root: {refusal}")
    if len(clients) == 1 and not reasons:
        return Workspace(clients[0], False, "the client's root"), tuple(clients)
    if len(clients) + len(reasons) > 1:
        reasons.append("the client has several roots")
    if not client_roots:
        reasons.append("the client names no root")
    if env:
        try:
            return Workspace(_folder(rule, env, roots), False, "AVA_WORKSPACE"), tuple(clients)
        except WorkspaceRefused as refusal:
            return Workspace(None, False, f"no workspace: AVA_WORKSPACE: {refusal}; correct it"), tuple(clients)
    reasons.append("AVA_WORKSPACE is not set")
    try:
        folder = _folder(rule, str(cwd), roots)
        repository = _repository(rule, folder)
        if repository is not None:
            why = f"the server's working folder, inside the git repository {repository}"
            return Workspace(folder, False, why), tuple(clients)
        reasons.append(f"the server's working folder {folder} is not inside a git repository")
    except WorkspaceRefused as refusal:
        reasons.append(f"the server's working folder: {refusal}")
    why = f"no workspace: {'; '.join(reasons)}; give `workspace` in the call or set AVA_WORKSPACE"
    return Workspace(None, False, why), tuple(clients)


def _folder(rule: WorkspaceRule, text: str, allowed: Sequence[Path], *, relative_to: Path | None = None) -> Path:
    """Return the folder that a text names, links resolved. Raises WorkspaceRefused; says why, and no more.

    Its existence is checked last, so that a refusal reveals nothing about what lies outside.
    """
    path = _path(text.strip(), rule.home, relative_to)
    try:
        folder = path.resolve()
        refusal = rule.refusal(folder)
        if refusal is not None:
            raise WorkspaceRefused(refusal)
        if allowed and not rule.look.is_within(folder, map(str, allowed)):
            raise WorkspaceRefused(f"{folder} is outside the allowed folders")
        if folder.is_dir():
            return folder
    except (OSError, RuntimeError, ValueError) as error:  # no permission, a loop of links, a NUL
        raise _NoFolder(f"{text!r:.200} cannot be read") from error
    if folder.exists():
        raise _NoFolder(f"{folder} is not a folder")
    raise _NoFolder(f"{folder} does not exist")


def _path(text: str, home: Path, relative_to: Path | None) -> Path:
    """Return the absolute path that a text names: a path, `~`, or a `file://` URI."""
    if "://" in text:
        try:
            uri = urlsplit(text)
        except ValueError:
            uri = urlsplit("")
        if uri.scheme.lower() != "file" or uri.netloc.lower() not in ("", "localhost"):
            raise WorkspaceRefused(f"{text!r:.200} is not a file:// URI of this machine")
        local = unquote(uri.path)
        if _WINDOWS_DRIVE.match(local):
            local = local.removeprefix("/")
        return Path(local)
    if text == "~" or text.startswith("~/"):
        return home / text[2:]
    path = Path(text)
    if path.is_absolute():
        return path
    if relative_to is None:
        raise WorkspaceRefused(f"{text!r:.200} is relative, and there is no folder that it could be relative to")
    return relative_to / path


def _repository(rule: WorkspaceRule, folder: Path) -> Path | None:
    upwards = _upwards(str(folder))
    for place, candidate in enumerate(upwards):
        if rule.leads_home(upwards[place:]):
            return None
        # In a worktree or submodule, .git is a file that names the repository.
        git = f"{candidate}{os.sep}.git"
        if os.path.isfile(git) or os.path.isfile(f"{git}{os.sep}HEAD"):  # noqa: PTH113 (a Path takes four times longer)
            return Path(candidate)
    return None


class _User(NamedTuple):
    name: str
    home: Path


def _user() -> _User | None:
    get_uid = getattr(os, "getuid", None)
    if get_uid is None:
        return None
    try:
        import pwd

        entry = pwd.getpwuid(get_uid())
    except (ImportError, KeyError):  # on Windows; in a container
        return None
    return _User(entry.pw_name, Path(entry.pw_dir))


def _is_own(home: Path) -> bool:
    """Tell whether a home folder is shared by all users, or belongs to this user, as in many containers."""
    if home.name.lower() in ("shared", "public"):
        return True
    get_uid = getattr(os, "getuid", None)
    try:
        return get_uid is not None and home.stat().st_uid == get_uid()
    except OSError:
        return False


_Identity = tuple[int, int] | str
"""What a folder is in the file system: its device and number; its path if it does not exist."""


class _Look:
    """One look at the file system: each folder is asked for once, and another look may find another one."""

    def __init__(self) -> None:
        self._known: dict[str, _Identity] = {}

    def is_within(self, path: Path, folders: Iterable[str]) -> bool:
        return self._have_common(_upwards(str(path)), folders)

    def is_any(self, path: str, folders: Iterable[str]) -> bool:
        return self._have_common((path,), folders)

    def _have_common(self, paths: Iterable[str], folders: Iterable[str]) -> bool:
        identities = {self._identity(path) for path in paths}
        return not identities.isdisjoint({self._identity(folder) for folder in folders})

    def _identity(self, path: str) -> _Identity:
        if path not in self._known:
            try:
                status = os.stat(path)  # noqa: PTH116 (a Path for each folder takes longer than asking)
                self._known[path] = (status.st_dev, status.st_ino)
            except OSError:
                self._known[path] = os.path.normcase(path)
        return self._known[path]


@lru_cache(maxsize=64)
def _upwards(path: str) -> tuple[str, ...]:
    return (path, *map(str, Path(path).parents))
