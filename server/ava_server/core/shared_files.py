"""Private files that all servers of a log share, when the log is in Postgres: tokens, passkeys, sessions, the PIN.

Without Postgres they are in the data root: regular files of this user that nobody else may read, never reached
through a link. Their path is their name either way, so `PrivateFile` and `WatchedFile` are all that knows the
difference. Keys and secrets are never among them: they stay on their machine.

A process that stays keeps them in memory with `keep_fresh`, so that no request waits for the database. A command asks
the database each time, and keeps no connection.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shlex
import stat
import sys
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from ava_server.core.errors import ConfigError
from ava_server.core.shortage import RAISE_LIMIT

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

    from ava_audit.store.backend import SharedFileStore


log = logging.getLogger("ava.documents")  # an older name: people may have configured it
FOLDER = "secrets"
SHARED = frozenset({"approval.toml", "browser.toml", "passkeys.toml", "questions.toml", "tokens.toml", "users.toml"})
"""The files of that folder that are shared. All others stay on their machine: each name has to be added on purpose."""
FRESH_EVERY_S = 1.0
"""How often a server looks for changes by other processes."""
PAUSE_S = 0.9
"""After a failed look, how long the next ones fail at once: anybody can cause one, with an unknown token."""
STALE_S = 30.0
"""How long a server uses what it knows while the database does not answer; nothing can start without it anyway."""
_REMEDY = "Correct it, or move it away; then it does not move into the database."
TAKEN_OVER = ".in-database"
"""What the names of files end with whose content is in the database now."""


class SharedFiles:
    """The shared files of one data root, as this process knows them; without a database, `folder` would have them."""

    def __init__(self, folder: Path, database: SharedFileStore) -> None:
        self._folder = folder
        self._database = database
        self._looking = threading.RLock()  # a change may read another file
        self._known: dict[str, tuple[int, str]] = {}
        self._looked = self._failed = float("-inf")
        self._users = 0
        self._keepers = 0

    def state(self, name: str) -> tuple[int, str]:
        """Return a file's version and text; 0 and no text without one. Raises ConfigError: unreadable."""
        with _translated():
            text = self._database.changed_text(name)
        if text is not None:
            return -1, text
        if not self._keepers:
            self.look_again()
        elif time.monotonic() - self._looked > STALE_S:
            raise ConfigError(f"{name} is in the database, which has not answered for {STALE_S:.0f} s")
        return self._known.get(name, (0, ""))

    def look_again(self) -> None:
        """Learn what others have changed until now; callers at the same time share one query. Raises ConfigError."""
        called = time.monotonic()
        with self._connection():
            if self._looked >= called:  # another caller has looked since
                return
            if called - self._failed < PAUSE_S:
                raise ConfigError("the database with tokens and sessions has not answered a moment ago")
            try:
                self._look()
            except BaseException:
                self._failed = time.monotonic()
                raise

    def change(self, name: str, edit: Callable[[str], str]) -> None:
        """Replace the text of a file while no other process does; what `edit` raises leaves it alone.

        Raises ConfigError if the database cannot be written, or another process changes the file.
        """
        with self._connection():
            if self._looked == float("-inf"):
                self._look()
            self._known = {**self._known, name: self._database.change(name, edit)}

    @contextlib.contextmanager
    def kept(self) -> Generator[None]:
        """Answer from memory meanwhile; somebody has to call `look_again` before and all the time."""
        self._keepers += 1
        try:
            yield
        finally:
            self._keepers -= 1
            if self._looking.acquire(blocking=False):  # else the call that looks now closes it
                try:
                    if not self._users and not self._keepers:
                        self._database.close()
                finally:
                    self._looking.release()

    @contextlib.contextmanager
    def _connection(self) -> Generator[None]:
        """Use the database alone; the connection is closed at the end, unless somebody keeps it."""
        with self._looking, _translated():
            self._users += 1
            try:
                yield
            finally:
                self._users -= 1
                if not self._users and not self._keepers:
                    self._database.close()

    def _look(self) -> None:
        began = time.monotonic()
        if self._looked == float("-inf"):
            self._take_over()
        versions = {name: version for name, (version, _text) in self._known.items()}
        self._known = {**self._known, **self._database.newer(versions)}
        self._looked = began

    def _take_over(self) -> None:
        """Store the files of this data root, if the database has none yet; rename them then."""
        candidates = [self._folder / name for name in sorted(SHARED)]
        paths = [path for path in candidates if path.exists()]
        if not paths:
            return
        texts = {path.name: read_private(path, "entries", _REMEDY) for path in paths}
        if self._database.take_over(texts):
            for path in paths:
                path.replace(path.with_name(path.name + TAKEN_OVER))
                log.warning("%s is in the database from now on, for all servers", path.name)
        else:
            names = ", ".join(path.name for path in paths)
            log.warning("%s in %s does not count: all servers use what is in the database", names, self._folder)


