"""Two servers behind Caddy with the configuration of compose.yaml: any answers any request, and one can be stopped."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import pytest
from support.http_server import BOTH, META, HttpServer, bearer, serve_http, token
from support.model_server import Gate, Say, run_model_server
from support.network.balancer import FOLDER, run_balancer, tool
from support.postgres import free_port
from support.stdio import environment, make_root, model_env, read_answer, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("sys.platform == 'win32'", reason="signals as POSIX has them"),
]

DONE = Say(calls=[("submit_result", {"summary": "done", "output": "done"})])
SPAWN = {"role": "custom", "system_prompt": "Look.", "task": "Look it up"}
BALANCED = "server-1:8642 server-2:8642"
LIST: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": META}}
STATELESS = {**BOTH, "MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/list"}


async def test_both_servers_answer_in_turn_and_keep_their_metrics_inside(tmp_path: Path) -> None:
    root = make_root(tmp_path / "data")
    text = token(root, "ana", "spawn", "read", "audit")
    async with balanced(tmp_path, root, "--access-log") as (base, one, other):
        async with httpx2.AsyncClient(headers={**bearer(text), **STATELESS}, timeout=20) as http:
            for _ in range(10):
                answer = await http.post(f"{base}/mcp", json=LIST)
                assert answer.status_code == 200 and "spawn_subagent" in answer.text
            assert (await http.get(f"{base}/metrics")).status_code == 404
            inside = f"http://127.0.0.1:{(tmp_path / 'inside').read_text()}"
            metrics = [await http.get(f"{inside}/metrics") for _ in range(2)]
            assert all("ava_log_head" in each.text for each in metrics), [each.text[:300] for each in metrics]
            assert (await http.get(f"{inside}/token")).status_code == 404
        assert [server.stderr.count("POST /mcp 200") for server in (one, other)] == [5, 5]
        assert [server.stderr.count("GET /metrics") for server in (one, other)] == [2, 0]


async def test_a_run_can_be_followed_at_any_server_and_progress_arrives_before_the_answer(tmp_path: Path) -> None:
    root, gate = make_root(tmp_path / "data"), Gate()
    text = token(root, "ana")
    with run_model_server([Say("x", gate=gate), DONE, DONE]) as model:
        async with (
            balanced(tmp_path, root, env=model_env(model.base_url)) as (base, one, _other),
            one.client(text, url=f"{base}/mcp") as client,
        ):
            proposed, _text = read_answer(await client.call_tool("spawn_subagent", SPAWN))
            lines = {"pending_ids": [proposed["pending_id"]], "approving": [proposed["approval_line"]]}
            assert read_answer(await client.call_tool("confirm_spawn", lines))[0]["status"] == "approved"
            assert await anyio.to_thread.run_sync(gate.arrived.wait, 20)
            heard: list[str | None] = []

            async def hear(progress: float, total: float | None, message: str | None) -> None:
                heard.append(message)
                gate.released.set()  # the run, and so the answer, waits for this

            asked = {"subagent_id": proposed["subagent_id"], "wait_seconds": 40}
            began = time.monotonic()
            found, _text = read_answer(await client.call_tool("check_subagent", asked, progress_callback=hear))
            assert found["status"] == "success" and heard
            assert time.monotonic() - began < 30


async def test_a_server_stops_without_a_failed_or_refused_request(tmp_path: Path) -> None:
    root = make_root(tmp_path / "data")
    text = token(root, "ana")
    delay = ("--shutdown-delay", "4s", "--drain", "20s", "--access-log")
    with run_model_server([]) as model:
        async with balanced(tmp_path, root, *delay, env=model_env(model.base_url)) as (base, one, other):
            answers, proposed = Counter[int](), list[bool]()
            stop = anyio.Event()

            async def list_tools() -> None:
                async with httpx2.AsyncClient(headers={**bearer(text), **STATELESS}, timeout=20) as http:
                    while not stop.is_set():
                        answers[(await http.post(f"{base}/mcp", json=LIST)).status_code] += 1

            async def propose() -> None:
                async with one.client(text, url=f"{base}/mcp") as client:
                    while not stop.is_set():
                        called = await client.call_tool("spawn_subagent", SPAWN)
                        given, why = read_answer(called)
                        assert not called.is_error, why
                        proposed.append(True)
                        await client.call_tool("cancel_subagent", {"pending_id": given["pending_id"]})

            async with anyio.create_task_group() as tasks:
                for _ in range(4):
                    tasks.start_soon(list_tools)
                tasks.start_soon(propose)
                await until(lambda: len(proposed) > 3, 20)
                async with await anyio.connect_tcp("127.0.0.1", one.port) as held:
                    await held.send(unfinished(one, text))  # so that the drain lasts, in which it refuses proposals
                    await anyio.sleep(0.5)
                    one.signal()
                    await anyio.sleep(6)
                assert await one.exited(20) == 0
                answered, came = answers[200], other.stderr.count("POST /mcp 200")
                await until(lambda: answers[200] > answered + 20, 20)
                stop.set()
            assert set(answers) == {200}
            assert other.stderr.count("POST /mcp 200") > came


def unfinished(server: HttpServer, text: str) -> bytes:
    """A call whose body does not come."""
    head = {**bearer(text), **STATELESS, "Host": f"127.0.0.1:{server.port}", "Content-Length": "100"}
    lines = [f"{name}: {value}" for name, value in {**head, "Content-Type": "application/json"}.items()]
    return "\r\n".join(["POST /mcp HTTP/1.1", *lines, "", "{"]).encode()


async def test_after_a_kill_requests_go_to_the_other_server(tmp_path: Path) -> None:
    root = make_root(tmp_path / "data")
    text = token(root, "ana")
    async with (
        balanced(tmp_path, root) as (base, one, _other),
        httpx2.AsyncClient(headers={**bearer(text), **STATELESS}, timeout=20) as http,
    ):
        assert (await http.post(f"{base}/mcp", json=LIST)).status_code == 200
        one.signal(signal.SIGKILL)
        await one.exited()
        await anyio.sleep(0.2)  # Caddy learns that its idle connections are closed
        for _ in range(10):
            assert (await http.post(f"{base}/mcp", json=LIST)).status_code == 200


def caddy() -> str:
    """The program; older versions lose the body of a request that they repeat at another server."""
    program = tool("caddy")
    done = subprocess.run([program, "version"], capture_output=True, text=True, timeout=20, check=True)
    found = re.match(r"v?(\d+)\.(\d+)\.(\d+)", done.stdout)
    if found is None or tuple(map(int, found.groups())) < (2, 11, 2):
        pytest.skip(f"caddy 2.11.2 or newer is needed, and this is {done.stdout.strip()}")
    return program


@asynccontextmanager
async def balanced(
    tmp: Path, root: Path, *more: str, env: Mapping[str, str] | None = None
) -> AsyncGenerator[tuple[str, HttpServer, HttpServer]]:
    """Yield the address of Caddy, and the two servers behind it. Its port for metrics is in the file `inside`."""
    program, port = caddy(), free_port()
    async with serve_http(root, *more, env=env) as one, serve_http(root, *more, env=env) as other:
        text = (FOLDER / "compose" / "Caddyfile").read_text()
        assert text.count(BALANCED) == 2
        text = text.replace(BALANCED, f"127.0.0.1:{one.port} 127.0.0.1:{other.port}")
        inside = free_port()
        (tmp / "inside").write_text(str(inside))
        text = text.replace(":9642", f"127.0.0.1:{inside}").replace("{$PUBLIC_HOST}\n", "127.0.0.1\n")
        text = text.replace("\tgrace_period 30s\n", "\tgrace_period 1s\n\tadmin off\n\tauto_https off\n")
        (tmp / "Caddyfile").write_text(text)
        command = (program, "run", "--config", str(tmp / "Caddyfile"), "--adapter", "caddyfile")
        given = environment(root, PUBLIC_HOST=f"http://127.0.0.1:{port}", XDG_DATA_HOME=str(tmp / "caddy"))
        async with run_balancer(command, port, given):
            yield f"http://127.0.0.1:{port}", one, other
