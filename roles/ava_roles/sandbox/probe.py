"""Whether a sandbox holds: a hostile command is run in it, and looked at from both sides."""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath

import anyio

from ava_roles.errors import ToolFailed
from ava_roles.sandbox.sandbox import Bind, Command, Sandbox

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
    return (Bind(home, PurePosixPath(home)),)


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
