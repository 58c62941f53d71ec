"""What a token costs: the user's own prices, free endpoints, then the table of genai-prices; never a guess.

Prices are integers in nano-USD per token, rounded up (1 USD per million tokens is 1,000). Amounts are integers in
micro-USD, rounded up once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ava_audit.events import Usage
from ava_audit.units import format_usd
from ava_server.core.errors import Refused
from ava_server.models.price_units import READ, TOKEN_KINDS, own_action, unbounded_units
from ava_server.models.providers import PROVIDERS, is_local
from ava_server.models.surcharges import (
    STANDARD,
    Surcharge,
    address_percent,
    most_percent,
    named_percent,
    pinned_at,
    seller_at,
    surcharges_of,
    times_words,
)

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice, Provider, TieredPrices

    from ava_server.models.base import Bound


COST_PARTS = ("input", "cache", "output", "thinking", "retries", "plan", "search", "uncosted")
"""What money was spent on, in the order of display."""
FROM_SETTINGS = "settings "
"""How the source of a user's own price begins."""
OUTPUT_SLACK = 16
"""Tokens that some providers were seen to write beyond their limit."""


class Unpriced(Refused):
    """Raised when no price is known for a model; the text contains the lines to add."""


@dataclass(frozen=True)
class UserPrice:
    """A price in the settings, in USD per million tokens; a cache costs as input by default.

    `per_request` is the fee of each call in USD, besides its tokens; None says nothing about one.
    """

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None
    per_request: float | None = None


@dataclass(frozen=True)
class PriceStep:
    """Prices for prompts of at most `up_to` tokens, in nano-USD per token."""

    up_to: int
    input: int
    output: int
    cache_read: int
    cache_write: int


@dataclass(frozen=True)
class Price:
    """What a model's tokens cost, in nano-USD per token."""

    input: int  # fresh input, at the most expensive tier
    output: int  # output, thinking included, at the most expensive tier
    cache_read: int  # input read from a cache, at the most expensive tier
    cache_write: int  # input written to a cache, at the most expensive tier
    per_request: int = 0  # what a call costs besides its tokens, in nano-USD
    source: str = ""  # where the price comes from, for people and the log
    free: bool = False  # nothing is expected to be billed; a cost that a provider reports is booked anyway
    window: int | None = None  # tokens that prompt and answer may have together, if known
    steps: tuple[PriceStep, ...] = ()  # cheaper tiers for shorter prompts, shortest first
    surcharges: tuple[Surcharge, ...] = ()  # what an answer may name that changes the price of its tokens


FREE_LOCAL = Price(0, 0, 0, 0, source="free (local)", free=True)


def find_price(provider: str, model_id: str, *, base_url: str | None, overrides: Mapping[str, UserPrice]) -> Price:
    """Return what a model costs. Raises Unpriced if its price is not known.

    `base_url` None is a known provider's own endpoint; `overrides` are the user's, by `provider:id` or by id alone.
    """
    name = f"{provider}:{model_id}"
    for key in (name, model_id):
        if key in overrides:
            _check_fee(name, model_id, overrides[key])
            return _user_price(key, overrides[key])
    action = own_action(model_id)
    if model_id.endswith(":free") and action is None:
        return Price(0, 0, 0, 0, source="free (:free)", free=True)
    if base_url is not None and is_local(base_url):
        return FREE_LOCAL
    price_or_reason = look_up(provider, model_id, base_url=base_url)
    if isinstance(price_or_reason, Price):
        return price_or_reason
    if action is not None:
        raise Unpriced(_fee_words(name, action))
    raise Unpriced(
        f"No price is known for {name} ({price_or_reason}), so its cost cannot be capped. Choose another model, or add "
        f"{_lines_to_add(name, ' (0 for what costs nothing)')}"
    )


CACHE_WRITE_TIMES = Decimal("1.25")
"""What a token written to Anthropic's cache for five minutes costs, in tokens of input (platform.claude.com)."""


def marked_price(price: Price) -> Price:
    """Return a price with the real cost of writing to the cache, for requests that mark it, where no table has it."""
    steps = tuple(replace(step, cache_write=_cache_write(step)) for step in price.steps)
    return replace(price, cache_write=_cache_write(price), steps=steps)


