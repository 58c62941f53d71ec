"""What a run is likely to cost and how long it is likely to take, from the user's own runs; and how good that was.

**Which runs.** Those that came to an end of their own or at their cap, also at a cost of 0. One that was cancelled,
failed, was abandoned or ended at a cap of several runs does not count, nor does one of another runner; the offline
reader's runs say nothing about a language model's, nor the other way round. The narrowest group with five runs counts:
the same role, model and size of input (each class four times the one before), then the same role and model, then the
role.

**What they cost.** At today's price, what the log says. A run at another price is priced again by its tokens if both
prices are the same for every prompt, and its logged cost is that of its tokens; else it is left out, and the proposal
says so. That also makes runs of other models comparable.

**Half, and nine in ten.** Half of the runs needed less than their median. With n runs, whatever their distribution,
the next one stays at or below the k-th lowest with a probability of k/(n + 1): the bound is the one with the smallest
k for which that is 0.9 or more, so the 9th of 9, the 18th of 19, the 27th of 29 (distribution-free prediction bound:
Hahn, Meeker and Escobar, Statistical Intervals, 2017, chapter 5). Fewer than nine runs have none, only their highest.
One outlier never moves the median, and is the bound of at most 18 runs.

**Caps.** What ended at its cost or time cap would have gone on, so it counts as reaching the cap of the proposal; so
does what ended at another cap that is higher now. No estimate is above the proposal's caps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Literal

from pydantic_core import from_json

from ava_audit.rows import PastRun
from ava_audit.view import View
from ava_server.budget.caps import SHARED_CAPS
from ava_server.models.model_choice import OFFLINE
from ava_server.run_config.config import RunConfig
from ava_server.run_config.parts import Estimate
from ava_server.run_config.run_cap import CAP_OF_ENDING, COST, TIME

COUNTED = ("success", "no_answer", "guardrail", *CAP_OF_ENDING)
"""The endings of runs that count."""
ENOUGH = 5
"""Runs from which a group counts."""
SIMILAR = 29
"""Only the newest runs count, up to this many: older ones say less."""
MINUTE_US = 60_000_000
ROUNDED_NANOS = 100_000
"""What rounding each call up to a micro-USD may add to the cost of a run."""
_RATES = ("input", "output", "cache_read", "cache_write")
_STEPPED = ("per_request", "steps")


def bound_of(values: Sequence[float]) -> float:
    """Return what the next value of a kind stays at or below with a probability of at least 0.9; see the module.

    Of fewer than nine values it is the highest, and the probability n/(n + 1).
    """
    rank = -(-9 * (len(values) + 1) // 10)
    return sorted(values)[min(rank, len(values)) - 1]


def with_estimate(config: RunConfig, past: Iterable[PastRun]) -> RunConfig:
    """Return a configuration with an estimate of its time and costs, from similar runs of the past.

    Without enough of these it has no estimate, and the minutes of its role. The minutes stay within its timeout;
    without a `base_url`, as for the offline reader, they are at most one.
    """
    least_minutes, most_minutes = config.estimated_minutes
    estimate: Estimate | None = None
    similar = _similar(config, past)
    if similar is not None:
        group, runs, left_out = similar
        time_cap_us = int(config.timeout_s * 1e6)
        times = [run.us for run in runs]
        capped_times = [min(us, time_cap_us) for us in times]
        low_us = -bound_of([-us for us in capped_times])
        least_minutes = max(1, int(low_us) // MINUTE_US)
        most_minutes = max(1, math.ceil(bound_of(capped_times) / MINUTE_US))
        half_micros = most_micros = None
        if not config.free:
            costs = [run.micros or 0 for run in runs]
            half_micros = _below(median(costs), config.max_cost_micros)
            most_micros = _below(bound_of(costs), config.max_cost_micros)
        estimate = Estimate(
            runs=len(runs),
            group=group,
            left_out=left_out,
            half_micros=half_micros,
            most_micros=most_micros,
            half_us=_below(median(times), time_cap_us),
            most_us=_below(bound_of(times), time_cap_us),
        )
    limit = 1
    if config.base_url is not None:
        limit = max(1, math.ceil(config.timeout_s / 60))
    minutes = (min(least_minutes, limit), min(most_minutes, limit))
    return config.model_copy(update={"estimated_minutes": minutes, "estimate": estimate})


def _below(value: float, cap: int) -> int | None:
    """Return a value rounded up; None if it reaches the cap."""
    if value < cap:
        return math.ceil(value)
    return None


@dataclass(frozen=True)
class _Run:
    """A run that counts. What was cut off by a cap is infinite; a cost that is not known is None."""

    model: str
    size: int
    micros: float | None
    us: float


def _similar(
    config: RunConfig, past: Iterable[PastRun]
) -> tuple[Literal["size", "model", "role"], list[_Run], int] | None:
    """Return the narrowest group with enough runs, and how many of it are left out; None without one."""
    is_offline = config.model == OFFLINE
    size = _size(config.input_bytes)
    today = asdict(config.price)
    today["steps"] = list(today["steps"])  # as JSON has them
    runs: list[_Run] = []
    for run in past:
        terms = from_json(run.terms)
        if terms["runner"] == config.runner:
            runs.append(_run(run, terms, config, today))
    groups: Mapping[Literal["size", "model", "role"], Callable[[_Run], bool]] = {
        "size": lambda run: run.model == config.model and run.size == size,
        "model": lambda run: run.model == config.model,
        "role": lambda run: (run.model == OFFLINE) == is_offline,
    }
    for group, has in groups.items():
        alike = [run for run in runs if has(run)]
        known = [run for run in alike if run.micros is not None]
        if len(known) >= ENOUGH:
            return group, known, len(alike) - len(known)
    return None


def _size(count: int) -> int:
    """Return the class of a number of bytes: up to 1 KiB, 4 KiB, 16 KiB and so on."""
    return (((count - 1) >> 10).bit_length() + 1) // 2


def _run(run: PastRun, then: Mapping[str, Any], config: RunConfig, today: Mapping[str, Any]) -> _Run:
    cap = CAP_OF_ENDING.get(run.state)
    cap_is_higher = cap is not None and cap.of(config) > then[cap.field]
    cost: float | None
    if config.free:
        cost = 0
    elif cap_is_higher or cap is COST:
        cost = math.inf
    else:
        cost = _cost(run, then["price"], today)
    active_us = math.inf if cap_is_higher or cap is TIME else run.active_us
    return _Run(run.model, _size(then["input_bytes"]), cost, active_us)


def _cost(run: PastRun, then: Mapping[str, Any], today: Mapping[str, Any]) -> int | None:
    """Return what a run would cost at today's price, in micro-USD.

    Unchanged prices give the logged cost. None where the logged tokens and the prices of then do not give the logged
    cost, to 1 % or rounding, and where a price has steps by length: the log does not say how the tokens fell on them.
    """
    if all(then.get(name) == today[name] for name in (*_RATES, *_STEPPED)):
        return run.cost_micros
    for name in _STEPPED:
        if then.get(name) or today.get(name):
            return None
    logged_nanos = run.cost_micros * 1_000
    is_reproduced = abs(logged_nanos - _nanos(run, then)) <= max(logged_nanos // 100, ROUNDED_NANOS)
    if not is_reproduced:
        return None
    return -(-_nanos(run, today) // 1_000)


def _nanos(run: PastRun, price: Mapping[str, Any]) -> int:
    """Return what the tokens of a run cost at a price, in nano-USD."""
    tokens = run.input_tokens, run.output_tokens, run.cache_read_tokens, run.cache_write_tokens
    return sum(count * int(price[name]) for count, name in zip(tokens, _RATES, strict=True))


# -- how good they were -----------------------------------------------------------------------------------------------


@dataclass
class Kept:
    """How many estimates there were of one kind, and how many runs stayed within them."""

    of: int = 0
    within: int = 0

    def add(self, estimate: int | None, actual: int) -> None:
        """Add a run; an estimate that is the cap says nothing that could be wrong."""
        if estimate is not None:
            self.of += 1
            self.within += actual <= estimate


@dataclass
class RoleEstimates:
    """How good the estimates of a role were: `half` should have held for half of the runs, `most` for nine in ten.

    Attributes:
        role: The role; empty for all.
        runs: Runs that ended and had an estimate.
        without: Runs that ended and had none: they came before there were five similar ones.
        half_cost: Runs that cost no more than the half before them.
        most_cost: Runs within the bound of nine in ten.
        half_time: The same of their time.
        most_time: See `most_cost`.
    """

    role: str
    runs: int = 0
    without: int = 0
    half_cost: Kept = field(default_factory=Kept)
    most_cost: Kept = field(default_factory=Kept)
    half_time: Kept = field(default_factory=Kept)
    most_time: Kept = field(default_factory=Kept)

    @property
    def kinds(self) -> tuple[Kept, Kept, Kept, Kept]:
        return self.half_cost, self.most_cost, self.half_time, self.most_time

    def add(self, run: PastRun) -> None:
        stored = from_json(run.terms).get("estimate")
        if stored is None:
            self.without += 1
            return
        estimate = Estimate.model_validate(stored)
        self.runs += 1
        self.half_cost.add(estimate.half_micros, run.cost_micros)
        self.half_time.add(estimate.half_us, run.active_us)
        if estimate.bounded:
            self.most_cost.add(estimate.most_micros, run.cost_micros)
            self.most_time.add(estimate.most_us, run.active_us)


@dataclass(frozen=True)
class PastEstimates:
    """How good the estimates were of the runs that ended in a time, all together and by role.

    Attributes:
        roles: By role, the one with the most runs first.
    """

    user: str | None
    total: RoleEstimates
    roles: tuple[RoleEstimates, ...]


def past_estimates(view: View, since_us: int, until_us: int, user: str | None) -> PastEstimates:
    """Return how good the estimates of the runs were that ended in a time, end exclusive; `user` None: everybody's."""
    total = RoleEstimates("")
    roles = dict[str, RoleEstimates]()
    for run in view.ended_runs(PastRun, since_us, until_us, user):
        if run.state not in COUNTED or (run.stop_reason or "").startswith(SHARED_CAPS):
            continue
        total.add(run)
        roles.setdefault(run.role, RoleEstimates(run.role)).add(run)
    return PastEstimates(user, total, tuple(sorted(roles.values(), key=lambda one: (-one.runs, one.role))))
