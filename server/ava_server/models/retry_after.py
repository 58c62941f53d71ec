"""When a provider takes calls again: what the headers and the message of its error say.

What answers the question itself counts first: `retry-after-ms`, `retry-after`, and sentences such as "try again in 20s"
or "resets 3pm (UTC)". Only without those do the resets of rate-limit headers count. They tell when a bucket is full
again (OpenAI: "the time until the rate limit resets to its initial state"): that may take a day, where the next call is
possible in minutes. Anthropic asks for the same order (anthropics/anthropic-sdk-typescript#357).

Within each group, durations count before dates: the provider's clock may be off, or ours. A date is compared with the
`Date` header of the same response, if there is one. Of several values the longest counts, because every limit has to
end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from zoneinfo import ZoneInfo

MOST_S = 31 * 24 * 3600.0
"""No provider's limit lasts longer than a month; a longer wait is an error, and is ignored."""
SPENT_FOR_THE_MONTH = "enforced_spend_limit_reached"
"""Anthropic's `error.details.error_code` for a tier's monthly cap: a 429 without `retry-after`.

Access resumes at 00:00 UTC on the first of the next month (developersdigest.tech/errors/api/anthropic-api, from
Anthropic's own pages)."""
_MOST_CHARS = 4_000
_EPOCH_S, _EPOCH_MS = 1e9, 1e11  # from here on a number is a point in time, not a duration
_JUST_PAST = timedelta(hours=1)

_NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,12})?")
_UNIT = r"milliseconds?|msecs?|ms|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d"
_PIECE = re.compile(rf"([0-9]{{1,9}}(?:\.[0-9]{{1,12}})?)\s?({_UNIT})(?![A-Za-z])")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_SPAN = rf"[0-9]{{1,9}}(?:\.[0-9]{{1,12}})?\s?(?:{_UNIT})(?![A-Za-z])"
_SPANS = re.compile(rf"{_SPAN}(?:,?\s?(?:and\s)?{_SPAN}){{0,5}}")
_CUE = r"(?i:\b(?:again|retry|wait|resets?|access|until|available)\b)[^0-9.|\n]{0,40}?"
_IN = re.compile(rf"{_CUE}({_SPANS.pattern})")
_ON = re.compile(
    rf"{_CUE}([0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}})"
    r"(?:(?:T|\s(?:at\s)?)([0-9]{1,2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?)\s?([+-][0-9]{2}:?[0-9]{2})?)?"
)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_AT = re.compile(
    rf"{_CUE}(?:(?i:({'|'.join(_MONTHS)})[a-z]{{0,6}})\.?\s([0-9]{{1,2}})(?:st|nd|rd|th)?,?\s(?:([0-9]{{4}}),?\s)?(?:at\s)?)?"
    r"([0-9]{1,2})(?::([0-9]{2}))?\s?(?i:([ap])\.?m\b\.?)?\s?\(?(UTC|GMT|[A-Z][A-Za-z]{1,20}(?:/[A-Za-z0-9_+-]{1,30}){1,2})\b"
)
_EPOCH = re.compile(r"(?i:limit reached)\s?\|\s?([0-9]{10}|[0-9]{13})\b")


def again_after(headers: Mapping[str, str], words: str, now: datetime) -> float | None:
    """Return the seconds until a provider takes calls again, from 0 to `MOST_S`; None when it does not say.

    Args:
        headers: Those of the response, and those inside the error itself (OpenRouter: `error.metadata.headers`).
        words: The error's message and codes.
        now: The time, used when the response has no date of its own.
    """
    given = {name.lower(): value.strip() for name, value in headers.items()}
    now = _http_date(given.get("date", "")) or now
    for moments in ((*_retry_headers(given), *_from_words(words[:_MOST_CHARS], now)), _resets(given)):
        if (wait := _longest(moments, now)) is not None:
            return wait
    return None


def _longest(moments: Iterable[float | datetime], now: datetime) -> float | None:
    """Return the longest plausible wait: of the durations, else of the times until the dates."""
    durations: list[float] = []
    until: list[float] = []
    for moment in moments:
        if isinstance(moment, datetime):
            until.append((moment - now).total_seconds())
        else:
            durations.append(moment)
    for waits in (durations, until):
        if possible := [wait for wait in waits if 0 <= wait <= MOST_S]:
            return max(possible)
    return None


def _retry_headers(given: Mapping[str, str]) -> Iterator[float | datetime]:
    """Yield the wait of the retry headers; milliseconds replace the rounded seconds.

    The SDKs of OpenAI and Anthropic read them in this order (`_parse_retry_after_header`).
    """
    milliseconds = given.get("retry-after-ms", "")
    if _NUMBER.fullmatch(milliseconds):
        yield float(milliseconds) / 1000
    elif (moment := _moment(given.get("retry-after", ""))) is not None:
        yield moment


