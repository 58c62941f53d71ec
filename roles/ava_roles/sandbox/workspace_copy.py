"""Copies a workspace for commands to work in: the checkout without what git ignores, or the whole folder without git.

Names are opened beneath the workspace: no link is followed, and only regular files are copied. Links are made after all
files, so that nothing is ever written through one. Such a copy can also travel: its regular files as one tar file, the
same bytes for the same files, and a folder made from it elsewhere. Links do not travel.
"""

from __future__ import annotations

import os
import stat
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from ava_roles.errors import AccessRefused, FolderReplaced, ToolFailed
from ava_roles.sandbox.git import Checkout, list_checkout
from ava_roles.sandbox.path_access import FolderEntry, make_folders, remove_tree
from ava_roles.sandbox.paths import Root, shown
from ava_roles.sandbox.workspace import repository_of

FOLDER_FILES = 20_000
FOLDER_BYTES = 200_000_000
"""The most that is copied of a folder without git; a larger one is shown itself, read-only."""
CHECKOUT_FILES = 50_000
CHECKOUT_BYTES = 500_000_000
"""The most that is copied of a checkout."""
FILE_BYTES = 100_000_000
"""Larger files of a checkout are left out."""
ENTRIES_MAX = 400_000
INSTALLED = frozenset({".venv", "venv", "node_modules", "__pypackages__"})
"""Folders that a package manager makes, ignored or not."""
DEPENDENCIES = INSTALLED | {"vendor", "bower_components", ".bundle", "Pods", "deps", "elm-stuff"}
"""Folders that a project needs to run and that git ignores: shown themselves, read-only."""
_VERSION_CONTROL = frozenset({".git", ".hg", ".svn"})
_PIECE = 1 << 20


@dataclass
class CopyReport:
    """What was copied of a workspace.

    Without `whole`, the folder is too large to be copied and is shown itself; `hidden` says what to hide in it. `git`:
    it is a checkout. `files` counts links too. `dependencies` are folders to show themselves. `left_out`: how many
    names were left out, by reason. All paths are relative to the workspace.
    """

    whole: bool = True
    git: bool = False
    files: int = 0
    size: int = 0
    dependencies: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    left_out: Counter[str] = field(default_factory=Counter[str])


def copy_workspace(
    root: Root,
    into: Path,
    *,
    repository: Path | None,
    home: Path,
    carry: Iterable[str] = (),
    check: Callable[[], None] = lambda: None,
    most_bytes: int = CHECKOUT_BYTES,
    git_folder: str = "",
) -> CopyReport:
    """Copy a workspace into an empty folder. Blocks; stops at once when `check` raises.

    A folder beside `into` is used meanwhile. `repository` contains the workspace; `git_folder` is the approved one
    outside of it. `carry`: further folders to show themselves. `check` is called for every file, and for every piece of
    a large one. `most_bytes` counts if it is less than usual. Raises ToolFailed: it cannot be copied; says what to do.
    """
    copy = _Copy(root, into, check, most_bytes)
    carried = [name for name in carry if _is_folder(root, name)]
    if repository is None:
        return copy.copy_folder(carried)
    checkout = list_checkout(repository, root.path.resolve(), into.parent, home, check, git_folder)
    return copy.copy_folder(carried) if checkout.foreign else copy.copy_checkout(checkout, carried)


def find_dependencies(
    root: Root,
    aside: Path,
    *,
    repository: Path,
    home: Path,
    carry: Iterable[str] = (),
    check: Callable[[], None] = lambda: None,
    git_folder: str = "",
) -> CopyReport:
    """Return which folders of a checkout to show themselves; copies nothing. Arguments as for `copy_workspace`."""
    checkout = list_checkout(repository, root.path.resolve(), aside, home, check, git_folder)
    copy = _Copy(root, aside, check)
    copy.split_names(checkout, [name for name in carry if _is_folder(root, name)])
    return copy.report


