"""What the gateway of another agent's run adds to a model call: processor time, and time to the first byte.

    python benchmarks/gateway.py [--calls 200] [--json F]

A client process sends the same streamed calls (85 kB, a conversation that grows) directly to a scripted provider, and
through the gateway of a real run, whose meter reserves, settles and records each in a real log. Provider, gateway and
log are one process, so its processor time differs by what the gateway takes. Goals: 3 ms and 5 ms a call.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from figures import Figure, write_json

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.agents.lab import agent_lab, agent_run
from support.model_server import Say

from ava_server.agents import work
from ava_server.agents.gateway import Gateway

CPU_MS, FIRST_MS = 3.0, 5.0
CLIENT = """
import http.client, json, socket, sys, time
place, secret, calls = sys.argv[1], sys.argv[2], int(sys.argv[3])
def connect():
    if place.startswith("/"):
        made = http.client.HTTPConnection("gateway")
        made.sock = socket.socket(socket.AF_UNIX)
        made.sock.connect(place)
        return made
    return http.client.HTTPConnection(place)
tool = {"description": "Does something useful with files. " * 60, "input_schema": {"type": "object"}}
tools = [{"name": f"tool_{n}", **tool} for n in range(24)]
messages, first, whole = [], [], []
connection = connect()
for number in range(calls):
    if number % 20 == 0:
        messages = []
    text = f"{number} " + "What does it cost? " * 40
    messages.append({"role": "user", "content": [{"type": "text", "text": text}]})
    body = json.dumps({"model": "far-sonnet", "max_tokens": 800, "system": "You code. " * 3_000, "tools": tools,
                       "messages": messages, "stream": True})
    began = time.perf_counter()
    connection.request("POST", "/v1/messages", body, {"content-type": "application/json", "x-api-key": secret})
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    answer.read(1)
    first.append(time.perf_counter() - began)
    answer.read()
    whole.append(time.perf_counter() - began)
    messages.append({"role": "assistant", "content": [{"type": "text", "text": "ok"}]})
print(json.dumps({"first": first, "whole": whole, "bytes": len(body)}))
"""


async def measured(calls: int) -> dict[str, dict[str, Any]]:
    """Time calls by both ways, in turns; returns for each the times in milliseconds and the processor time a call."""
    opened: list[tuple[Gateway, Path, str]] = []
    before = work.serving

    def noted(gateway: Gateway, socket: Path) -> Any:
        opened.append((gateway, socket, gateway._secret.decode()))  # pyright: ignore[reportPrivateUsage]
        return before(gateway, socket)

    work.serving = noted  # type: ignore[assignment]

    def answer(_request: dict[str, Any]) -> Say:
        return Say("ok", usage={"prompt_tokens": 21_000, "completion_tokens": 3, "total_tokens": 0})

    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="ava-gateway-") as folder:
        limits = "[limits]\nmax_cost_cents = 100000\nuser_daily_cents = 100000\ninstallation_daily_cents = 100000\n"
        limits += "max_iterations = 10000\nmax_tokens = 900000000\nmax_timeout_s = 3600\n"
        async with agent_lab(Path(folder), answer, [[{"hang": True}]], limits) as lab:
            far = lab.server
            far.checks = False
            big = {"max_cost_cents": 90_000, "max_iterations": 9_000, "max_tokens": 800_000_000, "timeout": 3_000}
            run_id = await lab.start(**agent_run(**big))
            await lab.logged(run_id, "AgentNote")
            _gateway, socket, secret = opened[0]
            ways = {"direct": f"127.0.0.1:{far.port}", "gateway": str(socket)}
            await client(ways["gateway"], secret, 5)
            for name, place in ways.items():
                began = time.process_time()
                said = await client(place, secret, calls)
                cpu_ms = (time.process_time() - began) * 1000 / calls
                found[name] = {
                    "cpu": cpu_ms,
                    "first": statistics.median(said["first"]) * 1000,
                    "whole": statistics.median(said["whole"]) * 1000,
                    "bytes": said["bytes"],
                }
            await lab.call("cancel_subagent", subagent_id=run_id)
            await lab.ended(run_id)
    return found


async def client(place: str, secret: str, calls: int) -> dict[str, Any]:
    """Run the client process; return its times in seconds."""
    command = [sys.executable, "-c", CLIENT, place, secret, str(calls)]
    done = await anyio.to_thread.run_sync(lambda: subprocess.run(command, capture_output=True, check=False, text=True))
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--calls", type=int, default=200, help="calls by each way")
    options.add_argument("--json", type=Path, help="write the figures to this file")
    chosen = options.parse_args()
    found = anyio.run(measured, chosen.calls)
    for name, each in found.items():
        print(
            f"{name}: first byte {each['first']:.1f} ms, whole {each['whole']:.1f} ms, {each['cpu']:.1f} ms CPU a call"
        )
    added = {name: found["gateway"][name] - found["direct"][name] for name in ("cpu", "first", "whole")}
    size = found["gateway"]["bytes"]
    print(f"the gateway adds {added['cpu']:.1f} ms CPU, {added['first']:.1f} ms to the first byte ({size:,} bytes)")
    if chosen.json is not None:
        figures = [
            Figure("gateway: processor time a call", added["cpu"], "ms", CPU_MS),
            Figure("gateway: first byte", added["first"], "ms", FIRST_MS),
        ]
        write_json(chosen.json, figures)


if __name__ == "__main__":
    main()
