"""The costs of a run explained: each attempt, the tool outputs that were sent again and again, and who set its caps.

`costs_of` finds what it takes in the log; of a plan, that is the costs of its runs. The figures come from header
columns and from facts outside the transcript, so they stay when a run's content is erased; what a tool output cost
does not stay.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ava_audit.entries import Entry
from ava_audit.events import (
    Answered,
    CostReserved,
    CostUpdate,
    SettingsChanged,
    Settlement,
    SpawnDecided,
    SpawnProposed,
    ToolCall,
    ToolResult,
    Usage,
)
from ava_audit.rows import PlanCaps, RunRow, StepRunRow
from ava_audit.units import micros_from_cents
from ava_audit.view import View
from ava_roles.errors import RolesError
from ava_roles.role import parse_role
from ava_server.approval.channels import WAYS
from ava_server.approval.lookup import approval_of
from ava_server.config.settings import Configured, limits_of
from ava_server.models.base import AssistantTurn, ToolTurn, Turn, UserTurn
from ava_server.models.prices import COST_PARTS, Price, nanos_of, rate_for
from ava_server.run_config.config import RunConfig, config_of
from ava_server.run_config.run_cap import CAPS, COST, TIME
from ava_server.runs.record.history import History, Recipe

_DAYS = ("limits.user_daily_cents", "limits.installation_daily_cents")


@dataclass(frozen=True)
class CapNote:
    """Who raised or lowered a cap, and when (microseconds UTC)."""

    at_us: int
    text: str


def cap_notes(
    run: RunRow,
    config: RunConfig,
    entries: Iterable[Entry],
    changed: Iterable[Entry],
    plan: PlanCaps | None,
    proposed_with: Entry | None = None,
) -> list[CapNote]:
    """Return who raised or lowered a cap of a run, oldest first, and what its plan may cost; see `fold_costs`."""
    notes: list[CapNote] = []
    if proposed_with is not None:
        notes += _at_the_proposal(proposed_with, config)
    if plan is not None:
        clock = f" and {TIME.text(plan.timeout_s)}" if plan.timeout_s is not None else ""
        most = f"at most {COST.text(plan.cap_micros)}{clock}"
        notes.append(CapNote(plan.created_us, f"the plan {plan.id} set {most} for all of its runs at its approval"))
    for entry in entries:
        match entry.fact:
            case SpawnProposed() as proposed:
                notes += _at_the_proposal(entry, RunConfig.model_validate(proposed.config))
            case SpawnDecided(decision="approved") as decided:
                how = f"at the approval {WAYS[decided.channel].where}" if decided.channel else "at the approval"
                notes += _changes(entry, decided.changes, "lowered", how, free=config.free)
            case Answered(for_more=True) as decided:
                where = WAYS[decided.channel].where
                notes += _changes(entry, decided.changes, "raised", f"by a person near the cap, {where}")
            case _:
                pass
    if not config.free:
        notes += _days(run, config, changed)
    return sorted(notes, key=lambda note: note.at_us)


def _at_the_proposal(entry: Entry, config: RunConfig) -> list[CapNote]:
    """Return the caps that the call asked for in place of the role's, and which of them were lowered to a hard cap."""
    notes = [CapNote(entry.ts_us, note) for note in config.clamped]
    try:
        role = parse_role(config.role_text, config.role_source, config.role)
    except RolesError:  # of a newer program: the role's own caps are not known
        return notes
    for cap in CAPS:
        requested = config.asked.get(cap.argument)
        default = cap.default(role)
        if requested is None or requested == default:
            continue
        if cap is COST and config.free:
            continue
        change = "lowered"
        if requested > default:
            change = "raised"
        before = cap.text(cap.stored(default))
        after = cap.text(cap.stored(requested))
        text = f"{cap.argument} {change} from the role's {before} to {after} by the proposal itself"
        notes.append(CapNote(entry.ts_us, text))
    return notes


