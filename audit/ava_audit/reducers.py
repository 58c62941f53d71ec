"""Reducers: pure functions that derive the projections from the log, entry by entry.

Each takes the state, an entry's header and its fact, and changes the rows of proposals, runs, plans, budgets and
spending. A reducer reads no clock, no setting, no cap and no transcript content, so that the projections can be rebuilt
after transcripts were erased. `State` hides where the rows are: in the tables of the log (`projections.py`), or in
memory, where a verification rebuilds them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

from pydantic_core import from_json, to_json

from ava_audit.entries import HEADER, read_fact
from ava_audit.errors import Contradiction
from ava_audit.events import (
    Answered,
    Asked,
    CostReserved,
    CostUpdate,
    Fact,
    MoneyAwaited,
    RunClaimed,
    RunEnded,
    RunPaused,
    RunResumed,
    SpawnDecided,
    SpawnProposed,
    StepRunQueued,
    Unknown,
    UnknownCost,
    Usage,
)
from ava_audit.rows import (
    HELD_UNTIL_US,
    QUEUED,
    RUNNING,
    WAITING,
    Bucket,
    DaySpending,
    PlanCaps,
    ProposalRow,
    RunRow,
    WaitsFor,
    day_key,
)
from ava_audit.units import DAY_US

_CONTENT = len(HEADER)

R = TypeVar("R", bound=ProposalRow | RunRow | PlanCaps | Bucket | DaySpending)


class Rows(Protocol[R]):
    """The rows of one projection, for reducers to change."""

    def get(self, key: str | None) -> R | None:
        """Return the row of a key, which the caller may change."""

    def add(self, row: R) -> None:
        """Add a row. Raises Contradiction if a row with this key exists."""


class State(Protocol):
    """All projections."""

    @property
    def proposals(self) -> Rows[ProposalRow]: ...

    @property
    def runs(self) -> Rows[RunRow]:
        """One row for each run, from its proposal on."""
        ...

    @property
    def plans(self) -> Rows[PlanCaps]: ...

    @property
    def budgets(self) -> Rows[Bucket]: ...

    @property
    def spending(self) -> Rows[DaySpending]: ...


class Tokens(NamedTuple):
    """The tokens of an entry, as its header has them: `Usage` for reducers, made in a tenth of the time."""

    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int


_NO_TOKENS = Tokens(0, 0, 0, 0)


@dataclass(slots=True)
class Header:
    """The columns of an entry that a reducer may read."""

    seq: int
    ts_us: int
    session_id: str
    user_id: str
    type: str
    run_id: str | None
    generation: int | None
    usage: Usage | Tokens | None
    cost_micros: int | None


def reduce(state: State, header: Header, fact: Fact | None) -> None:
    """Apply one entry to the projections. `fact` is None if no reducer reads the content, which may have been erased.

    Raises Contradiction: the entry contradicts the log, e.g. it approves something that was never proposed.
    """
    run = state.runs.get(header.run_id)
    before = None if run is None else _counts_as(run)
    _apply(state, run, header, fact)
    run = run or state.runs.get(header.run_id)
    if run is not None and run.plan_id is not None:
        at_us = header.ts_us
        if isinstance(fact, RunPaused) and fact.stands_us is not None:
            at_us = fact.stands_us
        _count_in_plan(state.plans.get(run.plan_id), before, _counts_as(run), at_us)


def _counts_as(run: RunRow) -> Literal["at work", "awaiting"] | None:
    """Return as what a run counts in the time of its plan; None before its approval and after its end."""
    if run.state not in (QUEUED, RUNNING):
        return None
    return "awaiting" if run.awaits_person else "at work"


def _count_in_plan(plan: PlanCaps | None, before: str | None, now: str | None, at_us: int) -> None:
    """Note that a run of a plan changed: its time stands still while all that it has left wait for a person."""
    if plan is None or before == now:
        return
    plan.at_work += (now == "at work") - (before == "at work")
    plan.awaiting += (now == "awaiting") - (before == "awaiting")
    stands_still = plan.awaiting > 0 and plan.at_work == 0
    if stands_still and plan.stopped_since_us is None:
        plan.stopped_since_us = at_us
    elif not stands_still and plan.stopped_since_us is not None:
        if plan.started_us is not None:
            plan.stopped_us += max(0, at_us - max(plan.stopped_since_us, plan.started_us))
        plan.stopped_since_us = None


def _apply(state: State, run: RunRow | None, header: Header, fact: Fact | None) -> None:
    if run is not None and (by_header := _BY_HEADER.get(header.type)) is not None:
        by_header(run, header)
    # Only the newer program that wrote a newer version knows what it means.
    if fact is not None and not isinstance(fact, Unknown):
        if (by_fact := _BY_FACT.get(header.type)) is not None:
            by_fact(state, header, fact)
        if run is not None and (by_run := _BY_RUN.get(header.type)) is not None:
            by_run(state, run, header, fact)
    if run is not None and header.generation is not None:
        run.last_us = header.ts_us


def fold(state: State, row: Sequence[Any]) -> None:
    """Apply a stored entry (header columns, content). Raises Contradiction, ValueError: invalid content."""
    type_name, run_id, generation = row[5], row[7], row[8]
    if type_name in REDUCED_TYPES:
        fact = tokens = None
        if type_name in CONTENT_TYPES:
            fact, tokens = read_fact(type_name, row[6], row[_CONTENT]), _tokens_of(row)
        reduce(state, Header(row[0], row[1], row[2], row[4], type_name, run_id, generation, tokens, row[13]), fact)
    elif generation is not None:  # the same, for much of a log
        run = state.runs.get(run_id)
        if run is not None:
            run.last_us = row[1]


def _tokens_of(row: Sequence[Any]) -> Tokens | None:
    if row[9] is None:
        return None
    tokens = Tokens(*row[9:13])
    if min(tokens) < 0:
        raise ValueError("a number of tokens is negative")
    return tokens


class MemoryRows(Generic[R]):
    """The rows of one projection, in memory only."""

    def __init__(self, kind: type[R]) -> None:
        self._key = attrgetter(next(iter(kind.__dataclass_fields__)))
        self.rows: dict[str, R] = {}

    def get(self, key: str | None) -> R | None:
        return None if key is None else self.rows.get(key)

    def add(self, row: R) -> None:
        key = self._key(row)
        if key in self.rows:
            raise Contradiction(f"{key} exists already")
        self.rows[key] = row


class MemoryState:
    """All projections in memory, to be rebuilt from the whole log."""

    def __init__(self) -> None:
        self.proposals = MemoryRows(ProposalRow)
        self.runs = MemoryRows(RunRow)
        self.plans = MemoryRows(PlanCaps)
        self.budgets = MemoryRows(Bucket)
        self.spending = MemoryRows(DaySpending)


def _proposed(state: State, header: Header, fact: SpawnProposed) -> None:
    state.proposals.add(
        ProposalRow(
            pending_id=fact.pending_id,
            run_id=fact.subagent_id,
            user_id=header.user_id,
            session_id=header.session_id,
            state=WAITING,
            digest=fact.digest,
            created_us=header.ts_us,
            expires_us=fact.expires_us,
        )
    )
    state.runs.add(
        RunRow(
            id=fact.subagent_id,
            pending_id=fact.pending_id,
            plan_id=None,
            user_id=header.user_id,
            session_id=header.session_id,
            role=str(fact.config.get("role")),
            name=_text(fact.config.get("name")),
            task_id=_text(fact.config.get("task_id")),
            model=str(fact.config.get("model")),
            config=_config(fact.config),
            terms=terms_of(fact.config),
            retry_of=fact.retry_of,
            state=WAITING,
            stop_reason=None,
            error_kind=None,
            created_us=header.ts_us,
        )
    )


def _said(run: RunRow, header: Header) -> None:
    # The first message of a run is its task. Its position tells, because its content can be erased.
    if run.task_seq is None:
        run.task_seq = header.seq
    run.message_seq = header.seq


def _decided(state: State, header: Header, fact: SpawnDecided) -> None:
    proposal = state.proposals.get(fact.pending_id)
    if proposal is not None:
        proposal.state = fact.decision
        proposal.decided_us = header.ts_us
        proposal.channel = fact.channel
        proposal.plan_id = fact.group_id
    if fact.decision != "approved":
        return
    run = None if proposal is None else state.runs.get(proposal.run_id)
    if run is None:
        raise Contradiction(f"{fact.pending_id} was approved, and there is no such proposal")
    run.state = QUEUED
    run.queued_us = header.ts_us
    if fact.step is not None:  # development versions wrote a `group_id` without a plan: such a run counts on its own
        run.plan_id, run.step = fact.group_id, fact.step
        if state.runs.get(fact.group_id) is None:
            raise Contradiction(f"{run.id} was approved as a step of {fact.group_id}, and there is no such plan")
    _change_config(run, fact.changes)
    if run.is_plan:
        config = json.loads(run.config)
        state.plans.add(PlanCaps(run.id, header.user_id, config["max_cost_micros"], config["timeout_s"], header.ts_us))


def _step_run_queued(state: State, header: Header, fact: StepRunQueued) -> None:
    plan = state.runs.get(fact.group_id)
    if plan is None:
        raise Contradiction(f"{fact.subagent_id} is a step of {fact.group_id}, and there is no such plan")
    approved = _step_configs(plan.config).get(fact.step)
    if approved is None:
        raise Contradiction(f"{fact.subagent_id} is of the step {fact.step}, which {plan.id} does not have")
    config = step_run_config(approved, fact)
    state.runs.add(
        RunRow(
            id=fact.subagent_id,
            pending_id=plan.pending_id,
            plan_id=plan.id,
            user_id=plan.user_id,
            session_id=plan.session_id,
            role=str(config.get("role")),
            name=fact.name,
            task_id=None,
            model=str(config.get("model")),
            config=_config(config),
            terms=terms_of(config),
            retry_of=None,
            state=QUEUED,
            stop_reason=None,
            error_kind=None,
            created_us=header.ts_us,
            queued_us=header.ts_us,
            step=fact.step,
            item=fact.item,
        )
    )


def step_run_config(approved: Mapping[str, Any], fact: StepRunQueued) -> dict[str, Any]:
    """Return the configuration of a run of a step, out of the step's approved one and of how the plan queued it."""
    config = {
        **approved,
        "name": fact.name,
        "context_from": [*approved.get("context_from", ()), *fact.earlier],
        "least_micros": fact.least_micros,
    }
    if fact.leaves:
        config["leaves"] = fact.leaves
    return config


