"""Ava's pages as a person meets them: served on demand over stdio, by the server that asks, and until it ends."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from mcp import Client, MCPError, StdioServerParameters, stdio_client
from mcp.client.context import ClientRequestContext
from mcp_types import ElicitRequestParams, ElicitRequestURLParams, ElicitResult
from support.hosts import pages
from support.hosts.elicitation import approval, end_pages, structured
from support.hosts.real_hosts import priced_model_env
from support.http_server import serve_http, token
from support.model_server import run_model_server
from support.runtime import hand_over
from support.stdio import AVA, environment

from ava_audit.rows import WAITING


@pytest.mark.slow
async def test_two_proposals_over_stdio_are_approved_on_a_page_that_is_served_on_demand(tmp_path: Path) -> None:
    root = pages.root_with_pin(tmp_path)
    said: list[str] = []
    given: dict[str, Any] = {"role": "custom", "system_prompt": "Look.", "max_cost_cents": 50}
    with run_model_server([hand_over(), hand_over()]) as models:

        async def opens(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
            assert isinstance(params, ElicitRequestURLParams)
            assert urlsplit(params.url).hostname == "localhost" and pages.PIN not in params.url + params.message
            said.append(await pages.decide_in_browser(params.url, {"pin": pages.PIN}))
            return ElicitResult(action="accept")

        command = StdioServerParameters(
            command=AVA[0], args=["serve"], env=environment(root.path, **priced_model_env(models))
        )
        try:
            async with Client(stdio_client(command), mode="auto", elicitation_callback=opens) as client:
                made = [structured(await client.call_tool("spawn_subagent", {**given, "task": task})) for task in "ab"]
                assert {each["status"] for each in made} == {WAITING}, made
                call = approval(*made, last="2 subagents together, at most $1.00", wait_seconds=20)
                answer = structured(await client.call_tool("confirm_spawn", call))
                assert answer["status"] == "approved", answer
                assert {run["state"] for run in answer["runs"]} == {"success"} and len(said) == 1
                [one, _other] = await pages.decisions_of(root.path, *made)
                assert one.channel == "browser" and one.group_id == answer["group_id"]
        finally:
            await end_pages(root)


@pytest.mark.slow
async def test_a_persons_token_approves_on_the_page_of_the_server_that_asks(tmp_path: Path, era: str) -> None:
    root = pages.root_with_pin(tmp_path)
    with run_model_server([hand_over()]) as models:
        async with serve_http(root.path, env=priced_model_env(models)) as server:
            host_token, own = token(root.path, "ana"), token(root.path, "ana", "read", "approve", name="browser")

            async def opens(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
                assert isinstance(params, ElicitRequestURLParams) and params.url.startswith(server.base)
                await pages.decide_in_browser(params.url, {"token": own})
                return ElicitResult(action="accept")

            async with server.client(host_token, mode=era, ask=opens) as client:
                given = {"role": "custom", "system_prompt": "Look.", "task": "Look", "max_cost_cents": 20}
                made = structured(await client.call_tool("spawn_subagent", given))
                answer = structured(await client.call_tool("confirm_spawn", approval(made, wait_seconds=20)))
                assert answer["runs"][0]["state"] == "success", answer
        [decided] = await pages.decisions_of(root.path, made)
        assert decided.channel == "browser"


@pytest.mark.slow
async def test_a_server_that_ends_ends_the_wait_for_the_person(tmp_path: Path, era: str) -> None:
    root = pages.root_with_pin(tmp_path)
    with run_model_server([]) as models:
        async with serve_http(root.path, "--drain", "1s", env=priced_model_env(models)) as server:

            async def opens(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
                server.signal()
                return ElicitResult(action="accept")

            made: dict[str, Any] = {}
            try:
                async with server.client(token(root.path, "ana"), mode=era, ask=opens) as client:
                    given = {"role": "custom", "system_prompt": "Look.", "task": "Look", "max_cost_cents": 20}
                    made = structured(await client.call_tool("spawn_subagent", given))
                    with suppress(MCPError, httpx2.HTTPError):
                        answer = structured(await client.call_tool("confirm_spawn", approval(made)))
                        assert answer["status"] in ("refused", "failed"), answer
            except* httpx2.HTTPError:  # the person's answer may find nobody any more
                pass
            assert await server.exited() == 0
        assert await pages.decisions_of(root.path, made) == []
