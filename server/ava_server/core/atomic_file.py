"""A file replaced as a whole: never half written, whatever ends the process."""

from __future__ import annotations

import os
import stat
from pathlib import Path


class Changed(Exception):
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
            raise Changed
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