def _resets(given: Mapping[str, str]) -> Iterator[float | datetime]:
    """Yield the reset times of the limits that are used up.

    `anthropic-ratelimit-requests-reset`, `x-ratelimit-reset-requests` (OpenAI, Groq) and `X-RateLimit-Reset`
    (OpenRouter) each come with a `remaining`. Anthropic's unified limits of subscriptions have a `status` instead.
    """
    for name, value in given.items():
        if "ratelimit" not in name or "reset" not in name:
            continue
        remaining = given.get(name.replace("reset", "remaining"), "")
        used_up = bool(_NUMBER.fullmatch(remaining)) and float(remaining) == 0
        rejected = given.get(name.replace("reset", "status")) == "rejected"
        if (used_up or rejected) and (moment := _moment(value)) is not None:
            yield moment


def _moment(value: str) -> float | datetime | None:
    """Read a header's value: seconds, `1m26.4s`, seconds or milliseconds since 1970, RFC 3339, or an HTTP date."""
    if _NUMBER.fullmatch(value):
        number = float(value)
        return number if number < _EPOCH_S else _since_1970(number)
    if _SPANS.fullmatch(value):
        return _seconds(value)
    return _iso(value) or _http_date(value)


def _from_words(words: str, now: datetime) -> Iterator[float | datetime]:
    """Yield the durations and times that a message names as the end of a wait.

    A time of day without a zone is ignored: it could be hours off.
    """
    yield from (_seconds(found[1]) for found in _IN.finditer(words))
    moments = [_since_1970(float(found[1])) for found in _EPOCH.finditer(words)]
    moments += [_iso(_as_iso(found)) for found in _ON.finditer(words)]
    moments += [_next_time(found, now) for found in _AT.finditer(words)]
    if SPENT_FOR_THE_MONTH in words:
        moments.append(_next_month(now))
    yield from (moment for moment in moments if moment is not None)


def _seconds(span: str) -> float:
    """Add up `1h 2m3.5s`, `120ms`, `4 days, 10 hours and 3 minutes`."""
    return sum(float(number) * _SECONDS["ms" if unit[:3] in ("mil", "mse", "ms") else unit[0]]
               for number, unit in _PIECE.findall(span))  # fmt: skip


def _as_iso(found: re.Match[str]) -> str:
    """Write `2026-12-01 at 5:00` in ISO 8601."""
    day, clock, zone = found.groups(default="")
    hour, _, rest = (clock or "00:00").partition(":")
    return f"{day}T{hour:0>2}:{rest}{zone}"


def _next_time(found: re.Match[str], now: datetime) -> datetime | None:
    """Return when a clock in some zone next shows a time; None if it did so within the last hour."""
    month, day, year, hour, minute, half, zone = found.groups()
    if (half is None and minute is None) or (half is not None and int(hour) > 12):
        return None
    hours = int(hour) if half is None else int(hour) % 12 + (12 if half in "pP" else 0)
    try:
        there = now.astimezone(UTC if zone in ("UTC", "GMT") else ZoneInfo(zone))
        when = there.replace(hour=hours, minute=int(minute or 0), second=0, microsecond=0)
        if month is None:
            return when if when > there - _JUST_PAST else when + timedelta(days=1)
        number = _MONTHS.index(month.lower()) + 1
        when = when.replace(year=int(year) if year else there.year, month=number, day=int(day))
        return when if year or when > there - timedelta(days=1) else when.replace(year=there.year + 1)
    except (ValueError, OverflowError, LookupError, OSError):
        return None  # no such day, hour or zone


def _next_month(now: datetime) -> datetime | None:
    here = now.astimezone(UTC)
    return _attempt(lambda: datetime(here.year + here.month // 12, here.month % 12 + 1, 1, tzinfo=UTC))


def _since_1970(number: float) -> datetime | None:
    return _attempt(lambda: datetime.fromtimestamp(number / 1000 if number >= _EPOCH_MS else number, UTC))


def _iso(text: str) -> datetime | None:
    return _attempt(lambda: datetime.fromisoformat(text))


def _http_date(text: str) -> datetime | None:
    return _attempt(lambda: parsedate_to_datetime(text))


def _attempt(make: Callable[[], datetime]) -> datetime | None:
    """Return a point in time, in UTC if it names no zone; None if there is no such time."""
    try:
        when = make()
    except (ValueError, TypeError, OverflowError, IndexError, OSError):  # e.g. a year of eleven digits
        return None
    return when if when.tzinfo else when.replace(tzinfo=UTC)
