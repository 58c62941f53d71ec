"""Reading a data root from the command line.

`open_log` opens the log as a server does; `open_snapshot` only looks: it creates and migrates nothing, and takes no
write lock. `record_setting` writes the one event that commands add themselves.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import anyio.to_thread

from ava_audit.errors import AuditError, DataRootRefused, StoreUnavailable
from ava_server.cli.app import refuse_in_subagent
from ava_server.cli.options import parse_any_id
from ava_server.cli.terminal import heading, tell
from ava_server.core.data_root import DataRoot, find_data_root, has_log, in_postgres, os_user
from ava_server.core.errors import BadInput

if TYPE_CHECKING:
    from ava_audit.database import Database
    from ava_audit.rows import RunRow
    from ava_audit.store.store import Store
    from ava_audit.view import Query, Readable, View
    from ava_server.config.settings import Settings
    from ava_server.service.access import Session

T = TypeVar("T")
BUSY_S = 1.0
LOOKS = 3
"""How often a look at the log is begun, where other processes open and close it meanwhile."""
_LONGEST_ID = 20
_ENOUGH_DIGITS = 3
"""This many digits of an id are enough to suggest the whole."""


def read_settings(root: DataRoot | None = None) -> Settings:
    """After `checked_root`, whose errors are clearer. The import is slow. Raises ConfigError, as `load_settings`."""
    from ava_server.config.settings import load_settings

    return load_settings(None if root is None else root.path)


def checked_root(command: str | None = None, *, show: bool = True) -> DataRoot:
    """Return the data root if it can be used, and print it as the screen's first line.

    `command` is one that subagents may not call. Raises BadInput: one does; ConfigError: the data root cannot be used.
    """
    if command is not None:
        refuse_in_subagent(command)
    root = find_data_root()
    has_log(root)
    if show:
        heading(root)
    return root


@asynccontextmanager
async def open_log(root: DataRoot, *, make: bool = False) -> AsyncGenerator[Store | None]:
    """Open the log to read it; None if there is none, unless `make` creates it. Raises ConfigError."""
    from ava_audit.store.store import Store

    if make:
        await anyio.to_thread.run_sync(root.create)
    elif not await anyio.to_thread.run_sync(has_log, root):
        yield None
        return
    async with Store.open(root.path) as store:
        yield store


async def find_run(store: Readable | None, given: str) -> RunRow:
    """Return the run with this id, or of the proposal with it. Raises BadInput: there is none."""
    [run] = await _find(store, given)
    return run


async def find_runs(store: Readable | None, given: list[str], *, groups: bool = True) -> list[RunRow]:
    """Return the runs with these ids of subagents, proposals and (with `groups`) groups, each once.

    Raises BadInput: one is not an id, or nothing has it.
    """
    found = [run for one in given for run in await _find(store, one, groups=groups)]
    return list({run.id: run for run in found}.values())


async def _find(store: Readable | None, given: str, *, groups: bool = False) -> list[RunRow]:
    try:
        field, wanted = parse_any_id(given, groups=groups)
    except BadInput as error:
        raise BadInput(f"{error}{await _suggestion(store, given, groups)}") from None

    def query(view: View) -> list[RunRow]:
        if field == "group_id":
            return view.group_runs(wanted)
        proposal = view.proposal(wanted) if field == "pending_id" else None
        run = view.run(proposal.run_id if proposal is not None else wanted)
        return [run] if run is not None else []

    runs = await store.read(query) if store is not None else []
    if not runs:
        what = "group" if field == "group_id" else "subagent"
        raise BadInput(
            f"There is no {what} {wanted} in this data root.{await _suggestion(store, wanted, groups)}"
            " `ava logs --type spawn` lists all that were proposed."
        )
    return runs


async def _suggestion(store: Readable | None, given: str, groups: bool) -> str:
    """Return a sentence that suggests a similar id; empty without one."""
    from ava_server.core.ids import nearest

    if store is None or len(given) > _LONGEST_ID:
        return ""
    rows = list(reversed(await store.read(lambda view: view.runs())))
    ids = [row.id for row in rows] + [row.pending_id for row in rows]
    ids += [row.group_id for row in rows if groups and row.group_id is not None]
    typed = given.strip().casefold()
    near = None
    if len(typed.partition("-")[2] or typed) >= _ENOUGH_DIGITS:
        near = next((one for one in ids if one.casefold().startswith(typed) or one[2:].startswith(typed)), None)
    near = near or nearest(given, ids, cutoff=0.8)
    return f" Did you mean {near}?" if near is not None else ""


async def note_fetched(store: Store, session: Session, tool: str, run: RunRow) -> None:
    """So that no notification announces the result again; nothing for another user's run."""
    from ava_audit.store.store import Outcome
    from ava_server.render.run_view import carried

    if run.result_seq is None or run.user_id != session.user:
        return
    event = carried(session.who, tool, run.id)
    await store.do(lambda _view, _now_us: Outcome(None, (event,)))


