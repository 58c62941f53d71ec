"""A client that follows what changes, in either era of the protocol.

ear = Ear()
async with following(client, ear, mode, "ava://roles"):   # with ear.on_message as the client's message handler
    await ear.until(ResourceUpdated("ava://roles"))
"""

from __future__ import annotations

import warnings
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import anyio
import pytest
from mcp import Client
from mcp.client.session import IncomingMessage
from mcp.client.subscriptions import ServerEvent
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import event_from_wire
from mcp_types import INVALID_PARAMS


class Ear:
    """What a client is told, in either era."""

    def __init__(self) -> None:
        self.heard: list[ServerEvent] = []
        self._news = anyio.Event()

    def hear(self, event: ServerEvent) -> None:
        self.heard.append(event)
        self._news.set()
        self._news = anyio.Event()

    async def on_message(self, message: IncomingMessage) -> None:
        method = getattr(message, "method", None)
        if isinstance(method, str):
            params = getattr(message, "params", None)
            event = event_from_wire(method, params.model_dump(mode="json") if params is not None else None)
            if event is not None:
                self.hear(event)

    async def until(self, event: ServerEvent, within_s: float = 40) -> None:
        with anyio.fail_after(within_s):
            while event not in self.heard:
                await self._news.wait()


@asynccontextmanager
async def follow_updates(
    client: Client, ear: Ear, mode: str, *uris: str, refused: Sequence[str] = ()
) -> AsyncGenerator[tuple[str, ...]]:
    """Follow these resources, and every list; yields the resources that the server agreed to tell of.

    It must not agree to those in `refused`.
    """
    if mode == "legacy":
        for uri in uris:
            await subscribe(client, uri)
        for uri in refused:
            with pytest.raises(MCPError) as error:
                await subscribe(client, uri)
            assert error.value.error.code == INVALID_PARAMS
        yield uris
        return
    async with (
        client.listen(
            tools_list_changed=True,
            prompts_list_changed=True,
            resources_list_changed=True,
            resource_subscriptions=[*uris, *refused],
        ) as stream,
        anyio.create_task_group() as listening,
    ):

        async def listen() -> None:
            async for event in stream:
                ear.hear(event)

        listening.start_soon(listen)
        agreed = tuple(stream.honored.resource_subscriptions or ())
        assert not set(agreed) & set(refused)
        yield agreed
        listening.cancel_scope.cancel()


async def subscribe(client: Client, uri: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the SDK warns of what the stateless era has no longer
        await client.subscribe_resource(uri)


async def unsubscribe(client: Client, uri: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        await client.unsubscribe_resource(uri)
