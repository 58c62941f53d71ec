"""Runs that come near a cap: what their model answers, and the cap that is too small for it."""

from __future__ import annotations

import json
from typing import Any

from support.model_server import Say, Step
from support.runtime import hand_over

DEAR = {"prompt_tokens": 5_000, "completion_tokens": 900, "total_tokens": 5_900}
"""$0.0285 by the prices of the tests."""
CAP = {"max_cost_cents": 20}
"""With it, some call after the fifth does not fit."""


def note(number: int) -> Say:
    return Say(calls=[("scratchpad", {"note": f"note {number}"})], usage=DEAR)


def works(asked: dict[str, Any]) -> Step:
    """Take notes without an end, until there is only the last turn, or a person has allowed more."""
    said = json.dumps(asked["messages"])
    done = "This is the last turn" in said or "A person has raised your limit" in said
    return hand_over() if done else note(len(asked["messages"]))