def _changes(entry: Entry, changes: Mapping[str, float], what: str, how: str, *, free: bool = False) -> list[CapNote]:
    notes: list[CapNote] = []
    for cap in CAPS:
        costs_nothing = free and cap is COST
        if cap.field in changes and not costs_nothing:
            notes.append(CapNote(entry.ts_us, f"{cap.argument} {what} to {cap.text(changes[cap.field])} {how}"))
    return notes


def _days(run: RunRow, config: RunConfig, changed: Iterable[Entry]) -> list[CapNote]:
    """Return the daily budgets that were below the run's own cap, and those that were changed while it ran."""
    began = run.queued_us or run.created_us
    notes: list[CapNote] = []
    built_in = limits_of(Configured())
    cents_at_start = {setting: int(built_in[setting]) for setting in _DAYS}
    for entry in changed:
        fact = entry.fact
        if not isinstance(fact, SettingsChanged) or fact.setting not in cents_at_start:
            continue
        if entry.ts_us <= began:
            cents_at_start[fact.setting] = int(fact.after)
        elif run.ended_us is None or entry.ts_us <= run.ended_us:
            before = COST.text(COST.stored(fact.before))
            after = COST.text(COST.stored(fact.after))
            change = "lowered"
            if fact.after > fact.before:
                change = "raised"
            text = f"{fact.setting} was {change} from {before} to {after} in config.toml while it ran"
            notes.append(CapNote(entry.ts_us, text))
    for setting, cents in cents_at_start.items():
        if micros_from_cents(cents) < config.max_cost_micros:
            day = COST.text(COST.stored(cents))
            own = COST.text(config.max_cost_micros)
            notes.append(CapNote(began, f"{setting} in config.toml was {day}, below the run's own cap of {own}"))
    return notes


DEAREST = 3
"""Most tool outputs that are named."""


@dataclass(frozen=True)
class Attempt:
    """One model call: what it used, and what it cost in micro-USD.

    Attributes:
        settlement: How it was settled; None while it is in flight, with `micros` 0 and `reserved` held.
        run_id: Of the costs of a plan, its run that made the call; else empty.
        usage: The tokens that the provider reported; None where it did not.
        purpose: `retries`, `plan` or `search`, where all of its cost is booked under that.
    """

    turn: int
    attempt: int
    settlement: Settlement | None
    usage: Usage | None
    micros: int
    reserved: int
    overrun: bool = False
    purpose: str | None = None
    run_id: str = ""


@dataclass
class ToolCost:
    """How often later turns sent a tool's output, and about what that cost in micro-USD."""

    seq: int
    tool: str
    args: Any
    chars: int
    sent: int = 0
    micros: float = 0.0


@dataclass(frozen=True)
class StepCost:
    """What the runs of one step of a plan used, and what they cost in micro-USD."""

    step: str
    runs: int
    usage: Usage
    micros: int


@dataclass(frozen=True)
class Cache:
    """The effect of the provider's cache, in micro-USD: what reads saved, and what writes cost extra."""

    saved: int
    premium: int


@dataclass(frozen=True)
class Costs:
    """What a run has cost, and for what.

    Attributes:
        outputs: The tool outputs, most expensive first; None where they were erased.
        steps: Of a plan, what each of its steps has cost; else empty.
        whole: These are all attempts; else only the last ones, without outputs, and `cost_by` lacks the others.
    """

    attempts: tuple[Attempt, ...]
    outputs: tuple[ToolCost, ...] | None
    cost_by: dict[str, int]
    cache: Cache
    caps: tuple[CapNote, ...]
    steps: tuple[StepCost, ...] = ()
    whole: bool = True

    @property
    def dearest(self) -> list[ToolCost]:
        return [output for output in self.outputs or () if output.sent][:DEAREST]

    @property
    def micros(self) -> int:
        return sum(attempt.micros for attempt in self.attempts)

    @property
    def unknown(self) -> tuple[Attempt, ...]:
        """The attempts that were booked at their worst case, because their cost is not known."""
        return tuple(attempt for attempt in self.attempts if attempt.settlement == "unknown")


