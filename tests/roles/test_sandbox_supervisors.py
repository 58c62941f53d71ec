"""A supervisor runs one command after another, and nothing of one reaches the next."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from support.processes import children_of, lives
from support.sandboxes.attacks import command, python, sandbox
from support.sandboxes.sandbox_server import NASTY

from ava_roles.sandbox.sandbox import Kind

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="commands are confined on Linux alone")

SEES = """
import os, resource, signal
def is_open(number):
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
print(sorted((name, value) for name, value in os.environ.items() if name != "TMPDIR"), os.getcwd())
print([number for number in range(200) if is_open(number)], os.umask(0o77), os.getpriority(0, 0))
print([resource.getrlimit(number) for number in range(16) if number != resource.RLIMIT_NPROC])
print(signal.pthread_sigmask(signal.SIG_BLOCK, ()), [signal.getsignal(number) for number in range(1, 32)])
print(os.getsid(0) == os.getpgid(0), os.getresuid(), os.getresgid(), os.getgroups())
"""
"""Prints what a process inherits."""


@pytest.fixture
def before() -> set[int]:
    """The children of this process before the test."""
    return set(children_of(os.getpid()))


async def test_the_next_command_has_the_same_supervisor_and_inherits_the_same(
    kind: Kind, here: Path, before: set[int]
) -> None:
    box = sandbox(kind, here.parent)
    first = await box.run(python(here, SEES))
    supervisors = set(children_of(os.getpid())) - before
    spoilt = await box.run(python(here, "import os; os.umask(0); os.chdir('/'); os.nice(5)", KEY="only-mine"))
    second = await box.run(python(here, SEES))
    assert len(supervisors) == 1
    assert set(children_of(os.getpid())) - before == supervisors
    assert (first.code, spoilt.code) == (0, 0), (first, spoilt)
    assert second.output == first.output
    assert "[0, 1, 2] " in first.output


async def test_a_supervisor_keeps_no_descriptor_and_no_memory_of_limits(
    kind: Kind, here: Path, before: set[int]
) -> None:
    box = sandbox(kind, here.parent)
    await box.run(command(here, "/bin/true"))
    [guard] = set(children_of(os.getpid())) - before
    [supervisor] = children_of(guard)
    # Null three times and two sockets; 0 as an ordinary user.
    until(lambda: {len(held_by(guard)), len(held_by(supervisor))} in ({0}, {5}))
    limits = limits_of(supervisor)
    for words in (("/bin/false",), ("no-such-program",), ("/bin/sh", "-c", "kill -9 $$")):
        await box.run(command(here, *words))
    assert set(children_of(os.getpid())) - before == {guard}
    assert children_of(guard) == [supervisor]
    until(lambda: len(held_by(supervisor)) in (0, 5))
    assert limits_of(supervisor) == limits
    assert children_of(supervisor) == []


async def test_a_supervisor_that_had_to_end_its_command_takes_no_other(
    kind: Kind, here: Path, before: set[int]
) -> None:
    box = sandbox(kind, here.parent)
    await box.run(command(here, "/bin/true"))
    done = await box.run(command(here, "/bin/sleep", "60", timeout_s=0.2))
    assert done.ended == "timeout"
    assert set(children_of(os.getpid())) - before == set()
    with anyio.move_on_after(0.2):
        await box.run(command(here, "/bin/sleep", "60"))
    assert set(children_of(os.getpid())) - before == set()
    assert (await box.run(command(here, "/bin/true"))).code == 0


@pytest.mark.parametrize("which", [0, 1], ids=["guard", "supervisor"])
async def test_a_killed_idle_supervisor_is_replaced(kind: Kind, here: Path, before: set[int], which: int) -> None:
    box = sandbox(kind, here.parent)
    await box.run(command(here, "/bin/true"))
    [guard] = set(children_of(os.getpid())) - before
    pair = (guard, *children_of(guard))
    os.kill(pair[which], signal.SIGKILL)
    until(lambda: guard not in children_of(os.getpid()) and not any(map(lives, pair)))
    assert (await box.run(command(here, "/bin/echo", "on"))).output == "on\n"
    assert guard not in children_of(os.getpid())


async def test_keeps_at_most_two_idle_supervisors_which_end_with_their_sandbox(
    kind: Kind, here: Path, before: set[int]
) -> None:
    box = sandbox(kind, here.parent)
    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(box.run, command(here, "/bin/sleep", "0.2"))
    idle = set(children_of(os.getpid())) - before
    assert len(idle) == 2
    del box
    until(lambda: idle.isdisjoint(children_of(os.getpid())))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_idle_supervisor_ends_with_its_server(kind: Kind, here: Path, number: signal.Signals) -> None:
    code = (
        "import anyio, sys, time; from pathlib import Path; from support.sandboxes.attacks import command, sandbox\n"
        "here = Path(sys.argv[2])\n"
        "box = sandbox(sys.argv[1], here.parent)\n"
        "anyio.run(box.run, command(here, '/bin/true'))\n"
        "print('idle', flush=True); time.sleep(60)"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(Path(__file__).parents[1]), *sys.path))}
    with subprocess.Popen([sys.executable, "-c", code, kind, str(here)], env=env, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"idle\n"
        [guard] = children_of(server.pid)
        pair = (guard, *children_of(guard))
        server.send_signal(number)
        server.wait(10)
    until(lambda: not any(map(lives, pair)), 2.0)


async def test_nothing_is_left_of_a_supervisor_that_is_killed_with_its_second_command(
    kind: Kind, here: Path, before: set[int]
) -> None:
    box = sandbox(kind, here.parent)
    await box.run(command(here, "/bin/true"))
    [guard] = set(children_of(os.getpid())) - before
    [supervisor] = children_of(guard)
    async with anyio.create_task_group() as tasks:

        async def doomed() -> None:
            with pytest.raises(Exception, match="ended from outside"):
                await box.run(python(here, NASTY, "60"))

        tasks.start_soon(doomed)
        with anyio.fail_after(40):
            while not await anyio.Path(here / "going").exists():  # noqa: ASYNC110 - another process makes it
                await anyio.sleep(0.01)
        os.kill(supervisor, signal.SIGKILL)
    assert set(children_of(os.getpid())) - before == set()


def test_a_supervisor_without_work_ends_and_refuses_late_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    from ava_roles.sandbox.launcher import supervisor

    monkeypatch.setattr(supervisor, "_IDLE_S", 0.01)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    guard, guarded = socket.socketpair()
    with ours, theirs, guard, guarded:
        assert supervisor._receive(theirs, guarded.fileno()) == []
        with pytest.raises(BrokenPipeError):
            socket.send_fds(ours, [b"\0"], [0])


def test_a_supervisor_takes_the_command_that_arrives_as_its_time_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    from ava_roles.sandbox.launcher import supervisor

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    guard, guarded = socket.socketpair()
    with ours, theirs, guard, guarded:
        late = {"register": lambda *_: None, "poll": lambda *_: socket.send_fds(ours, [b"\0"], [0]) and ()}
        monkeypatch.setattr(select, "poll", type("Late", (), late))
        [descriptor] = supervisor._receive(theirs, guarded.fileno())
        assert not os.get_inheritable(descriptor)
        os.close(descriptor)


def until(what: Callable[[], object], within_s: float = 40.0) -> None:
    began = time.monotonic()
    while not what():
        assert time.monotonic() - began < within_s, "it did not come about"
        time.sleep(0.005)


def held_by(pid: int) -> list[str]:
    """What the open descriptors of a process lead to; nothing where this user may not see them."""
    found: list[str] = []
    with suppress(PermissionError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                found.append(str(descriptor.readlink()))
    return [one for one in found if "libffi" not in one]  # libffi 3.5 keeps its own library open


def limits_of(pid: int) -> str:
    return Path(f"/proc/{pid}/limits").read_text()