@dataclass(frozen=True)
class SharedFile:
    """One file of `SharedFiles`."""

    files: SharedFiles
    name: str

    @property
    def text(self) -> str:
        """Its text, empty where there is none. Raises ConfigError if the database cannot be read."""
        return self.files.state(self.name)[1]

    @property
    def version(self) -> int:
        """Return a number that changes with the text. Raises ConfigError if the database cannot be read."""
        return self.files.state(self.name)[0]

    def change(self, edit: Callable[[str], str]) -> None:
        self.files.change(self.name, edit)


_OPEN: dict[tuple[Path, str], SharedFiles] = {}
_OPENING = threading.Lock()


def shared_file(path: Path) -> SharedFile | None:
    """Return the shared file in place of this one, or None. Raises ConfigError: no valid address for the log."""
    if path.name not in SHARED or path.parent.name != FOLDER:
        return None
    files = shared_files_of(path.parent.parent)
    return None if files is None else SharedFile(files, path.name)


def shared_files_of(root: Path) -> SharedFiles | None:
    """Return None where they are on this machine. Raises ConfigError: no valid address for the log."""
    from ava_audit.errors import AuditError
    from ava_audit.store.backend import MARK
    from ava_audit.store.sqlite import backend_of, database_url

    try:
        url = database_url(root)
        if not url and not (root / MARK).exists():
            return None
        key = (Path(os.path.abspath(root)), url)  # noqa: PTH100 - links are not resolved
        with _OPENING:
            if key not in _OPEN:
                database = backend_of(root, url).shared_files()
                if database is None:
                    return None
                _OPEN[key] = SharedFiles(root / FOLDER, database)
            return _OPEN[key]
    except AuditError as error:
        raise ConfigError(str(error)) from error


async def keep_fresh(root: Path, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
    """Runs until cancelled; ends at once for files of this machine. Raises ConfigError: unreadable at the start."""
    files = await anyio.to_thread.run_sync(shared_files_of, root)
    if files is None:
        task_status.started()
        return
    await anyio.to_thread.run_sync(files.look_again)
    failing = False
    with files.kept():
        task_status.started()
        while True:
            await anyio.sleep(FRESH_EVERY_S)
            try:
                await anyio.to_thread.run_sync(files.look_again, abandon_on_cancel=True)
                failing = False
            except (ConfigError, RuntimeError) as error:  # RuntimeError: no more threads can be started
                if not failing:
                    log.warning("changes of tokens and sessions by other servers are not seen: %s", error)
                failing = True


@contextlib.contextmanager
def _translated() -> Generator[None]:
    from ava_audit.errors import AuditError

    try:
        yield
    except AuditError as error:
        raise ConfigError(str(error)) from error


_TO_DO = {
    errno.ENOSPC: "Free some space on its disk.",
    errno.EROFS: "Make its disk writable.",
    errno.EMFILE: f"{RAISE_LIMIT}.",
    errno.ENFILE: "End some programs: this machine has too many files open.",
    errno.ENOTDIR: "Set AVA_DATA_ROOT to a folder.",
    errno.ENAMETOOLONG: "Set AVA_DATA_ROOT to a folder with a shorter path.",
}


def is_own(status: os.stat_result) -> bool:
    """Where files have no owners, the answer is yes."""
    user = getattr(os, "geteuid", None)
    return user is None or status.st_uid == user()


def reason(error: OSError) -> str:
    return error.strerror or type(error).__name__


def read_private(path: Path, holds: str, remedy: str) -> str:
    """Return a file's text, empty when there is no file; checked and read through one descriptor.

    Raises ConfigError: it is not safe to use, or cannot be read. The text says so of what it `holds` (plural: `keys`),
    with the `remedy`.
    """
    try:
        if path.is_symlink():
            raise ConfigError(f"{path} is a symbolic link; {holds} are not read through links. {remedy}")
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError:
        return ""
    except OSError as failed:
        raise unusable(path, failed) from failed
    try:
        with os.fdopen(fd, encoding="utf-8") as file:
            _check(path, os.fstat(fd), holds, remedy)
            return file.read()
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text. {remedy}") from None
    except OSError as failed:
        raise unusable(path, failed) from failed


def unusable(path: Path, failed: OSError) -> ConfigError:
    return ConfigError(f"{path} cannot be used: {reason(failed)}. {to_do(failed, 'Make this user its owner.')}")


def to_do(failed: OSError, otherwise: str) -> str:
    return _TO_DO.get(failed.errno or 0, otherwise)


def _check(path: Path, status: os.stat_result, holds: str, remedy: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"{path} is not a regular file. {remedy}")
    fix = f"chmod 600 {shlex.quote(str(path))} (and get new {holds} if others use this machine)"
    refuse_shared(path, status, remedy, f"Others may read {path}. Correct it with: {fix}.")


def refuse_shared(path: Path, status: os.stat_result, remedy: str, is_open: str) -> None:
    """Raises ConfigError if it belongs to another user, or others may use it (`is_open`)."""
    if sys.platform == "win32":  # modes and owner numbers mean nothing there
        return
    if status.st_uid != 0 and not is_own(status):
        raise ConfigError(f"{path} belongs to another user. {remedy}")
    if status.st_mode & 0o077:
        raise ConfigError(is_open)
