"""A server over HTTP under load: 200 clients of ten users poll 100 runs for a minute, on loopback.

    python benchmarks/http_load.py [--clients 200] [--runs 100] [--seconds 60] [--every 1.0]

The server, its model server and the clients are three processes. Each client is the SDK's own, with a connection and a
token; it asks `check_subagent` about its user's runs in turn, every so many seconds. Printed: calls, errors, how long
calls took, and the server's memory and processor time, beside the same clients asking `/healthz`, which does nothing.

Not called http.py: a script's folder comes first where Python looks for modules, and the name is the library's.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import Implementation

from ava_server.tokens import create_token

USERS = 10
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


@asynccontextmanager
async def connected(url: str, text: str, name: str) -> AsyncGenerator[tuple[Client, httpx2.AsyncClient]]:
    """Hold a client of the SDK's, with a connection of its own."""
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {text}"}, timeout=60) as http:
        transport = streamable_http_client(f"{url}/mcp", http_client=http)
        info = Implementation(name=name, version="1.0")
        async with Client(transport, client_info=info, read_timeout_seconds=60, cache=None) as client:
            yield client, http


async def start_run(client: Client, number: int) -> str:
    """Have one run approved; return its id."""
    given = {"role": "custom", "system_prompt": "Look it up.", "task": f"Look at number {number}", "timeout": 3600}
    made: dict[str, Any] = (await client.call_tool("spawn_subagent", given)).structured_content or {}
    lines = {"pending_ids": [made["pending_id"]], "approving": [made["approval_line"]]}
    said = (await client.call_tool("confirm_spawn", lines)).structured_content or {}
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


async def load(url: str, pid: int, tokens: Sequence[str], args: argparse.Namespace) -> None:
    """Start the runs, poll them, and print what came of it."""
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(connected(url, tokens[number % USERS], f"client-{number}"))
            for number in range(args.clients)
        ]
        before = memory_mib(pid)
        runs = [[await start_run(clients[user][0], n) for n in range(args.runs // USERS)] for user in range(USERS)]
        with_runs = memory_mib(pid)

        def check(number: int) -> Callable[[], Awaitable[str | None]]:
            client, own, turn = clients[number][0], runs[number % USERS], iter(range(number, 1_000_000))

            async def call() -> str | None:
                run = own[next(turn) % len(own)]
                answer = await client.call_tool("check_subagent", {"subagent_id": run})
                said = (answer.structured_content or {}).get("runs", [{}])[0]
                right = said.get("subagent_id") == run and said.get("state") == "running"
                return None if right and not answer.is_error else str(said)[:200]

            return call

        def health(number: int) -> Callable[[], Awaitable[str | None]]:
            async def call() -> str | None:
                answer = await clients[number][1].get(f"{url}/healthz")
                return None if answer.status_code == 200 else str(answer.status_code)

            return call

        floor_s = min(args.seconds, 15.0)
        floor = await polling([health(number) for number in range(args.clients)], floor_s, args.every)
        used = cpu_s(pid)
        took = await polling([check(number) for number in range(args.clients)], args.seconds, args.every)
        used = cpu_s(pid) - used
        print(f"{args.clients} clients, {args.runs} runs, a call every {args.every:g} s each, {args.seconds:g} s\n")
        print(
            "| call | answered | errors | per second | p50 ms | p99 ms | most ms |\n|---|---:|---:|---:|---:|---:|---:|"
        )
        print(floor.line("/healthz", floor_s))
        print(took.line("check_subagent", args.seconds))
        per_call = used * 1000 / max(len(took.ms), 1)
        print(f"\nserver: {used / args.seconds:.0%} of a processor, {per_call:.1f} ms a call;", end=" ")
        print(f"memory {before:.0f} MiB, {with_runs:.0f} with the runs, {memory_mib(pid):.0f} at the end")
        for fault in sorted({*floor.errors, *took.errors})[:5]:
            print(f"error: {fault}")


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--every", type=float, default=1.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "data"
        root.mkdir(mode=0o700)
        (root / "config.toml").write_text(LIMITS)
        (root / "secrets").mkdir(mode=0o700)
        file = root / "secrets" / "tokens.toml"
        tokens = [create_token(file, f"of-{n}", f"user{n}", ("spawn", "read"), None)[1] for n in range(USERS)]
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        mute = subprocess.Popen([sys.executable, "-c", MUTE], stdout=subprocess.PIPE, text=True)
        assert mute.stdout is not None
        endpoint = f"http://127.0.0.1:{mute.stdout.readline().strip()}/v1"
        env = {**os.environ, "AVA_DATA_ROOT": str(root), "AVA_MODEL_BASE_URL": endpoint, "AVA_MODEL": "mute"}
        command = [sys.executable, "-m", "ava_server", "serve", "--http", "--port", str(port)]
        server = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            assert server.stdout is not None
            while "Serving" not in (line := server.stdout.readline()):
                assert line, "the server has ended"
            anyio.run(load, f"http://127.0.0.1:{port}", server.pid, tokens, args)
        finally:
            for process in (server, mute):
                process.terminate()
                process.wait(20)


if __name__ == "__main__":
    main()
