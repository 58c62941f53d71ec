"""One model of a run, made from the log in one place; status lines, sentences and JSON are made from it.

Nothing parses these texts: figures, causes and states come from `RunView`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from ava_audit.entries import Entry
from ava_audit.events import Event, RunClaimed, SubagentComplete, ToolCall, ToolResult, Who
from ava_audit.rows import (
    ASKING,
    AWAITING_EXTENSION,
    EXPIRED,
    HELD,
    INTERRUPTED,
    QUEUED,
    RUNNING,
    WAITING,
    ProposalRow,
    RunRow,
)
from ava_audit.store.backend import Activities
from ava_audit.units import format_duration, format_usd, iso_utc, local_second, minutes
from ava_audit.view import View, loads
from ava_roles.wrap import clean, escape_result
from ava_server.approval.proposals import brief_of
from ava_server.budget.held_words import held_words
from ava_server.core.commands import advice_there
from ava_server.core.ids import AGENT, label, state_words
from ava_server.render.answer_size import add_result
from ava_server.render.plan_view import PlanView, task_words, view_plan
from ava_server.render.reasons import limit_words
from ava_server.render.responses import LastTool, RunAnswer
from ava_server.run_config.config import config_of, spent_text
from ava_server.run_config.run_cap import (
    COST,
    TIME,
    TOKENS,
    TOOL_CALLS,
    TURNS,
    caps_text,
)
from ava_server.runs.asking.pending_questions import OpenQuestions, asked_of
from ava_server.runs.asking.question_kinds import PendingQuestion
from ava_server.runs.owner.blockers import blocker_in
from ava_server.runs.record.claims import plan_waits_for_resume, resume_line, waits_for_resume
from ava_server.runs.record.lifecycle import awaited, is_held, pause_words, paused
from ava_server.runs.record.money_holders import awaited_money
from ava_server.runs.record.plan_result import complete_result
from ava_server.runs.record.plan_time import plan_busy_us

if TYPE_CHECKING:
    from ava_server.runs.owner.manager import Manager


ACTIVITY_CHARS, SHOWN_CHARS = 80, 400
_NO_SERVER = "no Ava server is running; the next one of this user takes it over"
_NO_OWNER = "no server is running it"


class Processes(Protocol):
    """What a view of a run asks about the processes on the log: `Instances`, or what has asked these before."""

    def alive(self, name: str, /) -> bool:
        """Blocking, for a moment."""
        ...

    def activities(self) -> Activities:
        """Blocking, for a moment."""
        ...

    def workers(self) -> Mapping[str, str]:
        """Blocking, for a moment."""
        ...

    def shown_seen_us(self, name: str, /) -> int | None:
        """Blocking, for a moment."""
        ...

    @property
    def seen_every_s(self) -> float: ...


class Cap(NamedTuple):
    """One of a run's caps: what is used of it, the most (0: no cap), and what is held for calls and the last turn.

    `name` is `seconds`, `turns`, `tool_calls`, `tokens` or `cost` (micro-USD); a plan has `steps` and `runs` in place
    of turns and tool calls.
    """

    name: str
    used: int | float  # read back from JSON, turns are still whole
    most: int | float
    held: int | float = 0

    @property
    def held_words(self) -> str:
        return held_words(self.held)


@dataclass(frozen=True)
class Wait:
    """Why a run does not progress.

    Attributes:
        cause: `approval`: a person has to approve it. `limit`: its provider takes no calls until `until_us`.
            `extension`: a person may allow it more, until `until_us`. `answer`: it has asked a question, and waits for
            the answer until `until_us`. `money`: other runs hold the money for its next call. `queue`: it is queued.
            `owner`: its server is gone, and the next one resumes it. `resume`: a person has to resume it. `held`: the
            same, because it comes from a backup.
        run: The run.
        until_us: When a limit is over.
        position: The place in the queue, from 1; None for a plan, which takes no slot.
        blocker: Why the server that tried last could not take it, empty where none has said; or the money that it
            waits for.
        served: An Ava server works on this data root.
        line: What `confirm_spawn` takes as `approving` to resume it; None where that is not needed, or not possible.
        question: What it asks a person; None where it asks nothing, or that was erased.
        command: How a command for the server that has the run begins, as `ava --url URL`; empty on its own machine.
    """

    cause: Literal["approval", "limit", "extension", "answer", "money", "queue", "owner", "resume", "held"]
    run: RunRow
    until_us: int | None = None
    position: int | None = None
    blocker: str = ""
    served: bool = True
    line: str | None = None
    question: PendingQuestion | None = None
    command: str = ""

    def for_tools(self) -> str | None:
        """Return `waits_for` of the tools' answers."""
        match self.cause:
            case "approval":
                return None
            case "limit":
                return pause_words(self.run)
            case "extension" | "answer":
                if self.question is None:
                    return None
                return self.question.for_tools
            case "resume" | "held":
                how = ""
                if self.line is not None:
                    how = f' and approving ["{self.line}"]'
                confirm = f'confirm_spawn with pending_ids ["{self.run.id}"]{how}'
                return f"a person to resume it: {confirm}, or `ava resume {self.run.id}`"
            case _:
                return self.blocker or None

    def for_people(self) -> str:
        text = self._for_people()
        if self.command:
            return advice_there(text, self.command)
        return text

    def _for_people(self) -> str:
        run = self.run
        match self.cause:
            case "approval":
                return f"a person has to approve it ({run.pending_id})"
            case "limit":
                server = "" if self.served else _NO_SERVER
                return _joined("paused", pause_words(run), server)
            case "extension" | "answer":
                if self.question is not None:
                    return self.question.for_people
                return f"what it asks was erased; it continues at {local_second(self.until_us or 0)}"
            case "money":
                return f"waits for {self.blocker}"
            case "queue":
                place = "starts at once"
                if self.position is not None:
                    place = f"number {self.position} in the queue"
                why = self.blocker if self.served else _NO_SERVER
                return _joined(place, why)
            case "owner":
                return _joined(_NO_OWNER, self.blocker or "the next Ava server of this user resumes it")
            case "resume":
                return f"{_NO_OWNER}; resume it with `ava resume {run.id}`"
            case "held":
                resume = f"resume it with `ava resume {run.id}`"
                return f"restored or imported; {resume}, or end it with `ava cancel {run.id}`"


