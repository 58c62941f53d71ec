"""A model behind an HTTP endpoint, over httpx2: one attempt per call, and a deadline for every wait."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import anyio

from ava_audit.errors import AuditError
from ava_server.core.errors import ModelError
from ava_server.models import json_text
from ava_server.models import tokens as bounds
from ava_server.models.base import (
    NOT_SENT,
    AssistantTurn,
    Bound,
    ReportedUsage,
    Request,
    SendCheck,
    ToolUse,
    Turn,
    unchecked,
)
from ava_server.models.errors import Endpoint, refuses_key, with_usage
from ava_server.models.providers import key_header, may_count_cache_beside
from ava_server.models.usage_reader import usage_reader
from ava_server.models.wires.stream import MOST_BYTES, AnswerStream, Deadlines
from ava_server.models.wires.wire import Wire

if TYPE_CHECKING:
    import httpx2

    from ava_server.models.http_clients import ClientPool, LentClient
    from ava_server.models.key_command import KeyCommand

log = logging.getLogger("ava.models")

DEADLINES = Deadlines()
_ERROR_BYTES = 64 * 1024
_ERROR_BODY_S = 5.0
_MOST_REFUSED_LIMITS = 8
"""Refusals of the limit's name that may be those of calls at the same time, each of which is to be repeated."""
_LAST_BYTES = 64 * 1024
"""The most that is sent after the last check: what the system takes at once, however slow the network is."""


