"""A real forward proxy on 127.0.0.1: CONNECT tunnels and plain requests in absolute form, well or badly done.

It runs in a thread of its own, as the model server does:

    with run_proxy({"api.example.com": server.port}) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        ... proxy.tunnels ... proxy.requests ... proxy.wait_for_nobody() ...

The other one, `run_faulty_proxy`, stands in front of a server: it cuts what is silent, or holds every answer back.
"""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import anyio
import anyio.abc

from support.threads import listen_in_thread

Stall = Literal["answer", "tunnel", "never"]


@dataclass
class Proxy:
    """What a test sees of the proxy, and what it may change while it runs.

    `routes` are ports on 127.0.0.1 by the name that is asked for; others are answered 502. `login` is the
    `user:password` that it asks for, `refuses` a status with which it answers everything. It `stalls` before its answer
    to a request, or in the tunnel that it has opened; it `hangs_up` instead of answering. `tunnels` and `requests` are
    what came, in order.
    """

    routes: Mapping[str, int]
    login: str | None = None
    refuses: int | None = None
    stalls: Stall = "never"
    hangs_up: bool = False
    port: int = 0
    scheme: str = "http"
    tunnels: list[str] = field(default_factory=list[str])
    requests: list[str] = field(default_factory=list[str])
    logins: list[str] = field(default_factory=list[str])
    asked: threading.Event = field(default_factory=threading.Event)
    _open: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.place}"

    def url_of(self, login: str) -> str:
        return f"{self.scheme}://{login}@{self.place}"

    def count(self, change: int) -> None:
        with self._changed:
            self._open += change
            self._changed.notify_all()

    def wait_for_nobody(self, within_s: float = 2.0) -> bool:
        """Wait until no connection is open any more, neither from a client nor to a server behind."""
        with self._changed:
            return self._changed.wait_for(lambda: self._open == 0, within_s)


@contextmanager
def run_proxy(routes: Mapping[str, int], certificate: Path | None = None) -> Generator[Proxy]:
    """Run a proxy in a thread until the block ends; with a PEM file, clients speak TLS to it."""
    proxy = Proxy(routes, scheme="https" if certificate else "http")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        proxy.count(1)
        try:
            await _serve(proxy, reader, writer)
        finally:
            await _close(writer)
            proxy.count(-1)

    with listen_in_thread("proxy", serve, certificate=certificate) as ((proxy.port,), _loop):
        yield proxy


async def _serve(proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _version = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines) if name}
    (proxy.tunnels if method == "CONNECT" else proxy.requests).append(target)
    given = headers.pop("proxy-authorization", None)
    if given is not None:
        proxy.logins.append(given)
    proxy.asked.set()
    if proxy.stalls == "answer":
        await reader.read()  # until the client goes
        return
    if proxy.hangs_up:
        return
    wanted = None if proxy.login is None else "Basic " + base64.b64encode(proxy.login.encode()).decode()
    host = urlsplit(f"//{target}" if method == "CONNECT" else target).hostname or ""
    status = proxy.refuses or (407 if wanted not in (None, given) else None if host in proxy.routes else 502)
    if status is not None:
        words = f"no way to {target} for {given}".encode()  # a proxy that repeats what it was sent
        writer.write(b"HTTP/1.1 %d %b\r\ncontent-length: %d\r\n\r\n%b" % (status, words, len(words), words))
        await writer.drain()
        return
    if method == "CONNECT" and proxy.stalls == "tunnel":
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await reader.read()
        return
    inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", proxy.routes[host])
    proxy.count(1)
    try:
        if method == "CONNECT":
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            parts = urlsplit(target)
            path = parts.path + (f"?{parts.query}" if parts.query else "")
            kept = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            inner_writer.write(f"{method} {path} HTTP/1.1\r\n{kept}\r\n".encode("latin-1"))
        ways = {
            asyncio.ensure_future(_pass_on(reader, inner_writer)),
            asyncio.ensure_future(_pass_on(inner_reader, writer, last=method != "CONNECT")),
        }
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
    finally:
        await _close(inner_writer)
        proxy.count(-1)


async def _close(writer: asyncio.StreamWriter) -> None:
    """Close a connection, and do not wait for a client that speaks TLS to say good-bye."""
    writer.close()
    await asyncio.sleep(0)  # what is written goes out
    writer.transport.abort()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, last: bool = False) -> None:
    if last:  # the proxy reads one request of a connection, and says so
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(head[:-2] + b"connection: close\r\n\r\n")
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()


@dataclass
class Line:
    scope: anyio.CancelScope
    last: float


@asynccontextmanager
async def run_faulty_proxy(
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
