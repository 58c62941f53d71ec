"""Everything that can happen is driven once, and what stands in the log then is what the page of events says.

The registries are asked what there is: a tool, an ending, a kind of error or an event type that comes later fails
here by name, until it is driven too.
"""

from __future__ import annotations

import ast
import json
import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import anyio
import pytest
from support.agents.lab import agent_lab, agent_run
from support.hosts.extensions import CAP, note, works
from support.http_server import serving_http, token
from support.model_server import Fail, Gate, HangUp, ModelServer, Raw, Say, Step, events, running_model_server
from support.models.search_formats import ANTHROPIC
from support.network.web_site import Page, site
from support.repositories.coding import asked
from support.repositories.projects import checkout, write
from support.runtime import PRICED, Lab, arrived, connect, hand_over, open_lab, submits
from support.stdio import using
from support.tool_examples import EXAMPLES, HERE, HOST, example_of, must_list

from ava_audit.entries import HEADER
from ava_audit.events import ENDINGS, FACTS, Channel, CostReserved, Who
from ava_audit.retention import erase_run
from ava_roles.sandbox.sandbox import Unavailable
from ava_roles.sandbox.selection import find_sandbox
from ava_roles.tools.registry import builtin_tools, tool_specs
from ava_server.approval.questions import Question, Reply
from ava_server.budget.run_config import RUN_TOOLS
from ava_server.core.errors import ModelErrorKind
from ava_server.models import http_model
from ava_server.models.wires.stream import Deadlines
from ava_server.runs.submit import NAME as SUBMIT
from ava_server.service.access import Asking, Session
from ava_server.service.record import WHEN
from ava_server.service.service import Service
from ava_server.service.tools import TOOLS

CHANGING = [name for name, spec in tool_specs().items() if spec.edits]

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "events.md"
SERVER = ROOT / "server" / "ava_server"

UNWRITTEN: set[str] = set()
"""Types that nothing writes yet."""
UNREACHED: set[str] = set()
"""Endings (and decisions) that no run of this version comes to."""
UNSET = {
    ("ToolResult", "unread"): "where a tool did not finish: tests/server/test_no_answer.py",
    ("SpawnDecided", "folded"): "where a person left a text folded: tests/system/test_cli_approve.py",
    ("UserMessage", "screen"): "where a person left a text folded: tests/system/test_cli_approve.py",
}
"""Fields that no entry here has, and why."""
UNSAID = {
    ("RunResumed", "channel"): {"auto", "http", "browser"},
    ("CancelRequested", "by"): {"system"},
    ("Asked", "kind"): {"call"},  # takes a server whose tools change something: tests/server/test_origins.py
    ("Answered", "kind"): {"call"},
    ("Answered", "channel"): {"auto"},
    ("SubagentComplete", "status"): {"superseded", "rejected", "expired"},
}
"""Words of a closed set that no entry here has: most of them nothing says yet. A proposal ends without a result."""

ROLE = "---\nname: jack\ndescription: Has every tool.\ntools: [{tools}]\nskills: [prices]\n---\nDo it.\n"
SKILL = "---\nname: prices\ndescription: How prices are read.\n---\nRead them twice.\n"
MASON = (
    "---\nname: mason\ndescription: Edits.\ntools: [edit_file, write_file]\nsetup: 'true'\n"
    "project_instructions: true\n---\n"
    "Do it.\n"
)
LONG_URL = f"http://{HOST}/long"


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


class Plays:
    """What the model answers: each run names its play in its task, and goes on in it with each request."""

    def __init__(self, plays: Mapping[str, Sequence[Step]]) -> None:
        self._left = {name: list(steps) for name, steps in plays.items()}

    def __call__(self, request: dict[str, Any]) -> Step:
        found = re.search(r"play: (\w+)", json.dumps(request["messages"]))
        assert found is not None
        if found[1] == "more":
            return works(request)
        steps = self._left[found[1]]
        step = steps[0] if len(steps) == 1 else steps.pop(0)
        # The tool result before it is read again, and the earlier run that the task context lists.
        for hole, form in (("R-{sha}", r"R-[0-9a-f]{8}"), ("S-{earlier}", r"S-[0-9a-f]{6}")):
            if isinstance(step, Say) and hole in str(step.calls):
                named = re.findall(form, json.dumps(request["messages"]))[-1]
                return Say(calls=json.loads(json.dumps(step.calls).replace(hole, named)))
        return step


