"""Units of time, money and size: integers inside (microseconds UTC, micro-USD), parsed and formatted for people."""

from __future__ import annotations

import re
import time
from datetime import UTC, date, datetime, timedelta, tzinfo
from decimal import ROUND_CEILING, ROUND_HALF_UP, ROUND_UP, Decimal

US_PER_S = 1_000_000
HOUR_S = 3_600
DAY_S = 86_400
HOUR_US = HOUR_S * US_PER_S
DAY_US = 24 * HOUR_US
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH = EPOCH.replace(tzinfo=None)

ACCEPTED = (
    "a time ago (1h, 30 min, an hour ago, 1h30m), now, today, yesterday, a time of these (14:05, yesterday 9:05), "
    "a date (2026-01-31), or a date and time with or without a zone "
    "(2026-01-31 14:05, 2026-01-31T14:05:32Z, 2026-01-31T14:05+01:00)"
)

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_SPAN = r"([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*(weeks?|w|days?|d|hours?|hrs?|h|minutes?|mins?|m|seconds?|secs?|s)"
_ONE_SPAN = re.compile(_SPAN)
_AGO = re.compile(rf"{_SPAN}(?:\s*{_SPAN}){{0,4}}(?:\s+ago)?")
_ONE = re.compile(r"an? (?=[a-z]+( ago)?$)")
_CLOCK = re.compile(r"(?:(today|yesterday) (?:at )?)?([0-9]{1,2}:[0-9]{2}(?::[0-9]{2})?)")
_ISO = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"(?:[tT ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:[.,][0-9]{1,6})?)?\s?(?:[zZ]|[+-][0-9]{2}:?[0-9]{2})?)?"
)


def now_us() -> int:
    return time.time_ns() // 1_000


def steady_s() -> float:
    """Return the seconds of a monotonic clock; where the system has one, of a clock that also counts during sleep."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    if clock is not None:
        return time.clock_gettime(clock)
    return time.monotonic()


def parse_time(text: str, now_us: int, tz: tzinfo | None = None) -> int:
    """Return the time that a person wrote (forms in `ACCEPTED`), in microseconds UTC; one before 1970 becomes 1970.

    `1h`, `today` and the like count from `now_us`. `tz` is for days and for times without a zone; None is this
    machine's. Raises ValueError if the text has none of the forms; the message lists them.
    """
    words = " ".join(text.split()).lower()
    try:
        return max(0, _parse(words, now_us, tz))
    except (ValueError, OverflowError):
        shown = text if len(text) <= 60 else f"{text[:60]}…"
        raise ValueError(f"{shown!r} is not a time; accepted are {ACCEPTED}") from None


def _parse(words: str, now_us: int, tz: tzinfo | None) -> int:
    if words == "now":
        return now_us
    if words in ("today", "yesterday"):
        day = _local_day(now_us, tz) - timedelta(days=words == "yesterday")
        return _us(datetime(day.year, day.month, day.day), tz)
    words = _ONE.sub("1 ", words, count=1)
    if _AGO.fullmatch(words):
        seconds = sum(Decimal(number) * _UNITS[unit[0]] for number, unit in _ONE_SPAN.findall(words))
        return now_us - int(seconds * US_PER_S)
    clock = _CLOCK.fullmatch(words)
    if clock:
        day = _local_day(now_us, tz) - timedelta(days=clock[1] == "yesterday")
        has_seconds = clock[2].count(":") == 2
        time_of_day = clock[2].rjust(len("00:00:00") if has_seconds else len("00:00"), "0")
        words = f"{day.isoformat()} {time_of_day}"
    if not _ISO.fullmatch(words):
        raise ValueError
    without_blanks = words.replace(" +", "+").replace(" -", "-").replace(" z", "z")
    return _us(datetime.fromisoformat(without_blanks.upper()), tz)


def _local_day(ts_us: int, tz: tzinfo | None) -> date:
    return _in_zone(EPOCH + timedelta(microseconds=ts_us), tz).date()


def _in_zone(moment: datetime, tz: tzinfo | None = None) -> datetime:
    """None is this machine's; UTC if TZ names one that is a day or more from it, which Python refuses."""
    try:
        return moment.astimezone(tz)
    except ValueError:
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def _us(moment: datetime, tz: tzinfo | None) -> int:
    if moment.tzinfo is None and tz is not None:
        moment = moment.replace(tzinfo=tz)
    return (_in_zone(moment, UTC) - EPOCH) // timedelta(microseconds=1)


def format_ts(ts_us: int, utc: bool = False) -> str:
    """Return `2026-01-31 14:05:32` in this machine's zone, or `2026-01-31 13:05:32Z` in UTC."""
    moment = EPOCH + timedelta(microseconds=ts_us)
    return moment.strftime("%Y-%m-%d %H:%M:%SZ") if utc else _in_zone(moment).strftime("%Y-%m-%d %H:%M:%S")


def iso_utc(ts_us: int) -> str:
    """Return `2026-01-31T13:05:32.123456Z`: exact, in UTC, and sorted by time when sorted as text."""
    return (_EPOCH + timedelta(microseconds=ts_us)).isoformat(timespec="microseconds") + "Z"


