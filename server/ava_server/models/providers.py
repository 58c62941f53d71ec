"""The providers that Ava knows by name, and which addresses are on this machine or in its network."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Literal
from urllib.parse import urlsplit

from ava_server.core.ids import nearest

RemoteWire = Literal["chat_completions", "messages", "responses", "google"]
"""The formats in which a model at an address is asked; `models/wires/` has them."""


Kind = Literal["models", "search", "own_address", "this_machine"]
"""What a provider offers, and where: models at one address; web search; models at an address of the person's own; a
server on this machine, used only where `[providers.NAME]` names it."""


@dataclass(frozen=True)
class KnownProvider:
    """A provider that Ava knows by name. One that is compatible with OpenAI needs its key's variable and its address.

    `docs/models.md` has the sources. `tiers.toml` has its models.
    """

    variable: str = ""  # the environment variable that usually holds its key; empty where none is looked at
    base_url: str = ""  # its address; an example of one in capitals, where each person has their own
    kind: Kind = "models"
    also: tuple[str, ...] = ()  # other variables that may hold its key, in this order
    address_variables: tuple[str, ...] = ()  # besides the usual ones, those that tell programs where to send its key
    wire: RemoteWire = "chat_completions"  # the format that its hosts speak
    hosts: tuple[str, ...] = ()  # its hosts end with one of these; else only the address's own is known
    header: str = ""  # the header of a stored key, in place of `authorization: Bearer`
    tokens: tuple[str, ...] = ()  # how stored tokens begin, which are sent as `Bearer` all the same
    price_name: str = ""  # its name in genai-prices, if it has another one there
    id_prefixes: tuple[str, ...] = ()  # what ids begin with that name where a model runs, as Bedrock's profiles do
    long_limit: bool = False  # it expects `max_completion_tokens`, not `max_tokens`
    tells_usage: bool = False  # it reports the usage of a stream unasked, and refuses to be asked (`stream_options`)
    cache_beside: tuple[str, ...] = ()  # what its models are called that may count their cache beside the prompt
    takes_call_ids: bool = True  # it accepts the ids of function calls in Google's format
    has_tiers: bool = True  # it has models that can call tools, at prices that the table knows

    @property
    def models(self) -> bool:
        return self.kind != "search"

    @property
    def has_habits(self) -> bool:
        """Tell whether it is called otherwise than most endpoints that are compatible with OpenAI."""
        other_format = self.wire != "chat_completions"
        return other_format or bool(self.header) or self.long_limit or self.tells_usage

    @property
    def is_fixed(self) -> bool:
        """Tell whether it is called at one address, by whoever has a key."""
        return self.kind in ("models", "search")


PROVIDERS: Mapping[str, KnownProvider] = {
    "openrouter": KnownProvider("OPENROUTER_API_KEY", "https://openrouter.ai/api/v1"),
    "anthropic": KnownProvider("ANTHROPIC_API_KEY", "https://api.anthropic.com/v1", wire="messages"),
    "openai": KnownProvider(
        "OPENAI_API_KEY",
        "https://api.openai.com/v1",
        wire="responses",
        hosts=(".api.openai.com",),
        long_limit=True,
    ),
    "groq": KnownProvider("GROQ_API_KEY", "https://api.groq.com/openai/v1"),
    "google": KnownProvider(
        "GEMINI_API_KEY",
        "https://generativelanguage.googleapis.com/v1beta",
        also=("GOOGLE_API_KEY",),
        address_variables=("GOOGLE_GEMINI_BASE_URL",),
        wire="google",
    ),
    # Mistral refuses a field that it does not know, with 422 (openai/openai-agents-python#442).
    "mistral": KnownProvider(
        "MISTRAL_API_KEY",
        "https://api.mistral.ai/v1",
        hosts=("api.eu.mistral.ai", "api.us.mistral.ai"),
        tells_usage=True,
    ),
    "xai": KnownProvider("XAI_API_KEY", "https://api.x.ai/v1", price_name="x-ai"),
    "deepseek": KnownProvider("DEEPSEEK_API_KEY", "https://api.deepseek.com"),
    "together": KnownProvider("TOGETHER_API_KEY", "https://api.together.xyz/v1", also=("TOGETHER_AI_API_KEY",)),
    "fireworks": KnownProvider(
        "FIREWORKS_API_KEY", "https://api.fireworks.ai/inference/v1", also=("FIREWORKS_AI_API_KEY",)
    ),
    "cerebras": KnownProvider("CEREBRAS_API_KEY", "https://api.cerebras.ai/v1"),
    # Its models search by themselves, and other programs use its variable to search: only a key stored here counts.
    "perplexity": KnownProvider("", "https://api.perplexity.ai", has_tiers=False),
    # Vertex refuses a call's id as an unknown field (vercel/ai#15664); since September 2026 some endpoints accept it.
    "vertex": KnownProvider(
        "",
        "https://aiplatform.googleapis.com/v1/projects/PROJECT/locations/global/publishers/google",
        "own_address",
        wire="google",
        hosts=("aiplatform.googleapis.com",),
        # An API key of express mode, or of a service account; a token comes from a command, or is one of these.
        header="x-goog-api-key",
        tokens=("ya29.", "eyJ"),
        price_name="google",
        takes_call_ids=False,
    ),
    "bedrock": KnownProvider(
        "AWS_BEARER_TOKEN_BEDROCK",
        "https://bedrock-runtime.REGION.amazonaws.com/openai/v1",
        "own_address",
        price_name="aws",
        id_prefixes=("global.", "us.", "eu.", "apac.", "au.", "jp.", "ca.", "in."),
    ),
    "azure": KnownProvider(
        "AZURE_OPENAI_API_KEY",
        "https://RESOURCE.openai.azure.com/openai/v1",
        "own_address",
        also=("AZURE_API_KEY",),
        address_variables=("AZURE_OPENAI_ENDPOINT",),
        hosts=tuple(
            f".{service}.azure.{cloud}"
            for service in ("openai", "services.ai", "cognitiveservices")
            for cloud in ("com", "us", "cn")  # the public one, the American government's, and China's
        ),
        header="api-key",
        tokens=("eyJ",),
        cache_beside=("grok",),
        long_limit=True,
    ),
    "ollama": KnownProvider("", "http://127.0.0.1:11434/v1", "this_machine"),
    "lmstudio": KnownProvider("", "http://127.0.0.1:1234/v1", "this_machine"),
    "llamacpp": KnownProvider("", "http://127.0.0.1:8080/v1", "this_machine"),
    "vllm": KnownProvider("", "http://127.0.0.1:8000/v1", "this_machine"),
    "kagi": KnownProvider("KAGI_API_KEY", "https://kagi.com/api/v1", "search"),
    "brave": KnownProvider("BRAVE_API_KEY", "https://api.search.brave.com/res/v1", "search"),
}
"""In the order of preference when several have a key."""

_UNKNOWN = KnownProvider(cache_beside=("",))


@lru_cache(maxsize=64)
def provider_at(base_url: str) -> KnownProvider:
    """Return the provider whose host an address has, whatever it is called in the settings; else one of defaults."""
    try:
        host = urlsplit(base_url).hostname or ""
    except ValueError:
        return _UNKNOWN
    for known in PROVIDERS.values():
        if known.kind == "models" and host == urlsplit(known.base_url).hostname:
            return known
        if known.hosts and host.endswith(known.hosts):
            return known
        if known.kind == "own_address" and _own_hosts(known.base_url).fullmatch(host):
            return known
    return _UNKNOWN


@cache
def _own_hosts(example: str) -> re.Pattern[str]:
    """Return what the hosts of addresses look like that are like an example, whose parts in capitals differ."""
    return re.compile(re.sub("[A-Z]+", "[a-z0-9-]+", re.escape(urlsplit(example).netloc)))


def misspelt(table: str, base_url: str) -> str | None:
    """Return the known provider whose name a table with an address of its misspells; None for a name of one's own."""
    known = provider_at(base_url)
    name = next((name for name, one in PROVIDERS.items() if one is known), None)
    if name is None or name in table:
        return None
    return nearest(table, (name,), cutoff=0.8)