@lru_cache(maxsize=8)
def _step_configs(plan_config: str) -> dict[str, dict[str, Any]]:
    """Return the configuration of each step of a plan; cached, because each of up to 1,000 runs needs one."""
    return {step["id"]: step["config"] for step in json.loads(plan_config)["steps"]}


def _claimed(state: State, run: RunRow, header: Header, fact: RunClaimed) -> None:
    _leave(run, fact.seen_us)
    run.state = RUNNING
    _stop_waiting(run)
    run.generation = fact.generation
    run.instance = fact.instance
    run.claimed_us = run.last_us = header.ts_us
    if run.started_us is None:
        run.started_us = header.ts_us
    plan = state.plans.get(run.plan_id)
    if plan is not None and plan.started_us is None:
        plan.started_us = header.ts_us


def _leave(run: RunRow, seen_us: int | None = None) -> None:
    """Take a run from its owner. Its active time ends when the owner was last seen at work, or with its last entry.

    A clock that was set back adds nothing.
    """
    if run.last_us is not None and seen_us is not None:
        run.last_us = max(run.last_us, seen_us)
    if run.last_us is not None:
        _end_money_wait(run, run.last_us)
    if run.last_us is not None and run.claimed_us is not None:
        run.active_us += max(0, run.last_us - run.claimed_us)
    run.state = QUEUED
    run.instance = run.claimed_us = None


