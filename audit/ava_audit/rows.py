"""Rows of the projections: the state of a run, a proposal, a plan and a cap's scope, and a run's spending by day.

The first field of each class is the key of its table. Readers get copies; only reducers change the stored rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

WAITING = "awaiting_approval"
QUEUED = "queued"
RUNNING = "running"
UNENDED = (WAITING, QUEUED, RUNNING)
AWAITING_EXTENSION, AWAITING_ANSWER, HELD = "awaiting_extension", "awaiting_answer", "held"
"""States that are not stored, of a queued run that waits for a person: to allow it more, to answer its question, or to
resume it after a restore."""
INTERRUPTED, EXPIRED = "interrupted", "expired"
"""States that are not stored: the owner of a run is gone, and nobody approved a proposal in time."""
WaitsFor = Literal["provider", "more", "answer", "resume", "owner"]
"""What a queued run waits for: its provider, which takes no calls; a person, who allows it more or declines; an answer
to its question; a person who resumes it after a restore or an import; or, for a run of a plan, a person who resumes it
because its process is gone and no other takes it over by itself."""
AWAITED: Mapping[WaitsFor, str] = {
    "more": AWAITING_EXTENSION,
    "answer": AWAITING_ANSWER,
    "resume": HELD,
    "owner": INTERRUPTED,
}
"""The state that is shown of a run that waits for a person, by what it waits for."""
ASKING = (AWAITING_EXTENSION, AWAITING_ANSWER)
"""Those of them in which a run has asked the person something."""
HELD_UNTIL_US = 253_402_300_799_000_000
"""The end of the wait for a resume, in microseconds UTC: the last second of the year 9999."""


@dataclass(frozen=True)
class RunFacts:
    """What a report shows of a run."""

    id: str
    user_id: str
    role: str
    model: str
    state: str
    stop_reason: str | None
    error_kind: str | None
    ended_us: int | None


@dataclass(frozen=True)
class PastRun(RunFacts):
    """An ended run, as estimates need it: money in micro-USD, time in microseconds; `terms` as in `RunRow`."""

    cost_micros: int
    active_us: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    terms: str


@dataclass(slots=True)
class RunRow:
    """The state of a run. Money in micro-USD, times in microseconds UTC, durations in microseconds.

    `config` is the approved configuration, with the decision's changes applied; `terms` is what estimates need of it,
    as JSON without the long texts. `in_flight` is the `CostReserved` of a model call that is not settled, or a list of
    several. `tokens` counts the tokens that count against `max_tokens`.
    `waits_for` says what a queued run waits for, and `waits_until_us` until when: nobody may claim it before. Both stay
    until it is claimed. `asked` is the `Asked` whose answer it waits for.
    `message_seq` is the newest message to the run.
    `money_wait` says what a running run waits for that other runs hold (`MoneyWait`); None while it does not wait.
    `step` is the step of the plan (`plan_id`) whose run it is, and `item` the place of its item in that step's list,
    from 1. A plan's `cost_micros`, `uncosted_micros` and `tokens` are those of its runs together.
    """

    id: str
    pending_id: str
    plan_id: str | None
    user_id: str
    session_id: str
    role: str
    name: str | None
    task_id: str | None
    model: str
    config: str
    retry_of: str | None
    state: str
    stop_reason: str | None
    error_kind: str | None
    created_us: int
    queued_us: int | None = None
    waits_for: WaitsFor | None = None
    waits_until_us: int | None = None
    asked: str | None = None
    started_us: int | None = None
    claimed_us: int | None = None
    ended_us: int | None = None
    last_us: int | None = None
    active_us: int = 0
    generation: int = 0
    instance: str | None = None
    turns: int = 0
    tool_calls: int = 0
    tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_micros: int = 0
    uncosted_micros: int = 0
    overrun: int = 0
    in_flight: str | None = None
    wrap_micros: int = 0
    wrap_scopes: str | None = None
    cancel_seq: int | None = None
    task_seq: int | None = None
    message_seq: int | None = None
    started_seq: int | None = None
    result_seq: int | None = None
    fetched_us: int | None = None
    money_wait: str | None = None
    step: str | None = None
    item: int | None = None
    terms: str = ""

    @property
    def is_plan(self) -> bool:
        """Whether its work is to start the runs of its steps, which have its id as their plan."""
        return is_plan_id(self.id)

    @property
    def ended(self) -> bool:
        return self.state not in UNENDED

    @property
    def awaits_person(self) -> bool:
        """Whether it was returned to the queue until a person allows it more, answers, or resumes it."""
        return self.state == QUEUED and self.waits_for in AWAITED

    @property
    def held_micros(self) -> int:
        """What it holds for its calls in flight and its last turn; micro-USD."""
        return self.wrap_micros + sum(int(call["micros"]) for call in self.calls_in_flight)

    @property
    def calls_in_flight(self) -> list[dict[str, Any]]:
        return calls_of(self.in_flight)

    def wrap_in(self, scope: str) -> int:
        """Return what it holds in a scope of money for its last turn; micro-USD."""
        return self.wrap_micros if scope in json.loads(self.wrap_scopes or "[]") else 0

    def held_in(self, scope: str) -> int:
        """Return what it holds in a scope of money, for its last turn and its calls in flight; micro-USD."""
        return self.wrap_in(scope) + sum(
            int(call["micros"]) for call in self.calls_in_flight if scope in call["scopes"]
        )


@dataclass(frozen=True, slots=True)
class StepRunRow:
    """A run of a plan's step, as the plan looks at it: columns of `RunRow` without its configuration."""

    id: str
    step: str
    item: int | None
    role: str
    state: str
    stop_reason: str | None
    waits_for: WaitsFor | None
    generation: int
    instance: str | None
    cancel_seq: int | None
    result_seq: int | None
    started_us: int | None
    ended_us: int | None
    last_us: int | None
    active_us: int
    cost_micros: int
    tokens: int

    @property
    def ended(self) -> bool:
        return self.state not in UNENDED


