"""A client of the handshake era that speaks message by message, and decides itself when it answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import anyio
from mcp.server import Server
from mcp.shared.memory import MessageStream, create_client_server_memory_streams
from mcp.shared.message import SessionMessage
from mcp_types.jsonrpc import jsonrpc_message_adapter

Message = dict[str, Any]


@dataclass
class RawClient:
    """One end of a connection in memory."""

    streams: MessageStream
    ids: Iterator[int] = field(default_factory=lambda: count(1))

    async def say(self, **message: Any) -> None:
        """Send one message."""
        _receive, send = self.streams
        await send.send(SessionMessage(jsonrpc_message_adapter.validate_python({"jsonrpc": "2.0", **message})))

    async def hear(self, is_wanted: Callable[[Message], bool]) -> Message:
        """Return the next message of this kind, and drop those before it."""
        receive, _send = self.streams
        with anyio.fail_after(20):
            while True:
                got = await receive.receive()
                assert isinstance(got, SessionMessage)
                message: Message = got.message.model_dump(by_alias=True, exclude_none=True)
                if is_wanted(message):
                    return message

    async def request(self, method: str, **params: Any) -> int:
        """Send a request and return its id."""
        number = next(self.ids)
        await self.say(id=number, method=method, params=params)
        return number

    async def result(self, number: int) -> Message:
        """Return the result of the request with this id."""
        answer = await self.hear(lambda message: message.get("id") == number and "result" in message)
        result: Message = answer["result"]
        return result

    async def tool(self, name: str, **arguments: Any) -> Message:
        """Call a tool and return its structured answer."""
        answer = await self.result(await self.request("tools/call", name=name, arguments=arguments))
        content: Message = answer["structuredContent"]
        return content


@asynccontextmanager
async def open_raw_client(server: Server[Any]) -> AsyncGenerator[RawClient]:
    """Connect a client to a server in memory; it says that it can ask its person."""
    async with create_client_server_memory_streams() as (ours, theirs), anyio.create_task_group() as tasks:
        tasks.start_soon(server.run, *theirs, server.create_initialization_options())
        client = RawClient(ours)
        hello = {"protocolVersion": "2025-11-25", "clientInfo": {"name": "late", "version": "1"}}
        await client.result(await client.request("initialize", **hello, capabilities={"elicitation": {}}))
        await client.say(method="notifications/initialized")
        yield client
        tasks.cancel_scope.cancel()
