"""Finds the strongest sandbox that works on this machine, by attacking each candidate."""

from __future__ import annotations

import hashlib
import marshal
import os
import secrets
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Literal

import anyio

from ava_roles.errors import ToolFailed
from ava_roles.sandbox import linux
from ava_roles.sandbox.elf import python_library
from ava_roles.sandbox.launcher.spec import PRLIMIT, USERS
from ava_roles.sandbox.sandbox import INSTALL_BUBBLEWRAP, Bind, Command, Kind, Sandbox, Unavailable
from ava_roles.sandbox.temporary import temporary_folder

PROBE_S = 5.0
"""A probe takes 0.1 s on an idle machine. One that needs more than this has no capacity for commands."""
_PROGRAMS = "/usr/bin:/bin:/usr/local/bin"
"""Not the environment's PATH: it may name folders that others can write to."""
_LEAST_ABI = 3
"""Landlock before this version cannot stop truncation."""
_ABI_FOR_SIGNALS = 6
"""Before this version, a command of the server's own user could signal the server."""
_WORK = PurePosixPath("/workspace")
_READABLE = PurePosixPath("/readable")
_ATTACKER = Path(__file__).with_name("attacker.py")
_TRIED = "tried"
"""What the attacker prints last, when it has tried everything."""

_lock = threading.Lock()
_sandboxes: dict[tuple[str, Path], Sandbox | Unavailable] = {}


def find_sandbox(mode: Literal["auto", "none"], state: Path) -> Sandbox | Unavailable:
    """Return the strongest sandbox that works here, attacked once per process; `none` confines nothing. Blocks.

    It stores something in `state`, a folder of Ava's.
    """
    with _lock:
        if (mode, state) not in _sandboxes:
            _sandboxes[mode, state] = _find_sandbox(mode, state)
        return _sandboxes[mode, state]


@cache
def sandbox_here(mode: Literal["auto", "none"]) -> Sandbox | Unavailable:
    """Return what `find_sandbox` finds in a temporary folder of the system's. Blocks. Raises OSError: no room."""
    with tempfile.TemporaryDirectory(prefix="ava-doctor-") as state:
        return find_sandbox(mode, Path(state))


def _find_sandbox(mode: str, state: Path) -> Sandbox | Unavailable:
    try:
        abi = linux.landlock_abi()
    except linux.NotOnThisSystem:
        return Unavailable("commands can be confined on Linux only", "run Ava on Linux, in WSL 2 or in a container")
    from ava_roles.sandbox.supervised import Machine, SupervisedSandbox  # can be imported on Linux only

    if mode == "none":
        return SupervisedSandbox("none", Machine(), state)
    uid = pick_uid(state) if linux.is_root() else 0
    if uid is None:
        return Unavailable(
            f"no user id is free for commands ({USERS[0]} to {USERS[-1]} all have an account)",
            "run Ava as an ordinary user",
        )
    bwrap = bubblewrap_program()
    why: list[str] = []
    candidates: tuple[tuple[Kind, str, str, str | None], ...] = (
        ("bubblewrap", "bubblewrap", bwrap or "", _missing_for_bubblewrap(bwrap)),
        ("landlock", "Landlock", "", _missing_for_landlock(abi, uid)),
    )
    for kind, name, program, missing in candidates:
        sandbox = SupervisedSandbox(kind, Machine(uid, program, abi), state)
        fault = missing or _probe_in_thread(sandbox, state)
        if fault is None:
            return sandbox
        why.append(f"{name}: {fault}")
    return Unavailable("; ".join(why), _advice(bwrap is not None, why[0]))


def bubblewrap_program() -> str | None:
    """Return the path of bubblewrap: the system's own, whatever PATH says."""
    return shutil.which("bwrap", path=_PROGRAMS)


def _missing_for_bubblewrap(bwrap: str | None) -> str | None:
    if bwrap is None:
        return "it is not installed"
    return None if os.access(PRLIMIT, os.X_OK) else f"{PRLIMIT} is missing (util-linux)"


def _missing_for_landlock(abi: int, uid: int) -> str | None:
    least = _LEAST_ABI if uid else _ABI_FOR_SIGNALS
    if not abi:
        return "the kernel has none"
    return None if abi >= least else f"the kernel has version {abi} of it, and {least} is needed"


def _advice(installed: bool, why: str) -> str:
    if not installed:
        return INSTALL_BUBBLEWRAP
    if linux.kernel_setting("kernel/apparmor_restrict_unprivileged_userns"):
        return (
            "Ubuntu's AppArmor does not let bubblewrap make user namespaces: give /usr/bin/bwrap a profile with "
            "`userns,`, or sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
        )
    if 0 in map(linux.kernel_setting, ("user/max_user_namespaces", "kernel/unprivileged_userns_clone")):
        return "allow user namespaces: sudo sysctl -w user.max_user_namespaces=10000 kernel.unprivileged_userns_clone=1"
    if "--size" in why:
        return "install bubblewrap 0.7 or newer"
    options = (
        "--security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined"
    )
    allow = "in a container, let it make namespaces and mounts"
    if linux.is_root():
        return f"{allow} (Docker: --cap-add SYS_ADMIN {options}), or run Ava as an ordinary user"
    return f"{allow} (Docker: {options})"


