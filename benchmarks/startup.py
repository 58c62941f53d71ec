"""How fast `ava serve` is there, and how fast it answers: beside an empty `mcp` server, in turns, in one run.

    python benchmarks/startup.py [--rounds 21] [--calls 400]

Both servers are child processes spoken to line by line over pipes, by the same code. Targets: start to
answered `initialize` at most 1.15 times the empty server, `check_subagent` at most 2.5 times an empty tool.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

EMPTY = """
from mcp.server import MCPServer
server = MCPServer("empty")
@server.tool()
def nothing() -> str:
    "Do nothing."
    return "nothing"
server.run()
"""
SERVERS = {
    "empty mcp server": (sys.executable, "-c", EMPTY),
    "ava serve": (str(Path(sys.executable).with_name("ava")), "serve"),
}
FLOOR, OURS = SERVERS
MODERN = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "benchmark", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
FIRST: dict[str, dict[str, Any]] = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "benchmark", "version": "1"},
    },
    "server/discover": {"_meta": MODERN},
}
STARTUP_RATIO, CALL_RATIO = 1.15, 2.5


class Server:
    """A server on pipes."""

    def __init__(self, command: Sequence[str], root: Path) -> None:
        env = {**os.environ, "AVA_DATA_ROOT": str(root)}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env, cwd=root.parent
        )
        self._id = 0

    def ask(self, method: str, params: dict[str, Any]) -> Any:
        self._id += 1
        self.send({"jsonrpc": "2.0", "id": self._id, "method": method, "params": params})
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            message = json.loads(line)
            if message.get("id") == self._id:
                return message["result"]
        raise RuntimeError(f"the server ended with {self.process.wait()} instead of answering {method}")

    def send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def end(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(10)


@contextmanager
def running(command: Sequence[str]) -> Generator[Server]:
    with tempfile.TemporaryDirectory() as folder:
        server = Server(command, Path(folder) / "data")
        try:
            yield server
        finally:
            server.end()


def startup(rounds: int) -> dict[str, dict[str, list[float]]]:
    """Seconds from the start of the process to the first answer, by first question and server."""
    took: dict[str, dict[str, list[float]]] = {method: {name: [] for name in SERVERS} for method in FIRST}
    for number in range(rounds + 1):
        for method, params in FIRST.items():
            for name in sorted(SERVERS, reverse=bool(number % 2)):  # neither is always the first
                began = time.perf_counter()
                with running(SERVERS[name]) as server:
                    server.ask(method, params)
                    if number:  # the first round only fills the caches
                        took[method][name].append(time.perf_counter() - began)
    return took


def calls(count: int) -> dict[str, list[float]]:
    """Seconds that one tool call takes, by server; in blocks of 20, turn and turn about."""
    took: dict[str, list[float]] = {name: [] for name in SERVERS}
    tools = {FLOOR: "nothing", OURS: "check_subagent"}
    with running(SERVERS[FLOOR]) as floor, running(SERVERS[OURS]) as ours:
        both = {FLOOR: floor, OURS: ours}
        for server in both.values():
            server.ask("initialize", FIRST["initialize"])
            server.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        asked = {
            "role": "custom",
            "task": "Read https://example.org/prices and say what it costs.",
            "system_prompt": "You look things up.",
        }
        proposed = ours.ask("tools/call", {"name": "spawn_subagent", "arguments": asked})
        assert proposed["structuredContent"]["status"] == "awaiting_approval", proposed
        for block in range(count // 20 + 1):
            for name, server in both.items():
                for _ in range(20):
                    began = time.perf_counter()
                    result = server.ask("tools/call", {"name": tools[name], "arguments": {}})
                    if block:
                        took[name].append(time.perf_counter() - began)
                    assert not result.get("isError"), result
    return took


def show(what: str, took: dict[str, list[float]], target: float, unit_ms: str) -> None:
    ratio = statistics.median(took[OURS]) / statistics.median(took[FLOOR])
    least = min(took[OURS]) / min(took[FLOOR])
    for name, seconds in took.items():
        median, low = statistics.median(seconds) * 1000, min(seconds) * 1000
        print(f"{what:<42} {name:<18} median {median:{unit_ms}} ms   min {low:{unit_ms}} ms   n {len(seconds)}")
    verdict = "reached" if ratio <= target else "MISSED"
    print(f"{what:<42} ratio of medians {ratio:.2f}, of minima {least:.2f}; target {target}: {verdict}\n")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rounds", type=int, default=21)
    options.add_argument("--calls", type=int, default=400)
    chosen = options.parse_args()
    for method, took in startup(chosen.rounds).items():
        show(f"start to answered {method}", took, STARTUP_RATIO, "7.1f")
    show("a tool call (check_subagent, one proposal)", calls(chosen.calls), CALL_RATIO, "7.3f")


if __name__ == "__main__":
    main()
