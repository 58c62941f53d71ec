"""What a failed model call means: whether and when to retry, whether it was billed, what to tell the person.

`errors.toml` is the table of cases. This module reads the error that a provider sent, finds its case, and makes the
sentence. When to try again comes from the provider's headers and words.
"""

from __future__ import annotations

import re
import socket
import tomllib
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from ava_audit.units import US_PER_S, format_duration, iso_second
from ava_server.core.errors import ModelError, ModelErrorKind, ModelTimeout
from ava_server.models import json_text
from ava_server.models.json_text import as_list, as_object, as_text, fields_of, objects_in

if TYPE_CHECKING:
    import httpx2

    from ava_server.models.base import Completion


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
    """Return the seconds (0 to `MOST_S`) until a provider takes calls again; None when it does not say.

    `headers` are those of the response, and those inside the error itself (OpenRouter: `error.metadata.headers`). `now`
    is used when the response has no date of its own.
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
    """Yield the wait; milliseconds replace rounded seconds, as in OpenAI's and Anthropic's SDKs."""
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
    """Yield durations and times that a message names as the end of a wait, no time of day without a zone."""
    yield from (_seconds(found[1]) for found in _IN.finditer(words))
    moments = [_since_1970(float(found[1])) for found in _EPOCH.finditer(words)]
    for found in _ON.finditer(words):  # `2026-12-01 at 5:00`
        day, clock, zone = found.groups(default="")
        hour, _, rest = (clock or "00:00").partition(":")
        moments.append(_iso(f"{day}T{hour:0>2}:{rest}{zone}"))
    moments += [_next_time(found, now) for found in _AT.finditer(words)]
    if SPENT_FOR_THE_MONTH in words:
        here = now.astimezone(UTC)
        moments.append(_attempt(lambda: datetime(here.year + here.month // 12, here.month % 12 + 1, 1, tzinfo=UTC)))
    yield from (moment for moment in moments if moment is not None)


def _seconds(span: str) -> float:
    return sum(float(number) * _SECONDS["ms" if unit[:3] in ("mil", "mse", "ms") else unit[0]]
               for number, unit in _PIECE.findall(span))  # fmt: skip


def _next_time(found: re.Match[str], now: datetime) -> datetime | None:
    """Return when a clock in some zone next shows a time; None if it did so within the last hour."""
    month, day, year, hour, minute, half, zone = found.groups()
    hours = int(hour)
    if half is None:
        if minute is None:
            return None
    elif hours > 12:
        return None
    else:
        hours = hours % 12 + (12 if half in "pP" else 0)
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


def _since_1970(number: float) -> datetime | None:
    return _attempt(lambda: datetime.fromtimestamp(number / 1000 if number >= _EPOCH_MS else number, UTC))


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


_SHOWN_CHARS = 200
_KEY_SHAPE = re.compile(r"\b(?:(?:sk|pk|rk|key|xai)-|gsk_)[A-Za-z0-9_\-]{8,}|\bBearer\s+\S+|\b(?:AIza|AQ\.)[\w\-]{20,}")
_ID_SHAPE = re.compile(r"[A-Za-z0-9][\w.:\-]{2,127}", re.ASCII)
_NOT_TRUSTED = re.compile(r"certificate verify failed: (.*?)(?: \(_ssl|$)")
_AGAIN = "or propose it again with retry_of and another `model`"


def may_have_been_billed(error: ModelError) -> bool:
    """Tell how to settle an attempt: False is `not_billed`, True is `unknown`.

    Not billed is only what never reached the provider, or what it refused before any byte of an answer.
    """
    return error.answered or (error.sent and error.kind in ("connection", "dropped", "timeout", "bad_answer"))


def with_usage(error: ModelError, reported: Completion) -> ModelError:
    """Return the error of a call whose provider says that it used something: so it may have been billed."""
    error.answered = True
    error.usage, error.cost_micros = reported.usage, reported.cost_micros
    return error


@dataclass(frozen=True)
class ErrorCase:
    """A row of `errors.toml`, which says what the fields mean."""

    kind: ModelErrorKind
    text: str
    what_to_do: str
    name: str = ""
    status: tuple[int, ...] = ()
    codes: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    below: int = 500
    retry: bool = False
    waits: bool = False
    sent: bool = True
    answered: bool = False
    dated: str = "; it takes calls again at {until}"
    undated: str = ""
    undated_to_do: str = ""

    def advice(self, *, dated: bool) -> str:
        return self.what_to_do if dated else self.undated_to_do or self.what_to_do


@dataclass(frozen=True)
class ErrorTable:
    """`errors.toml`: its cases, by name and by status, and in their order with what they look for."""

    by_name: Mapping[str, ErrorCase]
    by_status: Mapping[int, ErrorCase]
    by_text: tuple[tuple[ErrorCase, re.Pattern[str] | None], ...]
    status_of: Mapping[str, int]


@cache
def error_table() -> ErrorTable:
    table = tomllib.loads(files("ava_server.models").joinpath("errors.toml").read_text(encoding="utf-8"))
    by_name: dict[str, ErrorCase] = {}
    by_status: dict[int, ErrorCase] = {}
    by_text: list[tuple[ErrorCase, re.Pattern[str] | None]] = []
    for row in table["case"]:
        lists = {name: tuple(row.get(name, ())) for name in ("status", "codes", "words")}
        case = ErrorCase(**{**row, **lists})
        if case.name:
            by_name[case.name] = case
        for status in case.status:
            by_status[status] = case
        if case.words:
            by_text.append((case, re.compile("|".join(case.words), re.IGNORECASE)))
        elif case.codes:
            by_text.append((case, None))
    return ErrorTable(by_name, by_status, tuple(by_text), table["status_of"])


@dataclass(frozen=True)
class ProviderError:
    """An error as a provider sent it."""

    words: str = ""  # its message with its code, for people
    codes: frozenset[str] = frozenset()  # every type and code in it, in lower case
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    request_id: str = ""
    written: str = ""  # what the model wrote, where that is refused (Groq)


def _status_in(error: ProviderError, table: ErrorTable) -> int:
    numbers = [int(code) for code in error.codes if re.fullmatch("[45][0-9][0-9]", code)]
    known = [table.status_of[code] for code in error.codes if code in table.status_of]
    return max(numbers or known, default=0)


def find_case(error: ProviderError, status: int | None = None) -> ErrorCase:
    """Return what a provider's error means; `status` is None for an error in the body of a 200."""
    table = error_table()
    code = _status_in(error, table) if status is None else status
    is_redirect = 300 <= code < 400
    if not is_redirect:
        for case, words in table.by_text:
            if not error.codes.isdisjoint(case.codes):
                return case
            if words is not None and code < case.below and words.search(error.words):
                return case
    if not code:
        return table.by_name["unknown"]
    if code in table.by_status:
        return table.by_status[code]
    if code >= 500:
        return table.by_status[500]
    return table.by_status[300 if is_redirect else 400]


