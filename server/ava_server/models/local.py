"""Models in this process, without network, tokens and cost: the offline reader, and the script of the demo."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio.to_thread

from ava_audit.events import Usage
from ava_server.models import json_text
from ava_server.models.base import AssistantTurn, Bound, Completion, Delta, ReportedUsage, Request, ToolUse, Turn
from ava_server.models.wires import chat
from ava_server.models.wires.base import tool_use


@dataclass(frozen=True)
class LocalModel:
    """A model in this process.

    Attributes:
        name: As the log has it.
        answer: Returns the next answer. It depends only on the request, so an interrupted run resumes like any other.
    """

    name: str
    answer: Callable[[Request], Completion]

    def encode(self, request: Request) -> bytes:
        """Return the request's body as a chat endpoint would get it."""
        return json_text.encode({**chat.body(request), "max_tokens": request.max_output})

    def may_think(self, turns: Sequence[Turn]) -> bool:
        """It never thinks."""
        return False

    def bound(self, request: Request, known: ReportedUsage | None) -> Bound:
        """Return nothing: no token is ever used."""
        return Bound(0, 0)

    def assistant_message(self, text: str | None, calls: Sequence[ToolUse]) -> Mapping[str, Any]:
        """Return an answer with this text and these calls as a provider would have sent it."""
        return chat.assistant_message(text, calls)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncGenerator[LocalStream]:
        """Answer, in a thread.

        Raises:
            ModelError: There is no answer to this request.
        """
        yield LocalStream(await anyio.to_thread.run_sync(self.answer, request))


@dataclass(frozen=True)
class LocalStream:
    """An answer that is complete at once."""

    completion: Completion

    async def __aiter__(self) -> AsyncIterator[Delta]:
        """Yield the words."""
        yield Delta(text=self.completion.text)


def complete(text: str, asked: Sequence[tuple[str, Mapping[str, Any]]], request: Request) -> Completion:
    """Return an answer with tool calls, each a name and arguments; their ids are unique in the run."""
    turn = answers_before(request)
    calls = tuple(
        tool_use(f"call_{turn}_{number}", name, json_text.encode(dict(args)).decode())
        for number, (name, args) in enumerate(asked)
    )
    return Completion(
        text=text,
        calls=calls,
        raw=chat.assistant_message(text, calls),
        usage=Usage(),
        cost_micros=0,
        stop_reason="tool_calls",
    )


def answers_before(request: Request) -> int:
    """Return how many answers the conversation has already."""
    return sum(isinstance(turn, AssistantTurn) for turn in request.turns)