def _wait(run: RunRow, active_us: int, waits_for: WaitsFor, until_us: int, asked: Fact | None = None) -> None:
    """Return a run to the queue, where it waits for something until a time. The fact of that gives its active time.

    `asked`: what somebody is to answer.
    """
    run.claimed_us = None
    run.active_us = max(run.active_us, active_us)
    _leave(run)
    run.waits_for = waits_for
    run.waits_until_us = until_us
    run.asked = None if asked is None else to_json(asked).decode()


def _stop_waiting(run: RunRow) -> None:
    run.waits_for = run.waits_until_us = run.asked = None


def _money_awaited(state: State, run: RunRow, header: Header, fact: MoneyAwaited) -> None:
    if fact.returned:
        _return_last_turn(state, run)
        return
    if fact.over:
        _end_money_wait(run, header.ts_us)
        return
    since_us = header.ts_us if run.money_wait is None else from_json(run.money_wait)["since_us"]
    wait = {"since_us": since_us, "scope": fact.scope, "limit": fact.limit, "micros": fact.micros, "least": fact.least}
    run.money_wait = to_json(wait).decode()


def _end_money_wait(run: RunRow, now_us: int) -> None:
    """End a run's wait for money; it was not active meanwhile."""
    if run.money_wait is None:
        return
    if run.claimed_us is not None:
        run.claimed_us += max(0, now_us - from_json(run.money_wait)["since_us"])
    run.money_wait = None


