"""What the runs of a plan pay for the beginning of their prompts, at a server that caches as providers document it.

    python benchmarks/prefix_cache.py [--runs 5] [--first-byte 0.8]

The server answers each wire as its provider's documentation says: nothing shorter than the model's minimum is cached;
what is written can be read once the first answer has begun, and for five minutes after its last use; Anthropic matches
at marks and up to 20 blocks before them, OpenAI from GPT-5.6 on at breakpoints and after the newest message, older
models and Google any beginning. A token has four bytes. Each plan has one step over a list; its runs read a file and
hand over a result, five at once. Shown for the runs after the first (`alone`: for one run that shares nothing): tokens
of the prompt that the first call does not read from the cache, cost of a run, and seconds until the plan's end. Goal:
at least 80 % fewer such tokens where the minimum is reached, and no higher cost of a single run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import anyio

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.model_server import Gate, Say, run_model_server
from support.runtime import PRICED, open_lab, submit

from ava_server.models import factory
from ava_server.runs.turn import prompt_prefix

BYTES_PER_TOKEN, KEPT_S, LOOKS_BACK = 4, 300.0, 20
LIST = {"type": "object", "properties": {"items": {"type": "array", "items": {"type": "string"}}}}
Matching = Literal["marks", "breakpoints", "any"]


@dataclass(frozen=True)
class Provider:
    """A wire and a model, with its minimum, how its cache matches, and what it charges for a write."""

    wire: str
    model: str
    least: int
    matching: Matching
    write: float


PROVIDERS = (
    Provider("messages", "claude-sonnet-5-5", 1_024, "marks", 3.75),
    Provider("messages", "claude-haiku-4-5", 4_096, "marks", 3.75),
    Provider("responses", "gpt-6.1-terra", 1_024, "breakpoints", 3.75),
    Provider("chat_completions", "gpt-5.2", 1_024, "any", 3.0),
    Provider("google", "gemini-2.5-flash", 2_048, "any", 3.0),
    Provider("google", "gemini-3.8-flash", 4_096, "any", 3.0),
)


@dataclass
class CachingServer:
    """Answers the runs, and counts as the provider does.

    Attributes:
        first_calls: Of each run's first call the tokens that were read, and those of its prompt.
    """

    provider: Provider
    items: int
    first_byte_s: float
    first_calls: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    _kept: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, request: dict[str, Any]) -> Say:
        text = json.dumps(request)
        with self._lock:
            read, written, prompt = self._count(request)
        if "List the modules" in text:
            say = submit({"items": [f"module {number}" for number in range(self.items)]})
        elif "twelve cents" in text:
            say = submit("It costs twelve cents.")
        else:
            self.first_calls.append((read, prompt))
            say = Say(calls=[("read_file", {"path": "prices.md"})])
        return replace(say, usage=self._usage(read, written, prompt), gate=Gate(self.first_byte_s))

    def _count(self, request: dict[str, Any]) -> tuple[int, int, int]:
        """Return the tokens of a prompt that the cache had, those that it writes now, and all."""
        blocks = list(blocks_of(request))
        last = len(blocks) - 1
        prefixes: list[str] = []  # the text up to each block, and its tokens
        ends: list[int] = []
        texts: list[str] = []
        tokens = 0
        for text, _is_marked in blocks:
            texts.append(text)
            prefixes.append("\n".join(texts))
            tokens += len(text.encode()) // BYTES_PER_TOKEN
            ends.append(tokens)
        marks = [at for at, (_text, is_marked) in enumerate(blocks) if is_marked]
        lookups: list[int] = []
        match self.provider.matching:
            case "marks":
                for mark in marks:
                    lookups += range(mark, max(mark - LOOKS_BACK, -1), -1)
            case "breakpoints":
                marks, lookups = sorted({*marks, last}), list(range(len(blocks)))  # only breakpoints are kept
            case "any":
                marks = lookups = list(range(len(blocks)))
        now = time.monotonic()
        hits = [at for at in lookups if self._readable(prefixes[at], now)]
        read = ends[max(hits)] if hits else 0
        stored = [at for at in marks if ends[at] >= self.provider.least]
        for at in stored:
            begins = self._kept.get(prefixes[at], [now + self.first_byte_s])[0]
            self._kept[prefixes[at]] = [begins, max(begins, now) + KEPT_S]
        kept = ends[max(stored)] if stored else 0
        return read, max(kept - read, 0), ends[-1]

    def _readable(self, prefix: str, now: float) -> bool:
        begins, until = self._kept.get(prefix, (now + 1, 0.0))
        return begins <= now < until

    def _usage(self, read: int, written: int, prompt: int) -> dict[str, Any]:
        match self.provider.wire:
            case "messages":
                return {
                    "input_tokens": prompt - read - written,
                    "cache_read_input_tokens": read,
                    "cache_creation_input_tokens": written,
                    "output_tokens": 40,
                }
            case "responses":
                details = {"cached_tokens": read, "cache_write_tokens": written}
                return {"input_tokens": prompt, "input_tokens_details": details, "output_tokens": 40}
            case "google":
                counts = {"promptTokenCount": prompt, "cachedContentTokenCount": read, "candidatesTokenCount": 40}
                return {**counts, "totalTokenCount": prompt + 40}
            case _:
                return {
                    "prompt_tokens": prompt,
                    "completion_tokens": 40,
                    "total_tokens": prompt + 40,
                    "prompt_tokens_details": {"cached_tokens": read},
                }


def blocks_of(request: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield what a prompt is made of, in the order in which it counts, and whether a cache is marked after it."""
    system = request.get("system")
    if not system:  # only Anthropic's requests have it
        system = [{"text": request.get("instructions") or ""}, *google_parts(request)]
    turns = request.get("messages") or request.get("input") or request.get("contents") or []
    for tool in request.get("tools") or []:
        yield plain(tool)
    for part in system:
        yield plain(part)
    for turn in turns:
        content = turn.get("content") or turn.get("parts") or turn
        if isinstance(content, list):
            for part in content:
                yield plain(part)
        else:
            yield plain(content)


