"""What a failed model call means: whether and when to retry, whether it was billed, what to tell the person.

`errors.toml` is the table of cases. This module reads the error that a provider sent, finds its case, and makes the
sentence. When to try again is in `retry_after.py`.
"""

from __future__ import annotations

import re
import socket
import tomllib
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ava_audit.units import US_PER_S, format_duration, iso_second
from ava_server.core.errors import ModelError, ModelErrorKind, ModelTimeout
from ava_server.models import json_text
from ava_server.models.json_text import as_list, as_object, as_text, fields_of, objects_in
from ava_server.models.retry_after import again_after

if TYPE_CHECKING:
    import httpx2

    from ava_server.models.base import Completion


_MOST_CHARS = 4_000
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
    error.usage = reported.usage
    error.cost_micros = reported.cost_micros
    error.named = reported.named
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
    params: tuple[str, ...] = ()
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
        fields: dict[str, Any] = dict(row)
        for name in ("status", "codes", "params", "words"):
            fields[name] = tuple(row.get(name, ()))
        case = ErrorCase(**fields)
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
    param: str = ""  # the field of the request that it is about
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    request_id: str = ""
    written: str = ""  # what the model wrote, where that is refused (Groq)


def _status_in(error: ProviderError, table: ErrorTable) -> int:
    numbers = [int(code) for code in error.codes if re.fullmatch("[45][0-9][0-9]", code)]
    if numbers:
        return max(numbers)
    return max((table.status_of.get(code, 0) for code in error.codes), default=0)


def find_case(error: ProviderError, status: int | None = None) -> ErrorCase:
    """Return what a provider's error means; `status` is None for an error in the body of a 200."""
    table = error_table()
    code = status
    if code is None:
        code = _status_in(error, table)
    is_redirect = 300 <= code < 400
    if not is_redirect:
        for case, words in table.by_text:
            if not error.codes.isdisjoint(case.codes):
                return case
            if code >= case.below:
                continue
            if error.param in case.params or (words is not None and words.search(error.words)):
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
    metadata = fields_of(fields.get("metadata"))
    details = fields_of(fields.get("details"))
    google_details = objects_in(fields.get("details"))  # each of a type of its own
    codes = [
        details.get("error_code"),
        fields.get("code"),
        fields.get("type"),
        metadata.get("error_type"),
        fields.get("status"),
        *(detail.get("reason") for detail in google_details),
    ]
    headers = dict(fields_of(metadata.get("headers")))  # OpenRouter
    if "resets_in_seconds" in fields:  # Codex
        headers["retry-after"] = fields["resets_in_seconds"]
    for detail in google_details:
        delay = as_text(detail.get("retryDelay"))
        if delay:
            headers["retry-after"] = delay
    return ProviderError(
        words=_words_of(fields, metadata, codes[0] or codes[1] or codes[2]),
        codes=frozenset(str(code).lower() for code in codes if isinstance(code, str | int)),
        param=as_text(fields.get("param")),
        headers={name.lower(): str(value) for name, value in headers.items() if isinstance(value, str | int | float)},
        request_id=as_text(fields.get("request_id") or request_id),
        written=as_text(fields.get("failed_generation"))[:_MOST_CHARS],
    )


def _words_of(fields: Mapping[str, Any], metadata: Mapping[str, Any], code: Any) -> str:
    """Return an error's message with its code."""
    words = fields.get("message") or _detail_words(fields.get("detail")) or _other_words(fields)
    raw = metadata.get("raw")
    if raw:  # from the provider behind OpenRouter; its own message is "Provider returned error"
        words = f"{words}: {raw}"
    text = str(words)[:_MOST_CHARS]
    if code and isinstance(words, str):
        return f"{text.rstrip('.')} [{code}]"
    return text


def _detail_words(detail: Any) -> Any:
    """Return the words of a `detail`, which FastAPI gives as text, as an object, or as a list of faults."""
    faults = as_list(detail)
    if faults:
        messages = [_fault_words(fields_of(fault)) for fault in faults]
        return "; ".join(filter(None, messages)) or str(faults)
    fields = as_object(detail)
    if fields is None:
        return detail or ""
    return fields.get("message") or fields.get("error") or str(detail)


def _fault_words(fault: Mapping[str, Any]) -> str:
    """Return what FastAPI says of a field, after the field's name."""
    message = as_text(fault.get("msg"))
    place = as_list(fault.get("loc"))
    return f"{place[-1]}: {message}" if message and place else message


