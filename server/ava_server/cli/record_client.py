"""The runs and the log that a command shows: one client, whichever process answers its requests.

A transport carries them: `MemoryTransport` to this process, on a data root, or that of `cli/transport.py` to the server
of `--url`. A screen does not know which of them it shows.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar, cast

import anyio

from ava_audit.entries import Entry, entry_of_line
from ava_audit.errors import AuditError, StoreUnavailable
from ava_audit.search import EntryPage, LogQuery
from ava_server.cli.log_access import find_runs, note_fetched, open_log, read_settings, terminal_session
from ava_server.cli.log_look import LogLook, NoLog
from ava_server.cli.remote import Connection, Unreachable
from ava_server.cli.terminal import Place, tell
from ava_server.core.data_root import DataRoot, has_log, os_user
from ava_server.core.errors import AvaError, BadInput, ConfigError
from ava_server.service import record_requests as requests
from ava_server.service.record_requests import Reader, RecordRequest, RecordsHandler

if TYPE_CHECKING:
    from ava_audit.redaction import Redactor
    from ava_audit.rows import RunRow
    from ava_audit.store.backend import Instances
    from ava_audit.store.store import Store
    from ava_audit.view import Readable, View
    from ava_server.budget.user_limits import DayCaps
    from ava_server.config.settings import Settings
    from ava_server.render.approvals import Decisions
    from ava_server.render.run_view import RunView
    from ava_server.runs.owner.manager import Manager
    from ava_server.service.current import LogFacts
    from ava_server.service.run_records import RunRecord

P = ParamSpec("P")
T = TypeVar("T")
GONE_S = 300.0
"""How long a wait survives a server that does not answer."""


class Transport(Protocol):
    """Carries requests to what answers them.

    Attributes:
        place: Where that is: a data root, or the address of a server.
        every_s: How often a screen that waits should look.
    """

    place: Place
    every_s: float

    async def send(self, request: RecordRequest[RecordsHandler, P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the answer. Raises AvaError, AuditError if there is none; ValueError if it has another form."""
        ...

    async def wait_for_entry(self, after: int) -> None:
        """Return when the log has an entry with a higher number, or may have."""
        ...

    async def note_shown(self, command: str, shown: Sequence[RunRecord]) -> None:
        """See that the log says which results a command has shown."""
        ...


