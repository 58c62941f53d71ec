"""A server that is about to end: nothing new starts, and what waits for news is given what there is."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import anyio

from ava_server.errors import Refused

ENDS_SOON = (
    "this server is being stopped, so nothing new is started here; what runs goes on with the next one. Try again in a"
    " moment"
)


class Closing:
    """Whether the end has begun, and who waits meanwhile."""

    def __init__(self) -> None:
        self.begun = False
        self._waits: set[anyio.CancelScope] = set()

    def begin(self) -> None:
        """Begin: every wait is over. Twice is harmless."""
        self.begun = True
        for scope in self._waits:
            scope.cancel()

    def refuse_new(self) -> None:
        """Refuse what would start something.

        Raises:
            Refused: The end has begun.
        """
        if self.begun:
            raise Refused(ENDS_SOON)

    @contextmanager
    def wait(self, scope: anyio.CancelScope) -> Generator[None]:
        """Have a wait end when the end begins; `scope` surrounds it."""
        self._waits.add(scope)
        if self.begun:
            scope.cancel()
        try:
            yield
        finally:
            self._waits.discard(scope)
