"""Who approved what and what it cost, for `ava report approvals` and the page `/costs/approvals`.

A decision is an approval or rejection of a proposal, a person's answer to a run that asked for more, or a resumption.
The cost is the run's so far, and belongs to its approval, so that the sum counts no run twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import Field

from ava_audit.entries import Entry
from ava_audit.events import Answered, RunResumed, SessionStart, SpawnDecided, SpawnProposed
from ava_audit.rows import EXPIRED, WAITING, RunRow
from ava_audit.totals import DecisionSums, FoundDecision, Period, decision_page, decision_sums
from ava_audit.units import MICROS_PER_USD, cents, format_usd, iso_utc, minutes, now_us
from ava_audit.view import View
from ava_roles.wrap import one_line
from ava_server.approval.channels import PERSON_CHANNELS, WAYS
from ava_server.approval.lookup import approval_of
from ava_server.approval.proposals import brief_of, program_of
from ava_server.core.ids import state_words
from ava_server.render.plan_view import task_words
from ava_server.run_config.config import is_free
from ava_server.run_config.run_cap import caps_text
from ava_server.runs.record.lifecycle import awaited

CHANNELS: Mapping[str, str] = {
    **{channel: way.how for channel, way in WAYS.items()},
    "cancelled": "by cancelling it",
    "rejected": "by cancelling it",
    "expired": "by itself: nobody decided in time",
}
"""How a decision came, by its channel; where it has none, by what was decided."""


def by_script(channel: str, began: SessionStart | None) -> bool:
    """Tell whether a command decided without asking anybody."""
    return channel == "host_call" and began is not None and began.transport == "terminal"


def how_decided(channel: str, began: SessionStart | None, user: str) -> str:
    """The session's start tells a host's call from a script's flag."""
    if channel != "host_call" or began is None:
        return CHANNELS.get(channel, "")
    if not by_script(channel, began):
        return "by the host's call; the log has no answer of a person"
    flag = f"`{began.client}` without a terminal"
    if began.client == "ava run":
        flag = "the flag --yes of `ava run`"
    return f"by a script as {user}: {flag}; no person was asked"


@dataclass(frozen=True)
class RunDecision:
    """A decision about a run.

    Attributes:
        at_us: When it was made.
        what: What was decided: `Approved`.
        how: Who decided, over which channel.
        changes: What it has changed, in words; empty where nothing was.
        plan_id: The plan as whose step it was approved.
        whole_plan: That plan was approved as a whole, before it had this run; else several proposals became a plan.
        more: It answers a request for more.
        folded: What of the proposal was folded on the screen of who approved it, counted.
    """

    at_us: int
    what: str
    how: str
    changes: str = ""
    plan_id: str | None = None
    whole_plan: bool = False
    more: bool = False
    folded: str = ""

    @property
    def plan_words(self) -> str:
        """What else was approved with it: `together with others as G-7f3a2b`; empty where nothing was."""
        if self.plan_id is None:
            return ""
        if self.whole_plan:
            return f"with its plan {self.plan_id}"
        return f"together with others as {self.plan_id}"


def decisions_on(view: View, run: RunRow) -> tuple[RunDecision, ...]:
    """Return who decided about a run: first on its proposal or its plan's, then on its own requests for more."""
    found: list[RunDecision] = []
    approval = approval_of(view, run)
    entry, decided = approval.decided, approval.decision
    if entry is not None and decided is not None:
        proposed = approval.proposal.config if approval.proposal is not None else {}
        is_of_plan = approval.run_id != run.id
        on_proposal = RunDecision(
            entry.ts_us,
            state_words(decided.decision).capitalize(),
            _how(view, entry, decided.channel or decided.decision),
            changed_words(decided.changes, proposed),
            approval.run_id if is_of_plan else decided.group_id,
            whole_plan=is_of_plan,
            folded=decided.folded or "",
        )
        found.append(on_proposal)
    for entry in view.rare_entries(run.id, ("Answered",)):
        fact = entry.fact
        if isinstance(fact, Answered) and fact.for_more:
            how = _how(view, entry, fact.channel or fact.decision)
            what = f"Request for more {fact.decision}"
            found.append(RunDecision(entry.ts_us, what, how, changed_words(fact.changes), more=True))
    return tuple(found)


def _how(view: View, entry: Entry, channel: str) -> str:
    return how_decided(channel, view.session_start(entry.session_id), entry.user_id)


def undecided_words(run: RunRow, state: str) -> str:
    """Say that nobody has decided about a proposal yet, or in time; empty for a run in any other state."""
    if state == EXPIRED:
        return f"Not decided: {run.pending_id} has expired"
    if state == WAITING:
        return f"Not decided: {run.pending_id} waits for approval"
    return ""


def changed_words(changes: dict[str, Any], proposed: Mapping[str, Any] = MappingProxyType({})) -> str:
    """Return what a decision has changed. `proposed`: the configuration before; empty where it is not known."""
    words: list[str] = []
    for name, value in changes.items():
        if name == "steps":
            words += _changed_steps(value, proposed.get("steps", ()))
        else:
            words.append(_changed(name, value))
    return ", ".join(words)


