"""Resolves the steps of a plan to one configuration: its caps, its reach, and the configuration of each step."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ava_audit.units import DAY_S, HOUR_S, format_usd
from ava_roles import BUILT_IN_SOURCE
from ava_roles.tool import ToolSpec
from ava_server.approval.plan_summary import longest_path_s, plan_reach
from ava_server.approval.requests import PlanArgs
from ava_server.approval.steps import ITEM, MOST_NAMED, PlannedStep
from ava_server.core.errors import BadInput
from ava_server.core.names import named, named_all, quote_name
from ava_server.models.prices import Price
from ava_server.run_config.brief import Brief
from ava_server.run_config.config import PLAN, ReusedRun, RunConfig, StepConfig
from ava_server.run_config.parts import EarlierRun
from ava_server.run_config.run_cap import CAPS, COST, TIME

LONGEST_S = 30 * DAY_S
"""The longest time of a plan, in seconds."""
SEVERAL_MODELS = "several models"


@dataclass(frozen=True)
class ResolvedStep:
    """A step with the complete configuration of its runs, their texts, and what their tools can do."""

    step: PlannedStep
    config: RunConfig
    brief: Brief
    specs: Collection[ToolSpec]


@dataclass(frozen=True)
class KnownWork:
    """What an earlier plan has already done of a step.

    Attributes:
        reused: The runs whose results are used again.
        repeats: Runs with effects outside Ava that would happen a second time.
        again_why: Why other runs of it do not count again; empty where there is none.
        items: The length of the list that the step goes through; None if it has no list, or its length is not known.
    """

    reused: tuple[ReusedRun, ...] = ()
    repeats: tuple[str, ...] = ()
    items: int | None = None
    again_why: str = ""

    def at_most(self, approved: int) -> int:
        """Return the greatest number of the step's runs, including the reused ones."""
        if self.items is None:
            return approved
        return min(approved, self.items)


def earlier_of(step: PlannedStep, by_id: dict[str, PlannedStep]) -> tuple[EarlierRun, ...]:
    """Return a placeholder for each step whose results this step reads. The real runs exist only once they start."""
    names: set[str] = set()
    for source in step.inputs:
        if source.step != ITEM:
            names.add(source.step)
        elif step.foreach is not None:
            names.add(step.foreach.step)
    return tuple(EarlierRun(id=name, role=by_id[name].args.role, ending="success") for name in sorted(names))


def resolve_plan(
    args: PlanArgs,
    resolved: Sequence[ResolvedStep],
    *,
    background: bool,
    asked: dict[str, object],
    known: Mapping[str, KnownWork] = MappingProxyType({}),
    goes_on_from: str = "",
) -> tuple[RunConfig, Brief]:
    """Return the configuration of a plan, and its texts.

    Without `max_cost_cents` the cost cap is the sum of the caps of its runs. Without `timeout` the time is that of its
    longest chain of steps, rounded up to hours, at most 30 days. `asked` has the arguments of the call without texts,
    for a retry. `known` has what an earlier plan has done, by step id; `goes_on_from` is that plan.

    Raises:
        BadInput: The cost cap is too low for useful work in one of the steps.
    """
    works = [known.get(one.step.id, KnownWork()) for one in resolved]
    most_micros, sum_micros = _cost_cap(args, resolved, works)
    steps = tuple(_step_config(one, most_micros, args.timeout, work) for one, work in zip(resolved, works, strict=True))
    chain_s = longest_path_s(steps, {step.id: step.config.timeout_s for step in steps})
    timeout_s = args.timeout or min(math.ceil(chain_s / HOUR_S) * HOUR_S, LONGEST_S)
    config = plan_config(
        steps,
        max_cost_micros=most_micros,
        timeout_s=timeout_s,
        reach=plan_reach([(one.config, one.specs) for one in resolved]),
        background=background,
        asked=asked,
        name=args.name,
        task_id=args.task_id,
        clamped=_clamped(args, sum_micros),
    ).model_copy(update={"goes_on_from": goes_on_from})
    by_id = {one.step.id: one.brief.model_copy(update={"step": one.step.id}) for one in resolved}
    brief = Brief(
        task=f"A plan of {len(steps)} steps. The first: {by_id[steps[0].id].task}",
        rationale=args.rationale,
        steps=tuple(by_id[step.id] for step in steps),
    )
    return config, brief


