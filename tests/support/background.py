"""What uses the background process of a data root: `ava ui` with its browser, and `ava connect` with its host."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial

import anyio.to_thread
import httpx2

from ava_server.core.data_root import DataRoot
from support.processes import lives
from support.stdio import until
from support.terminal import ava

HELLO = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
OPENING = re.compile(r"http://localhost:\d+/enter\?code=\S+")


def process_of(root: DataRoot) -> int:
    return int(root.worker_process.read_text().split()[0])


@asynccontextmanager
async def end_at_last(root: DataRoot) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        with suppress(OSError):
            os.kill(process_of(root), signal.SIGTERM)
            await until(lambda: not lives(process_of(root)), within_s=15)


async def ui_address(root: DataRoot, env: Mapping[str, str] | None = None) -> str:
    """Return the address that `ava ui` shows."""
    done = await anyio.to_thread.run_sync(partial(ava, root.path, "ui", "--no-browser", env=env or {}))
    found = OPENING.search(done.stdout)
    assert found is not None, done
    return found[0]


async def headers(root: DataRoot, port: int) -> dict[str, str]:
    """Return what `ava connect` gives a host of this machine."""
    done = await anyio.to_thread.run_sync(partial(ava, root.path, "connect", "--port", str(port)))
    assert done.returncode == 0, done.stderr
    given: dict[str, str] = json.loads(done.stdout)
    return given


def browser() -> httpx2.AsyncClient:
    return httpx2.AsyncClient(follow_redirects=True, headers={"Accept": "text/html"}, timeout=20, trust_env=False)


async def request_status(port: int, given: dict[str, str]) -> int:
    """Return the status with which a host's request is answered."""
    wanted = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-11-25", **given}
    async with httpx2.AsyncClient(trust_env=False, timeout=20) as client:
        return (await client.post(f"http://127.0.0.1:{port}/mcp", json=HELLO, headers=wanted)).status_code
