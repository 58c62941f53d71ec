"""A server over HTTP under load: 200 clients of ten users poll 100 runs for a minute, on loopback.

    python benchmarks/http_load.py [--clients 200] [--runs 100] [--seconds 60] [--every 5.0]

The server, its model server and the clients are three processes. Each client has a connection and a token, and sends
what the SDK's client sends, without the SDK's own work for it (a processor would not do for 200 of those); it asks
`check_subagent` about its user's runs in turn, every so many seconds. Beside it, in the same way: `/healthz`, which
does nothing, and a tool that does nothing on a server of the SDK's that has nothing else, no token and no log (the
floor). Then 20 of the clients ask as fast as they are answered, which tells how much each server can take.

Not called http.py: a script's folder comes first where Python looks for modules, and the name is the library's.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import anyio
import httpx2
import mcp_types as types

from ava_server.config.tokens import create_token

USERS = 10
ERA = "2026-07-28"
Call = Callable[[], Awaitable[str | None]]
LIMITS = """
[limits]
running = 1000
running_per_user = 1000
spawns_per_hour = 10000
"""
MUTE = """
import socket, sys, threading
listening = socket.create_server(("127.0.0.1", 0), backlog=512)
print(listening.getsockname()[1], flush=True)
held = []
while True:
    held.append(listening.accept()[0])  # a model that thinks for a long time
"""
FLOOR = """
import mcp_types as types, sys, uvicorn
from mcp.server.lowlevel import Server

async def listed(ctx, params):
    schema = {"type": "object", "properties": {"what": {"type": "string"}}}
    return types.ListToolsResult(tools=[types.Tool(name="nothing", input_schema=schema)])

async def call(ctx, params):
    said = types.TextContent(type="text", text="nothing")
    return types.CallToolResult(content=[said], structured_content={"said": "nothing"})

