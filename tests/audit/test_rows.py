"""The rows of the projections in the writer's memory: what commands see of them is what the tables would say."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from support.log import Life, plan_events, write, write_command, write_each
from support.logs.store import open_store

from ava_audit import projections
from ava_audit.database import Database
from ava_audit.rows import RUNNING, RunRow
from ava_audit.store.store import Outcome, Store
from ava_audit.verify import verify
from ava_audit.view import View

RUN = "S-aaaaaa"


def seen(how: Callable[[View], RunRow | None]) -> Callable[[View, int], Outcome[RunRow]]:
    """A command that answers with the run as the writer sees it."""

    def command(view: View, _now: int) -> Outcome[RunRow]:
        run = how(view)
        assert run is not None
        return Outcome(run)

    return command


one = seen(lambda view: view.run(RUN))
listed = seen(lambda view: view.runs(states=[RUNNING])[0])


@pytest.mark.parametrize("look", [one, listed])
async def test_a_command_sees_the_changes_of_the_previous_command(
    tmp_path: Path, look: Callable[[View, int], Outcome[RunRow]]
) -> None:
    life = Life(RUN)
    with anyio.fail_after(20):
        async with Store.open(tmp_path) as log, anyio.create_task_group() as tasks:
            await write_each(log, life.beginning())
            for turn in range(1, 4):  # tasks start in order: one batch of the writer
                tasks.start_soon(write, log, life.reservation(turn))
                tasks.start_soon(write, log, life.settlement(turn, cost=1_000))
            await anyio.lowlevel.checkpoint()
            run = await log.do(look)
            assert (run.turns, run.cost_micros, run.in_flight) == (3, 3_000, None)


async def test_changes_by_another_process_are_visible_immediately(tmp_path: Path) -> None:
    mine, theirs = Life(RUN), Life(RUN, generation=2)
    with anyio.fail_after(20):
        async with Store.open(tmp_path) as here, Store.open(tmp_path) as there:
            await write_each(here, [*mine.beginning(), mine.reservation(), mine.settlement(cost=1_000)])
            for turn, (store, life) in enumerate([(there, theirs), (here, mine)] * 3, 2):
                life.generation = turn
                await write_each(store, [life.claim(), life.reservation(turn), life.settlement(turn, cost=1_000)])
                run = await store.do(one)
                assert (run.turns, run.cost_micros, run.generation) == (turn, turn * 1_000, turn)
    assert verify(tmp_path).ok


async def test_changing_a_returned_row_does_not_change_the_state(tmp_path: Path) -> None:
    async with open_store(tmp_path) as log:
        await write_each(log, Life(RUN).beginning())
        run = await log.do(one)
        run.state, run.cost_micros = "success", 5
        assert (await log.do(one)).state == RUNNING
        await write(log, Life(RUN).answer())
    assert verify(tmp_path).ok


async def test_a_rolled_back_batch_leaves_nothing_in_memory(tmp_path: Path) -> None:
    life = Life(RUN)

    def full(_db: Database) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    async with open_store(tmp_path) as log:
        await write_each(log, life.beginning())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write, log, life.reservation())
            await anyio.lowlevel.checkpoint()
            with contextlib.suppress(Exception):
                await log.maintain(full)
        run = await log.do(one)
        assert run.turns == 1
        await write(log, life.settlement())
    assert verify(tmp_path).ok


async def test_all_runs_are_correct_when_there_are_more_than_the_cache_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(projections, "CACHED_ROWS", 3)
    lives = [Life(f"S-{number:06x}") for number in range(8)]
    async with open_store(tmp_path, within_s=40) as log:
        for step in zip(*(life.all_events() for life in lives), strict=True):
            async with anyio.create_task_group() as tasks:
                for event in step:
                    tasks.start_soon(log.do, write_command(event))
        ended = await log.read(lambda view: view.runs(states=["success"]))
    assert len(ended) == len(lives)
    assert verify(tmp_path).ok


async def test_runs_of_one_transaction_keep_their_proposal_order(tmp_path: Path, database: str) -> None:
    lives = [Life(f"S-{number:06x}") for number in range(20)]
    wanted = [life.run_id for life in lives]
    async with open_store(tmp_path) as log:
        await write(log, *plan_events("G-1"))
        await write(log, *(event for life in lives for event in (life.proposal(), life.approval("G-1"))))
        of_plan = await log.read(lambda view: [run.id for run in view.plan_runs("G-1")])
        place = "rowid" if database == "sqlite" else "ctid"
        stored = await log.read(lambda view: [row[0] for row in view.select(f"SELECT id FROM runs ORDER BY {place}")])
    assert of_plan == wanted and stored == ["G-1", *wanted]
