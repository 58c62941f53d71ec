"""Web searches: the search engines, one search with a deadline, and the wait that a server asks for."""

from __future__ import annotations

import json
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
    given = headers.get("retry-after", "").strip()
    if given.isascii() and given.isdigit():
        return min(float(given[:9]), _LONGEST_S)
    try:
        until = parsedate_to_datetime(given).timestamp()
    except (ValueError, OverflowError):
        return None
    return min(max(until - (time.time() if now is None else now), 0.0), _LONGEST_S)


def wait_words(seconds: float | None) -> str:
    """Return a wait in words: `in 30 s`, `in about 5 min`; `later` if it is unknown."""
    if seconds is None:
        return "later (it does not say when)"
    whole = max(int(-(-seconds // 1)), 1)
    if whole <= 120:
        return f"in {whole} s"
    if whole <= 7_200:
        return f"in about {-(-whole // 60)} min"
    return f"in about {-(-whole // 3_600)} h"


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
    """Search once. Raises ToolFailed: there are no results; says why and what to do."""
    try:
        with anyio.fail_after(DEADLINE_S):
            reply = await send(engine.ask(query, count))
    except TimeoutError:
        raise ToolFailed(f"{engine.title} brought no answer within {DEADLINE_S:g} s; try again later") from None
    answer = _answer(engine, reply)
    rows = engine.rows(answer)
    if rows is None:
        raise ToolFailed(f"{engine.title} answered in a form that is not known here; {WITHOUT}")
    hits, note = pick_hits(rows, engine.fields, count), engine.note(answer)
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
    """Return the JSON object in a response. Raises ToolFailed: it is an error, or not a JSON object."""
    try:
        answer: object = json.loads(reply.body)
    except (ValueError, RecursionError):
        answer = None
    members = cast("Mapping[str, Any]", answer) if isinstance(answer, dict) else None
    if not 200 <= reply.status < 300:
        raise ToolFailed(_refusal(engine, reply, _code(members or {})))
    if members is None:
        what = "a web page" if reply.body.lstrip()[:1] == b"<" else "something else"
        raise ToolFailed(engine.fault(reply, "") or f"{engine.title} answered with {what} and not with JSON; {WITHOUT}")
    return members


def _refusal(engine: Engine, reply: SearchReply, code: str) -> str:
    """Say what an error status means. The engine's own text is not repeated: it may quote the request."""
    if own := engine.fault(reply, code):
        return own
    what = f"HTTP {reply.status}{f', {code}' if code else ''}"
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


def _code(answer: Mapping[str, Any]) -> str:
    """Return the code in `{"error": {…}}` or a list of such errors; empty if there is none."""
    given: object = answer.get("error") or answer.get("errors")
    if isinstance(given, list):
        given = next(iter(cast("list[object]", given)), None)
    code = cast("dict[str, object]", given).get("code") if isinstance(given, dict) else None
    return str(code) if isinstance(code, str | int) and _CODE.fullmatch(str(code)) else ""


def _is_address(url: str) -> bool:
    known = url.startswith(("https://", "http://"))
    return known and len(url) <= _URL_CHARS and url.isprintable() and not any(char.isspace() for char in url)


def plain(text: object, most: int) -> str:
    """Return text from outside as one line without markup, so that it cannot pass for a line of Ava's."""
    if not isinstance(text, str):
        return ""
    line = " ".join(unescape_html(_MARKUP.sub("", text[: most * 8])).split())
    return line if len(line) <= most else line[: most - 1].rstrip() + "…"


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
            asked = urlencode({"q": query, "limit": count})
            return SearchRequest("GET", f"{self.base_url}/search?{asked}", {"Authorization": f"Bot {self.key}"})
        headers = {"Authorization": f"Bearer {self.key}"}
        return SearchRequest(
            "POST", f"{self.base_url}/search", headers, {"query": query, "workflow": "search", "limit": count}
        )

    def rows(self, answer: Mapping[str, Any]) -> list[Mapping[str, Any]] | None:
        given: object = answer.get("data")
        if not self._is_version_0:  # grouped by kind; a kind without results is missing
            given = _under(answer, "data").get("search", []) if isinstance(given, dict) else None
        rows = _rows(given)
        # In version 0, the list also contains related searches (t: 1).
        return None if rows is None else [row for row in rows if row.get("t", 0) == 0]

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
        asked = {"q": query, "count": count, "spellcheck": "false", "text_decorations": "false", "result_filter": "web"}
        return SearchRequest(
            "GET", f"{self.base_url}/web/search?{urlencode(asked)}", {"X-Subscription-Token": self.key}
        )

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
        again = wait_words(_reset(reply.headers))
        if code in ("QUOTA_LIMITED", "USAGE_LIMIT_EXCEEDED"):
            return (
                f"the plan of this key is used up at {self.title} ({what}): it can search again {again}, or when a"
                f" person takes a larger plan there; meanwhile {WITHOUT}"
            )
        if reply.status == 429:
            return f"{self.title} asks for fewer searches ({what}): try again {again}"
        return None


def _reset(headers: Mapping[str, str]) -> float | None:
    """Return when a used-up limit is reset: `Retry-After`, else Brave's lists of remaining requests and reset times."""
    if (seconds := asked_to_wait(headers)) is not None:
        return seconds
    left, until = (
        [part.strip() for part in headers.get(f"x-ratelimit-{name}", "").split(",")] for name in ("remaining", "reset")
    )
    ends = [
        int(end[:9]) for rest, end in zip(left, until, strict=False) if rest == "0" and end.isascii() and end.isdigit()
    ]
    return float(max(ends)) if ends else None


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
        given = answer.get("unresponsive_engines")
        silent = [
            ": ".join(plain(part, 40) for part in cast("list[object]", each)[:2])
            for each in (cast("list[object]", given) if isinstance(given, list) else [])
            if isinstance(each, list) and each
        ]
        return f"engines that did not answer: {list_names(silent, _SHOWN_FAULTS)}" if silent else ""

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
    date = next((given for each in dates if (given := plain(each, _DATE_CHARS))), None)
    day = _DAY.match(date) if date else None
    return Hit(address, plain(title, _TITLE_CHARS), plain(snippet, _SNIPPET_CHARS), day[0] if day else date)


def _rows(value: object) -> list[Mapping[str, Any]] | None:
    if not isinstance(value, list):
        return None
    return [cast("Mapping[str, Any]", row) for row in cast("list[object]", value) if isinstance(row, dict)]


def _under(answer: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    below = answer.get(name)
    return cast("Mapping[str, Any]", below) if isinstance(below, dict) else {}
