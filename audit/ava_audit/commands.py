"""Commands: how everything gets into the log, and queries: how anything is read from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from ava_audit.events import Event
from ava_audit.view import View

T = TypeVar("T")


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """What a command answers: a value for its caller, and the events to append."""

    value: T
    events: tuple[Event, ...] = ()


Command = Callable[[View, int], Outcome[T]]
"""Pure: `(state, now in microseconds UTC) -> outcome`."""
Query = Callable[[View], T]


def append(*events: Event) -> Command[None]:
    """Return the command that appends events, whatever the state."""

    def command(_view: View, _now_us: int) -> Outcome[None]:
        return Outcome(None, events)

    return command
