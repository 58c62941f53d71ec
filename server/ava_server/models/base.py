"""The seam between the agent loop and a language model: a request in, deltas and one completion out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from ava_audit.events import Usage


@dataclass(frozen=True)
class ToolSchema:
    """A tool as the model is shown it; `parameters` is a JSON schema."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True)
class ToolUse:
    """A tool call that the model asked for.

    Attributes:
        call_id: The provider's id of the call, sent back with its result.
        name: The tool's name as the model spelled it.
        args: The arguments, or None when they were not a JSON object.
        raw_args: The argument text exactly as the model sent it.
    """

    call_id: str
    name: str
    args: Mapping[str, Any] | None
    raw_args: str


@dataclass(frozen=True)
class UserTurn:
    """Text from the orchestrator, a person, or the loop itself (a notice)."""

    text: str


@dataclass(frozen=True)
class AssistantTurn:
    """An earlier answer; `raw` is the provider's message, kept and sent back verbatim.

    Attributes:
        edited_before: Something that stood before it when it was given stands there otherwise now. Some providers
            refuse the thinking of such an answer, and their wires leave it out.
        without_thinking: The provider has refused what the model thought so far: it is left out.
    """

    raw: Mapping[str, Any]
    edited_before: bool = False
    without_thinking: bool = False


@dataclass(frozen=True)
class ToolTurn:
    """The result of one tool call, as the model is shown it."""

    call_id: str
    name: str
    text: str


Turn = UserTurn | AssistantTurn | ToolTurn


@dataclass(frozen=True)
class Request:
    """One model call, complete and without server-side state.

    Attributes:
        model: The provider's id of the model.
        system: The system prompt.
        tools: The tools on offer, in a fixed order.
        turns: The conversation so far, the task first.
        max_output: Most tokens that the answer may have (thinking included).
        thinking: How many of them the model may think; 0 is no more than it does by itself.
    """

    model: str
    system: str
    tools: tuple[ToolSchema, ...]
    turns: tuple[Turn, ...]
    max_output: int
    thinking: int = 0


@dataclass(frozen=True)
class ReportedUsage:
    """What a provider reported for an earlier call of the same run: a tight base for the next bound.

    Attributes:
        prompt_tokens: Its whole prompt and answer, in tokens.
        turns: How many turns of the history that covers.
    """

    prompt_tokens: int
    turns: int


@dataclass(frozen=True)
class Bound:
    """An upper bound of one call: prompt tokens, and the tokens of output that it may bring."""

    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Delta:
    """A piece of a stream, for the activity line only: never stored, never replayed."""

    text: str = ""
    thinking: str = ""
    arguments: str = ""


@dataclass(frozen=True)
class Completion:
    """A complete answer.

    Attributes:
        text: The model's words.
        calls: The tool calls it asks for, in order.
        raw: The provider's message, to be stored and sent back verbatim.
        usage: Tokens by class as the provider reported them; None when it reported none that make sense.
        cost_micros: What the provider says the call cost, in micro-USD, rounded up; None when it does not say.
        thinking: The model's thinking as far as a person can read it.
        stop_reason: The provider's word for why the answer ended.
        request_id: The provider's id of the call.
        notes: What had to be made storable or was odd, e.g. `replaced 1 lone surrogate`.
    """

    text: str
    calls: tuple[ToolUse, ...]
    raw: Mapping[str, Any]
    usage: Usage | None
    cost_micros: int | None = None
    thinking: str = ""
    stop_reason: str | None = None
    request_id: str | None = None
    notes: tuple[str, ...] = ()


class Stream(Protocol):
    """An answer on its way: iterate over the deltas, then take the completion."""

    def __aiter__(self) -> AsyncIterator[Delta]:
        """Yield the deltas as they arrive; raises ModelError when the stream breaks."""
        ...

    @property
    def completion(self) -> Completion:
        """The complete answer; only after the iteration has ended by itself."""
        ...


class Model(Protocol):
    """A model behind one provider. Every call of `stream` is exactly one attempt: no hidden retries."""

    @property
    def name(self) -> str:
        """`provider:id`, as it stands in the log."""
        ...

    def encode(self, request: Request) -> bytes:
        """Return the request's body, byte for byte as `stream` sends it; a pure function."""
        ...

    def may_think(self, turns: Sequence[Turn]) -> bool:
        """Tell whether the model can be told to think about what follows these turns."""
        ...

    def bound(self, request: Request, known: ReportedUsage | None) -> Bound:
        """Return an upper bound of what the call can use."""
        ...

    def assistant_message(self, text: str | None, calls: Sequence[ToolUse]) -> Mapping[str, Any]:
        """Return an answer of these words and calls as the provider would have sent it."""
        ...

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        """Send the request once; leaving the context closes the connection.

        Raises:
            ModelError: No complete answer came; tells whether the attempt may have been billed.
        """
        ...
