"""Decisions on proposals: nothing runs before it is approved, and an approval covers exactly what was shown."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from ava_audit.events import Channel, Event, SpawnDecided, UserMessage, Who
from ava_audit.rows import WAITING, ProposalRow, RunRow
from ava_audit.units import DAY_US, HOUR_US, MICROS_PER_CENT, format_usd, iso_second
from ava_audit.view import Command, Outcome, View
from ava_server.approval.channels import COUNTED_CHANNELS, PERSON_CHANNELS
from ava_server.approval.decide import OTHER_REFUSED, FoldedScreen
from ava_server.approval.outcomes import closed_proposal, run_now
from ava_server.approval.plain_text import normalize_typography
from ava_server.approval.proposals import (
    NO_FREE_ID,
    SpawnLimits,
    brief_of,
    close_proposal,
    day_left,
    day_refusal,
    day_unspent,
    free_ids,
    spawn_fact,
)
from ava_server.approval.resolve_plan import change_plan
from ava_server.approval.shown import approval_line
from ava_server.approval.summary import DayLeft, several_line
from ava_server.approval.together import StartedTogether, plan_of
from ava_server.core.names import named_all, quote_name
from ava_server.run_config.brief import Brief
from ava_server.run_config.config import RunConfig, StepConfig, config_of, paid_runs
from ava_server.run_config.run_cap import CAPS, COST, TIME, RunCap

MINUTE_US = 60_000_000


@dataclass(frozen=True)
class ProposalDecision:
    """The decision on one proposal.

    Attributes:
        subagent_id: The run that was proposed; None for an unknown proposal.
        expired: It is refused because it expired before this decision.
        before: What its run does now, if it was approved earlier; empty otherwise.
    """

    pending_id: str
    subagent_id: str | None
    status: Literal["approved", "rejected", "refused"]
    refused_because: str | None = None
    expired: bool = False
    before: str = ""


NotAgreed = Literal["decline", "cancel", "silent"]
"""How a person who was asked did not agree: they declined, closed the question, or did not answer in time."""


@dataclass(frozen=True)
class ConfirmOutcome:
    """The outcome of one `confirm_spawn`.

    Attributes:
        approval_lines: The correct lines, if the call gave a wrong one; empty otherwise.
        not_agreed: How the person who was asked did not decide. The proposals still wait then.
        lowered: A sentence for each limit that was lowered.
        elsewhere: Whether a proposal was decided elsewhere while the person was asked. The first sentences of
            `lowered` say so.
        page: The page where the person can still decide, if they were sent to one.
    """

    decisions: tuple[ProposalDecision, ...]
    plan_id: str | None = None
    approval_lines: tuple[str, ...] = ()
    not_agreed: NotAgreed | None = None
    lowered: tuple[str, ...] = ()
    elsewhere: bool = False
    page: str | None = None


@dataclass(frozen=True)
class PlanLimits:
    """The limits of several proposals together that a person lowered in the form; None for an unchanged one."""

    max_micros: int | None
    timeout_s: float | None


@dataclass(frozen=True)
class Approval:
    """A requested approval.

    Attributes:
        approving: The approval lines that the call repeats; None if it left them out.
        changes: What the call changes, by pending id.
        plan_ids: Candidates for the ids of the plan that several proposals become: its own `P-…`, and `G-…`.
        lowered: A sentence for each limit that the call or the form lowered; None if no form was shown.
        screens: What the person's screen showed, by pending id, for proposals of which a part stayed folded.
    """

    pending_ids: tuple[str, ...]
    approving: tuple[str, ...] | None
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    plan_max_micros: int | None = None
    plan_timeout_s: float | None = None
    plan_ids: tuple[tuple[str, str], ...] = ()
    plan_lowered: PlanLimits | None = None
    lowered: tuple[str, ...] | None = None
    screens: Mapping[str, FoldedScreen] = field(default_factory=dict[str, FoldedScreen])


@dataclass(frozen=True)
class ProposalChange:
    """One proposal of an approval as the log has it, and the fields of its configuration that the approval changes."""

    row: ProposalRow
    run: RunRow
    config: RunConfig
    brief: Brief
    changes: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def refused(self, why: str | None) -> ProposalDecision:
        """Return the refusal of this proposal. Without `why` it is refused because another proposal was."""
        return ProposalDecision(self.row.pending_id, self.run.id, "refused", why or OTHER_REFUSED)

    @cached_property
    def changed(self) -> RunConfig:
        """The configuration with the changes."""
        if not self.changes:
            return self.config
        changes = dict(self.changes)
        if "tools" in changes:
            changes["tools"] = tuple(changes["tools"])
        if "steps" in changes:
            changes["steps"] = tuple(StepConfig.model_validate(step) for step in changes["steps"])
        return self.config.model_copy(update=changes)


@dataclass(frozen=True)
class CheckedApproval:
    """An approval that can be given.

    Attributes:
        plan_cap: The cost cap of several members together, in micro-USD; None for a single member.
        plan_timeout_s: The time limit of several members together; None for no limit of their own.
        day: What the user's daily limit still leaves.
    """

    members: tuple[ProposalChange, ...]
    plan_cap: int | None
    plan_timeout_s: float | None
    day: DayLeft

    @property
    def free(self) -> bool:
        return all(member.config.free for member in self.members)

    @property
    def least_micros(self) -> int:
        """The cost cap from which each of them can work."""
        return max(member.config.least_micros for member in self.members)


def check_approval(
    view: View, approval: Approval, who: Who, channel: Channel, limits: SpawnLimits, now_us: int
) -> CheckedApproval | Outcome[ConfirmOutcome]:
    """Return an approval that can be given, or its refusal with the events that record it.

    The hourly limit is checked before the approval lines: a person must not be shown lines that cannot be approved.
    """
    checks = [check_proposal(view, pending_id, who.user_id, now_us) for pending_id in approval.pending_ids]
    members = [check for check in checks if isinstance(check, ProposalChange)]
    if len(members) < len(checks):
        return _refuse_with_others(view, checks, who)
    is_several = len(members) > 1
    if is_several and any(member.config.steps for member in members):
        return _refuse_all(members, "approve a plan by itself, giving only its id: it has its own caps")
    paid_starts = 0
    if channel not in PERSON_CHANNELS:
        paid_starts = sum(member.config.paid_runs for member in members)
    why_not = hourly_refusal(view, who.user_id, approval.pending_ids, paid_starts, limits, now_us)
    if why_not:
        return _refuse_all(members, why_not)
    checked = CheckedApproval(tuple(members), None, None, day_left(view, who.user_id, limits, now_us))
    if is_several:
        cap = _plan_cap(checked, approval.plan_max_micros)
        if isinstance(cap, str):
            return _refuse_all(members, cap)
        checked = replace(checked, plan_cap=cap, plan_timeout_s=approval.plan_timeout_s)
    lines = approval_lines(checked)
    why_not = _wrong_lines(view, approval.approving, lines, checked, now_us)
    if why_not:
        return _refuse_all(members, f"{why_not}; show the person approval_lines and give exactly these", lines)
    if not checked.free:
        why_not = day_refusal(day_unspent(view, who.user_id, limits, now_us), checked.least_micros)
        if why_not:
            return _refuse_all(members, why_not)
    changed: list[ProposalChange] = []
    for member in members:
        change = _change_proposal(member, approval.changes.get(member.row.pending_id, {}))
        if isinstance(change, str):
            return _refuse_one(members, member, change)
        changed.append(change)
    checked = replace(checked, members=tuple(changed))
    if approval.plan_lowered is None:
        return checked
    lowered = _lower_limits(checked, approval.plan_lowered)
    if lowered is None:
        return _refuse_all(members, "a limit of the plan would be raised; it may be lowered")
    return lowered


def _refuse_all(members: Sequence[ProposalChange], why: str, lines: tuple[str, ...] = ()) -> Outcome[ConfirmOutcome]:
    """Refuse all proposals for the same reason; `lines` are those that the approval should have repeated."""
    decisions = tuple(member.refused(why) for member in members)
    return Outcome(ConfirmOutcome(decisions, approval_lines=lines))


def _refuse_one(members: Sequence[ProposalChange], faulty: ProposalChange, why: str) -> Outcome[ConfirmOutcome]:
    """Refuse one proposal for this reason, and the others because of it."""
    decisions: list[ProposalDecision] = []
    for member in members:
        decisions.append(member.refused(why if member is faulty else None))
    return Outcome(ConfirmOutcome(tuple(decisions)))


def _plan_cap(checked: CheckedApproval, requested_micros: int | None) -> int | str:
    """Return the cost cap of several proposals together, in micro-USD, or why the requested one is wrong."""
    together = sum(member.config.max_cost_micros for member in checked.members)
    least = checked.least_micros
    if requested_micros is None:
        return together
    if requested_micros > together:
        return f"group_max_cost_cents is above the sum of the members' caps, {COST.text(together)}; give that or less"
    if requested_micros < least:
        return (
            f"group_max_cost_cents: {COST.text(requested_micros)} buys no useful work; give"
            f" {format_usd(least, up=True)} or more"
        )
    return requested_micros


def _wrong_lines(
    view: View, approving: tuple[str, ...] | None, lines: tuple[str, ...], checked: CheckedApproval, now_us: int
) -> str | None:
    """Return how the given lines differ from those of the approval; None if they are the right ones."""
    if approving is None:
        return "`approving` was left out"
    if _lines_match(view, approving, lines, checked, now_us):
        return None
    if checked.plan_cap is not None and approving == lines[:-1]:
        return "the last line, of all of them together, is missing in `approving`"
    return "`approving` is not, letter for letter, what was proposed"


def _lines_match(
    view: View, approving: tuple[str, ...], lines: tuple[str, ...], checked: CheckedApproval, now_us: int
) -> bool:
    """Tell whether the given lines are those of an approval. The typography of quotes, dashes and dots may differ.

    It may not differ if only typography tells the line from that of another proposal, one of this approval or one
    that waits or expired since yesterday: the person may have seen the other one.
    """
    if approving == lines:
        return True
    plain_lines = tuple(map(normalize_typography, lines))
    if tuple(map(normalize_typography, approving)) != plain_lines:
        return False
    if len(set(plain_lines)) < len(set(lines)):
        return False
    other_lines = _lines_of_others(view, checked, now_us)
    if other_lines is None:
        return False
    confusable = [line for line in other_lines if normalize_typography(line) in plain_lines and line not in lines]
    return not confusable


def _lines_of_others(view: View, checked: CheckedApproval, now_us: int) -> list[str] | None:
    """Return the lines of the user's other proposals that wait, or expired since yesterday.

    None if one of them cannot be read, because a newer Ava wrote it.
    """
    user = checked.members[0].run.user_id
    own_ids = {member.run.id for member in checked.members}
    lines: list[str] = []
    for run in view.runs(user=user, states=(WAITING,), expired_before_us=now_us - DAY_US, limit=-1):
        if run.id in own_ids:
            continue
        try:
            config, brief = config_of(run.config), brief_of(view, run)
        except ValueError:
            return None
        if brief is not None:
            lines.append(approval_line(config, brief))
    return lines


def _lower_limits(checked: CheckedApproval, limits: PlanLimits) -> CheckedApproval | None:
    """Return an approval with lower limits for all its members together; None if a limit would be raised."""
    cap, timeout_s = checked.plan_cap, checked.plan_timeout_s
    if limits.max_micros is not None:
        if cap is None or limits.max_micros > cap:
            return None
        cap = limits.max_micros
    if limits.timeout_s is not None:
        if timeout_s is None or limits.timeout_s > timeout_s:
            return None
        timeout_s = limits.timeout_s
    return replace(checked, plan_cap=cap, plan_timeout_s=timeout_s)


def approval_lines(checked: CheckedApproval) -> tuple[str, ...]:
    """Return the lines that an approval must repeat: one for each proposal and, for several, one about all of them."""
    lines = [approval_line(member.config, member.brief) for member in checked.members]
    if checked.plan_cap is not None:
        shown_cap = None if checked.free else checked.plan_cap
        lines.append(several_line(len(lines), shown_cap, checked.plan_timeout_s))
    return tuple(lines)


def check_proposal(view: View, pending_id: str, user: str, now_us: int) -> ProposalChange | ProposalDecision:
    """Return this user's waiting proposal, or the refusal of one that cannot be decided any more."""
    row = view.proposal(pending_id)
    run = view.run(row.run_id) if row is not None else None
    if row is None or run is None or row.user_id != user:
        why = f"no proposal {pending_id} of yours is known; call check_subagent without an id for what waits"
        return ProposalDecision(pending_id, None, "refused", why)
    if row.state == "approved":
        why = f"{closed_proposal(view, run)}: call check_subagent with that id"
        return ProposalDecision(pending_id, run.id, "refused", why, before=run_now(run))
    if row.state != WAITING:
        why = f"{closed_proposal(view, run)}: to run it, propose it again with spawn_subagent"
        return ProposalDecision(pending_id, run.id, "refused", why)
    if row.expires_us <= now_us:
        why = "it expired before it was approved; a fresh proposal was made, show it to the person and confirm that one"
        return ProposalDecision(pending_id, run.id, "refused", why, expired=True)
    brief = brief_of(view, run)
    if brief is None:
        why = "its texts were erased; make a new proposal with spawn_subagent"
        return ProposalDecision(pending_id, run.id, "refused", why)
    return ProposalChange(row, run, config_of(run.config), brief)