class Records:
    """The runs and the log that a command shows, by the requests of `service.record_requests`.

    Args:
        transport: What carries these requests to what answers them.

    Attributes:
        place: Where they are: a data root, or the address of a server.
        names: The names of the runs that the entries mention which were found so far.
        lines: These entries as lines of the mirror, by their `seq`.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._tell_gone: Callable[[str], None] | None = None
        self.place = transport.place
        self.every_s = transport.every_s
        self.names: dict[str, str] = {}
        self.lines: dict[int, bytes] = {}

    async def get(self, request: RecordRequest[RecordsHandler, P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the answer to a request. Raises AvaError, AuditError: there is none; ValueError: it is no answer."""
        until = time.monotonic() + GONE_S
        while True:
            try:
                return await self._transport.send(request, *args, **kwargs)
            except Unreachable as error:
                if self._tell_gone is None or time.monotonic() > until:
                    raise
                self._tell_gone(f"Waiting for the server: {error}")
            await anyio.sleep(self.every_s)

    def wait_for_server(self, tell_gone: Callable[[str], None] | None) -> None:
        """From now on, wait up to `GONE_S` for a server that does not answer: it may be restarting. None ends it."""
        self._tell_gone = tell_gone

    async def find(self, ids: list[str]) -> list[RunRow]:
        """Return the runs with these ids of subagents, plans and proposals, each once.

        Raises BadInput if one is not an id, or nothing has it.
        """
        return list((await self.get(requests.FOUND, id=ids)).rows)

    async def find_one(self, run_id: str | None, *, unended: bool = False) -> RunRow:
        """Return the run with this id, or of the proposal with it; without one, what `find_last` returns.

        Raises BadInput if it is not an id, or there is no such run.
        """
        if run_id is not None:
            return (await self.find([run_id]))[0]
        run = await self.find_last(unended=unended)
        if run is not None:
            return run
        at = f" at {self.place}" if isinstance(self.place, str) else ""
        if unended:
            raise BadInput(f"You have no unfinished subagent{at}. To end another user's, give its id.")
        raise BadInput(f"You have no subagent{at} yet. Start one with `ava run`, or give the id of another user's.")

    async def find_last(self, *, unended: bool = False) -> RunRow | None:
        """Return this user's last run, or that of the token's user; with `unended`, of those that have not ended."""
        which = "unended" if unended else "any"
        rows = (await self.get(requests.FOUND, last=which)).rows
        if not rows:
            return None
        return rows[0]

    async def views(self, run_ids: Sequence[str]) -> list[RunView]:
        return (await self.get(requests.LISTED, id=list(run_ids))).runs

    async def record(self, run_id: str, *, shown: bool = True) -> RunRecord:
        """Return a run with its whole result; if it is `shown`, a server notes that it was fetched."""
        return await self.get(requests.RECORD, run_id=run_id, shown=shown)

    async def diff(self, run: RunRow) -> str:
        return (await self.get(requests.DIFF, run_id=run.id)).text

    async def decisions(
        self, since_us: int, until_us: int, user: str | None, *, everybody: bool, whole: bool
    ) -> Decisions:
        """Return the newest decisions of a time, or with `whole` all of them."""
        span = {"since": since_us, "until": until_us}
        newest = await self.get(requests.DECISIONS, **span, user=user, all=everybody)
        rows = list(newest.rows)
        next_at = newest.next
        while whole and next_at is not None:
            before_us, before_seq = next_at
            before = {"before_us": before_us, "before_seq": before_seq}
            older = await self.get(requests.DECISIONS, **span, **before, user=user, all=everybody)
            if older.next is not None and older.next >= next_at:
                raise ConfigError("The server's pages have no end. Does it run another version of Ava?")
            rows += older.rows
            next_at = older.next
        return replace(newest, rows=tuple(rows), next=next_at)

    async def search(self, query: LogQuery) -> EntryPage:
        """Return the newest entries that match, from as many answers as it takes. Raises BadQuery: an unknown type."""
        entries: list[Entry] = []
        limit = query.limit
        while True:
            page = await self.get(requests.LOG, query=replace(query, limit=limit - len(entries)))
            entries += self.keep(page)
            if page.next is None:
                break
            if query.before_seq and page.next >= query.before_seq:
                raise ValueError("the pages do not come to an end")
            if not page.lines or len(entries) >= limit:
                break
            query = replace(query, before_seq=page.next, upto_seq=query.upto_seq or page.upto)
        upto = query.upto_seq
        if upto is None:
            upto = page.upto
        return EntryPage(tuple(entries), page.next, upto)

    def keep(self, page: requests.LogLines) -> list[Entry]:
        """Return the entries of lines, and keep the lines and the names in them."""
        self.names |= page.names
        entries: list[Entry] = []
        for line in page.lines:
            data = line.encode().rstrip(b"\n") + b"\n"
            entries.append(entry_of_line(data))
            self.lines[entries[-1].seq] = data
        return entries

    async def entries(self, run_id: str) -> list[Entry]:
        page = await self.search(LogQuery(runs=(run_id,), limit=1_000_000))
        return list(reversed(page.entries))

    async def steps(self, run_id: str, after: int) -> list[Entry]:
        """Return the last things that a run has done since an entry, oldest first."""
        query = LogQuery(agents=(run_id,), types=("Activity",), after_seq=after or None, limit=20)
        page = await self.search(query)
        return list(reversed(page.entries))

    async def follow(self, query: LogQuery) -> AsyncIterator[Entry]:
        """Yield matching entries as they are written, oldest first, without end."""
        newest = query.after_seq or 0
        while True:
            self.lines.clear()
            page = await self.search(replace(query, after_seq=newest, limit=1_000_000))
            for entry in reversed(page.entries):
                yield entry
            newest = max(newest, page.upto)
            await self._transport.wait_for_entry(newest)

    async def note_shown(self, command: str, shown: Sequence[RunRecord]) -> None:
        """See that the log says which results a command has shown."""
        await self._transport.note_shown(command, shown)


# -- this process ------------------------------------------------------------------------------------------------------