@dataclass(frozen=True)
class RunView:
    """A run at one moment.

    Attributes:
        row: What the log has of it: ids, times, sums, and its ending.
        state: Its state; `interrupted`, `expired`, `awaiting_extension`, `awaiting_answer` and `held` are not stored.
        at_us: Up to when its clock counts.
        caps: Time, turns, tool calls, tokens and cost; empty where a newer Ava wrote the configuration.
        free: Its model costs nothing, and nothing was billed.
        wait: Why it does not progress; None for one that runs or has ended.
        activity: What it does; at most 80 characters of the subagent's, without control characters.
        last_tool: Its last tool call.
        expires_us: When its proposal expires.
        result: Its result as the log has it; None before its end, and where it was erased.
        erased: It had a result, and that was erased.
        ends_with_host: A sentence, where it is interrupted when its host closes, although it was approved to continue.
        task: The beginning of its task, or what a plan is, where it was asked for.
        plan: Its steps, where it is a plan.
        asked_by_runs: What the runs of a plan ask a person, identical ones once.
        worker: The worker that has it, as its claim in the log names it, and its host; empty unless there are several.
    """

    row: RunRow
    state: str
    at_us: int
    caps: tuple[Cap, ...]
    free: bool
    wait: Wait | None = None
    activity: str = ""
    last_tool: LastTool | None = None
    expires_us: int | None = None
    result: dict[str, Any] | None = None
    erased: bool = False
    ends_with_host: str = ""
    task: str = ""
    plan: PlanView | None = None
    asked_by_runs: tuple[PendingQuestion, ...] = ()
    worker: str = ""

    @property
    def over(self) -> bool:
        """Whether nothing more comes of it: it has ended, or its proposal has expired."""
        return self.row.ended or self.state == EXPIRED

    @property
    def question(self) -> PendingQuestion | None:
        """What it asks a person, and waits."""
        if self.wait is None:
            return None
        return self.wait.question

    @property
    def questions(self) -> tuple[PendingQuestion, ...]:
        """What it asks, or what the runs of a plan ask."""
        if self.question is None:
            return self.asked_by_runs
        return (self.question,)

    @property
    def asks(self) -> str:
        """What it asks a person in words that are not Ava's; empty where it asks nothing so."""
        if self.question is None:
            return ""
        return self.question.untrusted

    @property
    def elapsed_s(self) -> float:
        """What of its time has passed, in seconds."""
        if self.caps:
            return self.caps[0].used
        return elapsed_s(self.row, self.at_us)

    @property
    def spent(self) -> str:
        return "free" if self.free else format_usd(self.row.cost_micros)

    @property
    def most(self) -> str:
        return caps_text(None if self.free else int(self.caps[-1].most), self.caps[0].most)

    @property
    def progress(self) -> str:
        """What a run does now, or how far a plan is: `1 of 3 steps`."""
        for cap in self.caps:
            if cap.name == "steps":
                return f"{cap.used} of {cap.most} steps"
        return self.activity

    @property
    def doing(self) -> str:
        """What it does or waits for, in a few words for a terminal; else its state."""
        if self.wait is not None:
            return f"{state_words(self.state)}: {self.wait.for_people()}"
        return self.activity or state_words(self.state)