def _cache_write(rates: Price | PriceStep) -> int:
    if not rates.input or rates.cache_write > rates.input:  # the table has it
        return rates.cache_write
    return int((rates.input * CACHE_WRITE_TIMES).to_integral_value(ROUND_CEILING))


def price_at(price: Price, base_url: str | None, model_id: str) -> Price:
    """Return a model's price at an address: with what a region adds to the table's, and what answers there may name.

    A price of the user's is for the address as it is.
    """
    if price.free:
        return price
    percent = STANDARD
    if not price.source.startswith(FROM_SETTINGS):
        percent = address_percent(base_url, model_id)
    return replace(raised(price, percent), surcharges=surcharges_of(base_url, model_id))


def price_named(price: Price, named: Mapping[str, str]) -> Price:
    """Return what a call is billed at whose answer names these values."""
    return raised(price, named_percent(price.surcharges, named))


def dearest_price(price: Price, known: Mapping[str, Collection[str]], pinned: Collection[str] = ()) -> Price:
    """Return what the next call of an account is reserved at: the most that its own settings can make of a price.

    `known`: what its answers have named by now, by field; `pinned`: the fields that requests have themselves.
    """
    return raised(price, most_percent(price.surcharges, known, pinned))


@lru_cache(maxsize=256)
def raised(price: Price, percent: int) -> Price:
    """Return a price with all tokens at a percent of it; a fee for each call stays as it is."""
    if percent == STANDARD or price.free:
        return price
    steps: list[PriceStep] = []
    for step in price.steps:
        steps.append(PriceStep(step.up_to, *_rates_at(step, percent)))
    fresh, output, read, write = _rates_at(price, percent)
    return replace(
        price,
        input=fresh,
        output=output,
        cache_read=read,
        cache_write=write,
        source=f"{price.source} × {times_words(percent)}",
        steps=tuple(steps),
    )


