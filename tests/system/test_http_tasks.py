"""Tasks over HTTP: foreign ids, servers that are killed and restarted, several servers on one data root."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from support.http_server import BOTH, META, HttpServer, serve_http, token
from support.model_server import Gate, Say, run_model_server
from support.runtime import wait_for
from support.stdio import MODERN, assert_intact, make_root, model_env

pytestmark = pytest.mark.slow

TASKS = "io.modelcontextprotocol/tasks"
CLIENT = {**META, "io.modelcontextprotocol/clientCapabilities": {"extensions": {TASKS: {}}}}
DONE = Say(calls=[("submit_result", {"summary": "done", "output": "twelve cents"})])
SPAWN = {"role": "custom", "system_prompt": "Look.", "task": "Look it up"}
UNKNOWN = -32602


async def test_a_task_survives_a_kill_and_a_restart_of_its_server(tmp_path: Path) -> None:
    root = make_root(tmp_path / "data")
    text = token(root, "ana")
    gate = Gate()
    with run_model_server([Say("lost", gate=gate), DONE]) as model:
        async with serve_http(root, env=model_env(model.base_url)) as server:
            task_id = await start(server, text)
            await wait_for(gate.arrived)
            server.signal(signal.SIGKILL)
            await server.exited()
        async with serve_http(root, env=model_env(model.base_url)) as server:
            content = await completed(server, text, task_id)
            assert content["runs"][0]["untrusted_result"]["output"] == "twelve cents"
            again = await completed(server, text, task_id)
            assert again["runs"] == content["runs"]
    assert_intact(root)


async def test_any_server_of_the_data_root_answers_for_a_task(tmp_path: Path) -> None:
    root = make_root(tmp_path / "data")
    text = token(root, "ana")
    gate = Gate()
    with run_model_server([Say("x", gate=gate), DONE]) as model:
        env = model_env(model.base_url)
        async with serve_http(root, env=env) as first, serve_http(root, env=env) as second:
            task_id = await start(first, text)
            await wait_for(gate.arrived)
            assert (await task(second, text, task_id))["result"]["status"] == "working"
            assert "result" in await task(second, text, task_id, "tasks/cancel")
            with anyio.fail_after(20):
                while (await task(first, text, task_id))["result"]["status"] != "cancelled":  # noqa: ASYNC110
                    await anyio.sleep(0.1)


async def test_a_foreign_task_does_not_exist(tmp_path: Path) -> None:
    root = make_root(tmp_path / "data")
    anas, bens = token(root, "ana"), token(root, "ben")
    gate = Gate()
    with run_model_server([Say("x", gate=gate), DONE]) as model:
        async with serve_http(root, env=model_env(model.base_url)) as server:
            task_id = await start(server, bens)
            await wait_for(gate.arrived)
            never = "S-0dd0dd"
            for method, more in (
                ("tasks/get", {}),
                ("tasks/cancel", {}),
                ("tasks/update", {"inputResponses": {"E-00000000": {"action": "accept", "content": {}}}}),
            ):
                foreign, unknown = [await task(server, anas, each, method, **more) for each in (task_id, never)]
                assert foreign["error"]["code"] == unknown["error"]["code"] == UNKNOWN
                assert foreign["error"]["message"].replace(task_id, never) == unknown["error"]["message"]
            assert (await task(server, bens, task_id))["result"]["status"] == "working", "nothing was cancelled"
            gate.released.set()


async def test_a_header_that_names_another_task_is_refused(tmp_path: Path) -> None:
    root = make_root(tmp_path / "data")
    text = token(root, "ana")
    gate = Gate()
    with run_model_server([Say("x", gate=gate), DONE]) as model:
        async with serve_http(root, env=model_env(model.base_url)) as server:
            task_id = await start(server, text)
            await wait_for(gate.arrived)
            for method in ("tasks/get", "tasks/update", "tasks/cancel"):
                refused = await asked(server, text, method, {"taskId": task_id}, **{"Mcp-Name": "S-0dd0dd"})
                assert refused["error"]["code"] == -32020, refused
            assert (await task(server, text, task_id))["result"]["status"] == "working"
            gate.released.set()


async def test_a_token_without_the_scope_cannot_cancel_or_answer(tmp_path: Path) -> None:
    root = make_root(tmp_path / "data")
    anas, reads = token(root, "ana"), token(root, "ana", "read", name="reads")
    gate = Gate()
    with run_model_server([Say("x", gate=gate), DONE]) as model:
        async with serve_http(root, env=model_env(model.base_url)) as server:
            task_id = await start(server, anas)
            await wait_for(gate.arrived)
            assert (await task(server, reads, task_id))["result"]["status"] == "working"
            for method in ("tasks/cancel", "tasks/update"):
                refused = await task(server, reads, task_id, method, inputResponses={})
                assert "lacks the scope spawn" in refused["error"]["message"], refused
            assert (await task(server, reads, task_id))["result"]["status"] == "working"
            gate.released.set()


async def asked(server: HttpServer, text: str, method: str, params: dict[str, Any], **more: str) -> dict[str, Any]:
    """One request of the stateless era, from a client with tasks; its whole answer. `more` changes its headers."""
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": CLIENT}}
    named = str(params.get("taskId") or params["name"])
    headers = {**BOTH, "MCP-Protocol-Version": MODERN, "Mcp-Method": method, "Mcp-Name": named, **more}
    answer: dict[str, Any] = (await server.post("/mcp", text, json=body, headers=headers)).json()
    return answer


async def task(server: HttpServer, text: str, task_id: str, method: str = "tasks/get", **more: Any) -> dict[str, Any]:
    return await asked(server, text, method, {"taskId": task_id, **more})


async def start(server: HttpServer, text: str) -> str:
    async def call(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        result: dict[str, Any] = (await asked(server, text, "tools/call", {"name": tool, "arguments": arguments}))[
            "result"
        ]
        return result

    proposed = (await call("spawn_subagent", SPAWN))["structuredContent"]
    line = {"pending_ids": [proposed["pending_id"]], "approving": [proposed["approval_line"]]}
    started = await call("confirm_spawn", line)
    assert started["resultType"] == "task" and started["taskId"] == proposed["subagent_id"], started
    return str(started["taskId"])


async def completed(server: HttpServer, text: str, task_id: str) -> dict[str, Any]:
    with anyio.fail_after(30):
        while (now := (await task(server, text, task_id))["result"])["status"] == "working":  # noqa: ASYNC110
            await anyio.sleep(0.1)  # as a client does
    assert now["status"] == "completed", now
    content: dict[str, Any] = now["result"]["structuredContent"]
    return content
