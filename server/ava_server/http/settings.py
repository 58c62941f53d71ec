"""How `ava serve --http` may be reached: where it listens, under which names, and through which proxies."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from ava_server.core.errors import BadInput, ConfigError

DEFAULT_PORT = 8642
LOOPBACK_NAMES = frozenset(("localhost", "127.0.0.1", "::1"))
_PORTS = {"http": 80, "https": 443}
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True)
class Reach:
    """How the server may be reached.

    Attributes:
        host: The address that it listens on.
        port: The port; 0 takes a free one.
        public_url: What people call it, where that is another name than `host`.
        proxies: From these addresses `X-Forwarded-*` is believed.
        drain_s: How long calls in hand may go on once it is told to end.
        access_log: Write a line for every request.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    public_url: str | None = None
    proxies: tuple[Network, ...] = ()
    drain_s: float = 5.0
    access_log: bool = False

    @property
    def loopback(self) -> bool:
        """Whether only this machine reaches it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def url(self) -> str:
        """The address that clients are given."""
        if self.public_url is not None:
            return f"{self.public_url}/mcp"
        return f"http://{bracketed(self.host)}:{self.port}/mcp"

    @property
    def names(self) -> frozenset[str]:
        """The names that a request may call it by: a page that points its own name here is not served."""
        names = LOOPBACK_NAMES if self.loopback else frozenset[str]()
        if not _is_any(self.host):
            names |= {self.host.lower()}
        public = urlsplit(self.public_url).hostname if self.public_url else None
        return names | {public} if public else names

    def allows_host(self, given: str) -> bool:
        """Tell whether a `Host` header is one of ours."""
        if not _plain(given):
            return False
        try:
            parts = urlsplit(f"//{given}")
            port = parts.port
        except ValueError:
            return False
        plain = parts.hostname is not None and parts.username is None and not (parts.path or parts.query)
        return plain and port != 0 and parts.hostname in self.names

    def allows_origin(self, given: str) -> bool:
        """Tell whether a page of this origin may ask: one of ours, or on loopback one of this machine."""
        if not _plain(given):
            return False
        try:
            parts = urlsplit(given)
            port = parts.port
        except ValueError:
            return False
        if parts.scheme not in _PORTS or parts.path or parts.query or parts.username is not None:
            return False
        if self.loopback and parts.hostname in LOOPBACK_NAMES:
            return True
        public = urlsplit(self.public_url) if self.public_url else None
        if public is None or parts.hostname != public.hostname or parts.scheme != public.scheme:
            return False
        return (port or _PORTS[parts.scheme]) == (public.port or _PORTS[public.scheme])

    def trusts(self, address: str) -> bool:
        """Tell whether what comes from this address is a proxy whose word counts."""
        try:
            ip = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(ip in network for network in self.proxies)


def public_url(given: str | None) -> str | None:
    """Return the address that people call the server by.

    Raises:
        BadInput: It is none.
    """
    if given is None:
        return None
    try:
        parts = urlsplit(given.strip())
        fits = parts.scheme in _PORTS and bool(parts.hostname) and parts.port != 0 and parts.path in ("", "/")
        fits = fits and parts.username is None and not parts.query and not parts.fragment
    except ValueError:
        fits = False
    if not fits:
        raise BadInput(f"--public-url: {given[:80]!r} is no address of a server; write it like https://ava.example.org")
    return given.strip().rstrip("/")


def proxies_of(given: Sequence[str]) -> tuple[Network, ...]:
    """Return the addresses of trusted proxies.

    Raises:
        BadInput: One of them is no address.
    """
    try:
        return tuple(ipaddress.ip_network(each.strip(), strict=False) for each in given)
    except ValueError as wrong:
        raise BadInput(
            f"--trusted-proxy: {wrong}; give an address such as 10.0.0.2, or a network like 10.0.0.0/24"
        ) from None


def refuse_open(reach: Reach, *, tokens: bool) -> None:
    """Refuse to listen where others reach it without what keeps them out.

    Raises:
        BadInput: There are no tokens, or it has no name to be called by.
    """
    if reach.loopback:
        return
    if not tokens:
        raise BadInput(
            f"--host {reach.host} is reached from other machines, and there is no token yet, so that nobody could use"
            " it: make one first (ava token create NAME --user USER --scope spawn,read), or leave --host out."
        )
    if _is_any(reach.host) and reach.public_url is None:
        raise BadInput(
            f"--host {reach.host} stands for every name, and requests are checked by the name that they call: say"
            " which, with --public-url https://NAME."
        )


def listen(reach: Reach) -> socket.socket:
    """Return a socket that listens.

    Raises:
        ConfigError: The address cannot be had.
    """
    try:
        family, kind, number, _name, address = socket.getaddrinfo(
            reach.host, reach.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, number)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(address)
            found.listen(1024)
        except BaseException:
            found.close()
            raise
    except (OSError, OverflowError) as failed:
        why = failed.strerror if isinstance(failed, OSError) else str(failed)
        raise ConfigError(
            f"{reach.host} port {reach.port} cannot be had: {why}. Give another one with --host and --port."
        ) from None
    found.setblocking(False)
    return found


def bracketed(host: str) -> str:
    """Return a host as it stands in a URL."""
    return f"[{host}]" if ":" in host else host


def _plain(given: str) -> bool:
    """Tell whether it has nothing in it that parsing an address leaves out, as it does tabs."""
    return given.isascii() and given.isprintable() and not set(given) & set(" \\")


def _is_any(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return host == ""
