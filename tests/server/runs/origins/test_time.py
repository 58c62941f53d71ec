"""How long a check of origins takes: hostile texts take no time, and a long check holds up nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from support.foreign.origin_attacks import (
    BOOK,
    INBOX,
    LOOKUP,
    Attack,
    run_obedient_model,
)
from support.foreign.origins import SEND, TOOLS, doubts_of, origins_after, result
from support.runtime import wait_for
from support.sample import sample

from ava_roles.tool import Tool
from ava_server.runs.asking.questions import Doubt
from ava_server.runs.origins.origins import Origins

LONG = 5_000_000
SLOW: dict[str, tuple[str, Any]] = {
    "a part of longer words": ("xab" * (LONG // 3), "ab"),
    "a part of words without spaces": ("人口学" * (LONG // 3), "口学"),
    "numbers in one row": ("1'" * (LONG // 2), 5),
    "a row of accents": ("a" + "\u0301\u0323" * (LONG // 2), "b" + "\u0301\u0323" * 50_000),
    "many words": (" ".join(f"w{number:06d}" for number in range(LONG // 8)),
                   " ".join(f"w{number:06d}/" for number in range(25_000))),
    "many values": ("y", {f"k{number}": number for number in range(20_000)}),
    "encoded": (" ".join(f"w{number:06d}" for number in range(LONG // 8)), "ab" * 100_000),
}  # fmt: skip


@pytest.mark.parametrize("name", sample(SLOW, 2))
def test_a_hostile_text_takes_no_time(name: str) -> None:
    text, value = SLOW[name]
    source = {f"{SEND}.to": (BOOK,)}
    for effects, tool in ((source, SEND), ({}, LOOKUP)):
        origins = origins_after(result(BOOK, text), effects=effects)
        began = time.process_time()
        doubts_of(origins, tool, to=value)
        assert time.process_time() - began < 30, "it takes about a second; what is quadratic takes minutes"


async def test_a_long_check_holds_up_no_other_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked, released = threading.Event(), threading.Event()
    doubts = Origins.doubts

    def waits(origins: Origins, tool: Tool, args: Mapping[str, Any]) -> tuple[Doubt, ...]:
        if origins.is_long(tool, len(str(args))):
            checked.set()
            assert released.wait(60), "another run goes on meanwhile"
        return doubts(origins, tool, args)

    monkeypatch.setattr(Origins, "doubts", waits)
    async with run_obedient_model(tmp_path) as world:
        world.steps = [[(SEND, {"to": "bob@example.org", "subject": "Otter " * 50_000})]]
        long = await world.lab.start(role="writer", task=Attack.task, workspace=None)
        await wait_for(checked, 60)
        other = await world.play("writer", Attack("none", "", SEND, {"to": "bob@example.org"}, INBOX))
        assert len(other.reached) == 1 and not (await world.lab.run(long)).ended
        released.set()
        assert (await world.lab.ended(long, 60)).state == "success"
        assert len(world.reached) == 2


async def test_other_tasks_go_on_while_a_long_text_is_checked() -> None:
    origins = origins_after(result(BOOK, SLOW["many words"][0]), effects={f"{SEND}.to": (BOOK,)})
    ticks, found = 0, list[Doubt]()

    async def tick() -> None:
        nonlocal ticks
        while True:
            await anyio.lowlevel.checkpoint()
            ticks += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tick)
        for _each in range(5):  # on a busy machine, a single one may end before the loop has had the processor
            found += await origins.doubts_apart(TOOLS[SEND], {"to": SLOW["many words"][1]})
        tasks.cancel_scope.cancel()
    assert [each.argument for each in found] == ["to"] * 5
    assert ticks >= 10, "on the event loop it would be none"
    assert not origins_after(result(BOOK, "x" * 1_000)).is_long(TOOLS[SEND], 1_000), "a short one takes no thread"
