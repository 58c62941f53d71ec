"""Claude Code in its terminal, with a scripted model: its model is woken when a subagent ends, and nobody polls."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest
from support.hosts.claude_code import (
    DELEGATE,
    FORM,
    LOOK,
    OUTPUT,
    QUESTION,
    RESULT,
    ClaudeCode,
    Orchestrator,
    answer_questions_of_run,
    approve_elsewhere,
    ask_then_hand_over,
    call,
    delegation_rule,
    hold_result,
    open_claude_code,
    open_headless,
    shown_run,
    tmux,
)
from support.hosts.extensions import CAP, keep_noting
from support.hosts.plans import NOTES, PLAN, step_script
from support.hosts.real_hosts import data_root, entries, http_server, needs, time_of_entry
from support.http_server import token
from support.model_server import Gate, Say, Script, run_model_server
from support.processes import lives
from support.repository import REPOSITORY, script
from support.stdio import assert_intact
from support.terminal import ava

pytestmark = [pytest.mark.slow, needs("tmux")]

POLL_S = 2.0
"""How often Claude Code asks in a run's first minute."""
STARTS = ["spawn_subagent", "confirm_spawn"]


class OpenHost(Protocol):
    def __call__(self, script: Script, *spawns: Mapping[str, Any]) -> ClaudeCode:
        """Open Claude Code, which proposes these subagents (one, if none is given); `script` is the model of theirs."""
        ...


@pytest.fixture
def open_host(tmp_path: Path) -> Generator[OpenHost]:
    """Open Claude Code for one test; at its end, the log is intact."""
    with ExitStack() as opened:

        def open_with(script: Script, *spawns: Mapping[str, Any]) -> ClaudeCode:
            models = opened.enter_context(run_model_server(script))
            return opened.enter_context(open_claude_code(tmp_path, Orchestrator(delegation_rule(*spawns)), models))

        yield open_with
    assert_intact(data_root(tmp_path))


@pytest.mark.requirement("N-13")
def test_a_run_that_ends_wakes_the_model_with_its_result(open_host: OpenHost) -> None:
    gate, answer = hold_result()
    host = open_host([answer])
    task_id = host.delegate()
    assert gate.arrived.wait(20)
    before = len(host.orchestrator.turns)
    gate.released.set()
    woken = host.until(lambda: host.orchestrator.having(OUTPUT))
    assert host.orchestrator.turns.index(woken) == before, "the next turn, which nobody typed"
    assert 0 < woken.at - time_of_entry(host.until_logged("RunEnded")) <= POLL_S + 1
    assert task_id in woken.news and "[SYSTEM NOTIFICATION - NOT USER INPUT]" in woken.news
    assert '"warning":"Written by a subagent' in woken.news, "it is marked as untrusted"
    assert host.orchestrator.called == STARTS
    host.until(lambda: "1 MCP task" not in host.screen)
    assert OUTPUT in shown_run(host.root, task_id)


@pytest.mark.requirement("N-13")
def test_a_run_that_is_asked_about_at_its_proposal_wakes_the_model_too(open_host: OpenHost) -> None:
    gate, answer = hold_result()
    host = open_host([answer], {"ask": True})
    task_id = host.delegate()
    assert gate.arrived.wait(20)
    gate.released.set()
    woken = host.until(lambda: host.orchestrator.having(OUTPUT))
    assert task_id in woken.news
    assert host.orchestrator.called == ["spawn_subagent"]
    assert len(entries(host.root, "SpawnProposed")) == 1


def test_several_approved_together_are_one_task_and_wake_the_model_once(open_host: OpenHost) -> None:
    (first, one), (second, other) = hold_result(), hold_result()
    host = open_host([one, other], {"task": "one"}, {"task": "two"})
    task_id = host.delegate()
    assert task_id.startswith("G-")
    assert first.arrived.wait(20) and second.arrived.wait(20)
    before = len(host.orchestrator.turns)
    first.released.set()
    time.sleep(2 * POLL_S)
    assert len(host.orchestrator.turns) == before, "one of the two still works"
    second.released.set()
    woken = host.until(lambda: host.orchestrator.having(task_id))
    assert woken.news.count(OUTPUT) == 2
    assert "check_subagent" not in host.orchestrator.called


