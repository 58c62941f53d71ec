"""What a hostile command tries, row by row, and whether it worked; run by the user that the sandbox is to be tried as.

python attacks.py UID STATE KIND    # becomes that user first, and prints the rows as JSON

The kind `local` is bubblewrap, with one local server that the command reaches, and a row for that.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path, PurePosixPath

import anyio

from ava_roles.sandbox import linux, selection
from ava_roles.sandbox.launcher.spec import ResourceLimits
from ava_roles.sandbox.sandbox import Bind, Command, Finished, Kind, ReachableServer, Unavailable
from ava_roles.sandbox.selection import find_sandbox, interpreter_binds
from ava_roles.sandbox.supervised import Machine, SupervisedSandbox

BWRAP = Path("/usr/bin/bwrap")
PYTHON = Path(sys.executable).resolve()
CONFINED: tuple[Kind, ...] = ("bubblewrap", "landlock")
EVERY: tuple[Kind, ...] = (*CONFINED, "none")
HERE, READABLE = PurePosixPath("/workspace"), PurePosixPath("/readable")
PRELUDE = """
import ctypes, json, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
at = json.loads(sys.argv[1])
def must(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
"""
ATTACKS: Mapping[str, str] = {
    "reads a key": "assert open(at['secret']).read()",
    "reads the environment": "assert at['token'].encode() in open(f\"/proc/{at['victim']}/environ\", 'rb').read()",
    "writes outside": "open(at['outside'] + '/new', 'w')",
    "empties a file outside": "os.truncate(at['secret'], 0)",
    "chmods outside": "os.chmod(at['secret'], 0o777)",
    "sets an attribute outside": "os.setxattr(at['secret'], 'user.mark', b'x')",
    "links a file outside": "os.link(at['secret'], 'linked')",
    "writes where it may read": "open(at['readable'] + '/new', 'w')",
    "connects to a socket in a file": "socket.socket(socket.AF_UNIX).connect(at['file'])",
    "connects to an abstract socket": "socket.socket(socket.AF_UNIX).connect(chr(0) + at['abstract'])",
    "connects over TCP": "socket.create_connection(tuple(at['tcp']), 1)",
    "is answered over UDP": (
        "s = socket.socket(type=socket.SOCK_DGRAM); s.settimeout(0.3); s.sendto(b'x', tuple(at['udp'])); s.recv(1)"
    ),
    "traces the server": "must(libc.ptrace(16, at['victim'], 0, 0)); libc.ptrace(17, at['victim'], 0, 0)",
    "makes a user namespace": "must(libc.unshare(0x10000000))",
    "makes a user namespace by clone": (
        "pid = libc.syscall(56 if os.uname().machine == 'x86_64' else 220, 0x10000011, 0, 0, 0, 0)\n"
        "if pid == 0: os._exit(0)\n"
        "must(pid)"
    ),
    "has rights": (
        "lines = dict(line.split(':', 1) for line in open('/proc/self/status'))\n"
        "assert int(lines['CapEff'], 16) or int(lines['CapBnd'], 16)"
    ),
    "is root": "assert 0 in (*os.getresuid(), *os.getresgid(), *os.getgroups())",
    "changes the kernel's settings": "os.close(os.open('/proc/sys/kernel/core_pattern', os.O_WRONLY))",
    "kills the server": "os.kill(at['victim'], 9)",  # the last: the others need it alive
}


@dataclass(frozen=True)
class Outside:
    aims: dict[str, object]
    victim: subprocess.Popen[bytes]


@contextlib.contextmanager
def outside(folder: Path) -> Iterator[Outside]:
    """Decoys, listeners, and a process that plays the server."""
    token, abstract = secrets.token_hex(8), f"ava-{secrets.token_hex(8)}"
    for name in ("here", "readable", "outside"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "secret").write_text("a key")
    (folder / "secret").chmod(0o600)
    with contextlib.ExitStack() as stack:
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        udp = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", 0))
        udp.settimeout(0.05)
        done = threading.Event()

        def echo() -> None:
            while not done.is_set():
                with contextlib.suppress(TimeoutError):
                    udp.sendto(*udp.recvfrom(1))

        thread = threading.Thread(target=echo)
        thread.start()
        stack.callback(thread.join)
        stack.callback(done.set)
        short = stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp"))  # such an address is short
        Path(short).chmod(0o755)
        for name in (f"{short}/socket", "\0" + abstract):
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(name)
            listener.listen()
        Path(f"{short}/socket").chmod(0o777)
        victim = subprocess.Popen(["/bin/sleep", "60"], env={"TOKEN": token})
        stack.callback(victim.wait)
        stack.callback(victim.kill)
        aims: dict[str, object] = {
            "secret": str(folder / "secret"),
            "outside": str(folder / "outside"),
            "readable": str(READABLE),
            "file": f"{short}/socket",
            "abstract": abstract,
            "tcp": tcp.getsockname(),
            "udp": udp.getsockname(),
            "token": token,
            "victim": victim.pid,
        }
        yield Outside(aims, victim)


def machine_for(kind: Kind, state: Path = Path("/nonexistent")) -> Machine:
    """What a sandbox of a kind is made with here."""
    uid = (selection.pick_uid(state) or 0) if linux.is_root() and kind != "none" else 0
    return Machine(uid, str(BWRAP), linux.landlock_abi())


def sandbox(kind: Kind, state: Path, **limits: int) -> SupervisedSandbox:
    return SupervisedSandbox(kind, machine_for(kind), state, ResourceLimits(**limits))


def command(here: Path, *argv: str, timeout_s: float = 20.0, **more: str) -> Command:
    """A command in a folder that it may write to, beside one that it may only read."""
    binds = [Bind(here, HERE, writable=True), *interpreter_binds(PYTHON)]
    if (here.parent / "readable").is_dir():
        binds.append(Bind(here.parent / "readable", READABLE))
    return Command(argv, HERE, tuple(binds), more, timeout_s)


def python(here: Path, code: str, *argv: str, timeout_s: float = 20.0, **more: str) -> Command:
    return command(here, str(PYTHON), "-I", "-S", "-c", code, *argv, timeout_s=timeout_s, **more)


@cache
def why_unavailable(kind: Kind) -> str | None:
    if kind == "bubblewrap" and not BWRAP.exists():
        return "bubblewrap is not installed"
    abi = linux.landlock_abi()
    if kind == "landlock" and abi < (3 if linux.is_root() else 6):
        return f"the kernel has version {abi} of Landlock"
    if kind != "none":
        done = subprocess.run(
            ["unshare", "--mount" if linux.is_root() else "--user", "true"], capture_output=True, check=False
        )
        if done.returncode and (kind == "bubblewrap" or linux.is_root()):
            return "namespaces cannot be made here"
    return None


def needs(kind: Kind) -> None:
    if why := why_unavailable(kind):
        import pytest

        pytest.skip(why)


def needs_confinement(state: Path) -> None:
    """Skip a test where no sandbox of commands works here, with the reason."""
    found = find_sandbox("auto", state)
    if isinstance(found, Unavailable):
        import pytest

        pytest.skip(f"{found.why}; {found.what_to_do}")


async def attack(kind: Kind, folder: Path, local: ReachableServer | None = None) -> dict[str, str]:
    """Try everything; returns what each try came to: OPEN, or why it failed."""
    found: dict[str, str] = {}
    with outside(folder) as there:
        if not sandbox(kind, folder).mounts:
            there.aims["readable"] = str(folder / "readable")
        for name, code in ATTACKS.items():
            indented = code.replace("\n", "\n    ")
            tried = f"{PRELUDE}\ntry:\n    {indented}\nexcept BaseException as e: print(type(e).__name__)\n"
            tried += "else: print('OPEN')"
            order = replace(python(folder / "here", tried, json.dumps(there.aims), timeout_s=10), local=local)
            done: Finished = await sandbox(kind, folder).run(order)
            found[name] = done.output.strip().splitlines()[-1] if done.output.strip() else f"{done.ended} {done.code}"
        with contextlib.suppress(subprocess.TimeoutExpired):  # a process that was killed takes a moment to end
            there.victim.wait(1)
        found["kills the server"] = "alive" if there.victim.poll() is None else "OPEN"
    return found


REACHES = "reaches its local server"


async def _attack_beside_local(folder: Path) -> dict[str, str]:
    code = "import socket; socket.create_connection(('127.0.0.1', 8080), 5); print('OPEN')"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
        listener.listen()
        local = ReachableServer(8_080, folder / "socket")
        found = await attack("bubblewrap", folder, local)
        done = await sandbox("bubblewrap", folder).run(replace(python(folder / "here", code), local=local))
    return {**found, REACHES: done.output.strip()}


def main() -> None:
    uid, state, kind = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    if os.getuid() == 0 and uid:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    folder = state / f"{kind}-{os.getuid()}"
    folder.mkdir(mode=0o700)
    if kind == "local":
        print(json.dumps(anyio.run(_attack_beside_local, folder)))
        return
    chosen: Kind = kind  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    print(json.dumps(anyio.run(attack, chosen, folder)))


if __name__ == "__main__":
    main()
