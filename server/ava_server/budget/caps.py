"""Caps: a call is sent only if its worst case fits every cap.

A reservation holds the worst case of a call and of the wrap-up after it, which must fit together. The call's share is
settled with the call; the wrap-up's share stays held until the next reservation replaces it or the run ends.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from ava_audit.entries import Entry
from ava_audit.events import (
    CostReserved,
    CostUpdate,
    Event,
    Fence,
    MoneyAwaited,
    Settlement,
    UnknownCost,
    Usage,
    Who,
)
from ava_audit.rows import RunRow
from ava_audit.units import DAY_US, day_of
from ava_audit.view import Command, Outcome, T, View, loads
from ava_server.budget.kept_parts import kept_micros
from ava_server.budget.money_line import CapLeft, MoneyCapName, MoneyLine, MoneyWait, NoRoom, Patience
from ava_server.budget.user_limits import DayCaps, installation_scope, user_scope
from ava_server.core.ids import IN_PROCESS
from ava_server.models.base import MoreUsage
from ava_server.models.prices import COST_PARTS, Price, cost_by, cost_micros, price_named, rate_at
from ava_server.models.surcharges import telling
from ava_server.run_config.config import config_of

Purpose = Literal["retries", "plan", "search"]
"""The purpose of a call that is not for the work itself; its whole cost is shown under it."""
CapName = Literal[
    "max_cost_cents", "max_tokens", "group_max_cost", "user_daily_cents", "installation_daily_cents", "overrun"
]
SHARED_CAPS = ("the plan's ", "the user's ", "the installation's ")
"""How the reason of an ending begins if a cap or a time that several runs share was reached, not the run's own."""


MESSAGES = ("UserMessage",)
NOTHING_NAMED: Mapping[str, str] = {}


@dataclass(frozen=True)
class CapRequest:
    """A requested model call: its entry without the scopes.

    `tokens` is the most that the call can count against `max_tokens`, `wrap_tokens` the most that its wrap-up can.
    `model` is the called one where that is not the run's own.
    """

    fact: CostReserved
    tokens: int
    wrap_tokens: int
    model: str | None = None

    def needs(self, cap: CapName) -> int:
        """Return the worst case of the call and its wrap-up under a cap: tokens, or micro-USD."""
        if cap == "max_tokens":
            return self.tokens + self.wrap_tokens
        return self.fact.micros + self.fact.wrap_micros


@dataclass(frozen=True)
class Reservation:
    """A granted call: the entry that holds its worst case, and its `seq`."""

    fact: CostReserved
    tokens: int
    seq: int

    @property
    def held(self) -> HeldCall:
        fact = self.fact
        new_tokens = fact.new_bytes
        if fact.byte_tokens is not None:
            new_tokens = math.ceil(fact.new_bytes * fact.byte_tokens)
        return HeldCall(
            fact.turn,
            fact.attempt,
            fact.micros,
            self.tokens,
            new_bytes=fact.new_bytes,
            reported_tokens=fact.prompt_tokens - new_tokens,
            output_tokens=fact.max_output,
        )


@dataclass(frozen=True)
class UnreadMessages:
    """The call was not reserved because there are messages to the run, which its request has to show."""

    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class CapReached:
    """The call was refused: the cap that it does not fit, and what is left of that (micro-USD or tokens)."""

    cap: CapName
    left: int
    gives_way: bool = False
    """Other runs wait for the same money, and this is the youngest: it hands in what it has."""

    @property
    def status(self) -> Literal["cost_exceeded", "token_exceeded"]:
        """The ending of a run that reaches this cap."""
        if self.cap == "max_tokens":
            return "token_exceeded"
        return "cost_exceeded"


@dataclass(frozen=True)
class RunStopped:
    """The call was refused: the run is to pay for nothing more. `status` is how it ends."""

    status: Literal["cancelled", "timeout"]


CapAnswer = Reservation | CapReached | MoneyWait | RunStopped
"""How a request for a call is answered that may wait for money."""


