"""Codex in its terminal, with a scripted model: a start costs one question, and full access does not answer it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.codex import AVAS, OWN, at_codex
from support.model_server import Say, running_model_server
from support.real_hosts import entries, needs
from support.stdio import assert_intact

pytestmark = [pytest.mark.slow, needs("tmux")]

RESULT = [("submit_result", {"summary": "done", "output": "twelve cents"})]


@pytest.mark.parametrize(("mode", "questions"), [("", [AVAS]), ("prompt", [OWN, AVAS])])
def test_a_start_costs_one_question_unless_the_person_wants_two(
    tmp_path: Path, mode: str, questions: list[str]
) -> None:
    with running_model_server([Say(calls=RESULT)]) as models, at_codex(tmp_path, models, mode=mode) as host:
        assert host.delegate() == questions
        assert host.orchestrator.called == ["spawn_subagent", "confirm_spawn"]
        [decided] = entries(host.root, "SpawnDecided")
        assert (decided["content"]["decision"], decided["content"]["channel"]) == ("approved", "elicitation")
    assert_intact(host.root)


def test_with_full_access_codex_does_not_answer_for_the_person(tmp_path: Path) -> None:
    full = ["--dangerously-bypass-approvals-and-sandbox"]
    with running_model_server([Say(calls=RESULT)]) as models, at_codex(tmp_path, models, options=full) as host:
        assert host.delegate() == []
        assert host.orchestrator.called == ["spawn_subagent", "confirm_spawn"]
        assert entries(host.root, "SpawnDecided") == [] and models.requests == []