@dataclass(frozen=True, slots=True)
class HttpModel:
    """A model behind an HTTP endpoint."""

    provider: str
    model_id: str
    base_url: str
    api_key: str | None = field(repr=False)  # sent in the wire's header for it; None sends none
    clients: ClientPool = field(repr=False)
    wire: Wire
    deadlines: Deadlines = DEADLINES
    most_bytes: int = MOST_BYTES
    key_command: KeyCommand | None = field(default=None, repr=False)  # what prints the key, in place of `api_key`
    like: str = ""  # the known provider as which the address is called; empty where its host tells
    _encoded: list[tuple[Request, bytes]] = field(
        default_factory=list[tuple[Request, bytes]], init=False, repr=False, compare=False
    )
    _counted: bounds.CountedMessages = field(
        default_factory=bounds.CountedMessages, init=False, repr=False, compare=False
    )
    _refused_limits: list[str] = field(default_factory=list[str], init=False, repr=False, compare=False)
    _cache: bounds.CachePlace = field(default_factory=bounds.CachePlace, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.wire.sorts_cache:
            self._cache.uncertain = may_count_cache_beside(self.provider, self.base_url, self.model_id, self.like)

    @property
    def name(self) -> str:
        return f"{self.provider}:{self.model_id}"

    def encode(self, request: Request) -> bytes:
        content = json_text.encode(self.wire.body(request))
        self._encoded[:] = [(request, content)]  # hashed for a reservation now, sent next
        return content

    def _take_encoded(self, request: Request) -> bytes:
        kept, self._encoded[:] = self._encoded[:], []
        for encoded, content in kept:
            if encoded is request:
                return content
        return json_text.encode(self.wire.body(request))

    def may_think(self, turns: Sequence[Turn]) -> bool:
        return self.wire.may_think(turns)

    def bound(self, request: Request, known: ReportedUsage | None) -> Bound:
        return bounds.bound(request, self.wire.message, known, self._counted)

    def assistant_message(self, text: str | None, calls: Sequence[ToolUse]) -> Mapping[str, Any]:
        return self.wire.assistant_message(text, calls)

    def stream(self, request: Request, check: SendCheck = unchecked) -> AbstractAsyncContextManager[AnswerStream]:
        def shown_bytes() -> int:
            own = (request.system, *(tool.description for tool in request.tools))
            return bounds.shown_bytes([*own, *map(self.wire.message, request.turns)])

        if any(isinstance(turn, AssistantTurn) for turn in request.turns):
            self._cache.uncertain = False
        offered = frozenset(tool.name for tool in request.tools)
        return self.exchange(
            lambda: self._take_encoded(request), check, shown_bytes, most_output=request.max_output, offered=offered
        )

    def accepted_body(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return a body that another program made, as the endpoint accepts it, by what it has refused so far."""
        return self.wire.accepted_body(body, other_limit=bool(self._refused_limits))

    @asynccontextmanager
    async def exchange(
        self,
        encode: Callable[[], bytes],
        check: SendCheck,
        seen: Callable[[], int],
        headers: Mapping[str, str] | None = None,
        *,
        most_output: int | None = None,
        offered: frozenset[str] = frozenset(),
        streaming: bool | None = None,
    ) -> AsyncGenerator[AnswerStream]:
        """Send a body once. `seen` returns how many bytes of its text the model is certainly shown.

        `most_output` is the answer's limit, and `offered` are the names of the tools, where they are known.
        `streaming`: whether the body asks for a stream, where the wire itself would not say so.

        Raises AuditError: `check` has raised it, and nothing was sent; ModelError: no connection, an error status, or
        (while iterating) no valid answer.
        """
        end = anyio.current_time() + self.deadlines.total_s
        api_key = await self._key()
        endpoint = self._endpoint(api_key, streaming)
        sending = False
        body: list[bytes] = []
        size = 0
        lent: LentClient | None = None
        response: httpx2.Response | None = None
        try:  # without an exit stack and a context for the client, which together take 1.5 KiB of each waiting run
            try:
                body.append(encode())
                size = len(body[0])
                reader = await usage_reader(endpoint.url, self.wire.flavors)
                lent = await self.clients.lend()
                sending = True
                response = await self._send(lent.http, endpoint, body, end, check, headers or {})
                if response.status_code != 200:
                    content = await _error_body(response, end)
                    error = await self._status_error(endpoint, response, content)
                    raise self._with_usage(error, content, size, seen, most_output)
                self._accept_key(api_key)
            except (ModelError, AuditError):
                raise
            except anyio.get_cancelled_exc_class() as cancelled:
                if body:  # the client takes the body out of this list to write it, so nothing was sent
                    cancelled.add_note(NOT_SENT)
                raise
            except Exception as error:  # the attempt has to be settled, whatever went wrong
                raise _unexpected(error, endpoint, sent=sending) from error
            yield AnswerStream(
                response, self.wire, endpoint, self.deadlines, end, size, seen, self.most_bytes, most_output, reader,
                offered, self._cache,
            )  # fmt: skip
        finally:
            try:
                await _close(response)
            finally:
                if lent is not None:
                    self.clients.take_back(lent)

    def _accept_key(self, api_key: str | None) -> None:
        """Tell the command that prints the key that this one was taken."""
        if self.key_command is not None and api_key is not None:
            self.key_command.accepted(api_key)

    def _endpoint(self, api_key: str | None, streaming: bool | None) -> Endpoint:
        wire = self.wire
        if streaming is not None:
            wire = replace(wire, streaming=streaming)
        return Endpoint(
            url=wire.url(self.base_url, self.model_id),
            model=self.model_id,
            api_key=api_key,
            speaks=wire.speaks,
            minted=self.key_command is not None,
            like=self.like,
        )

    async def _key(self) -> str | None:
        """Return the key of this call. Raises ModelError if the command that prints it failed."""
        if self.key_command is None:
            return self.api_key
        from ava_server.models.key_command import KeyCommandFailed

        try:
            return await self.key_command.key()
        except KeyCommandFailed as failed:
            name = "key command, again" if failed.again else "key command"
            raise self._endpoint_without_key.error(
                name, command=self.key_command.command[0], cause=str(failed)
            ) from None
        except Exception as error:  # a thread that does not start: an error of the call like any other
            log.exception("the key_command of %s failed", self.provider)
            raise self._endpoint_without_key.fault(error, "Calling", sent=False, answered=False) from error
        except anyio.get_cancelled_exc_class() as cancelled:
            cancelled.add_note(NOT_SENT)
            raise

    @property
    def _endpoint_without_key(self) -> Endpoint:
        return Endpoint(self.wire.url(self.base_url, self.model_id), self.model_id, None, self.wire.speaks)

    async def _status_error(self, endpoint: Endpoint, response: httpx2.Response, content: bytes) -> ModelError:
        """Return the error of a response that is not 200; where its key has expired, a new one is asked for."""
        error = endpoint.status_error(response, content)
        if error.kind == "limit_name":
            self._take_other_limit(error)
        if not refuses_key(response.status_code, content):
            return error
        return await self._renewed(endpoint, error)

    def _take_other_limit(self, error: ModelError) -> None:
        """Have the limit on an answer sent under its other name from now on, where the format has one."""
        if not self.wire.has_other_limit:
            error.kind = "bad_request"
        few = len(self._refused_limits) < _MOST_REFUSED_LIMITS
        error.retryable = self.wire.has_other_limit and few
        error.again_after_s = 0.0 if error.retryable else None
        self._refused_limits.append(str(error))

    async def _renewed(self, endpoint: Endpoint, error: ModelError) -> ModelError:
        """Return the error of a call whose key was refused: one to repeat at once where the command has another key."""
        if self.key_command is None or endpoint.api_key is None:
            return error
        try:
            renewed_key = await self.key_command.renew(endpoint.api_key)
        except anyio.get_cancelled_exc_class() as cancelled:
            cancelled.add_note(NOT_SENT)  # it was refused, so it costs nothing either
            raise
        if not renewed_key:
            return error
        renewed = endpoint.error("key expired", command=self.key_command.command[0])
        renewed.again_after_s = 0.0
        return renewed

    def _with_usage(
        self, error: ModelError, content: bytes, sent_bytes: int, seen: Callable[[], int], most_output: int | None
    ) -> ModelError:
        """Return the error of a refused call, with what its body says that the call used all the same."""
        try:
            fields = json_text.fields_of(json_text.decode(json_text.decode_text(content)[0]))
        except json_text.NotJsonError:
            return error
        answer = self.wire.answer()
        answer.cache = self._cache
        if not answer.read_usage_of(fields):
            return error
        return with_usage(error, answer.complete(
            request_id=None, sent_bytes=sent_bytes, seen=seen, most_output=most_output
        ))  # fmt: skip

    async def _send(
        self,
        client: httpx2.AsyncClient,
        endpoint: Endpoint,
        body: list[bytes],
        end: float,
        check: SendCheck,
        more: Mapping[str, str],
    ) -> httpx2.Response:
        """Send a request and return the response's head; `body` is emptied, so that nothing holds it while we wait."""
        import httpx2

        headers = {
            **more,
            "content-type": "application/json",
            "content-length": str(len(body[0])),
            "accept": "text/event-stream, application/json",
            "accept-encoding": "identity",  # so that pieces arrive when they are sent
            **key_headers(self.wire, endpoint),
        }
        connect_s = self.deadlines.connect_s
        wait_s = max(min(self.deadlines.first_byte_s, end - anyio.current_time()), 0.0)
        try:
            outgoing = client.build_request(
                "POST",
                _url(endpoint.url),
                content=_send_pieces(body, check),
                headers=headers,
                timeout=httpx2.Timeout(None, connect=connect_s, pool=connect_s),
            )
            with anyio.move_on_after(wait_s):
                return await client.send(outgoing, stream=True)
            raise endpoint.error("timeout", what="no answer began", seconds=f"{wait_s:g}")
        except (httpx2.ConnectTimeout, httpx2.PoolTimeout):
            raise endpoint.error("connect timeout", seconds=f"{connect_s:g}") from None
        except (httpx2.ConnectError, httpx2.ProxyError) as error:
            raise endpoint.unreachable(error) from None
        except (httpx2.InvalidURL, httpx2.UnsupportedProtocol, httpx2.LocalProtocolError, UnicodeError) as error:
            raise endpoint.error("unsendable", cause=endpoint.clean(str(error))) from None
        except httpx2.HTTPError as error:
            raise endpoint.error("hung up", cause=endpoint.cause(error)) from None


def _unexpected(error: Exception, endpoint: Endpoint, *, sent: bool) -> ModelError:
    """Return the error of a call that failed in a way that nothing else translates."""
    if isinstance(error, OSError) and not sent:
        return endpoint.error("no certificates", cause=endpoint.clean(str(error)))
    log.error("calling %s failed", endpoint.place, exc_info=error)
    return endpoint.fault(error, "Calling", sent=sent, answered=False)


def key_headers(wire: Wire, endpoint: Endpoint) -> dict[str, str]:
    """Return a wire's headers with the key once: in the header of the address, where it has one of its own."""
    own_header: dict[str, str] = {}
    if endpoint.api_key and (endpoint.like or not endpoint.minted):
        own_header = key_header(endpoint.url, endpoint.api_key, endpoint.like)
    if not own_header:
        return wire.headers(endpoint.api_key)
    return {**wire.headers(None), **own_header}


@lru_cache(maxsize=64)
def _url(url: str) -> httpx2.URL:
    import httpx2

    return httpx2.URL(url)


async def _send_pieces(pieces: list[bytes], check: SendCheck) -> AsyncGenerator[bytes]:
    """Yield a body, and its end only after the check: a provider acts on a whole request, and bills only that."""
    if len(pieces[0]) > _LAST_BYTES:
        yield pieces[0][:-_LAST_BYTES]
        pieces[0] = pieces[0][-_LAST_BYTES:]
    await check()
    yield pieces.pop()


async def _close(response: httpx2.Response | None) -> None:
    """Close a response, if there is one. An error while closing does not spoil an answer that has arrived."""
    if response is None or response.is_closed:
        return
    with anyio.move_on_after(1, shield=True):
        try:
            await response.aclose()
        except Exception:
            log.debug("closing an answer failed", exc_info=True)


async def _error_body(response: httpx2.Response, end: float) -> bytes:
    """Read the body of an error, as far as it comes at once: the status is what counts."""
    import httpx2

    content = b""
    with anyio.move_on_after(min(_ERROR_BODY_S, max(end - anyio.current_time(), 0))):
        try:
            async for piece in response.aiter_bytes():
                content += piece
                if len(content) > _ERROR_BYTES:
                    break
        except httpx2.HTTPError:
            pass  # half of an error's message is better than none
    return content[:_ERROR_BYTES]
