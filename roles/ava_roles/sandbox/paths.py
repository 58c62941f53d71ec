"""A folder that a run may reach, and nothing outside it. Everything here blocks: callers use a thread.

Checking a path and then opening it loses a race against a renamed folder. So names are opened beneath a descriptor of
the folder, and what was opened is checked before a byte of it is used; `path_access` does that.
"""

from __future__ import annotations

import errno
import os
import unicodedata
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path, PurePath

from ava_roles.errors import AccessRefused, FolderReplaced, NotThere, ToolFailed
from ava_roles.sandbox import path_access
from ava_roles.sandbox.linux import NotOnThisSystem, boot_id
from ava_roles.sandbox.path_access import DescriptorPaths, EntryKind, FileMark, FolderEntry, PlainPaths

Keep = Callable[[FolderEntry], bool]


class Root:
    """An open folder: everything beneath it can be reached, nothing else. Its path is for messages.

    Names are relative to it, or absolute and beneath it. AccessRefused: a name leads outside or through a link, or is
    something else where a regular file is needed. ToolFailed: it does not exist, is not the folder it should be, or
    cannot be read or written.
    """

    def __init__(self, path: Path, access: DescriptorPaths | PlainPaths) -> None:
        self.path = path
        self._access = access

    @classmethod
    def open(cls, path: Path) -> Root:
        """Open a folder. Raises OSError if it is not a folder, or cannot be opened."""
        if path_access.has_folder_descriptors():
            return cls(path, DescriptorPaths(path))
        return cls(path, PlainPaths(path))

    @classmethod
    def open_without_links(cls, path: Path) -> Root:
        """Open a folder in which no link is followed, not even to something beneath it. Raises OSError: as `open`."""
        if path_access.has_folder_descriptors():
            return cls(path, DescriptorPaths(path, kernel=False))  # the way without openat2 follows none
        return cls(path, PlainPaths(path))

    @classmethod
    def open_approved(cls, path: Path, identity: str) -> Root:
        """Open an approved folder, if it is still the one with that `folder_identity`.

        Raises FolderReplaced if another folder, a link or a file is there; OSError if it cannot be opened.
        """
        try:
            kind = DescriptorPaths if path_access.has_folder_descriptors() else PlainPaths
            access = kind.open_without_links(path)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                raise FolderReplaced(f"{path}, or a folder above it, is now a link or a file") from None
            raise
        if not is_same_folder(identity, identity_of(access.status)):
            access.close()
            raise FolderReplaced(f"{path} is now a different folder")
        return cls(path, access)

    @classmethod
    def adopt(cls, path: Path, descriptor: int | None) -> Root:
        """Return a root for a descriptor that was inherited from another process, or for the path if that is None."""
        return cls.open(path) if descriptor is None else cls(path, DescriptorPaths(descriptor))

    def identity(self) -> str:
        """Return what distinguishes this folder from any other, as `folder_identity` does."""
        return identity_of(self._access.status)

    def is_in_place(self) -> bool:
        """Tell whether this very folder, and no other folder or link, is still at its path."""
        try:
            return is_same_folder(identity_of(self._access.status), folder_identity(self.path))
        except OSError:
            return False

    def duplicate(self) -> AbstractContextManager[int | None]:
        """Hold a copy of the descriptor for a child to inherit; None where the system has no folder descriptors."""
        return self._access.duplicate()

    def close(self) -> None:
        self._access.close()

    def read(self, rel: str, cap: int = 2_000_000) -> tuple[bytes, bool]:
        """Return the first `cap` bytes of a regular file, and whether it has more. Raises AccessRefused, ToolFailed."""
        data, more, _mark = self.read_marked(rel, cap)
        return data, more

    def read_marked(self, rel: str, cap: int) -> tuple[bytes, bool, FileMark]:
        """Return what `read` does, and what the file was; one that changes meanwhile is read once more.

        Raises AccessRefused, ToolFailed: as `read` does.
        """
        parts = self.parts(rel)
        if not parts:
            raise ToolFailed("this is the workspace itself, a folder; name a file in it")
        data, before, after = self._read_once(parts, cap)
        if before != after:
            data, _before, after = self._read_once(parts, cap)
        return bytes(data[:cap]), len(data) > cap, after

    def _read_once(self, parts: list[str], cap: int) -> tuple[bytearray, FileMark, FileMark]:
        """Return a file's first `cap` bytes, and one more if it has more, with what it was before and after."""
        data = bytearray()
        with _translate_errors(parts), self._access.open_file(parts) as descriptor:
            before = FileMark.of(os.fstat(descriptor))
            while len(data) <= cap:
                piece = os.read(descriptor, min(1 << 20, cap + 1 - len(data)))
                if not piece:
                    break
                data += piece
            return data, before, FileMark.of(os.fstat(descriptor))

    @contextmanager
    def open_file(self, rel: str) -> Generator[int]:
        """Hold the descriptor of a regular file that is open for reading. Raises AccessRefused, ToolFailed."""
        parts = self.parts(rel)
        with ExitStack() as stack:
            with _translate_errors(parts):
                descriptor = stack.enter_context(self._access.open_file(parts))
            yield descriptor

    def read_link(self, rel: str) -> str | None:
        """Return the target of a link, unresolved; None if the name is not a link."""
        try:
            return self._access.read_link(self.parts(rel))
        except OSError:
            return None

    def make_link(self, rel: str, target: str) -> None:
        """Make a link in an existing folder, reached through no other link. Raises AccessRefused, ToolFailed."""
        parts = self.parts(rel)
        with _translate_errors(parts):
            self._access.make_link(parts, target)

    def replace(
        self, rel: str, data: bytes, mode: int = 0o644, *, create_dirs: bool = False, aside: Path | None = None
    ) -> None:
        """Write a file atomically: a reader sees the old content or the new. Raises AccessRefused, ToolFailed.

        An existing file keeps its permissions; `mode` is for a new one. `create_dirs` makes missing folders. The
        temporary file is in `aside`, a folder of Ava's on the same file system; without it beside the target, where a
        killed process leaves it.
        """
        parts = self.parts(rel)
        if not parts:
            raise ToolFailed("this is the folder itself; name a file in it")
        with _translate_errors(parts):
            self._access.replace(parts, data, mode, create_dirs, aside)

    def entries(self, rel: str = "") -> list[FolderEntry]:
        """Return what is in a folder, sorted by name. Raises AccessRefused, ToolFailed."""
        parts = self.parts(rel)
        with _translate_errors(parts, folder=True):
            return sorted(self._access.entries(parts), key=_order)

    def kind(self, rel: str) -> EntryKind:
        """Return what a path is; links are not followed. Raises AccessRefused, ToolFailed."""
        parts = self.parts(rel)
        return self._entry(parts).kind if parts else "folder"

    def walk(
        self, rel: str = "", *, limit: int = 100_000, keep: Keep | None = None, links: bool = False
    ) -> Generator[FolderEntry]:
        """Yield the regular files beneath a folder, sorted by path; follow no link. A file yields itself.

        Folders that vanish meanwhile or cannot be opened are skipped. At most `limit` entries are visited, folders
        included. `keep` is called for each file and folder, with its path relative to the root; False skips it, a
        folder with everything in it. With `links`, links are yielded too. Raises AccessRefused, ToolFailed: for `rel`.
        """
        start = self.parts(rel)
        first = FolderEntry("", "folder", 0)
        if start:
            first = self._entry(start)
        yielded_kinds = ("file", "link") if links else ("file",)
        pending = [first]
        visited = 0
        while pending and visited < limit:
            entry = pending.pop()
            visited += 1
            if entry.kind in yielded_kinds:
                yield entry
            elif entry.kind == "folder":
                try:
                    children = self._children_of(entry)
                except OSError as error:
                    if entry.name == "/".join(start):
                        raise _tool_error(error, start, folder=True) from None
                    continue
                if keep is not None:
                    children = list(filter(keep, children))
                pending += sorted(children, key=_order, reverse=True)

    def _children_of(self, folder: FolderEntry) -> list[FolderEntry]:
        """Return what is in a folder, with paths from the root. Raises OSError."""
        if not folder.name:
            return list(self._access.entries([]))
        entries = self._access.entries(folder.name.split("/"))
        return [entry._replace(name=f"{folder.name}/{entry.name}") for entry in entries]

    def parts(self, rel: str) -> list[str]:
        """Return the names from the root to a path, none for the root. Raises AccessRefused: it cannot lie beneath."""
        text = rel
        if os.name == "nt":
            text = rel.replace("\\", "/")
        if "\0" in text or len(text) > 4096:
            raise AccessRefused(f"{shown(rel)} is not a path; give one relative to the workspace")
        if PurePath(text).is_absolute():
            try:
                text = PurePath(text).relative_to(self.path).as_posix()
            except ValueError:
                raise _outside(rel) from None
        names = [name for name in text.split("/") if name not in ("", ".")]
        has_drive = os.name == "nt" and ":" in text
        if ".." in names or text.startswith("/") or has_drive:
            raise _outside(rel)
        return names

    def find(self, rel: str) -> str:
        """Return the path that a name means: itself, else the only one that is `shown` like it, in NFC or NFD.

        Raises AccessRefused, ToolFailed if it cannot be found, or several look like it.
        """
        path: list[str] = []
        for part in self.parts(rel):
            with _translate_errors((*path, part), folder=True):
                names = [entry.name for entry in self._access.entries(path)]
            alike = [part]
            if part not in names:
                alike = [name for name in names if _looks(name) == _looks(part)]
            if len(alike) > 1:
                raise ToolFailed(f"{len(alike)} names look like {shown(part)}; list the folder, or rename all but one")
            if not alike:
                raise _tool_error(FileNotFoundError(errno.ENOENT, ""), [*path, part])
            path.append(alike[0])
        return "/".join(path)

    def _entry(self, parts: Sequence[str]) -> FolderEntry:
        with _translate_errors(parts, folder=True):
            for entry in self._access.entries(parts[:-1]):
                if entry.name == parts[-1]:
                    return entry._replace(name="/".join(parts))
        raise _tool_error(FileNotFoundError(errno.ENOENT, ""), parts)


