"""Owners that are stopped and woken at random: each takeover loses the call in progress, and no answer is paid twice.

The sample takes some seconds. For longer, and with all figures: `python benchmarks/chaos.py 600 --takeovers sqlite`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.chaos.takeovers import Takeovers
from support.databases import POSTGRES


def embedded(_tmp: Path) -> str:
    return ""


def on_postgres(tmp: Path) -> str:
    pytest.importorskip("psycopg", reason="the driver is not installed")
    from support.postgres import postgres_server

    return postgres_server().address(tmp)


@pytest.mark.parametrize(
    ("seconds", "url"),
    [
        pytest.param(5, embedded, id="sample"),
        pytest.param(90, embedded, id="sqlite", marks=pytest.mark.slow),
        pytest.param(90, on_postgres, id="postgres", marks=pytest.mark.slow),
    ],
)
@pytest.mark.skipif(POSTGRES, reason="each case says where its log is")
async def test_a_takeover_loses_one_call_at_most_and_pays_for_no_answer_twice(
    tmp_path: Path, seconds: float, url: Callable[[Path], str]
) -> None:
    played = Takeovers(seconds, int(time.time()), url(tmp_path))
    await played.play(tmp_path)
    print(dict(played.counts))
    assert not played.faults, "\n".join([f"seed {played.seed}", *played.faults])
    assert played.counts["answers"] > 0 and played.counts["stops"] > 0
