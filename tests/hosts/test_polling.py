"""What tasks save: a session of five subagents in Claude Code, with tasks and with polling, as its model sees them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.hosts.claude_code import (
    DELEGATE,
    Headless,
    Orchestrator,
    Rule,
    Turn,
    call,
    delegation_rule,
    open_claude_code,
    open_headless,
)
from support.hosts.real_hosts import entries, needs, time_of_entry
from support.model_server import Gate, Say, Step, run_model_server

pytestmark = [pytest.mark.slow, needs("tmux")]

SECONDS = (3, 6, 9, 12, 15)
"""How long the subagents work."""


@dataclass(frozen=True)
class Session:
    """A session from the person's order to the model's last answer.

    Attributes:
        requests: Requests of the main conversation to the model.
        tokens: Their bodies at four bytes a token, together.
        polls: Calls of check_subagent.
        late_s: Seconds from the end of the last run to the request with its result.
    """

    requests: int
    tokens: int
    polls: int
    late_s: float


def test_tasks_need_fewer_requests_than_polling(tmp_path: Path) -> None:
    with_tasks = tasks_session(tmp_path / "tasks", SECONDS)
    polling = polling_session(tmp_path / "polling", SECONDS, wait_seconds=3)
    assert with_tasks.polls == 0 and polling.polls > 3
    assert with_tasks.requests < polling.requests and with_tasks.tokens < polling.tokens
    assert with_tasks.late_s <= 3


def tasks_session(folder: Path, seconds: Sequence[float]) -> Session:
    """Approve the runs together, and wait until the model is woken."""
    folder.mkdir()
    orchestrator = Orchestrator(delegation_rule(*spawns(seconds)))
    with run_model_server(works) as models, open_claude_code(folder, orchestrator, models) as host:
        task_id = host.delegate()
        woken = host.until(lambda: orchestrator.having(task_id, "<status>completed</status>"), max(seconds) + 60)
        host.until(lambda: "1 MCP task" not in host.screen)
        return measured(orchestrator, host.root, woken)


def polling_session(folder: Path, seconds: Sequence[float], wait_seconds: float) -> Session:
    """Approve the runs in another window, as it has to be without a terminal, and ask for news until all have ended."""
    folder.mkdir()
    orchestrator = Orchestrator()
    with run_model_server(works) as models, open_headless(folder, orchestrator, models) as host:
        orchestrator.rules = (polls(host, wait_seconds), delegation_rule(*spawns(seconds)))
        assert host.ask(DELEGATE, max(seconds) + 120) == "All is there."
        return measured(orchestrator, host.root, orchestrator.turns[-1])


def spawns(seconds: Sequence[float]) -> list[Mapping[str, Any]]:
    return [{"task": f"Work for {each} seconds."} for each in seconds]


def works(request: dict[str, Any]) -> Step:
    """Work as long as the task says."""
    found = re.search(r"Work for ([\d.]+) seconds", str(request["messages"]))
    assert found
    result = {"summary": "A page was read.", "output": "The price is twelve cents and a half. " * 20}
    return Say(calls=[("submit_result", result)], gate=Gate(float(found[1])))


def polls(host: Headless, wait_seconds: float) -> Rule:
    """Have the person approve all of them in another window, then ask for news of their plan until it has ended."""
    plan: dict[str, Any] = {}

    def rule(turn: Turn) -> Step | None:
        for answer in turn.answers:
            if answer["status"] == "refused" and "approval_lines" not in answer:
                host.approve(*(each["pending_id"] for each in answer["decisions"]))
                return call("check_subagent")
            if runs := answer.get("runs"):
                plan.setdefault("group_id", next(run["group_id"] for run in runs))
                if len(runs) == len(SECONDS) and all("untrusted_result" in run for run in runs):
                    return Say("All is there.")
                return call("check_subagent", **plan, wait_seconds=wait_seconds)
        return None

    return rule


def measured(orchestrator: Orchestrator, root: Path, last: Turn) -> Session:
    ended = max(time_of_entry(entry) for entry in entries(root, "RunEnded"))
    return Session(
        requests=len(orchestrator.turns),
        tokens=sum(orchestrator.sizes) // 4,
        polls=orchestrator.called.count("check_subagent"),
        late_s=last.at - ended,
    )