def test_a_plan_takes_one_question_and_wakes_the_model_once(open_host: OpenHost) -> None:
    gate = Gate(120)
    host = open_host(step_script(gate), PLAN)
    task_id = host.delegate(
        'Ava wants to start the plan "Release notes": 3 steps, up to 5 runs.',
        "At most $0.60",
        '"List the changed modules."',
    )
    assert task_id.startswith("G-")
    assert gate.arrived.wait(60), "the last step has begun"
    before = len(host.orchestrator.turns)
    assert len(entries(host.root, "RunEnded")) == 3
    gate.released.set()
    woken = host.until(lambda: host.orchestrator.having(NOTES))
    assert host.orchestrator.turns.index(woken) == before, "nothing woke it before"
    assert task_id in woken.news
    assert host.orchestrator.called == STARTS
    host.until(lambda: "1 MCP task" not in host.screen)
    assert len(host.orchestrator.turns) == before + 1, "it is woken once"
    assert len(entries(host.root, "SpawnDecided")) == 1
    assert FORM not in host.screen


def test_a_person_raises_a_cap_in_a_form_and_the_run_goes_on(open_host: OpenHost) -> None:
    host = open_host(keep_noting, CAP)
    task_id = host.delegate()
    before = len(host.orchestrator.turns)
    host.accept("near its cost cap of $0.20", "Raise the cost cap to $0.28?")
    decided = host.until_logged("Answered")["content"]
    assert (decided["decision"], decided["channel"]) == ("approved", "elicitation")
    woken = host.until(lambda: host.orchestrator.having(task_id))
    assert "the answer" in woken.news and "$0.28" in woken.news
    assert host.orchestrator.turns.index(woken) == before, "the model was not asked about the money"
    assert host.orchestrator.called == STARTS
    assert len(entries(host.root, "Asked")) == 1


@pytest.mark.parametrize(
    ("option", "ask", "questions"),
    [
        ("--no-allow-tools", False, ["Spawn Subagent", "Confirm Spawn", "form", "Check Subagent"]),
        ("--allow-tools", False, ["Confirm Spawn", "form"]),
        ("--no-allow-tools", True, ["Spawn Subagent", "form", "Check Subagent"]),
        ("--allow-tools", True, ["form"]),
    ],
)
def test_with_the_rules_of_init_and_ask_a_run_takes_one_question(
    tmp_path: Path, option: str, ask: bool, questions: list[str]
) -> None:
    """Claude Code's own questions are answered with "don't ask again"; Ava's form comes for each run."""
    spawn = delegation_rule({"ask": True} if ask else {})
    orchestrator = Orchestrator(lambda turn: call("check_subagent") if LOOK in turn.news else None, spawn)
    with (
        run_model_server([Say(calls=RESULT), Say(calls=RESULT)]) as models,
        open_claude_code(tmp_path, orchestrator, models, allow=option) as host,
    ):
        assert answer_questions_of_run(host, orchestrator) == questions
        assert answer_questions_of_run(host, orchestrator) == ["form"], "Ava's own question always comes"
    assert len(entries(host.root, "RunEnded")) == 2


@pytest.mark.requirement("N-14")
def test_a_question_is_asked_once_answered_in_the_form_and_used(open_host: OpenHost) -> None:
    host = open_host(ask_then_hand_over)
    task_id = host.delegate()
    before = len(host.orchestrator.turns)
    host.until_shown(FORM, QUESTION, "Type something")
    host.write("EUR, as always")
    host.accept("EUR, as always")
    woken = host.until(lambda: host.orchestrator.having(task_id))
    assert "The person answers. This may steer the work, and changes no limit:\\nEUR, as always" in woken.news
    assert '"state":"success"' in woken.news
    assert host.orchestrator.turns.index(woken) == before, "the model was not asked"
    assert host.orchestrator.called == STARTS
    [asked], [answered] = entries(host.root, "Asked"), entries(host.root, "Answered")
    assert answered["content"]["ask_id"] == asked["content"]["ask_id"]
    assert (answered["content"]["decision"], answered["content"]["channel"]) == ("answered", "elicitation")
    assert FORM not in host.screen, "it is asked once"


