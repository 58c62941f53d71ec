"""Runs `ava` commands fast: in children of a process that has already imported what commands import.

Most of the time of a short command is its imports. `prepare_command()` starts one such process for each process of
the tests, and returns a command that runs `ava` in a child forked from it: with the arguments, environment, folder,
streams and exit code of a fresh process. With --all nothing is prepared, and each command is a fresh process.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path

CLIENT = """
import array, json, os, socket, sys
link = socket.socket(socket.AF_UNIX)
link.connect(sys.argv[1])
asked = json.dumps([sys.argv[2:], dict(os.environ), os.getcwd()]).encode()
link.sendmsg([len(asked).to_bytes(4, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))])
link.sendall(asked)
code = int(link.recv(16))
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
"""
HEAVY = (
    "ava_server.cli.doctor_online",
    "ava_server.cli.wait",
    "ava_server.http.server",
    "ava_server.mcp_server.stdio",
    "ava_server.service.runtime",
    "rich.console",
    "rich.markdown",
)
"""What commands import when they run."""

COMMAND = (sys.executable, "-m", "ava_server")


def command(env: Mapping[str, str]) -> tuple[str, ...]:
    """How a command begins; forked from a prepared process, unless slow tests are asked for too.

    A variable that Python or a library may read before the command does needs a fresh process.
    """
    from support.sample import SEED  # this file alone is a program, too

    late = all(name.startswith("AVA_") or name.endswith("_API_KEY") or name == "HOME" for name in env)
    return prepare_command() if late and os.name == "posix" and os.environ.get(SEED) else COMMAND


@functools.cache
def prepare_command() -> tuple[str, ...]:
    """Return the beginning of a command that runs `ava` with the arguments that follow. POSIX only."""
    place = tempfile.TemporaryDirectory(prefix="ava-fork-")
    path = str(Path(place.name) / "socket")
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "PYTHONPATH") if name in os.environ}
    process = subprocess.Popen(
        [sys.executable, __file__, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**kept, "LANG": "C.UTF-8"}
    )
    assert process.stdin is not None and process.stdout is not None

    def end() -> None:
        process.communicate()
        place.cleanup()

    atexit.register(end)
    assert process.stdout.readline() == b"ready\n"
    return (sys.executable, "-I", "-S", "-c", CLIENT, path)


def serve(path: str) -> None:
    """Import, and then run what is asked for, until stdin ends."""
    from ava_server.cli import run
    from ava_server.cli.app import COMMANDS

    for name in (*dict.fromkeys(COMMANDS.values()), *HEAVY):
        import_module(name)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    assert threading.active_count() == 1, "a process with threads cannot be forked safely"
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while _wait(listener):
        link, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _attend(link, run)
        link.close()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _wait(listener: socket.socket) -> bool:
    return listener in select.select([listener, sys.stdin], [], [])[0]


def _attend(link: socket.socket, run: Callable[[], object]) -> None:
    """Fork the command, tell its exit code, and end it when the one who asked is gone."""
    size, ancillary, _, _ = link.recvmsg(4, socket.CMSG_SPACE(3 * array.array("i").itemsize))
    streams = array.array("i", ancillary[0][2])
    asked = b""
    while len(asked) < int.from_bytes(size, "big"):
        asked += link.recv(65_536)
    args, env, folder = json.loads(asked)
    child = os.fork()
    if child == 0:
        link.close()
        _become(run, args, env, folder, streams)

    def end_when_gone() -> None:
        if not link.recv(1):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)

    for number in streams:
        os.close(number)
    threading.Thread(target=end_when_gone, daemon=True).start()
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(OSError):
        link.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _become(
    run: Callable[[], object], args: list[str], env: dict[str, str], folder: str, streams: array.array[int]
) -> None:
    """Be the command: its arguments, environment, folder and streams; never returns."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for stream in streams:
        os.close(stream)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    sys.argv = ["ava", *args]
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    at_once = 1 if "PYTHONUNBUFFERED" in env else -1
    sys.stdout = open(1, "w", at_once, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False, buffering=1)  # noqa: SIM115
    code = 1
    try:
        run()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for written in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                written.flush()
        os._exit(code & 0xFF)


if __name__ == "__main__":
    serve(sys.argv[1])