server = Server("floor", on_list_tools=listed, on_call_tool=call, get_tool_input_schema=lambda name: None)
app = server.streamable_http_app()
uvicorn.run(app, port=int(sys.argv[1]), http="h11", log_level="critical")
"""


@dataclass
class Took:
    """How long calls took, in milliseconds, and what went wrong."""

    ms: list[float] = field(default_factory=list[float])
    errors: list[str] = field(default_factory=list[str])

    def line(self, name: str, seconds: float) -> str:
        """Return a row of the table."""
        if not self.ms:
            return f"| {name} | 0 | {len(self.errors)} | | | | |"
        ordered = sorted(self.ms)
        p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
        return (
            f"| {name} | {len(ordered):,} | {len(self.errors)} | {len(ordered) / seconds:.0f} |"
            f" {statistics.median(ordered):.1f} | {p99:.1f} | {ordered[-1]:.1f} |"
        )


def memory_mib(pid: int) -> float:
    """Return how much memory a process has resident."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def cpu_s(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def request(tool: str, arguments: dict[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the headers and the body of a call as the SDK's client sends it."""
    headers = {
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": ERA,
        "Mcp-Method": "tools/call",
        "Mcp-Name": tool,
    }
    meta = {
        types.PROTOCOL_VERSION_META_KEY: ERA,
        types.CLIENT_INFO_META_KEY: {"name": "load", "version": "1.0"},
        types.CLIENT_CAPABILITIES_META_KEY: {},
    }
    params = {"name": tool, "arguments": arguments, "_meta": meta}
    return headers, {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


async def called(http: httpx2.AsyncClient, url: str, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Call a tool, and return what it answers in the structured form; with `fault` what went wrong."""
    headers, body = request(tool, arguments)
    answer = await http.post(f"{url}/mcp", headers=headers, json=body)
    text = answer.text
    if answer.headers.get("content-type", "").startswith("text/event-stream"):
        text = next((line[6:] for line in text.splitlines() if line.startswith("data: {")), "{}")
    result: dict[str, Any] = json.loads(text).get("result", {}) if answer.status_code == 200 else {}
    if "structuredContent" not in result or result.get("isError"):
        return {"fault": f"{answer.status_code} {text[:200]}"}
    return cast("dict[str, Any]", result["structuredContent"])


@asynccontextmanager
async def connected(text: str) -> AsyncGenerator[httpx2.AsyncClient]:
    """Hold a client with a connection of its own."""
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {text}"}, timeout=60) as http:
        yield http


async def start_run(http: httpx2.AsyncClient, url: str, number: int) -> str:
    """Have one run approved; return its id."""
    given = {"role": "custom", "system_prompt": "Look it up.", "task": f"Look at number {number}", "timeout": 3600}
    made = await called(http, url, "spawn_subagent", given)
    lines = {"pending_ids": [made["pending_id"]], "approving": [made["approval_line"]]}
    said = await called(http, url, "confirm_spawn", lines)
    assert said.get("status") == "approved", said
    return str(made["subagent_id"])


async def polling(calls: Sequence[Callable[[], Awaitable[str | None]]], seconds: float, every_s: float) -> Took:
    """Have each client call again and again, begun at different moments; return how long the calls took."""
    took, until = Took(), time.monotonic() + seconds

    async def one(call: Callable[[], Awaitable[str | None]], delay: float) -> None:
        await anyio.sleep(delay)
        while time.monotonic() < until:
            began = time.monotonic()
            try:
                fault = await call()
            except Exception as error:  # what a client sees go wrong is what is counted
                fault = f"{type(error).__name__}: {error}"
            now = time.monotonic()
            if fault is None:
                took.ms.append((now - began) * 1000)
            else:
                took.errors.append(fault)
            await anyio.sleep(max(began + every_s - now, 0))

    async with anyio.create_task_group() as tasks:
        for number, call in enumerate(calls):
            tasks.start_soon(one, call, every_s * number / len(calls))
    return took


async def load(url: str, pid: int, floor: tuple[str, int], tokens: Sequence[str], args: argparse.Namespace) -> None:
    """Start the runs, poll them, and print what came of it."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(tokens[number % USERS])) for number in range(args.clients)]
        before = memory_mib(pid)
        runs = [[await start_run(clients[user], url, n) for n in range(args.runs // USERS)] for user in range(USERS)]
        with_runs = memory_mib(pid)

        def check(number: int) -> Call:
            own, turn = runs[number % USERS], iter(range(number, 10_000_000))

            async def call() -> str | None:
                run = own[next(turn) % len(own)]
                answer = await called(clients[number], url, "check_subagent", {"subagent_id": run})
                said: dict[str, Any] = answer.get("runs", [{}])[0]
                right = said.get("subagent_id") == run and said.get("state") == "running"
                return None if right else str(answer.get("fault", said))[:200]

            return call

        def nothing(number: int) -> Call:
            async def call() -> str | None:
                answer = await called(clients[number], floor[0], "nothing", {"what": "nothing"})
                return None if answer == {"said": "nothing"} else str(answer)[:200]

            return call

        def health(number: int) -> Call:
            async def call() -> str | None:
                answer = await clients[number].get(f"{url}/healthz")
                return None if answer.status_code == 200 else str(answer.status_code)

            return call

        print(f"{args.clients} clients, {args.runs} runs, a call every {args.every:g} s each, {args.seconds:g} s\n")
        print("| call | answered | errors | per second | p50 ms | p99 ms | most ms | server's ms a call |")
        print("|---|---:|---:|---:|---:|---:|---:|---:|")
        faults: set[str] = set()
        memory = [before, with_runs]
        short_s = min(args.seconds, 15.0)
        rows: list[tuple[str, Callable[[int], Call], int, int, float, float]] = [
            ("/healthz", health, pid, args.clients, short_s, args.every),
            ("floor: a tool that does nothing", nothing, floor[1], args.clients, short_s, args.every),
            ("check_subagent", check, pid, args.clients, args.seconds, args.every),
            ("floor, 20 at full speed", nothing, floor[1], 20, short_s, 0.0),
            ("check_subagent, 20 at full speed", check, pid, 20, short_s, 0.0),
        ]
        for name, make, server, count, seconds, every_s in rows:
            used = cpu_s(server)
            took = await polling([make(number) for number in range(count)], seconds, every_s)
            used = cpu_s(server) - used
            print(f"{took.line(name, seconds)} {used * 1000 / max(len(took.ms), 1):.1f} |", flush=True)
            faults.update(took.errors)
            if name == "check_subagent":
                memory.append(memory_mib(pid))
        said = "{:.0f} MiB at first, {:.0f} with the runs, {:.0f} after the polling".format(*memory)
        print(f"\nmemory of the server: {said}, {memory_mib(pid):.0f} at the end")
        for fault in sorted(faults)[:5]:
            print(f"error: {fault}")


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


def wait_for(port: int) -> None:
    """Wait until somebody listens on a port, for 30 s at most."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.05)
    raise TimeoutError(f"nobody listens on port {port}")


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--every", type=float, default=5.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "data"
        root.mkdir(mode=0o700)
        (root / "config.toml").write_text(LIMITS)
        (root / "secrets").mkdir(mode=0o700)
        file = root / "secrets" / "tokens.toml"
        tokens = [create_token(file, f"of-{n}", f"user{n}", ("spawn", "read"), None)[1] for n in range(USERS)]
        port, beside = free_port(), free_port()
        mute = subprocess.Popen([sys.executable, "-c", MUTE], stdout=subprocess.PIPE, text=True)
        assert mute.stdout is not None
        endpoint = f"http://127.0.0.1:{mute.stdout.readline().strip()}/v1"
        env = {**os.environ, "AVA_DATA_ROOT": str(root), "AVA_MODEL_BASE_URL": endpoint, "AVA_MODEL": "mute"}
        command = [sys.executable, "-m", "ava_server", "serve", "--http", "--port", str(port)]
        server = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        floor = subprocess.Popen([sys.executable, "-c", FLOOR, str(beside)])
        try:
            assert server.stdout is not None
            while "Serving" not in (line := server.stdout.readline()):
                assert line, "the server has ended"
            wait_for(beside)
            at = f"http://127.0.0.1:{beside}", floor.pid
            anyio.run(load, f"http://127.0.0.1:{port}", server.pid, at, tokens, args)
        finally:
            for process in (server, mute, floor):
                process.terminate()
                process.wait(20)


if __name__ == "__main__":
    main()
