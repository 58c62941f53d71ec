"""Locks between processes: which processes are alive, and whose turn it is to write.

An instance holds an exclusive lock on its own file for its whole life. The operating system releases the lock when the
process dies, whatever killed it. A pid would mean nothing across containers.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import re
import secrets
import stat
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, cast

import anyio
import anyio.to_thread

from ava_audit.errors import DataRootRefused, StoreUnavailable
from ava_audit.store.backend import (
    SHOWN_S,
    UNANNOUNCED,
    Activities,
    Announcement,
    LiveInstance,
    LostInstance,
    Membership,
)
from ava_audit.units import now_us

if sys.platform != "win32":
    import fcntl  # portalocker calls the same, with thirty calls around each, and takes a while to import

# fmt: off
_NETWORK = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs",
    "nfs4", "orangefs", "panfs", "smb3", "smbfs",
})
_NETWORK_FUSE = frozenset({
    "blobfuse", "blobfuse2", "ceph-fuse", "cephfs", "curlftpfs", "davfs2", "gcsfuse", "glusterfs",
    "gvfsd-fuse", "juicefs", "rclone", "s3fs", "smbnetfs", "sshfs",
})
# fmt: on
_MOUNTS = Path("/proc/self/mountinfo")


class UnsupportedSystem(OSError):
    """Raised on systems without /proc for what only Linux can tell."""


class NoLocks(OSError):
    """Raised where a file cannot be locked at all, which is not held; its text says where, and what to do."""

    def __init__(self, folder: Path, error: OSError) -> None:
        super().__init__(error.errno, error.strerror)
        self._text = (
            f"the file system of {folder} has no locks ({error.strerror}), and without them two processes could write"
            " at once: set AVA_DATA_ROOT to a folder on a local disk"
        )

    def __str__(self) -> str:
        return self._text


def refuse_unfit(root: Path) -> None:
    """Raise DataRootRefused: a path is not a folder, is on a network file system, or is where nothing can be locked."""
    if not root.is_dir():
        raise DataRootRefused(f"the data root {root} is not a folder: create it, or choose another AVA_DATA_ROOT")
    kind = network_file_system(root)
    if kind is not None:
        raise DataRootRefused(
            f"the data root {root} is on a network file system ({kind}), where locks do not work: "
            "set AVA_DATA_ROOT to a folder on a local disk"
        )
    fault = lock_fault(root)
    if fault is not None:
        raise DataRootRefused(f"the data root cannot be used: {fault}")


def lock_fault(folder: Path) -> NoLocks | None:
    """Return an error if the file system of a folder has no locks, which SQLite reports only as `database is locked`.

    Both kinds of locks are tried on a file without a name. Returns None if they work, and if that file cannot be made
    (a full disk, a read-only folder).
    """
    if sys.platform == "win32":
        return None
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            for lock in (fcntl.flock, fcntl.lockf):  # ours, and SQLite's
                try:
                    lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError as error:
                    return NoLocks(folder, error)
                lock(file, fcntl.LOCK_UN)
    except OSError:
        pass
    return None


def network_file_system(path: Path) -> str | None:
    """Return the type of the network file system that holds a path; None on a local disk, or where not Linux."""
    try:
        mount_point, file_system = _mount_of(mount_table(), path.resolve())
    except UnsupportedSystem:
        return None
    if file_system == "9p" and mount_point == Path("/"):
        return None  # a sandbox whose whole disk is 9p: all its processes share one kernel
    return file_system if _is_network_type(file_system) else None


def mount_table() -> str:
    """Return the kernel's list of mounts. Raises UnsupportedSystem if this is not Linux, or /proc cannot be read."""
    try:
        if sys.platform.startswith("linux"):
            return _MOUNTS.read_text("utf-8", "surrogateescape")
    except OSError as error:
        raise UnsupportedSystem(error.errno or errno.ENOSYS, "not on this system", str(_MOUNTS)) from error
    raise UnsupportedSystem(errno.ENOSYS, "not on this system", str(_MOUNTS))


