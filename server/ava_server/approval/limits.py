"""What a spawn may use: its caps under the hard ones, the tokens of its answers, its thinking, and about how long."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ava_audit.money import format_usd, micros_from_cents
from ava_roles.role import Role
from ava_server.approval.requests import SpawnArgs
from ava_server.core.errors import BadInput
from ava_server.models.selection import OFFLINE, Choice
from ava_server.models.thinking import Thinking

if TYPE_CHECKING:
    from ava_server.config.settings import Limits

ENOUGH_RUNS = 5
MINUTE_US = 60_000_000
OUTPUT = 4_096
"""Most tokens of one answer."""
LONG_OUTPUT = 8_192
"""Of coders, and of models that are to think: half of it is for that."""
WRAP_OUTPUT = 1_024
WRAP_OUTPUT_THINKING = 2_048
"""Of models that cannot be told not to think: what they think counts in it."""


def caps_of(args: SpawnArgs, role: Role, choice: Choice, hard: Limits) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the run's caps, clamped to the hard ones, and what was clamped, in words."""
    most_tokens = hard.max_tokens_deep if choice.tier == "deep" else hard.max_tokens
    asked: dict[str, tuple[float, float]] = {
        "timeout": (args.timeout or role.timeout_s, hard.max_timeout_s),
        "max_cost_cents": (args.max_cost_cents or role.max_cost_cents, hard.max_cost_cents),
        "max_tokens": (args.max_tokens or role.max_tokens, most_tokens),
        "max_iterations": (args.max_iterations or role.max_iterations, hard.max_iterations),
        "max_tool_calls": (args.max_tool_calls or role.max_tool_calls, hard.max_tool_calls),
    }
    notes: list[str] = []
    for name, (wanted, most) in asked.items():
        if wanted > most:
            as_shown = _usd if name == "max_cost_cents" else _number
            whose = "was asked as" if getattr(args, name) else f"of role {role.name} is"
            notes.append(f"{name} {whose} {as_shown(wanted)}, and lowered to the hard cap of {as_shown(most)}")
    got = {name: min(pair) for name, pair in asked.items()}
    return {
        "timeout_s": got["timeout"],
        "max_cost_micros": micros_from_cents(got["max_cost_cents"]),
        "max_tokens": int(got["max_tokens"]),
        "max_iterations": int(got["max_iterations"]),
        "max_tool_calls": int(got["max_tool_calls"]),
    }, tuple(notes)


def _usd(cents: float) -> str:
    return format_usd(micros_from_cents(cents), exact=True)


def _number(value: float) -> str:
    return f"{value:,g}"


def extended_thinking(args: SpawnArgs, role: Role, choice: Choice, how: Thinking) -> tuple[bool, str]:
    """Return whether the model is told to think, and what the proposal says where the role's wish cannot be met.

    Raises:
        BadInput: The call asks for it, and the model cannot be told to.
    """
    wanted = role.extended_thinking if args.extended_thinking is None else args.extended_thinking
    if not wanted or how.possible:
        return wanted, ""
    if args.extended_thinking:
        raise BadInput(
            f"extended_thinking: how {choice.name} could be told to think is not known; leave it out, or choose another"
            " model"
        )
    if choice.wire == "offline":
        return False, ""
    return False, f"role {role.name} would have its model think first, which {choice.name} cannot be told to"


def estimate(role: Role, choice: Choice, timeout_s: float, durations: Sequence[tuple[str, int]]) -> tuple[int, int]:
    """Return how many minutes the run takes about: no more than it may, and one where no language model thinks.

    From five runs on it is what eight of ten runs of the role have taken here, before that what its file says.
    """
    most = 1 if choice.base_url is None else max(1, math.ceil(timeout_s / 60))
    low, high = role.estimated_minutes
    took = sorted(active_us for model, active_us in durations if (model == OFFLINE) == (choice.name == OFFLINE))
    if len(took) >= ENOUGH_RUNS:
        tenth = len(took) // 10
        low, high = max(1, took[tenth] // MINUTE_US), max(1, math.ceil(took[-1 - tenth] / MINUTE_US))
    return min(low, most), min(high, most)
