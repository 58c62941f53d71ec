"""Looking after runs: `check_subagent`, and the wait that `confirm_spawn` shares with it."""

from __future__ import annotations

import time
from collections.abc import Mapping
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
from ava_server.approval.requests import CancelArgs, CheckArgs, MessageArgs, parse, show_value
from ava_server.core.errors import BadInput, Refused, with_advice
from ava_server.core.ids import label, parse_id, parse_number
from ava_server.render.answer_size import (
    json_chars,
    room_for,
)
from ava_server.render.entry_lines import named
from ava_server.render.plan_view import without_given
from ava_server.render.responses import Answer, CancelAnswer, CheckAnswer, MessageAnswer, RunAnswer, answers_json
from ava_server.render.run_view import (
    Processes,
    RunView,
    activity_of,
    run_answer,
    shown_state,
    view_run,
)
from ava_server.runs.asking.pending_questions import OpenQuestions
from ava_server.runs.asking.question_kinds import PendingQuestion, QuestionDecision
from ava_server.runs.record.lifecycle import paused
from ava_server.runs.record.money_holders import awaited_money
from ava_server.service.access import Access, Operations, Progress
from ava_server.service.current import others_words
from ava_server.service.fetch import bring_to_repositories
from ava_server.service.record import CallContext
from ava_server.service.run_questions import PersonQuestions

RUNS_CHARS = 8_200
"""Characters of the runs in one answer, as JSON."""
NAMED_RUNS = 20
"""How many of the runs that do not fit into an answer are named with their state."""
CHANGES_EVERY_S = 0.5
"""The shortest time between two progress reports of a wait."""
PROGRESS_EVERY_S = 5.0
"""The longest time between two progress reports of a wait."""
LOOK_EVERY_S = 0.05
CURSOR_DIGITS = 9
QUESTION_S = 35.0
"""Seconds that a call must have left to ask a person something."""


