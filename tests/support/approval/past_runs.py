"""Runs that ended, as estimates see them, scripted distributions of what runs cost, and proposals that wait."""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from ava_audit.rows import PastRun
from ava_audit.units import now_us
from ava_server.approval.decisions import Approval, CheckedApproval, check_approval
from ava_server.approval.estimates import SIMILAR, with_estimate
from ava_server.approval.proposals import Pending, pending_proposals
from ava_server.approval.shown import proposal_message
from ava_server.approval.summary import DayLeft
from ava_server.models.prices import Price
from ava_server.run_config.brief import Brief
from ava_server.run_config.config import RunConfig
from ava_server.run_config.parts import Estimate
from support.runtime import Lab


async def pending_of(lab: Lab) -> list[Pending]:
    """Return the proposals of the lab's user that wait."""
    user = lab.runtime.user
    limits, at_us = lab.runtime.spawn_limits_of(user), now_us()
    return await lab.store.read(lambda view: pending_proposals(view, user, limits, at_us))


async def check_approval_of(lab: Lab, *made: Any) -> CheckedApproval:
    """Return these proposals as an approval that a person may give, once it was checked."""
    asked = Approval(tuple(each.pending_id for each in made), tuple(each.approval_line for each in made))
    who, limits, at_us = lab.session.who, lab.runtime.spawn_limits_of(lab.runtime.user), now_us()
    if len(made) > 1:
        lines = (await lab.approve(*made)).approval_lines
        asked = Approval(asked.pending_ids, tuple(lines))
    found = await lab.store.read(lambda view: check_approval(view, asked, who, "elicitation", limits, at_us))
    assert isinstance(found, CheckedApproval), found
    return found


PRICE = Price(input=3_000, output=15_000, cache_read=300, cache_write=3_750, source="config.toml")
MODEL = "custom:test"


def config(**changes: Any) -> RunConfig:
    """Return the configuration of a researcher with a price and ordinary caps."""
    given: dict[str, Any] = {
        "role": "researcher", "role_source": "built in", "role_text": "", "model": MODEL, "provider": "custom",
        "model_id": "test", "base_url": "http://model.example/v1", "price": PRICE, "timeout_s": 600.0,
        "max_cost_micros": 500_000, "max_tokens": 400_000, "max_iterations": 40, "max_tool_calls": 80, "tools": (),
        "reach": "can reach nothing", "estimated_minutes": (3, 8), "input_bytes": 400,
    }  # fmt: skip
    return RunConfig(**{**given, **changes})


def stored_config(**changes: Any) -> str:
    """What a row has of the configuration of a run that ended."""
    then = config(**changes)
    return json.dumps({**then.model_dump(mode="json", exclude_none=True), "price": asdict(then.price)})


def run(micros: int, us: int = 120_000_000, *, state: str = "success", model: str = MODEL, **changes: Any) -> PastRun:
    """A run that ended; its tokens are those of its cost at `PRICE`."""
    terms = stored_config(model=model, **changes)
    return ended_run(micros, us, terms, state=state, model=model, tokens=(micros // 6, micros // 30))


def ended_run(
    micros: int, us: int, terms: str, *, state: str = "success", model: str = MODEL, tokens: tuple[int, int] = (0, 0)
) -> PastRun:
    """A run that ended; `tokens` are those of its prompts and answers."""
    return PastRun("S-000001", "ben", "researcher", model, state, "done", None, 1, micros, us, *tokens, 0, 0, terms)


def _two_humps(chance: random.Random) -> float:
    mean = 0.04 if chance.random() < 0.7 else 0.6
    return mean * chance.lognormvariate(0, 0.2)


DISTRIBUTIONS: Mapping[str, Callable[[random.Random], float]] = {
    "narrow": lambda chance: 0.08 * chance.lognormvariate(0, 0.1),
    "heavy tail": lambda chance: 0.02 * chance.paretovariate(1.2),
    "two humps": _two_humps,
}
"""What a run costs, in dollars. Spawns of a published log had 9 calls in the middle, 115 in the last hundredth."""


def coverage(name: str, seed: int, runs: int) -> tuple[float, float]:
    """Return the share of runs that cost at most the half, and the bound of nine in ten, of the runs before them."""
    chance, before, proposed, kept_half, kept_most = random.Random(seed), deque[PastRun](maxlen=SIMILAR), 0, 0, 0
    asked, then = config(max_cost_micros=10**12), stored_config()
    for _ in range(runs):
        micros = round(DISTRIBUTIONS[name](chance) * 1e6)
        estimate = with_estimate(asked, before).estimate
        if estimate is not None and estimate.bounded:
            proposed += 1
            kept_half += micros <= (estimate.half_micros or 0)
            kept_most += micros <= (estimate.most_micros or 0)
        before.append(ended_run(micros, 60_000_000, then))
    return kept_half / proposed, kept_most / proposed


def group_coverage(name: str, seed: int, times: int, size: int) -> tuple[float, float]:
    """Return the share of groups of runs that cost at most their halves together, and their bounds together."""
    chance, asked, then, halves, bounds = random.Random(seed), config(max_cost_micros=10**12), stored_config(), 0, 0

    def cost() -> int:
        return round(DISTRIBUTIONS[name](chance) * 1e6)

    for _ in range(times):
        before = [ended_run(cost(), 60_000_000, then) for _ in range(SIMILAR)]
        likely = with_estimate(asked, before).likely_micros
        assert likely is not None
        actual = sum(cost() for _ in range(size))
        halves, bounds = halves + (actual <= size * likely[0]), bounds + (actual <= size * likely[1])
    return halves / times, bounds / times


DAY = DayLeft(10_000_000, 10_000_000, "your", "limits.user_daily_cents")


def estimate(runs: list[PastRun], **changes: Any) -> Estimate:
    """Return what a run is likely to cost and take by these earlier ones."""
    found = with_estimate(config(**changes), runs).estimate
    assert found is not None
    return found


def line(proposed: RunConfig) -> str:
    """Return the line of a proposal that says what the run is likely to cost."""
    return proposal_message(proposed, Brief(task="Look"), DAY).splitlines()[2]
