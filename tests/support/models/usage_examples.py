"""Usage as providers report it, and the tokens by class that it means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import anyio

from ava_audit.events import Usage
from ava_server.models.base import Completion, Request, UserTurn
from ava_server.models.http_clients import ClientPool
from ava_server.models.http_model import HttpModel
from ava_server.models.wires.chat import ChatWire
from ava_server.models.wires.messages import MessagesWire
from ava_server.models.wires.wire import Wire
from support.model_server import Say, run_model_server


@dataclass(frozen=True)
class Example:
    """A provider's usage, and the tokens by class that it means."""

    provider: str
    model: str
    reported: dict[str, Any]
    usage: Usage

    def __str__(self) -> str:
        return f"{self.provider}:{self.model}"


def chat(provider: str, model: str, usage: Usage, **details: Any) -> Example:
    """An example in the names of chat completions, where the prompt has the cached tokens in it."""
    prompt = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
    reported: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": usage.output_tokens}
    if usage.cache_read_tokens or usage.cache_write_tokens:
        cached = {"cached_tokens": usage.cache_read_tokens, "cache_write_tokens": usage.cache_write_tokens}
        reported["prompt_tokens_details"] = cached
    if usage.thinking_tokens:
        reported["completion_tokens_details"] = {"reasoning_tokens": usage.thinking_tokens}
    return Example(provider, model, {**reported, "total_tokens": prompt + usage.output_tokens, **details}, usage)


def messages(model: str, usage: Usage) -> Example:
    """An example in the names of Anthropic Messages, where the cached tokens stand beside the fresh ones."""
    reported: dict[str, Any] = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
    if usage.cache_read_tokens or usage.cache_write_tokens:
        reported["cache_read_input_tokens"] = usage.cache_read_tokens
        reported["cache_creation_input_tokens"] = usage.cache_write_tokens
        hours = {"ephemeral_5m_input_tokens": usage.cache_write_tokens, "ephemeral_1h_input_tokens": 0}
        reported["cache_creation"] = hours
    if usage.thinking_tokens:
        reported["output_tokens_details"] = {"thinking_tokens": usage.thinking_tokens}
    return Example("anthropic", model, reported, usage)


def tokens_of(fresh: int, output: int, read: int = 0, written: int = 0, thinking: int = 0) -> Usage:
    """Return tokens by class."""
    return Usage(
        input_tokens=fresh,
        output_tokens=output,
        cache_read_tokens=read,
        cache_write_tokens=written,
        thinking_tokens=thinking,
    )


EXAMPLES = [
    messages("claude-haiku-5-5", tokens_of(1_203, 87)),
    messages("claude-haiku-5-5", tokens_of(3, 512, read=98_000, written=411)),  # just within its cheaper step
    messages("claude-haiku-5-5", tokens_of(17, 512, read=99_700, written=4_003)),  # just above it
    messages("claude-sonnet-5-5", tokens_of(911, 8_191, thinking=7_777)),
    messages("claude-sonnet-5-5", tokens_of(1, 333, read=123_457, written=7_919)),
    messages("claude-opus-5-5", tokens_of(40_001, 1)),
    messages("claude-opus-5-5", tokens_of(7, 4_095, read=65_537, written=1_021, thinking=2_048)),
    messages("claude-haiku-4-5", tokens_of(0, 20, read=4_096)),
    messages("claude-sonnet-4-5", tokens_of(250_001, 999)),
    messages("claude-sonnet-4-5", tokens_of(13, 701, read=150_000, written=60_000)),
    chat("openrouter", "anthropic/claude-sonnet-5.5", tokens_of(1_000, 50, read=600, written=100)),
    chat("openrouter", "anthropic/claude-haiku-5.5", tokens_of(1_501, 77)),
    chat("openrouter", "anthropic/claude-opus-5.5", tokens_of(2, 4_000, read=30_011, written=5, thinking=3_999)),
    chat("openai", "gpt-6-luna", tokens_of(999, 1_001, thinking=640)),
    chat("openai", "gpt-6-luna", tokens_of(10_007, 101, read=280_000)),
    chat("openai", "gpt-6.1-terra", tokens_of(517, 64, read=1_024, thinking=64)),
    chat("openai", "gpt-6.1-sol", tokens_of(11, 1)),
    chat("groq", "openai/gpt-oss-120b", tokens_of(3_333, 222, thinking=111)),
    chat("groq", "openai/gpt-oss-20b", tokens_of(17, 7)),
    chat("groq", "openai/gpt-oss-120b", tokens_of(100, 1_000, read=5_000)),
]


async def answer_to(example: Example, *, streaming: bool = True) -> Completion:
    """The answer of a server that reports the example's usage, as the provider's wire reads it."""
    wire: Wire = MessagesWire(streaming) if example.provider == "anthropic" else ChatWire(streaming)
    request = Request(example.model, "", (), (UserTurn("x"),), 16)
    with anyio.fail_after(20), run_model_server([Say("word", usage=example.reported)]) as server:
        async with ClientPool() as clients:
            model = HttpModel(example.provider, example.model, server.base_url, None, clients, wire)
            async with model.stream(request) as stream:
                async for _ in stream:
                    pass
            return stream.completion