LISTED = 1_000
"""The most unended runs that the list reads, the newest ones."""
EXPLAINED = 3
"""With more waiting proposals than this, a list says how to approve them only once."""
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

    async def check(self, arguments: dict[str, Any], caller: CallContext) -> Answer:
        """Do `check_subagent`. Where a run waits for a person and the client can ask one, the person is asked.

        Raises BadInput, or AnsweredLater: the client asks the person and calls again.
        """
        began = time.monotonic()
        args = parse(CheckArgs, arguments)
        offset = 0
        if args.cursor is not None:
            wrong = f"cursor: {show_value(args.cursor)} is not a cursor of a result; give the one of the last answer"
            offset = parse_number(args.cursor, wrong, CURSOR_DIGITS)
        if args.subagent_id is None and args.group_id is None:
            if args.wait_seconds:
                raise BadInput("wait_seconds: give subagent_id or group_id with it; there is nothing else to wait for")
            return await self._list(caller)

        outcome: str | None = None
        waited_for: RunRow | None = None
        can_ask = caller.asking.person is not None or caller.asking.pages is not None
        if args.wait_seconds or can_ask:
            waited_for = await self._store.look(lambda view: self._run_of_call(view, args))
            if args.wait_seconds:
                (waited_for,) = await self.wait([waited_for.id], args.wait_seconds, caller.progress)
            # A question and a wait share the time of a call: after a long wait, the next call asks.
            if time.monotonic() - began <= self._session.wait_s - QUESTION_S:
                outcome = await self._questions.send([waited_for], caller.asking.pages)
                if not outcome:
                    outcome = await self._questions.ask([waited_for], caller.asking.person)

        def query(view: View) -> tuple[RunRow, RunAnswer]:  # all that is read, in one trip to a thread
            if waited_for is None:
                run = self._run_of_call(view, args)
            else:  # as it is now
                run = view.run(waited_for.id) or waited_for
            processes = self._runtime.processes_now()
            caller.news[:] = [self._access.news(view, processes)]
            (answer,) = self._answers_in(view, [run], processes, offset)
            return run, answer

        run, answer = await self._store.look(query)
        await self._bring_branches([run], [answer])
        return CheckAnswer(status=answer.state, message=outcome, runs=[answer])

    async def _list(self, caller: CallContext) -> CheckAnswer:
        """List everything that waits, is queued, runs, ended in the last 60 minutes or was never fetched."""
        at_us = now_us()
        hour_ago_us = at_us - HOUR_US
        processes = self._runtime.processes_now()
        user = None if self._session.audits else self._session.user

        def query(view: View) -> tuple[list[RunAnswer], bool, str]:
            unended = view.runs(user=user, states=UNENDED, expired_before_us=hour_ago_us, listed=True, limit=LISTED)
            ended = view.runs(user=user, ended_since_us=hour_ago_us, listed=True)
            news = self._access.news(view, processes)
            caller.news[:] = [news]
            # The newest come first, since an answer may have no room for all.
            rows = [*reversed(unended), *reversed(ended)]
            for row in news.ended:  # results that were never fetched
                if row.ended_us and row.ended_us < hour_ago_us:
                    rows.append(row)
            questions = OpenQuestions(view, at_us)
            runs: list[RunView] = []
            waiting = 0
            for row in questions.first_of_each(rows):
                run = view_run(view, row, processes, at_us, result=False, questions=questions)
                runs.append(run)
                if run.state == WAITING:
                    waiting += 1
            many_wait = waiting > EXPLAINED
            answers = [self._answer(run, by_pin=self._by_pin(view, run), brief=many_wait) for run in runs]
            return answers, many_wait, self._others_sentence(view, at_us)

        # `short`: it is read in a thread only if there is much to list.
        listed, many_wait, others = await self._store.read(query, short=True)
        runs, message = fit_runs(listed)
        if many_wait:
            message = with_advice(self._access.adapt_text(_SEVERAL_WAIT), message or "")
        if not runs:
            message = "No subagents: none waits, runs, or ended in the last 60 minutes."
        sentences = [sentence for sentence in (message, others) if sentence]
        return CheckAnswer(status="list", message=" ".join(sentences) or None, runs=runs)

    def _others_sentence(self, view: View, at_us: int) -> str:
        """Return a sentence on the runs of other users, which a list leaves out.

        It is empty for an auditor, who sees all, and over HTTP: only people at this machine may know of the others.
        """
        if self._session.audits or self._session.remote:
            return ""
        return others_words(view.unended_of_others(self._session.user, at_us))

    def _run_of_call(self, view: View, args: CheckArgs) -> RunRow:
        """Return the plan or the run that a call names. Raises BadInput if there is none."""
        if args.group_id is not None:
            return self._access.plan_in(view, args.group_id, reading=True)
        return self._access.run_in(view, args.subagent_id or "", "subagent_id", reading=True)

    async def answers(self, rows: list[RunRow]) -> list[RunAnswer]:
        """Return runs, as they are now, in the form of the tools' answers."""
        processes = self._runtime.processes_now()

        def query(view: View) -> list[RunAnswer]:
            current = [view.run(row.id) or row for row in rows]
            return self._answers_in(view, current, processes)

        return await self._store.look(query)

    def _answers_in(self, view: View, rows: list[RunRow], processes: Processes, offset: int = 0) -> list[RunAnswer]:
        """Return runs as the tools' answers show them; `offset` continues a long output. Blocking."""
        at_us = now_us()
        runs: list[RunView] = []
        for row in rows:
            run = view_run(view, row, processes, at_us, manager=self._runtime.manager)
            runs.append(self._without_known_results(view, run))
        ended = [row for row in rows if row.ended]
        room = room_for(len(ended))
        answers = [self._answer(run, by_pin=self._by_pin(view, run), offset=offset, room=room) for run in runs]
        for answer in answers:
            lacks_key = answer.error is not None and answer.error.get("kind") == "auth"
            if lacks_key and answer.error and answer.model:
                # How to give a key depends on the host, which the log does not know.
                provider = str(answer.error.get("model") or answer.model).partition(":")[0]
                answer.error["what_to_do"] = self._access.key_advice(provider)
        return answers

    def _without_known_results(self, view: View, run: RunView) -> RunView:
        """Return a plan without the results that this session has already got, so that no model reads them twice."""
        if run.plan is None or run.result is None:
            return run
        return replace(run, result=without_given(view, run.row, run.result, self._session.id))

    def _answer(
        self, run: RunView, *, by_pin: bool, brief: bool = False, offset: int = 0, room: int | None = None
    ) -> RunAnswer:
        """Return a run in the form of a tool's answer, for this session.

        An auditor also reads whose run it is. With `brief`, a proposal does not say how to approve it; with `by_pin`,
        it says that no tool can. `offset` and `room` are for a long output: where it begins, and its characters.
        """
        owned = self._access.owns(run.row)
        answer = run_answer(run, offset=offset, room=room, owner=not owned)
        if owned and run.state == WAITING:
            if brief:
                how = _BRIEFLY
            elif by_pin:
                how = _BY_PIN
            else:
                how = _BY_PERSON
            answer.waits_for = how.format(pending_id=run.row.pending_id)
        if answer.waits_for:
            answer.waits_for = self._access.adapt_text(answer.waits_for)
        if answer.changes:
            answer.changes = self._with_way_to_see(run.row.id, answer.changes)
        if answer.branches:
            answer.branches = [self._with_way_to_see(each["subagent_id"], each) for each in answer.branches]
        return answer

    def _with_way_to_see(self, run_id: str, changes: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return changes with the command that shows them; None for a person on another machine."""
        if not changes["to_merge"]:
            return changes
        to_see: str | None = None
        if not self._session.remote:
            to_see = self._access.adapt_text(f"`ava show {run_id} --diff`").strip("`")
        return {**changes, "to_see": to_see}

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
        """Wait until each of these runs has ended or waits for something, or until the time is over.

        Returns the runs as they are then. `progress` gets a line on what one of them is doing: a new line within a
        second, the same one every few seconds.
        """
        ids = frozenset(run_ids)
        last_line = ""
        last_line_s = anyio.current_time()
        deadline = last_line_s + min(wait_s, self._session.wait_s)
        while True:
            head = self._store.head
            activities = self._runtime.activities.now
            rows = await self._access.rows(run_ids)
            now = anyio.current_time()
            if now >= deadline or self._runtime.closing.begun or await self._need_no_wait(rows):
                return rows
            line = await self._store.look(partial(self._progress_line, rows=rows))
            pause_s = PROGRESS_EVERY_S if line == last_line else CHANGES_EVERY_S
            due = last_line_s + pause_s
            if now >= due:
                await progress(line)
                last_line = line
                last_line_s = now
                due = now + PROGRESS_EVERY_S
            with (
                anyio.move_on_at(min(deadline, due)) as waiting,
                self._runtime.closing.wait(waiting),
                self._runtime.activities.change_ends(waiting, activities, ids.__contains__),
            ):
                await self._until_no_wait(run_ids, head)

    def _progress_line(self, view: View, rows: list[RunRow]) -> str:
        """Return what the first of these runs that shows something is doing, else the state of the first. Blocking."""
        processes = self._runtime.processes_now()
        unended = [row for row in rows if not row.ended]
        states = {row.id: shown_state(row, processes.alive) for row in unended}
        for row in unended:
            if states[row.id] != RUNNING:
                continue
            money = awaited_money(view, row, now_us(), processes.alive)
            if money is not None:
                return f"{label(row)}: waits for {money}"
            activity = activity_of(row, processes, self._runtime.manager)
            if activity:
                return f"{label(row)}: {activity}"
        first = unended[0]
        return f"{label(first)}: {states[first.id]}"

    async def _until_no_wait(self, run_ids: list[str], head: int) -> None:
        """Return when there is nothing more to wait for; looks at intervals, not at every commit."""
        while True:
            head = await self._store.wait_for_entry_after(head)
            if await self._need_no_wait(await self._access.rows(run_ids)):
                return
            await anyio.sleep(LOOK_EVERY_S)

    async def _need_no_wait(self, rows: list[RunRow]) -> bool:
        """Tell whether each of these runs has ended or is paused, or is a plan that waits for a person."""
        at_us = now_us()
        going_on: list[RunRow] = []
        for row in rows:
            if row.ended or paused(row, at_us):
                continue
            if not row.is_plan:
                return False
            going_on.append(row)
        return await self._store.look(lambda view: all(_waits_for_person(view, row) for row in going_on))


def _waits_for_person(view: View, plan: RunRow) -> bool:
    """Tell whether a plan can go on only when a person answers."""
    caps = view.plan_caps(plan.id)
    return caps is not None and caps.stopped_since_us is not None


def fit_runs(runs: list[RunAnswer]) -> tuple[list[RunAnswer], str | None]:
    """Return as many runs as fit into one answer, and a sentence about the others. One alone always fits."""
    if len(runs) <= 1:
        return list(runs), None
    kept: list[RunAnswer] = []
    chars = 0
    for run in runs:
        chars += json_chars(run.model_dump(mode="json", exclude_none=True))
        if kept and chars > RUNS_CHARS:
            break
        kept.append(run)
    others = runs[len(kept) :]
    if not others:
        return kept, None
    names = list_names([f"{named(run.subagent_id, run.name)} {run.state}" for run in others], NAMED_RUNS)
    return kept, f"{len(runs)} in all. Not shown here: {names}. Call check_subagent with the subagent_id of one."


_ONLY_YES = (
    "{run} asks a person whether it may make a call: they answer in the host's form, in Ava's pages, or with {how}; no"
    " tool can"
)
_NAME_IT = "{question} Nothing was sent: answer it with {how}"
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

    async def message(self, arguments: dict[str, Any], _caller: CallContext) -> Answer:
        """Do `message_subagent`. Raises BadInput, and Refused: the run waits for approval, or has ended."""
        args = parse(MessageArgs, arguments)
        run = await self._access.run(args.subagent_id, "subagent_id")
        delivered = await self._questions.message(run, args.message)
        if delivered == "waiting":
            raise Refused(f"{label(run)} waits for approval; to change it, cancel it and propose it again")
        if isinstance(delivered, PendingQuestion):
            if self._session.channel == "host_call":  # a model is not shown the question's text here
                raise Refused(_ONLY_YES.format(run=label(run), how=delivered.in_a_terminal))
            raise Refused(_NAME_IT.format(question=delivered.message, how=delivered.in_a_terminal))
        if delivered == "ended":
            to_do = self._access.adapt_text("ask on with spawn_subagent and context_from")
            raise Refused(f"{label(run)} has ended; {to_do}")
        if isinstance(delivered, QuestionDecision):
            for run_id in delivered.run_ids:
                self._access.wake(run_id)
            return self._message_answer(run, delivered.text)
        state = await anyio.to_thread.run_sync(shown_state, run, self._runtime.instances.alive)
        if state == QUEUED and run.generation > 0:
            when = "when it continues"
        elif state == INTERRUPTED:
            when = _WHEN[INTERRUPTED]
        else:
            when = _WHEN[delivered]
        return self._message_answer(run, f"{label(run)} reads it {when}.")

    def _message_answer(self, run: RunRow, sentence: str) -> MessageAnswer:
        return MessageAnswer(
            status="delivered",
            subagent_id=run.id,
            name=run.name,
            task_id=run.task_id,
            message=with_advice(sentence, "It may steer the work; limits and tools stay."),
        )

    async def cancel(self, arguments: dict[str, Any], _caller: CallContext) -> Answer:
        """Do `cancel_subagent`. Raises BadInput if an argument cannot be used."""
        args = parse(CancelArgs, arguments)
        before = await self._run_to_cancel(args)
        session = self._session
        reason = args.reason
        if before.user_id != session.user:  # its user reads in the result who it was
            administrator = f"by the administrator {session.user}"
            reason = f"{administrator}: {reason}" if reason else administrator
        await self._runtime.manager.cancel(before.id, session.who, reason, session.by, anyones=session.administers)
        run = (await self._access.rows([before.id]))[0]
        (answer,) = await self._checks.answers([run])
        # A run that ends in another way while it is cancelled was not cancelled either.
        ended_otherwise = before.ended or (run.ended and run.state != "cancelled")
        message = f"Not cancelled: {run_now(run)}." if ended_otherwise else None
        return CancelAnswer(status=answer.state, message=message, runs=answers_json([answer]))

    async def _run_to_cancel(self, args: CancelArgs) -> RunRow:
        """Return the run that a call names, which this session may cancel. Raises BadInput."""
        ids = [value for value in (args.subagent_id, args.group_id, args.pending_id) if value is not None]
        if len(ids) != 1:
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
