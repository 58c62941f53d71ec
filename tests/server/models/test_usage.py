from typing import Any

import pytest

from ava_audit.events import Usage
from ava_server.models.base import MoreUsage
from ava_server.models.tokens import CachePlace, merge_usage, read_usage, shown_bytes

PLAIN = {"prompt_tokens": 100, "completion_tokens": 20}


def read(
    reported: dict[str, Any] | None, sent_bytes: int = 400, *, has_content: bool = True
) -> tuple[Usage | None, int | None, tuple[str, ...]]:
    return read_usage(reported, sent_bytes=sent_bytes, has_content=has_content)


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
        ({"prompt_tokens": 90.0, "completion_tokens": 1}, Usage(input_tokens=90, output_tokens=1)),
        ({"prompt_tokens": True, "completion_tokens": 1}, None),
        ({"prompt_tokens": 90.5, "completion_tokens": 1}, None),
        ({**PLAIN, "prompt_tokens_details": {"cached_tokens": -1}}, None),
        ({**PLAIN, "completion_tokens": 10**9 + 1}, None),
    ],
)
def test_reads_tokens_by_class(reported: dict[str, Any], usage: Usage | None) -> None:
    found, cost, _ = read(reported)
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
        ({"cost": {"input_tokens_cost": 0.001, "request_cost": 0.005, "total_cost": 0.006}}, 6_000),
        ({"cost": {"currency": "USD"}}, None),
        ({"cost": 0.1, "is_byok": False, "cost_details": {"upstream_inference_cost": 0.2}}, 100_000),
    ],
)
def test_reads_the_reported_cost_to_the_micro_dollar(reported: dict[str, Any], micros: int | None) -> None:
    assert read({**PLAIN, **reported})[1] == micros


@pytest.mark.parametrize("cost", [float("nan"), float("inf"), -1, 10**30, "0.1", True])
def test_ignores_an_impossible_cost_and_notes_it(cost: object) -> None:
    usage, micros, notes = read({**PLAIN, "cost": cost})
    assert usage == Usage(input_tokens=100, output_tokens=20)
    assert micros is None
    assert notes == (f"reported cost not counted: {str(cost)[:40]}",)


@pytest.mark.parametrize(
    ("reported", "sent_bytes", "said"),
    [
        ({"prompt_tokens": 0, "completion_tokens": 20}, 9, "a prompt of 0 tokens for 9 bytes of text"),
        ({"prompt_tokens": 1, "completion_tokens": 20}, 8_000, "a prompt of 1 tokens for 8,000 bytes of text"),
        ({"prompt_tokens": 499, "completion_tokens": 20}, 8_000, "a prompt of 499 tokens for 8,000 bytes of text"),
        ({"prompt_tokens": 500, "completion_tokens": 0}, 8_000, "0 tokens for an answer that is not empty"),
        ({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}, 9, "a prompt of 0 tokens"),
    ],
)
def test_ignores_usage_too_small_to_be_true(reported: dict[str, Any], sent_bytes: int, said: str) -> None:
    usage, cost, notes = read({**reported, "cost": 0.01}, sent_bytes)
    assert usage is None
    assert cost == 10_000
    assert any(note.startswith("usage not counted: ") and said in note for note in notes), notes


def test_accepts_the_smallest_plausible_usage() -> None:
    assert read({"prompt_tokens": 500, "completion_tokens": 1}, 8_000)[0] == Usage(input_tokens=500, output_tokens=1)


