"""Decisions: nothing runs before it was approved, and an approval covers exactly what was shown."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from ava_audit.events import Channel, Event, SpawnDecided, SubagentSpawn, UserMessage, Who
from ava_audit.money import MICROS_PER_CENT, format_usd
from ava_audit.store.store import Command, Outcome
from ava_audit.times import DAY_US
from ava_audit.view import View
from ava_server.approval.checks import Approval, Decided, Decision, Member, Weighed, look, weigh
from ava_server.approval.proposals import SpawnLimits, close_proposal
from ava_server.approval.run_config import RunConfig, config_of
from ava_server.approval.summary import approval_line

PERSONS: frozenset[Channel] = frozenset(("elicitation", "terminal", "http"))
"""The channels over which a person decides."""


def approve(asked: Approval, who: Who, channel: Channel, limits: SpawnLimits) -> Command[Decided]:
    """Approve one proposal, or several as one group: if one cannot start, none does."""

    def command(view: View, now_us: int) -> Outcome[Decided]:
        weighed = weigh(view, asked, who, limits, now_us)
        return weighed if isinstance(weighed, Outcome) else _given(weighed, asked, who, channel)

    return command


def refuse(asked: Approval, who: Who, limits: SpawnLimits) -> Command[Decided]:
    """Refuse an approval that cannot be given; it approves nothing, also where it could be given by now."""

    def command(view: View, now_us: int) -> Outcome[Decided]:
        weighed = weigh(view, asked, who, limits, now_us)
        if isinstance(weighed, Outcome):
            return weighed
        return Outcome(
            Decided(tuple(member.refused("it could not start a moment ago; try again") for member in weighed.members))
        )

    return command


def approve_by_itself(pending_id: str, who: Who, limits: SpawnLimits, ceilings: Ceilings) -> Command[Decided]:
    """Approve a proposal under the policy `auto`, if it and all that was approved so today stay below its ceilings.

    What counts is what was committed, that is caps: what they come to cost is known later, and may be less.
    """

    def command(view: View, now_us: int) -> Outcome[Decided]:
        found = look(view, pending_id, who.user_id, now_us)
        if isinstance(found, Decision):
            return Outcome(Decided((found,)))
        asked = Approval((pending_id,), (approval_line(found.config, found.texts),))
        weighed = weigh(view, asked, who, limits, now_us)
        if isinstance(weighed, Outcome):
            return weighed
        day_us = now_us - now_us % DAY_US
        before = sum(committed(config_of(run.config)) for run in view.approved_over("auto", who.user_id, day_us))
        if why := ceilings.passed(committed(found.config), before):
            return Outcome(Decided((found.refused(why),)))
        return _given(weighed, asked, who, "auto")

    return command


@dataclass(frozen=True)
class Ceilings:
    """What the policy `auto` may commit by itself, in micro-USD: with a run, and with all of a user in a UTC day."""

    run_micros: int
    day_micros: int

    def passed(self, micros: int, before: int) -> str | None:
        """Return which of them would be passed, or None."""
        if micros > self.run_micros:
            return (
                f"its cap of {format_usd(micros)} is above what starts by itself, {format_usd(self.run_micros)}"
                " (auto_approve_cents in config.toml)"
            )
        if before + micros > self.day_micros:
            return (
                f"{format_usd(before)} were committed by themselves today, and with {format_usd(micros)} more that is"
                f" above {format_usd(self.day_micros)} (auto_approve_daily_cents in config.toml)"
            )
        return None


def committed(config: RunConfig) -> int:
    """Return what an approval commits, in micro-USD: the run's cap, and a cent for one that costs nothing."""
    return MICROS_PER_CENT if config.price.get("free") else config.max_cost_micros


def _given(weighed: Weighed, asked: Approval, who: Who, channel: Channel) -> Outcome[Decided]:
    events = [event for member in weighed.members for event in _approved(member, who, channel, asked, weighed)]
    decisions = tuple(Decision(member.row.pending_id, member.run.id, "approved") for member in weighed.members)
    return Outcome(Decided(decisions, asked.group_id if weighed.group_cap is not None else None), tuple(events))


def reject(pending_ids: tuple[str, ...], who: Who, channel: Channel) -> Command[Decided]:
    """Reject proposals, id by id."""

    def command(view: View, now_us: int) -> Outcome[Decided]:
        events: list[Event] = []
        decisions: list[Decision] = []
        for pending_id in pending_ids:
            item = look(view, pending_id, who.user_id, now_us)
            if isinstance(item, Decision) and not item.expired:
                decisions.append(item)
                continue
            row = view.proposal(pending_id)
            run = view.run(row.run_id) if row else None
            assert row is not None and run is not None
            events.extend(close_proposal(row, run, who, "rejected", channel=channel))
            decisions.append(Decision(pending_id, run.id, "rejected"))
        return Outcome(Decided(tuple(decisions)), tuple(events))

    return command


def _decision_digest(member: Member, asked: Approval, weighed: Weighed) -> str:
    """Return the hash of all that is decided with a proposal: its digest, what changes, and the group it is in."""
    group = [sorted(asked.pending_ids), weighed.group_cap, weighed.group_timeout_s]
    line = json.dumps(
        [member.row.digest, dict(member.changes), group if weighed.group_cap is not None else None],
        ensure_ascii=False,
        separators=(",", ":"),
        sort_keys=True,
    )
    return hashlib.sha256(line.encode()).hexdigest()


def _approved(member: Member, who: Who, channel: Channel, asked: Approval, weighed: Weighed) -> tuple[Event, ...]:
    group_id = asked.group_id if weighed.group_cap is not None else None
    decided = SpawnDecided(
        pending_id=member.row.pending_id,
        decision="approved",
        channel=channel,
        digest=member.row.digest,
        decision_digest=_decision_digest(member, asked, weighed),
        changes=dict(member.changes),
        group_id=group_id,
        group_max_cost_micros=weighed.group_cap,
        group_timeout_s=weighed.group_timeout_s,
    )
    spawn = SubagentSpawn(
        role=member.config.role,
        task=member.texts.task,
        subagent_id=member.run.id,
        pending_id=member.row.pending_id,
        name=member.config.name,
        task_id=member.config.task_id,
        max_cost_cents=member.changed.max_cost_micros / 10_000,
        model=member.config.model,
        group_id=group_id,
    )
    said: tuple[Event, ...] = ()
    run_id = member.run.id
    if channel in PERSONS:  # a person's own channel; a host's call is not claimed to be one
        text = f"approved {member.row.pending_id}: {approval_line(member.config, member.texts)}"
        said = (Event(who, UserMessage(text=text, kind="decision"), run_id=run_id),)
    return (*said, Event(who, decided, run_id=run_id), Event(who, spawn, run_id=run_id, model=member.config.model))
