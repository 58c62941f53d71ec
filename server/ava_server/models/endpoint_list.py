"""What an endpoint says that it has, where no table knows: `GET {base_url}/models`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

import anyio

from ava_server.core.errors import ModelError, ModelErrorKind
from ava_server.models.answer_errors import Endpoint
from ava_server.models.chat_wire import ChatWire
from ava_server.models.messages_wire import MessagesWire
from ava_server.models.responses_wire import ResponsesWire
from ava_server.models.selection import check_address

if TYPE_CHECKING:
    import httpx2

    from ava_server.models.clients import ClientPool
    from ava_server.models.listing import Seller
    from ava_server.models.wire import Wire

DEADLINE_S = 3.0
"""For the whole of it: a person waits, and the list is only a help."""
MOST_BYTES = 4_000_000
LONGEST_ID = 200


async def ask_endpoint(seller: Seller, clients: ClientPool) -> list[str]:
    """Return the ids of the models that an endpoint lists, in its own order.

    Raises:
        AvaError: It could not be asked, or what it answered is no list; says which.
    """
    import httpx2

    check_address(seller.name, seller.base_url, seller.api_key)
    wires: dict[str, Wire] = {"messages": MessagesWire(bearer=True), "responses": ResponsesWire()}
    wire = wires.get(seller.wire, ChatWire())
    endpoint = Endpoint(models_url(wire, seller.base_url), "", seller.api_key)
    with anyio.move_on_after(DEADLINE_S):
        try:
            async with clients.client() as client:
                return _ids(await _asked(client, endpoint, wire), endpoint)
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, UnicodeError) as error:
            why = endpoint.clean(str(error)) or type(error).__name__
            raise _failed(f"{endpoint.place} cannot be asked for its models: {why}", "connection") from error
    raise _failed(f"{endpoint.place} gave no whole list of its models within {DEADLINE_S:g} s", "timeout")


def models_url(wire: Wire, base_url: str) -> str:
    """Return where an endpoint's models are listed: beside where its model is asked."""
    asked = wire.url(base_url)
    for path in ("/chat/completions", "/messages", "/responses"):
        asked = asked.removesuffix(path)
    return f"{asked}/models"


async def _asked(client: httpx2.AsyncClient, endpoint: Endpoint, wire: Wire) -> bytes:
    headers = {"accept": "application/json", **wire.headers(endpoint.api_key)}
    content = b""
    async with client.stream("GET", endpoint.url, headers=headers) as response:
        if response.status_code != 200:
            kind: ModelErrorKind = "auth" if response.status_code in (401, 403) else "bad_answer"
            with_key = f" with {endpoint.key}" if kind == "auth" else ""
            raise _failed(f"{endpoint.place} answered {response.status_code}{with_key}, and no list of models", kind)
        async for piece in response.aiter_bytes():
            content += piece
            if len(content) > MOST_BYTES:
                raise _failed(f"{endpoint.place} answered more than {MOST_BYTES:,} bytes", "bad_answer")
    return content


def _ids(content: bytes, endpoint: Endpoint) -> list[str]:
    """Return the ids in an answer; one that no model can be asked for by is left out."""
    try:
        answer: Any = json.loads(content)
        entries = cast("list[Any]", answer["data"])
        ids = [entry["id"] for entry in entries]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise _failed(f"{endpoint.place} answered what is no list of models", "bad_answer") from None
    usable = [one for one in ids if isinstance(one, str) and one and one.isprintable() and " " not in one]
    return list(dict.fromkeys(one for one in usable if len(one) <= LONGEST_ID))


def _failed(message: str, kind: ModelErrorKind) -> ModelError:
    step = "Check that it runs, and its address and key; a model can be named without being listed."
    return ModelError(f"{message}.", kind=kind, sent=False, answered=False, retryable=False, what_to_do=step)
