"""A throw-away copy of a workspace, for commands to work in: the checkout as it is, without what git ignores.

Names are opened beneath the workspace, as everywhere: no link is followed, and only regular files are copied. Links are
made again as they are, after all files, so that nothing is ever written through one.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ava_roles.errors import AccessRefused, ToolFailed
from ava_roles.sandbox.git import Checkout, look_at
from ava_roles.sandbox.path_access import Entry
from ava_roles.sandbox.paths import Root, shown

FOLDER_FILES, FOLDER_BYTES = 20_000, 200_000_000
"""The most that is copied of a folder without git; a larger one is shown as it is, to be read only."""
CHECKOUT_FILES, CHECKOUT_BYTES = 50_000, 500_000_000
"""The most that is copied of a checkout."""
FILE_BYTES = 100_000_000
"""A larger file of a checkout is left out."""
LOOKED_AT = 400_000
INSTALLED = frozenset({".venv", "venv", "node_modules", "__pypackages__"})
"""What a package manager makes, ignored or not."""
DEPENDENCIES = INSTALLED | {"vendor", "bower_components", ".bundle", "Pods", "deps", "elm-stuff"}
"""Folders that a project needs to run and that git ignores: shown as they are, to be read only."""
_HIDDEN = frozenset({".git", ".hg", ".svn"})
_PIECE = 1 << 20


@dataclass
class CopyReport:
    """What became of a workspace.

    Attributes:
        whole: False for a folder that is too large, and is shown as it is instead.
        git: It is a checkout.
        files: How many files and links were copied.
        size: How many bytes.
        dependencies: Folders that are to be shown as they are, relative to the workspace.
        hidden: Of a folder that is shown as it is: what must not be seen in it, relative to it.
        left_out: How many names were left out, by why.
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
) -> CopyReport:
    """Copy a workspace into an empty folder. Blocking; ends at once when `check` raises.

    Args:
        root: The workspace, open.
        into: The folder that takes the copy; a folder beside it is used meanwhile.
        repository: The git repository that it lies in; None is none.
        home: The user's home folder.
        carry: Further folders that are to be shown as they are.
        check: Called for every file, and for every piece of a large one.

    Raises:
        ToolFailed: It cannot be copied; says what would help.
    """
    copying = _Copying(root, into, check)
    carried = [name for name in carry if _is_folder(root, name)]
    if repository is None:
        return copying.folder(carried)
    checkout = look_at(repository, root.path.resolve(), into.parent, home, check)
    return copying.folder(carried) if checkout.foreign else copying.checkout(checkout, carried)


def dependencies_of(
    root: Root,
    aside: Path,
    *,
    repository: Path,
    home: Path,
    carry: Iterable[str] = (),
    check: Callable[[], None] = lambda: None,
) -> CopyReport:
    """Return which folders of a checkout are to be shown as they are; nothing is copied. As `copy_workspace`."""
    checkout = look_at(repository, root.path.resolve(), aside, home, check)
    copying = _Copying(root, aside, check)
    copying.dependencies(checkout, [name for name in carry if _is_folder(root, name)])
    return copying.done


