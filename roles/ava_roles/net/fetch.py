"""The guarded fetcher: public sites only, bounded in time and size, politely."""

from __future__ import annotations

import re
import ssl
import time
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING

import anyio

from ava_roles.errors import AccessRefused, ToolFailed
from ava_roles.net.addresses import PORTS, checked_url, masked
from ava_roles.net.connection import Resolver, SystemResolver
from ava_roles.threads import run_sync

if TYPE_CHECKING:
    from zlib import _Decompress  # pyright: ignore[reportPrivateUsage]

    import httpcore2
    import httpx2


_SLACK = 65_536  # a gzip stream may be a little longer than what it holds
_GZIP_OR_ZLIB = 47


class Body:
    """Collects at most `cap` bytes; a decompression bomb costs no more than that.

    Attributes:
        data: What came so far, decompressed.
        truncated: There was more, or the compressed stream broke off.
    """

    def __init__(self, cap: int, *, gzipped: bool) -> None:
        self.data = bytearray()
        self.truncated = False
        self._cap = cap
        self._raw = 0
        self._gzip: _Decompress | None = zlib.decompressobj(_GZIP_OR_ZLIB) if gzipped else None
        self._first = True

    def add(self, chunk: bytes) -> bool:
        """Take a piece as it came over the wire; returns False when no more is wanted.

        Raises:
            zlib.error: It is not the gzip stream that the header announced.
        """
        self._raw += len(chunk)
        if self._gzip is None:
            self.data += chunk[: self._cap + 1 - len(self.data)]
        elif not self._inflate(chunk):
            return False
        if len(self.data) > self._cap or self._raw > self._cap + _SLACK:
            del self.data[self._cap :]
            self.truncated = True
        return not self.truncated

    def end(self) -> None:
        """Note that nothing more comes."""
        if self._gzip is not None and self._raw and not self._gzip.eof:
            self.truncated = True

    def _inflate(self, chunk: bytes) -> bool:
        """Decompress a piece; a gzip stream may consist of several members. False at rubbish after one."""
        while chunk and self._gzip is not None and len(self.data) <= self._cap:
            if self._gzip.eof:
                self._gzip = zlib.decompressobj(_GZIP_OR_ZLIB)
                self._first = False
            try:
                self.data += self._gzip.decompress(chunk, self._cap + 1 - len(self.data))
            except zlib.error:
                if self._first:
                    raise
                return False
            chunk = self._gzip.unused_data
        return True


_KEPT = 256


class _Queue:
    """The requests to one host: who is at it, and when the next may start."""

    def __init__(self) -> None:
        self.lock = anyio.Lock()
        self.users = 0
        self.free_at = float("-inf")


class HostQueue:
    """Hands out turns at hosts.

    Args:
        pause_s: Seconds between the end of one request to a host and the start of the next.
        clock: Monotonic seconds.
        sleep: Waits for so many seconds.
    """

    def __init__(self, pause_s: float, clock: Callable[[], float], sleep: Callable[[float], Awaitable[None]]) -> None:
        self._pause_s = pause_s
        self._clock = clock
        self._sleep = sleep
        self._queues: dict[str, _Queue] = {}

    @asynccontextmanager
    async def at(self, host: str, *, pause: bool = True) -> AsyncGenerator[None]:
        """Hold the turn at a host; without `pause` it starts as soon as nobody else is at it."""
        queue = self._queues.setdefault(host, _Queue())
        queue.users += 1
        try:
            async with queue.lock:
                if pause and (wait := queue.free_at - self._clock()) > 0:
                    await self._sleep(wait)
                try:
                    yield
                finally:
                    queue.free_at = self._clock() + self._pause_s
        finally:
            queue.users -= 1
            self._forget()

    def _forget(self) -> None:
        """Drop hosts that nobody waits for, so that a long-lived server does not collect them."""
        if len(self._queues) > _KEPT:
            now = self._clock()
            for host in [host for host, queue in self._queues.items() if not queue.users and queue.free_at <= now]:
                del self._queues[host]


