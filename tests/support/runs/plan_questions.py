"""A plan of three runs that ask their person, some of them the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import anyio

from ava_audit.events import Answered, Asked
from ava_audit.rows import RunRow
from ava_audit.store.store import Store
from support.hosts.elicitation import Host
from support.model_server import Gate, Say, Step
from support.runtime import Lab, hand_over

QUESTION = "Which currency is meant?"
ASK = ("ask", {"question": QUESTION, "options": ["EUR", "USD"]})
OTHER = ("ask", {"question": "Which year is meant?"})
IDS = ("one", "two", "three")
STEPS = [{"id": name, "role": "researcher", "task": f"Find the price of the {name} item."} for name in IDS]


def ask_and_hand_over(*others: str, gate: Gate | None = None) -> Callable[[dict[str, Any]], Step]:
    """Each run asks, and hands over what it is told; those of `others` ask something else, `three` behind the gate."""

    def script(request: dict[str, Any]) -> Step:
        told = [each["content"] for each in request["messages"] if each["role"] == "tool"]
        if told:
            return hand_over(output=" | ".join(told))
        step = next(name for name in IDS if f"the {name} item" in json.dumps(request))
        return Say(calls=[OTHER if step in others else ASK], gate=gate if step == "three" else None)

    return script


async def start_plan(lab: Lab, steps: Sequence[Any] = STEPS, **more: Any) -> str:
    """Propose and approve a plan, and return its id."""
    proposal = await lab.call("spawn_subagent", workspace=str(lab.workspace), steps=list(steps), **more)
    assert proposal.status == "awaiting_approval", proposal.message
    assert (await lab.approve(proposal)).status == "approved"
    return str(proposal.group_id)


async def rows_that_ask(lab: Lab, plan_id: str, count: int) -> list[RunRow]:
    """Return the runs of a plan that wait for an answer, once there are so many."""
    with anyio.fail_after(30):
        while True:
            seen = lab.store.head
            rows = await lab.store.read(lambda view: view.asking_runs(plan_id))
            if len(rows) == count:
                return rows
            await lab.store.wait_for_entry_after(seen)


async def logged_answers(lab: Lab, run_id: str) -> list[tuple[str, str, str]]:
    """What the log has of a run's answers: the question, what came of it, and the channel; each with its own text."""
    asked = [fact.ask_id for fact in await lab.facts(run_id, Asked)]
    decided = await lab.facts(run_id, Answered)
    assert [fact.ask_id for fact in decided] == asked[: len(decided)]
    return [(fact.ask_id, fact.decision, fact.channel) for fact in decided]


async def wait_for_questions(at: Host, plan_id: str, count: int) -> list[RunRow]:
    """Wait until so many runs of a host's plan ask, and return them."""
    async with Store.open(at.root) as store:
        with anyio.fail_after(30):
            while len(rows := await store.read(lambda view: view.asking_runs(plan_id))) < count:  # noqa: ASYNC110
                await anyio.sleep(0.05)
    return rows
