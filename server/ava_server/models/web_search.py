"""Web search by model providers: which of them search, with which model, and what one search can cost."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from urllib.parse import urlsplit

from ava_server.models.base import Bound
from ava_server.models.prices import Price, nanos, reserve_micros
from ava_server.models.selection import KNOWN_URLS, Choice, ModelSettings, choose, configured, default_tiers, host_of


@dataclass(frozen=True)
class SearchTerms:
    """A provider's entry in `web_search.toml`, with the fee in nano-USD."""

    title: str
    fee: int
    prompt_tokens: int
    output_tokens: int
    results: int


@cache
def search_terms() -> Mapping[str, SearchTerms]:
    table = tomllib.loads(files("ava_server.models").joinpath("web_search.toml").read_text(encoding="utf-8"))
    table.pop("reviewed")
    fees = {name: nanos(entry.pop("fee") * 1_000_000) for name, entry in table.items()}
    return {name: SearchTerms(fee=fees[name], **entry) for name, entry in table.items()}


@dataclass(frozen=True)
class ProviderSearch:
    """The web search of a model provider, as proposed; `price` is the model's, and the fee for each request."""

    name: str
    choice: Choice
    price: Price

    @property
    def terms(self) -> SearchTerms:
        return search_terms()[self.name]

    @property
    def title(self) -> str:
        return self.terms.title

    @property
    def cost_micros(self) -> int:
        """Return the most that it costs."""
        return reserve_micros(self.price, Bound(self.terms.prompt_tokens, self.terms.output_tokens))


def engine_at(base_url: str | None) -> str | None:
    """Return the engine whose provider answers at an address itself; None for any other address."""
    names = {host_of(KNOWN_URLS[name]): name for name in search_terms()}
    parts = urlsplit(base_url or "")
    return names.get(parts.hostname or "") if parts.scheme == "https" else None


def provider_search(name: str, provider: str, settings: ModelSettings) -> ProviderSearch | None:
    """Return a provider's web search, with its fast model, as the query is given; None where it is not configured.

    Raises AvaError: its model has no price, or its address cannot be used.
    """
    if provider not in configured(settings):
        return None
    choice = choose(f"{provider}:{default_tiers()[name]['fast']}", "fast", settings)
    return ProviderSearch(name, choice, with_fee(choice.price, search_terms()[name].fee))


def with_fee(price: Price, fee: int) -> Price:
    return replace(price, per_request=price.per_request + fee, free=price.free and not fee)
