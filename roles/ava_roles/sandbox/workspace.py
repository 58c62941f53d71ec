"""Which folder a run may read: the workspace rule."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ava_roles.errors import WorkspaceRefused

# Folders whose direct children are the home folders of people.
HOMES = tuple(Path(folder) for folder in ("/home", "/var/home", "/export/home", "/Users"))
ROOT_HOMES = (Path("/root"), Path("/var/root"))
# What the kernel shows there is no project: /proc has the environment, and so the keys, of running programs.
KERNEL = tuple(Path(folder) for folder in ("/proc", "/sys", "/dev"))
_WINDOWS_DRIVE = re.compile(r"/[A-Za-z]:")


@dataclass(frozen=True)
class Workspace:
    """The folder that a run may read.

    Attributes:
        path: The folder, symlinks resolved; None when there is none.
        given: The call itself named it, which is what lets a role with web tools see it.
        why: Where it comes from, or why there is none and how to give one.
        named: It lies beneath a folder that a person or the client has named, or that the rule found; False where only
            the call speaks for it, so that somebody has to see the path before it is read.
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
    only_roots: bool = False,
) -> Workspace:
    """Return the workspace of a run: the one asked for, else the one that the rule finds.

    The rule: the client's one root; else `env`; else `cwd` when it is inside a git repository; else none. A
    client root that may not be given is passed over; an `env` that may not be given is not, because a person
    chose it: then there is none, and `why` says what is wrong with it.

    A folder that is asked for must lie beneath a configured root. Where none is configured, the folders of
    the client (all of them) and the one that the rule found take their place. Where there is none of these
    either, nothing says where this person works: every folder is accepted that is not refused always, and
    the approval, which shows the path, decides.

    Always refused: `/` and the kernel's folders; a home folder, whatever contains one, and what lies in a
    dot-folder of one; the data root, what contains it and what lies in it.

    Blocking: looks at the file system; call it in a thread.

    Args:
        asked: The call's `workspace`: a path, absolute, from `~`, or relative to what the rule found; or a
            `file://` URI; blank is none.
        client_roots: The MCP client's roots, as `file://` URIs or paths.
        env: The value of `AVA_WORKSPACE`.
        cwd: The server's working folder.
        roots: The configured roots.
        data_root: Ava's own folder.
        home: The home folder of the user.
        only_roots: Without roots nothing may be given (over HTTP), not even the folder that the rule finds.

    Raises:
        WorkspaceRefused: The folder asked for may not be used; says why, and what may be given.
    """
    if only_roots and not roots:
        missing = "no folder is set for this user; a person can add one to workspaces in [users.NAME]"
        if asked and asked.strip():
            raise WorkspaceRefused(f"workspace: {missing}")
        return Workspace(None, False, f"no workspace: {missing}")
    places = _Places(home.resolve(), data_root.resolve(), tuple(root.resolve() for root in roots))
    found, clients = _found(places, client_roots, env, cwd)
    if asked is None or not asked.strip():
        return found
    if env and env.strip() and found.path is None:  # a setting that is wrong is mended, not passed over
        raise WorkspaceRefused(f"workspace: cannot be given: {found.why}")
    allowed = places.roots or tuple(dict.fromkeys((*clients, *([found.path] if found.path else []))))
    try:
        folder = _folder(places, asked, allowed, relative_to=found.path)
    except WorkspaceRefused as refusal:
        beneath = f"beneath {' or '.join(map(str, allowed))}" if allowed else "of one project"
        hint = f"give a folder {beneath}, or have a person set other roots ([workspace] in config.toml)"
        raise WorkspaceRefused(f"workspace: {refusal}; {hint}") from None
    return Workspace(folder, True, "given in the call", named=bool(allowed))


def project_at(given: str, *, holding: Sequence[str], data_root: Path, home: Path) -> Path:
    """Return the project that a folder belongs to: what is always refused as a workspace is none.

    That is the nearest folder, from this one up to the root of the git repository around it, that has one of the
    folders in `holding`; without any, the folder itself. Blocking.

    Raises:
        WorkspaceRefused: It is no folder, or may be no project; says why.
    """
    places = _Places(home.resolve(), data_root.resolve(), ())
    folder = _folder(places, given, ())
    repository = _repository(places, folder)
    above = folder.parents if repository is not None else ()
    for candidate in (folder, *above):
        if any((candidate / name).is_dir() for name in holding):
            return candidate
        if candidate == repository:
            break
    return folder


def repository_of(folder: Path, home: Path) -> Path | None:
    """Return the git repository that a folder lies in, or is; one that is a home folder does not count. Blocking."""
    return _repository(_Places(home.resolve(), home.resolve(), ()), folder)


