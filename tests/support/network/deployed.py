"""The files under docs/deploy/, and the programs that they are for, as far as they are installed here."""

from __future__ import annotations

import shutil
import socket
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

FOLDER = Path(__file__).parents[3] / "docs" / "deploy"


def tool(name: str) -> str:
    """The path of a program; skips the test where it is not installed."""
    found = shutil.which(name, path=f"{Path(sys.executable).parent}:/usr/bin:/usr/sbin:/usr/local/bin")
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@asynccontextmanager
async def behind(command: tuple[str, ...], port: int, env: Mapping[str, str] | None = None) -> AsyncGenerator[None]:
    """Run a proxy until the block ends."""
    async with await anyio.open_process(command, env=env, stdout=None, stderr=None) as process:
        try:
            with anyio.fail_after(20):
                while True:
                    try:
                        await (await anyio.connect_tcp("127.0.0.1", port)).aclose()
                        break
                    except OSError:
                        await anyio.sleep(0.1)
            yield
        finally:
            process.terminate()
