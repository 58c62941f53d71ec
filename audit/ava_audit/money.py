"""Money: integer micro-USD inside, cents at the borders, dollars for people. 1 cent is 10,000 micro-USD."""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_HALF_UP, Decimal

MICROS_PER_CENT = 10_000
MICROS_PER_USD = 1_000_000


def micros_from_cents(cents: float | Decimal) -> int:
    """Return cents as micro-USD, rounded up to a whole one.

    A float counts as the decimal that it is written as: 0.1 cents are 1,000 micro-USD, not 1,001.

    Raises:
        ValueError: The amount is negative, infinite or not a number.
    """
    amount = Decimal(repr(cents)) if isinstance(cents, float) else Decimal(cents)
    if not amount.is_finite() or amount < 0:
        raise ValueError(f"{cents} is not an amount of cents; give a number from 0 up, e.g. 50 or 0.5")
    return int((amount * MICROS_PER_CENT).to_integral_value(ROUND_CEILING))


def cents(micros: int) -> float:
    """Return micro-USD as cents, for a field that shows cents; never calculate with it."""
    return micros / MICROS_PER_CENT


def format_usd(micros: int, *, exact: bool = False) -> str:
    """Return micro-USD for people: `$0.50`, `$12.35`, and below a cent two telling digits: `$0.0031`.

    Args:
        micros: The amount.
        exact: Round nothing (`$0.504`): for a figure that someone approves.
    """
    amount = Decimal(abs(micros)) / MICROS_PER_USD
    if not exact:
        digits = 2 if abs(micros) >= MICROS_PER_CENT or micros == 0 else 1 - amount.adjusted()
        amount = amount.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)
    whole, _, part = f"{amount:f}".partition(".")
    return f"{'-' if micros < 0 else ''}${whole}.{part.rstrip('0').ljust(2, '0')}"
