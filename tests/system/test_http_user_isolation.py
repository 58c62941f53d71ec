"""Two users against each other, over real HTTP: what is one's does not exist for the other, in the very same words.

What is tried is taken from the registries: a tool, a method or an address that is new fails here until it is tried too.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from support.http_server import HttpServer, serve_http, token
from support.model_server import Say, run_model_server
from support.sample import sample
from support.stdio import MODES, make_root, model_env, read_answer, read_log, state_of

from ava_server.config.settings import load_settings
from ava_server.mcp_server.server import build_server
from ava_server.service.tools import TOOLS

SECRET = "marmalade"
"""What only the owner's words hold: in no answer to anybody else."""
SAVES = Say(calls=[("save_artifact", {"name": "notes.txt", "content": f"{SECRET} in a file"})])
HANDS_OVER = Say(calls=[("submit_result", {"summary": f"{SECRET} found", "output": f"the {SECRET}"})])


NEVER = {"S": "S-0dd0dd", "P": "P-0dd0dd0d", "G": "G-0dd0dd0"}
"""Ids that never were."""


@dataclass
class Two:
    """Ben, who owns everything, and Ana, who tries to reach it."""

    server: HttpServer
    root: Path
    ana: Client
    run: str
    pending: str
    group: str
    waiting_run: str

    def ids(self, form: str) -> tuple[str, str]:
        """An id of Ben's, and one that never was."""
        return {"S": self.run, "P": self.pending, "G": self.group, "W": self.waiting_run}[form], NEVER[
            "S" if form == "W" else form
        ]

    async def same(self, tool: str, make: Callable[[str], dict[str, Any]], form: str) -> None:
        """Call a tool with an id of Ben's and with one that never was: both answers are the same but for the id."""
        own, never = self.ids(form)
        answers: list[str] = []
        for given in (own, never):
            result = await self.ana.call_tool(tool, make(given))
            both = json.dumps([result.structured_content, result.content[0].model_dump(), result.is_error])
            assert SECRET not in both, f"{tool} leaks"
            answers.append(both.replace(given, "ID"))
        assert answers[0] == answers[1], f"{tool} tells {own} from {never}"


Try = Callable[[Two], Awaitable[None]]
CUSTOM = {"role": "researcher", "task": "x"}


@pytest.mark.requirement("S4-21")
@pytest.mark.parametrize("mode", sample(MODES, 1))
async def test_tools_treat_runs_of_another_user_as_nonexistent(tmp_path: Path, mode: str) -> None:
    async with two(tmp_path / "data", mode) as both:
        listed = await both.ana.list_tools()
        assert {tool.name for tool in listed.tools} == set(TRIES) == set(TOOLS), "a tool that nobody has tried"
        for tool, attempt in TRIES.items():
            assert tool
            await attempt(both)


@pytest.mark.slow
@pytest.mark.requirement("S4-21")
@pytest.mark.parametrize("mode", MODES)
async def test_resources_of_another_user_are_neither_readable_nor_listed(tmp_path: Path, mode: str) -> None:
    async with two(tmp_path / "data", mode) as both:
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
    async with two(root, mode) as both:
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


def bens(request: dict[str, Any]) -> Say:
    """A model that saves a file, and then hands its result over, in however many runs at once."""
    return HANDS_OVER if any(message.get("role") == "tool" for message in request["messages"]) else SAVES


