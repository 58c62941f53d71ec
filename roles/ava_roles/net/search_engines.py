"""Web searches: the search engines, one search with a deadline, and the wait that a server asks for."""

from __future__ import annotations

import json
import math
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, ClassVar, Final, Protocol, cast
from urllib.parse import urlencode

import anyio

from ava_roles.errors import ToolFailed
from ava_roles.wrap import list_names, unescape_html

_LONGEST_S = 31 * 86_400


def asked_to_wait(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Return the seconds in `Retry-After`, a number or a date; None without one. Header names are in lower case."""
    retry_after = headers.get("retry-after", "").strip()
    if retry_after.isascii() and retry_after.isdigit():
        return min(float(retry_after[:9]), _LONGEST_S)
    try:
        until = parsedate_to_datetime(retry_after).timestamp()
    except (ValueError, OverflowError):
        return None
    if now is None:
        now = time.time()
    return min(max(until - now, 0.0), _LONGEST_S)


def wait_words(seconds: float | None) -> str:
    """Return a wait in words: `in 30 s`, `in about 5 min`; `later` if it is unknown."""
    if seconds is None:
        return "later (it does not say when)"
    seconds = max(math.ceil(seconds), 1)
    if seconds <= 120:
        return f"in {seconds} s"
    if seconds <= 7_200:
        return f"in about {math.ceil(seconds / 60)} min"
    return f"in about {math.ceil(seconds / 3_600)} h"


DEADLINE_S: Final = 20.0
MOST_HITS: Final = 20
WITHOUT: Final = "go on with pages that you know, and say in the caveats that the search did not work"
"""The end of every error: no other query would make the search work."""
_URL_CHARS = 2_000

# The tags by which engines mark the words of the query. Other tags are part of a page's text.
_MARKUP = re.compile(r"</?(?:a|b|br|code|em|font|i|mark|p|small|span|strong|sub|sup|u)\b[^<>]{0,300}>", re.IGNORECASE)
_CODE = re.compile(r"[A-Za-z0-9_.-]{1,60}")


@dataclass(frozen=True)
class SearchRequest:
    """A request. Its repr shows no headers: one may contain a key."""

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    body: Mapping[str, object] | None = None


@dataclass(frozen=True)
class SearchReply:
    """A response; names of headers are in lower case, and the body is decompressed."""

    status: int
    headers: Mapping[str, str]
    body: bytes


Send = Callable[[SearchRequest], Awaitable[SearchReply]]
"""Sends a request and reads the whole response. Raises ToolFailed if none came."""


@dataclass(frozen=True)
class Hit:
    """A search result, in plain text."""

    url: str
    title: str
    snippet: str = ""
    date: str | None = None


@dataclass(frozen=True)
class SearchResults:
    """The results of a search."""

    engine: str
    hits: tuple[Hit, ...]
    note: str = ""


class Search(Protocol):
    """A configured web search. Raises ToolFailed if it fails."""

    async def __call__(self, query: str, count: int) -> SearchResults: ...


@dataclass(frozen=True)
class Engine(ABC):
    """A search engine; `fields`: what a result calls its URL, title, words and dates, the best date first."""

    name: ClassVar[str]
    title: ClassVar[str]
    fields: ClassVar[tuple[str, ...]]
    base_url: str

    @property
    def cost_micros(self) -> int:
        """The price of a search as published in 2026, in micro-USD; no budget counts it."""
        return 0

    @abstractmethod
    def ask(self, query: str, count: int) -> SearchRequest: ...

    @abstractmethod
    def rows(self, answer: Mapping[str, Any]) -> list[Mapping[str, Any]] | None:
        """Return the results in a response, best first; None if it does not have the expected form."""

    def note(self, answer: Mapping[str, Any]) -> str:
        return ""

    @abstractmethod
    def fault(self, reply: SearchReply, code: str) -> str | None:
        """Return what an error means and what to do, where it differs from other engines."""


async def search(engine: Engine, query: str, count: int, send: Send) -> SearchResults:
    """Search once. Raises ToolFailed if there are no results; says why and what to do."""
    try:
        with anyio.fail_after(DEADLINE_S):
            reply = await send(engine.ask(query, count))
    except TimeoutError:
        raise ToolFailed(f"{engine.title} brought no answer within {DEADLINE_S:g} s; try again later") from None
    answer = _answer(engine, reply)
    rows = engine.rows(answer)
    if rows is None:
        raise ToolFailed(f"{engine.title} answered in a form that is not known here; {WITHOUT}")
    hits = pick_hits(rows, engine.fields, count)
    note = engine.note(answer)
    if not hits and note:
        raise ToolFailed(f"{engine.title} found nothing: {note}; try again later, or in other words")
    return SearchResults(engine.title, hits, note)


def pick_hits(rows: Iterable[Mapping[str, Any]], fields: Sequence[str], count: int) -> tuple[Hit, ...]:
    """Return the first results that have an address, each once, as plain text."""
    by_url: dict[str, Hit] = {}
    for row in rows:
        if len(by_url) == count:
            break
        hit = _hit(*map(row.get, fields))
        if _is_address(hit.url):
            by_url.setdefault(hit.url, hit)
    return tuple(by_url.values())


def _answer(engine: Engine, reply: SearchReply) -> Mapping[str, Any]:
    """Return the JSON object in a response. Raises ToolFailed if it is an error, or not a JSON object."""
    try:
        answer: object = json.loads(reply.body)
    except (ValueError, RecursionError):
        answer = None
    is_object = isinstance(answer, dict)
    members = cast("Mapping[str, Any]", answer if is_object else {})
    if not 200 <= reply.status < 300:
        raise ToolFailed(_explain_status(engine, reply, _error_code(members)))
    if not is_object:
        fault = engine.fault(reply, "")
        if fault is None:
            what = "a web page" if reply.body.lstrip()[:1] == b"<" else "something else"
            fault = f"{engine.title} answered with {what} and not with JSON; {WITHOUT}"
        raise ToolFailed(fault)
    return members


def _explain_status(engine: Engine, reply: SearchReply, code: str) -> str:
    """Say what an error status means. The engine's own text is not repeated: it may quote the request."""
    fault = engine.fault(reply, code)
    if fault is not None:
        return fault
    what = f"HTTP {reply.status}, {code}" if code else f"HTTP {reply.status}"
    match reply.status:
        case 401 | 403:
            return f"{engine.title} refused the key ({what}): {new_key(engine)}"
        case 402:
            return no_credit(engine.title, what)
        case 429 | 503:
            again = wait_words(asked_to_wait(reply.headers))
            return f"{engine.title} asks for fewer searches ({what}): try again {again}"
        case status if 300 <= status < 400:
            return f"{engine.title} answered with a redirect ({what}), which is not followed; {WITHOUT}"
        case status if status >= 500:
            return f"{engine.title} has a fault ({what}): try again {wait_words(asked_to_wait(reply.headers))}"
        case _:
            return f"{engine.title} did not take the search ({what}): ask in fewer and simpler words, or {WITHOUT}"


def no_credit(title: str, what: str) -> str:
    return f"{title} has no credit left for this key ({what}): a person has to add some at {title}; meanwhile {WITHOUT}"


def new_key(engine: Engine) -> str:
    return f"a person has to store another one (`ava key set {engine.title.lower()}`); meanwhile {WITHOUT}"


def _error_code(answer: Mapping[str, Any]) -> str:
    """Return the code in `{"error": {…}}` or a list of such errors; empty if there is none."""
    error: object = answer.get("error") or answer.get("errors")
    if isinstance(error, list) and error:
        error = cast("list[object]", error)[0]
    if not isinstance(error, dict):
        return ""
    code = cast("dict[str, object]", error).get("code")
    if isinstance(code, str | int) and _CODE.fullmatch(str(code)):
        return str(code)
    return ""


def _is_address(url: str) -> bool:
    if len(url) > _URL_CHARS or not url.startswith(("https://", "http://")):
        return False
    return url.isprintable() and not any(map(str.isspace, url))


def plain(text: object, most: int) -> str:
    """Return text from outside as one line without markup, so that it cannot pass for a line of Ava's."""
    if not isinstance(text, str):
        return ""
    line = " ".join(unescape_html(_MARKUP.sub("", text[: most * 8])).split())
    if len(line) > most:
        return line[: most - 1].rstrip() + "…"
    return line


_TITLE_CHARS = 200
_SNIPPET_CHARS = 600
_DATE_CHARS = 30
_SHOWN_FAULTS = 5
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}(?=T|\s|\Z)")


