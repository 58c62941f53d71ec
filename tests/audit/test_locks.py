"""Locks between processes: who lives, and whose turn it is."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO

import anyio
import anyio.from_thread
import portalocker
import pytest
from anyio.abc import Process
from support.log import child, message, write
from support.no_locks import needs_filter
from support.stdio import until

from ava_audit.errors import StoreUnavailable
from ava_audit.store.locks import HeldLock, LockedInstances, NoLocks, WriteLock, is_held, keep_renewing, try_hold
from ava_audit.store.store import Store
from ava_audit.units import now_us


async def test_an_instance_is_alive_until_its_process_is_killed(tmp_path: Path) -> None:
    instances = LockedInstances(tmp_path / "instances")
    with anyio.fail_after(20):
        async with instance(instances.folder) as (process, name):
            assert instances.alive(name)
            os.kill(process.pid, signal.SIGKILL)
            await process.wait()
            assert not instances.alive(name)


@needs_filter
@pytest.mark.sqlite_only("locks of files")
async def test_a_file_system_without_locks_is_named_with_what_to_do(tmp_path: Path) -> None:
    done = await anyio.run_process(child(WITHOUT_LOCKS, tmp_path, Path(__file__).parent.parent), stderr=None)
    lines = done.stdout.decode().splitlines()
    says = f"the file system of {tmp_path} has no locks (No locks available), and without them two processes could"
    assert [line.partition(" ")[0] for line in lines] == ["DataRootRefused", "StoreUnavailable"]
    for line in lines:
        assert says in line
        assert "set AVA_DATA_ROOT to a folder on a local disk" in line


def _no_lock(*_args: object) -> None:
    raise OSError(errno.ENOLCK, "No locks available")


@pytest.mark.sqlite_only("waits for write.lock")
async def test_a_log_that_loses_its_locks_while_it_is_open_says_so_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Store.open(tmp_path) as log:
        monkeypatch.setattr("fcntl.flock", _no_lock)
        with anyio.fail_after(5), pytest.raises(StoreUnavailable, match=r"has no locks .*Nothing was written"):
            await write(log, message("lost"))
        monkeypatch.undo()
        await write(log, message("kept"))


async def test_a_lock_that_cannot_be_taken_is_not_held_by_somebody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.lock").touch()
    monkeypatch.setattr("fcntl.flock", _no_lock)
    for ask in (is_held, try_hold):
        with pytest.raises(NoLocks, match="has no locks"):
            ask(tmp_path / "a.lock")
    assert LockedInstances(tmp_path).alive("a")  # not known: nobody takes its runs


async def test_checking_whether_an_instance_is_alive_does_not_take_its_lock(tmp_path: Path) -> None:
    instances = LockedInstances(tmp_path / "instances")
    own = instances.join()
    name = own.name
    assert [instances.alive(name) for _ in range(3)] == [True] * 3
    own.release()
    assert [instances.alive(name) for _ in range(3)] == [False] * 3
    assert not instances.alive("never")


async def test_an_instance_whose_lock_file_was_removed_takes_its_lock_again(tmp_path: Path) -> None:
    instances = LockedInstances(tmp_path / "instances")
    own = instances.join()
    assert own.holds()
    shutil.rmtree(instances.folder)
    assert not own.holds() and not instances.alive(own.name)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(instances.keep, own)
        await until(lambda: instances.alive(own.name) and own.holds())
        tasks.cancel_scope.cancel()
    own.remove()
    own.renew()
    assert not instances.alive(own.name), "it has left"


def test_a_lock_file_says_when_its_holder_was_last_at_work(tmp_path: Path) -> None:
    instances = LockedInstances(tmp_path / "instances")
    own = instances.join()
    lock = instances.folder / f"{own.name}.lock"
    own.show({})
    assert instances.seen_us(own.name) is None, "it has no runs yet"
    began_us = now_us()
    own.show({"S-000001": "Reading"})
    own.show({"S-000001": "Writing"})
    at_work_us = instances.seen_us(own.name)
    assert at_work_us is not None and began_us <= at_work_us <= now_us()
    stopped_us = now_us()
    own.release()
    os.utime(lock, (0, 0))  # a copy of the data root has other times
    left_us = instances.seen_us(own.name)
    assert left_us is not None and stopped_us <= left_us <= now_us()
    own.release()
    own.show({"S-000001": "Writing"})
    assert instances.seen_us(own.name) == left_us, "it has left"
    for other in ("", "soon", f"{left_us}\n", "9" * 30):
        lock.write_text(other)
        assert instances.seen_us(own.name) is None, other
    own.remove()
    assert instances.seen_us(own.name) is None


async def test_removes_dead_instances_except_those_that_own_a_run(tmp_path: Path) -> None:
    instances = LockedInstances(tmp_path / "instances")
    with anyio.fail_after(20):
        async with instance(instances.folder) as (_process, living):
            ended, owner_ended = instances.join(), instances.join()
            ended.release()
            owner_ended.release()
            dead, owner = ended.name, owner_ended.name
            instances.remove_dead(keep=frozenset({owner}))
            assert {path.stem for path in instances.folder.iterdir()} == {living, owner}
            assert dead not in {living, owner}
            assert instances.alive(living)


async def test_only_one_holder_can_have_a_lock_until_it_is_released(tmp_path: Path) -> None:
    first = try_hold(tmp_path / "some.lock")
    assert first is not None
    assert try_hold(tmp_path / "some.lock") is None
    with first:
        pass
    first.release()
    second = try_hold(tmp_path / "some.lock")
    assert second is not None
    second.release()


def test_a_lock_that_is_released_while_somebody_looks_at_it_is_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = hold(tmp_path / "a.lock")
    assert held.in_place()
    look = Path.stat

    def released(path: Path) -> os.stat_result:
        held.release()
        return look(path)

    monkeypatch.setattr(Path, "stat", released)
    assert not held.in_place()


@pytest.mark.parametrize("late", [1, 2])
async def test_a_renewal_that_is_late_once_is_none_and_twice_in_a_row_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, late: int
) -> None:
    """A process that was stopped in a renewal finds that its time is over."""
    membership = LockedInstances(tmp_path / "instances").join()
    calls = 0
    in_time = anyio.Event()

    def renew() -> None:
        nonlocal calls
        calls += 1
        if calls <= late:
            time.sleep(0.5)
        else:
            anyio.from_thread.run_sync(in_time.set)

    monkeypatch.setattr(membership, "renew", renew)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keep_renewing, membership, 0.01, 0.2)
        with anyio.fail_after(20):
            await in_time.wait()
        tasks.cancel_scope.cancel()
    membership.remove()
    told = [record for record in caplog.records if "others will take over" in record.getMessage()]
    assert len(told) == late - 1


def hold(path: Path) -> HeldLock:
    held = try_hold(path)
    assert held is not None
    return held


async def test_waits_for_the_write_lock_until_its_holder_dies(tmp_path: Path) -> None:
    hold = (
        "import sys, pathlib; from ava_audit.store.locks import WriteLock\n"
        "with WriteLock(pathlib.Path(sys.argv[1])).held(): print('held', flush=True); sys.stdin.read()\n"
    )
    lock = WriteLock(tmp_path / "write.lock")
    order: list[str] = []

    def wait() -> None:
        with lock.held():
            order.append("mine")

    with anyio.fail_after(20):
        async with await anyio.open_process(child(hold, tmp_path / "write.lock"), stderr=None) as process:
            assert process.stdout is not None
            await process.stdout.receive()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(anyio.to_thread.run_sync, wait)
                order.append("theirs")
                os.kill(process.pid, signal.SIGKILL)
                await process.wait()
    lock.close()
    assert order == ["theirs", "mine"]


async def test_waits_for_the_write_lock_longer_than_the_lock_library_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = portalocker.lock

    def as_on_windows(file: IO[bytes], flags: portalocker.LockFlags) -> None:
        """A wait that is over at once, where the real one gives up after ten seconds."""
        real(file, flags | portalocker.LockFlags.NON_BLOCKING)

    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(portalocker, "lock", as_on_windows)
    one, other = WriteLock(tmp_path / "write.lock"), WriteLock(tmp_path / "write.lock")
    had = threading.Event()

    def wait() -> None:
        with other.held():
            had.set()

    waiting = threading.Thread(target=wait)
    with one.held():
        waiting.start()
        assert not had.wait(0.2)
    assert had.wait(5)
    waiting.join(5)
    one.close()
    other.close()


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="sees in /proc which files are open")
async def test_removes_the_file_of_a_dead_instance_where_open_files_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.unlink

    def as_on_windows(path: Path, missing_ok: bool = False) -> None:
        if any(link.samefile(path) for link in Path("/proc/self/fd").iterdir() if link.exists()):
            raise PermissionError(13, "another program has this file open", str(path))
        real(path, missing_ok)

    instances = LockedInstances(tmp_path / "instances")
    ended, living = instances.join(), instances.join()
    ended.release()
    dead, name = ended.name, living.name
    monkeypatch.setattr(Path, "unlink", as_on_windows)
    monkeypatch.setattr(sys, "platform", "linux")
    instances.remove_dead(frozenset())
    assert {path.stem for path in instances.folder.iterdir()} == {dead, name}  # what Windows would have made of it
    monkeypatch.setattr(sys, "platform", "win32")
    instances.remove_dead(frozenset())
    assert {path.stem for path in instances.folder.iterdir()} == {name}
    living.release()


@pytest.mark.skipif(sys.platform == "win32", reason="descriptors are not inherited there")
def test_a_look_leaves_no_lock_to_a_process_that_starts_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    path, lock, inherited = tmp_path / "lock", fcntl.flock, list[int]()
    path.touch()

    def locked(file: int, flags: int) -> None:
        lock(file, flags)
        inherited.append(os.dup(file))  # until it runs its program, a new process has a copy of each descriptor

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", locked)
        assert not is_held(path)
    try:
        held = try_hold(path)
        assert inherited and held is not None
        held.release()
    finally:
        for each in inherited:
            os.close(each)


WITHOUT_LOCKS = """
import pathlib, sys
import anyio
sys.path.insert(0, sys.argv[2])
from support.no_locks import deny_locks
from ava_audit.errors import AuditError
from ava_audit.store import sqlite
from ava_audit.store.store import Store

root = pathlib.Path(sys.argv[1])

def say(work):
    try:
        work()
        print("no error")
    except (AuditError, OSError) as error:
        print(type(error).__name__, error)

async def open_store():
    async with Store.open(root):
        pass

anyio.run(open_store)
deny_locks()

say(lambda: anyio.run(open_store))
say(lambda: sqlite.SqliteBackend(root).open_to_check().close())
"""


JOIN = """
import sys, pathlib
from ava_audit.store.locks import LockedInstances
own = LockedInstances(pathlib.Path(sys.argv[1])).join()
print(own.name, flush=True)
sys.stdin.read()
"""


@asynccontextmanager
async def instance(folder: Path) -> AsyncIterator[tuple[Process, str]]:
    """A child process that has joined; it ends with its stdin."""
    async with await anyio.open_process(child(JOIN, folder), stderr=None) as process:
        assert process.stdout is not None and process.stdin is not None
        name = (await process.stdout.receive()).decode().strip()
        yield process, name
        await process.stdin.aclose()
        await process.wait()