def _mount_of(mounts: str, path: Path) -> tuple[Path, str]:
    """Return the mount point that holds a path, and its type of file system; `/` and an empty type if none does."""
    mount_point = Path("/")
    file_system = ""
    for line in mounts.splitlines():
        mount_fields, separator, type_fields = line.partition(" - ")
        fields = mount_fields.split(" ")
        if not separator or len(fields) < 5:
            continue
        point = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4]))
        # A later mount on the same point hides the earlier one.
        if path.is_relative_to(point) and len(point.parts) >= len(mount_point.parts):
            mount_point = point
            file_system = type_fields.split(" ")[0]
    return mount_point, file_system


def _is_network_type(file_system: str) -> bool:
    family, _, driver = file_system.partition(".")
    if family in ("fuse", "fuseblk"):
        return driver in _NETWORK_FUSE
    return family in _NETWORK


log = logging.getLogger("ava.locks")
_AT_ONCE = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
"""Opening a pipe would block."""
_TRY_EVERY_S = 0.005
"""How often the lock is tried within a time, and on Windows, whose own waiting tries once a second, for ten seconds."""


class WriteLock:
    """The queue of writers on one data root. It is nearly fair; SQLite's own lock is not."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[Any] = path.open("ab")

    @contextmanager
    def held(self, within_s: float = math.inf) -> Generator[None]:
        """Hold the lock: wait for it in turn, or with `within_s` seconds out of turn.

        The lock of a process that dies is free at once; a process that was only stopped (Ctrl-Z) keeps it. Raises
        TimeoutError if others held it for `within_s`; NoLocks if the file system has no locks.
        """
        _wait_for(self._path, self._file, within_s)
        try:
            yield
        finally:
            _release(self._file)

    def close(self) -> None:
        self._file.close()


class HeldLock:
    """A lock file that this process holds until `release`, or until it dies."""

    def __init__(self, path: Path, file: IO[Any]) -> None:
        self.path = path
        self._file = file

    def in_place(self) -> bool:
        """Tell whether the held file is still the one at its path; if not, others do not see this lock."""
        try:
            return _still_at(self.path, self._file)
        except ValueError:  # it is closed: released, maybe by another thread at this moment
            return False

    def note_time(self) -> None:
        """Write into the file when its holder was last at work; the time of the file changes when it is copied."""
        with suppress(OSError):
            number = self._file.fileno()
            os.ftruncate(number, 0)
            os.write(number, b"%d" % now_us())

    def release(self) -> None:
        if not self._file.closed:
            _release(self._file)
            self._file.close()

    def remove(self) -> None:
        """Remove the lock's file and release it; nobody can take it in between, except on Windows."""
        if sys.platform == "win32":  # an open file cannot be removed there
            self.release()
        try:
            self.path.unlink(missing_ok=True)
        finally:
            self.release()

    def __enter__(self) -> HeldLock:
        return self

    def __exit__(self, *_error: object) -> None:
        self.release()


def try_hold(path: Path) -> HeldLock | None:
    """Take the lock at `path`, creating its file; None if another process holds it. Raises NoLocks."""
    file = path.open("ab")
    held = False
    try:
        # Removed between open and lock, the file protects nothing.
        held = _take(path, file) and _still_at(path, file)
    finally:
        if not held:
            file.close()
    return HeldLock(path, file) if held else None


def is_held(path: Path) -> bool:
    """Tell whether a process holds a lock file, by trying its lock; the file is not created. Raises NoLocks."""
    try:
        file = os.open(path, os.O_RDONLY | _AT_ONCE)
    except OSError as failed:
        if failed.errno in (errno.ENOENT, errno.ELOOP):
            return False
        raise
    try:
        if not _take(path, file, shared=True):
            return True
        _release(file)  # closing is not enough: a process that starts just now has the descriptor too
        return False
    finally:
        os.close(file)


def hold_within(path: Path, seconds: float) -> HeldLock | None:
    """Take a lock that others hold for a moment at most; None if it is held all the time. Blocks."""
    end = time.monotonic() + seconds
    held = try_hold(path)
    while held is None and time.monotonic() < end:
        time.sleep(0.05)
        held = try_hold(path)
    return held


