"""Tools for the public web: they read HTML as Markdown and PDF by pages, where the site's robots.txt allows it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import anyio
from pydantic import AfterValidator, Field

from ava_roles.errors import AccessRefused, NotRequested, ToolFailed
from ava_roles.net.addresses import allow_only_hosts_of, host_and_path, masked
from ava_roles.net.fetch import ROBOTS_NAME, Fetcher, Response
from ava_roles.net.search_engines import MOST_HITS, SearchResults, asked_to_wait, wait_words
from ava_roles.placeholders import fill_header, fill_query
from ava_roles.texts import parser_process
from ava_roles.texts.extracted import PDF, is_pdf
from ava_roles.texts.phrases import count_phrase
from ava_roles.texts.places import places_of
from ava_roles.texts.web_page import WebPage
from ava_roles.threads import run_sync
from ava_roles.tool import (
    SENTENCE_CHARS,
    WEB_SEARCH,
    Source,
    ToolArgs,
    ToolContext,
    ToolOutput,
    ToolSpec,
    need_fetch,
    need_search,
)

if TYPE_CHECKING:
    from protego import Protego

_MAX_QUERY_WORDS = 50  # Brave's limit


def _limit_words(query: str) -> str:
    words = query.split()
    if not words:
        raise ValueError("it is blank; give the words to look for")
    if len(words) > _MAX_QUERY_WORDS:
        raise ValueError(f"a search has at most {_MAX_QUERY_WORDS} words; leave out words that most pages contain")
    return " ".join(words)


class WebSearchArgs(ToolArgs):
    """Arguments of `web_search`."""

    query: Annotated[str, AfterValidator(_limit_words)] = Field(
        min_length=1, max_length=400, description="A few words that the pages would contain."
    )
    count: int = Field(default=8, ge=1, le=MOST_HITS, description="Results at most.")


class WebSearch:
    """Searches the web."""

    spec = ToolSpec(
        name=WEB_SEARCH,
        description=(
            "Search the web: a numbered list of pages with title, address, date where known, and a few of their words."
            " Read the best ones with read_webpages before you rely on them."
        ),
        args=WebSearchArgs,
        timeout_s=120,  # searches by a model provider wait for each other
        network=True,
        search=True,
        default=True,
        aliases=("WebSearch",),
    )

    def activity(self, args: WebSearchArgs) -> str:
        return f"Searching the web for {args.query}"

    async def __call__(self, args: WebSearchArgs, at: ToolContext) -> ToolOutput:
        results = await need_search(at)(at.hide(args.query), args.count)
        return ToolOutput(
            _render_results(results),
            count=len(results.hits),
            sources=tuple(Source(hit.url, hit.title or None) for hit in results.hits),
        )


def _render_results(results: SearchResults) -> str:
    """Return the hits for the model. The query is not repeated: its words are not from a page."""
    count = len(results.hits)
    count_words = count_phrase(count, "result") if count else "no results"
    head = f"{results.engine}: {count_words}"
    if results.note:
        head += f"\nNote: {results.note}"
    if not count:
        return f"{head}\nTry other words, or fewer."
    entries: list[str] = []
    for number, hit in enumerate(results.hits, 1):
        lines = [f"{number}. {hit.title or '(no title)'}", hit.url, hit.date, hit.snippet]
        entries.append("\n   ".join(line for line in lines if line))
    return "\n\n".join([head, *entries])


_ACCEPT = "text/html,application/xhtml+xml,application/pdf,text/plain;q=0.9,*/*;q=0.5"
_PAGE_BYTES = 5_000_000
_PAGE_CHARS = 100_000
_TITLE_CHARS = 200
_DEADLINE_S = 45.0  # for one page, with the wait for its host and robots.txt; the tool has 60
_HEAD_CHARS = 700  # reserved for the lines around one page's text


class ReadWebpagesArgs(ToolArgs):
    """Arguments of `read_webpages`."""

    urls: list[Annotated[str, Field(min_length=1, max_length=4_096)]] = Field(
        min_length=1, max_length=5, description="One to five http(s) URLs."
    )


@dataclass(frozen=True)
class _PageRead:
    """A page as it was read, or why it was not."""

    url: str
    response: Response | None
    page: WebPage | None
    failure: str | None

    @property
    def text(self) -> str:
        return self.page.text[:_PAGE_CHARS] if self.page else ""

    def head(self) -> str:
        response = self.response
        if response is None or self.page is None:
            return f"# {masked(self.url)}\nNot read: {self.failure}"
        facts = [f"status {response.status}", response.content_type or "no stated type"]
        if self.page.date:
            facts.append(f"date {self.page.date}")
        facts.append(count_phrase(len(self.text), "character"))
        if response.truncated or len(self.page.text) > _PAGE_CHARS:
            facts.append("only the beginning")
        lines = [f"# {self.page.title or masked(response.url)}", f"URL: {masked(response.url)}"]
        if response.redirects:
            lines.append(f"Redirected from: {masked(response.redirects[0])}")
        lines.append(" · ".join(facts))
        if self.page.note:
            lines.append(f"Note: {self.page.note}")
        return "\n".join(lines)


class ReadWebpages:
    """Reads pages side by side, with one request at a time per host."""

    spec = ToolSpec(
        name="read_webpages",
        description=(
            "Read one to five web pages as text: HTML as Markdown, PDF by pages. Give several URLs at once: "
            "they are read in parallel. Follows a site's robots.txt; does not run JavaScript."
        ),
        args=ReadWebpagesArgs,
        network=True,
        default=True,
        aliases=("WebFetch",),
    )

    def __init__(self) -> None:
        self._robots = Robots()

    def activity(self, args: ReadWebpagesArgs) -> str:
        return _describe_activity(args.urls[0], len(args.urls) - 1)

    async def __call__(self, args: ReadWebpagesArgs, at: ToolContext) -> ToolOutput:
        fetcher = need_fetch(at)
        # Blanks are encoded: words that a model puts into a URL must not count as words of a page.
        urls = list(dict.fromkeys("%20".join(url.split()) for url in args.urls))
        results: dict[str, _PageRead] = {}

        async def read(url: str) -> None:
            at.say(_describe_activity(url))
            results[url] = await self._read(fetcher, url, at)
            if len(results) < len(urls):
                at.say(f"Reading: {len(results)} of {len(urls)} pages")

        async with anyio.create_task_group() as group:
            for url in urls:
                group.start_soon(read, url)
        reads = [results[url] for url in urls]
        sources: list[Source] = []
        for each in reads:
            if each.response is not None and each.page is not None:
                sources.append(Source(each.response.url, each.page.title))
        return ToolOutput(
            _join_pages(reads, self.spec.max_chars),
            success=bool(sources),
            count=len(sources),
            sources=tuple(sources),
        )

    async def _read(self, fetcher: Fetcher, url: str, at: ToolContext) -> _PageRead:
        try:
            response = await fetcher.get(
                url,
                accept=_ACCEPT,
                max_bytes=_PAGE_BYTES,
                deadline_s=_DEADLINE_S,
                before=partial(self._robots.check, fetcher),
            )
            if response.status != 200:
                return _PageRead(url, None, None, _describe_status(response))
            page = await run_sync(_read_without_secrets, response, at.hide, places=places_of(at.user))
        except ToolFailed as failure:
            return _PageRead(url, None, None, str(failure))
        return _PageRead(url, response, page, None)


def _read_without_secrets(response: Response, hide: Callable[[str], str]) -> WebPage:
    page = read_page(response)
    title = page.title and hide(page.title)[:_TITLE_CHARS]
    note = page.note and hide(page.note)
    # Before the text is cut for the answer; a secret that begins in what is shown ends in twice as much.
    return replace(page, text=hide(page.text[: 2 * _PAGE_CHARS]), title=title, note=note)


def _describe_status(response: Response) -> str:
    match response.status:
        case 401 | 402 | 403 | 407 | 451:
            return f"status {response.status}: the site refuses access; choose another source"
        case 404 | 410:
            return f"status {response.status}: there is no such page; check the URL or search for it"
        case 429 | 503 as status:
            again = wait_words(asked_to_wait(response.headers))
            return f"status {status}: the site asks for fewer requests; try again {again}, or choose another source"
        case status if status >= 500:
            return f"status {status}: the site has a fault; try again later or choose another source"
        case status:
            return f"status {status}, without a page to read; choose another source"


def _join_pages(reads: list[_PageRead], most: int) -> str:
    """Return all pages in one text whose first `most` characters, where the loop may cut, have a fair share of each."""
    room = most
    for each in reads:
        if each.page:
            room -= _HEAD_CHARS
        else:
            room -= len(each.head()) + 2
    shares: dict[str, int] = {}
    pages_left = len(reads)
    for each in sorted(reads, key=lambda each: len(each.text)):
        share = min(len(each.text), max(room, 0) // pages_left)
        shares[each.url] = share
        room -= share
        pages_left -= 1
    parts: list[str] = []
    rests: list[str] = []
    for each in reads:
        cut = _line_end(each.text, shares[each.url])
        part = f"{each.head()}\n\n{each.text[:cut]}".rstrip()
        rest = each.text[cut:].strip()
        if rest:
            follow = count_phrase(
                len(rest), "more character of this page follows", "more characters of this page follow"
            )
            part += f"\n\n[{follow} below]"
            rests.append(f"# The rest of {masked(each.url)}\n\n{rest}")
        parts.append(part)
    return "\n\n".join(parts + rests)


def _line_end(text: str, at: int) -> int:
    """Return where to cut a text: at the last line end before an offset, if one is near."""
    if at >= len(text):
        return len(text)
    line_end = text.rfind("\n", max(0, at - 500), at)
    return line_end if line_end > 0 else at


def _describe_activity(url: str, others: int = 0) -> str:
    page = host_and_path(url) or "a page"
    if not others:
        return f"Reading {page}"
    sentence = f"Reading {page} and {others} more"
    if len(sentence) > SENTENCE_CHARS:
        sentence = f"Reading {others + 1} pages, first {page}"
    return sentence


_HEADER = re.compile(
    r"accept|accept-language|authorization|(?:[a-z0-9]+-)*(?:(?:api)?key|token|version)", re.IGNORECASE
)
"""Headers that identify the caller or choose the form of the answer; none that changes the kind of request."""


def _is_header(name: str) -> str:
    if not _HEADER.fullmatch(name) or len(name) > 60:
        raise ValueError(
            f"{name[:60]!r} cannot be set; these headers can: Accept, Accept-Language, Authorization, and names"
            " that end in Key, Token or Version"
        )
    return name.title()


def _is_header_text(text: str) -> str:
    if not text.isascii() or not text.isprintable():
        raise ValueError("a header's value must be printable ASCII, on one line")
    return text.strip()


_HeaderName = Annotated[str, AfterValidator(_is_header)]
_HeaderText = Annotated[str, Field(max_length=2_000), AfterValidator(_is_header_text)]


class HttpGetArgs(ToolArgs):
    """Arguments of `http_get`."""

    url: str = Field(min_length=1, max_length=4_096, description="An http(s) URL.")
    headers: dict[_HeaderName, _HeaderText] = Field(
        default_factory=dict[str, str],
        max_length=8,
        description=(
            "Request headers: Accept, Accept-Language, Authorization, or a name that ends in Key, Token or Version. A"
            " secret that the task names is written {{secret:NAME}}, here or in the query of url, and is sent only to"
            " its own hosts."
        ),
    )
    max_bytes: int = Field(default=100_000, ge=1, le=1_000_000, description="Bytes to read at most.")


class HttpGet:
    """Fetches one URL unchanged."""

    spec = ToolSpec(
        name="http_get",
        description=(
            "Fetch a URL and return its text unchanged: JSON, CSV, feeds, HTML source. "
            "To read a page, use read_webpages."
        ),
        args=HttpGetArgs,
        network=True,
        secrets=("url", "headers"),
    )

    def activity(self, args: HttpGetArgs) -> str:
        return _describe_activity(args.url)

    async def __call__(self, args: HttpGetArgs, at: ToolContext) -> ToolOutput:
        url = args.url.strip()
        headers = dict(args.headers)
        before = None
        if at.secrets:
            before = allow_only_hosts_of(at.secrets)
            await before(url.partition("?")[0])  # before a value is inserted; redirects are checked on the way
            url = fill_query(url, at.secrets)
            headers = {name: fill_header(text, at.secrets) for name, text in headers.items()}
        response = await need_fetch(at).get(
            url,
            accept=headers.pop("Accept", None),
            max_bytes=args.max_bytes,
            deadline_s=_DEADLINE_S,
            headers=headers,
            before=before,
        )
        shown_url = args.url.strip()  # as the model wrote it, without values of secrets
        if response.redirects:
            shown_url = response.url
        content_type = response.content_type or "no stated type"
        size = count_phrase(len(response.body), "byte")
        head = f"GET {masked(shown_url)}: status {response.status}, {content_type}, {size}"
        if response.truncated:
            head += " (cut there; give a larger max_bytes)"
        if response.status in (429, 503):
            again = wait_words(asked_to_wait(response.headers))
            head += f"; the site asks for fewer requests: try again {again}"
        if not is_text(response) and b"\0" in response.body:
            return ToolOutput(f"{head}\n\n(binary, not shown)", success=False, count=0)
        text = f"{head}\n\n{response.text()}"
        if response.status >= 400:
            return ToolOutput(text, success=False, count=0)
        return ToolOutput(text, count=1, sources=(Source(shown_url),))


_CACHE_S = 3_600.0
_RETRY_S = 60.0  # an unreachable site may be back soon
_MAX_SITES = 500
_MAX_BYTES = 500_000  # RFC 9309 section 2.5: at least 500 KiB must be read
_ROBOTS_DEADLINE_S = 10.0


@dataclass
class _Site:
    lock: anyio.Lock = field(default_factory=anyio.Lock)
    until: float = float("-inf")
    rules: Protego | None = None
    closed: str | None = None


class Robots:
    """Asks each site once an hour which pages may be read."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sites: dict[str, _Site] = {}

    async def check(self, fetcher: Fetcher, url: str) -> None:
        """Return if a URL may be read. Raises AccessRefused: robots.txt excludes it, or could not be read."""
        parts = urlsplit(url)
        if parts.path == "/robots.txt":
            return
        origin = f"{parts.scheme}://{parts.netloc}".lower()
        site = self._sites.setdefault(origin, _Site())
        async with site.lock:
            if self._clock() >= site.until:
                await self._fetch_rules(fetcher, origin, site)
        self._forget_expired()
        if site.closed is not None:
            raise AccessRefused(
                f"{masked(url)} is not read: the robots.txt of its site could not be read ({site.closed}), "
                "so none of its pages may be; try again later or another source"
            )
        if site.rules is not None and not await run_sync(site.rules.can_fetch, url, ROBOTS_NAME):
            raise AccessRefused(
                f"{masked(url)} is not read: the robots.txt of its site excludes it; choose another source"
            )

    async def _fetch_rules(self, fetcher: Fetcher, origin: str, site: _Site) -> None:
        """Fetch the rules; 4xx means no rules, and 5xx or no answer means that the site is closed."""
        from protego import Protego

        site.rules = None
        site.closed = None
        retry_s = _RETRY_S
        try:
            response = await fetcher.get(f"{origin}/robots.txt", max_bytes=_MAX_BYTES, deadline_s=_ROBOTS_DEADLINE_S)
        except ToolFailed as failure:
            site.closed = str(failure)
            # Another run may be allowed other hosts, and a request that was not made says nothing about the site.
            if isinstance(failure, AccessRefused | NotRequested):
                retry_s = 0.0
        else:
            if response.status >= 500:
                site.closed = f"status {response.status}"
            elif 200 <= response.status < 300:
                site.rules = await run_sync(Protego.parse, response.body.decode("utf-8", "replace"))
        if not site.closed:
            retry_s = _CACHE_S
        site.until = self._clock() + retry_s

    def _forget_expired(self) -> None:
        if len(self._sites) <= _MAX_SITES:
            return
        now = self._clock()
        for origin, site in list(self._sites.items()):
            if site.until <= now and not site.lock.locked():
                del self._sites[origin]


