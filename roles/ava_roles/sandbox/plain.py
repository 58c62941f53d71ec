"""Names opened by path, for systems without folder descriptors (Windows).

Each step is looked at for links and the result compared with the folder before it is used. Between the look
and the use another process could swap a folder for a link; that system gives us nothing better.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

from ava_roles.sandbox.beneath import kind_of
from ava_roles.sandbox.paths import Entry


class PlainPaths:
    """A folder held by its path.

    Args:
        path: The folder.

    Raises:
        OSError: It is not a folder.
    """

    def __init__(self, path: Path) -> None:
        self._root = path.resolve(strict=True)
        if not self._root.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "not a folder", str(path))

    def lent(self) -> AbstractContextManager[None]:
        """Return nothing: there is no descriptor to lend."""
        return nullcontext()

    def close(self) -> None:
        """Nothing is held."""

    def read(self, parts: Sequence[str], cap: int) -> tuple[bytes, bool]:
        """Return at most `cap` bytes of a regular file, and whether there is more."""
        path = self._checked(parts)
        _refuse_odd(path)
        with path.open("rb") as file:
            data = file.read(cap + 1)
        return data[:cap], len(data) > cap

    @contextmanager
    def opened(self, parts: Sequence[str]) -> Generator[int]:
        """Hold a regular file open for reading."""
        path = self._checked(parts)
        _refuse_odd(path)
        with path.open("rb") as file:
            yield file.fileno()

    def link(self, parts: Sequence[str]) -> str:
        """Return what a link says; nothing follows it."""
        return str((self._checked(parts[:-1]) / parts[-1]).readlink())

    def make_link(self, parts: Sequence[str], says: str) -> None:
        """Make a link in a folder that is there; through no other link."""
        (self._checked(parts[:-1]) / parts[-1]).symlink_to(says)

    def entries(self, parts: Sequence[str]) -> list[Entry]:
        """Return what is in a folder, unsorted; what vanishes meanwhile is left out."""
        found: list[Entry] = []
        for each in self._checked(parts).iterdir():
            with suppress(FileNotFoundError):
                status = each.lstat()
                kind = "link" if _is_link(each) else kind_of(status.st_mode)
                found.append(Entry(each.name, kind, status.st_size))
        return found

    def replace(self, parts: Sequence[str], data: bytes, mode: int, create_dirs: bool, aside: Path | None) -> None:
        """Write a temporary beside the target, or aside, and rename it."""
        folder = self._checked(parts[:-1], missing_ok=create_dirs)
        if create_dirs:
            folder.mkdir(parents=True, exist_ok=True)
        target = self._checked(parts, missing_ok=True)
        with suppress(FileNotFoundError):
            _refuse_odd(target)
            mode = stat.S_IMODE(target.lstat().st_mode) & 0o777
        temporary = (aside or folder) / f".{parts[-1][:40]}.{os.getpid()}.{os.urandom(6).hex()}"
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
            if _is_link(path):
                raise OSError(errno.ELOOP, "a link", str(path))
        if not path.resolve(strict=not missing_ok).is_relative_to(self._root):
            raise OSError(errno.EXDEV, "outside", str(path))
        return path


def _is_link(path: Path) -> bool:
    """Tell whether a path is a link, or a junction (Windows' link between folders)."""
    with suppress(FileNotFoundError):
        attributes = getattr(path.lstat(), "st_file_attributes", 0)
        return path.is_symlink() or bool(attributes & stat.FILE_ATTRIBUTE_REPARSE_POINT)
    return False


def _refuse_odd(path: Path) -> None:
    found = path.lstat()
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "a folder", str(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    if found.st_nlink > 1:
        raise OSError(errno.EMLINK, "hard link", str(path))
