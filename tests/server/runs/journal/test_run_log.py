"""A run's own writing: log and history never differ, also where a result waits for the next commit."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import anyio
import pytest
from support.log import Life, run_who, write_each

from ava_audit.errors import EntryTooLarge, StaleOwner
from ava_audit.events import Activity, Event, RunClaimed, ToolCall, ToolResult
from ava_audit.store.store import Outcome, Store
from ava_audit.view import View
from ava_server.runs.journal.log import RunLog
from ava_server.runs.record.history import UNWRITTEN, History

RUN = "S-0000001"
RESULT = ToolResult(tool="read_file", success=True, output="otters", call_id="c1", turn=1)


@asynccontextmanager
async def a_run(root: Path) -> AsyncGenerator[tuple[Store, RunLog]]:
    """A claimed run in the middle of a turn."""
    async with Store.open(root) as store:
        await write_each(store, Life(RUN).beginning())
        run = await store.read(lambda view: view.run(RUN))
        assert run is not None
        run_log = RunLog(store, run, run_who(RUN), History(RUN))
        await run_log.record(ToolCall(tool="read_file", call_id="c1", turn=1))
        yield store, run_log


async def kinds(store: Store) -> list[str]:
    return [entry.type for entry in await store.read(lambda view: view.entries(RUN))][-3:]


async def test_writes_a_deferred_result_before_later_entries(tmp_path: Path) -> None:
    async with a_run(tmp_path) as (store, run_log):
        run_log.keep(RESULT, 7)
        assert run_log.history.outputs == [(UNWRITTEN, RESULT)]
        assert await store.read(View.head) == 5, "nothing is written yet"
        await run_log.record(Activity(activity="Thinking"))
        assert await kinds(store) == ["ToolCall", "ToolResult", "Activity"]
        entry = await store.read(lambda view: view.entry(6))
        assert entry is not None and (entry.fact, entry.duration_ms) == (RESULT, 7)
        assert run_log.history.outputs == [(6, RESULT)]
        await run_log.write_kept()
        assert await store.read(View.head) == 7, "once"


async def test_a_command_without_events_still_writes_a_deferred_result(tmp_path: Path) -> None:
    async with a_run(tmp_path) as (store, run_log):
        run_log.keep(RESULT, 7)
        heads: list[int] = []

        def refuses(view: View, _now_us: int) -> Outcome[str]:
            heads.append(view.head())
            return Outcome("it does not fit")

        assert await run_log.do(refuses) == "it does not fit"
        assert heads == [6], "it sees the log as it is behind the result"
        assert await kinds(store) == ["RunClaimed", "ToolCall", "ToolResult"]


async def test_a_deferred_result_that_is_too_large_does_not_stop_what_comes_after_it(tmp_path: Path) -> None:
    async with a_run(tmp_path) as (store, run_log):
        with pytest.raises(EntryTooLarge, match="2,000,000"):
            run_log.keep(RESULT.model_copy(update={"output": "o" * 2_000_001}))
        assert run_log.history.outputs == []
        await run_log.record(Activity(activity="Thinking"))
        assert await kinds(store) == ["RunClaimed", "ToolCall", "Activity"]


@pytest.mark.slow
async def test_writes_a_deferred_result_once_when_the_log_is_available_again(tmp_path: Path) -> None:
    async with a_run(tmp_path) as (store, run_log):
        run_log.keep(RESULT, 7)
        held: list[str] = []
        run_log.on_hold = held.append
        async with anyio.create_task_group() as tasks:
            with closing(sqlite3.connect(store.path, isolation_level=None, check_same_thread=False)) as other:
                other.execute("BEGIN IMMEDIATE")
                tasks.start_soon(run_log.record, Activity(activity="Thinking"))
                with anyio.fail_after(20):
                    while not held:  # noqa: ASYNC110
                        await anyio.sleep(0.05)
                assert run_log.history.outputs == [(UNWRITTEN, RESULT)]
                other.execute("ROLLBACK")
        assert await kinds(store) == ["ToolCall", "ToolResult", "Activity"]
        assert run_log.history.outputs == [(6, RESULT)]


async def test_does_not_write_a_deferred_result_of_an_owner_that_lost_its_run(tmp_path: Path) -> None:
    async with a_run(tmp_path) as (store, run_log):
        run_log.keep(RESULT, 7)
        claimed = Event(run_who(RUN), RunClaimed(instance="other", generation=2), run_id=RUN)
        await write_each(store, [claimed])
        with pytest.raises(StaleOwner):
            await run_log.write_kept()
        assert (await kinds(store))[-1] == "RunClaimed"


async def test_a_claim_owns_its_run_until_the_log_has_another_owner(tmp_path: Path) -> None:
    async with a_run(tmp_path) as (store, run_log):
        await run_log.check_owner()
        taken = Event(run_who(RUN), RunClaimed(instance="another", generation=2, reason="takeover"), run_id=RUN)
        await store.do(lambda _view, _now_us: Outcome(None, (taken,)))
        with pytest.raises(StaleOwner):
            await run_log.check_owner()