def _other_words(fields: Mapping[str, Any]) -> str:
    """Return an error of a shape that is not known as it came, so that its words are not lost."""
    filled = {name: value for name, value in fields.items() if value not in (None, "", [], {})}
    known = {"type", "code", "status", "object", "param", "request_id", "metadata", "details"}
    if filled.keys() <= known:
        return ""
    return json_text.encode(filled).decode()


def _call_details(status: int | None, proxy: str | None, request_id: str | None) -> str:
    """Return what is known of a failed call, in brackets, with a space before them; empty for nothing."""
    details: list[str] = []
    if status:
        details.append(f"HTTP {status}")
    if proxy:
        details.append(f"through the proxy {proxy}")
    if request_id:
        details.append(f"request {request_id}")
    if not details:
        return ""
    return f" ({', '.join(details)})"


def _is_about_name(error: BaseException) -> bool:
    """Tell whether an error was raised because the name of a host could not be looked up."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, socket.gaierror):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


_EXPIRED_TOKEN = re.compile(
    r"\bexpired\b|\b(?:invalid|incorrect|bad)\W{0,2}(?:\w+\W){0,2}?(?:token|credentials?)\b"
    r"|\b(?:token|credentials?)\b.{0,40}\b(?:invalid|not valid|incorrect|revoked)\b",
    re.IGNORECASE,
)
"""In a 403: the key itself is wrong, and not what it may do. Databricks says `Invalid Token`."""


def refuses_key(status: int, content: bytes) -> bool:
    """Tell whether a provider says that a key counts no more, so that another one may help."""
    if status == 401:
        return True
    error = read_body(content)
    if status == 403 and _EXPIRED_TOKEN.search(error.words):
        return True
    return find_case(error, status).name == "wrong key"


@dataclass(frozen=True)
class Endpoint:
    """Where a model is called; makes the errors of such a call, with host and path, without user, query or key."""

    url: str
    model: str
    api_key: str | None = field(repr=False)
    speaks: str = "chat completions"
    minted: bool = False  # a command printed the key
    like: str = ""  # the known provider as which it is called

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
        if len(text) <= _SHOWN_CHARS:
            return text
        return text[: _SHOWN_CHARS - 1] + "…"

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

        why = _NOT_TRUSTED.search(str(error))
        if why:
            return self.error("certificate", cause=self.clean(why[1]))
        if isinstance(error, ProxyRefused):
            # Without a variable, the proxy came from the system's settings, which HTTPS_PROXY overrides.
            return self.error("proxy refused", cause=self.cause(error), variable=error.variable or "HTTPS_PROXY")
        if isinstance(error, httpx2.ConnectError) and _is_about_name(error):
            return self.error("no host")
        return self.error("unreachable", cause=self.cause(error))

    def fault(self, error: Exception, what: str, *, sent: bool, answered: bool) -> ModelError:
        """Return the error of an exception that nobody expected, from Ava or a library below it."""
        cause = type(error).__name__
        message = self.clean(str(error))
        if message:
            cause += f": {message}"
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
            case = replace(case, retry=retry)
        if retry:  # another try only helps after a while
            case = replace(case, waits=True)
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
        wait: float | None = None
        if case.waits:
            wait = again_after({**error.headers, **headers}, error.words, now)
        key = "a call without a key"
        if self.api_key:
            key = self.key
        new_key = "have its `key_command` print a valid key" if self.minted else "store a valid key with `ava key set`"
        fields = {
            "key": key,
            "model": repr(self.model),
            "again": _AGAIN,
            "new_key": new_key,
            "New_key": new_key[0].upper() + new_key[1:],
            "to": self.clean(headers.get("location", "nowhere").split("?")[0]),
            "wait": format_duration(wait or 0),
            "until": iso_second(round((now.timestamp() + (wait or 0)) * US_PER_S)),
        }
        request_id = self._request_id(headers.get("request-id") or headers.get("x-request-id") or error.request_id)
        text = case.text
        if wait is None:
            text += case.undated
        else:
            text += case.dated
        text += _call_details(status, proxy, request_id)
        sentence = f"{self.place} {text.format_map(fields)}"
        words = self.clean(error.words)
        if words:
            sentence += f": {words}"
        elif not status:
            sentence += ": without words"
        if not sentence.endswith((".", "!", "?")):
            sentence += "."
        return ModelError(
            sentence,
            kind=case.kind,
            sent=True,
            answered=status is None or case.answered,
            retryable=case.retry,
            again_after_s=wait,
            request_id=request_id,
            what_to_do=case.advice(dated=wait is not None).format_map(fields),
            written=error.written,
        )

    def _request_id(self, text: str | None) -> str | None:
        """Return the provider's id of the call, which its support asks for, if it looks like an id."""
        if text and _ID_SHAPE.fullmatch(text) and self.clean(text) == text:
            return text
        return None
