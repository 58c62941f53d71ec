import time
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ava_audit.units import (
    cap_micros,
    cents,
    day_of,
    entered_micros,
    format_duration,
    format_ts,
    format_usd,
    iso_utc,
    local_second,
    micros_from_cents,
    now_us,
    parse_time,
)

BERLIN = ZoneInfo("Europe/Berlin")


def us(*parts: int, tz: timezone | ZoneInfo = UTC) -> int:
    moment = datetime(*parts, tzinfo=tz)  # type: ignore[misc, arg-type]
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


NOW = us(2026, 3, 29, 10, 30, 0, 123456)
"""The day on which Berlin goes to summer time."""


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1h", 3600),
        ("30 min", 1800),
        ("1 hour ago", 3600),
        ("  1   Hour  AGO ", 3600),
        ("2d", 172_800),
        ("1h30m", 5400),
        ("1 h 30 min ago", 5400),
        ("1.5 hours", 5400),
        ("90s", 90),
        ("2 weeks ago", 1_209_600),
        ("now", 0),
        ("an hour ago", 3600),
        ("A day", 86_400),
    ],
)
def test_a_time_ago_counts_back_from_now(text: str, seconds: int) -> None:
    assert parse_time(text, NOW, BERLIN) == NOW - seconds * 1_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("today", us(2026, 3, 28, 23)),
        ("yesterday", us(2026, 3, 27, 23)),
        ("2026-03-29", us(2026, 3, 28, 23)),
        ("2026-03-29 14:05", us(2026, 3, 29, 12, 5)),
        ("2026-01-31T14:05:32", us(2026, 1, 31, 13, 5, 32)),
        ("2026-01-31T14:05:32Z", us(2026, 1, 31, 14, 5, 32)),
        ("2026-01-31t14:05:32.5z", us(2026, 1, 31, 14, 5, 32, 500_000)),
        ("2026-01-31 14:05 +02:00", us(2026, 1, 31, 12, 5)),
        ("2026-01-31T14:05-0800", us(2026, 1, 31, 22, 5)),
        ("14:05", us(2026, 3, 29, 12, 5)),
        ("14:05:32", us(2026, 3, 29, 12, 5, 32)),
        ("9:05", us(2026, 3, 29, 7, 5)),
        ("9:05:07", us(2026, 3, 29, 7, 5, 7)),
        ("today 9:05", us(2026, 3, 29, 7, 5)),
        ("Yesterday at 14:05", us(2026, 3, 28, 13, 5)),
    ],
)
def test_times_without_a_zone_use_the_given_zone_across_daylight_saving_changes(text: str, expected: int) -> None:
    assert parse_time(text, NOW, BERLIN) == expected


def test_uses_the_local_time_zone_by_default() -> None:
    naive = datetime(2026, 1, 31, 14, 5)
    assert parse_time("2026-01-31 14:05", NOW) == int(naive.timestamp()) * 1_000_000
    assert format_ts(int(naive.timestamp()) * 1_000_000) == "2026-01-31 14:05:00"


def test_times_before_1970_become_zero() -> None:
    assert parse_time("99999 d", NOW) == 0
    assert parse_time("1960-01-01", NOW) == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon",
        "2026",
        "20260131",
        "2026-13-01",
        "2026-02-30",
        "25:00",
        "1 fortnight",
        "-1h",
        "1h since",
        "a 1 hour",
        "an ago",
        "yesterday 25:00",
        "009:05",
        "١h",
        "1e9h",
    ],
)
def test_rejects_an_invalid_time_and_lists_the_accepted_formats(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time; accepted are a time ago"):
        parse_time(text, NOW)


@given(st.text(max_size=40))
def test_any_text_parses_or_raises_the_same_error(text: str) -> None:
    try:
        assert parse_time(text, NOW, UTC) >= 0
    except ValueError as refused:
        assert "accepted are" in str(refused)


@given(st.integers(min_value=0, max_value=4_000_000_000_000_000))
def test_formatted_utc_times_parse_back_to_the_microsecond(ts_us: int) -> None:
    assert parse_time(iso_utc(ts_us), NOW, BERLIN) == ts_us
    assert parse_time(format_ts(ts_us, utc=True), NOW, BERLIN) == ts_us // 1_000_000 * 1_000_000
    assert iso_utc(ts_us).startswith(day_of(ts_us))


def test_the_day_of_an_event_is_its_utc_day() -> None:
    assert day_of(us(2026, 1, 31, 23, 59, 59, 999_999)) == "2026-01-31"
    assert day_of(us(2026, 2, 1, 0, 30, tz=BERLIN)) == "2026-01-31"
    assert day_of(now_us()) <= day_of(now_us())


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.35, "350 ms"),
        (0.9999, "1 s"),
        (45, "45 s"),
        (59.7, "1 min"),
        (125, "2 min 5 s"),
        (600, "10 min"),
        (3780, "1 h 3 min"),
        (86_400, "1 d"),
        (273_600, "3 d 4 h"),
    ],
)
def test_formats_a_duration_in_its_two_largest_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (0, "$0.00"),
        (500_000, "$0.50"),
        (12_345_678, "$12.35"),
        (10_000, "$0.01"),
        (9_999, "$0.01"),
        (3_100, "$0.0031"),
        (3_149, "$0.0031"),
        (3_000, "$0.003"),
        (12, "$0.000012"),
        (1, "$0.000001"),
        (-500_000, "-$0.50"),
    ],
)
def test_formats_money_in_dollars_with_enough_digits(micros: int, text: str) -> None:
    assert format_usd(micros) == text


