"""Reading the table of genai-prices without its traps.

Its own `calc_price` counts a missing price as 0, and its prefix rules take `claude-x-hypothetical-max` for
`claude-x`. Here a price must be there, and the table itself must name the id, at most with a date behind it.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from ava_server.models.pricing.prices import Price, Step, nanos

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice, Provider, TieredPrices

_DATED = re.compile(r"[-@](?:\d{4}-?\d{2}-?\d{2}|latest)")
_KINDS = ("input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok")


def look_up(provider: str, model_id: str, *, base_url: str | None, now: datetime | None = None) -> Price | str:
    """Return the table's price of a model, or why there is none.

    Args:
        provider: The provider's name; it counts only where no `base_url` says who really answers.
        model_id: The provider's id of the model.
        base_url: The endpoint; None for the provider's own.
        now: The time at which it is to hold; now by default.
    """
    from genai_prices import __version__
    from genai_prices.data_snapshot import get_snapshot

    known = get_snapshot().providers
    seller = next((one for one in known if _sells(one, provider, base_url)), None)
    if seller is None:
        return f"the table knows no provider {base_url or provider}"
    wanted = model_id.lower()
    model = next((one for one in seller.models if one.id.lower() == wanted), None)
    model = model or next((one for one in seller.models if _names(one.match, wanted)), None)
    if model is None:
        near = next((one.id for one in seller.models if one.match.is_match(wanted)), None)
        return f"the table has only the similar {near}" if near else f"{seller.name} sells none in the table"
    candidates = [_rates(price) for price in _prices_at(model, now or datetime.now(UTC))]
    if any(rates is None for rates in candidates):
        return f"the table's entry {model.id} lacks an input or output price"
    return _dearest([rates for rates in candidates if rates], model, f"genai-prices {__version__}")


def known_ids(provider: str, base_url: str | None = None) -> frozenset[str]:
    """Return the ids that the table has of a provider."""
    from genai_prices.data_snapshot import get_snapshot

    sellers = (one for one in get_snapshot().providers if _sells(one, provider, base_url))
    return frozenset(model.id for seller in sellers for model in seller.models)


def _sells(seller: Provider, provider: str, base_url: str | None) -> bool:
    if base_url is None:
        return seller.id == provider
    return re.match(seller.api_pattern, base_url) is not None


def _names(clause: Any, wanted: str) -> bool:
    """Tell whether a matching rule names the id itself, or the id with a date behind it."""
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
    """Return every price that can hold from now on until a run that starts now must have ended."""
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


class _Rates:
    """Prices by prompt length: `at` gives the four of them in nano-USD per token."""

    def __init__(self, price: ModelPrice) -> None:
        values: dict[str, Decimal | TieredPrices | None] = {kind: getattr(price, kind) for kind in _KINDS}
        # Cache prices that the table lacks are billed as plain input. The price of writing for an hour is not
        # read: no request of ours asks for that.
        self.values = {kind: value if value is not None else values["input_mtok"] for kind, value in values.items()}
        self.thinking: Decimal | TieredPrices | None = getattr(price, "output_reasoning_mtok", None)
        self.limits: set[int] = {
            tier.start for value in (*self.values.values(), self.thinking) for tier in getattr(value, "tiers", ())
        }

    def at(self, prompt: int) -> tuple[int, int, int, int]:
        """Return input, output, cache read and cache write for a prompt of that many tokens."""
        fresh, output, read, write = (_at(self.values[kind], prompt) for kind in _KINDS)
        return fresh, max(output, _at(self.thinking, prompt)), read, write


def _rates(price: ModelPrice) -> _Rates | None:
    """Return the rates of an entry; None when what matters is missing, which the table itself counts as 0."""
    return None if price.input_mtok is None or price.output_mtok is None else _Rates(price)


def _at(value: Decimal | TieredPrices | None, prompt: int) -> int:
    if value is None:
        return 0
    if isinstance(value, Decimal):
        return nanos(value)
    tier = next((tier for tier in reversed(value.tiers) if prompt > tier.start), None)
    return nanos(value.base if tier is None else tier.price)


def _dearest(candidates: list[_Rates], model: ModelInfo, source: str) -> Price:
    """Return the dearest of all tiers and times, and the cheaper steps for shorter prompts."""
    limits = sorted({limit for rates in candidates for limit in rates.limits})

    def highest(prompts: list[int]) -> tuple[int, int, int, int]:
        found = [rates.at(prompt) for rates in candidates for prompt in prompts]
        fresh, output, read, write = (max(column) for column in zip(*found, strict=True))
        return fresh, output, read, write

    top = highest([*limits, (limits[-1] if limits else 0) + 1])
    steps = tuple(Step(limit, *highest([limit])) for limit in limits)
    return Price(
        *top,
        source=source,
        free=not any(top),
        window=model.context_window,
        steps=steps,
    )
