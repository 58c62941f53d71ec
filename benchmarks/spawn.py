"""What `spawn_subagent` costs, and how soon a confirmed run is at its model.

    python benchmarks/spawn.py [--rounds 9] [--json FILE]

A spawn is measured in one process, with the real log on the disk: its Python function calls in all threads, and its
commits. From `confirm_spawn` to the model is measured twice: with the service in this process, and with `ava serve` on
pipes. Both times an endpoint in a process of its own notes when the first request of the run has come. The floor is a
bare httpx2 client that connects to the same endpoint and asks. Under `background`, a worker process takes the run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.request import urlopen

import anyio
import httpx2
from figures import Figure, write_json

from ava_audit.store.writer import Writer
from ava_server.config.settings import load_settings
from ava_server.service.access import Session
from ava_server.service.runtime import Runtime, open_runtime
from ava_server.service.service import Service

CALLS, COMMITS, FIRST_MS = 1_200, 1, 15.0
SETTLED_S = 1.5
"""Until a server has done what it does after its start."""
ENDPOINT = """
import http.server, json, socketserver, time
came = []
DONE = {"summary": "done", "output": "done", "confidence": 0.5}
CALL = {"id": "c", "type": "function", "function": {"name": "submit_result", "arguments": json.dumps(DONE)}}
ANSWER = {"id": "x", "object": "chat.completion", "created": 1, "model": "test",
    "choices": [{"index": 0, "finish_reason": "tool_calls", "message": {"role": "assistant", "tool_calls": [CALL]}}],
    "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}}
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        came.append(time.monotonic())
        self.rfile.read(int(self.headers["content-length"]))
        self.say(ANSWER)
    def do_GET(self):
        self.say(came)
    def say(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args):
        pass
class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
server = Server(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""
CONFIG = """
approval = "ask"
background = {background}
[limits]
spawns_per_hour = 100000
running = 1000
running_per_user = 1000
user_daily_cents = 100000000
installation_daily_cents = 100000000
[workspace]
roots = ["{workspace}"]
[providers.custom]
base_url = "{url}"
stream = false
[prices."custom:test"]
input = 3.0
output = 15.0
"""
MODERN = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "benchmark", "version": "1"},
}


@dataclass
class Endpoint:
    """A model's endpoint in a process of its own."""

    url: str

    def came(self) -> list[float]:
        """Return when requests have come, on the clock that all processes of this machine share."""
        with urlopen(f"{self.url}/came", timeout=10) as answer:
            times: list[float] = json.load(answer)
        return times

    def next_after(self, count: int) -> float:
        """Wait for another request than the first `count`, and return when it came."""
        until = time.monotonic() + 30
        while time.monotonic() < until:
            if len(times := self.came()) > count:
                return times[count]
            time.sleep(0.02)
        raise SystemExit("no request came within 30 s")