def iso_second(ts_us: int) -> str:
    """Return `2026-01-31T13:05:33Z`: the full second at or after a time, for people who wait until then."""
    return (EPOCH + timedelta(seconds=-(-ts_us // US_PER_S))).strftime("%Y-%m-%dT%H:%M:%SZ")


def local_second(ts_us: int) -> str:
    """Return `Sat 14:05:33 CET`: the full second at or after a time, in this machine's zone, which it names."""
    return _in_zone(EPOCH + timedelta(seconds=-(-ts_us // US_PER_S))).strftime("%a %H:%M:%S %Z")


def day_of(ts_us: int) -> str:
    """Return the UTC day, `YYYY-MM-DD`, that budgets and mirror files use."""
    moment = time.gmtime(ts_us // US_PER_S)
    return f"{moment.tm_year:04d}-{moment.tm_mon:02d}-{moment.tm_mday:02d}"


_UNITS_OF_TIME = ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s"))
"""For each unit: its seconds, its sign, and the seconds and the sign of the next smaller unit."""


def format_duration(seconds: float) -> str:
    """Return a duration for people, in at most two units: `350 ms`, `45 s`, `2 min 5 s`, `3 d 4 h`."""
    if seconds <= 0:
        return "0 s"
    if seconds < 0.9995:
        return f"{round(seconds * 1_000)} ms"
    rounded = round(seconds)
    for size, unit, small_size, small_unit in _UNITS_OF_TIME:
        if rounded < size:
            continue
        shown = f"{rounded // size} {unit}"
        small = rounded % size // small_size
        if small:
            shown += f" {small} {small_unit}"
        return shown
    return f"{rounded} s"


def minutes(seconds: float) -> str:
    """Return a time limit in its largest whole unit, minutes up to two hours: `90 s`, `90 min`, `2 h`, `3 days`."""
    rounded = round(seconds)
    for size, unit, fewest in ((DAY_S, "days", 2), (HOUR_S, "h", 2), (60, "min", 1)):
        number, rest = divmod(rounded, size)
        if number >= fewest and not rest:
            return f"{number} {unit}"
    return f"{seconds:,.15g} s"


MICROS_PER_CENT = 10_000
MICROS_PER_USD = 1_000_000
CAP_STEP_MICROS = 100
"""Caps are multiples of a hundredth of a cent, so that four decimals of a dollar show them as they are."""


def micros_from_cents(cents: float | Decimal) -> int:
    """Return cents as micro-USD, rounded up.

    A float counts as the decimal it is written as: 0.1 cents are 1,000 micro-USD, not 1,001. Raises ValueError: the
    amount is negative, infinite or not a number.
    """
    amount = Decimal(repr(cents)) if isinstance(cents, float) else Decimal(cents)
    if not amount.is_finite() or amount < 0:
        raise ValueError(f"{cents} is not an amount of cents; give a number from 0 up, e.g. 50 or 0.5")
    return int((amount * MICROS_PER_CENT).to_integral_value(ROUND_CEILING))


def cap_micros(cents: float | Decimal) -> int:
    """Return a cap in cents as micro-USD, rounded down to a hundredth of a cent. Raises as `micros_from_cents`."""
    micros = micros_from_cents(cents)
    return micros - micros % CAP_STEP_MICROS if micros >= CAP_STEP_MICROS else micros


def entered_micros(dollars: float) -> int:
    """Return a cap entered in dollars as micro-USD, in whole cents; below one cent in hundredths of one, maybe 0."""
    micros = Decimal(repr(dollars)) * MICROS_PER_USD
    step = MICROS_PER_CENT if micros >= MICROS_PER_CENT else CAP_STEP_MICROS
    return int(micros // step) * step


def cents(micros: int) -> float:
    """Return micro-USD as cents, for display only; do not calculate with it."""
    return micros / MICROS_PER_CENT


def format_usd(micros: int, *, exact: bool = False, up: bool = False) -> str:
    """Return micro-USD for people; with `exact`, for caps and prices, unrounded; with `up`, for the least to give.

    An amount has two decimals (`$0.50`, `$12.35`), and below one cent two significant digits (`$0.0031`). A cap is
    never rounded, because a person approves exactly what is shown: `$0.50`, and `$0.325` where it is not whole cents.
    """
    amount = Decimal(abs(micros)) / MICROS_PER_USD
    if not exact:
        digits = 2 if abs(micros) >= MICROS_PER_CENT or micros == 0 else 1 - amount.adjusted()
        amount = amount.quantize(Decimal(1).scaleb(-digits), ROUND_UP if up else ROUND_HALF_UP)
    dollars, _, decimals = f"{amount:f}".partition(".")
    sign = "-" if micros < 0 else ""
    return f"{sign}${dollars}.{decimals.rstrip('0').ljust(2, '0')}"


def counted(count: int, one: str, many: str = "") -> str:
    """Return a number with its noun: `1 run`, `2,000 runs`."""
    if count == 1:
        return f"1 {one}"
    return f"{count:,} {many or one + 's'}"


def format_bytes(count: int) -> str:
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} bytes"
