"""How much of an answer has come, in the status line while it comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from ava_server.models.base import Delta

EVERY_S = 0.4
"""With the 0.2 s after which the log writes what runs are doing, whoever looks a second later sees the last piece."""
CHARS_PER_TOKEN = 4
"""An estimate for the eye, of thinking and of arguments too; what is paid for is what the provider counts."""


class Heard:
    """Counts the pieces of one answer, and shows the count some time after each of them, also after the last.

    There is a timer only while something is not shown yet.

    Args:
        doing: What the model is doing, as the status line has it already.
        say: Shows a sentence in the status line.
    """

    def __init__(self, doing: str, say: Callable[[str], None]) -> None:
        self._doing = doing
        self._say = say
        self._chars = 0
        self._due: asyncio.TimerHandle | None = None

    def add(self, delta: Delta) -> None:
        """Take in a piece."""
        chars = len(delta.text) + len(delta.thinking) + len(delta.arguments)
        if not chars:
            return
        self._chars += chars
        if self._due is None:
            self._due = asyncio.get_running_loop().call_later(EVERY_S, self._show)

    def _show(self) -> None:
        self._due = None
        tokens = max(self._chars // CHARS_PER_TOKEN, 1)
        self._say(f"{self._doing} ({tokens} token{'s' if tokens > 1 else ''})")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._due is not None:  # what comes next has a sentence of its own
            self._due.cancel()
