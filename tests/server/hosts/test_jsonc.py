"""Edits in JSON with comments: what is not changed keeps every character."""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ava_server.hosts.jsonc import Json

JSONC = Json(comments=True, trailing_commas=True)
ENTRY = {"command": "/x/ava", "args": ["serve"]}

GAPS = ("", " ", "\n", "\n  ", "\r\n\t", " // plain {\n", '/* a, "b": [ */', "\n// }, ]\n  ", "/**/ /* \n */\n")
keys = st.text(alphabet='xy"\\/*,:{}[] é\n', max_size=6)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False, allow_infinity=False) | keys,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(keys, values, max_size=4)


ways = st.randoms(use_true_random=False)


@given(objects, ways)
def test_parses_any_valid_form(value: Any, random: Random) -> None:
    assert JSONC.parse(written(value, random)) == value


@given(objects, st.none() | objects, ways)
def test_a_member_is_added_in_any_position_and_removed_again(value: Any, servers: Any, random: Random) -> None:
    if servers is not None:
        value["servers"] = servers
    text = written(value, random)

    after = JSONC.put(text, ("servers", "ava"), ENTRY)
    assert JSONC.parse(after) == {
        **value,
        "servers": {**(servers or {}), "ava": ENTRY},
    }
    assert comments(after) == comments(text)

    back = JSONC.remove(after, ("servers", "ava"))
    assert JSONC.parse(back) == {**value, "servers": servers or {}}
    assert comments(back) == comments(text)
    if servers:
        assert back == text


@given(objects, values, objects, ways)
def test_replaces_a_member_in_place(before: Any, old: Any, behind: Any, random: Random) -> None:
    value = {**before, "ava": old, **behind}
    text = written(value, random)
    after = JSONC.put(text, ("ava",), ENTRY)
    assert JSONC.parse(after) == {**value, "ava": ENTRY}
    assert list(JSONC.parse(after)) == list(value)


@given(objects, st.lists(values, max_size=3), ways)
def test_adds_an_element_to_a_list_and_removes_it_again(value: Any, inputs: Any, random: Random) -> None:
    value["inputs"] = inputs
    text = written(value, random)
    count = len(inputs)
    after = JSONC.put(text, ("inputs", count), ENTRY)
    assert JSONC.parse(after) == {**value, "inputs": [*value["inputs"], ENTRY]}
    back = JSONC.remove(after, ("inputs", count))
    assert JSONC.parse(back) == value
    assert comments(back) == comments(after) == comments(text)


@given(objects.filter(bool), ways)
def test_removes_any_member(value: Any, random: Random) -> None:
    key = random.choice(sorted(value))
    text = written(value, random)
    after = JSONC.remove(text, (key,))
    assert JSONC.parse(after) == {name: item for name, item in value.items() if name != key}


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ('{\n\t"a": {\n\t\t"x": 1\n\t}\n}\n', '{\n\t"a": {\n\t\t"x": 1\n\t},\n\t"ava": {\n\t\t"on": true\n\t}\n}\n'),
        ('{\n    "a": 1, // why\n}\n', '{\n    "a": 1, // why\n    "ava": {\n        "on": true\n    },\n}\n'),
        ('{\r\n  "a": 1\r\n}', '{\r\n  "a": 1,\r\n  "ava": {\r\n    "on": true\r\n  }\r\n}'),
        ('{"a":1}', '{"a":1, "ava": {"on": true}}'),
        ("// nothing yet\n", '// nothing yet\n{\n  "ava": {\n    "on": true\n  }\n}\n'),
        ("", '{\n  "ava": {\n    "on": true\n  }\n}\n'),
    ],
    ids=["tabs", "trailing comma and comment", "line ends of Windows", "one line", "only a comment", "nothing"],
)
def test_formats_additions_like_their_neighbours(text: str, after: str) -> None:
    assert JSONC.put(text, ("ava",), {"on": True}) == after


@pytest.mark.parametrize(
    "text",
    [
        '{"a" 1}',
        '{"a": 1',
        "{a: 1}",
        '{"a": 1,,}',
        "{,}",
        '{"a": [,]}',
        '{"a": 1} x',
        "{'a': 1}",
        '{"a": "b',
        "[" * 99_999,
    ],
)
def test_rejects_invalid_json_with_its_position(text: str) -> None:
    with pytest.raises(ValueError, match=r"line \d+|nested"):
        JSONC.parse(text)


@pytest.mark.parametrize("text", ['{"a": 1,}', '{"a": 1} // b', "/* a */ {}"])
def test_rejects_comments_where_the_host_does_not_allow_them(text: str) -> None:
    assert JSONC.parse(text) is not None
    with pytest.raises(ValueError, match=r"line \d+"):
        Json().parse(text)


def test_rejects_trailing_commas_where_the_host_allows_only_comments() -> None:
    assert Json(comments=True).parse('{"a": 1} // b') == {"a": 1}
    with pytest.raises(ValueError, match=r"line \d+"):
        Json(comments=True).parse('{"a": [1,]} // b')


@pytest.mark.parametrize("end", ["\u00a0", "\x0c", "\u2028", "\x85"])
def test_a_comment_may_end_in_any_character(end: str) -> None:
    text = f'{{\n  "a": 1 // b{end}\n}}\n'
    after = JSONC.put(text, ("ava",), 1)
    assert f"// b{end}\n" in after and JSONC.remove(after, ("ava",)) == text


def test_edits_a_file_of_megabytes_quickly() -> None:
    text = json.dumps({f"/p/{i}": {"history": ["x" * 60] * 40} for i in range(1_000)}, indent=2)
    assert JSONC.put(text, ("mcpServers", "ava"), ENTRY).count("/x/ava") == 1


def written(value: Any, random: Random) -> str:
    """Write a value in some way: with blanks, line ends, comments and trailing commas wherever they may stand."""

    def gap() -> str:
        return random.choice(GAPS)

    def write(part: Any) -> str:
        if isinstance(part, dict):
            return "{" + joined([f"{json.dumps(key)}{gap()}:{gap()}{write(item)}" for key, item in part.items()]) + "}"
        if isinstance(part, list):
            return "[" + joined([write(item) for item in part]) + "]"
        return json.dumps(part, ensure_ascii=random.random() < 0.5)

    def joined(items: list[str]) -> str:
        parts = [f"{gap()}{item}{gap()}" for item in items]
        return ",".join(parts) + (f",{gap()}" if parts and random.random() < 0.5 else "") + gap()

    return f"{gap()}{write(value)}{gap()}"


def comments(text: str) -> list[str]:
    found = re.findall(r'"(?:[^"\\]|\\.)*"|(//[^\r\n]*|/\*.*?\*/)', text, re.DOTALL)
    return [comment.rstrip() for comment in found if comment]
