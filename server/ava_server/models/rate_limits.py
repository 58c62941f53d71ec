"""Until when a provider takes no calls: what its error says of that, in headers and in words.

Two kinds of signal are told apart. What answers the question itself counts first: `retry-after-ms`, `retry-after`, and
sentences such as "try again in 20s" or "resets 3pm (UTC)". The resets of rate-limit headers count where nothing of that
is said. They tell when a bucket is full again (OpenAI: "the time until the rate limit resets to its initial state"),
which may be a day, where the next call is possible in minutes. Anthropic's are asked for in the same order
(anthropics/anthropic-sdk-typescript#357).

Within each, durations count before dates: a provider's clock may be off, or ours. A date is held against the `Date`
header of the same response where there is one. Of several the longest counts: each has to be over.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from email.utils import parsedate_to_datetime
from zoneinfo import ZoneInfo

MOST_S = 31 * 24 * 3600.0
"""No limit of a provider lasts longer than a month; what says so is wrong, and counts as not said."""
SPENT_FOR_THE_MONTH = "enforced_spend_limit_reached"
"""Anthropic's `error.details.error_code` when a tier's monthly cap is reached: a 429 without `retry-after`.

Access resumes at 00:00 UTC on the first of the next month (developersdigest.tech/errors/api/anthropic-api, from
Anthropic's own pages)."""
_MOST_CHARS = 4_000
_EPOCH_S, _EPOCH_MS = 1e9, 1e11  # from here on a number is no duration but a point in time
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
    """Return the seconds until a provider takes calls again, between 0 and `MOST_S`; None when it does not say.

    Args:
        headers: Of the response, and those that stand in the error itself (OpenRouter: `error.metadata.headers`).
        words: What the error says, with its codes.
        now: The time, for a response that has no date of its own.
    """
    given = {name.lower(): value.strip() for name, value in headers.items()}
    now = _http_date(given.get("date", "")) or now
    for said in ((*_asked(given), *_said(words[:_MOST_CHARS], now)), _resets(given)):
        if (wait := _longest(said, now)) is not None:
            return wait
    return None


def _longest(said: Iterable[float | datetime], now: datetime) -> float | None:
    """Return the longest wait that can be meant: of the durations, else until one of the dates."""
    moments = tuple(said)
    durations = [one for one in moments if not isinstance(one, datetime)]
    dates = [(one - now).total_seconds() for one in moments if isinstance(one, datetime)]
    for waits in (durations, dates):
        if possible := [wait for wait in waits if 0 <= wait <= MOST_S]:
            return max(possible)
    return None


def _asked(given: Mapping[str, str]) -> Iterator[float | datetime]:
    """Yield what the headers for it ask for; milliseconds, where they are given, in place of the rounded seconds.

    The SDKs of OpenAI and Anthropic read them so (`_parse_retry_after_header`).
    """
    milliseconds = given.get("retry-after-ms", "")
    if _NUMBER.fullmatch(milliseconds):
        yield float(milliseconds) / 1000
    elif (moment := _moment(given.get("retry-after", ""))) is not None:
        yield moment


def _resets(given: Mapping[str, str]) -> Iterator[float | datetime]:
    """Yield the resets of the limits that are used up.

    `anthropic-ratelimit-requests-reset`, `x-ratelimit-reset-requests` (OpenAI, Groq), `X-RateLimit-Reset` (OpenRouter),
    each beside a `remaining`; Anthropic's unified limits of subscriptions have a `status` in its place.
    """
    for name, value in given.items():
        if "ratelimit" not in name or "reset" not in name:
            continue
        remaining = given.get(name.replace("reset", "remaining"), "")
        used_up = bool(_NUMBER.fullmatch(remaining)) and float(remaining) == 0
        if (used_up or given.get(name.replace("reset", "status")) == "rejected") and (
            moment := _moment(value)
        ) is not None:
            yield moment


def _moment(value: str) -> float | datetime | None:
    """Read a header's value: seconds, `1m26.4s`, seconds or milliseconds since 1970, RFC 3339, or an HTTP date."""
    if _NUMBER.fullmatch(value):
        number = float(value)
        return number if number < _EPOCH_S else _since_1970(number)
    if _SPANS.fullmatch(value):
        return _seconds(value)
    return _iso(value) or _http_date(value)


def _said(words: str, now: datetime) -> Iterator[float | datetime]:
    """Yield the durations and times that an error's words name as the end of a wait.

    A time of day without a zone is left out: it may be anybody's, and would be hours off.
    """
    yield from (_seconds(found[1]) for found in _IN.finditer(words))
    moments = [_since_1970(float(found[1])) for found in _EPOCH.finditer(words)]
    moments += [_iso(_written(found)) for found in _ON.finditer(words)]
    moments += [_next(found, now) for found in _AT.finditer(words)]
    if SPENT_FOR_THE_MONTH in words:
        moments.append(_next_month(now))
    yield from (moment for moment in moments if moment is not None)


def _seconds(span: str) -> float:
    """Add up `1h 2m3.5s`, `120ms`, `4 days, 10 hours and 3 minutes`."""
    return sum(float(number) * _SECONDS["ms" if unit[:3] in ("mil", "mse", "ms") else unit[0]]
               for number, unit in _PIECE.findall(span))  # fmt: skip


def _written(found: re.Match[str]) -> str:
    """Write `2026-12-01 at 5:00` as ISO 8601 does."""
    day, clock, zone = found.groups(default="")
    hour, _, rest = (clock or "00:00").partition(":")
    return f"{day}T{hour:0>2}:{rest}{zone}"


def _next(found: re.Match[str], now: datetime) -> datetime | None:
    """Return when a clock in some zone shows a time next; one that was shown in the last hour is past."""
    month, day, year, hour, minute, half, zone = found.groups()
    if (half is None and minute is None) or (half is not None and int(hour) > 12):
        return None
    hours = int(hour) if half is None else int(hour) % 12 + (12 if half in "pP" else 0)
    try:
        there = now.astimezone(_zone(zone))
        when = there.replace(hour=hours, minute=int(minute or 0), second=0, microsecond=0)
        if month is None:
            return when if when > there - _JUST_PAST else when + timedelta(days=1)
        number = _MONTHS.index(month.lower()) + 1
        when = when.replace(year=int(year) if year else there.year, month=number, day=int(day))
        return when if year or when > there - timedelta(days=1) else when.replace(year=there.year + 1)
    except (ValueError, OverflowError, LookupError, OSError):
        return None  # no such day, hour or zone


def _zone(name: str) -> tzinfo:
    return UTC if name in ("UTC", "GMT") else ZoneInfo(name)


def _next_month(now: datetime) -> datetime | None:
    here = now.astimezone(UTC)
    try:
        return datetime(here.year + here.month // 12, here.month % 12 + 1, 1, tzinfo=UTC)
    except ValueError:
        return None


def _since_1970(number: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(number / 1000 if number >= _EPOCH_MS else number, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _iso(text: str) -> datetime | None:
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return None
    return when if when.tzinfo else when.replace(tzinfo=UTC)


def _http_date(text: str) -> datetime | None:
    try:
        when = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError, IndexError):  # e.g. a year of eleven digits
        return None
    return when if when.tzinfo else when.replace(tzinfo=UTC)
