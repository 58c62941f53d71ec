"""What the gateway and the meter of a run say to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from ava_audit.events import Usage
from ava_server.core.errors import ModelError
from ava_server.models.base import Bound, Completion

Wire = Literal["messages", "responses", "chat_completions"]


@dataclass(frozen=True)
class AgentCall:
    """One model request of an agent, as it may be sent: checked, rewritten, redacted."""

    wire: Wire
    model: str
    body: Mapping[str, Any]
    head: bytes
    items: tuple[bytes, ...]
    asked_output: int | None
    dropped: tuple[str, ...]


@dataclass(frozen=True)
class Admitted:
    """A call that fits every cap and is on the record."""

    call: AgentCall
    output: int
    number: int
    key: object


class CallRefused(Exception):
    """A call is not sent; the text goes to the agent."""

    def __init__(self, reason: Literal["cap", "model", "form", "over"], message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class Meter(Protocol):
    """Reserves, settles and records calls: one of `answered` and `failed` is awaited for each that it has admitted."""

    async def admit(self, call: AgentCall) -> Admitted:
        """Reserve a call; the reservation is committed. Raises CallRefused."""
        ...

    async def check(self) -> None:
        """Check, right before a request leaves, that the run is this process's. Raises AuditError: do not send it."""
        ...

    async def answered(self, admitted: Admitted, completion: Completion, took_ms: int) -> None:
        """Settle a call from its answer."""
        ...

    async def failed(
        self, admitted: Admitted, settlement: Literal["not_billed", "unknown"], error: ModelError | None, took_ms: int
    ) -> None:
        """Settle a call without an answer."""
        ...


class Bounds(Protocol):
    """The most tokens that a run's calls can use."""

    def bound(self, call: AgentCall, output: int) -> Bound:
        """Return an upper bound of a call."""
        ...

    def report(self, call: AgentCall, usage: Usage) -> None:
        """Take the provider's usage of a call, which bounds what later calls repeat of it."""
        ...