ROBOTS_NAME = "Ava"
_CONNECT_S = 10.0  # one address of several; the whole has the caller's deadline
_HEADER_CHARSET = re.compile(r"charset\s*=\s*[\"']?([\w.:-]+)", re.IGNORECASE | re.ASCII)
_PAGE_CHARSET = re.compile(rb"<meta\b[^>]{0,200}?\bcharset\s*=\s*[\"']?([\w.:-]+)", re.IGNORECASE)
# Not every codec of Python: some of them take for ever on hostile input (punycode).
_CHARSET = re.compile(
    r"utf-?(8|16|16le|16be)|(us-)?ascii|iso-?8859-\d{1,2}|latin-?1|(windows-|cp)\d{3,4}|shift[_-]jis|sjis"
    r"|euc-(jp|kr)|gbk|gb2312|gb18030|big5(-hkscs)?|koi8-[ru]|iso-2022-(jp|kr)|tis-620",
    re.IGNORECASE,
)
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


@dataclass(frozen=True)
class Response:
    """An answer, whatever its status.

    Attributes:
        status: The HTTP status.
        url: Where it came from in the end.
        headers: Its headers, names in lower case.
        content_type: The media type alone, in lower case; empty when the site sent none.
        body: At most `max_bytes`, decompressed.
        truncated: There was more.
        redirects: The URLs that led here, in order.
    """

    status: int
    url: str
    headers: Mapping[str, str]
    content_type: str
    body: bytes
    truncated: bool
    redirects: tuple[str, ...] = ()

    def text(self) -> str:
        """Return the body as text: the charset that header or page name, else UTF-8, else Windows-1252."""
        for charset in (*self._named_charsets(), "utf-8"):
            try:
                return self.body.decode(charset)
            except UnicodeDecodeError as error:
                # A character that the size limit cut in two is no reason to doubt the charset.
                if self.truncated and error.start > len(self.body) - 8:
                    return self.body.decode(charset, "ignore")
            except LookupError:
                continue
        return self.body.decode("cp1252", "replace")

    def _named_charsets(self) -> list[str]:
        header = _HEADER_CHARSET.search(self.headers.get("content-type", ""))
        page = _PAGE_CHARSET.search(self.body[:2_048])
        named = [header[1] if header else "", page[1].decode("ascii") if page else ""]
        return [charset for charset in named if _CHARSET.fullmatch(charset)]


@dataclass(frozen=True)
class _Answer:
    """One hop: an answer, and where it sends us."""

    fetched: Response
    next_url: str | None


