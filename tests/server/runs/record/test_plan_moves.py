"""What a plan does next, on random plans: nothing before what it waits for, nothing past a cap, and always an end.

Runs are played: each makes calls that are reserved in every cap before they are sent, as `budget/caps.py` does, and
costs at most what was reserved. Some fail, some are cancelled, some lose a call, which counts in full.
"""

from __future__ import annotations

import pytest
from support.runs.plan_play import check_plan, play_plan


def test_random_plans_keep_order_caps_and_count() -> None:
    for seed in range(2_000):
        check_plan(*play_plan(seed))


@pytest.mark.slow
def test_a_hundred_thousand_random_plans() -> None:
    for seed in range(100_000):
        check_plan(*play_plan(seed))