WHOLE_ENTRIES = 10_000
"""Of a run with more entries, a bounded look reads only the last calls: everything would take seconds."""
LAST_ENTRIES, FIRST_ENTRIES = 2_500, 40
"""What a bounded look reads of such a run. Its proposal and the decision on it are among its first entries."""
_OF_MONEY, _OF_CAPS = ("CostReserved", "CostUpdate"), ("SpawnProposed", "SpawnDecided")


def costs_of(view: View, run: RunRow, *, bounded: bool = False) -> Costs:
    """Return what a run has cost, and for what; of a plan, what its runs have.

    `bounded`: for a page, which has to be there at once: of more than `WHOLE_ENTRIES` entries, the last calls alone.

    Raises ValueError: a newer Ava wrote its configuration.
    """
    most = WHOLE_ENTRIES if bounded else None
    changed = view.of_type("SettingsChanged")
    step_runs = view.step_runs(run.id)
    if not step_runs:
        return _costs_of_one(view, run, changed, most)
    parts: list[tuple[StepRunRow, Costs]] = []
    for row in reversed(step_runs):
        step_run = view.run(row.id)
        assert step_run is not None, "a run of a plan is in the log"
        parts.append((row, _costs_of_one(view, step_run, (), most)))
        if most is not None:
            most -= view.count_entries(row.id, most)
    return _sum_costs(parts[::-1], fold_costs(run, view.entries(run.id), changed).caps)


def _costs_of_one(view: View, run: RunRow, changed: Iterable[Entry], most: int | None) -> Costs:
    """Return the costs of a run that is no plan; of one with `most` entries or more, those of its last calls."""
    approval = approval_of(view, run)
    proposed_with = approval.proposed if approval.run_id != run.id else None
    plan = view.plan_caps(run.plan_id)
    if most is None or view.count_entries(run.id, most) < most:
        return fold_costs(run, view.entries(run.id), changed, plan, proposed_with)
    first = [entry for entry in view.newer_entries(run.id, 0, FIRST_ENTRIES) if entry.type in _OF_CAPS]
    newest = view.older_entries(run.id, None, min(LAST_ENTRIES, most))[::-1]
    last = [entry for entry in newest if entry.type in _OF_MONEY]
    entries = [*first, *view.rare_entries(run.id, ("Answered",)), *last]
    return replace(fold_costs(run, entries, changed, plan, proposed_with), outputs=(), whole=False)


def _sum_costs(parts: Sequence[tuple[StepRunRow, Costs]], caps: tuple[CapNote, ...]) -> Costs:
    """Return the costs of a plan out of those of its runs, in their order; `caps` are the plan's own."""
    attempts: list[Attempt] = []
    outputs: list[ToolCost] = []
    cost_by: Counter[str] = Counter()
    saved = premium = 0
    by_step: dict[str, list[tuple[StepRunRow, Costs]]] = {}
    for row, costs in parts:
        attempts += [replace(attempt, run_id=row.id) for attempt in costs.attempts]
        outputs += costs.outputs or ()
        cost_by.update(costs.cost_by)
        saved += costs.cache.saved
        premium += costs.cache.premium
        by_step.setdefault(row.step, []).append((row, costs))
    outputs.sort(key=_by_cost, reverse=True)
    every_costs = [costs for _row, costs in parts]
    return Costs(
        attempts=tuple(attempts),
        outputs=None if all(costs.outputs is None for costs in every_costs) else tuple(outputs),
        cost_by={name: cost_by[name] for name in COST_PARTS if cost_by[name]},
        cache=Cache(saved, premium),
        caps=caps,
        steps=tuple(_step_cost(step, runs) for step, runs in by_step.items()),
        whole=all(costs.whole for costs in every_costs),
    )


