"""Fetches pages of public sites, with limits on time and size and a pause between requests to the same host."""

from __future__ import annotations

import ssl
import time
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING

import anyio

from ava_roles.errors import AccessRefused, NotRequested, ToolFailed
from ava_roles.net.addresses import checked_url, host_of, masked
from ava_roles.net.resolver import Resolver, SystemResolver
from ava_roles.texts.encodings import Decoded, decode
from ava_roles.texts.markup import label_of_type
from ava_roles.threads import run_sync

if TYPE_CHECKING:
    from zlib import _Decompress  # pyright: ignore[reportPrivateUsage]

    import httpcore2
    import httpx2


ROBOTS_NAME = "Ava"
_CONNECT_S = 10.0  # for each of several addresses; the caller's deadline covers everything
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


@dataclass(frozen=True)
class Response:
    """A response with any status, from the final `url`; `redirects` are those before it. `truncated`: there was more.

    Names of headers are in lower case, and so is `content_type`, which has no parameters. `body` is decompressed.
    """

    status: int
    url: str
    headers: Mapping[str, str]
    content_type: str
    body: bytes
    truncated: bool
    redirects: tuple[str, ...] = ()

    def decoded(self) -> Decoded:
        """Return the body as text, by its mark, the header's charset or its own label; else the encoding is guessed."""
        label = label_of_type(self.headers.get("content-type", ""))
        decoded = decode(self.body, label, cut=self.truncated)
        if decoded is not None:
            return decoded
        return Decoded(self.body.decode("cp1252", "replace"), "cp1252", guessed=True)

    def text(self) -> str:
        return self.decoded().text