def find_stop(view: View, run: RunRow, now_us: int) -> RunStopped | None:
    """Return why a run is to pay for nothing: it or its plan is cancelled, or its plan's time was over before it began.

    A run that has begun may still hand over what it has when its plan's time is over.
    """
    if run.cancel_seq is not None:
        return RunStopped("cancelled")
    if run.plan_id is None:
        return None
    plan = view.run(run.plan_id)
    if plan is not None and plan.cancel_seq is not None:
        return RunStopped("cancelled")
    caps = view.plan_caps(run.plan_id)
    if run.turns == 0 and caps is not None and caps.left_s(now_us) == 0:
        return RunStopped("timeout")
    return None


def scopes_of(run: RunRow, now_us: int) -> tuple[str, ...]:
    """Return the scopes of every cap on a call made now: run, plan, user's day, installation's day."""
    day = day_of(now_us)
    scopes = [run.id]
    if run.plan_id:
        scopes.append(run.plan_id)
    scopes += [user_scope(run.user_id, day), installation_scope(day)]
    return tuple(scopes)


def money_caps(view: View, run: RunRow, caps: DayCaps, now_us: int) -> list[CapLeft]:
    """Return each money cap of a run, its own first, and what is left of it; its own wrap-up does not count."""
    config = config_of(run.config)
    day = day_of(now_us)
    limits: list[tuple[MoneyCapName, str, int]] = [("max_cost_cents", run.id, config.max_cost_micros)]
    kept = 0
    if run.plan_id:
        plan = view.plan_caps(run.plan_id)
        if plan:
            kept = kept_micros(view, run)
            limits.append(("group_max_cost", run.plan_id, plan.cap_micros - kept))
    limits.append(("user_daily_cents", user_scope(run.user_id, day), caps.user_micros))
    limits.append(("installation_daily_cents", installation_scope(day), caps.installation_micros))
    lefts: list[CapLeft] = []
    for name, scope, cap in limits:
        wrap = run.wrap_in(scope)
        left = cap - view.bucket(scope).committed + wrap
        if name == "group_max_cost":  # what is kept for later steps takes nothing of the last turn that the run holds
            left = max(left, min(wrap, left + kept))
        lefts.append(CapLeft(name, scope, cap, left))
    return lefts


def reserve(
    fence: Fence, who: Who, request: CapRequest, caps: DayCaps
) -> Command[Reservation | CapReached | RunStopped]:
    """Hold the worst case of a call and its wrap-up in every cap at once, or return the cap that it does not fit.

    A call for a tool keeps what is held for the wrap-up. A call beside others counts with what those hold. The command
    itself raises StaleOwner for an older claim: a refusal appends nothing, so the store would not notice.
    """
    in_line = reserve_in_line(fence, who, request, caps, None)

    def command(view: View, now_us: int) -> Outcome[Reservation | CapReached | RunStopped]:
        outcome = in_line(view, now_us)
        assert not isinstance(outcome.value, MoneyWait), "without patience it does not wait"
        return Outcome(outcome.value, outcome.events)

    return command


def reserve_in_line(
    fence: Fence, who: Who, request: CapRequest, caps: DayCaps, patience: Patience | None
) -> Command[CapAnswer]:
    """Reserve a call, as `reserve` does, or answer that it has to wait for money that other runs hold.

    A wait is recorded once, not each time that the call is tried again. Without patience nothing waits.
    """

    def command(view: View, now_us: int) -> Outcome[CapAnswer]:
        run = view.owned_run(fence)
        stop = find_stop(view, run, now_us)
        if stop is not None:
            return Outcome(stop, _end_of_wait(run, who, fence))
        if run.overrun:
            return Outcome(CapReached("overrun", 0), _end_of_wait(run, who, fence))
        lefts = [replace(cap, left=max(cap.left, 0)) for cap in money_caps(view, run, caps, now_us)]
        wrap_micros = run.wrap_micros  # a call for a tool keeps what is held for the wrap-up
        if request.fact.tool_call is None:
            wrap_micros = request.fact.wrap_micros
        fact = request.fact.model_copy(update={"scopes": scopes_of(run, now_us), "wrap_micros": wrap_micros})
        need = fact.micros + fact.wrap_micros
        tightest = min(lefts, key=lambda cap: cap.left)
        if patience is None and need > tightest.left:
            return Outcome(CapReached(tightest.cap, tightest.left))
        config = config_of(run.config)
        tokens_left = config.max_tokens - run.tokens
        if fact.beside:
            tokens_left -= sum(map(_tokens, run.calls_in_flight))
        if request.needs("max_tokens") > tokens_left:
            return Outcome(CapReached("max_tokens", max(tokens_left, 0)), _end_of_wait(run, who, fence))
        if patience is not None and (need > tightest.left or view.is_money_awaited()):
            answer = MoneyLine(view, run, need, lefts, patience).decide()
            if isinstance(answer, NoRoom):
                reached = CapReached(answer.cap, answer.left, answer.gives_way)
                return Outcome(reached, _end_of_wait(run, who, fence))
            if isinstance(answer, MoneyWait):
                return Outcome(answer, _begin_of_wait(run, who, fence, answer, patience))
        event = Event(who=who, fact=fact, fence=fence, model=request.model or config.model)
        return Outcome(Reservation(fact, request.tokens, view.head() + 1), (event,))

    return command


