"""The five caps of a run: how each is named in calls, in the log and to people, and in which unit it is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ava_audit.units import MICROS_PER_CENT, cap_micros, format_usd, minutes

if TYPE_CHECKING:
    from ava_roles.role import Role
    from ava_server.config.settings import Limits


@dataclass(frozen=True)
class RunCap:
    """A cap of a run."""

    argument: str  # its name in calls, in answers, and where a run asks for more: `max_cost_cents`
    field: str  # its name in the configuration and in the log's decisions. Money is in micro-USD there
    hard: str  # the setting in `[limits]` above which no run gets, in the unit of the argument
    limited: str  # what it limits, as subagents are told: `tool calls`
    word: str  # what it is a cap on, as people are told: `tool call`
    ending: str  # how a run ends that reaches it

    def stored(self, given: float) -> float:
        """Return an argument as the configuration and the log have it."""
        return cap_micros(given) if self is COST else given

    def argument_value(self, stored: float) -> float:
        """Return a value of the configuration or the log as an argument."""
        return stored / MICROS_PER_CENT if self is COST else stored

    def of(self, config: object) -> Any:
        return getattr(config, self.field)

    def default(self, role: Role) -> float:
        """Return the cap of a role, as an argument."""
        value: float = getattr(role, self.field if self is TIME else self.argument)
        return value

    def setting(self, tier: str | None) -> str:
        """Return the setting in `[limits]` of the hard cap for a model's tier."""
        if self is TOKENS and tier == "deep":
            return f"{self.hard}_deep"
        return self.hard

    def most(self, limits: Limits, tier: str | None) -> float:
        """Return the hard cap for a model's tier, as an argument."""
        value: float = getattr(limits, self.setting(tier))
        return value

    def text(self, stored: float, *, exact: bool = True) -> str:
        """Return a stored value for people: `$0.50`, `10 min`, `12,000`."""
        if self is COST:
            return format_usd(int(stored), exact=exact)
        if self is TIME:
            return minutes(stored if exact else round(stored))
        return f"{stored:,.0f}"


TIME = RunCap("timeout", "timeout_s", "max_timeout_s", "time", "time", "timeout")
COST = RunCap("max_cost_cents", "max_cost_micros", "max_cost_cents", "money", "cost", "cost_exceeded")
TOKENS = RunCap("max_tokens", "max_tokens", "max_tokens", "tokens", "token", "token_exceeded")
TURNS = RunCap("max_iterations", "max_iterations", "max_iterations", "turns", "turn", "iteration_limit")
TOOL_CALLS = RunCap("max_tool_calls", "max_tool_calls", "max_tool_calls", "tool calls", "tool call", "tool_limit")
CAPS = (TIME, COST, TOKENS, TURNS, TOOL_CALLS)
CAP_OF_ARGUMENT: Mapping[str, RunCap] = {cap.argument: cap for cap in CAPS}
CAP_OF_FIELD: Mapping[str, RunCap] = {cap.field: cap for cap in CAPS}
CAP_OF_ENDING: Mapping[str, RunCap] = {cap.ending: cap for cap in CAPS}


def stored_caps(given: Mapping[str, float]) -> dict[str, Any]:
    return {cap.field: cap.stored(given[cap.argument]) for cap in CAPS if cap.argument in given}


def caps_text(cost_micros: int | None, timeout_s: float | None = None) -> str:
    """`at most $0.50 and 10 min`, or without a cost cap `free, at most 10 min`; without a time only the first part."""
    if cost_micros is None:
        return "free" if timeout_s is None else f"free, at most {minutes(timeout_s)}"
    cost = f"at most {format_usd(cost_micros, exact=True)}"
    return cost if timeout_s is None else f"{cost} and {minutes(timeout_s)}"


def limits_for_model(stored: Callable[[RunCap], float], *, free: bool) -> dict[str, str]:
    limits: dict[str, str] = {}
    for cap in CAPS:
        is_free = cap is COST and free
        limits[cap.limited] = "free" if is_free else cap.text(stored(cap))
    return limits
