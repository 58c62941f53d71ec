"""A folder that a run may reach, and nothing outside of it.

A check of a path followed by an open of it loses a race against a renamed folder; so names are opened beneath
a descriptor of the folder, and what was opened is looked at before a byte of it is used. How the system does
that is in `beneath.py`; where it cannot, `plain.py` does what is possible.

Everything here blocks: callers put it in a thread.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path, PurePath
from typing import Literal, NamedTuple, Protocol

from ava_roles.errors import AccessRefused, NotThere, ToolFailed

Kind = Literal["file", "folder", "link", "other"]


class Entry(NamedTuple):
    """Something in a folder.

    Attributes:
        name: Its name; from `Root.walk` its path relative to the root, with `/`.
        kind: What it is; a link is never followed.
        size: Bytes, for a file.
    """

    name: str
    kind: Kind
    size: int


class PathAccess(Protocol):
    """How one system opens names beneath a folder. Every method raises OSError for what it will not do."""

    def read(self, parts: Sequence[str], cap: int) -> tuple[bytes, bool]:
        """Return at most `cap` bytes of a regular file, and whether there is more."""
        ...

    def opened(self, parts: Sequence[str]) -> AbstractContextManager[int]:
        """Hold a regular file open for reading."""
        ...

    def link(self, parts: Sequence[str]) -> str:
        """Return what a link says; nothing follows it."""
        ...

    def make_link(self, parts: Sequence[str], says: str) -> None:
        """Make a link in a folder that is there; through no other link."""
        ...

    def entries(self, parts: Sequence[str]) -> list[Entry]:
        """Return what is in a folder, unsorted."""
        ...

    def replace(self, parts: Sequence[str], data: bytes, mode: int, create_dirs: bool, aside: Path | None) -> None:
        """Put a regular file in place of what is there, in one step."""
        ...

    def lent(self) -> AbstractContextManager[int | None]:
        """Hold a copy of the folder's descriptor, if there is one."""
        ...

    def close(self) -> None:
        """Release what is held."""
        ...


class Root:
    """A folder, open: everything beneath it can be reached, nothing else.

    Attributes:
        path: The folder, for showing; work goes through the descriptor.
    """

    def __init__(self, path: Path, ways: PathAccess) -> None:
        self.path = path
        self._ways = ways

    @classmethod
    def open(cls, path: Path) -> Root:
        """Open a folder.

        Raises:
            OSError: It is not a folder that can be opened.
        """
        from ava_roles.sandbox.beneath import DescriptorPaths, has_folder_descriptors
        from ava_roles.sandbox.plain import PlainPaths

        return cls(path, DescriptorPaths(path) if has_folder_descriptors() else PlainPaths(path))

    @classmethod
    def adopt(cls, path: Path, descriptor: int | None) -> Root:
        """Return a root for a folder's descriptor that another process lent; by path where there is none."""
        if descriptor is None:
            return cls.open(path)
        from ava_roles.sandbox.beneath import DescriptorPaths

        return cls(path, DescriptorPaths.adopt(descriptor))

    def lent(self) -> AbstractContextManager[int | None]:
        """Hold a copy of the descriptor, to be inherited by a child; None where there are no descriptors."""
        return self._ways.lent()

    def close(self) -> None:
        """Close the folder; twice is harmless."""
        self._ways.close()

    def read(self, rel: str, cap: int = 2_000_000) -> tuple[bytes, bool]:
        """Return the first `cap` bytes of a regular file, and whether there is more.

        Args:
            rel: A path relative to the root, or an absolute one beneath it.
            cap: Bytes.

        Raises:
            AccessRefused: It leads outside, through a link, or is no regular file.
            ToolFailed: It does not exist or cannot be read.
        """
        parts = self.parts(rel)
        if not parts:
            raise ToolFailed("this is the workspace itself, a folder; name a file in it")
        try:
            return self._ways.read(parts, cap)
        except OSError as error:
            raise _told(error, parts) from None

    @contextmanager
    def opened(self, rel: str) -> Generator[int]:
        """Hold a regular file open for reading: a descriptor.

        Raises:
            AccessRefused: It leads outside, through a link, or is no regular file.
            ToolFailed: It does not exist or cannot be read.
        """
        parts = self.parts(rel)
        with ExitStack() as held:
            try:
                descriptor = held.enter_context(self._ways.opened(parts))
            except OSError as error:
                raise _told(error, parts) from None
            yield descriptor

    def link(self, rel: str) -> str | None:
        """Return what a link says, None where there is no link; nothing follows it."""
        try:
            return self._ways.link(self.parts(rel))
        except OSError:
            return None

    def make_link(self, rel: str, says: str) -> None:
        """Make a link, in a folder that is there.

        Raises:
            AccessRefused: The way to it leads outside, or through another link.
            ToolFailed: It cannot be made.
        """
        parts = self.parts(rel)
        try:
            self._ways.make_link(parts, says)
        except OSError as error:
            raise _told(error, parts) from None

    def replace(
        self, rel: str, data: bytes, mode: int = 0o644, *, create_dirs: bool = False, aside: Path | None = None
    ) -> None:
        """Write a file in one step: a reader sees the old content or the new, never a part.

        Args:
            rel: A path relative to the root, or an absolute one beneath it.
            data: The whole new content.
            mode: Permissions of a new file; an existing one keeps its own.
            create_dirs: Make missing folders on the way.
            aside: A folder of ours on the same file system, in which the content stands until it is complete; without
                it that is beside the file, where a process that is killed leaves it.

        Raises:
            AccessRefused: It leads outside, through a link, or what is there is no regular file.
            ToolFailed: It cannot be written.
        """
        parts = self.parts(rel)
        if not parts:
            raise ToolFailed("this is the folder itself; name a file in it")
        try:
            self._ways.replace(parts, data, mode, create_dirs, aside)
        except OSError as error:
            raise _told(error, parts) from None

    def entries(self, rel: str = "") -> list[Entry]:
        """Return what is in a folder, sorted by name.

        Raises:
            AccessRefused: It leads outside or through a link.
            ToolFailed: It does not exist, or is no folder.
        """
        parts = self.parts(rel)
        try:
            return sorted(self._ways.entries(parts), key=_order)
        except OSError as error:
            raise _told(error, parts, folder=True) from None

    def kind(self, rel: str) -> Kind:
        """Return what a path is.

        Raises:
            AccessRefused: It leads outside or through a link.
            ToolFailed: It does not exist.
        """
        parts = self.parts(rel)
        return self._start(parts).kind if parts else "folder"

    def walk(
        self,
        rel: str = "",
        *,
        limit: int = 100_000,
        keep: Callable[[Entry], bool] | None = None,
        links: bool = False,
    ) -> Generator[Entry]:
        """Yield the regular files beneath a folder, sorted by path. Links are never followed.

        Folders that vanish or cannot be opened on the way are passed over.

        Args:
            rel: Where to start; a file yields itself.
            limit: Most entries (folders included) to look at.
            keep: Asked for each file and folder, with its path relative to the root; False leaves it out,
                a folder with everything in it.
            links: Yield links too.

        Raises:
            AccessRefused: `rel` leads outside or through a link.
            ToolFailed: `rel` does not exist.
        """
        start = self.parts(rel)
        pending = [self._start(start)] if start else [Entry("", "folder", 0)]
        seen = 0
        while pending and seen < limit:
            entry = pending.pop()
            seen += 1
            if entry.kind == "file" or (links and entry.kind == "link"):
                yield entry
            elif entry.kind == "folder":
                above = f"{entry.name}/" if entry.name else ""
                try:
                    inside = self._ways.entries(entry.name.split("/") if entry.name else [])
                except OSError as error:
                    if entry.name == "/".join(start):
                        raise _told(error, start, folder=True) from None
                    continue
                found = (Entry(above + each.name, each.kind, each.size) for each in inside)
                wanted = [each for each in found if keep is None or keep(each)]
                pending += sorted(wanted, key=_order, reverse=True)

    def parts(self, rel: str) -> list[str]:
        """Return the names on the way from the root, none for the root itself.

        Raises:
            AccessRefused: The path cannot lie beneath the root.
        """
        text = rel.replace("\\", "/") if os.name == "nt" else rel
        if "\0" in text or len(text) > 4096:
            raise AccessRefused(f"{shown(rel)} is not a path; give one relative to the workspace")
        if PurePath(text).is_absolute():
            try:
                text = PurePath(text).relative_to(self.path).as_posix()
            except ValueError:
                raise _outside(rel) from None
        found = [part for part in text.split("/") if part not in ("", ".")]
        if ".." in found or text.startswith("/") or (os.name == "nt" and ":" in text):
            raise _outside(rel)
        return found

    def _start(self, parts: Sequence[str]) -> Entry:
        """Return the entry that a path names, found in its folder."""
        try:
            for entry in self._ways.entries(parts[:-1]):
                if entry.name == parts[-1]:
                    return Entry("/".join(parts), entry.kind, entry.size)
        except OSError as error:
            raise _told(error, parts, folder=True) from None
        raise _told(FileNotFoundError(errno.ENOENT, ""), parts)


