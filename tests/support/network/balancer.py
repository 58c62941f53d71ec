"""Several servers of one log, and the load balancer in front of them: each request goes to another one.

async with serve_each(root, root, env=model_env(model.base_url)) as servers:
    balancer = Balancer(servers)
    async with servers[0].client(text, through=balancer) as client: ...

Also the programs that the files under docs/deploy/ are for, as far as they are installed here.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import httpx2
import pytest

from support.http_server import HttpServer, serve_http
from support.postgres import postgres_server


def make_postgres_root(root: Path, settings: str = "") -> str:
    """Make a data root whose log is in Postgres, and return the database's address: over the socket, no password."""
    return join(root, postgres_server().address(root), settings)


def join(root: Path, address: str, settings: str = "") -> str:
    """Make a data root whose log is in this database."""
    root.mkdir(mode=0o700, exist_ok=True)
    asks = "" if "approval" in settings else 'approval = "ask"\n'
    (root / "config.toml").write_text(f'database_url = "{address}"\n{asks}{settings}')
    return address


@asynccontextmanager
async def serve_each(
    *roots: Path, args: Sequence[str] = (), env: Mapping[str, str] | None = None
) -> AsyncGenerator[list[HttpServer]]:
    """One server for each data root, which may be the same."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(serve_http(root, *args, env=env)) for root in roots]


class Balancer(httpx2.AsyncBaseTransport, httpx2.BaseTransport):
    """Sends each request to the next server, past one that refuses; `sent` has the ports of those that took some."""

    def __init__(self, servers: Sequence[HttpServer]) -> None:
        self._ports = [server.port for server in servers]
        self._async, self._sync = httpx2.AsyncHTTPTransport(), httpx2.HTTPTransport()
        self.sent: list[int] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        for port, sent in self._turns(request):
            try:
                answer = await self._async.handle_async_request(sent)
            except httpx2.ConnectError:
                continue
            self.sent.append(port)
            return answer
        raise httpx2.ConnectError("no server is there")

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        for port, sent in self._turns(request):
            try:
                answer = self._sync.handle_request(sent)
            except httpx2.ConnectError:
                continue
            self.sent.append(port)
            return answer
        raise httpx2.ConnectError("no server is there")

    async def aclose(self) -> None:
        await self._async.aclose()

    def close(self) -> None:
        self._sync.close()

    def _turns(self, given: httpx2.Request) -> Iterator[tuple[int, httpx2.Request]]:
        """Yield the servers' ports in turn, and the request as it is sent there, with the Host header that it had."""
        self._ports.append(self._ports.pop(0))
        for port in list(self._ports):  # other requests come meanwhile
            url = given.url.copy_with(host="127.0.0.1", port=port)
            sent = httpx2.Request(given.method, url, headers=given.headers, extensions=given.extensions)
            sent.stream = given.stream
            yield port, sent


FOLDER = Path(__file__).parents[3] / "docs" / "deploy"


def tool(name: str) -> str:
    """The path of a program; skips the test where it is not installed."""
    found = shutil.which(name, path=f"{Path(sys.executable).parent}:/usr/bin:/usr/sbin:/usr/local/bin")
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@asynccontextmanager
async def run_balancer(
    command: tuple[str, ...], port: int, env: Mapping[str, str] | None = None
) -> AsyncGenerator[None]:
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
