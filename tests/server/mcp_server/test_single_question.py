"""In a host that would ask too, Ava's question is the only one before a start; where Ava cannot ask, the host does."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp_types import ElicitRequestFormParams, ElicitResult, ErrorData, ToolAnnotations
from support.hosts.elicitation import Answering, Host, Person, accept, cancel, decline_at_once, host
from support.hosts.profiles import CODEX
from support.hosts.real_hosts import SPAWN
from support.http_server import serve_http, token
from support.model_server import run_model_server
from support.runtime import PRICED, connect, hand_over
from support.stdio import MODERN, Wire, make_root, model_env, serve_stdio

CODEX_NAME = "codex-mcp-client"
FORM: Mapping[str, Any] = {"elicitation": {"form": {}}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "capabilities", "asked"),
    [
        (CODEX_NAME, FORM, False),
        (CODEX_NAME, {"elicitation": {}}, False),  # before 2025-11-25, this means forms
        (CODEX_NAME, {"elicitation": {"url": {}}}, True),
        (CODEX_NAME, {}, True),
        ("claude-code", FORM, True),
        ("gateway", FORM, True),
    ],
)
async def test_the_hints_go_only_where_ava_asks_and_the_host_would_too(
    tmp_path: Path, name: str, capabilities: Mapping[str, Any], asked: bool
) -> None:
    async with serve_stdio(make_root(tmp_path / "data"), initialize=False) as wire:
        await hello(wire, capabilities, name)
        assert await listed_to(wire) is asked


async def test_the_hints_stay_in_the_modern_era(tmp_path: Path) -> None:
    """There, each call has capabilities of its own."""
    async with host(tmp_path, "auto", accept(), name=CODEX_NAME) as at:
        assert at.client.protocol_version == MODERN
        assert asks(await hints(at))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_hints_stay_over_http(tmp_path: Path, mode: str) -> None:
    """There, a gateway may show the list of one client to another, and hosts share a server."""
    root = make_root(tmp_path / "data")
    text = token(root, "ana")
    async with serve_http(root) as server, server.client(text, name=CODEX_NAME, mode=mode, ask=Person(accept())) as c:
        [confirm] = [tool for tool in (await c.list_tools()).tools if tool.name == "confirm_spawn"]
        assert confirm.annotations is not None and asks(confirm.annotations)


def breaks(_question: ElicitRequestFormParams) -> ErrorData:
    return ErrorData(code=-32603, message="no screen")


async def never(_question: ElicitRequestFormParams) -> ElicitResult:
    await anyio.sleep_forever()
    raise AssertionError


@pytest.mark.parametrize("answers", [decline_at_once, cancel, breaks, accept(), accept(decision="No"), never])
async def test_without_the_hints_only_the_persons_yes_starts_a_run(tmp_path: Path, answers: Answering) -> None:
    async with host(tmp_path, "legacy", answers, name=CODEX_NAME) as at:
        assert not asks(await hints(at))
        proposed = await at.propose()
        with anyio.move_on_after(2 if answers is never else 30) as waiting:
            assert (await at.confirm(proposed))["status"] == "refused"
        assert waiting.cancelled_caught is (answers is never)
        assert len(at.person.asked) == 1
        await at.nothing_started()


@pytest.mark.parametrize("policy", ["ask", "auto", "human"])
async def test_without_the_hints_each_policy_asks_the_person_or_refuses(tmp_path: Path, policy: str) -> None:
    """The proposal can read the web, so that `auto` does not start it."""
    async with host(tmp_path, "legacy", cancel, name=CODEX_NAME, config=f'approval = "{policy}"\n{PRICED}') as at:
        assert not asks(await hints(at))
        answer = await at.confirm(await at.propose())
        assert answer["status"] == "refused"
        [decision] = answer["decisions"]
        assert ("still waits" in decision["refused_because"]) is (policy == "human"), "it is decided elsewhere"
        assert len(at.person.asked) == (0 if policy == "human" else 1)
        await at.nothing_started()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["says hello again", "calls as in the modern era"])
async def test_a_connection_that_got_no_hints_starts_nothing_once_it_cannot_ask(tmp_path: Path, how: str) -> None:
    root = make_root(tmp_path / "data", config_toml=PRICED)
    with run_model_server([hand_over()]) as models:
        async with serve_stdio(root, initialize=False, env={**model_env(models.base_url), "AVA_MODEL": "test"}) as wire:
            await hello(wire, FORM)
            assert not await listed_to(wire)
            proposed = await wire.tool("spawn_subagent", **SPAWN)
            if how == "says hello again":
                await hello(wire, {})
            else:
                wire.meta = {
                    "io.modelcontextprotocol/protocolVersion": MODERN,
                    "io.modelcontextprotocol/clientInfo": {"name": CODEX_NAME, "version": "0.169.0"},
                    "io.modelcontextprotocol/clientCapabilities": {},
                }
            given = {"pending_ids": [proposed["pending_id"]], "approving": [proposed["approval_line"]]}
            asked = time.monotonic()
            request = await wire.ask("tools/call", {"name": "confirm_spawn", "arguments": given})
            message = await wire.receive()
            while message.get("id") != request and message.get("method") != "elicitation/create":
                assert time.monotonic() < asked + 20
                message = await wire.receive()
            assert "approved" not in str(message.get("result", {}).get("structuredContent", {}).get("status"))
        assert models.requests == []


async def test_a_codex_that_cannot_ask_is_told_to_ask_and_may_start_as_before(tmp_path: Path) -> None:
    async with connect(tmp_path, [hand_over()], config=PRICED, mode="legacy", name=CODEX_NAME) as (client, models):
        at = Host(client, Person(cancel), models, tmp_path / "data", tmp_path / "workspace")
        assert asks(await hints(at)), "it cannot show Ava's question, so that Codex asks"
        proposed = await at.propose()
        assert (await at.confirm(proposed))["status"] == "approved"
        assert (await at.started_once(proposed)).channel == "host_call"


async def hints(at: Host) -> ToolAnnotations:
    """How `confirm_spawn` is listed."""
    [confirm] = [tool for tool in (await at.client.list_tools()).tools if tool.name == "confirm_spawn"]
    assert confirm.annotations is not None
    return confirm.annotations


def host_asks(listed: Mapping[str, Any]) -> bool:
    """Tell whether Codex asks before a tool with these hints, as 0.169 decides it in its mode `auto`."""
    if listed.get("destructiveHint") is True:
        return True
    return not listed.get("readOnlyHint") and (listed.get("destructiveHint", True) or listed.get("openWorldHint", True))


def asks(listed: ToolAnnotations) -> bool:
    return host_asks(listed.model_dump(by_alias=True, exclude_none=True))


async def listed_to(wire: Wire) -> bool:
    """Tell whether the host asks after the list that it gets now."""
    tools = (await wire.request("tools/list"))["result"]["tools"]
    [confirm] = [tool for tool in tools if tool["name"] == "confirm_spawn"]
    return host_asks(confirm["annotations"])


async def hello(wire: Wire, capabilities: Mapping[str, Any], name: str = CODEX_NAME) -> dict[str, Any]:
    """Say who this is in the handshake era."""
    client = {"name": name, "version": "0.169.0"}
    given = {"protocolVersion": CODEX.protocol, "capabilities": capabilities, "clientInfo": client}
    answer = await wire.request("initialize", given)
    await wire.notify("notifications/initialized")
    return answer
