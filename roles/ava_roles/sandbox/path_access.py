"""Opens names beneath a folder: relative to its descriptor, or by path on systems without folder descriptors (Windows).

Every function raises OSError for what it refuses. Callers translate that; see `paths.Root`.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import count
from pathlib import Path
from typing import Literal, NamedTuple

from ava_roles.sandbox.linux import NotOnThisSystem, openat2

EntryKind = Literal["file", "folder", "link", "other"]

_SAFE = (
    getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)  # opening a pipe must not wait for a writer
    | getattr(os, "O_NOCTTY", 0)
)
_FOLDER = getattr(os, "O_PATH", 0) | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_FOLDER_ITSELF = _FOLDER | getattr(os, "O_NOFOLLOW", 0)


class FileMark(NamedTuple):
    """What tells whether a file is still the one that it was: no other one in its place, and no other content."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileMark:
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


class FolderEntry(NamedTuple):
    """Something in a folder: its name (from `Root.walk` its path, with `/`), its kind (no link followed), its bytes."""

    name: str
    kind: EntryKind
    size: int
    mark: FileMark | None = None


def has_folder_descriptors() -> bool:
    """Tell whether this system can open names relative to an open folder."""
    return os.open in os.supports_dir_fd and os.scandir in os.supports_fd and hasattr(os, "O_NOFOLLOW")


def make_folders(path: Path, beneath: Path, mode: int = 0o700) -> None:
    """Make a folder and missing parents below `beneath`, which is never made: it may have moved. Raises OSError."""
    try:
        path.mkdir(mode, exist_ok=True)
    except FileNotFoundError:
        if path.parent in (beneath, path):
            raise
        make_folders(path.parent, beneath, mode)
        path.mkdir(mode, exist_ok=True)


class DescriptorPaths:
    """A folder held by a descriptor, closed in the end. Names are opened with openat2, or one by one without it.

    `kernel` False does not use openat2: no link is followed. Raises OSError if it cannot be opened as a folder.
    """

    def __init__(self, folder: Path | int, *, kernel: bool = True) -> None:
        self._root = folder if isinstance(folder, int) else os.open(folder, _FOLDER)
        self._device = os.fstat(self._root).st_dev
        self._kernel = kernel
        self._lock = threading.Lock()

    @classmethod
    def open_without_links(cls, path: Path) -> DescriptorPaths:
        """Open a folder by an absolute path. Raises OSError: ENOTDIR or ELOOP where a part is a link or a file."""
        above = os.open(path.anchor, _FOLDER)
        with _closing(above):
            return cls(_open_stepwise(above, path.parts[1:] or ["."], _FOLDER_ITSELF))

    @property
    def status(self) -> os.stat_result:
        with self.duplicate() as root:
            return os.fstat(root)

    def close(self) -> None:
        with self._lock:
            root, self._root = self._root, -1
            if root >= 0:
                os.close(root)

    @contextmanager
    def duplicate(self) -> Generator[int]:
        """Hold a copy of the root's descriptor, as a thread may use it after `close`, when its number means another."""
        with self._lock:
            copy = os.dup(self._root)
        with _closing(copy):
            yield copy

    @contextmanager
    def open_file(self, parts: Sequence[str]) -> Generator[int]:
        with _closing(self._open(parts, os.O_RDONLY | _SAFE)) as descriptor:
            _refuse_special(os.fstat(descriptor), "/".join(parts), self._device)
            yield descriptor

    def read_link(self, parts: Sequence[str]) -> str:
        with self._folder(parts[:-1]) as folder:
            return os.readlink(parts[-1], dir_fd=folder)

    def make_link(self, parts: Sequence[str], target: str) -> None:
        """Make a link in an existing folder, reached through no other link."""
        with self._folder(parts[:-1]) as folder:
            os.symlink(target, parts[-1], dir_fd=folder)

    def entries(self, parts: Sequence[str]) -> list[FolderEntry]:
        """Return what is in a folder, unsorted; entries that vanish meanwhile are left out."""
        entries: list[FolderEntry] = []
        with _closing(self._open(parts or ["."], os.O_RDONLY | os.O_DIRECTORY | _SAFE)) as descriptor:
            if os.fstat(descriptor).st_dev != self._device:
                raise OSError(errno.EXDEV, "another file system", "/".join(parts))
            with os.scandir(descriptor) as scan:
                for each in scan:
                    with suppress(FileNotFoundError):
                        status = each.stat(follow_symlinks=False)
                        mark = FileMark.of(status)
                        entries.append(FolderEntry(each.name, _kind(status.st_mode), status.st_size, mark))
        return entries

    def replace(self, parts: Sequence[str], data: bytes, mode: int, create_dirs: bool, aside: Path | None) -> None:
        """Write a temporary file beside the target, or in `aside`, and rename it."""
        last = parts[-1]
        if create_dirs:
            for depth in range(1, len(parts)):
                with self._folder(parts[: depth - 1]) as above, suppress(FileExistsError):
                    os.mkdir(parts[depth - 1], 0o755, dir_fd=above)
        with (
            self._folder(parts[:-1]) as folder,
            _closing(os.open(aside, _FOLDER_ITSELF) if aside else os.dup(folder)) as place,
        ):
            with suppress(FileNotFoundError):
                status = os.stat(last, dir_fd=folder, follow_symlinks=False)
                _refuse_special(status, "/".join(parts), self._device)
                mode = stat.S_IMODE(status.st_mode) & 0o777
            temporary = _temporary_name(last)
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE, mode, dir_fd=place)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fchmod(descriptor, mode)
                    os.fsync(descriptor)
                os.replace(temporary, last, src_dir_fd=place, dst_dir_fd=folder)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=place)
                raise

    def _open(self, parts: Sequence[str], flags: int) -> int:
        with self.duplicate() as root:
            if self._kernel:
                try:
                    return openat2(root, "/".join(parts), flags)
                except NotOnThisSystem:
                    self._kernel = False
            return _open_stepwise(root, parts, flags)

    def _folder(self, parts: Sequence[str]) -> AbstractContextManager[int]:
        return _closing(self._open(parts or ["."], _FOLDER_ITSELF))


