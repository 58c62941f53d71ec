"""The benchmark of surfaces judges right: label and value together, untrue sentences, and what is left out."""

from __future__ import annotations

import tomllib
from importlib import import_module
from typing import Any

import pytest
from support.repository import REPOSITORY

BENCHMARKS = REPOSITORY / "benchmarks"
WANTED: dict[str, Any] = tomllib.loads((BENCHMARKS / "surfaces.toml").read_text("utf-8"))


@pytest.fixture
def facts(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module("surface_parts.facts")


@pytest.mark.parametrize(
    ("fact", "expected", "text", "outcome"),
    [
        ("approved on", "terminal", "Approved 2026-12-01 13:39:04 by a person at the terminal", "right"),
        ("approved on", "terminal", "Approved 2026-12-01 13:39:04 by a person in the browser", "wrong"),
        ("approved on", "browser", "Not decided: P-770ca4ce waits for approval", "wrong"),
        ("approved on", "browser", "decision: approved entries.content.channel: browser", "right"),
        ("approved on", "browser", "It can read notes in the browser", "left out"),
        ("approved at", "13:39|13:40", "Approved 2026-12-01 13:40:04 by a person", "right"),
        ("approved at", "13:39", "Approved 2026-12-01 14:40:04 by a person", "wrong"),
        ("approved at", "13:39", "Approved by a person at the terminal, 3 min ago", "right"),
        ("state", "success", "researcher S-63614f: success · 0 s of 600 s", "right"),
        ("state", "success", '# plan "Contracts" (G-27e4a2d): error · 3 of 3 steps', "wrong"),
        ("state", "no_answer", "∅ no answer S-63614f Where do zebras sleep?", "right"),
        ("state", "success", "There is a success story in the task", "left out"),
        ("cost", "8274", "turn 2 of 20 · $0.0083 of $0.60", "right"),
        ("cost", "8274", "turn 2 of 20 · $0.0093 of $0.60", "wrong"),
        ("cost", "8274", "run.cost_cents: 0.8274 run.x: 1", "right"),
        ("cost", "26043", "No model call was made, so nothing was spent.", "wrong"),
        ("cost", "free", "18k tokens · free", "right"),
        ("cost", "8274", "Payments cost 1.4 % each; max $0.60", "left out"),
        ("cost cap", "600000", "$0.0083 of $0.60", "right"),
        ("cost cap", "600000", "config.max_cost_micros: 600000", "right"),
        ("cost cap", "600000", "asked.max_cost_cents: 100.0 config.max_cost_micros: 500000", "wrong"),
        ("time cap", "600", "Caps: at most $0.60, 10 min, 20 turns", "right"),
        ("time cap", "600", "0 s of 30 min", "wrong"),
        ("turn cap", "20", "tokens, 20 turns, 40 tool calls", "right"),
        ("calls", "6", "run.iteration: 0 run.tokens: 8201", "wrong"),
        ("calls", "2", "turn 2/20", "right"),
        ("tool", "read_file", "Tools called: none - Cost", "wrong"),
        ("tool", "read_file", "Tools called: read_file 1", "right"),
        ("tool", "read_file", "it may use read_file and ask", "left out"),
        ("branch", "ava/S-813fcd", "Branch ava/S-813fcd of /srv/code", "right"),
        ("merge", "/srv/code ava/S-813fcd", "Merge it: git -C /srv/code merge ava/S-813fcd", "right"),
        ("told once", "invalid api key", "invalid api key. And again: invalid api key.", "wrong"),
        ("share", "find 8259", 'Step "find": done, S-cc5df9, $0.0083', "right"),
        ("share", "find 8259", 'Step "find": done, S-cc5df9, $0.03', "wrong"),
        ("step", "find done", 'Step "find": done, S-cc5df9', "right"),
        ("step", "find done", 'Step "find": failed, S-cc5df9', "left out"),
        ("place", "G-27e4a2d find", 'step "find" of G-27e4a2d', "right"),
        ("lines", "16", "Start it? (17 lines)", "wrong"),
        ("run shown", "G-27e4a2d", "researcher S-cc5df9: success", "wrong"),
        ("price", "3 15", "per million tokens input $0, output $0", "wrong"),
        ("case", "made", "its proposal, task or approval is not there; record it again from its log", "wrong"),
    ],
)
def test_judges_a_fact_by_its_label_and_value(facts: Any, fact: str, expected: str, text: str, outcome: str) -> None:
    assert facts.LOOKS[fact](text, expected).outcome == outcome


def test_every_expectation_is_looked_for_on_some_surface() -> None:
    owed = {fact for facts in WANTED["surfaces"].values() for fact in facts}
    for name, own in WANTED["situations"].items():
        assert {fact for fact, _value in own["facts"]} <= owed, name


def test_every_surface_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("playwright")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    assert set(import_module("surface_parts.screens").SURFACES) == set(WANTED["surfaces"])
