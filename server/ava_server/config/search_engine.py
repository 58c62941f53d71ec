"""Web search: which engine is configured, and how it is called, over the HTTP clients of model calls."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from ava_audit.units import format_usd
from ava_roles.errors import ToolFailed
from ava_roles.net.fetch import ResponseBody
from ava_roles.net.search_engines import Brave, Engine, Kagi, SearchReply, SearchRequest, SearchResults, Searxng, search
from ava_roles.tool import Tool
from ava_server.config.keys import Key, key_among
from ava_server.core.errors import AvaError
from ava_server.models.model_choice import (
    KNOWN_URLS,
    UNNAMED,
    Choice,
    ModelSettings,
    ProviderSearch,
    choose,
    configured,
    engine_at,
    meant_by,
    provider_search,
    search_terms,
)

if TYPE_CHECKING:
    import httpx2

    from ava_server.config.settings import SearchSettings
    from ava_server.models.http_clients import ClientPool

CONNECT_S = 10.0
MOST_BYTES = 2_000_000
ORDER = (Kagi.name, Brave.name, Searxng.name)
"""In the order of preference when several are configured."""


def engine_title(name: str) -> str:
    for engine in (Kagi, Brave, Searxng):
        if engine.name == name:
            return engine.title
    terms = search_terms().get(name)
    if terms is None:
        return name
    return terms.title


def engine_of(settings: SearchSettings, stored: Mapping[str, Key], name: str | None = None) -> Engine | None:
    """Return the configured search engine, or the one of this name. Raises ConfigError if its key is invalid."""
    for candidate in ORDER:
        if settings.engine not in ("auto", candidate) or name not in (None, candidate):
            continue
        engine = _engine(candidate, settings, stored)
        if engine is not None:
            return engine
    return None


def provider_engine(
    settings: SearchSettings, models: ModelSettings, choice: Callable[[], Choice]
) -> ProviderSearch | None:
    """Return the web search of a model provider: the one that the settings name, else that of the run's own model.

    A provider that answers at another address than its own searches only where the settings name it.
    """
    try:
        if settings.engine in search_terms():
            return provider_search(settings.engine, settings.engine, models)
        if settings.engine != "auto":
            return None
        model = choice()
        name = engine_at(model.base_url)
        if name is None:
            return None
        return provider_search(name, model.provider, models)
    except AvaError:  # about the run's model: its own use reports that; about the search's: it has no price
        return None


def any_search(
    settings: SearchSettings, stored: Mapping[str, Key], models: ModelSettings
) -> Engine | ProviderSearch | None:
    """Return what searches for a run with the default model. Raises ConfigError: an invalid key."""
    return engine_of(settings, stored) or provider_engine(settings, models, lambda: choose(None, UNNAMED, models))


def searches_by_default(settings: SearchSettings, stored: Mapping[str, Key], models: ModelSettings) -> bool:
    """Tell whether a run with the default model can search, without looking up a price. Raises AvaError: no model."""
    if engine_of(settings, stored) is not None:
        return True
    providers = configured(models)
    if settings.engine in search_terms():
        return settings.engine in providers
    if settings.engine != "auto":
        return False
    model, *_ = meant_by(UNNAMED, models, providers)
    provider, _, _ = model.partition(":")
    if provider not in providers:
        return False
    address = providers[provider].base_url or KNOWN_URLS.get(provider)
    return engine_at(address) is not None


def search_cost(micros: int, *, capped: bool = False) -> str:
    """Return what a search costs, and whether the caps on money count it."""
    if not micros:
        return "free"
    cost = format_usd(micros, exact=True)
    if capped:
        return f"at most {cost} each, included in its caps"
    return f"about {cost} each, not included in any cost cap"


def search_text(search: Engine | ProviderSearch) -> str:
    if isinstance(search, Engine):
        return f"{search.title} at {search.base_url}, {search_cost(search.cost_micros)}"
    return f"{search.title} ({search.choice.name}), {search_cost(search.cost_micros, capped=True)}"


def without_search(tools: Mapping[str, Tool]) -> dict[str, Tool]:
    return {name: tool for name, tool in tools.items() if not tool.spec.search}


@dataclass(frozen=True)
class ApprovedSearch:
    """The web search of one run: by the engine that was approved, with its current key, which `find` returns.

    `clients` are those of model calls, which honour the environment's proxy and certificates.
    """

    name: str
    find: Callable[[str], Engine | None]
    clients: ClientPool

    async def __call__(self, query: str, count: int) -> SearchResults:
        """Raises ToolFailed."""
        try:
            engine = await anyio.to_thread.run_sync(self.find, self.name)
        except AvaError as error:
            raise ToolFailed("no key can be read here at the moment (`ava doctor` tells a person why)") from error
        if engine is None:
            raise ToolFailed("the web search was removed after this run was approved; read pages that you know")
        return await ask_engine(engine, query, count, self.clients)


async def ask_engine(engine: Engine, query: str, count: int, clients: ClientPool) -> SearchResults:
    """Raises ToolFailed if it gave no answer; the text says why, and what to do."""

    async def send(ask: SearchRequest) -> SearchReply:
        try:
            async with clients.client() as client:
                return await _exchange(client, ask, engine.title)
        except zlib.error:
            raise ToolFailed(f"{engine.title} answered in a broken encoding; try again later") from None

    return await search(engine, query, count, send)


async def _exchange(client: httpx2.AsyncClient, ask: SearchRequest, title: str) -> SearchReply:
    """Raises ToolFailed if no answer came, or one that is too large."""
    import httpx2

    headers = {"accept": "application/json", "accept-encoding": "gzip", "user-agent": "Ava", **ask.headers}
    timeout = httpx2.Timeout(None, connect=CONNECT_S)
    try:
        async with client.stream(ask.method, ask.url, headers=headers, json=ask.body, timeout=timeout) as response:
            encoding = response.headers.get("content-encoding", "").strip().lower()
            body = ResponseBody(MOST_BYTES, gzipped=encoding in ("gzip", "x-gzip"))
            async for chunk in response.aiter_raw():
                if not body.add(chunk):
                    break
            headers = {name.lower(): value for name, value in response.headers.items()}
            status = response.status_code
    except (httpx2.ConnectError, httpx2.ProxyError) as error:
        raise ToolFailed(f"{title} cannot be reached: {error or type(error).__name__}; try again later") from None
    except httpx2.TransportError as error:  # its message may repeat what was sent
        raise ToolFailed(f"{title} did not answer ({type(error).__name__}); try again later") from None
    if body.truncated:
        raise ToolFailed(f"{title} answered with more than {MOST_BYTES:,} bytes; ask for fewer results")
    return SearchReply(status, headers, bytes(body.data))


def _engine(name: str, settings: SearchSettings, stored: Mapping[str, Key]) -> Engine | None:
    if name == "searxng":
        if not settings.searxng:
            return None
        return Searxng(settings.searxng)
    key = key_among(stored, name)
    if key is None:
        return None
    if name == "kagi":
        return Kagi(settings.kagi_url, key.value)
    return Brave(settings.brave_url, key.value)
