"""A model that analyses, plans and reviews before it works, and the runs that do so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ava_audit.events import CostReserved, CostUpdate
from support.model_server import Raw, Say, Step, events
from support.runtime import Lab, hand_over, submit

ANALYSIS, PLAN, REVIEW, WORK, WRAP = "analysis", "plan", "review", "work", "wrap-up"
MARKS = {
    WRAP: "This is the last turn",
    ANALYSIS: "Before you work, analyse the task.",
    PLAN: "Now write the plan.",
    REVIEW: "Now review your plan as its critic.",
}
FIRST_PLAN = "1. read_file a.md: the price.\n2. submit_result."
BETTER_PLAN = "1. search_codebase for twelve.\n2. read_file a.md: the price.\n3. submit_result."
ANALYSED = Say("The price of Otter is asked for.")
PLANNED = Say(FIRST_PLAN)
REVIEWED = Say(BETTER_PLAN)
LOOK = Say(calls=[("read_file", {"path": "a.md"})])
CALLS = Say("I look first.", [("read_file", {"path": "a.md"})])
CUT = Raw(events(Say("some words", usage=None))[:3], chunked=True, cut=True)
USEFUL: Mapping[str, Step] = {ANALYSIS: ANALYSED, PLAN: PLANNED, REVIEW: REVIEWED, WRAP: submit("what there is")}


def purpose_of(request: dict[str, Any]) -> str:
    """What a request is for, by its last message."""
    last = str(request["messages"][-1]["content"])
    return next((name for name, mark in MARKS.items() if last.startswith(mark)), WORK)


class Outliner:
    """A model that plans, looks, and hands over; what it says to one thing can be given instead, once or for good."""

    def __init__(self, **instead: Step | list[Step]) -> None:
        self.asked: list[str] = []
        self._instead = instead

    def __call__(self, request: dict[str, Any]) -> Step:
        what = purpose_of(request)
        self.asked.append(what)
        given = self._instead.get(what.replace("-", "_"))
        if isinstance(given, list):
            given = given.pop(0) if given else None
        if given is not None:
            return given
        if what == WORK:
            return hand_over() if any(message["role"] == "tool" for message in request["messages"]) else LOOK
        return USEFUL[what]


async def run_with_plan(lab: Lab, **more: Any) -> str:
    """Run one that plans, to its end."""
    (lab.workspace / "a.md").write_text("Otter charges twelve cents.\n")
    run_id = await lab.start(plan=True, **more)
    await lab.ended(run_id)
    return run_id


def roles_in(request: dict[str, Any]) -> list[str]:
    """Return who said each message of a request."""
    return [str(message["role"]) for message in request["messages"]]


async def check_parts(lab: Lab, run_id: str) -> dict[str, int]:
    """What a run cost by its parts, in micro-USD: they sum to the total, and every planning call is under `plan`."""
    run, result = await lab.run(run_id), await lab.result(run_id)
    parts = {name: round(cents * 10_000) for name, cents in result["cost_by"].items()}
    assert sum(parts.values()) == run.cost_micros == round(result["cost_cents"] * 10_000)
    phases = {(fact.turn, fact.attempt): fact.phase for fact in await lab.facts(run_id, CostReserved)}
    settled = await lab.facts(run_id, CostUpdate)
    for fact in settled:
        if phases[fact.turn, fact.attempt] is not None:
            assert set(fact.cost_by) <= {"plan"}, "whatever else it was"
        else:
            assert "plan" not in fact.cost_by
        assert sum(fact.cost_by.values()) == round(fact.cost_cents * 10_000)
    assert parts.get("plan", 0) == sum(fact.cost_by.get("plan", 0) for fact in settled)
    return parts
