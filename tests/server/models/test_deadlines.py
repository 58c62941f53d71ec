"""Every wait of a model call ends: connecting, sending, the first byte, between two pieces, and all of it together."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import anyio
import anyio.lowlevel
import anyio.to_thread
import httpcore2
import pytest
from support.model_server import Gate, Raw, Say, events, run_model_server

from ava_roles.net.transports import NetworkBackend
from ava_server.core.errors import ModelError, ModelTimeout
from ava_server.models.base import Request, UserTurn
from ava_server.models.errors import may_have_been_billed
from ava_server.models.http_clients import ClientPool
from ava_server.models.http_model import HttpModel
from ava_server.models.wires.chat import ChatWire
from ava_server.models.wires.stream import Deadlines

ASK = Request("test", "", (), (UserTurn("hello"),), 256)
WORDS = events(Say("the blue door"))


async def late(base_url: str, clients: ClientPool, deadlines: Deadlines, request: Request = ASK) -> ModelError:
    """Ask where no answer will come in time; return what is said of it, which must not take long."""
    with pytest.raises(ModelError) as caught, anyio.fail_after(2):
        async with HttpModel("custom", "test", base_url, None, clients, ChatWire(), deadlines).stream(
            request
        ) as stream:
            async for _ in stream:
                pass
    return caught.value


@contextmanager
def deaf(backlog: int = 16) -> Iterator[tuple[socket.socket, int]]:
    """A port that takes connections and never reads from them."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(backlog)
        yield listening, listening.getsockname()[1]


async def test_a_connection_that_is_made_while_its_call_is_cancelled_is_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        for turns in range(20):
            made: list[httpcore2.AsyncNetworkStream] = []

            async def connect(made: list[httpcore2.AsyncNetworkStream] = made) -> None:
                made.append(await NetworkBackend().connect_tcp(*listening.getsockname()))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(connect)
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
            for stream in made:
                await stream.aclose()
            with suppress(BlockingIOError):
                taken, _ = listening.accept()
                with taken:
                    taken.settimeout(2)
                    assert taken.recv(1) == b"", f"cancelled after {turns} turns of the event loop"


async def test_connecting_to_an_unresponsive_address_ends_at_its_deadline(clients: ClientPool) -> None:
    with deaf(backlog=0) as (_, port):
        waiting = [socket.socket() for _ in range(8)]  # the queue is full, and further ones hear nothing
        try:
            for each in waiting:
                each.setblocking(False)
                each.connect_ex(("127.0.0.1", port))
            error = await late(f"http://127.0.0.1:{port}/v1", clients, Deadlines(connect_s=0.2))
        finally:
            for each in waiting:
                each.close()
    assert f"No connection to 127.0.0.1:{port}/v1/chat/completions within 0.2 s" in str(error)
    assert (error.kind, error.sent, error.retryable) == ("connection", False, True)
    assert not may_have_been_billed(error)


async def test_an_unanswered_tls_handshake_ends_at_the_connect_deadline(clients: ClientPool) -> None:
    with deaf() as (_, port):
        error = await late(f"https://127.0.0.1:{port}/v1", clients, Deadlines(connect_s=0.2))
    assert "within 0.2 s" in str(error)
    assert not may_have_been_billed(error)


async def test_a_request_the_server_does_not_read_ends_at_the_first_byte_deadline(clients: ClientPool) -> None:
    large = Request("test", "", (), (UserTurn("x" * 30_000_000),), 256)  # more than the sockets hold
    with deaf() as (_, port):
        error = await late(f"http://127.0.0.1:{port}/v1", clients, Deadlines(first_byte_s=0.2), large)
    assert isinstance(error, ModelTimeout) and "0.2 s: no answer began" in str(error)
    assert may_have_been_billed(error)