def folder_identity(path: Path) -> str:
    """Return what distinguishes a folder from any other that is put in its place. Raises OSError: it cannot be read."""
    return identity_of(path.lstat())


def identity_of(status: os.stat_result) -> str:
    """Return `device:inode:boot`. The boot matters because device numbers may change with it."""
    boot = ""
    with suppress(NotOnThisSystem):
        boot = boot_id()
    return f"{status.st_dev}:{status.st_ino}:{boot}"


def is_same_folder(approved: str, current: str) -> bool:
    """Tell whether two identities are of the same folder; after a reboot, the device number does not count."""
    device, inode, boot = approved.split(":")
    device_now, inode_now, boot_now = current.split(":")
    if inode != inode_now:
        return False
    return device == device_now or boot != boot_now


def shown(rel: str) -> str:
    """Return a path for a message or a result line: one line, printable, at most 200 characters."""
    text = rel
    if not rel.isprintable():
        text = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in rel)
    if len(text) > 200:
        return text[:199] + "…"
    return text


def _looks(name: str) -> str:
    """Return what a person or model sees of a name, in one form of Unicode."""
    return shown(unicodedata.normalize("NFC", name))


def _order(entry: FolderEntry) -> str:
    return f"{entry.name}/" if entry.kind == "folder" else entry.name


