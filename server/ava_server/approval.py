"""Proposals and decisions: nothing runs before it was approved, and an approval covers exactly what was shown."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ava_audit.events import (
    AssistantMessage,
    Channel,
    Ending,
    Event,
    RunEnded,
    SpawnDecided,
    SpawnProposed,
    SubagentSpawn,
    UserMessage,
    Who,
)
from ava_audit.money import format_usd
from ava_audit.rows import WAITING, ProposalRow, RunRow
from ava_audit.store import Command, Outcome
from ava_audit.times import HOUR_US
from ava_audit.view import View
from ava_server.budget import DayCaps, installation_scope, user_scope, utc_day
from ava_server.earlier import listed
from ava_server.ids import AGENT, label
from ava_server.planning import TURNS as PLAN_TURNS
from ava_server.run_config import CAPS, RunConfig, Texts, config_of, digest

TASK_CHARS = 120


@dataclass(frozen=True)
class SpawnLimits:
    """What limits approvals: a user's spawns in an hour, and the day's money.

    `day_settings` are what holds the user's day and the installation's, as a refusal names them.
    """

    spawns_per_hour: int
    days: DayCaps
    day_settings: tuple[str, str]
    ttl_us: int


@dataclass(frozen=True)
class Proposed:
    """A proposal: its ids, its configuration and the words that were shown.

    `state` is that of the run: a repeated `task_id` brings back a proposal that may have been approved already.
    """

    pending_id: str
    subagent_id: str
    state: str
    config: RunConfig
    line: str
    message: str
    expires_us: int


@dataclass(frozen=True)
class Declined:
    """A proposal that was refused before it was made: why, and what to do."""

    why: str


def approval_line(config: RunConfig, texts: Texts) -> str:
    """Return the line that an approval must repeat, letter for letter: role, caps, reach, and the task's beginning."""
    cost = "free" if config.price.get("free") else f"at most {format_usd(config.max_cost_micros, exact=True)}"
    and_time = (
        f"{cost}, at most {minutes(config.timeout_s)}" if cost == "free" else f"{cost} and {minutes(config.timeout_s)}"
    )
    return f"{config.role}, {and_time}, {config.reach}: {beginning(texts.task)}"


def group_line(count: int, cap_micros: int | None, timeout_s: float | None) -> str:
    """Return the last line of an approval of several: how many, under which caps; None is free."""
    parts = ["free" if cap_micros is None else f"at most {format_usd(cap_micros, exact=True)}"]
    if timeout_s is not None:
        parts.append(f"at most {minutes(timeout_s)}" if cap_micros is None else minutes(timeout_s))
    return f"{count} subagents together, {(', ' if cap_micros is None else ' and ').join(parts)}"


def beginning(task: str) -> str:
    """Return a task's first 120 characters, white space and invisible characters made one space, cut with `…`."""
    plain = "".join(" " if unicodedata.category(char) in ("Cf", "Cc", "Cn", "Co", "Cs") else char for char in task)
    plain = re.sub(r"\s+", " ", plain).strip()
    return plain if len(plain) <= TASK_CHARS else plain[:TASK_CHARS].rstrip() + "…"


def minutes(seconds: float) -> str:
    """Return a duration as an approval line has it: `10 min`, `45 s`."""
    whole = round(seconds)
    return f"{whole // 60} min" if whole >= 60 and whole % 60 == 0 else f"{seconds:g} s"


