"""A chat-completions endpoint that answers at once: a tool call for each of a run's turns, then a closing word.

    python -m loop_parts.endpoint TURNS

It prints its port. A run's first call and its closing one are held at a gate each, so that who measures can let all
runs go together and sees when the last of them has done its turns: `GET /hold/N` closes both gates for N runs,
`GET /first` answers when N first calls are held, `GET /go` lets them go and answers when N closing calls are held,
`GET /end` lets these go. Without gates (`GET /hold/0`) nothing waits.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from typing import Any

NOTE = "look at the price list once more, page {}"
ANSWERED = (b'"role":"assistant"', b'"role": "assistant"')
FILES = 10_000


class Gates:
    """Where calls are held."""

    def __init__(self) -> None:
        self.runs = 0
        self.first: list[Conversation] = []
        self.closing: list[Conversation] = []
        self.asking: tuple[Conversation, list[Conversation]] | None = None

    def hold(self, place: list[Conversation], call: Conversation) -> None:
        place.append(call)
        self.look()

    def look(self) -> None:
        """Answer who waits for a gate to be full."""
        if self.asking is not None and len(self.asking[1]) >= self.runs:
            asker, self.asking = self.asking[0], None
            asker.say(b"{}")

    def open(self, place: list[Conversation]) -> None:
        held, place[:] = place[:], []
        for call in held:
            call.answer()


class Conversation(asyncio.Protocol):
    """One connection: requests with a body of known length, one after another."""

    def __init__(self, gates: Gates, turns: int) -> None:
        self._gates = gates
        self._turns = turns
        self._read = bytearray()
        self._body = b""
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._read += data
        while (end := self._read.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._read[:end]).lower()
            at = head.find(b"content-length:")
            size = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self._read) < end + 4 + size:
                return
            self._body = bytes(self._read[end + 4 : end + 4 + size])
            del self._read[: end + 4 + size]
            self._asked(head.split(b" ", 2)[1])

    def _asked(self, path: bytes) -> None:
        gates = self._gates
        if path.startswith(b"/hold/"):
            gates.runs = int(path[6:])
            self.say(b"{}")
        elif path == b"/first":
            gates.asking = (self, gates.first)
            gates.look()
        elif path == b"/go":
            gates.asking = (self, gates.closing)
            gates.open(gates.first)
        elif path == b"/end":
            gates.open(gates.closing)
            self.say(b"{}")
        elif not gates.runs or 0 < self._done() < self._turns:
            self.answer()
        else:
            gates.hold(gates.closing if self._done() else gates.first, self)

    def _done(self) -> int:
        return sum(self._body.count(mark) for mark in ANSWERED)

    def answer(self) -> None:
        """Answer the call: streamed, or in one piece."""
        done = self._done()
        usage = {"prompt_tokens": len(self._body) // 4, "completion_tokens": 30}
        usage["total_tokens"] = sum(usage.values())
        if done < self._turns:
            function = {"name": "scratchpad", "arguments": json.dumps({"note": NOTE.format(done + 1)})}
            call = {"id": f"call_{done + 1}", "type": "function", "function": function}
            message: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [call]}
        else:
            message = {"role": "assistant", "content": "It costs 3 a month."}
        reason = "tool_calls" if done < self._turns else "stop"
        common = {"id": f"chatcmpl-{done}", "created": 1_800_000_000, "model": "test"}
        if b'"stream":true' in self._body:
            self._stream(common, message, reason, usage)
            return
        choice = {"index": 0, "message": message, "finish_reason": reason}
        self.say(json.dumps({**common, "object": "chat.completion", "choices": [choice], "usage": usage}).encode())

    def _stream(self, common: dict[str, Any], message: dict[str, Any], reason: str, usage: dict[str, int]) -> None:
        """Answer in events: words and arguments in pieces of ten characters, as they come."""
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        words = message["content"] or ""
        deltas += [{"content": words[at : at + 10]} for at in range(0, len(words), 10)]
        for call in message.get("tool_calls", ()):
            whole = call["function"]["arguments"]
            deltas.append({"tool_calls": [{**call, "index": 0, "function": {**call["function"], "arguments": ""}}]})
            for at in range(0, len(whole), 10):
                deltas.append({"tool_calls": [{"index": 0, "function": {"arguments": whole[at : at + 10]}}]})
        chunks: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
        chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
        chunks.append({"choices": [], "usage": usage})
        lines = [json.dumps({**common, "object": "chat.completion.chunk", **chunk}) for chunk in chunks]
        pieces = [f"data: {line}\n\n".encode() for line in (*lines, "[DONE]")]
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
        self._transport.write(head + body + b"0\r\n\r\n")

    def say(self, content: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(content)
        self._transport.write(head + content)


def many_files() -> None:
    """Let this process have as many connections as it may."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = hard if hard != resource.RLIM_INFINITY and hard < FILES else FILES
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


async def main() -> None:
    many_files()
    gates = Gates()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Conversation(gates, int(sys.argv[1])), "127.0.0.1", 0, backlog=2_000)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
