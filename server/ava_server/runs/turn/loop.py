"""The agent loop: reserve, call the model, settle, run tools, record; until a result is handed over or a cap is met."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

import anyio
import anyio.abc
import anyio.to_thread

from ava_audit.errors import SchemaNewer, StaleOwner, StoreUnavailable
from ava_audit.events import (
    Asked,
    CostUpdate,
    ErrorOccurred,
    LastTurn,
    RunPaused,
    ToolResult,
    Who,
    WorkChecked,
)
from ava_audit.rows import RunRow
from ava_audit.store.store import Store
from ava_extras import load
from ava_roles.tool import status_sentence
from ava_server import telemetry
from ava_server.core.awake_clock import AwakeClock
from ava_server.core.ids import UNREAD
from ava_server.core.shortage import shortage_in
from ava_server.models.base import Completion
from ava_server.models.model_choice import OFFLINE, SCRIPTED
from ava_server.run_config.config import config_of
from ava_server.run_config.run_cap import CAP_OF_ENDING
from ava_server.runs.asking.extension import in_vain
from ava_server.runs.asking.question_kinds import activity_when_asked
from ava_server.runs.coder.coding import CodingWork, ending_at_cap, fail_unkept
from ava_server.runs.journal.clock import RunClock
from ava_server.runs.journal.log import RunLog
from ava_server.runs.record.claims import Paused, pause
from ava_server.runs.record.endings import ON_REQUEST, cancel_reason, ending_events
from ava_server.runs.record.history import History
from ava_server.runs.record.invalid_answers import REPAIRS, cut_caveat, error_of, explain_cut_call
from ava_server.runs.record.plan_time import PLAN_TIME_OVER
from ava_server.runs.record.result import RunResult, build_result
from ava_server.runs.record.submit import NAME as SUBMIT
from ava_server.runs.record.submit import SubmitArgs, accept
from ava_server.runs.turn.context import ActiveRun, RunContext, RunLeft, nobody_gone
from ava_server.runs.turn.model_call import ModelCalls
from ava_server.runs.turn.reservation import UNKNOWN_ATTEMPTS, Outliner, Reservations
from ava_server.runs.turn.tool_calls import ENDED_BECAUSE, ToolCalls

log = logging.getLogger("ava.loop")
_INTERNAL = "a fault of Ava itself"
_REPORT = "Report it with what `ava show S-… --json` prints for this run."

END_S = 10.0
"""Seconds that recording an ending may take, beside saving changes."""
OVERDUE_S = 3.0
"""Seconds after which the manager ends a run that should have ended; its loop can then write nothing more."""
WAIT_SHARE = 0.1
"""The share of its time that a run may wait for another to send the beginning of their prompts."""


class AgentRun:
    """One run, as its owner drives it.

    Attributes:
        cancelled: Somebody has asked for its end.
    """

    def __init__(
        self,
        store: Store,
        run: RunRow,
        who: Who,
        history: History,
        context: RunContext,
        tasks: anyio.abc.TaskGroup,
        on_activity: Callable[[], None],
        gone: Callable[[], Awaitable[frozenset[str]]] = nobody_gone,
    ) -> None:
        self.id = run.id
        self.user = run.user_id
        self.activity = "Starting"
        self.scope = anyio.CancelScope()
        self.cancelled = False
        self._cancel_reason: str | None = None
        self.done = False
        self._leaves = self._lost = False
        self._config = config_of(run.config)
        self._context = context
        self._history = history
        self._log = RunLog(store, run, who, history)
        self._log.on_hold = self.say
        self._on_activity = on_activity
        self._clock = RunClock(run.active_us / 1_000_000, context.clock)
        self._run = active = ActiveRun(
            self._log, self._config, context, self._clock, self.say, tasks, gone, lambda: self._leaves
        )
        self._outliner = Outliner(self._log, wanted=self._config.writes_outline)
        self._reservations = Reservations(active, self._outliner)
        self._tool_calls = ToolCalls(active)
        self._model_calls = ModelCalls(active, self._tool_calls.start_facts)
        self._coding: CodingWork | None = None
        if context.worktree is not None and self._config.coding is not None:
            self._coding = CodingWork(
                context.worktree,
                context.worktrees,
                self._config.coding,
                self._log,
                context.redactor,
                self._tool_calls.nonce,
                self.say,
            )
        self._awake = AwakeClock()
        self._due: float | None = None  # of that clock, without what its own clock stands still
        self._plan_ends = math.inf  # on anyio's clock
        self._working = anyio.CancelScope()
        self._cap = LastTurn(status="timeout", reason=f"timeout of {self._config.timeout_s:g} s")
        self._cancelled_at: float | None = None

    # -- the run --------------------------------------------------------------------------------------------------

    async def drive(self, seconds_left: float | None = None) -> None:
        """Run the loop to its end and record that. A cancellation from outside leaves the run to another owner.

        `seconds_left` is what is left of the plan's time; None without one.
        """
        try:
            outcome = await self._run_to_end(seconds_left)
            patience_s = END_S
            if self._coding is not None and isinstance(outcome, RunResult):
                patience_s += self._coding.patience_s(outcome)
            with anyio.CancelScope(shield=True), anyio.move_on_after(patience_s):
                ended = await self._pause(outcome) if isinstance(outcome, Paused) else outcome
                if ended is None:
                    log.info("%s: waits, and is left until it can go on", self.id)
                else:
                    await self._end(ended)
                    self.done = True
        except StaleOwner as stale:
            log.info("%s: %s; left to its new owner", self.id, stale)
        except RunLeft:
            log.info("%s: left to another process", self.id)

    def cancel(self, reason: str | None) -> None:
        """End the run as cancelled, whatever it is doing; a second call changes nothing."""
        if not self.cancelled:
            self.cancelled = True
            self._cancel_reason = reason
            self._cancelled_at = self._awake.now_s()
            self.scope.cancel()

    def leave(self) -> None:
        """Stop before the next model call, with everything on the record, so that another process can continue."""
        self._leaves = True

    def lose(self) -> None:
        """Stop at once, whatever it is doing: it has another owner by now."""
        if not self._lost:
            self._lost = True
            self.scope.cancel()

    def end_time(self) -> None:
        """End the time for work now, or that of the wrap-up where it is on, as if it had passed."""
        self._working.cancel()

    def overdue(self) -> RunResult | None:
        """Return how the run should have ended by now; None while it is in time, or is stopping.

        The manager asks at each look: after a stop of the process, the loop has its time to end the run by itself.
        """
        now = self._awake.now_s()
        if self._cancelled_at is not None and now > self._cancelled_at + OVERDUE_S:
            return RunResult("cancelled", ON_REQUEST, reason=self._cancel_reason)
        if self._due is not None and now > self._due + self._clock.stopped_s + OVERDUE_S:
            return RunResult(self._cap.status, self._cap.reason)
        return None

    def say(self, doing: str) -> None:
        """Show in the status line what the run is doing; does not wait."""
        self.activity = status_sentence(doing)
        self._on_activity()

    async def _run_to_end(self, seconds_left: float | None) -> RunResult | Paused:
        timeout = self._config.timeout_s
        left = max(self._run.left_s, 0.0)
        cap = LastTurn(status="timeout", reason=f"timeout of {timeout:g} s")
        if seconds_left is not None and seconds_left < left:
            left = seconds_left
            cap = LastTurn(status="timeout", reason=PLAN_TIME_OVER)
        if seconds_left is not None:
            self._plan_ends = anyio.current_time() + seconds_left
        self._due, self._cap = self._awake.now_s() + left, cap
        work_s = self._run.work_s(left)
        with self.scope:
            try:
                before = time.monotonic()
                refused = await self._start_servers(work_s)
                if refused is not None:
                    return refused
                took = time.monotonic() - before
                ended = await self._work_within(max(work_s - took, 0.0), left - took, cap)
                if isinstance(ended, Paused):
                    return ended
                return await self._check_at_cap(ended)
            except (StaleOwner, StoreUnavailable, SchemaNewer, RunLeft):
                raise  # another owner has it, or will: a log that is out of reach ends no run
            except Exception as error:  # an internal error ends this run, on the record, and no other
                if shortage_in(error):  # this run can continue later, or with another owner
                    raise
                log.exception("%s failed", self.id)
                text, _hidden = self._context.redactor.redact(f"{type(error).__name__}: {error}")
                turn = self._history.turn
                await self._log.record(ErrorOccurred(error=text, kind="internal", what_to_do=_REPORT, turn=turn))
                return RunResult("error", _INTERNAL, error_kind="internal", error_message=text, what_to_do=_REPORT)
            finally:
                await self._context.servers.end()
        if self._lost:
            raise StaleOwner.of(*self._log.fence)
        return RunResult("cancelled", ON_REQUEST, reason=self._cancel_reason)

    async def _start_servers(self, within_s: float) -> RunResult | None:
        """Start the run's MCP servers, and return its ending where one of them is not as it was approved.

        A run that has started before continues without it: its calls say what is missing, and it can hand in a result.
        """
        if not self._context.servers:
            return None
        self.say("Starting MCP servers")
        why: str | None = "its MCP servers did not start in time"
        with anyio.move_on_after(within_s):
            why = await self._context.servers.start(self._run.tasks)
        if why is None or self._history.prefix is not None:
            return None
        return RunResult(
            "error", "an MCP server is not as it was approved", error_kind="mcp_server", error_message=why,
            what_to_do="Nothing was spent. Propose it again; `ava doctor` shows the state of each MCP server.",
        )  # fmt: skip

    async def _work_within(self, work_s: float, left_s: float, cap: LastTurn) -> RunResult | Paused:
        if self._history.prefix is None:
            self._log.keep(self._context.started)  # written with the first call's reservation
            if self._coding is not None:  # its worktree comes before that
                await self._log.write_kept()
        if self._context.agent is not None:
            return await self._work_of_agent(work_s, left_s, cap)
        wrap_s = left_s - work_s
        with self._clock.limit(work_s, max(self._plan_left_s() - wrap_s, 0.0)) as self._working:
            return await self._work()
        may_ask_for_time = (
            self._reservations.last_turn() is None
            and cap.reason != PLAN_TIME_OVER
            and self._history.unknown_attempts < UNKNOWN_ATTEMPTS
        )
        last = self._reservations.cap = self._reservations.cap or cap
        if self._coding is not None and self._history.worktree is None:  # there is no work to wrap up
            return RunResult(last.status, last.reason)
        with self._clock.limit(max(wrap_s, 0.0), self._plan_left_s()) as self._working:
            await self._log.write_cut_off()
            ended = await self._finish_handover()
            if ended is not None:
                return ended
            if may_ask_for_time:
                pause = await self._reservations.extensions.more_time(self._run.active_s)
                if pause is not None:
                    return pause
            if self._history.answered:
                await self._refuse_open("the time for tools is over")
            return await self._turns()
        return RunResult(last.status, last.reason)

    async def _check_at_cap(self, ended: RunResult) -> RunResult:
        """Run the verify command on work that was handed over at a cap, in what is left of the run's time."""
        if self._coding is None or ended.submitted is None or ended.status not in CAP_OF_ENDING:
            return ended
        self.say("Checking what was handed over")
        checked: WorkChecked | RunResult | None = None
        with self._clock.limit(max(self._run.left_s, 0.0), self._plan_left_s()) as self._working:
            checked = await self._coding.check(ended.call_id, last=True)
        return ending_at_cap(ended, checked)

    def _plan_left_s(self) -> float:
        return self._plan_ends - anyio.current_time()

    async def _work_of_agent(self, work_s: float, left_s: float, cap: LastTurn) -> RunResult:
        began = time.monotonic()
        if self._coding is not None:
            unfit = await self._coding.begin()
            if unfit is not None:
                return unfit
        await self._log.write_kept()
        module = await anyio.to_thread.run_sync(load, "agents")  # seconds, for the first agent's run
        work = module.AgentWork(self._run, self._tool_calls, self._coding)
        took = time.monotonic() - began  # with what the first agent's run has imported
        ended: RunResult = await work.work(max(work_s - took, 0.0), left_s - took, cap, self._plan_left_s())
        return ended

    async def _finish_handover(self) -> RunResult | Paused | None:
        """Accept a logged result that the timeout left unprocessed; it has been paid for."""
        if not self._history.answered or all(call.name != SUBMIT for call in self._history.open_calls()):
            return None
        with anyio.CancelScope(shield=True), anyio.move_on_after(END_S):
            return await self._finish_turn()
        return None

    async def _work(self) -> RunResult | Paused:
        if self._coding is not None:
            unfit = await self._coding.begin()
            if unfit is not None:
                return unfit
            self._tool_calls.place = self._coding.place(self._tool_calls.place)
        ended = await self._finish_turn()
        if ended is not None:
            return ended
        return await self._turns()

    async def _finish_turn(self) -> RunResult | Paused | None:
        """Finish a turn that a crash cut off: its answer is logged, but not everything that follows from it."""
        said = self._history.answer
        if said is None or not self._history.answered:
            return None
        return await self._act(Completion(text=said.text, calls=self._history.calls, raw=said.raw or {}, usage=None))

    async def _turns(self) -> RunResult | Paused:
        while True:
            if self._leaves:
                raise RunLeft
            answer = await self._call_model()
            if isinstance(answer, Paused):
                return answer
            if answer is None or await self._outliner.takes(answer):
                continue
            ended = answer if isinstance(answer, RunResult) else await self._act(answer)
            if ended is not None:
                return ended

    async def _call_model(self) -> Completion | RunResult | Paused | None:
        """Make one attempt of a call, or return why there is none; before it, a run of a plan may wait for another."""
        prefix = self._context.prompt_prefix
        if prefix is None:
            return await self._reserve_and_send()
        if prefix.must_wait:
            self.say("Waiting for another run to send what their prompts share")
        await prefix.wait(self._run.left_s * WAIT_SHARE)
        try:
            return await self._reserve_and_send()
        finally:
            prefix.leave()

    async def _reserve_and_send(self) -> Completion | RunResult | Paused | None:
        reserved = await self._reservations.next()
        if isinstance(reserved, RunResult | Paused):
            return reserved
        return await self._model_calls.attempt(*reserved)

    # -- act ------------------------------------------------------------------------------------------------------

    async def _act(self, completion: Completion) -> RunResult | Paused | None:
        """Do what an answer asks for; return how the run ends or pauses, or None if the loop continues.

        What was done before a crash is in the history and is not done again.
        """
        submit = next((call for call in completion.calls if call.name == SUBMIT), None)
        if submit is not None:
            hide = self._context.redactor.redact_json
            accepted = await anyio.to_thread.run_sync(accept, submit, self._config.output_schema, hide)
            if isinstance(accepted, SubmitArgs):
                return await self._check_result(completion, accepted, submit.call_id)
            said = self._history.answer
            cut = explain_cut_call(said, completion.calls, submit) if said is not None else None
            return await self._refuse_result(completion, submit.call_id, cut or accepted)
        if not completion.calls:
            return await self._accept_text(completion)
        last = self._history.last or self._reservations.cap  # when the call was made; by now its tool calls count
        if last is not None:
            await self._refuse_open("the limits are reached, only submit_result was accepted")
            return RunResult(last.status, last.reason)
        pause = await self._tool_calls.run(completion.calls)
        if pause is not None:
            return pause
        if self._history.tripped is not None:
            return RunResult("guardrail", ENDED_BECAUSE.get(self._history.tripped.guardrail, "a guardrail"))
        return self._end_after_invalid()

    async def _check_result(
        self, completion: Completion, submitted: SubmitArgs, call_id: str | None = None
    ) -> RunResult | None:
        """Accept a result, or return None where the verify command fails and the work has to be fixed first.

        At a cap there is no turn to fix it in: the command then runs once the last turn is over.
        """
        if self._coding is None or self._reservations.last_turn() is not None:
            return self._accept_result(submitted, call_id)
        checked = await self._coding.check(call_id)
        if isinstance(checked, WorkChecked) and checked.verify.passed:
            return replace(self._accept_result(submitted, call_id), verified=True)
        notice = checked.stop_reason if isinstance(checked, RunResult) else checked.told
        for call in completion.calls:
            if call.call_id in self._history.results:
                continue
            if call.call_id == call_id:
                await self._tool_calls.answer(call, notice)
            else:
                await self._tool_calls.refuse(call, "a result was handed over with it")
        if isinstance(checked, RunResult):
            return replace(checked, submitted=submitted)
        return self._coding.ending_after_failures(checked, submitted)

    def _accept_result(self, submitted: SubmitArgs, call_id: str | None = None) -> RunResult:
        last = self._reservations.last_turn()
        if last is not None:
            return RunResult(last.status, last.reason, submitted, call_id=call_id)
        if self._config.model in (OFFLINE, SCRIPTED) and not submitted.findings:  # they can only quote
            from ava_server.models.offline_passages import unread_of  # loaded by then

            unread = unread_of(self._history.tool_turns())
            reason = "no passage answers the task"
            if unread.hides_answer:
                reason = "not everything was read, so it is not known whether there is an answer"
            elif unread.sentences:
                reason = "no passage answers the task; not everything was read"
            kind = UNREAD if unread.sentences else None
            return RunResult("no_answer", reason, submitted, call_id=call_id, error_kind=kind)
        return RunResult("success", "the subagent handed over its result", submitted, call_id=call_id)

    async def _accept_text(self, completion: Completion) -> RunResult | None:
        """Accept plain text in place of a call of submit_result.

        An invalid text gets another attempt, at most twice. In the last turn it is accepted too, except for a refusal.
        """
        text = completion.text
        fault = self._history.invalid_answer
        last = self._reservations.last_turn()
        if fault is not None and last is None:
            return self._end_after_invalid()
        fault_kind = ""
        if fault is not None:
            fault_kind = fault.kind
        has_no_answer = fault_kind == "refusal" or not text.strip()
        if last is not None and has_no_answer:
            return RunResult(last.status, last.reason)
        if self._config.output_schema is not None:
            return RunResult(
                "error", "plain text where a result in a given form was asked for",
                error_kind="bad_output", error_message=text[:4_000],
                what_to_do="Ask again, or leave output_schema out.",
            )  # fmt: skip
        first_line = next(line for line in text.splitlines() if line.strip())
        caveats: list[str] = []
        if fault_kind == "cut":
            caveats.append(cut_caveat(self._history.answer_tokens))
        return await self._check_result(completion, SubmitArgs(summary=first_line, output=text, caveats=caveats))

    def _end_after_invalid(self) -> RunResult | None:
        fault = self._history.invalid_answer
        kinds = self._history.invalid_kinds
        if fault is None or len(kinds) <= REPAIRS or self._reservations.last_turn() is not None:
            return None
        reason, kind, what_to_do = error_of(kinds)
        return RunResult("error", reason, error_kind=kind, error_message=fault.detail, what_to_do=what_to_do)

    async def _refuse_result(self, completion: Completion, call_id: str, fault: str) -> RunResult | None:
        """Tell the model what is wrong with its result; after two attempts the run ends and keeps the draft."""
        for call in completion.calls:
            if call.call_id not in self._history.results:
                why = fault if call.call_id == call_id else "a result was handed over with it"
                await self._tool_calls.refuse(call, why, unusable=True)
        last = self._reservations.last_turn()
        if last is not None:
            return RunResult(last.status, last.reason)
        if self._history.malformed > REPAIRS:
            return RunResult(
                "error", "the result could not be brought into the form asked for", error_kind="bad_output",
                error_message=fault, what_to_do="Ask again with a simpler output_schema, or without one.",
            )  # fmt: skip
        return self._end_after_invalid()

    async def _refuse_open(self, why: str) -> None:
        for call in self._history.open_calls():
            await self._tool_calls.refuse(call, why)

    async def _pause(self, paused: Paused) -> RunResult | None:
        """Return the run to the queue for its provider or for a person; meanwhile its clock stands still.

        Return an ending where somebody has cancelled it by now.
        """
        active_us = round(self._run.active_s * 1e6)
        fact = paused.fact.model_copy(update={"active_us": active_us})
        if not self.cancelled and await self._log.do(pause(self._log.fence, self._log.who, fact)):
            match fact:
                case RunPaused():
                    self.say(f"Paused: {fact.why}")
                case Asked():
                    self.say(activity_when_asked(fact))
            return None
        on_record = await self._log.read(lambda view: cancel_reason(view, self.id))
        return RunResult("cancelled", ON_REQUEST, reason=self._cancel_reason or on_record)

    async def _end(self, ended: RunResult) -> None:
        await self._log.write_kept()
        run = await self._log.read(lambda view: view.run(self.id))
        assert run is not None
        if run.in_flight is not None:  # an internal error came between a call and its settlement
            await self._log.settle_lost()
            run = await self._log.read(lambda view: view.run(self.id)) or run
        if sum(self._history.cost_by.values()) != run.cost_micros:  # another process has booked a call's cost
            settled = await self._log.read(lambda view: view.entries(self.id, 0, ("CostUpdate",)))
            self._history.count_costs(entry.fact for entry in settled if isinstance(entry.fact, CostUpdate))
        artifacts = await anyio.to_thread.run_sync(self._context.artifacts)
        kept = await self._coding.keep(ended) if self._coding is not None else None
        if kept is not None and kept.fault and ended.verified:
            ended = fail_unkept(ended, kept)
        request = self._history.more_asked
        if request is not None:
            unmet = in_vain(request, ended.status, declined=self._history.more_declined)
            ended = replace(ended, stop_reason=ended.stop_reason + unmet)
        result = await anyio.to_thread.run_sync(
            partial(
                build_result,
                run,
                self._history,
                ended,
                artifacts,
                self._run.active_s,
                kept=kept,
                hide=self._context.redactor.redact_json,
            ),
            abandon_on_cancel=True,
        )
        events = list(
            ending_events(run, result, ended, self._log.who, self._log.fence, round(self._run.active_s * 1e6))
        )
        if ended.call_id is not None and ended.call_id not in self._history.results:
            accepted = ToolResult(
                tool=SUBMIT, success=True, output="accepted", call_id=ended.call_id, turn=self._history.turn
            )
            events.insert(0, self._log.event(accepted))
        await self._log.append(events)
        telemetry.run_ended(run, ended.status, ended.error_kind)