class ProcessesNow:
    """The processes on a log at one moment: looks once for each. Blocking where it is asked.

    Args:
        processes: The processes.
        own: This process, which is alive.
    """

    def __init__(self, processes: Processes, own: str = "") -> None:
        @cache
        def alive(name: str) -> bool:
            return name == own or processes.alive(name)

        self.alive: Callable[[str], bool] = alive
        self.activities = processes.activities
        self.workers = cache(processes.workers)
        self.shown_seen_us = cache(processes.shown_seen_us)
        self.seen_every_s = processes.seen_every_s


def shown_state(run: RunRow, alive: Callable[[str], bool]) -> str:
    """A running run whose owner is gone is `interrupted`."""
    if run.state == RUNNING and (run.instance is None or not alive(run.instance)):
        return INTERRUPTED
    return run.state


def state_now(run: RunRow, waiting: ProposalRow | None, alive: Callable[[str], bool], now_us: int) -> str:
    if waiting is not None and waiting.expires_us <= now_us:
        return EXPIRED
    return awaited(run, now_us) or shown_state(run, alive)


def elapsed_s(run: RunRow, now_us: int) -> float:
    """Return a run's active time, up to now if it is running."""
    if run.state == RUNNING and run.claimed_us is not None:
        if run.money_wait is not None:  # its clock stands still
            now_us = int(loads(run.money_wait)["since_us"])
        return (run.active_us + max(0, now_us - run.claimed_us)) / 1e6
    return run.active_us / 1e6


def elapsed_in(run: RunRow, state: str, now_us: int) -> float:
    """Return a run's active time in a state as it is shown: nobody works on an interrupted run."""
    return elapsed_s(run, _clock_us(run, state, now_us))


def _clock_us(run: RunRow, state: str, now_us: int) -> int:
    """Return until when a run's clock counts; that of an interrupted run stands still since its last entry."""
    if state == INTERRUPTED and run.last_us:
        return run.last_us
    return now_us


