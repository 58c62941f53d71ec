"""The search engines that are known: what each is asked, and what its answers and refusals mean. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlencode

from ava_roles.tools.retry import asked_to_wait, wait_words
from ava_roles.tools.searches import WITHOUT, Ask, Hit, Reply, new_key, no_credit, plain

_TITLE_CHARS = 200
_SNIPPET_CHARS = 600
_DATE_CHARS = 30
_SHOWN_FAULTS = 5
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}(?=T|\s|\Z)")


@dataclass(frozen=True)
class Kagi:
    """Kagi's Search API: version 1, or version 0 where the address ends so, for keys of its beta."""

    base_url: str
    key: str = field(repr=False)
    name = "kagi"
    title = "Kagi"

    @property
    def cost_micros(self) -> int:
        """What a search costs, as Kagi said in 2026."""
        return 25_000 if self._first else 12_000

    @property
    def _first(self) -> bool:
        return self.base_url.endswith("/v0")

    def ask(self, query: str, count: int) -> Ask:
        """Return the request for a search."""
        if self._first:
            asked = urlencode({"q": query, "limit": count})
            return Ask("GET", f"{self.base_url}/search?{asked}", {"Authorization": f"Bot {self.key}"})
        headers = {"Authorization": f"Bearer {self.key}"}
        return Ask("POST", f"{self.base_url}/search", headers, {"query": query, "workflow": "search", "limit": count})

    def hits(self, answer: Mapping[str, Any]) -> list[Hit] | None:
        """Return what an answer holds."""
        given: object = answer.get("data")
        if not self._first:  # by kinds of results; a kind without any is not there
            given = _under(answer, "data").get("search", []) if isinstance(given, dict) else None
        rows = _rows(given)
        if rows is None:
            return None
        # In version 0, related searches (t: 1) stand in the same list.
        return [
            _hit(row.get("url"), row.get("title"), row.get("snippet"), row.get("time"), row.get("published"))
            for row in rows
            if row.get("t", 0) == 0
        ]

    def note(self, answer: Mapping[str, Any]) -> str:
        """Return nothing: it has nothing more to tell."""
        return ""

    def fault(self, reply: Reply, code: str) -> str | None:
        """Return what a refusal means: a wrong key is a 400 there."""
        what = f"HTTP {reply.status}, {code}"
        if reply.status == 400 and "token" in code:
            return f"{self.title} refused the key ({what}): {new_key(self)}"
        if "credit" in code or code == "101":  # version 0 has numbers
            return no_credit(self.title, what)
        return None


@dataclass(frozen=True)
class Brave:
    """Brave's Web Search API."""

    base_url: str
    key: str = field(repr=False)
    name = "brave"
    title = "Brave"
    cost_micros = 5_000

    def ask(self, query: str, count: int) -> Ask:
        """Return the request for a search."""
        asked = {"q": query, "count": count, "spellcheck": "false", "text_decorations": "false", "result_filter": "web"}
        return Ask("GET", f"{self.base_url}/web/search?{urlencode(asked)}", {"X-Subscription-Token": self.key})

    def hits(self, answer: Mapping[str, Any]) -> list[Hit] | None:
        """Return what an answer holds; one without hits has no `web`."""
        if answer.get("type") != "search" and "web" not in answer:
            return None
        rows = _rows(_under(answer, "web").get("results", []))
        if rows is None:
            return None
        return [
            _hit(row.get("url"), row.get("title"), row.get("description"), row.get("page_age"), row.get("age"))
            for row in rows
        ]

    def note(self, answer: Mapping[str, Any]) -> str:
        """Return nothing: it has nothing more to tell."""
        return ""

    def fault(self, reply: Reply, code: str) -> str | None:
        """Return what a refusal means: a wrong key is a 422 there, and a plan that is used up a 429."""
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
    """Return when a limit ends that is used up: `Retry-After`, else Brave's lists of what remains and until when."""
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
class Searxng:
    """A SearXNG of one's own: no key, and a list of whatever length its engines bring."""

    base_url: str
    name = "searxng"
    title = "SearXNG"
    cost_micros = 0

    def ask(self, query: str, count: int) -> Ask:
        """Return the request for a search."""
        return Ask("GET", f"{self.base_url}/search?{urlencode({'q': query, 'format': 'json'})}")

    def hits(self, answer: Mapping[str, Any]) -> list[Hit] | None:
        """Return what an answer holds."""
        rows = _rows(answer.get("results"))
        if rows is None:
            return None
        return [_hit(row.get("url"), row.get("title"), row.get("content"), row.get("publishedDate")) for row in rows]

    def note(self, answer: Mapping[str, Any]) -> str:
        """Return which of its engines did not answer."""
        given = answer.get("unresponsive_engines")
        silent: list[str] = []
        for each in cast("list[object]", given) if isinstance(given, list) else []:
            if isinstance(each, list) and each:
                silent.append(": ".join(plain(part, 40) for part in cast("list[object]", each)[:2]))
        more = f" and {len(silent) - _SHOWN_FAULTS} more" if len(silent) > _SHOWN_FAULTS else ""
        return f"engines that did not answer: {', '.join(silent[:_SHOWN_FAULTS])}{more}" if silent else ""

    def fault(self, reply: Reply, code: str) -> str | None:
        """Return what a refusal means: without a key, a 403 is about the form of the answer."""
        if reply.status == 403:
            return (
                f"{self.title} gives no JSON (HTTP 403): a person has to add json to search.formats in its"
                " settings.yml;"
                f" meanwhile {WITHOUT}"
            )
        if reply.status in (401, 407):
            return f"{self.title} asks for a login (HTTP {reply.status}), which Ava does not have; {WITHOUT}"
        if 200 <= reply.status < 300 or 300 <= reply.status < 400 or reply.status in (404, 405):
            return (
                f"what stands at search.searxng answered with no list of results (HTTP {reply.status}): a person has to"
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
