"""The agent loop: reserve (messages first), ask, settle, act, record; until a result is handed over or a cap is met."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from functools import partial

import anyio
import anyio.abc
import anyio.to_thread

from ava_audit.errors import OutcomeUnknown, SchemaNewer, StaleOwner
from ava_audit.events import ErrorOccurred, Event, LastTurn, RunPaused, ToolResult, Who, WorkChecked
from ava_audit.rows import RunRow
from ava_audit.store.store import Command, Outcome, Store
from ava_audit.view import View
from ava_roles.tool import status_sentence
from ava_server.budget.caps import unsettled
from ava_server.budget.run_config import config_of
from ava_server.models.base import Completion
from ava_server.runs.answer_faults import REPAIRS, cut_call, cut_caveat, ending
from ava_server.runs.coding import CodingWork, unkept
from ava_server.runs.context import RunContext
from ava_server.runs.history import History
from ava_server.runs.log import RunLog, cancel_reason, ending_events
from ava_server.runs.model_call import ModelCalls, Paused
from ava_server.runs.planning import Planner
from ava_server.runs.reservation import Reservations
from ava_server.runs.result import RunResult, build_result
from ava_server.runs.submit import NAME as SUBMIT
from ava_server.runs.submit import SubmitArgs, accept
from ava_server.runs.tool_calls import ENDED_BECAUSE, ToolCalls
from ava_server.telemetry import spans

log = logging.getLogger("ava.loop")
_FAULT = "a fault of Ava itself"
_REPORT = "Report it with what `ava show S-… --json` prints for this run."

WRAP_S = 30.0
"""Seconds of a run's time, a fifth of it at most, that the wrap-up has for itself."""
END_S = 10.0
STUCK_S = 3.0
"""A run that has not ended so long after it should have is ended by the manager; its loop can write nothing more."""
ON_REQUEST = "cancelled on request"


