"""Providers whose streams are odd, broken or hostile, and agents that speak to the gateway by hand."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import resource
import zlib
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import httpx2

from ava_audit.redaction import Redactor
from ava_server.agents.bodies import Bodies
from ava_server.agents.gateway import Gateway, serving
from ava_server.models.base import Completion
from ava_server.models.http_clients import ClientPool
from ava_server.models.http_model import HttpModel
from support.agents.gateway import KEY, SECRET, WIRES, NotingMeter, agent_request, path_of_request, raw_request
from support.model_server import Say, events
from support.models import google_format, messages_format, responses_format
from support.threads import listen_in_thread

SAID = Say("Zwölf Cent – 十二分 🙂", usage={"prompt_tokens": 9_177, "completion_tokens": 4_177, "total_tokens": 13_354})
COUNTED = (9_177, 4_177)
FULL, NOTHING = "all that was reserved", "nothing"
OK = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: text/event-stream\r\n"
Bytes = Sequence[bytes | float]
"""What is written, piece by piece, and the seconds between."""


def chunk(pieces: Sequence[bytes], end: bytes = b"0\r\n\r\n", head: bytes = b"") -> Bytes:
    """Answer in chunks, one for each piece."""
    framed = [f"{len(piece):x}\r\n".encode() + piece + b"\r\n" for piece in pieces]
    return [OK + head + b"transfer-encoding: chunked\r\n\r\n", *framed, end]


def answer_with(first: str, body: bytes = b"{}", head: str = "") -> Callable[[list[bytes]], Bytes]:
    """Answer with a status line, a body and further lines of the head."""
    head += f"connection: close\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    lines = f"HTTP/1.1 {first}\r\n{head}\r\n"
    return lambda _good: [lines.encode() + body]


def swap(old: bytes, new: bytes) -> Callable[[list[bytes]], Bytes]:
    """Answer with other bytes in each event."""
    return lambda good: chunk([event.replace(old, new) for event in good])


def count(value: bytes) -> Callable[[list[bytes]], Bytes]:
    """Answer with another number of output tokens."""
    return swap(b"4177", value)


def spread(good: list[bytes]) -> Bytes:
    """The JSON of each event over as many lines as it takes."""

    def lines(found: re.Match[bytes]) -> bytes:
        text = json.dumps(json.loads(found[1]), indent=1, ensure_ascii=False)
        return b"".join(b"data: " + line.encode() + b"\n" for line in text.split("\n"))

    return chunk([re.sub(rb"data: (\{.*\})\n", lines, event) for event in good])


def usage_again(good: list[bytes]) -> Bytes:
    """The usage comes again, and is lower."""
    at = next(number for number in reversed(range(len(good))) if b"4177" in good[number])
    return chunk([*good[: at + 1], good[at].replace(b"4177", b"11"), *good[at + 1 :]])


ERROR = b'data: {"type":"error","error":{"type":"api_error","message":"the engine has crashed"}}\n\n'
BIG = b'data: {"type":"x","choices":[],"x":"' + b"x" * (20 << 20) + b'"}\n\n'
WHOLE, CUT = "whole", "cut"
STREAMS: dict[str, tuple[Callable[[list[bytes]], Bytes], object, object]] = {
    "byte by byte": (lambda good: chunk([bytes((each,)) for each in b"".join(good)]), COUNTED, WHOLE),
    "in one piece": (lambda good: chunk([b"".join(good)]), COUNTED, WHOLE),
    "CRLF": (swap(b"\n", b"\r\n"), COUNTED, WHOLE),
    "CR": (swap(b"\n", b"\r"), COUNTED, WHOLE),
    "comments": (lambda good: chunk([piece for each in good for piece in (b": ping\n\n", each)]), COUNTED, WHOLE),
    "a mark first": (lambda good: chunk([b"\xef\xbb\xbf", *good]), COUNTED, WHOLE),
    "lines of data": (spread, COUNTED, WHOLE),
    "a trailer": (lambda good: chunk(good, b"0\r\nx-cost: 0\r\n\r\n"), COUNTED, WHOLE),
    "gzip": (lambda good: chunk([gzip.compress(b"".join(good))], head=b"content-encoding: gzip\r\n"), COUNTED, WHOLE),
    "HTTP/1.0": (lambda good: [OK.replace(b"1.1", b"1.0") + b"\r\n", *good], COUNTED, WHOLE),
    "early hints": (lambda good: [b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" * 3, *chunk(good)], COUNTED, WHOLE),
    "usage twice": (usage_again, COUNTED, WHOLE),
    "huge usage": (count(b"900000000"), (9_177, 900_000_000), WHOLE),
    "endless usage": (count(b"9000000000"), FULL, WHOLE),
    "negative usage": (count(b"-4177"), FULL, WHOLE),
    "usage in words": (count(b'"4177"'), FULL, WHOLE),
    "usage of nothing": (lambda good: count(b"0")([drop_tokens(each) for each in good]), FULL, WHOLE),
    "cut in a character": (lambda good: chunk([half_of(good)], b""), FULL, CUT),
    "ends in a character": (lambda good: chunk([half_of(good)]), FULL, CUT),
    "cut at once": (lambda _good: chunk([], b""), FULL, CUT),
    "a closed HTTP/1.0": (lambda good: [OK.replace(b"1.1", b"1.0") + b"\r\n", half_of(good)], FULL, CUT),
    "an error in the stream": (lambda good: chunk([*good[:2], ERROR]), FULL, CUT),
    "20 MB in one event": (lambda good: chunk([*good[:3], BIG, *good[3:]]), FULL, CUT),
    "no gzip": (lambda good: chunk(good, head=b"content-encoding: gzip\r\n"), FULL, CUT),
    "a gigabyte of gzip": (lambda _good: chunk([bomb()], head=b"content-encoding: gzip\r\n"), FULL, CUT),
    "and packed again": (lambda _good: chunk([gzip.compress(bomb())], head=b"content-encoding: gzip, gzip\r\n"),
                         FULL, CUT),
    "another place": (answer_with("302 Found", head="location: http://127.0.0.1:1/v1/messages\r\n"), NOTHING, 400),
    "no content": (lambda _good: [b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n"], FULL, 502),
    "busy": (answer_with("429 Slow", head="retry-after: 7\r\n"), NOTHING, 429),
    "busy for ever": (answer_with("429 Slow", head="retry-after: 1e400\r\n"), NOTHING, 429),
    "broken": (answer_with("500 Oh", head="retry-after: nan\r\n"), NOTHING, 529),
    "overloaded": (answer_with("529 Over", b'{"error":{"message":"full"}}', "retry-after: -1\r\n"), NOTHING, 529),
    "no HTTP": (lambda _good: [b"SSH-2.0-OpenSSH_9.9\r\n"], FULL, 502),
    "endless head": (lambda _good: [b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 50_000], FULL, 502),
}  # fmt: skip
BODY = json.dumps(agent_request("messages")).encode()
LENGTH = f"content-length: {len(BODY)}"


def line_to(target: str, method: str = "POST") -> bytes:
    """Return a good request with another first line."""
    return raw_request(LENGTH, BODY).replace(b"POST /v1/messages", f"{method} {target}".encode(), 1)


BY_HAND: dict[str, tuple[bytes, int]] = {
    "another run's secret": (raw_request(LENGTH, BODY, "of-another-run"), 0),
    "two secrets": (raw_request(f"authorization: Bearer no\r\n{LENGTH}", BODY), 1),
    "a folded secret": (raw_request(LENGTH, BODY).replace(b"Bearer ", b"Bearer\r\n "), 1),
    "two slashes": (line_to("//v1//messages"), 1),
    "up": (line_to("/v1/../../etc/messages"), 1),
    "up, encoded": (line_to("/v1/%2e%2e/%2fmessages"), 1),
    "past the path": (line_to("/v1/messages/../files"), 0),
    "a query": (line_to("/v1/messages?url=http://evil.example"), 1),
    "elsewhere": (line_to("http://evil.example/v1/messages"), 1),
    "elsewhere, with a name": (line_to("http://user:pass@127.0.0.1:1/v1/messages"), 1),
    "CONNECT": (line_to("evil.example:443", "CONNECT"), 0),
    "TRACE": (line_to("/v1/messages", "TRACE"), 0),
    "OPTIONS": (line_to("*", "OPTIONS"), 0),
    "GET": (line_to("/v1/messages", "GET"), 0),
    "upgrade": (raw_request(f"connection: upgrade\r\nupgrade: websocket\r\n{LENGTH}", BODY), 1),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 0),
    "chunked twice": (raw_request("transfer-encoding: chunked, chunked", b"0\r\n\r\n"), 0),
    "chunked and not": (raw_request("transfer-encoding: chunked\r\ntransfer-encoding: identity", b"0\r\n\r\n"), 0),
    "a space before the colon": (raw_request(f"content-length : 5\r\n{LENGTH}", BODY), 0),
    "a signed length": (raw_request(f"content-length: +{len(BODY)}", BODY), 0),
    "lengths in a list": (raw_request(f"content-length: {len(BODY)}, 5", BODY), 0),
    "no length": (raw_request("x: y", BODY), 0),
    "a bare LF": (raw_request(f"x: y\n{LENGTH}", BODY), 1),
    "a NUL": (raw_request(f"x: \0\r\n{LENGTH}", BODY), 0),
    "bytes of no alphabet": (raw_request(f"x: \xff\xfe\r\n{LENGTH}", BODY), 1),
    "a huge header": (raw_request(f"x: {'y' * 2**20}\r\n{LENGTH}", BODY), 0),
    "many headers": (raw_request("x: y\r\n" * 200_000 + LENGTH, BODY), 0),
    "a huge chunk's extension": (raw_request("transfer-encoding: chunked", b"1;" + b"x" * 2**20), 0),
    "an endless trailer": (raw_request("transfer-encoding: chunked", b"0\r\n" + b"x: y\r\n" * 200_000), 0),
    "fifty in one line": (raw_request(LENGTH, BODY) * 50, 50),
}  # fmt: skip
IN_C = {"a folded secret": 0, "elsewhere": 0, "elsewhere, with a name": 0, "a bare LF": 0, "fifty in one line": 1}
"""How many of them get through where HTTP is parsed in C: that refuses more, and ends a connection with the rest."""


def good_answer(wire: str) -> list[bytes]:
    """Return the events of a good answer, the last of which say that it is over."""
    match wire:
        case "messages":
            return messages_format.events(SAID, 0, agent_request(wire))
        case "responses":
            return responses_format.events(SAID, agent_request(wire))
        case "google":
            return google_format.events(SAID, agent_request(wire))
        case _:
            return events(SAID)


@contextmanager
def allow_open_files() -> Generator[None]:
    """Both ends of a connection are files of this process, and an ordinary user may have 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (4_096, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def drop_tokens(event: bytes) -> bytes:
    """An event whose usage counts no output, and whose total says nothing either."""
    return re.sub(
        rb'"(total_tokens|totalTokenCount)": \d+',
        rb'"\1": 0',
        event.replace(b'"output_tokens": 1', b'"output_tokens": 0'),
    )


def bomb() -> bytes:
    """Return 400 MB of one letter, compressed."""
    packer = zlib.compressobj(wbits=31)
    return b"".join([*(packer.compress(b"x" * 2**20) for _each in range(400)), packer.flush()])


def half_of(good: list[bytes]) -> bytes:
    """Return an answer up to the middle of a character."""
    whole = b"".join(good)
    return whole[: whole.index("十".encode()) + 2]


@dataclass
class OddProvider:
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
def run_odd_provider(*answers: Bytes) -> Generator[OddProvider]:
    """Run a provider that writes these answers, one after another."""
    serves = OddProvider(list(answers))
    with listen_in_thread("odd provider", serves) as ((port,), _loop):
        serves.base_url = f"http://127.0.0.1:{port}/v1"
        yield serves


@asynccontextmanager
async def connect_agent(
    far: OddProvider, wire: str, socket: Path, secret: str = SECRET
) -> AsyncGenerator[tuple[Any, NotingMeter]]:
    """A gateway before that provider, and a client of it."""
    meter, bodies = NotingMeter(), Bodies(wire, {"sonnet": "far-sonnet"}, frozenset(), Redactor({}))
    async with ClientPool() as clients:
        model = HttpModel("far", "far-sonnet", far.base_url, KEY, clients, WIRES[wire])
        async with serving(Gateway(model, bodies, meter, secret), socket):
            headers, transport = {"authorization": f"Bearer {secret}"}, httpx2.AsyncHTTPTransport(uds=str(socket))
            path, _, query = path_of_request(wire, {"stream": True}).partition("?")
            url, params = f"http://gateway/v1{path}", dict(parse_qsl(query))  # a base_url loses its query
            async with httpx2.AsyncClient(
                transport=transport, base_url=url, params=params, headers=headers, timeout=30
            ) as client:
                yield client, meter


async def seen_answer(client: Any, wire: str) -> tuple[object, bytes]:
    """Return what an agent sees of an answer: that it is whole, that it is cut, or its status; and its content."""
    got = bytearray()
    try:
        async with client.stream("POST", "", json=agent_request(wire, stream=True)) as answer:
            async for piece in answer.aiter_bytes():
                got += piece
            assert answer.status_code != 500, "the SDKs of agents repeat that"
            assert answer.status_code == 200 or 0 < int(answer.headers.get("retry-after", 1)) < 10**6
            return WHOLE if answer.status_code == 200 else answer.status_code, bytes(got)
    except httpx2.RemoteProtocolError:
        return CUT, bytes(got)


def charged_usage(meter: NotingMeter) -> object:
    """Return what the only call is booked with; the meter books all that was reserved where there is no usage."""
    ((_number, way, what),) = meter.settled
    usage = what.usage if isinstance(what, Completion) else None
    if way != "billed" or usage is None:
        return NOTHING if way == "not_billed" else FULL
    return usage.prompt_tokens, usage.output_tokens
