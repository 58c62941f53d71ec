"""Ava as it is: a runtime on a data root of its own, runs proposed and approved at the service, everything on the disk.

    python -m loop_parts.ava PORT keep|kept stream|whole [asyncio]

It runs in the event loop that servers and workers have, unless `asyncio` asks for the interpreter's own. With `kept`
another process's keeper has the log (its lock is held here), so that the keeper's share is not in the figures; with
`keep` the runtime has its own, and what it still has to do after the last turn is told apart.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from ava_audit.rows import UNENDED
from ava_audit.store.locks import try_hold
from ava_audit.view import View
from ava_server.config.settings import load_settings
from ava_server.core.threads import run_server
from ava_server.service.access import Session
from ava_server.service.runtime import Runtime, open_runtime
from ava_server.service.service import Service
from loop_parts.child import TASK, serve

CONFIG = """
approval = "ask"
mirror = true
[limits]
running_per_user = 10000
running = 10000
spawns_per_hour = 1000000
user_daily_cents = 100000000
installation_daily_cents = 100000000
max_cost_cents = 1000
max_tokens = 100000000
max_iterations = 1000
max_tool_calls = 1000
[providers.custom]
base_url = "{url}"
stream = {stream}
[prices."custom:test"]
input = 3.0
output = 15.0
cache_read = 0.3
cache_write = 3.75
"""
"""Caps that nothing here meets, and prices: without them an endpoint on loopback would be free."""

ROLE = """---
name: bench
description: Looks something up.
tools: []
---

Look it up, and keep notes.
"""
CAPS = {"timeout": 600, "max_cost_cents": 1000, "max_tokens": 10_000_000, "max_iterations": 900, "max_tool_calls": 900}
LOOK_S = 0.1


class Ava:
    """The service of an open house."""

    def __init__(self, runtime: Runtime, keeps: bool) -> None:
        self._house = runtime
        self._keeps = keeps
        session = Session(user=runtime.user, transport="memory")
        runtime.manager.sessions.add(session.id)
        self._desk = Service(runtime, session)

    async def begin(self, number: int) -> None:
        proposed = await self._call("spawn_subagent", role="bench", task=f"{TASK} ({number})", **CAPS)
        assert proposed.status == "awaiting_approval", proposed
        approved = await self._call(
            "confirm_spawn", pending_ids=[proposed.pending_id], approving=[proposed.approval_line]
        )
        assert approved.status == "approved", approved

    async def _call(self, tool: str, **given: object) -> object:
        async def progress(_line: str) -> None:
            pass

        return await self._desk.call(tool, given, progress)

    async def settle(self) -> None:
        """Wait until the keeper has dealt with what the log had when the turns were done."""
        upto = self._house.store.head
        while self._keeps and not await self._house.store.read(lambda view: _kept(view, upto)):  # noqa: ASYNC110
            await anyio.sleep(LOOK_S)

    async def ended(self) -> None:
        while await self._house.store.read(lambda view: view.runs(states=UNENDED)):  # noqa: ASYNC110
            await anyio.sleep(LOOK_S)


def _kept(view: View, upto: int) -> bool:
    return min(view.progress("words"), view.progress("mirror")) >= upto


@asynccontextmanager
async def ava(url: str, keeps: bool, streams: bool) -> AsyncGenerator[Ava]:
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        root = Path(folder) / "data"
        roles = root / "roles"
        roles.mkdir(mode=0o700, parents=True)
        root.chmod(0o700)
        (root / "config.toml").write_text(CONFIG.format(url=url, stream=str(streams).lower()), "utf-8")
        (roles / "bench.md").write_text(ROLE, "utf-8")
        if not keeps:
            held = try_hold(root / "keeper.lock")
            assert held is not None
            stack.enter_context(held)
        env = {"AVA_MODEL_BASE_URL": url, "AVA_MODEL": "test", "AVA_BACKGROUND": "false"}
        settings = load_settings(root, env=env)
        async with open_runtime(settings) as runtime:
            yield Ava(runtime, keeps)


if __name__ == "__main__":
    own, streamed = sys.argv[2] == "keep", sys.argv[3] == "stream"
    serve(lambda url: ava(url, own, streamed), None if "asyncio" in sys.argv else run_server)
