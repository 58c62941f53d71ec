"""Addresses of proxies: which can be used, and how they are named without the password that may stand in them."""

from __future__ import annotations

from urllib.parse import SplitResult, unquote, urlsplit

from ava_roles.placeholders import PLACEHOLDER

PROXY_VARIABLES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")
"""What names proxies in an environment; the names in small letters do too."""
_EXAMPLE = "an address such as http://proxy.example:3128, or http://user:password@proxy.example:3128"


def proxy_url(text: str) -> str:
    """Return the address of an HTTP proxy as it was given.

    Raises:
        ValueError: It is none; the text says what is allowed, and shows nothing of what was given.
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
    """Return a proxy as messages name it: host and port alone; empty where it names no host."""
    parts = _parts(text if "://" in text else f"http://{text}")
    if parts is None:
        return ""
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    return host if parts.port is None else f"{host}:{parts.port}"


def proxy_password(text: str) -> str:
    """Return the password in a proxy's address, as it is; empty where there is none."""
    try:
        return unquote(urlsplit(text if "://" in text else f"http://{text}").password or "")
    except ValueError:
        return ""


def _parts(text: str) -> SplitResult | None:
    """Return an address taken apart, None where it names no host or an impossible port."""
    if not text.isprintable() or " " in text or "\\" in text:
        return None
    try:
        parts = urlsplit(text)
        return parts if parts.hostname and parts.port != 0 else None
    except ValueError:
        return None