def _clamped(args: PlanArgs, sum_micros: int) -> tuple[str, ...]:
    """Return a sentence on the cost cap that was asked for, if the caps of the steps' runs are lower together."""
    if args.max_cost_cents is None or sum_micros == 0 or COST.stored(args.max_cost_cents) <= sum_micros:
        return ()
    wanted = COST.text(COST.stored(args.max_cost_cents))
    return (f"max_cost_cents was asked as {wanted}, and lowered to what its runs may cost, {COST.text(sum_micros)}",)


def _cost_cap(args: PlanArgs, resolved: Sequence[ResolvedStep], works: Sequence[KnownWork]) -> tuple[int, int]:
    """Return the cost cap of a plan, and the sum of its runs' caps, in micro-USD.

    Raises BadInput if the cap buys no useful work for one of its steps.
    """
    paid: list[tuple[ResolvedStep, int]] = []
    for one, work in zip(resolved, works, strict=True):
        if not one.config.free:
            paid.append((one, _new_runs(one, work)))
    sum_micros = sum(one.config.max_cost_micros * runs for one, runs in paid)
    most_micros: float = sum_micros
    if args.max_cost_cents is not None:
        most_micros = min(COST.stored(args.max_cost_cents), sum_micros)
    for one, runs in paid:
        least = one.config.least_micros
        if runs and most_micros < least:
            raise BadInput(
                f"max_cost_cents: {format_usd(int(most_micros), exact=True)} buys no useful work for"
                f" {named('step', one.step.id)} with {one.config.model}; give {format_usd(least, up=True)} or more"
            )
    return int(most_micros), int(sum_micros)


def plan_config(
    steps: Sequence[StepConfig],
    *,
    max_cost_micros: int,
    timeout_s: float,
    reach: str,
    background: bool,
    asked: dict[str, object],
    name: str | None = None,
    task_id: str | None = None,
    clamped: tuple[str, ...] = (),
) -> RunConfig:
    """Return the configuration of a plan: its own caps, and the sums of what its steps may do."""
    models = list(dict.fromkeys(step.config.model for step in steps))
    return RunConfig(
        role=PLAN,
        role_source=BUILT_IN_SOURCE,
        role_text="",
        model=models[0] if len(models) == 1 else SEVERAL_MODELS,
        provider="",
        model_id="",
        price=Price(0, 0, 0, 0),
        timeout_s=timeout_s,
        max_cost_micros=max_cost_micros,
        max_tokens=sum(step.config.max_tokens * step.at_most for step in steps),
        max_iterations=sum(step.config.max_iterations * step.at_most for step in steps),
        max_tool_calls=sum(step.config.max_tool_calls * step.at_most for step in steps),
        least_micros=max(step.config.least_micros for step in steps),
        tools=(),
        reach=reach,
        background=background,
        estimated_minutes=_minutes_of(steps),
        input_bytes=sum(step.config.input_bytes for step in steps),
        name=name,
        task_id=task_id,
        asked=asked,
        clamped=clamped,
        steps=tuple(steps),
    )


def _step_config(one: ResolvedStep, most_micros: int, timeout_s: float | None, known: KnownWork) -> StepConfig:
    """Return a step as it is stored: no run of it may cost or take more than the whole plan."""
    caps: dict[str, float] = {COST.field: min(one.config.max_cost_micros, most_micros)}
    if timeout_s is not None:
        caps[TIME.field] = min(one.config.timeout_s, timeout_s)
    own = [each for each in one.config.context_from if each.id.startswith("S-")]
    config = one.config.model_copy(update={**caps, "context_from": tuple(own)})
    step = one.step
    return StepConfig(
        id=step.id,
        config=config,
        needs=step.needs,
        inputs=step.inputs,
        foreach=step.foreach,
        at_most=known.at_most(step.at_most),
        listed_most=step.at_most,
        if_fails=step.if_fails,
        reused=known.reused,
        repeats=known.repeats,
        again_why=known.again_why,
    )


