"""Which way calls go out: straight, or through the proxies that the environment names.

Imported when a client is first made, because the HTTP client is heavy.
"""

from __future__ import annotations

import os
import ssl

import httpx2
from httpx2._utils import get_environment_proxies  # pyright: ignore[reportPrivateUsage]

from ava_roles.net.proxied import ProxiedTransport, UnusableProxy
from ava_roles.net.proxies import proxy_place, proxy_url


def environment_ways(context: ssl.SSLContext, keep_alive_s: float) -> dict[str, httpx2.AsyncBaseTransport | None]:
    """Return the transports by the pattern of URLs that take them; None goes straight.

    Which URL takes which way (NO_PROXY with its networks and wildcards, on other systems the system's own settings) is
    the HTTP client's to know. The transports are ours: they bound the way through, and name the proxy in errors.
    """
    return {
        pattern: None if proxy is None else _way(pattern.removesuffix("://"), proxy, context, keep_alive_s)
        for pattern, proxy in get_environment_proxies().items()
    }


def _way(kind: str, proxy: str, context: ssl.SSLContext, keep_alive_s: float) -> httpx2.AsyncBaseTransport:
    try:
        return ProxiedTransport(proxy_url(proxy), context, keep_alive_s)
    except (ValueError, httpx2.InvalidURL):
        name = next((name for name in (f"{kind}_proxy", f"{kind.upper()}_PROXY") if os.environ.get(name)), "the system")
        what = "a SOCKS proxy" if proxy.lower().startswith("socks") else "what is no address of a proxy"
        place = f" ({proxy_place(proxy)})" if proxy_place(proxy) else ""
        return UnusableProxy(f"{name} names {what}{place}, and only HTTP proxies can be used")
