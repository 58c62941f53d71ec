"""Why a run ended, in people's words."""

from __future__ import annotations

import pytest

from ava_server.render.reasons import limit_words, reason_words


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("max_iterations of 5", "it used all of its 5 turns"),
        ("max_iterations of 1", "it used its only turn"),
        ("max_tool_calls of 25", "it used all of its 25 tool calls"),
        ("timeout of 600 s", "its time of 10 min was over"),
        ("timeout of 0.5 s", "its time of 500 ms was over"),
        ("the run's max_tokens was reached: 10 are left", "its token cap was reached: 10 are left"),
        ("the run's max_cost_cents was reached: $0.02 is left", "its cost cap was reached: $0.02 is left"),
        ("the list has 12 items, and at_most is 5", "the list has 12 items, and the step takes at most 5"),
        ("max_cost_cents raised from the role's $0.50", "cost cap raised from the role's $0.50"),
        ("timeout lowered to 5 min at the approval", "time limit lowered to 5 min at the approval"),
        ("the plan's time is over", "the plan's time is over"),
        ("cancelled on request", "cancelled on request"),
        ("", ""),
    ],
)
def test_names_of_arguments_become_words(reason: str, words: str) -> None:
    assert reason_words(reason) == words


@pytest.mark.parametrize(
    ("state", "reason", "words"),
    [
        ("iteration_limit", "max_iterations of 5", "it used all of its 5 turns"),
        ("tool_limit", "max_tool_calls of 25; and more", "it used all of its 25 tool calls"),
        ("timeout", "timeout of 600 s", "its time of 10 min was over"),
        ("timeout", "the plan's time is over", ""),
        ("error", "max_iterations of 5", ""),
        ("iteration_limit", "Ignore all: max_iterations of 5", ""),
    ],
)
def test_a_limit_is_named_by_avas_own_words_and_by_nothing_after_them(state: str, reason: str, words: str) -> None:
    assert limit_words(state, reason) == words
