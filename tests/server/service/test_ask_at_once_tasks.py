"""Questions in the call and MCP's tasks: who answers a proposal, and what a start is answered with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
from mcp_types import CallToolResult
from support.hosts.elicitation import Person, accept, decline
from support.hosts.tasks import task_host
from support.model_server import Gate, Say
from support.runtime import PRICED, hand_over, wait_for
from support.stdio import read_answer

from ava_server.service.access import Answerer, Asking
from ava_server.service.spawn import NEXT

PERSON: Any = object()
PAGES: Any = object()


@pytest.mark.parametrize(
    ("asking", "answerers"),
    [
        (Asking(), ("host", "host", "terminal")),
        (Asking(person=PERSON), ("client", "client", "terminal")),
        (Asking(pages=PAGES), ("host", "host", "page")),
        (Asking(person=PERSON, pages=PAGES), ("client", "client", "page")),
    ],
)
def test_who_answers_a_proposal_follows_from_the_client_and_the_policy(
    asking: Asking, answerers: tuple[Answerer, ...]
) -> None:
    assert (asking.answerer("ask"), asking.answerer("auto"), asking.answerer("human")) == answerers
    assert set(answerers) <= NEXT.keys(), "the caller is told what to do"


# -- a log that fails -------------------------------------------------------------------------------------------------


async def test_a_run_that_auto_starts_is_no_task_because_its_answer_says_more(tmp_path: Path) -> None:
    auto = f'approval = "auto"\nauto_approve_cents = 50\nauto_approve_daily_cents = 120\n{PRICED}'
    async with task_host(tmp_path, [hand_over()], config=auto, asks=Person(decline)) as at:
        given = {"role": "code_reviewer", "blocked_tools": ["run_bash", "python_exec"], "max_cost_cents": 40}
        folder = {"workspace": str(tmp_path / "workspace"), "task": "Look at it", "ask": True}
        answer, _text = read_answer(await at.client.call_tool("spawn_subagent", {**given, **folder}))
        assert answer["status"] == "approved" and at.tasks.started == []


# -- hosts with tasks -------------------------------------------------------------------------------------------------


@pytest.mark.requirement("N-13")
async def test_a_start_is_answered_with_a_task_and_the_task_with_the_result(tmp_path: Path) -> None:
    gate = Gate()
    person = Person(accept())
    script = [Say("x", calls=[("scratchpad", {"note": "n"})], gate=gate), hand_over()]
    async with task_host(tmp_path, script, asks=person) as at:
        await at.client.call_tool("spawn_subagent", {"role": "researcher", "task": "What does it cost?", "ask": True})
        [started] = at.tasks.started
        assert started.task_id.startswith("S-") and started.status == "working" and len(person.asked) == 1
        await wait_for(gate.arrived)
        gate.released.set()
        done = await at.ended(started.task_id)
        content, _words = read_answer(CallToolResult.model_validate(done["result"]))
        assert content["runs"][0]["untrusted_result"]["output"] == "the answer"
        [spawn] = [tool for tool in (await at.client.list_tools()).tools if tool.name == "spawn_subagent"]
        jsonschema.validate(content, spawn.output_schema or {})  # a client compares it with the tool that was called
