"""However a command, its server or its supervisor ends: nothing of it goes on."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio
import pytest
from support.processes import children_of, lives, processes_of_run
from support.sandboxes.attacks import command, python, sandbox
from support.sandboxes.sandbox_server import NASTY

from ava_roles.sandbox.sandbox import Kind

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="commands are confined on Linux alone")

SERVER = Path(__file__).parents[1] / "support" / "sandboxes" / "sandbox_server.py"
SOON_S = 2.0


@pytest.fixture
def mark() -> str:
    return f"S-{secrets.token_hex(8)}"


def until(what: Callable[[], object], within_s: float = 40.0) -> float:
    """Wait for something, and return how long that took."""
    began = time.monotonic()
    while not what():
        assert time.monotonic() - began < within_s, "it did not come about"
        time.sleep(0.005)
    return time.monotonic() - began


async def going(here: Path) -> None:
    with anyio.fail_after(40):
        while not await anyio.Path(here / "going").exists():  # noqa: ASYNC110 - another process makes it
            await anyio.sleep(0.01)


async def test_a_command_that_exits_leaves_no_process(kind: Kind, here: Path, mark: str) -> None:
    done = await sandbox(kind, here.parent).run(python(here, NASTY, "0", AVA_RUN_ID=mark))
    assert processes_of_run(mark) == []
    assert (done.ended, done.code) == ("exited", 0), done
    assert (here / "going").exists()


async def test_a_timeout_leaves_no_process(kind: Kind, here: Path, mark: str) -> None:
    done = await sandbox(kind, here.parent).run(python(here, NASTY, "60", timeout_s=0.6, AVA_RUN_ID=mark))
    assert processes_of_run(mark) == []
    assert (done.ended, done.code) == ("timeout", None), done
    assert (here / "going").exists()
    assert done.took_s < 0.6 + SOON_S


async def test_a_cancellation_leaves_no_process(kind: Kind, here: Path, mark: str) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sandbox(kind, here.parent).run, python(here, NASTY, "60", AVA_RUN_ID=mark))
        await going(here)
        assert processes_of_run(mark) != []
        began = time.monotonic()
        tasks.cancel_scope.cancel()
    assert processes_of_run(mark) == []
    assert time.monotonic() - began < SOON_S


async def test_a_cancellation_before_the_start_leaves_no_process(kind: Kind, here: Path, mark: str) -> None:
    for delay_ms in (0, 2, 5, 15, 40):
        with anyio.move_on_after(delay_ms / 1000):
            await sandbox(kind, here.parent).run(python(here, NASTY, "60", AVA_RUN_ID=mark))
        assert processes_of_run(mark) == []


async def test_leaving_an_interactive_command_leaves_no_process(kind: Kind, here: Path, mark: str) -> None:
    async with sandbox(kind, here.parent).start(python(here, NASTY, "60", AVA_RUN_ID=mark)):
        await going(here)
        assert processes_of_run(mark) != []
    assert processes_of_run(mark) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_to_the_server_leaves_no_process(kind: Kind, here: Path, mark: str, number: signal.Signals) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(SERVER.parents[1]), *sys.path))}
    with subprocess.Popen(
        [sys.executable, str(SERVER), kind, str(here.parent), mark], env=env, stderr=subprocess.DEVNULL
    ) as server:
        until((here / "going").exists)
        assert processes_of_run(mark) != []
        server.send_signal(number)
        server.wait(10)
        assert until(lambda: processes_of_run(mark) == []) < SOON_S


@contextmanager
def serving(kind: Kind, here: Path, mark: str) -> Generator[tuple[subprocess.Popen[str], int, int]]:
    """A server with a running command, its guard, and its supervisor."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(SERVER.parents[1]), *sys.path))}
    with subprocess.Popen(
        [sys.executable, str(SERVER), kind, str(here.parent), mark],
        env=env, stderr=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip
        until((here / "going").exists)
        [guard] = children_of(server.pid)
        [supervisor] = children_of(guard)
        yield server, guard, supervisor


@pytest.mark.parametrize("which", [0, 1], ids=["guard", "supervisor"])
def test_killing_the_supervisor_or_its_guard_leaves_no_process(kind: Kind, here: Path, mark: str, which: int) -> None:
    with serving(kind, here, mark) as (server, *pair):
        os.kill(pair[which], signal.SIGKILL)
        assert until(lambda: processes_of_run(mark) == []) < SOON_S
        began = time.monotonic()
        _out, errors = server.communicate(timeout=10)
        assert time.monotonic() - began < SOON_S
    assert "its supervisor was ended from outside" in errors


@pytest.mark.parametrize(
    ("stopped", "killed"), [(1, 0), (2, 0), (2, 1)], ids=["guard-server", "supervisor-server", "supervisor-guard"]
)
def test_killing_the_parent_of_a_stopped_process_leaves_no_process(
    kind: Kind, here: Path, mark: str, stopped: int, killed: int
) -> None:
    with serving(kind, here, mark) as (server, *pair):
        chain = (server.pid, *pair)
        os.kill(chain[stopped], signal.SIGSTOP)
        os.kill(chain[killed], signal.SIGKILL)
        server.communicate(timeout=10)
    try:
        assert until(lambda: processes_of_run(mark) == []) < SOON_S
        assert until(lambda: not any(map(lives, pair))) < SOON_S
    finally:
        for pid in pair:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


async def test_a_killed_supervisor_ends_no_other_child(here: Path, mark: str) -> None:
    box = sandbox("none", here.parent)
    other = await anyio.open_process(["/bin/sleep", "60"])
    try:
        async with box.start(command(here, "/bin/sh", "-c", "echo on; sleep 60")) as second:
            assert await second.stdout.receive() == b"on\n"
            before = set(children_of(os.getpid()))
            async with anyio.create_task_group() as tasks:

                async def doomed() -> None:
                    with pytest.raises(Exception, match="ended from outside"):
                        await box.run(python(here, NASTY, "60", AVA_RUN_ID=mark))

                tasks.start_soon(doomed)
                await going(here)
                [guard] = set(children_of(os.getpid())) - before
                [supervisor] = children_of(guard)
                os.kill(supervisor, signal.SIGKILL)
            assert processes_of_run(mark) == []
            assert set(children_of(os.getpid())) == before
            assert other.returncode is None
    finally:
        other.kill()
        await other.aclose()


async def test_reaps_orphans_while_a_command_runs(kind: Kind, here: Path) -> None:
    code = (
        "import os, time\n"
        "for _ in range(200):\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        if os.fork() == 0: os._exit(0)\n"
        "        os._exit(0)\n"
        "    os.waitpid(pid, 0)\n"
        "    time.sleep(0.001)\n"
        "print('all')\n"
    )
    done = await sandbox(kind, here.parent).run(python(here, code))
    assert done.output == "all\n", done


def unfetched() -> list[tuple[int, str]]:
    """The children of this process that have ended and whose exit code nobody has fetched, with their names."""
    ended = [pid for pid in children_of(os.getpid()) if not lives(pid)]
    return [(pid, Path(f"/proc/{pid}/comm").read_text().strip()) for pid in ended if Path(f"/proc/{pid}").exists()]


async def test_many_concurrent_commands_all_end(kind: Kind, here: Path, mark: str) -> None:
    ended: list[str] = []

    async def one(number: int) -> None:
        done = await sandbox(kind, here.parent).run(
            command(here, "/bin/sh", "-c", f"sleep 0.2; echo {number}", AVA_RUN_ID=mark)
        )
        ended.append(done.output.strip())

    async with anyio.create_task_group() as tasks:
        for number in range(8):
            tasks.start_soon(one, number)
    assert sorted(ended) == [str(number) for number in range(8)]
    assert processes_of_run(mark) == []
    with anyio.move_on_after(5):  # a supervisor without a sandbox ends by itself, and a thread fetches its exit code
        while unfetched():  # noqa: ASYNC110
            await anyio.sleep(0.01)
    assert unfetched() == []
