"""The gateway between a provider whose stream is odd, broken or hostile, and an agent that speaks to it by hand."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import resource
import zlib
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import anyio
import httpx2
import pytest
from agents.test_gateway import KEY, SECRET, WIRES, Noted, http, path_of, place, request
from support.model_server import Say, events
from support.models import google_format, messages_format, responses_format
from support.sample import sample
from support.stdio import until
from support.threads import listen_in_thread

from ava_audit.redaction import Redactor
from ava_server.agents.bodies import Bodies
from ava_server.agents.gateway import Gateway, serving
from ava_server.models.base import Completion
from ava_server.models.clients import ClientPool
from ava_server.models.http_model import HttpModel
from ava_server.web import http_connection

SAID = Say("Zwölf Cent – 十二分 🙂", usage={"prompt_tokens": 9_177, "completion_tokens": 4_177, "total_tokens": 13_354})
COUNTED = (9_177, 4_177)
FULL, NOTHING = "all that was reserved", "nothing"
OK = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: text/event-stream\r\n"
Bytes = Sequence[bytes | float]
"""What is written, piece by piece, and the seconds between."""


def chunked(pieces: Sequence[bytes], end: bytes = b"0\r\n\r\n", head: bytes = b"") -> Bytes:
    framed = [f"{len(piece):x}\r\n".encode() + piece + b"\r\n" for piece in pieces]
    return [OK + head + b"transfer-encoding: chunked\r\n\r\n", *framed, end]


def status(first: str, body: bytes = b"{}", head: str = "") -> Callable[[list[bytes]], Bytes]:
    head += f"connection: close\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    lines = f"HTTP/1.1 {first}\r\n{head}\r\n"
    return lambda _good: [lines.encode() + body]


def each_with(old: bytes, new: bytes) -> Callable[[list[bytes]], Bytes]:
    return lambda good: chunked([event.replace(old, new) for event in good])


def counting(value: bytes) -> Callable[[list[bytes]], Bytes]:
    return each_with(b"4177", value)


def spread(good: list[bytes]) -> Bytes:
    """The JSON of each event over as many lines as it takes."""

    def lines(found: re.Match[bytes]) -> bytes:
        text = json.dumps(json.loads(found[1]), indent=1, ensure_ascii=False)
        return b"".join(b"data: " + line.encode() + b"\n" for line in text.split("\n"))

    return chunked([re.sub(rb"data: (\{.*\})\n", lines, event) for event in good])


def twice(good: list[bytes]) -> Bytes:
    """The usage comes again, and is lower."""
    at = next(number for number in reversed(range(len(good))) if b"4177" in good[number])
    return chunked([*good[: at + 1], good[at].replace(b"4177", b"11"), *good[at + 1 :]])


ERROR = b'data: {"type":"error","error":{"type":"api_error","message":"the engine has crashed"}}\n\n'
BIG = b'data: {"type":"x","choices":[],"x":"' + b"x" * (20 << 20) + b'"}\n\n'
WHOLE, CUT = "whole", "cut"
STREAMS: dict[str, tuple[Callable[[list[bytes]], Bytes], object, object]] = {
    "byte by byte": (lambda good: chunked([bytes((each,)) for each in b"".join(good)]), COUNTED, WHOLE),
    "in one piece": (lambda good: chunked([b"".join(good)]), COUNTED, WHOLE),
    "CRLF": (each_with(b"\n", b"\r\n"), COUNTED, WHOLE),
    "CR": (each_with(b"\n", b"\r"), COUNTED, WHOLE),
    "comments": (lambda good: chunked([piece for each in good for piece in (b": ping\n\n", each)]), COUNTED, WHOLE),
    "a mark first": (lambda good: chunked([b"\xef\xbb\xbf", *good]), COUNTED, WHOLE),
    "lines of data": (spread, COUNTED, WHOLE),
    "a trailer": (lambda good: chunked(good, b"0\r\nx-cost: 0\r\n\r\n"), COUNTED, WHOLE),
    "gzip": (lambda good: chunked([gzip.compress(b"".join(good))], head=b"content-encoding: gzip\r\n"), COUNTED, WHOLE),
    "HTTP/1.0": (lambda good: [OK.replace(b"1.1", b"1.0") + b"\r\n", *good], COUNTED, WHOLE),
    "early hints": (lambda good: [b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" * 3, *chunked(good)], COUNTED, WHOLE),
    "usage twice": (twice, COUNTED, WHOLE),
    "huge usage": (counting(b"900000000"), (9_177, 900_000_000), WHOLE),
    "endless usage": (counting(b"9000000000"), FULL, WHOLE),
    "negative usage": (counting(b"-4177"), FULL, WHOLE),
    "usage in words": (counting(b'"4177"'), FULL, WHOLE),
    "usage of nothing": (lambda good: counting(b"0")([without_tokens(each) for each in good]), FULL, WHOLE),
    "cut in a character": (lambda good: chunked([half(good)], b""), FULL, CUT),
    "ends in a character": (lambda good: chunked([half(good)]), FULL, CUT),
    "cut at once": (lambda _good: chunked([], b""), FULL, CUT),
    "a closed HTTP/1.0": (lambda good: [OK.replace(b"1.1", b"1.0") + b"\r\n", half(good)], FULL, CUT),
    "an error in the stream": (lambda good: chunked([*good[:2], ERROR]), FULL, CUT),
    "20 MB in one event": (lambda good: chunked([*good[:3], BIG, *good[3:]]), FULL, CUT),
    "no gzip": (lambda good: chunked(good, head=b"content-encoding: gzip\r\n"), FULL, CUT),
    "a gigabyte of gzip": (lambda _good: chunked([bomb()], head=b"content-encoding: gzip\r\n"), FULL, CUT),
    "and packed again": (lambda _good: chunked([gzip.compress(bomb())], head=b"content-encoding: gzip, gzip\r\n"),
                         FULL, CUT),
    "another place": (status("302 Found", head="location: http://127.0.0.1:1/v1/messages\r\n"), NOTHING, 400),
    "no content": (lambda _good: [b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n"], FULL, 502),
    "busy": (status("429 Slow", head="retry-after: 7\r\n"), NOTHING, 429),
    "busy for ever": (status("429 Slow", head="retry-after: 1e400\r\n"), NOTHING, 429),
    "broken": (status("500 Oh", head="retry-after: nan\r\n"), NOTHING, 529),
    "overloaded": (status("529 Over", b'{"error":{"message":"full"}}', "retry-after: -1\r\n"), NOTHING, 529),
    "no HTTP": (lambda _good: [b"SSH-2.0-OpenSSH_9.9\r\n"], FULL, 502),
    "endless head": (lambda _good: [b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 50_000], FULL, 502),
}  # fmt: skip


@pytest.mark.parametrize("wire", sample(WIRES, 1))
@pytest.mark.parametrize("case", sample(STREAMS, 17))
async def test_a_stream_is_charged_by_what_it_says_and_half_of_one_in_full(
    tmp_path: Path, case: str, wire: str
) -> None:
    """The second call goes on, whatever became of the connection; a 200 has begun before its body is known."""
    made, booked, shown = STREAMS[case]
    with provider(made(said(wire)), chunked(said(wire))) as far:
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        async with before(far, wire, tmp_path / "gw.sock") as (client, meter):
            what, content = await seen(client, wire)
            await until(lambda: meter.settled)
            assert (charged(meter), what) == (booked, shown), content[-200:]
            if what == WHOLE:
                plain = content.decode().replace("\r\n", "\n").replace("\r", "\n")
                assert "🙂" in json.dumps(plain, ensure_ascii=False) and plain.endswith("\n\n")
            later = [(await seen(client, wire))[0]]
            if later == [502]:  # the provider closed the connection just as it was used again; agents repeat that
                later.append((await seen(client, wire))[0])
            assert later[-1] == WHOLE
    assert len(far.asked) == 2 and len(meter.settled) == 1 + len(later)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 300_000, "in KiB"


@pytest.mark.parametrize("wire", WIRES)
async def test_an_agent_has_the_end_of_its_answer_only_when_that_is_paid(tmp_path: Path, wire: str) -> None:
    """Also if all of it came in one piece: else its next request could come before this one's answer is known."""
    head, whole, end = chunked([b"".join(said(wire))])
    with provider([head, whole, 1.0, end]) as far:
        async with before(far, wire, tmp_path / "gw.sock") as (client, meter):
            async with client.stream("POST", "", json=request(wire, stream=True)) as answer:
                async for _piece in answer.aiter_bytes():
                    assert meter.settled
            assert charged(meter) == COUNTED


