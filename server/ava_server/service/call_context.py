"""Who calls a tool, for as long as the call goes on: somebody to tell how a wait goes on, and perhaps to ask."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ava_server.approval.questions import Person

Progress = Callable[[str], Awaitable[None]]
"""Tells the host that a wait goes on, with a status line."""


@dataclass(frozen=True)
class Caller:
    """One call's other end.

    Attributes:
        progress: Told how a wait goes on.
        person: Who can be asked in the middle of it; None where the client cannot ask anybody.
        degraded: What is proposed may go without tools that its role needs and that are not there.
    """

    progress: Progress
    person: Person | None = None
    degraded: bool = False
