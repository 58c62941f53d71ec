"""Addresses of links that the text of a page does not show."""

from __future__ import annotations

import re

from ava_roles.texts.phrases import count_phrase

_LINK = re.compile(rb"<a\s[^<>]{0,500}href\s{0,9}=\s{0,9}[\"']?(https?://[^\"'\s>]{1,500})([^<]{0,500})", re.IGNORECASE)


def unseen_addresses(html: bytes) -> set[bytes]:
    """Return the addresses of links to the web that are not the words of their links."""
    return {address for address, words in _LINK.findall(html) if address not in words}


def without_scheme(address: str) -> str:
    """Return an address as people write it: without its scheme and the slash at its end."""
    return address.removeprefix("https://").removeprefix("http://").removeprefix("mailto:").strip("/")


def count_of_addresses(addresses: set[bytes]) -> list[str]:
    """Return a phrase on addresses that are not shown, if there are any."""
    count = len(addresses)
    if not count:
        return []
    return [count_phrase(count, "address of links", "addresses of links")]
