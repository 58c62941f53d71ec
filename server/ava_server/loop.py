"""The agent loop: drain messages, reserve, ask, settle, act, record; until a result is handed over or a cap is met."""

from __future__ import annotations

import hashlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from ava_audit.errors import StaleOwner, StoreUnavailable
from ava_audit.events import (
    AssistantMessage,
    CostReserved,
    Ending,
    ErrorOccurred,
    Event,
    ExtendedThinking,
    Fact,
    Fence,
    RunEnded,
    RunStarted,
    SubagentComplete,
    ToolResult,
    Who,
)
from ava_audit.redact import Redactor
from ava_audit.store import Command, Outcome, Store, T
from ava_audit.view import RunRow, View
from ava_roles.tools.base import Place, Tool
from ava_server.acting import Acting
from ava_server.approval import AGENT
from ava_server.budget import Asked, CapReached, DayCaps, Reservation, reserve, settlement_event
from ava_server.errors import ModelError
from ava_server.history import History, Recipe
from ava_server.models.base import Bound, Completion, Model, Request
from ava_server.prices import reserve_micros
from ava_server.result import Drafts, Ended, build_result
from ava_server.run_config import RunConfig
from ava_server.submit import NAME as SUBMIT
from ava_server.submit import SubmitArgs, accept

log = logging.getLogger("ava.loop")
_FAULT = "a fault of Ava itself"
_REPORT = "Report it with the entries of this run: `ava logs export --run`."

WRAP_S = 30.0
"""Seconds of a run's time, a fifth of it at most, that the wrap-up has for itself."""
WRAP_OUTPUT = 1_024
WRAP_PROMPT = 1_280
"""What a wrap-up's prompt has beyond this prompt and this answer: its notice, and a line for each later result."""
LEAST_OUTPUT = 512
ATTEMPTS = 4
UNKNOWN_ATTEMPTS = 2
REPAIRS = 2
MOST_CALLS = 16
"""Tool calls of one answer that are run; the wrap-up's bound has room for as many lines."""
TRIM_SHARE, TRIM_TO = 0.7, 0.5
"""Trimming begins at 70 % of the room and ends at 50 %, so that it is rare: each one costs the provider's cache."""
MESSAGES = ("UserMessage",)
END_S = 10.0
LIVE_EVERY_S = 0.4


def _nothing(_ended: bool) -> None:
    """Close nothing."""


@dataclass(frozen=True)
class Prepared:
    """Everything that a claimed run works with.

    Attributes:
        started: The prefix for a new run; a resumed one keeps the one that its log has.
        window: Tokens that the model's context holds.
        artifacts: Lists the files that the run has handed over.
        close: Lets go of folders; of an ended run it also removes what was only the run's own.
    """

    model: Model
    started: RunStarted
    tools: Mapping[str, Tool]
    place: Place
    redactor: Redactor
    scratch: Path
    caps: DayCaps
    window: int
    artifacts: Callable[[], list[dict[str, Any]]] = field(default=list)
    close: Callable[[bool], None] = field(default=_nothing)


@dataclass(frozen=True)
class _Cap:
    """Why the next turn is the last one: the ending that it leads to, and the cap's name."""

    status: Ending
    reason: str