def _new_runs(one: ResolvedStep, known: KnownWork) -> int:
    """Return the greatest number of a step's runs that still have to be paid."""
    return known.at_most(one.step.at_most) - len(known.reused)


def _minutes_of(steps: Sequence[StepConfig]) -> tuple[int, int]:
    """Return the least and the most minutes that a plan is likely to take, by the estimates of its roles."""
    least: dict[str, float] = {}
    most: dict[str, float] = {}
    for step in steps:
        least[step.id], most[step.id] = step.config.estimated_minutes
    # The function adds along the longest chain of steps, in the unit that it gets.
    return round(longest_path_s(steps, least)), round(longest_path_s(steps, most))


# -- an approval that takes away --------------------------------------------------------------------------------------


def change_plan(config: RunConfig, requested: Mapping[str, Any]) -> dict[str, Any] | str:
    """Return the fields that an approval changes in a plan's configuration, or a sentence on why it cannot.

    `requested` may have lower `max_cost_micros` and `timeout_s`, `blocked_tools` to take from every step, and steps to
    `drop`. Steps that need a dropped step are dropped too.
    """
    changes = _lowered_caps(config, requested)
    if isinstance(changes, str):
        return changes
    steps = config.steps
    dropped = requested.get("drop") or ()
    if dropped:
        remaining = _drop_steps(steps, dropped)
        if isinstance(remaining, str):
            return remaining
        steps = remaining
    blocked = requested.get("blocked_tools") or ()
    if blocked:
        restricted = _block_tools(steps, blocked)
        if isinstance(restricted, str):
            return restricted
        steps = restricted
    if dropped or blocked:
        changes["steps"] = [step.model_dump(mode="json", exclude_none=True) for step in steps]
    cost_cap = changes.get(COST.field, config.max_cost_micros)
    for step in steps:
        if not step.config.free and cost_cap < step.config.least_micros:
            return (
                f"changes: a cost cap of {COST.text(cost_cap)} buys no useful work for {named('step', step.id)} with"
                f" {step.config.model}; give {format_usd(step.config.least_micros, up=True)} or more"
            )
    return changes


def _lowered_caps(config: RunConfig, requested: Mapping[str, Any]) -> dict[str, Any] | str:
    """Return the caps that an approval lowers in a plan, or why it cannot."""
    lowered: dict[str, Any] = {}
    for cap in CAPS:
        if cap.field not in requested:
            continue
        if cap not in (COST, TIME):
            return f"changes: {cap.argument} is of each step; of a plan, max_cost_cents and timeout may be lowered"
        if requested[cap.field] > cap.of(config):
            return (
                f"changes: {cap.argument} would be raised, and an approval only lowers; propose it again with"
                " spawn_subagent"
            )
        lowered[cap.field] = requested[cap.field]
    return lowered


def _drop_steps(steps: tuple[StepConfig, ...], names: Collection[str]) -> tuple[StepConfig, ...] | str:
    """Return the steps that remain without these and all that need them, or why they cannot be dropped."""
    known = [step.id for step in steps]
    for name in names:
        if name not in known:
            return f"changes: it has no step {quote_name(name)} to drop; it has {named_all('step', known, MOST_NAMED)}"
    dropped = set(names)
    remaining: list[StepConfig] = []
    for step in steps:  # a step comes after all that it needs
        if not dropped.isdisjoint(step.needs):
            dropped.add(step.id)
        if step.id not in dropped:
            remaining.append(step)
    if not remaining:
        return "changes: without these steps nothing is left; reject it instead"
    return tuple(remaining)


def _block_tools(steps: tuple[StepConfig, ...], blocked: Collection[str]) -> tuple[StepConfig, ...] | str:
    """Return the steps without these tools, or why they cannot be blocked."""
    known: set[str] = set()
    for step in steps:
        known.update(step.config.tools)
    for name in blocked:
        if name not in known:
            tools_there = named_all("tool", sorted(known), MOST_NAMED)
            return f"changes: no step has a tool {quote_name(name)} to block; they have {tools_there}"
    restricted: list[StepConfig] = []
    for step in steps:
        tools = tuple(name for name in step.config.tools if name not in blocked)
        config = step.config.model_copy(update={"tools": tools})
        restricted.append(step.model_copy(update={"config": config}))
    return tuple(restricted)
