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


def public_url(given: str | None, option: str = "--public-url") -> str | None:
    """Return the public URL without a trailing slash, or None. Raises BadInput: it is not the URL of a server."""
    if given is None:
        return None
    try:
        parts = urlsplit(given.strip())
        fits = parts.scheme in PORTS and bool(parts.hostname) and parts.port != 0 and parts.path in ("", "/")
        fits = fits and parts.username is None and not parts.query and not parts.fragment
    except ValueError:
        fits = False
    if not fits:
        raise BadInput(f"{option}: {given[:80]!r} is not the URL of a server; write it like https://ava.example.org")
    return given.strip().rstrip("/")


def proxies_of(given: Sequence[str]) -> tuple[Network, ...]:
    try:
        return tuple(ipaddress.ip_network(each.strip(), strict=False) for each in given)
    except ValueError as wrong:
        raise BadInput(
            f"--trusted-proxy: {wrong}; give an address such as 10.0.0.2, or a network like 10.0.0.0/24"
        ) from None