def test_an_exact_amount_shows_every_digit() -> None:
    assert format_usd(504_000, exact=True) == "$0.504"
    assert format_usd(500_000, exact=True) == "$0.50"
    assert format_usd(1, exact=True) == "$0.000001"


def test_an_amount_never_has_more_than_two_decimals_from_one_cent_on() -> None:
    assert [format_usd(micros) for micros in (325_140, 10_000, 9_996, 4_000)] == ["$0.33", "$0.01", "$0.01", "$0.004"]


@given(st.floats(min_value=0.0001, max_value=1e6))
def test_a_cap_is_never_raised_and_four_decimals_show_it(amount: float) -> None:
    micros = cap_micros(amount)
    assert 0 < micros <= micros_from_cents(amount)
    if amount >= 0.01:
        assert len(format_usd(micros, exact=True).partition(".")[2]) <= 4
        assert micros_from_cents(amount) - micros < 100


@pytest.mark.parametrize(
    ("dollars", "micros"),
    [
        (0.57, 570_000),
        (0.29, 290_000),
        (0.257, 250_000),
        (0.329999, 320_000),
        (0.0042, 4_200),
        (0.00001, 0),
        (3, 3 * 10**6),
    ],
)
def test_an_entered_cap_is_rounded_down_to_whole_cents(dollars: float, micros: int) -> None:
    assert entered_micros(dollars) == micros


def test_converts_cents_to_micros_exactly_and_never_rounds_down() -> None:
    assert micros_from_cents(50) == 500_000
    assert micros_from_cents(0.1) == 1_000
    assert micros_from_cents(0.29) == 2_900
    assert micros_from_cents(Decimal("0.00001")) == 1
    assert cents(micros_from_cents(0.5)) == 0.5


@pytest.mark.parametrize("amount", [-1, -0.001, float("nan"), float("inf"), Decimal("-inf")])
def test_rejects_invalid_amounts_of_cents(amount: float | Decimal) -> None:
    with pytest.raises(ValueError, match="not an amount of cents"):
        micros_from_cents(amount)


@given(st.integers(min_value=0, max_value=10**12))
def test_micros_survive_conversion_to_cents_and_back(micros: int) -> None:
    assert micros_from_cents(cents(micros)) == micros


@pytest.mark.parametrize(
    ("zone", "shown"), [("CET-1", "Sat 00:05:33 CET"), ("UTC0", "Fri 23:05:33 UTC"), ("EST5", "Fri 18:05:33 EST")]
)
def test_a_time_in_a_question_is_local_and_names_its_zone(
    zone: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", zone)
        time.tzset()
        assert local_second(us(2026, 1, 30, 23, 5, 32) + 1) == shown
    time.tzset()


def test_a_zone_that_is_a_day_from_utc_counts_as_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC+24")
    time.tzset()
    try:
        assert (format_ts(NOW), local_second(NOW)) == ("2026-03-29 10:30:00", "Sun 10:30:01 UTC")
        assert parse_time("2026-03-29 10:30", NOW) == parse_time("10:30", NOW) == us(2026, 3, 29, 10, 30)
    finally:
        monkeypatch.undo()
        time.tzset()
