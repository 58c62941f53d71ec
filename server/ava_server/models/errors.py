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
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, tzinfo
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from ava_audit.units import US_PER_S, format_duration, iso_second
from ava_server.core.errors import ModelError, ModelTimeout
from ava_server.models import provider_error
from ava_server.models.provider_error import ProviderError, read, said_in
from ava_server.models.wires import base

if TYPE_CHECKING:
    from collections.abc import Mapping

    import httpx2


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


_KEY_SHAPE = re.compile(r"\b(?:(?:sk|pk|rk|key|xai)-|gsk_)[A-Za-z0-9_\-]{8,}|\bBearer\s+\S+|\bAIza[\w\-]{20,}")
_ID_SHAPE = re.compile(r"[A-Za-z0-9][\w.:\-]{2,127}", re.ASCII)
_VERIFY_WORDS = re.compile(r"certificate verify failed: (.*?)(?: \(_ssl|$)")
_SAID_CHARS = 200


def may_have_been_billed(error: ModelError) -> bool:
    """Tell how an attempt is to be settled: False is `not_billed`, True is `unknown`.

    Not billed is only what never reached the provider, or what it refused by an error status before any byte
    of an answer. A connection that broke in between leaves the outcome unknown.
    """
    return error.answered or (error.sent and error.kind in ("connection", "dropped", "timeout", "bad_answer"))