def _rates_at(rates: Price | PriceStep, percent: int) -> _TokenRates:
    """Return the rates at a percent, rounded up."""

    def part(rate: int) -> int:
        return -(-rate * percent // STANDARD)

    return part(rates.input), part(rates.output), part(rates.cache_read), part(rates.cache_write)


def _check_fee(name: str, model_id: str, price: UserPrice) -> None:
    """Raise Unpriced for a user's price that leaves out what the model does by itself."""
    action = own_action(model_id)
    if action is None or price.per_request:
        return
    is_free = price.per_request is not None and not any((price.input, price.output))
    if not is_free:
        raise Unpriced(_fee_words(name, action))


def _fee_words(name: str, action: str) -> str:
    return (
        f"The cost of {name} cannot be capped by its tokens, because it {action}. Choose another model, or add what "
        f"that can cost in one call at most, in USD, as per_request, with {_lines_to_add(name)}\nper_request = …"
    )


def _lines_to_add(name: str, more: str = "") -> str:
    return (
        f"the provider's prices to config.toml, in USD per million tokens{more}:\n"
        f"{price_table(name)}\ninput = …\noutput = …"
    )


def price_table(key: str) -> str:
    return f"[prices.{json.dumps(key, ensure_ascii=False)}]"


def unknown_price_words(key: str, near: str) -> str:
    hint = f"; did you mean {price_table(near)}?" if near else "."
    return f"{price_table(key)} in config.toml belongs to no known model{hint}"


def billed_words(name: str, micros: int) -> str:
    return f"{name} counts as free, but its endpoint billed {format_usd(micros)}"


def billed_advice(name: str, micros: int) -> str:
    return f"{billed_words(name, micros)}: add {_lines_to_add(name)}"


def cost_micros(price: Price, usage: Usage) -> int:
    return -(-sum(nanos_of(price, usage).values()) // 1000)


def reserve_micros(price: Price, bound: Bound) -> int:
    """Return what a call can cost at most, in micro-USD: its whole prompt at the highest input price for its length."""
    rate = rate_at(price, bound.prompt_tokens)
    dearest = max(rate.input, rate.cache_write, rate.cache_read)
    nanos = bound.prompt_tokens * dearest + (bound.output_tokens + OUTPUT_SLACK) * rate.output
    return -(-(nanos + price.per_request) // 1000)


def cost_by(price: Price, usage: Usage, total: int) -> dict[str, int]:
    """Split the booked `total` (micro-USD) exactly by kind; a provider may report another amount than the table's."""
    shares = nanos_of(price, usage)
    whole = sum(shares.values())
    if whole == 0:
        # A reported cost without a known price: nothing says which tokens it was for.
        return {**dict.fromkeys(shares, 0), "input": total}
    parts = {name: total * share // whole for name, share in shares.items()}
    by_remainder = sorted(shares, key=lambda name: total * shares[name] % whole, reverse=True)
    for name in by_remainder[: total - sum(parts.values())]:
        parts[name] += 1
    return parts


def nanos(usd_per_million: float | Decimal) -> int:
    if not isinstance(usd_per_million, Decimal):
        usd_per_million = Decimal(str(usd_per_million))
    return int((usd_per_million * 1000).to_integral_value(ROUND_CEILING))


def _user_price(key: str, price: UserPrice) -> Price:
    read = price.input if price.cache_read is None else price.cache_read
    write = price.input if price.cache_write is None else price.cache_write
    per_request = nanos(Decimal(str(price.per_request or 0)) * 1_000_000)
    rates = nanos(price.input), nanos(price.output), nanos(read), nanos(write), per_request
    return Price(*rates, source=f"{FROM_SETTINGS}{price_table(key)}", free=not any(rates))


def rate_for(price: Price, usage: Usage) -> Price | PriceStep:
    return rate_at(price, usage.prompt_tokens)


def rate_at(price: Price, prompt_tokens: int) -> Price | PriceStep:
    for step in price.steps:
        if prompt_tokens <= step.up_to:
            return step
    return price


def nanos_of(price: Price, usage: Usage) -> dict[str, int]:
    rate = rate_for(price, usage)
    return {
        "input": usage.input_tokens * rate.input + price.per_request,
        "cache": usage.cache_read_tokens * rate.cache_read + usage.cache_write_tokens * rate.cache_write,
        "output": max(usage.output_tokens - usage.thinking_tokens, 0) * rate.output,
        "thinking": min(usage.thinking_tokens, usage.output_tokens) * rate.output,
    }


def price_words(price: Price) -> str:
    if price.free:
        return price.source or "free"
    words = f"{format_usd(price.input * 1000)} in and {format_usd(price.output * 1000)} out per million tokens"
    if price.per_request:
        words += f", {per_call(price)}"
    return f"{words} (price: {price.source})"


def price_lines(price: Price) -> list[str]:
    """Return what a model's tokens cost: a line for each price step, the highest first."""
    if price.free:
        return ["costs nothing"]
    highest = _rates_text(price)
    if price.steps:
        highest = f"above {price.steps[-1].up_to:,} tokens: {highest}"
    if price.per_request:
        highest += f"; {per_call(price)}"
    return [highest, *(f"up to {step.up_to:,} tokens: {_rates_text(step)}" for step in price.steps)]


def account_lines(price: Price, base_url: str | None) -> list[str]:
    """Return what the account's own settings can make of a price at an address: a line for each of them."""
    pinned = pinned_at(base_url)
    lines: list[str] = []
    for one in price.surcharges:
        if one.account and one.field not in pinned:
            name = one.field.removeprefix("usage.")
            lines.append(f"{times_words(one.percent)} times that with the account's {name} {one.value}")
    return lines


def usd(nanos: int) -> str:
    """Return nano-USD per token as USD per million tokens, to the last digit: `0.50`, `0.075`."""
    return format_usd(nanos * 1000, exact=True).removeprefix("$")


def price_json(price: Price) -> dict[str, Any]:
    """Return a price as plain JSON: its highest step, and the cheaper ones for shorter prompts."""
    return {
        **rates_json(price),
        "per_request": price.per_request / 10**9,
        "source": price.source,
        "free": price.free,
        "steps": [{"up_to": step.up_to, **rates_json(step)} for step in price.steps],
    }


def _rates_text(price: Price | PriceStep) -> str:
    cache = f"cache read {usd(price.cache_read)}, write {usd(price.cache_write)}"
    return f"in {usd(price.input)}, out {usd(price.output)}, {cache}"


def per_call(price: Price) -> str:
    return f"{format_usd(-(-price.per_request // 1000), exact=True)} a call"


def rates_json(price: Price | PriceStep) -> dict[str, float]:
    return {name: getattr(price, name) / 1000 for name in ("input", "output", "cache_read", "cache_write")}


_ANY_REGION = "regional."
"""What the table's entry for all regions but `global.` begins with."""
_DATED = re.compile(r"[-@](?:\d{4}-?\d{2}-?\d{2}|latest)")


def look_up(provider: str, model_id: str, *, base_url: str | None, now: datetime | None = None) -> Price | str:
    """Return the table's price of a model, for the present by default, or why there is none.

    `base_url` says who really answers; None is the provider's own endpoint.
    """
    from genai_prices import __version__
    from genai_prices.data_snapshot import get_snapshot

    regional = seller_at(base_url)
    if regional is not None:
        provider, base_url = regional, None
    seller = next((entry for entry in get_snapshot().providers if _has(entry, provider, base_url)), None)
    if seller is None:
        return f"the table knows no provider {base_url or provider}"
    name = model_id.lower()
    model = _model_named(seller.models, name)
    if model is None:
        model = _model_in_region(seller, name)
    if model is None:
        similar = next((entry.id for entry in seller.models if entry.match.is_match(name)), None)
        if similar:
            return f"the table has only the similar {similar}"
        return f"{seller.name} sells none in the table"
    prices = _prices_at(model, now or datetime.now(UTC))
    for price in prices:
        if price.input_mtok is None or price.output_mtok is None:  # the table would count that as 0
            return f"the table's entry {model.id} lacks an input or output price"
    dearest = _dearest([_Rates(price) for price in prices], model, f"genai-prices {__version__}")
    action = own_action(model_id)
    if action is not None and not dearest.per_request:
        return f"it {action}, and the table has no fee for each call that would bound what that costs"
    units: set[str] = set()
    for price in prices:
        units.update(unit for unit, value in vars(price).items() if value is not None)
    unbounded = unbounded_units(units, acts_alone=action is not None)
    if unbounded:
        return f"the table's entry {model.id} also bills {' and '.join(unbounded)}, which no limit of a call bounds"
    return dearest


def _model_named(models: Sequence[ModelInfo], wanted: str) -> ModelInfo | None:
    for model in models:
        if model.id.lower() == wanted:
            return model
    for model in models:
        if _names(model.match, wanted):
            return model
    return None


_VERSION_OF_ID = re.compile(r"(?:-\d{8})?(?:-v\d+)?(?::\d+)*\Z")


def _model_in_region(known: Provider, wanted: str) -> ModelInfo | None:
    """Return the model of an id that names where it runs, with or without its date and version.

    The table's own rule has to match too: it says which of two dates or regions, whose prices differ.
    """
    prefixes = next((provider.id_prefixes for provider in PROVIDERS.values() if provider.price_name == known.id), ())
    if not prefixes:
        return None

    def base(model_id: str) -> str:
        for prefix in (_ANY_REGION, *prefixes):
            if model_id.startswith(prefix):
                model_id = model_id.removeprefix(prefix)
                break
        return _VERSION_OF_ID.sub("", model_id)

    for model in known.models:
        if base(model.id.lower()) == base(wanted) and model.match.is_match(wanted):
            return model
    return None


def known_ids(provider: str, base_url: str | None = None) -> frozenset[str]:
    from genai_prices.data_snapshot import get_snapshot

    ids: set[str] = set()
    for seller in get_snapshot().providers:
        if _has(seller, provider, base_url):
            ids.update(model.id for model in seller.models)
    return frozenset(ids)


_ANY_PATH = re.compile(r"\A(?:\(https\?://\)\?|https://)|\((?:\?:)?/\|\$\)|\[\^/\]\+")
"""What of a pattern says nothing of a path."""


def _has(known: Provider, provider: str, base_url: str | None) -> bool:
    if base_url is None:
        return known.id == provider
    try:
        parts = urlsplit(base_url)
    except ValueError:
        return False
    origin = f"{parts.scheme}://{parts.hostname}/"
    pattern = known.api_pattern
    if pattern.endswith(r"\."):  # Moonshot's, which leaves the end of the host open
        pattern += "[a-z]+"
    if re.fullmatch(f"(?:{pattern})/?", origin):  # the table's patterns match a prefix: also `openai.com.evil.example`
        return True
    of_path = _ANY_PATH.sub("", pattern)
    return "/" in of_path and re.match(pattern, origin.removesuffix("/") + parts.path) is not None


def _names(clause: Any, wanted: str) -> bool:
    """Tell whether a matching rule names the id itself, or the id followed by a date."""
    from genai_prices import types

    match clause:
        case types.ClauseOr(or_=clauses):
            return any(_names(one, wanted) for one in clauses)
        case types.ClauseEquals(equals=text):
            return bool(wanted == text.lower())
        case types.ClauseStartsWith(starts_with=text):
            rest = wanted.removeprefix(text.lower())
            return rest != wanted and (not rest or _DATED.fullmatch(rest) is not None)
        case types.ClauseRegex(regex=pattern):
            return re.fullmatch(pattern, wanted) is not None
        case _:
            return False


def _prices_at(model: ModelInfo, now: datetime) -> list[ModelPrice]:
    """Return every price that can apply between now and the latest end of a run that starts now."""
    from genai_prices.types import ModelPrice, StartDateConstraint

    if isinstance(model.prices, ModelPrice):
        return [model.prices]
    found: list[ModelPrice] = []
    for entry in reversed(model.prices):  # later ones take precedence
        constraint = entry.constraint
        if isinstance(constraint, StartDateConstraint) and not constraint.active(now + timedelta(days=1)):
            continue
        found.append(entry.prices)
        if constraint is None or (isinstance(constraint, StartDateConstraint) and constraint.active(now)):
            break
    return found


_TokenRates = tuple[int, int, int, int]
"""Fresh input, output, cache read and cache write, in nano-USD per token."""


class _Rates:
    """Prices by prompt length, `at` in nano-USD per token, and `per_request`, the fee of a call in nano-USD."""

    def __init__(self, price: ModelPrice) -> None:
        self.units: dict[str, list[Decimal | TieredPrices]] = {}
        for kind, names in READ.items():
            values = [getattr(price, name, None) for name in names]
            self.units[kind] = [value for value in values if value is not None]
        fees = [Decimal(0)]
        for value in self.units.pop("per_request"):
            fees += _all_prices(value)
        self.per_request = nanos(max(fees) * 1000)  # the table has USD per thousand calls
        self.limits: set[int] = set()
        for prices in self.units.values():
            for price_of_unit in prices:
                if not isinstance(price_of_unit, Decimal):
                    self.limits.update(tier.start for tier in price_of_unit.tiers)

    def at(self, prompt: int) -> _TokenRates:
        fresh, output, read, write = (self._dearest_unit(kind, prompt) for kind in TOKEN_KINDS)
        return fresh, output, read, write

    def _dearest_unit(self, kind: str, prompt: int) -> int:
        # Cache prices that the table lacks are billed as plain input.
        values = self.units[kind] or self.units["input"]
        return max(_at(value, prompt) for value in values)


def _all_prices(value: Decimal | TieredPrices) -> list[Decimal]:
    if isinstance(value, Decimal):
        return [value]
    return [value.base, *(tier.price for tier in value.tiers)]


def _at(value: Decimal | TieredPrices, prompt: int) -> int:
    if isinstance(value, Decimal):
        return nanos(value)
    for tier in reversed(value.tiers):
        if prompt > tier.start:
            return nanos(tier.price)
    return nanos(value.base)


def _dearest(candidates: list[_Rates], model: ModelInfo, source: str) -> Price:
    """Return the highest price of all tiers and times, and the cheaper steps for shorter prompts."""
    limits = sorted(set[int]().union(*(rates.limits for rates in candidates)))

    def highest_at(prompt: int) -> _TokenRates:
        return _highest([rates.at(prompt) for rates in candidates])

    above_limits = limits[-1] + 1 if limits else 1
    top = _highest([highest_at(prompt) for prompt in (*limits, above_limits)])
    fee = max(rates.per_request for rates in candidates)
    return Price(
        *top,
        per_request=fee,
        source=source,
        free=not any((*top, fee)),
        window=model.context_window,
        steps=tuple(PriceStep(limit, *highest_at(limit)) for limit in limits),
    )


def _highest(rates: Sequence[_TokenRates]) -> _TokenRates:
    fresh, output, read, write = zip(*rates, strict=True)
    return max(fresh), max(output), max(read), max(write)