def terminal_session() -> Session:
    from ava_server.service.access import Session

    return Session(user=os_user(), transport="terminal", client="ava", channel="terminal")


async def record_setting(
    root: DataRoot, setting: str, before: str | Mapping[str, Any] | None, after: str | Mapping[str, Any] | None
) -> None:
    """Log a change without its secret; if the log cannot be written, the change stays."""
    from ava_audit.events import Event, SettingsChanged
    from ava_audit.store.store import Store, append

    fact = SettingsChanged(setting=setting, before=before, after=after)
    try:
        async with Store.open(root.path) as store:
            await store.do(append(Event(terminal_session().who, fact)))
    except AuditError as error:
        tell(f"This change is not in the log: {error}")


@dataclass(frozen=True)
class LogSnapshot:
    """An open log: its state, its schema, and whether its newest entries are missing.

    What was read counts only if `changed` is still false afterwards: a database file that is read alone may be changed
    by a process that has opened it since, and what is then read of it belongs to no one state, or looks damaged.
    """

    db: Database
    view: View
    schema: int
    partial: bool
    changed: Callable[[], bool] = bool

    @property
    def whole(self) -> bool:
        """Whether this version can read all of it; else only a `Store` shows that."""
        from ava_audit.store.schema import SCHEMA_VERSION

        return self.schema == SCHEMA_VERSION and not self.partial


class Snapshot:
    """A log that is read in this thread, without an event loop; a `Readable`."""

    def __init__(self, path: Path, found: LogSnapshot) -> None:
        self._path = path
        self._found: LogSnapshot | None = found

    async def read(self, query: Query[T], /, *, within_s: float | None = None, short: bool = False) -> T:
        """Ctrl-C ends a query that takes long. Raises StoreUnavailable: the database cannot be read."""
        import sqlite3

        del within_s, short
        try:
            if (found := self._found) is not None:
                with _unless_changed(found):
                    value = query(found.view)
                    if not found.changed():
                        return value
                self._found = None  # each further query opens the log again
            return look_at_log(self._path, lambda found: query(_usable(found)))
        except (sqlite3.Error, OSError) as error:
            raise _unreadable(error, self._path) from error


def _unreadable(error: Exception, path: Path) -> StoreUnavailable:
    import sqlite3

    from ava_audit.store.connection import advice, disk_fault

    why = disk_fault(error, path)
    if why is None:
        why = f"{error}; {advice(error) if isinstance(error, sqlite3.Error) else '`ava doctor` tells more'}"
    return StoreUnavailable(f"the log cannot be read: {why}")


def _usable(found: LogSnapshot) -> View:
    """Raises OSError: opened again, the log is one that only a `Store` shows whole."""
    if not found.whole:
        raise OSError("another process has changed it meanwhile; run the command again")
    return found.view


@contextmanager
def _unless_changed(found: LogSnapshot) -> Generator[None]:
    """Let an error of a query pass, unless it may be due to a change of the file."""
    try:
        yield
    except Exception:
        if not found.changed():
            raise


def look_at_log(path: Path, use: Callable[[LogSnapshot], T]) -> T:
    """Return what `use` finds; it is used again if a process has opened or closed the log meanwhile.

    Raises OSError, sqlite3.Error: the log cannot be read.
    """
    import sqlite3

    for left in reversed(range(LOOKS)):
        try:
            with open_snapshot(path) as found, _unless_changed(found):
                value = use(found)
                if not found.changed():
                    return value
        except (sqlite3.Error, OSError) as error:
            # The files beside it may have come or gone between the look for them and their opening.
            if not left or "locked" in str(error) or in_postgres(DataRoot(path.parent)):
                raise
    raise OSError("other processes open and close it all the time; try again")