class Fetcher:
    """Fetches public URLs. A server has one for all its runs, so that it can space out the requests to each host.

    With a proxy, names are not looked up here: the proxy decides which addresses can be reached. Each URL is still
    checked, at every redirect, for addresses that are not public, names of local networks, and ports.

    `resolver` and `context` are the system's by default; tests put their own server behind `backend`, which connects to
    a checked address. Without a `proxy`, it connects directly, whatever the environment says. `hosts`: the only ones
    that may be requested, as `bound_host` returns them; none means every public one. `clock` returns monotonic seconds.
    """

    def __init__(
        self,
        resolver: Resolver | None = None,
        backend: httpcore2.AsyncNetworkBackend | None = None,
        *,
        context: ssl.SSLContext | None = None,
        proxy: str | None = None,
        hosts: Collection[str] = (),
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        self._resolver = resolver or SystemResolver()
        self._backend = backend
        self._context = context
        self._proxy = proxy
        self._allowed: tuple[frozenset[str], ...] = (frozenset(hosts),) if hosts else ()
        self._turns = HostQueue(clock, sleep)

    def limit_to(self, hosts: Collection[str]) -> Fetcher:
        """Return this fetcher, restricted further to these hosts; without hosts, unchanged."""
        if not hosts:
            return self
        limited = copy(self)
        limited._allowed = (*self._allowed, frozenset(hosts))
        return limited

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

        At most `max_bytes` of the decompressed body are read. The deadline is for everything: the host's queue, name
        lookups, all redirects, the body. Further `headers` are sent to the first origin only. `before` is called with
        each URL before it is requested; an error that it raises stops the fetch.

        Raises AccessRefused if the URL, or one that it redirects to, is not of a public site; NotRequested: at the
        deadline, it was still waiting for earlier requests to its host; ToolFailed: no complete response came; says
        why.
        """
        fetch = _Fetch(self._checked(url), accept, max_bytes, headers or {})
        try:
            with anyio.fail_after(deadline_s):
                while True:
                    if before is not None:
                        await before(str(fetch.target))
                    response, next_url = await self._request_in_turn(fetch)
                    if next_url is None:
                        return response
                    if len(fetch.trail) >= max_redirects:
                        text = f"{masked(url)} redirects more than {max_redirects} times; give the final address"
                        raise ToolFailed(text)
                    fetch.redirect(self._checked(next_url))
        except TimeoutError:
            if fetch.is_waiting:
                raise NotRequested(
                    f"{masked(str(fetch.target))} was not requested: other requests to {fetch.target.host} took"
                    f" all {deadline_s:g} s; request it again on its own"
                ) from None
            raise ToolFailed(
                f"{masked(url)} did not answer completely within {deadline_s:g} s; try again later or another source"
            ) from None

    async def _request_in_turn(self, fetch: _Fetch) -> tuple[Response, str | None]:
        """Make the next request of a fetch when it is its host's turn."""
        fetch.is_waiting = True
        # The site itself asked for the request after a redirect, so it needs no pause.
        async with self._turns.turn(fetch.target.host, pause=not fetch.trail):
            fetch.is_waiting = False
            return await self._request(fetch.target, fetch.request_headers(), fetch.max_bytes, tuple(fetch.trail))

    def _checked(self, url: str) -> httpx2.URL:
        target = checked_url(url)
        for hosts in self._allowed:
            if host_of(target) not in hosts:
                raise AccessRefused(
                    f"{masked(url)} is not fetched: only {', '.join(sorted(hosts))} may be reached; use another source"
                )
        return target

    async def _transport(self) -> httpx2.AsyncHTTPTransport:
        if self._context is None:
            self._context = await run_sync(ssl.create_default_context)
        if self._proxy is not None:
            from ava_roles.net.transports import ProxiedTransport

            return ProxiedTransport(self._proxy, self._context)
        from ava_roles.net.transports import PooledTransport, PublicNetworkBackend

        return PooledTransport(self._context, PublicNetworkBackend(self._resolver, self._backend))

    async def _request(
        self, target: httpx2.URL, headers: Mapping[str, str], max_bytes: int, trail: tuple[str, ...]
    ) -> tuple[Response, str | None]:
        """Make one request over a connection of its own; return the response and the URL that it redirects to."""
        import httpx2

        transport = await self._transport()
        timeout = httpx2.Timeout(None, connect=_CONNECT_S)
        try:
            async with (
                httpx2.AsyncClient(transport=transport, trust_env=False, timeout=timeout) as client,
                client.stream("GET", target, headers=headers, follow_redirects=False) as response,
            ):
                next_url = _redirect(target, response)
                body = ResponseBody(max_bytes, gzipped=_gzipped(target, response))
                if next_url is None:
                    async for chunk in response.aiter_raw():
                        if not body.add(chunk):
                            break
                    else:
                        body.end()
        except httpx2.TransportError as error:
            raise ToolFailed(f"{masked(str(target))} could not be read: {error or type(error).__name__}") from None
        except zlib.error:
            raise ToolFailed(f"{masked(str(target))} could not be read: its gzip encoding is broken") from None
        response_headers = {name.lower(): value for name, value in response.headers.items()}
        content_type = response_headers.get("content-type", "").split(";")[0].strip().lower()
        result = Response(
            response.status_code, str(target), response_headers, content_type, bytes(body.data), body.truncated, trail
        )
        return result, next_url


class _Fetch:
    """What is known of one fetch: the URL that is next, and those that redirected to it."""

    def __init__(self, url: httpx2.URL, accept: str | None, max_bytes: int, headers: Mapping[str, str]) -> None:
        self.target = url
        self.trail: list[str] = []
        self.max_bytes = max_bytes
        self.is_waiting = False
        self._first = url
        self._accept = accept
        self._headers = headers

    def redirect(self, target: httpx2.URL) -> None:
        self.trail.append(str(self.target))
        self.target = target

    def request_headers(self) -> dict[str, str]:
        headers = _headers(self._accept)
        if _origin(self.target) == _origin(self._first):
            headers |= self._headers
        return headers


SLOW_S = 5.0
PAUSE_S = 1.0
_HOSTS_KEPT = 256


class _Queue:
    def __init__(self) -> None:
        self.lock = anyio.Lock()
        self.users = 0
        self.free_at = float("-inf")
        self.ended = anyio.Event()
        self.ended.set()


class HostQueue:
    """Sends one request at a time to each host; none makes the next one wait for more than `SLOW_S`.

    `PAUSE_S` lie between the end of a request to a host and the start of the next. `clock` returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float], sleep: Callable[[float], Awaitable[None]]) -> None:
        self._clock = clock
        self._sleep = sleep
        self._queues: dict[str, _Queue] = {}

    @asynccontextmanager
    async def turn(self, host: str, *, pause: bool = True) -> AsyncGenerator[None]:
        """Hold the turn at a host; without `pause`, it waits only for the requests before it."""
        queue = self._queues.setdefault(host, _Queue())
        queue.users += 1
        try:
            async with queue.lock:
                with anyio.move_on_after(SLOW_S):
                    await queue.ended.wait()
                wait_s = queue.free_at - self._clock() if pause else 0.0
                if wait_s > 0:
                    await self._sleep(wait_s)
                queue.ended = ended = anyio.Event()
            try:
                yield
            finally:
                ended.set()
                queue.free_at = self._clock() + PAUSE_S
        finally:
            queue.users -= 1
            if len(self._queues) > _HOSTS_KEPT:  # a long-lived server must not collect them
                self._forget_idle_hosts()

    def _forget_idle_hosts(self) -> None:
        now = self._clock()
        for host, queue in list(self._queues.items()):
            if not queue.users and queue.free_at <= now:
                del self._queues[host]


_SLACK = 65_536  # a gzip stream may be a little longer than its content
_GZIP_OR_ZLIB = 47


class ResponseBody:
    """Collects at most `cap` bytes of a body, decompressed, even of a bomb. `truncated`: it had more, or was cut."""

    def __init__(self, cap: int, *, gzipped: bool) -> None:
        self.data = bytearray()
        self.truncated = False
        self._cap = cap
        self._raw = 0
        self._gzip: _Decompress | None = zlib.decompressobj(_GZIP_OR_ZLIB) if gzipped else None
        self._first = True

    def add(self, chunk: bytes) -> bool:
        """Add a piece as received; return whether more is needed. Raises zlib.error: it is not gzip after all."""
        self._raw += len(chunk)
        if self._gzip is None:
            self.data += chunk[: self._cap + 1 - len(self.data)]
        elif not self._inflate(chunk):
            return False
        is_too_long = len(self.data) > self._cap or self._raw > self._cap + _SLACK
        if is_too_long:
            del self.data[self._cap :]
            self.truncated = True
        return not self.truncated

    def end(self) -> None:
        if self._gzip is not None and self._raw and not self._gzip.eof:
            self.truncated = True

    def _inflate(self, chunk: bytes) -> bool:
        """Decompress a piece; a stream may have several gzip members. Return False at other data after a member."""
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
    """Tell whether the body is gzip; refuse every other encoding."""
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity", "gzip", "x-gzip"):
        raise ToolFailed(f"{masked(str(target))} answered in the encoding {encoding[:40]!r}, which was not asked for")
    return encoding in ("gzip", "x-gzip")


def _redirect(target: httpx2.URL, response: httpx2.Response) -> str | None:
    import httpx2

    location = response.headers.get("location")
    if response.status_code not in _REDIRECTS or location is None:
        return None
    try:
        if "\\" not in location and location.isprintable():
            return str(target.join(location))
    except (httpx2.InvalidURL, ValueError):
        pass
    raise AccessRefused(f"{masked(str(target))} redirects to an address that is not a valid URL")


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port
