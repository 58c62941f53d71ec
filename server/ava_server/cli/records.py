"""Where commands read runs and the log: from this machine's data root, or from the server of `--url`.

A command sends the same requests to either; `service/record_requests.py` has them, and what answers them in both. A
screen does not know which of them it shows.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

import anyio
from pydantic import TypeAdapter

from ava_audit.entries import Entry, entry_of_line
from ava_audit.errors import AuditError, StoreUnavailable
from ava_audit.search import EntryPage, LogQuery, follow
from ava_roles.wrap import clean
from ava_server.cli.app import leaves_of
from ava_server.cli.log_access import find_runs, note_fetched, open_log, read_settings, terminal_session
from ava_server.cli.log_look import LogLook
from ava_server.cli.options import parse_any_id
from ava_server.cli.remote import Connection, RemoteServer, Unreachable, connected
from ava_server.cli.terminal import Place, tell
from ava_server.core.commands import advice_there
from ava_server.core.data_root import DataRoot, has_log, os_user
from ava_server.core.errors import AvaError, BadInput, ConfigError
from ava_server.service import record_requests as requests

if TYPE_CHECKING:
    from ava_audit.redaction import Redactor
    from ava_audit.rows import RunRow
    from ava_audit.store.backend import Instances
    from ava_audit.store.store import Store
    from ava_audit.view import Readable
    from ava_server.budget.user_limits import DayCaps
    from ava_server.render.approvals import Decisions
    from ava_server.render.run_view import RunView
    from ava_server.runs.manager import Manager
    from ava_server.service.records import RunRecord

P = ParamSpec("P")
T = TypeVar("T")
GONE_S = 300.0
"""How long a wait survives a server that does not answer."""
AGAIN_S = 0.7
_WRONG = (ValueError, TypeError, LookupError, OverflowError, AttributeError)
"""What showing an answer raises that no Ava of this version gives."""


class Records:
    """The runs and the log that a command shows, by the requests of `service.record_requests`.

    `LocalRecords` has them answered in this process, `RemoteRecords` by a server.

    Attributes:
        names: The names of the runs that the entries mention which were found so far.
        lines: These entries as lines of the mirror, by their `seq`.
    """

    every_s = 0.2
    """How often a screen that waits should look."""
    place: Place
    store: Readable | None = None

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.lines: dict[int, bytes] = {}

    async def get(self, request: requests.RecordRequest[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        raise NotImplementedError

    async def find(self, ids: list[str], *, groups: bool = True) -> list[RunRow]:
        """Return the runs with these ids of subagents, proposals and (with `groups`) groups, each once.

        Raises BadInput: one is not an id, or nothing has it.
        """
        raise NotImplementedError

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
        raise NotImplementedError

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
            entries.append(self.read_line(data))
            self.lines[entries[-1].seq] = data
        return entries

    def read_line(self, line: bytes) -> Entry:
        """Raises ValueError: it is not a line of a log."""
        return entry_of_line(line)

    async def entries(self, run_id: str) -> list[Entry]:
        return list((await self.search(LogQuery(runs=(run_id,), limit=1_000_000))).entries[::-1])

    async def steps(self, run_id: str, after: int) -> list[Entry]:
        """Return the last things that a run has done since an entry, oldest first."""
        query = LogQuery(runs=(run_id,), types=("Activity",), after_seq=after or None, limit=20)
        return list((await self.search(query)).entries[::-1])

    def follow(self, query: LogQuery) -> AsyncIterator[Entry]:
        """Yield matching entries as they are written, without end."""
        raise NotImplementedError

    async def note_shown(self, command: str, shown: Sequence[RunRecord]) -> None:
        """Log which results a command has shown; a server has done that."""

    def wait_for_server(self, tell_gone: Callable[[str], None] | None) -> None:
        """From now on, wait up to `GONE_S` for a server that does not answer: it may be restarting. None ends it."""


class LocalRecords(Records):
    """The runs and the log of a data root: their owner may read everything in it.

    Args:
        root: The data root.
        store: Its log, a `Store` for what waits or writes; None if there is none yet.
        instances: The live processes; None if there is no log, or nothing asks about them.
        manager: This process's own, where it has one: it knows more than the log.
    """

    def __init__(
        self, root: DataRoot, store: Readable | None, instances: Instances | None = None, manager: Manager | None = None
    ) -> None:
        super().__init__()
        self.place = self._root = root
        self.store = store
        reader = requests.Reader(os_user(), (), audits=True, caps=partial(_caps, root))
        served = instances.any_alive if instances is not None else bool
        hides = partial(_known_secrets, root)
        # It is asked only once a run was found or the log was seen, so there is a log.
        log, processes = cast("Readable", store), cast("Instances", instances)
        self.handler = requests.RecordsHandler(
            log,
            reader,
            processes,
            hides,
            settings=partial(read_settings, root),
            owner=reader.user,
            served=served,
            manager=manager,
        )

    async def get(self, request: requests.RecordRequest[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await request.answer(self.handler, *args, **kwargs)

    async def find(self, ids: list[str], *, groups: bool = True) -> list[RunRow]:
        return await find_runs(self.store, ids, groups=groups)

    async def find_last(self, *, unended: bool = False) -> RunRow | None:
        """It needs no view of the run."""
        if self.store is None:
            return None
        return await self.store.read(lambda view: requests.last_run_in(view, os_user(), unended=unended))

    async def note_shown(self, command: str, shown: Sequence[RunRecord]) -> None:
        session = terminal_session()
        rows = [one.row for one in shown if one.answer.untrusted_result is not None]  # an erased one is not shown
        if not rows:
            return
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
        """Open the log to write, where it was only looked at until now. Raises AuditError: it cannot be written."""
        if not isinstance(self.store, LogLook):
            yield cast("Store", self.store)
            return
        from ava_audit.store.store import Store

        async with Store.open(self._root.path) as store:
            yield store

    async def diff(self, run: RunRow) -> str:
        """Git's own files are in the data root."""
        from ava_roles.sandbox.temporary import temporary_files_in

        with temporary_files_in(self._root.temporary):
            return await super().diff(run)

    async def steps(self, run_id: str, after: int) -> list[Entry]:
        """Five times a second, so without the text index."""
        return await self.handler.store.read(lambda view: view.entries(run_id, after, ("Activity",)))

    async def follow(self, query: LogQuery) -> AsyncIterator[Entry]:
        async for entry in follow(cast("Store", self.store), query):
            self.lines.clear()
            self.keep(await self.handler.lines_of([entry]))
            yield entry


