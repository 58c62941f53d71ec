"""How fast `ava serve` is there, and how fast it answers, beside an empty `mcp` server; what commands cost to start.

    python benchmarks/startup.py [--rounds 21] [--calls 400] [--entries 50000] [--only start|calls|commands] [--json F]

Both servers are child processes spoken to line by line over pipes, by the same code, in turns. Goals: start to
answered `initialize` and `server/discover` at most 0.7 times the empty server, `check_subagent` at most 1.4 times an
empty tool. CPU time of a command (user and system), with a log of `--entries` entries built through the real store:
`ava --help` at most 0.2 s, `ava status --once` 0.3 s, `ava logs --last 20` 0.25 s, completing `ava run re` 0.6 s;
beside an interpreter that does nothing, with and without `site`.
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
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
from audit_parts.building import _build
from figures import Figure, write_json

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
STARTUP_RATIO, CALL_RATIO = 0.7, 1.4
AVA = SERVERS[OURS][0]
COMMANDS: dict[str, tuple[Sequence[str], float | None]] = {
    "python -I -S -c pass": ((sys.executable, "-I", "-S", "-c", "pass"), None),
    "python -c pass": ((sys.executable, "-c", "pass"), None),
    "ava --help": ((AVA, "--help"), 0.2),
    "ava status --once": ((AVA, "status", "--once"), 0.3),
    "ava logs --last 20": ((AVA, "logs", "--last", "20"), 0.25),
    "ava run re<TAB>": (("env", "_AVA_COMPLETE=complete_bash", "COMP_WORDS=ava run re", "COMP_CWORD=2", AVA), 0.6),
}
"""Each with its goal in seconds of CPU time."""


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
        self.process.wait(60)


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


def commands(rounds: int, entries: int) -> dict[str, list[float]]:
    """Seconds of CPU time that a command takes, by command, in turns."""
    took: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "data"
        root.mkdir(mode=0o700)
        anyio.run(_build, root, entries)
        # With bytecode, as an installed package has it: without, an editable one is compiled again by each command.
        compiled = {"PYTHONPYCACHEPREFIX": str(Path(folder) / "bytecode"), "PYTHONDONTWRITEBYTECODE": ""}
        env = {**os.environ, "AVA_DATA_ROOT": str(root), **compiled}
        for number in range(rounds + 1):
            for name, (command, _goal) in COMMANDS.items():
                _wall_s, used = used_by(command, env)
                if number:  # the first round only fills the caches
                    took[name].append(used)
    return took


def used_by(command: Sequence[str], env: Mapping[str, str]) -> tuple[float, float]:
    """Seconds on the clock, and of user and system time, of a child that has to succeed."""
    nothing, began = subprocess.DEVNULL, time.perf_counter()
    process = subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing, env=env)
    _pid, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return time.perf_counter() - began, used.ru_utime + used.ru_stime


def show(what: str, took: dict[str, list[float]], goal: float, unit_ms: str) -> Figure:
    ratio = statistics.median(took[OURS]) / statistics.median(took[FLOOR])
    least = min(took[OURS]) / min(took[FLOOR])
    for name, seconds in took.items():
        median, low = statistics.median(seconds) * 1000, min(seconds) * 1000
        print(f"{what:<42} {name:<18} median {median:{unit_ms}} ms   min {low:{unit_ms}} ms   n {len(seconds)}")
    figure = Figure(what, statistics.median(took[OURS]) * 1000, "ms", goal, floor=statistics.median(took[FLOOR]) * 1000)
    verdict = "reached" if figure.reached else "MISSED"
    print(f"{what:<42} ratio of medians {ratio:.2f}, of minima {least:.2f}; goal {goal}: {verdict}\n")
    return figure


def show_commands(took: dict[str, list[float]]) -> list[Figure]:
    figures: list[Figure] = []
    for name, seconds in took.items():
        median, goal = statistics.median(seconds), COMMANDS[name][1]
        line = f"CPU time of {name:<24} median {median:.3f} s   min {min(seconds):.3f} s   n {len(seconds)}"
        if goal is not None:
            figures.append(Figure(f"CPU time of {name}", median, "s", goal))
            line += f"   goal {goal}: {'reached' if figures[-1].reached else 'MISSED'}"
        print(line)
    return figures


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rounds", type=int, default=21)
    options.add_argument("--calls", type=int, default=400)
    options.add_argument("--entries", type=int, default=50_000)
    options.add_argument("--only", choices=("start", "calls", "commands"))
    options.add_argument("--json", type=Path)
    chosen = options.parse_args()
    figures: list[Figure] = []
    if chosen.only in (None, "start"):
        for method, took in startup(chosen.rounds).items():
            figures.append(show(f"start to answered {method}", took, STARTUP_RATIO, "7.1f"))
    if chosen.only in (None, "calls"):
        figures.append(show("a tool call (check_subagent, one proposal)", calls(chosen.calls), CALL_RATIO, "7.3f"))
    if chosen.only in (None, "commands"):
        figures += show_commands(commands(chosen.rounds, chosen.entries))
    if chosen.json is not None:
        write_json(chosen.json, figures)


if __name__ == "__main__":
    main()
