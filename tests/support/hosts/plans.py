"""A plan of three steps, one of them over a list, for real hosts, and the model of its runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from support.model_server import Gate, Say
from support.runtime import submit

ROLE = {"role": "custom", "system_prompt": "Look.", "max_cost_cents": 20}
LIST = {"type": "object", "properties": {"items": {"type": "array", "items": {"type": "string"}}}}
STEPS: list[dict[str, Any]] = [
    {**ROLE, "id": "find", "task": "List the changed modules.", "output_schema": LIST},
    {**ROLE, "id": "read", "foreach": "find.items", "at_most": 3, "task": "Say what changed in {{item}}."},
    {**ROLE, "id": "write", "task": "Write the notes from {{read}}."},
]
PLAN: dict[str, Any] = {"name": "Release notes", "max_cost_cents": 60, "steps": STEPS}
"""Without a folder and web search, so that it needs nothing. Its list has two items: it becomes four runs."""


NOTES = "core and web are new"


def step_script(last: Gate | None = None) -> Callable[[dict[str, Any]], Say]:
    """Hand over what the task of a step asks for; the last step waits for `last`."""

    def script(request: dict[str, Any]) -> Say:
        body = str(request["messages"])
        if "List the changed modules" in body:
            return submit({"items": ["core", "web"]})
        if "Say what changed in" in body:
            return submit("it is new")
        return replace(submit(NOTES), gate=last)

    return script