def every_tool() -> list[Step]:
    """Each tool once as it should be called, and once with an argument that it does not have."""
    tools = [name for name in (*builtin_tools(), *RUN_TOOLS) if name not in CHANGING]
    steps: list[Step] = [Say("I look.", [("http_get", {"url": LONG_URL})], reasoning="where is it?")]
    steps += [Say(calls=[(tool, example_of(tool).call), (tool, {"no_such_argument": 1})]) for tool in tools]
    steps.append(Say('<tool_call>{"name": "scratchpad", "arguments": {"note": "printed"}}</tool_call>'))
    return [*steps, Say(calls=[(SUBMIT, {"no_such_argument": 1})]), submits("all done")]


def every_edit() -> list[Step]:
    """Each tool that changes files, as it should be called and as not; and work that passes when it is mended."""
    steps: list[Step] = [
        Say(calls=[(tool, example_of(tool).call), (tool, {"no_such_argument": 1})]) for tool in CHANGING
    ]
    mended = Say(calls=[("write_file", {"path": "d.md", "content": "there"})])
    return [*steps, hand_over(), mended, hand_over()]


LATER = str(7 * 24 * 3600)
CUT = Raw(events(Say("some words", usage=None))[:3], chunked=True, cut=True)
DEAR = {"prompt_tokens": 5_000, "completion_tokens": 900, "total_tokens": 5_900}
NOTE = Say(calls=[("scratchpad", {"note": "remember this"})])
UNTAKEN = Fail(400, {"error": {"message": "messages.1.content.0: Invalid `signature` in `thinking` block."}})
UNFIT = Fail(400, {"error": {"message": "no such argument", "code": "tool_use_failed", "failed_generation": "{}"}})
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
    "rejected": [UNFIT, hand_over()],
}
"""What brings each kind of error that a model call can end in."""
ENDED: dict[str, tuple[Mapping[str, Any], Sequence[Step]]] = {
    "success": ({}, [hand_over()]),
    "no_answer": ({"model": "offline"}, []),
    "timeout": ({"timeout": 3}, [NOTE, Say("late", gate=Gate()), submits("in time")]),
    "cost_exceeded": ({}, [replace(NOTE, usage={"prompt_tokens": 9_000, "completion_tokens": 90_000})]),
    "token_exceeded": (
        {"max_tokens": 40_000},
        [replace(NOTE, usage={"prompt_tokens": 9_000, "completion_tokens": 500})] * 6,
    ),
    "iteration_limit": ({"max_iterations": 2}, [NOTE, submits("what there is")]),
    "tool_limit": ({"max_tool_calls": 1}, [NOTE, NOTE, submits("one note")]),
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


def play(name: str) -> str:
    return f"play: {name}"


@pytest.fixture(scope="module")
async def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root in which all of it has happened."""
    tmp = tmp_path_factory.mktemp("record")
    if isinstance(found := find_sandbox("auto", tmp / "state"), Unavailable):
        pytest.skip(f"{found.why}; {found.what_to_do}")
    with pytest.MonkeyPatch.context() as patch, anyio.fail_after(90):
        impatient = partial(http_model.HttpModel, deadlines=Deadlines(first_byte_s=3))  # not three minutes
        patch.setattr(http_model, "HttpModel", impatient)
        with running_model_server(Plays(plays())) as server:
            await happen(tmp, server)
            await taken_over(tmp, server)
            await by_another_agent(tmp)
    return tmp / "data"


LIMITS = "[limits]\nrunning_per_user = 60\nrunning = 60\nspawns_per_hour = 200\n"
CONFIG = f'{LIMITS}[sandbox]\nmode = "none"\n{PRICED}'  # what runs here is quick, and need not be confined
HIT = {"url": "https://otter.example/prices", "title": "Prices", "content": "twelve cents"}


def counted(prompt: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": 100}


def plays() -> dict[str, Sequence[Step]]:
    """What the model says, by the name that a task has."""
    return {
        **{f"error_{kind}": steps for kind, steps in ERRORS.items()},
        **{f"ended_{status}": steps for status, (_given, steps) in ENDED.items()},
        "tools": every_tool(),
        "edits": every_edit(),
        "group": [hand_over()],
        "items": [submits({"items": ["a", "b"]})],
        "one": [hand_over()],
        "breaks": [Fail(400)],
        "gone": [hand_over()],
        "provider": [Say(calls=[("web_search", example_of("web_search").call)]), hand_over()],
        "whole": [Say("Twelve.", stream=False)],
        "planned": [Say("It is about a price."), Say("1. read_file a.md."), Say("KEEP"), hand_over()],
        "told": TOLD,
        "holds": [Say(calls=hand_over().calls, gate=HOLDS)],
        "steered": [Say(calls=NOTE.calls, gate=STEERED), hand_over()],
        "left": [*(Say("x", gate=gate) for gate in LEFT), hand_over(), hand_over(), hand_over()],
        "ratio": [
            *(Say(calls=[("http_get", {"url": LONG_URL})], usage=counted(tokens)) for tokens in (4_000, 9_500)),
            hand_over(),
        ],
        "asks": [*([Say(calls=[("ask", example_of("ask").call)]), hand_over()] * 4)],
        "late": [note(0), Say("too late", gate=Gate()), submits("in time")],
        "paused": [Fail(429, retry_after="5", headers={"x-request-id": "req_limits01"}), hand_over()],
    }


async def happen(tmp: Path, server: ModelServer) -> None:
    """Everything that one process can bring about."""
    files = {"a.md": "Otter charges twelve cents.\n", "b.md": "Beaver charges twelve cents.\n"}
    checkout(tmp / "workspace", {**files, "AGENTS.md": "Prices are in cents.\n"})
    (tmp / "data" / "roles").mkdir(parents=True)
    tools = [name for name in builtin_tools() if name not in CHANGING]
    (tmp / "data" / "roles" / "jack.md").write_text(ROLE.format(tools=", ".join(tools)))
    (tmp / "data" / "roles" / "mason.md").write_text(MASON)
    write(tmp / "data" / "skills" / "prices", {"SKILL.md": SKILL})
    (tmp / "data" / "memory").mkdir()
    (tmp / "data" / "memory" / "prices.md").write_text("Otter charges twelve cents.\n")
    with running_model_server([Fail(200, {"results": [HIT], "unresponsive_engines": []})]) as engine:
        searched = f'[search]\nengine = "searxng"\nsearxng = "http://127.0.0.1:{engine.port}"\n' + CONFIG
        async with site(PAGES) as web, open_lab(tmp, server=server, config=searched, check=False) as lab:
            lab.runtime.fetcher = web.fetcher
            await everything_at_once(lab)
    await and_other_ways(tmp, server)


async def everything_at_once(lab: Lab) -> None:
    """Runs to each ending, by each error, with each decision."""
    async with anyio.create_task_group() as tasks:
        for kind in ERRORS:
            tasks.start_soon(partial(lab.outcome, task=play(f"error_{kind}")))
        for status in ENDED.keys() - {"cancelled", "rejected", "expired"}:
            tasks.start_soon(partial(ended, lab, status))
        for other in (
            cancelled,
            rejected,
            superseded,
            agreed,
            on_a_page,
            grouped,
            in_steps,
            waited,
            everything,
            steered,
            misused,
            erased,
            extended,
            questioned,
        ):
            tasks.start_soon(other, lab)
        tasks.start_soon(partial(lab.outcome, task=play("whole")))
        tasks.start_soon(partial(lab.outcome, role="jack", task=play("ratio"), max_tokens=45_000))
        tasks.start_soon(partial(lab.outcome, task=play("planned"), plan=True))
        tasks.start_soon(partial(lab.outcome, task=play("told"), max_iterations=10))
        tasks.start_soon(partial(lab.outcome, task=play("paused"), timeout=4))


async def and_other_ways(tmp: Path, server: ModelServer) -> None:
    """What comes over a host's connection, by the policy auto, and what a server that ends leaves."""
    async with open_lab(tmp, server=server, config=LIMITS + PRICED, check=False) as lab:
        given = {"role": "mason", "task": play("edits"), "namespace": ["."], "verify": "test -e d.md"}
        result = await lab.outcome(**asked(**given))
        assert result["status"] == "success", result
    async with connect(tmp, server=server, config=CONFIG) as (client, _server):
        await client.call_tool("check_subagent", {})
    await from_elsewhere(tmp / "data", server)
    auto = "approval = 'auto'\nauto_approve_cents = 500\nauto_approve_daily_cents = 500\n"
    fetch = "\n[fetch]\nhosts = ['example.org']\n"
    async with open_lab(tmp, server=server, config=f"{auto}{CONFIG}{fetch}", check=False) as lab:
        started = await lab.call("spawn_subagent", role="researcher", task=play("group"), tools=["read_webpages"])
        assert started.status == "approved", started.message
        await lab.ended(started.subagent_id)
    with running_model_server([Fail(200, ANTHROPIC)]) as provider:
        searched = f'[search]\nengine = "anthropic"\n[providers.anthropic]\nbase_url = "{provider.base_url}"\n'
        async with open_lab(tmp, server=server, config=searched + CONFIG, check=False) as lab:
            await lab.outcome(role="web_crawler", task=play("provider"), workspace=None)
    async with open_lab(tmp, server=server, config=CONFIG, check=False) as lab:
        for gate in LEFT:
            await lab.start(task=play("left"))
            await arrived(gate.arrived)


async def by_another_agent(tmp: Path) -> None:
    """A run of which another agent does the work, and tells half of it."""
    usage = {"prompt_tokens": 900, "completion_tokens": 50, "total_tokens": 950}
    answers = [Say("I look.", calls=[("Bash", {"command": "ls"})], usage=usage), Say("Done.", usage=usage)]
    steps: list[dict[str, Any]] = [
        {"ask": "look"},
        {"ask": "A title", "model": "other", "survives": True, "aside": True},
        {"permit": {"kind": "fetch", "title": "GET", "toolCallId": "a"}},
        {"ask": "", "results": {"toolu_0_0": "twelve cents"}},
        {"usage": {"totalTokens": 5, "inputTokens": 4, "outputTokens": 1}},
        {"ava": "submit_result", "args": {"summary": "Twelve.", "output": "twelve cents"}},
    ]
    async with agent_lab(tmp, answers, [steps], LIMITS) as lab:
        result = await lab.outcome(within_s=60, **agent_run())
        assert result["status"] == "success", result


async def from_elsewhere(root: Path, server: ModelServer) -> None:
    """A run that is proposed over HTTP with one token, and approved with another."""
    host, phone = token(root, "ana", "spawn", "read"), token(root, "ana", "approve", name="phone")
    async with serving_http(root, env=using(server.base_url)) as http, http.client(host) as client:
        given = {"role": "custom", "system_prompt": "Be brief.", "task": play("group")}
        proposed = (await client.call_tool("spawn_subagent", given)).structured_content or {}
        lines = {"pending_ids": [proposed["pending_id"]], "approving": [proposed["approval_line"]]}
        [waits] = (await http.get("/approvals", phone)).json()["proposals"]
        digests = {proposed["pending_id"]: waits["digest"]}
        decided = await http.post("/approvals", phone, json={"decision": "approve", "digests": digests, **lines})
        assert decided.status_code == 200, decided.text
        await client.call_tool("check_subagent", {"subagent_id": proposed["subagent_id"], "wait_seconds": 20})


PAGES = {
    "/prices": Page("<h1>Prices</h1><p>Otter charges twelve cents.</p>"),
    "/long": Page("one line of many\n" * 3_000, content_type="text/plain"),
}
TOLD = [Say(calls=[("scratchpad", {"note": f"n{number}"})]) for number in range(9)] + [submits()]
STEERED, HOLDS, LEFT = Gate(), Gate(), tuple(Gate() for _ in range(6))


async def ended(lab: Lab, status: str) -> None:
    given, _steps = ENDED[status]
    result = await lab.outcome(task=play(f"ended_{status}"), **given)
    assert result["status"] == status, result


async def cancelled(lab: Lab) -> None:
    run_id = await lab.start(task=play("ended_cancelled"))
    await lab.logged(run_id, "CostReserved")

    async def progress(_line: str) -> None: ...

    terminal = Service(
        lab.runtime, Session(user=lab.runtime.user, transport="terminal", channel="terminal", by="person")
    )
    await terminal.call("cancel_subagent", {"subagent_id": run_id, "reason": "enough"}, progress)


async def erased(lab: Lab) -> None:
    run_id = await lab.start(task=play("gone"))
    run = await lab.ended(run_id)
    await erase_run(lab.store, run_id, (), Who("sess-erasing", "ava", run.user_id), "asked for")


async def rejected(lab: Lab) -> None:
    proposal = await lab.propose(task=play("ended_rejected"))
    await lab.call("confirm_spawn", pending_ids=[proposal.pending_id], decision="reject")


async def superseded(lab: Lab) -> None:
    """The same reference with other limits: what waited under it is superseded."""
    first = await lab.propose(task=play("group"), task_id="T-2", max_iterations=5)
    second = await lab.propose(task=play("group"), task_id="T-2", max_iterations=6)
    assert (await lab.run(first.subagent_id)).state == "superseded"
    refused = await lab.approve(first)
    assert "was replaced by a newer proposal" in refused.decisions[0].refused_because
    await lab.approve(second)
    await lab.ended(second.subagent_id)


class Agreeing:
    """A person who says yes."""

    fills_forms = True

    async def ask(self, question: Question, use: Callable[[Reply], object]) -> Reply:
        return Reply("accept")


class Declining:
    """A person who does not want to answer."""

    fills_forms = True

    async def ask(self, question: Question, use: Callable[[Reply], object]) -> Reply:
        return Reply("decline")


async def quiet(_line: str) -> None: ...


async def agreed(lab: Lab) -> None:
    """A proposal that a person agrees to in the client's own question."""
    proposal = await lab.propose(task=play("group"))
    given = {"pending_ids": [proposal.pending_id], "approving": [proposal.approval_line]}
    answer: Any = await lab.service.call("confirm_spawn", given, quiet, asking=Asking(Agreeing()))
    assert answer.status == "approved", answer
    await lab.ended(proposal.subagent_id)


async def on_a_page(lab: Lab) -> None:
    """A proposal that a person approves in a browser."""
    proposal = await lab.propose(task=play("group"))
    given = {"pending_ids": [proposal.pending_id], "approving": [proposal.approval_line]}
    person = Service(lab.runtime, Session(user=lab.runtime.user, transport="browser", channel="browser"))
    assert (await person.call("confirm_spawn", given, quiet)).status == "approved"
    await lab.ended(proposal.subagent_id)


async def extended(lab: Lab) -> None:
    """Runs near a cap that ask for more, and each answer over each channel."""
    channels: Sequence[tuple[Channel, Mapping[str, Any]]] = (
        ("http", {"task": play("more"), **CAP}),
        ("elicitation", {"task": play("more"), "max_tokens": 80_000, "max_cost_cents": 400}),
        ("terminal", {"task": play("late"), "timeout": 3}),
        ("host_call", {"task": play("more"), **CAP}),
    )
    terminal = Service(lab.runtime, Session(user=lab.runtime.user, transport="terminal", channel="terminal"))
    for channel, given in channels:
        proposal = await lab.propose(**given)
        approval = {"pending_ids": [proposal.pending_id], "approving": [proposal.approval_line]}
        assert (await terminal.call("confirm_spawn", approval, quiet)).status == "approved"
        run_id = proposal.subagent_id
        await lab.logged(run_id, "Asked", within_s=60)
        if channel == "elicitation":
            await lab.service.call("check_subagent", {"subagent_id": run_id}, quiet, asking=Asking(Agreeing()))
        else:
            person = Service(lab.runtime, Session(user=lab.runtime.user, transport="memory", channel=channel))
            [shown] = [one for one in await person.questions.waiting() if one.subagent_id == run_id]
            await person.questions.decide(run_id, shown.digest, approve=channel == "http")
        await lab.ended(run_id)


async def questioned(lab: Lab) -> None:
    """Runs that ask a question, and the answers over the other channels."""
    channels: Sequence[Channel] = ("terminal", "http", "browser", "elicitation")
    for channel in channels:
        run_id = await lab.start(task=play("asks"))
        await lab.logged(run_id, "Asked", within_s=60)
        if channel == "elicitation":
            await lab.service.call("check_subagent", {"subagent_id": run_id}, quiet, asking=Asking(Declining()))
        else:
            person = Service(lab.runtime, Session(user=lab.runtime.user, transport="memory", channel=channel))
            await person.call("message_subagent", {"subagent_id": run_id, "message": "EUR"}, quiet)
        await lab.ended(run_id)


async def grouped(lab: Lab) -> None:
    """A group that a person approves at a terminal, with changes, one of it a retry."""
    first = await lab.start(task=play("group"))
    await lab.ended(first)
    given = {"name": "prices", "task_id": "T-1", "context": "For Otter.", "rationale": "asked for"}
    terminal = Service(lab.runtime, Session(user=lab.runtime.user, transport="terminal", channel="terminal"))
    proposals = [await lab.propose(task=play("group"), **given), await lab.propose(retry_of=first, task=play("group"))]
    lines = [each.approval_line for each in proposals]
    asked = {
        "pending_ids": [each.pending_id for each in proposals],
        "changes": {proposals[0].pending_id: {"caps": {"max_iterations": 3}}},
        "group_max_cost_cents": 60,
        "group_timeout": 60,
    }

    async def progress(_line: str) -> None: ...

    answer: Any = await terminal.call("confirm_spawn", {**asked, "approving": lines}, progress)
    if answer.status != "approved":  # the group has a line of its own
        lines.append(answer.approval_lines[-1])
        answer = await terminal.call("confirm_spawn", {**asked, "approving": lines}, progress)
    assert answer.status == "approved", answer
    for each in proposals:
        await lab.ended(each.subagent_id)
    await lab.call("check_subagent", subagent_id=first)


async def in_steps(lab: Lab) -> None:
    """A plan of which a step has more items than runs, one fails, and one is skipped for that."""
    listed = {"type": "object", "properties": {"items": {"type": "array"}}}
    steps = [
        {"id": "items", "task": play("items"), "output_schema": listed},
        {"id": "one", "task": f"{play('one')}: {{{{item}}}}", "foreach": "items.items", "at_most": 1},
        {"id": "breaks", "task": play("breaks")},
        {"id": "skipped", "task": f"{play('one')}: {{{{breaks}}}}"},
    ]
    proposal = await lab.call("spawn_subagent", role="researcher", workspace=str(lab.workspace), steps=steps)
    assert (await lab.approve(proposal)).status == "approved", proposal
    assert (await lab.ended(proposal.group_id)).state == "partial"


async def waited(lab: Lab) -> None:
    """Two runs of a group: one waits for the money that the other's call holds, and is cancelled."""
    alone = await lab.start(task=play("group"), max_cost_cents=50)
    await lab.ended(alone)
    [reserved, *_] = await lab.facts(alone, CostReserved)
    cap = (reserved.micros + reserved.wrap_micros) * 19 // 100_000
    proposals = [await lab.propose(task=play("holds"), max_cost_cents=50) for _ in range(2)]
    lines = [each.approval_line for each in proposals]
    ids = [each.pending_id for each in proposals]
    answer = await lab.call("confirm_spawn", pending_ids=ids, approving=lines, group_max_cost_cents=cap)
    await lab.call("confirm_spawn", pending_ids=ids, approving=answer.approval_lines, group_max_cost_cents=cap)
    await arrived(HOLDS.arrived)
    runs = [each.subagent_id for each in proposals]
    [waiter] = [run_id for run_id in runs if not await lab.facts(run_id, CostReserved)]
    await lab.logged(waiter, "MoneyAwaited")
    await lab.call("cancel_subagent", subagent_id=waiter)
    HOLDS.released.set()
    for run_id in runs:
        await lab.ended(run_id)


async def everything(lab: Lab) -> None:
    """Every tool of a run; and its result, fetched."""
    earlier = await lab.start(task=play("group"))
    await lab.ended(earlier)
    limits = {"max_iterations": 40, "max_tool_calls": 60, "max_tokens": 200_000}
    asked = {"role": "jack", "task": play("tools"), "system_prompt": "Be brief.", **limits}
    proposal = await lab.propose(**asked, context_from=[earlier])
    assert set(proposal.tools) == {*builtin_tools(), *RUN_TOOLS} - {*CHANGING}, proposal.tools
    await lab.approve(proposal)
    await lab.logged(proposal.subagent_id, "Asked", within_s=60)
    await lab.call("message_subagent", subagent_id=proposal.subagent_id, message="Otter's")
    await lab.ended(proposal.subagent_id)
    await lab.call("check_subagent", subagent_id=proposal.subagent_id)
    await lab.call("read_ava_logs", subagent_id=proposal.subagent_id)


async def steered(lab: Lab) -> None:
    run_id = await lab.start(task=play("steered"))
    await arrived(STEERED.arrived)
    await lab.call("message_subagent", subagent_id=run_id, message="and Otter too")
    STEERED.released.set()
    await lab.ended(run_id)


async def misused(lab: Lab) -> None:
    """Each of our six tools, with an argument that it does not have."""
    assert WHEN.keys() == TOOLS.keys() == lab.service._handlers.keys()
    for tool in TOOLS:
        answer = await lab.call(tool, no_such_argument=1)
        assert answer.status == "failed"


async def taken_over(tmp: Path, server: ModelServer) -> None:
    """What another process does with runs whose owner has gone: it cancels, gives up, resumes and takes over; and what
    comes too late.
    """
    hasty = f"proposal_ttl_s = 1\n{CONFIG}"
    async with open_lab(tmp, server=server, config=hasty, runs=False, check=False) as lab:
        stale = await lab.propose(task=play("ended_expired"))
        left = await lab.store.read(lambda view: view.runs(states=["running"]))
        ended, given_up, resumed, asked_for, forced, *over = [run.id for run in left]
        answer = await lab.call("cancel_subagent", subagent_id=ended)
        assert answer.status == "cancelled"
        control, limits = lab.runtime.manager.control, lab.runtime.spawn_limits_of(lab.runtime.user)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("ava_server.runs.endings.ABANDONED_US", 0)
            assert await control.end_overdue(given_up, frozenset(str(run.instance) for run in left))
        asked = await lab.call("confirm_spawn", pending_ids=[resumed])
        answer = await lab.call("confirm_spawn", pending_ids=[resumed], approving=asked.approval_lines)
        assert answer.status == "resumed", answer
        asked = await lab.call("confirm_spawn", pending_ids=[asked_for])
        given = {"pending_ids": [asked_for], "approving": asked.approval_lines}
        answer = await lab.service.call("confirm_spawn", given, quiet, asking=Asking(Agreeing()))
        assert answer.status == "resumed", answer
        assert await control.resume(forced, lab.session.who, "terminal", limits, force=True)
        await anyio.sleep(1)  # its second is over then
        refused = await lab.approve(stale)
        assert refused.status == "refused", refused
    async with open_lab(tmp, server=server, config=CONFIG, check=False) as lab:
        generations = [(await lab.ended(run_id)).generation for run_id in (resumed, asked_for, forced, *over)]
        assert generations == [3, 3, 3, *(2 for _ in over)]


# -- what stands in the log then --------------------------------------------------------------------------------------


def entries(root: Path) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(root / "ava.db")) as db:
        rows = db.execute(f"SELECT {', '.join(HEADER)}, content FROM events ORDER BY seq").fetchall()
    return [{**dict(zip(HEADER, row, strict=False)), "content": json.loads(row[-1])} for row in rows if row[-1]]


