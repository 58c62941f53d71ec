"""Looking after runs: `check_subagent`, and the wait that `confirm_spawn` shares with it."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import anyio.to_thread

from ava_audit.rows import INTERRUPTED, QUEUED, RUNNING, UNENDED, WAITING, RunRow
from ava_audit.units import HOUR_US, now_us
from ava_audit.view import View
from ava_roles.wrap import list_names
from ava_server.approval.decide import approval_needs
from ava_server.approval.outcomes import run_now
from ava_server.approval.proposals import made_under
from ava_server.approval.requests import CancelArgs, CheckArgs, MessageArgs, parse, shown
from ava_server.budget.money_line import awaited_money
from ava_server.core.errors import BadInput, Refused, with_advice
from ava_server.core.ids import label, parse_id, parse_number
from ava_server.render.entries import named
from ava_server.render.plan_view import without_given
from ava_server.render.responses import Answer, CancelAnswer, CheckAnswer, MessageAnswer, RunAnswer, answers_json
from ava_server.render.run_view import (
    Processes,
    RunView,
    activity_of,
    json_chars,
    room_for,
    run_answer,
    shown_state,
    view_run,
)
from ava_server.runs.lifecycle import paused
from ava_server.runs.pending_questions import OpenQuestions
from ava_server.runs.question_kinds import PendingQuestion, QuestionDecision
from ava_server.service.access import Access, Operations, Progress
from ava_server.service.current import others_words
from ava_server.service.fetch import bring_to_repositories
from ava_server.service.questions import PersonQuestions
from ava_server.service.record import CallContext

RUNS_CHARS, NAMED = 8_200, 20
"""Characters, as JSON, of the runs in one answer; and how many of the others are named with their state."""
CHANGES_EVERY_S, PROGRESS_EVERY_S = 0.5, 5.0
"""The shortest and the longest time between two progress reports of a wait."""
LOOK_EVERY_S = 0.05
CURSOR_DIGITS = 9
ASKED_S = 35.0
"""Seconds that a question has at least, of those that a call may take."""


LISTED = 1_000
"""The most unended runs that the list reads, the newest ones."""
EXPLAINED = 3
"""From more waiting proposals on, a list says once how a person approves them."""
_BRIEFLY = "a person to approve it"
_SEVERAL_WAIT = "A person approves what waits, through confirm_spawn or in a terminal: `ava approve P-…`."
_BY_PIN = (
    "a person to approve it in a terminal with `ava approve {pending_id}`, or in a browser with `ava ui` (no tool can)"
)
_BY_PERSON = (
    'a person to agree; then call confirm_spawn with pending_ids ["{pending_id}"]. If your host cannot ask them,'
    " tell them to run `ava approve {pending_id}` in a terminal"
)


class RunChecks(Operations):
    """Shows runs, and waits for their end."""

    def __init__(self, access: Access) -> None:
        super().__init__(access)
        self._questions = PersonQuestions(access)

    async def check(self, given: dict[str, Any], caller: CallContext) -> Answer:
        """Do `check_subagent`. Where a run waits for a person and the client can ask one, the person is asked.

        Raises BadInput, or AnsweredLater: the client asks the person and calls again.
        """
        args, began = parse(CheckArgs, given), time.monotonic()
        offset = 0
        if (cursor := args.cursor) is not None:
            wrong = f"cursor: {shown(cursor)} is not a cursor of a result; give the one of the last answer"
            offset = parse_number(cursor, wrong, CURSOR_DIGITS)
        if args.subagent_id is None and args.group_id is None:
            if args.wait_seconds:
                raise BadInput("wait_seconds: give subagent_id or group_id with it; there is nothing else to wait for")
            return await self._list(caller)
        decided: str | None = None
        known: RunRow | None = None
        if args.wait_seconds or caller.asking.person is not None or caller.asking.pages is not None:
            known = await self._store.look(lambda view: self._named(view, args))
            if args.wait_seconds:
                (known,) = await self.wait([known.id], args.wait_seconds, caller.progress)
            # A question and a wait share the time of a call: after a long wait, the next call asks.
            in_time = time.monotonic() - began <= self._session.wait_s - ASKED_S
            decided = await self._questions.send([known], caller.asking.pages if in_time else None)
            decided = decided or await self._questions.ask([known], caller.asking.person if in_time else None)

        def query(view: View) -> tuple[RunRow, RunAnswer]:  # everything in one way to a thread and back
            named = self._named(view, args) if known is None else view.run(known.id) or known
            processes = self._runtime.processes_now()
            caller.news[:] = [self._access.news(view, processes)]
            (answer,) = self._shown(view, [named], processes, offset)
            return named, answer

        run, answer = await self._store.look(query)
        await self._bring_branches([run], [answer])
        return CheckAnswer(status=answer.state, message=decided, runs=[answer])

    async def _list(self, caller: CallContext) -> CheckAnswer:
        """List everything that waits, is queued, runs, ended in the last 60 minutes or was never fetched."""
        at_us = now_us()
        user, processes = self._session.user, self._runtime.processes_now()
        whose = None if self._session.audits else user

        def query(view: View) -> tuple[list[RunAnswer], str]:
            unended = view.runs(
                user=whose, states=UNENDED, expired_before_us=at_us - HOUR_US, listed=True, limit=LISTED
            )
            news = self._access.news(view, processes)
            caller.news[:] = [news]
            rows = unended[::-1]  # the newest first: an answer may not carry them all
            rows += view.runs(user=whose, ended_since_us=at_us - HOUR_US, listed=True)[::-1]
            rows += [row for row in news.ended if row.ended_us and row.ended_us < at_us - HOUR_US]
            questions = OpenQuestions(view, at_us)
            rows = questions.first_of_each(rows)
            runs = [view_run(view, row, processes, at_us, result=False, questions=questions) for row in rows]
            waiting = sum(run.state == WAITING for run in runs)
            brief = waiting > EXPLAINED
            shown_runs = [self._answer(run, by_pin=self._by_pin(view, run), brief=brief) for run in runs]
            return shown_runs, self._others(view, at_us)

        listed, others = await self._store.read(query, short=True)  # a thread reads it where there is much to list
        runs, message = fit_runs(listed)
        if sum(run.state == WAITING for run in listed) > EXPLAINED:
            how = self._access.adapt_text(_SEVERAL_WAIT)
            message = with_advice(how, message or "")
        if not runs:
            message = "No subagents: none waits, runs, or ended in the last 60 minutes."
        return CheckAnswer(status="list", message=" ".join(filter(None, (message, others))) or None, runs=runs)

    def _others(self, view: View, at_us: int) -> str:
        """Say how many runs a list leaves out, only on the data root's machine: there, anybody may see them."""
        hidden = self._session.audits or self._session.remote
        return "" if hidden else others_words(view.unended_of_others(self._session.user, at_us))

    def _named(self, view: View, args: CheckArgs) -> RunRow:
        """Return the run that a call names. Raises BadInput: there is none."""
        if args.group_id is not None:
            return self._access.plan_in(view, args.group_id, reading=True)
        return self._access.run_in(view, args.subagent_id or "", "subagent_id", reading=True)

    async def answers(self, rows: list[RunRow]) -> list[RunAnswer]:
        processes = self._runtime.processes_now()
        return await self._store.look(
            lambda view: self._shown(view, [view.run(row.id) or row for row in rows], processes)
        )

    def _shown(self, view: View, rows: list[RunRow], processes: Processes, offset: int = 0) -> list[RunAnswer]:
        """Return runs as the tools' answers show them; `offset` continues a long output. Blocking."""
        at_us = now_us()
        runs = [
            self._without_given(view, view_run(view, row, processes, at_us, manager=self._runtime.manager))
            for row in rows
        ]
        room = room_for(sum(row.ended for row in rows))
        answers = [self._answer(run, by_pin=self._by_pin(view, run), offset=offset, room=room) for run in runs]
        for answer in answers:
            if answer.error and answer.error.get("kind") == "auth" and answer.model:  # its log knows of no host
                answer.error["what_to_do"] = self._access.key_advice(answer.model.partition(":")[0])
        return answers

    def _without_given(self, view: View, run: RunView) -> RunView:
        """Return a plan without the results that this session was given before: no model is told the same twice."""
        if run.plan is None or run.result is None:
            return run
        return replace(run, result=without_given(view, run.row, run.result, self._session.id))

    def _answer(
        self, run: RunView, *, by_pin: bool, brief: bool = False, offset: int = 0, room: int | None = None
    ) -> RunAnswer:
        """Return a run for this session; an auditor reads whose it is. A brief one does not say how to approve it."""
        owned = self._access.owns(run.row)
        answer = run_answer(run, offset=offset, room=room, owner=not owned)
        if owned and run.state == WAITING:
            how = _BRIEFLY if brief else _BY_PIN if by_pin else _BY_PERSON
            answer.waits_for = how.format(pending_id=run.row.pending_id)
        answer.waits_for = answer.waits_for and self._access.adapt_text(answer.waits_for)
        if answer.changes and answer.changes["to_merge"]:
            to_see = self._access.adapt_text(f"`ava show {run.row.id} --diff`").strip("`")
            answer.changes = {**answer.changes, "to_see": None if self._session.remote else to_see}
        return answer

    async def _bring_branches(self, rows: list[RunRow], answers: list[RunAnswer]) -> None:
        """Bring the branches of own runs that were made elsewhere into their repositories here."""
        travel = self._runtime.run_setup.travel
        own = [(row, answer) for row, answer in zip(rows, answers, strict=True) if self._access.owns(row)]
        if travel.is_possible and own:
            await bring_to_repositories(self._store, travel, own)

    def _by_pin(self, view: View, run: RunView) -> bool:
        """Tell whether a run waits for an approval that this session cannot give. Blocking."""
        if run.state != WAITING:
            return False
        proposed_under = made_under(view, [run.row.id])
        policy = self._runtime.policy_now(self._session.user, through=self._session.through, made_under=proposed_under)
        return not approval_needs("host", policy).nothing

    async def wait(self, run_ids: list[str], wait_s: float, progress: Progress) -> list[RunRow]:
        """Wait until all of these have ended or wait for something else, or the time is over.

        `progress` is told what one of them is doing: changes within a second, and every few seconds in any case.
        """
        ids, told, told_s = frozenset(run_ids), "", anyio.current_time()
        deadline = told_s + min(wait_s, self._session.wait_s)
        while True:
            seen, doing = self._store.head, self._runtime.activities.now
            rows = await self._access.rows(run_ids)
            now = anyio.current_time()
            if now >= deadline or self._runtime.closing.begun or await self._is_nothing_awaited(rows):
                return rows
            line = await self._store.look(partial(self._line, rows=rows))
            due = told_s + (PROGRESS_EVERY_S if line == told else CHANGES_EVERY_S)
            if now >= due:
                await progress(line)
                told, told_s, due = line, now, now + PROGRESS_EVERY_S
            with (
                anyio.move_on_at(min(deadline, due)) as waiting,
                self._runtime.closing.wait(waiting),
                self._runtime.activities.change_ends(waiting, doing, ids.__contains__),
            ):
                await self._news_of(run_ids, seen)

    def _line(self, view: View, rows: list[RunRow]) -> str:
        """Return what the first of these runs that shows something is doing, else the state of the first. Blocking."""
        processes, unended = self._runtime.processes_now(), [row for row in rows if not row.ended]
        states = {row.id: shown_state(row, processes.alive) for row in unended}
        for row in unended:
            if states[row.id] != RUNNING:
                continue
            money = awaited_money(view, row, processes.alive)
            doing = activity_of(row, processes, self._runtime.manager) if money is None else f"waits for {money}"
            if doing:
                return f"{label(row)}: {doing}"
        return f"{label(unended[0])}: {states[unended[0].id]}"

    async def _news_of(self, run_ids: list[str], seen: int) -> None:
        """Return when there is nothing more to wait for; looks at intervals, not at every commit."""
        while True:
            seen = await self._store.wait_for_entry_after(seen)
            if await self._is_nothing_awaited(await self._access.rows(run_ids)):
                return
            await anyio.sleep(LOOK_EVERY_S)

    async def _is_nothing_awaited(self, rows: list[RunRow]) -> bool:
        """Tell whether each of these runs has ended or is paused, or is a plan of which all that is left is."""
        at_us = now_us()
        left = [row for row in rows if not (row.ended or paused(row, at_us))]
        if not all(row.is_plan for row in left):
            return False
        return await self._store.look(lambda view: all(_stands_still(view, row) for row in left))


