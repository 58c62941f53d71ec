"""When a provider takes calls again: from the headers of its response, and the words of its error."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from email.utils import parsedate_to_datetime
from zoneinfo import ZoneInfo

MOST_S = 31 * 24 * 3600.0
"""No provider's limit lasts longer than a month; a longer wait is an error, and is ignored."""
SPENT_FOR_THE_MONTH = "enforced_spend_limit_reached"
"""Anthropic's `error.details.error_code` for a tier's monthly cap: a 429 without `retry-after`.

Access resumes at 00:00 UTC on the first of the next month (developersdigest.tech/errors/api/anthropic-api, from
Anthropic's own pages)."""
_MOST_CHARS = 4_000  # of a message that are read
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
    """Return the seconds (more than 0, to `MOST_S`) until a provider takes calls again; None when it does not say.

    `headers` are those of the response, and those inside the error itself (OpenRouter: `error.metadata.headers`). `now`
    is used when the response has no date of its own.
    """
    values = {name.lower(): value.strip() for name, value in headers.items()}
    now = _http_date(values.get("date", "")) or now
    wait = _longest([*_retry_headers(values), *_from_words(words[:_MOST_CHARS], now)], now)
    if wait is None:
        wait = _longest(_resets(values), now)
    return wait


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
        plausible = [wait for wait in waits if 0 < wait <= MOST_S]  # 0 says nothing: the next call would be refused too
        if plausible:
            return max(plausible)
    return None


def _retry_headers(headers: Mapping[str, str]) -> Iterator[float | datetime]:
    """Yield the wait; milliseconds replace rounded seconds, as in OpenAI's and Anthropic's SDKs."""
    milliseconds = headers.get("retry-after-ms", "")
    if _NUMBER.fullmatch(milliseconds) and float(milliseconds):
        yield float(milliseconds) / 1000
        return
    moment = _moment(headers.get("retry-after", ""))
    if moment is not None:
        yield moment


def _resets(headers: Mapping[str, str]) -> Iterator[float | datetime]:
    """Yield the reset times of the limits that are used up.

    `anthropic-ratelimit-requests-reset`, `x-ratelimit-reset-requests` (OpenAI, Groq) and `X-RateLimit-Reset`
    (OpenRouter) each come with a `remaining`. Anthropic's unified limits of subscriptions have a `status` instead.
    """
    for name, value in headers.items():
        if "ratelimit" not in name or "reset" not in name:
            continue
        remaining = headers.get(name.replace("reset", "remaining"), "")
        used_up = _NUMBER.fullmatch(remaining) is not None and float(remaining) == 0
        rejected = headers.get(name.replace("reset", "status")) == "rejected"
        moment = _moment(value) if used_up or rejected else None
        if moment is not None:
            yield moment


def _moment(value: str) -> float | datetime | None:
    """Read a header's value: seconds, `1m26.4s`, seconds or milliseconds since 1970, RFC 3339, or an HTTP date."""
    if _NUMBER.fullmatch(value):
        number = float(value)
        if number < _EPOCH_S:
            return number
        return _since_1970(number)
    if _SPANS.fullmatch(value):
        return _seconds(value)
    return _iso(value) or _http_date(value)


def _from_words(words: str, now: datetime) -> Iterator[float | datetime]:
    """Yield durations and times that a message names as the end of a wait, no time of day without a zone."""
    for match in _IN.finditer(words):
        yield _seconds(match[1])
    moments = [_since_1970(float(match[1])) for match in _EPOCH.finditer(words)]
    for match in _ON.finditer(words):  # `2026-12-01 at 5:00`
        day, clock, zone = match.groups(default="")
        hour, _, rest = (clock or "00:00").partition(":")
        moments.append(_iso(f"{day}T{hour:0>2}:{rest}{zone}"))
    moments += [_next_time(match, now) for match in _AT.finditer(words)]
    if SPENT_FOR_THE_MONTH in words:
        moments.append(_next_month(now.astimezone(UTC)))
    for moment in moments:
        if moment is not None:
            yield moment


def _seconds(span: str) -> float:
    seconds = 0.0
    for number, unit in _PIECE.findall(span):
        is_milliseconds = unit.startswith(("mil", "mse", "ms"))
        seconds += float(number) * _SECONDS["ms" if is_milliseconds else unit[0]]
    return seconds


def _next_time(match: re.Match[str], now: datetime) -> datetime | None:
    """Return when a clock in some zone next shows a time, as `_AT` matched it.

    None if it did so within the last hour, or for no such day, hour or zone.
    """
    month, day, year, _hour, minute, _half, zone = match.groups()
    hour = _hour_of(match)
    if hour is None:
        return None
    try:
        timezone: tzinfo = UTC
        if zone not in ("UTC", "GMT"):
            timezone = ZoneInfo(zone)
        local_now = now.astimezone(timezone)
        when = local_now.replace(hour=hour, minute=int(minute or 0), second=0, microsecond=0)
        if month is None:
            if when <= local_now - _JUST_PAST:
                return when + timedelta(days=1)
            return when
        when = when.replace(
            year=int(year or local_now.year),
            month=_MONTHS.index(month.lower()) + 1,
            day=int(day),
        )
        has_passed = when <= local_now - timedelta(days=1)
        if has_passed and not year:
            return when.replace(year=local_now.year + 1)
        return when
    except (ValueError, OverflowError, LookupError, OSError):
        return None


def _hour_of(match: re.Match[str]) -> int | None:
    """Return the hour that `_AT` matched, from 0; None for a number alone, which is no time of day."""
    *_day, digits, minute, half, _zone = match.groups()
    hour = int(digits)
    if half is None:
        return None if minute is None else hour
    if hour > 12:
        return None
    hour %= 12  # 12 a.m. is 0
    return hour + 12 if half in "pP" else hour


def _next_month(now: datetime) -> datetime | None:
    year = now.year + now.month // 12
    month = now.month % 12 + 1
    return _attempt(lambda: datetime(year, month, 1, tzinfo=UTC))


def _since_1970(number: float) -> datetime | None:
    seconds = number / 1000 if number >= _EPOCH_MS else number
    return _attempt(lambda: datetime.fromtimestamp(seconds, UTC))


def _iso(text: str) -> datetime | None:
    return _attempt(lambda: datetime.fromisoformat(text))


def _http_date(text: str) -> datetime | None:
    return _attempt(lambda: parsedate_to_datetime(text))


def _attempt(make: Callable[[], datetime]) -> datetime | None:
    """Return a point in time, in UTC if it names no zone; None for an invalid one."""
    try:
        when = make()
    except (ValueError, TypeError, OverflowError, IndexError, OSError):  # e.g. a year of eleven digits
        return None
    return when if when.tzinfo else when.replace(tzinfo=UTC)
