"""A real HTTP server on 127.0.0.1 that answers from a script, well or in every way badly: in the format of the path.

It runs in a thread of its own, so that whole-system tests with a child process can use it:

    with run_model_server([Say("hello"), Fail(429, retry_after="2")]) as server:
        ... server.base_url ... server.requests ...
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from support.threads import listen_in_thread

JSON = "application/json"
EVENTS = "text/event-stream"


class Gate:
    """Holds an answer: `arrived` is set when the request is there, `released` lets the answer go; so do 30 seconds."""

    def __init__(self, within_s: float = 30) -> None:
        self.within_s = within_s
        self.arrived = threading.Event()
        self.released = threading.Event()
        self.client_left = threading.Event()


COUNTED: Mapping[str, Any] = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
"""What the server reports for a short request unless the script says otherwise; `usage_for` has a long one's."""


def usage_for(body: bytes) -> dict[str, Any]:
    """Return the usage that is reported for a request: few tokens, but no fewer than it can have."""
    prompt = max(COUNTED["prompt_tokens"], len(body) // 10)
    return {"prompt_tokens": prompt, "completion_tokens": 20, "total_tokens": prompt + 20}


@dataclass(frozen=True)
class Say:
    """A good answer: streamed when the request asks for a stream, in one piece when it does not."""

    text: str = ""
    calls: Sequence[tuple[str, Any]] = ()
    usage: Mapping[str, Any] | None = field(default_factory=lambda: COUNTED)
    reasoning: str = ""
    redacted: str = ""
    finish_reason: str | None = None
    fragment: int = 7
    gate: Gate | None = None
    stream: bool = True
    tier: str = ""  # the tier that OpenAI's formats name


@dataclass(frozen=True)
class Fail:
    status: int
    body: Any = field(default_factory=lambda: {"error": {"message": "scripted failure"}})
    retry_after: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    gate: Gate | None = None


@dataclass(frozen=True)
class Raw:
    """Bytes as they are, in the pieces given; `missing` more are promised and never come.

    With `chunked`, the chunked coding is left without its end when `cut` is set. With `stall`, the connection
    stays open and silent after the pieces, until the gate is released or the client leaves; `pause_s` is the
    time between pieces.
    """

    pieces: Sequence[bytes]
    content_type: str = EVENTS
    status: int = 200
    missing: int = 0
    chunked: bool = False
    cut: bool = False
    gate: Gate | None = None
    stall: Gate | None = None
    pause_s: float = 0.0


@dataclass(frozen=True)
class HangUp:
    """The connection is closed without a word."""

    gate: Gate | None = None


Step = Say | Fail | Raw | HangUp
Script = Sequence[Step] | Callable[[dict[str, Any]], Step]


@dataclass(frozen=True)
class Received:
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.body or b"{}")
        return value


class ModelServer:
    """What a test sees of the server.

    Attributes:
        requests: What was asked, in order.
        answered: The requests that got a whole good answer, as far as the server can tell.
        connections: How many there were.
        open: How many there are.
        refused: Why requests were refused that the API of their path would refuse.
        checks: Whether requests are checked for that.
    """

    def __init__(self, script: Script, scheme: str = "http") -> None:
        self.script = script
        self._scheme = scheme
        self._lock = threading.Lock()
        self.requests: list[Received] = []
        self.answered: list[Received] = []
        self.connections = 0
        self.open = 0
        self.refused: list[str] = []
        self.port = 0
        self.gates: list[Gate] = []
        self.checks = True

    @property
    def base_url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.port}/v1"

    def next_step(self, received: Received) -> Step:
        with self._lock:
            number = len(self.requests)
            self.requests.append(received)
            step = self._refusal(received) or self._step(number, received)
            self.gates += [gate for gate in (step.gate, getattr(step, "stall", None)) if gate is not None]
        return step

    def _refusal(self, received: Received) -> Step | None:
        """Return the answer to a request that the API of its path would refuse, or None.

        Only Ava's requests are checked. Claude Code's have a query.
        """
        if not self.checks:  # requests of other agents may have what Ava's have not
            return None
        if received.path.endswith("/messages"):
            from support.models.messages_format import why_refused
        elif received.path.endswith("/responses"):
            from support.models.responses_format import why_refused
        elif is_google(received.path):
            from support.models import google_format

            why = google_format.why_refused(received.json, received.path.rpartition("/")[2].partition(":")[0])
            if why is None:
                return None
            self.refused.append(why)
            return Fail(400, {"error": {"code": 400, "message": why, "status": "INVALID_ARGUMENT"}})
        else:
            return None
        why = why_refused(received.json)
        if not why:
            return None
        self.refused.append(why)
        return Fail(400, {"type": "error", "error": {"type": "invalid_request_error", "message": why}})

    def _step(self, number: int, received: Received) -> Step:
        if callable(self.script):
            return self.script(received.json)
        if number >= len(self.script):
            return Fail(500, {"error": {"message": f"the script has no step {number + 1}"}})
        return self.script[number]