class PlainPaths:
    """A folder held by its path, with the methods of `DescriptorPaths`. Raises OSError if it is not a folder.

    Each step is checked for links, and the result compared with the folder, before it is used. Another process could
    put a link there between check and use; such systems offer nothing better.
    """

    def __init__(self, path: Path) -> None:
        self._root = path.resolve(strict=True)
        if not self._root.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "not a folder", str(path))

    @classmethod
    def open_without_links(cls, path: Path) -> PlainPaths:
        """Open a folder by an absolute path. Raises OSError: ELOOP where a part of it is a link."""
        paths = cls(path)
        if any(map(is_link, (path, *path.parents))):
            raise OSError(errno.ELOOP, "a link", str(path))
        return paths

    @property
    def status(self) -> os.stat_result:
        return self._root.lstat()

    def close(self) -> None: ...

    def duplicate(self) -> AbstractContextManager[None]:
        return nullcontext()

    @contextmanager
    def open_file(self, parts: Sequence[str]) -> Generator[int]:
        path = self._checked(parts)
        _refuse_special(path.lstat(), str(path))
        with path.open("rb") as file:
            yield file.fileno()

    def read_link(self, parts: Sequence[str]) -> str:
        return str((self._checked(parts[:-1]) / parts[-1]).readlink())

    def make_link(self, parts: Sequence[str], target: str) -> None:
        (self._checked(parts[:-1]) / parts[-1]).symlink_to(target)

    def entries(self, parts: Sequence[str]) -> list[FolderEntry]:
        entries: list[FolderEntry] = []
        for each in self._checked(parts).iterdir():
            with suppress(FileNotFoundError):
                status = each.lstat()
                kind: EntryKind = "link" if is_link(each) else _kind(status.st_mode)
                entries.append(FolderEntry(each.name, kind, status.st_size, FileMark.of(status)))
        return entries

    def replace(self, parts: Sequence[str], data: bytes, mode: int, create_dirs: bool, aside: Path | None) -> None:
        folder = self._checked(parts[:-1], missing_ok=create_dirs)
        if create_dirs:
            folder.mkdir(parents=True, exist_ok=True)
        target = self._checked(parts, missing_ok=True)
        with suppress(FileNotFoundError):
            status = target.lstat()
            _refuse_special(status, str(target))
            mode = stat.S_IMODE(status.st_mode) & 0o777
        temporary = (aside or folder) / _temporary_name(parts[-1])
        try:
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.chmod(mode)
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def _checked(self, parts: Sequence[str], *, missing_ok: bool = False) -> Path:
        """Return the path of a name that leads through no link."""
        path = self._root
        for part in parts:
            path = path / part
            if is_link(path):
                raise OSError(errno.ELOOP, "a link", str(path))
        if not path.resolve(strict=not missing_ok).is_relative_to(self._root):
            raise OSError(errno.EXDEV, "outside", str(path))
        return path