def page() -> dict[str, dict[str, bool]]:
    """The types on the page of events, the fields of each, and whether a field may be absent."""
    found: dict[str, dict[str, bool]] = {}
    for section in PAGE.read_text("utf-8").split("\n## ")[1:]:
        rows = re.findall(r"^\| `(\w+)` \|.*\|([^|]*)\|$", section, re.MULTILINE)
        found[section.split("\n")[0].strip()] = {field: "may be absent" in words for field, words in rows}
    return found


@pytest.mark.slow
async def test_documented_and_logged_event_types_match(root: Path) -> None:
    written = {entry["type"] for entry in entries(root)}
    assert set(page()) == set(FACTS)
    driven = "tests/server/test_event_coverage.py: plays(), or what is done beside them,"
    must_list(driven, written | UNWRITTEN, FACTS, "event type")
    assert set(FACTS) - written == UNWRITTEN
    assert written <= set(FACTS)


async def test_documented_and_stored_event_fields_match(root: Path) -> None:
    stored: dict[str, Counter[str]] = defaultdict(Counter)
    count: Counter[str] = Counter()
    for entry in entries(root):
        count[entry["type"]] += 1
        stored[entry["type"]].update(entry["content"].keys())
    faults: list[str] = []
    for name, fields in page().items():
        if name in UNWRITTEN:
            continue
        faults += [f"{name}.{field} is not on the page" for field in stored[name] if field not in fields]
        for field, absent in fields.items():
            if not stored[name][field] and (name, field) not in UNSET:
                faults.append(f"{name}.{field} was never stored")
            if stored[name][field] and (name, field) in UNSET:
                faults.append(f"{name}.{field} is stored now: take it out of UNSET")
            if not absent and stored[name][field] != count[name]:
                faults.append(f"{name}.{field} is absent from some, which the page does not say")
    assert faults == []


