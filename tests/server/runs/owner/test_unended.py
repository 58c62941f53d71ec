"""What a manager knows of unended runs: reading only what has changed gives the same as reading everything."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from support.log import Life, plan_events, write

from ava_audit.events import Event
from ava_audit.rows import QUEUED, RUNNING
from ava_audit.store.store import Store
from ava_server.runs.record import unended
from ava_server.runs.record.unended import Unended, read_unended


def steps(number: int, plan: str | None) -> Iterator[Event]:
    """The life of a run, with a pause and a second claim in between."""
    life = Life(f"S-{number:06d}", user=f"user-{number % 3}")
    yield from (life.proposal(), life.task(), life.approval(plan), life.claim())
    yield life.reservation()
    yield life.settlement()
    yield life.pause(until_us=1)
    yield life.claim()
    yield from (*life.tool(), life.answer(), *life.ending())


def mixed(dice: random.Random) -> Iterator[Event]:
    """The steps of some lives in turns, each life in its own order."""
    lives = [steps(number, "G-1" if number in (2, 3) else None) for number in range(8)]
    yield from plan_events("G-1", 100_000)
    while lives:
        life = dice.choice(lives)
        event = next(life, None)
        if event is None:
            lives.remove(life)
        else:
            yield event


@pytest.mark.parametrize("most", [unended.MOST_NEW, 2])
@pytest.mark.parametrize("seed", range(3))
async def test_reading_what_has_changed_gives_the_same_as_reading_everything(
    tmp_path: Path, seed: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unended, "MOST_NEW", most)
    dice, known, seen = random.Random(seed), None, set[str]()
    async with Store.open(tmp_path) as log:
        for event in mixed(dice):
            await write(log, event)
            if dice.random() < 0.5:  # otherwise several entries come together
                known = await log.read(partial(read_unended, head=log.head, known=known))
                assert same(known, await log.read(partial(read_unended, head=log.head)))
                seen |= {row.state for row in known.runs.values()}
        known = await log.read(partial(read_unended, head=log.head, known=known))
    assert list(known.runs) == ["G-1"] and not known.plans, "nobody drives the plan here"
    assert seen == {QUEUED, RUNNING}


async def test_without_a_new_entry_nothing_is_read_again(tmp_path: Path) -> None:
    async with Store.open(tmp_path) as log:
        await write(log, *Life("S-000001").beginning())
        known = await log.read(partial(read_unended, head=log.head))
        assert await log.read(partial(read_unended, head=log.head, known=known)) is known


def same(one: Unended, other: Unended) -> bool:
    return (one.head, dict(one.runs), dict(one.plans)) == (other.head, dict(other.runs), dict(other.plans))