def _refuse_with_others(
    view: View, checks: Sequence[ProposalChange | ProposalDecision], who: Who
) -> Outcome[ConfirmOutcome]:
    """Refuse proposals of which some are refused already; those that have expired are closed in the log."""
    events: list[Event] = []
    decisions: list[ProposalDecision] = []
    for check in checks:
        if isinstance(check, ProposalChange):
            decisions.append(check.refused(None))
            continue
        decisions.append(check)
        if check.expired:
            row, run = _proposed_run(view, check.pending_id)
            events.extend(close_proposal(row, run, who, "expired"))
    return Outcome(ConfirmOutcome(tuple(decisions)), tuple(events))


def _proposed_run(view: View, pending_id: str) -> tuple[ProposalRow, RunRow]:
    """Return a proposal that is known to be in the log, and its run."""
    row = view.proposal(pending_id)
    assert row is not None
    run = view.run(row.run_id)
    assert run is not None
    return row, run


def hourly_refusal(
    view: View, user: str, pending_ids: Sequence[str], paid: int, limits: SpawnLimits, now_us: int
) -> str | None:
    """Return why the hourly limit forbids `paid` more starts without a person's answer; None if it allows them."""
    short = hourly_shortage(view, user, paid, limits, now_us)
    if short is None:
        return None
    return f"{short.why}; `ava approve {' '.join(pending_ids)}` in a terminal is not limited"


