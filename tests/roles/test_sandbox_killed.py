"""kill -9 of each process of a command's chain, at any moment: nothing is left, and the next command works."""

from __future__ import annotations

import ctypes
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

import pytest
from support.processes import children_of, lives
from support.sample import SEED, sample
from support.sandboxes.attacks import needs

from ava_roles.sandbox.launcher.supervisor import descendants
from ava_roles.sandbox.sandbox import Kind

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="commands are confined on Linux alone")

SERVER = Path(__file__).parents[1] / "support" / "sandboxes" / "sandbox_server.py"
SUPERVISED = ("server", "guard", "supervisor")
Chain = Kind | Literal["local"]
CHAINS: dict[Chain, tuple[str, ...]] = {
    "local": (*SUPERVISED, "relay", "bubblewrap", "init", "command"),
    "bubblewrap": (*SUPERVISED, "bubblewrap", "init", "command"),
    "landlock": (*SUPERVISED, "command"),
    "none": (*SUPERVISED, "command"),
}
"""Each process is the child of the one before. `prlimit` executes the command, so it is the same process.

`local` is bubblewrap with one local server that the command reaches; the relay is the supervisor's child too.
"""
MOMENTS = ("start", "work", "end", "idle")
"""As soon as it exists; while the command works; while it ends; while its supervisor waits for the next one."""
POINTS = [
    (kind, number, moment)
    for kind, chain in CHAINS.items()
    for number in range(len(chain))
    for moment in MOMENTS
    if moment != "idle" or number < len(SUPERVISED)
]
KILLS = 2 if os.environ.get(SEED) else 17
"""For each point; at least 50 of each process when every point runs."""
LATER_S = 0.05
WAIT_S = 20.0


@pytest.fixture(autouse=True)
def _adopts_orphans() -> Iterator[None]:
    """Become the parent of every process that loses its own, so that none is overlooked."""
    prctl = ctypes.CDLL(None).prctl
    before = set(children_of(os.getpid()))
    assert prctl(36, 1, 0, 0, 0) == 0
    yield
    assert prctl(36, 0, 0, 0, 0) == 0
    until = time.monotonic() + 10
    while (adopted := set(children_of(os.getpid())) - before) and time.monotonic() < until:
        for pid in adopted:  # those that nobody else waits for
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("kind", "number", "moment"),
    [pytest.param(*point, id=f"{point[0]}-{CHAINS[point[0]][point[1]]}-{point[2]}") for point in sample(POINTS, 6)],
)
def test_nothing_is_left_whichever_process_is_killed(kind: Chain, number: int, moment: str, here: Path) -> None:
    needs("bubblewrap" if kind == "local" else kind)
    server, killed, chance = Server(kind, here), 0, random.Random(f"{kind} {number} {moment}")
    try:
        for _ in range(10 * KILLS):  # a process that is about to end may be gone before it is killed
            if number == 0 and killed:
                server = Server(kind, here)
            killed += server.kill(number, moment, chance.random() ** 2 * LATER_S)
            until(lambda: not server.left(), server.left)  # noqa: B023 - it is called at once
            if killed == KILLS:
                break
        assert killed == KILLS
    finally:
        server.process.kill()
        server.process.communicate()
    until(lambda: not server.left(), server.left)


HELPERS = {
    "git": (
        "import pathlib, sys; from ava_roles.sandbox.git import run_git\n"
        "run_git(['/bin/sleep', '60'], folder=pathlib.Path('/'), env={}, aside=pathlib.Path(sys.argv[1]), within_s=60)"
    ),
    "parser": (
        "import subprocess, sys; from ava_roles.texts import child\n"
        "subprocess.run(child.command('ava_roles.texts.parser_process'), stdin=int(sys.argv[2]))"
    ),
}


@pytest.mark.parametrize("which", HELPERS)
def test_a_helper_ends_with_its_server_at_any_moment(which: str, tmp_path: Path) -> None:
    others = {os.getpid(), *descendants(os.getpid())}

    def left() -> list[str]:
        for pid in set(children_of(os.getpid())) - others:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        return [_words(pid) for pid in descendants(os.getpid()) if pid not in others and lives(pid)]

    stdin, held = os.pipe()  # held open: a helper must not need the end of its input to notice
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for later_s in (0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3)[:: 3 if os.environ.get(SEED) else 1]:
        command = [sys.executable, "-c", HELPERS[which], str(tmp_path), str(stdin)]
        with subprocess.Popen(command, env=env, pass_fds=(stdin,)) as server:
            until(lambda: below(server.pid))
            time.sleep(later_s)
            server.kill()
        until(lambda: not left(), left)
    os.close(stdin)
    os.close(held)


def until(what: Callable[[], object], why: Callable[[], object] = lambda: "it did not come about") -> None:
    """Wait for something, and look often."""
    end = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < end, why()
        time.sleep(0.0002)


def below(pid: int) -> list[int]:
    """The living children of a process, the oldest first."""
    try:
        return [child for child in children_of(pid) if lives(child)]
    except OSError:
        return []


class Server:
    """A server in a process of its own, and everything that descends from it."""

    def __init__(self, kind: Chain, here: Path) -> None:
        self._here = here
        self._has_relay = kind == "local"
        self._others = {os.getpid(), *descendants(os.getpid())}
        env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(SERVER.parents[1]), *sys.path))}
        self.process = subprocess.Popen(
            [sys.executable, str(SERVER), kind, str(here.parent), "S-mark", "--orders"],
            env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def order(self) -> None:
        """Give it a command."""
        for name in ("going", "end"):
            (self._here / name).unlink(missing_ok=True)
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def await_end(self) -> None:
        """Wait until the server says that the command has ended."""
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], WAIT_S)[0], self.left()
        assert self.process.stdout.readline() == "ended\n"

    def chain(self) -> list[int]:
        """The server, its guard, and so on down to the command, as far as they exist."""
        found = [self.process.pid]
        while children := below(found[-1]):
            if self._has_relay and len(found) == len(SUPERVISED):
                found.append(children.pop(0))
                if not children:
                    break
            found.append(children[0])
        return found

    def left(self) -> list[str]:
        """What exists beside the server, its guards, and supervisors without a command."""
        for pid in children_of(os.getpid()):
            if pid not in self._others and pid != self.process.pid:
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
        guards = below(self.process.pid)
        known = {*self._others, self.process.pid, *guards, *(pid for guard in guards for pid in below(guard))}
        return [_words(pid) for pid in descendants(os.getpid()) if pid not in known and lives(pid)]

    def kill(self, number: int, moment: str, later_s: float) -> bool:
        """Have a command run, and kill a process of its chain at some moment; False if it had ended by then.

        A command that survives shows: it works for a minute, and what it has started works forever.
        """
        self.order()
        if moment != "start":
            until((self._here / "going").exists)
        if moment == "idle":
            (self._here / "end").touch()
            self.await_end()
        until(lambda: len(self.chain()) > number)
        pid = self.chain()[number]
        if moment == "end":
            (self._here / "end").touch()
        time.sleep(later_s)
        try:
            os.kill(pid, signal.SIGKILL)
            until(lambda: not lives(pid))  # it takes a moment, in which everything looks as before
        except ProcessLookupError:
            return False
        finally:
            if number == 0:
                self.process.communicate()
            elif moment != "idle":
                self.await_end()
        return True


def _words(pid: int) -> str:
    with suppress(OSError):
        return f"{pid}: {Path(f'/proc/{pid}/cmdline').read_bytes().decode(errors='replace')[-200:]}"
    return ""