@contextmanager
def endpoint() -> Generator[Endpoint]:
    with subprocess.Popen([sys.executable, "-c", ENDPOINT], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Endpoint(f"http://127.0.0.1:{process.stdout.readline().strip()}")
        finally:
            process.kill()


def make_root(folder: Path, url: str, *, background: bool = False) -> Path:
    """Make a data root and a workspace beside it."""
    root = folder / "data"
    root.mkdir(mode=0o700)
    (workspace := folder / "workspace").mkdir()
    config = CONFIG.format(url=url, background=str(background).lower(), workspace=workspace)
    (root / "config.toml").write_text(config, "utf-8")
    return root


# -- in this process --------------------------------------------------------------------------------------------------


class Ava:
    """The service of an open runtime."""

    def __init__(self, runtime: Runtime, workspace: Path) -> None:
        session = Session(user=runtime.user, transport="memory")
        runtime.manager.sessions.add(session.id)
        self.runtime = runtime
        self._service = Service(runtime, session)
        self._workspace = workspace

    async def call(self, tool: str, **given: Any) -> Any:
        async def progress(_line: str) -> None:
            pass

        return await self._service.call(tool, given, progress)

    async def spawn(self, **more: Any) -> Any:
        given = {"role": "researcher", "task": "What is it?", "workspace": str(self._workspace), **more}
        made = await self.call("spawn_subagent", **given)
        assert made.status == "awaiting_approval", made
        return made

    async def confirm(self, made: Any) -> None:
        answer = await self.call("confirm_spawn", pending_ids=[made.pending_id], approving=[made.approval_line])
        assert answer.status == "approved", answer


@asynccontextmanager
async def ava(url: str) -> AsyncGenerator[Ava]:
    with tempfile.TemporaryDirectory() as folder:
        root = make_root(Path(folder), url)
        env = {"AVA_MODEL_BASE_URL": url, "AVA_MODEL": "test", "AVA_BACKGROUND": "false"}
        settings = load_settings(root, env=env)
        async with open_runtime(settings) as runtime:
            yield Ava(runtime, Path(folder) / "workspace")


class Counted:
    """Counts the Python functions that are called in all threads, and the transactions of the writer."""

    def __init__(self) -> None:
        self.calls = self.commits = 0
        self._commit = Writer._commit

    def __enter__(self) -> Counted:
        def called(_frame: FrameType, event: str, _argument: object) -> None:
            self.calls += event == "call"

        def commit(writer: Writer, *given: Any) -> None:
            self.commits += 1
            self._commit(writer, *given)

        Writer._commit = commit  # type: ignore[method-assign]
        threading.setprofile_all_threads(called)
        return self

    def __exit__(self, *_error: object) -> None:
        threading.setprofile_all_threads(None)
        Writer._commit = self._commit  # type: ignore[method-assign]


async def spawns(url: str, rounds: int) -> tuple[float, float, float]:
    """Return the function calls and the commits of a spawn, and its CPU time in ms, the least of each."""
    counted: list[Counted] = []
    took: list[float] = []
    async with ava(url) as open_ava:
        for _ in range(3):
            await open_ava.spawn()
        await anyio.sleep(SETTLED_S)
        for _ in range(rounds):
            with Counted() as count:
                await open_ava.spawn()
            counted.append(count)
            await anyio.sleep(0.3)
            began = time.process_time()
            await open_ava.spawn()
            took.append((time.process_time() - began) * 1000)
            await anyio.sleep(0.3)
    return min(each.calls for each in counted), min(each.commits for each in counted), min(took)


async def confirmed(model: Endpoint, rounds: int) -> list[float]:
    """Return the ms from each confirmation in this process to the request; the first is that of the first run."""
    took: list[float] = []
    async with ava(model.url) as open_ava:
        await anyio.sleep(SETTLED_S)
        for _ in range(rounds):
            made = await open_ava.spawn()
            await anyio.sleep(0.3)
            count = len(await anyio.to_thread.run_sync(model.came))
            began = time.monotonic()
            await open_ava.confirm(made)
            took.append((await anyio.to_thread.run_sync(model.next_after, count) - began) * 1000)
            await open_ava.runtime.manager.ended(made.subagent_id)
            await anyio.sleep(0.3)
    return took


async def keep_spawning(url: str) -> None:
    """Propose without an end; each proposal replaces the one before."""
    async with ava(url) as open_ava:
        await open_ava.spawn()
        print("ready", flush=True)
        for number in itertools.count():
            await open_ava.spawn(task_id="busy", task=f"What is number {number}?")


@contextmanager
def spawning() -> Generator[int]:
    """Start a process that proposes without an end, and yield its id (for a flame graph)."""
    command = [sys.executable, __file__, "--endless"]
    with endpoint() as model, subprocess.Popen([*command, model.url], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()


# -- over stdio -------------------------------------------------------------------------------------------------------


class Server:
    """`ava serve` on pipes."""

    def __init__(self, root: Path, url: str) -> None:
        env = {**os.environ, "AVA_DATA_ROOT": str(root), "AVA_MODEL_BASE_URL": url, "AVA_MODEL": "test"}
        self.process = subprocess.Popen(
            [str(Path(sys.executable).with_name("ava")), "serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=env,
            cwd=root.parent,
        )
        self._id = 0
        self.ask("initialize", MODERN)
        self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def _send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdout is not None
        self._id += 1
        self._send({"jsonrpc": "2.0", "id": self._id, "method": method, "params": params})
        while line := self.process.stdout.readline():
            answer: dict[str, Any] = json.loads(line)
            if answer.get("id") == self._id:
                return answer
        raise SystemExit("ava serve has ended")

    def call(self, tool: str, given: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("tools/call", {"name": tool, "arguments": given})["result"][
            "structuredContent"
        ]
        return found


def served(model: Endpoint, rounds: int, *, background: bool = False) -> list[float]:
    """Return the ms from each confirmation over stdio to the request; the first is that of the first run."""
    took: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        root = make_root(Path(folder), model.url, background=background)
        server = Server(root, model.url)
        try:
            time.sleep(2 * SETTLED_S)
            for _ in range(rounds):
                task = {"role": "researcher", "task": "What is it?", "workspace": str(Path(folder) / "workspace")}
                made = server.call("spawn_subagent", task)
                time.sleep(0.3)
                count = len(model.came())
                began = time.monotonic()
                server.call(
                    "confirm_spawn", {"pending_ids": [made["pending_id"]], "approving": [made["approval_line"]]}
                )
                took.append((model.next_after(count) - began) * 1000)
                time.sleep(0.5)
        finally:
            assert server.process.stdin is not None
            server.process.stdin.close()
            server.process.wait(20)
            time.sleep(1 if background else 0)
    return took


def bare(model: Endpoint, rounds: int) -> list[float]:
    """Return the ms in which an httpx2 client without a connection connects and its request has come."""
    took: list[float] = []
    for _ in range(rounds):
        count = len(model.came())
        with httpx2.Client(trust_env=False) as client:
            began = time.monotonic()
            client.post(f"{model.url}/chat/completions", json={"messages": []}).raise_for_status()
        took.append((model.next_after(count) - began) * 1000)
    return took


def measured(rounds: int) -> Iterable[Figure]:
    with endpoint() as model:
        calls, commits, cpu_ms = anyio.run(spawns, model.url, rounds)
        print(f"spawn: {calls:,.0f} function calls, {commits:.0f} commits, {cpu_ms:.1f} ms of CPU", flush=True)
        yield Figure("function calls of a spawn", calls, "calls", CALLS)
        yield Figure("commits of a spawn", commits, "commits", COMMITS)
        floor = statistics.median(bare(model, rounds))
        print(f"a bare client's request: {floor:.1f} ms")
        for where, took in (
            ("in process", anyio.run(confirmed, model, rounds + 1)),
            ("over stdio", served(model, rounds + 1)),
            ("under background", served(model, 4, background=True)),
        ):
            first, later = took[0], statistics.median(took[1:])
            what = f"confirmed to first request, {where}"
            print(f"{what}: first run {first:.1f} ms, later ones {later:.1f} ms", flush=True)
            if where != "under background":
                for which, value in (("first run", first), ("later runs", later)):
                    yield Figure(f"{what}, {which}", value, "ms", FIRST_MS)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--json", type=Path, help="write the figures here")
    options.add_argument("--endless", metavar="URL", help="propose without an end, with a model at this address")
    chosen = options.parse_args()
    if chosen.endless:
        anyio.run(keep_spawning, chosen.endless)
        return
    figures = list(measured(chosen.rounds))
    if chosen.json is not None:
        write_json(chosen.json, figures)


if __name__ == "__main__":
    main()