@dataclass(frozen=True)
class HourlyShortage:
    """The hourly limit leaves too few starts: `left` are still possible, and `why` says when there are more."""

    left: int
    why: str


def hourly_shortage(view: View, user: str, paid: int, limits: SpawnLimits, now_us: int) -> HourlyShortage | None:
    """Return what the hourly limit leaves if it forbids `paid` more starts without a person's answer, else None."""
    if paid == 0:
        return None
    most = limits.spawns_per_hour
    starts_us: list[int] = []  # when each paid run of the last hour was queued
    for channel in COUNTED_CHANNELS:
        for run in view.approved_over(channel, user, now_us - HOUR_US):
            if run.step is None:  # a plan counts once, with all the paid runs that it may have
                starts_us += [run.queued_us or 0] * paid_runs(run)
    starts_us.sort()
    too_many = len(starts_us) + paid - most
    if too_many <= 0:
        return None
    if most == 0:
        why = f"no paid run may start without a person's answer ({limits.spawns_setting})"
    elif paid > most:
        why = (
            f"{paid} are more than the {most} paid starts per hour without a person's answer ({limits.spawns_setting})"
        )
    else:
        next_us = starts_us[too_many - 1] + HOUR_US  # then the oldest `too_many` starts no longer count
        in_minutes = max(1, -(-(next_us - now_us) // MINUTE_US))  # rounded up
        why = (
            f"{len(starts_us)} of {most} paid starts per hour without a person's answer are used"
            f" ({limits.spawns_setting}); the next start is possible in {in_minutes} min, at {iso_second(next_us)}"
        )
    return HourlyShortage(max(most - len(starts_us), 0), why)


def _change_proposal(member: ProposalChange, requested: Mapping[str, Any]) -> ProposalChange | str:
    """Return a proposal with the requested changes, or a sentence on why it cannot have them."""
    if member.config.steps:
        changes = change_plan(member.config, requested)
    else:
        changes = _change_run(member.config, requested)
    if isinstance(changes, str):
        return changes
    return replace(member, changes=changes)


def _change_run(config: RunConfig, requested: Mapping[str, Any]) -> dict[str, Any] | str:
    """Return the fields that an approval changes in a single run's configuration, or a sentence on why it cannot.

    `requested` names the tools to block; the result has the `tools` that remain.
    """
    if requested.get("drop"):
        return "changes: drop takes steps from a plan, and this is a single subagent; reject it instead"
    changes = dict(requested)
    changes.pop("drop", None)
    blocked = changes.pop("blocked_tools", None) or ()
    for cap in CAPS:
        if cap.field in changes and changes[cap.field] > cap.of(config):
            return (
                f"changes: {cap.argument} would be raised, and an approval only lowers; propose it again with"
                " spawn_subagent"
            )
    cost_cap = changes.get(COST.field)
    if cost_cap is not None and cost_cap < config.least_micros:
        return (
            f"changes: a cost cap of {COST.text(cost_cap)} buys no useful work with"
            f" {config.model}; give {format_usd(config.least_micros, up=True)} or more"
        )
    for name in blocked:
        if name not in config.tools:
            tools = named_all("tool", config.tools, len(config.tools))
            return f"changes: it has no tool {quote_name(name)} to block; it has {tools}"
    if blocked:
        changes["tools"] = [name for name in config.tools if name not in blocked]
    return changes


def approve(approval: Approval, who: Who, channel: Channel, limits: SpawnLimits) -> Command[ConfirmOutcome]:
    """Return the command that approves one proposal, or several as one plan. If one cannot start, none does."""

    def command(view: View, now_us: int) -> Outcome[ConfirmOutcome]:
        checked = check_approval(view, approval, who, channel, limits, now_us)
        if isinstance(checked, Outcome):  # refused
            return checked
        return _approve_all(view, checked, approval, who, channel, now_us)

    return command


def refuse(approval: Approval, who: Who, channel: Channel, limits: SpawnLimits) -> Command[ConfirmOutcome]:
    """Return the command that records why an approval was refused. It never approves, even if nothing is wrong now."""

    def command(view: View, now_us: int) -> Outcome[ConfirmOutcome]:
        checked = check_approval(view, approval, who, channel, limits, now_us)
        if isinstance(checked, Outcome):
            return checked
        why = "it could not start a moment ago; try again"
        return Outcome(ConfirmOutcome(tuple(member.refused(why) for member in checked.members)))

    return command


def auto_approve(pending_id: str, who: Who, limits: SpawnLimits, ceilings: Ceilings) -> Command[ConfirmOutcome]:
    """Return the command that approves a proposal under the policy `auto`, within the ceilings.

    The caps of today's automatic approvals count against the daily ceiling, since the real costs come later.
    """

    def command(view: View, now_us: int) -> Outcome[ConfirmOutcome]:
        proposal = check_proposal(view, pending_id, who.user_id, now_us)
        if isinstance(proposal, ProposalDecision):
            return Outcome(ConfirmOutcome((proposal,)))
        approval = Approval((pending_id,), (approval_line(proposal.config, proposal.brief),))
        checked = check_approval(view, approval, who, "auto", limits, now_us)
        if isinstance(checked, Outcome):
            return checked
        midnight_us = now_us - now_us % DAY_US
        committed_today = 0
        for run in view.approved_over("auto", who.user_id, midnight_us):
            committed_today += committed_micros(config_of(run.config))
        why = ceilings.exceeded(committed_micros(proposal.config), committed_today)
        if why:
            return Outcome(ConfirmOutcome((proposal.refused(why),)))
        return _approve_all(view, checked, approval, who, "auto", now_us)

    return command


@dataclass(frozen=True)
class Ceilings:
    """What the policy `auto` may commit, in micro-USD: for one run, and for a user's runs in a UTC day."""

    run_micros: int
    day_micros: int

    def exceeded(self, micros: int, before: int) -> str | None:
        """Return why `micros` more cannot be committed after `before` of the same day; None if they can."""
        if micros > self.run_micros:
            return (
                f"its cap of {format_usd(micros, exact=True)} is above what starts by itself,"
                f" {format_usd(self.run_micros)} (auto_approve_cents in config.toml)"
            )
        if before + micros > self.day_micros:
            return (
                f"runs with caps of {format_usd(before, exact=True)} in total started automatically today;"
                f" {format_usd(micros, exact=True)} more would exceed the limit of {format_usd(self.day_micros)}"
                " (auto_approve_daily_cents in config.toml)"
            )
        return None


def committed_micros(config: RunConfig) -> int:
    """Return what an approval commits, in micro-USD: the run's cap, or one cent for a free run."""
    return MICROS_PER_CENT if config.free else config.max_cost_micros


def _approve_all(
    view: View, checked: CheckedApproval, approval: Approval, who: Who, channel: Channel, now_us: int
) -> Outcome[ConfirmOutcome]:
    """Approve all members of a checked approval; several of them become the steps of one plan."""
    members = checked.members
    events: list[Event] = []
    plan_id: str | None = None
    steps: list[tuple[str, str] | None] = [None] * len(members)
    if checked.plan_cap is not None:
        ids = free_ids(view, approval.plan_ids)
        if ids is None:
            return _refuse_all(members, NO_FREE_ID)
        started: list[StartedTogether] = []
        for member in members:
            started.append(StartedTogether(member.run.id, member.run.session_id, member.changed, member.brief))
        plan = plan_of(started, ids, checked.plan_cap, checked.plan_timeout_s)
        plan_id = plan.plan_id
        steps = [(plan.plan_id, step_id) for step_id in plan.step_ids]
        events += plan.events(who, channel, now_us)
    decisions: list[ProposalDecision] = []
    for member, step in zip(members, steps, strict=True):
        events += _approval_events(member, who, channel, approval, checked, step)
        decisions.append(ProposalDecision(member.row.pending_id, member.run.id, "approved"))
    lowered = approval.lowered
    if lowered is None:
        lowered = lowered_by_call(checked)
    return Outcome(ConfirmOutcome(tuple(decisions), plan_id, lowered=lowered), tuple(events))


def lowered_words(by: str, cap: RunCap, before: float, after: float, *, of: str = "") -> str:
    """Return the sentence about a lowered limit, such as `The person lowered the cost cap from $0.50 to $0.20`."""
    what = "time limit" if cap is TIME else f"{cap.word} cap"
    return f"{by} lowered the {what}{of} from {cap.text(before)} to {cap.text(after)}."


def lowered_by_call(checked: CheckedApproval) -> tuple[str, ...]:
    """Return a sentence for each limit that an approval lowers by its `changes`, and for each step that it drops."""
    sentences: list[str] = []
    for member in checked.members:
        of = f" of {member.row.pending_id}" if len(checked.members) > 1 else ""
        before, after = member.config, member.changed
        for cap in CAPS:
            costs_nothing = cap is COST and before.free
            if cap.of(after) < cap.of(before) and not costs_nothing:
                sentences.append(lowered_words("`changes`", cap, cap.of(before), cap.of(after), of=of))
        remaining = {step.id for step in after.steps}
        dropped = [step.id for step in before.steps if step.id not in remaining]
        if dropped:
            steps = named_all("step", dropped, len(dropped))
            sentences.append(f"`changes` dropped {steps}{of}: what needs a dropped step goes with it.")
    return tuple(sentences)


def reject(pending_ids: tuple[str, ...], who: Who, channel: Channel) -> Command[ConfirmOutcome]:
    """Return the command that rejects waiting proposals, also expired ones; the others are refused."""

    def command(view: View, now_us: int) -> Outcome[ConfirmOutcome]:
        events: list[Event] = []
        decisions: list[ProposalDecision] = []
        for pending_id in pending_ids:
            check = check_proposal(view, pending_id, who.user_id, now_us)
            if isinstance(check, ProposalDecision) and not check.expired:
                decisions.append(check)
                continue
            row, run = _proposed_run(view, pending_id)
            events.extend(close_proposal(row, run, who, "rejected", channel=channel))
            decisions.append(ProposalDecision(pending_id, run.id, "rejected"))
        return Outcome(ConfirmOutcome(tuple(decisions)), tuple(events))

    return command


def _decision_digest(member: ProposalChange, approval: Approval, checked: CheckedApproval) -> str:
    """Return the hash of a decision: of the proposal's digest, its changes, and the proposals approved with it."""
    together: list[Any] | None = None
    if checked.plan_cap is not None:
        together = [sorted(approval.pending_ids), checked.plan_cap, checked.plan_timeout_s]
    line = json.dumps(
        [member.row.digest, dict(member.changes), together],
        ensure_ascii=False,
        separators=(",", ":"),
        sort_keys=True,
    )
    return hashlib.sha256(line.encode()).hexdigest()


def _approval_events(
    member: ProposalChange,
    who: Who,
    channel: Channel,
    approval: Approval,
    checked: CheckedApproval,
    step: tuple[str, str] | None,
) -> tuple[Event, ...]:
    """Return the events that approve a proposal. `step` is the id of its plan and of its step there."""
    plan_id, step_id = step or (None, None)
    by_person = channel in PERSON_CHANNELS
    screen = approval.screens.get(member.row.pending_id) if by_person else None
    decided = SpawnDecided(
        pending_id=member.row.pending_id,
        decision="approved",
        channel=channel,
        digest=member.row.digest,
        decision_digest=_decision_digest(member, approval, checked),
        changes=dict(member.changes),
        group_id=plan_id,
        step=step_id,
        folded=None if screen is None else screen.folded,
    )
    spawn = spawn_fact(member.changed, member.brief.task, member.run.id, member.row.pending_id, plan_id=plan_id)
    run_id = member.run.id
    events: list[Event] = []
    if by_person:  # a message is theirs only if it is certain that a person decided
        text = f"approved {member.row.pending_id}: {approval_line(member.config, member.brief)}"
        shown = None if screen is None else screen.text
        events.append(Event(who, UserMessage(text=text, kind="decision", screen=shown), run_id=run_id))
    events.append(Event(who, decided, run_id=run_id))
    events.append(Event(who, spawn, run_id=run_id, model=member.config.model))
    return tuple(events)