def _paused(_state: State, run: RunRow, _header: Header, fact: RunPaused) -> None:
    waits_for: WaitsFor = "provider"
    if fact.stands_us is not None:
        waits_for = "owner"
    elif fact.not_before_us == HELD_UNTIL_US:
        waits_for = "resume"
    _wait(run, fact.active_us, waits_for, fact.not_before_us)


def _asks(_state: State, run: RunRow, _header: Header, fact: Asked) -> None:
    _wait(run, fact.active_us, "more" if fact.for_more else "answer", fact.expires_us, fact)


def _decided_on(_state: State, run: RunRow, _header: Header, fact: Answered) -> None:
    _stop_waiting(run)
    _change_config(run, fact.changes)


def _resumed(_state: State, run: RunRow, header: Header, fact: RunResumed) -> None:
    _leave(run, fact.seen_us)
    run.last_us = header.ts_us  # the time without an owner counts from here
    _stop_waiting(run)
    run.generation += 1


def _started(run: RunRow, header: Header) -> None:
    run.started_seq = header.seq


def _reserved(state: State, header: Header, fact: CostReserved) -> None:
    run = state.runs.get(header.run_id)
    for scopes, micros in _holdings(run, calls=not fact.beside):
        _hold(state, scopes, -micros)
    _hold(state, fact.scopes, fact.micros + fact.wrap_micros)
    if run is not None:
        _end_money_wait(run, header.ts_us)
        run.turns = max(run.turns, fact.turn)
        call = {
            "turn": fact.turn,
            "attempt": fact.attempt,
            "day": header.ts_us // DAY_US,
            "scopes": fact.scopes,
            "micros": fact.micros,
            "prompt_tokens": fact.prompt_tokens,
            "max_output": fact.max_output,
            **({"phase": fact.phase} if fact.phase else {}),
        }
        others = run.calls_in_flight if fact.beside else []
        run.in_flight = to_json([*others, call] if others else call).decode()
        run.wrap_micros = fact.wrap_micros
        run.wrap_scopes = to_json(fact.scopes).decode()


def _settled(state: State, run: RunRow, header: Header, fact: CostUpdate) -> None:
    calls = run.calls_in_flight
    held = next((call for call in calls if (call["turn"], call["attempt"]) == (fact.turn, fact.attempt)), None)
    if held is not None:
        _hold(state, held["scopes"], -int(held["micros"]))
        calls.remove(held)
        run.in_flight = to_json(calls[0] if len(calls) == 1 else calls).decode() if calls else None
        _book(state, run, header, fact, held["scopes"], int(held["day"]))
    elif fact.replaces is not None:
        _book(state, run, header, fact, fact.replaces.scopes, fact.replaces.day)
    # Else the call is neither in flight nor of unknown cost: what it cost was booked before.


_NOTHING_BOOKED = UnknownCost(day=0, scopes=(), micros=0, tokens=0)


def _book(state: State, run: RunRow, header: Header, fact: CostUpdate, scopes: Sequence[str], day: int) -> None:
    """Book a settled call, in place of what was booked for it as unknown, if anything was."""
    before = fact.replaces or _NOTHING_BOOKED
    cost = header.cost_micros or 0
    more = cost - before.micros
    more_uncosted = (cost if fact.settlement == "unknown" else 0) - before.micros
    more_tokens = fact.tokens - before.tokens
    for scope in scopes:
        bucket = state.budgets.get(scope)
        if bucket is not None:
            bucket.spent_micros += more
    spent = _spent_on(state, run, day)
    spent.calls += int(fact.replaces is None)
    spent.cost_micros += more
    spent.retries_micros += fact.cost_by.get("retries", 0) - before.cost_by.get("retries", 0)
    spent.plan_micros += fact.cost_by.get("plan", 0) - before.cost_by.get("plan", 0)
    spent.uncosted_micros += more_uncosted
    spent.overruns += int(fact.overrun)
    spent.over_micros += max(0, cost - fact.reserved_micros) if fact.overrun else 0
    usage = header.usage or _NO_TOKENS
    run.cost_micros += more
    run.uncosted_micros += more_uncosted
    run.overrun = max(run.overrun, int(fact.overrun))
    run.tokens += more_tokens
    run.input_tokens += usage.input_tokens
    run.output_tokens += usage.output_tokens
    run.cache_read_tokens += usage.cache_read_tokens
    run.cache_write_tokens += usage.cache_write_tokens
    plan = state.runs.get(run.plan_id) if run.step is not None else None
    if plan is not None:  # what its runs cost and take, a plan does
        plan.cost_micros += more
        plan.uncosted_micros += more_uncosted
        plan.tokens += more_tokens