def read_body(content: bytes) -> ProviderError:
    """Read the body of an error response, in whatever shape it comes.

    Known shapes: OpenAI ({error: {message, type, code}}), Anthropic ({type: "error", error: {type, message, details:
    {error_code}}, request_id}), OpenRouter ({error: {code, message, metadata: {raw, headers}}}), Google ({error: {code,
    status, message, details: [{reason}, {retryDelay}]}}, sometimes in a list), and servers that send plain text.
    """
    text, _ = json_text.decode_text(content)
    try:
        answer = json_text.decode(text)
    except json_text.NotJsonError:
        return ProviderError("" if text.lstrip().startswith("<") else text[:_MOST_CHARS])
    if isinstance(answer, list) and len(as_list(answer)) == 1:  # Google
        answer = as_list(answer)[0]
    outer = fields_of(answer)
    return read_error(outer.get("error") or answer, outer.get("request_id"))


def read_error(error: Any, request_id: Any = None) -> ProviderError:
    fields = as_object(error)
    if fields is None:
        return ProviderError(str(error)[:_MOST_CHARS])
    metadata, details = fields_of(fields.get("metadata")), fields_of(fields.get("details"))
    listed = objects_in(fields.get("details"))  # Google's, each of a type of its own
    words = fields.get("message") or _detail_words(fields.get("detail")) or _other_words(fields)
    if raw := metadata.get("raw"):  # from the provider behind OpenRouter; its own message is "Provider returned error"
        words = f"{words}: {raw}"
    code = details.get("error_code") or fields.get("code") or fields.get("type")
    codes = (fields.get("type"), fields.get("code"), details.get("error_code"), metadata.get("error_type"),
             fields.get("status"), *(one.get("reason") for one in listed))  # fmt: skip
    headers = dict(fields_of(metadata.get("headers")))  # OpenRouter
    if "resets_in_seconds" in fields:  # Codex
        headers["retry-after"] = fields["resets_in_seconds"]
    for one in listed:
        if delay := as_text(one.get("retryDelay")):
            headers["retry-after"] = delay
    shown = str(words)[:_MOST_CHARS]
    return ProviderError(
        words=f"{shown.rstrip('.')} [{code}]" if code and isinstance(words, str) else shown,
        codes=frozenset(str(one).lower() for one in codes if isinstance(one, str | int)),
        headers={name.lower(): str(value) for name, value in headers.items() if isinstance(value, str | int | float)},
        request_id=as_text(fields.get("request_id") or request_id),
        written=as_text(fields.get("failed_generation"))[:_MOST_CHARS],
    )


