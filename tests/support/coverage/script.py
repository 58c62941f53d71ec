"""What the model says in each play of test_event_coverage. A task names its play."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ava_roles.tools.registry import builtin_tools, tool_specs
from ava_server.run_config.config import RUN_TOOLS
from ava_server.runs.record.submit import NAME as SUBMIT
from support.hosts.extensions import keep_noting, note
from support.model_server import Fail, Gate, HangUp, Raw, Say, Step, events
from support.runtime import hand_over, submit
from support.tool_examples import HOST, example_of

CHANGING = [name for name, spec in tool_specs().items() if spec.edits]
LONG_URL = f"http://{HOST}/long"


class PlayModel:
    """What the model answers: each run names its play in its task, and goes on in it with each request."""

    def __init__(self, plays: Mapping[str, Sequence[Step]]) -> None:
        self._left = {name: list(steps) for name, steps in plays.items()}

    def __call__(self, request: dict[str, Any]) -> Step:
        found = re.search(r"play: (\w+)", json.dumps(request["messages"]))
        assert found is not None
        if found[1] == "more":
            return keep_noting(request)
        steps = self._left[found[1]]
        step = steps[0] if len(steps) == 1 else steps.pop(0)
        # The tool result before it is read again, and the earlier run that the task context lists.
        for hole, form in (("R-{sha}", r"R-[0-9a-f]{8}"), ("S-{earlier}", r"S-[0-9a-f]{6}")):
            if isinstance(step, Say) and hole in str(step.calls):
                named = re.findall(form, json.dumps(request["messages"]))[-1]
                return Say(calls=json.loads(json.dumps(step.calls).replace(hole, named)))
        return step


def call_every_tool() -> list[Step]:
    """Each tool once as it should be called, and once with an argument that it does not have."""
    tools = [name for name in (*builtin_tools(), *RUN_TOOLS) if name not in CHANGING]
    steps: list[Step] = [Say("I look.", [("http_get", {"url": LONG_URL})], reasoning="where is it?")]
    steps += [Say(calls=[(tool, example_of(tool).call), (tool, {"no_such_argument": 1})]) for tool in tools]
    steps.append(Say('<tool_call>{"name": "scratchpad", "arguments": {"note": "printed"}}</tool_call>'))
    return [*steps, Say(calls=[(SUBMIT, {"no_such_argument": 1})]), submit("all done")]


def call_every_edit() -> list[Step]:
    """Each tool that changes files, as it should be called and as not; and work that passes when it is mended."""
    steps: list[Step] = [
        Say(calls=[(tool, example_of(tool).call), (tool, {"no_such_argument": 1})]) for tool in CHANGING
    ]
    mended = Say(calls=[("write_file", {"path": "d.md", "content": "there"})])
    return [*steps, hand_over(), mended, hand_over()]


LATER = str(7 * 24 * 3600)
CUT = Raw(events(Say("some words", usage=None))[:3], chunked=True, cut=True)
NOTE = Say(calls=[("scratchpad", {"note": "remember this"})])
UNTAKEN = Fail(400, {"error": {"message": "messages.1.content.0: Invalid `signature` in `thinking` block."}})
UNFIT = Fail(400, {"error": {"message": "no such argument", "code": "tool_use_failed", "failed_generation": "{}"}})
UNNAMED = Fail(400, {"error": {"message": "Unsupported parameter: 'max_tokens' is not supported with this model."}})
UNTIERED = Fail(400, {"error": {"message": "Unsupported service_tier: default", "param": "service_tier"}})
ERRORS: dict[str, Sequence[Step]] = {
    "connection": [HangUp(), hand_over()],
    "auth": [Fail(401)],
    "rate_limit": [Fail(429, retry_after=LATER)],
    "overloaded": [Fail(503, retry_after=LATER)],
    "bad_request": [Fail(400)],
    "bad_answer": [Raw([b"<html>"], "text/html")],
    "dropped": [CUT],
    "timeout": [Say("too late", gate=Gate()), hand_over()],
    "usage_limit": [Fail(402)],
    "thinking": [UNTAKEN, UNTAKEN],
    "limit_name": [UNNAMED, replace(hand_over(), tier="priority")],
    "tier": [UNTIERED],
    "rejected": [UNFIT, hand_over()],
}
"""What brings each kind of error that a model call can end in."""
ENDINGS_PLAYED: dict[str, tuple[Mapping[str, Any], Sequence[Step]]] = {
    "success": ({}, [hand_over()]),
    "no_answer": ({"model": "offline"}, []),
    "timeout": ({"timeout": 3}, [NOTE, Say("late", gate=Gate()), submit("in time")]),
    "cost_exceeded": ({}, [replace(NOTE, usage={"prompt_tokens": 9_000, "completion_tokens": 90_000})]),
    "token_exceeded": (
        {"max_tokens": 40_000},
        [replace(NOTE, usage={"prompt_tokens": 9_000, "completion_tokens": 500})] * 6,
    ),
    "iteration_limit": ({"max_iterations": 2}, [NOTE, submit("what there is")]),
    "tool_limit": ({"max_tool_calls": 1}, [NOTE, NOTE, submit("one note")]),
    "guardrail": (
        {"max_iterations": 50, "max_tool_calls": 100},
        [Say(calls=[("read_file", {"path": "a.md"})])],
    ),
    "cancelled": ({}, [Say("x", gate=Gate())]),
    "error": ({}, [Fail(400)]),
    "rejected": ({}, []),
    "expired": ({}, []),
}
"""How a run comes to each ending: what it is given, and what its model says."""


def task_of(name: str) -> str:
    """Return the task of a run that follows this play."""
    return f"play: {name}"


def usage_of(prompt: int) -> dict[str, int]:
    """Return what a model says that it has used."""
    return {"prompt_tokens": prompt, "completion_tokens": 100}


def plays() -> dict[str, Sequence[Step]]:
    """What the model says, by the name that a task has."""
    return {
        **{f"error_{kind}": steps for kind, steps in ERRORS.items()},
        **{f"ended_{status}": steps for status, (_given, steps) in ENDINGS_PLAYED.items()},
        "tools": call_every_tool(),
        "edits": call_every_edit(),
        "group": [hand_over()],
        "items": [submit({"items": ["a", "b"]})],
        "one": [hand_over()],
        "breaks": [Fail(400)],
        "gone": [hand_over()],
        "provider": [Say(calls=[("web_search", example_of("web_search").call)]), hand_over()],
        "whole": [Say("Twelve.", stream=False)],
        "planned": [Say("It is about a price."), Say("1. read_file a.md."), Say("KEEP"), hand_over()],
        "told": NOTES,
        "holds": [Say(calls=hand_over().calls, gate=HOLDS)],
        "steered": [Say(calls=NOTE.calls, gate=STEERED), hand_over()],
        "left": [*(Say("x", gate=gate) for gate in LEFT), hand_over(), hand_over(), hand_over()],
        "ratio": [
            *(Say(calls=[("http_get", {"url": LONG_URL})], usage=usage_of(tokens)) for tokens in (4_000, 9_500)),
            hand_over(),
        ],
        "asks": [*([Say(calls=[("ask", example_of("ask").call)]), hand_over()] * 4)],
        "late": [note(0), Say("too late", gate=Gate()), submit("in time")],
        "paused": [Fail(429, retry_after="5", headers={"x-request-id": "req_limits01"}), hand_over()],
    }


NOTES = [Say(calls=[("scratchpad", {"note": f"n{number}"})]) for number in range(9)] + [submit()]
STEERED, HOLDS, LEFT = Gate(), Gate(), tuple(Gate() for _ in range(6))
