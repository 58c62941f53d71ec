"""Arguments that a JSON parser lets through and that are no arguments all the same."""

from __future__ import annotations

from typing import Any

import pytest

from ava_server.approval.requests import CheckArgs, ConfirmArgs, SpawnArgs, parse, shown
from ava_server.core.errors import BadInput

TASK = {"role": "researcher", "task": "x"}


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_rejects_a_cap_that_is_not_a_number_by_name(value: float) -> None:
    with pytest.raises(BadInput, match=r"^timeout: .*give "):
        parse(SpawnArgs, {**TASK, "timeout": value})


def test_rejects_a_wait_that_is_not_a_number() -> None:
    with pytest.raises(BadInput, match=r"^wait_seconds: "):
        parse(CheckArgs, {"wait_seconds": float("nan")})


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"P-00000000": {"caps": {"max_cost_cents": -1}}}, "max_cost_cents"),
        ({"P-00000000": {"caps": {"price": 1}}}, "price"),
        ({"P-00000000": {"model": "other"}}, "model"),
    ],
)
def test_rejects_an_unknown_change_by_its_position(changes: dict[str, Any], names: str) -> None:
    with pytest.raises(BadInput, match=rf"^changes\.P-00000000\..*{names}"):
        parse(ConfirmArgs, {"pending_ids": ["P-00000000"], "changes": changes})


def test_shows_a_value_truncated_and_without_anything_that_looks_like_a_key() -> None:
    assert len(shown("word " * 100)) <= 90
    key = "sk-or-" + "v1" + "0" * 30
    assert key not in shown({"key": key})
    assert shown("a\ud800").encode("utf-8")