async def hold_when_free(path: Path, every_s: float) -> HeldLock:
    """Take the lock at `path` as soon as it is free, trying every `every_s` seconds."""
    while True:
        held: HeldLock | None = None
        try:
            with anyio.CancelScope(shield=True):  # a lock once taken must reach the caller
                held = await anyio.to_thread.run_sync(try_hold, path)
        except (OSError, RuntimeError) as error:  # RuntimeError: no more threads can be started
            log.warning("%s cannot be locked: %s", path.name, error)
        if held is not None:
            return held
        await anyio.sleep(every_s)


_ADDRESS = ".address"
_TIME = re.compile(rb"\d{1,18}")
"""What a lock file says: microseconds UTC."""
RENEW_EVERY_S = 1.0
"""How often a process looks whether others can see its lock."""
RENEW_S = 1.0
"""How long it tries to take its lock again, which others hold for a moment when they look."""


class LockMembership:
    """This process as an instance of a data root: it lives as long as its lock is held, in a file that others see."""

    def __init__(self, name: str, held: HeldLock, check_location: Callable[[], None]) -> None:
        self.name = name
        self._held = held
        self._activity_file = ActivityFile(held.path.with_suffix(SUFFIX))
        self._check_location = check_location
        self._renewing = threading.Lock()
        self._released = False

    def show(self, activities: Mapping[str, str], /) -> None:
        self._activity_file.write(activities)
        with self._renewing:
            if activities and not self._released:
                self._held.note_time()

    def tell(self, _facts: Mapping[str, Any], /) -> None:
        """Tell nobody: a lock file says no more about an instance than its name."""

    def announce(self, address: str) -> None:
        path = self._held.path.with_suffix(_ADDRESS)
        if address:
            new = path.with_suffix(".new")
            new.write_text(address, "utf-8")
            new.replace(path)
        else:
            path.unlink(missing_ok=True)

    def holds(self) -> bool:
        """Tell whether the lock's file is still where others look for it."""
        return self._held.in_place()

    def renew(self) -> None:
        """Take the lock again, under the same name, if its file was removed: to others this process was dead.

        Raises StoreUnavailable if it cannot be taken; the whole data root may have been moved.
        """
        with self._renewing:
            if self._released or self.holds():
                return
            path = self._held.path
            self._check_location()
            try:
                path.parent.mkdir(mode=0o700, exist_ok=True)
                held = hold_within(path, RENEW_S)
            except OSError as error:
                raise StoreUnavailable(f"the lock file {path} was removed and cannot be made again: {error}") from error
            if held is None:
                raise StoreUnavailable(f"the lock file {path} was removed, and another process holds a new one")
            before, self._held = self._held, held  # in this order, because others ask without the lock
            before.release()
        log.warning("%s had been removed, so others may have taken over the runs of this process", path.name)

    def release(self) -> None:
        with self._renewing:
            if not self._released and self.holds():
                self._held.note_time()
            self._released = True
            self._activity_file.remove()
            self._held.release()

    def remove(self) -> None:
        with self._renewing:
            self._released = True
            self._activity_file.remove()
            self._held.remove()
        self.announce("")


async def keep_renewing(membership: Membership, every_s: float, within_s: float) -> None:
    """Renew a membership every `every_s` seconds until cancelled; log a failure once.

    A first attempt that is too late is none: this process may have been stopped in it.
    """
    limiter = anyio.CapacityLimiter(1)
    is_failing = is_late = False
    while True:
        await anyio.sleep(every_s)
        try:
            with anyio.fail_after(within_s):
                await anyio.to_thread.run_sync(membership.renew, limiter=limiter, abandon_on_cancel=True)
            is_failing = is_late = False
        except (StoreUnavailable, OSError, RuntimeError) as error:  # RuntimeError: no more threads can be started
            was_late, is_late = is_late, isinstance(error, TimeoutError)
            if is_late and not was_late:
                continue
            if not is_failing:
                why = str(error) or type(error).__name__
                log.warning("others will take over the runs of this process: %s", why)
            is_failing = True