@dataclass(frozen=True)
class _Places:
    """The places that the rule turns on, symlinks resolved."""

    home: Path
    data_root: Path
    roots: tuple[Path, ...]

    def is_home(self, folder: Path) -> bool:
        """Tell whether a folder is somebody's home folder."""
        parent = folder.parent
        return (
            any(_same(folder, home) for home in (self.home, *ROOT_HOMES))
            or any(_same(parent, homes) for homes in HOMES)
            or (parent.name.lower() == "users" and parent.parent == parent.parent.parent)  # C:\\Users
        )

    def refusal(self, folder: Path) -> str | None:
        """Return why a folder is no workspace whatever the settings say; None when it may be one."""
        if folder.parent == folder:
            return f"{folder} is the whole file system"
        if any(_within(folder, kernel) for kernel in KERNEL):
            return f"{folder} belongs to the kernel"
        if _within(folder, self.data_root) or _within(self.data_root, folder):
            return f"{folder} is, lies in or contains Ava's own folder {self.data_root}"
        if self.is_home(folder):
            return f"{folder} is a home folder"
        if _within(self.home, folder) or any(_same(folder, homes) for homes in HOMES):
            return f"{folder} contains home folders"
        for parent in folder.parents:
            first = folder.parts[len(parent.parts)]
            if first.startswith(".") and self.is_home(parent):
                return f"{folder} lies in {first}, a dot-folder of a home folder"
        return None


def _found(
    places: _Places, client_roots: Sequence[str], env: str | None, cwd: Path
) -> tuple[Workspace, tuple[Path, ...]]:
    """Return what the rule finds when the call names nothing, and the client's roots that may be given."""
    clients: list[Path] = []
    reasons: list[str] = []
    for root in dict.fromkeys(client_roots):
        try:
            clients.append(_folder(places, root, places.roots))
        except WorkspaceRefused as refusal:
            reasons.append(f"the client's root: {refusal}")
    if len(clients) == 1 and not reasons:
        return Workspace(clients[0], False, "the client's root"), tuple(clients)
    if len(clients) + len(reasons) > 1:
        reasons.append("the client has several roots")
    if not client_roots:
        reasons.append("the client names no root")
    if env and env.strip():
        try:
            return Workspace(_folder(places, env, places.roots), False, "AVA_WORKSPACE"), tuple(clients)
        except WorkspaceRefused as refusal:
            return Workspace(None, False, f"no workspace: AVA_WORKSPACE: {refusal}; correct it"), tuple(clients)
    reasons.append("AVA_WORKSPACE is not set")
    try:
        folder = _folder(places, str(cwd), places.roots)
        if repository := _repository(places, folder):
            why = f"the server's working folder, inside the git repository {repository}"
            return Workspace(folder, False, why), tuple(clients)
        reasons.append(f"the server's working folder {folder} is not inside a git repository")
    except WorkspaceRefused as refusal:
        reasons.append(f"the server's working folder: {refusal}")
    why = f"no workspace: {'; '.join(reasons)}; give `workspace` in the call or set AVA_WORKSPACE"
    return Workspace(None, False, why), tuple(clients)


def _folder(places: _Places, given: str, allowed: Sequence[Path], *, relative_to: Path | None = None) -> Path:
    """Return the folder that a text means, symlinks resolved.

    Whether it exists is looked at last, so that a refusal says nothing about what lies outside.

    Raises:
        WorkspaceRefused: It is no folder that may be given; the text says why, and no more.
    """
    path = _path(given.strip(), places.home, relative_to)
    try:
        folder = path.resolve()
        if refusal := places.refusal(folder):
            raise WorkspaceRefused(refusal)
        if allowed and not any(_within(folder, root) for root in allowed):
            raise WorkspaceRefused(f"{folder} is outside of the folders that may be given")
        if folder.is_dir():
            return folder
    except (OSError, RuntimeError, ValueError) as error:  # no permission, a loop of symlinks, a NUL
        raise WorkspaceRefused(f"{given!r:.200} cannot be looked at") from error
    raise WorkspaceRefused(f"{folder} is not a folder" if folder.exists() else f"{folder} does not exist")


def _path(given: str, home: Path, relative_to: Path | None) -> Path:
    """Return the absolute path that a text means: a path, `~`, or a `file://` URI."""
    if "://" in given:
        try:
            uri = urlsplit(given)
        except ValueError:
            uri = urlsplit("")
        if uri.scheme.lower() != "file" or uri.netloc.lower() not in ("", "localhost"):
            raise WorkspaceRefused(f"{given!r:.200} is no file:// URI of this machine")
        local = unquote(uri.path)
        return Path(local[1:] if _WINDOWS_DRIVE.match(local) else local)
    if given == "~" or given.startswith("~/"):
        return home / given[2:]
    path = Path(given)
    if path.is_absolute():
        return path
    if relative_to is None:
        raise WorkspaceRefused(f"{given!r:.200} is relative, and there is no folder that it could start from")
    return relative_to / path


def _repository(places: _Places, folder: Path) -> Path | None:
    """Return the git repository around a folder; one that is a home folder does not count."""
    for candidate in (folder, *folder.parents):
        if places.is_home(candidate):
            return None
        git = candidate / ".git"
        # A worktree and a submodule have a file there, which names the repository.
        if git.is_file() or (git / "HEAD").is_file():
            return candidate
    return None


def _within(path: Path, folder: Path) -> bool:
    """Tell whether a resolved path is a folder or lies in it, also by another case of its letters."""
    return path.is_relative_to(folder) or any(_same(part, folder) for part in (path, *path.parents))


def _same(one: Path, other: Path) -> bool:
    """Tell whether two paths are the same folder: by name, or by what the file system has there."""
    if one == other:
        return True
    try:
        return one.samefile(other)
    except OSError:
        return False
