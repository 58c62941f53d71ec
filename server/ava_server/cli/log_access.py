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


async def find_run(store: Readable | None, given: str) -> RunRow:
    """Return the run with this id, or of the proposal with it. Raises BadInput: it is not an id, or nothing has it."""
    try:
        field, wanted = parse_any_id(given)
    except BadInput as error:
        raise BadInput(f"{error}{await _suggestion(store, given)}") from None

    def query(view: View) -> RunRow | None:
        proposal = view.proposal(wanted) if field == "pending_id" else None
        return view.run(proposal.run_id if proposal is not None else wanted)

    run = await store.read(query) if store is not None else None
    if run is None:
        what = "plan" if field == "group_id" else "subagent"
        raise BadInput(
            f"There is no {what} {wanted} in this data root.{await _suggestion(store, wanted)}"
            " `ava logs --type spawn` lists all that were proposed."
        )
    return run


async def find_runs(store: Readable | None, given: Sequence[str]) -> list[RunRow]:
    """Return the runs with these ids of subagents, plans and proposals, each once.

    Raises BadInput if one is not an id, or nothing has it.
    """
    found = [await find_run(store, one) for one in given]
    return list({run.id: run for run in found}.values())


async def _suggestion(store: Readable | None, given: str) -> str:
    """Return a sentence that suggests a similar id; empty without one."""
    from ava_server.core.ids import nearest

    if store is None or len(given) > _LONGEST_ID:
        return ""
    rows = list(reversed(await store.read(lambda view: view.runs())))
    ids = [row.id for row in rows] + [row.pending_id for row in rows]
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