@dataclass
class _Copying:
    """One copy in the making."""

    root: Root
    into: Path
    check: Callable[[], None]
    done: CopyReport = field(default_factory=CopyReport)
    _links: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    _seen: set[str] = field(default_factory=set[str])

    def folder(self, carried: list[str]) -> CopyReport:
        """Copy a folder without git, or say that it is too large."""
        found = list(self._walk("", carried))
        dependencies = {name for name in self._seen if name not in carried}
        self.done.dependencies = (*carried, *sorted(dependencies))
        size = sum(entry.size for entry in found)
        if len(found) > FOLDER_FILES or size > FOLDER_BYTES:
            self.done.whole = False
            self.done.files, self.done.size = len(found), size
            self.done.dependencies = ()
            self.done.hidden = tuple(_odd(self.root.path, self.check))
            return self.done
        self._copy((entry.name for entry in found), FOLDER_FILES, FOLDER_BYTES, FOLDER_BYTES)
        return self.done

    def checkout(self, checkout: Checkout, carried: list[str]) -> CopyReport:
        """Copy what of a checkout is the project."""
        names = self.dependencies(checkout, carried)
        beneath = tuple(f"{name}/" for name in self.done.dependencies)
        wanted = (name for name in names if not name.startswith(beneath)) if beneath else iter(names)
        self._copy(wanted, CHECKOUT_FILES, CHECKOUT_BYTES, FILE_BYTES)
        return self.done

    def dependencies(self, checkout: Checkout, carried: list[str]) -> list[str]:
        """Note which folders of a checkout are to be shown as they are; return the other names."""
        self.done.git = True
        dependencies = dict.fromkeys(carried)
        dependencies |= dict.fromkeys(name for name in checkout.ignored if self._is_dependency(name))
        names: list[str] = list(checkout.tracked)
        for name in checkout.others:
            parts = name.rstrip("/").split("/")
            installed = next((n for n, part in enumerate(parts) if part in INSTALLED), None)
            if installed is not None:
                dependencies["/".join(parts[: installed + 1])] = None
            else:
                names.append(name)
        self.done.dependencies = tuple(name for name in dependencies if _is_folder(self.root, name))
        return names

    def _is_dependency(self, name: str) -> bool:
        return name.rpartition("/")[2] in DEPENDENCIES or self._is_environment(name)

    def _is_environment(self, name: str) -> bool:
        try:
            return self.root.kind(f"{name}/pyvenv.cfg") == "file"
        except ToolFailed:
            return False

    def _walk(self, start: str, carried: Iterable[str] = ()) -> Iterable[Entry]:
        """Yield files and links beneath a folder, but for version control and what is shown as it is."""
        beside = frozenset(carried)

        def keep(entry: Entry) -> bool:
            self.check()
            name = entry.name.rpartition("/")[2]
            if entry.kind == "other":
                self.done.left_out["pipes, sockets or devices"] += 1
            if entry.kind == "folder" and name in INSTALLED:
                self._seen.add(entry.name)
                return False
            return name not in _HIDDEN and entry.name not in beside

        return self.root.walk(start, limit=LOOKED_AT, keep=keep, links=True)

    def _copy(self, names: Iterable[str], most_files: int, most_bytes: int, most_each: int) -> None:
        """Copy files by name; folders among them (submodules) with what is in them.

        Raises:
            ToolFailed: It is more than is copied.
        """
        pending = list(names)
        pending.reverse()
        while pending:
            self.check()
            name = pending.pop().rstrip("/")
            if not _HIDDEN.isdisjoint(name.split("/")):
                continue
            try:
                self._file(name, most_each)
            except AccessRefused:
                self._other(name)
            except ToolFailed:
                if _is_folder(self.root, name):  # a repository within this one
                    pending += reversed([entry.name for entry in self._walk(name)])
            if self.done.files > most_files or self.done.size > most_bytes:
                raise ToolFailed(
                    f"this checkout is too large to be copied (more than {most_files:,} files or"
                    f" {most_bytes // 1_000_000:,} MB); have the subagent started with a smaller folder as workspace,"
                    " or go on by reading"
                )
        self._make_links()

    def _make_links(self) -> None:
        """Make links as they were; where something else has come to stand in a link's way, it is left out."""
        for name, _says in self._links:  # before there are links that could lead elsewhere
            (self.into / name).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        copy = Root.open(self.into)
        try:
            for name, says in self._links:
                try:
                    copy.make_link(name, says)
                except ToolFailed:
                    self.done.left_out["links that stand where something else is"] += 1
        finally:
            copy.close()

    def _other(self, name: str) -> None:
        """Note a link; anything else that cannot be copied is left out."""
        if (says := self.root.read_link(name)) is None:
            self.done.left_out["files that may not be read or have a second name (hard links)"] += 1
            return
        self._links.append((name, says))
        self.done.files += 1

    def _file(self, name: str, most: int) -> None:
        with self.root.open_file(name) as source:
            found = os.fstat(source)
            if found.st_size > most:
                self.done.left_out[f"files of more than {most // 1_000_000:,} MB"] += 1
                return
            target = self.into / name
            target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            mode = 0o755 if found.st_mode & stat.S_IXUSR else 0o644
            copy = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), mode)
            try:
                self.done.size += self._bytes(source, copy, most)
                os.utime(copy, ns=(found.st_atime_ns, found.st_mtime_ns))
            finally:
                os.close(copy)
        self.done.files += 1

    def _bytes(self, source: int, copy: int, most: int) -> int:
        """Copy what is in a file; one that grows meanwhile is cut."""
        size = 0
        while size <= most and (piece := os.read(source, _PIECE)):
            self.check()
            size += len(piece)
            rest = memoryview(piece)
            while rest:
                rest = rest[os.write(copy, rest) :]
        return size


def _is_folder(root: Root, name: str) -> bool:
    try:
        return root.kind(name) == "folder"
    except ToolFailed:
        return False


def _odd(folder: Path, check: Callable[[], None]) -> Iterable[str]:
    """Yield what must not be seen of a folder that is shown as it is: version control, pipes, sockets, devices.

    Raises:
        ToolFailed: It cannot be looked through.
    """
    pending = [folder]
    seen = 0
    while pending:
        here = pending.pop()
        check()
        with suppress(PermissionError, FileNotFoundError), os.scandir(here) as scan:
            for entry in scan:
                seen += 1
                path = Path(entry.path)
                if seen > LOOKED_AT:
                    raise ToolFailed(
                        f"{shown(str(folder))} has more than {LOOKED_AT:,} entries, too many to be shown to commands;"
                        " have the subagent started with a smaller folder as workspace, or go on by reading"
                    )
                if entry.name in _HIDDEN:
                    yield path.relative_to(folder).as_posix()
                elif entry.is_dir(follow_symlinks=False):
                    pending.append(path)
                elif not entry.is_symlink() and not entry.is_file(follow_symlinks=False):
                    yield path.relative_to(folder).as_posix()


def odd_in(folder: Path, check: Callable[[], None]) -> str | None:
    """Return the first pipe, socket or device in a folder that is to be shown as it is, or None."""
    return next((name for name in _odd(folder, check) if name.rpartition("/")[2] not in _HIDDEN), None)
