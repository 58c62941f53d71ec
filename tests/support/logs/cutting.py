"""A log that ends behind some entry, as a kill at that moment leaves it; and a newer program that reads a log.

async with go_on_from(tmp_path / "cut", entries[:40], server) as lab:
    await lab.ended(run_id)
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ava_audit.database import Database
from ava_audit.entries import Entry
from ava_audit.events import Event, Fence
from ava_audit.store import schema, sqlite, writer
from ava_audit.store.schema import SCHEMA_VERSION
from ava_audit.store.store import Outcome, Store
from ava_server.core.data_root import DataRoot
from support.databases import write_config
from support.model_server import ModelServer
from support.runtime import Lab, open_lab


def become_newer(monkeypatch: pytest.MonkeyPatch, *added: Callable[[Database], None]) -> int:
    """Make this process a newer program; return the version that it knows."""
    version = SCHEMA_VERSION + len(added)
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, *added))
    for module in (schema, writer, sqlite):
        monkeypatch.setattr(module, "SCHEMA_VERSION", version)
    return version


async def all_entries(store: Store) -> list[Entry]:
    """Return all entries of a log, the oldest first."""
    return await store.read(
        lambda view: [entry for seq in range(1, view.head() + 1) if (entry := view.entry(seq)) is not None]
    )


@asynccontextmanager
async def go_on_from(folder: Path, entries: Sequence[Entry], server: ModelServer, **more: Any) -> AsyncGenerator[Lab]:
    """Write entries into a new data root, and open a runtime on it that goes on with what they leave unfinished."""
    (folder / "data").mkdir(parents=True, mode=0o700)
    write_config(folder / "data", "")
    if (named := DataRoot(folder.parent / "data").origin).exists():  # it is the same machine
        shutil.copy(named, DataRoot(folder / "data").origin)
    async with Store.open(folder / "data") as store:
        for entry in entries:
            await store.do(lambda _view, _now, entry=entry: Outcome(None, (as_event(entry),)))  # type: ignore[misc]
    async with open_lab(folder, server=server, check=False, beneath=folder.parent, **more) as lab:
        yield lab


def as_event(entry: Entry) -> Event:
    """Return an entry as the event that would write it."""
    assert entry.fact is not None
    fence = None if entry.generation is None else Fence(str(entry.run_id), entry.generation)
    return Event(
        entry.who, entry.fact, run_id=entry.run_id, fence=fence, usage=entry.usage, cost_micros=entry.cost_micros,
        model=entry.model, duration_ms=entry.duration_ms,
    )  # fmt: skip