class RemoteRecords(Records):
    """The runs and the log of a server, as far as the token's user may read them.

    What it returns is cleaned: the server's texts cannot steer a terminal.

    Args:
        connection: The server.
    """

    every_s = AGAIN_S

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self.connection = connection
        self.place = connection.address
        self._tell_gone: Callable[[str], None] | None = None

    async def get(self, request: requests.RecordRequest[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Raises AvaError: the server does not answer, or refuses, or the answer is of another version."""
        from pkgutil import resolve_name

        assert not args, "the parameters of a request have names"
        kind: type[T] = resolve_name(request.kind)
        as_json = partial(TypeAdapter(LogQuery).dump_json, exclude_defaults=True, exclude_none=True)
        path = request.path.format(**kwargs)
        params = {
            name: as_json(value).decode() if isinstance(value, LogQuery) else value
            for name, value in kwargs.items()
            if f"{{{name}}}" not in request.path and value is not None and value is not False
        }
        until = time.monotonic() + GONE_S
        while True:
            try:
                return _validated(kind, await self.connection.request("GET", path, params=params))
            except Unreachable as error:
                if self._tell_gone is None or time.monotonic() > until:
                    raise
                self._tell_gone(f"Waiting for the server: {error}")
            await anyio.sleep(AGAIN_S)

    async def find(self, ids: list[str], *, groups: bool = True) -> list[RunRow]:
        return [run.row for run in await self.views([parse_any_id(one, groups=groups)[1] for one in ids])]

    async def find_last(self, *, unended: bool = False) -> RunRow | None:
        runs = (await self.get(requests.LISTED, last="unended" if unended else "any")).runs
        return runs[0].row if runs else None

    async def views(self, run_ids: Sequence[str]) -> list[RunView]:
        return self.there(await super().views(run_ids))

    def there(self, runs: Iterable[RunView]) -> list[RunView]:
        """Return runs of the server, whose commands name it."""
        command = self.connection.command
        return [replace(run, wait=replace(run.wait, command=command)) if run.wait is not None else run for run in runs]

    async def record(self, run_id: str, *, shown: bool = True) -> RunRecord:
        from ava_server.budget.run_config import config_of

        found = await super().record(run_id, shown=shown)
        config_of(found.row.config)  # of a newer Ava, it could not be shown
        if found.answer.waits_for is not None:
            found.answer.waits_for = advice_there(found.answer.waits_for, self.connection.command)
        return found

    def read_line(self, line: bytes) -> Entry:
        """Raises ValueError: it is not a line of a log, or could steer a terminal."""
        entry = entry_of_line(line)
        who = entry.who
        named = (entry.type, entry.run_id or "", who.session_id, who.agent_id, who.user_id)
        if b"\n" in line[:-1] or any(clean(text)[0] != text for text in named):
            raise ValueError("it is not a line of a log")
        _ = entry.fact  # raises if it is not one of its type
        return entry

    async def follow(self, query: LogQuery) -> AsyncIterator[Entry]:
        seen = query.after_seq or 0
        while True:
            self.lines.clear()
            page = await self.search(replace(query, after_seq=seen, limit=1_000_000))
            for entry in page.entries[::-1]:
                yield entry
            seen = max(seen, page.upto)
            await anyio.sleep(AGAIN_S)

    def wait_for_server(self, tell_gone: Callable[[str], None] | None) -> None:
        self._tell_gone = tell_gone


def _validated(kind: type[T], answer: Any) -> T:
    """Texts are cleaned. Raises ValueError: it has another form."""
    return TypeAdapter(kind).validate_python(_cleaned(answer))


def _cleaned(value: Any) -> Any:
    """The lines of a log are checked one by one, and stay as they are."""
    if isinstance(value, str):
        return clean(value)[0]
    if isinstance(value, list):
        return [_cleaned(one) for one in cast("list[Any]", value)]
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return {clean(name)[0]: one if name == "lines" else _cleaned(one) for name, one in fields.items()}
    return value


def _caps(root: DataRoot) -> DayCaps:
    from ava_server.budget.user_limits import day_caps

    return day_caps(read_settings(root), os_user())


def _known_secrets(root: DataRoot) -> Redactor:
    """Return a redactor that knows the stored keys and secrets, as far as they can be read. Blocking."""
    from ava_server.config.credentials import Credentials

    credentials = Credentials(read_settings(root))
    with contextlib.suppress(AvaError):
        _models = credentials.models
    with contextlib.suppress(AvaError):
        _secrets = credentials.secrets
    return credentials.redactor


@asynccontextmanager
async def open_records(
    server: RemoteServer | None, root: Callable[[], DataRoot], *, make: bool = False
) -> AsyncGenerator[Records]:
    """Open the server, or without one the data root; `make` creates a missing log, to wait for its first entries."""
    if server is not None:
        async with open_remote_records(server) as records:
            yield records
        return
    place = root()
    async with open_log(place, make=make) as store:
        with contextlib.ExitStack() as open_with_it:
            instances = None
            if store is not None:
                instances = open_with_it.enter_context(contextlib.closing(store.instances(place.instances)))
            yield LocalRecords(place, store, instances)


def look_at_records(root: DataRoot, instances: Instances | None = None) -> LocalRecords | None:
    """Return the records of a log that is only looked at; None where only a `Store` shows all of it."""
    if not has_log(root):
        return LocalRecords(root, None)
    log = LogLook(root)
    return None if log.needs_recovery() else LocalRecords(root, log, instances)


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
async def open_remote_records(server: RemoteServer) -> AsyncGenerator[RemoteRecords]:
    """Open a server's records. Raises AvaError: it cannot be used, or what it answered cannot be shown."""
    try:
        async with connected(server) as connection:
            yield RemoteRecords(connection)
    except Exception as error:
        leaves = list(leaves_of(error))
        if not all(isinstance(leaf, _WRONG) for leaf in leaves):
            raise
        raise ConfigError(
            f"The answer of {server.address} cannot be shown ({type(leaves[0]).__name__}). Does it run another version"
            " of Ava? Update the older one."
        ) from error


async def ask_server(server: RemoteServer, kind: type[T], path: str, method: str = "GET", body: Any = None) -> T:
    """Return what a server answers about its users. Raises AvaError: it does not, or refuses, or it cannot be shown."""
    async with open_remote_records(server) as records:
        doubt = "" if method == "GET" else "It may still have been carried out: see `ava user list`."
        return _validated(kind, await records.connection.request(method, path, body=body, doubt=doubt))
