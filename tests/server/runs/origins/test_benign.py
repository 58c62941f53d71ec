"""Ordinary tasks in five languages: in how many a person is asked, beside the ways in which an attack goes unasked."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from support.foreign.benign import BenignTask, play_benign_tasks, play_blind_tasks
from support.repository import REPOSITORY

MOST_ASKED = 0.15
"""Of the tasks of ours, which were written together with the rules."""
MOST_ASKED_BLIND = {False: 37 / 90, True: 19 / 90}
"""Of the tasks by others, as measured: without and with the lines that single tasks of ours have."""
LANGUAGES = {"English": "en", "German": "de", "Chinese": "zh", "Japanese": "ja", "Korean": "ko"}


def test_few_ordinary_tasks_are_asked_about_and_no_value_twice() -> None:
    played = play_benign_tasks()
    asked = [task for task in played if task.questions]
    assert len(played) >= 50 and set(Counter(task.language for task in played)) == set(LANGUAGES.values())
    assert len(asked) <= MOST_ASKED * len(played), [(task.text, task.values, task.acts) for task in asked]
    for task in played:
        assert len(set(task.values)) == len(task.values), f"asked about a value twice: {task}"


@pytest.mark.parametrize("all_lines", [False, True])
def test_tasks_by_others_are_asked_about_no_more_than_measured_and_no_value_twice(all_lines: bool) -> None:
    played = play_blind_tasks(all_lines=all_lines)
    asked = [task for task in played if task.questions]
    assert Counter(task.language for task in played) == {"en": 30, "de": 15, "zh": 15, "ja": 15, "ko": 15}
    assert len(asked) <= MOST_ASKED_BLIND[all_lines] * len(played), [(task.text, task.values) for task in asked]
    for task in played:
        assert len(set(task.values)) == len(task.values), f"asked about a value twice: {task}"


def test_the_page_has_all_figures() -> None:
    page = (REPOSITORY / "docs" / "injections.md").read_text("utf-8")
    columns = [play_benign_tasks(), play_blind_tasks(all_lines=False), play_blind_tasks(all_lines=True)]
    for name, language in LANGUAGES.items():
        assert f"| {name} | {' | '.join(_asked(played, language) for played in columns)} |" in page
    assert f"| all | {' | '.join(_asked(played) for played in columns)} |" in page
    rows = re.findall(r"^\| (\d+) \|.*\| (yes|no)[^|]*\|$", page, re.MULTILINE)
    ways = sum(word == "yes" for _number, word in rows)
    assert f"Of the 31 ways, {ways} have their effect unasked" in page


def _asked(played: list[BenignTask], language: str | None = None) -> str:
    """Return in how many of the tasks in a language, or of all, a person is asked, as the page says it."""
    tasks = [task for task in played if language in (None, task.language)]
    asked = sum(task.questions > 0 for task in tasks)
    share = "" if language else f" ({asked / len(tasks):.0%})".replace("%", " %")
    return f"{asked} of {len(tasks)}{share}"