def _stands_still(view: View, plan: RunRow) -> bool:
    """Tell whether a plan can go on only when a person answers."""
    caps = view.plan_caps(plan.id)
    return caps is not None and caps.stopped_since_us is not None


def fit_runs(runs: list[RunAnswer]) -> tuple[list[RunAnswer], str | None]:
    """Return as many runs as fit into one answer, and a sentence about the others."""
    kept: list[RunAnswer] = []
    used = 0
    for run in runs:
        used += json_chars(run.model_dump(mode="json", exclude_none=True)) if len(runs) > 1 else 0
        if kept and used > RUNS_CHARS:
            break
        kept.append(run)
    others = runs[len(kept) :]
    if not others:
        return kept, None
    some = list_names([f"{named(run.subagent_id, run.name)} {run.state}" for run in others], NAMED)
    return kept, f"{len(runs)} in all. Not shown here: {some}. Call check_subagent with the subagent_id of one."


_ONLY_YES = (
    "{run} asks a person whether it may make a call: they answer in the host's form, in Ava's pages, or with {how}; no"
    " tool can"
)
_NAME_IT = "{asked} Nothing was sent: answer it with {how}"
_WHEN = {
    QUEUED: "when it starts",
    RUNNING: "before its next turn",
    INTERRUPTED: "when an Ava server has taken it over; no server is running it",
}