def seller_of(table: str, base_url: str) -> str | None:
    """Return the provider whose second table one is: by its name, such as `bedrock-claude`, and at the same hosts."""
    for name, known in PROVIDERS.items():
        is_named_after = table.startswith((f"{name}-", f"{name}_"))
        if is_named_after and known.kind == "own_address" and provider_at(base_url) is known:
            return name if urlsplit(base_url).scheme == "https" else None
    return None


def habits_at(base_url: str, like: str) -> KnownProvider:
    """Return how an address is called: as the provider that its settings liken it to, else as its host is known for."""
    return PROVIDERS[like] if like else provider_at(base_url)


LIKE = tuple(name for name, known in PROVIDERS.items() if known.models and known.has_habits)
"""The providers that an address of one's own can be like."""


def key_header(base_url: str, api_key: str, like: str = "") -> dict[str, str]:
    """Return the header in which a key is sent to an address that has one of its own; else none."""
    known = habits_at(base_url, like)
    if not known.header or api_key.startswith(known.tokens):
        return {}
    return {known.header: api_key}


def may_count_cache_beside(provider: str, base_url: str, model_id: str, like: str = "") -> bool:
    """Tell whether a model may count the tokens of its cache beside its prompt; servers on this machine do not."""
    named = PROVIDERS.get(provider)
    if named is not None and named.kind == "this_machine":
        return False
    return any(name in model_id.lower() for name in habits_at(base_url, like).cache_beside)


def is_own_host(provider: str, base_url: str) -> bool:
    """Tell whether an address is a known provider's own one, over https."""
    known = PROVIDERS.get(provider)
    try:
        given = urlsplit(base_url)
        return known is not None and given.scheme == "https" and given.hostname == urlsplit(known.base_url).hostname
    except ValueError:
        return False


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
    if address.is_multicast:
        return False
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return not address.ipv4_mapped.is_global
        if address.teredo is not None:  # it leads through a server anywhere
            return False
    return not address.is_global


_BARE_NAME = re.compile(r"(?!0x[0-9a-f]*\Z|[0-9]+\Z)[a-z0-9_-]+")
"""A host's name without a dot; a number is an address in another form, as of 8.8.8.8 in `http://134744072`."""


def is_in_own_network(base_url: str) -> bool:
    """Tell whether an address is local, or a name of this network alone, such as a container's."""
    if is_local(base_url):
        return True
    try:
        return _BARE_NAME.fullmatch(urlsplit(base_url).hostname or "") is not None
    except ValueError:
        return False
