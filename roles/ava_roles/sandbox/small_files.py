"""Small files that a project has for its tools: whoever made the project chose what stands in their place."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_small(path: Path, most: int) -> bytes:
    """Return the beginning of a regular file; a link is followed. Blocking, but never for somebody who would write.

    A link to a device could hold as much as there is memory, or be what the server itself reads from.

    Raises:
        OSError: It is no regular file, or cannot be read.
    """
    if not stat.S_ISREG(path.stat().st_mode):  # to open a device may do something by itself
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # it has become something else meanwhile
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        return file.read(most)
