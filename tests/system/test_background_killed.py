"""The background process is killed at any point of a run, while hosts, a page and a local client are connected.

Nothing is lost and nothing paid twice, and all of them are answered again: the hosts without a break, the others on
the ports that they know.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.chaos.background import TURNS, check_paid_once, connect_everything, draw_points
from support.runtime import check_budgets, check_requests, unwrap_groups
from support.stdio import assert_intact

from ava_audit.store.store import Store

pytestmark = pytest.mark.slow
KILLS = 60


async def test_sixty_kills_lose_no_run_and_pay_for_nothing_twice(tmp_path: Path) -> None:
    with unwrap_groups():
        async with connect_everything(tmp_path) as killing:
            ids = await killing.start(None)
            await killing.ended(ids)
            recorded = [killing.steps(run_id) for run_id in ids]
            assert all(len(commits) >= 10 and sends == len(TURNS) for commits, sends in recorded), recorded
            for point in draw_points(recorded):
                if len(killing.back_s) < KILLS:
                    await killing.kill(point)
    root = killing.root.path
    killed = (killing.folder / "killed.txt").read_text().splitlines()
    assert len(killed) == len(killing.back_s) == KILLS
    for run_id, task in killing.runs.items():
        check_paid_once(killing, run_id, task)
    assert_intact(root)
    async with Store.open(root) as store:
        await store.read(check_budgets)
    await check_requests(root, killing.models.requests)
