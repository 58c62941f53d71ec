"""Reading a data root from the command line.

`open_log` opens the log as a server does; what only looks is in `log_look.py`. `record_setting` writes the one event
that commands add themselves.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from ava_audit.errors import AuditError
from ava_server.cli.app import refuse_in_subagent
from ava_server.cli.terminal import heading, tell
from ava_server.core.data_root import DataRoot, find_data_root, has_log, os_user
from ava_server.core.errors import BadInput
from ava_server.core.ids import parse_any_id

if TYPE_CHECKING:
    from ava_audit.rows import RunRow
    from ava_audit.store.store import Store
    from ava_audit.view import Readable, View
    from ava_server.config.settings import Settings
    from ava_server.service.access import Session

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
    has_log(root, writes=True)
    if show:
        heading(root)
    return root


@asynccontextmanager
async def open_log(root: DataRoot, *, make: bool = False) -> AsyncGenerator[Store | None]:
    """Open the log to read it; None if there is none, unless `make` creates it. Raises ConfigError."""
    from ava_audit.store.store import Store

    if make:
        await anyio.to_thread.run_sync(root.create)
    elif not await anyio.to_thread.run_sync(partial(has_log, root, writes=True)):
        yield None
        return
    async with Store.open(root.path) as store:
        yield store


async def find_run(store: Readable | None, text: str) -> RunRow:
    """Return the run with this id, or of the proposal with it. Raises BadInput: it is not an id, or nothing has it."""
    try:
        field, run_id = parse_any_id(text)
    except BadInput as error:
        raise BadInput(f"{error}{await _suggestion(store, text)}") from None

    def query(view: View) -> RunRow | None:
        if field == "pending_id":
            proposal = view.proposal(run_id)
            if proposal is not None:
                return view.run(proposal.run_id)
        return view.run(run_id)

    run = None
    if store is not None:
        run = await store.read(query)
    if run is None:
        what = "plan" if field == "group_id" else "subagent"
        raise BadInput(
            f"There is no {what} {run_id} in this data root.{await _suggestion(store, run_id)}"
            " `ava logs --type spawn` lists all that were proposed."
        )
    return run


async def find_runs(store: Readable | None, ids: Sequence[str]) -> list[RunRow]:
    """Return the runs with these ids of subagents, plans and proposals, each once.

    Raises BadInput if one is not an id, or nothing has it.
    """
    runs: dict[str, RunRow] = {}
    for one in ids:
        run = await find_run(store, one)
        runs.setdefault(run.id, run)
    return list(runs.values())


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


async def _suggestion(store: Readable | None, text: str) -> str:
    """Return a sentence that suggests a similar id; empty without one."""
    from ava_server.core.ids import nearest

    if store is None or len(text) > _LONGEST_ID:
        return ""
    rows = list(reversed(await store.read(lambda view: view.runs())))
    ids = [row.id for row in rows] + [row.pending_id for row in rows]
    similar = _first_that_begins(ids, text.strip().casefold()) or nearest(text, ids, cutoff=0.8)
    if similar is None:
        return ""
    return f" Did you mean {similar}?"


def _first_that_begins(ids: Sequence[str], text: str) -> str | None:
    """Return the first id that begins with a text, with or without its letter; None if the text is too short."""
    digits = text.partition("-")[2] or text
    if len(digits) < _ENOUGH_DIGITS:
        return None
    for one in ids:
        if one.casefold().startswith(text) or one[2:].startswith(text):
            return one
    return None
