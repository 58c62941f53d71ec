"""Addresses as people give them: the URL of a server, and proxies."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

from ava_server.core.errors import BadInput

HTTP_PORT = 8642
"""Where `ava serve --http` listens if no port is given."""
LOOPBACK_NAMES = frozenset(("localhost", "127.0.0.1", "::1"))
PORTS = {"http": 80, "https": 443}
"""The port of a URL that names none."""
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def public_url(url: str | None, option: str = "--public-url") -> str | None:
    """Return the public URL without a trailing slash, or None. Raises BadInput if it is not the URL of a server."""
    if url is None:
        return None
    if not _is_server_url(url.strip()):
        raise BadInput(f"{option}: {url[:80]!r} is not the URL of a server; write it like https://ava.example.org")
    return url.strip().rstrip("/")


def _is_server_url(url: str) -> bool:
    """Tell whether a URL has a scheme, a host and maybe a port, and nothing more."""
    try:
        parts = urlsplit(url)
        if parts.scheme not in PORTS or not parts.hostname or parts.port == 0:
            return False
    except ValueError:
        return False
    if parts.username is not None or parts.path not in ("", "/"):
        return False
    return not parts.query and not parts.fragment


def proxies_of(addresses: Sequence[str]) -> tuple[Network, ...]:
    try:
        return tuple(ipaddress.ip_network(address.strip(), strict=False) for address in addresses)
    except ValueError as error:
        raise BadInput(
            f"--trusted-proxy: {error}; give an address such as 10.0.0.2, or a network like 10.0.0.0/24"
        ) from None
