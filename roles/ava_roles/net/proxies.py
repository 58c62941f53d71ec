"""Addresses of HTTP proxies, and how messages name them without their passwords."""

from __future__ import annotations

from urllib.parse import SplitResult, unquote, urlsplit

from ava_roles.placeholders import PLACEHOLDER

PROXY_VARIABLES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")
"""The environment variables that name proxies; they count in lower case too."""
_EXAMPLE = "an address such as http://proxy.example:3128, or http://user:password@proxy.example:3128"


def proxy_url(text: str) -> str:
    """Check the address of an HTTP proxy and return it unchanged.

    Raises:
        ValueError: It is not one. The text says what is allowed and repeats nothing of the address.
    """
    parts = _parts(text)
    if PLACEHOLDER.search(text):
        raise ValueError(f"{_EXAMPLE}; a stored secret cannot be put into it")
    if parts is not None and parts.scheme.startswith("socks"):
        raise ValueError(f"{_EXAMPLE}; SOCKS is not spoken here")
    if parts is None or parts.scheme not in ("http", "https") or parts.path.strip("/") or parts.query or parts.fragment:
        raise ValueError(_EXAMPLE)
    return text


def proxy_place(text: str) -> str:
    """Return a proxy's host and port, for messages; empty if it names no host."""
    parts = _parts(text if "://" in text else f"http://{text}")
    if parts is None:
        return ""
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    return host if parts.port is None else f"{host}:{parts.port}"


def proxy_password(text: str) -> str:
    """Return the password in a proxy's address, decoded; empty if there is none."""
    try:
        return unquote(urlsplit(text if "://" in text else f"http://{text}").password or "")
    except ValueError:
        return ""


def _parts(text: str) -> SplitResult | None:
    """Split an address; None if it names no host or an impossible port."""
    if not text.isprintable() or " " in text or "\\" in text:
        return None
    try:
        parts = urlsplit(text)
        return parts if parts.hostname and parts.port != 0 else None
    except ValueError:
        return None
