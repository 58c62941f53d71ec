"""Plans of release notes: their steps, what the model says in them, and how they are proposed and read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import anyio

from ava_audit.events import UserMessage
from ava_audit.rows import RunRow, StepRunRow
from support.model_server import Say, Script
from support.runtime import Lab, submit

LIST = {"type": "object", "properties": {"items": {"type": "array", "items": {"type": "string"}}}}
FIND: Mapping[str, Any] = {
    "id": "find",
    "role": "researcher",
    "task": "List the changed modules.",
    "output_schema": LIST,
}
READ: Mapping[str, Any] = {
    "id": "read", "role": "researcher", "foreach": "find.items", "at_most": 3, "task": "Say what changed in {{item}}.",
}  # fmt: skip
WRITE: Mapping[str, Any] = {"id": "write", "role": "researcher", "task": "Write the notes from {{read}}."}
STEPS = (FIND, READ, WRITE)
"""A list, a run for each of its items, and a run that reads them all."""


def write_notes(request: dict[str, Any]) -> Say:
    """Hand over what the task in a request asks for."""
    body = json.dumps(request)
    if "List the changed modules" in body:
        return submit({"items": ["core", "web"]}, "two modules")
    if "Say what changed in" in body:
        return submit("core is new" if "item 1 of the list" in body else "web is gone")
    return submit("the notes")


def items_named_in(why: str) -> set[int]:
    """Return the items that a sentence names, rows of them included."""
    named: set[int] = set()
    for first, last in re.findall(r"items? (\d+)(?: to (\d+))?", why):
        named.update(range(int(first), int(last or first) + 1))
    return named


def step(step_id: str, task: str, **more: Any) -> dict[str, Any]:
    """Return a step of a researcher."""
    return {"id": step_id, "role": "researcher", "task": task, **more}


def hand_over_each(items: Sequence[str], item_text: str, notes: str = "the notes", **more: Any) -> Script:
    """Return a model that lists these items, hands one text over for each of them, and then the notes.

    `more` is of each `Say`, such as `usage`.
    """

    def work(request: dict[str, Any]) -> Say:
        task = task_text(request)
        if "List the changed modules" in task:
            return submit({"items": list(items)})
        return replace(submit(notes if "Write the notes" in task else item_text), **more)

    return work


def task_text(request: Mapping[str, Any]) -> str:
    """Return what the user's messages of a model request say: the task and its inputs."""
    return "".join(message["content"] for message in request["messages"] if message["role"] == "user")


def tool_results(request: Mapping[str, Any]) -> list[str]:
    """Return the results of tools that stand in a model request, the first one first."""
    return [message["content"] for message in request["messages"] if message["role"] == "tool"]


async def propose(lab: Lab, steps: Iterable[Mapping[str, Any]] = STEPS, **more: Any) -> Any:
    """Propose a plan in the lab's workspace; return the answer, which may be a refusal."""
    return await lab.call("spawn_subagent", workspace=str(lab.workspace), steps=list(steps), **more)


async def finish(
    lab: Lab, steps: Iterable[Mapping[str, Any]] = STEPS, *, state: str = "success", **more: Any
) -> RunRow:
    """Propose and approve a plan, and return it when it has ended in this state."""
    proposal = await propose(lab, steps, **more)
    return await approve(lab, proposal, state=state)


async def approve(lab: Lab, proposal: Any, *, state: str = "success") -> RunRow:
    """Approve a proposed plan, and return it when it has ended in this state."""
    approved = await lab.approve(proposal)
    assert approved.status == "approved", approved
    plan = await lab.ended(proposal.group_id)
    assert plan.state == state, plan.stop_reason
    return plan


async def rows(lab: Lab, plan_id: str) -> list[StepRunRow]:
    """Return the runs of a plan's steps."""
    return await lab.store.read(lambda view: view.step_runs(plan_id))


async def inputs(lab: Lab, plan_id: str, step: str) -> Sequence[Mapping[str, Any]]:
    """Return the inputs of a step's run, as its task has them."""
    [task] = await lab.facts(await run_of_step(lab, plan_id, step), UserMessage)
    assert task.inputs is not None
    return task.inputs


async def run_of_step(lab: Lab, plan: str, step: str) -> str:
    """Wait until a step of a plan has a run, and return its id."""
    with anyio.fail_after(40):
        while True:
            seen = lab.store.head
            rows = await lab.store.read(lambda view: view.step_runs(plan))
            found = [row.id for row in rows if row.step == step]
            if found:
                return found[0]
            await lab.store.wait_for_entry_after(seen)
