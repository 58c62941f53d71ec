"""A gateway between an agent's client and a scripted provider, with a meter that notes what it admits and settles."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import httpx2

from ava_audit.redaction import Redactor
from ava_server.agents.bodies import Bodies
from ava_server.agents.gateway import Gateway, serving
from ava_server.agents.seam import Admitted, AgentCall, CallRefused
from ava_server.core.errors import ModelError
from ava_server.models.base import Completion
from ava_server.models.http_clients import ClientPool
from ava_server.models.http_model import HttpModel
from ava_server.models.wires.chat import ChatWire
from ava_server.models.wires.google import GoogleWire
from ava_server.models.wires.messages import MessagesWire
from ava_server.models.wires.responses import ResponsesWire
from ava_server.models.wires.wire import Wire
from support.model_server import ModelServer, Say, Script, run_model_server

WIRES: dict[str, Wire] = {
    "messages": MessagesWire(),
    "responses": ResponsesWire(),
    "chat_completions": ChatWire(),
    "google": GoogleWire(),
}
SECRET, KEY = "of-this-run-alone", "sk-the-providers-own-key-0123456789"
PLANTED = "AKIAIOSFODNN7EXAMPLE"


def called_and_answered_body(wire: str) -> dict[str, Any]:
    """Return the conversation of a second request of an agent: a call with an id, and its result."""
    match wire:
        case "messages":
            block = {"type": "tool_use", "id": "c1", "name": "Read", "input": {}}
            result = {"type": "tool_result", "tool_use_id": "c1", "content": "found"}
            said = [{"role": "user", "content": "Do it."}, {"role": "assistant", "content": [block]}]
            return {"messages": [*said, {"role": "user", "content": [result]}]}
        case "responses":
            asked: dict[str, Any] = {"type": "function_call", "call_id": "c1", "name": "Read", "arguments": "{}"}
            return {"input": [asked, {"type": "function_call_output", "call_id": "c1", "output": "found"}]}
        case "google":
            parts = [{"functionCall": {"id": "c1", "name": "Read", "args": {"id": "7"}}, "thoughtSignature": "c2Vh"}]
            found: dict[str, Any] = {"id": "c1", "name": "Read", "response": {"id": "7"}}
            return {"contents": [{"role": "user", "parts": [{"text": "Do it."}]}, {"role": "model", "parts": parts},
                                 {"role": "user", "parts": [{"functionResponse": found}]}]}  # fmt: skip
        case _:
            function = {"name": "Read", "arguments": "{}"}
            said_call: dict[str, Any] = {
                "role": "assistant",
                "tool_calls": [{"id": "c1", "type": "function", "function": function}],
            }
            return {"messages": [said_call, {"role": "tool", "tool_call_id": "c1", "content": "found"}]}


def raw_request(head: str, body: bytes, secret: str = SECRET) -> bytes:
    """Return a request as bytes, with a head of one's own."""
    return f"POST /v1/messages HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {secret}\r\n{head}\r\n\r\n".encode() + body


@dataclass
class NotingMeter:
    """A meter that notes what it is told."""

    refuses: CallRefused | None = None
    checks: Exception | None = None
    admitted: list[AgentCall] = field(default_factory=list[AgentCall])
    settled: list[tuple[int, str, Any]] = field(default_factory=list[tuple[int, str, Any]])
    refused: list[str] = field(default_factory=list[str])
    holds: anyio.Event | None = None
    shielded: bool = False
    waiting: int = 0
    asks_tier: bool = False  # until the provider refuses it

    async def admit(self, call: AgentCall) -> Admitted:
        if self.refuses is not None:
            raise self.refuses
        if self.holds is not None:
            self.waiting += 1
            try:
                with anyio.CancelScope(shield=self.shielded):
                    await self.holds.wait()
            finally:
                self.waiting -= 1
        self.admitted.append(call)
        return Admitted(call, min(call.asked_output or 500, 500), len(self.admitted), None, self.asks_tier)

    async def check(self) -> None:
        if self.checks is not None:
            raise self.checks

    async def refuse(self, why: CallRefused) -> None:
        self.refused.append(str(why))

    async def answered(self, admitted: Admitted, completion: Completion, took_ms: int) -> None:
        await anyio.lowlevel.checkpoint()
        self.settled.append((admitted.number, "billed", completion))

    async def failed(self, admitted: Admitted, settlement: str, error: ModelError | None, took_ms: int) -> None:
        await anyio.lowlevel.checkpoint()
        self.settled.append((admitted.number, settlement, error))
        if error is not None and error.kind == "tier":
            self.asks_tier = False

    @property
    def ways(self) -> list[str]:
        return [way for _number, way, _what in sorted(self.settled, key=lambda each: each[0])]


