"""Money that is held, in words: the same figure and the same words wherever a cap is shown.

Held money is not spent. It is for calls in flight, which mostly cost less, and for last turns. So it is shown beside
what is spent and never added to it, even while a run waits for a person and holds only its last turn.
"""

from __future__ import annotations

from ava_audit.units import format_usd


def held_words(micros: float) -> str:
    """`$0.07 reserved for work in progress`; empty where nothing is held."""
    return f"{format_usd(int(micros))} reserved for work in progress" if micros else ""


def spent_words(spent_micros: int, cap_micros: int, held_micros: int, *, exact: bool = False) -> str:
    """`$0.80 of $10.00 (and $0.07 reserved for work in progress)`; `exact` is about the cap."""
    held = f" (and {held_words(held_micros)})" if held_micros else ""
    return f"{format_usd(spent_micros)} of {format_usd(cap_micros, exact=exact)}{held}"
