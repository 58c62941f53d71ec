"""Names opened beneath a folder's descriptor: openat2 where the kernel has it, else name by name."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ava_roles.sandbox.linux import NotOnThisSystem, openat2
from ava_roles.sandbox.paths import Entry, Kind

_SAFE = (
    getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)  # so that a pipe does not make the open wait for a writer
    | getattr(os, "O_NOCTTY", 0)
)
_PATH_ONLY = getattr(os, "O_PATH", 0)
_FOLDER = _PATH_ONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)


def has_folder_descriptors() -> bool:
    """Tell whether this system can open names relative to an open folder."""
    return os.open in os.supports_dir_fd and os.scandir in os.supports_fd and hasattr(os, "O_NOFOLLOW")


def step_by_step(folder: int, parts: Sequence[str], flags: int, mode: int = 0) -> int:
    """Open a name beneath a folder, one name at a time and through no link.

    Raises:
        OSError: What the kernel says.
    """
    here = os.dup(folder)
    try:
        for part in parts[:-1]:
            below = os.open(part, _FOLDER, dir_fd=here)
            os.close(here)
            here = below
        return os.open(parts[-1], flags, mode, dir_fd=here)
    finally:
        os.close(here)


class DescriptorPaths:
    """A folder held by a descriptor.

    Args:
        path: The folder.
        kernel: Use openat2 where there is one; False goes step by step (for tests of that way).

    Raises:
        OSError: It is not a folder that can be opened.
    """

    def __init__(self, path: Path, *, kernel: bool = True) -> None:
        self._take(os.open(path, _FOLDER & ~getattr(os, "O_NOFOLLOW", 0)), kernel)

    @classmethod
    def adopt(cls, descriptor: int) -> DescriptorPaths:
        """Return the folder of a descriptor, which it closes in the end."""
        adopted = cls.__new__(cls)
        adopted._take(descriptor, kernel=True)
        return adopted

    def _take(self, root: int, kernel: bool) -> None:
        self._root = root
        self._device = os.fstat(self._root).st_dev
        self._kernel = kernel
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the descriptor; twice is harmless."""
        with self._lock:
            root, self._root = self._root, -1
            if root >= 0:
                os.close(root)

    @contextmanager
    def opened(self, parts: Sequence[str]) -> Generator[int]:
        """Hold a regular file open for reading."""
        descriptor = self._open(parts, os.O_RDONLY | _SAFE)
        try:
            self._refuse_odd(os.fstat(descriptor), parts)
            yield descriptor
        finally:
            os.close(descriptor)

    def read(self, parts: Sequence[str], cap: int) -> tuple[bytes, bool]:
        """Return at most `cap` bytes of a regular file, and whether there is more."""
        with self.opened(parts) as descriptor:
            out = bytearray()
            while len(out) <= cap and (piece := os.read(descriptor, min(1 << 20, cap + 1 - len(out)))):
                out += piece
            return bytes(out[:cap]), len(out) > cap

    def link(self, parts: Sequence[str]) -> str:
        """Return what a link says; nothing follows it."""
        with self._folder(parts[:-1], False) as folder:
            return os.readlink(parts[-1], dir_fd=folder)

    def make_link(self, parts: Sequence[str], says: str) -> None:
        """Make a link in a folder that is there; through no other link."""
        with self._folder(parts[:-1], False) as folder:
            os.symlink(says, parts[-1], dir_fd=folder)

    def entries(self, parts: Sequence[str]) -> list[Entry]:
        """Return what is in a folder, unsorted; what vanishes meanwhile is left out."""
        descriptor = self._open(parts or ["."], os.O_RDONLY | os.O_DIRECTORY | _SAFE)
        try:
            if os.fstat(descriptor).st_dev != self._device:
                raise OSError(errno.EXDEV, "another file system", "/".join(parts))
            found: list[Entry] = []
            with os.scandir(descriptor) as scan:
                for each in scan:
                    with suppress(FileNotFoundError):
                        status = each.stat(follow_symlinks=False)
                        found.append(Entry(each.name, kind_of(status.st_mode), status.st_size))
            return found
        finally:
            os.close(descriptor)

    def replace(self, parts: Sequence[str], data: bytes, mode: int, create_dirs: bool, aside: Path | None) -> None:
        """Write a temporary beside the target, or aside, and rename it from descriptor to descriptor."""
        last = parts[-1]
        with self._folder(parts[:-1], create_dirs) as folder, _held(aside, folder) as place:
            with suppress(FileNotFoundError):
                there = os.stat(last, dir_fd=folder, follow_symlinks=False)
                self._refuse_odd(there, parts)
                mode = stat.S_IMODE(there.st_mode) & 0o777
            temporary = f".{last[:40]}.{os.getpid()}.{os.urandom(6).hex()}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE
            descriptor = os.open(temporary, flags, mode, dir_fd=place)
            try:
                try:
                    rest = memoryview(data)
                    while rest:
                        rest = rest[os.write(descriptor, rest) :]
                    os.fchmod(descriptor, mode)
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
                os.replace(temporary, last, src_dir_fd=place, dst_dir_fd=folder)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=place)
                raise

    @contextmanager
    def lent(self) -> Generator[int]:
        """Hold a copy of the root's descriptor.

        A thread that is still at it when the run ends must not see the number reused for another folder.
        """
        with self._lock:
            copy = os.dup(self._root)
        try:
            yield copy
        finally:
            os.close(copy)

    def _open(self, parts: Sequence[str], flags: int) -> int:
        with self.lent() as root:
            if self._kernel:
                try:
                    return openat2(root, "/".join(parts), flags)
                except NotOnThisSystem:
                    self._kernel = False
            return step_by_step(root, parts, flags)

    @contextmanager
    def _folder(self, parts: Sequence[str], create: bool) -> Generator[int]:
        """Hold a folder open, made if need be."""
        if create:
            for depth in range(1, len(parts) + 1):
                with self._folder(parts[: depth - 1], False) as above, suppress(FileExistsError):
                    os.mkdir(parts[depth - 1], 0o755, dir_fd=above)
        descriptor = self._open(parts or ["."], _FOLDER)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _refuse_odd(self, found: os.stat_result, parts: Sequence[str]) -> None:
        """Raise for everything but a regular file of one name on the root's own file system."""
        name = "/".join(parts)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, "a folder", name)
        if stat.S_ISLNK(found.st_mode):
            raise OSError(errno.ELOOP, "a link", name)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", name)
        if found.st_nlink > 1:
            raise OSError(errno.EMLINK, "hard link", name)
        if found.st_dev != self._device:
            raise OSError(errno.EXDEV, "another file system", name)


@contextmanager
def _held(path: Path | None, folder: int) -> Generator[int]:
    """Hold a folder of ours open; the one that is given where there is none."""
    if path is None:
        yield folder
        return
    descriptor = os.open(path, _FOLDER)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def kind_of(mode: int) -> Kind:
    """Return what a file mode says that something is."""
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "folder"
    return "link" if stat.S_ISLNK(mode) else "other"