def _shown_clock_us(view: View, run: RunRow, state: str, processes: Processes, now_us: int) -> int:
    """Return until when a run's clock counts for people, so that it never runs backwards.

    A successor counts only what its owner certainly worked, which is until it was last seen. So the clock that is shown
    stands still soon after that, and again after a takeover, until what certainly counts is as much.
    """
    if run.is_plan and state == INTERRUPTED:
        return max(run.last_us or 0, plan_busy_us(view, run))
    if run.is_plan or run.instance is None or state not in (RUNNING, INTERRUPTED):
        return _clock_us(run, state, now_us)
    seen_us = processes.shown_seen_us(run.instance)
    if seen_us is None:
        return _clock_us(run, state, now_us)
    ahead_us = round(processes.seen_every_s * 1e6)
    until_us = min(now_us, max(run.last_us or 0, seen_us) + ahead_us)
    if run.generation == 1 or run.claimed_us is None:
        return until_us
    return max(until_us, run.claimed_us + _shown_too_much_us(view, run, ahead_us))


def _shown_too_much_us(view: View, run: RunRow, most_us: int) -> int:
    """Return how much longer the last owner's clock may have been shown than it counted; 0 unless it was taken over."""
    entry = view.last_entry(run.id, "RunClaimed")
    if entry is None or not isinstance(entry.fact, RunClaimed):
        return 0
    claim = entry.fact
    if claim.reason != "takeover":
        return 0
    last_entry = "SELECT max(ts_us) FROM events WHERE run_id = ? AND generation = ?"
    ((wrote_us,),) = view.select(last_entry, run.id, run.generation - 1)
    seen_us = max(claim.seen_us or 0, wrote_us or 0)
    if not seen_us:
        return 0
    return min(most_us, max(0, entry.ts_us - seen_us))


def view_run(
    view: View,
    run: RunRow,
    processes: Processes,
    now_us: int,
    *,
    served: Callable[[], bool] = lambda: True,
    manager: Manager | None = None,
    result: bool = True,
    task: bool = False,
    questions: OpenQuestions | None = None,
) -> RunView:
    """Return a run as it is now.

    `served` tells whether any server works on this data root. `manager` is this process's own, where it has one: it
    knows more than the log. With `result` the result of an ended run is read too, with `task` the beginning of its
    task. `questions`: what runs ask a person, where the caller looks at several runs.
    """
    proposal = view.proposal(run.pending_id) if run.state == WAITING else None
    state = state_now(run, proposal, processes.alive, now_us)
    if state == RUNNING and run.is_plan and plan_waits_for_resume(view, run):
        state = INTERRUPTED
    plan = _plan(view, run, processes.alive)
    at_us = _shown_clock_us(view, run, state, processes, now_us)
    caps, free = _caps(view, run, at_us, plan)
    if questions is None:
        questions = OpenQuestions(view, now_us)
    shown = RunView(
        row=run,
        state=state,
        at_us=at_us,
        caps=caps,
        free=free,
        wait=_wait(view, run, state, now_us, served, manager, questions),
        last_tool=_last_tool(view, run) if run.state == RUNNING else None,
        expires_us=proposal.expires_us if proposal is not None else None,
        task=_task(view, run) if task else "",
        plan=plan,
    )
    if result:
        handed_in, erased = _result(view, run)
        shown = replace(shown, result=handed_in, erased=erased)
    if run.is_plan:
        shown = replace(shown, asked_by_runs=tuple(questions.once(view.asking_runs(run.id))))
    if state == RUNNING:
        return _with_work(shown, view, processes, now_us, manager)
    return shown


def _with_work(shown: RunView, view: View, processes: Processes, now_us: int, manager: Manager | None) -> RunView:
    """Add what a running run does, or that it waits for money, and who has it."""
    run = shown.row
    shown = replace(shown, ends_with_host=_ends_with_host(view, run), worker=_worker_of(run, processes))
    money = awaited_money(view, run, now_us, processes.alive)
    if money is not None:
        return replace(shown, wait=Wait("money", run, blocker=money))
    return replace(shown, activity=activity_of(run, processes, manager))


