"""How long a server asks to be left alone, and how that is said."""

from __future__ import annotations

import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

_LONGEST_S = 31 * 86_400


def asked_to_wait(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Return the seconds that `Retry-After` names, as a number or as a date; None where it names none.

    Args:
        headers: The headers of an answer, names in lower case.
        now: The time, in seconds since 1970; None is this moment.
    """
    given = headers.get("retry-after", "").strip()
    if given.isascii() and given.isdigit():
        return min(float(given[:9]), _LONGEST_S)
    try:
        until = parsedate_to_datetime(given).timestamp()
    except (ValueError, OverflowError):
        return None
    return min(max(until - (time.time() if now is None else now), 0.0), _LONGEST_S)


def wait_words(seconds: float | None) -> str:
    """Return a wait in words: `in 30 s`, `in about 5 min`; `later` where nobody said how long."""
    if seconds is None:
        return "later (it does not say when)"
    whole = max(int(-(-seconds // 1)), 1)
    if whole <= 120:
        return f"in {whole} s"
    if whole <= 7_200:
        return f"in about {-(-whole // 60)} min"
    return f"in about {-(-whole // 3_600)} h"