def path_of_request(wire: str, body: dict[str, Any]) -> str:
    """Return the path of a request; Google's has the model, and how to answer, which are taken out of the body."""
    if wire != "google":
        return WIRES[wire].path
    model, stream = body.pop("model", "sonnet"), body.pop("stream", False)
    return f"/models/{model}:{'streamGenerateContent?alt=sse' if stream else 'generateContent'}"


@dataclass
class OpenGateway:
    """A gateway, what is before it and what is behind it."""

    http: httpx2.AsyncClient
    meter: NotingMeter
    far: ModelServer
    wire: str
    gateway: Gateway

    async def ask(self, body: dict[str, Any], **headers: str) -> httpx2.Response:
        return await self.http.post(f"/v1{path_of_request(self.wire, body)}", json=body, headers=headers)

    def settled(self) -> list[str]:
        """Exactly one settlement for each call that was admitted."""
        numbers = sorted(number for number, _way, _what in self.meter.settled)
        assert numbers == list(range(1, len(self.meter.admitted) + 1))
        return self.meter.ways


@asynccontextmanager
async def open_gateway(
    tmp_path: Path,
    script: Script,
    wire: str = "messages",
    off: frozenset[str] = frozenset(),
    endpoint: Wire | None = None,
) -> AsyncGenerator[OpenGateway]:
    """Open a gateway before a scripted provider, with a client that has its secret."""
    meter = NotingMeter()
    bodies = Bodies(
        wire, {"sonnet": "far-sonnet", "far-sonnet": "far-sonnet"}, off, Redactor({"TOKEN": "hunter2-hunter2"})
    )
    with run_model_server(script) as far:
        async with ClientPool() as clients:
            model = HttpModel("far", "far-sonnet", far.base_url, KEY, clients, endpoint or WIRES[wire])
            socket = tmp_path / "gw.sock"
            gateway = Gateway(model, bodies, meter, SECRET)
            async with serving(gateway, socket):
                transport = httpx2.AsyncHTTPTransport(uds=str(socket))
                headers = {"authorization": f"Bearer {SECRET}"}
                async with httpx2.AsyncClient(
                    transport=transport, base_url="http://gateway", headers=headers, timeout=20
                ) as http:
                    yield OpenGateway(http, meter, far, wire, gateway)
    assert not socket.exists()


def agent_request(wire: str, text: str = "Do it.", **more: Any) -> dict[str, Any]:
    """Return a request of an agent in the form of a wire, with a text and a tool."""
    tool: dict[str, Any] = {
        "name": "Read",
        "description": "Reads.",
        "input_schema": {"type": "object", "properties": {}},
    }
    function: dict[str, Any] = {
        "name": "Read",
        "description": "Reads.",
        "parameters": {"type": "object", "properties": {}},
    }
    match wire:
        case "messages":
            return {"model": "sonnet", "max_tokens": 9_000, "system": "Be brief.", "tools": [tool],
                    "messages": [{"role": "user", "content": [{"type": "text", "text": text}]}], **more}  # fmt: skip
        case "responses":
            return {"model": "sonnet", "instructions": "Be brief.", "tools": [{"type": "function", **function}],
                    "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}],
                    **more}  # fmt: skip
        case "google":
            return {"systemInstruction": {"parts": [{"text": "Be brief."}], "role": "user"},
                    "tools": [{"functionDeclarations": [function]}],
                    "contents": [{"role": "user", "parts": [{"text": text}]}], **more}  # fmt: skip
        case _:
            return {"model": "sonnet", "tools": [{"type": "function", "function": function}],
                    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}],
                    **more}  # fmt: skip


async def forwarded_request(tmp_path: Path, wire: str, more: dict[str, Any]) -> tuple[str, AgentCall]:
    """Return what the provider gets of a request, whatever its form, and the call as it was admitted."""
    async with open_gateway(tmp_path, [Say("ok")], wire) as at:
        at.far.checks = False
        assert (await at.ask(agent_request(wire, **more))).status_code == 200
        return at.far.requests[0].body.decode(), at.meter.admitted[0]
