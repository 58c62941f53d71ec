"""Models in this process, without network, tokens and cost: the offline reader, and the script of the demo."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import anyio.to_thread

from ava_audit.events import Usage
from ava_roles.passages import Query
from ava_server.core.errors import ModelError
from ava_server.models import json_text
from ava_server.models.base import (
    AssistantTurn,
    Bound,
    Completion,
    Delta,
    ReportedUsage,
    Request,
    SendCheck,
    ToolTurn,
    ToolUse,
    Turn,
    UserTurn,
    unchecked,
)
from ava_server.models.offline_passages import best_passages, passages, spread_of
from ava_server.models.selection import SCRIPTED
from ava_server.models.wires import chat
from ava_server.models.wires.base import tool_use


@dataclass(frozen=True)
class LocalModel:
    """A model in this process. `answer` depends only on the request, so an interrupted run resumes like any other."""

    name: str
    answer: Callable[[Request], Completion]

    def encode(self, request: Request) -> bytes:
        return json_text.encode({**chat.body(request), "max_tokens": request.max_output})

    def may_think(self, turns: Sequence[Turn]) -> bool:
        return False

    def bound(self, request: Request, known: ReportedUsage | None) -> Bound:
        return Bound(0, 0)

    def assistant_message(self, text: str | None, calls: Sequence[ToolUse]) -> Mapping[str, Any]:
        return chat.assistant_message(text, calls)

    @asynccontextmanager
    async def stream(self, request: Request, check: SendCheck = unchecked) -> AsyncGenerator[LocalStream]:
        """Answer, in a thread. Raises AuditError: from `check`; ModelError: there is no answer to this request."""
        await check()
        yield LocalStream(await anyio.to_thread.run_sync(self.answer, request))


@dataclass(frozen=True)
class LocalStream:
    """An answer that is complete at once."""

    completion: Completion

    async def __aiter__(self) -> AsyncIterator[Delta]:
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
    return sum(isinstance(turn, AssistantTurn) for turn in request.turns)


def scripted_answer(request: Request) -> Completion:
    """Return a step of `demo_script.json` with the tools' results, for `ava demo --scripted`. Blocks for a moment."""
    steps = json.loads(files("ava_server.models").joinpath("demo_script.json").read_text(encoding="utf-8"))
    turn = answers_before(request)
    if turn >= len(steps):
        raise ModelError(
            f"The script of {SCRIPTED} has {len(steps)} steps and was asked for step {turn + 1}.",
            kind="bad_request",
            sent=False,
            answered=False,
            retryable=False,
            what_to_do="Write a longer script.",
        )
    step = json.loads(_filled_in(json.dumps(steps[turn]), request))
    return complete(step["text"], [(call["name"], call["args"]) for call in step["calls"]], request)


def _filled_in(step: str, request: Request) -> str:
    task = next((turn.text for turn in request.turns if isinstance(turn, UserTurn)), "")
    results = [turn for turn in request.turns if isinstance(turn, ToolTurn)]
    query = Query(task)
    found = [piece for turn in results for piece in passages(turn.name, turn.text)]
    best = best_passages(found, query, spread_of(query, results), most=4).pieces
    findings = [
        {
            "claim": f"{piece.source} has a passage about it",
            "quote": piece.text,
            "source_url": piece.location,
            "source_name": f"{piece.source}, {piece.place}" if piece.place else piece.source,
        }
        for piece in best
    ]
    step = step.replace("{words}", _inside(" ".join(query.words[:8]) or task[:80]))
    step = step.replace("{source}", _inside(best[0].source if best else "no file"))
    return step.replace('"{findings}"', json.dumps(findings))


def _inside(text: str) -> str:
    return json.dumps(text)[1:-1]
