"""Copilot CLI, Cline, qwen-code and Continue in their terminals: nothing starts before a person decides."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.hosts.claude_code import DELEGATE
from support.hosts.real_hosts import BY_HOST, entries, needs, subagents_use
from support.hosts.terminal_hosts import COPILOT, LOG, LOOK, STOP, TABLE, AtHost, Host, Orchestrator, at_host
from support.model_server import Gate, ModelServer, Say, running_model_server
from support.runtime import PRICED
from support.stdio import assert_intact
from support.terminal import CONTROLLED, on_terminal

pytestmark = [pytest.mark.slow, needs("tmux")]

OUTPUT = "twelve cents and a half"
RESULT = Say(calls=[("submit_result", {"summary": "done", "output": OUTPUT})])
PIN = "7410852"
HUMAN = f'approval = "human"\n{PRICED}'
ALL = ("--allow-all-tools",)
LOOKS = tuple(f"--allow-tool=ava({tool})" for tool in ("spawn_subagent", "check_subagent", "read_ava_logs"))
"""What `ava init copilot` names."""
SHOWN = "at most $0.20"
"""Stands in a proposal's approval line."""


def approve(at: AtHost, models: ModelServer) -> None:
    """Approve what waits, in another window, where the first PIN is chosen."""
    proposal = entries(at.root, "SpawnProposed")[-1]["content"]["pending_id"]
    with on_terminal(at.root, "approve", proposal, env=subagents_use(models), command=CONTROLLED) as screen:
        chosen = [("[y/N]", "y"), ("New approval PIN (not shown)", PIN), ("once more", PIN)]
        assert screen.ended_after(chosen) == 0, screen.text


@pytest.mark.parametrize(
    ("host", "config"),
    [*((host, HUMAN) for host in TABLE), *((host, BY_HOST) for host in TABLE if host is not COPILOT)],
    ids=lambda each: each.name if isinstance(each, Host) else "human" if each == HUMAN else "default",
)
def test_a_person_decides_in_a_terminal_and_the_model_gets_the_result(tmp_path: Path, host: Host, config: str) -> None:
    orchestrator = Orchestrator()
    with running_model_server([RESULT]) as models, at_host(host, tmp_path, orchestrator, models, config) as at:
        questions = at.delegate()
        assert orchestrator.called == ["spawn_subagent", "confirm_spawn"]
        assert entries(at.root, "SpawnDecided", "SubagentSpawn") == [], "the model's yes started nothing"
        assert models.requests == []
        assert bool(questions) == (host.question is not None)
        assert "/enter?code=" in orchestrator.answers[0], "the model can show the link"
        approve(at, models)
        assert OUTPUT in at.order(LOOK)
        assert "submit_result" in at.order(LOG)
        [decided] = entries(at.root, "SpawnDecided")
        assert (decided["content"]["decision"], decided["content"]["channel"]) == ("approved", "terminal")
    assert_intact(at.root)


@pytest.mark.parametrize("host", TABLE, ids=lambda host: host.name)
def test_the_model_cancels_a_run_when_the_person_says_so(tmp_path: Path, host: Host) -> None:
    gate, orchestrator = Gate(120), Orchestrator()
    with (
        running_model_server([Say("x", gate=gate)]) as models,
        at_host(host, tmp_path, orchestrator, models, HUMAN) as at,
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
    host = Host(COPILOT.name, COPILOT.program, COPILOT.prepare, COPILOT.ready, options=options)
    orchestrator = Orchestrator(spawn={"ask": True})
    with running_model_server([RESULT]) as models, at_host(host, tmp_path, orchestrator, models, BY_HOST) as at:
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
