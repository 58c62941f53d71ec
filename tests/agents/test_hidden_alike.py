"""Every way out hides the same: Ava's own tools, the gateway on each wire, and the log."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from support.agents.gateway import PLANTED, agent_request
from support.redaction import body_of, leaked_pieces, private_key

from ava_audit.redaction import Redactor, RunRedactor
from ava_roles.wrap import clean, seen_offsets
from ava_server.agents.bodies import Bodies
from ava_server.runs.turn.tool_calls import _Redaction  # pyright: ignore[reportPrivateUsage]

VALUE = "correct-horse-battery"
KEY, BODY = private_key(), body_of()
FIRST, REST = PLANTED[:7], PLANTED[7:]
TEXTS: dict[str, str] = {
    "plain": f"key {PLANTED} here",
    "colour inside": f"key {FIRST}\x1b[31m{REST}\x1b[0m here",
    "colour between": "key " + "\x1b[1m".join(PLANTED) + " here",
    "a colour of one character": f"key {FIRST}\x9b31m{REST} here",
    "a link": f"key {FIRST}\x1b]8;;https://x.example\x1b\\{REST} here",
    "zero width": "key " + "\u200b".join(PLANTED) + " here",
    "joiners": f"key {FIRST}\u200d{REST} here",
    "soft hyphens": "key " + "\u00ad".join(PLANTED) + " here",
    "a byte order mark": f"key {FIRST}\ufeff{REST} here",
    "word joiners": f"key {FIRST}\u2060{REST} here",
    "tags": f"key {FIRST}\U000e0041{REST} here",
    "right to left": f"key {FIRST}\u202e{REST} here",
    "backspaces": f"key {FIRST}\b{REST} here",
    "returns": f"one\rkey {FIRST}\x1b[31m{REST} here\r\n",
    "a stored value": f"key {VALUE} here",
    "a stored value, coloured": f"key {VALUE[:9]}\x1b[31m{VALUE[9:]} here",
    "a piece of a key": f"x {BODY[4]} y",
    "half a line of a key": f"x {BODY[6][:24]} y",
    "a piece of a key, coloured": f"x {BODY[7][:20]}\x1b[31m{BODY[7][20:]} y",
    "a piece of a key, soft": "x " + "\u00ad".join(BODY[8]) + " y",
}
WAYS: dict[str, Callable[[RunRedactor, str], str]] = {
    "a tool's result": lambda known, text: _Redaction(known)(text),
    "lines that a tool shows": lambda known, text: _Redaction(known).hide_in_lines(text),
    "the log": lambda known, text: known.redact(text)[0],
    "arguments in the log": lambda known, text: str(known.redact_json({"a": [text]})["a"][0]),
    "messages, a text": lambda known, text: sent(known, "messages", messages=[{"role": "user", "content": text}]),
    "messages, instructions": lambda known, text: sent(known, "messages", system=[{"type": "text", "text": text}]),
    "messages, a result": lambda known, text: sent(known, "messages", messages=[{"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": text}]}]}]),
    "messages, arguments": lambda known, text: sent(known, "messages", messages=[{"role": "assistant", "content": [
        {"type": "tool_use", "id": "t", "name": "Read", "input": {"a": text}}]}]),
    "responses, a text": lambda known, text: sent(known, "responses", input=text),
    "responses, a result": lambda known, text: sent(known, "responses", input=[
        {"type": "function_call_output", "call_id": "c", "output": text}]),
    "responses, arguments": lambda known, text: sent(known, "responses", input=[
        {"type": "function_call", "call_id": "c", "name": "Read", "arguments": json.dumps({"a": text})}]),
    "chat, a result": lambda known, text: sent(known, "chat_completions", messages=[
        {"role": "tool", "tool_call_id": "c", "content": text}]),
    "chat, arguments": lambda known, text: sent(known, "chat_completions", messages=[{"role": "assistant",
        "tool_calls": [{"id": "c", "type": "function", "function": {
            "name": "Read", "arguments": json.dumps({"a": text})}}]}]),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", TEXTS)
def test_no_way_out_shows_a_secret(known: RunRedactor, way: str, case: str) -> None:
    shown = WAYS[way](known, TEXTS[case])
    seen = clean(shown)[0]
    assert "[redacted:" in seen
    assert PLANTED not in seen and REST not in seen and VALUE not in seen and leaked_pieces(seen, BODY) == []
    assert shown == WAYS[way](known, TEXTS[case]), "the same text always alike"


@pytest.mark.parametrize(
    "case", [case for case in TEXTS if "stored" not in case and "piece" not in case and "half" not in case]
)
def test_a_task_with_a_key_is_found_whatever_stands_between_its_characters(known: RunRedactor, case: str) -> None:
    (found,) = known.find_shapes(TEXTS[case])
    assert PLANTED in clean(TEXTS[case][found.start : found.end])[0]


def test_marks_stay_where_no_secret_is(known: RunRedactor) -> None:
    text = f"\x1b[31mred\x1b[0m\r\n soft\u00adhyphen {FIRST}\x1b[1m{REST}\u200b end\rx"
    mark = known.redact(PLANTED)[0]
    assert known.redact(text)[0] == f"\x1b[31mred\x1b[0m\r\n soft\u00adhyphen {mark}\u200b end\rx"


def test_a_text_with_marks_and_no_secret_is_unchanged(known: RunRedactor) -> None:
    persian, coder = "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", "\U0001f468\u200d\U0001f4bb"
    text = f"\x1b[31mred\x1b[0m soft\u00adhyphen \ufeff {persian} {coder}"
    assert known.redact(text) == (text, 0)


def sent(known: RunRedactor, wire: str, **more: Any) -> str:
    """Return what a provider gets of a request: every text in it."""
    bodies = Bodies(wire, {"sonnet": "far-sonnet"}, frozenset(), known)
    body = bodies.read(json.dumps({**agent_request(wire), **more}).encode()).body
    return "\n".join(texts(body))


def texts(value: Any) -> list[str]:
    if isinstance(value, str):
        if value.startswith("{"):  # arguments
            return texts(json.loads(value))
        return [value]
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return [text for each in inner for text in texts(each)]


@pytest.fixture
def known() -> RunRedactor:
    made = RunRedactor(Redactor({"TOKEN": VALUE}, seen_offsets=seen_offsets))
    made.learn_private_keys(KEY)
    return made
