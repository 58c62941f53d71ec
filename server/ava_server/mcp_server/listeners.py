"""Who is told of changes: connections of the handshake era, and streams of the stateless one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
from mcp.shared.subscriptions import ServerEvent, event_to_notification

if TYPE_CHECKING:
    from mcp.server.session import ServerSession


class Listener:
    """Somebody who is told: a connection of the handshake era, or a stream of the stateless one.

    Attributes:
        user: Whose runs they may hear of; None is the user of this machine.
        tell: Has them told.
        uris: The resources that they follow, each with its run; None is the roles.
    """

    def __init__(self, user: str | None, tell: Callable[[ServerEvent], None]) -> None:
        self.user = user
        self.tell = tell
        self.uris: dict[str, str | None] = {}


class Stream:
    """The bus of one stream of the stateless era, as the SDK wants one; what comes before anybody listens is lost."""

    def __init__(self) -> None:
        self._deliver: Callable[[ServerEvent], None] | None = None

    def tell(self, event: ServerEvent) -> None:
        """Hand on an event."""
        if self._deliver is not None:
            self._deliver(event)

    async def publish(self, event: ServerEvent) -> None:
        """Hand on an event."""
        self.tell(event)

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        """Have a listener told; returns what ends that."""
        self._deliver = listener

        def leave() -> None:
            self._deliver = None

        return leave


class Voice:
    """What speaks to a connection of the handshake era: at the client's own pace, and of each thing once."""

    def __init__(self, session: ServerSession) -> None:
        self._session = session
        self._pending: dict[ServerEvent, None] = {}
        self._news = anyio.Event()
        self._scope = anyio.CancelScope()

    def tell(self, event: ServerEvent) -> None:
        """Have an event said as soon as the client takes it."""
        self._pending[event] = None
        self._news.set()

    def end(self) -> None:
        """Say nothing more."""
        self._scope.cancel()

    async def speak(self) -> None:
        """Say what there is to say, until the connection ends."""
        with self._scope, suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            while True:
                await self._news.wait()
                self._news = anyio.Event()
                while self._pending:
                    event = next(iter(self._pending))
                    del self._pending[event]
                    await self._session.send_notification(event_to_notification(event, {}))
