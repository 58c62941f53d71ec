"""The runs and the log that a command shows: one client, whichever process answers its requests.

`cli/transport.py` carries them: to this process, on a data root, or to the server of `--url`. A screen does not know
which of them it shows.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import anyio

from ava_audit.entries import Entry, entry_of_line
from ava_audit.search import EntryPage, LogQuery
from ava_server.cli.app import leaves_of
from ava_server.cli.log_access import open_log
from ava_server.cli.log_look import LogLook
from ava_server.cli.remote import RemoteServer, Unreachable, connected
from ava_server.cli.transport import AGAIN_S, HttpTransport, MemoryTransport, Transport, validated
from ava_server.core.data_root import DataRoot, has_log
from ava_server.core.errors import BadInput, ConfigError
from ava_server.service import record_requests as requests

if TYPE_CHECKING:
    from ava_audit.rows import RunRow
    from ava_audit.store.backend import Instances
    from ava_server.render.approvals import Decisions
    from ava_server.render.run_view import RunView
    from ava_server.service.records import RunRecord

P = ParamSpec("P")
T = TypeVar("T")
GONE_S = 300.0
"""How long a wait survives a server that does not answer."""
_WRONG = (ValueError, TypeError, LookupError, OverflowError, AttributeError)
"""What showing an answer raises that no Ava of this version gives."""


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
        self.transport = transport
        self._tell_gone: Callable[[str], None] | None = None
        self.place = transport.place
        self.every_s = transport.every_s
        self.names: dict[str, str] = {}
        self.lines: dict[int, bytes] = {}

    async def get(self, request: requests.RecordRequest[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the answer to a request. Raises AvaError, AuditError: there is none; ValueError: it is no answer."""
        until = time.monotonic() + GONE_S
        while True:
            try:
                return await self.transport.send(request, *args, **kwargs)
            except Unreachable as error:
                if self._tell_gone is None or time.monotonic() > until:
                    raise
                self._tell_gone(f"Waiting for the server: {error}")
            await anyio.sleep(AGAIN_S)

    def wait_for_server(self, tell_gone: Callable[[str], None] | None) -> None:
        """From now on, wait up to `GONE_S` for a server that does not answer: it may be restarting. None ends it."""
        self._tell_gone = tell_gone

    async def find(self, ids: list[str], *, groups: bool = True) -> list[RunRow]:
        """Return the runs with these ids of subagents, proposals and (with `groups`) groups, each once.

        Raises BadInput: one is not an id, or nothing has it.
        """
        return list((await self.get(requests.FOUND, id=ids, single=not groups)).rows)

    async def find_one(self, given: str | None, *, unended: bool = False) -> RunRow:
        """Return the run with this id, or of the proposal with it; without one, what `find_last` returns.

        Raises BadInput: it is not an id, or there is no such run.
        """
        if given is not None:
            return (await self.find([given], groups=False))[0]
        if (run := await self.find_last(unended=unended)) is not None:
            return run
        at = f" at {self.place}" if isinstance(self.place, str) else ""
        if unended:
            raise BadInput(f"You have no unfinished subagent{at}. To end another user's, give its id.")
        raise BadInput(f"You have no subagent{at} yet. Start one with `ava run`, or give the id of another user's.")

    async def find_last(self, *, unended: bool = False) -> RunRow | None:
        """Return this user's last run, or that of the token's user; with `unended`, of those that have not ended."""
        found = await self.get(requests.FOUND, last="unended" if unended else "any")
        return found.rows[0] if found.rows else None

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
        found = await self.get(requests.DECISIONS, **span, user=user, all=everybody)
        rows, at = [*found.rows], found.next
        while whole and at is not None:
            before = {"before_us": at[0], "before_seq": at[1]}
            more = await self.get(requests.DECISIONS, **span, **before, user=user, all=everybody)
            if more.next is not None and more.next >= at:
                raise ConfigError("The server's pages have no end. Does it run another version of Ava?")
            rows += more.rows
            at = more.next
        return replace(found, rows=tuple(rows), next=at)

    async def search(self, query: LogQuery) -> EntryPage:
        """Return the newest entries that match, from as many answers as it takes. Raises BadQuery: an unknown type."""
        entries: list[Entry] = []
        while True:
            found = await self.get(requests.LOG, query=replace(query, limit=query.limit - len(entries)))
            entries += self.keep(found)
            if found.next is not None and found.next >= (query.before_seq or found.next + 1):
                raise ValueError("the pages do not come to an end")
            if found.next is None or not found.lines or len(entries) >= query.limit:
                return EntryPage(tuple(entries), found.next, found.upto if query.upto_seq is None else query.upto_seq)
            query = replace(query, before_seq=found.next, upto_seq=query.upto_seq or found.upto)

    def keep(self, found: requests.LogLines) -> list[Entry]:
        """Return the entries of lines, and keep the lines and the names in them."""
        self.names |= found.names
        entries: list[Entry] = []
        for line in found.lines:
            data = line.encode().rstrip(b"\n") + b"\n"
            entries.append(entry_of_line(data))
            self.lines[entries[-1].seq] = data
        return entries

    async def entries(self, run_id: str) -> list[Entry]:
        return list((await self.search(LogQuery(runs=(run_id,), limit=1_000_000))).entries[::-1])

    async def steps(self, run_id: str, after: int) -> list[Entry]:
        """Return the last things that a run has done since an entry, oldest first."""
        query = LogQuery(agents=(run_id,), types=("Activity",), after_seq=after or None, limit=20)
        return list((await self.search(query)).entries[::-1])

    async def follow(self, query: LogQuery) -> AsyncIterator[Entry]:
        """Yield matching entries as they are written, oldest first, without end."""
        seen = query.after_seq or 0
        while True:
            self.lines.clear()
            page = await self.search(replace(query, after_seq=seen, limit=1_000_000))
            for entry in page.entries[::-1]:
                yield entry
            seen = max(seen, page.upto)
            await self.transport.wait_for_entry(seen)

    async def note_shown(self, command: str, shown: Sequence[RunRecord]) -> None:
        """See that the log says which results a command has shown."""
        await self.transport.note_shown(command, shown)