def _detail_words(detail: Any) -> Any:
    """Return the words of a `detail`, which FastAPI gives as text, as an object, or as a list of faults."""
    if faults := as_list(detail):
        words = [as_text(fields_of(each).get("msg")) for each in faults]
        return "; ".join(filter(None, words)) or str(faults)
    fields = as_object(detail)
    if fields is not None:
        return fields.get("message") or fields.get("error") or str(detail)
    return detail or ""


def _other_words(fields: Mapping[str, Any]) -> str:
    """Return an error of a shape that is not known as it came, so that its words are not lost."""
    told = {name: value for name, value in fields.items() if value not in (None, "", [], {})}
    known = {"type", "code", "status", "object", "param", "request_id", "metadata", "details"}
    return json_text.encode(told).decode() if told.keys() - known else ""


def _is_about_name(error: BaseException) -> bool:
    """Tell whether an error was raised because the name of a host could not be looked up."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, socket.gaierror):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


@dataclass(frozen=True)
class Endpoint:
    """Where a model is called; makes the errors of such a call, with host and path, without user, query or key."""

    url: str
    model: str
    api_key: str | None = field(repr=False)
    speaks: str = "chat completions"
    minted: bool = False  # a command printed the key

    @property
    def place(self) -> str:
        parts = urlsplit(self.url)
        return parts.netloc.rpartition("@")[2] + parts.path

    @property
    def key(self) -> str:
        if not self.api_key:
            return "no key"
        if self.minted:  # a key of a command is shown nowhere
            return "the key"
        return f"the key {self.api_key[:3]}…" if len(self.api_key) >= 20 else "the key …"

    def clean(self, text: str) -> str:
        """Return a provider's text on one line, without keys and control characters."""
        if self.api_key:
            text = text.replace(self.api_key, "…")
        text = _KEY_SHAPE.sub("…", json_text.join_surrogates(text)[0])
        text = "".join(" " if unicodedata.category(char)[0] in "CZ" else char for char in text)
        text = " ".join(text.split())
        return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"

    def cause(self, error: Exception) -> str:
        return self.clean(str(error)) or type(error).__name__

    def begins(self, content: bytes) -> str:
        return repr(self.clean(content[:80].decode("utf-8", "replace")))

    def error(self, name: str, *, answered: bool = False, **values: object) -> ModelError:
        """Return the error of a failure that Ava notices itself: its case in `errors.toml`, and `values` for its texts.

        `answered`: a byte of an answer came, where the case leaves that open.
        """
        case = error_table().by_name[name]
        fields = {"place": self.place, "key": self.key, "model": repr(self.model), "speaks": self.speaks, **values}
        return (ModelTimeout if case.kind == "timeout" else ModelError)(
            case.text.format_map(fields),
            kind=case.kind,
            sent=case.sent,
            answered=answered or case.answered,
            retryable=case.retry,
            what_to_do=case.what_to_do.format_map(fields),
        )

    def unreachable(self, error: Exception) -> ModelError:
        import httpx2

        from ava_roles.net.transports import ProxyRefused

        if why := _NOT_TRUSTED.search(str(error)):
            return self.error("certificate", cause=self.clean(why[1]))
        if isinstance(error, ProxyRefused):
            # A system's own setting gives way to HTTPS_PROXY.
            return self.error("proxy refused", cause=self.cause(error), variable=error.variable or "HTTPS_PROXY")
        if isinstance(error, httpx2.ConnectError) and _is_about_name(error):
            return self.error("no host")
        return self.error("unreachable", cause=self.cause(error))

    def fault(self, error: Exception, what: str, *, sent: bool, answered: bool) -> ModelError:
        """Return the error of an exception that nobody expected, from Ava or a library below it."""
        message = self.clean(str(error))
        cause = f"{type(error).__name__}{': ' if message else ''}{message}"
        return self.error("fault" if sent else "fault before sending", what=what, cause=cause, answered=answered)

    def no_answer(self, answer: Any, part: str) -> ModelError:
        found = as_object(answer)
        fields = type(answer).__name__ if found is None else ", ".join(found)[:120]
        return self.error("no answer", part=part, fields=self.clean(fields) or "nothing")

    def status_error(self, response: httpx2.Response, content: bytes, now: datetime | None = None) -> ModelError:
        error = read_body(content)
        case = find_case(error, response.status_code)
        # The SDKs of OpenAI and Anthropic obey this header whatever the status is (`_should_retry`).
        retry = {"true": True, "false": False}.get(response.headers.get("x-should-retry", "").strip().lower())
        if retry is not None:
            case = replace(case, retry=retry, waits=case.waits or retry)
        proxy = response.extensions.get("ava_proxy")  # only the proxy knows whose status this is
        return self._provider_error(error, case, response.headers, now, response.status_code, proxy)

    def error_in_body(self, error: Any, headers: Mapping[str, str], now: datetime | None = None) -> ModelError:
        read = read_error(error)
        case = replace(
            find_case(read), text="answered 200 with an error in the body", dated=ErrorCase.dated, undated=""
        )
        return self._provider_error(read, case, headers, now)

    def _provider_error(
        self,
        error: ProviderError,
        case: ErrorCase,
        headers: Mapping[str, str],
        now: datetime | None,
        status: int | None = None,
        proxy: str | None = None,
    ) -> ModelError:
        now = now or datetime.now(UTC)
        wait = again_after({**error.headers, **headers}, error.words, now) if case.waits else None
        fields = {
            "key": self.key if self.api_key else "a call without a key",
            "model": repr(self.model),
            "again": _AGAIN,
            "to": self.clean(headers.get("location", "nowhere").split("?")[0]),
            "wait": format_duration(wait or 0),
            "until": iso_second(round((now.timestamp() + (wait or 0)) * US_PER_S)),
        }
        request_id = self._request_id(headers.get("request-id") or headers.get("x-request-id") or error.request_id)
        words = self.clean(error.words) or ("" if status else "without words")
        text = case.text + (case.undated if wait is None else case.dated)
        details = (
            f"HTTP {status}" if status else "",
            f"through the proxy {proxy}" if proxy else "",
            f"request {request_id}" if request_id else "",
        )
        text += f" ({', '.join(filter(None, details))})" if any(details) else ""
        sentence = f"{self.place} {text.format_map(fields)}{': ' if words else ''}{words}"
        return ModelError(
            sentence if sentence.endswith((".", "!", "?")) else f"{sentence}.",
            kind=case.kind,
            sent=True,
            answered=status is None or case.answered,
            retryable=case.retry,
            again_after_s=wait,
            request_id=request_id,
            what_to_do=case.advice(dated=wait is not None).format_map(fields),
            written=error.written,
        )

    def _request_id(self, given: str | None) -> str | None:
        """Return the provider's id of the call, which its support asks for, if it looks like an id."""
        return given if given and _ID_SHAPE.fullmatch(given) and self.clean(given) == given else None
