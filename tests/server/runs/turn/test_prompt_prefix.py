"""Of a plan's runs whose prompts begin alike, one sends its first call, and the others wait until its answer begins.

A wait holds no money, ends with a cancellation, and after 5 seconds in any case.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.model_server import Fail, Gate, Say
from support.runtime import PRICED, open_lab, submit, wait_for

from ava_audit.events import CostReserved
from ava_server.runs.turn import prompt_prefix
from ava_server.runs.turn.prompt_prefix import KEPT_S, WAIT_S, PromptPrefix, PromptPrefixes

MODEL = {"AVA_MODEL": "gpt-6.1-sol"}
CONFIG = PRICED.replace("custom:test", "custom:gpt-6.1-sol") + "\n[limits]\nrunning = 8\nrunning_per_user = 8\n"
LIST = {"type": "object", "properties": {"items": {"type": "array", "items": {"type": "string"}}}}
STEPS: list[Mapping[str, Any]] = [
    {"id": "find", "role": "researcher", "task": "List the changed modules.", "output_schema": LIST},
    {"id": "read", "role": "researcher", "foreach": "find.items", "at_most": 4, "task": "Read {{item}}."},
]
ITEMS = ["core", "web", "cli", "log"]


@pytest.mark.parametrize("fails", [False, True])
async def test_siblings_send_their_first_call_when_the_answer_of_the_first_begins_or_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    monkeypatch.setattr(prompt_prefix, "WAIT_S", 60.0)
    gate = Gate()
    siblings = Siblings(gate, fails)
    async with open_lab(tmp_path, siblings, config=CONFIG, env=MODEL) as lab:
        proposal = await lab.call("spawn_subagent", workspace=str(lab.workspace), steps=STEPS)
        await lab.approve(proposal)
        await wait_for(gate.arrived)
        for run_id in await waiting(lab, proposal.group_id):
            assert not await lab.facts(run_id, CostReserved), "a run that waits holds no money"
        assert siblings.asked == 1
        gate.released.set()
        await lab.ended(proposal.group_id)
        rows = await lab.store.read(lambda view: view.step_runs(proposal.group_id))
        states = sorted(row.state for row in rows if row.step == "read")
        assert states == (["error"] if fails else []) + ["success"] * (4 - fails)


async def test_siblings_wait_no_longer_than_their_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_prefix, "WAIT_S", 0.5)
    gate = Gate()
    siblings = Siblings(gate)
    async with open_lab(tmp_path, siblings, config=CONFIG, env=MODEL) as lab:
        proposal = await lab.call("spawn_subagent", workspace=str(lab.workspace), steps=STEPS)
        await lab.approve(proposal)
        await wait_for(gate.arrived)
        await wait_for(siblings.all_asked, within_s=20)
        gate.released.set()
        assert (await lab.ended(proposal.group_id)).state == "success"


async def test_cancelling_the_plan_ends_a_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_prefix, "WAIT_S", 60.0)
    gate = Gate()
    async with open_lab(tmp_path, Siblings(gate), config=CONFIG, env=MODEL) as lab:
        proposal = await lab.call("spawn_subagent", workspace=str(lab.workspace), steps=STEPS)
        await lab.approve(proposal)
        await wait_for(gate.arrived)
        waits = await waiting(lab, proposal.group_id)
        await lab.call("cancel_subagent", group_id=proposal.group_id)
        for run_id in waits:
            assert (await lab.ended(run_id, within_s=10)).state == "cancelled"
        gate.released.set()


@pytest.mark.parametrize("model", ["test", "claude-haiku-4-5"])
async def test_nobody_waits_where_the_beginning_is_too_short_or_nothing_is_cached(tmp_path: Path, model: str) -> None:
    gate = Gate()
    siblings = Siblings(gate)
    config = CONFIG.replace("gpt-6.1-sol", model)
    async with open_lab(tmp_path, siblings, config=config, env={"AVA_MODEL": model}) as lab:
        proposal = await lab.call("spawn_subagent", workspace=str(lab.workspace), steps=STEPS)
        await lab.approve(proposal)
        await wait_for(siblings.all_asked, within_s=WAIT_S - 1)
        gate.released.set()
        assert (await lab.ended(proposal.group_id)).state == "success"


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


async def waits(prefix: PromptPrefix, clock: Clock) -> bool:
    """Tell whether a run has to wait now; if not, its wait returns at once."""
    if prefix.must_wait:
        return True
    with anyio.fail_after(1):
        await prefix.wait(WAIT_S)
    return False


async def test_a_beginning_is_written_again_only_after_five_minutes_without_use() -> None:
    clock = Clock()
    prefixes = PromptPrefixes(clock)
    one, other = (PromptPrefix(prefixes, "key", name) for name in ("S-1", "S-2"))
    assert not await waits(one, clock), "the first goes at once"
    assert await waits(other, clock)
    one.answer_began()
    assert not await waits(other, clock)
    for _ in range(3):
        clock.now += KEPT_S - 1
        assert not await waits(one, clock) and not await waits(other, clock)
        one.answer_began()
    clock.now += KEPT_S + 1
    assert not await waits(other, clock), "it is written anew, by one"
    assert await waits(one, clock)
    clock.now += WAIT_S
    assert not await waits(one, clock), "5 seconds after the other was let go"


async def test_the_next_run_goes_first_when_a_call_was_not_made() -> None:
    clock = Clock()
    prefixes = PromptPrefixes(clock)
    runs = [PromptPrefix(prefixes, "key", f"S-{number}") for number in range(3)]
    assert [await waits(run, clock) for run in runs] == [False, True, True]
    runs[1].leave()
    assert await waits(runs[2], clock), "only who goes first can leave its place"
    runs[0].leave()
    assert [await waits(run, clock) for run in runs[1:]] == [False, True]
    assert not await waits(PromptPrefix(prefixes, "another plan", "S-9"), clock)


class Siblings:
    """Answers a plan's runs; the first answer of a `read` run waits for its gate, as a slow provider's does."""

    def __init__(self, first: Gate, fails: bool = False) -> None:
        self.first, self.fails = first, fails
        self.asked = 0
        self.all_asked = threading.Event()

    def __call__(self, request: dict[str, Any]) -> Say | Fail:
        if "List the changed modules" in json.dumps(request):
            return submit({"items": ITEMS})
        self.asked += 1
        if self.asked == len(ITEMS):
            self.all_asked.set()
        if self.asked > 1:
            return submit("done")
        return Fail(400, gate=self.first) if self.fails else Say(calls=submit("done").calls, gate=self.first)


async def waiting(lab: Any, plan_id: str) -> list[str]:
    """Wait until all runs of a plan's second step but one wait for that; return their ids."""
    with anyio.fail_after(20):
        while True:
            rows = await lab.store.read(lambda view: [row for row in view.step_runs(plan_id) if row.step == "read"])
            owned = lab.runtime.manager._owned
            found = [row.id for row in rows if "Waiting for another run" in getattr(owned.get(row.id), "activity", "")]
            if len(found) == len(ITEMS) - 1:
                return found
            await anyio.sleep(0.02)
