"""Behind proxies as they are: one cuts what is silent for 60 s, one holds each answer back until it is whole."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.client.subscriptions import ResourcesListChanged, ResourceUpdated
from support.hosts.updates import Ear, follow_updates
from support.http_server import serve_http, token
from support.model_server import Gate, Say, run_model_server
from support.network.proxy import run_faulty_proxy
from support.stdio import MODES, make_root, model_env, read_answer, state_of, until
from support.terminal import ava

pytestmark = pytest.mark.slow

DONE = Say(calls=[("submit_result", {"summary": "done", "output": "marmalade"})])
SPAWN = {"role": "custom", "system_prompt": "Look.", "task": "Look it up"}
IDLE_S, LONG_S = 60.0, 135.0


async def approved(client: Client, proposed: dict[str, Any]) -> str:
    given = {"pending_ids": [proposed["pending_id"]], "approving": [proposed["approval_line"]]}
    assert read_answer(await client.call_tool("confirm_spawn", given))[0]["status"] == "approved"
    run_id: str = proposed["subagent_id"]
    return run_id


async def test_long_requests_survive_a_proxy_that_cuts_after_sixty_seconds(tmp_path: Path) -> None:
    root = make_root(tmp_path / "data")
    gates = [Gate(within_s=100) for _ in MODES]  # in the order in which the runs ask the model, whosever they are
    waited: list[str] = []
    with run_model_server([*(Say("x", gate=gate) for gate in gates), DONE, DONE]) as model:
        async with serve_http(root, env=model_env(model.base_url)) as server:

            async def one(mode: str) -> None:
                text, ear, cut = token(root, f"user-{mode}"), Ear(), list[float]()
                async with (
                    run_faulty_proxy(server.port, cut, idle_s=IDLE_S) as url,
                    server.client(text, mode=mode, url=url, hears=ear.on_message) as client,
                ):
                    run_id = await approved(client, read_answer(await client.call_tool("spawn_subagent", SPAWN))[0])
                    async with follow_updates(client, ear, mode, f"ava://runs/{run_id}"):
                        began = time.monotonic()
                        asked = {"subagent_id": run_id, "wait_seconds": 45}
                        found = read_answer(await client.call_tool("check_subagent", asked))[0]
                        assert found["status"] == "running" and time.monotonic() - began > 43
                        waited.append(mode)
                        if len(waited) == len(MODES):  # earlier, and the run that the other waits for might end
                            for gate in gates:
                                gate.released.set()
                        await ear.until(ResourceUpdated(f"ava://runs/{run_id}"))
                        await until(lambda: state_of(root, run_id) == "success", 20)
                        await anyio.sleep(2)
                        ear.heard.clear()
                        await anyio.sleep(LONG_S - (time.monotonic() - began))  # nothing is said, by nobody
                        # A connection that lay idle in the client's pool was cut; that costs it nothing.
                        read_answer(await client.call_tool("spawn_subagent", {**SPAWN, "task": "another"}))
                        await ear.until(ResourcesListChanged())
                assert len(cut) <= 3, "what is open was not cut"

            async with anyio.create_task_group() as tasks:
                for mode in MODES:
                    tasks.start_soon(one, mode)


@pytest.mark.parametrize("mode", MODES)
async def test_every_tool_works_through_a_buffering_proxy(tmp_path: Path, mode: str) -> None:
    root = make_root(tmp_path / "data")
    text, person = token(root, "ana"), token(root, "ana", "approve", name="person")
    gate = Gate()
    with run_model_server([Say("marmalade", gate=gate), DONE, DONE]) as model:
        async with (
            serve_http(root, env=model_env(model.base_url)) as server,
            run_faulty_proxy(server.port, [], buffers=True) as url,
            server.client(text, mode=mode, url=url) as client,
        ):
            used: set[str] = set()

            async def call(tool: str, **given: Any) -> dict[str, Any]:
                used.add(tool)
                return read_answer(await client.call_tool(tool, given))[0]

            proposed = await call("spawn_subagent", **SPAWN)
            given = {"pending_ids": [proposed["pending_id"]], "approving": [proposed["approval_line"]]}
            assert (await call("confirm_spawn", **given, wait_seconds=3))["status"] == "approved"
            run_id = proposed["subagent_id"]
            assert (await call("check_subagent", subagent_id=run_id, wait_seconds=3))["status"] == "running"
            await call("message_subagent", subagent_id=run_id, message="be quick")
            gate.released.set()
            assert (await call("check_subagent", subagent_id=run_id, wait_seconds=20))["status"] == "success"
            assert "Look it up" in json.dumps(await call("read_ava_logs", subagent_id=run_id))
            waits = await call("spawn_subagent", **{**SPAWN, "task": "another"})
            await call("cancel_subagent", pending_id=waits["pending_id"])
            assert {tool.name for tool in (await client.list_tools()).tools} == used
            (content,) = (await client.read_resource(f"ava://runs/{run_id}")).contents
            assert "marmalade" in getattr(content, "text", "")
            third = await call("spawn_subagent", **{**SPAWN, "task": "a third"})
            base = url.removesuffix("/mcp")
            done = await anyio.to_thread.run_sync(
                lambda: ava(root, "--url", base, "reject", third["pending_id"], env={"AVA_TOKEN": person})
            )
            assert done.returncode == 0, done.stderr
            await until(lambda: state_of(root, third["subagent_id"]) == "rejected")