class MemoryTransport:
    """Has requests answered in this process, on the log of a data root: its owner may read everything in it.

    Args:
        root: The data root.
        store: Its log, a `Store` for what waits or writes.
        instances: The live processes; None if nothing asks about them.
        manager: This process's own, where it has one: it knows more than the log.
        settings: Returns the settings, where they are known; else each answer that needs them reads them. Blocking.
        most_runs: Runs of the list of what goes on at most, as in `RecordsHandler`.
    """

    every_s = 0.2

    def __init__(
        self,
        root: DataRoot,
        store: Readable,
        instances: Instances | None = None,
        manager: Manager | None = None,
        *,
        settings: Callable[[], Settings] | None = None,
        most_runs: int = requests.MOST_RUNS,
    ) -> None:
        self.place: Place = root
        self._root = root
        self._store = store
        settings = settings or partial(read_settings, root)
        reader = Reader(os_user(), (), audits=True, caps=partial(_caps, settings))
        self._handler = _OwnersHandler(
            store,
            reader,
            cast("Instances", instances),
            partial(_known_secrets, settings),
            settings=settings,
            owner=reader.user,
            served=instances.any_alive if instances is not None else bool,
            manager=manager,
        )
        self._handler.most_runs = most_runs

    async def send(self, request: RecordRequest[RecordsHandler, P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await request.answer(self._handler, *args, **kwargs)

    async def wait_for_entry(self, after: int) -> None:
        await cast("Store", self._store).wait_for_entry_after(after)

    async def note_shown(self, command: str, shown: Sequence[RunRecord]) -> None:
        """Do so once they are on the screen; where that fails, the person is told."""
        rows = [one.row for one in shown if one.answer.untrusted_result is not None]  # an erased one is not shown
        if not rows:
            return
        session = terminal_session()
        try:
            async with self._to_write() as store:
                for row in rows:
                    try:
                        await note_fetched(store, session, command, row)
                    except StoreUnavailable as error:
                        tell(f"The log does not say that this was shown: {error}")
        except AuditError as error:  # it cannot be opened to write
            tell(f"The log does not say that this was shown: {error}")

    @asynccontextmanager
    async def _to_write(self) -> AsyncGenerator[Store]:
        """Open the log to write, where it was only looked at until now. Raises AuditError if it cannot be written."""
        if not isinstance(self._store, LogLook):
            yield cast("Store", self._store)
            return
        from ava_audit.store.store import Store

        async with Store.open(self._root.path) as store:
            yield store


class _OwnersHandler(RecordsHandler):
    """Answers the owner of the data root: an id that is unknown or mistyped is answered with a similar one."""

    async def find(self, ids: Sequence[str]) -> list[RunRow]:
        try:
            return await find_runs(self.store, ids)
        except NoLog:
            return await find_runs(None, ids)

    async def find_last(self, *, unended: bool) -> RunRow | None:
        try:
            return await super().find_last(unended=unended)
        except NoLog:
            return None

    def log_facts(self, view: View) -> LogFacts:
        from ava_audit.units import now_us
        from ava_server.service.checks.data import lags_of
        from ava_server.service.checks.refused_keys import refused_keys
        from ava_server.service.current import LogFacts

        sizes = view.sizes()
        return LogFacts(
            entries=view.head(),
            database_bytes=sizes["database"],
            wal_bytes=sizes.get("write_ahead_log", 0),
            lags=lags_of(view, mirrors=self._settings().mirrors),
            partial=isinstance(self.store, LogLook) and self.store.partial,
            refused=tuple(refused_keys(view, now_us())),
        )


def _caps(settings: Callable[[], Settings]) -> DayCaps:
    from ava_server.budget.user_limits import day_caps

    return day_caps(settings(), os_user())


def _known_secrets(settings: Callable[[], Settings]) -> Redactor:
    """Return a redactor that knows the stored keys and secrets, as far as they can be read. Blocking."""
    from ava_server.config.credentials import Credentials

    credentials = Credentials(settings())
    with contextlib.suppress(AvaError):
        _models = credentials.models
    with contextlib.suppress(AvaError):
        _secrets = credentials.secrets
    return credentials.redactor


# -- opening them ------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def open_records(
    server: Connection | None, root: Callable[[], DataRoot], *, make: bool = False
) -> AsyncGenerator[Records]:
    """Open the server, or without one the data root; `make` creates a missing log, to wait for its first entries."""
    if server is not None:
        async with open_server_records(server) as records:
            yield records
        return
    place = root()
    async with open_log(place, make=make) as store:
        if store is None:
            yield Records(MemoryTransport(place, LogLook(place)))
            return
        with contextlib.closing(store.instances(place.instances)) as instances:
            yield Records(MemoryTransport(place, store, instances))


def look_at_records(root: DataRoot, instances: Instances | None = None) -> Records | None:
    """Return the records of a log that is only looked at; None where only a `Store` shows all of it."""
    log = LogLook(root)
    if log.needs_recovery():
        return None
    return Records(MemoryTransport(root, log, instances))


@asynccontextmanager
async def open_to_show(server: Connection | None, root: Callable[[], DataRoot]) -> AsyncGenerator[Records]:
    """Open what a command only shows: the server, or without one the data root, if possible without opening it."""
    if server is not None:
        async with open_server_records(server) as records:
            yield records
        return
    place = root()
    if has_log(place):
        from ava_audit.store.sqlite import backend_of

        with contextlib.closing(backend_of(place.path).instances(place.instances)) as instances:
            looked_at = look_at_records(place, instances)
            if looked_at is not None:
                yield looked_at
                return
    async with open_records(None, root) as records:
        yield records


@asynccontextmanager
async def open_server_records(server: Connection) -> AsyncGenerator[Records]:
    """Open a server's records. Raises AvaError if it cannot be used, or what it answered cannot be shown."""
    from ava_server.cli.transport import reached

    async with reached(server) as transport:
        yield Records(transport)
