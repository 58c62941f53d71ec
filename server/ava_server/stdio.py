"""The stdio transport: ended by end of stdin, SIGTERM or SIGINT, each within 5 s and with everything on record.

The SDK's own `run()` dies at SIGTERM without clean-up, and hangs at SIGINT on the thread that reads stdin
(shared/notes/mcp-sdk.md): here stdin is read by the event loop, and signals end the one task that serves.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import anyio
from mcp.server.stdio import stdio_server

from ava_server.app import build_server

if TYPE_CHECKING:
    from ava_server.settings import Settings

LINE_BYTES = 16 * 1024 * 1024
"""A longer message than any host sends ends the connection."""
EXIT_WITHIN_S = 4.5


def serve(load: Callable[[], Settings]) -> int:
    """Serve one host over stdin and stdout until it goes away; returns the exit code."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="ava: %(message)s")
    return anyio.run(_serve, load)


async def _serve(load: Callable[[], Settings]) -> int:
    server = build_server(load)
    code = 0
    async with anyio.create_task_group() as tasks:
        serving = anyio.CancelScope()

        async def on_signal() -> None:
            nonlocal code
            with anyio.open_signal_receiver(*_signals()) as signals:
                async for number in signals:
                    code = 128 + number if number == signal.SIGINT else 0
                    serving.cancel()
                    _exit_at_last(code)
                    return

        tasks.start_soon(on_signal)
        with serving:
            async with stdio_server(stdin=cast("Any", await _stdin())) as (read, write):
                await server.run(read, write, server.create_initialization_options())
        _exit_at_last(code)
        tasks.cancel_scope.cancel()
    return code


def _signals() -> tuple[signal.Signals, ...]:
    """Return the signals that end a server on this system."""
    return (signal.SIGINT,) if sys.platform == "win32" else (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def _exit_at_last(code: int) -> None:
    """End the process when clean-up has not come to an end in time: what was acknowledged is on the disk."""
    loop = asyncio.get_running_loop()
    loop.call_later(EXIT_WITHIN_S, os._exit, code)


async def _stdin() -> Any:
    """Return stdin as an iterator of lines, read by the event loop where the system can; by a thread on Windows."""
    if sys.platform == "win32":
        return anyio.wrap_file(sys.stdin)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=LINE_BYTES, loop=loop)
    try:
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader, loop=loop), sys.stdin)
    except ValueError:  # stdin is a regular file: read by a thread, it never blocks
        return anyio.wrap_file(sys.stdin)
    return _lines(reader)


async def _lines(reader: asyncio.StreamReader) -> AsyncIterator[str]:
    with suppress(ConnectionError):
        while line := await reader.readline():
            yield line.decode("utf-8", "replace")
