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
from ava_server.approval.plans import change_plan
from ava_server.approval.proposals import (
    NO_FREE_ID,
    SpawnLimits,
    close_proposal,
    day_left,
    day_refusal,
    day_unspent,
    free_ids,
    spawn_fact,
    texts_of,
)
from ava_server.approval.shown import approval_line
from ava_server.approval.summary import DayLeft, several_line
from ava_server.approval.together import StartedTogether, Together, plan_of
from ava_server.budget.run_config import (
    CAPS,
    COST,
    TIME,
    RunCap,
    RunConfig,
    StepConfig,
    Texts,
    config_of,
    paid_runs,
)

MINUTE_US = 60_000_000


@dataclass(frozen=True)
class ProposalDecision:
    """The decision on one proposal: approved, rejected, or refused with the reason.

    `before`: it had been approved before: what its run does now.
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
        approval_lines: The right lines, where a given one was wrong.
        not_agreed: If a person was asked and did not agree: how. The proposals still wait.
        lowered: A sentence for each limit that was lowered.
        elsewhere: Some of them were decided elsewhere while the person was asked: `lowered` says first what.
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
    """The limits over several proposals that a person has lowered in the form; None for one left as it was."""

    max_micros: int | None
    timeout_s: float | None


@dataclass(frozen=True)
class Approval:
    """A requested approval.

    Attributes:
        plan_ids: Candidates for the ids of the plan that several proposals become: its own `P-…`, and `G-…`.
        lowered: A sentence for each limit that was lowered, by the call and in the form; None where no form was shown.
        screens: What was on a person's screen, by proposal, where some of it stayed folded.
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
    """One proposal of an approval: as the log has it, and what the approval changes."""

    row: ProposalRow
    run: RunRow
    config: RunConfig
    texts: Texts
    changes: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def refused(self, why: str | None) -> ProposalDecision:
        """Return the refusal of this proposal; without a reason of its own, because of another one."""
        return ProposalDecision(self.row.pending_id, self.run.id, "refused", why or OTHER_REFUSED)

    @cached_property
    def changed(self) -> RunConfig:
        changes = dict(self.changes)
        if "tools" in changes:
            changes["tools"] = tuple(changes["tools"])
        if "steps" in changes:
            changes["steps"] = tuple(StepConfig.model_validate(step) for step in changes["steps"])
        return self.config.model_copy(update=changes) if changes else self.config


@dataclass(frozen=True)
class CheckedApproval:
    """An approval that can be given: its members, the limits over all where they are several, and what the day has."""

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
    """Return an approval that can be given, or its refusal, with the entries that record it.

    The hourly limit comes before the approval lines: a person must not be shown lines that cannot be approved.
    """
    checks = [check_proposal(view, pending_id, who.user_id, now_us) for pending_id in approval.pending_ids]
    members = [item for item in checks if isinstance(item, ProposalChange)]
    if len(members) < len(checks):
        return _refuse_all(view, checks, who)

    def refused(why: str, *, lines: tuple[str, ...] = (), of: ProposalChange | None = None) -> Outcome[ConfirmOutcome]:
        decisions = tuple(member.refused(why if of in (None, member) else None) for member in members)
        return Outcome(ConfirmOutcome(decisions, approval_lines=lines))

    if len(members) > 1 and any(member.config.steps for member in members):
        return refused("approve a plan by itself, giving only its id: it has its own caps")
    paid = 0
    if channel not in PERSON_CHANNELS:
        paid = sum(member.config.paid_runs for member in members)
    why_not = hourly_refusal(view, who.user_id, approval.pending_ids, paid, limits, now_us)
    if why_not:
        return refused(why_not)
    checked = CheckedApproval(tuple(members), None, None, day_left(view, who.user_id, limits, now_us))
    if len(members) > 1:
        cap = _plan_cap(checked, approval.plan_max_micros)
        if isinstance(cap, str):
            return refused(cap)
        checked = replace(checked, plan_cap=cap, plan_timeout_s=approval.plan_timeout_s)
    lines = approval_lines(checked)
    why_not = _wrong_lines(view, approval.approving, lines, checked, now_us)
    if why_not:
        return refused(f"{why_not}; show the person approval_lines and give exactly these", lines=lines)
    if not checked.free:
        why_not = day_refusal(day_unspent(view, who.user_id, limits, now_us), checked.least_micros)
        if why_not:
            return refused(why_not)
    changed: list[ProposalChange] = []
    for member in members:
        one = _change_proposal(member, approval.changes.get(member.row.pending_id, {}))
        if isinstance(one, str):
            return refused(one, of=member)
        changed.append(one)
    checked = replace(checked, members=tuple(changed))
    if approval.plan_lowered is None:
        return checked
    return _lower_limits(checked, approval.plan_lowered) or refused(
        "a limit of the plan would be raised; it may be lowered"
    )