@asynccontextmanager
async def open_records(
    server: RemoteServer | None, root: Callable[[], DataRoot], *, make: bool = False
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
    return None if log.needs_recovery() else Records(MemoryTransport(root, log, instances))


@asynccontextmanager
async def open_to_show(server: RemoteServer | None, root: Callable[[], DataRoot]) -> AsyncGenerator[Records]:
    """Open what a command only shows: the server, or without one the data root, if possible without opening it."""
    place = None if server is not None else root()
    if place is not None and has_log(place):
        from ava_audit.store.sqlite import backend_of

        with contextlib.closing(backend_of(place.path).instances(place.instances)) as instances:
            looked = look_at_records(place, instances)
            if looked is not None:
                yield looked
                return
    async with open_records(server, root) as records:
        yield records


@asynccontextmanager
async def open_server_records(server: RemoteServer) -> AsyncGenerator[Records]:
    """Open a server's records. Raises AvaError: it cannot be used, or what it answered cannot be shown."""
    async with _reached(server) as transport:
        yield Records(transport)


async def ask_server(server: RemoteServer, kind: type[T], path: str, method: str = "GET", body: Any = None) -> T:
    """Return what a server answers about its users. Raises AvaError: it does not, or refuses, or it cannot be shown."""
    async with _reached(server) as transport:
        doubt = "" if method == "GET" else "It may still have been carried out: see `ava user list`."
        return validated(kind, await transport.connection.request(method, path, body=body, doubt=doubt))


@asynccontextmanager
async def _reached(server: RemoteServer) -> AsyncGenerator[HttpTransport]:
    """Connect to a server. Raises AvaError: it cannot be used, or what it answered cannot be shown."""
    try:
        async with connected(server) as connection:
            yield HttpTransport(connection)
    except Exception as error:
        leaves = list(leaves_of(error))
        if not all(isinstance(leaf, _WRONG) for leaf in leaves):
            raise
        raise ConfigError(
            f"The answer of {server.address} cannot be shown ({type(leaves[0]).__name__}). Does it run another version"
            " of Ava? Update the older one."
        ) from error