async def test_some_event_fills_every_header_column(root: Path) -> None:
    rows = entries(root)
    assert [column for column in HEADER if all(row[column] is None for row in rows)] == []


async def test_every_enum_value_is_logged_or_listed_as_unused(root: Path) -> None:
    said: dict[tuple[str, str], set[str]] = defaultdict(set)
    for entry in entries(root):
        for field, value in entry["content"].items():
            if isinstance(value, str):
                said[entry["type"], field].add(value)
    for name, fact in FACTS.items():
        if name in UNWRITTEN:
            continue
        for field, info in fact.model_fields.items():
            words = {word for each in (info.annotation, *get_args(info.annotation)) for word in literals(each)}
            unsaid = UNSAID.get((name, field), set())
            says = f"{name}.{field}: play each value that the left set shows, or list it in UNSAID"
            assert words - said[name, field] == unsaid & words, says


def literals(annotation: Any) -> set[str]:
    return set(get_args(annotation)) if get_origin(annotation) is Literal else set()


async def test_reaches_every_ending(root: Path) -> None:
    reached = {entry["content"]["status"] for entry in entries(root) if entry["type"] == "RunEnded"}
    assert reached == {*ENDED, "abandoned", "superseded", "partial"} == ENDINGS - UNREACHED


async def test_logs_every_kind_of_model_error(root: Path) -> None:
    kinds = {entry["content"]["kind"] for entry in entries(root) if entry["type"] == "ErrorOccurred"}
    assert set(ERRORS) == set(get_args(ModelErrorKind))
    assert set(ERRORS) <= kinds


