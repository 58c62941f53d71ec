"""A real web site on 127.0.0.1 that the guarded fetcher takes for a public one.

The resolver answers a public address, and a network backend connects that address to the local server;
everything between (URL checks, the guard, the pool, TLS, HTTP) is the real thing.

    async with site({"/": "<h1>Hello</h1>"}) as web:
        page = await web.fetcher.get(web.url("/"))
"""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.abc
import httpcore2
from anyio.streams.tls import TLSStream

from ava_roles.net.fetch import Fetcher

PUBLIC = "93.184.215.14"
HOST = "docs.example.com"

Writer = Callable[[anyio.abc.ByteStream], Awaitable[None]]
"""Writes a whole response, head included, in whatever bad manner a test wants."""


@dataclass(frozen=True)
class Page:
    body: str | bytes = ""
    status: int = 200
    content_type: str = "text/html; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Seen:
    """A request as the server saw it; header names in lower case."""

    path: str
    host: str
    headers: Mapping[str, str]


Answer = str | bytes | Page | Writer


class Redirected(httpcore2.AsyncNetworkBackend):
    """Connects every address to the local server, and notes which was asked for."""

    def __init__(self, port: int, connected: list[tuple[str, int]]) -> None:
        self._port = port
        self._connected = connected
        self._inner = cast("httpcore2.AsyncNetworkBackend", httpcore2.AnyIOBackend())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        self._connected.append((host, port))
        return await self._inner.connect_tcp("127.0.0.1", self._port, timeout=timeout)


@dataclass
class Site:
    """A running site.

    Attributes:
        pages: What it answers by path (with query); may be changed while it runs.
        requests: What it was asked, in order.
        connected: Addresses and ports that the fetcher connected to.
        resolved: Names that were looked up, in order.
        answers: Addresses by name; a list is used up one lookup after the other. Others get PUBLIC.
        fetcher: A fetcher that reaches this site whatever the URL's host.
        pauses: Seconds that the fetcher wanted to wait between requests; it does not really wait.
    """

    pages: dict[str, Answer]
    port: int
    scheme: str = "http"
    requests: list[Seen] = field(default_factory=list[Seen])
    connected: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    resolved: list[str] = field(default_factory=list[str])
    answers: dict[str, list[Sequence[str]]] = field(default_factory=dict[str, list[Sequence[str]]])
    pauses: list[float] = field(default_factory=list[float])
    now: float = 0.0
    context: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        self.fetcher = Fetcher(
            self._resolve,
            Redirected(self.port, self.connected),
            context=self.context,
            clock=lambda: self.now,
            sleep=self._sleep,
        )

    def url(self, path: str, host: str = HOST) -> str:
        return f"{self.scheme}://{host}{path}"

    @property
    def paths(self) -> list[str]:
        return [seen.path for seen in self.requests]

    async def _resolve(self, host: str, port: int) -> Sequence[str]:
        self.resolved.append(host)
        queue = self.answers.get(host)
        return [PUBLIC] if not queue else queue.pop(0) if len(queue) > 1 else queue[0]

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    async def serve(self, stream: anyio.abc.ByteStream) -> None:
        async with stream:
            seen = await _request(stream)
            self.requests.append(seen)
            await _respond(stream, self.pages.get(seen.path, Page("not here", 404)))


@asynccontextmanager
async def site(
    pages: Mapping[str, Answer],
    *,
    certificate: Path | None = None,
    server_names: list[str | None] | None = None,
) -> AsyncIterator[Site]:
    """Serve pages until the block ends; a missing path is a 404, `/robots.txt` too.

    `certificate` is a PEM file with key and certificate (see `make_certificate`): it serves HTTPS with it.
    `server_names` takes the names that TLS clients asked for.
    """
    listener: anyio.abc.Listener[Any] = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = int(listener.extra(anyio.abc.SocketAttribute.local_port))
    trusting = server = None
    if certificate is not None:
        trusting = ssl.create_default_context(cafile=str(certificate))
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(certificate)
        if server_names is not None:
            server.sni_callback = lambda _socket, name, _context: server_names.append(name)
    running = Site(dict(pages), port, "https" if server else "http", context=trusting)

    async def accept(raw: anyio.abc.ByteStream) -> None:
        try:
            await running.serve(await _encrypted(raw, server) if server else raw)
        except (anyio.BrokenResourceError, anyio.EndOfStream, anyio.ClosedResourceError, ssl.SSLError):
            return  # the fetcher hung up, as it should
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.aclose_forcefully(raw)

    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, accept)
        try:
            yield running
        finally:
            group.cancel_scope.cancel()


def make_certificate(folder: Path, *names: str) -> Path:
    """Make a self-signed certificate for some names with the openssl command; returns one PEM file."""
    key, certificate, both = folder / "key.pem", folder / "cert.pem", folder / "both.pem"
    alternatives = ",".join(f"DNS:{name}" for name in names)
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
        f"-keyout {key} -out {certificate} -subj /CN={names[0]} -addext subjectAltName={alternatives}"
    )
    subprocess.run(command.split(" "), check=True, capture_output=True, timeout=20)
    both.write_bytes(key.read_bytes() + certificate.read_bytes())
    return both


async def _encrypted(raw: anyio.abc.ByteStream, context: ssl.SSLContext) -> anyio.abc.ByteStream:
    return await TLSStream.wrap(raw, server_side=True, ssl_context=context, standard_compatible=False)


async def _request(stream: anyio.abc.ByteStream) -> Seen:
    head = b""
    while b"\r\n\r\n" not in head:
        head += await stream.receive()
    first, *lines = head.decode("latin-1").split("\r\n\r\n")[0].split("\r\n")
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    return Seen(first.split(" ")[1], headers.get("host", ""), headers)


async def _respond(stream: anyio.abc.ByteStream, answer: Answer) -> None:
    if callable(answer):
        await answer(stream)
        return
    page = answer if isinstance(answer, Page) else Page(answer)
    body = page.body.encode() if isinstance(page.body, str) else page.body
    headers = {"Content-Type": page.content_type, "Content-Length": str(len(body)), "Connection": "close"}
    head = "".join(f"{name}: {value}\r\n" for name, value in {**headers, **page.headers}.items())
    await stream.send(f"HTTP/1.1 {page.status} Status\r\n{head}\r\n".encode() + body)
