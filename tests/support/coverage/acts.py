"""What is done once to a data root, so that its log has everything that can happen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from ava_audit.events import Channel, CostReserved, Who
from ava_audit.retention import erase_run
from ava_audit.rows import RunRow
from ava_roles.sandbox.sandbox import Unavailable
from ava_roles.sandbox.selection import find_sandbox
from ava_roles.tools.registry import builtin_tools
from ava_server.models import http_model
from ava_server.models.wires.stream import Deadlines
from ava_server.run_config.config import RUN_TOOLS
from ava_server.service.access import Session
from ava_server.service.record import WHEN
from ava_server.service.service import Service
from ava_server.service.tool_registry import TOOLS
from support.agents.lab import agent_lab, agent_run
from support.approval.people import DialogPerson
from support.coverage.script import CHANGING, ENDINGS_PLAYED, ERRORS, HOLDS, LEFT, STEERED, PlayModel, plays, task_of
from support.hosts.extensions import CAP
from support.http_server import serve_http, token
from support.model_server import Fail, ModelServer, Say, run_model_server
from support.models.search_formats import ANTHROPIC
from support.network.web_site import Page, site
from support.repositories.coding import coder_task
from support.repositories.projects import checkout, write
from support.runs.owners import resume_at_terminal
from support.runtime import PRICED, Lab, connect, open_lab, wait_for
from support.stdio import model_env

ROLE = "---\nname: jack\ndescription: Has every tool.\ntools: [{tools}]\nskills: [prices]\n---\nDo it.\n"
SKILL = "---\nname: prices\ndescription: How prices are read.\n---\nRead them twice.\n"
MASON = (
    "---\nname: mason\ndescription: Edits.\ntools: [edit_file, write_file]\nsetup: 'true'\n"
    "project_instructions: true\n---\n"
    "Do it.\n"
)
LIMITS = "[limits]\nrunning_per_user = 60\nrunning = 60\nspawns_per_hour = 200\n"
CONFIG = f'{LIMITS}[sandbox]\nmode = "none"\n{PRICED}'  # what runs here is quick, and need not be confined
HIT = {"url": "https://otter.example/prices", "title": "Prices", "content": "twelve cents"}


async def play_everything(tmp: Path) -> None:
    """Let everything happen once on the data root `tmp/data`; skip the test where no sandbox confines commands."""
    if isinstance(found := find_sandbox("auto", tmp / "state"), Unavailable):
        pytest.skip(f"{found.why}; {found.what_to_do}")
    with pytest.MonkeyPatch.context() as patch, anyio.fail_after(90):
        impatient = partial(http_model.HttpModel, deadlines=Deadlines(first_byte_s=3))  # not three minutes
        patch.setattr(http_model, "HttpModel", impatient)
        with run_model_server(PlayModel(plays())) as server:
            await do_everything(tmp, server)
            await take_over_runs(tmp, server)
            await run_agent(tmp)


async def do_everything(tmp: Path, server: ModelServer) -> None:
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
    with run_model_server([Fail(200, {"results": [HIT], "unresponsive_engines": []})]) as engine:
        searched = f'[search]\nengine = "searxng"\nsearxng = "http://127.0.0.1:{engine.port}"\n' + CONFIG
        async with site(PAGES) as web, open_lab(tmp, server=server, config=searched, check=False) as lab:
            lab.runtime.fetcher = web.fetcher
            await run_everything(lab)
    await run_other_ways(tmp, server)


async def run_everything(lab: Lab) -> None:
    """Runs to each ending, by each error, with each decision."""
    async with anyio.create_task_group() as tasks:
        for kind in ERRORS:
            tasks.start_soon(partial(lab.outcome, task=task_of(f"error_{kind}")))
        for status in ENDINGS_PLAYED.keys() - {"cancelled", "rejected", "expired"}:
            tasks.start_soon(partial(run_to_ending, lab, status))
        for other in (
            cancel_run,
            reject_proposal,
            supersede_proposal,
            agree_in_dialog,
            approve_on_page,
            approve_together,
            run_plan,
            wait_for_money,
            call_tools,
            steer_run,
            misuse_tools,
            erase_ended_run,
            extend_runs,
            answer_questions,
        ):
            tasks.start_soon(other, lab)
        tasks.start_soon(partial(lab.outcome, task=task_of("whole")))
        tasks.start_soon(partial(lab.outcome, role="jack", task=task_of("ratio"), max_tokens=45_000))
        tasks.start_soon(partial(lab.outcome, task=task_of("planned"), plan=True))
        tasks.start_soon(partial(lab.outcome, task=task_of("told"), max_iterations=10))
        tasks.start_soon(partial(lab.outcome, task=task_of("paused"), timeout=4))


async def run_other_ways(tmp: Path, server: ModelServer) -> None:
    """What comes over a host's connection, by the policy auto, and what a server that ends leaves."""
    async with open_lab(tmp, server=server, config=LIMITS + PRICED, check=False) as lab:
        given = {"role": "mason", "task": task_of("edits"), "namespace": ["."], "verify": "test -e d.md"}
        result = await lab.outcome(**coder_task(**given))
        assert result["status"] == "success", result
    async with connect(tmp, server=server, config=CONFIG) as (client, _server):
        await client.call_tool("check_subagent", {})
    await run_over_http(tmp / "data", server)
    auto = "approval = 'auto'\nauto_approve_cents = 500\nauto_approve_daily_cents = 500\n"
    fetch = "\n[fetch]\nhosts = ['example.org']\n"
    async with open_lab(tmp, server=server, config=f"{auto}{CONFIG}{fetch}", check=False) as lab:
        started = await lab.call("spawn_subagent", role="researcher", task=task_of("group"), tools=["read_webpages"])
        assert started.status == "approved", started.message
        await lab.ended(started.subagent_id)
    with run_model_server([Fail(200, ANTHROPIC)]) as provider:
        searched = f'[search]\nengine = "anthropic"\n[providers.anthropic]\nbase_url = "{provider.base_url}"\n'
        async with open_lab(tmp, server=server, config=searched + CONFIG, check=False) as lab:
            await lab.outcome(role="web_crawler", task=task_of("provider"), workspace=None)
    async with open_lab(tmp, server=server, config=CONFIG, check=False) as lab:
        for gate in LEFT:
            await lab.start(task=task_of("left"))
            await wait_for(gate.arrived)