@dataclass
class _Copy:
    root: Root
    into: Path
    check: Callable[[], None]
    most_bytes: int = CHECKOUT_BYTES
    report: CopyReport = field(default_factory=CopyReport)
    _links: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    _installed: set[str] = field(default_factory=set[str])

    def copy_folder(self, carried: list[str]) -> CopyReport:
        entries = list(self._walk("", carried))
        size = sum(entry.size for entry in entries)
        report = self.report
        if len(entries) > FOLDER_FILES or size > min(FOLDER_BYTES, self.most_bytes):
            report.whole = False
            report.files = len(entries)
            report.size = size
            report.hidden = tuple(_unsafe_entries(self.root.path, self.check))
            return report
        report.dependencies = (*carried, *sorted(self._installed.difference(carried)))
        self._copy_all((entry.name for entry in entries), FOLDER_FILES, FOLDER_BYTES, FOLDER_BYTES)
        return report

    def copy_checkout(self, checkout: Checkout, carried: list[str]) -> CopyReport:
        names = self.split_names(checkout, carried)
        dependencies = tuple(f"{name}/" for name in self.report.dependencies)
        names_to_copy = (name for name in names if not name.startswith(dependencies))
        self._copy_all(names_to_copy, CHECKOUT_FILES, CHECKOUT_BYTES, FILE_BYTES)
        return self.report

    def split_names(self, checkout: Checkout, carried: list[str]) -> list[str]:
        """Report which folders of a checkout to show themselves; return the other names."""
        self.report.git = True
        dependencies = dict.fromkeys((*carried, *filter(self._is_dependency, checkout.ignored)))
        names: list[str] = list(checkout.tracked)
        for name in checkout.others:
            installed = _installed_folder(name)
            if installed is not None:
                dependencies[installed] = None
            else:
                names.append(name)
        self.report.dependencies = tuple(name for name in dependencies if _is_folder(self.root, name))
        return names

    def _is_dependency(self, name: str) -> bool:
        if name.rpartition("/")[2] in DEPENDENCIES:
            return True
        try:
            return self.root.kind(f"{name}/pyvenv.cfg") == "file"
        except ToolFailed:
            return False

    def _walk(self, start: str, carried: Iterable[str] = ()) -> Iterable[FolderEntry]:
        """Yield files and links beneath a folder, except version control and what is shown itself."""
        skipped = frozenset(carried)

        def keep(entry: FolderEntry) -> bool:
            self.check()
            name = entry.name.rpartition("/")[2]
            if entry.kind == "other":
                self.report.left_out["pipes, sockets or devices"] += 1
            if entry.kind == "folder" and name in INSTALLED:
                self._installed.add(entry.name)
                return False
            return name not in _VERSION_CONTROL and entry.name not in skipped

        return self.root.walk(start, limit=ENTRIES_MAX, keep=keep, links=True)

    def _copy_all(self, names: Iterable[str], most_files: int, most_bytes: int, most_each: int) -> None:
        """Copy files by name, and folders (submodules) with everything in them. Raises ToolFailed if it is too much."""
        pending = list(names)
        pending.reverse()
        most_bytes = min(most_bytes, self.most_bytes)
        while pending:
            self.check()
            name = pending.pop().rstrip("/")
            if not _VERSION_CONTROL.isdisjoint(name.split("/")):
                continue
            try:
                self._copy_file(name, most_each)
            except AccessRefused:
                target = self.root.read_link(name)
                if target is None:
                    self.report.left_out["files that may not be read or have a second name (hard links)"] += 1
                else:
                    self._links.append((name, target))
                    self.report.files += 1
            except ToolFailed:
                if _is_folder(self.root, name):  # a repository within this one
                    pending += reversed([entry.name for entry in self._walk(name)])
            if self.report.files > most_files or self.report.size > most_bytes:
                raise ToolFailed(
                    f"this checkout is too large to be copied (more than {most_files:,} files or"
                    f" {most_bytes // 1_000_000:,} MB); have the subagent started with a smaller folder as workspace,"
                    " or go on by reading"
                )
        self._make_links()

    def _make_links(self) -> None:
        """Make the links; one whose place is taken by something else is left out."""
        for name, _target in self._links:  # before any link exists that could lead elsewhere
            make_folders((self.into / name).parent, self.into, 0o755)
        with closing(Root.open(self.into)) as copy:
            for name, target in self._links:
                try:
                    copy.make_link(name, target)
                except ToolFailed:
                    self.report.left_out["links whose place is taken by something else"] += 1

    def _copy_file(self, name: str, most: int) -> None:
        """Copy a regular file; one that grows meanwhile is cut."""
        with self.root.open_file(name) as source:
            status = os.fstat(source)
            if status.st_size > most:
                self.report.left_out[f"files of more than {most // 1_000_000:,} MB"] += 1
                return
            target = self.into / name
            make_folders(target.parent, self.into, 0o755)
            mode = 0o755 if status.st_mode & stat.S_IXUSR else 0o644
            copy = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), mode)
            size = 0
            with os.fdopen(copy, "wb") as file:
                while size <= most:
                    piece = os.read(source, _PIECE)
                    if not piece:
                        break
                    self.check()
                    size += file.write(piece)
                file.flush()
                os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
        self.report.size += size
        self.report.files += 1


def _installed_folder(name: str) -> str | None:
    """Return the outermost folder in a path that a package manager has made."""
    parts = name.rstrip("/").split("/")
    for number, part in enumerate(parts, 1):
        if part in INSTALLED:
            return "/".join(parts[:number])
    return None