def google_parts(request: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return (request.get("systemInstruction") or {}).get("parts", [])


def plain(block: Mapping[str, Any] | str) -> tuple[str, bool]:
    """Return a block as text without its mark, and whether it has one."""
    if isinstance(block, str):
        return block, False
    bare = {name: value for name, value in block.items() if name not in ("cache_control", "prompt_cache_breakpoint")}
    return str(bare.get("text") or json.dumps(bare)), len(bare) < len(block)


@dataclass(frozen=True)
class Measured:
    """What the runs of one plan paid."""

    unread: list[int]  # of each first call, in the order of arrival
    prompt: int
    cost_micros: list[int]
    took_s: float


@contextmanager
def at_once() -> Iterator[None]:
    """Let no run wait for another."""
    kept, prompt_prefix.WAIT_S = prompt_prefix.WAIT_S, 0.0
    try:
        yield
    finally:
        prompt_prefix.WAIT_S = kept


async def measure(provider: Provider, runs: int, first_byte_s: float) -> Measured:
    caching = CachingServer(provider, runs, first_byte_s)
    price = PRICED.replace("custom:test", f"custom:{provider.model}").replace("3.75", str(provider.write))
    limits = "\n[limits]\nrunning = 8\nrunning_per_user = 8\n"
    config = f'[providers.custom]\nwire = "{provider.wire}"\n{price}{limits}'
    steps = [
        {
            "id": "find",
            "role": "custom",
            "system_prompt": "You list.",
            "task": "List the modules.",
            "output_schema": LIST,
        },
        {"id": "read", "role": "researcher", "foreach": "find.items", "at_most": runs, "task": "Price of {{item}}?"},
    ]
    with tempfile.TemporaryDirectory() as place, run_model_server(caching) as server:
        async with open_lab(Path(place), server=server, config=config, env={"AVA_MODEL": provider.model}) as lab:
            (lab.workspace / "prices.md").write_text("All modules cost twelve cents.\n")
            proposal = await lab.call("spawn_subagent", workspace=str(lab.workspace), steps=steps)
            assert proposal.status == "awaiting_approval", proposal.message
            approved = await lab.approve(proposal)
            assert approved.status == "approved", approved
            began = time.perf_counter()
            plan = await lab.ended(proposal.group_id)
            took_s = time.perf_counter() - began
            assert plan.state == "success", plan.stop_reason
            rows = await lab.store.read(lambda view: view.step_runs(plan.id))
            costs = [(await lab.run(row.id)).cost_micros for row in rows if row.step == "read"]
    unread = [prompt - read for read, prompt in caching.first_calls]
    return Measured(unread, caching.first_calls[0][1], sorted(costs, reverse=True), took_s)


def line(name: str, measured: Measured, alone: Measured) -> str:
    later = measured.unread[1:] or measured.unread
    costs = measured.cost_micros[1:] or measured.cost_micros
    fewer = 1 - max(later) / alone.unread[0]
    return (
        f"{name:12} {measured.prompt:6,} {statistics.mean(later):8,.0f} {max(later):8,} {fewer:7.0%}"
        f" {statistics.mean(costs) / 10_000:8.2f} {measured.took_s:6.1f}"
    )


async def main(runs: int, first_byte_s: float) -> None:
    factory._OPENAI = "127.0.0.1"  # breakpoints are sent to OpenAI's own address only
    print(f"{runs} runs, first byte after {first_byte_s} s")
    for provider in PROVIDERS:
        print(f"\n{provider.model} ({provider.wire}, least {provider.least:,} tokens)")
        print(f"{'':12} {'prompt':>6} {'unread':>8} {'most':>8} {'fewer':>7} {'cents':>8} {'s':>6}")
        alone = await measure(provider, 1, first_byte_s)
        with at_once():
            together = await measure(provider, runs, first_byte_s)
        after = await measure(provider, runs, first_byte_s)
        for name, measured in (("alone", alone), ("at once", together), ("first, rest", after)):
            print(line(name, measured, alone))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--first-byte", type=float, default=0.8)
    given = parser.parse_args()
    anyio.run(main, given.runs, given.first_byte)
