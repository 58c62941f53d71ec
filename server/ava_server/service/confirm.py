"""`confirm_spawn`: decides on proposals. Where the client can ask its person, only the person can approve."""

from __future__ import annotations

import time
from typing import Any

import anyio.lowlevel
import anyio.to_thread
from pydantic import Field

from ava_audit.errors import AuditError
from ava_audit.rows import RUNNING, RunRow
from ava_audit.units import cap_micros, format_ts
from ava_server.approval.decide import ONLY_PERSON
from ava_server.approval.decisions import Approval, ConfirmOutcome, approve, reject
from ava_server.approval.plain_text import normalize_typography
from ava_server.approval.proposals import MOST_WAITING
from ava_server.approval.requests import Changes, ConfirmArgs, parse
from ava_server.approval.start_form import NOT_AGREED, Person, Question, Reply
from ava_server.core.errors import BadInput
from ava_server.core.ids import label, new_pairs, parse_id
from ava_server.render.responses import Answer, ConfirmAnswer, OneDecision, answers_json
from ava_server.run_config.run_cap import stored_caps
from ava_server.runs.record.claims import NotResumed, plan_waits_for_resume, resume_line
from ava_server.runs.record.lifecycle import is_held, needs_resume
from ava_server.service.access import Access, Operations, Progress
from ava_server.service.check import RunChecks, fit_runs
from ava_server.service.client_approval import CONFIRM_AGAIN, NEXT_STEPS, ClientApprovals, not_started_next
from ava_server.service.open_questions import ask_until, outcomes, resumption_shown, until_decided
from ava_server.service.record import CallContext
from ava_server.service.spawn import Spawns, started_next

PLAN_END_S = 5.0
"""Seconds in which a plan notes its own end after its last run's."""


class TerminalConfirmArgs(ConfirmArgs):
    """Arguments from a terminal, where a person approves all runs of a suite at once."""

    pending_ids: list[str] = Field(min_length=1, max_length=MOST_WAITING)


