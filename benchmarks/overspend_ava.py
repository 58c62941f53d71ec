"""Give `overspend` a gateway of Ava for each budget: a run of another agent that does nothing, with its cap as budget.

python benchmarks/overspend_ava.py [--provider-port 8199] [--budget-usd 0.20] [--schedules 20]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from anyio.abc import ByteStream, SocketAttribute, SocketStream

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.agents.lab import agent_lab, agent_run
from support.runtime import Lab

from ava_server.agents import work
from ava_server.agents.gateway import Gateway

PROGRAM = Path(__file__).resolve().parent / "overspend"

LIMITS = """[limits]
max_iterations = 10000
max_tokens = 900000000
max_tool_calls = 10000
spawns_per_hour = 10000
user_daily_cents = 1000000
installation_daily_cents = 1000000
running_per_user = 2
"""


async def main(options: argparse.Namespace) -> None:
    opened: list[tuple[Path, str]] = []
    before = work.serving

    def noted(gateway: Gateway, socket: Path) -> Any:
        opened.append((socket, gateway._secret.decode()))  # pyright: ignore[reportPrivateUsage]
        return before(gateway, socket)

    work.serving = noted  # type: ignore[assignment]
    with tempfile.TemporaryDirectory(prefix="ava-overspend-") as folder:
        far = f"http://127.0.0.1:{options.provider_port}/v1"
        async with (
            agent_lab(Path(folder), [], [[{"hang": True}]], LIMITS, provider=far) as lab,
            anyio.create_task_group() as tasks,
        ):
            if True:
                listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
                runs: list[str] = []

                async def new(stream: SocketStream) -> None:
                    """Answer with a new run's gateway; the run before it is cancelled."""
                    async with stream:
                        for run_id in runs[-1:]:
                            await lab.call("cancel_subagent", subagent_id=run_id)
                            await lab.ended(run_id)
                        runs.append(await started(lab, options.budget_usd))
                        socket, secret = opened[-1]
                        place = await anyio.create_tcp_listener(local_host="127.0.0.1")
                        port = place.extra(SocketAttribute.local_port)
                        tasks.start_soon(place.serve, lambda each: relay(each, socket))
                        at = {"base_url": f"http://127.0.0.1:{port}/v1", "key": secret, "model": "far-sonnet"}
                        await stream.send(json.dumps(at).encode())

                tasks.start_soon(listener.serve, new)
                control = listener.extra(SocketAttribute.local_port)
                ask = (
                    f"import socket; s = socket.create_connection(('127.0.0.1', {control})); print(s.makefile().read())"
                )
                command = [
                    sys.executable, str(PROGRAM), "--new", f'{sys.executable} -c "{ask}"', "--wire", "messages",
                    "--provider-port", str(options.provider_port), "--budget-usd", str(options.budget_usd),
                    "--schedules", str(options.schedules),
                ]  # fmt: skip
                await anyio.to_thread.run_sync(lambda: subprocess.run(command, check=True))
                booked = [(await lab.run(run_id)).cost_micros for run_id in runs]
                print(
                    json.dumps({"most_booked_micro_usd": max(booked), "cap_micro_usd": round(options.budget_usd * 1e6)})
                )
                tasks.cancel_scope.cancel()


async def started(lab: Lab, budget: float) -> str:
    run_id = await lab.start(
        **agent_run(max_cost_cents=budget * 100, max_iterations=9_000, max_tokens=800_000_000, max_tool_calls=9_000)
    )
    await lab.logged(run_id, "AgentNote")
    return run_id


async def relay(stream: SocketStream, socket: Path) -> None:
    """Pass a connection on to the socket on which the gateway listens."""

    async def copy(source: ByteStream, target: ByteStream) -> None:
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            while True:
                await target.send(await source.receive())
        with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            await target.send_eof()

    with suppress(OSError):
        async with stream, await anyio.connect_unix(socket) as far, anyio.create_task_group() as both:
            both.start_soon(copy, stream, far)
            both.start_soon(copy, far, stream)


if __name__ == "__main__":
    given = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    given.add_argument("--provider-port", type=int, default=8199)
    given.add_argument("--budget-usd", type=float, default=0.20)
    given.add_argument("--schedules", type=int, default=20)
    anyio.run(main, given.parse_args())
