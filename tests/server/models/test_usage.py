from typing import Any

import pytest

from ava_audit.events import Usage
from ava_server.models.usage import read_usage

PLAIN = {"prompt_tokens": 100, "completion_tokens": 20}


@pytest.mark.parametrize(
    ("reported", "usage"),
    [
        (PLAIN, Usage(input_tokens=100, output_tokens=20)),
        (
            {**PLAIN, "prompt_tokens_details": None, "completion_tokens_details": {}},
            Usage(input_tokens=100, output_tokens=20),
        ),
        (
            {**PLAIN, "prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 10}},
            Usage(input_tokens=30, cache_read_tokens=60, cache_write_tokens=10, output_tokens=20),
        ),
        (
            {**PLAIN, "completion_tokens_details": {"reasoning_tokens": 15}},
            Usage(input_tokens=100, output_tokens=20, thinking_tokens=15),
        ),
        (
            {**PLAIN, "completion_tokens_details": {"reasoning_tokens": 15}, "total_tokens": 135},
            Usage(input_tokens=100, output_tokens=35, thinking_tokens=15),
        ),
        (
            {**PLAIN, "completion_tokens_details": {"reasoning_tokens": 50}},
            Usage(input_tokens=100, output_tokens=70, thinking_tokens=50),
        ),
        (
            {**PLAIN, "prompt_cache_hit_tokens": 40},
            Usage(input_tokens=60, cache_read_tokens=40, output_tokens=20),
        ),
        (
            {**PLAIN, "prompt_tokens_details": {"cached_tokens": 600}},
            Usage(input_tokens=100, cache_read_tokens=600, output_tokens=20),
        ),
        ({"prompt_tokens": 1.0, "completion_tokens": 0}, Usage(input_tokens=1)),
        ({"prompt_tokens": True, "completion_tokens": 0}, None),
        ({"prompt_tokens": 1.5, "completion_tokens": 0}, None),
        ({**PLAIN, "prompt_tokens_details": {"cached_tokens": -1}}, None),
        ({**PLAIN, "completion_tokens": 10**9 + 1}, None),
    ],
)
def test_tokens_are_read_by_class(reported: dict[str, Any], usage: Usage | None) -> None:
    found, cost, _ = read_usage(reported)
    assert found == usage
    assert cost is None


@pytest.mark.parametrize(
    ("reported", "micros"),
    [
        ({"cost": 0.00014}, 140),
        ({"cost": 0.0000001}, 1),
        ({"cost": 0}, 0),
        ({"cost": 2}, 2_000_000),
        ({"cost": None}, None),
        ({"cost": 0.1, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.2}}, 300_000),
        ({"cost": 0.1, "is_byok": False, "cost_details": {"upstream_inference_cost": 0.2}}, 100_000),
    ],
)
def test_the_providers_own_cost_is_read_to_the_micro_dollar(
    reported: dict[str, Any], micros: int | None
) -> None:
    assert read_usage({**PLAIN, **reported})[1] == micros


@pytest.mark.parametrize("cost", [float("nan"), float("inf"), -1, 10**30, "0.1", True])
def test_a_cost_that_cannot_be_is_noted_and_not_counted(cost: object) -> None:
    usage, micros, notes = read_usage({**PLAIN, "cost": cost})
    assert usage == Usage(input_tokens=100, output_tokens=20)
    assert micros is None
    assert notes == (f"reported cost not counted: {str(cost)[:40]}",)
