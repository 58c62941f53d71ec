"""Programs that outlive the process that starts them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

OUTPUT_BYTES = 256 * 1024
_LAUNCH = """\
import os, sys
if os.fork():
    os._exit(0)
os.setsid()
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Starts a program that is not a descendant of this process and has a session of its own.

When a host closes, it may kill the group of its server (Codex), or the whole tree of its descendants (opencode).
"""
_KEEP = """\
import os, signal, sys, time
if os.fork():
    os._exit(0)
os.setsid()
while True:
    began = time.monotonic()
    code = os.spawnv(os.P_WAIT, sys.argv[1], sys.argv[1:])
    if code in (0, 128 + signal.SIGINT, -signal.SIGTERM, -signal.SIGINT) or time.monotonic() - began < 10:
        break
"""
"""The same, and starts it again when it crashes, unless that was within ten seconds. 130 is the code after Ctrl-C."""
_DETACHED = getattr(subprocess, "DETACHED_PROCESS", 0) | getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
"""On Windows: a process group of its own, without a console."""


def start_detached(
    command: Sequence[str], words: Path, folder: Path, env: Mapping[str, str], *, keep: bool = False
) -> None:
    """Start a program that no host ends.

    Args:
        command: Its command line.
        words: The file for its standard error, private to its owner; a file that is too long is emptied.
        folder: Its working folder.
        env: Its whole environment.
        keep: Start it again when it crashes. Not on Windows.

    Raises:
        OSError: It cannot be started.
    """
    launcher = (sys.executable, "-I", "-S", "-c", _KEEP if keep else _LAUNCH) if os.name == "posix" else ()
    with _open_output(words) as output:
        started = subprocess.Popen(  # noqa: S603 - this very program
            (*launcher, *command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=output,
            cwd=folder,
            env=env,
            start_new_session=True,
            creationflags=_DETACHED,
            close_fds=True,
        )
    if launcher and (code := started.wait()):
        raise OSError(f"{command[0]} cannot be started (code {code}); see {words}")


def _open_output(path: Path) -> IO[bytes]:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
    file = os.fdopen(os.open(path, flags, 0o600), "ab")
    if file.tell() > OUTPUT_BYTES:
        file.truncate(0)
    return file
