"""The caps of a run, and whether its model is told to think."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ava_roles.role import Role
from ava_server.approval.requests import SpawnArgs
from ava_server.core.errors import BadInput
from ava_server.core.names import named
from ava_server.models.model_choice import Choice, Thinking
from ava_server.run_config.run_cap import CAPS, COST, RunCap

if TYPE_CHECKING:
    from ava_server.config.settings import Limits

OUTPUT = 4_096
"""Most tokens of one answer."""
LONG_OUTPUT = 8_192
"""For coders, and for models that think, which may use half of it for that."""
WRAP_OUTPUT = 1_024
"""Most tokens of the last answer, which hands over what there is."""
WRAP_OUTPUT_THINKING = 2_048
"""For models that always think, because their thinking counts in it."""


def caps_of(args: SpawnArgs, role: Role, choice: Choice, hard: Limits) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the run's caps, lowered to the hard caps, and a sentence for each that was lowered."""
    caps: dict[str, Any] = {}
    notes: list[str] = []
    for cap in CAPS:
        requested: float | None = getattr(args, cap.argument)
        wanted = requested or cap.default(role)
        most = cap.most(hard, choice.tier)
        caps[cap.field] = cap.stored(min(wanted, most))
        costs_nothing = cap is COST and choice.price.free
        if wanted > most and not costs_nothing:
            whose = "was asked as" if requested else f"of {named('role', role.name)} is"
            limits = f"{_amount(cap, wanted)}, and lowered to the hard cap of {_amount(cap, most)}"
            notes.append(f"{cap.argument} {whose} {limits}")
    return caps, tuple(notes)


def _amount(cap: RunCap, value: float) -> str:
    if cap is COST:
        return COST.text(COST.stored(value))
    return f"{value:,.15g}"


def extended_thinking(args: SpawnArgs, role: Role, choice: Choice, how: Thinking) -> tuple[bool, str]:
    """Return whether the model is told to think, and a note if it cannot be.

    Raises BadInput if the call itself asks for it, and it cannot be.
    """
    wanted = role.extended_thinking if args.extended_thinking is None else args.extended_thinking
    if not wanted or how.possible:
        return wanted, ""
    if args.extended_thinking:
        raise BadInput(
            f"extended_thinking: it is not known how to make {choice.name} think; leave it out, or choose another model"
        )
    if choice.wire == "offline":
        return False, ""
    return False, f"{named('role', role.name)} asks its model to think first, which {choice.name} cannot be told to"