async def test_logs_call_result_and_refusal_of_every_tool_of_a_run(root: Path) -> None:
    calls, results = tool_entries(root, of_runs=True)
    tools = {*builtin_tools(), *RUN_TOOLS}
    assert set(calls) == tools == set(EXAMPLES)
    both = {tool for tool, outcomes in results.items() if outcomes == {True, False}}
    assert both == {*tools, SUBMIT}, f"`call` of {HERE} must succeed here: {sorted(tools - both)} failed"


async def test_logs_call_answer_and_failure_of_every_mcp_tool(root: Path) -> None:
    calls, results = tool_entries(root, of_runs=False)
    tools = set(re.findall(r"^## `?(\w+)`?", (PAGE.parent / "tools.md").read_text("utf-8"), re.MULTILINE))
    assert len(tools) == 6 and set(calls) == tools
    assert {tool for tool, outcomes in results.items() if outcomes == {True, False}} == tools


def tool_entries(root: Path, *, of_runs: bool) -> tuple[Counter[str], dict[str, set[bool]]]:
    """The calls, and how calls came out, of subagents (without those of other agents) or of the orchestrator."""
    calls: Counter[str] = Counter()
    results: dict[str, set[bool]] = defaultdict(set)
    others = {entry["run_id"] for entry in entries(root) if entry["type"] == "AgentNote"}
    for entry in entries(root):
        if (entry["generation"] is not None) != of_runs or entry["run_id"] in others:
            continue
        if entry["type"] == "ToolCall":
            calls[entry["content"]["tool"]] += 1
        elif entry["type"] == "ToolResult":
            results[entry["content"]["tool"]].add(entry["content"]["success"])
    return calls, results