def _plan_cap(checked: CheckedApproval, requested_micros: int | None) -> int | str:
    together = sum(member.config.max_cost_micros for member in checked.members)
    least = checked.least_micros
    if requested_micros is None:
        return together
    if requested_micros > together:
        return f"group_max_cost_cents is above the sum of the members' caps, {COST.text(together)}; give that or less"
    if requested_micros < least:
        return (
            f"group_max_cost_cents: {COST.text(requested_micros)} buys no useful work; give {format_usd(least)} or more"
        )
    return requested_micros


def _wrong_lines(
    view: View, approving: tuple[str, ...] | None, lines: tuple[str, ...], checked: CheckedApproval, now_us: int
) -> str | None:
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
    """Tell whether lines are those of an approval. Quotes, dashes and dots may differ.

    They may not differ if the line of another proposal, which waits or expired since yesterday, differs only in these:
    then it is not known which one the person saw.
    """
    if approving == lines:
        return True
    folded = tuple(map(normalize_typography, lines))
    if tuple(map(normalize_typography, approving)) != folded:
        return False
    if len(set(folded)) < len(set(lines)):
        return False
    others = _lines_of_others(view, checked, now_us)
    if others is None:
        return False
    return all(line in lines or normalize_typography(line) not in folded for line in others)


def _lines_of_others(view: View, checked: CheckedApproval, now_us: int) -> list[str] | None:
    """Return the lines of the user's other proposals that wait, or expired since yesterday.

    None where a newer Ava wrote one of them.
    """
    user = checked.members[0].run.user_id
    own_ids = {member.run.id for member in checked.members}
    lines: list[str] = []
    for run in view.runs(user=user, states=(WAITING,), expired_before_us=now_us - DAY_US, limit=-1):
        if run.id in own_ids:
            continue
        try:
            config, texts = config_of(run.config), texts_of(view, run)
        except ValueError:
            return None
        if texts is not None:
            lines.append(approval_line(config, texts))
    return lines


def _lower_limits(checked: CheckedApproval, limits: PlanLimits) -> CheckedApproval | None:
    """Return an approval with lower limits over all; None where one of them would be raised."""
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
    """Return the lines that an approval repeats: one for each proposal, and one more for several."""
    lines = [approval_line(member.config, member.texts) for member in checked.members]
    if checked.plan_cap is not None:
        lines.append(several_line(len(lines), None if checked.free else checked.plan_cap, checked.plan_timeout_s))
    return tuple(lines)


def check_proposal(view: View, pending_id: str, user: str, now_us: int) -> ProposalChange | ProposalDecision:
    """Return a proposal of this user that waits for a decision, or why none can be made."""
    row = view.proposal(pending_id)
    run = view.run(row.run_id) if row is not None else None
    if row is None or run is None or row.user_id != user:
        why = f"no proposal {pending_id} of yours is known; call check_subagent without an id for what waits"
        return ProposalDecision(pending_id, None, "refused", why)
    if row.state != WAITING:
        became = closed_proposal(view, run)
        if row.state == "approved":
            why = f"{became}: call check_subagent with that id"
            return ProposalDecision(pending_id, run.id, "refused", why, before=run_now(run))
        why = f"{became}: to run it, propose it again with spawn_subagent"
        return ProposalDecision(pending_id, run.id, "refused", why)
    if row.expires_us <= now_us:
        why = "it expired before it was approved; a fresh proposal was made, show it to the person and confirm that one"
        return ProposalDecision(pending_id, run.id, "refused", why, expired=True)
    texts = texts_of(view, run)
    if texts is None:
        why = "its texts were erased; make a new proposal with spawn_subagent"
        return ProposalDecision(pending_id, run.id, "refused", why)
    return ProposalChange(row, run, config_of(run.config), texts)


def _refuse_all(view: View, checks: list[ProposalChange | ProposalDecision], who: Who) -> Outcome[ConfirmOutcome]:
    events: list[Event] = []
    decisions: list[ProposalDecision] = []
    for item in checks:
        if isinstance(item, ProposalChange):
            decisions.append(item.refused(None))
            continue
        decisions.append(item)
        row = view.proposal(item.pending_id) if item.expired else None
        run = view.run(row.run_id) if row is not None else None
        if row is not None and run is not None:
            events.extend(close_proposal(row, run, who, "expired"))
    return Outcome(ConfirmOutcome(tuple(decisions)), tuple(events))


