"""A store as its tests see it: opened with a deadline, its texts, and commands that the writer takes together."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread

from ava_audit.entries import Entry
from ava_audit.rows import RunRow
from ava_audit.store import store
from ava_audit.store.store import Outcome, Store
from ava_audit.view import View
from support.logs.cutting import all_entries


@asynccontextmanager
async def open_store_at(root: Path, url: str | None, within_s: float = 20) -> AsyncGenerator[Store]:
    """Open the log of a data root, in the database of this address; fail unless all is done in time."""
    with anyio.fail_after(within_s):
        async with Store.open(root, url) as store:
            yield store


@asynccontextmanager
async def open_store(root: Path, within_s: float = 20) -> AsyncGenerator[Store]:
    """Open the log of a data root, in the database of the test; fail unless all is done in time."""
    async with open_store_at(root, None, within_s) as store:
        yield store


async def stored_texts(store: Store) -> list[str]:
    """Return the text of each entry of a log, the oldest first; an empty one where it was erased."""
    return entry_texts(await all_entries(store))


def entry_texts(entries: list[Entry]) -> list[str]:
    """Return the text by which each entry is found."""
    return [entry.fact.search_text() if entry.fact else "" for entry in entries]


def hold_writer(log: Store) -> threading.Event:
    """Keep the writer thread busy until the event is set, so that what comes meanwhile is one batch."""
    go_on = threading.Event()

    def wait(_view: View, _now: int) -> Outcome[None]:
        go_on.wait(5)
        return Outcome(None)

    log.post(wait)
    return go_on


async def run_in_one_batch(log: Store, *commands: store.Command[int]) -> list[int | Exception]:
    """Run commands so that the writer takes them together; return what each brought, in order."""
    answers: list[int | Exception] = [0] * len(commands)

    async def run(place: int) -> None:
        if place == len(commands) - 1:
            all_begun.set()  # its own command is in the queue before anybody who waits for this goes on
        try:
            answer: int = await log.do(commands[place])
            answers[place] = answer
        except Exception as error:
            answers[place] = error

    all_begun = anyio.Event()
    go_on = hold_writer(log)
    async with anyio.create_task_group() as tasks:
        for place in range(len(commands)):
            tasks.start_soon(run, place)
        await all_begun.wait()
        go_on.set()
    return answers


def runs_of(root: Path) -> list[RunRow]:
    """Return all runs of a data root, without its plans. Blocking."""

    async def read() -> list[RunRow]:
        async with Store.open(root) as store:
            return await store.read(lambda view: [run for run in view.runs(limit=-1) if not run.is_plan])

    return anyio.run(read)