class Fetcher:
    """Fetches public URLs. One for all runs of a server: it spaces out the requests to each host.

    Through a proxy, no name is looked up here: the proxy decides which addresses can be reached. What a URL itself says
    is checked all the same, at every hop: addresses that are not public, names of local networks, ports.

    Args:
        resolver: Turns names into addresses; the system's by default.
        backend: Connects to a checked address; tests put their own server behind it.
        ports: Ports that may be connected to.
        context: The TLS context; the system's trust store by default.
        proxy: The address of the proxy that everything goes through; None goes straight, whatever the environment says.
        pause_s: Seconds between two requests to one host.
        clock: Monotonic seconds.
        sleep: Waits for so many seconds.
    """

    def __init__(
        self,
        resolver: Resolver | None = None,
        backend: httpcore2.AsyncNetworkBackend | None = None,
        *,
        ports: Collection[int] = PORTS,
        context: ssl.SSLContext | None = None,
        proxy: str | None = None,
        pause_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        self._resolver = resolver or SystemResolver()
        self._backend = backend
        self._ports = frozenset(ports)
        self._context = context
        self._proxy = proxy
        self._turns = HostQueue(pause_s, clock, sleep)

    async def get(
        self,
        url: str,
        *,
        accept: str | None = None,
        max_bytes: int = 2_000_000,
        deadline_s: float = 30.0,
        max_redirects: int = 5,
        headers: Mapping[str, str] | None = None,
        before: Callable[[str], Awaitable[None]] | None = None,
    ) -> Response:
        """Fetch a URL, following redirects, each checked like the first.

        Args:
            url: An http or https URL.
            accept: The Accept header.
            max_bytes: Bytes of the (decompressed) body to keep; what follows is not read.
            deadline_s: Seconds for everything: waiting for the host's turn, names, all hops, the body.
            max_redirects: Redirects to follow.
            headers: More headers, for the first origin only.
            before: Called with each URL before it is requested; what it raises stops the fetch.

        Raises:
            AccessRefused: The URL, or one that it redirects to, is not a public site.
            ToolFailed: No complete answer came; the text says why.
        """
        try:
            with anyio.fail_after(deadline_s):
                return await self._follow(url, accept, max_bytes, max_redirects, headers or {}, before)
        except TimeoutError:
            raise ToolFailed(
                f"{masked(url)} did not answer completely within {deadline_s:g} s; try again later or another source"
            ) from None

    async def _follow(
        self,
        url: str,
        accept: str | None,
        max_bytes: int,
        max_redirects: int,
        headers: Mapping[str, str],
        before: Callable[[str], Awaitable[None]] | None,
    ) -> Response:
        target = first = checked_url(url, self._ports)
        trail: list[str] = []
        while True:
            if before is not None:
                await before(str(target))
            same_origin = _origin(target) == _origin(first)
            sent = {**_headers(accept), **(headers if same_origin else {})}
            # A redirect is the site's own wish to be asked again: it need not wait.
            async with self._turns.at(target.host, pause=not trail):
                answer = await self._ask(target, sent, max_bytes, tuple(trail))
            if answer.next_url is None:
                return answer.fetched
            if len(trail) >= max_redirects:
                raise ToolFailed(f"{masked(url)} redirects more than {max_redirects} times; give the final address")
            trail.append(str(target))
            target = checked_url(answer.next_url, self._ports)

    async def _transport(self) -> httpx2.AsyncHTTPTransport:
        """Return what one request goes out by."""
        if self._context is None:
            self._context = await run_sync(ssl.create_default_context)
        if self._proxy is not None:
            from ava_roles.net.proxies import ProxiedTransport

            return ProxiedTransport(self._proxy, self._context)
        from ava_roles.net.connection import PooledTransport, PublicNetworkBackend

        return PooledTransport(self._context, PublicNetworkBackend(self._resolver, self._backend))

    async def _ask(
        self, target: httpx2.URL, headers: Mapping[str, str], max_bytes: int, trail: tuple[str, ...]
    ) -> _Answer:
        """Make one request over a connection of its own."""
        import httpx2

        transport = await self._transport()
        timeout = httpx2.Timeout(None, connect=_CONNECT_S)
        try:
            async with (
                httpx2.AsyncClient(transport=transport, trust_env=False, timeout=timeout) as client,
                client.stream("GET", target, headers=headers, follow_redirects=False) as response,
            ):
                next_url = _redirect(target, response)
                body = Body(max_bytes, gzipped=_gzipped(target, response))
                if next_url is None:
                    await _read(response, body)
        except httpx2.TransportError as error:
            raise ToolFailed(f"{masked(str(target))} could not be read: {error or type(error).__name__}") from None
        except zlib.error:
            raise ToolFailed(f"{masked(str(target))} could not be read: its gzip encoding is broken") from None
        named = {name.lower(): value for name, value in response.headers.items()}
        content_type = named.get("content-type", "").split(";")[0].strip().lower()
        return _Answer(
            Response(
                response.status_code,
                str(target),
                named,
                content_type,
                bytes(body.data),
                body.truncated,
                trail,
            ),
            next_url,
        )


async def _read(response: httpx2.Response, body: Body) -> None:
    async for chunk in response.aiter_raw():
        if not body.add(chunk):
            return
    body.end()


def _headers(accept: str | None) -> dict[str, str]:
    try:
        version = metadata.version("ava-subagents")
    except metadata.PackageNotFoundError:
        version = "0"
    return {
        "User-Agent": f"Ava/{version} (+subagent; robots: {ROBOTS_NAME})",
        "Accept": accept or "*/*",
        "Accept-Encoding": "gzip",
        "Connection": "close",
    }


def _gzipped(target: httpx2.URL, response: httpx2.Response) -> bool:
    """Tell whether the body is gzip; anything else that we did not ask for is refused."""
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity", "gzip", "x-gzip"):
        raise ToolFailed(f"{masked(str(target))} answered in the encoding {encoding[:40]!r}, which was not asked for")
    return encoding in ("gzip", "x-gzip")


def _redirect(target: httpx2.URL, response: httpx2.Response) -> str | None:
    """Return where an answer sends us, or None."""
    import httpx2

    location = response.headers.get("location")
    if response.status_code not in _REDIRECTS or location is None:
        return None
    if "\\" in location or not location.isprintable():
        raise AccessRefused(f"{masked(str(target))} redirects to an address that is not a valid URL")
    try:
        return str(target.join(location))
    except (httpx2.InvalidURL, ValueError):
        raise AccessRefused(f"{masked(str(target))} redirects to an address that is not a valid URL") from None


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port
