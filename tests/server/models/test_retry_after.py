"""Until when a provider takes no calls, as its headers and words say it."""

import math
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ava_server.models.retry_after import MOST_S, again_after

NOW = datetime(2026, 11, 21, 4, tzinfo=UTC)
HOUR = 3600.0
SAID = "Rate limit reached for m in organization o on tokens per min (TPM): Limit 30000, Used 29937, Requested 385. "
OPENAI = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6m0s"}
ANTHROPIC = {"anthropic-ratelimit-tokens-remaining": "0", "anthropic-ratelimit-tokens-reset": "2026-11-21T04:00:33Z"}


def http_date(seconds: float) -> str:
    return format_datetime(NOW + timedelta(seconds=seconds), usegmt=True)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("3", 3.0),
        (" 0.5 ", 0.5),
        ("0", None),  # it would be refused again
        ("90000", 90_000.0),
        ("2m30s", 150.0),
        (http_date(90), 90.0),
        (http_date(-1), None),
        (http_date(4000 * 86400), None),
        ("-4", None),
        ("soon", None),
        ("nan", None),
        ("inf", None),
        ("1e12", None),
        ("2678401", None),
        ("Mon, 01 Jan 99999999999 00:00:00 GMT", None),
        ("Mon, 01 Jan 9999 00:00:00 -9999", None),
        ("Mon, 99 Jan 2026 00:00:00 GMT", None),
        ("9" * 5000, None),
        ("", None),
    ],
)
def test_accepts_retry_after_as_a_duration_or_a_date_within_a_month(value: str, seconds: float | None) -> None:
    assert again_after({"Retry-After": value}, "", NOW) == seconds


@pytest.mark.parametrize(
    ("headers", "words", "seconds"),
    [
        ({"retry-after-ms": "120", "retry-after": "1"}, "", 0.12),
        ({"retry-after-ms": "0", "retry-after": "1"}, "", 1.0),
        ({"retry-after-ms": "soon", "retry-after": "1"}, "", 1.0),
        ({"retry-after": "5"}, "Please try again in 20s.", 20.0),
        ({"retry-after": "5"}, "resets at 2026-11-21T05:00:00Z", 5.0),
        ({"retry-after": http_date(90)}, "", 90.0),
        ({"retry-after": http_date(90), "Date": http_date(80)}, "", 10.0),
        ({"retry-after": "5", "Date": http_date(-HOUR)}, "", 5.0),
        ({"date": http_date(-HOUR)}, "resets at 2026-11-21T05:00:00Z", 2 * HOUR),
        (OPENAI, "", 360.0),
        ({**OPENAI, "x-ratelimit-remaining-requests": "1"}, "", None),
        ({**OPENAI, "x-ratelimit-remaining-requests": "-1"}, "", None),
        ({**OPENAI, "x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "7m0s"}, "", 420.0),
        (OPENAI, SAID + "Please try again in 7.5s.", 7.5),
        (ANTHROPIC, "", 33.0),
        ({**ANTHROPIC, **OPENAI}, "", 360.0),
        ({**ANTHROPIC, "retry-after": "3"}, "", 3.0),
        ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1795233660000"}, "", 60.0),
        ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1795233660"}, "", 60.0),
        (
            {"anthropic-ratelimit-unified-status": "rejected", "anthropic-ratelimit-unified-reset": "1795233660"},
            "",
            60.0,
        ),
        (
            {"anthropic-ratelimit-unified-status": "allowed", "anthropic-ratelimit-unified-reset": "1795233660"},
            "",
            None,
        ),
    ],
)
def test_prefers_the_matching_header_to_a_reset_and_a_duration_to_a_date(
    headers: dict[str, str], words: str, seconds: float | None
) -> None:
    assert again_after(headers, words, NOW) == seconds


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        (SAID + "Please try again in 20s. Visit https://example.com for more.", 20.0),
        (SAID + "Please try again in 1m26.4s.", 86.4),
        (SAID + "Please try again in 6m0s.", 360.0),
        (SAID + "Please try again in 120ms.", 0.12),
        ("You exceeded your current quota. Please retry in 58.5s.", 58.5),
        ("Please retry after 26 seconds.", 26.0),
        ("try again in 4 days, 2 hours and 3 minutes", 4 * 86400 + 2 * HOUR + 180),
        ("You have reached your API usage limits. You will regain access on 2026-12-01 at 00:00 UTC.", 236 * HOUR),
        ("Claude AI usage limit reached|1795251600", 5 * HOUR),
        ("Claude AI usage limit reached|1795251600000", 5 * HOUR),
        ("the limit resets at 2026-11-21T05:00:00Z", HOUR),
        ("the limit resets at 2026-11-21 07:00:00+02:00", HOUR),
        ("try again at 5:00 PM UTC", 13 * HOUR),
        ("You've hit your limit · resets 3pm (UTC)", 11 * HOUR),
        ("resets 2am (UTC)", 22 * HOUR),
        ("resets 12:30am (UTC)", 20.5 * HOUR),
        ("resets 3:59am (UTC)", None),  # a minute ago, not in a day
        ("resets 11:20am (Europe/Budapest)", 6 * HOUR + 20 * 60),
        ("resets Nov 25 at 3pm (UTC)", 4 * 86400 + 11 * HOUR),
        ("try again at Nov 25th, 2026 5:00 PM UTC", 4 * 86400 + 13 * HOUR),
        ("This organization is blocked [enforced_spend_limit_reached]", 236 * HOUR),
        ("try again at 5:00 PM", None),  # whose?
        ("resets 3pm (../../etc/passwd)", None),
        ("resets 3pm (Nowhere/Atall)", None),
        ("resets 99pm (UTC), 31:99 (UTC)", None),
        ("resets Feb 31 at 3pm (UTC)", None),
        ("resets at 2026-99-99T05:00:00Z", None),
        ("resets at 2026-11-20T05:00:00Z", None),
        ("regain access on 2027-02-01 at 00:00 UTC", None),
        ("try again later: at most 20 requests in 60s", None),
        ("wait for 1M tokens", None),
    ],
)
def test_reads_a_duration_or_a_time_from_text(words: str, seconds: float | None) -> None:
    wait = again_after({}, words, NOW)
    assert wait is None if seconds is None else wait == pytest.approx(seconds)