class Confirmations(Operations):
    """Carries out decisions on proposals, and resumes interrupted and held runs."""

    def __init__(self, access: Access, checks: RunChecks, spawns: Spawns) -> None:
        super().__init__(access)
        self._checks = checks
        self._spawns = spawns
        self._client = ClientApprovals(access)

    async def confirm(self, arguments: dict[str, Any], caller: CallContext) -> Answer:
        """Do `confirm_spawn`. Raises BadInput, Refused, or AnsweredLater: the client asks and calls again."""
        began = time.monotonic()
        args = parse(TerminalConfirmArgs if self._session.transport == "terminal" else ConfirmArgs, arguments)
        run = await self._run_to_resume(args)
        if run is not None:
            self._runtime.closing.refuse_new()
            await caller.record.begin()
            answer = await self._resume(args, run, caller.asking.person)
            if answer.status == "resumed":
                wait_s = _seconds_left(args, began, self._session.wait_s)
                await self._wait_for(answer, [run.id], wait_s, caller.progress)
            return answer
        self._access.refuse_without(self._session.scope_for(args.decision))  # the scope admin only resumes
        ids = tuple(dict.fromkeys([await self._access.pending_id(text) for text in args.pending_ids]))
        if args.decision == "reject":
            outcome = await caller.record.do(reject(ids, self._session.who, self._session.channel))
        else:
            self._runtime.closing.refuse_new()
            outcome = await self._approve(args, ids, caller)
        return await self._answer(args, outcome, _seconds_left(args, began, self._session.wait_s), caller)

    async def _run_to_resume(self, args: ConfirmArgs) -> RunRow | None:
        """Return the interrupted or held run or plan that the ids name, or None where they name proposals."""
        for text in args.pending_ids:
            if not text.strip().lower().startswith(("s-", "g-")):
                continue
            run = await self._access.run(text, "pending_ids", steering=True)
            if needs_resume(run) or await self._is_interrupted(run):
                if len(args.pending_ids) > 1:
                    raise BadInput(f"pending_ids: {label(run)} is resumed alone; give only its id")
                return run
        return None

    async def _is_interrupted(self, run: RunRow) -> bool:
        if run.state != RUNNING:
            return False
        if run.is_plan and await self._store.look(lambda view: plan_waits_for_resume(view, run)):
            return True
        return bool(await anyio.to_thread.run_sync(self._runtime.manager.control.gone, [run]))

    async def _resume(self, args: ConfirmArgs, run: RunRow, person: Person | None) -> ConfirmAnswer:
        """Resume a run if `approving` is right, and the person agrees where one can be asked."""
        _refuse_changes_of_started(args, run)
        self._runtime.settings.refuse_off("nothing was resumed")
        needs_person = ONLY_PERSON["resume"].format(ids=run.id)
        await self._access.refuse_without_pin([run.id], needs_person, of=run.user_id)

        approving = "\n".join(args.approving or [""])
        channel = self._session.channel
        line = await self._store.read(lambda view: resume_line(view, run))
        is_right = line is not None and normalize_typography(approving) == normalize_typography(line)
        if person is not None and is_right:  # a wrong line is refused without a question
            answer = await self._ask_to_resume(run, line, person)
            if answer is not None:
                return answer
            channel = "elicitation"
            # A PIN may have been set while the question was open.
            await self._access.refuse_without_pin([run.id], needs_person, of=run.user_id)

        if person is not None and not is_right:
            approving = ""  # only what the person was asked about may be right
        resumed = await self._runtime.manager.control.resume(
            run.id,
            self._session.who,
            channel,
            self._runtime.spawn_limits_of(run.user_id),
            line=approving,
            anyones=self._session.administers,
        )
        if isinstance(resumed, NotResumed):
            if resumed.line is None:
                return _refused_resumption(run, resumed.why, "Nothing was resumed.")
            show_line = "Show the person approval_lines and give exactly that."
            return _refused_resumption(run, resumed.why, show_line, [resumed.line])
        self._runtime.manager.adopted.add(run.id)
        self._runtime.manager.wake()
        return _resumption(run)

    async def _ask_to_resume(self, run: RunRow, line: str | None, person: Person) -> ConfirmAnswer | None:
        """Ask the person whether to resume a run; return None if they agree, else the answer of the call."""
        if is_held(run):
            what = "is held because it was restored or imported"
        else:
            # The time, not how long ago: an answer counts for exactly the text that was shown.
            what = f"was interrupted at {format_ts(run.last_us or run.created_us)}"
        question = Question(f"{label(run)} {what}. Resume it? \n{line}", ())
        shown = [resumption_shown(run, line)]
        limits = self._runtime.spawn_limits_of(run.user_id)
        reply = await ask_until(
            lambda: until_decided(self._store, shown, limits),
            lambda: person.ask(question, lambda _reply: None),
        )
        elsewhere = await outcomes(self._store, shown, limits)
        if elsewhere:
            [sentence] = elsewhere.values()
            now = await self._store.read(lambda view: view.run(run.id))
            if now is None or now.ended or now.generation == run.generation:
                return _refused_resumption(run, sentence.removesuffix("."), "Nothing was resumed by this call.")
            return _resumption(run, sentence)
        reply = reply or Reply("cancel")
        if reply.action == "accept":
            return None
        then = NEXT_STEPS[reply.action].format(again=CONFIRM_AGAIN)
        advice = f"Nothing was resumed. {then}. A person can also resume it in a terminal, with `ava resume {run.id}`."
        return _refused_resumption(run, NOT_AGREED[reply.action], self._access.adapt_text(advice))

    async def _approve(self, args: ConfirmArgs, ids: tuple[str, ...], caller: CallContext) -> ConfirmOutcome:
        """Approve after the person at the client has agreed. If the client can ask nobody, its call is the approval."""
        changes = {parse_id("pending_id", key): _caps_of(value) for key, value in (args.changes or {}).items()}
        _refuse_ineffective(args, ids, changes)
        approval = Approval(
            pending_ids=ids,
            approving=tuple(args.approving) if args.approving is not None else None,
            changes=changes,
            plan_max_micros=cap_micros(args.group_max_cost_cents) if args.group_max_cost_cents else None,
            plan_timeout_s=args.group_timeout,
            plan_ids=new_pairs("group_id"),
            screens={pending_id: self._access.screen_for_log(screen) for pending_id, screen in caller.screens.items()},
        )
        outcome = await self._client.decide(approval, caller)
        if outcome is not None:
            return outcome
        who = self._session.who
        channel = self._session.channel
        return await caller.record.do(approve(approval, who, channel, self._runtime.spawn_limits_of(who.user_id)))

    async def _answer(
        self, args: ConfirmArgs, outcome: ConfirmOutcome, wait_s: float, caller: CallContext
    ) -> ConfirmAnswer:
        self._runtime.manager.wake()
        await anyio.lowlevel.checkpoint()  # the manager takes the runs first: the answer takes about as long as that
        decisions = await self._decisions(args, outcome, caller)
        started = [one.subagent_id for one in outcome.decisions if one.status == "approved" and one.subagent_id]
        if started:
            status = "approved"
            next_step = started_next(started[0], outcome.plan_id)
        else:
            rejected = [one for one in outcome.decisions if one.status == "rejected"]
            if args.decision == "reject":
                is_rejected = bool(rejected)
            else:  # the person who was asked to approve has rejected all of them
                is_rejected = len(rejected) == len(outcome.decisions)
            status = "rejected" if is_rejected else "refused"
            next_step = not_started_next(outcome)
        answer = ConfirmAnswer(
            status=status,
            decisions=decisions,
            group_id=outcome.plan_id,
            approval_lines=list(outcome.approval_lines) or None,
            message=" ".join(outcome.lowered) or None,
            next=self._access.adapt_text(next_step),
        )
        if started:
            await self._wait_for(answer, started, wait_s, caller.progress)
        return answer

    async def _decisions(self, args: ConfirmArgs, outcome: ConfirmOutcome, caller: CallContext) -> list[OneDecision]:
        """Return the decisions in the form of the answer. An expired proposal that was to be approved is renewed."""
        ids = [one.subagent_id for one in outcome.decisions if one.subagent_id]
        rows = {row.id: row for row in await self._access.rows(ids)}
        decisions: list[OneDecision] = []
        for one in outcome.decisions:
            why = one.refused_because
            if why:
                why = self._access.adapt_text(why)
            decision = OneDecision(
                pending_id=one.pending_id, subagent_id=one.subagent_id, status=one.status, refused_because=why
            )
            decisions.append(decision)
            row = rows.get(one.subagent_id or "")
            if row is not None:
                decision.name = row.name
                decision.task_id = row.task_id
            if one.expired and one.subagent_id and args.decision == "approve":
                if self._session.belongs_to_person:
                    decision.refused_because = "it expired before it was approved; propose it again"
                else:
                    await self._spawns.renew(decision, one.subagent_id, caller)
        return decisions

    async def _wait_for(self, answer: ConfirmAnswer, started: list[str], wait_s: float, progress: Progress) -> None:
        """Wait until the started runs have ended, at most `wait_s`, and add their states and results to the answer."""
        try:
            until = time.monotonic() + wait_s
            rows = await self._checks.wait(started, wait_s, progress)
            if answer.group_id is not None and all(row.ended for row in rows):
                # The plan ends a moment after its last run. An answer with all results should have its end too, so
                # that no later call mentions it as news.
                left_s = min(until - time.monotonic(), PLAN_END_S)
                await self._checks.wait([answer.group_id], max(left_s, 0.0), progress)
            shown_runs = await self._checks.answers(rows)
        except AuditError as error:  # say that it is approved, so that nobody proposes and pays for it again
            _add_message(answer, f"Approved; its state cannot be read at the moment: {error}")
            return
        by_id = {run.subagent_id: run for run in shown_runs}
        for decision in answer.decisions:
            run = by_id.get(decision.subagent_id or "")
            if run is not None:
                decision.status = run.state
                decision.queue_position = run.queue_position
        ended = [run for run, row in zip(shown_runs, rows, strict=True) if row.ended]
        if ended:
            fitting, message = fit_runs(ended)
            answer.runs = answers_json(fitting)
            _add_message(answer, message)
        if len(ended) == len(started):
            answer.next = "It has ended." if len(started) == 1 else "All of them have ended."


