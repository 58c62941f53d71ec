"""What a long run costs where the provider reads known prefixes from a cache, and what trimming leaves of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import pytest
from support.model_server import Say
from support.runtime import PRICED, hand_over, open_lab

from ava_audit.events import CostUpdate, ToolCall, ToolResult

# -- a provider's cache by prefixes ------------------------------------------------------------------------------------

BYTES_PER_TOKEN = 4


# -- a provider's cache by marks ---------------------------------------------------------------------------------------

LOOKS_BACK = 20


# -- the tests ---------------------------------------------------------------------------------------------------------

LEFT_OUT = re.compile(
    r"^\[(?:read_file|read_tool_result): \d+ characters left out; read_tool_result (R-\d+) brings .*\]$"
)
FILES, LINES, NOTE_EVERY = 36, 450, 8
ROOM = "[limits]\nmax_tokens = 1000000\n"
"""So that the window of the model is what trims."""


@pytest.mark.slow
@pytest.mark.parametrize("writes", [False, True])
async def test_a_long_run_reads_from_the_cache_except_after_trims(tmp_path: Path, writes: bool) -> None:
    write_files(tmp_path / "workspace")
    reader = Reader()
    provider = PrefixCache(reader, writes=writes)
    async with open_lab(tmp_path, provider, config=PRICED + ROOM) as lab:
        run_id = await lab.start(max_iterations=100, max_tool_calls=200, max_tokens=10**6, max_cost_cents=500)
        run = await lab.ended(run_id, within_s=100)
        requests = [request.json for request in lab.server.requests]
        settled = await lab.facts(run_id, CostUpdate)
        results = {fact.call_id: fact for fact in await lab.facts(run_id, ToolResult)}
        calls = await lab.facts(run_id, ToolCall)
    assert run.state == "success", run.stop_reason

    # The prefix stays, message by message, but where results are left out: for good, and only they.
    trims = 0
    for one, after in pairwise(requests):
        assert one["tools"] == after["tools"]
        changed = [pair for pair in zip(one["messages"], after["messages"], strict=False) if pair[0] != pair[1]]
        trims += bool(changed)
        for before, now in changed:
            assert before["tool_call_id"] == now["tool_call_id"] and not LEFT_OUT.match(before["content"])
            assert LEFT_OUT.match(now["content"])
    assert 1 <= trims <= len(requests) / 8, "trimming is rare: each one costs the provider's cache"

    # So most of what was sent was read from the cache, and is booked so, to the micro-dollar.
    read, prompt = (sum(column) for column in zip(*provider.read, strict=True))
    assert run.cache_read_tokens == read
    assert (run.cache_write_tokens if writes else run.input_tokens) == prompt - read
    assert read / prompt > 0.75, "measured: 0.86"
    fresh = (prompt - read) * (3.75 if writes else 3)
    assert run.cost_micros == pytest.approx(fresh + read * 0.3 + run.output_tokens * 15, abs=len(settled))

    # What must never be cut was not: system prompt, task, notes.
    assert all(request["messages"][:2] == requests[0]["messages"][:2] for request in requests)
    shown = {message.get("tool_call_id"): message["content"] for message in requests[-1]["messages"]}
    notes = [call for call in calls if call.tool == "scratchpad"]
    assert len(notes) > 3 and all(shown[call.call_id] == results[call.call_id].output for call in notes)

    # And each result that was left out came back whole.
    back = [call for call in calls if call.tool == "read_tool_result"]
    assert len(back) == len(reader.asked) > 10
    seen = {number for call in back for number in whole_files(results[call.call_id].output)}
    assert len(seen) == len(back)


def whole_files(text: str) -> list[int]:
    """The files that stand in a text from their first line to their last."""
    numbers = {int(number) for number in re.findall(r"file (\d+) line 0 says", text)}
    return [n for n in numbers if all(f"file {n} line {line} says twelve cents\n" in text for line in range(LINES))]


@pytest.mark.slow
async def test_with_cache_markers_each_request_reads_all_of_the_previous_one(
    tmp_path: Path,
) -> None:
    write_files(tmp_path / "workspace")

    def script(request: dict[str, Any]) -> Say:
        turn = sum(message["role"] == "assistant" for message in request["messages"])
        if turn == 6:
            return hand_over()
        return Say(calls=[("read_file", {"path": f"{n}.md", "limit": 20, "offset": 20 * turn + 1}) for n in range(16)])

    provider = MarkedCache(script)
    config = '[providers.custom]\nwire = "messages"\n' + PRICED + ROOM
    async with open_lab(tmp_path, provider, config=config) as lab:
        run_id = await lab.start(max_iterations=20, max_tool_calls=150, max_tokens=10**6, max_cost_cents=500)
        run = await lab.ended(run_id, within_s=60)
        assert run.state == "success", run.stop_reason
        settled = await lab.facts(run_id, CostUpdate)
    assert len(provider.used) == 7
    assert provider.used[0][0] == 0
    for (read, written, _), (read_again, _, fresh) in pairwise(provider.used):
        assert read_again >= read + written, "all that the last request had is read"
        assert fresh == 0, "and what is new is written, for the next one to read"
    assert all(fact.settlement == "billed" for fact in settled)


@dataclass
class PrefixCache:
    """Answers as a script says, and counts as a provider with a prompt cache does.

    The tools and the system prompt are the beginning of a prompt. A request reads the longest run of whole messages
    that some earlier request of its run began with; the rest is fresh, or written to the cache where `writes`.

    Attributes:
        script: What is said; its usage is ours to say.
        writes: Fresh input is charged as written to the cache.
        read: For each request the tokens that were read, and those of its whole prompt.
    """

    script: Callable[[dict[str, Any]], Say]
    writes: bool = False
    read: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    _seen: dict[str, list[list[str]]] = field(default_factory=dict[str, list[list[str]]])

    def __call__(self, request: dict[str, Any]) -> Say:
        step = self.script(request)
        pieces = [_text(request.get("tools")), *map(_text, request["messages"])]
        earlier = self._seen.setdefault("".join(pieces[:3]), [])  # tools, system prompt and task: one run's
        common = max((_common(pieces, other) for other in earlier), default=0)
        earlier.append(pieces)
        prompt, cached = _tokens(pieces), _tokens(pieces[:common])
        self.read.append((cached, prompt))
        output = max(len(step.text) + sum(len(_text(call)) for call in step.calls), 1) // BYTES_PER_TOKEN + 1
        details = {"cached_tokens": cached, "cache_write_tokens": prompt - cached if self.writes else 0}
        usage = {"prompt_tokens": prompt, "completion_tokens": output, "prompt_tokens_details": details}
        return replace(step, usage=usage)


def _common(one: list[str], other: list[str]) -> int:
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))


def _tokens(pieces: list[str]) -> int:
    return sum(len(piece.encode()) for piece in pieces) // BYTES_PER_TOKEN


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@dataclass
class MarkedCache:
    """Answers as a script says, and counts as the API does.

    Attributes:
        script: What is said; its usage is ours to say.
        used: For each request the tokens read, written and fresh.
    """

    script: Callable[[dict[str, Any]], Say]
    used: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    _kept: set[str] = field(default_factory=set[str])

    def __call__(self, request: dict[str, Any]) -> Say:
        step = self.script(request)
        blocks = _blocks(request)
        bare = [_text({name: value for name, value in block.items() if name != "cache_control"}) for block in blocks]
        prefixes = ["\n".join(bare[: number + 1]) for number in range(len(bare))]
        marks = [number for number, block in enumerate(blocks) if "cache_control" in block]
        found = [
            at for mark in marks for at in range(mark, max(mark - LOOKS_BACK, -1), -1) if prefixes[at] in self._kept
        ]
        read = _tokens(bare[: max(found, default=-1) + 1])
        upto = _tokens(bare[: max(marks, default=-1) + 1])
        self._kept.update(prefixes[mark] for mark in marks)
        self.used.append((read, max(upto - read, 0), _tokens(bare) - max(upto, read)))
        read, written, fresh = self.used[-1]
        usage = {
            "input_tokens": fresh,
            "cache_read_input_tokens": read,
            "cache_creation_input_tokens": written,
            "output_tokens": max(len(str(step.calls)) // BYTES_PER_TOKEN, 1),
        }
        return replace(step, usage=usage)


def _blocks(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Everything that can be cached, in the order in which it counts: tools, system prompt, messages."""
    found = [*(request.get("tools") or []), *(request.get("system") or [])]
    for message in request["messages"]:
        found += [{"role": message["role"], **block} for block in message["content"]]
    return found


def write_files(workspace: Path) -> None:
    workspace.mkdir()
    for number in range(FILES):
        lines = "".join(f"file {number} line {line} says twelve cents\n" for line in range(LINES))
        (workspace / f"{number}.md").write_text(lines)


def left_out(messages: Sequence[dict[str, Any]]) -> list[str]:
    """The ids that stand in place of results, in order."""
    found = (LEFT_OUT.match(str(message["content"])) for message in messages if message["role"] == "tool")
    return [match[1] for match in found if match]


class Reader:
    """Reads file after file, takes a note now and then, then reads back what was left out, and hands over."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._back: list[str] | None = None

    def __call__(self, request: dict[str, Any]) -> Say:
        messages = request["messages"]
        turn = sum(message["role"] == "assistant" for message in messages)
        if turn % NOTE_EVERY == NOTE_EVERY - 1:
            return Say(calls=[("scratchpad", {"note": f"note {turn}: keep this"})])
        if turn < FILES:
            return Say(calls=[("read_file", {"path": f"{turn}.md"})])
        if self._back is None:
            self._back = left_out(messages)
        if self._back:
            self.asked.append(self._back.pop(0))
            return Say(calls=[("read_tool_result", {"id": self.asked[-1]})])
        return hand_over()