def test_a_monthly_limit_ends_on_the_first_of_the_next_month_even_in_december() -> None:
    now = datetime(2026, 12, 31, 23, tzinfo=UTC)
    assert again_after({}, "[enforced_spend_limit_reached]", now) == HOUR


NAMES = (
    "retry-after", "retry-after-ms", "date", "x-ratelimit-reset", "x-ratelimit-remaining",
    "x-ratelimit-reset-requests", "x-ratelimit-remaining-requests", "anthropic-ratelimit-tokens-reset",
    "anthropic-ratelimit-tokens-remaining", "anthropic-ratelimit-unified-reset", "anthropic-ratelimit-unified-status",
)  # fmt: skip
PIECES = st.sampled_from(
    [*"0123456789 .:,|()-+TZ/", "again", "resets", " at ", "in ", "limit reached|", "am", "pm", "UTC", "ms", "s", "m",
     "h", "days", "Nov ", "Feb 29", "2026-11-21", "9999-12-31T23:59:59-23:59", "0001-01-01", "Etc/GMT",
     "Europe/Budapest", "nan", "inf", "1e999", "rejected", "enforced_spend_limit_reached",
     "Mon, 01 Jan 9999 00:00:00 -2359", "9" * 13]
)  # fmt: skip
TEXTS = st.one_of(st.text(), st.lists(PIECES, max_size=12).map("".join), st.datetimes().map(str), st.floats().map(str))
TIMES = st.one_of(st.just(NOW), st.datetimes(timezones=st.just(UTC)))


@given(st.dictionaries(st.one_of(st.sampled_from(NAMES), st.text()), TEXTS, max_size=6), TEXTS, TIMES)
def test_no_provider_text_raises_or_waits_longer_than_a_month(
    headers: dict[str, str], words: str, now: datetime
) -> None:
    wait = again_after(headers, words, now)
    assert wait is None or (math.isfinite(wait) and 0 <= wait <= MOST_S)


@given(TEXTS, TEXTS)
def test_arbitrary_text_around_a_retry_phrase_yields_a_valid_wait_or_none(one: str, other: str) -> None:
    wait = again_after({}, f"{one} try again {other}", NOW)
    assert wait is None or 0 <= wait <= MOST_S
