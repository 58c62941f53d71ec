"""The end of a run that another agent does, at every moment: on request, by time, and at the caps of all runs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.agents.lab import SUBMIT, agent_lab, agent_run, priced_agent
from support.model_server import EVENTS, Fail, Gate, HangUp, Raw, Say, Step
from support.models import messages_format
from support.processes import processes_of_run
from support.runtime import Lab
from support.sample import sample
from support.sandboxes.attacks import needs
from support.stdio import until

from ava_audit.events import AgentNote, CostReserved, CostUpdate, ToolResult
from ava_audit.units import day_of
from ava_server.budget.user_limits import installation_scope, user_scope

BURST: dict[str, Any] = {"burst": 12, "stream": True, "aside": True, "survives": True}
ASK: dict[str, Any] = {**BURST, "ask": "look"}
TURNS = {"max_iterations": 1}
HALF = messages_format.events(Say("half an answer"), 0, {"messages": [], "model": "far-sonnet"})[:5]
DRIP = [bytes((each,)) for each in b"".join(HALF)]
Answer = Callable[[], Step]


async def asked(lab: Lab, _run_id: str) -> None:
    await until(lambda: lab.server.requests, 20)
    await anyio.sleep(0.5)


async def begun(_lab: Lab, run_id: str) -> None:
    await until(lambda: processes_of_run(run_id), 20)
    await anyio.sleep(0.7)


async def handing_over(lab: Lab, run_id: str) -> None:
    await until(lambda: len(lab.server.requests) == 2, 20)
    await anyio.sleep(0.3)


async def capped(lab: Lab, run_id: str) -> None:
    await lab.logged(run_id, "AgentNote", 2, within_s=60)
    await anyio.sleep(0.3)


async def queued(lab: Lab, _run_id: str) -> None:
    """Until one of the twelve calls waits for what the others hold."""
    await until(lambda: lab.server.requests, 20)
    await anyio.sleep(1.5)
    assert 1 <= len(lab.server.requests) < 12


@dataclass(frozen=True)
class Moment:
    """What the agent does in its turns, what the provider answers, and when the moment has come."""

    turns: Sequence[Sequence[dict[str, Any]]] = ()
    answer: Answer = priced_agent
    comes: Any = begun
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    run: dict[str, Any] = field(default_factory=dict[str, Any])


MOMENTS = {
    "as it starts": Moment(options={"mute": "initialize"}),
    "as it opens its session": Moment(options={"mute": "session/new"}),
    "half an answer": Moment([[ASK]], lambda: Raw(HALF, EVENTS, chunked=True, cut=True, stall=Gate()), asked),
    "a byte a second": Moment([[ASK]], lambda: Raw(DRIP, EVENTS, chunked=True, pause_s=1), asked),
    "no answer": Moment([[ASK]], lambda: Say("late", gate=Gate()), asked),
    "no end of an error": Moment([[ASK]], lambda: Raw([b"{"], status=500, missing=9, stall=Gate()), asked),
    "waits for others": Moment([[BURST]], lambda: Say("late", gate=Gate()), queued,
                               run={"max_cost_cents": 20}),
    "hands over": Moment([[ASK, ASK], [{"hang": True}]], comes=capped, run=TURNS),
    "hands over and asks": Moment([[ASK, ASK], [ASK]], lambda: Say("late", gate=Gate(1)), handing_over,
                                  run=TURNS),
    "floods": Moment([[{"flood": 10**9}]], options={"ignores_cancel": True}),
    "left its session": Moment([[{"daemon": True}, {"fork": True}, {"close": True}, {"hang": True}]],
                               options={"ignores_cancel": True}),
    "calls Ava": Moment([[{"ava": "submit_result", "args": {}, "times": 10**6}]], options={"ignores_cancel": True}),
    "sends half a body": Moment([[{"bytes": "POST /mcp HTTP/1.1\r\nauthorization: Bearer SECRET\r\nhost: x\r\n"
                                            "content-type: application/json\r\ncontent-length: 99\r\n\r\n{"}]],
                                options={"ignores_cancel": True}),
}  # fmt: skip


@pytest.mark.parametrize("name", sample(MOMENTS, 6))
async def test_a_cancel_ends_a_run_within_two_seconds_at_any_moment(tmp_path: Path, name: str) -> None:
    needs("bubblewrap")
    moment = MOMENTS[name]
    async with agent_lab(tmp_path, lambda _request: moment.answer(), moment.turns, **moment.options) as lab:
        run_id = await lab.start(**agent_run(**moment.run))
        await moment.comes(lab, run_id)
        assert processes_of_run(run_id), "it runs"
        began = anyio.current_time()
        await lab.call("cancel_subagent", subagent_id=run_id)
        run = await lab.ended(run_id, 60)
        assert anyio.current_time() - began < 10, "two, and what looking takes"
        assert run.state == "cancelled"
        await settled(lab, run_id)
        await until(lambda: not (tmp_path / "data" / "scratch" / run_id).exists(), 5)


@pytest.mark.parametrize("name", sample(MOMENTS, 4))
async def test_a_run_ends_at_its_time_at_any_moment(tmp_path: Path, name: str) -> None:
    """The hand-over is inside the time: what it cannot do by then is not waited for."""
    needs("bubblewrap")
    moment = MOMENTS[name]
    async with agent_lab(tmp_path, lambda _request: moment.answer(), moment.turns, **moment.options) as lab:
        run_id = await lab.start(**agent_run(**moment.run, timeout=8))
        run = await lab.ended(run_id, 60)
        result = await lab.result(run_id)
        assert result["status"] in ("timeout", "iteration_limit", "cost_exceeded", "error"), result
        assert run.active_us < 12_000_000, "its time, and what ending takes on a busy machine"
        await settled(lab, run_id)
        await until(lambda: not (tmp_path / "data" / "scratch" / run_id).exists(), 5)


def past(paid: Sequence[CostUpdate]) -> int:
    """Return what a provider charged beyond its own limits, in micro-USD."""
    return sum(max(0, round(each.cost_cents * 10_000) - each.reserved_micros) for each in paid)


async def test_runs_at_once_never_pass_the_caps_of_a_day(tmp_path: Path) -> None:
    """Four runs with twelve calls each, again and again, of a provider that lies, is silent, fails and hangs up."""
    needs("bubblewrap")
    requests = itertools.count(1)

    def answer(_request: dict[str, Any]) -> Step:
        number = next(requests)  # of several at once, each has an answer of its own, the same in every test run
        chance = random.Random(number)
        if number % 10 == 6:
            return priced_agent(output=chance.randint(3_000, 6_000))
        steps: list[Step] = [
            Say("no usage", usage=None), Fail(529), HangUp(), Raw(HALF, EVENTS, chunked=True, cut=True),
            *[priced_agent(prompt=chance.randint(1, 900), output=chance.randint(1, 400)) for _each in range(12)],
        ]  # fmt: skip
        return chance.choice(steps)

    bursts = [[{**BURST, "max_tokens": 400, "text": f"{n}"} for n in range(4)], [SUBMIT]]
    limits = "[limits]\nuser_daily_cents = 45\ninstallation_daily_cents = 50\n"
    async with agent_lab(tmp_path, answer, bursts, limits) as lab:
        runs = [await lab.start(**agent_run(max_cost_cents=30)) for _run in range(4)]
        for run_id in runs:
            await lab.ended(run_id, 120)
        paid = [fact for run_id in runs for fact in await lab.facts(run_id, CostUpdate)]
        beyond = past(paid)
        assert len(paid) > 12 and beyond, "the caps were reached, and the provider went beyond its own limits"
        for run_id in runs:
            await settled(lab, run_id)
            row = await lab.run(run_id)
            assert row.cost_micros <= 300_000 + past(await lab.facts(run_id, CostUpdate))
        day = day_of((await lab.run(runs[0])).ended_us or 0)
        for scope, cap in ((user_scope(row.user_id, day), 450_000), (installation_scope(day), 500_000)):
            spent = (await lab.store.read(lambda view, scope=scope: view.bucket(scope))).spent_micros  # type: ignore[misc]
            assert cap // 2 < spent <= cap + beyond, scope


async def test_an_agent_cannot_fill_the_log_without_spending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that are refused, for ever new reasons; results in no form; tools that there are not."""
    needs("bubblewrap")
    for module in ("metering", "work"):
        monkeypatch.setattr(f"ava_server.agents.{module}.MOST_REFUSED", 3)
    refused = [{"ask": "look", "aside": True, "survives": True, "model": f"model-{number}"} for number in range(12)]
    calls: list[dict[str, Any]] = [
        {"ava": "submit_result", "args": {"summary": 5}, "times": 12},
        {"ava": "no_such_tool", "args": {}, "times": 12},
    ]
    async with agent_lab(tmp_path, [], [[*refused, *calls, SUBMIT]]) as lab:
        run_id = await lab.start(**agent_run(max_tool_calls=12))
        assert (await lab.ended(run_id, 60)).state == "success"
        notes = [note for note in await lab.facts(run_id, AgentNote) if note.kind == "refused"]
        assert len(notes) == 3
        assert len(await lab.facts(run_id, ToolResult)) == 12 + 3