@pytest.mark.parametrize("wire", WIRES)
async def test_what_completes_no_event_is_passed_on_as_it_comes(tmp_path: Path, wire: str) -> None:
    """A provider's sign of life keeps the agent from hanging up, which would cost the call in full."""
    head, alive, *rest = chunked([b": alive\n\n", *said(wire)])
    with provider([head, alive, 20.0, *rest]) as far:
        async with before(far, wire, tmp_path / "gw.sock") as (client, _meter):
            with anyio.fail_after(20):
                async with client.stream("POST", "", json=request(wire, stream=True)) as answer:
                    assert await anext(answer.aiter_bytes()) == b": alive\n\n"


BODY = json.dumps(request("messages")).encode()
LENGTH = f"content-length: {len(BODY)}"
POST = f"POST /v1/messages HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {SECRET}\r\n"


def to(target: str, method: str = "POST") -> bytes:
    return http(LENGTH, BODY).replace(b"POST /v1/messages", f"{method} {target}".encode(), 1)


BY_HAND: dict[str, tuple[bytes, int]] = {
    "another run's secret": (http(LENGTH, BODY, "of-another-run"), 0),
    "two secrets": (http(f"authorization: Bearer no\r\n{LENGTH}", BODY), 1),
    "a folded secret": (http(LENGTH, BODY).replace(b"Bearer ", b"Bearer\r\n "), 1),
    "two slashes": (to("//v1//messages"), 1),
    "up": (to("/v1/../../etc/messages"), 1),
    "up, encoded": (to("/v1/%2e%2e/%2fmessages"), 1),
    "past the path": (to("/v1/messages/../files"), 0),
    "a query": (to("/v1/messages?url=http://evil.example"), 1),
    "elsewhere": (to("http://evil.example/v1/messages"), 1),
    "elsewhere, with a name": (to("http://user:pass@127.0.0.1:1/v1/messages"), 1),
    "CONNECT": (to("evil.example:443", "CONNECT"), 0),
    "TRACE": (to("/v1/messages", "TRACE"), 0),
    "OPTIONS": (to("*", "OPTIONS"), 0),
    "GET": (to("/v1/messages", "GET"), 0),
    "upgrade": (http(f"connection: upgrade\r\nupgrade: websocket\r\n{LENGTH}", BODY), 1),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 0),
    "chunked twice": (http("transfer-encoding: chunked, chunked", b"0\r\n\r\n"), 0),
    "chunked and not": (http("transfer-encoding: chunked\r\ntransfer-encoding: identity", b"0\r\n\r\n"), 0),
    "a space before the colon": (http(f"content-length : 5\r\n{LENGTH}", BODY), 0),
    "a signed length": (http(f"content-length: +{len(BODY)}", BODY), 0),
    "lengths in a list": (http(f"content-length: {len(BODY)}, 5", BODY), 0),
    "no length": (http("x: y", BODY), 0),
    "a bare LF": (http(f"x: y\n{LENGTH}", BODY), 1),
    "a NUL": (http(f"x: \0\r\n{LENGTH}", BODY), 0),
    "bytes of no alphabet": (http(f"x: \xff\xfe\r\n{LENGTH}", BODY), 1),
    "a huge header": (http(f"x: {'y' * 2**20}\r\n{LENGTH}", BODY), 0),
    "many headers": (http("x: y\r\n" * 200_000 + LENGTH, BODY), 0),
    "a huge chunk's extension": (http("transfer-encoding: chunked", b"1;" + b"x" * 2**20), 0),
    "an endless trailer": (http("transfer-encoding: chunked", b"0\r\n" + b"x: y\r\n" * 200_000), 0),
    "fifty in one line": (http(LENGTH, BODY) * 50, 50),
}  # fmt: skip


