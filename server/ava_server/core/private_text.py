"""Reading files of secret values: regular files of this user that nobody else may read, never through a link."""

from __future__ import annotations

import errno
import os
import stat
import sys
from pathlib import Path

from ava_server.core.errors import ConfigError
from ava_server.core.shortage import RAISE_LIMIT

_TO_DO = {
    errno.ENOSPC: "Free some space on its disk.",
    errno.EROFS: "Make its disk writable.",
    errno.EMFILE: f"{RAISE_LIMIT}.",
    errno.ENFILE: "End some programs: this machine has too many files open.",
}


def is_own(status: os.stat_result) -> bool:
    """Tell whether this user owns a file; where files have no owners, the answer is yes."""
    user = getattr(os, "geteuid", None)
    return user is None or status.st_uid == user()


def reason(error: OSError) -> str:
    """Return why the system refused, for an error text."""
    return error.strerror or type(error).__name__


def read_private(path: Path, holds: str, remedy: str) -> str:
    """Return a file's text, empty when there is no file; checked and read through one descriptor.

    Args:
        path: The file.
        holds: Its content, in the plural: `keys`.
        remedy: What to do with a file that is wrong.

    Raises:
        ConfigError: It is not safe to use, or cannot be read.
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
    """Return the error for a file that the system refuses."""
    to_do = _TO_DO.get(failed.errno or 0, "Make this user its owner.")
    return ConfigError(f"{path} cannot be used: {reason(failed)}. {to_do}")


def _check(path: Path, status: os.stat_result, holds: str, remedy: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"{path} is not a regular file. {remedy}")
    if sys.platform == "win32":  # modes and owner numbers mean nothing there
        return
    if status.st_uid != 0 and not is_own(status):
        raise ConfigError(f"{path} belongs to another user. {remedy}")
    if status.st_mode & 0o077:
        raise ConfigError(
            f"Others may read {path}. Correct it with: chmod 600 {path} (and get new {holds} if others use"
            " this machine)."
        )