@contextmanager
def run_model_server(script: Script, certificate: Path | None = None) -> Generator[ModelServer]:
    """Run a server in a thread until the block ends; gates are released then. With a PEM file, it speaks TLS."""
    server = ModelServer(script, "https" if certificate else "http")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.connections += 1
        server.open += 1
        try:
            await _converse(server, reader, writer)
        finally:
            server.open -= 1

    with listen_in_thread("model server", serve, certificate=certificate) as ((server.port,), _loop):
        try:
            yield server
        finally:
            for gate in server.gates:
                gate.released.set()


async def _converse(server: ModelServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer requests on one connection, as long as the answers leave it usable."""
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines) if name}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        received = Received(first.split(" ")[1], headers, body)
        step = server.next_step(received)
        if isinstance(step, Say) and step.usage is COUNTED:
            step = replace(step, usage=usage_for(body))
        if step.gate is not None and not await _held(step.gate, reader):
            return
        request = json.loads(body or b"{}")
        if is_google(received.path):
            request["stream"] = ":stream" in received.path
        usable = await _answer(step, received.path.partition("?")[0], request, reader, writer)
        if isinstance(step, Say):
            server.answered.append(received)
        if not usable:
            return


async def _held(gate: Gate, reader: asyncio.StreamReader) -> bool:
    """Wait at the gate; False when the client hung up meanwhile."""
    gate.arrived.set()
    left = asyncio.ensure_future(reader.read(1))
    released = asyncio.ensure_future(asyncio.to_thread(gate.released.wait, gate.within_s))
    await asyncio.wait({left, released}, return_when=asyncio.FIRST_COMPLETED)
    if left.done():
        gate.client_left.set()
        gate.released.set()
        await released
        return False
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    return True


async def _answer(
    step: Step, path: str, request: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> bool:
    """Send one answer; False when the connection is to be closed after it."""
    turn = sum(message.get("role") == "assistant" for message in request.get("messages", ()))
    match step:
        case HangUp():
            return False
        case Fail():
            content = step.body if isinstance(step.body, bytes) else json.dumps(step.body).encode()
            extra = dict(step.headers)
            if step.retry_after is not None:
                extra["retry-after"] = step.retry_after
            _head(writer, step.status, JSON, {**extra, "content-length": str(len(content))})
            writer.write(content)
        case Raw():
            if not await _raw(step, writer):
                return False
            return step.stall is None or await _held(step.stall, reader)
        case Say() if request.get("stream") and step.stream:
            _head(writer, 200, EVENTS, {"transfer-encoding": "chunked"})
            for data in events_at(path, step, turn, request):
                _chunk(writer, data)
                await writer.drain()
            writer.write(b"0\r\n\r\n")
        case Say():
            content = json.dumps(_whole(step, turn, path, request), ensure_ascii=False).encode()
            _head(writer, 200, JSON, {"content-length": str(len(content)), "x-request-id": "req-1"})
            writer.write(content)
    await writer.drain()
    return True


def is_google(path: str) -> bool:
    """Tell whether a path is of Google's API, whose requests say in it which model they ask and how."""
    return path.partition("?")[0].endswith((":generateContent", ":streamGenerateContent"))


def events_at(path: str, step: Say, turn: int, request: dict[str, Any]) -> list[bytes]:
    """Return the events of a streamed answer in the format of a path."""
    if path.endswith("/messages"):
        from support.models import messages_format

        return messages_format.events(step, turn, request)
    if path.endswith("/responses"):
        from support.models import responses_format

        return responses_format.events(step, request)
    if is_google(path):
        from support.models import google_format

        return google_format.events(step, request)
    return events(step, turn)


def _whole(step: Say, turn: int, path: str, request: dict[str, Any]) -> dict[str, Any]:
    if path.endswith("/messages"):
        from support.models import messages_format

        return messages_format.whole(step, turn, request)
    if path.endswith("/responses"):
        from support.models import responses_format

        return responses_format.whole(step, request)
    if is_google(path):
        from support.models import google_format

        return google_format.whole(step, request)
    return whole_answer(step, turn)


async def _raw(step: Raw, writer: asyncio.StreamWriter) -> bool:
    size = sum(map(len, step.pieces)) + step.missing
    length = {"transfer-encoding": "chunked"} if step.chunked else {"content-length": str(size)}
    _head(writer, step.status, step.content_type, length)
    for piece in step.pieces:
        if step.chunked:
            _chunk(writer, piece)
        else:
            writer.write(piece)
        await writer.drain()
        await asyncio.sleep(step.pause_s)
    if step.chunked and not step.cut:
        writer.write(b"0\r\n\r\n")
        await writer.drain()
    return step.stall is not None or not (step.missing or step.cut)


def events(step: Say, turn: int = 0) -> list[bytes]:
    """Return the events of a streamed answer: words and arguments in fragments, usage last, then [DONE]."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning_content": piece} for piece in _cut(step.reasoning, step.fragment)]
    deltas += [{"content": piece} for piece in _cut(step.text, step.fragment)]
    for index, call in enumerate(_calls(step, turn)):
        function = call["function"]
        opening = {**call, "index": index, "function": {"name": function["name"], "arguments": ""}}
        deltas.append({"tool_calls": [opening]})
        deltas += [
            {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
            for piece in _cut(function["arguments"], step.fragment)
        ]
    chunks: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": _reason(step)}]})
    if step.usage is not None:
        chunks.append({"choices": [], "usage": dict(step.usage)})
    common = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "test"}
    if step.tier:
        common["service_tier"] = step.tier
    written = [f"data: {json.dumps({**common, **chunk}, ensure_ascii=False)}\n\n".encode() for chunk in chunks]
    return [b": connected\n\n", *written, b"data: [DONE]\n\n"]


def slow_answer(chars: int, stall: Gate) -> Raw:
    """An answer of so many characters, four every 0.3 s; it has no end until the gate is released."""
    return Raw(events(Say("w" * chars, fragment=4))[:-3], chunked=True, cut=True, pause_s=0.3, stall=stall)


def whole_answer(step: Say, turn: int = 0) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": step.text or None}
    if step.reasoning:
        message["reasoning_content"] = step.reasoning
    if step.calls:
        message["tool_calls"] = _calls(step, turn)
    answer: dict[str, Any] = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": _reason(step)}],
    }
    if step.tier:
        answer["service_tier"] = step.tier
    return answer if step.usage is None else {**answer, "usage": dict(step.usage)}


def _calls(step: Say, turn: int) -> list[dict[str, Any]]:
    return [
        {
            "id": f"call_{turn}_{number}",
            "type": "function",
            "function": {"name": name, "arguments": args if isinstance(args, str) else json.dumps(args)},
        }
        for number, (name, args) in enumerate(step.calls)
    ]


def _reason(step: Say) -> str:
    return step.finish_reason or ("tool_calls" if step.calls else "stop")


def _cut(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def _head(writer: asyncio.StreamWriter, status: int, content_type: str, headers: Mapping[str, str]) -> None:
    lines = [f"HTTP/1.1 {status} Scripted", f"content-type: {content_type}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    writer.write("\r\n".join([*lines, "", ""]).encode("latin-1"))


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
