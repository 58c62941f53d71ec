"""The page about injected instructions says of each way whether it has its effect without a question; it is played."""

from __future__ import annotations

import re
from pathlib import Path

from support.foreign.origin_attacks import run_obedient_model
from support.foreign.ways import NOT_PLAYED, WAYS
from support.repository import REPOSITORY

_ROW = re.compile(r"^\| (\d+) \|.*\| (yes|no)[^|]*\|$", re.MULTILINE)


async def test_each_way_goes_as_the_page_says(tmp_path: Path) -> None:
    page = (REPOSITORY / "docs" / "injections.md").read_text("utf-8")
    unasked = {int(number): word == "yes" for number, word in _ROW.findall(page)}
    assert list(unasked) == list(range(1, 32))
    assert {way.number for way in WAYS} | set(NOT_PLAYED) == set(unasked), "each way has an attack"
    went = list[tuple[int, str, bool]]()
    async with run_obedient_model(tmp_path) as world:
        for way in WAYS:
            played = await world.play(way.role, way.attack)
            went.append((way.number, way.attack.name, len(played.reached) >= way.effects))
    assert went == [(way.number, way.attack.name, unasked[way.number]) for way in WAYS]
