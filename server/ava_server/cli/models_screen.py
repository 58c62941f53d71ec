"""How `ava models` looks: the tiers, then a table for each provider, in 80 columns; and the same facts as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ava_server.cli.terminal import wrapped
from ava_server.models.listing import NOBODY, facts
from ava_server.models.pricing.prices import per_call, price_facts, price_lines, usd
from ava_server.models.selection import SET_A_MODEL

if TYPE_CHECKING:
    from ava_server.cli.models import Shelf
    from ava_server.core.errors import AvaError
    from ava_server.models.listing import Offer, TierMeaning
    from ava_server.models.pricing.prices import Price, Step

WIDTH = 80
_MARGIN = 10
_HEAD = ("in", "out", "read", "write", "window")
Advice = Callable[["AvaError"], str]


def screen(tiers: Sequence[TierMeaning], shelves: Sequence[Shelf], advice: Advice, search: str | None) -> list[str]:
    """Return the whole screen but its first line."""
    lines = ["", "Tiers, as roles ask for them (USD per million tokens):"]
    for names, meant in _alike(tiers):
        lines += _tier(names, meant, advice)
    if any(meant.said_by == NOBODY for meant in tiers):
        lines += ["", *_fitted(SET_A_MODEL), *_fitted("What it would cost: `ava models openrouter`.")]
    for shelf in shelves:
        lines += ["", *_shelf(shelf, search)]
    return lines


def as_facts(tiers: Sequence[TierMeaning], shelves: Sequence[Shelf], advice: Advice) -> dict[str, Any]:
    """Return the same as plain JSON; prices in USD per million tokens."""
    return {
        "tiers": [
            {"tier": meant.wanted, **facts(meant, advice(meant.error) if meant.error else "")} for meant in tiers
        ],
        "providers": [
            {
                "provider": shelf.seller.name,
                "base_url": shelf.seller.base_url,
                "configured": shelf.seller.configured,
                "key": bool(shelf.seller.api_key),
                "models": [_offer_facts(shelf.seller.name, offer) for offer in shelf.offers],
                "problem": shelf.problem or None,
            }
            for shelf in shelves
        ],
    }


def _offer_facts(provider: str, offer: Offer) -> dict[str, Any]:
    return {
        "id": offer.model_id,
        "model": f"{provider}:{offer.model_id}",
        "tiers": list(offer.tiers),
        "price": price_facts(offer.price) if offer.price else None,
        "window": offer.price.window if offer.price else None,
        "problem": offer.unpriced or None,
    }


def _alike(tiers: Sequence[TierMeaning]) -> list[tuple[str, TierMeaning]]:
    """Return the tiers, those that lead to the same in one."""
    found: dict[str, tuple[list[str], TierMeaning]] = {}
    for meant in tiers:
        leads = f"{meant.choice.name if meant.choice else meant.error} {meant.said_by}"
        found.setdefault(leads, ([], meant))[0].append(meant.wanted)
    return [(", ".join(names), meant) for names, meant in found.values()]


def _tier(names: str, meant: TierMeaning, advice: Advice) -> list[str]:
    if meant.choice is None:
        told = f"cannot be used: {meant.error} {advice(meant.error) if meant.error else ''}".rstrip()
        about = told.split("\n")
    else:
        price = meant.choice.price
        window = [f"window {price.window:,} tokens"] if price.window else []
        source = [] if price.free else [f"price: {price.source}"]
        about = [
            meant.choice.name,
            *price_lines(price),
            *filter(None, ["; ".join((*window, *source))]),
            f"chosen by {meant.said_by}",
        ]
    lines = [line for one in about for line in wrapped(one, WIDTH - _MARGIN).split("\n")]
    beside = len(names) < _MARGIN
    first = [f"{names:<{_MARGIN}}{lines.pop(0)}"] if beside else [names]
    return [*first, *(f"{'':{_MARGIN}}{line}" for line in lines)]


def _shelf(shelf: Shelf, search: str | None) -> list[str]:
    seller = shelf.seller
    state = "with a key" if seller.api_key else "without a key" if seller.configured else "no key yet"
    lines = _fitted(f"{seller.name}: {seller.base_url}, {state}")
    if not seller.configured:
        lines += _fitted(f"  To use it: `ava key set {seller.name}`.")
    if shelf.offers:
        lines.append(f"{''.join(f'{word:>8}' for word in _HEAD)}  model")
        lines += [line for offer in shelf.offers for line in _offer(offer)]
    elif search is not None:
        lines += _fitted(f"  None with {search.strip()!r} is known.")
    else:
        lines.append("  No tier means a model of it." if not shelf.whole else "  None is known.")
    lines += _fitted(f"  {shelf.problem}") if shelf.problem else []
    lines += _unpriced([offer for offer in shelf.offers if offer.price is None])
    if not shelf.whole:
        lines += _fitted(f"  All that it has: `ava models {seller.name}`.")
    return lines


def _unpriced(offers: Sequence[Offer]) -> list[str]:
    """Return what to do about models that nobody has priced: the lines to add, for the first of them."""
    if not offers:
        return []
    head = f"{len(offers)} models are unpriced. The first of them: " if len(offers) > 1 else ""
    return [line for part in f"{head}{offers[0].unpriced}".split("\n") for line in _fitted(f"  {part}")]


def _offer(offer: Offer) -> list[str]:
    price = offer.price
    shown = f"{offer.model_id} ({', '.join(offer.tiers)})" if offer.tiers else offer.model_id
    if price is None or price.free:
        return _row(("unpriced" if price is None else "free", "", "", ""), price.window if price else None, shown)
    notes = [
        *(["your price"] if price.source.startswith("settings ") else []),
        *([per_call(price)] if price.per_request else []),
        *([f"above {price.steps[-1].up_to:,} tokens"] if price.steps else []),
    ]
    lines = _row(_cells(price), price.window, ", ".join((shown, *notes)))
    for step in price.steps:
        lines += _row(_cells(step), None, f"  up to {step.up_to:,} tokens")
    return lines


def _cells(price: Price | Step) -> tuple[str, str, str, str]:
    return usd(price.input), usd(price.output), usd(price.cache_read), usd(price.cache_write)


def _row(cells: tuple[str, ...], window: int | None, text: str) -> list[str]:
    """Return a line of the table; a text that does not fit goes on below, under itself."""
    numbers = "".join(f"{cell:>8}" for cell in (*cells, _short(window) if window else ""))
    first, *others = wrapped(text, WIDTH - len(numbers) - 2).split("\n")
    return [f"{numbers}  {first}", *(f"{'':{len(numbers)}}  {line}" for line in others)]


def _short(tokens: int) -> str:
    """Return a number of tokens in few characters: `131k`, `1M`."""
    if tokens < 10_000:
        return f"{tokens:,}"
    return f"{tokens / 1_000_000:.2g}M" if tokens >= 1_000_000 else f"{tokens / 1_000:.0f}k"


def _fitted(text: str) -> list[str]:
    return wrapped(text, WIDTH).split("\n")
