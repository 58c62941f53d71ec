"""The same log in both databases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import anyio

from ava_audit.events import Event
from ava_audit.postgres.backend import PostgresBackend
from ava_audit.store.store import Outcome, Store
from ava_audit.transfer import export_log, import_log
from support.log import Life, plan_events, write_each
from support.postgres import PostgresServer


def varied_runs() -> Iterator[Event]:
    """Return runs in many states: with and without a plan, overrun, in doubt, failed, ended, of two users."""
    first = Life("S-aaaaaa")
    yield from plan_events("G-1", 900_000)
    yield from (first.proposal(task_id="task"), first.task(), first.approval("G-1"), first.claim())
    yield from (first.reservation(), first.settlement())
    yield from (
        first.reservation(2),
        first.settlement(cost=9_000),
        first.reservation(3),
        first.settlement(unknown=True),
    )
    yield from (*first.tool(success=False), first.error("\x00?"), first.error(), *first.ending())
    alone = Life("S-dddddd")
    yield from (*alone.beginning(), *alone.ending(), *Life("S-bbbbbb", "eve").beginning())
    yield Life("S-cccccc").proposal()


def make_twin_logs(server: PostgresServer, folder: Path) -> tuple[Path, Path]:
    """Make two data roots with the same log, one in ava.db, one in Postgres, and return them in this order."""
    here, there, file = folder / "here", folder / "there", folder / "log.jsonl"
    here.mkdir()
    there.mkdir()

    async def fill() -> None:
        async with Store.open(here, "") as store:
            await write_each(store, varied_runs())
            with file.open("wb") as lines:
                await export_log(store, lines, lambda _done, _of: None)

    anyio.run(fill)
    with file.open("rb") as lines:
        backend = PostgresBackend(there, server.database(there))
        imported = import_log(backend, lines, lambda _done, _of: None, lambda *_: Outcome(None))
    assert imported.report.ok
    return here, there
