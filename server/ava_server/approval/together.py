"""Proposals that are approved together: a plan without edges, whose steps are these proposals.

Each keeps its own caps and may ask for more as it was approved; all of them share the cost cap and the time of the
plan, which ends when the last of them has.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ava_audit.events import Channel, Event, SpawnDecided, SpawnProposed, UserMessage, Who
from ava_audit.units import MICROS_PER_CENT
from ava_server.approval.plan_summary import separate_reach
from ava_server.approval.proposals import spawn_fact
from ava_server.approval.resolve_plan import LONGEST_S, plan_config
from ava_server.approval.steps import ITEM
from ava_server.core.ids import AGENT
from ava_server.run_config.brief import Brief
from ava_server.run_config.config import RunConfig, StepConfig
from ava_server.run_config.digest import digest

STEP_ID_CHARS = 30


@dataclass(frozen=True)
class StartedTogether:
    """One of several proposals that start together: its run, who proposed it, what was approved, and its texts."""

    run_id: str
    session_id: str
    config: RunConfig
    brief: Brief


@dataclass(frozen=True)
class Together:
    """Several proposals as one plan.

    Attributes:
        pending_id: The plan's own, under which it is approved in the same moment.
        plan_id: `G-…`.
        session_id: The session that proposed the first of them: its host hears how the plan ends.
        step_ids: The step of each proposal, in their order.
    """

    pending_id: str
    plan_id: str
    session_id: str
    config: RunConfig
    brief: Brief
    step_ids: tuple[str, ...]

    def events(self, who: Who, channel: Channel, now_us: int) -> tuple[Event, ...]:
        """Return the entries that propose and approve the plan; those of its steps follow."""
        sha = digest(self.config, self.brief)
        proposed = SpawnProposed(
            pending_id=self.pending_id,
            subagent_id=self.plan_id,
            digest=sha,
            expires_us=now_us,
            config=self.config.model_dump(mode="json", exclude_none=True),
        )
        decided = SpawnDecided(
            pending_id=self.pending_id, decision="approved", channel=channel, digest=sha, decision_digest=sha
        )
        spawn = spawn_fact(self.config, self.brief.task, self.plan_id, self.pending_id)
        proposer = Who(self.session_id, AGENT, who.user_id)
        agent = Who(self.session_id, self.plan_id, who.user_id, parent_agent_id=AGENT)
        # The texts of its steps are with their own runs.
        task = UserMessage(text=self.brief.task, kind="task")
        return (
            Event(proposer, proposed, run_id=self.plan_id, model=self.config.model),
            Event(agent, task, run_id=self.plan_id),
            Event(who, decided, run_id=self.plan_id),
            Event(who, spawn, run_id=self.plan_id, model=self.config.model),
        )


def plan_of(
    members: Sequence[StartedTogether], ids: tuple[str, str], cap_micros: int, timeout_s: float | None
) -> Together:
    """Return proposals as one plan.

    `ids` are the plan's own `P-…` and `G-…`. Without `timeout_s` the plan may take as long as any plan can.
    """
    step_ids = _step_ids([member.config.name or member.config.role for member in members])
    steps: list[StepConfig] = []
    step_briefs: list[Brief] = []
    for step_id, member in zip(step_ids, members, strict=True):
        steps.append(StepConfig(id=step_id, config=_without_texts(member.config), run=member.run_id))
        step_briefs.append(member.brief.model_copy(update={"step": step_id}))
    arguments: dict[str, object] = {"max_cost_cents": cap_micros / MICROS_PER_CENT}
    if timeout_s is None:
        timeout_s = LONGEST_S
    else:
        arguments["timeout"] = timeout_s
    config = plan_config(
        steps,
        max_cost_micros=cap_micros,
        timeout_s=timeout_s,
        reach=separate_reach([member.config for member in members]),
        background=any(member.config.background for member in members),
        asked=arguments,
    )
    brief = Brief(task=f"{len(members)} subagents, approved together.", steps=tuple(step_briefs))
    pending_id, plan_id = ids
    return Together(pending_id, plan_id, members[0].session_id, config, brief, tuple(step_ids))


def _without_texts(config: RunConfig) -> RunConfig:
    """Return a configuration without its long texts: the member's own proposal has them already."""
    return config.model_copy(update={"role_text": "", "foreign": {}})


def _step_ids(names: Sequence[str]) -> list[str]:
    """Return a different id for each name, of a-z, 0-9 and _: an id that is taken gets a number, as in `scout_2`."""
    ids: list[str] = []
    for name in names:
        plain = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")[:STEP_ID_CHARS]
        if not plain:
            plain = "subagent"
        step_id = plain
        number = 1
        while step_id in ids or step_id == ITEM:  # a plan's templates use ITEM for an item of a list
            number += 1
            ending = f"_{number}"
            step_id = plain[: STEP_ID_CHARS - len(ending)] + ending
        ids.append(step_id)
    return ids
