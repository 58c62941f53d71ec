"""The end of a server over HTTP, and what is in between: signals, kills, and proxies that buffer or cut."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
import time
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from mcp import Client
from support.http_server import HttpServer, bearer, serve_http, token
from support.model_server import Gate, Say, run_model_server
from support.network.proxy import run_faulty_proxy
from support.runtime import wait_for
from support.stdio import (
    MODES,
    assert_intact,
    instance_locks,
    make_root,
    model_env,
    read_answer,
    read_log,
    state_of,
    stray_locks,
    until,
)

pytestmark = pytest.mark.slow

DONE = Say(calls=[("submit_result", {"summary": "done", "output": "done"})])
SPAWN = {"role": "custom", "system_prompt": "Look.", "task": "Look it up"}


async def start(client: Client) -> str:
    proposed, _text = read_answer(await client.call_tool("spawn_subagent", SPAWN))
    asked = {"pending_ids": [proposed["pending_id"]], "approving": [proposed["approval_line"]]}
    assert read_answer(await client.call_tool("confirm_spawn", asked))[0]["status"] == "approved"
    run_id: str = proposed["subagent_id"]
    return run_id


@pytest.mark.parametrize("mode", MODES)
async def test_sigterm_ends_waits_and_a_restart_continues_the_run_within_a_second(tmp_path: Path, mode: str) -> None:
    root = make_root(tmp_path / "data")
    text = token(root, "ana")
    gate, second = Gate(), Gate()
    with run_model_server([Say("x", gate=gate), Say("x", gate=second), DONE, DONE]) as model:
        async with serve_http(root, "--drain", "5s", env=model_env(model.base_url)) as server:
            async with server.client(text, mode=mode) as client:
                run_id = await start(client)
                await wait_for(gate.arrived)
                answers: list[dict[str, Any]] = []

                async def wait() -> None:
                    asked = {"subagent_id": run_id, "wait_seconds": 40}
                    answers.append(read_answer(await client.call_tool("check_subagent", asked))[0])

                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(wait)
                    await until(lambda: read_log(root, "SpawnDecided"))
                    await anyio.sleep(0.5)
                    began = time.monotonic()
                    server.signal()
                assert answers[0]["runs"][0]["state"] == "running"
                assert time.monotonic() - began < 10, "a wait ends with what there is"
            assert await server.exited() == 0
            assert state_of(root, run_id) == "running" and stray_locks(root) == []
        began_us = time.time_ns() // 1000
        async with serve_http(root, env=model_env(model.base_url)):
            listening_us = time.time_ns() // 1000
            await until(lambda: len(read_log(root, "RunClaimed", run=run_id)) == 2)
            with contextlib.closing(sqlite3.connect(root / "ava.db")) as db:
                (claimed_us,) = db.execute("SELECT max(ts_us) FROM events WHERE type = 'RunClaimed'").fetchone()
            assert began_us < claimed_us < listening_us + 1_000_000
            second.released.set()
            await until(lambda: state_of(root, run_id) == "success", 20)
    assert_intact(root)


async def test_a_run_survives_two_restarts_during_one_call(tmp_path: Path) -> None:
    root = make_root(tmp_path / "data")
    text = token(root, "ana")
    gates = [Gate(), Gate()]
    with run_model_server([*(Say("lost", gate=gate) for gate in gates), DONE]) as model:
        env = model_env(model.base_url)
        async with serve_http(root, "--drain", "1s", env=env) as server, server.client(text) as client:
            run_id = await start(client)
            await wait_for(gates[0].arrived)
            server.signal()
            assert await server.exited() == 0
        async with serve_http(root, "--drain", "1s", env=env) as server:
            await wait_for(gates[1].arrived)
            server.signal()
            assert await server.exited() == 0
        async with serve_http(root, env=env):
            await until(lambda: state_of(root, run_id) == "success", 20)
    assert_intact(root)


async def test_refuses_new_spawns_while_draining_and_health_reports_it(
    tmp_path: Path,
) -> None:
    """The call in hand is a person who takes their time: a question in the handshake era."""
    from mcp_types import ElicitResult

    root = make_root(tmp_path / "data")
    text = token(root, "ana")
    asked, answered = anyio.Event(), anyio.Event()

    async def person(_context: Any, _params: Any) -> ElicitResult:
        asked.set()
        await answered.wait()
        return ElicitResult(action="decline")

    async with serve_http(root, "--drain", "20s") as server:
        async with server.client(text, mode="legacy", ask=person) as client, server.client(text, name="two") as other:
            proposed, _text = read_answer(
                await client.call_tool("spawn_subagent", {**SPAWN, "task": "https://example.org"})
            )
            results: list[Any] = []

            async def confirm() -> None:
                given = {"pending_ids": [proposed["pending_id"]], "approving": [proposed["approval_line"]]}
                results.append(await client.call_tool("confirm_spawn", given))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(confirm)
                await asked.wait()
                server.signal()
                await until_status(server, 503)
                health = await server.get("/healthz")
                assert health.json() == {"status": "not ready", "why": "it is stopping"}
                for tool, given in (
                    ("spawn_subagent", SPAWN),
                    ("confirm_spawn", {"pending_ids": [proposed["pending_id"]], "approving": ["x"]}),
                ):
                    refused = await other.call_tool(tool, given)
                    assert refused.is_error and "shutting down" in json.dumps(refused.structured_content)
                assert not (await other.call_tool("check_subagent", {})).is_error
                answered.set()
            assert results and not results[0].is_error
        assert await server.exited() == 0


async def test_during_the_shutdown_delay_only_the_health_says_that_it_stops(tmp_path: Path) -> None:
    root = make_root(tmp_path / "data")
    text = token(root, "ana")
    async with serve_http(root, "--shutdown-delay", "30s") as server, server.client(text) as client:
        began = time.monotonic()
        server.signal()
        await until_status(server, 503)
        await anyio.sleep(6)  # longer than any shutdown takes without the delay
        proposed, _text = read_answer(
            await client.call_tool("spawn_subagent", {**SPAWN, "task": "https://example.org"})
        )
        assert proposed["pending_id"]
        assert "Sign in" in (await server.get("/sign-in")).text, "not the refusal of a server that stops"
        server.signal()
        assert await server.exited() == 0
        assert time.monotonic() - began < 20, "a second signal does not wait for the rest of the delay"
    assert instance_locks(root) == []


async def until_status(server: HttpServer, status: int) -> None:
    with anyio.fail_after(40):
        while (await server.get("/healthz")).status_code != status:  # noqa: ASYNC110 - another process
            await anyio.sleep(0.02)


async def test_the_drain_is_limited_and_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    root = make_root(tmp_path / "data")
    text = token(root, "ana")

    asked = anyio.Event()

    async def person(_context: Any, _params: Any) -> Any:
        asked.set()
        await anyio.sleep(60)

    for drain, signals in (("1s", 1), ("40s", 2)):
        async with serve_http(root, "--drain", drain) as server:

            async def confirm(server: HttpServer = server) -> None:
                with contextlib.suppress(Exception):  # its server is gone in the middle of the call
                    async with server.client(text, mode="legacy", ask=person) as client:
                        proposed, _text = read_answer(
                            await client.call_tool("spawn_subagent", {**SPAWN, "task": "https://example.org"})
                        )
                        given = {"pending_ids": [proposed["pending_id"]], "approving": [proposed["approval_line"]]}
                        await client.call_tool("confirm_spawn", given)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(confirm)
                await asked.wait()
                asked = anyio.Event()
                began = time.monotonic()
                for _each in range(signals):
                    server.signal()
                    await anyio.sleep(0.2)
                assert await server.exited() == 0
                assert time.monotonic() - began < 15
                tasks.cancel_scope.cancel()
        assert instance_locks(root) == []


async def test_open_streams_end_cleanly(tmp_path: Path) -> None:
    """A GET stream of the handshake era: its end is the end of the chunked body, not a broken connection."""
    import httpx2

    root = make_root(tmp_path / "data")
    text = token(root, "ana")
    hello = {
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
    }  # fmt: skip
    accept = {"Accept": "application/json, text/event-stream", **bearer(text)}
    async with serve_http(root) as server, httpx2.AsyncClient(timeout=20) as http:
        opened = await http.post(server.url, json=hello, headers=accept)
        headers = {**bearer(text), "Accept": "text/event-stream", "Mcp-Session-Id": opened.headers["mcp-session-id"]}
        async with http.stream("GET", server.url, headers=headers) as stream:
            assert stream.status_code == 200
            server.signal()
            pieces = [piece async for piece in stream.aiter_bytes()]  # raises where it is not ended as it should be
            assert b"error" not in b"".join(pieces)
        assert await server.exited() == 0


async def test_the_next_start_continues_a_run_left_by_kill_nine(tmp_path: Path) -> None:
    root = make_root(tmp_path / "data")
    text = token(root, "ana")
    gate = Gate()
    with run_model_server([Say("x", gate=gate), DONE, DONE]) as model:
        async with serve_http(root, env=model_env(model.base_url)) as server, server.client(text) as client:
            run_id = await start(client)
            await wait_for(gate.arrived)
            server.signal(signal.SIGKILL)
            await server.exited()
        async with serve_http(root, env=model_env(model.base_url)) as server, server.client(text) as client:
            asked = {"subagent_id": run_id, "wait_seconds": 30}
            ended, _text = read_answer(await client.call_tool("check_subagent", asked))
            assert ended["status"] == "success"
    assert_intact(root)


# -- proxies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["cuts", "buffers"])
async def test_a_wait_survives_a_buffering_proxy_and_one_that_cuts_idle_connections(
    tmp_path: Path, mode: str, kind: str
) -> None:
    """A cut after 60 s of silence, played as one after 8: a wait that is longer than that gets through."""
    root = make_root(tmp_path / "data")
    text = token(root, "ana")
    gate, cut = Gate(), list[float]()
    how: dict[str, Any] = {"idle_s": 8.0} if kind == "cuts" else {"buffers": True}
    with run_model_server([Say("x", gate=gate), DONE, DONE]) as model:
        async with (
            serve_http(root, env=model_env(model.base_url)) as server,
            run_faulty_proxy(server.port, cut, **how) as url,
            server.client(text, mode=mode, url=url) as client,
        ):
            run_id = await start(client)
            told_s: list[float] = []
            began = time.monotonic()

            async def progress(progress: float, total: float | None, message: str | None) -> None:
                told_s.append(time.monotonic() - began)

            asked = {"subagent_id": run_id, "wait_seconds": 17 if kind == "cuts" else 7}
            found = await client.call_tool("check_subagent", asked, progress_callback=progress)
            assert read_answer(found)[0]["status"] == "running"
            if kind == "cuts":
                assert len(told_s) >= 3 and told_s[0] < 7, "a line every few seconds keeps it open"
            gate.released.set()
            ended, _text = read_answer(await client.call_tool("check_subagent", {**asked, "wait_seconds": 10}))
            assert ended["status"] == "success"
