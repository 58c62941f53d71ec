"""Two users against each other, over real HTTP: what is one's does not exist for the other, in the very same words.

What is tried is taken from the registries: a tool, a method or an address that is new fails here until it is tried too.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from mcp.shared.exceptions import MCPError
from support.http_server import serve_http, token
from support.network.two_users import CUSTOM, NEVER, SECRET, TRIES, open_two_users
from support.sample import sample
from support.stdio import MODES, make_root, read_answer, read_log

from ava_server.config.settings import load_settings
from ava_server.mcp_server.server import build_server
from ava_server.service.tool_registry import TOOLS


@pytest.mark.requirement("S4-21")
@pytest.mark.parametrize("mode", sample(MODES, 1))
async def test_tools_treat_runs_of_another_user_as_nonexistent(tmp_path: Path, mode: str) -> None:
    async with open_two_users(tmp_path / "data", mode) as both:
        listed = await both.ana.list_tools()
        assert {tool.name for tool in listed.tools} == set(TRIES) == set(TOOLS), "a tool that nobody has tried"
        for tool, attempt in TRIES.items():
            assert tool
            await attempt(both)


@pytest.mark.slow
@pytest.mark.requirement("S4-21")
@pytest.mark.parametrize("mode", MODES)
async def test_resources_of_another_user_are_neither_readable_nor_listed(tmp_path: Path, mode: str) -> None:
    async with open_two_users(tmp_path / "data", mode) as both:
        templates = (await both.ana.list_resource_templates()).resource_templates
        tried = {
            "ava://runs/{id}": ("ava://runs/{id}",),
            "ava://runs/{id}/transcript": ("ava://runs/{id}/transcript",),
            "ava://runs/{id}/artifacts/{name}": ("ava://runs/{id}/artifacts/notes.txt", "ava://runs/{id}/artifacts/x"),
        }
        assert {str(each.uri_template) for each in templates} == set(tried), "an address that nobody has tried"
        for addresses in tried.values():
            for address in addresses:
                said: list[str] = []
                for run in (both.run, NEVER["S"]):
                    with pytest.raises(MCPError) as refused:
                        await both.ana.read_resource(address.format(id=run))
                    said.append(json.dumps(refused.value.error.model_dump(mode="json")).replace(run, "ID"))
                assert said[0] == said[1]
        listed = [str(each.uri) for each in (await both.ana.list_resources()).resources]
        assert listed == ["ava://roles"]


async def test_every_server_method_has_a_decision_on_ownership(tmp_path: Path) -> None:
    server = build_server(lambda: load_settings(tmp_path, env={}), transport="http")
    of_the_protocol = {"ping", "server/discover", "logging/setLevel", "initialize", "notifications/initialized"}
    tried = {"tools/call", "resources/list", "resources/read"}
    tried |= {"resources/subscribe", "resources/unsubscribe", "subscriptions/listen"}  # in test_http_updates.py
    tried |= {"completion/complete"}  # there and in test_prompts.py
    tried |= {"tasks/get", "tasks/update", "tasks/cancel"}  # in test_http_tasks.py
    the_same_for_all = {"tools/list", "resources/templates/list", "prompts/list", "prompts/get"}
    names = {*server._request_handlers, *server._notification_handlers}
    assert names - of_the_protocol == tried | the_same_for_all, "is what is new the same for everybody?"


@pytest.mark.slow
@pytest.mark.requirement("S4-21")
@pytest.mark.parametrize("mode", MODES)
async def test_an_auditor_reads_everything_and_changes_nothing(tmp_path: Path, mode: str) -> None:
    root = tmp_path / "data"
    async with open_two_users(root, mode) as both:
        text = token(root, "eve", "audit", "spawn", name="eve")
        fetched = len([entry for entry in read_log(root, "ToolResult") if entry.run_id == both.run])
        async with both.server.client(text, mode=mode) as eve:
            for given in ({"subagent_id": both.run}, {"group_id": both.group}):
                found, spoken = read_answer(await eve.call_tool("check_subagent", given))
                assert SECRET in json.dumps(found) and "[ben]" in spoken
            for given in ({}, {"search": SECRET}, {"subagent_id": both.run}):
                found, spoken = read_answer(await eve.call_tool("read_ava_logs", given))
                assert "[ben]" in spoken
            (content,) = (await eve.read_resource(f"ava://runs/{both.run}/artifacts/notes.txt")).contents
            assert SECRET in getattr(content, "text", "")
            for tool, arguments in (
                ("cancel_subagent", {"subagent_id": both.waiting_run}),
                ("cancel_subagent", {"pending_id": both.pending}),
                ("message_subagent", {"subagent_id": both.run, "message": "x"}),
                ("confirm_spawn", {"pending_ids": [both.pending], "decision": "reject"}),
                ("spawn_subagent", {**CUSTOM, "context_from": [both.run]}),
                ("spawn_subagent", {"role": "researcher", "task": "x", "retry_of": both.run}),
            ):
                result = await eve.call_tool(tool, arguments)
                assert SECRET not in json.dumps([result.structured_content, result.content[0].model_dump()]), tool
        assert len([entry for entry in read_log(root, "ToolResult") if entry.run_id == both.run]) == fetched


@pytest.mark.slow
async def test_a_session_of_one_user_does_not_work_for_another(tmp_path: Path) -> None:
    """In the handshake era a session has an id: it is worth nothing with another token."""
    root = tmp_path / "data"
    make_root(root)
    of_ben, anas = token(root, "ben"), token(root, "ana")
    hello = {
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
    }  # fmt: skip
    accept = {"Accept": "application/json, text/event-stream"}
    async with serve_http(root) as server:
        opened = await server.post("/mcp", of_ben, json=hello, headers=accept)
        session = opened.headers["mcp-session-id"]
        listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
        own = await server.post("/mcp", of_ben, json=listing, headers={**accept, "Mcp-Session-Id": session})
        assert own.status_code == 200
        said: list[tuple[int, str]] = []
        for given in (session, "0" * 32):
            for method in ("POST", "GET", "DELETE"):
                body = {"json": listing} if method == "POST" else {}
                other = await server.request(method, "/mcp", anas, headers={**accept, "Mcp-Session-Id": given}, **body)
                said.append((other.status_code, re.sub(given, "ID", other.text)))
        assert said[:3] == said[3:] and {status for status, _text in said} == {404}