class RunSteering(Operations):
    """Sends messages to runs, and cancels them."""

    def __init__(self, access: Access, checks: RunChecks) -> None:
        super().__init__(access)
        self._checks = checks
        self._questions = PersonQuestions(access)

    async def message(self, given: dict[str, Any], _caller: CallContext) -> Answer:
        """Do `message_subagent`. Raises BadInput, and Refused: the run waits for approval, or has ended."""
        args = parse(MessageArgs, given)
        run = await self._access.run(args.subagent_id, "subagent_id")
        delivered = await self._questions.message(run, args.message)
        if delivered == "waiting":
            raise Refused(f"{label(run)} waits for approval; to change it, cancel it and propose it again")
        if isinstance(delivered, PendingQuestion):
            why = _ONLY_YES if self._session.channel == "host_call" else _NAME_IT  # a model is not shown its text here
            raise Refused(why.format(run=label(run), how=delivered.in_a_terminal, asked=delivered.message))
        if delivered == "ended":
            to_do = self._access.adapt_text("ask on with spawn_subagent and context_from")
            raise Refused(f"{label(run)} has ended; {to_do}")
        if isinstance(delivered, QuestionDecision):
            for each in delivered.run_ids:
                self._access.wake(each)
            return self._delivered(run, delivered.text)
        state = await anyio.to_thread.run_sync(shown_state, run, self._runtime.instances.alive)
        paused = state == QUEUED and run.generation > 0
        when = "when it continues" if paused else _WHEN[INTERRUPTED if state == INTERRUPTED else delivered]
        return self._delivered(run, f"{label(run)} reads it {when}.")

    def _delivered(self, run: RunRow, told: str) -> MessageAnswer:
        return MessageAnswer(
            status="delivered",
            subagent_id=run.id,
            name=run.name,
            task_id=run.task_id,
            message=with_advice(told, "It may steer the work; limits and tools stay."),
        )

    async def cancel(self, given: dict[str, Any], _caller: CallContext) -> Answer:
        """Do `cancel_subagent`. Raises BadInput: an argument cannot be used."""
        args = parse(CancelArgs, given)
        before = await self._named(args)
        by, reason = self._session, args.reason
        if before.user_id != by.user:  # its user reads in the result who it was
            reason = f"by the administrator {by.user}" + (f": {reason}" if reason else "")
        await self._runtime.manager.cancel(before.id, by.who, reason, by.by, anyones=by.administers)
        run = (await self._access.rows([before.id]))[0]
        (answer,) = await self._checks.answers([run])
        # A run that ends in another way while it is cancelled was not cancelled either.
        missed = before.ended or (run.ended and run.state != "cancelled")
        message = f"Not cancelled: {run_now(run)}." if missed else None
        return CancelAnswer(status=answer.state, message=message, runs=answers_json([answer]))

    async def _named(self, args: CancelArgs) -> RunRow:
        """Return the run that a call names, which this session may cancel. Raises BadInput."""
        given_ids = [value for value in (args.subagent_id, args.group_id, args.pending_id) if value is not None]
        if len(given_ids) != 1:
            raise BadInput("cancel_subagent: give exactly one of subagent_id, group_id and pending_id")
        if args.group_id is not None:
            return await self._access.plan(args.group_id, steering=True)
        if args.pending_id is None:
            return await self._access.run(args.subagent_id or "", "subagent_id", steering=True)
        pending_id = parse_id("pending_id", args.pending_id)
        row = await self._store.read(lambda view: view.proposal(pending_id))
        if row is None or not (row.user_id == self._session.user or self._session.administers):
            raise BadInput(f"pending_id: no proposal {pending_id} of yours; check_subagent lists what waits")
        (run,) = await self._access.rows([row.run_id])
        return run
