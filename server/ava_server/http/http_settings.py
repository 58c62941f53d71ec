"""Network settings of `ava serve --http`: listen address, allowed names and origins, trusted proxies."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from dataclasses import dataclass, replace
from functools import cached_property
from urllib.parse import urlsplit

from ava_server.core.addresses import HTTP_PORT, LOOPBACK_NAMES, PORTS, Network
from ava_server.core.errors import BadInput, ConfigError

_TRIES = 5


@dataclass(frozen=True)
class Reach:
    """How the server may be reached."""

    host: str = "127.0.0.1"
    port: int = HTTP_PORT  # port; 0 picks a free one
    public_url: str | None = None  # URL under which clients reach it, if not `host`
    proxies: tuple[Network, ...] = ()  # addresses whose `X-Forwarded-*` headers are trusted
    drain_s: float = 5.0  # seconds that calls in progress may take at shutdown
    shutdown_delay_s: float = 0.0  # seconds that it goes on as before at shutdown, and only says that it is not ready
    access_log: bool = False
    # Seconds without a request and without an open stream after which the server ends; None is never.
    idle_s: float | None = None
    # Address at which the other servers of the same log reach this one; None means `host` and `port`.
    inner_url: str | None = None

    @property
    def loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def base_url(self) -> str:
        return self.public_url or f"http://{bracketed(self.host)}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.base_url}/mcp"

    @cached_property
    def names(self) -> frozenset[str]:
        """Allowed host names; others are refused, which stops DNS rebinding."""
        names = self._own_names
        if self.public_url:
            public = urlsplit(self.public_url).hostname
            if public:
                names |= {public}
        return names

    @cached_property
    def _own_names(self) -> frozenset[str]:
        names: frozenset[str] = frozenset()
        if self.loopback:
            names |= LOOPBACK_NAMES
        if not _is_any(self.host):
            names |= {self.host.lower()}
        return names

    def allows_host(self, header: str) -> bool:
        """Tell whether a Host header names this server; the port is not compared."""
        if not _is_plain(header):
            return False
        try:
            parts = urlsplit(f"//{header}")
            port = parts.port
        except ValueError:
            return False
        if parts.hostname is None or parts.username is not None or parts.path or parts.query:
            return False
        return port != 0 and parts.hostname in self.names

    def allows_origin(self, header: str, host: str) -> bool:
        """Tell whether an Origin header names this server, under the name in the Host header.

        The port counts too: another program on this machine may have the same host name, such as `[::1]`.
        """
        if not _is_plain(header):
            return False
        try:
            origin = urlsplit(header)
            host_parts = urlsplit(f"//{host}")
            port = origin.port or PORTS.get(origin.scheme)
        except ValueError:
            return False
        if origin.path or origin.query or origin.username is not None:
            return False
        if origin.hostname != host_parts.hostname:
            return False
        if self._is_public_origin(origin.scheme, origin.hostname, port):
            return True  # a proxy may leave the port out of Host, so it is not compared
        if origin.scheme != "http" or origin.hostname not in self._own_names:
            return False
        host_port = host_parts.port or PORTS["http"]
        return port == self.port == host_port

    def _is_public_origin(self, scheme: str, hostname: str | None, port: int | None) -> bool:
        if not self.public_url:
            return False
        public = urlsplit(self.public_url)
        return (scheme, hostname, port) == (public.scheme, public.hostname, public.port or PORTS[public.scheme])

    def trusts(self, address: str) -> bool:
        try:
            ip = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(ip in network for network in self.proxies)


def inner_url(reach: Reach) -> str | None:
    """Return the address at which other servers reach this one; None if it is not known.

    For a server that listens on every address, this machine's name is looked up.
    """
    if reach.inner_url is not None or not _is_any(reach.host):
        return reach.inner_url or f"http://{bracketed(reach.host)}:{reach.port}"
    with contextlib.suppress(OSError):
        address = socket.gethostbyname(socket.gethostname())
        if not ipaddress.ip_address(address).is_loopback:
            return f"http://{address}:{reach.port}"
    return None


def refuse_open(reach: Reach, *, tokens: bool) -> None:
    """Raise BadInput for a public address without tokens, or without a name to check requests against."""
    if reach.loopback:
        return
    if not tokens:
        raise BadInput(
            f"--host {reach.host} can be reached from other machines, but no token exists. Create one first (ava token"
            " create NAME --user USER --scope spawn,read), or leave out --host."
        )
    if _is_any(reach.host) and reach.public_url is None:
        raise BadInput(
            f"--host {reach.host} listens under every name, but requests are checked by host name: give it with"
            " --public-url https://NAME."
        )


def listen(reach: Reach) -> socket.socket:
    """Return a listening socket. Raises ConfigError if the address cannot be used."""
    try:
        family, kind, number, _name, address = socket.getaddrinfo(
            reach.host, reach.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, number)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(1024)
        except BaseException:
            listening.close()
            raise
    except (OSError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(
            f"cannot listen on {reach.host} port {reach.port}: {why}. Choose another with --host and --port."
        ) from None
    listening.setblocking(False)
    return listening


def listen_everywhere(reach: Reach, *, other_port: bool = False) -> list[socket.socket]:
    """Return the listening sockets: one, and for `localhost` one for each of its two addresses. Raises ConfigError.

    A client may try the other address first, where a program of another user could listen. With `other_port`, another
    port is taken where that one is not free at both.
    """
    if reach.host != "localhost":
        return [listen(reach)]
    if reach.port and not other_port:
        return _listen_on_both(reach)
    for port in (reach.port, *[0] * _TRIES):
        with contextlib.suppress(ConfigError):
            return _listen_on_both(replace(reach, port=port))
    raise ConfigError("cannot listen on localhost: no port is free at both 127.0.0.1 and ::1")


def _listen_on_both(reach: Reach) -> list[socket.socket]:
    first = listen(replace(reach, host="127.0.0.1"))
    try:
        return [first, listen(replace(reach, host="::1", port=first.getsockname()[1]))]
    except ConfigError:
        if not _has_ipv6():
            return [first]
        first.close()
        raise


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _is_plain(header: str) -> bool:
    """Tell whether a header has no character that URL parsing would silently drop, such as a tab."""
    return header.isascii() and header.isprintable() and " " not in header and "\\" not in header


def _is_any(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return host == ""
