"""What carries a command's requests to what answers them: this process, or the server of `--url`.

The requests, and what answers them in both, are in `service/record_requests.py`. What differs is here and nowhere else:
how a request gets there, when it is worth asking again, and that the texts of a server are cleaned.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, cast

import anyio
from pydantic import TypeAdapter

from ava_audit.entries import entry_of_line
from ava_audit.errors import AuditError, StoreUnavailable
from ava_audit.search import LogQuery
from ava_roles.wrap import clean
from ava_server.cli.log_access import find_runs, note_fetched, read_settings, terminal_session
from ava_server.cli.log_look import LogLook, NoLog
from ava_server.cli.terminal import Place, tell
from ava_server.core.commands import advice_there
from ava_server.core.data_root import DataRoot, os_user
from ava_server.core.errors import AvaError
from ava_server.service import record_requests as requests

if TYPE_CHECKING:
    from ava_audit.redaction import Redactor
    from ava_audit.rows import RunRow
    from ava_audit.store.backend import Instances
    from ava_audit.store.store import Store
    from ava_audit.view import Readable
    from ava_server.budget.user_limits import DayCaps
    from ava_server.cli.remote import Connection
    from ava_server.render.run_view import RunView
    from ava_server.runs.manager import Manager
    from ava_server.service.records import RunRecord

P = ParamSpec("P")
T = TypeVar("T")
AGAIN_S = 0.7
"""How often a server is asked for news."""


class Transport(Protocol):
    """Carries requests to what answers them.

    Attributes:
        place: Where that is: a data root, or the address of a server.
        every_s: How often a screen that waits should look.
    """

    place: Place
    every_s: float

    async def send(self, request: requests.RecordRequest[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the answer. Raises AvaError, AuditError: there is none; ValueError: it has another form."""
        ...

    async def wait_for_entry(self, after: int) -> None:
        """Return when the log has an entry with a higher number, or may have."""
        ...

    async def note_shown(self, command: str, shown: Sequence[RunRecord]) -> None:
        """See that the log says which results a command has shown."""
        ...


# -- this process ------------------------------------------------------------------------------------------------------


class MemoryTransport:
    """Has requests answered in this process, on the log of a data root: its owner may read everything in it.

    Args:
        root: The data root.
        store: Its log, a `Store` for what waits or writes.
        instances: The live processes; None if nothing asks about them.
        manager: This process's own, where it has one: it knows more than the log.
    """

    every_s = 0.2

    def __init__(
        self, root: DataRoot, store: Readable, instances: Instances | None = None, manager: Manager | None = None
    ) -> None:
        self.place: Place = root
        self._root = root
        self._store = store
        reader = requests.Reader(os_user(), (), audits=True, caps=partial(_caps, root))
        self._handler = _OwnersHandler(
            store,
            reader,
            cast("Instances", instances),
            partial(_known_secrets, root),
            settings=partial(read_settings, root),
            owner=reader.user,
            served=instances.any_alive if instances is not None else bool,
            manager=manager,
        )

    async def send(self, request: requests.RecordRequest[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
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
        """Open the log to write, where it was only looked at until now. Raises AuditError: it cannot be written."""
        if not isinstance(self._store, LogLook):
            yield cast("Store", self._store)
            return
        from ava_audit.store.store import Store

        async with Store.open(self._root.path) as store:
            yield store


class _OwnersHandler(requests.RecordsHandler):
    """Answers the owner of the data root: an id that is unknown or mistyped is answered with a similar one."""

    async def find(self, ids: Sequence[str], *, groups: bool) -> list[RunRow]:
        try:
            return await find_runs(self.store, ids, groups=groups)
        except NoLog:
            return await find_runs(None, ids, groups=groups)

    async def find_last(self, *, unended: bool) -> RunRow | None:
        try:
            return await super().find_last(unended=unended)
        except NoLog:
            return None


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


# -- a server ----------------------------------------------------------------------------------------------------------


class HttpTransport:
    """Sends requests to a server, which answers as far as the token's user may read.

    What it returns can be shown: texts are cleaned, and commands in them name the server.

    Args:
        connection: The server.
    """

    every_s = AGAIN_S

    def __init__(self, connection: Connection) -> None:
        self.place: Place = connection.address
        self.connection = connection

    async def send(self, request: requests.RecordRequest[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Raises AvaError: the server does not answer, or refuses; ValueError: the answer is of another version."""
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
        answer = validated(kind, await self.connection.request("GET", path, params=params))
        return self._to_show(answer)

    async def wait_for_entry(self, after: int) -> None:
        del after  # the next request asks for what is newer
        await anyio.sleep(AGAIN_S)

    async def note_shown(self, command: str, shown: Sequence[RunRecord]) -> None:
        """The server has done so when it answered."""

    def _to_show(self, answer: T) -> T:
        """Return an answer whose commands name the server. Raises ValueError: it cannot be shown."""
        from ava_server.budget.run_config import config_of
        from ava_server.service.records import CurrentRuns, ListedRuns, RunRecord

        found: Any = answer
        match found:
            case ListedRuns():
                found = ListedRuns(self._named(found.runs))
            case CurrentRuns():
                found = replace(found, runs=tuple(self._named(found.runs)))
            case RunRecord():
                config_of(found.row.config)  # of a newer Ava, it could not be shown
                if found.answer.waits_for is not None:
                    found.answer.waits_for = advice_there(found.answer.waits_for, self.connection.command)
            case requests.LogLines():
                for line in found.lines:
                    _refuse_unshowable(line.encode().rstrip(b"\n"))
            case _:
                pass
        return cast("T", found)

    def _named(self, runs: Iterable[RunView]) -> list[RunView]:
        command = self.connection.command
        return [replace(run, wait=replace(run.wait, command=command)) if run.wait is not None else run for run in runs]


def _refuse_unshowable(line: bytes) -> None:
    """Raises ValueError: it is not a line of a log, or could steer a terminal."""
    entry = entry_of_line(line)
    who = entry.who
    named = (entry.type, entry.run_id or "", who.session_id, who.agent_id, who.user_id)
    if b"\n" in line or any(clean(text)[0] != text for text in named):
        raise ValueError("it is not a line of a log")
    _ = entry.fact  # raises if it is not one of its type


def validated(kind: type[T], answer: Any) -> T:
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
