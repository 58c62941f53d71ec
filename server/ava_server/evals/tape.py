"""A recording as a model, as tools and as a clock: what the loop of a run asks for is answered from it."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NoReturn, cast

import anyio

from ava_audit.entries import Entry
from ava_audit.errors import StoreUnavailable
from ava_audit.events import (
    Asked,
    AssistantMessage,
    CancelRequested,
    CostReserved,
    CostUpdate,
    ErrorOccurred,
    Fact,
    RunClaimed,
    RunPaused,
    RunStarted,
    ToolCall,
    ToolResult,
    Usage,
    UserMessage,
    WorkChecked,
    WorktreeReady,
)
from ava_audit.redaction import Redactor, RunRedactor
from ava_roles.placeholders import InjectedSecret, has_placeholder
from ava_roles.tool import Tool, ToolContext, ToolOutput, ToolSpec
from ava_roles.wrap import seen_offsets
from ava_server.core.errors import ModelError, ModelErrorKind
from ava_server.evals.recording import Recording
from ava_server.models.base import (
    AssistantTurn,
    Bound,
    Completion,
    Model,
    ReportedUsage,
    Request,
    SendCheck,
    ToolUse,
    Turn,
    unchecked,
)
from ava_server.models.offline import LocalStream
from ava_server.models.prices import Price, cost_micros
from ava_server.models.wires.wire import tool_use
from ava_server.run_config.parts import Coding
from ava_server.runs.coder.coding import CodingWork
from ava_server.runs.journal.log import RunLog
from ava_server.runs.record.changes import KeptChanges
from ava_server.runs.record.costs import turn_chars
from ava_server.runs.record.history import History, Recipe
from ava_server.runs.record.result import RunResult
from ava_server.runs.turn.context import SecretInjection, SecretRefused
from ava_server.runs.turn.loop import AgentRun
from ava_server.runs.turn.model_call import PAUSE_FROM_S
from ava_server.runs.turn.run_tools import sources_of

PAUSES = (RunPaused, Asked)
TIME_OVER = "the time for tools is over"
_LEFT = re.compile(r"(\d{1,9}) s\b")
_CUT = re.compile(r"\n\[cut at (\d{1,7}) of \d+ characters; [^\n]*\]\Z")
_WARNINGS = re.compile(r"(?:\n\[this is the 3rd time [^\n]*\]|\n\[the 3rd edit [^\n]*\])+\Z")
_HOLE = re.compile(r"\n\[… (\d{1,7}) characters left out here …\]\n")
_REMOVED = re.compile(r' invisible_characters_removed="(\d{1,7})"')
_INVISIBLE = "\u200b"
MOST_CHARS = 10_000_000
"""No tool returns more: a file that says so gets no such text."""
_UNKNOWN_SEQ = 1_000_000_000
"""From here on are the results that the recording does not have."""


Key = tuple[int, int]


@dataclass
class TapeAttempt:
    """One recorded call of the model.

    Attributes:
        settled: Its settlement, with its usage and cost in `paid`.
        said: The answer; None where none came.
        error: Why none came, where that is known.
    """

    entry: Entry
    reserved: CostReserved
    settled: CostUpdate | None = None
    paid: Entry | None = None
    said: AssistantMessage | None = None
    error: ErrorOccurred | None = None

    @property
    def key(self) -> Key:
        """Its turn and attempt."""
        return self.reserved.turn, self.reserved.attempt

    @property
    def usage(self) -> Usage | None:
        """The tokens that the provider reported; None where it did not."""
        if self.settled is None or self.paid is None or self.paid.usage is None:
            return None
        return self.paid.usage.model_copy(update={"thinking_tokens": self.settled.thinking_tokens})

    @property
    def named(self) -> Mapping[str, str]:
        """What the answer named of its tier and its place."""
        if self.settled is None:
            return {}
        return self.settled.named

    @property
    def cost_micros(self) -> int | None:
        """What was paid; None where it is not settled."""
        if self.paid is None:
            return None
        return self.paid.cost_micros

    @property
    def settlement(self) -> str | None:
        if self.settled is None:
            return None
        return self.settled.settlement


@dataclass(frozen=True)
class TapeResult:
    """One recorded result of a tool: its entry, and what that says."""

    entry: Entry
    fact: ToolResult


class Tape:
    """A recording, by what the loop asks for.

    Attributes:
        attempts: The calls of the model, by turn and attempt. `searches`: those for a tool call, by turn and call.
        requests: What the replay has asked for, by turn and attempt. `changed`: where that is not what was recorded.
        notes: Where the replay does what the recorded run did not, in sentences.
        ended: Why the recording does not go on; empty while it does.
        same_model: It is the model of the recorded run, in the same format.
    """

    def __init__(self, recording: Recording, price: Price, *, same_model: bool) -> None:
        self.recording = recording
        self.attempts: dict[Key, TapeAttempt] = {}
        self.searches: dict[tuple[int, str], TapeAttempt] = {}
        self.results: dict[tuple[int, str], TapeResult] = {}
        self.claims = [entry for entry in recording.entries if isinstance(entry.fact, RunClaimed)]
        self.requests: dict[Key, Request] = {}
        self.changed: list[Key] = []
        self.notes: list[str] = []
        self.ended = ""
        self.run: AgentRun | None = None
        self.history = History("")
        self.scope = anyio.CancelScope()
        self.same_model = same_model
        self._price = price
        self._recorded: dict[Key, Request] | None = None
        self._claim = 0
        self._now_us = self._zero_us = self._before_us = 0
        self._pauses: dict[int | None, int] = {}
        unsettled: TapeAttempt | None = None
        for entry in recording.entries:
            match entry.fact:
                case CostReserved() as fact:
                    unsettled = TapeAttempt(entry, fact)
                    if fact.tool_call is not None:
                        self.searches[fact.turn, fact.tool_call] = unsettled
                    else:
                        self.attempts[fact.turn, fact.attempt] = unsettled
                case CostUpdate() as fact if unsettled is not None and unsettled.key == (fact.turn, fact.attempt):
                    unsettled.settled, unsettled.paid = fact, entry
                case AssistantMessage() as fact if attempt := self._attempt_of(entry, fact.turn, fact.attempt):
                    attempt.said = fact
                case ErrorOccurred() as fact if attempt := self._attempt_of(entry, fact.turn, fact.attempt):
                    attempt.error = fact
                case ToolResult() as fact if entry.generation is not None and fact.call_id is not None:
                    self.results[fact.turn or 0, fact.call_id] = TapeResult(entry, fact)
                case RunPaused() | Asked():
                    self._pauses.setdefault(entry.generation, entry.seq)
                case _:
                    pass

    def _attempt_of(self, entry: Entry, turn: int | None, attempt: int | None) -> TapeAttempt | None:
        if entry.generation is None:
            return None
        return self.attempts.get((turn or 0, attempt or 0))

    # -- claims and the clock -----------------------------------------------------------------------------------------

    def take(self, claim: int, active_us: int) -> None:
        """Begin with what one process did of the run, which the replay's log says was active for `active_us` so far.

        A run subtracts that from the clock as it is made: once it is, `begin` is called.
        """
        self._claim = claim
        self._now_us = self.claims[claim].ts_us
        self._before_us = self._active_before(claim)
        self._zero_us = self._now_us - active_us + self._before_us

    def begin(self) -> None:
        """Go on with the clock as the run reads it: it has been active for as long as the recorded one."""
        self._zero_us = self._now_us

    @property
    def generation(self) -> int:
        """The claim that is played, as the recording counts."""
        return _generation(self.claims[self._claim])

    def go_on(self, generation: int) -> None:
        """Go on under this claim with what was recorded under another one: the run did not pause here."""
        for number, claim in enumerate(self.claims):
            if _generation(claim) == generation:
                self._claim = number
                return

    @property
    def pause_seq(self) -> float:
        """The place of the pause that the recorded run made under this claim; endless without one."""
        return self._pauses.get(self.generation, math.inf)

    @property
    def paused(self) -> bool:
        return self.pause_seq < math.inf

    @property
    def has_more_claims(self) -> bool:
        """Whether another process took the run after this claim, to work on it."""
        for claim in self.claims[self._claim + 1 :]:
            if isinstance(claim.fact, RunClaimed) and claim.fact.reason != "cancel":
                return True
        return False

    def _active_before(self, number: int) -> int:
        """Return for how long the recorded run was active before a claim, in microseconds."""
        total_us = 0
        for claim, next_claim in pairwise(self.claims[: number + 1]):
            paused_us: int | None = None
            end_us = claim.ts_us
            for entry in self.recording.entries:
                if claim.seq < entry.seq < next_claim.seq and entry.generation:
                    end_us = entry.ts_us
                    if isinstance(entry.fact, PAUSES):
                        paused_us = entry.fact.active_us
            if paused_us is not None:  # a pause says how long it was in all
                total_us = paused_us
            else:
                total_us += max(end_us - claim.ts_us, 0)
        return total_us

    def clock(self) -> float:
        return (self._now_us - self._zero_us) / 1e6

    def at(self, attempt: TapeAttempt, timeout_s: float) -> None:
        """Set the clock to when a call of the model was reserved."""
        self._now_us = attempt.entry.ts_us
        if "left:time" not in attempt.reserved.notices:
            return
        notice = _LEFT.search(attempt.reserved.notice or "")
        if notice is not None:  # by the milliseconds between the notice and its entry, it would tell another second
            left_s = int(notice[1])
            self._now_us = self._zero_us - self._before_us + round((timeout_s - left_s) * 1e6)

    # -- the model ----------------------------------------------------------------------------------------------------

    async def answer(self, model: Model, request: Request) -> Completion:
        """Return the recorded answer to the call that was reserved last.

        Raises:
            ModelError: The recorded call failed.
            StoreUnavailable: It was not sent.
        """
        key = self.history.turn, self.history.attempt
        attempt = self.attempts.get(key)
        self.requests[key] = request
        if attempt is None:
            self.changed.append(key)
            await self._end_unanswered(key[0], attempt)
        unchanged = self._is_same(key, attempt, model, request)
        if not unchanged:
            self.changed.append(key)
        message = attempt.said
        if message is None:
            await self._end_unanswered(key[0], attempt)
        calls = tuple(tool_use(call["call_id"], call["name"], call["raw_args"]) for call in message.calls)
        raw: Mapping[str, Any] | None = message.raw
        if not self.same_model:
            raw = model.assistant_message(message.text or None, calls)
        usage = attempt.usage
        if not unchanged:
            usage = self._scale_usage(key, usage, request)
        return Completion(
            text=message.text,
            calls=calls,
            raw=raw or {},
            usage=usage,
            cost_micros=self._reported_cost(attempt, usage),
            stop_reason=message.stop_reason,
            request_id=message.request_id,
            notes=message.notes,
            named=attempt.named,
        )

    async def _end_unanswered(self, turn: int, attempt: TapeAttempt | None) -> NoReturn:
        """Do what the recorded run did where no answer came; see `answer`."""
        if attempt is not None and attempt.error is not None:
            error = self._error(attempt, attempt.error)
            if not error.retryable and self.recording.ended_from_outside:
                await self.leave()  # before it was tried again
            raise error
        if attempt is None or attempt.settled is None:
            await self.stop(f"the recording has no answer of turn {turn}")
        if attempt.settled.settlement == "not_billed":
            raise StoreUnavailable("the log was out of reach in the recorded run")
        await self._lost(attempt.entry)

    def _is_same(self, key: Key, attempt: TapeAttempt, model: Model, request: Request) -> bool:
        if self.same_model and hashlib.sha256(model.encode(request)).hexdigest() == attempt.reserved.request_sha:
            return True
        if self.same_model and not self.recording.redacted:
            return False  # in the same format and without a redacted secret, the same request has the same bytes
        before = self.recorded(key)
        return before is not None and self.comparable(before) == self.comparable(request)

    def comparable(self, request: Request) -> tuple[Any, ...]:
        """Return what a replay compares of a request; of another model, not how the answers are written."""
        turns: list[Turn | str] = []
        for turn in request.turns:
            if isinstance(turn, AssistantTurn) and not self.same_model:
                turns.append("an answer")
            else:
                turns.append(turn)
        tools = {tool.name: tool.as_dict() for tool in request.tools}
        return request.system, tools, turns, request.max_output, request.thinking

    def recorded(self, key: Key) -> Request | None:
        """Return the request of a recorded call, from the recording alone; None where there was none."""
        if self._recorded is None:
            history = History("")
            requests: dict[Key, Request] = {}
            for entry in self.recording.entries:
                fact = entry.fact
                if isinstance(fact, CostReserved) and fact.tool_call is None and history.prefix is not None:
                    recipe = Recipe.of(fact)
                    requests[fact.turn, fact.attempt] = history.request(recipe, fact.max_output, fact.thinking)
                if fact is not None:
                    history.add(entry.seq, fact, entry.usage, fenced=entry.generation is not None)
            self._recorded = requests
        return self._recorded.get(key)

    def _scale_usage(self, key: Key, usage: Usage | None, request: Request) -> Usage | None:
        """Return the tokens of a call whose request differs: its prompt's grow and shrink with its bytes."""
        before = self.recorded(key)
        if usage is None or before is None:
            return usage
        ratio = _size(request) / max(_size(before), 1)
        prompt_tokens = {
            "input_tokens": round(usage.input_tokens * ratio),
            "cache_read_tokens": round(usage.cache_read_tokens * ratio),
            "cache_write_tokens": round(usage.cache_write_tokens * ratio),
        }
        return usage.model_copy(update=prompt_tokens)

    def _reported_cost(self, attempt: TapeAttempt, usage: Usage | None) -> int | None:
        """Return what the provider would report as the cost, in micro-USD; None where it reports none."""
        paid = attempt.cost_micros
        if attempt.settled is None or attempt.settled.price_source != "provider" or not paid:
            return None
        if not self.same_model or self._price != self.recording.config.price:
            return None
        recorded_usage = attempt.usage
        if recorded_usage is None or usage is None or recorded_usage == usage:
            return paid
        recorded_cost = cost_micros(self._price, recorded_usage)
        if not recorded_cost:
            return paid
        return round(paid * cost_micros(self._price, usage) / recorded_cost)

    def _error(self, attempt: TapeAttempt, error: ErrorOccurred) -> ModelError:
        """Return the recorded error, so that the run does after it what it did: another attempt, a pause, its end."""
        turn, number = attempt.reserved.turn, attempt.reserved.attempt
        has_next_attempt = (turn, number + 1) in self.attempts
        pauses = self._pauses_after(attempt.entry)
        again_after_s = 0.0
        if pauses:
            again_after_s = PAUSE_FROM_S + 1
        return ModelError(
            error.error,
            kind=cast("ModelErrorKind", error.kind),
            sent=True,
            answered=attempt.settlement == "unknown",
            retryable=has_next_attempt or pauses or self.ran_out,
            again_after_s=again_after_s,
            request_id=error.request_id,
            what_to_do=error.what_to_do,
        )

    def _pauses_after(self, reserved: Entry) -> bool:
        """Tell whether the recorded run paused after a call of the model, before its next one."""
        for entry in self.recording.entries:
            if entry.seq <= reserved.seq or entry.generation is None:  # its owner did not write it
                continue
            if isinstance(entry.fact, RunPaused | CostReserved):
                return isinstance(entry.fact, RunPaused)
        return False

    # -- the tools ----------------------------------------------------------------------------------------------------

    async def result(self, spec: ToolSpec, args: Any, at: ToolContext) -> ToolOutput:
        """Return the recorded output of a tool's call. Raises ToolFailed if its paid search does not fit a cap."""
        turn = self.history.turn
        search = self.searches.get((turn, at.call_id))
        if search is not None and search.settlement not in (None, "not_billed") and at.search is not None:
            query = str(getattr(args, "query", ""))
            await at.search(" ".join(query.split()), 1)
        recorded = self.results.get((turn, at.call_id))
        if recorded is None or recorded.entry.generation != self.generation:
            call = self._recorded_call(turn, at.call_id)
            if call is not None:
                await self._lost(call)
            if recorded is not None:
                await self._lost(self.claims[self._claim])
            await self.stop(f"the recording has no result of {spec.name} in turn {turn}")
        fact = recorded.fact
        if fact.output_sha is None:
            if TIME_OVER in fact.output:
                await self._end_by_result()
            why = fact.output.partition("\n")[0]
            self.notes.append(
                f"turn {turn}: {spec.name} would be called; it was not ({why}), so its result is not known"
            )
            return ToolOutput(fact.output, success=False)
        return self._output(fact, spec)

    def _recorded_call(self, turn: int, call_id: str) -> Entry | None:
        for entry in self.recording.entries:
            fact = entry.fact
            if isinstance(fact, ToolCall) and fact.turn == turn and fact.call_id == call_id:
                return entry
        return None

    def _output(self, fact: ToolResult, spec: ToolSpec) -> ToolOutput:
        """Return what a tool returned, as far as the log has it, so that the loop makes the recorded result of it."""
        text = fact.output
        if not fact.success:
            text = text.removeprefix("Failed.\n")
        text = _WARNINGS.sub("", text)
        footer = _CUT.search(text)
        if footer is not None:
            text = text[: footer.start()]
        nonce = self.recording.first(RunStarted).nonce
        wrapped = re.fullmatch(rf"<tool_output_{nonce}\b([^>]*)>\n(.*)\n</tool_output_{nonce}>", text, re.DOTALL)
        removed = 0
        if wrapped is not None:
            attributes, text = wrapped.groups()
            attribute = _REMOVED.search(attributes)
            if attribute is not None:
                removed = int(attribute[1])
        if footer is not None:
            text = self._fill_cut(fact, spec, text, int(footer[1]))
        text += removed * _INVISIBLE
        own = wrapped is None and spec.foreign is None
        return ToolOutput(
            text,
            fact.success,
            fact.count,
            sources_of(fact),
            own=own,
            unread=fact.unread or "",
            unread_little=fact.unread_little or False,
        )

    def _fill_cut(self, fact: ToolResult, spec: ToolSpec, text: str, most: int) -> str:
        """Return an output that was cut, with a filling for what the log does not have of it."""
        missing_chars = min(max((fact.chars or 0) - len(text), 0), MOST_CHARS)
        if spec.max_chars > most:
            self.notes.append(
                f"turn {fact.turn}: {spec.name} would show up to {spec.max_chars:,} characters; the log has the first"
                f" {most:,} of {fact.chars:,}"
            )
        hole = _HOLE.search(text)
        if hole is None:
            return text + _filling(fact, missing_chars)
        return text[: hole.start()] + _filling(fact, int(hole[1])) + text[hole.end() :]

    # -- where the recording does not go on ---------------------------------------------------------------------------

    async def _lost(self, call: Entry) -> NoReturn:
        """Do what ended a call in the recorded run: a cancel, the end of its process, or its time."""
        for entry in self.recording.entries:
            if entry.seq <= call.seq:
                continue
            match entry.fact:
                case RunClaimed():
                    await self.leave()
                case CancelRequested() as fact:
                    assert self.run is not None
                    self.run.cancel(fact.reason)
                    await _wait_for_cancel()
                case CostReserved(tool_call=None):
                    break
                case _:
                    pass
        await self._end_by_result()

    async def _end_by_result(self) -> NoReturn:
        """Cancel the run, or end its time, as the recorded result says."""
        assert self.run is not None
        if self.recording.result["status"] == "cancelled":  # its entry came after the ending
            self.run.cancel(self.recording.result["cancel_reason"])
        else:
            self.run.end_time()
        await _wait_for_cancel()

    @property
    def ran_out(self) -> bool:
        """Whether the recorded run was ended by its time or a cancel."""
        return self.recording.result["status"] in ("timeout", "cancelled")

    async def run_out(self) -> NoReturn:
        """Do what ended the recorded run between two calls."""
        entries = [attempt.entry for attempt in self.attempts.values()]
        entries.append(self.claims[self._claim])
        await self._lost(max(entries, key=lambda entry: entry.seq))

    async def leave(self) -> NoReturn:
        """End what this claim does, as if its process were gone."""
        self.scope.cancel()
        await _wait_for_cancel()

    async def stop(self, why: str) -> NoReturn:
        """End the replay, because the recording does not go on."""
        self.ended = why
        await self.leave()


