"""Which URLs may be asked for at all, before any name is looked up."""

from __future__ import annotations

import re
from collections.abc import Collection
from ipaddress import IPv4Address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ava_roles.errors import AccessRefused
from ava_roles.net.addresses import is_public

if TYPE_CHECKING:
    from httpx2 import URL

PORTS = frozenset({80, 443, 8080, 8443})

_ODD = re.compile(r"[\x00-\x20\x7f-\x9f\\\u00a0\u1680\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff]")
_USERINFO = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*:)?[/\\]*[^/?#\\]*@")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMERIC = re.compile(r"[0-9]+|0x[0-9a-f]*")
_SPECIAL = frozenset(
    {
        "corp",
        "home",
        "internal",
        "intranet",
        "invalid",
        "lan",
        "local",
        "localdomain",
        "localhost",
        "onion",
        "private",
        "test",
    }
)
_ARPA = ".home.arpa"


def checked_url(text: str, ports: Collection[int] = PORTS) -> URL:
    """Return a URL that may be requested, without its fragment.

    Args:
        text: The URL as a model or a `Location` header gave it.
        ports: The ports that may be connected to.

    Raises:
        AccessRefused: It is malformed, not http or https, or does not name a public host; says why.
    """
    import httpx2

    def refused(why: str) -> AccessRefused:
        return AccessRefused(f"{masked(text)} is not fetched: {why}")

    if len(text) > 4096:
        raise refused("it is longer than 4,096 characters")
    if _ODD.search(text):
        raise refused("it contains a blank, a backslash or an invisible character; percent-encode what belongs to it")
    try:
        url = httpx2.URL(text)
        host = url.raw_host.decode("ascii").lower()
        port = url.port
    except (httpx2.InvalidURL, UnicodeError, ValueError):
        raise refused("it is not a valid URL; give one such as https://example.org/page") from None
    if url.scheme not in ("http", "https"):
        raise refused("only http and https URLs can be fetched")
    if url.userinfo or _USERINFO.match(text):
        raise refused("it contains a user name or password; leave out everything up to the @")
    if port is not None and port not in ports:
        raise refused(f"port {port} is not open to subagents; open are {', '.join(map(str, sorted(ports)))}")
    if why := _bad_host(host):
        raise refused(why)
    return url.copy_with(fragment=None)


def masked(text: str) -> str:
    """Return a URL for a message: user name and password masked, unprintable characters shown, cut at 200."""
    text = _USERINFO.sub(lambda found: f"{found[1] or ''}//***@", text, count=1)
    text = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
    return text if len(text) <= 200 else text[:199] + "…"


def host_and_path(text: str) -> str:
    """Return what a status line may show of a URL: no user, password, port or query; empty where there is nothing."""
    text = text.strip()
    if user := _USERINFO.match(text):
        text = f"{user[1] or ''}//{text[user.end() :]}"
    try:
        parts = urlsplit(text)
        return (parts.hostname or "") + parts.path.rstrip("/")
    except ValueError:
        return ""


def _bad_host(host: str) -> str | None:
    """Return why a host may not be asked, or None when its addresses decide."""
    if not host:
        return "it names no host; give one such as https://example.org/page"
    if ":" in host:
        return None if is_public(host) else "its address is not public"
    labels = host.split(".")
    if _NUMERIC.fullmatch(labels[-1]):
        try:
            return None if is_public(str(IPv4Address(host))) else "its address is not public"
        except ValueError:
            return "its host is a number in an unusual form; give the name of the site"
    if not all(_LABEL.fullmatch(label) for label in labels) or len(host) > 253:
        return "its host is not a valid name"
    if len(labels) == 1 or labels[-1] in _SPECIAL or f".{host}".endswith(_ARPA):
        return f"{host} is a name of a local network; only public sites can be fetched"
    return None
