"""Two users follow their runs over one HTTP server, in both eras: each hears of their own alone."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.client.subscriptions import ResourcesListChanged, ResourceUpdated, ServerEvent
from mcp_types import ResourceTemplateReference
from support.hosts.updates import Ear, follow_updates
from support.http_server import HttpServer, serve_http, token

TASK = "Read https://example.org/ and say what it is."


@asynccontextmanager
async def listening(server: HttpServer, root: Path, user: str, mode: str) -> AsyncGenerator[tuple[Client, Ear]]:
    ear = Ear()
    async with server.client(token(root, user), mode=mode, hears=ear.on_message) as client:
        yield client, ear


async def propose(client: Client) -> str:
    made = (await client.call_tool("spawn_subagent", {"role": "web_crawler", "task": TASK})).structured_content
    assert made is not None and made["status"] == "awaiting_approval", made
    return str(made["subagent_id"])


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "legacy"], ids=["stateless era", "handshake era"])
async def test_each_user_receives_updates_of_their_own_runs_only(tmp_path: Path, mode: str) -> None:
    root = tmp_path / "data"
    env = {"AVA_MODEL_BASE_URL": "http://127.0.0.1:9", "AVA_MODEL": "none"}  # nothing is approved, so nobody is asked
    async with (
        serve_http(root, env=env) as server,
        listening(server, root, "ana", mode) as (ana, her_ear),
        listening(server, root, "ben", mode) as (ben, his_ear),
    ):
        hers, his = await propose(ana), await propose(ben)
        template: Any = ResourceTemplateReference(uri="ava://runs/{id}")
        offered = await ben.complete(template, {"name": "id", "value": ""})
        assert offered.completion.values == [his]
        async with (
            follow_updates(ana, her_ear, mode, f"ava://runs/{hers}"),
            follow_updates(ben, his_ear, mode, f"ava://runs/{his}", refused=[f"ava://runs/{hers}"]),
        ):
            await ana.call_tool("cancel_subagent", {"subagent_id": hers})
            await her_ear.until(ResourceUpdated(f"ava://runs/{hers}"))
            await ben.call_tool("cancel_subagent", {"subagent_id": his})
            await his_ear.until(ResourceUpdated(f"ava://runs/{his}"))
            await anyio.sleep(1.5)  # longer than the pace at which clients are told
            own: list[tuple[Ear, set[ServerEvent]]] = [
                (her_ear, {ResourceUpdated(f"ava://runs/{hers}"), ResourcesListChanged()}),
                (his_ear, {ResourceUpdated(f"ava://runs/{his}"), ResourcesListChanged()}),
            ]
            for ear, events in own:
                assert set(ear.heard) == events
