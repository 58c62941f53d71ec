"""Codex in its terminal, with a scripted model: a start costs one question, and full access does not answer it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support.hosts.codex import AVAS, OWN, open_codex
from support.hosts.plans import PLAN, step_script
from support.hosts.real_hosts import entries, needs
from support.model_server import Say, run_model_server
from support.stdio import assert_intact

pytestmark = [pytest.mark.slow, needs("tmux")]

RESULT = [("submit_result", {"summary": "done", "output": "twelve cents"})]


@pytest.mark.parametrize(("mode", "questions"), [("", [AVAS]), ("prompt", [OWN, AVAS])])
def test_a_start_costs_one_question_unless_the_person_wants_two(
    tmp_path: Path, mode: str, questions: list[str]
) -> None:
    with run_model_server([Say(calls=RESULT)]) as models, open_codex(tmp_path, models, mode=mode) as host:
        assert host.delegate() == questions
        assert host.orchestrator.called == ["spawn_subagent", "confirm_spawn"]
        [decided] = entries(host.root, "SpawnDecided")
        assert (decided["content"]["decision"], decided["content"]["channel"]) == ("approved", "elicitation")
    assert_intact(host.root)


def test_a_plan_costs_one_question(tmp_path: Path) -> None:
    with run_model_server(step_script()) as models, open_codex(tmp_path, models, spawn=PLAN) as host:
        assert host.delegate() == [AVAS]
        assert host.orchestrator.called == ["spawn_subagent", "confirm_spawn"]
        [decided] = entries(host.root, "SpawnDecided")
        assert (decided["content"]["decision"], decided["content"]["channel"]) == ("approved", "elicitation")
        deadline = time.monotonic() + 60
        while len(ended := entries(host.root, "RunEnded")) < 5:
            assert time.monotonic() < deadline, ended
            time.sleep(0.3)
        assert {entry["content"]["status"] for entry in ended} == {"success"}, "the plan and its four runs"
    assert_intact(host.root)


def test_with_full_access_codex_does_not_answer_for_the_person(tmp_path: Path) -> None:
    full = ["--dangerously-bypass-approvals-and-sandbox"]
    with run_model_server([Say(calls=RESULT)]) as models, open_codex(tmp_path, models, options=full) as host:
        assert host.delegate() == []
        assert host.orchestrator.called == ["spawn_subagent", "confirm_spawn"]
        assert entries(host.root, "SpawnDecided") == [] and models.requests == []
