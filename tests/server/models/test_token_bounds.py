import json
import unicodedata
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ava_server.models import tokens as bounds
from ava_server.models.base import (
    AssistantTurn,
    Bound,
    ReportedUsage,
    Request,
    Segment,
    ToolSchema,
    ToolTurn,
    Turn,
    UserTurn,
)
from ava_server.models.tokens import bound, escaped_bound, prefix_bound, text_bound, turn_bound
from ava_server.models.wires.chat import assistant_message, message
from ava_server.models.wires.wire import tool_use

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


def covering(tokens: int, turns: int) -> ReportedUsage:
    """A report of one prompt with the first turns."""
    return ReportedUsage((Segment(tokens, tuple(range(turns))),), {})


def request(history: list[Turn], tools: tuple[ToolSchema, ...] = (TOOL,)) -> Request:
    return Request("m", "You are terse.", tools, tuple(history), 512)


@given(texts)
def test_a_text_counts_at_least_one_token_per_byte_also_in_its_compatible_form(text: str) -> None:
    counted = text_bound(text)
    assert counted >= len(text.encode("utf-8", "replace").decode("utf-8").encode())
    for form in ("NFC", "NFKC"):
        assert counted >= len(unicodedata.normalize(form, text).encode("utf-8", "replace"))


@given(texts)
def test_where_templates_escape_a_text_counts_at_least_its_escaped_length(text: str) -> None:
    counted = escaped_bound(text)
    assert counted >= text_bound(text)
    escaped = json.dumps(text)[1:-1]
    assert counted >= len(escaped) - sum(text.count(char) for char in '"\\\n\r\t\b\f') - 5 * sum(
        ord(char) < 32 for char in text
    )


@given(texts, texts)
def test_text_bounds_add_up(one: str, other: str) -> None:
    for count in (text_bound, escaped_bound):
        assert count(one + other) == count(one) + count(other)


@given(st.text(alphabet=st.characters(max_codepoint=127), max_size=200))
def test_the_ascii_fast_path_matches_the_general_path(text: str) -> None:
    for count in (text_bound, escaped_bound):
        assert count(text + "é") - count("é") == count(text)


@pytest.mark.parametrize(
    ("text", "tokens", "escaped"),
    [
        ("ab", 2, 2),
        ("<", 1, 6),
        ("\x7f", 1, 6),
        ("é", 2, 6),
        ("ж", 2, 6),
        ("中", 3, 6),
        ("\U0001f600", 4, 12),
        ("\ufdfa", 33, 33),
        ("\U000e0fff", 44, 44),
        ("\ud800", 3, 6),
    ],
)
def test_counts_a_character_in_its_longest_encoding(text: str, tokens: int, escaped: int) -> None:
    assert (text_bound(text), escaped_bound(text)) == (tokens, escaped)


@given(histories, turns)
def test_a_longer_history_never_lowers_the_bound(history: list[Turn], added: Turn) -> None:
    shorter, longer = request(history), request([*history, added])
    assert bound(longer, message, None).prompt_tokens > bound(shorter, message, None).prompt_tokens
    known = covering(100, len(history))
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
    covered = data.draw(st.integers(1, len(history)))
    counted = bound(request(history), message, covering(tokens, covered))
    assert counted.prompt_tokens >= tokens
    assert counted.new_bytes == sum(turn_bound(turn, message) for turn in history[covered:])
    rendered = sum(turn_bound(turn, message) for turn in history[:covered])
    assert counted.prompt_tokens <= tokens + counted.new_bytes + rendered


@given(histories, st.lists(st.integers(0, 10**6), min_size=6, max_size=6))
def test_shortened_turns_count_as_reported_or_by_bytes_whichever_is_less(
    history: list[Turn], tokens: list[int]
) -> None:
    each = tuple(Segment(tokens[place], (place,), changed=True) for place in range(len(history)))
    counted = bound(request(history), message, ReportedUsage(each, {})).prompt_tokens
    by_bytes = [turn_bound(turn, message) for turn in history]
    by_bytes[0] += sum(prefix_bound("You are terse.", (TOOL,)))
    assert counted >= sum(map(min, tokens, by_bytes))
    assert counted <= sum(by_bytes)


