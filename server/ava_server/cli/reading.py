"""Looking at a data root from the command line: its log, and a run with its whole result."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio.to_thread

from ava_audit.store.store import Outcome, Store
from ava_audit.view import View
from ava_server.cli.root import has_log
from ava_server.core.data_root import os_user
from ava_server.core.errors import BadInput

if TYPE_CHECKING:
    from ava_audit.rows import RunRow
    from ava_server.core.data_root import DataRoot
    from ava_server.service.access import Session
    from ava_server.service.responses import RunAnswer
    from ava_server.service.run_view import Alive


_LONGEST_ID = 20
_TELLING = 3
"""So many digits of an id tell which one is meant."""


@asynccontextmanager
async def open_log(root: DataRoot, *, make: bool = False) -> AsyncGenerator[Store | None]:
    """Open the log to read it; None where there is none yet, because looking shall not make one.

    Args:
        root: The data root.
        make: Make it all the same: for whoever waits for what is to come.

    Raises:
        ConfigError: The data root can be none.
    """
    if make:
        await anyio.to_thread.run_sync(root.create)
    elif not await anyio.to_thread.run_sync(has_log, root):
        yield None
        return
    async with Store.open(root.path) as store:
        yield store


async def find_run(store: Store | None, given: str) -> RunRow:
    """Return the run that a person means by its id, or by its proposal's.

    Raises:
        BadInput: It is no id, or there is no such run.
    """
    [run] = await _found(store, given)
    return run


async def find_runs(store: Store | None, given: list[str]) -> list[RunRow]:
    """Return the runs that a person means by ids of subagents, proposals and groups; each once.

    Raises:
        BadInput: One is no id, or there is nothing of that id.
    """
    found = [run for one in given for run in await _found(store, one, groups=True)]
    return list({run.id: run for run in found}.values())


async def _found(store: Store | None, given: str, *, groups: bool = False) -> list[RunRow]:
    from ava_server.cli.asked import which_id

    try:
        field, wanted = which_id(given, groups=groups)
    except BadInput as error:
        raise BadInput(f"{error}{await _meant(store, given, groups)}") from None

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
            f"There is no {what} {wanted} in this data root.{await _meant(store, wanted, groups)}"
            " `ava logs --type spawn` tells of all that were proposed."
        )
    return runs


async def _meant(store: Store | None, given: str, groups: bool) -> str:
    """Return the id that somebody may have meant, as a sentence; nothing where none is like it."""
    from ava_server.core.ids import nearest

    if store is None or len(given) > _LONGEST_ID:
        return ""
    rows = await store.read(lambda view: view.runs())
    ids = [row.id for row in reversed(rows)] + [row.pending_id for row in reversed(rows)]
    ids += [row.group_id for row in reversed(rows) if groups and row.group_id is not None]
    typed = given.strip().casefold()
    begun = [one for one in ids if typed and (one.casefold().startswith(typed) or one[2:].startswith(typed))]
    if len(typed.partition("-")[2] or typed) >= _TELLING and begun:
        return f" Did you mean {begun[0]}?"
    near = nearest(given, ids, cutoff=0.8)
    return f" Did you mean {near}?" if near is not None else ""


async def whole_answer(store: Store, run_id: str, alive: Alive) -> tuple[RunRow, RunAnswer]:
    """Return a run as it is now, and as people see it, with the whole of its result."""
    from ava_server.service.run_view import run_answer, view_run

    def query(view: View) -> tuple[RunRow, RunAnswer]:
        run = view.run(run_id)
        assert run is not None
        return run, run_answer(view_run(view, run, alive, time.time_ns() // 1000))

    return await store.read(query)


async def note_fetched(store: Store, session: Session, tool: str, run: RunRow) -> None:
    """Put on record that a run's result was shown to its own user; nobody is told of it as news after that."""
    from ava_server.service.run_view import carried

    if run.result_seq is None or run.user_id != session.user:
        return
    event = carried(session.who, tool, run.id)
    await store.do(lambda _view, _now_us: Outcome(None, (event,)))


def terminal_session() -> Session:
    """Return a session of this user at the terminal."""
    from ava_server.service.access import Session

    return Session(user=os_user(), transport="terminal", client="ava", channel="terminal")
