"""What a model costs, as people and other programs read it: in USD per million tokens."""

from __future__ import annotations

from typing import Any

from ava_audit.money import format_usd
from ava_server.models.pricing.prices import Price, Step


def price_words(price: Price) -> str:
    """Return what a model costs, in half a sentence."""
    if price.free:
        return price.source or "free"
    call = f", {per_call(price)}" if price.per_request else ""
    prices = f"{format_usd(price.input * 1000)} in and {format_usd(price.output * 1000)} out"
    return f"{prices} per million tokens{call} (price: {price.source})"


def price_lines(price: Price) -> list[str]:
    """Return all that a model's tokens cost, a line for each price step, the dearest first."""
    if price.free:
        return ["costs nothing"]
    above = f"above {price.steps[-1].up_to:,} tokens: " if price.steps else ""
    call = f"; {per_call(price)}" if price.per_request else ""
    steps = [f"up to {step.up_to:,} tokens: {_rates(step)}" for step in price.steps]
    return [f"{above}{_rates(price)}{call}", *steps]


def usd(nanos: int) -> str:
    """Return nano-USD per token as USD per million tokens, to the last digit: `0.50`, `0.075`."""
    return format_usd(nanos * 1000, exact=True).removeprefix("$")


def price_facts(price: Price) -> dict[str, Any]:
    """Return a price as plain JSON: its dearest step, and the cheaper ones for shorter prompts."""
    return {
        **_facts(price),
        "per_request": price.per_request / 10**9,
        "source": price.source,
        "free": price.free,
        "steps": [{"up_to": step.up_to, **_facts(step)} for step in price.steps],
    }


def _rates(price: Price | Step) -> str:
    cache = f"cache read {usd(price.cache_read)}, write {usd(price.cache_write)}"
    return f"in {usd(price.input)}, out {usd(price.output)}, {cache}"


def per_call(price: Price) -> str:
    """Return what a call costs beside its tokens."""
    return f"{format_usd(price.per_request // 1000)} a call"


def _facts(price: Price | Step) -> dict[str, float]:
    return {
        "input": price.input / 1000,
        "output": price.output / 1000,
        "cache_read": price.cache_read / 1000,
        "cache_write": price.cache_write / 1000,
    }
