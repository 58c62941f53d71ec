"""Which sandbox there is on this machine, and what would mend it where there is none."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import Literal

import anyio

from ava_roles.errors import ToolFailed
from ava_roles.sandbox import linux
from ava_roles.sandbox.launcher.order import PRLIMIT
from ava_roles.sandbox.python_library import python_library
from ava_roles.sandbox.sandbox import Bind, Command, Sandbox, Unavailable

PROBE_S = 5.0
"""A quiet machine takes a tenth of a second; one that takes longer than this has no room for commands."""
_HERE, _READABLE = PurePosixPath("/workspace"), PurePosixPath("/readable")
_ATTACKER = Path(__file__).with_name("attacker.py")


def fault_of(sandbox: Sandbox, state: Path) -> str | None:
    """Return what is wrong with a sandbox, None where everything that was tried in it failed. Blocks.

    Args:
        sandbox: What to try.
        state: A folder in which decoys can stand.
    """
    with (
        tempfile.TemporaryDirectory(prefix="probe-", dir=state, ignore_cleanup_errors=True) as name,
        ExitStack() as stack,
    ):
        decoys = Path(name)
        folders = [decoys / each for each in ("here", "readable", "outside")]
        for folder in folders:
            folder.mkdir()
        here, readable, outside = folders
        (readable / "file").write_text("x")
        (decoys / "secret").write_text("x")
        aims = {
            "secret": str(decoys / "secret"),
            "keys": str(_home() / ".ssh"),
            "outside": str(outside),
            "readable": str(_READABLE),
            "namespace": _namespace(),
            "server": os.getpid(),
            **stack.enter_context(_listening(decoys)),
        }
        command = Command(
            argv=(str(_python()), "-I", "-S", "-c", _ATTACKER.read_text("utf-8"), json.dumps(aims)),
            folder=_HERE,
            binds=(Bind(here, _HERE, writable=True), Bind(readable, _READABLE), *toolchain(_python())),
            environment={},
            timeout_s=PROBE_S,
        )
        try:
            done = anyio.run(sandbox.run, command)
        except ToolFailed as error:
            return str(error)
        try:
            worked = json.loads(done.output)
        except ValueError:
            return f"a command in it ended with {done.code} ({done.ended}): {done.output.strip()[-300:]}"
        if list(outside.iterdir()) or [each.name for each in readable.iterdir()] != ["file"]:
            worked.append("writes outside")
        if not (here / "written").exists():
            return "a command in it cannot write where it may"
        if (here / "written").stat().st_uid == 0:
            worked.append("is root")
        return f"a command in it {', '.join(dict.fromkeys(worked))}" if worked else None


def toolchain(program: Path) -> tuple[Bind, ...]:
    """Return what an interpreter needs of its own installation, where that is not the system's."""
    home = Path(sys.base_prefix).resolve()
    if home == Path("/usr") or home.is_relative_to("/usr") or not program.is_relative_to(home):
        return ()
    library = python_library(program)
    if library is None or library.is_relative_to(home):
        return (Bind(home, PurePosixPath(home)),)
    return (Bind(home, PurePosixPath(home)), Bind(library.resolve(), PurePosixPath(library)))


def _python() -> Path:
    return Path(sys.executable).resolve()


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:  # a user without a name has none
        return Path("/nonexistent")


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:  # then none can be told to be another
        return ""


@contextmanager
def _listening(folder: Path) -> Generator[dict[str, object]]:
    """Listen where a command must not get through to."""
    family = getattr(socket, "AF_UNIX")  # noqa: B009 - not every system has it
    abstract = f"ava-{secrets.token_hex(8)}"
    with (
        socket.create_server(("127.0.0.1", 0)) as network,
        socket.socket(family, socket.SOCK_STREAM) as file,
        socket.socket(family, socket.SOCK_STREAM) as nameless,
    ):
        at = os.open(folder, os.O_RDONLY)
        try:  # the whole path may be longer than such an address can be
            file.bind(f"/proc/self/fd/{at}/socket")
        finally:
            os.close(at)
        (folder / "socket").chmod(0o666)
        nameless.bind("\0" + abstract)
        for each in (file, nameless):
            each.listen()
        yield {"address": network.getsockname(), "socket": str(folder / "socket"), "abstract": abstract}


_INSTALL = "install bubblewrap (Debian and Ubuntu: apt install bubblewrap; Fedora: dnf install bubblewrap)"
_PROGRAMS = "/usr/bin:/bin:/usr/local/bin"
"""Not where the environment says: it may name folders that others can write to."""
_UIDS = range(58_100, 58_200)
"""In no range that a distribution gives out, and within what a container usually has."""
_LEAST_ABI, _ABI_FOR_SIGNALS = 3, 6