def _changed_steps(after: Sequence[Mapping[str, Any]], before: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return which steps of a plan were dropped, and which tools those that remain have no longer."""
    remaining = {str(step["id"]): step for step in after}
    dropped: list[str] = []
    blocked: dict[str, None] = {}
    for step in before:
        name = str(step["id"])
        if name not in remaining:
            dropped.append(f'"{name}"')
            continue
        tools = remaining[name]["config"].get("tools", ())
        for tool in step["config"].get("tools", ()):
            if tool not in tools:
                blocked[f'"{tool}"'] = None
    words: list[str] = []
    if dropped:
        words.append(f"without the step{'s' if len(dropped) > 1 else ''} {', '.join(dropped)}")
    if blocked:
        words.append(f"without the tool{'s' if len(blocked) > 1 else ''} {', '.join(blocked)}")
    return words or ["its steps"]


def _changed(name: str, value: Any) -> str:
    match name:
        case "max_cost_micros":
            return caps_text(value)
        case "timeout_s":
            return f"at most {minutes(value)}"
        case "tools":
            return f"only the tools {', '.join(value) or 'that every run has'}"
        case _:
            return f"{name} {value:,}"


PAGE = 200
"""Decisions on a page."""
ORDER = ("approved", "rejected", "raised", "declined", "resumed")
ERASED = "(erased)"
FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""What makes a spreadsheet read a cell as a formula, in both widths."""


Us = Annotated[int, Field(ge=0, le=250_000_000_000_000_000)]
Micros = Annotated[int, Field(ge=0, le=2**53)]
"""Bounds on another server's values, within which each can be shown."""


@dataclass(frozen=True)
class MadeDecision:
    """A decision and its outcome; money in micro-USD.

    Attributes:
        seq: Its entry in the log.
        at_us: When it was made.
        decision: `approved`, `rejected`, `raised`, `declined` or `resumed`.
        by: The user in whose name it was made.
        kind: `person`, `host` (a call by a model), `script` or `policy`.
        channel: How it came.
        how: The same in words.
        client: The program that it came through, if the log has it.
        token: The name of its token, over HTTP.
        run_id: The run.
        pending_id: Its proposal.
        plan_id: The plan as whose step it was approved.
        user: Whose run it is.
        role: Its role.
        name: Its label.
        task: The beginning of its task; None where that was erased.
        cap: What was allowed, in words.
        cap_micros: The cost cap that was allowed; None for free runs and for decisions on other caps.
        digest: The digest of what was shown.
        cost_micros: What the run has cost so far; None for all but the approval.
        state: The run's ending, or its state now.
        ended: Whether it has ended.
    """

    seq: int
    at_us: Us
    decision: str
    by: str
    kind: str
    channel: str
    how: str
    client: str | None
    token: str | None
    run_id: str
    pending_id: str
    plan_id: str | None
    user: str
    role: str
    name: str | None
    task: str | None
    cap: str
    cap_micros: Micros | None
    digest: str
    cost_micros: Micros | None
    state: str
    ended: bool


@dataclass(frozen=True)
class Decisions:
    """A page of the decisions of a period, newest first; `sums` are those of the whole period.

    `next` is where the next page begins, None after the last. `user` is None where it covers all users.
    """

    user: str | None
    sums: DecisionSums
    rows: tuple[MadeDecision, ...]
    next: tuple[Us, int] | None


NOTHING = Decisions(None, DecisionSums({}, 0, 0), (), None)


def decisions_of(
    view: View, period: Period, before: tuple[int, int] | None = None, most: int | None = None
) -> Decisions:
    """Return a page of decisions, the newest first; at most `most`, as many as a screen has if it is None."""
    most = most or PAGE
    found = decision_page(view, period, before, most)
    sums = DecisionSums({}, 0, 0)
    if before is None:
        sums = decision_sums(view, period)
    next_page: tuple[int, int] | None = None
    if len(found) == most:
        last = found[-1].entry
        next_page = last.ts_us, last.seq
    return Decisions(period.user, sums, tuple(_made(view, each) for each in found), next_page)


def _made(view: View, found: FoundDecision) -> MadeDecision:
    entry, run, began = found.entry, found.run, found.began
    fact = entry.fact
    assert isinstance(fact, SpawnDecided | Answered | RunResumed)
    channel = fact.channel or "cancelled"  # a cancelled proposal is rejected without having been asked about
    brief = brief_of(view, run)
    decision, cap, cap_micros = _decided(fact, found)
    return MadeDecision(
        seq=entry.seq,
        at_us=entry.ts_us,
        decision=decision,
        by=entry.user_id,
        kind=_kind(channel, began),
        channel=channel,
        how=how_decided(channel, began, entry.user_id),
        client=program_of(began) or None,
        token=began.token if began is not None else None,
        run_id=run.id,
        pending_id=run.pending_id,
        plan_id=run.plan_id,
        user=run.user_id,
        role=run.role,
        name=run.name,
        task=None if brief is None else task_words(run, brief),
        cap=cap,
        cap_micros=cap_micros,
        digest=_digest(view, fact, run),
        cost_micros=run.cost_micros if decision == "approved" else None,
        state=awaited(run, now_us()) or run.state,
        ended=run.ended,
    )


def _digest(view: View, fact: SpawnDecided | Answered | RunResumed, run: RunRow) -> str:
    """Return the digest of what was shown; where the decision has none, the proposal's."""
    if not isinstance(fact, RunResumed) and fact.digest:
        return fact.digest
    proposal = view.proposal(run.pending_id)
    return proposal.digest if proposal is not None else ""


def _decided(fact: SpawnDecided | Answered | RunResumed, found: FoundDecision) -> tuple[str, str, int | None]:
    """Return what was decided, what was allowed in words, and the cost cap that was allowed."""
    if isinstance(fact, RunResumed):
        return "resumed", "as approved before", None
    if isinstance(fact, Answered):
        cost = fact.changes.get("max_cost_micros")
        decision = "raised" if fact.decision == "approved" else "declined"
        return decision, changed_words(fact.changes), cost
    if is_free(found.run):
        return fact.decision, "free", None
    proposed = found.proposed.fact
    config = proposed.config if isinstance(proposed, SpawnProposed) else {}  # a newer Ava wrote another
    cap = {**config, **fact.changes}.get("max_cost_micros")
    return fact.decision, "" if cap is None else caps_text(cap), cap


def _kind(channel: str, began: SessionStart | None) -> str:
    if channel in PERSON_CHANNELS:
        return "person"
    if channel == "auto":
        return "policy"
    if by_script(channel, began):
        return "script"
    return "host"


def totals_line(sums: DecisionSums) -> str:
    counts = ", ".join(f"{sums.counts[name]:,} {name}" for name in ORDER if sums.counts.get(name))
    if not counts:
        return "no decisions."
    worst = ""
    if sums.uncosted_micros:
        worst = f", {format_usd(sums.uncosted_micros)} of it unknown, the most that it can be"
    return f"{counts}. The approved runs have cost {format_usd(sums.cost_micros)} so far{worst}."


def usd(micros: int) -> str:
    """Return dollars with all six decimals: `0.012345`."""
    return f"{micros // MICROS_PER_USD}.{micros % MICROS_PER_USD:06}"


def decisions_json(found: Decisions, since_us: int, until_us: int) -> dict[str, Any]:
    """Money is in US cents."""
    return {
        "user": found.user,
        "since": iso_utc(since_us),
        "until": iso_utc(until_us),
        "total": {
            **{name: found.sums.counts.get(name, 0) for name in ORDER},
            "cost_cents": cents(found.sums.cost_micros),
            "uncosted_cents": cents(found.sums.uncosted_micros),
        },
        "decisions": [_json(each) for each in found.rows],
    }


def _json(one: MadeDecision) -> dict[str, Any]:
    return {
        "at": iso_utc(one.at_us),
        "decision": one.decision,
        "decided_by": {
            "user": one.by,
            "kind": one.kind,
            "channel": one.channel,
            "how": one.how,
            "client": one.client,
            "token": one.token,
        },
        "user": one.user,
        "role": one.role,
        "name": one.name,
        "task": one.task,
        "cap": one.cap,
        "cap_cents": None if one.cap_micros is None else cents(one.cap_micros),
        "digest": one.digest,
        "cost_cents": None if one.cost_micros is None else cents(one.cost_micros),
        "ending": one.state if one.ended else None,
        "state": one.state,
        "subagent_id": one.run_id,
        "pending_id": one.pending_id,
        "group_id": one.plan_id,
        "entry": one.seq,
    }


COLUMNS = (
    "time", "decision", "decided_by", "kind", "channel", "how", "client", "token", "user", "role", "name", "task",
    "cap", "cap_usd", "cost_usd", "ending", "digest", "subagent_id", "pending_id", "group_id", "entry",
)  # fmt: skip
"""The columns of the CSV file."""


def csv_cells(one: MadeDecision) -> list[str]:
    """Return the cells of `COLUMNS`; no text is a formula for a spreadsheet."""
    texts = (
        one.decision, one.by, one.kind, one.channel, one.how, one.client, one.token, one.user, one.role, one.name,
        ERASED if one.task is None else one.task, one.cap,
    )  # fmt: skip
    ending = one.state if one.ended else ""
    more = (ending, one.digest, one.run_id, one.pending_id, one.plan_id, str(one.seq))
    return [
        iso_utc(one.at_us), *map(_cell, texts), _usd_cell(one.cap_micros), _usd_cell(one.cost_micros),
        *map(_cell, more),
    ]  # fmt: skip


def _usd_cell(micros: int | None) -> str:
    return "" if micros is None else usd(micros)


def _cell(text: str | None) -> str:
    plain = one_line(text)
    if plain.startswith(FORMULAS):
        return f"'{plain}"
    return plain
