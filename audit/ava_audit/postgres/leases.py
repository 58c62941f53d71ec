"""Leases on a Postgres server: which processes live, on any machine.

Each process renews its row by the server's clock, so a machine whose clock is wrong changes nothing. A process that was
stopped for longer than its lease and wakes up again is alive again under the same name. Its runs may have another owner
by then: the claim in the log decides, and what the old owner writes is refused.

While the server is away nobody can renew, and all leases end together. So the silence of another process counts only
from when the server answers this one again: the first one to come back must not rob the others.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, LiteralString, NamedTuple

import psycopg

from ava_audit.database import Values
from ava_audit.errors import LogForked, StoreUnavailable
from ava_audit.postgres.session import LogPlace, dial, first_line
from ava_audit.store.backend import (
    LEASE_S,
    SHOWN_S,
    UNANNOUNCED,
    Activities,
    Announcement,
    LiveInstance,
    LostInstance,
    Membership,
)
from ava_audit.store.locks import KNOWN_S as SHOWN_KNOWN_S
from ava_audit.store.locks import LockedInstances, LockMembership, activities_in, keep_renewing
from ava_audit.units import now_us, steady_s

log = logging.getLogger("ava.store")

FAILURES = (psycopg.Error, OSError, LogForked)
"""Why a statement may fail."""
RENEWALS = 4
"""Attempts to renew within a lease."""
RENEWAL_TAKES_S = 1.0
"""How long a renewal takes at most, while nothing is wrong."""
KNOWN_S = 0.3
"""How long what was read about other processes is used again."""
WORKERS_KNOWN_S = 1.0
"""The same for the names of workers, which are only shown."""
FORGET_AFTER_S = 600
"""How long the row of a dead process stays, for people who look at the table."""
_RENEW = """
INSERT INTO leases (name, kind, host, pid, address, offers, lease_ms, renewed_at)
VALUES (%(name)s, %(kind)s, %(host)s, %(pid)s, %(address)s, %(offers)s, %(lease_ms)s, clock_timestamp())
ON CONFLICT (name) DO UPDATE SET renewed_at = clock_timestamp(), address = EXCLUDED.address, offers = EXCLUDED.offers
"""
_END = "UPDATE leases SET renewed_at = clock_timestamp(), lease_ms = 0 WHERE name = %s"
_FORGET = "DELETE FROM leases WHERE name = %s"
_EXPIRES = "renewed_at + lease_ms * interval '1 millisecond'"
_RENEWED_US = "CAST(extract(epoch FROM renewed_at) * 1000000 AS bigint)"
_SHOW = """
INSERT INTO activities (name, doing, shown_at) VALUES (%s, %s, clock_timestamp())
ON CONFLICT (name) DO UPDATE SET doing = EXCLUDED.doing, shown_at = EXCLUDED.shown_at
"""
_IS_SHOWN = "shown_at > clock_timestamp() - %s * interval '1 second'"
_LEFT_MS = f"CAST(extract(epoch FROM {_EXPIRES} - clock_timestamp()) * 1000 AS bigint)"
_UP_S = "SELECT CAST(extract(epoch FROM clock_timestamp() - pg_postmaster_start_time()) AS double precision)"


class _Lease(NamedTuple):
    """A lease as it was read: when it ends, on this process's monotonic clock, and for how long each renewal lasts.

    And when it was renewed.
    """

    ends: float
    lasts_s: float
    renewed_us: int  # by the server's clock
    seen_us: int  # the same by this machine's clock, as it was when this renewal was first read


class SessionConnection:
    """A connection that is made when it is needed, and again after a loss. Each use ends within some seconds."""

    def __init__(self, conninfo: Mapping[str, Any], log_place: LogPlace, most_s: float) -> None:
        self._conninfo = {**conninfo, "application_name": "ava leases"}
        self._log_place = log_place
        self._most_ms = str(int(most_s * 1000))
        self._lock = threading.Lock()
        self._conn: psycopg.Connection[Any] | None = None

    def run(self, sql: LiteralString, values: Values = ()) -> list[Any]:
        """Run a statement and return its rows.

        Raises psycopg.Error: it failed twice; LogForked: the log is another one, where this process is nobody.
        """
        with self._lock:
            self._log_place.refuse_moved()
            try:
                return self._run(sql, values)
            except psycopg.OperationalError:
                self._drop()
                return self._run(sql, values)

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _run(self, sql: LiteralString, values: Values) -> list[Any]:
        if self._conn is None or self._conn.closed:
            self._conn = dial(self._conninfo, self._log_place, readonly=False, channel=None)
            self._conn.execute("SELECT set_config('statement_timeout', %s, false)", (self._most_ms,))
        cursor = self._conn.execute(sql, values)
        return cursor.fetchall() if cursor.description is not None else []

    def _drop(self) -> None:
        if self._conn is not None:
            with contextlib.suppress(psycopg.Error):
                self._conn.close()
            self._conn = None


class LeaseMembership:
    """This process as an instance: it lives while its lease of `lease_s` seconds is renewed.

    `held` is its lock file, from which others on this machine see at once that it ended.
    """

    def __init__(
        self,
        held: LockMembership,
        announcement: Announcement,
        lease_s: float,
        conninfo: Mapping[str, Any],
        log_place: LogPlace,
        place: str,
    ) -> None:
        self.name = held.name
        self._held = held
        self._row: dict[str, object] = {
            "name": held.name, "kind": announcement.kind, "host": socket.gethostname(), "pid": os.getpid(),
            "offers": json.dumps(dict(announcement.offers)), "lease_ms": int(lease_s * 1000),
        }  # fmt: skip
        self._connection = SessionConnection(conninfo, log_place, lease_s / 2)
        self._address = announcement.address
        self._place = place
        self._lock = threading.Lock()
        self._is_showing = False
        self._lease_s = lease_s
        self._renew_by = float("-inf")
        self._released = False
        self._answers_since: float | None = None

    def announce(self, address: str) -> None:
        self._address = address
        self.renew()

    def tell(self, facts: Mapping[str, Any], /) -> None:
        offers = {**json.loads(str(self._row["offers"])), **facts}
        self._row = {**self._row, "offers": json.dumps(offers)}

    def holds(self) -> bool:
        """Tell whether the lease was renewed so lately that it does not end before the next renewals."""
        return steady_s() < self._renew_by

    def renew(self) -> None:
        if self._released:
            return
        began = steady_s()
        try:
            self._connection.run(_RENEW, {**self._row, "address": self._address})
            if self._answers_since is None:  # a server that has just started has kept everybody from renewing
                ((up_s,),) = self._connection.run(_UP_S)
                self._answers_since = began - up_s
        except FAILURES as error:
            if isinstance(error, LogForked):
                raise
            raise StoreUnavailable(f"{self._place} was not written: {first_line(error)}") from error
        if self._renew_by > float("-inf") and not self.holds():
            self._answers_since = steady_s()
        self._renew_by = began + self._lease_s / 2

    def answered_s(self) -> float:
        """Return for how long the server has answered this process without a gap.

        Without a lease of its own it may be in one: the server was away, or this process was stopped. After a stop of
        the whole machine, every lease has ended, and each process renews its own as soon as it can.
        """
        if self._answers_since is None or not self.holds():
            return 0.0
        return steady_s() - self._answers_since

    def show(self, activities: Mapping[str, str], /) -> None:
        """Write what its runs are doing into a table that has no write-ahead log."""
        with self._lock:
            if self._released or not (activities or self._is_showing):
                return
            try:
                self._connection.run(_SHOW, (self.name, json.dumps(dict(activities))))
                self._is_showing = True
            except FAILURES as error:
                log.debug("what runs are doing is not shown: %s", first_line(error))

    def release(self) -> None:
        """End the lease, and leave its row, which says when this process was last at work; a claim may name it.

        Without a database it expires.
        """
        self._leave(_END)
        self._held.release()

    def remove(self) -> None:
        self._leave(_FORGET)
        self._held.remove()

    def _leave(self, sql: LiteralString) -> None:
        with self._lock:
            released, self._released = self._released, True
        if released:
            return
        try:
            self._connection.run(sql, (self.name,))
            if self._is_showing:
                self._connection.run("DELETE FROM activities WHERE name = %s", (self.name,))
        except FAILURES as error:
            log.debug("the lease of %s is left to expire: %s", self.name, first_line(error))
        self._connection.close()


class LeasedInstances:
    """The live processes on a log in Postgres; `folder` has this machine's lock files, `lease_s` is of this process."""

    def __init__(
        self, folder: Path, conninfo: Mapping[str, Any], log_place: LogPlace, place: str, lease_s: float = LEASE_S
    ) -> None:
        self.folder = folder
        self._files = LockedInstances(folder)
        self._conninfo = conninfo
        self._log_place = log_place
        self._place = place
        self._lease_s = lease_s
        self._connection = SessionConnection(conninfo, log_place, 5.0)
        self._lock = threading.Lock()
        self._own: LeaseMembership | None = None
        self._leases: dict[str, _Lease] = {}
        self._read_s = float("-inf")
        self._activities: tuple[float, Activities] = (float("-inf"), {})
        self._workers: tuple[float, Mapping[str, str]] = (float("-inf"), {})

    def join(self, announcement: Announcement = UNANNOUNCED, /) -> LeaseMembership:
        held = self._files.join()
        membership = LeaseMembership(held, announcement, self._lease_s, self._conninfo, self._log_place, self._place)
        try:
            membership.renew()
        except StoreUnavailable:
            membership.remove()
            raise
        self._own = membership
        return membership

    async def keep(self, membership: Membership, /) -> None:
        await keep_renewing(membership, self._lease_s / RENEWALS, self._lease_s)

    def alive(self, name: str) -> bool:
        """Tell whether an instance lives: its lease has not expired, and its process did not end on this machine.

        An expired one counts as dead only when the server has answered this process for as long as that lease lasts.
        """
        try:
            lease = self._all().get(name)
            if lease is None or lease.ends <= time.monotonic():  # it may have joined, or renewed, since they were read
                lease = self._all(known_s=0).get(name)
        except FAILURES as error:
            log.debug("cannot read the leases: %s", first_line(error))
            return True
        if lease is None or self._files.known_dead(name):
            return False
        return lease.ends > time.monotonic() or self._silence_s(lease) > 0

    def lasts_s(self, name: str, /) -> float:
        """Return in how many seconds an instance is dead if it does not renew its lease, as that was read last."""
        lease = self._leases.get(name)
        if lease is None:
            return math.inf
        return max(lease.ends - time.monotonic(), self._silence_s(lease))

    def _silence_s(self, lease: _Lease) -> float:
        """Return how many seconds more the server must answer before the silence of another process counts."""
        return -math.inf if self._own is None else lease.lasts_s - self._own.answered_s()

    def seen_us(self, name: str, /) -> int | None:
        """Return when its lease was renewed last, by the server's clock."""
        try:
            rows = self._connection.run(f"SELECT {_RENEWED_US} FROM leases WHERE name = %s", (name,))  # noqa: S608
        except FAILURES as error:
            log.debug("cannot read the lease of %s: %s", name, first_line(error))
            return None
        return int(rows[0][0]) if rows else None

    def shown_seen_us(self, name: str, /) -> int | None:
        try:
            lease = self._all().get(name)
        except FAILURES as error:
            log.debug("cannot read the leases: %s", first_line(error))
            return None
        return None if lease is None else lease.seen_us

    @property
    def seen_every_s(self) -> float:
        return self._lease_s / RENEWALS + RENEWAL_TAKES_S

    def address_of(self, name: str) -> str | None:
        sql = f"SELECT address FROM leases WHERE name = %s AND {_EXPIRES} > clock_timestamp()"  # noqa: S608
        try:
            rows = self._connection.run(sql, (name,))
        except FAILURES as error:
            log.warning("cannot look for another server: %s", first_line(error))
            return None
        return rows[0][0] or None if rows and not self._files.known_dead(name) else None

    def any_alive(self) -> bool:
        try:
            return any(self.alive(name) for name in self._all())
        except FAILURES:
            return True

    def live(self) -> list[LiveInstance]:
        silent = "CAST(extract(epoch FROM clock_timestamp() - renewed_at) AS double precision)"
        columns = f"name, host, kind, address, offers, {silent}"
        sql = f"SELECT {columns} FROM leases WHERE {_EXPIRES} > clock_timestamp()"  # noqa: S608
        try:
            rows = self._connection.run(sql)
        except FAILURES as error:
            raise StoreUnavailable(f"{self._place} cannot be read: {first_line(error)}") from error
        instances: list[LiveInstance] = []
        for name, host, kind, address, offers, silent_s in rows:
            if not self._files.known_dead(name):
                announcement = Announcement(kind, address, json.loads(offers))
                instances.append(LiveInstance(name, host, announcement, max(0.0, silent_s)))
        return instances

    def lost(self) -> list[LostInstance]:
        """Return whose lease ended while it was in force; one that ended in order has a lease of no time."""
        recent = "lease_ms > 0 AND renewed_at > clock_timestamp() - %s * interval '1 second'"
        columns = f"name, host, kind, {_RENEWED_US}, {_EXPIRES} < clock_timestamp()"
        sql = f"SELECT {columns} FROM leases WHERE {recent} ORDER BY renewed_at"  # noqa: S608
        try:
            rows = self._connection.run(sql, (FORGET_AFTER_S,))
        except FAILURES as error:
            raise StoreUnavailable(f"{self._place} cannot be read: {first_line(error)}") from error
        return [
            LostInstance(name, host, kind, int(seen_us))
            for name, host, kind, seen_us, expired in rows
            if expired or self._files.known_dead(name)
        ]

    def workers(self) -> Mapping[str, str]:
        """Return them as they were read within some seconds."""
        with self._lock:
            read_s, workers = self._workers
            if time.monotonic() - read_s > WORKERS_KNOWN_S:
                try:
                    workers = {each.name: each.host for each in self.live() if each.announcement.kind == "worker"}
                except StoreUnavailable as error:
                    log.debug("cannot read the workers: %s", error)
                    workers = {}
                self._workers = time.monotonic(), workers
            return workers

    def activities(self) -> Activities:
        """Return what runs are doing on any machine, as it was read within a tenth of a second."""
        with self._lock:
            read_s, activities = self._activities
            if time.monotonic() - read_s > SHOWN_KNOWN_S:
                sql = f"SELECT name, doing FROM activities WHERE {_IS_SHOWN}"  # noqa: S608
                try:
                    rows = self._connection.run(sql, (SHOWN_S,))
                except FAILURES as error:
                    log.debug("cannot read what runs are doing: %s", first_line(error))
                    rows = []
                activities = _activities_in(rows)
                self._activities = time.monotonic(), activities
            return activities

    def remove_dead(self, keep: frozenset[str]) -> None:
        """Remove files of dead processes of this machine, leases that expired a while ago, and what they showed."""
        self._files.remove_dead(keep)
        old = f"{_EXPIRES} < clock_timestamp() - %s * interval '1 second'"
        sql = f"DELETE FROM leases WHERE {old} AND name <> ALL(%s)"  # noqa: S608
        try:
            self._connection.run(f"DELETE FROM activities WHERE NOT ({_IS_SHOWN})", (SHOWN_S,))  # noqa: S608
            self._connection.run(sql, (FORGET_AFTER_S, sorted(keep)))
        except FAILURES as error:  # the next time tries again
            log.debug("old leases stay: %s", first_line(error))

    def close(self) -> None:
        self._connection.close()

    def _all(self, known_s: float = KNOWN_S) -> dict[str, _Lease]:
        """Return the leases as they were read within some seconds."""
        with self._lock:
            if time.monotonic() - self._read_s > known_s:
                columns = f"name, {_LEFT_MS}, lease_ms, {_RENEWED_US}"
                rows = self._connection.run(f"SELECT {columns} FROM leases")  # noqa: S608
                self._read_s = time.monotonic()
                self._leases = {name: self._lease(name, *row) for name, *row in rows}
            return self._leases

    def _lease(self, name: str, left_ms: int, lasts_ms: int, renewed_us: int) -> _Lease:
        known = self._leases.get(name)
        if known is not None and known.renewed_us == renewed_us:
            seen_us = known.seen_us
        else:
            seen_us = now_us() - (lasts_ms - left_ms) * 1000
        return _Lease(self._read_s + left_ms / 1000, lasts_ms / 1000, renewed_us, seen_us)


def _activities_in(rows: Sequence[tuple[str, str]]) -> Activities:
    """Return what the rows of processes show of their runs."""
    activities: dict[tuple[str, str], str] = {}
    for name, doing in rows:
        for run, text in activities_in(doing):
            activities[name, run] = text
    return activities
