"""A web search: one question to one engine, and what comes of it, good or bad.

Whoever searches gives the way out along (`Send`): the key goes there and nowhere else.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, cast

import anyio

from ava_roles.errors import ToolFailed
from ava_roles.tools.retry import asked_to_wait, wait_words

DEADLINE_S: Final = 20.0
"""Seconds for a search, with everything that it waits for."""
MOST_HITS: Final = 20
WITHOUT: Final = "go on with pages that you know, and say in the caveats that the search did not work"
"""What every refusal ends with: nothing that a model says brings a search back."""
_URL_CHARS = 2_000

# How the engines mark the words that were looked for. Other tags are what a page says of code, and stay.
_MARKUP = re.compile(r"</?(?:a|b|br|code|em|font|i|mark|p|small|span|strong|sub|sup|u)\b[^<>]{0,300}>", re.IGNORECASE)
_CODE = re.compile(r"[A-Za-z0-9_.-]{1,60}")


@dataclass(frozen=True)
class Ask:
    """One request. A header may hold a key, so no repr shows them."""

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    body: Mapping[str, object] | None = None


@dataclass(frozen=True)
class Reply:
    """What came back.

    Attributes:
        status: The HTTP status.
        headers: Names in lower case.
        body: All of it, decompressed.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes


Send = Callable[[Ask], Awaitable[Reply]]
"""Sends a request and reads the whole answer. Raises ToolFailed where none came."""


@dataclass(frozen=True)
class Hit:
    """One result, as plain words."""

    url: str
    title: str
    snippet: str = ""
    date: str | None = None


@dataclass(frozen=True)
class Found:
    """What a search brought.

    Attributes:
        engine: Who was asked, as people call it.
        hits: Best first.
        note: What a reader must know of how it was found; empty where nothing.
    """

    engine: str
    hits: tuple[Hit, ...]
    note: str = ""


class Search(Protocol):
    """A web search that is set up. Raises ToolFailed where it brings nothing."""

    async def __call__(self, query: str, count: int) -> Found:
        """Search; at most `count` hits."""
        ...


class Engine(Protocol):
    """One search engine, with its address and key."""

    @property
    def name(self) -> str:
        """Its name in settings."""
        ...

    @property
    def base_url(self) -> str:
        """Where it is asked."""
        ...

    @property
    def cost_micros(self) -> int:
        """What a search costs, in micro-USD, as far as is known; no budget counts it."""
        ...

    @property
    def title(self) -> str:
        """What people call it."""
        ...

    def ask(self, query: str, count: int) -> Ask:
        """Return the request for a search."""
        ...

    def hits(self, answer: Mapping[str, Any]) -> Sequence[Hit] | None:
        """Return what an answer holds, best first; None where it has not the form of one."""
        ...

    def note(self, answer: Mapping[str, Any]) -> str:
        """Return what is to be known of an answer beside its hits."""
        ...

    def fault(self, reply: Reply, code: str) -> str | None:
        """Return what a refusal means and what can be done, where this engine has words of its own for it."""
        ...


async def search(engine: Engine, query: str, count: int, send: Send) -> Found:
    """Ask an engine, once.

    Raises:
        ToolFailed: It brought no answer; the text says why, and what to do.
    """
    try:
        with anyio.fail_after(DEADLINE_S):
            reply = await send(engine.ask(query, count))
    except TimeoutError:
        raise ToolFailed(f"{engine.title} brought no answer within {DEADLINE_S:g} s; try again later") from None
    answer = _answer(engine, reply)
    found = engine.hits(answer)
    if found is None:
        raise ToolFailed(f"{engine.title} answered in a form that is not known here; {WITHOUT}")
    by_url: dict[str, Hit] = {}
    for hit in found:
        if len(by_url) == count:
            break
        if _is_address(hit.url):
            by_url.setdefault(hit.url, hit)
    note = engine.note(answer)
    if not by_url and note:
        raise ToolFailed(f"{engine.title} found nothing: {note}; try again later, or in other words")
    return Found(engine.title, tuple(by_url.values()), note)


def _answer(engine: Engine, reply: Reply) -> Mapping[str, Any]:
    """Return an answer's JSON.

    Raises:
        ToolFailed: It is a refusal, or no JSON object.
    """
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


def _refusal(engine: Engine, reply: Reply, code: str) -> str:
    """Say what an error status means. The engine's own words are not repeated: they may hold what was sent."""
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
    """Say that a key has nothing left to pay with."""
    return f"{title} has no credit left for this key ({what}): a person has to add some at {title}; meanwhile {WITHOUT}"


def new_key(engine: Engine) -> str:
    """Say what has to be done where a key is refused."""
    return f"a person has to store another one (`ava key set {engine.title.lower()}`); meanwhile {WITHOUT}"


def _code(answer: Mapping[str, Any]) -> str:
    """Return the code of an error, where it looks like one: `{"error": {…}}`, or a list of them."""
    given: object = answer.get("error") or answer.get("errors")
    if isinstance(given, list):
        given = next(iter(cast("list[object]", given)), None)
    code = cast("dict[str, object]", given).get("code") if isinstance(given, dict) else None
    return str(code) if isinstance(code, str | int) and _CODE.fullmatch(str(code)) else ""


def _is_address(url: str) -> bool:
    """Tell whether a hit leads to a page: its address is foreign text like every other."""
    known = url.startswith(("https://", "http://"))
    return known and len(url) <= _URL_CHARS and url.isprintable() and not any(char.isspace() for char in url)


def plain(text: object, most: int) -> str:
    """Return foreign words as one line without markup, so that none of them looks like a line of ours."""
    if not isinstance(text, str):
        return ""
    line = " ".join(html.unescape(_MARKUP.sub("", text[: most * 8])).split())
    return line if len(line) <= most else line[: most - 1].rstrip() + "…"
