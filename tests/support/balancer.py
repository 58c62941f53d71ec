"""Several servers of one log, and the load balancer in front of them: each request goes to another one.

async with several(root, env=using(model.base_url)) as servers:
    balancer = Balancer(servers)
    async with servers[0].client(text, through=balancer) as client: ...
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx2

from support.http_server import HttpServer, serving_http
from support.postgres import running_server


def in_postgres(root: Path, settings: str = "") -> str:
    """Make a data root whose log is in Postgres, or write its settings anew; return the database's address."""
    server = running_server()
    root.mkdir(mode=0o700, exist_ok=True)
    address = server.database(root).replace(f":{server.password}@", "@")
    (root / "config.toml").write_text(f'database_url = "{address}"\n{settings}')
    return address


@asynccontextmanager
async def several(
    *roots: Path, args: Sequence[str] = (), env: Mapping[str, str] | None = None
) -> AsyncGenerator[list[HttpServer]]:
    """One server for each data root, which may be the same."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(serving_http(root, *args, env=env)) for root in roots]


class Balancer(httpx2.AsyncBaseTransport):
    """Sends each request to the next server; one that refuses the connection is skipped, as balancers do.

    Attributes:
        sent: The ports of the servers that took requests, in order.
    """

    def __init__(self, servers: Sequence[HttpServer]) -> None:
        self._ports = [server.port for server in servers]
        self._inner = httpx2.AsyncHTTPTransport()
        self.sent: list[int] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self._ports.append(self._ports.pop(0))
        for port in list(self._ports):  # other requests come meanwhile
            request.url = request.url.copy_with(port=port)
            try:
                answer = await self._inner.handle_async_request(request)
            except httpx2.ConnectError:
                continue
            self.sent.append(port)
            return answer
        raise httpx2.ConnectError("no server is there")

    async def aclose(self) -> None:
        await self._inner.aclose()