IN_C = {"a folded secret": 0, "elsewhere": 0, "elsewhere, with a name": 0, "a bare LF": 0, "fifty in one line": 1}
"""How many of them get through where HTTP is parsed in C: that refuses more, and ends a connection with the rest."""


@pytest.mark.parametrize("parser", sorted({http_connection.H11Connection, http_connection.Connection}, key=str))
@pytest.mark.parametrize("case", sample(BY_HAND, 10))
async def test_what_an_agent_sends_by_hand_goes_nowhere_but_to_the_runs_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, parser: type[http_connection.LimitedConnection]
) -> None:
    monkeypatch.setattr(http_connection, "Connection", parser)
    sent, most = BY_HAND[case]
    if parser is not http_connection.H11Connection:
        most = IN_C.get(case, most)
    async with place(tmp_path, lambda _request: Say("ok")) as at:
        got = bytearray()
        async with await anyio.connect_unix(tmp_path / "gw.sock") as line, anyio.create_task_group() as tasks:

            async def write() -> None:
                with suppress(anyio.BrokenResourceError):
                    await line.send(sent)

            tasks.start_soon(write)
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                with anyio.move_on_after(30):
                    while got.count(b"HTTP/1.1 ") < most:
                        got += await line.receive()
                with anyio.move_on_after(0.8):  # for an answer too many
                    while True:
                        got += await line.receive()
            tasks.cancel_scope.cancel()
        assert b"HTTP/1.1 5" not in got, got[:300]
        assert len(at.far.requests) == len(at.meter.admitted) == most, got[:300]
        for each in at.far.requests:
            assert each.path == "/v1/messages" and KEY in str(each.headers) and SECRET not in str(each.headers)
            assert not {"upgrade", "transfer-encoding", "x"} & each.headers.keys()
        assert (await at.ask(request("messages"))).status_code == 200 and KEY.encode() not in got