def _step_cost(step: str, runs: Sequence[tuple[StepRunRow, Costs]]) -> StepCost:
    tokens: Counter[str] = Counter()
    for _row, costs in runs:
        for attempt in costs.attempts:
            if attempt.usage is not None:
                tokens.update(attempt.usage.model_dump())
    return StepCost(step, len(runs), Usage(**tokens), sum(row.cost_micros for row, _costs in runs))


def _by_cost(output: ToolCost) -> tuple[float, int]:
    return output.micros, output.chars * output.sent


def fold_costs(
    run: RunRow,
    entries: Sequence[Entry],
    changed: Iterable[Entry] = (),
    plan: PlanCaps | None = None,
    proposed_with: Entry | None = None,
) -> Costs:
    """Return what a run has cost, and for what, out of its entries.

    `changed` are the changes of settings in the whole log, `plan` has the caps of the plan whose step it is, and
    `proposed_with` is the proposal of a plan that has queued it.
    """
    config = config_of(run.config)
    price = config.price
    walk = _CostFold(run.id, price)
    for entry in entries:
        walk.add(entry)
    attempts = tuple(walk.attempts)
    parts = {name: walk.parts.get(name, 0) for name in COST_PARTS}
    outputs = None
    if not walk.erased:
        outputs = tuple(sorted(walk.outputs.values(), key=_by_cost, reverse=True))
    saved = premium = 0
    for attempt in attempts:
        if attempt.usage is not None and attempt.purpose != "search":  # that has a price of its own
            rate = rate_for(price, attempt.usage)
            saved += attempt.usage.cache_read_tokens * (rate.input - rate.cache_read)
            premium += attempt.usage.cache_write_tokens * (rate.cache_write - rate.input)
    return Costs(
        attempts=attempts,
        outputs=outputs,
        cost_by={name: micros for name, micros in parts.items() if micros},
        cache=Cache(round(saved / 1000), round(premium / 1000)),
        caps=tuple(cap_notes(run, config, entries, changed, plan, proposed_with)),
    )


@dataclass
class _Part:
    """One piece of a prompt: its length in characters, and the entry of the tool output that it is, if any."""

    seq: int | None
    chars: int


@dataclass(frozen=True)
class _Sent:
    """A call as it was sent: its reservation, and the pieces of its prompt."""

    fact: CostReserved
    prompt: list[_Part]


