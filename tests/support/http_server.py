"""The server as several people reach it: a child process over HTTP, spoken to by the SDK's own client or by hand.

async with serve_http(root, env=model_env(model.base_url)) as server:
    async with server.client(token(root, "ana"), mode="legacy") as client: ...
    answer = await server.get("/healthz")
"""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.abc
import httpx2
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream
from mcp import Client
from mcp.client.session import ElicitationFnT, MessageHandlerFnT
from mcp.client.streamable_http import streamable_http_client
from mcp_types import Implementation

from ava_server.config.tokens import Scope, create_token
from ava_server.core.background import pages_server
from ava_server.core.data_root import DataRoot
from support.postgres import free_port
from support.processes import end
from support.stdio import AVA, EXIT_S, MODERN, Stderr, environment, until

COMMAND = "serve", "--http", "--port", "0"
PARSERS = [
    pytest.param("httptools", marks=pytest.mark.skipif(find_spec("httptools") is None, reason="needs httptools")),
    "h11",
]
"""What reads HTTP; without httptools, without uvloop."""
EVERYTHING: tuple[Scope, ...] = ("spawn", "read")
BOTH = {"Accept": "application/json, text/event-stream"}
META: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientInfo": {"name": "x", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
"""What a request of the stateless era says of its client."""
HELLO: dict[str, Any] = {
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
}  # fmt: skip
"""The first request of the handshake era."""
READY = re.compile(r"Serving MCP clients at \S+/mcp, on \S+ port (?P<port>\d+)[,.]\s")
"""What the server says when it listens."""


def token(root: Path, user: str, *scopes: Scope, name: str | None = None, expires_us: int | None = None) -> str:
    root.mkdir(mode=0o700, exist_ok=True)
    path = root / "secrets" / "tokens.toml"
    return create_token(path, name or f"of-{user}", user, scopes or EVERYTHING, expires_us)[1]


def bearer(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


class HttpServer:
    def __init__(self, process: anyio.abc.Process, stderr: Stderr, url: str) -> None:
        self.process = process
        self.pid = process.pid
        self.base = url
        self._stderr = stderr

    @property
    def stderr(self) -> str:
        return self._stderr.text

    @property
    def url(self) -> str:
        return f"{self.base}/mcp"

    @property
    def port(self) -> int:
        return int(self.base.rpartition(":")[2])

    @asynccontextmanager
    async def client(
        self,
        text: str,
        *,
        mode: str = "auto",
        name: str = "test-host",
        ask: Callable[[Any, Any], Awaitable[Any]] | None = None,
        hears: MessageHandlerFnT | None = None,
        url: str | None = None,
        timeout_s: float = 60,
        through: httpx2.AsyncBaseTransport | None = None,
    ) -> AsyncGenerator[Client]:
        """The SDK's own client, with a token; `through` carries its requests."""
        async with httpx2.AsyncClient(headers=bearer(text), timeout=timeout_s, transport=through) as http:
            transport = streamable_http_client(url or self.url, http_client=http)
            info = Implementation(name=name, version="1.0")
            async with Client(
                transport,
                mode=mode,
                client_info=info,
                read_timeout_seconds=60,
                cache=None,
                elicitation_callback=cast("ElicitationFnT | None", ask),
                message_handler=hears,
            ) as client:
                yield client

    async def request(self, method: str, path: str, text: str | None = None, **more: Any) -> httpx2.Response:
        headers = {**(bearer(text) if text is not None else {}), **more.pop("headers", {})}
        async with httpx2.AsyncClient(timeout=20) as http:
            return await http.request(method, f"{self.base}{path}", headers=headers, **more)

    async def get(self, path: str, text: str | None = None, **more: Any) -> httpx2.Response:
        return await self.request("GET", path, text, **more)

    async def post(self, path: str, text: str | None = None, **more: Any) -> httpx2.Response:
        return await self.request("POST", path, text, **more)

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    async def exited(self, within_s: float = EXIT_S) -> int:
        with anyio.fail_after(within_s):
            return await self.process.wait()


def changed_command(*statements: str, parser: str = "httptools") -> tuple[str, ...]:
    """A server of its own, which runs statements first; without httptools and uvloop where h11 parses."""
    without = "sys.modules.update(httptools=None, uvloop=None)" if parser == "h11" else "pass"
    main = "from ava_server.cli.app import main; sys.exit(main(sys.argv[1:]))"
    return "-c", "; ".join(("import sys", without, *statements, main)), *COMMAND


@asynccontextmanager
async def serve_http(
    root: Path,
    *args: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    command: Sequence[str] = COMMAND,
    program: Sequence[str] = (),
    within_s: float = 30,
) -> AsyncGenerator[HttpServer]:
    """A server of one's own, which listens when the block begins; killed if the test has not ended it.

    `program` is started by Python in place of the command; `within_s` is how long it may take to listen. No traceback
    may be on its stderr, and no token, whatever the test does.
    """
    ava = environment(root, PYTHONUNBUFFERED="1", **(env or {}))
    with Stderr().checked() as stderr:
        child = await anyio.open_process(
            [*((sys.executable, *program) if program else (AVA[0], *command)), *args],
            env=ava,
            cwd=cwd or root.parent,
            stderr=stderr.file,
        )
        try:
            assert child.stdout is not None
            out = BufferedByteReceiveStream(child.stdout)
            with anyio.fail_after(within_s):
                said = ""
                while not (match := READY.search(said)):
                    try:
                        said += (await out.receive_until(b"\n", 10_000)).decode()
                    except anyio.IncompleteRead:
                        raise AssertionError(f"it did not come up: {said}{stderr.text}") from None
            yield HttpServer(child, stderr, f"http://127.0.0.1:{match['port']}")
            assert "avatok_" not in stderr.text
        finally:
            await end(child)


@asynccontextmanager
async def serve_pages(
    root: Path,
    *,
    port: int | None = None,
    env: Mapping[str, str] | None = None,
    start: Sequence[str] = (AVA[0],),
    within_s: float = 30,
) -> AsyncGenerator[HttpServer]:
    """The background process of a data root, which serves the pages as after `ava ui`.

    It is killed if the test has not ended it. By default it has a free port: other tests try the usual one. `start` is
    how its command begins, and `within_s` how long it may take to listen. No traceback may be on its stderr.
    """
    pages = pages_server(DataRoot(root))
    pages.want(port or free_port())
    with Stderr().checked() as stderr:
        command = [*start, "worker", "--listen"]
        own = environment(root, **(env or {}))
        child = await anyio.open_process(command, env=own, cwd=root.parent, stdout=stderr.file, stderr=stderr.file)
        try:
            found = await until(lambda: pages.port() or child.returncode, within_s=within_s)
            assert child.returncode is None, f"it did not come up: {stderr.text}"
            yield HttpServer(child, stderr, f"http://localhost:{found}")
        finally:
            await end(child)