@dataclass(frozen=True)
class Endpoint:
    """Where a model is asked, and in which format, as errors name it: host and path, no user, no query, no key."""

    url: str
    model: str
    api_key: str | None
    speaks: str = "chat completions"

    @property
    def place(self) -> str:
        """Host, port and path."""
        parts = urlsplit(self.url)
        return parts.netloc.rpartition("@")[2] + parts.path

    @property
    def key(self) -> str:
        """The key, masked."""
        if not self.api_key:
            return "no key"
        return f"the key {self.api_key[:3]}…" if len(self.api_key) >= 20 else "the key …"

    def clean(self, text: str) -> str:
        """Return a provider's words on one line, without keys and control characters."""
        if self.api_key:
            text = text.replace(self.api_key, "…")
        text = _KEY_SHAPE.sub("…", base.whole_text(text)[0])
        text = "".join(" " if unicodedata.category(char)[0] in "CZ" else char for char in text)
        text = " ".join(text.split())
        return text if len(text) <= _SAID_CHARS else text[: _SAID_CHARS - 1] + "…"

    # No answer

    def unreachable(self, error: Exception) -> ModelError:
        """No connection could be made."""
        from ava_roles.net.proxies import ProxyRefused

        if why := _VERIFY_WORDS.search(str(error)):
            return self._not_trusted(why[1])
        if isinstance(error, ProxyRefused):
            return ModelError(
                f"No connection to {self.place}: {self.clean(str(error))}.",
                kind="connection",
                sent=False,
                answered=False,
                retryable=False,
                what_to_do="Correct the proxy in HTTPS_PROXY (http://user:password@host:port), or name the endpoint's"
                " host in NO_PROXY to go around it.",
            )
        return ModelError(
            f"No connection to {self.place}: {self.clean(str(error)) or type(error).__name__}.",
            kind="connection",
            sent=False,
            answered=False,
            retryable=True,
            what_to_do="Check that the endpoint runs and that its URL, the proxy and the network are right.",
        )

    def _not_trusted(self, why: str) -> ModelError:
        """Whoever answers at the address has a certificate from nobody that this machine trusts."""
        return ModelError(
            f"No connection to {self.place}: its certificate is not trusted ({self.clean(why)}).",
            kind="connection",
            sent=False,
            answered=False,
            retryable=False,
            what_to_do="Check the address. If the endpoint, or a proxy on the way, has a certificate from an authority"
            " of its own, have SSL_CERT_FILE name the file with that authority's certificate.",
        )

    def connect_timeout(self, seconds: float) -> ModelError:
        """The connection took too long."""
        return ModelError(
            f"No connection to {self.place} within {seconds:g} s.",
            kind="connection",
            sent=False,
            answered=False,
            retryable=True,
            what_to_do="Check the network and whether the endpoint is overloaded; then try again.",
        )

    def no_certificates(self, error: OSError) -> ModelError:
        """The certificates that servers are checked against cannot be read."""
        return ModelError(
            f"No connection to {self.place} can be made safe: {self.clean(str(error))}.",
            kind="connection",
            sent=False,
            answered=False,
            retryable=False,
            what_to_do="Correct SSL_CERT_FILE and SSL_CERT_DIR: they name the certificates to trust.",
        )

    def unsendable(self, error: Exception) -> ModelError:
        """The request cannot be sent as it is: a wrong URL or header."""
        return ModelError(
            f"The request to {self.place} with {self.key} cannot be sent: {self.clean(str(error))}.",
            kind="bad_request",
            sent=False,
            answered=False,
            retryable=False,
            what_to_do="Correct the base URL or the key in the settings.",
        )

    def timeout(self, what: str, seconds: float, *, answered: bool) -> ModelTimeout:
        """A deadline of the call passed; `what` is what did not happen in time."""
        return ModelTimeout(
            f"{self.place} was given {seconds:g} s: {what}.",
            kind="timeout",
            sent=True,
            answered=answered,
            retryable=True,
            what_to_do="Try again, or choose a faster model.",
        )

    def hung_up(self, error: Exception) -> ModelError:
        """The connection broke before an answer began."""
        return ModelError(
            f"{self.place} hung up before it answered ({self.clean(str(error)) or type(error).__name__}).",
            kind="connection",
            sent=True,
            answered=False,
            retryable=True,
            what_to_do="Try again; when it happens each time, look into the endpoint's own log.",
        )

    # An error of the provider

    def status(self, response: httpx2.Response, content: bytes, now: datetime | None = None) -> ModelError:
        """The endpoint answered with an error status."""
        said = read(content)
        refusal = provider_error.meaning(said, response.status_code)
        # The SDKs of OpenAI and Anthropic obey it whatever the status is (`_should_retry`).
        again = {"true": True, "false": False}.get(response.headers.get("x-should-retry", "").strip().lower())
        if again is not None:
            refusal = replace(refusal, retryable=again, waits=refusal.waits or again)
        through = response.extensions.get("ava_proxy")  # whose status this is, only the proxy knows
        return self._refused(said, refusal, response.headers, now, response.status_code, through)

    def error_body(self, error: Any, headers: Mapping[str, str], now: datetime | None = None) -> ModelError:
        """An error came where an answer should be: a status of 200 and an error in the body."""
        said = said_in(error)
        return self._refused(said, provider_error.meaning(said), headers, now)

    def _refused(
        self,
        said: ProviderError,
        refusal: provider_error.ErrorMeaning,
        headers: Mapping[str, str],
        now: datetime | None,
        status: int | None = None,
        through: str | None = None,
    ) -> ModelError:
        """Return an error of the provider as a sentence; with no status it came in the body of a 200."""
        now = now or datetime.now(UTC)
        wait = again_after({**said.headers, **headers}, said.words, now) if refusal.waits else None
        fields = {
            "key": self.key,
            "model": repr(self.model),
            "to": self.clean(headers.get("location", "nowhere").split("?")[0]),
            "wait": format_duration(wait or 0),
            "until": iso_second(round((now.timestamp() + (wait or 0)) * US_PER_S)),
        }
        request_id = self._call_id(headers.get("request-id") or headers.get("x-request-id") or said.request_id)
        words = self.clean(said.words)
        if status is None:
            refusal, words = refusal.in_a_body(), words or "without words"
        told = refusal.happened + (refusal.undated if wait is None else refusal.dated)
        noted = (
            f"HTTP {status}" if status else "",
            f"through the proxy {through}" if through else "",
            f"request {request_id}" if request_id else "",
        )
        told += f" ({', '.join(filter(None, noted))})" if any(noted) else ""
        to_do = refusal.to_do if wait is not None else refusal.undated_to_do or refusal.to_do
        return ModelError(
            f"{self.place} {told.format_map(fields)}{': ' if words else ''}{words}.",
            kind=refusal.kind,
            sent=True,
            answered=status is None,
            retryable=refusal.retryable,
            again_after_s=wait,
            request_id=request_id,
            what_to_do=to_do.format_map(fields),
        )

    def _call_id(self, said: str | None) -> str | None:
        """Return a provider's id of the call, which its support asks for, as far as it looks like one."""
        return said if said and _ID_SHAPE.fullmatch(said) and self.clean(said) == said else None

    # An answer that is none

    def bad_answer(self, what: str, what_to_do: str, *, retryable: bool = False) -> ModelError:
        """The endpoint answered 200 with something that is no answer."""
        return ModelError(
            f"{self.place} answered {what}.",
            kind="bad_answer",
            sent=True,
            answered=True,
            retryable=retryable,
            what_to_do=what_to_do,
        )

    def dropped(self, what: str) -> ModelError:
        """An answer had begun and did not come to its end."""
        return ModelError(
            f"The answer of {self.place} {what}.",
            kind="dropped",
            sent=True,
            answered=True,
            retryable=True,
            what_to_do="Try again; it may have been billed all the same.",
        )

    def faulty(self, error: Exception, what: str, *, sent: bool, answered: bool) -> ModelError:
        """A fault of ours, or of a library below, met something that nobody had thought of."""
        said = self.clean(str(error))
        return ModelError(
            f"{what} {self.place} failed with {type(error).__name__}{': ' if said else ''}{said}.",
            kind="bad_answer" if sent else "bad_request",
            sent=sent,
            answered=answered,
            retryable=False,
            what_to_do=f"Choose another model than {self.model!r}, and report it with the server's own log.",
        )

    def html(self, content: bytes) -> ModelError:
        """A web page came."""
        begins = self.clean(content[:80].decode("utf-8", "replace"))
        return self.bad_answer(
            f"200 with a web page instead of an answer: {begins!r}",
            "Set the base URL to the API, often with /v1 at its end.",
        )

    def not_json(self, content: bytes) -> ModelError:
        """Something came that is neither JSON nor a stream."""
        begins = self.clean(content[:80].decode("utf-8", "replace"))
        return self.bad_answer(
            f"200 with text that is not JSON: {begins!r}",
            f"Check that the base URL is an API that speaks {self.speaks}.",
        )

    def no_answer(self, answer: Any, part: str) -> ModelError:
        """JSON came, but without the part that every answer has."""
        fields = base.as_object(answer)
        keys = type(answer).__name__ if fields is None else ", ".join(fields)[:120]
        return self.bad_answer(
            f"200 with JSON without `{part}` (it has: {self.clean(keys) or 'nothing'})",
            f"Check that the endpoint speaks {self.speaks}.",
        )
