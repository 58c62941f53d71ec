"""Histories of runs without a run: their facts, and turns that are played with any tokenizer."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import Any

from ava_audit.events import (
    AssistantMessage,
    CostReserved,
    CostUpdate,
    Fact,
    RunStarted,
    ToolResult,
    Usage,
    UserMessage,
)
from ava_server.models import tokens
from ava_server.models.wires.chat import assistant_message, message
from ava_server.models.wires.wire import tool_use
from ava_server.runs.record.history import History, Recipe


def run_start() -> RunStarted:
    """Return the fact with a run's prefix."""
    return RunStarted(
        system="You are one.", tools=({"name": "read_file", "description": "Reads.", "parameters": {}},), model="far:m",
        price={}, limits={}, max_output=100, nonce="0123456789abcdef",
    )  # fmt: skip


def reservation(turn: int, upto: int = 0, **more: Any) -> CostReserved:
    """Return a reservation of a call that reads the log up to an entry."""
    fields: dict[str, Any] = {"attempt": 1, **more}
    return CostReserved(
        turn=turn, scopes=(), micros=1, wrap_micros=0, prompt_tokens=1, max_output=1, upto_seq=upto,
        request_sha="0" * 64, **fields,
    )  # fmt: skip


def answer_with_calls(*names: str, text: str = "") -> AssistantMessage:
    """Return an answer that calls read_file once under each of these ids."""
    calls = tuple({"call_id": name, "name": "read_file", "args": {}, "raw_args": "{}"} for name in names)
    return AssistantMessage(text=text, raw={"role": "assistant", "content": text or None}, calls=calls, turn=1)


def settlement(**more: Any) -> CostUpdate:
    """Return the settlement of the first call."""
    fields: dict[str, Any] = {"turn": 1, "settlement": "billed", "tokens": 1, **more}
    return CostUpdate(attempt=1, cost_cents=0, reserved_micros=1, **fields)


def tool_result(call_id: str, output: str) -> ToolResult:
    """Return the result of a call of read_file."""
    return ToolResult(tool="read_file", success=True, output=output, call_id=call_id, output_sha=output)


def first_turn() -> History:
    """Return a history with its prefix, its task and one answer that asks for two files, a and b."""
    history = History("S-000001")
    history.add(1, UserMessage(text="the task", kind="task"))
    history.add(2, run_start())
    history.add(3, reservation(1))
    history.add(4, settlement(), Usage(input_tokens=10, output_tokens=5))
    history.add(5, answer_with_calls("a", "b"))
    return history


def true_tokens(text: str, seed: int) -> int:
    """Return the tokens of a text for some tokenizer: at most one for each byte, and other ones for other texts."""
    data = text.encode()
    return len(data) * (zlib.crc32(data[:40], seed) % 100 + 1) // 100


class PlayedRun:
    """A run whose turns are played while a tokenizer of its own counts.

    Attributes:
        calls: For each request so far, the bound of its prompt's tokens and what the tokenizer needs for it.
    """

    def __init__(self, seed: int) -> None:
        self.history = History("S-000001")
        self.history.add(1, UserMessage(text="the task", kind="task"))
        self.history.add(2, run_start())
        self.calls: list[tuple[int, int]] = []
        self._seed = seed
        self._seq = 3
        self._recipe = Recipe(0)

    def ask(self) -> int:
        """Note the next request, and return what the tokenizer needs for it."""
        request = self.history.request(self._recipe, 512)
        bound = tokens.bound(request, message, self.history.reported(self._recipe)).prompt_tokens
        tools = json.dumps([tool.as_dict() for tool in request.tools], ensure_ascii=False)
        messages = [json.dumps(message(turn), ensure_ascii=False) for turn in request.turns]
        needed = sum(true_tokens(text, self._seed) for text in (request.system, tools, *messages))
        self.calls.append((bound, needed))
        return needed

    def play_turn(self, number: int, results: Sequence[str], *, reports: bool, fails: bool) -> None:
        """Ask, twice where the first attempt fails, and take a result for each call of the answer.

        `reports`: the provider says what was used.
        """
        prompt = self._reserve(number, attempt=1)
        if fails:
            self._add(settlement(settlement="not_billed"))
            prompt = self._reserve(number, attempt=2)
        answer = self._answer(number, len(results))
        written = true_tokens(json.dumps(answer.raw, ensure_ascii=False), self._seed)
        usage = Usage(input_tokens=prompt, output_tokens=written) if reports else None
        self._add(settlement(settlement="billed" if reports else "unknown"), usage)
        self._add(answer)
        for call, text in enumerate(results):
            self._add(tool_result(f"{number}-{call}", text))

    def trim(self, *, oldest: bool, most_shown: int | None) -> None:
        """Have the next request leave out the oldest result, and show only so many characters of each new one."""
        old = [each for each, _saved in self.history.elidable()][: int(oldest)]
        fresh = [
            each for each, text in self.history.fresh_results() if most_shown is not None and len(text) > most_shown
        ]
        self._recipe = Recipe(0, tuple(old), tuple((each, most_shown or 0) for each in fresh))

    def _reserve(self, number: int, attempt: int) -> int:
        prompt = self.ask()
        self._add(reservation(number, attempt=attempt, elide=self._recipe.elide, cut=self._recipe.cut))
        self._recipe = Recipe(0)
        return prompt

    def _answer(self, number: int, calls: int) -> AssistantMessage:
        uses = [tool_use(f"{number}-{call}", "read_file", "{}") for call in range(calls)]
        raw = assistant_message(f"turn {number}", uses)
        given = tuple({"call_id": each.call_id, "name": each.name, "raw_args": "{}"} for each in uses)
        return AssistantMessage(text=f"turn {number}", raw=raw, calls=given, turn=number)

    def _add(self, fact: Fact, usage: Usage | None = None) -> None:
        self.history.add(self._seq, fact, usage)
        self._seq += 1
