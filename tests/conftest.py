"""How many tests run at once, and Hypothesis profiles: `--hypothesis-profile=long` plays more schedules (README.md)."""

import os

import pytest
from hypothesis import settings

settings.register_profile("long", max_examples=250, stateful_step_count=60, deadline=None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Half as many again as processors: tests wait for other processes and for deadlines much of their time."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(here + here // 2, 2)
