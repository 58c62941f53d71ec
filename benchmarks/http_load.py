"""A server over HTTP under load: 200 clients of ten users poll 100 runs for a minute, on loopback.

    python benchmarks/http_load.py [--quick] [--clients 200] [--runs 100] [--seconds 60] [--every 5.0] [--rounds 5]
                                   [--json FILE]

The server, its model server and the clients are three processes. Each client has a connection and a token, and sends
what the SDK's client sends, without the SDK's own work for it (a processor would not do for 200 of those); it asks
`check_subagent` about its user's runs in turn, every so many seconds. Beside it, in the same way: `/healthz`, which
does nothing, and a tool that does nothing on a server of the SDK's that has nothing else, no token and no log (the
floor). Then 20 of the clients ask as fast as they are answered, each server in turn, which tells how much each can
take. Target: no errors, and 0.55 times the calls a second of the floor. `--quick` measures only that last part.

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
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import anyio
import httpx2
import mcp_types as types
from figures import Figure, write_json

from ava_server.config.tokens import create_token

SPEED_RATIO = 0.55
USERS = 10
ERA = "2026-07-28"
Call = Callable[[], Awaitable[str | None]]
LIMITS = """
approval = "ask"
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
uvicorn.run(app, port=int(sys.argv[1]), http="h11", loop="asyncio", log_level="critical")  # all that mcp installs
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