def is_plan_id(run_id: str) -> bool:
    return run_id.startswith("G-")


def calls_of(in_flight: str | None) -> list[dict[str, Any]]:
    """Return the calls of a run's column `in_flight`; a single one may stand there without a list."""
    held: dict[str, Any] | list[dict[str, Any]] = json.loads(in_flight or "[]")
    return held if isinstance(held, list) else [held]


@dataclass(slots=True)
class ProposalRow:
    """A proposal: the run that waits for approval, the deadline, and the decision."""

    pending_id: str
    run_id: str
    user_id: str
    session_id: str
    state: str
    digest: str
    created_us: int
    expires_us: int
    decided_us: int | None = None
    channel: str | None = None
    plan_id: str | None = None


@dataclass(slots=True)
class PlanCaps:
    """Runs approved together, or the runs of a plan: one shared cost cap (micro-USD), an optional timeout (seconds).

    The time counts from the first run's start, and stands still while nothing of it can go on because a person is
    awaited: `at_work` runs could go on, `awaiting` runs wait for a person, and `stopped_us` is how long it has stood
    still before `stopped_since_us`.
    """

    id: str
    user_id: str
    cap_micros: int
    timeout_s: float | None
    created_us: int
    started_us: int | None = None
    at_work: int = 0
    awaiting: int = 0
    stopped_us: int = 0
    stopped_since_us: int | None = None

    def passed_us(self, now_us: int) -> int:
        """Return how much of its time has passed, in microseconds; 0 before its first run has started."""
        if self.started_us is None:
            return 0
        until_us = now_us if self.stopped_since_us is None else min(now_us, self.stopped_since_us)
        return max(0, until_us - self.started_us - self.stopped_us)  # a clock that was set back gives no time

    def left_s(self, now_us: int) -> float | None:
        """Return the seconds left of its time; None where it has no limit, or has not started."""
        if self.timeout_s is None or self.started_us is None:
            return None
        return max(0.0, self.timeout_s - self.passed_us(now_us) / 1e6)


@dataclass(slots=True)
class Bucket:
    """What a cap's scope has spent, and what it holds for calls in flight and wrap-ups; micro-USD."""

    scope: str
    spent_micros: int = 0
    held_micros: int = 0

    @property
    def committed(self) -> int:
        return self.spent_micros + self.held_micros


@dataclass(slots=True)
class DaySpending:
    """Totals of the settled calls of one run that were reserved on one day; micro-USD."""

    id: str  # of both, as `day_key` makes it
    run_id: str
    user_id: str
    day: int  # the UTC day, in days since 1970
    calls: int = 0
    cost_micros: int = 0
    retries_micros: int = 0  # the part for repeating calls that had been paid for
    plan_micros: int = 0  # the part for outlines
    uncosted_micros: int = 0  # the part booked at the worst case, because the cost of a call is unknown
    overruns: int = 0  # calls that exceeded their reservation in cost or tokens
    over_micros: int = 0  # by how much their cost exceeded it


def day_key(run_id: str, day: int) -> str:
    """Return the key of what a run has spent on a day."""
    return f"{run_id}:{day}"
