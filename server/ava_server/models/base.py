"""The seam between the agent loop and a language model: a request goes in, deltas and one completion come out."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ava_audit.events import Usage

NOT_SENT = "nothing of the request was sent"
"""Marks a cancellation that came before anything was sent; without this note, the call may have been billed."""


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """A tool as the model sees it; `parameters` is a JSON schema, and an `own` one has no text from elsewhere."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    own: bool = False

    def as_dict(self, parameters: str = "parameters") -> dict[str, Any]:
        return {"name": self.name, "description": self.description, parameters: dict(self.parameters)}


@dataclass(frozen=True)
class ToolUse:
    """A tool call that the model asked for; `args` is None when `raw_args`, sent as is, were not a JSON object."""

    call_id: str
    name: str
    args: Mapping[str, Any] | None
    raw_args: str


@dataclass(frozen=True, slots=True)
class UserTurn:
    """Text from the orchestrator, a person, or the loop itself (a notice)."""

    text: str


@dataclass(frozen=True)
class AssistantTurn:
    """An earlier answer; `raw` is the provider's message, kept and sent back verbatim.

    `edited_before`: something before it was changed since; some providers then refuse its thinking, and their wires
    leave it out. `without_thinking`: the provider has refused the thinking so far.
    """

    raw: Mapping[str, Any]
    edited_before: bool = False
    without_thinking: bool = False


@dataclass(frozen=True)
class ToolTurn:
    """The result of one tool call, as the model sees it; the other fields tell Ava's own readers more."""

    call_id: str
    name: str
    text: str
    failed: bool = False
    unread: str = ""  # what it was to read and did not, as in `ToolResult`
    unread_little: bool = False


Turn = UserTurn | AssistantTurn | ToolTurn


@dataclass(frozen=True, slots=True)
class Request:
    """One model call, complete and without state on the server."""

    model: str
    system: str
    tools: tuple[ToolSchema, ...]  # the tools on offer, in a fixed order
    turns: tuple[Turn, ...]  # the conversation so far, the task first
    max_output: int  # most tokens that the answer may have, thinking included
    thinking: int = 0  # how many of them the model may use for thinking; with 0 it is told not to think
    own_bytes: int = 0  # how many bytes of the system prompt are Ava's own text
    other_limit: bool = False  # the provider has refused the usual name of `max_output`
    shared_chars: int = 0  # how many characters of the system prompt all runs of the role have, for marks of a cache
    tier_refused: bool = False  # the provider has refused to be told the tier, so the account's own counts

    @property
    def system_parts(self) -> list[str]:
        """The system prompt in the parts after which other requests may differ."""
        parts = [self.system[: self.shared_chars], self.system[self.shared_chars :]]
        return [part for part in parts if part]


@dataclass(frozen=True)
class Segment:
    """Turns of a request whose tokens a provider's reports give together."""

    tokens: int  # their tokens when they were reported
    turns: tuple[int, ...]  # their places in the request
    changed: bool = False  # something of them was shortened or left out since: `tokens` is then too high


@dataclass(frozen=True)
class ReportedUsage:
    """What a provider's reports say about the turns of a request: a tight base for its bound."""

    # The turns of earlier prompts; the tokens of the first include the system prompt and the tools.
    segments: tuple[Segment, ...]
    answers: Mapping[int, int]  # by place in the request, the reported tokens of an answer as the model wrote it


@dataclass(frozen=True)
class Bound:
    """An upper bound of one call, in tokens."""

    prompt_tokens: int
    output_tokens: int
    new_bytes: int = 0  # the part of `prompt_tokens` that no report covers: it is counted as one token per byte

    def by_ratio(self, tokens_per_byte: float) -> Bound:
        """Return it with so many tokens for each byte that no report covers, rounded up; at most one for each."""
        expected = min(math.ceil(self.new_bytes * tokens_per_byte), self.new_bytes)
        return replace(self, prompt_tokens=self.prompt_tokens - self.new_bytes + expected)


@dataclass(frozen=True)
class Delta:
    """A piece of a stream, for the activity line only: it is never stored."""

    text: str = ""
    thinking: str = ""
    arguments: str = ""


@dataclass(frozen=True)
class MoreUsage:
    """Tokens of a call that a second reading of its usage has besides the first one's."""

    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Completion:
    """A complete answer."""

    text: str
    calls: tuple[ToolUse, ...]
    raw: Mapping[str, Any]
    usage: Usage | None
    # What the provider says the call cost, in micro-USD, rounded up; None when it does not say.
    cost_micros: int | None = None
    thinking: str = ""  # the model's thinking as far as a person can read it
    stop_reason: str | None = None
    request_id: str | None = None
    notes: tuple[str, ...] = ()  # what had to be changed or was odd, e.g. `replaced 1 lone surrogate`
    more: MoreUsage | None = None  # what is to be booked besides `usage`, as far as it was reserved
    # What the answer names of its tier and place, by field (`surcharges.ANSWER_FIELDS`).
    named: Mapping[str, str] = field(default_factory=dict[str, str])


class Stream(Protocol):
    """An answer on its way: iterate over the deltas, then take the completion."""

    def __aiter__(self) -> AsyncIterator[Delta]:
        """Yield the deltas as they arrive; raises ModelError when the stream breaks."""
        ...

    @property
    def completion(self) -> Completion:
        """The complete answer; only after the iteration has ended by itself."""
        ...


SendCheck = Callable[[], Awaitable[None]]
"""Awaited right before a request leaves this process; raises an error to keep the request from being sent."""


async def unchecked() -> None:
    """Let a request go: it belongs to no run."""


class Model(Protocol):
    """A model of one provider. Every call of `stream` is exactly one attempt: there are no hidden retries."""

    @property
    def name(self) -> str:
        """`provider:id`, as the log has it."""
        ...

    def encode(self, request: Request) -> bytes:
        """Return the request's body, byte for byte as `stream` sends it; a pure function."""
        ...

    def may_think(self, turns: Sequence[Turn]) -> bool: ...

    def bound(self, request: Request, known: ReportedUsage | None) -> Bound:
        """Return an upper bound of what the call can use."""
        ...

    def assistant_message(self, text: str | None, calls: Sequence[ToolUse]) -> Mapping[str, Any]: ...

    def stream(self, request: Request, check: SendCheck = unchecked) -> AbstractAsyncContextManager[Stream]:
        """Send the request once; leaving the context closes the connection.

        A cancellation before anything was sent has the note `NOT_SENT`. Raises AuditError: `check` has raised it, and
        nothing was sent; ModelError: no complete answer came, and the attempt may have been billed.
        """
        ...