def hourly_refusal(
    view: View, user: str, pending_ids: Sequence[str], paid: int, limits: SpawnLimits, now_us: int
) -> str | None:
    """Return why runs, `paid` of which are not free, cannot start now without a person's answer, or None."""
    short = hourly_shortage(view, user, paid, limits, now_us)
    if short is None:
        return None
    return f"{short.why}; `ava approve {' '.join(pending_ids)}` in a terminal is not limited"


@dataclass(frozen=True)
class HourlyShortage:
    """The hourly limit leaves too few starts: how many there are still, and why no more."""

    left: int
    why: str


def hourly_shortage(view: View, user: str, paid: int, limits: SpawnLimits, now_us: int) -> HourlyShortage | None:
    """Return how many starts the hourly limit leaves, if `paid` more cannot go without a person's answer; else None."""
    if paid == 0:
        return None
    most = limits.spawns_per_hour
    started: list[int] = []
    for channel in COUNTED_CHANNELS:
        for run in view.approved_over(channel, user, now_us - HOUR_US):
            if run.step is None:  # a plan counts once, with all the paid runs that it may have
                started += [run.queued_us or 0] * paid_runs(run)
    started.sort()
    too_many = len(started) + paid - most
    if too_many <= 0:
        return None
    if most == 0:
        why = f"no paid run may start without a person's answer ({limits.spawns_setting})"
    elif paid > most:
        why = (
            f"{paid} are more than the {most} paid starts per hour without a person's answer ({limits.spawns_setting})"
        )
    else:
        next_us = started[too_many - 1] + HOUR_US  # so many of the oldest no longer count then
        in_minutes = max(1, -(-(next_us - now_us) // MINUTE_US))  # rounded up
        why = (
            f"{len(started)} of {most} paid starts per hour without a person's answer are used"
            f" ({limits.spawns_setting}); the next start is possible in {in_minutes} min, at {iso_second(next_us)}"
        )
    return HourlyShortage(max(most - len(started), 0), why)


def _change_proposal(member: ProposalChange, requested: Mapping[str, Any]) -> ProposalChange | str:
    """Return a proposal with what an approval changes, or why it cannot; `blocked_tools` becomes the other `tools`."""
    config = member.config
    if config.steps:
        plan_changes = change_plan(config, requested)
        if isinstance(plan_changes, str):
            return plan_changes
        return replace(member, changes=plan_changes)
    if requested.get("drop"):
        return "changes: drop takes steps from a plan, and this is a single subagent; reject it instead"
    blocked = requested.get("blocked_tools") or ()
    changes = {name: value for name, value in requested.items() if name not in ("blocked_tools", "drop")}
    if blocked:
        changes["tools"] = [name for name in config.tools if name not in blocked]
    for cap in CAPS:
        if cap.field in changes and changes[cap.field] > cap.of(config):
            return (
                f"changes: {cap.argument} would be raised, and an approval only lowers; propose it again with"
                " spawn_subagent"
            )
    if changes.get(COST.field, config.least_micros) < config.least_micros:
        return (
            f"changes: a cost cap of {COST.text(changes[COST.field])} buys no useful work with"
            f" {config.model}; give {format_usd(config.least_micros)} or more"
        )
    for name in blocked:
        if name not in config.tools:
            return f"changes: it has no tool {name[:60]!r} to block; it has {', '.join(config.tools)}"
    return replace(member, changes=changes)


def approve(approval: Approval, who: Who, channel: Channel, limits: SpawnLimits) -> Command[ConfirmOutcome]:
    """Return the command that approves one proposal, or several as one plan: if one cannot start, none does."""

    def command(view: View, now_us: int) -> Outcome[ConfirmOutcome]:
        checked = check_approval(view, approval, who, channel, limits, now_us)
        if isinstance(checked, Outcome):  # refused
            return checked
        return _approve_all(view, checked, approval, who, channel, now_us)

    return command


def refuse(approval: Approval, who: Who, channel: Channel, limits: SpawnLimits) -> Command[ConfirmOutcome]:
    """Record the refusal of an approval; it approves nothing, even where the approval could be given by now."""

    def command(view: View, now_us: int) -> Outcome[ConfirmOutcome]:
        checked = check_approval(view, approval, who, channel, limits, now_us)
        if isinstance(checked, Outcome):
            return checked
        why = "it could not start a moment ago; try again"
        return Outcome(ConfirmOutcome(tuple(member.refused(why) for member in checked.members)))

    return command


def auto_approve(pending_id: str, who: Who, limits: SpawnLimits, ceilings: Ceilings) -> Command[ConfirmOutcome]:
    """Approve a proposal under the policy `auto`, if today's automatic approvals stay below its ceilings.

    Caps count, not costs: those are known later and may be lower.
    """

    def command(view: View, now_us: int) -> Outcome[ConfirmOutcome]:
        proposal = check_proposal(view, pending_id, who.user_id, now_us)
        if isinstance(proposal, ProposalDecision):
            return Outcome(ConfirmOutcome((proposal,)))
        approval = Approval((pending_id,), (approval_line(proposal.config, proposal.texts),))
        checked = check_approval(view, approval, who, "auto", limits, now_us)
        if isinstance(checked, Outcome):
            return checked
        day_us = now_us - now_us % DAY_US
        before = sum(committed_micros(config_of(run.config)) for run in view.approved_over("auto", who.user_id, day_us))
        why = ceilings.exceeded(committed_micros(proposal.config), before)
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
    plan: Together | None = None
    events: list[Event] = []
    if checked.plan_cap is not None:
        members = [
            StartedTogether(member.run.id, member.run.session_id, member.changed, member.texts)
            for member in checked.members
        ]
        ids = free_ids(view, approval.plan_ids)
        if ids is None:
            return Outcome(ConfirmOutcome(tuple(member.refused(NO_FREE_ID) for member in checked.members)))
        plan = plan_of(members, ids, checked.plan_cap, checked.plan_timeout_s)
        events += plan.events(who, channel, now_us)
    for number, member in enumerate(checked.members):
        step = None if plan is None else (plan.plan_id, plan.step_ids[number])
        events += _approval_events(member, who, channel, approval, checked, step)
    decisions = tuple(ProposalDecision(member.row.pending_id, member.run.id, "approved") for member in checked.members)
    lowered = lowered_by_call(checked) if approval.lowered is None else approval.lowered
    plan_id = None if plan is None else plan.plan_id
    return Outcome(ConfirmOutcome(decisions, plan_id, lowered=lowered), tuple(events))


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
        kept = {step.id for step in after.steps}
        dropped = [step.id for step in before.steps if step.id not in kept]
        if dropped:
            sentences.append(f"`changes` dropped {', '.join(dropped)}{of}: what needs a dropped step goes with it.")
    return tuple(sentences)


def reject(pending_ids: tuple[str, ...], who: Who, channel: Channel) -> Command[ConfirmOutcome]:
    def command(view: View, now_us: int) -> Outcome[ConfirmOutcome]:
        events: list[Event] = []
        decisions: list[ProposalDecision] = []
        for pending_id in pending_ids:
            item = check_proposal(view, pending_id, who.user_id, now_us)
            if isinstance(item, ProposalDecision) and not item.expired:
                decisions.append(item)
                continue
            row = view.proposal(pending_id)
            run = view.run(row.run_id) if row else None
            assert row is not None and run is not None
            events.extend(close_proposal(row, run, who, "rejected", channel=channel))
            decisions.append(ProposalDecision(pending_id, run.id, "rejected"))
        return Outcome(ConfirmOutcome(tuple(decisions)), tuple(events))

    return command


def _decision_digest(member: ProposalChange, approval: Approval, checked: CheckedApproval) -> str:
    """Return the hash of a decision: the proposal's digest, the changes, and what was approved with it."""
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
    """Return the entries that approve a proposal; `step`: its plan and its step there, where it has one."""
    plan_id, step_id = step or (None, None)
    screen = approval.screens.get(member.row.pending_id) if channel in PERSON_CHANNELS else None
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
    spawn = spawn_fact(member.changed, member.texts.task, member.run.id, member.row.pending_id, plan_id=plan_id)
    said: tuple[Event, ...] = ()
    run_id = member.run.id
    if channel in PERSON_CHANNELS:  # only where it is certain that a person decided
        text = f"approved {member.row.pending_id}: {approval_line(member.config, member.texts)}"
        seen = None if screen is None else screen.text
        said = (Event(who, UserMessage(text=text, kind="decision", screen=seen), run_id=run_id),)
    return (*said, Event(who, decided, run_id=run_id), Event(who, spawn, run_id=run_id, model=member.config.model))