def _outside(rel: str) -> AccessRefused:
    return AccessRefused(
        f"{shown(rel)} is outside of the folder that this run may reach; "
        'give a path relative to it, such as "src/main.py", without ".."'
    )


@contextmanager
def _translate_errors(parts: Sequence[str], *, folder: bool = False) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise _tool_error(error, parts, folder=folder) from None


_SPECIAL_FILE = (AccessRefused, "is not a regular file (a pipe, socket or device); choose another file")
_NOT_PERMITTED = (AccessRefused, "may not be accessed by this user; choose another file")
_DISK_FULL = (ToolFailed, "was not written: the disk is full; say so in the result")
_ERRORS: dict[int, tuple[type[ToolFailed], str]] = {
    errno.ELOOP: (AccessRefused, "is a link or leads through one; give the path of the file itself"),
    errno.EXDEV: (AccessRefused, "leads out of the folder that this run may reach; choose another file"),
    errno.EMLINK: (AccessRefused, "has a second name (a hard link), which may lie outside; choose another file"),
    errno.EISDIR: (ToolFailed, "is a folder; name a file in it"),
    errno.ENOTDIR: (AccessRefused, "leads through something that is not a folder; check the path"),
    errno.EINVAL: _SPECIAL_FILE,
    errno.ENXIO: _SPECIAL_FILE,
    errno.EACCES: _NOT_PERMITTED,
    errno.EPERM: _NOT_PERMITTED,
    errno.ENAMETOOLONG: (ToolFailed, "is too long for a path; shorten it"),
    errno.ENOSPC: _DISK_FULL,
    errno.EDQUOT: _DISK_FULL,
}


def _tool_error(error: OSError, parts: Sequence[str], *, folder: bool = False) -> ToolFailed:
    """Return the error for a model: what a system error means for a path, and what to do."""
    name = shown("/".join(parts)) or "the workspace"
    if error.errno == errno.ENOENT:
        folder_name = shown("/".join(parts[:-1])) or "."
        return NotThere(f"{name} does not exist; list its folder with read_file on {folder_name!r}")
    if error.errno == errno.ENOTDIR and folder:
        return ToolFailed(f"{name} is not a folder, or leads through a link; read it as a file")
    if error.errno in _ERRORS:
        error_class, text = _ERRORS[error.errno]
        return error_class(f"{name} {text}")
    return ToolFailed(f"{name} could not be used: {error.strerror or error}; choose another file")