async def test_a_thousand_connections_that_say_nothing_do_not_keep_others_out(tmp_path: Path) -> None:
    """Those of one run: another run's gateway answers meanwhile, and the run's own as soon as they are gone."""
    with many_open_files(), provider(*[chunked(said("messages"))] * 9) as far:
        async with (
            before(far, "messages", tmp_path / "one") as (client, _meter),
            before(far, "messages", tmp_path / "two", "of-another-run") as (other, _others),
        ):
            async with AsyncExitStack() as lines:
                for number in range(1_000):
                    line = await lines.enter_async_context(await anyio.connect_unix(tmp_path / "one"))
                    with suppress(anyio.BrokenResourceError):
                        await line.send(POST.encode() + b"content-length: 9\r\n\r\n" if number % 2 else b"POST")
                    if number % 250 == 9:
                        assert (await seen(other, "messages"))[0] == WHOLE
            assert (await seen(client, "messages"))[0] == WHOLE
            other.headers["authorization"] = client.headers["authorization"]
            assert (await seen(other, "messages"))[0] == 401, "each has a secret of its own"


def said(wire: str) -> list[bytes]:
    """Return the events of a good answer, the last of which say that it is over."""
    match wire:
        case "messages":
            return messages_format.events(SAID, 0, request(wire))
        case "responses":
            return responses_format.events(SAID, request(wire))
        case "google":
            return google_format.events(SAID, request(wire))
        case _:
            return events(SAID)


