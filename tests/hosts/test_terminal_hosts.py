"""Copilot CLI, Cline, qwen-code and Continue in their terminals: nothing starts before a person decides.

Each has a scripted model and Ava: one row says how a host is set up and what it asks.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.hosts.claude_code import DELEGATE
from support.hosts.real_hosts import BY_HOST, entries, needs
from support.hosts.terminal_hosts import (
    COPILOT,
    LOG,
    LOOK,
    STOP,
    TABLE,
    TerminalHost,
    TerminalModel,
    approve,
    open_terminal_host,
)
from support.model_server import Gate, Say, run_model_server
from support.runtime import PRICED
from support.stdio import assert_intact

pytestmark = [pytest.mark.slow, needs("tmux")]

OUTPUT = "twelve cents and a half"
RESULT = Say(calls=[("submit_result", {"summary": "done", "output": OUTPUT})])
HUMAN = f'approval = "human"\n{PRICED}'
ALL = ("--allow-all-tools",)
LOOKS = tuple(f"--allow-tool=ava({tool})" for tool in ("spawn_subagent", "check_subagent", "read_ava_logs"))
"""What `ava init copilot` names."""
SHOWN = "at most $0.20"
"""Stands in a proposal's approval line."""


@pytest.mark.parametrize(
    ("host", "config"),
    [*((host, HUMAN) for host in TABLE), *((host, BY_HOST) for host in TABLE if host is not COPILOT)],
    ids=lambda each: each.name if isinstance(each, TerminalHost) else "human" if each == HUMAN else "default",
)
def test_a_person_decides_in_a_terminal_and_the_model_gets_the_result(
    tmp_path: Path, host: TerminalHost, config: str
) -> None:
    orchestrator = TerminalModel()
    with run_model_server([RESULT]) as models, open_terminal_host(host, tmp_path, orchestrator, models, config) as at:
        questions = at.delegate()
        assert orchestrator.called == ["spawn_subagent", "confirm_spawn"]
        assert entries(at.root, "SpawnDecided", "SubagentSpawn") == [], "the model's yes started nothing"
        assert models.requests == []
        assert bool(questions) == (host.question is not None)
        answer = " ".join(orchestrator.answers[0].split())
        assert "/enter?code=" in answer or "gives a link once they have started" in answer, (
            "the model can show the link"
        )
        approve(at, models)
        assert OUTPUT in at.order(LOOK)
        assert "submit_result" in at.order(LOG)
        [decided] = entries(at.root, "SpawnDecided")
        assert (decided["content"]["decision"], decided["content"]["channel"]) == ("approved", "terminal")
    assert_intact(at.root)


@pytest.mark.parametrize("host", TABLE, ids=lambda host: host.name)
def test_the_model_cancels_a_run_when_the_person_says_so(tmp_path: Path, host: TerminalHost) -> None:
    gate, orchestrator = Gate(120), TerminalModel()
    with (
        run_model_server([Say("x", gate=gate)]) as models,
        open_terminal_host(host, tmp_path, orchestrator, models, HUMAN) as at,
    ):
        at.delegate()
        approve(at, models)
        assert gate.arrived.wait(30)
        at.order(STOP)
        at.until(lambda: bool(entries(at.root, "RunEnded")))
        [ended] = entries(at.root, "RunEnded")
        assert ended["content"]["status"] == "cancelled"
    assert_intact(at.root)


@pytest.mark.parametrize(("options", "yes"), [(ALL, True), (ALL, False), (LOOKS, True)])
def test_copilot_shows_avas_own_question_and_nothing_else_where_its_options_allow_the_tools(
    tmp_path: Path, options: tuple[str, ...], yes: bool
) -> None:
    """Nothing starts without its yes, also with all tools allowed."""
    host = TerminalHost(COPILOT.name, COPILOT.program, COPILOT.prepare, COPILOT.ready, options=options)
    orchestrator = TerminalModel(spawn={"ask": True})
    with run_model_server([RESULT]) as models, open_terminal_host(host, tmp_path, orchestrator, models, BY_HOST) as at:
        at.begin(DELEGATE)
        at.until(lambda: "Start it? You may lower its limits below." in at.screen)
        assert SHOWN.replace("at most", "costs at most") in at.screen and "Look it up" in at.screen
        if yes:
            at.press("Enter")
            at.until(lambda: "[At most, in minutes]" in at.screen)
            at.press("Enter")
        else:
            at.press("C-d")
        at.until(lambda: bool(orchestrator.answers))
        assert orchestrator.called[0] == "spawn_subagent"
        if yes:
            at.until(lambda: bool(entries(at.root, "RunEnded")))
            [decided] = entries(at.root, "SpawnDecided")
            assert (decided["content"]["decision"], decided["content"]["channel"]) == ("approved", "elicitation")
            assert OUTPUT in at.order(LOOK), "a question of Copilot's own would have nobody's answer"
        else:
            assert models.requests == []
    assert_intact(at.root)