def _is_folder(root: Root, name: str) -> bool:
    try:
        return root.kind(name) == "folder"
    except ToolFailed:
        return False


def _unsafe_entries(folder: Path, check: Callable[[], None]) -> Iterable[str]:
    """Yield what commands must not see in a shown folder: version control, pipes, sockets, devices."""
    pending = [folder]
    seen = 0
    while pending:
        here = pending.pop()
        check()
        with suppress(PermissionError, FileNotFoundError), os.scandir(here) as scan:
            for entry in scan:
                seen += 1
                if seen > ENTRIES_MAX:
                    raise ToolFailed(
                        f"{shown(str(folder))} has more than {ENTRIES_MAX:,} entries, too many to be shown to commands;"
                        " have the subagent started with a smaller folder as workspace, or go on by reading"
                    )
                is_special = not entry.is_symlink() and not entry.is_file(follow_symlinks=False)
                if entry.name not in _VERSION_CONTROL and entry.is_dir(follow_symlinks=False):
                    pending.append(Path(entry.path))
                elif entry.name in _VERSION_CONTROL or is_special:
                    yield Path(entry.path).relative_to(folder).as_posix()


def find_special_file(folder: Path, check: Callable[[], None]) -> str | None:
    """Return the first pipe, socket or device in a folder that is to be shown itself, or None."""
    unsafe = _unsafe_entries(folder, check)
    return next((name for name in unsafe if name.rpartition("/")[2] not in _VERSION_CONTROL), None)


_MAX_FILES = 50_000
_SEPARATORS = set("\0\\:" if os.name == "nt" else "\0")


def pack_folder(root: Root, home: Path, limit: int, aside: Path, path: Path, git_folder: str = "") -> str | None:
    """Write the archive of a folder; return None, or why it does not travel. Blocking. Raises OSError if it cannot."""
    copy = aside / "copy"
    copy.mkdir()
    repository = repository_of(root.path.resolve(), home)
    try:
        report = copy_workspace(root, copy, repository=repository, home=home, most_bytes=limit, git_folder=git_folder)
    except ToolFailed as error:
        return str(error).partition(";")[0]
    if not report.whole:
        return f"it has {report.files:,} files with {report.size / 1e6:,.0f} MB"
    with tarfile.open(path, "x", format=tarfile.PAX_FORMAT) as tar:
        for name in sorted(_files(copy), key=os.fsencode):
            with (copy / name).open("rb") as file:
                status = os.fstat(file.fileno())
                member = tarfile.TarInfo(name)
                member.size, member.mode = status.st_size, 0o755 if status.st_mode & 0o100 else 0o644
                tar.addfile(member, file)
    return None


def unpack_folder(archive: Path, place: Path, beneath: Path, limit: int) -> None:
    """Make the folder of an archive whose bytes were checked. Blocking; a folder that is complete is left as it is.

    Raises FolderReplaced: it is not an archive of a folder; nothing of it is left. Raises OSError: the folder cannot be
    made.
    """
    if place.exists():
        return
    new = place.with_name(f"{place.name}.new")
    remove_tree(new)
    try:
        make_folders(new, beneath)
        with tarfile.open(archive, "r:") as tar:
            _unpack(tar, new, limit)
        new.rename(place)
    except (tarfile.TarError, ValueError, FileExistsError, NotADirectoryError) as error:
        raise FolderReplaced(f"the copy of the folder cannot be unpacked: {error}") from error
    finally:
        remove_tree(new)


def _files(folder: Path) -> list[str]:
    files: list[str] = []
    for above, _folders, names in os.walk(folder):
        for name in names:
            path = os.path.join(above, name)  # noqa: PTH118 - a name may be no text
            if not os.path.islink(path):  # noqa: PTH114
                files.append(os.path.relpath(path, folder))
    return files


def _is_plain_name(name: str) -> bool:
    return name not in ("", ".", "..") and _SEPARATORS.isdisjoint(name)


def _unpack(tar: tarfile.TarFile, into: Path, limit: int) -> None:
    """Write the members of an archive: regular files with plain names. Raises ValueError: another one, or too much."""
    size = 0
    for number, member in enumerate(tar):
        parts = member.name.split("/")
        if not member.isreg() or not all(map(_is_plain_name, parts)):
            raise ValueError(f"it has {shown(member.name)}")
        size += member.size
        if size > limit or number >= _MAX_FILES:
            raise ValueError("it is larger than it may be")
        source = tar.extractfile(member)
        assert source is not None, "it is a regular file"
        target = into.joinpath(*parts)
        make_folders(target.parent, into, 0o755)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        with os.fdopen(os.open(target, flags, 0o755 if member.mode & 0o100 else 0o644), "wb") as file:
            while piece := source.read(_PIECE):
                file.write(piece)
