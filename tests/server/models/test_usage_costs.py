"""What usage costs: as providers report it, read off the wire, and priced to the micro-dollar by the price table."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import ROUND_CEILING, Decimal
from typing import Any

import anyio
import pytest
from genai_prices import Usage as TheirUsage
from genai_prices import calc_price
from support.model_server import Say, run_model_server

from ava_audit.events import Usage
from ava_server.models.base import Completion, Request, UserTurn
from ava_server.models.clients import ClientPool
from ava_server.models.http_model import HttpModel
from ava_server.models.prices import Price, cost_by, cost_micros, look_up
from ava_server.models.selection import KNOWN_URLS
from ava_server.models.wires.base import Wire
from ava_server.models.wires.chat import ChatWire
from ava_server.models.wires.messages import MessagesWire

NOW = datetime(2026, 11, 20, tzinfo=UTC)


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


def tokens(fresh: int, output: int, read: int = 0, written: int = 0, thinking: int = 0) -> Usage:
    return Usage(
        input_tokens=fresh,
        output_tokens=output,
        cache_read_tokens=read,
        cache_write_tokens=written,
        thinking_tokens=thinking,
    )


EXAMPLES = [
    messages("claude-haiku-5-5", tokens(1_203, 87)),
    messages("claude-haiku-5-5", tokens(3, 512, read=98_000, written=411)),  # just within its cheaper step
    messages("claude-haiku-5-5", tokens(17, 512, read=99_700, written=4_003)),  # just above it
    messages("claude-sonnet-5-5", tokens(911, 8_191, thinking=7_777)),
    messages("claude-sonnet-5-5", tokens(1, 333, read=123_457, written=7_919)),
    messages("claude-opus-5-5", tokens(40_001, 1)),
    messages("claude-opus-5-5", tokens(7, 4_095, read=65_537, written=1_021, thinking=2_048)),
    messages("claude-haiku-4-5", tokens(0, 20, read=4_096)),
    messages("claude-sonnet-4-5", tokens(250_001, 999)),
    messages("claude-sonnet-4-5", tokens(13, 701, read=150_000, written=60_000)),
    chat("openrouter", "anthropic/claude-sonnet-5.5", tokens(1_000, 50, read=600, written=100)),
    chat("openrouter", "anthropic/claude-haiku-5.5", tokens(1_501, 77)),
    chat("openrouter", "anthropic/claude-opus-5.5", tokens(2, 4_000, read=30_011, written=5, thinking=3_999)),
    chat("openai", "gpt-6-luna", tokens(999, 1_001, thinking=640)),
    chat("openai", "gpt-6-luna", tokens(10_007, 101, read=280_000)),
    chat("openai", "gpt-6.1-terra", tokens(517, 64, read=1_024, thinking=64)),
    chat("openai", "gpt-6.1-sol", tokens(11, 1)),
    chat("groq", "openai/gpt-oss-120b", tokens(3_333, 222, thinking=111)),
    chat("groq", "openai/gpt-oss-20b", tokens(17, 7)),
    chat("groq", "openai/gpt-oss-120b", tokens(100, 1_000, read=5_000)),
]


def test_twenty_examples_cover_both_wires_and_every_token_class() -> None:
    assert len(EXAMPLES) >= 20
    assert {example.provider == "anthropic" for example in EXAMPLES} == {True, False}
    for name in Usage.model_fields:
        assert any(getattr(example.usage, name) for example in EXAMPLES), name


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
async def test_an_example_costs_what_the_price_table_gives_to_the_micro_dollar(example: Example) -> None:
    completion = await answered(example)
    usage = completion.usage
    assert usage == example.usage
    assert completion.cost_micros is None
    price = look_up(example.provider, example.model, base_url=KNOWN_URLS.get(example.provider), now=NOW)
    assert isinstance(price, Price), price
    theirs = calc_price(
        TheirUsage(
            input_tokens=usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens,
            cache_read_tokens=usage.cache_read_tokens,
            cache_write_tokens=usage.cache_write_tokens,
            output_tokens=usage.output_tokens,
        ),
        example.model,
        provider_id=example.provider,
        genai_request_timestamp=NOW,
    ).total_price
    ours = cost_micros(price, usage)
    assert ours == int((theirs * 1_000_000).to_integral_value(ROUND_CEILING))
    assert sum(cost_by(price, usage, ours).values()) == ours


async def test_a_reported_cost_takes_precedence_over_any_price_table() -> None:
    cost = 0.0012345
    example = chat("openrouter", "anthropic/claude-sonnet-5.5", tokens(1_000, 50), cost=cost)
    completion = await answered(example)
    assert completion.cost_micros == int((Decimal(str(cost)) * 1_000_000).to_integral_value(ROUND_CEILING)) == 1_235


@pytest.mark.parametrize("example", [EXAMPLES[1], EXAMPLES[10]], ids=str)
async def test_an_unstreamed_answer_has_the_same_figures(example: Example) -> None:
    assert (await answered(example, streaming=False)).usage == example.usage


async def answered(example: Example, *, streaming: bool = True) -> Completion:
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