def _spent_on(state: State, run: RunRow, day: int) -> DaySpending:
    """Return what a run has spent on the day of a call's reservation."""
    key = day_key(run.id, day)
    spent = state.spending.get(key)
    if spent is None:
        spent = DaySpending(key, run.id, run.user_id, day)
        state.spending.add(spent)
    return spent


def _called(run: RunRow, header: Header) -> None:
    if header.generation is not None:  # a subagent's call; the orchestrator's calls of Ava's tools have no generation
        run.tool_calls += 1


def _answered(run: RunRow, header: Header) -> None:
    # A result of one of Ava's tools has a run id in its header only if it carried that run's result.
    if header.generation is None and run.fetched_us is None and run.ended_us is not None:
        run.fetched_us = header.ts_us


def _cancelled(run: RunRow, header: Header) -> None:
    if run.cancel_seq is None:
        run.cancel_seq = header.seq


def _completed(run: RunRow, header: Header) -> None:
    run.result_seq = header.seq


def _ended(state: State, run: RunRow, header: Header, fact: RunEnded) -> None:
    _return_last_turn(state, run)
    run.state = fact.status
    run.stop_reason = fact.stop_reason
    run.error_kind = fact.error_kind
    run.ended_us = header.ts_us
    _end_money_wait(run, header.ts_us)
    _stop_waiting(run)
    run.active_us = max(run.active_us, fact.active_us)


def _return_last_turn(state: State, run: RunRow) -> None:
    """Return what a run holds for its last turn."""
    if run.wrap_scopes is not None:
        _hold(state, from_json(run.wrap_scopes), -run.wrap_micros)
    run.wrap_micros, run.wrap_scopes = 0, None


def _holdings(run: RunRow | None, *, calls: bool) -> Iterator[tuple[Sequence[str], int]]:
    """Yield the scopes and amounts held for a run's wrap-up and, with `calls`, for its calls in flight."""
    if run is None:
        return
    if run.wrap_scopes is not None:
        yield from_json(run.wrap_scopes), run.wrap_micros
    for call in run.calls_in_flight if calls else ():
        yield call["scopes"], int(call["micros"])


def _hold(state: State, scopes: Sequence[str], micros: int) -> None:
    for scope in scopes:
        bucket = state.budgets.get(scope)
        if bucket is None:
            state.budgets.add(Bucket(scope, held_micros=micros))
        else:
            bucket.held_micros += micros


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _change_config(run: RunRow, changes: dict[str, Any]) -> None:
    if changes:
        changed = {**json.loads(run.config), **changes}
        run.config, run.terms = _config(changed), terms_of(changed)


_TERMS = (
    "price", "runner", "input_bytes", "timeout_s", "max_cost_micros", "max_tokens", "max_iterations", "max_tool_calls",
    "estimate",
)  # fmt: skip


def terms_of(config: dict[str, Any]) -> str:
    """Return what estimates need of a configuration, as JSON."""
    return _config({name: config[name] for name in _TERMS if name in config})


def _config(config: dict[str, Any]) -> str:
    return json.dumps(config, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


_BY_HEADER: dict[str, Callable[[RunRow, Header], None]] = {
    "UserMessage": _said,
    "RunStarted": _started,
    "ToolCall": _called,
    "ToolResult": _answered,
    "CancelRequested": _cancelled,
    "SubagentComplete": _completed,
}
"""Reducers that read only the header: the only ones that transcripts can have."""
_BY_FACT: dict[str, Callable[[State, Header, Any], None]] = {
    "SpawnProposed": _proposed,
    "SpawnDecided": _decided,
    "StepRunQueued": _step_run_queued,
    "CostReserved": _reserved,
}
_BY_RUN: dict[str, Callable[[State, RunRow, Header, Any], None]] = {
    "RunClaimed": _claimed,
    "RunPaused": _paused,
    "MoneyAwaited": _money_awaited,
    "Asked": _asks,
    "Answered": _decided_on,
    "RunResumed": _resumed,
    "CostUpdate": _settled,
    "RunEnded": _ended,
}

CONTENT_TYPES: frozenset[str] = frozenset({*_BY_FACT, *_BY_RUN})
REDUCED_TYPES: frozenset[str] = CONTENT_TYPES | _BY_HEADER.keys()
"""The event types that a reducer reads; of others, a run notes only the time, if they have a generation."""
