"""The network below the HTTP client: names are resolved once, and the checked address is connected to.

The pool hands only host and port to its network backend, so the Host header, SNI and the name in the
certificate stay the URL's, while the socket goes to an address that was looked at. Imported by `fetch.py`
when first needed, because the HTTP client is heavy.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address
from typing import Any, cast

import anyio
import httpcore2

from ava_roles.errors import AccessRefused, ToolFailed
from ava_roles.net.addresses import is_public
from ava_roles.net.resolve import Resolver
from ava_roles.net.straight import Closing

_ADDRESSES_TRIED = 4


class Guard(httpcore2.AsyncNetworkBackend):
    """A network backend that connects to public addresses only.

    Args:
        resolver: Turns a name into addresses.
        inner: Connects to a checked address; tests put their own server behind it.
    """

    def __init__(self, resolver: Resolver, inner: httpcore2.AsyncNetworkBackend | None = None) -> None:
        self._resolver = resolver
        self._inner = inner or cast("httpcore2.AsyncNetworkBackend", httpcore2.AnyIOBackend())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Connect to one of the host's addresses.

        Raises:
            AccessRefused: One of them is not public.
            ToolFailed: The name has no address.
        """
        error: Exception = httpcore2.ConnectError(f"{host} has no address")
        for address in (await self._addresses(host, port))[:_ADDRESSES_TRIED]:
            try:
                stream = await self._inner.connect_tcp(address, port, timeout=timeout, socket_options=socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as failed:
                error = failed
            else:
                return Closing(stream)
        raise error

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore2.AsyncNetworkStream:
        """Refuse: no URL leads to a local socket."""
        raise AccessRefused("local sockets are not open to subagents; only public sites can be fetched")

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await anyio.sleep(seconds)

    async def _addresses(self, host: str, port: int) -> list[str]:
        try:
            addresses = [str(ip_address(host))]
        except ValueError:
            try:
                addresses = list(dict.fromkeys(await self._resolver(host, port)))
            except (OSError, UnicodeError) as error:
                raise ToolFailed(f"no address was found for {host} ({error}); check the spelling of the name") from None
        if not addresses:
            raise ToolFailed(f"no address was found for {host}; check the spelling of the name")
        # One bad address refuses the name: else its owner could choose which of them we get.
        if not all(map(is_public, addresses)):
            raise AccessRefused(f"{host} leads to an address that is not public; only public sites can be fetched")
        return addresses