def shown(rel: str) -> str:
    """Return a path for a message or a result line: one line, printable, at most 200 characters."""
    text = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in rel)
    return text if len(text) <= 200 else text[:199] + "…"


def _order(entry: Entry) -> str:
    """Sort a folder where its files' paths would sort."""
    return entry.name + ("/" if entry.kind == "folder" else "")


def _outside(rel: str) -> AccessRefused:
    return AccessRefused(
        f"{shown(rel)} is outside of the folder that this run may reach; "
        'give a path relative to it, such as "src/main.py", without ".."'
    )


def _told(error: OSError, parts: Sequence[str], *, folder: bool = False) -> ToolFailed:
    """Say what a system error means for a path, and what to do."""
    name = shown("/".join(parts)) or "the workspace"
    match error.errno:
        case errno.ENOENT:
            above = shown("/".join(parts[:-1])) or "."
            return NotThere(f"{name} does not exist; list its folder with read_file on {above!r}")
        case errno.ELOOP:
            return AccessRefused(f"{name} is a link or leads through one; give the path of the file itself")
        case errno.EXDEV:
            return AccessRefused(f"{name} leads out of the folder that this run may reach; choose another file")
        case errno.EMLINK:
            return AccessRefused(f"{name} has a second name (a hard link), which may lie outside; choose another file")
        case errno.EISDIR:
            return ToolFailed(f"{name} is a folder; name a file in it")
        case errno.ENOTDIR if folder:
            return ToolFailed(f"{name} is no folder, or leads through a link; read it as a file")
        case errno.ENOTDIR:
            return AccessRefused(f"{name} leads through something that is not a folder; check the path")
        case errno.EINVAL | errno.ENXIO:
            return AccessRefused(f"{name} is not a regular file (a pipe, socket or device); choose another file")
        case errno.EACCES | errno.EPERM:
            return AccessRefused(f"{name} may not be accessed by this user; choose another file")
        case errno.ENAMETOOLONG:
            return ToolFailed(f"{name} is too long for a path; check it")
        case errno.ENOSPC | errno.EDQUOT:
            return ToolFailed(f"{name} was not written: the disk is full; say so in the result")
        case _:
            return ToolFailed(f"{name} could not be used: {error.strerror or error}; choose another file")