def _task(view: View, run: RunRow) -> str:
    brief = brief_of(view, run)
    return "(erased)" if brief is None else task_words(run, brief)


def _worker_of(run: RunRow, processes: Processes) -> str:
    workers = processes.workers()
    if len(workers) < 2 or run.instance is None or run.instance not in workers:
        return ""
    return f"{run.instance} on {clean(workers[run.instance])[0]}"


def _plan(view: View, run: RunRow, alive: Callable[[str], bool]) -> PlanView | None:
    if not run.is_plan:
        return None
    try:
        return view_plan(view, run, alive)
    except ValueError:  # a newer Ava wrote it
        return None


def status_line(shown: RunView, doing: str | None = None, *, owner: bool = False) -> str:
    """Return what a run is called, what it does (if not given, its state or the limit that ended it), and figures."""
    if not doing:
        doing = limit_words(shown.state, shown.row.stop_reason or "") or state_words(shown.state)
        if shown.erased:
            doing += " (content erased)"
    line = f"{label(shown.row)}: {doing} · {figures(shown)}"
    if shown.worker:
        line += f" · on worker {shown.worker}"
    if owner:
        return f"[{shown.row.user_id}] {line}"
    return line


def figures(shown: RunView) -> str:
    """`45 s of 600 s · turn 4 of 20 · 12k tokens · $0.06 of $0.50`."""
    if not shown.caps:
        return "a newer Ava has proposed it, and this one cannot read what was approved"
    time, turns, _calls, tokens, _cost = shown.caps
    if shown.plan is not None:
        used = f"{shown.plan.words} · {format_duration(time.used)} of {minutes(time.most)}"
        return f"{used} · {short_number(int(tokens.used))} tokens · {cost_of(shown)}"
    used = f"{time.used:.0f} s of {time.most:g} s · turn {turns.used} of {turns.most}"
    return f"{used} · {short_number(int(tokens.used))} tokens · {cost_of(shown)}"


def cost_of(shown: RunView) -> str:
    """`$0.06 of $0.50`, or `free`."""
    if not shown.caps or shown.free:
        return shown.spent
    return f"{shown.spent} of {format_usd(int(shown.caps[-1].most), exact=True)}"


_LIMITS = (TIME, TURNS, TOOL_CALLS, TOKENS, COST)
"""The caps of `RunView.caps`, in their order."""


def limits_of(shown: RunView) -> dict[str, float] | None:
    """Return limits by the names of arguments; a free run has no cost cap."""
    if not shown.caps:  # a newer Ava's are not known
        return None
    is_plan = shown.plan is not None
    limits: dict[str, float] = {}
    for cap, used in zip(_LIMITS, shown.caps, strict=True):
        if is_plan and cap not in (TIME, COST):
            continue
        if cap is COST and shown.free:
            continue
        limits[cap.argument] = cap.argument_value(used.most)
    return limits


def short_number(number: float) -> str:
    """`840`, `12k`, `1.2M`."""
    if number < 1_000:
        return f"{number}"
    if number < 999_500:
        return f"{number / 1_000:.0f}k"
    return f"{number / 1e6:.1f}M"


