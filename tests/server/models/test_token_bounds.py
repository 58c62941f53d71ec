import json
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ava_server.models import tokens as bounds
from ava_server.models.base import AssistantTurn, ReportedUsage, Request, ToolSchema, ToolTurn, Turn, UserTurn
from ava_server.models.tokens import bound, prompt_bound, text_bound
from ava_server.models.wires.base import tool_use
from ava_server.models.wires.chat import assistant_message, message

TOOL = ToolSchema("fetch", "Gets a page.", {"type": "object", "properties": {"url": {"type": "string"}}})
texts = st.text(max_size=200)
turns = st.one_of(
    st.builds(UserTurn, texts),
    st.builds(ToolTurn, st.just("c"), st.just("fetch"), texts),
    st.builds(
        lambda text, args: AssistantTurn(assistant_message(text, [tool_use("c", "fetch", args)])),
        texts,
        texts,
    ),
)
histories = st.lists(turns, min_size=1, max_size=6)


def answer(text: str, args: str) -> AssistantTurn:
    return AssistantTurn(assistant_message(text, [tool_use("c", "fetch", args)]))


def request(history: list[Turn], tools: tuple[ToolSchema, ...] = (TOOL,)) -> Request:
    return Request("m", "You are terse.", tools, tuple(history), 512)


@given(texts)
def test_the_bound_of_a_text_is_at_least_its_byte_length_in_every_encoding(text: str) -> None:
    counted = text_bound(text)
    whole = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    assert counted >= len(whole.encode()) or whole != text
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        assert counted >= len(unicodedata.normalize(form, text).encode("utf-8", "surrogatepass"))
    escaped = json.dumps(text)[1:-1]
    assert counted >= len(escaped) - sum(text.count(char) for char in '"\\\n\r\t\b\f') - 5 * sum(
        ord(char) < 32 for char in text
    )


@given(texts, texts)
def test_text_bounds_add_up(one: str, other: str) -> None:
    assert text_bound(one + other) == text_bound(one) + text_bound(other)


@given(st.text(alphabet=st.characters(max_codepoint=127), max_size=200))
def test_the_ascii_fast_path_matches_the_general_path(text: str) -> None:
    assert text_bound(text + "é") - text_bound("é") == text_bound(text)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("ab", 2),
        ("<", 6),
        ("\x7f", 6),
        ("é", 6),
        ("\U0001f600", 12),
        ("\ufdfa", 33),
        ("\U000e0fff", 44),
        ("\ud800", 6),
    ],
)
def test_counts_a_character_in_its_longest_encoding(text: str, tokens: int) -> None:
    assert text_bound(text) == tokens


@given(histories, turns)
def test_a_longer_history_never_lowers_the_bound(history: list[Turn], added: Turn) -> None:
    shorter, longer = request(history), request([*history, added])
    assert bound(longer, message, None).prompt_tokens > bound(shorter, message, None).prompt_tokens
    known = ReportedUsage(100, len(history))
    assert bound(longer, message, known).prompt_tokens > bound(shorter, message, known).prompt_tokens


@given(histories)
def test_the_bound_of_a_request_is_at_least_the_bytes_of_its_messages_and_tools(history: list[Turn]) -> None:
    asked = request(history)
    sent = [json.dumps(message(turn), ensure_ascii=False) for turn in history]
    shown = json.dumps([{"type": "function", "name": TOOL.name, "parameters": TOOL.parameters}], indent=4)
    at_least = sum(len(text.encode("utf-8", "replace")) for text in (*sent, shown, asked.system))
    assert bound(asked, message, None).prompt_tokens >= at_least
    assert bound(asked, message, None).output_tokens == 512


@given(histories, st.integers(0, 10**6), st.data())
def test_reported_usage_replaces_the_estimate_of_the_turns_it_covers(
    history: list[Turn], tokens: int, data: st.DataObject
) -> None:
    covered = data.draw(st.integers(0, len(history)))
    counted = bound(request(history), message, ReportedUsage(tokens, covered)).prompt_tokens
    assert counted >= tokens
    added = prompt_bound([json.dumps(message(turn), ensure_ascii=False) for turn in history[covered:]])
    rendered = prompt_bound([json.dumps(message(turn), ensure_ascii=False) for turn in history[:covered]])
    assert counted <= tokens + added + rendered


def test_counts_the_escapes_that_templates_add_to_an_answer() -> None:
    def with_answer(text: str) -> int:
        history: list[Turn] = [UserTurn("x"), AssistantTurn(assistant_message(text))]
        return bound(request(history), message, ReportedUsage(1000, 2)).prompt_tokens

    assert with_answer("plain") == 1000 + bounds.MESSAGE_TOKENS
    assert with_answer("<<") == with_answer("plain") + 10


def test_counts_a_tool_schema_indented_as_templates_render_it() -> None:
    deep: dict[str, Any] = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(40)}}
    tool = ToolSchema("deep", "Deep.", deep)
    with_tool = bound(request([UserTurn("x")], (tool,)), message, None).prompt_tokens
    without = bound(request([UserTurn("x")], ()), message, None).prompt_tokens
    assert with_tool - without > len(json.dumps(deep, indent=4))


@pytest.mark.parametrize("reported", [0, 1, 7])
def test_an_implausibly_small_report_does_not_lower_the_next_bound(reported: int) -> None:
    long: list[Turn] = [UserTurn("x" * 16_000), answer("y" * 16_000, "{}")]
    counted = bound(request([*long, UserTurn("and now?")]), message, ReportedUsage(reported, 2)).prompt_tokens
    assert counted > 2_000
    assert counted >= bound(request([*long, UserTurn("and now?")]), message, ReportedUsage(2_000, 2)).prompt_tokens


def test_uses_a_plausible_report_unchanged() -> None:
    history: list[Turn] = [UserTurn("x" * 16_000)]
    assert bound(request(history), message, ReportedUsage(4_000, 1)).prompt_tokens == 4_000