@pytest.mark.requirement("N-13")
def test_the_list_of_tasks_cancels_a_run(open_host: OpenHost) -> None:
    gate, answer = hold_result()
    host = open_host([answer])
    task_id = host.delegate()
    assert gate.arrived.wait(20)
    host.press("Down", "Enter")
    assert "$0.00 of $0.20" in host.until_shown(task_id, "x to stop")
    host.press("x")
    ended = host.until_logged("RunEnded")
    assert (ended["runId"], ended["content"]["status"]) == (task_id, "cancelled")
    assert gate.client_left.wait(10), "the call of the model was given up"
    assert "cancel_subagent" not in host.orchestrator.called


def test_exit_and_stop_tasks_does_not_stop_the_run(open_host: OpenHost) -> None:
    """Its dialog says that it does; `docs/hosts.md` says how a run is stopped."""
    gate, answer = hold_result()
    host = open_host([answer])
    task_id = host.delegate()
    assert gate.arrived.wait(20)
    host.write("/exit")
    host.press("Enter")
    host.until_shown("The following will stop when you exit", "❯ 1. Exit and stop tasks")
    pid = int(tmux(host.socket, "display-message", "-p", "#{pane_pid}").stdout)
    tmux(host.socket, "set-option", "-g", "remain-on-exit", "on")
    host.press("Enter")
    host.until(lambda: not lives(pid))
    assert entries(host.root, "CancelRequested", "RunEnded") == []
    done = ava(host.root, "cancel", task_id)
    assert done.returncode == 0, done.stderr
    ended = entries(host.root, "RunEnded")[-1]
    assert (ended["runId"], ended["content"]["status"]) == (task_id, "cancelled")


@pytest.mark.requirement("N-13")
def test_an_http_server_is_killed_and_restarted_and_the_same_task_completes(tmp_path: Path) -> None:
    root = data_root(tmp_path)
    text = token(root, "ana")
    gate = Gate(120)
    orchestrator = Orchestrator(delegation_rule())
    script = [Say("lost", gate=gate), Say(calls=RESULT)]
    with run_model_server(script) as models, ExitStack() as servers:
        first = servers.enter_context(http_server(root, models))
        with open_claude_code(tmp_path, orchestrator, models, server=first.entry(text)) as host:
            task_id = host.delegate()
            assert gate.arrived.wait(20)
            before = len(orchestrator.turns)
            first.kill()
            time.sleep(6)
            assert "1 MCP task" in host.screen and len(orchestrator.turns) == before
            servers.enter_context(http_server(root, models, first.port))
            woken = host.until(lambda: orchestrator.having(OUTPUT))
            assert task_id in woken.news
            assert orchestrator.called == STARTS
    assert [entry["runId"] for entry in entries(root, "RunEnded")] == [task_id]
    assert_intact(root)


def test_without_a_terminal_a_run_is_approved_elsewhere_and_waited_for(tmp_path: Path) -> None:
    orchestrator = Orchestrator()
    with (
        run_model_server([Say(calls=RESULT)]) as models,
        open_headless(tmp_path, orchestrator, models) as host,
    ):
        orchestrator.rules = (approve_elsewhere(host, wait_seconds=40), delegation_rule())
        assert host.ask(DELEGATE) == OUTPUT
        refused = next(answer for turn in orchestrator.turns for answer in turn.answers if "decisions" in answer)
        assert "ava approve P-" in refused["next"]
        assert orchestrator.called == [*STARTS, "check_subagent"]
    assert_intact(host.root)


def test_the_picture_in_the_readme_shows_the_form_as_it_is() -> None:
    picture = script("host_picture")
    form = picture.screen()
    drawn = (REPOSITORY / "examples" / "approval.svg").read_text("utf-8")
    assert picture.svg(form) == drawn, "run `python scripts/host_picture.py`"
