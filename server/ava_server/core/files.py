"""Files that are replaced as a whole, so that none is ever half written, and files of secret values."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import stat
import threading
import tomllib
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ava_server.core.errors import AvaError, ConfigError
from ava_server.core.shared_files import (
    SharedFile,
    read_private,
    refuse_shared,
    shared_file,
    unusable,
)
from ava_server.core.shared_files import is_own as is_own
from ava_server.core.shared_files import reason as reason

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

T = TypeVar("T")
LOCK_S = 10.0
"""Seconds for which a command waits for another one that writes the same file."""


class FileChanged(Exception):
    """Raised when a file has changed since it was read."""


@contextlib.contextmanager
def writing_alone(lock: Path, command: str, what: Path) -> Generator[None]:
    """Let one process at a time write. Blocking. Raises ConfigError if another has held the lock too long; OSError."""
    import portalocker

    try:
        with portalocker.Lock(lock, timeout=LOCK_S):
            yield
    except portalocker.LockException:
        raise ConfigError(
            f"Another `{command}` has been writing {what} for {LOCK_S:.0f} s. End it and try again."
        ) from None


def replace_file(path: Path, data: bytes, mode: int = 0o600, instead_of: bytes | None = None) -> None:
    """Write a new file, flush it to the disk, and put it in the old one's place, or a link's, with these permissions.

    Raises FileChanged if it has other content than `instead_of`, and was left alone; OSError if it cannot be written.
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


def create_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write a new file, and flush it. Raises FileExistsError; OSError: it cannot be written; nothing of it is left."""
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


@dataclass(frozen=True)
class PrivateFile:
    """A TOML file of secret values, one entry each; for some, a shared file in the database takes its place.

    For messages: what it `holds`, in the plural (`keys`); the `command` that writes it (`ava key`); the `setting` of an
    entry (`ava key set PROVIDER`). It need not exist. Its methods raise ConfigError: it is not safe to use, is invalid,
    or cannot be read or written.
    """

    path: Path
    holds: str
    command: str
    setting: str

    @cached_property
    def _shared(self) -> SharedFile | None:
        return shared_file(self.path)

    @property
    def place(self) -> str:
        if self._shared is None:
            return str(self.path)
        return f"the database ({self.path.name})"

    @property
    def remedy(self) -> str:
        return f"Remove the file and store the {self.holds} again with `{self.setting}`."

    def entries(self) -> dict[str, Any]:
        try:
            return tomllib.loads(self._text())
        except (ValueError, RecursionError) as error:  # the parser does not raise TOMLDecodeError for every fault
            # The parser's message may quote the line, and the line may be a secret.
            match = re.search(r"\(at [^)]*\)", str(error))
            place = match[0] if match else ""
            raise ConfigError(f"{self.path} is not valid TOML {place}. {self.remedy}") from None

    def read(self, make: Callable[[str, Any], T], command: str) -> dict[str, T]:
        """Return its entries by name, as `make` reads each (ValueError: invalid). `command` writes entries."""
        self.check_folder()
        try:
            return {name: make(name, stored) for name, stored in self.entries().items()}
        except ValueError:  # its text may have the value
            raise ConfigError(f"{self.path}: an entry is not as `{command}` writes it. {self.remedy}") from None

    def change(self, check: Callable[[], object], edit: Callable[[TOMLDocument], None]) -> None:
        """Change an entry and replace the file, under a lock. `check` reads all of it first, and raises if invalid."""
        import tomlkit

        def edited(text: str) -> str:
            check()
            document = tomlkit.parse(text)
            edit(document)
            return tomlkit.dumps(document)

        path = self.path
        if self._shared is not None:
            self._shared.change(edited)
            return
        try:
            with writing_alone(path.with_name(path.name + ".lock"), self.command, path):
                replace_file(path, edited(self._text()).encode())
        except OSError as failed:
            raise unusable(path, failed) from failed

    def remove(self, name: str, read: Callable[[], Mapping[str, T]]) -> T | None:
        if name not in read():
            return None
        removed: list[T] = []

        def edit(document: TOMLDocument) -> None:
            if name in document:
                removed.append(read()[name])
                del document[name]

        self.change(read, edit)
        return removed[0] if removed else None

    def make_folder(self) -> None:
        if self._shared is None:
            make_private_folder(self.path.parent)
        self.check_folder()

    def check_folder(self) -> None:
        """Refuse a folder in which others could replace the file: a link, another user's, or one open to others."""
        if self._shared is not None:
            return
        folder = self.path.parent
        again = f"Remove it, and store the {self.holds} again."
        try:
            status = folder.lstat()
        except FileNotFoundError:
            return
        except OSError as failed:
            raise unusable(folder, failed) from failed
        if not stat.S_ISDIR(status.st_mode):
            raise ConfigError(f"{folder} is not a folder, or is a link to one. {again}")
        fix = f"chmod 700 {shlex.quote(str(folder))}"
        refuse_shared(folder, status, again, f"The folder {folder} is open to others. Correct it with: {fix}")

    def _text(self) -> str:
        if self._shared is not None:
            return self._shared.text
        return read_private(self.path, self.holds, self.remedy)


def make_private_folder(folder: Path) -> None:
    """Whether an existing one is safe is for the caller to check. Raises ConfigError."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except FileExistsError:
        pass
    except OSError as failed:
        raise ConfigError(f"{folder} cannot be made: {reason(failed)}.") from failed


class WatchedFile(Generic[T]):
    """A value that `read` makes from a file, or from the shared one in its place, again when that has changed.

    It is made once for all callers; `read` raises AvaError if it cannot.
    """

    def __init__(self, path: Path, read: Callable[[], T]) -> None:
        self._path = path
        self._make = read
        self._reading = threading.Lock()
        self._seen: tuple[int, ...] | None = None
        self._value: T | None = None
        self._is_resolved = False
        self._shared: SharedFile | None = None

    @property
    def is_changed(self) -> bool:
        return self._state() != self._seen

    @property
    def is_shared(self) -> bool:
        return self._shared_file() is not None

    def look_again(self) -> bool:
        """Learn what other servers have just written, and tell whether that is new. Blocking; not for a file."""
        shared = self._shared_file()
        if shared is None:
            return False
        shared.files.look_again()
        return self.is_changed

    def current(self) -> T:
        """Blocking. Raises AvaError if the file cannot be read, or is invalid."""
        with self._reading:
            seen = self._state()
            if self._value is None or seen != self._seen:
                self._value = None
                try:
                    self._value = self._make()
                finally:
                    self._seen = seen  # last: who finds it changed does not have to wait
            assert self._value is not None
            return self._value

    def refresh(self) -> None:
        """Read the file if it has changed; an error is left to `current`. Blocking."""
        if self.is_changed:
            with contextlib.suppress(AvaError):
                self.current()

    def _state(self) -> tuple[int, ...]:
        shared = self._shared_file()
        return fingerprint(self._path) if shared is None else (shared.version,)

    def _shared_file(self) -> SharedFile | None:
        """Return the shared file in place of this one; looked up once, because requests wait for it."""
        if not self._is_resolved:
            self._shared = shared_file(self._path)
            self._is_resolved = True
        return self._shared


_FINGERPRINT = attrgetter("st_dev", "st_ino", "st_mode", "st_uid", "st_size", "st_mtime_ns", "st_ctime_ns")


def fingerprint(path: Path) -> tuple[int, ...]:
    """Return numbers that change when a file is replaced, written, or given other permissions."""
    try:
        status = os.lstat(path)
    except OSError as failed:
        return (failed.errno or 0,)
    return _FINGERPRINT(status)
