"""A proxy in front of a server over HTTP: one that cuts what is silent, or one that holds every answer back.

cut: list[float] = []
async with between(server.port, cut, idle_s=60) as url, server.client(text, url=url) as client: ...
assert not cut
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
import anyio.abc


@dataclass
class Line:
    scope: anyio.CancelScope
    last: float


@asynccontextmanager
async def between(
    port: int, cut: list[float], *, idle_s: float | None = None, buffers: bool = False
) -> AsyncGenerator[str]:
    """A proxy that cuts a connection which is silent for so long, or that holds an answer back until it is whole."""

    async def pump(source: Any, sink: Any, *, held: bool, line: Line) -> None:
        kept = b""
        try:
            while True:
                data = await source.receive()
                if not held:
                    line.last = anyio.current_time()
                    await sink.send(data)
                    continue
                kept += data
                head, _, body = kept.partition(b"\r\n\r\n")
                if b"transfer-encoding: chunked" not in head.lower() or body.endswith(b"0\r\n\r\n"):
                    await sink.send(kept)
                    kept = b""
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            line.scope.cancel()

    async def handle(client: anyio.abc.SocketStream) -> None:
        async with client, await anyio.connect_tcp("127.0.0.1", port) as upstream, anyio.create_task_group() as tasks:
            line = Line(tasks.cancel_scope, anyio.current_time())
            tasks.start_soon(partial(pump, client, upstream, held=False, line=line))
            tasks.start_soon(partial(pump, upstream, client, held=buffers, line=line))
            while idle_s is not None:
                await anyio.sleep(0.1)
                if anyio.current_time() - line.last > idle_s:
                    cut.append(anyio.current_time())
                    tasks.cancel_scope.cancel()

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, handle)
        yield f"http://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}/mcp"
        tasks.cancel_scope.cancel()