def run_answer(shown: RunView, *, offset: int = 0, room: int | None = None, owner: bool = False) -> RunAnswer:
    """Return a run as the tools' structured answers have it.

    `offset` is where a long output goes on, `room` what the result may take: characters, as JSON; None includes all of
    it. `owner` names the user in the status line, for an auditor.
    """
    run, wait = shown.row, shown.wait
    answer = RunAnswer(
        subagent_id=run.id,
        role=run.role,
        name=run.name,
        task_id=run.task_id,
        group_id=run.plan_id,
        state=shown.state,
        status_line=status_line(shown, owner=owner),
        activity_line=status_line(shown, escape_result(shown.activity), owner=owner),
        untrusted_activity=shown.activity or None,
        iteration=run.turns,
        tokens=run.tokens,
        cost_cents=run.cost_micros / 10_000,
        elapsed_seconds=round(shown.elapsed_s, 1),
        last_tool=shown.last_tool,
        stop_reason=run.stop_reason,
        model=run.model,
        worker=shown.worker or None,
        ends_with_host=shown.ends_with_host or None,
    )
    if shown.erased:
        answer.status = run.state
    if run.state == WAITING:
        answer.pending_id = run.pending_id
        if shown.expires_us is not None:
            answer.expires_at = iso_utc(shown.expires_us)
    if wait is not None:
        answer.waits_for = wait.for_tools()
        answer.queue_position = wait.position
        if wait.until_us is not None:
            answer.not_before = iso_utc(wait.until_us)
        answer.untrusted_question = shown.asks or None
    if shown.plan is not None:
        answer.group_id = run.id
        answer.plan = shown.plan.as_json
    if shown.result is not None:
        add_result(answer, shown.result, offset, room)
    return answer


@dataclass(frozen=True)
class Notice:
    """News of a run that its user has not fetched: it ended, or a person has to resume it, or it waits for an answer.

    Attributes:
        row: The run.
        interrupted_us: How long ago it was interrupted; None where it ended.
    """

    row: RunRow
    interrupted_us: int | None = None

    def text(self) -> str:
        run = self.row
        if is_held(run):
            return f"{label(run)} was restored or imported and is held. {self._how_to_go_on()}"
        if (asked := asked_of(run)) is not None:
            question = PendingQuestion(run, asked)
            return question.kind.notice(question)
        if self.interrupted_us is None:
            return f"{label(run)} ended: {run.state}, {spent_text(run)}; call check_subagent for its result"
        minutes = round(self.interrupted_us / 60_000_000)
        since = f"{minutes} min"
        if minutes >= 120:
            since = f"{round(minutes / 60)} h"
        return f"{label(run)} was interrupted {since} ago. {self._how_to_go_on()}"

    def _how_to_go_on(self) -> str:
        how = f'confirm_spawn with pending_ids ["{self.row.id}"], or `ava resume {self.row.id}`'
        return f"To resume it: {how}. To end it: cancel_subagent"


def carried(who: Who, tool: str, run_id: str) -> Event:
    """Return the entry that says that a tool's answer carried a run's result: it was fetched."""
    return Event(who, ToolResult(tool=tool, success=True, output=f"{_CARRIED}{run_id}"), run_id=run_id)


_CARRIED = "carried the result of "


def is_carried(entry: Entry) -> bool:
    """Tell whether an entry is such a one: a tool's result without a call."""
    fact = entry.fact
    if not isinstance(fact, ToolResult) or entry.run_id is None or entry.who.agent_id != AGENT:
        return False
    return fact.output.startswith(_CARRIED)


# -- from the log -----------------------------------------------------------------------------------------------------


def _result(view: View, run: RunRow) -> tuple[dict[str, Any] | None, bool]:
    """Return an ended run's result, and whether it was erased."""
    if not run.ended or run.result_seq is None:
        return None, False
    entry = view.entry(run.result_seq)
    if entry is None:
        return None, False
    if isinstance(entry.fact, SubagentComplete):
        return _complete(view, run, entry.fact.result), False
    was_erased = entry.fact is None  # an erased entry stays in the log, without its content
    return None, was_erased


def _complete(view: View, run: RunRow, result: dict[str, Any]) -> dict[str, Any]:
    try:
        return complete_result(view, run, result)
    except ValueError:  # a newer Ava wrote it
        return result