async def test_every_call_has_a_result_and_every_reservation_a_settlement(root: Path) -> None:
    rows = entries(root)
    ends = {row["run_id"]: row["seq"] for row in rows if row["type"] == "RunEnded"}

    def keys(type_name: str, *fields: str) -> Counter[tuple[Any, ...]]:
        return Counter(
            (row["run_id"], *(row["content"][field] for field in fields))
            for row in rows
            if row["type"] == type_name and row["generation"] is not None and row["run_id"] in ends
        )

    reserved, settled = keys("CostReserved", "turn", "attempt"), keys("CostUpdate", "turn", "attempt")
    assert len(reserved) > 40 and set(reserved.values()) == {1}
    assert {key for key in reserved if key not in settled} <= {key for key in reserved if key[0] in lost(rows)}
    assert not keys("ToolCall", "call_id") - keys("ToolResult", "call_id")


def lost(rows: list[dict[str, Any]]) -> set[str]:
    """The runs whose owner has gone: who came after it settles for it, under no claim."""
    return {row["run_id"] for row in rows if row["type"] == "RunClaimed" and row["content"]["generation"] > 1}


# -- one wrapper each, and lists that do not rot ----------------------------------------------------------------------


def files_with(pattern: str) -> set[str]:
    return {
        path.relative_to(SERVER).as_posix()
        for path in SERVER.rglob("*.py")
        if re.search(pattern, path.read_text("utf-8"))
    }


