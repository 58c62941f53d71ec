"""Leases: who lives on a log in Postgres, seen from any machine. A folder of lock files of one's own is a machine."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import Process
from support.log import child
from support.stdio import until

from ava_audit.store import store
from ava_audit.store.backend import Announcement, Instances
from ava_audit.store.sqlite import backend_of
from ava_audit.units import now_us

psycopg = pytest.importorskip("psycopg", reason="the driver is not installed")

from support.postgres import PostgresServer  # noqa: E402

pytestmark = pytest.mark.slow

LEASE_S = 2.0


async def test_a_killed_process_is_dead_on_its_machine_at_once_and_elsewhere_after_its_lease(
    url: str, tmp_path: Path, here: Instances, there: Instances
) -> None:
    async with instance(tmp_path / "here", url) as (process, name):
        await anyio.sleep(1.5 * LEASE_S)
        assert here.alive(name) and there.alive(name), "it renews its lease"
        os.kill(process.pid, signal.SIGKILL)
        await process.wait()
        began = time.monotonic()
        assert not here.alive(name)
        assert there.alive(name)
        await until(lambda: not there.alive(name), within_s=LEASE_S + 2)
        assert time.monotonic() - began > LEASE_S / 4


async def test_a_stopped_process_is_dead_after_its_lease_and_alive_when_it_wakes_up(
    url: str, tmp_path: Path, there: Instances
) -> None:
    async with instance(tmp_path / "here", url) as (process, name):
        os.kill(process.pid, signal.SIGSTOP)
        await until(lambda: not there.alive(name), within_s=LEASE_S + 2)
        os.kill(process.pid, signal.SIGCONT)
        await until(lambda: there.alive(name), within_s=LEASE_S + 2)


async def test_a_process_knows_when_others_may_soon_see_it_as_dead(here: Instances, there: Instances) -> None:
    own = here.join()
    assert own.holds()
    await until(lambda: not own.holds(), within_s=LEASE_S)
    await until(lambda: not there.alive(own.name), within_s=LEASE_S)
    own.renew()
    assert own.holds()
    await until(lambda: there.alive(own.name), within_s=LEASE_S / 2)
    own.remove()


async def test_a_lease_that_was_renewed_since_it_was_read_has_not_ended(
    here: Instances, there: Instances, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ava_audit.postgres import leases as postgres_leases

    monkeypatch.setattr(postgres_leases, "KNOWN_S", 60.0)
    own = here.join()
    assert there.lasts_s(own.name) == math.inf, "nothing was read"
    assert there.alive(own.name) and 0 < there.lasts_s(own.name) <= LEASE_S
    for _ in range(2):
        await anyio.sleep(0.6 * LEASE_S)
        own.renew()
    assert there.lasts_s(own.name) < 0
    assert there.alive(own.name) and there.lasts_s(own.name) > 0
    own.remove()


async def test_a_process_that_has_just_joined_is_alive_for_everybody_who_looked_before(
    here: Instances, there: Instances
) -> None:
    first = here.join()
    assert there.alive(first.name)
    second = here.join()
    assert there.alive(second.name), "it may have claimed a run by now"
    first.remove()
    second.remove()


async def test_a_process_that_leaves_is_dead_at_once(tmp_path: Path, here: Instances, there: Instances) -> None:
    own = here.join(Announcement("worker", "http://10.0.0.1:8642", {"providers": ["anthropic"]}))
    (seen,) = there.live()
    assert (seen.name, seen.announcement) == (
        own.name,
        Announcement("worker", "http://10.0.0.1:8642", {"providers": ["anthropic"]}),
    )
    assert there.any_alive()
    own.remove()
    own.remove()
    await until(lambda: not there.alive(own.name), within_s=1)
    assert there.live() == [] and not there.any_alive() and not there.alive("never")
    assert list((tmp_path / "here" / "instances").iterdir()) == []


async def test_a_process_was_last_seen_when_it_renewed_its_lease_or_ended_in_order(
    url: str, tmp_path: Path, here: Instances, there: Instances
) -> None:
    async with instance(tmp_path / "here", url) as (process, name):
        joined_us = there.seen_us(name)
        assert joined_us is not None and abs(joined_us - now_us()) < 60_000_000
        await until(lambda: (there.seen_us(name) or 0) > (joined_us or 0))
        process.kill()
        await process.wait()
        killed_us = there.seen_us(name)
        await anyio.sleep(0.6 * LEASE_S)
        assert there.seen_us(name) == killed_us is not None
    own = here.join()
    joined_us = there.seen_us(own.name)
    await anyio.sleep(0.1)
    own.release()
    own.release()
    assert not there.alive(own.name) and own.name not in [each.name for each in there.live()]
    ended_us = there.seen_us(own.name)
    assert joined_us is not None and ended_us is not None and ended_us >= joined_us + 100_000
    assert there.seen_us("never") is None


async def test_a_wrong_clock_changes_nothing(
    url: str, tmp_path: Path, there: Instances, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with instance(tmp_path / "here", url) as (_process, name):
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() + 3_600)
        assert there.alive(name)


async def test_leases_survive_a_restart_of_the_server(
    server: PostgresServer, url: str, tmp_path: Path, there: Instances
) -> None:
    async with instance(tmp_path / "here", url) as (_process, name):
        server.stop(signal.SIGQUIT)  # in this thread: the server ends with the one that started it
        assert there.alive(name), "what cannot be known counts as alive"
        server.start()
        await anyio.sleep(LEASE_S)
        await until(lambda: there.alive(name))


async def test_old_leases_are_removed_and_living_ones_stay(
    url: str, here: Instances, there: Instances, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ava_audit.postgres import leases as postgres_leases

    dead, own = here.join(), here.join()
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("UPDATE ava.leases SET renewed_at = now() - interval '1 hour' WHERE name = %s", (dead.name,))

        def names() -> list[Any]:
            return [name for (name,) in conn.execute("SELECT name FROM ava.leases").fetchall()]

        there.remove_dead(frozenset({dead.name}))
        assert sorted(names()) == sorted([own.name, dead.name]), "a claim names it, and asks when it was last seen"
        there.remove_dead(frozenset())
        assert names() == [own.name]
        own.remove()
        assert names() == []
    monkeypatch.setattr(postgres_leases, "KNOWN_S", 0.0)
    assert not there.alive(dead.name)
    dead.remove()


async def test_after_the_server_was_away_nobodys_silence_counts_before_a_lease_has_passed(
    server: PostgresServer, url: str, here: Instances, there: Instances
) -> None:
    """Whoever comes back first would take the runs of all others: nobody could renew while the server was away."""
    first, second = here.join(), there.join()
    server.stop(signal.SIGQUIT)
    await anyio.sleep(1.5 * LEASE_S)
    server.start()
    first.renew()
    assert here.alive(second.name), "its lease has ended, and it had no chance to renew it"
    assert 0 < here.lasts_s(second.name) <= LEASE_S
    second.renew()
    for _ in range(6):
        await anyio.sleep(LEASE_S / 4)
        first.renew()
    await until(lambda: not here.alive(second.name), within_s=LEASE_S)
    first.remove()
    second.remove()


async def test_a_process_that_was_stopped_waits_a_lease_before_it_takes_others_for_dead(
    here: Instances, there: Instances
) -> None:
    """Also before it has renewed its own: whoever wakes up first after a stop of the machine looks at the others."""
    first, second = here.join(), there.join()
    await anyio.sleep(1.2 * LEASE_S)  # neither renews
    assert not first.holds() and here.alive(second.name)
    first.renew()
    assert here.alive(second.name)
    await anyio.sleep(0.4 * LEASE_S)
    first.renew()
    assert here.alive(second.name), "it has a whole lease to wake up"
    for _ in range(3):
        await anyio.sleep(0.4 * LEASE_S)
        first.renew()
    assert not here.alive(second.name)
    first.remove()
    second.remove()


async def test_a_process_that_joins_a_server_that_has_just_started_waits_a_lease(
    server: PostgresServer, url: str, tmp_path: Path, here: Instances
) -> None:
    lease_s = 300.0
    with closing(backend_of(tmp_path / "there", url).instances(tmp_path / "there" / "instances", lease_s)) as there:
        second = there.join()
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute("UPDATE ava.leases SET renewed_at = now() - interval '1 hour'")
        server.stop(signal.SIGQUIT)
        server.start()
        first = here.join()
        assert here.alive(second.name)
        first.remove()
        second.remove()


async def test_a_worker_that_was_killed_is_lost_and_one_that_ended_in_order_is_not(
    url: str, tmp_path: Path, here: Instances, there: Instances
) -> None:
    began_us = now_us()
    ended = await anyio.to_thread.run_sync(here.join, Announcement("worker"))
    assert list(there.workers()) == [ended.name]
    ended.release()
    async with instance(tmp_path / "here", url) as (process, name):
        assert there.lost() == []
        seen_us = there.shown_seen_us(name)
        assert seen_us is not None and seen_us >= began_us - 1_000_000
        await anyio.sleep(0.5)
        again_us = there.shown_seen_us(name)
        assert again_us is not None and again_us >= seen_us, "it is seen again, and never earlier"
        os.kill(process.pid, signal.SIGKILL)
        await process.wait()
        (lost,) = here.lost()
        assert (lost.name, lost.kind) == (name, "command") and lost.seen_us >= began_us - 1_000_000
        await until(lambda: [each.name for each in there.lost()] == [name], within_s=3 * LEASE_S)
        assert there.shown_seen_us(name) == there.shown_seen_us(name)


JOIN = """
import pathlib, sys, anyio
from ava_audit.store.sqlite import backend_of
async def main():
    root = pathlib.Path(sys.argv[1])
    instances = backend_of(root, sys.argv[2]).instances(root / "instances", float(sys.argv[3]))
    own = await anyio.to_thread.run_sync(instances.join)
    print(own.name, flush=True)
    await instances.keep(own)