_TEXTUAL = re.compile(r"text/.*|application/(.*\+)?(json|xml|yaml|toml|javascript|x-ndjson|x-yaml|sql)")


def read_page(response: Response) -> WebPage:
    """Return the content of a response. Raises ToolFailed if it is neither HTML, PDF nor text."""
    if is_pdf(response.body):
        return _read_pdf(response)
    if not is_html(response) and not is_text(response):
        content_type = response.content_type or "of no stated type"
        raise ToolFailed(f"it is {content_type} ({count_phrase(len(response.body), 'byte')}), not text")
    decoded = response.decoded()
    if is_html(response):
        page = parser_process.read_html(decoded.text, response.url)
    else:
        page = WebPage(decoded.text)
    if not (decoded.guessed or decoded.replaced):
        return page
    note = decoded.note
    if decoded.guessed:
        note += ", a guess"
    if page.note:
        note += f"; {page.note}"
    return replace(page, note=note)


def is_html(response: Response) -> bool:
    """Tell HTML by the stated type, or by the first bytes if no type is stated."""
    if response.content_type:
        return response.content_type in ("text/html", "application/xhtml+xml")
    return re.match(rb"\s*<(!doctype html|html|head|body)\b", response.body[:1024], re.IGNORECASE) is not None


def is_text(response: Response) -> bool:
    """Tell text by the stated type and the absence of zero bytes."""
    if response.content_type and _TEXTUAL.fullmatch(response.content_type) is None:
        return False
    return b"\0" not in response.body[:65_536]


def _read_pdf(response: Response) -> WebPage:
    if response.truncated:
        raise ToolFailed(f"it is a PDF of more than {len(response.body):,} bytes, too large to read")
    pdf = parser_process.read_document(PDF, response.body)
    text = "\n\n".join(f"[{part.place}]\n{part.text}" for part in pdf.parts)
    notes: list[str] = []
    if not any(part.text for part in pdf.parts):
        notes.append("its pages contain no text: they may be scanned images, which cannot be read here")
    elif pdf.unread:
        notes.append(f"only pages 1 to {len(pdf.parts)} of {pdf.total} were read")
    notes += pdf.missing
    return WebPage(text, pdf.title, None, "; ".join(notes) or None)
