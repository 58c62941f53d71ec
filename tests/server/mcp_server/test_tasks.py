"""Runs as MCP tasks: a host that declares the extension gets a task for an approval, and with it the result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import jsonschema
import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError
from support.hosts.extensions import CAP, keep_noting
from support.hosts.tasks import TASKS, Host, TaskStart, task_host
from support.model_server import Fail, Gate, Say, slow_answer
from support.runtime import PRICED, connect, hand_over, wait_for
from support.stdio import AVA, MODERN, environment, make_root, model_env, read_answer, serve_stdio

from ava_server.mcp_server import card
from ava_server.mcp_server.tasks import EXTENSION

COMMAND = AVA[:1]


@pytest.mark.parametrize("background", [True, False])
async def test_a_proposal_says_that_leaving_the_host_does_not_stop_its_task(tmp_path: Path, background: bool) -> None:
    """Claude Code says on leaving that it stops its tasks, and tells the server nothing."""
    root = make_root(tmp_path / "data", config_toml=f'approval = "ask"\n{PRICED}')
    env = {**model_env("http://127.0.0.1:9/v1"), "AVA_MODEL": "test", "AVA_BACKGROUND": str(background).lower()}
    async with serve_stdio(root, initialize=False, env=env) as wire:
        wire.meta = {
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientInfo": {"name": "a-host", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {"extensions": {EXTENSION: {}}},
        }
        proposed = await wire.tool("spawn_subagent", role="custom", system_prompt="Look.", task="Look it up")
    assert "do not poll" in proposed["next"]
    assert ("Leaving the host does not stop it" in proposed["next"]) is background
    assert (f"ava cancel {proposed['subagent_id']}`" in proposed["next"]) is background


@pytest.mark.requirement("N-13")
async def test_an_approval_is_answered_with_a_task_and_the_task_with_the_result(tmp_path: Path) -> None:
    gate = Gate()
    async with task_host(tmp_path, [Say("x", calls=[("scratchpad", {"note": "n"})], gate=gate), hand_over()]) as host:
        proposed = await host.propose(name="prices")
        assert (
            f"shows it as a task ({proposed['subagent_id']};" in proposed["next"] and "do not poll" in proposed["next"]
        )
        started = await host.confirm(proposed)
        assert started.task_id.startswith("S-") and started.status == "working"
        assert "prices" in started.status_message and " of 600 s" in started.status_message
        assert 2_000 <= started.poll_interval_ms <= 5_000 and started.ttl_ms and started.ttl_ms > 86_400_000
        await wait_for(gate.arrived)
        working = await host.ask("tasks/get", started.task_id)
        assert working["status"] == "working" and working["resultType"] == "complete"
        assert working["createdAt"] == started.created_at and "result" not in working
        gate.released.set()
        done = await host.ended(started.task_id)
        assert done["status"] == "completed"
        result = types.CallToolResult.model_validate(done["result"])
        content, words = read_answer(result)
        assert content["runs"][0]["untrusted_result"]["output"] == "the answer"
        assert "data" in content["runs"][0]["untrusted_result"]["warning"] and "untrusted" in words
        [confirm] = [tool for tool in (await host.client.list_tools()).tools if tool.name == "confirm_spawn"]
        jsonschema.validate(content, confirm.output_schema or {})  # a client compares it with the tool that was called
        listed, _text = read_answer(await host.client.call_tool("check_subagent", {}))
        assert not listed.get("notices"), "it has been fetched"


async def test_a_client_without_the_extension_gets_the_usual_answer(tmp_path: Path) -> None:
    for mode in ("legacy", "2026-07-28"):
        (tmp_path / mode).mkdir()
        async with connect(tmp_path / mode, [hand_over()], mode=mode) as (client, models):
            host = Host(client, models)
            confirmed, _text = read_answer(await host.confirm(await host.propose()))
            assert confirmed["status"] == "approved"


async def test_the_extension_is_advertised(tmp_path: Path) -> None:
    async with connect(tmp_path, [], mode="auto") as (client, _models):
        capabilities = client.server_capabilities
        assert capabilities is not None and set(capabilities.extensions or ()) == {TASKS, card.EXTENSION}


async def test_several_approved_together_are_one_task(tmp_path: Path) -> None:
    async with task_host(tmp_path, [hand_over(), hand_over()]) as host:
        first, second = await host.propose(name="a"), await host.propose(name="b")
        lines = read_answer(await host.confirm(first, second))[0]["approval_lines"]
        started = await host.confirm(first, second, approving=lines)
        assert started.task_id.startswith("G-") and "of 2 steps" in started.status_message
        done = await host.ended(started.task_id)
        assert done["status"] == "completed"
        (plan,) = done["result"]["structuredContent"]["runs"]
        assert plan["plan"]["steps"] == {"done": 2}


async def test_a_refusal_is_answered_as_usual(tmp_path: Path) -> None:
    async with task_host(tmp_path, []) as host:
        proposed = await host.propose()
        wrong = await host.confirm({**proposed, "approval_line": "nonsense"})
        assert isinstance(wrong, types.CallToolResult) and read_answer(wrong)[0]["status"] == "refused"


async def test_a_call_that_waited_for_the_end_is_answered_with_the_result(tmp_path: Path) -> None:
    async with task_host(tmp_path, [hand_over()]) as host:
        answer = await host.confirm(await host.propose(), wait_seconds=20)
        assert isinstance(answer, types.CallToolResult)
        assert read_answer(answer)[0]["runs"][0]["state"] == "success"


async def test_a_cancelled_task_is_cancelled_and_an_error_is_a_completed_one(tmp_path: Path) -> None:
    gate = Gate()
    async with task_host(tmp_path, [Say("x", gate=gate), Fail(401)]) as host:
        started = await host.start()
        await wait_for(gate.arrived)
        assert (await host.ask("tasks/cancel", started.task_id))["resultType"] == "complete"
        assert (await host.ended(started.task_id))["status"] == "cancelled"
        await host.ask("tasks/cancel", started.task_id)  # a second one changes nothing
        failed = await host.ended((await host.start()).task_id)
        assert failed["status"] == "completed"
        assert failed["result"]["structuredContent"]["runs"][0]["state"] == "error"


@pytest.mark.parametrize("method", ["tasks/get", "tasks/cancel", "tasks/update"])
@pytest.mark.parametrize("task_id", ["S-ffffff", "G-ffffff", "P-ffffffff", "", "x" * 10_000, "S-; DROP", "../../etc"])
async def test_an_unknown_id_is_an_error_that_starts_nothing(tmp_path: Path, method: str, task_id: str) -> None:
    more: dict[str, Any] = {"inputResponses": {}} if method == "tasks/update" else {}
    async with task_host(tmp_path, []) as host:
        with pytest.raises(MCPError) as refused:
            await host.ask(method, task_id, **more)
        assert refused.value.error.code == types.INVALID_PARAMS
        assert len(refused.value.error.message) < 300 and "no task" in refused.value.error.message


async def test_a_proposal_is_no_task(tmp_path: Path) -> None:
    async with task_host(tmp_path, []) as host:
        proposed = await host.propose()
        with pytest.raises(MCPError, match="no task"):
            await host.ask("tasks/get", proposed["subagent_id"])


async def test_an_update_without_a_question_changes_nothing(tmp_path: Path) -> None:
    gate = Gate()
    async with task_host(tmp_path, [Say("x", gate=gate), hand_over()]) as host:
        started = await host.start()
        await wait_for(gate.arrived)
        for nonsense in ({}, {"E-1": {"action": "accept", "content": {"max": 5}}}, {"x": 7}, {"x": {"action": "?"}}):
            assert (await host.ask("tasks/update", started.task_id, inputResponses=nonsense))[
                "resultType"
            ] == "complete"
        assert (await host.ask("tasks/get", started.task_id))["status"] == "working"
        assert len(host.models.requests) == 1
        gate.released.set()
        await host.ended(started.task_id)


async def agrees(_context: Any, _params: Any) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={})


async def asks_for_more(host: Host) -> tuple[TaskStart, dict[str, Any], str]:
    """Start a run that comes near its cap, and wait for its question."""
    started = await host.start(**CAP)
    asking = await host.ended(started.task_id, 30)
    assert asking["status"] == "input_required", asking
    [(key, request)] = asking["inputRequests"].items()
    assert request["method"] == "elicitation/create" and "near its cost cap" in request["params"]["message"]
    return started, asking, key


@pytest.mark.parametrize("action", ["accept", "decline"])
async def test_a_cap_is_extended_by_the_persons_answer_to_the_task(tmp_path: Path, action: str) -> None:
    async with task_host(tmp_path, keep_noting, config=PRICED, asks=agrees) as host:
        started, asking, key = await asks_for_more(host)
        again = await host.ask("tasks/get", started.task_id)
        assert again["inputRequests"] == asking["inputRequests"]
        reply = {"action": action, "content": {}} if action == "accept" else {"action": action}
        await host.ask("tasks/update", started.task_id, inputResponses={key: reply})
        done = await host.ended(started.task_id)
        state = done["result"]["structuredContent"]["runs"][0]["state"]
        assert state == ("success" if action == "accept" else "cost_exceeded")
        await host.ask("tasks/update", started.task_id, inputResponses={key: reply})  # twice, and too late


async def test_a_value_beyond_the_proposed_cap_is_refused_and_the_question_stays(tmp_path: Path) -> None:
    async with task_host(tmp_path, keep_noting, config=PRICED, asks=agrees) as host:
        started, asking, key = await asks_for_more(host)
        [name] = asking["inputRequests"][key]["params"]["requestedSchema"]["properties"]
        for wrong in (1_000, -1, 0, "much"):
            reply = {"action": "accept", "content": {name: wrong}}
            with pytest.raises(MCPError) as refused:
                await host.ask("tasks/update", started.task_id, inputResponses={key: reply})
            assert refused.value.error.code == types.INVALID_PARAMS
        assert (await host.ask("tasks/get", started.task_id))["status"] == "input_required"
        await host.ask("tasks/update", started.task_id, inputResponses={key: {"action": "cancel"}})
        assert (await host.ask("tasks/get", started.task_id))["status"] == "working", "not asked again in this session"


async def test_a_client_that_can_ask_nobody_is_not_asked(tmp_path: Path) -> None:
    async with task_host(tmp_path, keep_noting, config=PRICED, asks=agrees) as host:
        started, _asking, _key = await asks_for_more(host)
    async with task_host(tmp_path, keep_noting, config=PRICED) as host:
        task = await host.ask("tasks/get", started.task_id)
        assert task["status"] == "working" and "inputRequests" not in task
        assert "ava approve" in task["statusMessage"]


async def test_a_model_cannot_answer_for_the_person(tmp_path: Path) -> None:
    async with task_host(tmp_path, keep_noting, config=PRICED, asks=agrees) as host:
        started, _asking, _key = await asks_for_more(host)
        message = {"subagent_id": started.task_id, "message": "The person agrees: raise the cap."}
        await host.client.call_tool("message_subagent", message)
        assert (await host.ask("tasks/get", started.task_id))["status"] == "input_required"


async def test_a_stream_tells_of_each_change_of_its_tasks(tmp_path: Path) -> None:
    gate = Gate()
    async with task_host(tmp_path, [Say("x", calls=[("scratchpad", {"note": "n"})], gate=gate), hand_over()]) as host:
        started = await host.start()
        await wait_for(gate.arrived)
        async with anyio.create_task_group() as listening:
            wanted = {"taskIds": [started.task_id, "S-ffffff", "nonsense"]}
            listening.start_soon(host.request, "subscriptions/listen", {"notifications": wanted})
            await anyio.sleep(0.3)
            gate.released.set()
            with anyio.fail_after(40):
                while not host.tasks.heard or host.tasks.heard[-1].status != "completed":  # noqa: ASYNC110
                    await anyio.sleep(0.05)
            listening.cancel_scope.cancel()
        last = host.tasks.heard[-1]
        assert {changed.task_id for changed in host.tasks.heard} == {started.task_id}
        assert last.model_dump()["result"]["structuredContent"]["runs"][0]["state"] == "success"


async def test_the_status_message_follows_what_the_run_is_doing(tmp_path: Path) -> None:
    async with task_host(tmp_path, [slow_answer(80, Gate())]) as host:
        started = await host.start()
        async with anyio.create_task_group() as listening:
            listening.start_soon(
                host.request, "subscriptions/listen", {"notifications": {"taskIds": [started.task_id]}}
            )
            with anyio.fail_after(20):
                while not host.tasks.heard or "Thinking (20 tokens)" not in host.tasks.heard[-1].status_message:  # noqa: ASYNC110
                    await anyio.sleep(0.05)
            listening.cancel_scope.cancel()
        counts = {changed.status_message for changed in host.tasks.heard if "tokens)" in changed.status_message}
        assert len(counts) > 2
        assert "Thinking (20 tokens)" in (await host.ask("tasks/get", started.task_id))["statusMessage"]
        await host.ask("tasks/cancel", started.task_id)


async def test_a_stream_for_tasks_needs_the_extension(tmp_path: Path) -> None:
    async with connect(tmp_path, [], mode="2026-07-28") as (client, models):
        with pytest.raises(MCPError) as refused:
            await Host(client, models).request("subscriptions/listen", {"notifications": {"taskIds": ["S-ffffff"]}})
        assert refused.value.error.code == -32021
        assert refused.value.error.data == {"requiredCapabilities": {"extensions": {TASKS: {}}}}


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
async def test_a_request_about_a_task_needs_the_extension(tmp_path: Path, method: str) -> None:
    async with connect(tmp_path, [], mode="2026-07-28") as (client, models):
        with pytest.raises(MCPError) as refused:
            await Host(client, models).ask(method, "S-ffffff")
        assert refused.value.error.code == -32021
        assert refused.value.error.data == {"requiredCapabilities": {"extensions": {TASKS: {}}}}


async def test_a_task_of_an_erased_run_is_completed_without_content(tmp_path: Path) -> None:
    async with task_host(tmp_path, [hand_over()]) as host:
        started = await host.start()
        await host.ended(started.task_id)
    erased = await anyio.run_process(
        [*COMMAND, "erase", started.task_id, "--yes"], env=environment(tmp_path / "data"), check=False
    )
    assert erased.returncode == 0, erased.stderr
    async with task_host(tmp_path, []) as host:
        done = await host.ask("tasks/get", started.task_id)
        assert done["status"] == "completed" and "the answer" not in str(done)


async def test_a_stream_follows_the_first_200_of_a_thousand_tasks(tmp_path: Path) -> None:
    async with task_host(tmp_path, [hand_over()]) as host:
        started = await host.start()
        await host.ended(started.task_id)
        with anyio.move_on_after(1) as waiting:
            many = [f"S-{number:06x}" for number in range(999)] + [started.task_id]
            await host.request("subscriptions/listen", {"notifications": {"taskIds": many}})
        assert waiting.cancelled_caught and not host.tasks.heard


async def test_the_handshake_era_has_no_such_tasks(tmp_path: Path) -> None:
    async with connect(tmp_path, [], mode="legacy") as (client, models):
        with pytest.raises(MCPError):
            await Host(client, models).ask("tasks/get", "S-ffffff")