class NoLog(BadInput):
    """There is no log yet."""


class ClosedLog:
    """A log that is opened in this thread for each query, only to look at it; a `Readable`.

    Args:
        root: The data root.
    """

    def __init__(self, root: DataRoot) -> None:
        self._root = root

    async def read(self, query: Query[T], /, *, within_s: float | None = None, short: bool = False) -> T:
        """Raises NoLog: there is none yet; otherwise as `read_log`."""
        del within_s, short
        found = read_log(self._root, lambda log: (query(log.view),))
        if found is None:
            raise NoLog(f"there is no log in {self._root.path} yet")
        return found[0]


def read_log(root: DataRoot, use: Callable[[LogSnapshot], T]) -> T | None:
    """Return what `use` finds in a log that is only looked at; None where there is none yet.

    Raises ConfigError: the data root cannot be used; DataRootRefused: it holds no log; SchemaOlder, SchemaNewer: it
    has another schema; StoreUnavailable: unreadable.
    """
    import sqlite3

    from ava_audit.store.backend import OlderSchema
    from ava_audit.store.schema import needs_migration

    def checked(found: LogSnapshot) -> T | None:
        if found.schema == 0 and (in_postgres(root) or root.db.stat().st_size == 0):
            return None  # another process is about to make it
        if found.schema == 0:
            raise DataRootRefused(f"{root.db} is not a log: its beginning is gone (`ava doctor` tells more)")
        needs_migration(found.schema, str(root.db), OlderSchema.REFUSE)
        return use(found)

    if not has_log(root):
        return None
    try:
        return look_at_log(root.db, checked)
    except (sqlite3.Error, OSError) as error:
        raise _unreadable(error, root.db) from error


@contextmanager
def open_to_look(root: DataRoot) -> Generator[Snapshot | None]:
    """Open a log in this thread; None if there is none, or only a `Store` shows all of it.

    That is a log in Postgres, one of another version, or one whose newest entries have to be recovered.
    """
    import sqlite3

    with contextlib.ExitStack() as stack:
        usable = None
        if has_log(root) and not in_postgres(root):
            with contextlib.suppress(sqlite3.Error, OSError):  # the `Store` meets the same, and says what to do
                found = stack.enter_context(open_snapshot(root.db))
                if found.whole:
                    usable = Snapshot(root.db, found)
        yield usable


def run_at_once(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that waits for nothing, as one with a `Snapshot`: importing an event loop takes a while."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise RuntimeError("it waits for something")


@contextmanager
def open_snapshot(path: Path) -> Generator[LogSnapshot]:
    """Open a log to look at it, without creating a file beside it.

    SQLite creates the two files of a database in use if they are missing. If they are, or nothing is in the first of
    them, the database file alone is read: it has everything, as long as `changed` of the snapshot is false.
    `look_at_log` heeds that.
    """
    import sqlite3

    from ava_audit.store.connection import SqliteDatabase, uri_of
    from ava_audit.view import View

    if in_postgres(DataRoot(path.parent)):
        from ava_audit.store.sqlite import backend_of

        backend = backend_of(path.parent)
        try:
            with contextlib.closing(backend.open_to_check()) as remote:
                remote.begin_read()
                yield LogSnapshot(remote, View(remote), remote.schema_version(), partial=False)
        except backend.error as error:
            raise OSError(f"{backend.place}: {error}") from error
        return
    if not path.is_file():  # opening a pipe would wait for ever
        raise OSError("it is not a regular file")
    wal, shared = (path.with_name(path.name + end) for end in ("-wal", "-shm"))

    def state() -> tuple[bool, int, int, int]:
        file = path.stat()
        in_use = wal.is_file() and shared.is_file() and wal.stat().st_size > 0  # empty ones are left by a full disk
        return in_use, file.st_ino, file.st_size, file.st_mtime_ns

    def changed() -> bool:
        try:
            return not in_use and state() != before
        except OSError:
            return True

    before = state()
    in_use = before[0]
    uri = uri_of(path, f"mode=ro{'' if in_use else '&immutable=1'}")
    opened = sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None, factory=SqliteDatabase)
    with contextlib.closing(opened) as db:
        db.execute("BEGIN")
        partial = not in_use and wal.exists() and wal.stat().st_size > 0
        yield LogSnapshot(db, View(db), db.schema_version(), partial, changed)