@dataclass(frozen=True)
class Kagi(Engine):
    """Kagi's Search API: version 1, or version 0 if the address ends with it, for keys of its beta."""

    key: str = field(repr=False)
    name = "kagi"
    title = "Kagi"
    fields = ("url", "title", "snippet", "time", "published")

    @property
    def cost_micros(self) -> int:
        return 25_000 if self._is_version_0 else 12_000

    @property
    def _is_version_0(self) -> bool:
        return self.base_url.endswith("/v0")

    def ask(self, query: str, count: int) -> SearchRequest:
        if self._is_version_0:
            parameters = urlencode({"q": query, "limit": count})
            return SearchRequest("GET", f"{self.base_url}/search?{parameters}", {"Authorization": f"Bot {self.key}"})
        headers = {"Authorization": f"Bearer {self.key}"}
        body = {"query": query, "workflow": "search", "limit": count}
        return SearchRequest("POST", f"{self.base_url}/search", headers, body)

    def rows(self, answer: Mapping[str, Any]) -> list[Mapping[str, Any]] | None:
        data: object = answer.get("data")
        if self._is_version_0:
            rows = _rows(data)
        elif isinstance(data, dict):  # grouped by kind; a kind without results is missing
            rows = _rows(_under(answer, "data").get("search", []))
        else:
            return None
        if rows is None:
            return None
        # In version 0, the list also contains related searches (t: 1).
        return [row for row in rows if row.get("t", 0) == 0]

    def fault(self, reply: SearchReply, code: str) -> str | None:
        """A wrong key is a 400 here."""
        what = f"HTTP {reply.status}, {code}"
        if reply.status == 400 and "token" in code:
            return f"{self.title} refused the key ({what}): {new_key(self)}"
        if "credit" in code or code == "101":  # version 0 uses numbers
            return no_credit(self.title, what)
        return None