def proposal_message(config: RunConfig, texts: Texts) -> str:
    """Return the proposal for the person who approves: plain sentences, dollars, no JSON."""
    low, high = config.estimated_minutes
    free = bool(config.price.get("free"))
    task = texts.task if len(texts.task) <= 600 else texts.task[:600].rstrip() + "…"
    label = f"{config.role} ({config.name})" if config.name else config.role
    lines = [f'Ava wants to start a {label}: "{task}".']
    can = config.reach
    lines.append(f"It {can}." if config.workspace else f"It {can}; it cannot read your files.")
    if config.context_from:
        lines.append(f"Results that it may read: {listed(config.context_from)}.")
    if config.files_note:
        lines.append(f"No files because: {config.files_note}.")
    cost = "costs nothing" if free else f"costs at most {format_usd(config.max_cost_micros, exact=True)}"
    about = f"{low} to {high} minutes" if low < high else minutes(high * 60)
    lines.append(f"It takes about {about}, at most {minutes(config.timeout_s)}, and {cost}.")
    if config.model.startswith("offline/"):
        lines.append(
            "No language model is used: the offline reader finds passages that have words of the task, and quotes"
            " them; it writes nothing of its own."
        )
    else:
        lines.append(f"Model: {config.model}{' (free)' if free else ''}.")
    if config.plan:
        lines.append(_plan_line(config))
    lines.extend(_secret_lines(config))
    if config.unavailable_tools:
        lines.append(f"Not available here: {', '.join(config.unavailable_tools)}.")
    lines.extend(f"{note[0].upper()}{note[1:]}." for note in config.clamped)
    if texts.rationale:
        lines.append(f"Why: {texts.rationale.rstrip('.')}.")
    return "\n".join(lines)


def _plan_line(config: RunConfig) -> str:
    if not config.plans:
        return "It does not plan first, because there is no language model to do it."
    return f"It plans first and then works: planning takes {PLAN_TURNS} of its {config.max_iterations} turns."


def _secret_lines(config: RunConfig) -> list[str]:
    """Return what the person must know of secrets: which may be sent where, and which the role would miss."""
    usable = [f"{name} (only for {', '.join(hosts)})" for name, hosts in config.secrets.items() if hosts]
    unbound = [name for name, hosts in config.secrets.items() if hosts == ()]
    missing = [name for name, hosts in config.secrets.items() if hosts is None]
    lines: list[str] = []
    if usable:
        lines.append(f"Its calls may use the secret{'s' if len(usable) > 1 else ''} {', '.join(usable)}.")
    if unbound:
        lines.append(f"Stored, but for no host, so that no call can use it: {', '.join(unbound)}.")
    if missing:
        lines.append(f"Its role lists secrets that nobody has stored: {', '.join(missing)} (`ava secret set NAME`).")
    return lines


def propose(
    config: RunConfig,
    texts: Texts,
    who: Who,
    candidates: tuple[tuple[str, str], ...],
    limits: SpawnLimits,
    *,
    retry_of: str | None = None,
) -> Command[Proposed | Declined]:
    """Make a proposal; the same `task_id` and configuration while the first is unended returns the first.

    Args:
        config: The resolved configuration.
        texts: Its words.
        who: The session and the user that propose.
        candidates: Fresh `(pending_id, subagent_id)` pairs; the first that nobody has is taken.
        limits: Proposals live for `ttl_us`; an exhausted day is refused here already.
        retry_of: The ended run that this one repeats.
    """
    sha = digest(config, texts)
    line, message = approval_line(config, texts), proposal_message(config, texts)

    def command(view: View, now_us: int) -> Outcome[Proposed | Declined]:
        if config.task_id is not None:
            for run in view.with_task_id(who.user_id, config.task_id):
                row = view.proposal(run.pending_id)
                if row is not None and row.digest == sha and not (run.state == WAITING and row.expires_us <= now_us):
                    return Outcome(Proposed(row.pending_id, run.id, run.state, config, line, message, row.expires_us))
        if not config.price.get("free") and (why := exhausted(view, who.user_id, limits, now_us)):
            return Outcome(Declined(why))
        pending_id, run_id = next(
            pair for pair in candidates if view.proposal(pair[0]) is None and view.run(pair[1]) is None
        )
        expires_us = now_us + limits.ttl_us
        agent = Who(who.session_id, run_id, who.user_id, parent_agent_id=AGENT)
        proposed = SpawnProposed(
            pending_id=pending_id,
            subagent_id=run_id,
            digest=sha,
            expires_us=expires_us,
            config=config.model_dump(mode="json", exclude_none=True),
            retry_of=retry_of,
        )
        task = UserMessage(
            text=texts.task,
            kind="task",
            context=texts.context,
            system_prompt=texts.system_prompt,
            rationale=texts.rationale,
        )
        events = (
            Event(who, proposed, run_id=run_id, model=config.model),
            Event(agent, task, run_id=run_id),
            Event(who, AssistantMessage(text=f"{message}\n{line}"), run_id=run_id),
        )
        return Outcome(Proposed(pending_id, run_id, WAITING, config, line, message, expires_us), events)

    return command


def exhausted(view: View, user: str, limits: SpawnLimits, now_us: int) -> str | None:
    """Return why no money is left today, or None."""
    day, days = utc_day(now_us), limits.days
    of_user, of_installation = limits.day_settings
    for what, scope, cap, setting in (
        ("you", user_scope(user, day), days.user_micros, of_user),
        ("this installation", installation_scope(day), days.installation_micros, of_installation),
    ):
        spent = view.bucket(scope).committed
        if cap == 0:  # no day brings more
            return f"the daily budget of {what} is $0.00, so that only what is free can run; raise {setting}"
        if spent >= cap:
            return (
                f"today's budget of {what} is used up ({format_usd(spent)} of {format_usd(cap)}); it starts anew at"
                f" 00:00 UTC, or raise {setting}"
            )
    return None


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
    """The outcome of one `confirm_spawn`: a decision for each id, the group, the right lines where one was wrong."""

    decisions: tuple[Decision, ...]
    group_id: str | None = None
    approval_lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Approval:
    """An approval as it was asked for."""

    pending_ids: tuple[str, ...]
    approving: tuple[str, ...] | None
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    group_max_micros: int | None = None
    group_timeout_s: float | None = None
    group_id: str = ""


def approve(asked: Approval, who: Who, channel: Channel, limits: SpawnLimits) -> Command[Decided]:
    """Approve one proposal, or several as one group: if one cannot start, none does."""

    def command(view: View, now_us: int) -> Outcome[Decided]:
        found = [_look(view, pending_id, who.user_id, now_us) for pending_id in asked.pending_ids]
        refused = [item for item in found if isinstance(item, Decision)]
        if refused:
            return _nothing(view, asked, found, who)
        pending = [item for item in found if isinstance(item, _Pending)]
        cap = sum(item.config.max_cost_micros for item in pending)
        group = len(pending) > 1
        if group and asked.group_max_micros is not None:
            if asked.group_max_micros > cap:
                why = (
                    f"group_max_cost_cents is above the sum of the members' caps, {format_usd(cap)}; give that or less"
                )
                return Outcome(Decided(tuple(item.refused(why) for item in pending)))
            cap = asked.group_max_micros
        free = all(item.config.price.get("free") for item in pending)
        lines = [approval_line(item.config, item.texts) for item in pending]
        if group:
            lines.append(group_line(len(pending), None if free else cap, asked.group_timeout_s))
        if asked.approving is None or list(asked.approving) != lines:
            why = (
                "`approving` was left out"
                if asked.approving is None
                else "`approving` is not, letter for letter, what was proposed"
            )
            if asked.approving is not None and group and list(asked.approving) == lines[:-1]:
                why = "the last line, of all of them together, is missing in `approving`"
            why += "; show the person approval_lines and give exactly these"
            return Outcome(Decided(tuple(item.refused(why) for item in pending), approval_lines=tuple(lines)))
        if why_not := _too_many(view, who.user_id, len(pending), limits, now_us):
            return Outcome(Decided(tuple(item.refused(why_not) for item in pending)))
        if not free and (why_not := exhausted(view, who.user_id, limits, now_us)):
            return Outcome(Decided(tuple(item.refused(why_not) for item in pending)))
        events: list[Event] = []
        for item in pending:
            given = asked.changes.get(item.row.pending_id, {})
            changes = _resolved(item.config, given)
            if why_not := _raises(item.config, changes) or _misses(item.config, given):
                return Outcome(Decided(tuple(other.refused(why_not if other is item else None) for other in pending)))
            events.extend(_approved(item, who, channel, changes, asked, cap if group else None))
        decisions = tuple(Decision(item.row.pending_id, item.run.id, "approved") for item in pending)
        return Outcome(Decided(decisions, asked.group_id if group else None), tuple(events))

    return command


def reject(pending_ids: tuple[str, ...], who: Who, channel: Channel) -> Command[Decided]:
    """Reject proposals, id by id."""

    def command(view: View, now_us: int) -> Outcome[Decided]:
        events: list[Event] = []
        decisions: list[Decision] = []
        for pending_id in pending_ids:
            item = _look(view, pending_id, who.user_id, now_us)
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


def close_proposal(
    row: ProposalRow,
    run: RunRow,
    who: Who,
    decision: Literal["rejected", "expired", "superseded"],
    *,
    channel: Channel | None = None,
    status: Ending | None = None,
) -> tuple[Event, ...]:
    """Return the events that end a proposal without a run."""
    decided = SpawnDecided(pending_id=row.pending_id, decision=decision, channel=channel, digest=row.digest)
    ended = RunEnded(status=status or decision, stop_reason=f"the proposal was {decision}")
    return (Event(who, decided, run_id=run.id), Event(who, ended, run_id=run.id))


@dataclass(frozen=True)
class _Pending:
    row: ProposalRow
    run: RunRow
    config: RunConfig
    texts: Texts

    def refused(self, why: str | None) -> Decision:
        return Decision(
            self.row.pending_id, self.run.id, "refused", why or "another of this group cannot start, so none does"
        )


def texts_of(view: View, run: RunRow) -> Texts | None:
    """Return a run's texts, or None where they were erased."""
    entry = view.entry(run.task_seq) if run.task_seq is not None else None
    if entry is None or not isinstance(entry.fact, UserMessage):
        return None
    said = entry.fact
    return Texts(task=said.text, context=said.context, system_prompt=said.system_prompt, rationale=said.rationale)


def _look(view: View, pending_id: str, user: str, now_us: int) -> _Pending | Decision:
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
    return _Pending(row, run, config_of(run.config), texts)


def _nothing(view: View, asked: Approval, found: list[_Pending | Decision], who: Who) -> Outcome[Decided]:
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


def _decision_digest(item: _Pending, changes: Mapping[str, Any], asked: Approval, group_cap: int | None) -> str:
    """Return the hash of all that is decided with a proposal: its digest, what changes, and the group it is in."""
    group = [sorted(asked.pending_ids), group_cap, asked.group_timeout_s] if group_cap is not None else None
    line = json.dumps(
        [item.row.digest, dict(changes), group], ensure_ascii=False, separators=(",", ":"), sort_keys=True
    )
    return hashlib.sha256(line.encode()).hexdigest()


def _approved(
    item: _Pending,
    who: Who,
    channel: Channel,
    changes: Mapping[str, Any],
    asked: Approval,
    group_cap: int | None,
) -> tuple[Event, ...]:
    group_id = asked.group_id if group_cap is not None else None
    decided = SpawnDecided(
        pending_id=item.row.pending_id,
        decision="approved",
        channel=channel,
        digest=item.row.digest,
        decision_digest=_decision_digest(item, changes, asked, group_cap),
        changes=dict(changes),
        group_id=group_id,
        group_max_cost_micros=group_cap,
        group_timeout_s=asked.group_timeout_s if group_cap is not None else None,
    )
    spawn = SubagentSpawn(
        role=item.config.role,
        task=item.texts.task,
        subagent_id=item.run.id,
        pending_id=item.row.pending_id,
        name=item.config.name,
        task_id=item.config.task_id,
        max_cost_cents=changes.get("max_cost_micros", item.config.max_cost_micros) / 10_000,
        model=item.config.model,
        group_id=group_id,
    )
    said: tuple[Event, ...] = ()
    if channel in ("elicitation", "terminal", "http"):  # a person's own channel; a host's call is not claimed to be one
        text = f"approved {item.row.pending_id}: {approval_line(item.config, item.texts)}"
        said = (Event(who, UserMessage(text=text, kind="decision"), run_id=item.run.id),)
    run_id = item.run.id
    return (*said, Event(who, decided, run_id=run_id), Event(who, spawn, run_id=run_id, model=item.config.model))
