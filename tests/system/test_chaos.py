"""Processes, network, database and engine fail at random: no run is lost, nothing is paid twice, no cap is exceeded.

It takes about two minutes for each way of delivery. For longer, and with all figures: `python benchmarks/chaos.py 600`.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

pytest.importorskip("psycopg", reason="the driver is not installed")

from support.chaos.play import Plan
from support.chaos.run import play_and_check
from support.engines.servers import run_engine, why_missing
from support.postgres import postgres_server

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", ["none", "nats"])
async def test_whatever_fails_every_approved_run_ends_once_and_every_call_is_counted_once(
    tmp_path: Path, kind: str
) -> None:
    if (why := why_missing(kind)) is not None:
        pytest.skip(why)
    plan = Plan(seconds=40, seed=int(time.time()), day_cents=600)
    with run_engine(kind, tmp_path / "engine") as engine:
        chaos = await play_and_check(plan, tmp_path, postgres_server(), engine)
    assert not chaos.faults, "\n".join([f"seed {plan.seed}", *chaos.faults])
    assert chaos.counts["runs approved"] > 0 and chaos.counts["requests answered"] > 0
    assert chaos.counts["starts"] > 0 and chaos.counts["claims: start"] > 0