@dataclass
class _CostFold:
    """Folds a run's entries, with the parts of each attempt's prompt."""

    run_id: str
    price: Price
    attempts: list[Attempt] = field(default_factory=list[Attempt])
    outputs: dict[int, ToolCost] = field(default_factory=dict[int, ToolCost])
    parts: dict[str, int] = field(default_factory=dict[str, int])
    erased: bool = False

    def __post_init__(self) -> None:
        self._history = History(self.run_id)
        self._calls: dict[str, ToolCall] = {}
        self._sent: dict[tuple[int, int], _Sent] = {}

    def add(self, entry: Entry) -> None:
        fact = entry.fact
        if fact is None:
            if entry.type in ("ToolResult", "RunStarted"):
                self.erased = True
            return
        own = entry.generation is not None
        match fact:
            case CostReserved():
                prompt: list[_Part] = []
                if not (fact.tool_call or fact.beside or self.erased) and self._history.prefix is not None:
                    prompt = self._parts_of(Recipe.of(fact))
                self._sent[fact.turn, fact.attempt] = _Sent(fact, prompt)
                self.attempts.append(Attempt(fact.turn, fact.attempt, None, None, 0, fact.micros))
            case CostUpdate():
                self._settle_attempt(fact, entry)
            case ToolCall() if own and fact.call_id:
                self._calls[fact.call_id] = fact
            case ToolResult() if own and fact.call_id:
                call = self._calls.get(fact.call_id)
                args = call.args if call is not None else None
                self.outputs[entry.seq] = ToolCost(entry.seq, fact.tool, args, len(fact.output))
            case _:
                pass
        self._history.add(entry.seq, fact, entry.usage, fenced=own)

    def _settle_attempt(self, fact: CostUpdate, entry: Entry) -> None:
        cost = entry.cost_micros or 0
        usage = entry.usage
        if usage is not None:  # the header has no column for thinking tokens
            usage = usage.model_copy(update={"thinking_tokens": fact.thinking_tokens})
        purpose = next((name for name in ("retries", "plan", "search") if name in fact.cost_by), None)
        attempt = Attempt(
            fact.turn, fact.attempt, fact.settlement, usage, cost, fact.reserved_micros, fact.overrun, purpose
        )
        place = self._place(fact)
        if place is None:
            self.attempts.append(attempt)
        else:
            self.attempts[place] = attempt
        if fact.replaces is not None:
            for name, micros in fact.replaces.cost_by.items():
                self.parts[name] = self.parts.get(name, 0) - micros
        known = dict(fact.cost_by)
        known["input"] = known.get("input", 0) + cost - sum(known.values())
        for name, micros in known.items():
            self.parts[name] = self.parts.get(name, 0) + micros
        sent = self._sent.pop((fact.turn, fact.attempt), None)
        if sent is None or self.erased:
            return
        worst = Usage(input_tokens=sent.fact.prompt_tokens, output_tokens=sent.fact.max_output)
        if fact.replaces is not None:
            self._share(sent, worst, -fact.replaces.micros, calls=-1)
        if fact.settlement != "not_billed":
            self._share(sent, usage or worst, cost, calls=1)
        if fact.settlement == "unknown":  # its answer may come late
            self._sent[fact.turn, fact.attempt] = sent

    def _place(self, fact: CostUpdate) -> int | None:
        """Return the place of the attempt that is settled; None where it is not known."""
        for place in reversed(range(len(self.attempts))):  # it is near the end, and there may be thousands
            each = self.attempts[place]
            is_open = each.settlement is None or fact.replaces is not None
            if is_open and (each.turn, each.attempt) == (fact.turn, fact.attempt):
                return place
        return None

    def _parts_of(self, recipe: Recipe) -> list[_Part]:
        prefix = self._history.prefix
        assert prefix is not None
        first = len(prefix.system) + sum(len(json.dumps(tool, ensure_ascii=False)) for tool in prefix.tools)
        parts = [_Part(None, first)]
        for seq, turn in self._history.parts(recipe):
            parts.append(_Part(seq if isinstance(turn, ToolTurn) else None, turn_chars(turn)))
        return parts

    def _share(self, sent: _Sent, usage: Usage, cost: int, *, calls: int) -> None:
        """Assign each tool output in a prompt its share of the call's cost, by its characters."""
        chars = sum(part.chars for part in sent.prompt)
        before = 0
        for part in sent.prompt:
            if part.seq in self.outputs and chars:
                output = self.outputs[part.seq]
                output.sent += calls
                output.micros += cost * _share_of_call(self.price, usage, before / chars, (before + part.chars) / chars)
            before += part.chars


def turn_chars(turn: Turn) -> int:
    match turn:
        case UserTurn() | ToolTurn():
            return len(turn.text)
        case AssistantTurn():
            return len(json.dumps(turn.raw, ensure_ascii=False))


def _share_of_call(price: Price, usage: Usage, begins: float, ends: float) -> float:
    """Return the share of a call's cost that a stretch of its prompt has; both ends are shares of the prompt.

    The first tokens of a prompt were read from the cache, the next ones were written to it.
    """
    prompt = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
    call_nanos = sum(nanos_of(price, usage).values())
    if not prompt:
        return 0.0
    if not call_nanos:  # a cost without a known price counts as input
        return ends - begins
    rate = rate_for(price, usage)
    low, high, at, nanos = begins * prompt, ends * prompt, 0, 0.0
    for tokens, each in (
        (usage.cache_read_tokens, rate.cache_read),
        (usage.cache_write_tokens, rate.cache_write),
        (usage.input_tokens, rate.input),
    ):
        nanos += max(0.0, min(high, at + tokens) - max(low, at)) * each
        at += tokens
    return nanos / call_nanos
