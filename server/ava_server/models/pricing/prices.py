"""What a token costs: the user's own prices, free endpoints, then the table of genai-prices; never a guess.

Prices are integers, nano-USD per token, rounded up (1 USD per million tokens is 1,000). Amounts are integers,
micro-USD, rounded up once.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from decimal import ROUND_CEILING, Decimal
from typing import Any
from urllib.parse import urlsplit

from ava_audit.events import Usage
from ava_server.core.errors import Refused
from ava_server.models.base import Bound

COST_PARTS = ("input", "cache", "output", "thinking", "retries", "plan", "uncosted")
"""What money was spent on, in the order in which it is shown."""
OUTPUT_SLACK = 16
"""Tokens that providers were seen to write beyond the limit they were given."""


class Unpriced(Refused):
    """Raised when no price is known for a model; the text has the lines to add."""


@dataclass(frozen=True)
class UserPrice:
    """A price as the settings have it, in USD per million tokens (`per_request`: in USD).

    A missing cache price is the input price.
    """

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None
    per_request: float = 0.0


@dataclass(frozen=True)
class Step:
    """Prices that hold for prompts of at most `up_to` tokens, in nano-USD per token."""

    up_to: int
    input: int
    output: int
    cache_read: int
    cache_write: int


@dataclass(frozen=True)
class Price:
    """What a model's tokens cost, in nano-USD per token.

    Attributes:
        input: Fresh input, at the dearest tier.
        output: Output, thinking included, at the dearest tier.
        cache_read: Input read from a cache, at the dearest tier.
        cache_write: Input written to a cache, at the dearest tier.
        per_request: What a call costs beside its tokens, in nano-USD.
        source: Where the price comes from, for people and the log.
        free: Nothing is expected to be billed; what a provider reports all the same is booked.
        window: Tokens that prompt and answer may have together, where that is known.
        steps: Cheaper tiers for shorter prompts, shortest first: what is settled, never what is reserved.
    """

    input: int
    output: int
    cache_read: int
    cache_write: int
    per_request: int = 0
    source: str = ""
    free: bool = False
    window: int | None = None
    steps: tuple[Step, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain JSON, for a proposal's digest and for the log."""
        return {**asdict(self), "steps": [asdict(step) for step in self.steps]}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Price:
        """Return the price that `as_dict` wrote down."""
        fields: dict[str, Any] = {**stored, "steps": tuple(Step(**step) for step in stored["steps"])}
        return cls(**fields)


FREE_LOCAL = Price(0, 0, 0, 0, source="free (local)", free=True)


CACHE_WRITE_TIMES = Decimal("1.25")
"""What a token written to Anthropic's cache for five minutes costs, in tokens of input (platform.claude.com)."""


def marked_price(price: Price) -> Price:
    """Return the price of a model whose requests mark what is to be cached: nobody who writes one gives it for less.

    Tables, and people, leave it out where it is not known; it then stands as the price of input.
    """

    def dearer(one: Price | Step) -> int:
        known = one.cache_write > one.input or not one.input
        return one.cache_write if known else int((one.input * CACHE_WRITE_TIMES).to_integral_value(ROUND_CEILING))

    steps = tuple(replace(step, cache_write=dearer(step)) for step in price.steps)
    return replace(price, cache_write=dearer(price), steps=steps)


def find_price(provider: str, model_id: str, *, base_url: str | None, overrides: Mapping[str, UserPrice]) -> Price:
    """Return what a model costs.

    Args:
        provider: The provider's name in the settings.
        model_id: The provider's id of the model.
        base_url: The endpoint; None for a known provider's own.
        overrides: The user's prices, by `provider:id` or by id alone.

    Raises:
        Unpriced: Nobody says what it costs.
    """
    name = f"{provider}:{model_id}"
    for key in (name, model_id):
        if key in overrides:
            return _user_price(key, overrides[key])
    if model_id.endswith(":free"):
        return Price(0, 0, 0, 0, source="free (:free)", free=True)
    if base_url is not None and is_local(base_url):
        return FREE_LOCAL
    from ava_server.models.pricing.table import look_up

    found = look_up(provider, model_id, base_url=base_url)
    if isinstance(found, Price):
        return found
    raise Unpriced(
        f"No price is known for {name} ({found}), so its cost cannot be capped. Choose another model, or add "
        f"the provider's prices to config.toml, in USD per million tokens (0 for what costs nothing):\n"
        f'[prices."{name}"]\ninput = …\noutput = …'
    )


def cost_micros(price: Price, usage: Usage) -> int:
    """Return what a call cost, in micro-USD, rounded up once."""
    return -(-sum(nanos_of(price, usage).values()) // 1000)


def reserve_micros(price: Price, bound: Bound) -> int:
    """Return what a call can cost at most, in micro-USD: its whole prompt at the dearest input price."""
    dearest = max(price.input, price.cache_write, price.cache_read)
    nanos = bound.prompt_tokens * dearest + (bound.output_tokens + OUTPUT_SLACK) * price.output
    return -(-(nanos + price.per_request) // 1000)


def cost_by(price: Price, usage: Usage, total: int) -> dict[str, int]:
    """Split a cost into `input`, `cache`, `output` and `thinking`, whose sum is the total to the micro-USD.

    Args:
        price: What the tokens cost.
        usage: The tokens.
        total: The cost in micro-USD, as it was booked; a provider's own figure may differ from the table's.
    """
    shares = nanos_of(price, usage)
    whole = sum(shares.values())
    if whole == 0:
        # A cost without a price of ours: nothing tells which tokens it was for.
        return {**dict.fromkeys(shares, 0), "input": total}
    parts = {name: total * share // whole for name, share in shares.items()}
    by_remainder = sorted(shares, key=lambda name: total * shares[name] % whole, reverse=True)
    for name in by_remainder[: total - sum(parts.values())]:
        parts[name] += 1
    return parts


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


def nanos(usd_per_million: float | Decimal) -> int:
    """Return a price in nano-USD per token, rounded up."""
    price = usd_per_million if isinstance(usd_per_million, Decimal) else Decimal(str(usd_per_million))
    return int((price * 1000).to_integral_value(ROUND_CEILING))


def _user_price(key: str, price: UserPrice) -> Price:
    per_request = nanos(Decimal(str(price.per_request)) * 1_000_000)
    found = Price(
        input=nanos(price.input),
        output=nanos(price.output),
        cache_read=nanos(price.input if price.cache_read is None else price.cache_read),
        cache_write=nanos(price.input if price.cache_write is None else price.cache_write),
        per_request=per_request,
        source=f'settings [prices."{key}"]',
    )
    free = not (found.input or found.output or found.cache_read or found.cache_write or per_request)
    return replace(found, free=free)


def rate_for(price: Price, usage: Usage) -> Price | Step:
    """Return the prices that hold for a call of this size."""
    prompt = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
    return next((step for step in price.steps if prompt <= step.up_to), price)


def nanos_of(price: Price, usage: Usage) -> dict[str, int]:
    """Return what each kind of token cost, in nano-USD."""
    rate = rate_for(price, usage)
    return {
        "input": usage.input_tokens * rate.input + price.per_request,
        "cache": usage.cache_read_tokens * rate.cache_read + usage.cache_write_tokens * rate.cache_write,
        "output": max(usage.output_tokens - usage.thinking_tokens, 0) * rate.output,
        "thinking": min(usage.thinking_tokens, usage.output_tokens) * rate.output,
    }
