"""Faults of ours, or of a library below, met while a model is asked: the attempt is settled as what it was."""

import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

import anyio
import httpx2
import pytest
from support.model_server import Say, events

from ava_server.core.errors import ModelError
from ava_server.models.base import Completion, Request, UserTurn
from ava_server.models.errors import may_have_been_billed
from ava_server.models.http_clients import ClientPool, LentClient
from ava_server.models.http_model import HttpModel
from ava_server.models.wires.chat import ChatWire

KEY = "sk-or-v1-0123456789abcdef0123"
ASK = Request("m", "", (), (UserTurn("hello"),), 256)
GOOD = events(Say("the blue door"))


class Body(httpx2.AsyncByteStream):
    """Pieces, then perhaps a fault, or nothing more at all; closing may fail as well."""

    def __init__(
        self, pieces: list[bytes], fault: Exception | None, closing: Exception | None, hangs: anyio.Event | None
    ) -> None:
        self._pieces = pieces
        self._fault = fault
        self._closing = closing
        self._hangs = hangs

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece
        if self._hangs is not None:
            self._hangs.set()
            await anyio.sleep_forever()
        if self._fault is not None:
            raise self._fault

    async def aclose(self) -> None:
        if self._closing is not None:
            raise self._closing


class Transport(httpx2.AsyncBaseTransport):
    """The network: it answers with a body, or fails in a way that httpx2 has no name for."""

    def __init__(
        self,
        *pieces: bytes,
        fault: Exception | None = None,
        closing: Exception | None = None,
        sending: Exception | None = None,
        hangs: anyio.Event | None = None,
    ) -> None:
        self._body = Body(list(pieces), fault, closing, hangs)
        self._sending = sending

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if self._sending is not None:
            raise self._sending
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=self._body)


@pytest.mark.parametrize(("pieces", "answered"), [(GOOD[:3], True), ([], False)])
async def test_an_internal_error_while_reading_is_a_bad_answer_that_may_be_billed(
    pieces: list[bytes], answered: bool, caplog: pytest.LogCaptureFixture
) -> None:
    error = await failure(model_on(Transport(*pieces, fault=LookupError(f"no codec for {KEY}"))))
    assert (error.kind, error.sent, error.answered) == ("bad_answer", True, answered)
    assert "model.example/v1/chat/completions failed with LookupError: no codec for …" in str(error)
    assert may_have_been_billed(error)
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.exc_info is not None and record.exc_info[0] is LookupError


async def test_an_internal_error_while_sending_may_be_billed() -> None:
    error = await failure(model_on(Transport(sending=RuntimeError("odd"))))
    assert (error.kind, error.sent, error.answered) == ("bad_answer", True, False)
    assert "Calling model.example/v1/chat/completions failed with RuntimeError: odd." in str(error)
    assert may_have_been_billed(error)


async def test_a_request_that_cannot_be_encoded_is_not_billed() -> None:
    error = await failure(model_on(Transport(*GOOD), extra={"limit": float("nan")}))
    assert (error.kind, error.sent, error.answered) == ("bad_request", False, False)
    assert "failed with ValueError" in str(error)
    assert not may_have_been_billed(error)


@pytest.mark.parametrize(
    "transport",
    [
        Transport(*GOOD, closing=RuntimeError("odd")),
        Transport(*GOOD, fault=RuntimeError("odd")),
        Transport(*GOOD[:-1], fault=RuntimeError("odd")),
    ],
)
async def test_a_later_internal_error_does_not_lose_a_complete_answer(transport: Transport) -> None:
    completion = await ask(model_on(transport))
    assert completion.text == "the blue door"
    assert any("failed with RuntimeError: odd" in note for note in completion.notes)


async def test_propagates_cancellation_unchanged(caplog: pytest.LogCaptureFixture) -> None:
    hangs = anyio.Event()
    ended: list[BaseException] = []

    async def asking() -> None:
        try:
            await ask(model_on(Transport(*GOOD[:3], hangs=hangs)))
        except BaseException as error:
            ended.append(error)
            raise

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(asking)
            await hangs.wait()
            tasks.cancel_scope.cancel()
    assert isinstance(ended[0], anyio.get_cancelled_exc_class())
    assert caplog.records == []


async def test_propagates_an_error_of_the_stream_consumer_unchanged() -> None:
    with pytest.raises(KeyError, match="mine"):
        async with model_on(Transport(*GOOD)).stream(ASK) as stream:
            async for _ in stream:
                raise KeyError("mine")


class Wired(ClientPool):
    """Lends clients on a network of the test's own."""

    def __init__(self, transport: Transport) -> None:
        super().__init__()
        self._transport = transport

    async def lend(self) -> LentClient:
        return LentClient(httpx2.AsyncClient(transport=self._transport))


def model_on(transport: Transport, extra: Mapping[str, Any] | None = None) -> HttpModel:
    return HttpModel("p", "m", "http://model.example/v1", KEY, Wired(transport), ChatWire(extra=extra or {}))


async def ask(model: HttpModel) -> Completion:
    with anyio.fail_after(20):
        async with model.stream(ASK) as stream:
            async for _ in stream:
                pass
        return stream.completion


async def failure(model: HttpModel) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await ask(model)
    return caught.value