class AgentRun:
    """One run in the hands of its owner."""

    def __init__(self, store: Store, run: RunRow, who: Who, history: History, prepared: Prepared) -> None:
        self.id = run.id
        self.activity = "Starting"
        self.scope = anyio.CancelScope()
        self.cancelled_because: str | None = None
        self.done = False
        self._store = store
        self._run = run
        self._config = RunConfig.model_validate_json(run.config)
        self._price = self._config.to_price()
        self._who = who
        self._fence = Fence(run.id, run.generation)
        self._prepared = prepared
        self._model = prepared.model
        self._history = history
        self._drafts = Drafts()
        self._began = time.monotonic() - run.active_us / 1_000_000
        self._cap: _Cap | None = None
        self._repairs = 0
        self._empty = 0
        self._nudge: str | None = None
        self._live_at = 0.0
        self._acting = Acting(
            tools=prepared.tools,
            place=prepared.place,
            history=self._history,
            record=self._record,
            redactor=prepared.redactor,
            scratch=prepared.scratch,
            nonce=(history.prefix or prepared.started).nonce,
            max_calls=self._config.max_tool_calls,
            say=self.say,
        )

    # -- the run --------------------------------------------------------------------------------------------------

    async def drive(self, seconds_left: float | None = None) -> None:
        """Take the run to its end, and record it. A cancellation from outside leaves it for another owner.

        Args:
            seconds_left: What a clock that covers more than this run (a group's) still allows.
        """
        try:
            ended = await self._to_the_end(seconds_left)
            with anyio.CancelScope(shield=True), anyio.move_on_after(END_S):
                await self._end(ended)
                self.done = True
        except StaleOwner as stale:
            log.info("%s: %s; left to its new owner", self.id, stale)

    def cancel(self, reason: str) -> None:
        """End the run as cancelled, whatever it is doing; twice is harmless."""
        if self.cancelled_because is None:
            self.cancelled_because = reason
            self.scope.cancel()

    def say(self, sentence: str) -> None:
        """Show what is being done this second."""
        self.activity = sentence[:80]
        self._live_at = time.monotonic()
        self._store.set_live(self.id, self.activity)

    @property
    def active_s(self) -> float:
        """Seconds that the run has been active, over all its claims."""
        return time.monotonic() - self._began

    async def _to_the_end(self, seconds_left: float | None) -> Ended:
        timeout = self._config.timeout_s
        left = timeout - self.active_s
        cap = _Cap("timeout", f"timeout of {timeout:g} s")
        if seconds_left is not None and seconds_left < left:
            left, cap = seconds_left, _Cap("timeout", "the group's timeout")
        work_s = max(left - min(WRAP_S, timeout / 5), 0.0)  # what is left of it after the work is the wrap-up's
        with self.scope:
            try:
                return await self._within(work_s, left, cap)
            except StaleOwner:
                raise
            except Exception as error:  # a bug of ours ends this run, on the record, and no other
                log.exception("%s failed", self.id)
                text = f"{type(error).__name__}: {error}"
                turn = self._history.turn
                await self._record(ErrorOccurred(error=text, kind="internal", what_to_do=_REPORT, turn=turn))
                return Ended("error", _FAULT, error_kind="internal", error_message=text, what_to_do=_REPORT)
        return Ended("cancelled", self.cancelled_because or "cancelled")

    async def _within(self, work_s: float, left_s: float, cap: _Cap) -> Ended:
        """Work for `work_s` seconds; when they are over, wrap up in what is left of `left_s`."""
        if self._history.prefix is None:
            await self._record(self._prepared.started)
        with anyio.move_on_after(work_s):
            return await self._work()
        self._cap = self._cap or cap
        with anyio.move_on_after(max(left_s - work_s, 0.0)):
            await self._close_open_calls()
            return await self._turns()
        return Ended(self._cap.status, self._cap.reason)

    async def _work(self) -> Ended:
        ended = await self._take_up()
        return ended if ended is not None else await self._turns()

    async def _take_up(self) -> Ended | None:
        """Finish the turn that a crash cut off: its answer is in the log, but not all that follows from it."""
        history = self._history
        said, open_calls = history.answer, history.open_calls()
        if said is None or not history.answered or (history.calls and not open_calls):
            return None
        if not history.calls or any(call.name == SUBMIT for call in open_calls):
            return await self._act(Completion(text=said.text, calls=open_calls, raw=said.raw or {}, usage=None))
        for call in open_calls:
            await self._acting.resume(call)
        return None

    async def _turns(self) -> Ended:
        while True:
            await self._drain()
            asked = await self._reserve()
            if isinstance(asked, Ended):
                return asked
            answer = await self._ask(*asked)
            if answer is None:
                continue
            ended = answer if isinstance(answer, Ended) else await self._act(answer)
            if ended is not None:
                return ended

    async def _drain(self) -> None:
        """Take up what others wrote about this run since it last looked: messages to it."""
        after = self._history.last_message_seq
        entries = await self._hold(lambda: self._store.read(lambda view: view.entries(self.id, after, MESSAGES)))
        for entry in entries:
            if entry.fact is not None:
                self._history.add(entry.seq, entry.fact)

    # -- reserve --------------------------------------------------------------------------------------------------

    async def _reserve(self) -> tuple[Reservation, Request] | Ended:
        """Hold the next call's worst case, smaller or as the wrap-up if that is all that fits."""
        history = self._history
        turn = history.turn + 1 if history.answered else history.turn
        attempt = 1 if history.answered else history.attempt + 1
        most = self._config.max_output
        said = self._notice() if attempt == 1 else None
        while True:
            cap = self._cap or self._last_turn(turn)
            output = WRAP_OUTPUT if cap else most
            recipe = self._recipe(cap, said)
            request = history.request(recipe, output)
            asked = self._asked(request, recipe, turn, attempt, wrap_up=cap is not None)
            answer = await self._do(reserve(self._fence, self._who, asked, self._prepared.caps))
            if isinstance(answer, Reservation):
                history.add(answer.seq, _reserved(answer))
                return answer, request
            if cap is not None:  # not even the wrap-up fits: the run ends with what it has
                return Ended(cap.status, cap.reason)
            smaller = self._fitting(asked, answer)
            if smaller is None or smaller >= most:
                self._cap = _Cap(answer.status, _cap_words(answer))
            else:
                most = smaller

    def _last_turn(self, turn: int) -> _Cap | None:
        if turn >= self._config.max_iterations:
            return _Cap("iteration_limit", f"max_iterations of {self._config.max_iterations}")
        if self._history.tool_calls >= self._config.max_tool_calls:
            return _Cap("tool_limit", f"max_tool_calls of {self._config.max_tool_calls}")
        return None

    def _notice(self) -> str | None:
        nudge, self._nudge = self._nudge, None
        return nudge or self._eighty()

    def _recipe(self, cap: _Cap | None, notice: str | None) -> Recipe:
        history = self._history
        upto = history.last_message_seq
        if cap is not None:
            # The notice is said once: a second attempt of the wrap-up finds it in the history.
            said = "wrap_up" in history.told
            return Recipe(upto, history.fresh_results(), None if said else _last_words(cap))
        return Recipe(upto, self._trimmed(upto), notice)

    def _eighty(self) -> str | None:
        """Return the notice at 80 % of a cap, once for each cap."""
        config, run = self._config, self._run
        used = {
            "time": (self.active_s, config.timeout_s, f"{config.timeout_s - self.active_s:.0f} s"),
            "turns": (self._history.turn, config.max_iterations, f"{config.max_iterations - self._history.turn} turns"),
            "tool calls": (
                self._history.tool_calls,
                config.max_tool_calls,
                f"{config.max_tool_calls - self._history.tool_calls} tool calls",
            ),
            "tokens": (run.tokens, config.max_tokens, f"{config.max_tokens - run.tokens} tokens"),
            "money": (
                run.cost_micros,
                config.max_cost_micros,
                f"${(config.max_cost_micros - run.cost_micros) / 1e6:.2f}",
            ),
        }
        near = [
            name
            for name, (have, cap, _left) in used.items()
            if have >= 0.8 * cap and f"left:{name}" not in self._history.told
        ]
        if not near:
            return None
        self._history.told.update(f"left:{name}" for name in near)
        left = ", ".join(used[name][2] for name in near)
        return f"Left of your limits: {left}. Come to an end; call submit_result in time."

    def _trimmed(self, upto: int) -> tuple[int, ...]:
        """Return the oldest tool results to leave out, when the prompt passes 70 % of the window or the tokens left."""
        elidable = self._history.elidable()
        if not elidable:
            return ()
        room = int(TRIM_SHARE * min(self._prepared.window, max(self._config.max_tokens - self._run.tokens, 0)))
        elide: list[int] = []
        recipe = Recipe(upto)
        bound = self._model.bound(self._history.request(recipe, LEAST_OUTPUT), self._history.known).prompt_tokens
        if bound <= room:
            return ()
        for seq, saved in elidable:
            if bound <= room * TRIM_TO / TRIM_SHARE:
                break
            elide.append(seq)
            bound -= saved // 4  # a modest guess of what it frees; the reservation uses the real bound
        return tuple(elide)

    def _asked(self, request: Request, recipe: Recipe, turn: int, attempt: int, *, wrap_up: bool) -> Asked:
        bound = self._model.bound(request, self._history.known)
        if recipe.elide:  # what was reported covers what is now left out: both are upper bounds, the lower one holds
            bound = min(bound, self._model.bound(request, None), key=lambda both: both.prompt_tokens)
        prompt, output = bound.prompt_tokens, request.max_output
        wrap = Bound(prompt + output + WRAP_PROMPT, WRAP_OUTPUT)
        return Asked(
            turn=turn,
            attempt=attempt,
            micros=reserve_micros(self._price, bound),
            wrap_micros=0 if wrap_up else reserve_micros(self._price, wrap),
            tokens=prompt + output,
            wrap_tokens=0 if wrap_up else wrap.prompt_tokens + wrap.output_tokens,
            prompt_tokens=prompt,
            max_output=output,
            upto_seq=recipe.upto_seq,
            elide=recipe.elide,
            notice=recipe.notice,
            wrap_up=wrap_up,
            request_sha=hashlib.sha256(self._model.encode(request)).hexdigest(),
        )

    def _fitting(self, asked: Asked, reached: CapReached) -> int | None:
        """Return the most output tokens with which the pair fits what is left, None below the least that is useful."""
        low, high = LEAST_OUTPUT, asked.max_output - 1
        best = None
        while low <= high:
            middle = (low + high) // 2
            prompt = asked.prompt_tokens
            wrap = Bound(prompt + middle + WRAP_PROMPT, WRAP_OUTPUT)
            if reached.cap == "max_tokens":
                need = prompt + middle + wrap.prompt_tokens + wrap.output_tokens
            else:
                need = reserve_micros(self._price, Bound(prompt, middle)) + reserve_micros(self._price, wrap)
            if need <= reached.left:
                best, low = middle, middle + 1
            else:
                high = middle - 1
        return best

    # -- ask and settle -------------------------------------------------------------------------------------------

    async def _ask(self, reserved: Reservation, request: Request) -> Completion | Ended | None:
        """Make one attempt and settle it; None when another attempt shall follow."""
        began = time.monotonic()
        self.say("Thinking")
        heard = 0
        try:
            async with self._model.stream(request) as stream:
                async for delta in stream:
                    heard += len(delta.text) + len(delta.thinking)
                    if time.monotonic() - self._live_at > LIVE_EVERY_S:
                        self.say(f"Thinking ({heard // 4} tokens)")
            completion = stream.completion
        except ModelError as error:
            return await self._failed(reserved, error, _since(began))
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True), anyio.move_on_after(3):
                await self._settle(reserved, "unknown", took_ms=_since(began))
            raise
        asked = reserved.asked
        usage = completion.usage
        event, _spend = settlement_event(
            self._fence, self.id, self._who, self._config.model, self._price,
            turn=asked.turn, attempt=asked.attempt, reserved_micros=asked.micros, reserved_tokens=asked.tokens,
            settlement="billed" if usage is not None else "unknown", usage=usage,
            reported_micros=completion.cost_micros, request_id=completion.request_id, duration_ms=_since(began),
        )  # fmt: skip
        said = AssistantMessage(
            text=completion.text,
            turn=asked.turn,
            attempt=asked.attempt,
            raw=dict(completion.raw),
            calls=tuple(
                {"call_id": call.call_id, "name": call.name, "args": call.args, "raw_args": call.raw_args}
                for call in completion.calls
            ),
            stop_reason=completion.stop_reason,
            request_id=completion.request_id,
            notes=completion.notes,
        )
        events = [event, self._event(said, model=self._config.model)]
        thinking = _thinking_of(completion.raw)
        if thinking:
            events.append(self._event(ExtendedThinking(thinking=thinking, turn=asked.turn)))
        await self._append(events)
        return completion

    async def _failed(self, reserved: Reservation, error: ModelError, took_ms: int) -> Ended | None:
        """Settle a failed attempt, and wait for the next one if there is any point in it."""
        refused = error.kind in ("auth", "rate_limit", "overloaded", "bad_request", "usage_limit")
        settlement = "not_billed" if not error.sent or (refused and not error.answered) else "unknown"
        asked = reserved.asked
        fact = ErrorOccurred(
            error=str(error), kind=error.kind, what_to_do=error.what_to_do, turn=asked.turn, attempt=asked.attempt
        )
        await self._settle(reserved, settlement, took_ms=took_ms, also=fact)
        tried_enough = asked.attempt >= ATTEMPTS or self._history.unknown_attempts >= UNKNOWN_ATTEMPTS
        wait_s = error.again_after_s if error.again_after_s is not None else _back_off(asked.attempt)
        left = self._config.timeout_s - self.active_s
        if error.retryable and not tried_enough and wait_s < left:
            self.say(f"Waiting {wait_s:.0f} s for the model")
            await anyio.sleep(wait_s)
            return None
        reason = f"the model failed {asked.attempt} times" if asked.attempt > 1 else "the model failed"
        return Ended("error", reason, error_kind=error.kind, error_message=str(error), what_to_do=error.what_to_do)

    async def _settle(self, reserved: Reservation, settlement: Any, *, took_ms: int, also: Fact | None = None) -> None:
        asked = reserved.asked
        event, _spend = settlement_event(
            self._fence, self.id, self._who, self._config.model, self._price,
            turn=asked.turn, attempt=asked.attempt, reserved_micros=asked.micros, reserved_tokens=asked.tokens,
            settlement=settlement, duration_ms=took_ms,
        )  # fmt: skip
        await self._append([event] if also is None else [event, self._event(also)])

    # -- act ------------------------------------------------------------------------------------------------------

    async def _act(self, completion: Completion) -> Ended | None:
        """Do what the answer asks for; an ending when a result was handed over, or nothing more can be."""
        submit = next((call for call in completion.calls if call.name == SUBMIT), None)
        if submit is not None:
            accepted = accept(submit, self._config.output_schema)
            if isinstance(accepted, SubmitArgs):
                await self._record(
                    ToolResult(
                        tool=SUBMIT, success=True, output="accepted", call_id=submit.call_id, turn=self._history.turn
                    )
                )
                return self._handed_over(accepted)
            return await self._repair(completion, submit.call_id, submit.args or submit.raw_args, accepted)
        if not completion.calls:
            return await self._plain(completion.text)
        if self._cap is not None or self._last_turn(self._history.turn) is not None:
            cap = self._cap or self._last_turn(self._history.turn)
            assert cap is not None
            for call in completion.calls:
                await self._acting.refuse(call, "the limits are reached, only submit_result was accepted")
            return Ended(cap.status, cap.reason)
        await self._acting.run(completion.calls[:MOST_CALLS])
        for call in completion.calls[MOST_CALLS:]:
            await self._acting.refuse(call, f"more than {MOST_CALLS} calls at once; ask again")
        if self._acting.looping:
            return Ended("guardrail", "the same tool call with the same result, 20 times")
        return None

    def _handed_over(self, submitted: SubmitArgs) -> Ended:
        cap = self._cap or self._last_turn(self._history.turn)
        if cap is not None:
            return Ended(cap.status, cap.reason, submitted)
        return Ended("success", "the subagent handed over its result", submitted)

    async def _plain(self, text: str) -> Ended | None:
        """Take plain text instead of the call as the output; an empty answer is asked for again, at most twice."""
        if text.strip():
            if self._config.output_schema is not None:
                return Ended(
                    "error", "plain text where a result in a given form was asked for",
                    error_kind="bad_output", error_message=text[:4_000],
                    what_to_do="Ask again, or leave output_schema out.",
                )  # fmt: skip
            first = next(line for line in text.splitlines() if line.strip())
            return self._handed_over(SubmitArgs(summary=first, output=text))
        self._empty += 1
        if self._cap is not None or self._empty > REPAIRS:
            cap = self._cap
            if cap is not None:
                return Ended(cap.status, cap.reason)
            return Ended(
                "error", "the model answered with nothing", error_kind="bad_answer",
                error_message="three empty answers", what_to_do="Try another model.",
            )  # fmt: skip
        self._nudge = "Your answer was empty. Go on with a tool call, or call submit_result with what you have."
        return None

    async def _repair(self, completion: Completion, call_id: str, draft: Any, fault: str) -> Ended | None:
        """Tell the model what is wrong with its result; after two repairs the run ends with the raw draft kept."""
        self._drafts.submitted.append(draft)
        self._repairs += 1
        for call in completion.calls:
            await self._acting.refuse(call, fault if call.call_id == call_id else "a result was handed over with it")
        cap = self._cap or self._last_turn(self._history.turn)
        if cap is not None:
            return Ended(cap.status, cap.reason)
        if self._repairs > REPAIRS:
            return Ended(
                "error", "the result could not be brought into the form asked for", error_kind="bad_output",
                error_message=fault, what_to_do="Ask again with a simpler output_schema, or without one.",
            )  # fmt: skip
        return None

    async def _close_open_calls(self) -> None:
        """Answer calls that the deadline cut off, so that the wrap-up's history is whole."""
        if self._history.answered:
            for call in self._history.open_calls():
                await self._acting.refuse(call, "the time for tools is over")

    # -- record and end -------------------------------------------------------------------------------------------

    async def _end(self, ended: Ended) -> None:
        """Record the ending and its result under the claim."""
        run = await self._hold(lambda: self._store.read(lambda view: view.run(self.id)))
        assert run is not None
        artifacts = self._prepared.artifacts()
        result = build_result(run, self._history, ended, self._drafts, artifacts, self.active_s)
        await self._append(list(ending_events(run, result, ended, self._who, self._fence, round(self.active_s * 1e6))))

    async def _record(self, *facts: Fact, duration_ms: int | None = None) -> None:
        await self._append([self._event(fact, duration_ms=duration_ms) for fact in facts])

    def _event(self, fact: Fact, *, duration_ms: int | None = None, model: str | None = None) -> Event:
        return Event(who=self._who, fact=fact, fence=self._fence, duration_ms=duration_ms, model=model)

    async def _append(self, events: Sequence[Event]) -> None:
        """Commit events under the claim, then fold them; the store's answer carries the state of the run."""
        first, run = await self._do(_append(tuple(events), self.id))
        if run is not None:
            self._run = run
        for number, event in enumerate(events):
            self._history.add(first + number, event.fact, event.usage)

    async def _do(self, command: Command[T]) -> T:
        return await self._hold(lambda: self._store.do(command))

    async def _hold(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask the store; while it is out of reach the run holds still, until its time ends."""
        wait_s = 0.2
        while True:
            try:
                return await ask()
            except StoreUnavailable as error:
                self.activity = f"On hold: {error}"[:80]
                log.warning("%s holds still: %s", self.id, error)
                await anyio.sleep(wait_s)
                wait_s = min(wait_s * 2, 5.0)


def ending_events(
    run: RunRow, result: dict[str, Any], ended: Ended, who: Who, fence: Fence | None, active_us: int
) -> tuple[Event, Event]:
    """Return the two entries of an ending: its words, which can be erased, and what a reducer needs, which stays."""
    complete = SubagentComplete(
        status=ended.status,
        summary=str(result["untrusted_result"]["summary"]),
        tokens=run.tokens,
        cost_cents=run.cost_micros / 10_000,
        duration=round(active_us / 1e6, 1),
        subagent_id=run.id,
        result=result,
    )
    done = RunEnded(
        status=ended.status, stop_reason=ended.stop_reason, error_kind=ended.error_kind, active_us=active_us
    )
    ava = Who(who.session_id, AGENT, who.user_id)
    return (
        Event(ava, complete, run_id=run.id, fence=fence, model=run.model),
        Event(who, done, run_id=run.id, fence=fence),
    )


def _append(events: tuple[Event, ...], run_id: str) -> Command[tuple[int, RunRow | None]]:
    def command(view: View, now_us: int) -> Outcome[tuple[int, RunRow | None]]:
        return Outcome((view.head() + 1, view.run(run_id)), events)

    return command


def _reserved(reservation: Reservation) -> Fact:
    asked = reservation.asked
    return CostReserved(
        turn=asked.turn,
        attempt=asked.attempt,
        scopes=reservation.scopes,
        micros=asked.micros,
        wrap_micros=asked.wrap_micros,
        prompt_tokens=asked.prompt_tokens,
        max_output=asked.max_output,
        upto_seq=asked.upto_seq,
        elide=asked.elide,
        notice=asked.notice,
        wrap_up=asked.wrap_up,
        request_sha=asked.request_sha,
    )


def _last_words(cap: _Cap) -> str:
    return (
        f"This is the last turn: {cap.reason} is reached. Only submit_result is accepted now. Call it with what you"
        " have, and say in caveats what is missing."
    )


def _cap_words(reached: CapReached) -> str:
    words = {
        "max_cost_cents": "the run's max_cost_cents",
        "max_tokens": "the run's max_tokens",
        "group_max_cost": "the group's group_max_cost_cents",
        "user_daily_cents": "the user's budget of the day",
        "installation_daily_cents": "the installation's budget of the day",
        "overrun": "a call that cost more than it could, by the provider's own limits",
    }
    return words[reached.cap]


def _thinking_of(raw: Mapping[str, Any]) -> str:
    """Return the readable thinking in a provider's message."""
    for key in ("reasoning_content", "reasoning"):
        if isinstance(raw.get(key), str):
            return str(raw[key])
    return ""


def _back_off(attempt: int) -> float:
    """Return a jittered wait in seconds that doubles with each attempt: about 1, 2, 4."""
    return float(2 ** (attempt - 1)) * random.uniform(0.75, 1.25)  # noqa: S311


def _since(began: float) -> int:
    return round((time.monotonic() - began) * 1000)
