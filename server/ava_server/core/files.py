"""A file replaced as a whole: never half written, whatever ends the process."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
import threading
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ava_server.core.errors import AvaError, ConfigError

if TYPE_CHECKING:
    from tomlkit import TOMLDocument


class FileChanged(Exception):
    """Raised when a file is no longer what it was when it was read."""


def replace_file(path: Path, data: bytes, mode: int = 0o600, instead_of: bytes | None = None) -> None:
    """Write a new file beside the old one, to the disk, and put it in its place.

    Args:
        path: The file; what stands there is replaced, a link included.
        data: What is in it from then on.
        mode: Its permissions, where the system has them.
        instead_of: What must be in it until then; None does not look.

    Raises:
        Changed: Something else is in it; it is as it was.
        OSError: It cannot be written; the old one is as it was.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    create_file(fresh, data, mode)
    try:
        if instead_of is not None and path.read_bytes() != instead_of:
            raise FileChanged
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def is_own(status: os.stat_result) -> bool:
    """Tell whether a file is this user's; where files have no owners, every one is."""
    user = getattr(os, "geteuid", None)
    return user is None or status.st_uid == user()


def is_root() -> bool:
    """Tell whether this process may do everything on this system; nobody may where there is no such user."""
    return getattr(os, "geteuid", lambda: -1)() == 0


def create_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write a file that is not there yet, to the disk.

    Raises:
        FileExistsError: Something is there.
        OSError: It cannot be written; nothing of it is left.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if mode != stat.S_IMODE(path.stat().st_mode):
            path.chmod(mode)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


LOCK_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class PrivateFile:
    """A file of secret values.

    Attributes:
        path: Where it is; it need not exist.
        holds: What is in it, in the plural: `keys`.
        command: The command that writes it: `ava key`.
        setting: How one entry is stored: `ava key set PROVIDER`.
    """

    path: Path
    holds: str
    command: str
    setting: str

    @property
    def anew(self) -> str:
        """What to do with a file that is wrong."""
        return f"Remove the file and store the {self.holds} again with `{self.setting}`."

    def entries(self) -> dict[str, Any]:
        """Return what is in it, all of one reading; nothing when there is no file.

        Raises:
            ConfigError: It may not be trusted or read, or is no TOML.
        """
        try:
            return tomllib.loads(self._text())
        except (ValueError, RecursionError) as wrong:  # not all that the parser cannot read is a TOMLDecodeError
            # The parser's own words may quote the line, and the line may be a secret.
            at = re.search(r"\(at [^)]*\)", str(wrong))
            raise ConfigError(f"{self.path} is no valid TOML {at[0] if at else ''}. {self.anew}") from None

    def change(self, check: Callable[[], object], edit: Callable[[TOMLDocument], None]) -> None:
        """Replace the file by one with an entry changed; comments and order stay, and no one writes at once.

        Args:
            check: Reads the whole file, and raises where it holds what cannot be.
            edit: Changes it.

        Raises:
            ConfigError: It may not be trusted, read or written.
        """
        import portalocker
        import tomlkit

        path = self.path
        try:
            with portalocker.Lock(path.with_name(path.name + ".lock"), timeout=LOCK_TIMEOUT_S):
                check()
                document = tomlkit.parse(self._text())
                edit(document)
                replace_file(path, tomlkit.dumps(document).encode())
        except portalocker.LockException:
            raise ConfigError(
                f"Another `{self.command}` is writing {path}, for {LOCK_TIMEOUT_S:.0f} s now. End it and try again."
            ) from None
        except OSError as failed:
            raise self._unusable(failed) from failed

    def make_folder(self) -> None:
        """Make the file's folder, for its owner alone, if it is missing.

        Raises:
            ConfigError: It cannot be made, or may not be trusted.
        """
        make_private_folder(self.path.parent)
        self.check_folder()

    def check_folder(self) -> None:
        """Refuse a folder in which others could put a file in the place of ours.

        Raises:
            ConfigError: It is none, is a link, another's, or open to others.
        """
        folder = self.path.parent
        again = f"Remove it, and store the {self.holds} again."
        try:
            status = folder.lstat()
        except FileNotFoundError:
            return
        except OSError as failed:
            raise ConfigError(f"{folder} cannot be used: {failed.strerror}. Make it this user's own.") from failed
        if not stat.S_ISDIR(status.st_mode):
            raise ConfigError(f"{folder} is no folder, or a link to one. {again}")
        if sys.platform == "win32":  # a mode says nothing there, and a folder has no number for its owner
            return
        if status.st_uid != 0 and not is_own(status):
            raise ConfigError(f"{folder} belongs to another user. {again}")
        if status.st_mode & 0o077:
            raise ConfigError(f"The folder {folder} is open to others. Mend it with: chmod 700 {folder}")

    def _text(self) -> str:
        """Return the file's text, or nothing when there is none; checked and read through one descriptor."""
        path = self.path
        try:
            if path.is_symlink():
                raise ConfigError(f"{path} is a symbolic link, and {self.holds} are not read through one. {self.anew}")
            fd = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        except FileNotFoundError:
            return ""
        except OSError as failed:
            raise self._unusable(failed) from failed
        try:
            with os.fdopen(fd, encoding="utf-8") as file:
                self._check(os.fstat(fd))
                return file.read()
        except UnicodeDecodeError:
            raise ConfigError(f"{path} is not UTF-8 text. {self.anew}") from None
        except OSError as failed:
            raise self._unusable(failed) from failed

    def _check(self, status: os.stat_result) -> None:
        path = self.path
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"{path} is no regular file. {self.anew}")
        if sys.platform == "win32":  # a mode says nothing there, and a file has no number for its owner
            return
        if status.st_uid != 0 and not is_own(status):
            raise ConfigError(f"{path} belongs to another user. {self.anew}")
        if status.st_mode & 0o077:
            raise ConfigError(
                f"Others may read {path}. Mend it with: chmod 600 {path} (and get new {self.holds} if others use this"
                " machine)."
            )

    def _unusable(self, failed: OSError) -> ConfigError:
        why = failed.strerror or type(failed).__name__
        return ConfigError(f"{self.path} cannot be used: {why}. Make it this user's own.")


