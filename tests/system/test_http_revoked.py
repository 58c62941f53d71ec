"""A token that ends while its requests are open: they end too, and what comes later is not told to them."""

from __future__ import annotations

import time
from pathlib import Path

import anyio
import httpx2
import pytest
from mcp.client.subscriptions import ResourceUpdated
from support.hosts.updates import Ear, follow_updates
from support.http_server import serve_http, token
from support.network.open_streams import OpenStreams, open_waiting_run
from support.stdio import MODES, make_root, model_env, read_answer, state_of, until

from ava_server.config.tokens import revoke_token

pytestmark = pytest.mark.slow

WITHIN_S = 4.0


@pytest.mark.parametrize("how", ["revoked", "expired", "file gone bad"])
async def test_open_requests_end_with_their_token_and_receive_nothing_later(tmp_path: Path, how: str) -> None:
    root = make_root(tmp_path / "data")
    path = root / "secrets" / "tokens.toml"
    async with open_waiting_run(root) as (server, gate, run_id, _client):
        ends_us = time.time_ns() // 1000 + 4_000_000 if how == "expired" else None
        text = token(root, "ana", name="one", expires_us=ends_us)
        async with httpx2.AsyncClient(timeout=30) as http, anyio.create_task_group() as tasks:
            streams = OpenStreams(server, text, run_id, http)
            await streams.all(tasks)
            await anyio.sleep(0.5)  # the wait that says nothing yet is on its way
            if how == "revoked":
                revoke_token(path, "one")
            elif how == "expired":
                assert ends_us is not None
                assert time.time_ns() // 1000 < ends_us, "the machine is too slow for this"
                await anyio.sleep(max(0.0, ends_us / 1e6 - time.time()))
            else:
                path.chmod(0o644)
            before = {each.name: len(each.got) for each in streams.open}
            gate.released.set()  # now there is news
            await until(lambda: state_of(root, run_id) == "success", 20)
            with anyio.fail_after(WITHIN_S):
                for each in streams.open:
                    await each.over.wait()
                while len(streams.open) < 4:  # noqa: ASYNC110 - the wait that had said nothing yet
                    await anyio.sleep(0.05)
                await streams.open[3].over.wait()
        for each in streams.open:
            later = each.got[before.get(each.name, 0) :]
            assert b"marmalade" not in each.got, each.name
            assert b"updated" not in later and b"success" not in later and b"list_changed" not in later, each.name
        (late,) = [each for each in streams.open if each.name == "wait"]
        assert late.status in (200, 401), late.status
        if how == "file gone bad":
            assert (await server.get("/x", text)).status_code == 503
        else:
            assert (await server.get("/x", text)).status_code == 401


@pytest.mark.parametrize("mode", MODES)
async def test_revoking_a_token_does_not_affect_another_of_the_same_user(tmp_path: Path, mode: str) -> None:
    root = make_root(tmp_path / "data")
    path = root / "secrets" / "tokens.toml"
    ear = Ear()
    async with open_waiting_run(root) as (server, gate, run_id, _client):
        kept, gone = token(root, "ana", name="kept"), token(root, "ana", name="gone")
        uri = f"ava://runs/{run_id}"
        async with (
            server.client(kept, mode=mode, hears=ear.on_message) as client,
            httpx2.AsyncClient(timeout=30) as http,
            anyio.create_task_group() as tasks,
            follow_updates(client, ear, mode, uri),
        ):
            streams = OpenStreams(server, gone, run_id, http)
            await streams.all(tasks)
            revoke_token(path, "gone")
            with anyio.fail_after(WITHIN_S):
                for each in streams.open[:3]:
                    await each.over.wait()
            gate.released.set()
            await ear.until(ResourceUpdated(uri))
            asked = {"subagent_id": run_id, "wait_seconds": 20}
            assert read_answer(await client.call_tool("check_subagent", asked))[0]["status"] == "success"


async def test_scopes_removed_by_hand_are_lost_immediately(tmp_path: Path) -> None:
    root = make_root(tmp_path / "data")
    path = root / "secrets" / "tokens.toml"
    text = token(root, "ana")
    async with serve_http(root, env=model_env("http://127.0.0.1:9/v1")) as server, server.client(text) as client:
        read_answer(await client.call_tool("spawn_subagent", {"role": "web_crawler", "task": "https://example.org"}))
        path.write_text(path.read_text().replace('["spawn", "read"]', '["read"]'))
        refused = await client.call_tool("spawn_subagent", {"role": "web_crawler", "task": "https://example.org/2"})
        assert refused.is_error and "scope spawn" in str(refused.structured_content)
        path.write_text(path.read_text().replace('user = "ana"', 'user = "ben"'))
        listed, _text = read_answer(await client.call_tool("check_subagent", {}))
        assert not listed["runs"], "it is another user's now"