@dataclass(frozen=True)
class Brave(Engine):
    """Brave's Web Search API."""

    key: str = field(repr=False)
    name = "brave"
    title = "Brave"
    fields = ("url", "title", "description", "page_age", "age")

    @property
    def cost_micros(self) -> int:
        return 5_000

    def ask(self, query: str, count: int) -> SearchRequest:
        parameters = urlencode(
            {"q": query, "count": count, "spellcheck": "false", "text_decorations": "false", "result_filter": "web"}
        )
        headers = {"X-Subscription-Token": self.key}
        return SearchRequest("GET", f"{self.base_url}/web/search?{parameters}", headers)

    def rows(self, answer: Mapping[str, Any]) -> list[Mapping[str, Any]] | None:
        """A response without any has no `web`."""
        if answer.get("type") != "search" and "web" not in answer:
            return None
        return _rows(_under(answer, "web").get("results", []))

    def fault(self, reply: SearchReply, code: str) -> str | None:
        """A wrong key is a 422 here, and a used-up plan a 429."""
        what = f"HTTP {reply.status}, {code}"
        if code in ("SUBSCRIPTION_TOKEN_INVALID", "SUBSCRIPTION_TOKEN_MISSING", "SUBSCRIPTION_NOT_FOUND"):
            return f"{self.title} refused the key ({what}): {new_key(self)}"
        again = wait_words(_seconds_to_reset(reply.headers))
        if code in ("QUOTA_LIMITED", "USAGE_LIMIT_EXCEEDED"):
            return (
                f"the plan of this key is used up at {self.title} ({what}): it can search again {again}, or when a"
                f" person takes a larger plan there; meanwhile {WITHOUT}"
            )
        if reply.status == 429:
            return f"{self.title} asks for fewer searches ({what}): try again {again}"
        return None