def pick_uid(state: Path) -> int | None:
    """Return a user id without an account, the same for all servers of a data root, other for another's commands."""
    account_ids = _ids_in("/etc/passwd") | _ids_in("/etc/group")
    digest = hashlib.sha256(os.fsencode(state.resolve())).digest()
    first = int.from_bytes(digest[:8]) % len(USERS)
    candidates: list[int] = [*USERS[first:], *USERS[:first]]
    for uid in candidates:
        if uid not in account_ids:
            return uid
    return None


def _ids_in(path: str) -> set[int]:
    try:
        lines = Path(path).read_text("utf-8", "replace").splitlines()
    except OSError:
        return set()
    ids: set[int] = set()
    for line in lines:
        fields = line.split(":")
        if len(fields) > 2 and fields[2].isdecimal():
            ids.add(int(fields[2]))
    return ids


# -- the probe --------------------------------------------------------------------------------------------------------


def _probe_in_thread(sandbox: Sandbox, state: Path) -> str | None:
    """Probe a sandbox in a thread of its own: the caller's thread may run an event loop."""
    try:
        state.mkdir(mode=0o700, exist_ok=True)
        with ThreadPoolExecutor(1, "ava-sandbox-probe") as pool:
            return pool.submit(probe_sandbox, sandbox, state).result()
    except Exception as error:  # a sandbox that cannot be probed is not trusted
        return f"it cannot be probed ({type(error).__name__}: {error})"


def probe_sandbox(sandbox: Sandbox, state: Path) -> str | None:
    """Attack a sandbox; return what is wrong with it, or None where every attack failed. Blocks."""
    with temporary_folder("probe-", state) as decoys, ExitStack() as stack:
        work, readable, outside = decoys / "here", decoys / "readable", decoys / "outside"
        for folder in (work, readable, outside):
            folder.mkdir()
        (readable / "file").write_text("x")
        (decoys / "secret").write_text("x")
        targets = {
            "secret": str(decoys / "secret"),
            "keys": str(_home() / ".ssh"),
            "outside": str(outside),
            "readable": str(_READABLE),
            "namespace": _pid_namespace(),
            "server": os.getpid(),
            **stack.enter_context(_listeners(decoys)),
        }
        python = Path(sys.executable).resolve()
        command = Command(
            argv=(str(python), "-I", "-S", "-c", _ATTACKER.read_text("utf-8"), marshal.dumps(targets).hex()),
            folder=_WORK,
            binds=(Bind(work, _WORK, writable=True), Bind(readable, _READABLE), *interpreter_binds(python)),
            environment={},
            timeout_s=PROBE_S,
        )
        try:
            done = anyio.run(sandbox.run, command)
        except ToolFailed as error:
            return str(error)
        *successes, last_line = done.output.splitlines() or [""]
        if last_line != _TRIED:
            return f"a command in it ended with {done.code} ({done.ended}): {done.output.strip()[-300:]}"
        if list(outside.iterdir()) or [each.name for each in readable.iterdir()] != ["file"]:
            successes.append("writes outside")
        if not (work / "written").exists():
            return "a command in it cannot write where it may"
        if (work / "written").stat().st_uid == 0:
            successes.append("is root")
        return f"a command in it {', '.join(dict.fromkeys(successes))}" if successes else None


def interpreter_binds(program: Path) -> tuple[Bind, ...]:
    """Return the binds that this interpreter needs, unless it is the system's own."""
    home = Path(sys.base_prefix).resolve()
    if home == Path("/usr") or home.is_relative_to("/usr") or not program.is_relative_to(home):
        return ()
    library = python_library(program)
    if library is None or library.is_relative_to(home):
        return (Bind(home, PurePosixPath(home)),)
    return (Bind(home, PurePosixPath(home)), Bind(library.resolve(), PurePosixPath(library)))


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:  # a user without an account has none
        return Path("/nonexistent")


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:  # without a name, the attacker treats its own namespace as another one
        return ""


@contextmanager
def _listeners(folder: Path) -> Generator[dict[str, object]]:
    """Listen at addresses that a command must not reach."""
    family = getattr(socket, "AF_UNIX")  # noqa: B009 - some systems lack it
    abstract = f"ava-{secrets.token_hex(8)}"
    with (
        socket.create_server(("127.0.0.1", 0)) as network,
        socket.socket(family, socket.SOCK_STREAM) as file,
        socket.socket(family, socket.SOCK_STREAM) as nameless,
    ):
        descriptor = os.open(folder, os.O_RDONLY)
        try:  # a socket's address has to be short, and the folder's path may be long
            file.bind(f"/proc/self/fd/{descriptor}/socket")
        finally:
            os.close(descriptor)
        (folder / "socket").chmod(0o666)
        nameless.bind("\0" + abstract)
        for each in (file, nameless):
            each.listen()
        yield {"address": network.getsockname(), "socket": str(folder / "socket"), "abstract": abstract}