async def run_agent(tmp: Path) -> None:
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


async def run_over_http(root: Path, server: ModelServer) -> None:
    """A run that is proposed over HTTP with one token, and approved with another."""
    host, phone = token(root, "ana", "spawn", "read"), token(root, "ana", "approve", name="phone")
    async with serve_http(root, env=model_env(server.base_url)) as http, http.client(host) as client:
        given = {"role": "custom", "system_prompt": "Be brief.", "task": task_of("group")}
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


async def run_to_ending(lab: Lab, status: str) -> None:
    """Start a run that comes to an ending by what its model says."""
    given, _steps = ENDINGS_PLAYED[status]
    result = await lab.outcome(task=task_of(f"ended_{status}"), **given)
    assert result["status"] == status, result


async def cancel_run(lab: Lab) -> None:
    """Cancel a run at a terminal during its model call."""
    run_id = await lab.start(task=task_of("ended_cancelled"))
    await lab.logged(run_id, "CostReserved")
    terminal = Session(user=lab.runtime.user, transport="terminal", channel="terminal", by="person")
    await lab.call_in(terminal, "cancel_subagent", subagent_id=run_id, reason="enough")


async def erase_ended_run(lab: Lab) -> None:
    """Erase a run after its end."""
    run_id = await lab.start(task=task_of("gone"))
    run = await lab.ended(run_id)
    await erase_run(lab.store, run_id, (), Who("sess-erasing", "ava", run.user_id), "asked for")


async def reject_proposal(lab: Lab) -> None:
    """Reject a proposal."""
    proposal = await lab.propose(task=task_of("ended_rejected"))
    await lab.call("confirm_spawn", pending_ids=[proposal.pending_id], decision="reject")


async def supersede_proposal(lab: Lab) -> None:
    """The same reference with other limits: what waited under it is superseded."""
    first = await lab.propose(task=task_of("group"), task_id="T-2", max_iterations=5)
    second = await lab.propose(task=task_of("group"), task_id="T-2", max_iterations=6)
    assert (await lab.run(first.subagent_id)).state == "superseded"
    refused = await lab.approve(first)
    assert "was replaced by a newer proposal" in refused.decisions[0].refused_because
    await lab.approve(second)
    await lab.ended(second.subagent_id)


async def agree_in_dialog(lab: Lab) -> None:
    """A proposal that a person agrees to in the client's own question."""
    proposal = await lab.propose(task=task_of("group"))
    ids, lines = [proposal.pending_id], [proposal.approval_line]
    answer = await lab.call_asking(DialogPerson("accept"), "confirm_spawn", pending_ids=ids, approving=lines)
    assert answer.status == "approved", answer
    await lab.ended(proposal.subagent_id)


