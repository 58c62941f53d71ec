"""What uses the background process of a data root: `ava ui` with its browser, and `ava connect` with its host."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path

import anyio.to_thread
import httpx2

from ava_audit.store.locks import try_hold
from ava_server.core.data_root import DataRoot
from support.processes import environment_of, lives
from support.stdio import model_env, until
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
    return await anyio.to_thread.run_sync(host_headers, root.path, port)


def host_headers(root: Path, port: int) -> dict[str, str]:
    """Return what `ava connect` gives a host, which asks again on a machine where the server starts slowly."""
    done = ava(root, "connect", "--port", str(port))
    if "did not start within" in done.stderr:
        done = ava(root, "connect", "--port", str(port))
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


def default_env(base_url: str) -> dict[str, str]:
    """The variables of a server that uses the scripted model server, and leaves its runs to a worker."""
    return {**model_env(base_url), "AVA_BACKGROUND": ""}


def workers_of(root: Path) -> list[int]:
    """The processes that are a worker of a data root, without the programs that start them again."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and lives(int(entry.name)):
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if (
                    b"worker" in words
                    and b"-S" not in words
                    and environment_of(int(entry.name)).get("AVA_DATA_ROOT") == str(root)
                ):
                    found.append(int(entry.name))
    return found


def descendants_of(pid: int) -> set[int]:
    """A process and all that it has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    found = [int(child) for child in children.read_text().split()] if children.exists() else []
    return {pid}.union(*map(descendants_of, found))


@asynccontextmanager
async def end_workers(root: Path) -> AsyncGenerator[None]:
    """End the workers of a data root, each within 5 s."""
    try:
        yield
    finally:
        for pid in workers_of(root):
            os.kill(pid, signal.SIGTERM)
    await until(lambda: not workers_of(root), within_s=5)


def lock_is_held(path: Path) -> bool:
    with try_hold(path) or nullcontext() as lock:
        return lock is None