def _seconds_to_reset(headers: Mapping[str, str]) -> float | None:
    """Return when a used-up limit is reset: `Retry-After`, else Brave's lists of remaining requests and reset times."""
    seconds = asked_to_wait(headers)
    if seconds is not None:
        return seconds
    remaining = headers.get("x-ratelimit-remaining", "").split(",")
    resets = headers.get("x-ratelimit-reset", "").split(",")
    waits: list[int] = []
    for requests, reset in zip(remaining, resets, strict=False):
        reset = reset.strip()
        if requests.strip() == "0" and reset.isascii() and reset.isdigit():
            waits.append(int(reset[:9]))
    return float(max(waits)) if waits else None


@dataclass(frozen=True)
class Searxng(Engine):
    """The user's own SearXNG server: no key, and as many hits as its engines return."""

    name = "searxng"
    title = "SearXNG"
    fields = ("url", "title", "content", "publishedDate")

    def ask(self, query: str, count: int) -> SearchRequest:
        return SearchRequest("GET", f"{self.base_url}/search?{urlencode({'q': query, 'format': 'json'})}")

    def rows(self, answer: Mapping[str, Any]) -> list[Mapping[str, Any]] | None:
        return _rows(answer.get("results"))

    def note(self, answer: Mapping[str, Any]) -> str:
        engines = answer.get("unresponsive_engines")
        if not isinstance(engines, list):
            return ""
        silent: list[str] = []
        for each in cast("list[object]", engines):
            if isinstance(each, list) and each:
                name_and_reason = cast("list[object]", each)[:2]
                silent.append(": ".join(plain(part, 40) for part in name_and_reason))
        if not silent:
            return ""
        return f"engines that did not answer: {list_names(silent, _SHOWN_FAULTS)}"

    def fault(self, reply: SearchReply, code: str) -> str | None:
        """Without keys, a 403 is about the format."""
        if reply.status == 403:
            return (
                f"{self.title} gives no JSON (HTTP 403): a person has to add json to search.formats in its"
                f" settings.yml; meanwhile {WITHOUT}"
            )
        if reply.status in (401, 407):
            return f"{self.title} asks for a login (HTTP {reply.status}), which Ava does not have; {WITHOUT}"
        if 200 <= reply.status < 400 or reply.status in (404, 405):
            return (
                f"the server at search.searxng answered with no list of results (HTTP {reply.status}): a person has to"
                f" correct the address there; meanwhile {WITHOUT}"
            )
        return None


def _hit(url: object, title: object, snippet: object, *dates: object) -> Hit:
    address = url.strip() if isinstance(url, str) else ""
    return Hit(address, plain(title, _TITLE_CHARS), plain(snippet, _SNIPPET_CHARS), _first_date(dates))


def _first_date(dates: Iterable[object]) -> str | None:
    for each in dates:
        date = plain(each, _DATE_CHARS)
        if date:
            day = _DAY.match(date)
            return day[0] if day else date
    return None


def _rows(value: object) -> list[Mapping[str, Any]] | None:
    if not isinstance(value, list):
        return None
    return [cast("Mapping[str, Any]", row) for row in cast("list[object]", value) if isinstance(row, dict)]


def _under(answer: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    inner = answer.get(name)
    return cast("Mapping[str, Any]", inner) if isinstance(inner, dict) else {}
