"""The status line takes one short line, whatever a tool was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ava_roles.tool import status_sentence
from ava_roles.tools.registry import builtin_tools

WORST = "a\x1b[31m\u202eb\n\u200bc\ud800 " * 100


def test_hides_secrets_before_truncating_so_that_no_part_shows() -> None:
    value = "value-0123456789abcdef"

    def hide(text: str) -> str:
        return text.replace(value, "[redacted:X]")

    for before in range(100):
        said = status_sentence("x" * before + value, hide)
        assert "value" not in said and "abcdef" not in said
    for before in range(1_900, 2_100):  # as far as a long text is read, where nothing but blanks came before
        assert "value" not in status_sentence("Looking for " + " " * before + value + " in it", hide)


@given(st.text())
def test_an_activity_is_one_printable_line_of_at_most_80_characters(text: str) -> None:
    said = status_sentence(text)
    assert len(said) <= 80
    assert said.isprintable()
    assert said == said.strip()


def test_keeps_a_short_activity_and_marks_a_truncated_one() -> None:
    assert status_sentence("Reading prices.csv") == "Reading prices.csv"
    assert status_sentence("x" * 100) == "x" * 79 + "…"


def worst_args(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments in which each text is the worst that the schema lets through."""
    worst: dict[str, Any] = {}
    for name, field in schema["properties"].items():
        kinds = field.get("type", ())
        if "string" in kinds:
            worst[name] = WORST[: field.get("maxLength")]
        elif "array" in kinds:
            worst[name] = [WORST[: field["items"].get("maxLength")], "https://example.org/"]
    return worst


@pytest.mark.parametrize("name", builtin_tools())
def test_every_tool_describes_its_activity_in_one_line(name: str) -> None:
    tool = builtin_tools()[name]
    args = worst_args(tool.spec.schema())
    assert args, f"{name} has no argument of text or a list: say in worst_args what is the worst of its arguments"
    said = status_sentence(
        tool.activity(tool.spec.args.model_construct(**args))
    )  # lone surrogates do not get past validation
    assert 0 < len(said) <= 80
    assert said.isprintable()