def _begin_of_wait(run: RunRow, who: Who, fence: Fence, wait: MoneyWait, patience: Patience) -> tuple[Event, ...]:
    """Return the event that records a wait; none if the log has it, or if the call only asks whether it would wait."""
    if patience.least is None:
        return ()
    fact = wait.fact
    logged = loads(run.money_wait)
    if logged is not None:
        known = (logged["scope"], logged["limit"], logged["micros"], logged["least"])
        if known == (fact.scope, fact.limit, fact.micros, fact.least):
            return ()
    return (Event(who=who, fact=fact, fence=fence),)


def _end_of_wait(run: RunRow, who: Who, fence: Fence) -> tuple[Event, ...]:
    if run.money_wait is None:
        return ()
    return (Event(who=who, fact=MoneyAwaited(over=True), fence=fence),)


def end_money_wait(fence: Fence, who: Who) -> Command[None]:
    """Record that a run waits for money no longer, if it does."""

    def command(view: View, _now_us: int) -> Outcome[None]:
        run = view.run(fence.run_id)
        if run is None:
            return Outcome(None)
        return Outcome(None, _end_of_wait(run, who, fence))

    return command


def messages_first(run_id: str, after_seq: int, command: Command[T]) -> Command[T | UnreadMessages]:
    """Return a command that answers with the messages to a run after an entry, or does `command` if there are none."""

    def messages_or_command(view: View, now_us: int) -> Outcome[Any]:
        run = view.run(run_id)
        if run is not None and (run.message_seq or 0) > after_seq:
            messages = tuple(view.entries(run_id, after_seq, MESSAGES))
            if messages:
                return Outcome(UnreadMessages(messages))
        return command(view, now_us)

    return messages_or_command


@dataclass(frozen=True)
class HeldCall:
    """A call in flight, and what is reserved for it, in micro-USD and in tokens.

    `new_bytes` of its prompt are covered by no report; `reported_tokens` are those of the rest. `output_tokens` are the
    answer's part of `tokens`.
    """

    turn: int
    attempt: int
    micros: int
    tokens: int
    new_bytes: int = 0
    reported_tokens: int = 0
    output_tokens: int = 0

    def tokens_per_byte(self, usage: Usage | None) -> float | None:
        """Return the tokens per byte of what was new in the prompt; None where that is too little to tell."""
        if usage is None or self.new_bytes < LEAST_MEASURED:
            return None
        return round(max(usage.prompt_tokens - self.reported_tokens, 0) / self.new_bytes, 3)


LEAST_MEASURED = 1_000
"""Fewer new bytes are too few to measure a ratio of tokens to bytes."""