@contextmanager
def many_open_files() -> Generator[None]:
    """Both ends of a connection are files of this process, and an ordinary user may have 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (4_096, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def without_tokens(event: bytes) -> bytes:
    """An event whose usage counts no output, and whose total says nothing either."""
    return re.sub(
        rb'"(total_tokens|totalTokenCount)": \d+',
        rb'"\1": 0',
        event.replace(b'"output_tokens": 1', b'"output_tokens": 0'),
    )


def bomb() -> bytes:
    packer = zlib.compressobj(wbits=31)
    return b"".join([*(packer.compress(b"x" * 2**20) for _each in range(400)), packer.flush()])


def half(good: list[bytes]) -> bytes:
    """Return an answer up to the middle of a character."""
    whole = b"".join(good)
    return whole[: whole.index("十".encode()) + 2]


@dataclass
class Provider:
    """What a provider writes for each request, byte for byte; then it closes. `asked` counts requests."""

    answers: list[Bytes]
    base_url: str = ""
    asked: list[bytes] = field(default_factory=list[bytes])

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        await reader.readexactly(int(length[1]) if length else 0)
        self.asked.append(head)
        for piece in self.answers.pop(0):
            if isinstance(piece, float):
                await asyncio.sleep(piece)
            else:
                writer.write(piece)
                await writer.drain()


@contextmanager
def provider(*answers: Bytes) -> Generator[Provider]:
    serves = Provider(list(answers))
    with listen_in_thread("odd provider", serves) as ((port,), _loop):
        serves.base_url = f"http://127.0.0.1:{port}/v1"
        yield serves


@asynccontextmanager
async def before(far: Provider, wire: str, socket: Path, secret: str = SECRET) -> AsyncGenerator[tuple[Any, Noted]]:
    """A gateway before that provider, and a client of it."""
    meter, bodies = Noted(), Bodies(wire, {"sonnet": "far-sonnet"}, frozenset(), Redactor({}))
    async with ClientPool() as clients:
        model = HttpModel("far", "far-sonnet", far.base_url, KEY, clients, WIRES[wire])
        async with serving(Gateway(model, bodies, meter, secret), socket):
            headers, transport = {"authorization": f"Bearer {secret}"}, httpx2.AsyncHTTPTransport(uds=str(socket))
            path, _, query = path_of(wire, {"stream": True}).partition("?")
            url, params = f"http://gateway/v1{path}", dict(parse_qsl(query))  # a base_url loses its query
            async with httpx2.AsyncClient(
                transport=transport, base_url=url, params=params, headers=headers, timeout=30
            ) as client:
                yield client, meter


async def seen(client: Any, wire: str) -> tuple[object, bytes]:
    """Return what an agent sees of an answer: that it is whole, that it is cut, or its status; and its content."""
    got = bytearray()
    try:
        async with client.stream("POST", "", json=request(wire, stream=True)) as answer:
            async for piece in answer.aiter_bytes():
                got += piece
            assert answer.status_code != 500, "the SDKs of agents repeat that"
            assert answer.status_code == 200 or 0 < int(answer.headers.get("retry-after", 1)) < 10**6
            return WHOLE if answer.status_code == 200 else answer.status_code, bytes(got)
    except httpx2.RemoteProtocolError:
        return CUT, bytes(got)


def charged(meter: Noted) -> object:
    """Return what the only call is booked with; the meter books all that was reserved where there is no usage."""
    ((_number, way, what),) = meter.settled
    usage = what.usage if isinstance(what, Completion) else None
    if way != "billed" or usage is None:
        return NOTHING if way == "not_billed" else FULL
    return usage.prompt_tokens, usage.output_tokens