@contextmanager
def _closing(descriptor: int) -> Generator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open_stepwise(folder: int, parts: Sequence[str], flags: int) -> int:
    here = os.dup(folder)
    try:
        for part in parts[:-1]:
            below = os.open(part, _FOLDER_ITSELF, dir_fd=here)
            os.close(here)
            here = below
        return os.open(parts[-1], flags, dir_fd=here)
    finally:
        os.close(here)


def is_link(path: Path) -> bool:
    """Tell whether a path is a link, or a junction (Windows' link between folders)."""
    with suppress(FileNotFoundError):
        attributes = getattr(path.lstat(), "st_file_attributes", 0)
        return path.is_symlink() or bool(attributes & stat.FILE_ATTRIBUTE_REPARSE_POINT)
    return False


def _refuse_special(status: os.stat_result, name: str, device: int | None = None) -> None:
    """Raise OSError for everything but a regular file with one name, on a given file system."""
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "a folder", name)
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, "a link", name)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", name)
    if status.st_nlink > 1:
        raise OSError(errno.EMLINK, "hard link", name)
    if device not in (None, status.st_dev):
        raise OSError(errno.EXDEV, "another file system", name)


def _temporary_name(name: str) -> str:
    return f".{name[:40]}.{os.getpid()}.{os.urandom(6).hex()}"


def _kind(mode: int) -> EntryKind:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "folder"
    return "link" if stat.S_ISLNK(mode) else "other"


class NotRegular(OSError):
    """Raised for something that is neither a regular file nor a link to one."""


def read_small(path: Path, most: int) -> bytes:
    """Return the beginning of a regular file, following links. Blocks, but never waits for a writer.

    A link could lead to a device without end, or to one that the server reads. Raises NotRegular; OSError.
    """
    if not stat.S_ISREG(path.stat().st_mode):  # opening a device can have effects
        raise NotRegular(errno.EINVAL, "it is not a regular file", str(path))
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # it has been replaced since
            raise NotRegular(errno.EINVAL, "it is not a regular file", str(path))
        return file.read(most)


_ALL = stat.S_IRWXU
ONLY_DIR = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


def remove_tree(folder: Path) -> None:
    """Remove one of Ava's folders with everything in it, following no link; a missing folder is fine.

    No process may use it any more. Each folder in it is given permissions and moved to the top before it is opened, so
    that no path gets too long. Raises OSError if something in it cannot be removed.
    """
    if not has_folder_descriptors():
        shutil.rmtree(folder, ignore_errors=not folder.exists())
        return
    try:
        folder.chmod(_ALL)
        top = os.open(folder, ONLY_DIR)
    except FileNotFoundError:
        return
    with _closing(top):
        names = (f"{number}.{os.urandom(8).hex()}" for number in count())
        pending = _empty(top, top, names)
        while pending:
            name = pending.pop()
            with _closing(os.open(name, ONLY_DIR, dir_fd=top)) as here:
                pending += _empty(here, top, names)
            os.rmdir(name, dir_fd=top)
    with suppress(FileNotFoundError):
        folder.rmdir()


def _empty(folder: int, top: int, names: Iterator[str]) -> list[str]:
    """Remove the files in an open folder, and move its folders to the top; return their names there."""
    moved: list[str] = []
    with os.scandir(folder) as scan:
        entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in scan]
    for name, is_folder in entries:
        if not is_folder:
            os.unlink(name, dir_fd=folder)
            continue
        os.chmod(name, _ALL, dir_fd=folder)  # needed to move and to empty it
        moved.append(next(names))
        os.rename(name, moved[-1], src_dir_fd=folder, dst_dir_fd=top)
    return moved