async def approve_on_page(lab: Lab) -> None:
    """A proposal that a person approves in a browser."""
    proposal = await lab.propose(task=task_of("group"))
    person = Session(user=lab.runtime.user, transport="browser", channel="browser")
    ids, lines = [proposal.pending_id], [proposal.approval_line]
    assert (await lab.call_in(person, "confirm_spawn", pending_ids=ids, approving=lines)).status == "approved"
    await lab.ended(proposal.subagent_id)


async def extend_runs(lab: Lab) -> None:
    """Runs near a cap that ask for more, and each answer over each channel."""
    channels: Sequence[tuple[Channel, Mapping[str, Any]]] = (
        ("http", {"task": task_of("more"), **CAP}),
        ("elicitation", {"task": task_of("more"), "max_tokens": 80_000, "max_cost_cents": 400}),
        ("terminal", {"task": task_of("late"), "timeout": 3}),
        ("host_call", {"task": task_of("more"), **CAP}),
    )
    terminal = Session(user=lab.runtime.user, transport="terminal", channel="terminal")
    for channel, given in channels:
        proposal = await lab.propose(**given)
        ids, lines = [proposal.pending_id], [proposal.approval_line]
        approved = await lab.call_in(terminal, "confirm_spawn", pending_ids=ids, approving=lines)
        assert approved.status == "approved"
        run_id = proposal.subagent_id
        await lab.logged(run_id, "Asked", within_s=60)
        if channel == "elicitation":
            await lab.call_asking(DialogPerson("accept"), "check_subagent", subagent_id=run_id)
        else:
            person = Service(lab.runtime, Session(user=lab.runtime.user, transport="memory", channel=channel))
            [shown] = [one for one in await person.questions.waiting() if one.subagent_id == run_id]
            await person.questions.decide(run_id, shown.digest, approve=channel == "http")
        await lab.ended(run_id)


async def answer_questions(lab: Lab) -> None:
    """Runs that ask a question, and the answers over the other channels."""
    channels: Sequence[Channel] = ("terminal", "http", "browser", "elicitation")
    for channel in channels:
        run_id = await lab.start(task=task_of("asks"))
        await lab.logged(run_id, "Asked", within_s=60)
        if channel == "elicitation":
            await lab.call_asking(DialogPerson("decline"), "check_subagent", subagent_id=run_id)
        else:
            person = Session(user=lab.runtime.user, transport="memory", channel=channel)
            await lab.call_in(person, "message_subagent", subagent_id=run_id, message="EUR")
        await lab.ended(run_id)


async def approve_together(lab: Lab) -> None:
    """A group that a person approves at a terminal, with changes, one of it a retry."""
    first = await lab.start(task=task_of("group"))
    await lab.ended(first)
    given = {"name": "prices", "task_id": "T-1", "context": "For Otter.", "rationale": "asked for"}
    terminal = Session(user=lab.runtime.user, transport="terminal", channel="terminal")
    proposals = [
        await lab.propose(task=task_of("group"), **given),
        await lab.propose(retry_of=first, task=task_of("group")),
    ]
    lines = [each.approval_line for each in proposals]
    asked = {
        "pending_ids": [each.pending_id for each in proposals],
        "changes": {proposals[0].pending_id: {"caps": {"max_iterations": 3}}},
        "group_max_cost_cents": 60,
        "group_timeout": 60,
    }
    answer = await lab.call_in(terminal, "confirm_spawn", **asked, approving=lines)
    if answer.status != "approved":  # the group has a line of its own
        lines.append(answer.approval_lines[-1])
        answer = await lab.call_in(terminal, "confirm_spawn", **asked, approving=lines)
    assert answer.status == "approved", answer
    for each in proposals:
        await lab.ended(each.subagent_id)
    await lab.call("check_subagent", subagent_id=first)


async def run_plan(lab: Lab) -> None:
    """A plan of which a step has more items than runs, one fails, and one is skipped for that."""
    listed = {"type": "object", "properties": {"items": {"type": "array"}}}
    steps = [
        {"id": "items", "task": task_of("items"), "output_schema": listed},
        {"id": "one", "task": f"{task_of('one')}: {{{{item}}}}", "foreach": "items.items", "at_most": 1},
        {"id": "breaks", "task": task_of("breaks")},
        {"id": "skipped", "task": f"{task_of('one')}: {{{{breaks}}}}"},
    ]
    proposal = await lab.call("spawn_subagent", role="researcher", workspace=str(lab.workspace), steps=steps)
    assert (await lab.approve(proposal)).status == "approved", proposal
    assert (await lab.ended(proposal.group_id)).state == "partial"


