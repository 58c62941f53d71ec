"""Proposals that are approved together."""

from __future__ import annotations

from typing import Any

from support.model_server import Say, Step
from support.runtime import Lab, hand_over

SECRET = "the otter sleeps at noon"


def save_and_ask(request: dict[str, Any]) -> Step:
    """Save a file, then ask; hand over what was answered."""
    told = [each["content"] for each in request["messages"] if each["role"] == "tool"]
    if not told:
        return Say(calls=[("save_artifact", {"name": "notes.txt", "content": "noted"})])
    if len(told) == 1:
        return Say(calls=[("ask", {"question": "Which year?"})])
    return hand_over(output=told[-1])


async def approve_together(lab: Lab, *made: Any, last: str) -> str:
    """Approve proposals together, whose line ends with `last`; return the id of their plan."""
    answer = await lab.approve(*made, last=last)
    assert answer.status == "approved", answer
    return str(answer.group_id)


async def propose_two(lab: Lab, **more: Any) -> list[Any]:
    """Propose two runs that differ in their task alone."""
    return [await lab.propose(task=f"Part {name}", **more) for name in ("one", "two")]
