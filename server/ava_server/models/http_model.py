"""A model behind an HTTP endpoint, over httpx2: one attempt per call, every wait with a deadline."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import anyio

from ava_server.core.errors import ModelError
from ava_server.models import tokens as bounds
from ava_server.models.base import AssistantTurn, Bound, ReportedUsage, Request, ToolUse, Turn
from ava_server.models.errors import Endpoint
from ava_server.models.wires import base
from ava_server.models.wires.base import Wire
from ava_server.models.wires.stream import AnswerStream, Deadlines

if TYPE_CHECKING:
    import httpx2

    from ava_server.models.clients import ClientPool

log = logging.getLogger("ava.models")

DEADLINES = Deadlines()
_ERROR_BYTES = 64 * 1024
_ERROR_BODY_S = 5.0


@dataclass(frozen=True)
class HttpModel:
    """A model behind an HTTP endpoint.

    Attributes:
        provider: The provider's name in the settings.
        model_id: The provider's id of the model.
        base_url: The API's address, below which the wire has its path.
        api_key: Sent in the header that the wire has for it; None sends none.
        clients: Where HTTP clients come from.
        wire: The format that is spoken.
        deadlines: How long each part of a call may take.
    """

    provider: str
    model_id: str
    base_url: str
    api_key: str | None = field(repr=False)
    clients: ClientPool = field(repr=False)
    wire: Wire
    deadlines: Deadlines = DEADLINES
    _encoded: list[tuple[Request, bytes]] = field(
        default_factory=list[tuple[Request, bytes]], init=False, repr=False, compare=False
    )
    _covered: bounds.CountedMessages = field(
        default_factory=bounds.CountedMessages, init=False, repr=False, compare=False
    )

    @property
    def name(self) -> str:
        """`provider:id`."""
        return f"{self.provider}:{self.model_id}"

    def encode(self, request: Request) -> bytes:
        """Return the request's body; it depends on nothing but the request and the wire."""
        content = base.encode(self.wire.body(request))
        self._encoded[:] = [(request, content)]  # a reservation has its hash, and then it is sent
        return content

    def _content(self, request: Request) -> bytes:
        """Return the request's body, which is not kept any longer."""
        kept, self._encoded[:] = self._encoded[:], []
        for of, content in kept:
            if of is request:
                return content
        content = self.encode(request)
        self._encoded.clear()
        return content

    def may_think(self, turns: Sequence[Turn]) -> bool:
        """Tell whether the model can be told to think about what follows these turns."""
        return self.wire.may_think(turns)

    def bound(self, request: Request, known: ReportedUsage | None) -> Bound:
        """Return an upper bound of what the call can use."""
        return bounds.bound(request, self.wire.message, known, self._covered)

    def assistant_message(self, text: str | None, calls: Sequence[ToolUse]) -> Mapping[str, Any]:
        """Return an answer of these words and calls as the provider would have sent it."""
        return self.wire.assistant_message(text, calls)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncGenerator[AnswerStream]:
        """Send the request once.

        Raises:
            ModelError: No connection, an error status, or (while iterating) an answer that is none.
        """
        end = anyio.current_time() + self.deadlines.total_s
        endpoint = Endpoint(self.wire.url(self.base_url), self.model_id, self.api_key, self.wire.speaks)
        sending = False
        async with AsyncExitStack() as stack:
            try:
                client = await stack.enter_async_context(self.clients.client())
                content = self._content(request)
                sending = True
                response = await self._send(client, endpoint, content, end)
                stack.push_async_callback(_hang_up, response)
                if response.status_code != 200:
                    raise endpoint.status(response, await _error_body(response, end))
            except ModelError:
                raise
            except Exception as error:  # whatever it is, the attempt has to be settled as what it was
                if isinstance(error, OSError) and not sending:
                    raise endpoint.no_certificates(error) from error
                log.exception("asking %s failed", endpoint.place)
                raise endpoint.faulty(error, "Asking", sent=sending, answered=False) from error
            yield AnswerStream(
                response,
                self.wire,
                endpoint,
                self.deadlines,
                end,
                len(content),
                lambda: sum(self.wire.unseen(turn.raw) for turn in request.turns if isinstance(turn, AssistantTurn)),
            )

    async def _send(
        self, client: httpx2.AsyncClient, endpoint: Endpoint, content: bytes, end: float
    ) -> httpx2.Response:
        import httpx2

        headers = {
            "content-type": "application/json",
            "accept": "text/event-stream, application/json",
            "accept-encoding": "identity",  # pieces are to arrive when they are sent
            **self.wire.headers(self.api_key),
        }
        connect_s = self.deadlines.connect_s
        wait_s = min(self.deadlines.first_byte_s, end - anyio.current_time())
        try:
            outgoing = client.build_request(
                "POST",
                _url(endpoint.url),
                content=content,
                headers=headers,
                timeout=httpx2.Timeout(None, connect=connect_s, pool=connect_s),
            )
            with anyio.move_on_after(wait_s):
                return await client.send(outgoing, stream=True)
            raise endpoint.timeout("no answer began", wait_s, answered=False)
        except (httpx2.ConnectTimeout, httpx2.PoolTimeout):
            raise endpoint.connect_timeout(connect_s) from None
        except (httpx2.ConnectError, httpx2.ProxyError) as error:
            raise endpoint.unreachable(error) from None
        except (
            httpx2.InvalidURL,
            httpx2.UnsupportedProtocol,
            httpx2.LocalProtocolError,
            UnicodeError,
        ) as error:
            raise endpoint.unsendable(error) from None
        except httpx2.HTTPError as error:
            raise endpoint.hung_up(error) from None


@lru_cache(maxsize=64)
def _url(url: str) -> httpx2.URL:
    """Return an address taken apart; a run asks one address again and again."""
    import httpx2

    return httpx2.URL(url)


async def _hang_up(response: httpx2.Response) -> None:
    """Close a response; what goes wrong then takes nothing away from an answer that is there."""
    if response.is_closed:
        return
    with anyio.move_on_after(1, shield=True):
        try:
            await response.aclose()
        except Exception:
            log.debug("closing an answer failed", exc_info=True)


async def _error_body(response: httpx2.Response, end: float) -> bytes:
    """Read what an error says, as far as it comes at once: its status is what counts."""
    import httpx2

    content = b""
    with anyio.move_on_after(min(_ERROR_BODY_S, max(end - anyio.current_time(), 0))):
        try:
            async for piece in response.aiter_bytes():
                content += piece
                if len(content) > _ERROR_BYTES:
                    break
        except httpx2.HTTPError:
            pass  # half of an error's words are still words
    return content[:_ERROR_BYTES]