def _resumption(run: RunRow, message: str | None = None) -> ConfirmAnswer:
    decision = OneDecision(
        pending_id=run.pending_id, subagent_id=run.id, name=run.name, task_id=run.task_id, status="resumed"
    )
    next_step = f'It continues where it was. Call check_subagent with subagent_id "{run.id}" for news.'
    return ConfirmAnswer(status="resumed", decisions=[decision], message=message, next=next_step)


def _refused_resumption(run: RunRow, why: str, next_step: str, lines: list[str] | None = None) -> ConfirmAnswer:
    decision = OneDecision(
        pending_id=run.pending_id,
        subagent_id=run.id,
        name=run.name,
        task_id=run.task_id,
        status="refused",
        refused_because=why,
    )
    return ConfirmAnswer(status="refused", decisions=[decision], approval_lines=lines, next=next_step)


def _add_message(answer: ConfirmAnswer, message: str | None) -> None:
    parts = [part for part in (answer.message, message) if part]
    answer.message = "\n".join(parts) or None


def _seconds_left(args: ConfirmArgs, began: float, most_s: float) -> float:
    """Return how many seconds the call may still wait, after what a question took."""
    left_s = most_s - (time.monotonic() - began)
    return min(args.wait_seconds, max(0.0, left_s))


def _caps_of(changes: Changes) -> dict[str, Any]:
    """Return the changes of one proposal as an approval takes them: caps in the units of a run's configuration."""
    requested: dict[str, Any] = {}
    if changes.caps:
        requested.update(stored_caps(changes.caps.model_dump(exclude_none=True)))
    if changes.blocked_tools:
        requested["blocked_tools"] = list(changes.blocked_tools)
    if changes.drop:
        requested["drop"] = list(changes.drop)
    return requested


def _refuse_changes_of_started(args: ConfirmArgs, run: RunRow) -> None:
    if args.decision == "reject":
        raise BadInput(f"decision: {label(run)} has started and cannot be rejected; cancel_subagent ends it")
    for field in ("changes", "group_max_cost_cents", "group_timeout"):
        if getattr(args, field) is not None:
            raise BadInput(f"{field}: {label(run)} has started and continues as it was approved; leave it out")


def _refuse_ineffective(args: ConfirmArgs, ids: tuple[str, ...], changes: dict[str, Any]) -> None:
    for pending_id in changes:
        if pending_id not in ids:
            raise BadInput(f"changes: {pending_id} is not among pending_ids; give it there too, or leave it out")
    for field in ("group_max_cost_cents", "group_timeout"):
        if len(ids) == 1 and getattr(args, field) is not None:
            raise BadInput(
                f"{field}: it is for two or more together, and one was given; lower its own caps with"
                f' changes {{"{ids[0]}": {{"caps": …}}}}'
            )
