"""What the gateway and the meter of a run say to each other."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from ava_audit.events import Usage
from ava_server.core.errors import ModelError
from ava_server.models.base import Bound, Completion


@dataclass(frozen=True)
class AgentCall:
    """One model request of an agent, as it may be sent: checked, rewritten, and without secrets.

    `body` is without a limit on the answer. `head` is the JSON of what stands before the conversation in the prompt,
    `items` that of each message, without cache marks: so that they can be compared with earlier requests.
    `asked_output` is the most output tokens that it asks for. `dropped` names what was taken out.
    """

    model: str
    body: Mapping[str, Any]
    head: bytes
    items: tuple[bytes, ...]
    asked_output: int | None = None
    dropped: tuple[str, ...] = ()

    chain: tuple[str, ...] = field(init=False)
    """The hash of the head, then of it and the first message, and so on: equal beginnings have equal hashes."""

    @property
    def head_sha(self) -> str:
        """The hash of what stands before the conversation: requests of one conversation have the same."""
        return self.chain[0]

    @property
    def prompt_sha(self) -> str:
        """The hash of the whole prompt."""
        return self.chain[-1]

    def __post_init__(self) -> None:
        """Hash it where it is read: for a long one, in a thread."""
        links = [_sha(self.head)]
        for item in self.items:
            links.append(_sha(links[-1].encode() + item))
        object.__setattr__(self, "chain", tuple(links))


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


@dataclass(frozen=True)
class Admitted:
    """A call that fits every cap and is on the record; an answer of `output` tokens is reserved, and `key` by whom.

    `asks_tier`: the request asks for the wire's tier, if it has one; not once the provider has refused that.
    """

    call: AgentCall
    output: int
    number: int
    key: object
    asks_tier: bool = False


def is_to_repeat(admitted: Admitted, error: ModelError | None) -> bool:
    """Tell whether a call was refused for the tier that it asked for, and is to be made once more without one."""
    return error is not None and error.kind == "tier" and admitted.asks_tier


Refusal = Literal["cap", "model", "form", "over", "busy"]
"""Why a call is not sent: a cap, a model that was not approved, something that cannot be sent, the run's end, or (for
now) money that other runs hold."""


MOST_NEW_BYTES = 1_800_000
"""Of a request that no earlier one had: it is one entry of the log, which takes little more."""


class CallRefused(Exception):
    """Raised for a call that is not sent; the text goes to the agent."""

    def __init__(self, reason: Refusal, message: str) -> None:
        super().__init__(message)
        self.reason: Refusal = reason


class Meter(Protocol):
    """Reserves, settles and records calls: one of `answered` and `failed` is awaited for each that it has admitted."""

    async def admit(self, call: AgentCall) -> Admitted:
        """Reserve a call; the reservation is committed. Raises CallRefused."""
        ...

    async def check(self) -> None:
        """Check, right before a request leaves, that the run is this process's. Raises AuditError: do not send it."""
        ...

    async def refuse(self, why: CallRefused) -> None:
        """Record a call that was refused before it could be admitted."""
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
