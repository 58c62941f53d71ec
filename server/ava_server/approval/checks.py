"""Weighing an approval: what it is of, whether anything stands against it, and the words it has to repeat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ava_audit.events import Event, Who
from ava_audit.money import format_usd
from ava_audit.rows import WAITING, ProposalRow, RunRow
from ava_audit.store.store import Outcome
from ava_audit.times import HOUR_US
from ava_audit.view import View
from ava_server.approval.proposals import SpawnLimits, close_proposal, exhausted, texts_of
from ava_server.approval.run_config import CAPS, RunConfig, Texts, config_of
from ava_server.approval.summary import approval_line, group_line
from ava_server.core.ids import label

ANOTHER = "another of this group cannot start, so none does"


@dataclass(frozen=True)
class Decision:
    """What was decided about one proposal: `approved`, `rejected`, or refused with the reason."""

    pending_id: str
    subagent_id: str | None
    status: Literal["approved", "rejected", "refused"]
    refused_because: str | None = None
    expired: bool = False
    running: bool = False


@dataclass(frozen=True)
class Decided:
    """The outcome of one `confirm_spawn`: a decision for each id, the group, the right lines where one was wrong.

    `unasked`: a person was to be asked, and has not agreed; what was proposed still waits.
    """

    decisions: tuple[Decision, ...]
    group_id: str | None = None
    approval_lines: tuple[str, ...] = ()
    unasked: bool = False


@dataclass(frozen=True)
class GroupLimits:
    """What a person has lowered the limits of a group to, after the lines; None is left as it was asked for."""

    max_micros: int | None
    timeout_s: float | None


@dataclass(frozen=True)
class Approval:
    """An approval as it was asked for."""

    pending_ids: tuple[str, ...]
    approving: tuple[str, ...] | None
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    group_max_micros: int | None = None
    group_timeout_s: float | None = None
    group_id: str = ""
    group_lowered: GroupLimits | None = None


@dataclass(frozen=True)
class Member:
    """One of the proposals that an approval is of: as it stands in the log, and what the approval changes of it."""

    row: ProposalRow
    run: RunRow
    config: RunConfig
    texts: Texts
    changes: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def refused(self, why: str | None) -> Decision:
        """Return the refusal of this one: for a reason of its own, or because of another one."""
        return Decision(self.row.pending_id, self.run.id, "refused", why or ANOTHER)

    @property
    def changed(self) -> RunConfig:
        """The configuration as it would be approved."""
        return self.config.model_copy(update=dict(self.changes))


@dataclass(frozen=True)
class Weighed:
    """An approval that nothing stands against: its members, and the limits over all of them where they are a group."""

    members: tuple[Member, ...]
    group_cap: int | None
    group_timeout_s: float | None

    @property
    def free(self) -> bool:
        """Whether none of them can cost anything."""
        return all(member.config.price.get("free") for member in self.members)


def weigh(view: View, asked: Approval, who: Who, limits: SpawnLimits, now_us: int) -> Weighed | Outcome[Decided]:
    """Return an approval as it would be given, or its refusal, with what the log has to say of that."""
    found = [look(view, pending_id, who.user_id, now_us) for pending_id in asked.pending_ids]
    members = [item for item in found if isinstance(item, Member)]
    if len(members) < len(found):
        return _nothing(view, found, who)

    def refused(why: str, *, lines: tuple[str, ...] = (), of: Member | None = None) -> Outcome[Decided]:
        decisions = tuple(member.refused(why if of in (None, member) else None) for member in members)
        return Outcome(Decided(decisions, approval_lines=lines))

    cap = sum(member.config.max_cost_micros for member in members)
    group = len(members) > 1
    if group and asked.group_max_micros is not None:
        if asked.group_max_micros > cap:
            return refused(
                f"group_max_cost_cents is above the sum of the members' caps, {format_usd(cap)}; give that or less"
            )
        cap = asked.group_max_micros
    weighed = Weighed(tuple(members), cap if group else None, asked.group_timeout_s if group else None)
    lines = lines_of(weighed)
    if asked.approving is None or asked.approving != lines:
        why = (
            "`approving` was left out"
            if asked.approving is None
            else "`approving` is not, letter for letter, what was proposed"
        )
        if asked.approving is not None and group and asked.approving == lines[:-1]:
            why = "the last line, of all of them together, is missing in `approving`"
        return refused(f"{why}; show the person approval_lines and give exactly these", lines=lines)
    if why_not := _too_many(view, who.user_id, len(members), limits, now_us):
        return refused(why_not)
    if not weighed.free and (why_not := exhausted(view, who.user_id, limits, now_us)):
        return refused(why_not)
    changed: list[Member] = []
    for member in members:
        given = asked.changes.get(member.row.pending_id, {})
        changes = _resolved(member.config, given)
        if why_not := _raises(member.config, changes) or _misses(member.config, given):
            return refused(why_not, of=member)
        changed.append(replace(member, changes=changes))
    weighed = replace(weighed, members=tuple(changed))
    if asked.group_lowered is None:
        return weighed
    return _lowered(weighed, asked.group_lowered) or refused("a limit of the group would be raised; it may be lowered")


def _lowered(weighed: Weighed, limits: GroupLimits) -> Weighed | None:
    """Return an approval of a group under lower limits, or None where one of them is higher."""
    cap, clock = limits.max_micros, limits.timeout_s
    if cap is not None and (weighed.group_cap is None or cap > weighed.group_cap):
        return None
    if clock is not None and (weighed.group_timeout_s is None or clock > weighed.group_timeout_s):
        return None
    return replace(
        weighed,
        group_cap=weighed.group_cap if cap is None else cap,
        group_timeout_s=weighed.group_timeout_s if clock is None else clock,
    )


def lines_of(weighed: Weighed) -> tuple[str, ...]:
    """Return the lines that an approval repeats: one for each proposal, and one for all of several together."""
    lines = [approval_line(member.config, member.texts) for member in weighed.members]
    if weighed.group_cap is not None:
        lines.append(group_line(len(lines), None if weighed.free else weighed.group_cap, weighed.group_timeout_s))
    return tuple(lines)


def look(view: View, pending_id: str, user: str, now_us: int) -> Member | Decision:
    """Return a proposal of this user that waits, or why nothing can be decided about it."""
    row = view.proposal(pending_id)
    run = view.run(row.run_id) if row is not None else None
    if row is None or run is None or row.user_id != user:
        why = f"no proposal {pending_id} of yours is known; call check_subagent without an id for what waits"
        return Decision(pending_id, None, "refused", why)
    if row.state != WAITING:
        why = (
            f"{pending_id} was approved already, and {label(run)} is {run.state}: call check_subagent with that id"
            if row.state == "approved"
            else f"{pending_id} is {row.state}; to run it after all, propose it anew with spawn_subagent"
        )
        return Decision(pending_id, run.id, "refused", why, running=not run.ended and row.state == "approved")
    if row.expires_us <= now_us:
        why = "it expired before it was approved; a fresh proposal was made, show it to the person and confirm that one"
        return Decision(pending_id, run.id, "refused", why, expired=True)
    texts = texts_of(view, run)
    if texts is None:
        return Decision(pending_id, run.id, "refused", "its texts were erased; make a new proposal with spawn_subagent")
    return Member(row, run, config_of(run.config), texts)


def _nothing(view: View, found: list[Member | Decision], who: Who) -> Outcome[Decided]:
    """Refuse all because one cannot start; what has expired is closed on the way."""
    events: list[Event] = []
    decisions: list[Decision] = []
    for item in found:
        if isinstance(item, Decision):
            decisions.append(item)
            row = view.proposal(item.pending_id) if item.expired else None
            run = view.run(row.run_id) if row is not None else None
            if row is not None and run is not None:
                events.extend(close_proposal(row, run, who, "expired"))
        else:
            decisions.append(item.refused(None))
    return Outcome(Decided(tuple(decisions)), tuple(events))


def _too_many(view: View, user: str, count: int, limits: SpawnLimits, now_us: int) -> str | None:
    recent = view.approved_since(user, now_us - HOUR_US)
    if len(recent) + count <= limits.spawns_per_hour:
        return None
    freed = recent[len(recent) + count - limits.spawns_per_hour - 1] if count <= limits.spawns_per_hour else None
    when = (
        f"the next is possible in {max(1, round((freed + HOUR_US - now_us) / 60_000_000))} min"
        if freed is not None
        else f"no more than {limits.spawns_per_hour} can ever be approved at once"
    )
    return (
        f"{len(recent)} subagents were approved in the last hour, at most {limits.spawns_per_hour} are allowed; {when}"
    )


def _resolved(config: RunConfig, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return changes as fields of the configuration: `blocked_tools` becomes what is left of `tools`."""
    fields = {name: value for name, value in changes.items() if name != "blocked_tools"}
    if blocked := changes.get("blocked_tools"):
        fields["tools"] = [name for name in config.tools if name not in blocked]
    return fields


def _raises(config: RunConfig, changes: Mapping[str, Any]) -> str | None:
    for cap in CAPS:
        if cap in changes and changes[cap] > getattr(config, cap):
            return f"changes: {cap} would be raised, and an approval may only lower; propose anew with spawn_subagent"
    return None


def _misses(config: RunConfig, given: Mapping[str, Any]) -> str | None:
    unknown = [name for name in given.get("blocked_tools") or () if name not in config.tools]
    if not unknown:
        return None
    return f"changes: it has no tool {unknown[0][:60]!r} that could be blocked; it has {', '.join(config.tools)}"