async def _wait_for_cancel() -> NoReturn:
    """Wait for a cancellation that is on its way."""
    await anyio.sleep_forever()
    raise AssertionError("nobody has cancelled it")


def _generation(claim: Entry) -> int:
    if not isinstance(claim.fact, RunClaimed):
        return 0
    return claim.fact.generation


def _filling(fact: ToolResult, chars: int) -> str:
    """Return a text of this length that is the same for the same output, and looks like no secret."""
    digest = fact.output_sha or ""
    words = "".join(f"{digest[start : start + 4]} " for start in range(0, 64, 4))
    return (words * (chars // len(words) + 1))[:chars]


def _size(request: Request) -> int:
    """Return about how much a request says, in characters, in whatever format it is sent."""
    tools = sum(len(json.dumps(tool.as_dict(), ensure_ascii=False)) for tool in request.tools)
    return len(request.system) + tools + sum(map(turn_chars, request.turns))


@dataclass(frozen=True)
class TapeModel:
    """A model that answers from a tape; everything else is the real one's."""

    real: Model
    tape: Tape

    @property
    def name(self) -> str:
        return self.real.name

    def encode(self, request: Request) -> bytes:
        return self.real.encode(request)

    def may_think(self, turns: Sequence[Turn]) -> bool:
        return self.real.may_think(turns)

    def bound(self, request: Request, known: ReportedUsage | None) -> Bound:
        return self.real.bound(request, known)

    def assistant_message(self, text: str | None, calls: Sequence[ToolUse]) -> Mapping[str, Any]:
        """Return an answer as the provider would have sent it."""
        return self.real.assistant_message(text, calls)

    @asynccontextmanager
    async def stream(self, request: Request, check: SendCheck = unchecked) -> AsyncGenerator[LocalStream]:
        await check()
        yield LocalStream(await self.tape.answer(self.real, request))


class TapeSearch(TapeModel):
    """A web search by a model provider that is booked as it was."""

    @asynccontextmanager
    async def stream(self, request: Request, check: SendCheck = unchecked) -> AsyncGenerator[LocalStream]:
        """Yield a search without results, with the recorded usage and cost."""
        reserved = self.tape.history.search
        attempt = None
        if reserved is not None:
            attempt = self.tape.searches.get((reserved.turn, reserved.tool_call or ""))
        usage, cost = None, None
        named: Mapping[str, str] = {}
        if attempt is not None:
            usage, cost, named = attempt.usage, attempt.cost_micros, attempt.named
        raw: dict[str, Any] = {"rows": [], "fault": "", "searches": 1}
        await check()
        yield LocalStream(Completion("", (), raw, usage, cost, named=named))


@dataclass(frozen=True)
class TapeTool:
    """A tool whose calls are answered from a tape; the model is told the real one's description."""

    real: Tool
    tape: Tape

    @property
    def spec(self) -> ToolSpec:
        return self.real.spec

    def activity(self, args: Any) -> str:
        return self.real.activity(args)

    async def __call__(self, args: Any, at: ToolContext) -> ToolOutput:
        return await self.tape.result(self.spec, args, at)


class TapeSecrets(SecretInjection):
    """No secrets: a call that was refused them is refused again."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    async def refresh(self) -> None:
        """Do nothing."""

    async def inject(self, spec: ToolSpec, args: Mapping[str, Any]) -> tuple[InjectedSecret, ...]:
        """Return none. Raises SecretRefused: as in the recorded run."""
        history = self._tape.history
        for call in history.calls:
            if call.name == spec.name and call.args == args:
                recorded = self._tape.results.get((history.turn, call.call_id))
                if recorded is not None and recorded.fact.output_sha is None and has_placeholder(args):
                    raise SecretRefused(recorded.fact.output.removeprefix("Refused: "))
                break
        return ()


class TapeHistory(History):
    """A history in which the results of tools have the places and hashes that they have in the recording.

    The model is told both, so that requests are the same only with them.
    """

    def __init__(self, run_id: str, tape: Tape) -> None:
        super().__init__(run_id)
        self._tape = tape

    def add(self, seq: int, fact: Fact, usage: Usage | None = None, *, fenced: bool = True) -> None:
        match fact:
            case AssistantMessage() if fenced and fact.turn is not None:
                printed = None
                attempt = self._tape.attempts.get((fact.turn, fact.attempt or 1))
                if attempt is not None and attempt.said is not None:
                    printed = attempt.said.printed
                super().add(-seq, fact.model_copy(update={"printed": printed}), usage, fenced=fenced)
            case ToolResult() if fenced and fact.call_id is not None:
                super().add(*self._with_place(seq, fact), usage, fenced=fenced)
            case UserMessage():
                super().add(seq, fact, usage, fenced=fenced)
            case _:  # its place is not that of a result
                super().add(-seq, fact, usage, fenced=fenced)

    def set_seq(self, seq: int, result: ToolResult) -> None:
        """Do nothing: a result has its place before it is written."""

    def _with_place(self, seq: int, fact: ToolResult) -> tuple[int, ToolResult]:
        recorded = self._tape.results.get((fact.turn or 0, fact.call_id or ""))
        if recorded is None:
            return _UNKNOWN_SEQ + len(self.outputs), fact
        sha, own = recorded.fact.output_sha, fact.output_sha
        if sha is not None and own is not None and sha != own:
            output = fact.output.replace(f"read_tool_result R-{own[:8]} ", f"read_tool_result R-{sha[:8]} ")
            fact = fact.model_copy(update={"output": output, "output_sha": sha})
        return recorded.entry.seq, fact


class TapeCoding(CodingWork):
    """The work in a worktree, from the recording: no worktree, no command."""

    def __init__(self, tape: Tape, coding: Coding, run_log: RunLog, say: Callable[[str], None]) -> None:
        self._tape = tape
        self._coding = coding
        self._log = run_log
        self._history = run_log.history
        self._redactor = RunRedactor(Redactor({}, seen_offsets=seen_offsets))
        self._nonce = tape.recording.first(RunStarted).nonce
        self._say = say

    async def begin(self) -> RunResult | None:
        """Record the worktree as it was told; return the recorded ending where there was none."""
        if self._history.worktree is not None:
            return None
        worktrees = self._tape.recording.facts(WorktreeReady)
        if not worktrees:
            result = self._tape.recording.result
            error: Mapping[str, Any] = result.get("error") or {}
            return RunResult(result["status"], result["stop_reason"], error_kind=error.get("kind"))
        await self._log.record(worktrees[0])
        return None

    def place(self, place: ToolContext) -> ToolContext:
        return place

    async def check(self, call_id: str | None, *, last: bool = False) -> WorkChecked | RunResult:
        if self._history.check is not None:
            return self._history.check
        number = 1
        if self._history.last_check is not None:
            number = self._history.last_check.number + 1
        checks = [each for each in self._tape.recording.facts(WorkChecked) if each.number == number]
        if not checks and last:  # the run's time was over before
            return RunResult("error", "the recording has no such check")
        if not checks:
            await self._tape.stop(f"the recording has no check {number} of the work")
        recorded = checks[0]
        told = ""
        if not recorded.verify.passed and not last:
            told = self._failed_words(recorded.verify, number)
        check = recorded.model_copy(update={"call_id": call_id, "turn": self._history.turn, "told": told})
        await self._log.record(check)
        return check

    async def keep(self, ended: RunResult) -> KeptChanges:
        """Keep nothing."""
        changes: Mapping[str, Any] = self._tape.recording.result.get("changes") or {}
        return KeptChanges(fault=changes.get("not_kept") or "")