class LockedInstances:
    """The live processes on a data root, each with a lock file in `instances/`, the given folder."""

    def __init__(self, folder: Path, check_location: Callable[[], None] = lambda: None) -> None:
        self.folder = folder
        self._activities: tuple[float, Activities] = (-math.inf, {})
        self._check_location = check_location

    def join(self, announcement: Announcement = UNANNOUNCED, /) -> LockMembership:
        """Announce nothing: all processes of this log are on this machine."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        while True:
            name = secrets.token_hex(6)
            held = try_hold(self.folder / f"{name}.lock")
            if held is not None:
                return LockMembership(name, held, self._check_location)

    async def keep(self, membership: Membership, /) -> None:
        await keep_renewing(membership, RENEW_EVERY_S, 2 * RENEW_S)

    def alive(self, name: str) -> bool:
        try:
            return is_held(self.folder / f"{name}.lock")
        except OSError:  # unknown (another user's file, too many open files): treat it as alive
            return True

    def lasts_s(self, _name: str, /) -> float:
        return math.inf

    def seen_us(self, name: str, /) -> int | None:
        content = _bytes_of(self.folder / f"{name}.lock") or b""
        return int(content) if _TIME.fullmatch(content) else None

    def shown_seen_us(self, name: str, /) -> int | None:
        return self.seen_us(name)

    @property
    def seen_every_s(self) -> float:
        return SHOWN_S / 2

    def known_dead(self, name: str) -> bool:
        return (self.folder / f"{name}.lock").exists() and not self.alive(name)

    def address_of(self, name: str) -> str | None:
        try:
            address = (self.folder / f"{name}{_ADDRESS}").read_text("utf-8")
        except OSError:
            return None
        return address if self.alive(name) else None

    def any_alive(self) -> bool:
        return any(self.alive(path.stem) for path in self.folder.glob("*.lock"))

    def live(self) -> list[LiveInstance]:
        """A lock file says no more about an instance than its name."""
        names = (path.stem for path in sorted(self.folder.glob("*.lock")))
        return [LiveInstance(name, "", UNANNOUNCED) for name in names if self.alive(name)]

    def lost(self) -> list[LostInstance]:
        return []

    def workers(self) -> Mapping[str, str]:
        return {}

    def activities(self) -> Activities:
        read_s, activities = self._activities
        if time.monotonic() - read_s > KNOWN_S:
            activities = dict[tuple[str, str], str]()
            with suppress(OSError):
                activities = self._read_activities()
            self._activities = time.monotonic(), activities
        return activities

    def _read_activities(self) -> Activities:
        activities: dict[tuple[str, str], str] = {}
        for path in self.folder.glob(f"*{SUFFIX}"):
            for run, text in _read(path):
                activities[path.stem, run] = text
        return activities

    def remove_dead(self, keep: frozenset[str]) -> None:
        for path in self.folder.glob(f"*{SUFFIX}"):
            if not self.alive(path.stem):
                with suppress(OSError):
                    path.unlink()
        for path in self.folder.glob("*.lock"):
            if path.stem in keep or path.is_symlink() or not path.is_file():  # opening a pipe would block
                continue
            try:
                held = try_hold(path)
                if held is not None:
                    held.remove()
                    path.with_suffix(_ADDRESS).unlink(missing_ok=True)
            except OSError:  # not removable: another user's file, a folder, ...
                continue

    def close(self) -> None: ...


def _wait_for(path: Path, file: IO[Any], within_s: float) -> None:
    if sys.platform != "win32" and within_s == math.inf:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            raise NoLocks(path.parent, error) from error
        return
    until = time.monotonic() + within_s
    while not _take(path, file):
        if time.monotonic() > until:
            text = f"another process has held its write lock for {within_s:g} s; one that was stopped (Ctrl-Z) does"
            raise TimeoutError(text)
        time.sleep(_TRY_EVERY_S)


def _take(path: Path, file: IO[Any] | int, *, shared: bool = False) -> bool:
    """Try to lock an open file; return False if another process holds it. Raises NoLocks if it cannot be locked."""
    if sys.platform == "win32":
        import portalocker

        try:  # a shared lock would need pywin32
            portalocker.lock(file, portalocker.LockFlags.EXCLUSIVE | portalocker.LockFlags.NON_BLOCKING)
        except portalocker.LockException:
            return False
        return True
    try:
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # file systems differ in what they say of a held lock
        return False
    except OSError as error:
        raise NoLocks(path.parent, error) from error
    return True


def _release(file: IO[Any] | int) -> None:
    if sys.platform == "win32":
        import portalocker

        portalocker.unlock(file)
        return
    fcntl.flock(file, fcntl.LOCK_UN)


def _still_at(path: Path, file: IO[Any]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


# What the runs of one process are doing stands in a small private file beside its lock, for the other processes on the
# data root. It is rewritten in place without being synced: on a full disk it can still be rewritten, and no commit is
# needed. A checksum tells a reader whether a writer was at work meanwhile.

SUFFIX = ".doing"
KNOWN_S = 0.1
"""How long a read is cached: a list of runs asks once for each run."""
_BLOCK = 4096
_MOST_BYTES = 1 << 20
_ATTEMPTS = 3
_CHECKSUM = 8
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL


class ActivityFile:
    """The file of this process; made when there is something to show."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._file: int | None = None
        self._size = 0
        self._removed = False

    def write(self, activities: Mapping[str, str]) -> None:
        """Replace the file's content. If that fails, the checksum is wrong, and readers show nothing."""
        body = json.dumps(dict(activities)).encode()
        with self._lock:
            if self._removed or (self._file is None and not activities):
                return
            # The file never shrinks: a full disk cannot take back its blocks, and blanks overwrite old activities.
            blocks = math.ceil((len(body) + _CHECKSUM) / _BLOCK)
            self._size = max(self._size, blocks * _BLOCK)
            body = body.ljust(self._size - _CHECKSUM)
            try:
                if self._file is None:
                    self._file = os.open(self._path, _CREATE, 0o600)
                os.lseek(self._file, 0, os.SEEK_SET)
                os.write(self._file, b"%08x" % zlib.crc32(body) + body)
            except OSError as error:  # a part of it does not have its checksum
                log.debug("what runs are doing is not shown: %s", error)

    def remove(self) -> None:
        """Remove the file; nothing is written any more. A second call does nothing."""
        with self._lock:
            self._removed = True
            if self._file is None:
                return
            os.close(self._file)
            self._file = None
            try:
                self._path.unlink(missing_ok=True)
            except OSError as error:
                log.debug("%s stays: %s", self._path.name, error)


def _read(path: Path) -> Iterator[tuple[str, str]]:
    for _ in range(_ATTEMPTS):
        data = _bytes_of(path, SHOWN_S)
        if data is None:
            return
        if data[:_CHECKSUM] == b"%08x" % zlib.crc32(data[_CHECKSUM:]):
            yield from activities_in(data[_CHECKSUM:])
            return


def _bytes_of(path: Path, within_s: float = math.inf) -> bytes | None:
    """Return a file's bytes; None if it cannot be read, is too long, or was last written before `within_s`."""
    try:
        file = os.open(path, _READ)
    except OSError:
        return None
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or abs(time.time() - status.st_mtime) > within_s:
            return None
        data = os.read(file, _MOST_BYTES + 1)
        return data if len(data) <= _MOST_BYTES else None
    except OSError:
        return None
    finally:
        os.close(file)


def activities_in(shown: bytes | str) -> Iterator[tuple[str, str]]:
    """Yield the id of each run in a process's file of activities, with the text; skip whatever has another form."""
    try:
        activities: object = json.loads(shown)
    except (ValueError, RecursionError):
        return
    if not isinstance(activities, dict):
        return
    for run, text in cast("dict[str, object]", activities).items():
        if isinstance(text, str):
            yield run, text