class Load:
    """The servers, and what the clients ask of them.

    Args:
        ours: Ava's address and process.
        floor: Those of the server that does nothing.
        clients: One for each client that asks; ten users in turn.
    """

    def __init__(self, ours: tuple[str, int], floor: tuple[str, int], clients: list[httpx2.AsyncClient]) -> None:
        self.pid, self.floor_pid = ours[1], floor[1]
        self._url, self._floor_url = ours[0], floor[0]
        self._clients = clients
        self._runs: list[list[str]] = []
        self.faults: set[str] = set()

    async def start(self, runs: int) -> None:
        """Start the runs that are polled, and wait until they run."""
        for user in range(USERS):
            self._runs.append([await start_run(self._clients[user], self._url, n) for n in range(runs // USERS)])
        with anyio.fail_after(60):
            for number in range(USERS):
                call = self.check(number)
                while any([await call() is not None for _run in self._runs[number]]):  # noqa: ASYNC110 - another process
                    await anyio.sleep(0.1)

    def check(self, number: int) -> Call:
        """Return the call of a client that polls its user's runs in turn."""
        own, turn = self._runs[number % USERS], iter(range(number, 10_000_000))

        async def call() -> str | None:
            run = own[next(turn) % len(own)]
            answer = await called(self._clients[number], self._url, "check_subagent", {"subagent_id": run})
            said: dict[str, Any] = answer.get("runs", [{}])[0]
            right = said.get("subagent_id") == run and said.get("state") == "running"
            return None if right else str(answer.get("fault", said))[:200]

        return call

    def nothing(self, number: int) -> Call:
        """Return the call of a client that asks the floor."""

        async def call() -> str | None:
            answer = await called(self._clients[number], self._floor_url, "nothing", {"what": "nothing"})
            return None if answer == {"said": "nothing"} else str(answer)[:200]

        return call

    def health(self, number: int) -> Call:
        """Return the call of a client that asks whether the server is ready."""

        async def call() -> str | None:
            answer = await self._clients[number].get(f"{self._url}/healthz")
            return None if answer.status_code == 200 else str(answer.status_code)

        return call

    async def measured(
        self, pid: int, make: Callable[[int], Call], count: int, seconds: float, every_s: float
    ) -> tuple[Took, float]:
        """Have clients call; return how long the calls took, and the server's processor time of one in ms."""
        used = cpu_s(pid)
        took = await polling([make(number) for number in range(count)], seconds, every_s)
        self.faults.update(took.errors)
        return took, (cpu_s(pid) - used) * 1000 / max(len(took.ms), 1)


async def load(
    ours: tuple[str, int], floor: tuple[str, int], tokens: Sequence[str], args: argparse.Namespace
) -> list[Figure]:
    """Start the runs, poll them, and print what came of it."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(tokens[number % USERS])) for number in range(args.clients)]
        one, memory = Load(ours, floor, clients), [memory_mib(ours[1])]
        await one.start(args.runs)
        memory.append(memory_mib(one.pid))
        figures = [] if args.quick else await paced(one, args, memory)
        figures.append(await full_speed(one, args))
        if not args.quick:
            said = "{:.0f} MiB at first, {:.0f} with the runs, {:.0f} after the polling".format(*memory)
            print(f"\nmemory of the server: {said}, {memory_mib(one.pid):.0f} at the end")
        for fault in sorted(one.faults)[:5]:
            print(f"error: {fault}")
        return figures


async def paced(one: Load, args: argparse.Namespace, memory: list[float]) -> list[Figure]:
    """Have all clients call at intervals, and print a row for each kind of call."""
    print(f"{args.clients} clients, {args.runs} runs, a call every {args.every:g} s each, {args.seconds:g} s\n")
    print("| call | answered | errors | per second | p50 ms | p99 ms | most ms | server's ms a call |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    short_s = min(args.seconds, 15.0)
    rows: list[tuple[str, Callable[[int], Call], int, float]] = [
        ("/healthz", one.health, one.pid, short_s),
        ("floor: a tool that does nothing", one.nothing, one.floor_pid, short_s),
        ("check_subagent", one.check, one.pid, args.seconds),
    ]
    errors = 0
    for name, make, pid, seconds in rows:
        took, cpu_ms = await one.measured(pid, make, args.clients, seconds, args.every)
        print(f"{took.line(name, seconds)} {cpu_ms:.1f} |", flush=True)
        errors += len(took.errors)
    memory.append(memory_mib(one.pid))
    return [Figure("errors of clients over HTTP", errors, "calls", 0)]


async def full_speed(one: Load, args: argparse.Namespace) -> Figure:
    """Have 20 clients call as fast as they are answered, both servers in turns; print the medians of the rounds."""
    asked = {"floor": (one.floor_pid, one.nothing), "check_subagent": (one.pid, one.check)}
    speeds: dict[str, list[float]] = {name: [] for name in asked}
    cpu: dict[str, list[float]] = {name: [] for name in asked}
    for number in range(args.rounds + 1):
        for name in sorted(asked, reverse=bool(number % 2)):  # neither is always the first
            pid, make = asked[name]
            seconds = args.round_s if number else 1.0  # the first round only fills the caches
            took, cpu_ms = await one.measured(pid, make, 20, seconds, 0.0)
            if number:
                speeds[name].append(len(took.ms) / seconds)
                cpu[name].append(cpu_ms)
    print("\n| 20 clients at full speed | calls a second, median | least | most | server's ms a call, median | least |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, each in speeds.items():
        ms = f"{statistics.median(cpu[name]):.2f} | {min(cpu[name]):.2f}"
        print(f"| {name} | {statistics.median(each):.0f} | {min(each):.0f} | {max(each):.0f} | {ms} |")
    ours, floor = (statistics.median(speeds[name]) for name in ("check_subagent", "floor"))
    figure = Figure(
        "check_subagent over HTTP, 20 clients at full speed", ours, "calls/s", SPEED_RATIO, floor=floor, least=True
    )
    rounds = ", ".join(f"{a / b:.2f}" for a, b in zip(speeds["check_subagent"], speeds["floor"], strict=True))
    verdict = "reached" if figure.reached else "MISSED"
    print(f"\nratio of medians {figure.ratio:.2f} (rounds: {rounds}); target {SPEED_RATIO}: {verdict}")
    return figure


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


@contextmanager
def servers() -> Generator[tuple[tuple[str, int], tuple[str, int], list[str]]]:
    """Run Ava's server and the floor; yield the address and process of each, and the tokens of Ava's users."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # its worker may write to the last
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
            yield (f"http://127.0.0.1:{port}", server.pid), (f"http://127.0.0.1:{beside}", floor.pid), tokens
        finally:
            for process in (server, mute, floor):
                process.terminate()
                process.wait(20)


@contextmanager
def busy() -> Generator[int]:
    """Have 20 clients poll at full speed for a profiler; yield Ava's process."""

    async def poll(ours: tuple[str, int], tokens: Sequence[str]) -> None:
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(connected(tokens[n % USERS])) for n in range(20)]
            one = Load(ours, ours, clients)
            await one.start(100)
            ready.set()
            while not over.is_set():
                await one.measured(one.pid, one.check, 20, 1.0, 0.0)

    ready, over = threading.Event(), threading.Event()
    with servers() as (ours, _floor, tokens):
        polled = threading.Thread(target=anyio.run, args=(poll, ours, tokens), daemon=True)
        polled.start()
        try:
            assert ready.wait(90), "the runs have not started"
            yield ours[1]
        finally:
            over.set()
            polled.join(30)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--every", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=5, help="rounds at full speed")
    parser.add_argument("--round-s", type=float, default=4.0, help="seconds of each server in a round")
    parser.add_argument("--quick", action="store_true", help="only full speed, in about a minute")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    if args.quick:
        args.clients = 20
    with servers() as (ours, floor, tokens):
        figures = anyio.run(load, ours, floor, tokens, args)
    if args.json is not None:
        write_json(args.json, figures)


if __name__ == "__main__":
    main()
