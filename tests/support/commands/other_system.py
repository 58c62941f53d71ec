"""Runs a program as if this were another system, with what that system lacks taken away.

    python other_system.py SYSTEM ava PORT PYTHON ARGS...   # `ava ARGS`, with one web site, the one on PORT
    python other_system.py SYSTEM python -I -c CODE ARGS... # a child's command line

SYSTEM is `win32`, `darwin`, or `bare`: a Linux whose kernel or sandbox refuses everything that is special to it.
PYTHON is what ours find as `sys.executable`, so that their children run on that system too.

What is hidden is hidden from Ava and from what it depends on: the standard library's own code sees everything, because
here it is the code of this system (its `subprocess` kills with SIGKILL, where on Windows it would call the kernel in
another way). Only Ava sees another `sys.platform`: with it, its dependencies would look for Windows itself.
"""

from __future__ import annotations

import builtins
import os
import signal
import sys
from collections.abc import Collection
from types import FrameType, ModuleType
from typing import Any

import platformdirs.unix  # noqa: F401 - with the real `sys.platform`, it would look for what is hidden below

HOST, PUBLIC = "docs.example.com", "93.184.215.14"
LINUX_ALONE = {"O_PATH", "pidfd_open"}
POSIX = {
    "O_NOFOLLOW", "O_DIRECTORY", "O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "geteuid", "getuid", "getgid", "fchmod",
    "fchown", "chown", "fork", "killpg", "getpgid", "setsid", "mkfifo", "pread",
    "SIGALRM", "SIGHUP", "SIGKILL", "SIGUSR1", "SIGCHLD", "alarm", "setitimer", "pthread_kill",
}  # fmt: skip
EMPTY = {"supports_dir_fd", "supports_fd"}
MODULES = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty"}
"""Not to be imported, not even by the standard library: what it wants of them it does without.

Only these may, because what they have in its place on Windows cannot run here: the lock library, and the SDK's own
transport, which Ava does not use, but which is imported with the rest of the SDK (it asks `sys.platform` first). Ava's
own locks ask that too, and have the module on every Linux.
"""
MAY_IMPORT = ("portalocker", "mcp.server.stdio", "ava_audit.store.locks", "ava_roles.sandbox.temporary")

_frame = sys._getframe


def _importer(frame: FrameType) -> str:
    """The package whose code runs in a frame; this file's own is nobody's."""
    if frame.f_globals is globals():
        return "os"
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _ours(frame: FrameType) -> bool:
    return _importer(frame).startswith("ava_")


def _of_the_library(frame: FrameType) -> bool:
    return _importer(frame) in sys.stdlib_module_names


def hide(module: ModuleType, lacking: set[str], *, empty: Collection[str] = ()) -> None:
    """Take names of a module away from all but the standard library."""

    class Hiding(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            if (name in lacking or name in empty) and not _of_the_library(_frame(1)):
                if name in empty:
                    return set[object]()
                raise AttributeError(f"this system has no {name}")
            return super().__getattribute__(name)

    module.__class__ = Hiding


def pretend(platform: str, python: str) -> None:
    class Pretending(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            if name in ("platform", "executable") and _ours(_frame(1)):
                return platform if name == "platform" else python
            return super().__getattribute__(name)

    sys.__class__ = Pretending


def refuse_imports() -> None:
    """Have no module that only POSIX has; and no ctypes for Ava but for PDFium, for else it is used on Linux alone."""
    real: Any = builtins.__import__

    def importing(name: str, given: Any = None, *args: Any, **more: Any) -> Any:
        top = name.partition(".")[0]
        asking = str((given or {}).get("__name__", ""))
        if (top in MODULES and not f"{asking}.".startswith(tuple(f"{one}." for one in MAY_IMPORT))) or (
            top == "ctypes" and asking.startswith("ava_") and asking != "ava_roles.texts.formats.pdf"
        ):
            raise ModuleNotFoundError(f"this system has no module {top}, and {asking} wants it", name=top)
        return real(name, given, *args, **more)

    for name in MODULES:
        sys.modules.pop(name, None)
    setattr(builtins, "__import__", importing)  # noqa: B010 - it takes more loosely what the real one takes


def refuse_proc() -> None:
    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(args[0], str) and args[0].startswith("/proc/"):
            raise FileNotFoundError(2, "this system has no /proc", args[0])

    sys.addaudithook(hook)


def refuse_signals_in_the_loop() -> None:
    """Have an event loop that knows neither signals nor the pipes of stdin and stdout, as that of Windows."""
    from asyncio import unix_events

    loop: Any = unix_events.SelectorEventLoop

    def no_signals(*_args: Any) -> None:
        raise NotImplementedError

    loop.add_signal_handler = loop.remove_signal_handler = no_signals
    for name in ("connect_read_pipe", "connect_write_pipe"):
        real = getattr(loop, name)

        def connect(*args: Any, real: Any = real) -> Any:
            if not _of_the_library(_frame(1)):
                raise NotImplementedError
            return real(*args)

        setattr(loop, name, connect)


def refuse_everything_special() -> None:
    """Have each function of ours that asks for something special say that it is not there."""
    from ava_audit.store import locks
    from ava_roles.sandbox import linux

    def not_here(*_args: Any, **_more: Any) -> Any:
        raise linux.NotOnThisSystem("this")

    def no_table() -> str:
        raise locks.UnsupportedSystem(38, "not on this system", "mountinfo")

    linux.openat2 = linux.end_with_parent = linux.end_within = not_here
    linux.landlock_abi = linux.hide_from_others = linux.in_memory = not_here
    locks.mount_table = no_table


def lead_to(port: int) -> None:
    """Let one name lead to a public address, and that address to a server of this machine."""
    import socket

    import httpcore2

    look_up = socket.getaddrinfo
    backend: Any = httpcore2.AnyIOBackend
    connect = backend.connect_tcp

    def looked_up(host: Any, *args: Any, **more: Any) -> Any:
        return look_up(PUBLIC if host == HOST else host, *args, **more)

    async def connected(self: Any, host: str, at: int, *args: Any, **more: Any) -> Any:
        return await connect(self, *(("127.0.0.1", port) if host == PUBLIC else (host, at)), *args, **more)

    socket.getaddrinfo = looked_up
    backend.connect_tcp = connected


def become(system: str, python: str) -> None:
    if system != "darwin":
        refuse_imports()
    refuse_proc()
    if system == "bare":
        refuse_everything_special()
        return
    lacking = LINUX_ALONE | POSIX if system == "win32" else LINUX_ALONE
    hide(os, lacking, empty=EMPTY if system == "win32" else ())
    hide(signal, lacking)
    pretend(system, python)
    if system == "win32":
        refuse_signals_in_the_loop()


def main() -> None:
    system, what, *rest = sys.argv[1:]
    if what == "ava":
        port, python, *args = rest
        become(system, python)
        lead_to(int(port))
        sys.argv = ["ava", *args]
        from ava_server.__main__ import main as run

        run()
    else:
        become(system, sys.executable)
        _isolated, _c, code, *args = rest
        sys.argv = ["-c", *args]
        exec(code, {"__name__": "ava_child"})


if __name__ == "__main__":
    main()