class AgentRun:
    """One run in the hands of its owner."""

    def __init__(
        self,
        store: Store,
        run: RunRow,
        who: Who,
        history: History,
        prepared: RunContext,
        tasks: anyio.abc.TaskGroup,
    ) -> None:
        self.id = run.id
        self.user = run.user_id
        self.activity = "Starting"
        self.scope = anyio.CancelScope()
        self.cancelled = False
        self._cancel_reason: str | None = None
        self.done = False
        self._config = config_of(run.config)
        self._prepared = prepared
        self._history = history
        self._log = RunLog(store, run, who, history)
        self._log.on_hold = self._note
        self._began = time.monotonic() - run.active_us / 1_000_000
        self._planning = Planner(self._log, wanted=self._config.plans)
        self._reserving = Reservations(
            self._log, self._config, prepared.model, prepared.caps, prepared.window, self._began, self._planning
        )
        self._tasks = tasks
        self._acting = ToolCalls(
            tools=prepared.tools,
            place=replace(prepared.place, say=self.say, run_id=run.id),
            history=self._history,
            record=self._log.record,
            keep=self._log.keep,
            redactor=prepared.redactor,
            lending=prepared.lending,
            scratch=prepared.scratch,
            nonce=(history.prefix or prepared.started).nonce,
            max_calls=self._config.max_tool_calls,
            say=self.say,
            tasks=tasks,
        )
        self._asking = ModelCalls(
            self._log,
            self._config,
            prepared.model,
            self.say,
            lambda: self._config.timeout_s - self.active_s,
            self._acting.begun,
        )
        self._working = self._at_work(prepared)
        self._due: float | None = None  # of the monotonic clock
        self._cap = LastTurn(status="timeout", reason=f"timeout of {self._config.timeout_s:g} s")
        self._cancelled_at: float | None = None

    def _at_work(self, prepared: RunContext) -> CodingWork | None:
        """Return what sees to the worktree of a run that changes files."""
        if prepared.workshop is None or self._config.coding is None:
            return None
        return CodingWork(
            prepared.workshop,
            prepared.worktrees,
            self._config.coding,
            self._log,
            prepared.redactor,
            self._acting.nonce,
            self.say,
        )

    # -- the run --------------------------------------------------------------------------------------------------

    async def drive(self, seconds_left: float | None = None) -> None:
        """Take the run to its end, and record it. A cancellation from outside leaves it for another owner.

        Args:
            seconds_left: What a clock that covers more than this run (a group's) still allows.
        """
        try:
            came_to = await self._to_the_end(seconds_left)
            patience_s = END_S
            if self._working is not None and isinstance(came_to, RunResult):
                patience_s += self._working.patience_s(came_to)
            with anyio.CancelScope(shield=True), anyio.move_on_after(patience_s):
                ended = await self._pause(came_to) if isinstance(came_to, Paused) else came_to
                if ended is not None:
                    await self._end(ended)
                    self.done = True
        except StaleOwner as stale:
            log.info("%s: %s; left to its new owner", self.id, stale)

    def cancel(self, reason: str | None) -> None:
        """End the run as cancelled, whatever it is doing; twice is harmless."""
        if not self.cancelled:
            self.cancelled, self._cancel_reason = True, reason
            self._cancelled_at = time.monotonic()
            self.scope.cancel()

    def stuck(self) -> RunResult | None:
        """Return how the run should have ended by now, or None: something that it waits for ignores being stopped."""
        now = time.monotonic()
        if self._cancelled_at is not None and now > self._cancelled_at + STUCK_S:
            return RunResult("cancelled", ON_REQUEST, reason=self._cancel_reason)
        if self._due is not None and now > self._due + STUCK_S:
            return RunResult(self._cap.status, self._cap.reason)
        return None

    def say(self, doing: str) -> None:
        """Show what is being done this second."""
        self._note(doing)
        self._log.say(self.activity)

    def _note(self, doing: str) -> None:
        self.activity = status_sentence(doing)

    @property
    def active_s(self) -> float:
        """Seconds that the run has been active, over all its claims."""
        return time.monotonic() - self._began

    async def _to_the_end(self, seconds_left: float | None) -> RunResult | Paused:
        timeout = self._config.timeout_s
        left = max(timeout - self.active_s, 0.0)
        cap = LastTurn(status="timeout", reason=f"timeout of {timeout:g} s")
        if seconds_left is not None and seconds_left < left:
            left, cap = seconds_left, LastTurn(status="timeout", reason="the group's timeout")
        self._due, self._cap = time.monotonic() + left, cap
        work_s = max(left - min(WRAP_S, timeout / 5), 0.0)  # what is left of it after the work is the wrap-up's
        with self.scope:
            try:
                before = time.monotonic()
                if (refused := await self._start_servers(work_s)) is not None:
                    return refused
                took = time.monotonic() - before
                return await self._within(max(work_s - took, 0.0), left - took, cap)
            except (StaleOwner, OutcomeUnknown, SchemaNewer):
                raise
            except Exception as error:  # a bug of ours ends this run, on the record, and no other
                log.exception("%s failed", self.id)
                text, _hidden = self._prepared.redactor.redact(f"{type(error).__name__}: {error}")
                turn = self._history.turn
                await self._log.record(ErrorOccurred(error=text, kind="internal", what_to_do=_REPORT, turn=turn))
                return RunResult("error", _FAULT, error_kind="internal", error_message=text, what_to_do=_REPORT)
            finally:
                await self._prepared.servers.end()
        return RunResult("cancelled", ON_REQUEST, reason=self._cancel_reason)

    async def _start_servers(self, within_s: float) -> RunResult | None:
        """Start the run's other MCP servers; a run that has not begun does not begin without what was approved.

        One that had begun goes on: its calls are told what is missing, and it can hand over what it has.
        """
        if not self._prepared.servers:
            return None
        self.say("Starting MCP servers")
        why: str | None = "its MCP servers did not start in time"
        with anyio.move_on_after(within_s):
            why = await self._prepared.servers.start(self._tasks)
        if why is None or self._history.prefix is not None:
            return None
        return RunResult(
            "error", "an MCP server is not as it was approved", error_kind="mcp_server", error_message=why,
            what_to_do="Nothing was spent. Propose it anew; `ava doctor` tells how each MCP server is.",
        )  # fmt: skip

    async def _within(self, work_s: float, left_s: float, cap: LastTurn) -> RunResult | Paused:
        """Work for `work_s` seconds; when they are over, wrap up in what is left of `left_s`."""
        if self._history.prefix is None:
            await self._log.record(self._prepared.started)
        with anyio.move_on_after(work_s):
            return await self._work()
        last = self._reserving.cap = self._reserving.cap or cap
        if self._working is not None and self._history.worktree is None:  # nothing was done that could be wrapped up
            return RunResult(last.status, last.reason)
        if (ended := await self._handed_over_in_time()) is not None:
            return ended
        with anyio.move_on_after(max(left_s - work_s, 0.0)):
            if self._history.answered:
                await self._refuse_open("the time for tools is over")
            return await self._turns()
        return RunResult(last.status, last.reason)

    async def _handed_over_in_time(self) -> RunResult | None:
        """Take a result that stands in the log, and that the end of the time kept from being looked at: it is paid."""
        if not self._history.answered or all(call.name != SUBMIT for call in self._history.open_calls()):
            return None
        with anyio.CancelScope(shield=True), anyio.move_on_after(END_S):
            return await self._take_up()
        return None

    async def _work(self) -> RunResult | Paused:
        if self._working is not None:
            if (ended := await self._working.begin()) is not None:
                return ended
            self._acting.place = self._working.place(self._acting.place)
        ended = await self._take_up()
        return ended if ended is not None else await self._turns()

    async def _take_up(self) -> RunResult | None:
        """Finish the turn that a crash cut off: its answer is in the log, but not all that follows from it."""
        said = self._history.answer
        if said is None or not self._history.answered:
            return None
        return await self._act(Completion(text=said.text, calls=self._history.calls, raw=said.raw or {}, usage=None))

    async def _turns(self) -> RunResult | Paused:
        while True:
            asked = await self._reserving.next()
            answer = asked if isinstance(asked, RunResult) else await self._asking.once(*asked)
            if isinstance(answer, Paused):
                return answer
            if answer is None or await self._planning.takes(answer):
                continue
            ended = answer if isinstance(answer, RunResult) else await self._act(answer)
            if ended is not None:
                return ended

    # -- act ------------------------------------------------------------------------------------------------------

    async def _act(self, completion: Completion) -> RunResult | None:
        """Do what the answer asks for; an ending when a result was handed over, or nothing more can be.

        What has been done of it before a crash stands in the history, and is not done again.
        """
        submit = next((call for call in completion.calls if call.name == SUBMIT), None)
        if submit is not None:
            accepted = await anyio.to_thread.run_sync(accept, submit, self._config.output_schema)
            if isinstance(accepted, SubmitArgs):
                return await self._checked(completion, accepted, submit.call_id)
            said = self._history.answer
            cut = cut_call(said, completion.calls, submit) if said is not None else None
            return await self._repair(completion, submit.call_id, cut or accepted)
        if not completion.calls:
            return await self._plain(completion)
        last = self._history.last or self._reserving.cap  # as it was asked: calls that have begun count by now
        if last is not None:
            await self._refuse_open("the limits are reached, only submit_result was accepted")
            return RunResult(last.status, last.reason)
        await self._acting.run(completion.calls)
        if self._history.tripped is not None:
            return RunResult("guardrail", ENDED_BECAUSE.get(self._history.tripped.guardrail, "a guardrail"))
        return self._worn_out()

    async def _checked(
        self, completion: Completion, submitted: SubmitArgs, call_id: str | None = None
    ) -> RunResult | None:
        """Take a result, of a run that changes files once its work passes; None when it has to be mended first."""
        if self._working is None or self._reserving.last_turn() is not None:
            return self._handed_over(submitted, call_id)
        checked = await self._working.check(call_id)
        if isinstance(checked, WorkChecked) and checked.verify.passed:
            return self._handed_over(submitted, call_id)
        told = checked.stop_reason if isinstance(checked, RunResult) else checked.told
        for call in completion.calls:
            if call.call_id in self._history.results:
                continue
            if call.call_id == call_id:
                await self._acting.answer(call, told)
            else:
                await self._acting.refuse(call, "a result was handed over with it")
        if isinstance(checked, RunResult):
            return replace(checked, submitted=submitted)
        return self._working.given_up(checked, submitted)

    def _handed_over(self, submitted: SubmitArgs, call_id: str | None = None) -> RunResult:
        last = self._reserving.last_turn()
        if last is not None:
            return RunResult(last.status, last.reason, submitted, call_id=call_id)
        return RunResult("success", "the subagent handed over its result", submitted, call_id=call_id)

    async def _plain(self, completion: Completion) -> RunResult | None:
        """Take plain text instead of the call as the output; what is none is asked for again, at most twice.

        In the last turn a text that is at fault is taken too, but for the words of a refusal.
        """
        text = completion.text
        fault, last = self._history.fault, self._reserving.last_turn()
        if fault is not None and last is None:
            return self._worn_out()
        if last is not None and (not text.strip() or (fault is not None and fault.kind == "refusal")):
            return RunResult(last.status, last.reason)
        if self._config.output_schema is not None:
            return RunResult(
                "error", "plain text where a result in a given form was asked for",
                error_kind="bad_output", error_message=text[:4_000],
                what_to_do="Ask again, or leave output_schema out.",
            )  # fmt: skip
        first = next(line for line in text.splitlines() if line.strip())
        cut = fault is not None and fault.kind == "cut"
        caveats = [cut_caveat(self._history.said_tokens)] if cut else []
        return await self._checked(completion, SubmitArgs(summary=first, output=text, caveats=caveats))

    def _worn_out(self) -> RunResult | None:
        """Return the ending of a run whose model answers again and again with nothing that can be used."""
        fault, kinds = self._history.fault, self._history.faults
        if fault is None or len(kinds) <= REPAIRS or self._reserving.last_turn() is not None:
            return None
        reason, kind, what_to_do = ending(kinds)
        return RunResult("error", reason, error_kind=kind, error_message=fault.detail, what_to_do=what_to_do)

    async def _repair(self, completion: Completion, call_id: str, fault: str) -> RunResult | None:
        """Tell the model what is wrong with its result; after two repairs the run ends with the raw draft kept."""
        for call in completion.calls:
            if call.call_id not in self._history.results:
                why = fault if call.call_id == call_id else "a result was handed over with it"
                await self._acting.refuse(call, why, unusable=True)
        last = self._reserving.last_turn()
        if last is not None:
            return RunResult(last.status, last.reason)
        if self._history.malformed > REPAIRS:
            return RunResult(
                "error", "the result could not be brought into the form asked for", error_kind="bad_output",
                error_message=fault, what_to_do="Ask again with a simpler output_schema, or without one.",
            )  # fmt: skip
        return self._worn_out()

    async def _refuse_open(self, why: str) -> None:
        """Answer the calls that have no result yet, so that the history is whole."""
        for call in self._history.open_calls():
            await self._acting.refuse(call, why)

    async def _pause(self, paused: Paused) -> RunResult | None:
        """Give the run back to the queue, until its provider takes calls again; its clock stands still meanwhile.

        One that somebody has cancelled by now ends instead.
        """
        active_us = round(self.active_s * 1e6)
        fact = RunPaused(not_before_us=paused.until_us, why=paused.why, active_us=active_us)
        if not self.cancelled and await self._log.do(_unless_cancelled(self.id, self._log.event(fact))):
            self.say(f"Paused: {paused.why}")
            return None
        on_record = await self._log.read(lambda view: cancel_reason(view, self.id))
        return RunResult("cancelled", ON_REQUEST, reason=self._cancel_reason or on_record)

    async def _end(self, ended: RunResult) -> None:
        """Record the ending and its result under the claim."""
        await self._log.write_kept()
        run = await self._log.read(lambda view: view.run(self.id))
        assert run is not None
        if run.in_flight is not None:  # a fault of ours came between a call and its settlement
            await self._log.append(unsettled(run, self._log.who, self._log.fence, purpose=self._history.purpose))
            run = await self._log.read(lambda view: view.run(self.id)) or run
        artifacts = await anyio.to_thread.run_sync(self._prepared.artifacts)
        kept = await self._working.keep(ended) if self._working is not None else None
        if kept is not None and kept.fault and ended.status == "success":
            ended = unkept(ended, kept)
        result = await anyio.to_thread.run_sync(
            partial(build_result, run, self._history, ended, artifacts, self.active_s, kept=kept),
            abandon_on_cancel=True,
        )
        events = list(ending_events(run, result, ended, self._log.who, self._log.fence, round(self.active_s * 1e6)))
        if ended.call_id is not None and ended.call_id not in self._history.results:
            accepted = ToolResult(
                tool=SUBMIT, success=True, output="accepted", call_id=ended.call_id, turn=self._history.turn
            )
            events.insert(0, self._log.event(accepted))
        await self._log.append(events)
        spans.run_ended(run, ended)


def _unless_cancelled(run_id: str, event: Event) -> Command[bool]:
    """Return a command that writes an event of a run, if nobody has asked for the run's end."""

    def command(view: View, _now_us: int) -> Outcome[bool]:
        run = view.run(run_id)
        go_on = run is not None and run.cancel_seq is None
        return Outcome(go_on, (event,) if go_on else ())

    return command