def settlement_event(
    fence: Fence | None,
    run_id: str,
    who: Who,
    model: str,
    price: Price,
    held: HeldCall,
    settlement: Settlement,
    *,
    usage: Usage | None = None,
    reported_micros: int | None = None,
    more: MoreUsage | None = None,
    named: Mapping[str, str] = NOTHING_NAMED,
    account: str = "",
    request_id: str | None = None,
    duration_ms: int | None = None,
    purpose: Purpose | None = None,
) -> Event:
    """Return the event that settles a call.

    `price` is the model's own; what the answer `named` of its tier and place changes what is booked. `account` is the
    mark of the account that was billed.

    `billed` books what the provider reported, else the price table's figure; `not_billed` books nothing; `unknown`
    books the full reservation, in money and tokens. More than was reserved is booked in full and flagged. With a
    `purpose` the whole cost is booked under it.

    `more` of a second reading is booked as well, as far as it was reserved.
    """
    price = price_named(price, named)
    if settlement != "billed":
        usage = None
    elif usage is None:
        settlement = "unknown"
    elif more is not None:
        usage = _with_more(price, held, usage, more)
    cost, tokens, parts = _booked(price, held, settlement, usage, reported_micros)
    if purpose is not None:
        parts = {purpose: cost}
    fact = CostUpdate(
        turn=held.turn,
        attempt=held.attempt,
        settlement=settlement,
        tokens=tokens,
        cost_cents=cost / 10_000,
        reserved_micros=held.micros,
        thinking_tokens=usage.thinking_tokens if usage else 0,
        price_source="provider" if reported_micros else price.source,
        request_id=request_id,
        overrun=cost > held.micros or tokens > held.tokens,
        free=price.free and cost == 0,
        tokens_per_byte=held.tokens_per_byte(usage),
        cost_by={name: parts[name] for name in COST_PARTS if parts.get(name)},
        named=telling(price.surcharges, named),
        account=account or None,
    )
    return Event(who, fact, run_id, fence, usage=usage, cost_micros=cost, model=model, duration_ms=duration_ms)


def _booked(
    price: Price, held: HeldCall, settlement: Settlement, usage: Usage | None, reported_micros: int | None
) -> tuple[int, int, dict[str, int]]:
    if settlement == "not_billed":
        return 0, 0, {}
    if usage is None:
        cost = max(held.micros, reported_micros or 0)
        return cost, held.tokens, {"uncosted": cost}
    # A gateway that reports 0 for a model with a price does not know the price; the table does.
    cost = reported_micros or cost_micros(price, usage)
    return cost, usage.counted, cost_by(price, usage, cost)


def within_reservation(
    price: Price,
    held: HeldCall,
    usage: Usage | None,
    reported_micros: int | None,
    named: Mapping[str, str] = NOTHING_NAMED,
) -> bool:
    """Tell whether what a provider reports of a call is known, and no more than was reserved for it."""
    if usage is None:
        return False
    cost, tokens, _ = _booked(price_named(price, named), held, "billed", usage, reported_micros)
    return cost <= held.micros and tokens <= held.tokens


def _with_more(price: Price, held: HeldCall, usage: Usage, more: MoreUsage) -> Usage:
    """Return a usage with what a second reading has more, of each side in its dearest class, within the reservation."""
    most_prompt = held.tokens - held.output_tokens - usage.prompt_tokens
    prompt = max(min(more.prompt_tokens, most_prompt), 0)
    output = max(min(more.output_tokens, held.output_tokens - usage.output_tokens), 0)
    rate = rate_at(price, usage.prompt_tokens + prompt)
    by_rate = {"input": rate.input, "cache_write": rate.cache_write, "cache_read": rate.cache_read}
    dearest = f"{max(by_rate, key=by_rate.__getitem__)}_tokens"
    added = {dearest: getattr(usage, dearest) + prompt, "output_tokens": usage.output_tokens + output}
    return usage.model_copy(update=added)


def may_have_cost(fact: CostUpdate) -> bool:
    """Tell whether an attempt was paid for, or may have been: another attempt is then a retry that costs extra."""
    return fact.settlement != "not_billed"


def in_flight_purpose(view: View, run: RunRow) -> Purpose | None:
    """Return the purpose of a run's call in flight, from the log: the outline (`plan`), or `retries` of a paid turn."""
    calls = run.calls_in_flight
    if not calls:
        return None
    call = calls[0]
    if call.get("phase"):
        return "plan"
    if call["attempt"] == 1:
        return None
    last = view.last_entry(run.id, "CostReserved")
    if last is not None and isinstance(last.fact, CostReserved) and last.fact.tool_call is not None:
        return "search"
    settled: dict[int, CostUpdate] = {}
    for entry in view.entries(run.id, 0, ("CostUpdate",)):
        if isinstance(entry.fact, CostUpdate) and entry.fact.turn == call["turn"]:
            settled[entry.fact.attempt] = entry.fact  # of two for one call, the later one counts
    if any(map(may_have_cost, settled.values())):
        return "retries"
    return None


