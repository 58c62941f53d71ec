"""Runs under the policy `auto`, and what their proposals say."""

from __future__ import annotations

from typing import Any

from ava_audit.events import SpawnDecided
from ava_audit.rows import WAITING
from ava_audit.view import View
from support.runtime import PRICED, Lab

LIMITS = "[limits]\nspawns_per_hour = 1000\nuser_daily_cents = 100000\ninstallation_daily_cents = 100000\n"


def auto_config(each: int = 50, day: int = 120, prices: str = PRICED) -> str:
    """A configuration under which so many cents start by themselves."""
    return f'approval = "auto"\nauto_approve_cents = {each}\nauto_approve_daily_cents = {day}\n{LIMITS}{prices}'


async def propose_reviewer(lab: Lab, **more: Any) -> Any:
    """Propose one that reads the files, and nothing else."""
    given: dict[str, Any] = {
        "role": "code_reviewer",
        "blocked_tools": ["run_bash", "python_exec"],
        "task": "Look at it",
        "workspace": str(lab.workspace),
        "max_cost_cents": 40,
        **more,
    }
    return await lab.call("spawn_subagent", **given)


async def all_decisions(lab: Lab) -> list[SpawnDecided]:
    """All decisions there are."""

    def query(view: View) -> list[SpawnDecided]:
        facts = [entry.fact for run in view.runs() for entry in view.entries(run.id, 0, ("SpawnDecided",))]
        return [fact for fact in facts if isinstance(fact, SpawnDecided)]

    return await lab.store.read(query)


def why_waiting(answer: Any) -> str:
    """What an answer says of a proposal that waits as under `ask`."""
    assert answer.status == WAITING, answer
    assert answer.approval_line and answer.expires_at and "confirm_spawn" in answer.next
    assert "It does not start by itself: " in answer.message
    return str(answer.message).partition("It does not start by itself: ")[2]