@contextmanager
def slow_head(pause_s: float) -> Iterator[str]:
    """A server whose answer begins with a head that comes byte by byte."""
    ended = threading.Event()

    def drip(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            for byte in b"HTTP/1.1 200 OK\r\n" + b"x-more: and more\r\n" * 1_000:
                if ended.wait(pause_s):
                    return
                try:
                    connection.send(bytes([byte]))
                except OSError:
                    return

    with deaf() as (listening, port):
        thread = threading.Thread(target=drip, args=(listening,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            ended.set()
            thread.join(5)


async def test_a_trickle_of_headers_does_not_count_as_the_first_byte(clients: ClientPool) -> None:
    with slow_head(0.02) as base_url:
        error = await late(base_url, clients, Deadlines(first_byte_s=0.3, between_s=0.1))
    assert "0.3 s: no answer began" in str(error)


@pytest.mark.parametrize(
    ("step", "deadlines", "says"),
    [
        (lambda: Say("x", gate=Gate()), Deadlines(first_byte_s=5, total_s=0.2), "no answer began"),
        (lambda: Say("x", gate=Gate()), Deadlines(first_byte_s=0.2), "0.2 s: no answer began"),
        (lambda: Raw([], missing=9, stall=Gate()), Deadlines(between_s=0.2), "0.2 s: no further byte"),
        (lambda: Raw(WORDS[:3], missing=9, stall=Gate()), Deadlines(between_s=0.2), "0.2 s: no further byte"),
        (
            lambda: Raw(WORDS[:3], missing=9, stall=Gate()),
            Deadlines(between_s=5, total_s=1),
            "1 s: the answer was not complete",
        ),
        (
            lambda: Raw([b'{"error"'], "application/json", status=500, missing=9, stall=Gate()),
            Deadlines(total_s=1),
            "failed (HTTP 500)",
        ),
    ],
)
@pytest.mark.parametrize("streaming", [True, False])
async def test_every_wait_for_data_ends_at_its_deadline(
    streaming: bool, step: Callable[[], Say | Raw], deadlines: Deadlines, says: str, clients: ClientPool
) -> None:
    with run_model_server([step()]) as server, pytest.raises(ModelError) as caught, anyio.fail_after(20):
        model = HttpModel("custom", "test", server.base_url, None, clients, ChatWire(streaming), deadlines)
        async with model.stream(ASK) as stream:
            async for _ in stream:
                pass
    assert says in str(caught.value)


async def test_steady_chunks_may_take_longer_in_total_than_the_chunk_deadline(clients: ClientPool) -> None:
    script = [Raw(WORDS, chunked=True, pause_s=0.06)]
    assert len(WORDS) * 0.06 > 0.4
    with run_model_server(script) as server, anyio.fail_after(20):
        model = HttpModel(
            "custom", "test", server.base_url, None, clients, ChatWire(), Deadlines(first_byte_s=0.3, between_s=0.3)
        )
        async with model.stream(ASK) as stream:
            async for _ in stream:
                pass
    assert stream.completion.text == "the blue door"


async def test_cancelling_between_two_chunks_closes_the_connection_at_once(clients: ClientPool) -> None:
    stall = Gate()
    with run_model_server([Raw(WORDS[:3], missing=9, stall=stall), Say("next")]) as server:
        model = HttpModel("custom", "test", server.base_url, None, clients, ChatWire())

        async def ask() -> None:
            async with model.stream(ASK) as stream:
                async for _ in stream:
                    pass

        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask)
                assert await anyio.to_thread.run_sync(stall.arrived.wait, 5)
                tasks.cancel_scope.cancel()
            assert await anyio.to_thread.run_sync(stall.client_left.wait, 1)


async def test_cancelling_while_connecting_closes_the_connection_at_once(clients: ClientPool) -> None:
    with deaf() as (listening, port):
        model = HttpModel("custom", "test", f"https://127.0.0.1:{port}/v1", None, clients, ChatWire())

        async def ask() -> None:
            async with model.stream(ASK):
                pytest.fail("nobody has answered")

        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask)
                connection, _ = await anyio.to_thread.run_sync(listening.accept)
                with connection:
                    connection.settimeout(2)
                    assert await anyio.to_thread.run_sync(connection.recv, 4_096)  # it says hello
                    tasks.cancel_scope.cancel()
                    with anyio.CancelScope(shield=True):
                        assert await anyio.to_thread.run_sync(read_to_the_end, connection)


def read_to_the_end(connection: socket.socket) -> bool:
    """Wait until the other side has closed; a timeout is a failure."""
    while True:
        try:
            if not connection.recv(4_096):
                return True
        except ConnectionError:
            return True