def _caps(view: View, run: RunRow, at_us: int, plan: PlanView | None) -> tuple[tuple[Cap, ...], bool]:
    try:
        config = config_of(run.config)
    except ValueError:  # a newer Ava wrote it; everything else is shown
        return (), False
    cap = config.cost_cap(run.cost_micros)
    turns = Cap("turns", run.turns, config.max_iterations)
    calls = Cap("tool_calls", run.tool_calls, config.max_tool_calls)
    held, used_s = run.held_micros, elapsed_s(run, at_us)
    if plan is not None:
        used_s = _plan_s(view, run, at_us)
        turns = Cap("steps", plan.steps_by_state.get("done", 0), len(plan.steps))
        calls = Cap("runs", sum(plan.runs_by_state.values()), config.most_runs)
        held = plan.held_micros
    is_free = cap is None
    cost = Cap("cost", 0, 0) if cap is None else Cap("cost", run.cost_micros, cap, held)
    time = Cap("seconds", used_s, config.timeout_s)
    tokens = Cap("tokens", run.tokens, config.max_tokens)
    return (time, turns, calls, tokens, cost), is_free


def _plan_s(view: View, plan: RunRow, at_us: int) -> float:
    """Return how much of a plan's time has passed, in seconds."""
    shared = view.plan_caps(plan.id)
    if shared is None:
        return 0.0
    return shared.passed_us(plan.ended_us or at_us) / 1e6


def _wait(
    view: View,
    run: RunRow,
    state: str,
    now_us: int,
    served: Callable[[], bool],
    manager: Manager | None,
    questions: OpenQuestions,
) -> Wait | None:
    if state == WAITING:
        return Wait("approval", run)
    if state == AWAITING_EXTENSION:
        return Wait("extension", run, until_us=run.waits_until_us, question=questions.of(run))
    if state in ASKING:
        return Wait("answer", run, until_us=run.waits_until_us, question=questions.of(run))
    if state == HELD:
        return Wait("held", run, line=resume_line(view, run))
    if state not in (QUEUED, INTERRUPTED):
        return None
    is_served = served()
    if state == INTERRUPTED and waits_for_resume(view, run, now_us):
        return Wait("resume", run, served=is_served, line=resume_line(view, run))
    if paused(run, now_us):
        return Wait("limit", run, until_us=run.waits_until_us, served=is_served)
    blocker = ""
    if is_served:  # what a server that is gone said is no longer true
        blocker = clean(_blocker(view, run, manager))[0]
    if state == INTERRUPTED:
        return Wait("owner", run, blocker=blocker, served=is_served)
    position = None if run.is_plan else 1 + view.queued_before(run, now_us)
    return Wait("queue", run, position=position, blocker=blocker, served=is_served)


def _blocker(view: View, run: RunRow, manager: Manager | None) -> str:
    """Return why the server that tried last could not take a run; empty where none has said."""
    noted = view.live(run.id)
    if noted is not None:
        why = blocker_in(noted[0]).why
        if why:
            return why
    if manager is None:
        return ""
    return manager.waiting_for.get(run.id, "")  # the log is a moment behind


def activity_of(run: RunRow, processes: Processes, manager: Manager | None = None) -> str:
    """Return what the owner of a running run shows of it; empty if it shows nothing, or showed it too long ago."""
    text = manager.activity(run.id) if manager is not None else None
    if not text:
        text = processes.activities().get((run.instance or "", run.id), "")
    return clean(text[:SHOWN_CHARS])[0].replace("\n", " ")[:ACTIVITY_CHARS]


def _ends_with_host(view: View, run: RunRow) -> str:
    claimed = view.last_entry(run.id, "RunClaimed")
    if claimed is None or not isinstance(claimed.fact, RunClaimed) or not claimed.fact.with_host:
        return ""
    return f"It is interrupted when its host or terminal closes, because {clean(claimed.fact.with_host)[0]}"


def _last_tool(view: View, run: RunRow) -> LastTool | None:
    called = view.last_entry(run.id, "ToolCall", own=True)
    if called is None or not isinstance(called.fact, ToolCall):
        return None
    return LastTool(name=called.fact.tool, at=iso_utc(called.ts_us))


def _joined(*parts: str) -> str:
    return ": ".join(part for part in parts if part)
