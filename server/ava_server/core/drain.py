"""A server that is about to end: nothing new starts, and what waits for news is given what there is."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import anyio

from ava_server.core.errors import Refused

ENDS_SOON = (
    "this server is being stopped, so nothing new is started here; what runs goes on with the next one. Try again in a"
    " moment"
)


class Closing:
    """Whether the end has begun, and who waits meanwhile."""

    def __init__(self) -> None:
        self.begun = False
        self._over = False
        self._waits: set[anyio.CancelScope] = set()
        self._questions: set[anyio.CancelScope] = set()

    def begin(self) -> None:
        """Begin: every wait is over. Twice is harmless."""
        self.begun = True
        for scope in self._waits:
            scope.cancel()

    def finish(self) -> None:
        """End the questions to persons that are open still: they were given their time. Twice is harmless."""
        self.begin()
        self._over = True
        for scope in self._questions:
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
        with _among(self._waits, scope, over=self.begun):
            yield

    @contextmanager
    def question(self, scope: anyio.CancelScope) -> Generator[None]:
        """Have a question end when calls in hand have had their time; `scope` surrounds it."""
        with _among(self._questions, scope, over=self._over):
            yield


@contextmanager
def _among(scopes: set[anyio.CancelScope], scope: anyio.CancelScope, *, over: bool) -> Generator[None]:
    scopes.add(scope)
    if over:
        scope.cancel()
    try:
        yield
    finally:
        scopes.discard(scope)