def test_counts_the_escapes_that_templates_add_to_the_calls_of_an_answer() -> None:
    def with_answer(text: str, args: str) -> int:
        history: list[Turn] = [UserTurn("x"), answer(text, args)]
        return bound(request(history), message, ReportedUsage((Segment(1000, (0,)),), {1: 20})).prompt_tokens

    assert with_answer("plain", "{}") == with_answer("<<", "{}") == 1020 + bounds.MESSAGE_TOKENS
    assert with_answer("plain", '"<ж"') == with_answer("plain", '""') + 5 + 4


def test_own_text_counts_half_a_token_per_byte_and_only_own_text_does() -> None:
    own, elsewhere = replace(TOOL, own=True), TOOL
    system = "You are terse." + "x" * 10_000
    known, rest = prefix_bound(system, (own,), own_bytes=14)
    all_known, all_rest = prefix_bound(system, (own,), own_bytes=len(system))
    _known, foreign_rest = prefix_bound(system, (elsewhere,), own_bytes=14)
    assert rest == 10_000 and all_rest == 0 and foreign_rest > 10_100
    assert all_known - known == 5_000
    assert all_known < bounds.FIXED_TOKENS + bounds.TOOLS_TOKENS + 5_300


def test_counts_a_tool_schema_indented_as_templates_render_it() -> None:
    deep: dict[str, Any] = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(40)}}
    tool = ToolSchema("deep", "Deep.", deep)
    with_tool = bound(request([UserTurn("x")], (tool,)), message, None).prompt_tokens
    without = bound(request([UserTurn("x")], ()), message, None).prompt_tokens
    assert with_tool - without > len(json.dumps(deep, indent=4))


@pytest.mark.parametrize("reported", [0, 1, 7])
def test_an_implausibly_small_report_does_not_lower_the_next_bound(reported: int) -> None:
    long: list[Turn] = [UserTurn("x" * 16_000), answer("y" * 16_000, "{}")]
    counted = bound(request([*long, UserTurn("and now?")]), message, covering(reported, 2)).prompt_tokens
    assert counted > 2_000
    assert counted >= bound(request([*long, UserTurn("and now?")]), message, covering(2_000, 2)).prompt_tokens


def test_uses_a_plausible_report_unchanged() -> None:
    history: list[Turn] = [UserTurn("x" * 16_000)]
    assert bound(request(history), message, covering(4_000, 1)).prompt_tokens == 4_000


def test_a_ratio_applies_only_to_what_no_report_covers() -> None:
    counted = Bound(prompt_tokens=1_100, output_tokens=50, new_bytes=101)
    assert counted.by_ratio(0.5) == Bound(999 + 51, 50, 101)
    assert counted.by_ratio(1.5) == counted, "a byte is one token at most"


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("Russian", "Съешь же ещё этих мягких французских булок. "),
        ("Greek", "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. "),
        ("Arabic", "نص حكيم له سر قاطع وذو شأن عظيم. "),
        ("Hindi", "ऋषियों को सताने वाले दुष्ट राक्षसों का राजा रावण। "),
        ("Chinese", "人人生而自由，在尊严和权利上一律平等。"),
        ("Japanese", "いろはにほへと ちりぬるを わかよたれそ。"),
    ],
)
def test_a_page_in_any_script_counts_as_its_bytes(language: str, text: str) -> None:
    page = (text * 1_000)[:15_000]
    counted = bound(request([UserTurn("x"), ToolTurn("c", "fetch", page)]), message, covering(4_000, 1))
    assert counted.prompt_tokens <= 4_000 + len(page.encode()) + 200, language
