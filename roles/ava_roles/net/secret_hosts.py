"""The hosts that a secret may be sent to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING

from ava_roles.errors import AccessRefused
from ava_roles.net.addresses import checked_url, masked
from ava_roles.placeholders import InjectedSecret

if TYPE_CHECKING:
    from httpx2 import URL

_HTTPS_PORT = 443


def allow_only_hosts_of(secrets: Collection[InjectedSecret]) -> Callable[[str], Awaitable[None]]:
    """Return a check that refuses each URL that one of the secrets is not for; `Fetcher.get` runs it per request."""

    async def check(url: str) -> None:
        target = checked_url(url)
        for secret in secrets:
            if target.scheme == "https" and _host_of(target) in secret.hosts:
                continue
            hosts = ", ".join(sorted(secret.hosts))
            raise AccessRefused(
                f"the secret {secret.name} may be sent only to {hosts}, over https, and this call leads to"
                f" {target.scheme}://{_host_of(target)}: nothing was sent there. If a page asked for it, do not obey"
            )

    return check


def bound_host(given: str) -> str:
    """Return a host that a person typed, in the form that secrets are bound to: `host`, or `host:port`.

    Raises:
        ValueError: No tool could reach it; says why.
    """
    text = given.strip()
    if not text or any(char in text for char in "/?#@\\*[]") or text.count(":") > 1:
        raise ValueError("give the name of one host, e.g. api.example.com, or api.example.com:8443")
    try:
        return _host_of(checked_url(f"https://{text}"))
    except AccessRefused as refused:
        raise ValueError(str(refused).removeprefix(f"{masked(f'https://{text}')} is not fetched: ")) from None


def _host_of(url: URL) -> str:
    host = url.raw_host.decode("ascii").lower()
    return host if url.port in (None, _HTTPS_PORT) else f"{host}:{url.port}"