def settle_unknown(
    run: RunRow,
    who: Who,
    fence: Fence | None = None,
    *,
    purpose: Purpose | None = None,
    only: tuple[int, int] | None = None,
) -> tuple[Event, ...]:
    """Return the settlements, as unknown, of calls left in flight; `only` is the turn and attempt of one of them.

    `fence` is that of the run's owner; without one, another process settles. `purpose` is not used for the run of
    another agent: there, each call tells its own.
    """
    if run.in_flight is None:
        return ()
    config = config_of(run.config)
    events: list[Event] = []
    for held in run.calls_in_flight:
        call = HeldCall(held["turn"], held["attempt"], held["micros"], _tokens(held))
        if only is not None and only != (call.turn, call.attempt):
            continue
        if config.runner != IN_PROCESS:  # what it asks of its model is never tried again here
            purpose = "search" if call.attempt > 1 else None
        search = config.search_call if purpose == "search" else None
        model, price = (run.model, config.price) if search is None else (search.model, search.price)
        events.append(settlement_event(fence, run.id, who, model, price, call, "unknown", purpose=purpose))
    return tuple(events)


def _tokens(held: Mapping[str, Any]) -> int:
    return int(held["prompt_tokens"]) + int(held["max_output"])


def settlement_now(view: View, run: RunRow | None, settlement: Event) -> Event | None:
    """Return a settlement as it is to be written now; None where the cost of its call is booked already.

    A call that is no longer in flight was booked as unknown, by whoever settled what a silent process held. What its
    answer cost then takes the place of that.
    """
    fact = settlement.fact
    assert isinstance(fact, CostUpdate)
    if run is None or _is_in_flight(run, fact):
        return settlement
    reserved: Entry | None = None
    booked: Entry | None = None
    for entry in view.entries(run.id, 0, ("CostReserved", "CostUpdate")):
        if isinstance(entry.fact, CostReserved | CostUpdate):
            if (entry.fact.turn, entry.fact.attempt) != (fact.turn, fact.attempt):
                continue
            if isinstance(entry.fact, CostReserved):
                reserved = entry
            else:
                booked = entry
    if reserved is None or booked is None:  # the log has lost entries, and `ava verify` says so
        return settlement
    assert isinstance(reserved.fact, CostReserved) and isinstance(booked.fact, CostUpdate)
    if booked.fact.settlement != "unknown":
        return None
    replaced = UnknownCost(
        day=reserved.ts_us // DAY_US,
        scopes=reserved.fact.scopes,
        micros=booked.cost_micros or 0,
        tokens=booked.fact.tokens,
        cost_by=booked.fact.cost_by,
    )
    return settlement._replace(fact=fact.model_copy(update={"replaces": replaced}))


def book_overrun(run_id: str, settlement: Event) -> Command[bool]:
    """Book a call that was booked as unknown, if it cost or used more than that; False where it did not.

    For an answer that came after its process had lost the run: another one goes on with it, or it has ended. What was
    said of its money since then stays, as long as that is the most that it can be.
    """

    def command(view: View, _now_us: int) -> Outcome[bool]:
        late = settlement_now(view, view.run(run_id), settlement)
        if late is None or not isinstance(late.fact, CostUpdate) or late.fact.replaces is None:
            return Outcome(False)
        costs_more = (late.cost_micros or 0) > late.fact.replaced_micros
        if not costs_more and late.fact.tokens <= late.fact.replaces.tokens:
            return Outcome(False)
        return Outcome(True, (late._replace(run_id=run_id, fence=None),))

    return command


def _is_in_flight(run: RunRow, fact: CostUpdate) -> bool:
    return any((held["turn"], held["attempt"]) == (fact.turn, fact.attempt) for held in run.calls_in_flight)