def made_in(path: Path) -> list[ast.Call]:
    """Every call in a file."""
    return [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call)]


def called(call: ast.Call) -> str:
    return str(getattr(call.func, "id", getattr(call.func, "attr", "")))


def files_that_make(name: str) -> set[str]:
    return {
        path.relative_to(SERVER).as_posix()
        for path in SERVER.rglob("*.py")
        if any(called(call) == name for call in made_in(path))
    }


@pytest.mark.slow
def test_model_and_tool_calls_have_one_wrapper_each() -> None:
    assert files_with(r"\bmodel\.stream\(|\b_model\.stream\(") == {"runs/model_call.py"}
    assert files_with(r"\btool\(args") == {"runs/tool_calls.py"}
    assert files_with(r"\bhandler\(") == {"service/service.py"}
    made = {name: files_that_make(name) for name in ("CostReserved", "CostUpdate", "ToolCall")}
    assert made == {
        "CostReserved": {"runs/model_call.py", "runs/reservation.py", "agents/metering.py"},
        "CostUpdate": {"budget/caps.py"},
        "ToolCall": {"runs/tool_calls.py", "service/record.py", "agents/metering.py", "agents/work.py"},
    }


def test_nothing_writes_the_values_listed_as_unused() -> None:
    for path in [path for folder in ("server", "audit") for path in (ROOT / folder).rglob("*.py")]:
        for call in made_in(path):
            where = f"{path.name}:{call.lineno}"
            assert called(call) not in UNWRITTEN, f"{where} writes {called(call)}: drive it here"
            given = [*call.args, *(keyword.value for keyword in call.keywords)]
            words = {each.value for each in given if isinstance(each, ast.Constant) and isinstance(each.value, str)}
            assert not words & UNREACHED, f"{where} ends a run as {words & UNREACHED}: drive it here"