_lock = threading.Lock()
_found: dict[tuple[str, Path], Sandbox | Unavailable] = {}


def found(mode: Literal["auto", "none"], state: Path) -> Sandbox | Unavailable:
    """Return what was found for a folder, looking at the first call. Blocks."""
    with _lock:
        if (mode, state) not in _found:
            _found[mode, state] = _looked_for(mode, state)
        return _found[mode, state]


def _looked_for(mode: str, state: Path) -> Sandbox | Unavailable:
    try:
        abi = linux.landlock_abi()
    except linux.NotOnThisSystem:
        return Unavailable("commands can be confined on Linux alone", "run Ava on Linux, in WSL 2 or in a container")
    from ava_roles.sandbox.supervised import Machine, SupervisedSandbox

    if mode == "none":
        return SupervisedSandbox("none", Machine(), state)
    uid = free_uid() if linux.is_root() else 0
    if uid is None:
        return Unavailable(
            f"no user number is free for commands ({_UIDS[0]} to {_UIDS[-1]} all have an account)",
            "run Ava as an ordinary user",
        )
    bwrap = shutil.which("bwrap", path=_PROGRAMS)
    why: list[str] = []
    for name, missing, sandbox in (
        (
            "bubblewrap",
            _missing_for_bubblewrap(bwrap),
            SupervisedSandbox("bubblewrap", Machine(uid, bwrap or "", abi), state),
        ),
        ("Landlock", _missing_for_landlock(abi, uid), SupervisedSandbox("landlock", Machine(uid, "", abi), state)),
    ):
        fault = missing or _fault(sandbox, state)
        if fault is None:
            return sandbox
        why.append(f"{name}: {fault}")
    return Unavailable("; ".join(why), _advice(bwrap is not None, why[0]))


def _missing_for_bubblewrap(bwrap: str | None) -> str | None:
    if bwrap is None:
        return "it is not installed"
    return None if os.access(PRLIMIT, os.X_OK) else f"{PRLIMIT} is missing (util-linux)"


def _missing_for_landlock(abi: int, uid: int) -> str | None:
    """Return what the kernel lacks; a command of the server's own user could signal it without the last version."""
    least = _LEAST_ABI if uid else _ABI_FOR_SIGNALS
    if abi >= least:
        return None
    return f"the kernel has version {abi} of it, and {least} is needed" if abi else "the kernel has none"


def _fault(sandbox: Sandbox, state: Path) -> str | None:
    """Try a sandbox, in a thread of its own: the caller's may have an event loop."""
    pass

    says: list[str | None] = []

    def try_it() -> None:
        try:
            state.mkdir(mode=0o700, parents=True, exist_ok=True)
            says.append(fault_of(sandbox, state))
        except Exception as error:  # what cannot be tried is not trusted
            says.append(f"it cannot be tried ({type(error).__name__}: {error})")

    thread = threading.Thread(target=try_it, name="ava-sandbox-probe")
    thread.start()
    thread.join()
    return says[0]


def _advice(installed: bool, why: str) -> str:
    """Return what would let bubblewrap work."""
    if not installed:
        return _INSTALL
    if linux.kernel_setting("kernel/apparmor_restrict_unprivileged_userns"):
        return (
            "Ubuntu's AppArmor lets bubblewrap make no user namespaces: give /usr/bin/bwrap a profile with `userns,`, "
            "or sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
        )
    if 0 in (
        linux.kernel_setting("user/max_user_namespaces"),
        linux.kernel_setting("kernel/unprivileged_userns_clone"),
    ):
        return "allow user namespaces: sudo sysctl -w user.max_user_namespaces=10000 kernel.unprivileged_userns_clone=1"
    if "--size" in why:
        return "install bubblewrap 0.7 or newer"
    root = "--cap-add SYS_ADMIN " if linux.is_root() else ""
    return (
        f"in a container, let it make namespaces and mounts (Docker: {root}--security-opt seccomp=unconfined "
        "--security-opt apparmor=unconfined --security-opt systempaths=unconfined)"
    ) + (", or run Ava as an ordinary user" if root else "")


def free_uid() -> int | None:
    """Return a user number that nobody has."""
    taken = _numbers_in("/etc/passwd") | _numbers_in("/etc/group")
    return next((uid for uid in _UIDS if uid not in taken), None)


def _numbers_in(path: str) -> set[int]:
    try:
        lines = Path(path).read_text("utf-8", "replace").splitlines()
    except OSError:
        return set()
    return {int(fields[2]) for line in lines if len(fields := line.split(":")) > 2 and fields[2].isdecimal()}
