"""Proposals that were made under a stricter policy than the one that holds where they are decided on."""

from __future__ import annotations

import pytest

from ava_audit.events import SpawnProposed
from support.runtime import PRICED, Lab

HUMAN = {"AVA_APPROVAL": "human"}
"""A server of the data root is started with it; or its host asks nobody, which is as strict."""
ASK, BY_HOST = f'approval = "ask"\n{PRICED}', f'approval = "by_host"\n{PRICED}'
UNDER = pytest.mark.parametrize("under", ["AVA_APPROVAL=human", "a host that asks nobody"])


def policy_of(under: str) -> tuple[str, dict[str, str]]:
    """Return the configuration and the variables under which a proposal is made."""
    return (ASK, HUMAN) if under == "AVA_APPROVAL=human" else (BY_HOST, {})


async def propose_stricter(lab: Lab, under: str, **more: object) -> tuple[str, str, str]:
    """Propose under the stricter policy, and return the ids of the run and the proposal, and its approval line."""
    if under != "AVA_APPROVAL=human":
        lab.session.client, lab.session.client_version = "opencode", "1.18.33"
    made = await lab.propose(**more)
    assert made.subagent_id is not None and made.pending_id is not None
    [fact] = await lab.facts(made.subagent_id, SpawnProposed)
    assert fact.policy == "human"
    lab.session.client = lab.session.client_version = None
    lab.session.channel, lab.session.pin_given = "terminal", True
    return made.subagent_id, made.pending_id, str(made.approval_line)


async def start_stricter(lab: Lab, under: str, **more: object) -> str:
    """Start a run that was proposed under the stricter policy, as a person with the PIN does."""
    run_id, pending_id, line = await propose_stricter(lab, under, **more)
    answer = await lab.call("confirm_spawn", pending_ids=[pending_id], approving=[line])
    assert answer.status == "approved", answer
    return run_id
