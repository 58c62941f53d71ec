"""`ava serve --http` as several people use it, with the SDK's own client in both protocol eras."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.shared.inbound import X_MCP_HEADER_KEY
from mcp_types import TextResourceContents
from support.http_server import HttpServer, serve_http, token
from support.model_server import ModelServer, Say, Script, run_model_server
from support.stdio import MODERN, MODES, assert_intact, make_root, model_env, read_answer, read_log

from ava_server.config.settings import load_settings
from ava_server.mcp_server.server import build_server

pytestmark = pytest.mark.skipif("sys.platform == 'win32'", reason="signals as POSIX has them")
SETTINGS = "proposal_ttl_s = 600\n"
DONE = Say(calls=[("submit_result", {"summary": "all is said", "output": "the answer"})])


@asynccontextmanager
async def http(
    root: Path, script: Script | list[Say] | None = None, *args: str, settings: str = ""
) -> AsyncGenerator[tuple[HttpServer, ModelServer]]:
    if settings:
        (root / "config.toml").write_text(settings)
    with run_model_server(script or [DONE, DONE, DONE]) as model:
        async with serve_http(root, *args, env=model_env(model.base_url)) as server:
            yield server, model


async def start(client: Client, **spawn: object) -> str:
    """Propose and approve; return the run's id."""
    given = {"role": "custom", "system_prompt": "Look things up.", "task": "Look it up", **spawn}
    proposed, _text = read_answer(await client.call_tool("spawn_subagent", given))
    approving = {"pending_ids": [proposed["pending_id"]], "approving": [proposed["approval_line"]]}
    confirmed, _text = read_answer(await client.call_tool("confirm_spawn", approving))
    assert confirmed["status"] == "approved", confirmed
    run_id: str = proposed["subagent_id"]
    return run_id


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
async def test_propose_approve_run_check_and_read_over_http(tmp_path: Path, mode: str) -> None:
    root = make_root(tmp_path / "data")
    text = token(root, "ana")
    async with http(root) as (server, _model), server.client(text, mode=mode) as client:
        assert (client.protocol_version == "2026-07-28") == (mode == "auto")
        tools = await client.list_tools()
        assert len(tools.tools) == 6
        lookup = build_server(load_settings, transport="http").get_tool_input_schema
        assert lookup is not None and lookup("nobody") is None, "else each call would list, and read, all roles"
        for tool in tools.tools:  # only a schema with arguments that are headers too is of use there
            mirrored = X_MCP_HEADER_KEY in json.dumps(tool.input_schema)
            assert lookup(tool.name) == (tool.input_schema if mirrored else None)
        run_id = await start(client)
        ended, spoken = read_answer(
            await client.call_tool("check_subagent", {"subagent_id": run_id, "wait_seconds": 20})
        )
        assert ended["runs"][0]["untrusted_result"]["output"] == "the answer"
        assert "the answer" in spoken
        entries, _spoken = read_answer(await client.call_tool("read_ava_logs", {}))
        assert any("spawn_subagent" in entry for entry in entries["untrusted_entries"])
        listed = await client.list_resources()
        assert f"ava://runs/{run_id}" in [str(each.uri) for each in listed.resources]
        (content,) = (await client.read_resource(f"ava://runs/{run_id}/transcript")).contents
        assert isinstance(content, TextResourceContents) and "Look it up" in content.text
        (roles,) = (await client.read_resource("ava://roles")).contents
        assert isinstance(roles, TextResourceContents)
        assert "researcher" in [role["name"] for role in json.loads(roles.text)["roles"]]
    (session,) = read_log(root, "SessionStart")
    assert session.content["token"] == "of-ana" and session.content["client"] == "test-host"
    assert session.content["transport"] == "http" and "folder" not in session.content
    assert_intact(root)


@pytest.mark.slow
async def test_token_and_client_name_identify_a_session_even_after_a_restart(
    tmp_path: Path,
) -> None:
    root = make_root(tmp_path / "data")
    ana, ben = token(root, "ana"), token(root, "ben")
    for _start in range(2):
        async with http(root) as (server, _model):
            for text, name, mode in [
                (ana, "one", "legacy"),
                (ana, "one", "auto"),
                (ana, "two", "auto"),
                (ben, "one", "auto"),
            ]:
                async with server.client(text, name=name, mode=mode) as client:
                    await client.call_tool("spawn_subagent", {"role": "nobody", "task": "x"})
            server.signal()
            assert await server.exited() == 0
    starts = [entry.session for entry in read_log(root, "SessionStart")]
    assert len(starts) == 6 and len(set(starts)) == 3
    called = {entry.session for entry in read_log(root, "ToolCall")}
    assert called == set(starts)
    assert len(read_log(root, "SessionEnd")) == 6


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
async def test_a_person_behind_the_client_can_be_asked_over_http(tmp_path: Path, mode: str) -> None:
    from mcp_types import ElicitResult

    asked: list[str] = []

    async def answer(_context: object, params: object) -> ElicitResult:
        asked.append(getattr(params, "message", ""))
        return ElicitResult(action="accept", content={})

    root = make_root(tmp_path / "data")
    text = token(root, "ana")
    async with http(root) as (server, _model), server.client(text, mode=mode, ask=answer) as client:
        await start(client)
    assert len(asked) == 1 and "Look it up" in asked[0]
    (decided,) = read_log(root, "SpawnDecided")
    assert decided.content["channel"] == "elicitation"


@pytest.mark.slow
async def test_two_clients_of_one_user_work_at_the_same_time(tmp_path: Path) -> None:
    root = make_root(tmp_path / "data")
    text = token(root, "ana")
    async with (
        http(root) as (server, _model),
        server.client(text, mode="legacy") as one,
        server.client(text, mode="auto") as two,
    ):
        runs: list[str] = []

        async def go(client: Client) -> None:
            runs.append(await start(client))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(go, one)
            tasks.start_soon(go, two)
        for run_id in runs:  # either may ask after both
            for client in (one, two):
                asked = {"subagent_id": run_id, "wait_seconds": 20}
                found, _spoken = read_answer(await client.call_tool("check_subagent", asked))
                assert found["status"] == "success"


@pytest.mark.slow
@pytest.mark.parametrize("odd", [None, 1.5])
async def test_a_progress_token_that_is_none_does_not_cost_a_call_over_http(tmp_path: Path, odd: object) -> None:
    root = make_root(tmp_path / "data")
    text = token(root, "ana")
    client = {"name": "wire", "version": "1.0"}
    modern = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientInfo": client,
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    accept = {"Accept": "application/json, text/event-stream"}
    async with http(root) as (server, _model):

        async def post(method: str, params: dict[str, Any], meta: dict[str, Any], **headers: str) -> str:
            params = {**params, "_meta": {**meta, "progressToken": odd}}
            message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            answer = await server.post("/mcp", text, json=message, headers={**accept, **headers})
            session.update({key: answer.headers[key] for key in ("mcp-session-id",) if key in answer.headers})
            return answer.text

        session: dict[str, str] = {}
        call = {"name": "check_subagent", "arguments": {}}
        named = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "check_subagent"}
        assert '"status":"list"' in await post("tools/call", call, modern, **named)
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client}
        assert '"protocolVersion":"2025-11-25"' in await post("initialize", hello, {})
        known = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        await server.post("/mcp", text, json=known, headers={**accept, **session})
        assert '"status":"list"' in await post("tools/call", call, {}, **session)
