"""Child processes of tools, this end of them: messages with the server, and limits that hold whatever a library does.

A child has one task, knows no secrets, and ends with the server. It sends texts to the server, which hides the secrets.
It is started in a process group of its own: a host that ends a server signals the server's whole group, and then it
decides what happens to the call. Without this, a child that the signal ended looked like a search that took too long.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from ava_roles.sandbox.linux import NotOnThisSystem, end_with_parent, end_within

HEAD_BYTES = 8
"""Bytes before each message between the server and a child: its length."""
_TIMEOUT = b"Timeout ("
"""How the error output of a child begins that `faulthandler` ended at its time limit."""


def command(module: str) -> list[str]:
    """Return the command line of a child: it runs a module's `main`, and imports nothing from its working folder."""
    start = f"import sys; sys.path.insert(0, sys.argv[1]); from {module} import main; main()"
    return [sys.executable, "-I", "-c", start, str(Path(__file__).parents[2]), str(os.getpid())]


def took_too_long(code: int | None, errors: bytes = b"") -> bool:
    """Tell by its exit code and error output whether a child ended at its time limit (`limit_lifetime`)."""
    alarm = getattr(signal, "SIGALRM", None)  # None on Windows
    return (alarm is not None and code == -alarm) or errors.startswith(_TIMEOUT)


def message(value: object) -> bytes:
    # Not as ASCII: that would take six bytes for most letters of most scripts. A text may have half characters.
    data = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return len(data).to_bytes(HEAD_BYTES) + data


def send(value: object) -> None:
    sys.stdout.buffer.write(message(value))
    sys.stdout.buffer.flush()


def receive() -> Any:
    """Return the next message; None if the server has closed the pipe."""
    head = sys.stdin.buffer.read(HEAD_BYTES)
    if len(head) < HEAD_BYTES:
        return None
    size = int.from_bytes(head)
    return json.loads(sys.stdin.buffer.read(size))


def hide(text: str) -> str:
    send({"hide": text})
    return str(receive())


def limit_lifetime(seconds: int, parent: int | None = None) -> None:
    """Have the system end this process after `seconds` (0: no limit), and when its parent ends.

    The parent is the server whose process id is the second argument of the command line, unless it is given.
    """
    try:
        end_within(seconds)
    except NotOnThisSystem:  # a C thread of Python's, which does not need the lock that a library in C holds
        faulthandler.cancel_dump_traceback_later()
        if seconds:
            faulthandler.dump_traceback_later(seconds, exit=True)
    with suppress(NotOnThisSystem):  # on other systems the time limit ends it
        end_with_parent()
        if os.getppid() != (parent or int(sys.argv[2])):  # it had ended before
            os._exit(1)