@pytest.mark.parametrize("messages", sample([900_000, 190_000, 55_000], 1))
async def test_a_long_request_does_not_stop_the_runs_of_others(tmp_path: Path, messages: int) -> None:
    """As many messages as a body has room for: whoever waits is answered meanwhile."""
    needs("bubblewrap")
    gaps: list[float] = []

    async def looks() -> None:
        while True:
            began = anyio.current_time()
            await anyio.sleep(0.02)
            gaps.append(anyio.current_time() - began)

    long = {"run": LONG.replace("MESSAGES", str(messages))}
    async with agent_lab(tmp_path, lambda _request: priced_agent(), [[long, SUBMIT]]) as lab:
        lab.server.checks = False
        run_id = await lab.start(**agent_run())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(looks)
            await lab.ended(run_id, 120)
            tasks.cancel_scope.cancel()
        assert (await lab.run(run_id)).state in ("success", "cost_exceeded", "token_exceeded")
        assert max(gaps) < 1.5 and not lab.server.requests


async def settled(lab: Lab, run_id: str) -> None:
    """Nothing of an ended run is left: no process, no reservation, no folder."""
    await until(lambda: not processes_of_run(run_id), 5)
    run = await lab.run(run_id)
    held, paid = await lab.facts(run_id, CostReserved), await lab.facts(run_id, CostUpdate)
    assert sorted(each.turn for each in held) == sorted(each.turn for each in paid)
    assert (run.in_flight, run.wrap_micros) == (None, 0)
    day = day_of(run.ended_us or 0)
    for scope in (run_id, user_scope(run.user_id, day), installation_scope(day)):
        bucket = await lab.store.read(lambda view, scope=scope: view.bucket(scope))  # type: ignore[misc]
        assert bucket.held_micros == 0, scope


LONG = """python3 -c '
import json, os, urllib.request
message = {"role": "user", "content": ""}
body = {"model": os.environ["ANTHROPIC_MODEL"], "max_tokens": 9, "messages": [message] * MESSAGES}
request = urllib.request.Request(os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages", json.dumps(body).encode(),
                                 {"x-api-key": os.environ["ANTHROPIC_API_KEY"]})
print(urllib.request.urlopen(request).read())' 2>&1 | tail -3"""
