"""The providers that Ava knows by name, and which addresses are on this machine or in its network."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal
from urllib.parse import urlsplit

RemoteWire = Literal["chat_completions", "messages", "responses", "google"]
"""The formats in which a model at an address is asked; `models/wires/` has them."""


@dataclass(frozen=True)
class KnownProvider:
    """A provider that Ava knows by name."""

    variable: str  # the environment variable that usually holds its key
    base_url: str
    models: bool = True  # it offers models; otherwise it searches the web
    also: tuple[str, ...] = ()  # other variables that may hold its key, in this order
    address_variables: tuple[str, ...] = ()  # besides the usual ones, those that tell programs where to send its key


PROVIDERS: Mapping[str, KnownProvider] = {
    "openrouter": KnownProvider("OPENROUTER_API_KEY", "https://openrouter.ai/api/v1"),
    "anthropic": KnownProvider("ANTHROPIC_API_KEY", "https://api.anthropic.com/v1"),
    "openai": KnownProvider("OPENAI_API_KEY", "https://api.openai.com/v1"),
    "groq": KnownProvider("GROQ_API_KEY", "https://api.groq.com/openai/v1"),
    "google": KnownProvider(
        "GEMINI_API_KEY",
        "https://generativelanguage.googleapis.com/v1beta",
        also=("GOOGLE_API_KEY",),
        address_variables=("GOOGLE_GEMINI_BASE_URL",),
    ),
    "kagi": KnownProvider("KAGI_API_KEY", "https://kagi.com/api/v1", models=False),
    "brave": KnownProvider("BRAVE_API_KEY", "https://api.search.brave.com/res/v1", models=False),
}
"""In the order of preference when several have a key."""


@lru_cache(maxsize=256)
def is_local(base_url: str) -> bool:
    """Tell whether an endpoint is localhost or a private address; other names may lead anywhere."""
    try:
        host = urlsplit(base_url).hostname or ""
    except ValueError:
        return False
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return not (mapped or address).is_global and not address.is_multicast