anyio.run(main)
"""


@pytest.fixture
async def url(server: PostgresServer, tmp_path: Path) -> str:
    """The address of a log."""
    found = server.database(tmp_path)
    for machine in ("here", "there"):
        (tmp_path / machine).mkdir()
    async with store.Store.open(tmp_path / "here", found):
        return found


@pytest.fixture
def here(url: str, tmp_path: Path) -> Generator[Instances]:
    """What one machine sees."""
    with closing(backend_of(tmp_path / "here", url).instances(tmp_path / "here" / "instances", LEASE_S)) as found:
        yield found


@pytest.fixture
def there(url: str, tmp_path: Path) -> Generator[Instances]:
    """What another machine sees."""
    with closing(backend_of(tmp_path / "there", url).instances(tmp_path / "there" / "instances", LEASE_S)) as found:
        yield found


@asynccontextmanager
async def instance(machine: Path, url: str) -> AsyncIterator[tuple[Process, str]]:
    """A child process that has joined and keeps its lease; it is killed at the end."""
    async with await anyio.open_process(child(JOIN, machine, url, str(LEASE_S)), stderr=None) as process:
        assert process.stdout is not None
        try:
            with anyio.fail_after(90):  # a busy machine needs half a minute to start the server again
                yield process, (await process.stdout.receive()).decode().strip()
        finally:
            if process.returncode is None:
                process.kill()