async def wait_for_money(lab: Lab) -> None:
    """Two runs of a group: one waits for the money that the other's call holds, and is cancelled."""
    alone = await lab.start(task=task_of("group"), max_cost_cents=50)
    await lab.ended(alone)
    [reserved, *_] = await lab.facts(alone, CostReserved)
    cap = (reserved.micros + reserved.wrap_micros) * 19 // 100_000
    proposals = [await lab.propose(task=task_of("holds"), max_cost_cents=50) for _ in range(2)]
    lines = [each.approval_line for each in proposals]
    ids = [each.pending_id for each in proposals]
    answer = await lab.call("confirm_spawn", pending_ids=ids, approving=lines, group_max_cost_cents=cap)
    await lab.call("confirm_spawn", pending_ids=ids, approving=answer.approval_lines, group_max_cost_cents=cap)
    await wait_for(HOLDS.arrived)
    runs = [each.subagent_id for each in proposals]
    [waiter] = [run_id for run_id in runs if not await lab.facts(run_id, CostReserved)]
    await lab.logged(waiter, "MoneyAwaited")
    await lab.call("cancel_subagent", subagent_id=waiter)
    HOLDS.released.set()
    for run_id in runs:
        await lab.ended(run_id)


async def call_tools(lab: Lab) -> None:
    """Every tool of a run; and its result, fetched."""
    earlier = await lab.start(task=task_of("group"))
    await lab.ended(earlier)
    limits = {"max_iterations": 40, "max_tool_calls": 60, "max_tokens": 200_000}
    asked = {"role": "jack", "task": task_of("tools"), "system_prompt": "Be brief.", **limits}
    proposal = await lab.propose(**asked, context_from=[earlier])
    assert set(proposal.tools) == {*builtin_tools(), *RUN_TOOLS} - {*CHANGING}, proposal.tools
    await lab.approve(proposal)
    await lab.logged(proposal.subagent_id, "Asked", within_s=60)
    await lab.call("message_subagent", subagent_id=proposal.subagent_id, message="Otter's")
    await lab.ended(proposal.subagent_id)
    await lab.call("check_subagent", subagent_id=proposal.subagent_id)
    await lab.call("read_ava_logs", subagent_id=proposal.subagent_id)


async def steer_run(lab: Lab) -> None:
    """Send a run a message while its model works."""
    run_id = await lab.start(task=task_of("steered"))
    await wait_for(STEERED.arrived)
    await lab.call("message_subagent", subagent_id=run_id, message="and Otter too")
    STEERED.released.set()
    await lab.ended(run_id)


async def misuse_tools(lab: Lab) -> None:
    """Each of our six tools, with an argument that it does not have."""
    assert WHEN.keys() == TOOLS.keys() == lab.service._handlers.keys()
    for tool in TOOLS:
        answer = await lab.call(tool, no_such_argument=1)
        assert answer.status == "failed"


async def take_over_runs(tmp: Path, server: ModelServer) -> None:
    """What another process does with runs whose owner has gone: it cancels, gives up, resumes and takes over; and what
    comes too late.
    """
    hasty = f"proposal_ttl_s = 1\n{CONFIG}"
    async with open_lab(tmp, server=server, config=hasty, runs=False, check=False) as lab:
        stale = await lab.propose(task=task_of("ended_expired"))
        left = await lab.store.read(lambda view: view.runs(states=["running"]))
        ended, given_up, resumed, asked_for, forced, *over = [run.id for run in left]
        answer = await lab.call("cancel_subagent", subagent_id=ended)
        assert answer.status == "cancelled"
        control = lab.runtime.manager.control
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("ava_server.runs.record.endings.ABANDONED_US", 0)
            assert await control.end_overdue(given_up, frozenset(str(run.instance) for run in left))
        asked = await lab.call("confirm_spawn", pending_ids=[resumed])
        answer = await lab.call("confirm_spawn", pending_ids=[resumed], approving=asked.approval_lines)
        assert answer.status == "resumed", answer
        asked = await lab.call("confirm_spawn", pending_ids=[asked_for])
        given = {"pending_ids": [asked_for], "approving": asked.approval_lines}
        answer = await lab.call_asking(DialogPerson("accept"), "confirm_spawn", **given)
        assert answer.status == "resumed", answer
        assert isinstance(await resume_at_terminal(lab, forced, force=True), RunRow)
        await anyio.sleep(1)  # its second is over then
        refused = await lab.approve(stale)
        assert refused.status == "refused", refused
    async with open_lab(tmp, server=server, config=CONFIG, check=False) as lab:
        generations = [(await lab.ended(run_id)).generation for run_id in (resumed, asked_for, forced, *over)]
        assert generations == [3, 3, 3, *(2 for _ in over)]
