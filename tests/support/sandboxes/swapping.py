"""Two names that are exchanged all the time, for what must not be led astray by that."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def swapping(one: Path, other: Path) -> Generator[None]:
    """Exchange two names as fast as the kernel can."""
    libc = ctypes.CDLL(None, use_errno=True)
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            libc.renameat2(-100, os.fsencode(one), -100, os.fsencode(other), 2)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