@asynccontextmanager
async def two(root: Path, mode: str) -> AsyncGenerator[Two]:
    make_root(root)
    of_ben, anas = token(root, "ben"), token(root, "ana", "spawn", "read", name="of-ana")
    with run_model_server(bens) as model:
        async with serve_http(root, env=model_env(model.base_url)) as server, server.client(of_ben, mode=mode) as ben:
            spawn = {"role": "researcher", "task": f"Find the {SECRET}", "name": f"{SECRET}-run", "task_id": "T-1"}
            proposals: list[dict[str, Any]] = []
            for number in range(2):
                given = {**spawn, "task_id": f"T-{number}"}
                proposals.append(read_answer(await ben.call_tool("spawn_subagent", given))[0])
            first = {
                "pending_ids": [each["pending_id"] for each in proposals],
                "approving": [each["approval_line"] for each in proposals],
            }
            refused = read_answer(await ben.call_tool("confirm_spawn", first))[0]
            approved = read_answer(
                await ben.call_tool("confirm_spawn", {**first, "approving": refused["approval_lines"]})
            )[0]
            group = approved["group_id"]
            ended = read_answer(await ben.call_tool("check_subagent", {"group_id": group, "wait_seconds": 30}))[0]
            assert {run["state"] for run in ended["runs"]} == {"success"}
            waits = read_answer(await ben.call_tool("spawn_subagent", {**spawn, "task_id": "T-9"}))[0]
            async with server.client(anas, mode=mode) as ana:
                yield Two(
                    server, root, ana, proposals[0]["subagent_id"], waits["pending_id"], group, waits["subagent_id"]
                )
                # Nothing of what Ana tried has changed anything of Ben's.
                assert state_of(root, waits["subagent_id"]) == "awaiting_approval"
                assert not [entry for entry in read_log(root, "UserMessage") if entry.content.get("kind") == "message"]
                again = read_answer(
                    await ben.call_tool("check_subagent", {"subagent_id": proposals[0]["subagent_id"]})
                )[0]
                assert SECRET in json.dumps(again)


async def _spawn(two: Two) -> None:
    for form in "SW":
        await two.same("spawn_subagent", lambda one: {**CUSTOM, "context_from": [one]}, form)
        await two.same("spawn_subagent", lambda one: {"role": "researcher", "task": "x", "retry_of": one}, form)
    await two.same("spawn_subagent", lambda one: {**CUSTOM, "context_from": [one]}, "P")
    await two.same("spawn_subagent", lambda one: {**CUSTOM, "retry_of": one}, "P")
    # The task_id and the very words of another's: a proposal of one's own, and not theirs.
    given = {"role": "researcher", "task": "Find the x", "task_id": "T-9"}
    own, _text = read_answer(await two.ana.call_tool("spawn_subagent", given))
    assert own["pending_id"] != two.pending and own["subagent_id"] not in (two.run, two.waiting_run)


async def _confirm(two: Two) -> None:
    for decision in ("approve", "reject"):
        for form in "PWS":
            await two.same(
                "confirm_spawn",
                lambda one, decision=decision: {"pending_ids": [one], "approving": ["x"], "decision": decision},  # type: ignore[misc]
                form,
            )
    await two.same("confirm_spawn", lambda one: {"pending_ids": [one, "P-0dd0dd00"], "approving": ["x", "y"]}, "P")


async def _check(two: Two) -> None:
    for form in "SWP":
        await two.same("check_subagent", lambda one: {"subagent_id": one}, form)
    await two.same("check_subagent", lambda one: {"group_id": one}, "G")
    everything, text = read_answer(await two.ana.call_tool("check_subagent", {}))
    assert SECRET not in json.dumps(everything) + text and two.run not in text
    assert not everything.get("notices")


async def _message(two: Two) -> None:
    for form in "SWP":
        await two.same("message_subagent", lambda one: {"subagent_id": one, "message": "hello"}, form)


async def _cancel(two: Two) -> None:
    for form in "SW":
        await two.same("cancel_subagent", lambda one: {"subagent_id": one}, form)
    await two.same("cancel_subagent", lambda one: {"pending_id": one}, "P")
    await two.same("cancel_subagent", lambda one: {"group_id": one}, "G")


async def _logs(two: Two) -> None:
    for form in "SWP":
        await two.same("read_ava_logs", lambda one: {"subagent_id": one}, form)
    sessions = {entry.session for entry in read_log(two.root, "ToolCall")}
    asked: list[dict[str, Any]] = [
        {}, {"search": SECRET}, {"types": ["message", "tool", "spawn", "complete"], "last_n": 500}, {"search": two.run},
        *({"session": session, "last_n": 500, "types": ["message", "tool", "spawn"]} for session in sessions),
    ]  # fmt: skip
    for given in asked:
        found, text = read_answer(await two.ana.call_tool("read_ava_logs", given))
        assert "Find the" not in text and f"{SECRET} found" not in json.dumps(found), given


TRIES: dict[str, Try] = {
    "spawn_subagent": _spawn,
    "confirm_spawn": _confirm,
    "check_subagent": _check,
    "message_subagent": _message,
    "cancel_subagent": _cancel,
    "read_ava_logs": _logs,
}
