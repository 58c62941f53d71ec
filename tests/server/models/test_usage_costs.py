"""What usage costs: as providers report it, read off the wire, and priced to the micro-dollar by the price table."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import ROUND_CEILING, Decimal

import pytest
from genai_prices import Usage as TheirUsage
from genai_prices import calc_price
from support.models.usage_examples import EXAMPLES, Example, answer_to, chat, tokens_of

from ava_audit.events import Usage
from ava_server.models.model_choice import KNOWN_URLS
from ava_server.models.prices import Price, cost_by, cost_micros, look_up

NOW = datetime(2026, 11, 20, tzinfo=UTC)


def test_twenty_examples_cover_both_wires_and_every_token_class() -> None:
    assert len(EXAMPLES) >= 20
    assert {example.provider == "anthropic" for example in EXAMPLES} == {True, False}
    for name in Usage.model_fields:
        assert any(getattr(example.usage, name) for example in EXAMPLES), name


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
async def test_an_example_costs_what_the_price_table_gives_to_the_micro_dollar(example: Example) -> None:
    completion = await answer_to(example)
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
    example = chat("openrouter", "anthropic/claude-sonnet-5.5", tokens_of(1_000, 50), cost=cost)
    completion = await answer_to(example)
    assert completion.cost_micros == int((Decimal(str(cost)) * 1_000_000).to_integral_value(ROUND_CEILING)) == 1_235


@pytest.mark.parametrize("example", [EXAMPLES[1], EXAMPLES[10]], ids=str)
async def test_an_unstreamed_answer_has_the_same_figures(example: Example) -> None:
    assert (await answer_to(example, streaming=False)).usage == example.usage