def test_cached_tokens_reported_beside_the_prompt_count_as_sent() -> None:
    beside = {"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 600}}
    assert read(beside, 8_000)[0] == Usage(input_tokens=5, cache_read_tokens=600, output_tokens=1)


@pytest.mark.parametrize("sign", ["-", " ", "=", "\n", "─", "."])
def test_a_prompt_of_dashes_or_blanks_may_have_few_tokens(sign: str) -> None:
    prompt = {"role": "user", "content": f"Hello{sign * 50_000}world"}
    size = len(prompt["content"].encode())
    reported = {"prompt_tokens": size // 100, "completion_tokens": 1}
    few = read_usage(reported, sent_bytes=size, has_content=True, seen=lambda: shown_bytes([prompt]))
    assert few[0] == Usage(input_tokens=size // 100, output_tokens=1)
    words = {"role": "user", "content": "Twelve cents a minute. " * (size // 20)}
    none = read_usage(reported, sent_bytes=size, has_content=True, seen=lambda: shown_bytes([words]))
    assert none[0] is None


def test_a_thought_in_several_parts_of_an_answer_counts_as_no_prompt() -> None:
    pieces = [f"<think>{'so ' * 500}", "and so on</think>", "Hi."]
    parts = {"role": "assistant", "content": [{"type": "text", "text": piece} for piece in pieces]}
    assert shown_bytes([parts]) == len("Hi.")
    hidden = {"role": "model", "parts": [{"text": "so", "thought": True}, {"text": "Hi."}]}
    assert shown_bytes([hidden]) == len("Hi.")


def test_an_empty_answer_may_report_zero_tokens() -> None:
    empty = read({"prompt_tokens": 100, "completion_tokens": 0}, has_content=False)
    assert empty == (Usage(input_tokens=100), None, ())


@pytest.mark.parametrize("details", [None, {}, {"upstream_inference_cost": None}])
def test_ignores_a_byok_gateway_fee_without_the_upstream_cost(details: Any) -> None:
    usage, micros, notes = read({**PLAIN, "cost": 0, "is_byok": True, "cost_details": details})
    assert usage == Usage(input_tokens=100, output_tokens=20)
    assert micros is None
    assert notes == ("reported cost not counted: it is without the upstream provider's",)


@pytest.mark.parametrize("name", ["prompt_tokens", "cost"])
def test_a_note_about_any_figure_can_be_stored(name: str) -> None:
    _, _, notes = read({**PLAIN, name: "\ud800" * 99})
    assert "\ufffd" in notes[0]
    assert "".join(notes).encode()


@pytest.mark.parametrize(
    ("known", "said", "both"),
    [
        (None, PLAIN, PLAIN),
        (PLAIN, {"prompt_tokens": 100, "completion_tokens": 30}, {"prompt_tokens": 100, "completion_tokens": 30}),
        (PLAIN, {"prompt_tokens": 90, "completion_tokens": 30}, {"prompt_tokens": 100, "completion_tokens": 30}),
        ({**PLAIN, "cost": 0.5}, PLAIN, {**PLAIN, "cost": 0.5}),
        ({**PLAIN, "cost": 0.5}, {**PLAIN, "cost": None}, {**PLAIN, "cost": 0.5}),
        (PLAIN, {**PLAIN, "completion_tokens": -1}, {**PLAIN, "completion_tokens": -1}),
        ({**PLAIN, "completion_tokens": "many"}, PLAIN, PLAIN),
    ],
)
def test_merging_two_usage_reports_never_lowers_a_figure(
    known: dict[str, Any] | None, said: dict[str, Any], both: dict[str, Any]
) -> None:
    assert merge_usage(known and {**known}, said) == both


@pytest.mark.parametrize(
    ("reported", "usage", "said"),
    [
        (
            {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 105},
            Usage(input_tokens=9, output_tokens=96, thinking_tokens=93),
            "93 more tokens than its parts: counted as output",
        ),
        (
            {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 5_009},
            Usage(input_tokens=9, output_tokens=256, thinking_tokens=253),
            "4,997 more tokens than its parts: 253 counted as output",
        ),
        (
            {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 10},
            Usage(input_tokens=9, output_tokens=3),
            None,
        ),
        (
            {
                "prompt_tokens": 100,
                "completion_tokens": 20,
                "total_tokens": 180,
                "prompt_tokens_details": {"cached_tokens": 60},
            },
            Usage(input_tokens=100, cache_read_tokens=60, output_tokens=20),
            "beside the prompt",
        ),
        (
            {
                "prompt_tokens": 100,
                "completion_tokens": 20,
                "total_tokens": 120,
                "prompt_tokens_details": {"cached_tokens": 90, "cache_write_tokens": 90},
            },
            Usage(input_tokens=10, cache_write_tokens=90, output_tokens=20),
            "the same tokens",
        ),
        (
            {
                "prompt_tokens": 43,
                "completion_tokens": 10,
                "total_tokens": 53,
                "completion_tokens_details": {"reasoning_tokens": 11},
            },
            Usage(input_tokens=43, output_tokens=11, thinking_tokens=11),
            None,
        ),
        ({**PLAIN, "num_cached_tokens": 64}, Usage(input_tokens=36, cache_read_tokens=64, output_tokens=20), None),
        ({**PLAIN, "cached_tokens": 64}, Usage(input_tokens=36, cache_read_tokens=64, output_tokens=20), None),
    ],
)
def test_parts_that_do_not_add_up_follow_the_total(reported: dict[str, Any], usage: Usage, said: str | None) -> None:
    found, _, notes = read_usage(reported, sent_bytes=100, has_content=True, most_output=256)
    assert found == usage
    assert (said is None and not notes) or (said is not None and said in " ".join(notes))


def test_the_envelope_and_earlier_thinking_count_as_no_prompt() -> None:
    thought = "<think>" + "so " * 500 + "</think>"
    parts = [{"role": "assistant", "content": f"{thought}Hi."}, {"role": "user", "content": "hello"}]
    assert shown_bytes(parts) == len("Hi.hello")
    few = {"prompt_tokens": 3, "completion_tokens": 1}
    found, _, notes = read_usage(few, sent_bytes=2_000, has_content=True, seen=lambda: shown_bytes(parts))
    assert (found, notes) == (Usage(input_tokens=3, output_tokens=1), ())
    found, _, notes = read_usage(few, sent_bytes=2_000, has_content=True, seen=lambda: 1_600)
    assert found is None and "1,600 bytes of text" in notes[0]


GROK = {
    "prompt_tokens": 249,
    "completion_tokens": 40,
    "total_tokens": 289,
    "prompt_tokens_details": {"cached_tokens": 158},
}
"""As Azure's Grok reports it: neither its prompt nor its total has the cached tokens."""
IN_PROMPT = Usage(input_tokens=91, cache_read_tokens=158, output_tokens=40)
BESIDE = Usage(input_tokens=249, cache_read_tokens=158, output_tokens=40)


def read_with(cache: CachePlace, reported: dict[str, Any]) -> Usage | None:
    return read_usage(reported, sent_bytes=2_000, has_content=True, cache=cache)[0]


def test_of_an_ambiguous_first_answer_the_dearer_reading_is_booked_besides() -> None:
    cache = CachePlace(uncertain=True)
    assert read_with(cache, GROK) == IN_PROMPT
    assert cache.dearer(IN_PROMPT) == MoreUsage(prompt_tokens=158, output_tokens=0)
    assert cache.dearer(IN_PROMPT) is None, "it is no first answer"
    assert CachePlace().dearer(IN_PROMPT) is None
    assert CachePlace(uncertain=True).dearer(Usage(input_tokens=249, output_tokens=40)) is None


def test_a_cache_once_seen_beside_the_prompt_stays_beside_it() -> None:
    cache = CachePlace()
    clearly = {**GROK, "prompt_tokens": 60, "total_tokens": 100, "prompt_tokens_details": {"cached_tokens": 384}}
    assert read_with(cache, clearly) == Usage(input_tokens=60, cache_read_tokens=384, output_tokens=40)
    assert read_with(cache, GROK) == BESIDE
    assert read_with(cache, {**GROK, "prompt_tokens_details": None}) == Usage(input_tokens=249, output_tokens=40)