def make_private_folder(folder: Path) -> None:
    """Make a folder for its owner alone, if it is missing; what stands there is for the caller to look at.

    Raises:
        ConfigError: It cannot be made.
    """
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except FileExistsError:
        pass
    except OSError as failed:
        raise ConfigError(f"{folder} cannot be made: {failed.strerror or type(failed).__name__}.") from failed


T = TypeVar("T")


class WatchedFile(Generic[T]):
    """What is made of a file, made anew when the file is another.

    Args:
        path: The file.
        read: Reads it, once, for everybody; raises AvaError where it cannot.
    """

    def __init__(self, path: Path, read: Callable[[], T]) -> None:
        self._path = path
        self._make = read
        self._reading = threading.Lock()
        self._seen: tuple[int, ...] | None = None
        self._made: T | None = None

    @property
    def is_another(self) -> bool:
        """Whether it looks otherwise than when it was read."""
        return look(self._path) != self._seen

    def current(self) -> T:
        """Return what it is now. Blocking.

        Raises:
            AvaError: It cannot be read, or holds what cannot be.
        """
        with self._reading:
            seen = look(self._path)
            if self._made is None or seen != self._seen:
                self._read(seen)
            assert self._made is not None
            return self._made

    def learn(self) -> None:
        """Read it where it has changed; one that cannot be read changes nothing. Blocking."""
        with self._reading:
            seen = look(self._path)
            if seen != self._seen:
                with contextlib.suppress(AvaError):  # told by `current`, to whoever needs what is in it
                    self._read(seen)

    def _read(self, seen: tuple[int, ...]) -> None:
        """Read it; `seen` is how it looked before, so that no change is missed."""
        self._made = None
        try:
            self._made = self._make()
        finally:
            self._seen = seen  # last: whoever finds it so has nothing to wait for


def look(path: Path) -> tuple[int, ...]:
    """Return what tells a file from another one in its place, and from itself under other permissions."""
    try:
        status = path.lstat()
    except OSError as failed:
        return (failed.errno or 0,)
    return (
        status.st_dev,
        status.st_ino,
        status.st_mode,
        status.st_uid,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )
