"""Proposals: what would run and for how much, recorded before anybody decides. A proposal starts nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel

from ava_audit.events import (
    AssistantMessage,
    Channel,
    Ending,
    Event,
    RunEnded,
    SessionStart,
    SpawnDecided,
    SpawnProposed,
    SubagentSpawn,
    UserMessage,
    Who,
)
from ava_audit.rows import WAITING, ProposalRow, RunRow
from ava_audit.units import MICROS_PER_CENT, cap_micros, day_of, format_usd, minutes
from ava_audit.view import Command, Outcome, View
from ava_server.approval.decide import FoldedScreen, PersonAnswer, Shown
from ava_server.approval.lookup import approval_of
from ava_server.approval.outcomes import closed_proposal
from ava_server.approval.plain_text import TASK_CHARS, quoted
from ava_server.approval.plan_summary import StepSummary, step_summary
from ava_server.approval.reach import POWERS, powers, reach_words
from ava_server.approval.shown import approval_line, proposal_message, proposal_rows
from ava_server.approval.summary import (
    WHOLE_CHARS,
    DayLeft,
    SummaryRow,
    likely_cost,
    message_of,
    several_line,
    several_note,
    warnings,
)
from ava_server.budget import user_limits
from ava_server.budget.user_limits import DayCaps, installation_scope, user_scope
from ava_server.core.ids import AGENT
from ava_server.core.names import named, named_role
from ava_server.run_config.brief import Brief
from ava_server.run_config.config import RunConfig, config_of
from ava_server.run_config.digest import digest

if TYPE_CHECKING:
    from ava_server.config.settings import Policy, Settings

MOST_WAITING = 200
"""Most proposals of one user that may wait at once."""


@dataclass(frozen=True)
class SpawnLimits:
    """The limits on approvals: a user's starts in an hour without a person's answer, and the day's money.

    `spawns_setting` is the name of the setting for the hour, with its file, and `day_settings` are the names of those
    for the user's day and the installation's, for refusals.
    """

    spawns_per_hour: int
    spawns_setting: str
    days: DayCaps
    day_settings: tuple[str, str]
    ttl_us: int


def spawn_limits(settings: Settings, user: str) -> SpawnLimits:
    return SpawnLimits(
        spawns_per_hour=user_limits.spawns_per_hour(settings, user),
        spawns_setting=user_limits.spawns_setting(settings, user),
        days=user_limits.day_caps(settings, user),
        day_settings=(user_limits.day_setting(settings, user), settings.installation_day_setting),
        ttl_us=int(settings.proposal_lifetime_s * 1_000_000),
    )


@dataclass(frozen=True)
class Proposal:
    """A proposal: its ids, its configuration and the text that was shown.

    `state` is the run's: a repeated `task_id` returns a proposal that may have been approved already.
    """

    pending_id: str
    subagent_id: str
    state: str
    config: RunConfig
    line: str
    message: str
    expires_us: int


def propose(
    config: RunConfig,
    brief: Brief,
    who: Who,
    candidates: tuple[tuple[str, str], ...],
    limits: SpawnLimits,
    *,
    policy: Policy | None = None,
    retry_of: str | None = None,
) -> Command[Proposal | str]:
    """Make a proposal, or return why not.

    The same `task_id` and configuration returns the first one, until its run has ended. The same `task_id` with another
    configuration supersedes a proposal that still waits. The first unused pair of `candidates` (new `pending_id` and
    `subagent_id`) is taken; where none is unused, nothing is proposed. A proposal waits for the `ttl_us` of `limits`,
    and a day with too little left refuses it.
    """
    sha = digest(config, brief)
    line = approval_line(config, brief)

    def command(view: View, now_us: int) -> Outcome[Proposal | str]:
        day = day_left(view, who.user_id, limits, now_us)
        first = _first_proposal(view, who.user_id, config.task_id, sha, now_us)
        session = who.session_id if first is None else first[1].session_id
        message = proposal_message(config, brief, day, program_of(view.session_start(session)))
        if first is not None:
            row, run = first
            return Outcome(Proposal(row.pending_id, run.id, run.state, config, line, message, row.expires_us))
        superseded, ends = _supersede(view, who, config.task_id)
        why = _refusal(view, who.user_id, config, limits, now_us, replaces=superseded is not None)
        if why is not None:
            return Outcome(why)
        ids = free_ids(view, candidates)
        if ids is None:
            return Outcome(NO_FREE_ID)
        pending_id, run_id = ids
        proposal = Proposal(pending_id, run_id, WAITING, config, line, message, now_us + limits.ttl_us)
        fact = SpawnProposed(
            pending_id=pending_id,
            subagent_id=run_id,
            digest=sha,
            expires_us=proposal.expires_us,
            config=config.model_dump(mode="json", exclude_none=True),
            retry_of=retry_of,
            supersedes=superseded,
            policy=policy,
        )
        return Outcome(proposal, (*ends, *_proposal_events(proposal, fact, brief, who)))

    return command


NO_FREE_ID = "every new id that was drawn is taken already; try again"


def free_ids(view: View, candidates: Sequence[tuple[str, str]]) -> tuple[str, str] | None:
    """Return the first pair of ids that no proposal and no run has, or None."""
    for pending_id, run_id in candidates:
        if view.proposal(pending_id) is None and view.run(run_id) is None:
            return pending_id, run_id
    return None


def _first_proposal(
    view: View, user: str, task_id: str | None, sha: str, now_us: int
) -> tuple[ProposalRow, RunRow] | None:
    """Return the proposal with the same `task_id` and digest whose run has not ended, unless it has expired."""
    if task_id is None:
        return None
    for run in view.with_task_id(user, task_id):
        row = view.proposal(run.pending_id)
        if row is None or row.digest != sha:
            continue
        has_expired = run.state == WAITING and row.expires_us <= now_us
        if not has_expired:
            return row, run
    return None


def _refusal(
    view: View, user: str, config: RunConfig, limits: SpawnLimits, now_us: int, *, replaces: bool
) -> str | None:
    """Return why a user may make no further proposal, or None. One that `replaces` another may always wait."""
    if not config.free:
        why = day_refusal(day_unspent(view, user, limits, now_us), config.least_micros)
        if why is not None:
            return why
    waiting = view.runs(user=user, states=(WAITING,), expired_before_us=now_us, limit=MOST_WAITING)
    if not replaces and len(waiting) >= MOST_WAITING:
        return (
            f"{MOST_WAITING} proposals of {user} are waiting, which is the most. Confirm or reject some with"
            " confirm_spawn, or wait until they expire"
        )
    return None


def _proposal_events(proposal: Proposal, fact: SpawnProposed, brief: Brief, who: Who) -> tuple[Event, ...]:
    run_id = proposal.subagent_id
    agent = Who(who.session_id, run_id, who.user_id, parent_agent_id=AGENT)
    task = UserMessage(
        text=brief.task,
        kind="task",
        context=brief.context,
        system_prompt=brief.system_prompt,
        rationale=brief.rationale,
        steps=tuple(step.stored() for step in brief.steps) or None,
        project=project_of(brief),
    )
    shown = AssistantMessage(text=f"{proposal.message}\n{proposal.line}")
    return (
        Event(who, fact, run_id=run_id, model=proposal.config.model),
        Event(agent, task, run_id=run_id),
        Event(who, shown, run_id=run_id),
    )


def _supersede(view: View, who: Who, task_id: str | None) -> tuple[str | None, tuple[Event, ...]]:
    """Return the waiting proposal that a new one with the same `task_id` replaces, and the events that close it.

    Should several wait, all are closed and the last is named. None and no events where none waits.
    """
    if task_id is None:
        return None, ()
    replaced: str | None = None
    closing: list[Event] = []
    for run in view.with_task_id(who.user_id, task_id):
        row = view.proposal(run.pending_id)
        if row is not None and row.state == WAITING:
            replaced = row.pending_id
            closing += close_proposal(row, run, who, "superseded")
    return replaced, tuple(closing)


def day_left(view: View, user: str, limits: SpawnLimits, now_us: int) -> DayLeft:
    """Return the user's or the installation's daily budget, whichever has less left."""
    return min(_day_budgets(view, user, limits, now_us), key=lambda each: each.micros)


def day_unspent(view: View, user: str, limits: SpawnLimits, now_us: int) -> DayLeft:
    """Return the daily budget that has less left if nothing were held: what is held refuses no approval."""
    budgets = _day_budgets(view, user, limits, now_us)
    unspent = (replace(each, micros=each.micros + each.held_micros, held_micros=0) for each in budgets)
    return min(unspent, key=lambda each: each.micros)


def _day_budgets(view: View, user: str, limits: SpawnLimits, now_us: int) -> Iterator[DayLeft]:
    day, days = day_of(now_us), limits.days
    budgets = (
        ("your", user_scope(user, day), days.user_micros),
        ("this installation's", installation_scope(day), days.installation_micros),
    )
    for (whose, scope, cap), setting in zip(budgets, limits.day_settings, strict=True):
        bucket = view.bucket(scope)
        yield DayLeft(cap - bucket.committed, cap, whose, setting, bucket.held_micros)


def day_refusal(day: DayLeft, least_micros: int = 1) -> str | None:
    """Return why what is unspent of today's budget is too small, or None.

    A run needs `least_micros` to do useful work.
    """
    if day.cap_micros == 0:  # tomorrow it is still 0
        return f"{day.whose} daily budget is $0.00, so only free runs can start; raise {day.setting}"
    of = f"{format_usd(day.cap_micros - day.micros)} of {format_usd(day.cap_micros)}"
    renewed = f"it is renewed at 00:00 UTC, or raise {day.setting}"
    if day.micros <= 0:
        return f"{day.whose} budget for today is used up ({of}); {renewed}"
    if day.micros < least_micros:
        return (
            f"{format_usd(day.micros)} is left of {day.whose} budget for today ({of} are spent), which buys"
            f" no useful work: that takes {format_usd(least_micros)}; {renewed}, choose a cheaper model, or give a"
            " shorter task or context"
        )
    return None


def program_of(began: SessionStart | None) -> str:
    """Return the program that a session belongs to, with its version; empty where the log does not have it."""
    if began is None:
        return ""
    return " ".join(filter(None, (began.client, began.client_version)))


def brief_of(view: View, run: RunRow) -> Brief | None:
    """Return a run's texts, or None where they were erased."""
    entry = view.entry(run.task_seq) if run.task_seq is not None else None
    if entry is None or not isinstance(entry.fact, UserMessage):
        return None
    steps = tuple(Brief.model_validate(step) for step in entry.fact.steps or ())
    if run.is_plan and not steps:
        briefs = _briefs_of_runs(view, config_of(run.config))
        if briefs is None:
            return None
        steps = briefs
    return Brief.of_message(entry.fact, steps)


def has_inputs(view: View, run: RunRow) -> bool:
    """Tell whether a run's task brings what other runs handed over: its words alone are not the whole task."""
    entry = view.entry(run.task_seq) if run.task_seq is not None else None
    return entry is not None and isinstance(entry.fact, UserMessage) and bool(entry.fact.inputs)


def project_of(brief: Brief) -> tuple[dict[str, str], ...] | None:
    """Return the texts of the project's files as a task in the log has them."""
    return tuple({"path": each.path, "text": each.text} for each in brief.project) or None


def _briefs_of_runs(view: View, plan: RunConfig) -> tuple[Brief, ...] | None:
    """Return the texts of steps whose runs were proposed by themselves; None where one was erased."""
    briefs: list[Brief] = []
    for step in plan.steps:
        run = view.run(step.run)
        own = brief_of(view, run) if run is not None else None
        if own is None:
            return None
        briefs.append(own.model_copy(update={"step": step.id}))
    return tuple(briefs)


def spawn_fact(
    config: RunConfig, task: str, run_id: str, pending_id: str, *, name: str | None = None, plan_id: str | None = None
) -> SubagentSpawn:
    """Return the fact that a run starts with this configuration; `name` in place of the configuration's."""
    return SubagentSpawn(
        role=config.role,
        task=task,
        subagent_id=run_id,
        pending_id=pending_id,
        name=name or config.name,
        task_id=config.task_id,
        max_cost_cents=config.max_cost_micros / MICROS_PER_CENT,
        model=config.model,
        group_id=plan_id,
    )


def close_proposal(
    row: ProposalRow,
    run: RunRow,
    who: Who,
    decision: Literal["rejected", "expired", "superseded"],
    *,
    channel: Channel | None = None,
    status: Ending | None = None,
) -> tuple[Event, ...]:
    """Return the events that close a proposal whose run never starts."""
    decided = SpawnDecided(pending_id=row.pending_id, decision=decision, channel=channel, digest=row.digest)
    ended = RunEnded(status=status or decision, stop_reason=f"the proposal was {decision}")
    return (Event(who, decided, run_id=run.id), Event(who, ended, run_id=run.id))


class ProposalSummary(BaseModel):
    """A proposal as a row in a table of several.

    Attributes:
        limits: The most that it costs, and its time.
        task: The beginning of its task, in quotes.
        reach: What it may read, reach and change.
        powers: The same in words that are the same for each proposal.
        warnings: What else a person has to know.
        name: Its label.
        steps: The steps of a plan.
    """

    role: str
    model: str
    limits: str
    task: str
    reach: str
    powers: tuple[str, ...]
    warnings: tuple[str, ...]
    name: str = ""
    steps: tuple[StepSummary, ...] = ()

    @property
    def who(self) -> str:
        """The role for a sentence, with what it goes without."""
        role, blank, lacks = self.role.partition(" ")
        return f"{named_role(role)}{blank}{lacks}"


class WholeText(BaseModel):
    """A text of a proposal, of which a screen shows only the beginning until it is asked for more.

    Attributes:
        name: `task`, `context` or `instructions`; of a plan's step with its id.
        text: At most `WHOLE_CHARS` of it.
        chars: All of its characters.
    """

    name: str
    text: str
    chars: int


class Pending(BaseModel):
    """A waiting proposal.

    Attributes:
        digest: The hash of everything that is approved.
        max_cost_micros: Its cap, in micro-USD.
        expires_us: When it expires, in microseconds since 1970.
        summary: The proposal in short; None from a server of an older version.
        day: What is left of the day; None from a server of an older version.
        rows: The text, a sentence a row; empty from a server of an older version.
        created_us: When it was proposed; 0 from a server of an older version.
        likely_micros: What it is likely to cost, as `RunConfig` has it.
        whole: Its task, context and instructions; empty from a server of an older version.
        client: The program that asked for it, without its version; empty where it is not known.
    """

    pending_id: str
    subagent_id: str
    message: str
    approval_line: str
    digest: str
    max_cost_micros: int
    free: bool
    expires_us: int
    summary: ProposalSummary | None = None
    day: DayLeft | None = None
    rows: tuple[SummaryRow, ...] = ()
    created_us: int = 0
    likely_micros: tuple[int, int] | None = None
    whole: tuple[WholeText, ...] = ()
    client: str = ""

    @property
    def most(self) -> str:
        """What it costs and takes at most, and likely; empty from a server of an older version."""
        limits = self.summary.limits if self.summary is not None else ""
        if self.free or not limits:
            return limits.capitalize()
        return f"At most {limits}"

    @property
    def topics(self) -> dict[str, list[str]]:
        topics: dict[str, list[str]] = {}
        for row in self.rows:
            topics.setdefault(row.topic, []).append(row.text)
        return topics

    @property
    def shown(self) -> Shown:
        return Shown("start", self.pending_id, self.digest, self.approval_line, self.message)


def proposal_in(view: View, pending_id: str, user: str, limits: SpawnLimits, now_us: int) -> Proposal | None:
    """Return a user's proposal as the log has it, decided or not; None if there is none, or it was erased."""
    row = view.proposal(pending_id)
    if row is None or row.user_id != user:
        return None
    run = view.run(row.run_id)
    if run is None:
        return None
    brief = brief_of(view, run)
    if brief is None:
        return None
    config = config_of(run.config)
    client = program_of(view.session_start(run.session_id))
    message = proposal_message(config, brief, day_left(view, user, limits, now_us), client)
    line = approval_line(config, brief)
    return Proposal(row.pending_id, run.id, run.state, config, line, message, row.expires_us)


def pending_proposal(view: View, run: RunRow, limits: SpawnLimits, now_us: int) -> Pending | str:
    """Return a proposal that waits, also an expired one; or why it no longer waits."""
    proposal = view.proposal(run.pending_id)
    brief = brief_of(view, run)
    if proposal is None or proposal.state != WAITING or brief is None:
        return f"{closed_proposal(view, run)}."
    config = config_of(run.config)
    day = day_left(view, run.user_id, limits, now_us)
    rows = proposal_rows(config, brief, day, program_of(view.session_start(run.session_id)))
    return Pending(
        pending_id=run.pending_id,
        subagent_id=run.id,
        message=message_of(rows, config),
        approval_line=approval_line(config, brief),
        digest=proposal.digest,
        max_cost_micros=config.max_cost_micros,
        free=config.free,
        expires_us=proposal.expires_us,
        summary=_summary(config, brief, rows),
        day=day,
        rows=rows,
        created_us=run.created_us,
        likely_micros=config.likely_micros,
        whole=tuple(_whole_texts(brief)),
        client=_client_of(view.session_start(run.session_id)),
    )


def _client_of(began: SessionStart | None) -> str:
    return (began.client or "") if began is not None else ""


def _whole_texts(brief: Brief) -> Iterator[WholeText]:
    for part in brief.steps or (brief,):
        of = f" of {named('step', part.step)}" if part.step is not None else ""
        for name, text in (("task", part.task), ("context", part.context), ("instructions", part.system_prompt)):
            if text:
                yield WholeText(name=f"{name}{of}", text=text[:WHOLE_CHARS], chars=len(text))


def waiting_proposal(view: View, run: RunRow, limits: SpawnLimits, now_us: int) -> Pending | str:
    """Return a proposal that can be decided on, or why it cannot."""
    proposal = pending_proposal(view, run, limits, now_us)
    if isinstance(proposal, Pending) and proposal.expires_us <= now_us:
        return f"{proposal.pending_id} has expired; ask your host to propose it again."
    return proposal


def _summary(config: RunConfig, brief: Brief, rows: Sequence[SummaryRow]) -> ProposalSummary:
    role = config.role
    if config.lacks:
        role = f"{role} without {' and '.join(config.lacks)}"
    cost = "free" if config.free else format_usd(config.max_cost_micros, exact=True)
    likely = likely_cost(config)
    if likely:
        cost = f"{cost} (likely {likely})"
    return ProposalSummary(
        role=role,
        model=config.model,
        limits=f"{cost}, {minutes(config.timeout_s)}",
        task=quoted(brief.task, TASK_CHARS),
        reach=reach_words(config.reach),
        powers=_powers(config),
        warnings=warnings(rows),
        name=config.name or "",
        steps=tuple(step_summary(step, brief.of_step(step.id)) for step in config.steps),
    )


def _powers(config: RunConfig) -> tuple[str, ...]:
    """Return what a run can do; for a plan, what its runs can do together."""
    from ava_roles.tools.registry import specs_of  # takes 40 ms, and commands that only look need none of it

    held: set[str] = set()
    for each in [step.config for step in config.steps] or [config]:
        held.update(powers(each, specs_of(each.tools, {})))
    return tuple(power for power in POWERS if power in held)


def pending_proposals(view: View, user: str, limits: SpawnLimits, now_us: int) -> list[Pending]:
    """Return a user's waiting proposals that have not expired, oldest first."""
    rows = view.runs(user=user, states=(WAITING,), expired_before_us=now_us, limit=-1)
    proposals = [pending_proposal(view, run, limits, now_us) for run in rows]
    return [one for one in proposals if isinstance(one, Pending)]


def made_under(view: View, ids: Sequence[str]) -> list[Policy]:
    """Return the policies that were in force when these proposals or runs were proposed; older logs lack them.

    A run of a plan was proposed with it, and a plan of proposals that were approved together with each of them.
    """
    policies: list[Policy] = []
    for pending_id in dict.fromkeys(pending for each in ids for pending in _pending_ids(view, each)):
        proposal = view.proposal(pending_id)
        run = view.run(proposal.run_id) if proposal is not None else None
        proposed = approval_of(view, run).proposal if run is not None else None
        if proposed is not None and proposed.policy is not None:
            policies.append(_known_policy(proposed.policy))
    return policies


def _pending_ids(view: View, id: str) -> Iterator[str]:
    """Yield the proposals that a proposal, a run or a plan comes from."""
    run = view.run(id)
    if run is None:
        yield id
        return
    yield run.pending_id
    for (pending_id,) in view.select("SELECT DISTINCT pending_id FROM runs WHERE plan_id = ?", run.id):
        yield pending_id


def _known_policy(name: str) -> Policy:
    """Return a policy by its name; one that this version does not know counts as the strictest."""
    for policy in user_limits.STRICTEST_FIRST:
        if policy == name:
            return policy
    return "human"


def changed_since(view: View, user: str, shown: Mapping[str, str]) -> str | None:
    """Return why a decision would be about something else than what was shown, or None.

    `shown`: the digests that were shown, by proposal. An id that is unknown, or another user's, is left to the decision
    itself.
    """
    for pending_id, digest_then in shown.items():
        row = view.proposal(pending_id)
        if row is not None and row.user_id == user and row.digest != digest_then:
            return f"{pending_id} has changed since it was shown (its digest differs); look at it again"
    return None


def together_line(waiting: Sequence[Pending], cap_micros: int | None, timeout_s: float | None) -> str:
    """Return the line of several that an approval repeats; without a cap, the sum of the members' caps counts."""
    if all(one.free for one in waiting):
        return several_line(len(waiting), None, timeout_s)
    if cap_micros is None:
        cap_micros = sum(one.max_cost_micros for one in waiting)
    return several_line(len(waiting), cap_micros, timeout_s)


def agreement(
    waiting: Sequence[Pending], limits: Mapping[str, Any], screens: Mapping[str, FoldedScreen] | None = None
) -> PersonAnswer:
    """Return a yes to proposals as they were shown, under lower limits as `confirm_spawn` takes them.

    `screens`: what was on the screen of those of which something stayed folded, by their ids.
    """
    lines = [one.approval_line for one in waiting]
    if len(waiting) > 1:
        cap = limits.get("group_max_cost_cents")
        lines.append(together_line(waiting, None if cap is None else cap_micros(cap), limits.get("group_timeout")))
    return PersonAnswer(True, lines=lines, limits=limits, screens=screens or {})


def together_note(waiting: Sequence[Pending], cap_micros: int | None) -> str:
    """Return what proposals are likely to cost together, and which shared cap holds; see `several_note`."""
    paid = [one for one in waiting if not one.free]
    if not paid:
        return ""
    day = paid[0].day
    if day is None:
        return ""
    together = sum(one.max_cost_micros for one in paid)
    cap = together if cap_micros is None else cap_micros
    return several_note(together, cap, day, [one.likely_micros for one in paid])
