"""The card of MCP Apps: which clients get it, what its page may do, and what it reads."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client.extension import advertise
from mcp.server.apps import APP_MIME_TYPE, EXTENSION_ID
from mcp_types import TextResourceContents, Tool
from support.model_server import Say, Script
from support.runtime import PRICED, connect, hand_over

from ava_audit.events import ENDINGS
from ava_audit.rows import AWAITING_ANSWER, AWAITING_EXTENSION, HELD, WAITING
from ava_server.core.errors import Refused
from ava_server.core.ids import state_words
from ava_server.mcp_server import card, resources
from ava_server.service.tool_registry import TOOLS

ERAS = pytest.mark.parametrize("mode", ["auto", "legacy"], ids=["stateless era", "handshake era"])
MOST_BYTES = 15_500
METHODS = {
    "ui/initialize",
    "ui/notifications/initialized",
    "ui/notifications/size-changed",
    "ui/notifications/tool-result",
    "ui/notifications/tool-cancelled",
    "ui/notifications/host-context-changed",
    "ui/resource-teardown",
    "resources/read",
}


def test_the_names_are_those_of_the_extension() -> None:
    assert (card.EXTENSION, card.MIME) == (EXTENSION_ID, APP_MIME_TYPE)


@ERAS
async def test_a_client_that_shows_pages_gets_the_card_and_no_tool_that_a_page_may_call(
    tmp_path: Path, mode: str
) -> None:
    async with connect(tmp_path, mode=mode) as (plain, _models):
        without = await listed(plain)
    (tmp_path / "second").mkdir()
    async with host(tmp_path / "second", mode, {"mimeTypes": [card.MIME]}) as client:
        tools = await listed(client)
        assert await uris(client) == ["ava://roles", card.URI]
        again = await listed(client)
    assert tools == again, "the list stays as it is within a connection"
    interfaces = {name: (tool.meta or {}).get("ui") for name, tool in tools.items()}
    closed = {"visibility": ["model"]}
    shown = {"resourceUri": card.URI, **closed}
    assert interfaces == {name: shown if name in ("confirm_spawn", "check_subagent") else closed for name in TOOLS}
    for name, tool in tools.items():  # what else is listed is the same, and what a model reads has not grown
        rest = {key: value for key, value in (tool.meta or {}).items() if key != "ui"}
        assert tool.model_copy(update={"meta": rest or None}) == without[name]


@ERAS
@pytest.mark.parametrize(
    "settings", [None, {}, {"mimeTypes": []}, {"mimeTypes": ["text/html"]}, {"mimeTypes": card.MIME}]
)
async def test_a_client_that_does_not_show_such_pages_hears_nothing_of_the_card(
    tmp_path: Path, mode: str, settings: Any
) -> None:
    declared = [] if settings is None else [advertise(card.EXTENSION, settings)]
    async with connect(tmp_path, mode=mode, extensions=declared) as (client, _models):
        assert not any("ui" in (tool.meta or {}) for tool in (await listed(client)).values())
        assert await uris(client) == ["ava://roles"]


@pytest.mark.parametrize("asks", [True, False])
async def test_what_makes_a_host_ask_stays_beside_the_card(tmp_path: Path, asks: bool) -> None:
    async def never(*_given: Any) -> Any:
        raise AssertionError("nothing is asked here")

    async with host(tmp_path, "legacy", {"mimeTypes": [card.MIME]}, asks=never if asks else None) as client:
        meta = (await listed(client))["confirm_spawn"].meta or {}
    assert meta["anthropic/alwaysLoad"] is True and meta["ui"]["resourceUri"] == card.URI
    assert ("anthropic/requiresUserInteraction" in meta) is not asks


@ERAS
async def test_the_page_is_served_with_the_type_of_the_extension(tmp_path: Path, mode: str) -> None:
    async with host(tmp_path, mode, {"mimeTypes": [card.MIME]}) as client:
        [content] = (await client.read_resource(card.URI)).contents
    assert isinstance(content, TextResourceContents)
    assert (str(content.uri), content.mime_type) == (card.URI, card.MIME)
    assert content.text == card.page() and content.text.startswith("<!doctype html>")
    assert content.meta == {"ui": {"prefersBorder": True}}, "no `csp`: the strictest policy that a host has"


async def test_reading_the_page_needs_the_scope_to_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(_ctx: Any) -> Any:
        raise Refused("this takes the scope read")

    async with host(tmp_path, "legacy", {"mimeTypes": [card.MIME]}) as client:
        monkeypatch.setattr(resources, "access_of", refused)
        with pytest.raises(Exception, match="scope read"):
            await client.read_resource(card.URI)


def test_the_page_is_small_and_reaches_nothing() -> None:
    page = card.page()
    assert len(page.encode()) <= MOST_BYTES
    assert "{{" not in page, "a part was not put in"
    assert not re.search(r"https?:|(?<!ava:)//\w|\bsrc=|\bhref=|\bimport\b|url\(", page)
    assert page.count("<script>") == page.count("</script>") == page.count("<style>") == page.count("</style>") == 1


def test_the_page_knows_no_request_but_reading() -> None:
    script = (Path(card.__file__).parent / "card.js").read_text()
    assert set(re.findall(r'"((?:[a-z]+/)+[a-z-]+)"', script)) == METHODS
    assert not any(tool in script for tool in TOOLS) and "tools/" not in script
    for sink in (
        "innerHTML",
        "outerHTML",
        "insertAdjacent",
        "document.write",
        "eval(",
        "Function(",
        "location",
        "open(",
    ):
        assert sink not in script, sink
    assert "<button" not in card.page() and '"button"' not in script and "<form" not in card.page()


def test_the_page_knows_every_ending() -> None:
    script = (Path(card.__file__).parent / "card.js").read_text()
    [names] = re.findall(r"ENDED = new Set\(\[([^\]]*)\]\)", script)
    assert set(re.findall(r'"(\w+)"', names)) == ENDINGS


@pytest.mark.slow
def test_the_page_calls_states_what_all_surfaces_call_them() -> None:
    script = (Path(card.__file__).parent / "card.js").read_text()
    own = {state: state_words(state) for state in (WAITING, AWAITING_EXTENSION, AWAITING_ANSWER, "superseded")}
    assert dict(re.findall(r'\["(\w+)", "([^"]+)"\]', script)) == own
    assert all(state_words(state) == state.replace("_", " ") for state in (*ENDINGS, HELD) if state not in own), (
        "the page knows no other"
    )


async def test_a_run_as_a_resource_has_its_limits_and_last_steps(tmp_path: Path) -> None:
    notes = [Say("x", calls=[("scratchpad", {"note": f"note {number}"})]) for number in range(7)]
    async with host(tmp_path, "auto", {"mimeTypes": [card.MIME]}, [*notes, hand_over()], config=PRICED) as client:
        given = {"role": "researcher", "task": "prices", "workspace": str(tmp_path / "workspace")}
        made = (await client.call_tool("spawn_subagent", given)).structured_content
        assert made is not None
        uri = f"ava://runs/{made['subagent_id']}"
        before = await read(client, uri)
        assert before["limits"] == made["limits"] and before["state"] == "awaiting_approval"
        approval = {"pending_ids": [made["pending_id"]], "approving": [made["approval_line"]], "wait_seconds": 30}
        answer = (await client.call_tool("confirm_spawn", approval)).structured_content
        assert answer is not None and "limits" not in answer["runs"][0], "a tool's answer has not grown"
        after = await read(client, uri)
    steps = after["untrusted_steps"]
    assert [step["what"] for step in steps[:-1]] == [f"scratchpad note=note {number}" for number in (3, 4, 5, 6)]
    assert steps[-1]["what"].startswith("submit_result") and "success" in steps[0]["outcome"]
    assert after["limits"] == made["limits"] and after["cost_cents"] > 0


async def test_a_free_run_has_no_cost_limit(tmp_path: Path) -> None:
    async with host(tmp_path, "auto", {"mimeTypes": [card.MIME]}) as client:
        given = {"role": "researcher", "task": "prices", "workspace": str(tmp_path / "workspace")}
        made = (await client.call_tool("spawn_subagent", given)).structured_content
        assert made is not None
        assert "max_cost_cents" not in (await read(client, f"ava://runs/{made['subagent_id']}"))["limits"]


@asynccontextmanager
async def host(tmp: Path, mode: str, settings: Any, script: Script = (), **more: Any) -> AsyncGenerator[Client]:
    """A client that declares the extension with these settings."""
    declared = [advertise(card.EXTENSION, settings)]
    async with connect(tmp, script, mode=mode, extensions=declared, **more) as (client, _models):
        yield client


async def listed(client: Client) -> dict[str, Tool]:
    return {tool.name: tool for tool in (await client.list_tools(cache_mode="bypass")).tools}


async def uris(client: Client) -> list[str]:
    return [str(each.uri) for each in (await client.list_resources(cache_mode="bypass")).resources]


async def read(client: Client, uri: str) -> dict[str, Any]:
    [content] = (await client.read_resource(uri, cache_mode="bypass")).contents
    assert isinstance(content, TextResourceContents)
    return dict(json.loads(content.text))
