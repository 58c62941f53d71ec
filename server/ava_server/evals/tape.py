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
from ava_server.budget.run_config import Coding
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
from ava_server.models.wires.base import tool_use
from ava_server.runs.changes import KeptChanges
from ava_server.runs.coding import CodingWork
from ava_server.runs.context import SecretInjection, SecretRefused
from ava_server.runs.costs import turn_chars
from ava_server.runs.history import History, Recipe
from ava_server.runs.log import RunLog
from ava_server.runs.loop import AgentRun
from ava_server.runs.model_call import PAUSE_FROM_S
from ava_server.runs.result import RunResult
from ava_server.runs.run_tools import sources_of

PAUSES = (RunPaused, Asked)
TIME_OVER = "the time for tools is over"
_LEFT = re.compile(r"(\d{1,9}) s\b")
_CUT = re.compile(r"\n\[cut at (\d{1,7}) of \d+ characters; [^\n]*\]\Z")
_TOLD = re.compile(r"(?:\n\[this is the 3rd time [^\n]*\]|\n\[the 3rd edit [^\n]*\])+\Z")
_HOLE = re.compile(r"\n\[… (\d{1,7}) characters left out here …\]\n")
_REMOVED = re.compile(r' invisible_characters_removed="(\d{1,7})"')
_INVISIBLE = "\u200b"
MOST_CHARS = 10_000_000
"""No tool returns more: a file that says so gets no such text."""
_UNKNOWN_SEQ = 1_000_000_000
"""From here on are the results that the recording does not have."""


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
    def usage(self) -> Usage | None:
        """The tokens that the provider reported; None where it did not."""
        usage = self.paid.usage if self.paid is not None and self.settled is not None else None
        thinking = self.settled.thinking_tokens if self.settled is not None else 0
        return usage and usage.model_copy(update={"thinking_tokens": thinking})


@dataclass(frozen=True)
class TapeResult:
    """One recorded result of a tool: its entry, and what that says."""

    entry: Entry
    fact: ToolResult


Key = tuple[int, int]


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
        held: TapeAttempt | None = None
        for entry in recording.entries:
            match entry.fact:
                case CostReserved() as fact:
                    held = TapeAttempt(entry, fact)
                    if fact.tool_call is not None:
                        self.searches[fact.turn, fact.tool_call] = held
                    else:
                        self.attempts[fact.turn, fact.attempt] = held
                case CostUpdate() as fact if held is not None:
                    held.settled, held.paid = fact, entry
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
        return self.attempts.get((turn or 0, attempt or 0)) if entry.generation is not None else None

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
        self._claim = next((n for n, each in enumerate(self.claims) if _generation(each) == generation), self._claim)

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
        return any(
            isinstance(each.fact, RunClaimed) and each.fact.reason != "cancel"
            for each in self.claims[self._claim + 1 :]
        )

    def _active_before(self, claim: int) -> int:
        total = 0
        for first, following in pairwise(self.claims[: claim + 1]):
            own = [each for each in self.recording.entries if first.seq < each.seq < following.seq and each.generation]
            paused = [each.fact.active_us for each in own if isinstance(each.fact, PAUSES)]
            spent_us = own[-1].ts_us - first.ts_us if own else 0
            total = paused[-1] if paused else total + max(spent_us, 0)
        return total

    def clock(self) -> float:
        return (self._now_us - self._zero_us) / 1e6

    def at(self, attempt: TapeAttempt, timeout_s: float) -> None:
        """Set the clock to when a call of the model was reserved."""
        self._now_us = attempt.entry.ts_us
        told = _LEFT.search(attempt.reserved.notice or "") if "left:time" in attempt.reserved.notices else None
        if told is not None:  # by the milliseconds between the notice and its entry, it would tell another second
            self._now_us = self._zero_us - self._before_us + round((timeout_s - int(told[1])) * 1e6)

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
        unchanged = attempt is not None and self._is_same(key, attempt, model, request)
        if not unchanged:
            self.changed.append(key)
        said = attempt.said if attempt is not None else None
        if attempt is None or said is None:
            await self._unanswered(key[0], attempt)
        calls = tuple(tool_use(call["call_id"], call["name"], call["raw_args"]) for call in said.calls)
        usage = attempt.usage if unchanged else self._scaled(key, attempt.usage, request)
        return Completion(
            text=said.text,
            calls=calls,
            raw=(said.raw if self.same_model else model.assistant_message(said.text or None, calls)) or {},
            usage=usage,
            cost_micros=self._reported(attempt, usage),
            stop_reason=said.stop_reason,
            request_id=said.request_id,
            notes=said.notes,
        )

    async def _unanswered(self, turn: int, attempt: TapeAttempt | None) -> NoReturn:
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
        before = self.recorded(key)
        same = before is not None and self.comparable(before) == self.comparable(request)
        # Without a secret that was replaced, and in the same format, the same request has the same bytes.
        return same and (not self.same_model or self.recording.redacted)

    def comparable(self, request: Request) -> tuple[Any, ...]:
        """Return what a replay compares of a request; of another model, not how the answers are written."""
        turns = [
            "an answer" if not self.same_model and isinstance(turn, AssistantTurn) else turn for turn in request.turns
        ]
        tools = {tool.name: tool.as_dict() for tool in request.tools}
        return request.system, tools, turns, request.max_output, request.thinking

    def recorded(self, key: Key) -> Request | None:
        """Return the request of a recorded call, from the recording alone; None where there was none."""
        if self._recorded is None:
            history, found = History(""), dict[Key, Request]()
            for entry in self.recording.entries:
                fact = entry.fact
                if isinstance(fact, CostReserved) and fact.tool_call is None and history.prefix is not None:
                    recipe = Recipe.of(fact)
                    found[fact.turn, fact.attempt] = history.request(recipe, fact.max_output, fact.thinking)
                if fact is not None:
                    history.add(entry.seq, fact, entry.usage, fenced=entry.generation is not None)
            self._recorded = found
        return self._recorded.get(key)

    def _scaled(self, key: Key, usage: Usage | None, request: Request) -> Usage | None:
        """Return the tokens of a call whose request differs: its prompt's grow and shrink with its bytes."""
        before = self.recorded(key)
        if usage is None or before is None:
            return usage
        ratio = _size(request) / max(_size(before), 1)
        kinds = ("input_tokens", "cache_read_tokens", "cache_write_tokens")
        return usage.model_copy(update={kind: round(getattr(usage, kind) * ratio) for kind in kinds})

    def _reported(self, attempt: TapeAttempt, usage: Usage | None) -> int | None:
        """Return what the provider would report as the cost; None where it reports none."""
        paid = attempt.paid.cost_micros if attempt.paid is not None else None
        if attempt.settled is None or attempt.settled.price_source != "provider" or not paid:
            return None
        if not self.same_model or self._price != self.recording.config.price:
            return None
        recorded = attempt.usage
        if recorded is None or usage is None or recorded == usage or not cost_micros(self._price, recorded):
            return paid
        return round(paid * cost_micros(self._price, usage) / cost_micros(self._price, recorded))

    def _error(self, attempt: TapeAttempt, error: ErrorOccurred) -> ModelError:
        """Return the recorded error, so that the run does after it what it did: another attempt, a pause, its end."""
        turn, number = attempt.reserved.turn, attempt.reserved.attempt
        following = self.attempts.get((turn, number + 1))
        after = [entry.fact for entry in self.recording.entries if entry.seq > attempt.entry.seq]
        pauses = next(
            (isinstance(each, RunPaused) for each in after if isinstance(each, RunPaused | CostReserved)), False
        )
        unknown = attempt.settled is not None and attempt.settled.settlement == "unknown"
        return ModelError(
            error.error,
            kind=cast("ModelErrorKind", error.kind),
            sent=True,
            answered=unknown,
            retryable=following is not None or pauses or self.ran_out,
            again_after_s=PAUSE_FROM_S + 1 if pauses else 0.0,
            request_id=error.request_id,
            what_to_do=error.what_to_do,
        )

    # -- the tools ----------------------------------------------------------------------------------------------------

    async def result(self, spec: ToolSpec, args: Any, at: ToolContext) -> ToolOutput:
        """Return the recorded output of a tool's call. Raises ToolFailed: its paid search does not fit a cap."""
        turn = self.history.turn
        search = self.searches.get((turn, at.call_id))
        paid = search is not None and search.settled is not None and search.settled.settlement != "not_billed"
        if paid and at.search is not None:
            await at.search(" ".join(str(getattr(args, "query", "")).split()), 1)
        recorded = self.results.get((turn, at.call_id))
        if recorded is None or recorded.entry.generation != self.generation:
            begun = next((each for each in self.recording.entries if _begins(each.fact, turn, at.call_id)), None)
            if recorded is not None or begun is not None:
                await self._lost(begun or self.claims[self._claim])
            await self.stop(f"the recording has no result of {spec.name} in turn {turn}")
        fact = recorded.fact
        if fact.output_sha is None:
            if TIME_OVER in fact.output:
                await self._lost(recorded.entry, over=True)
            why = fact.output.partition("\n")[0]
            self.notes.append(
                f"turn {turn}: {spec.name} would be called; it was not ({why}), so its result is not known"
            )
            return ToolOutput(fact.output, success=False)
        return self._output(fact, spec)

    def _output(self, fact: ToolResult, spec: ToolSpec) -> ToolOutput:
        """Return what a tool returned, as far as the log has it, so that the loop makes the recorded result of it."""
        text = fact.output if fact.success else fact.output.removeprefix("Failed.\n")
        text = _TOLD.sub("", text)
        footer = _CUT.search(text)
        text = text if footer is None else text[: footer.start()]
        nonce = self.recording.first(RunStarted).nonce
        wrapped = re.fullmatch(rf"<tool_output_{nonce}\b([^>]*)>\n(.*)\n</tool_output_{nonce}>", text, re.DOTALL)
        removed = 0
        if wrapped is not None:
            found = _REMOVED.search(wrapped[1])
            removed, text = int(found[1]) if found else 0, wrapped[2]
        if footer is not None:
            text = self._whole(fact, spec, text, int(footer[1]))
        own = wrapped is None and spec.foreign is None
        return ToolOutput(
            text + removed * _INVISIBLE, fact.success, fact.count, sources_of(fact), own=own, unread=fact.unread or ""
        )

    def _whole(self, fact: ToolResult, spec: ToolSpec, text: str, most: int) -> str:
        """Return an output that was cut with a filling for what the log does not have of it."""
        lacks = min(max((fact.chars or 0) - len(text), 0), MOST_CHARS)
        if spec.max_chars > most:
            self.notes.append(
                f"turn {fact.turn}: {spec.name} would show up to {spec.max_chars:,} characters; the log has the first"
                f" {most:,} of {fact.chars:,}"
            )
        hole = _HOLE.search(text)
        if hole is None:
            return text + _filling(fact, lacks)
        return text[: hole.start()] + _filling(fact, int(hole[1])) + text[hole.end() :]

    # -- where the recording does not go on ---------------------------------------------------------------------------

    async def _lost(self, begun: Entry, *, over: bool = False) -> NoReturn:
        """Do what ended a call in the recorded run: its time, a cancel, or the end of its process."""
        for entry in self.recording.entries if not over else ():
            if entry.seq <= begun.seq:
                continue
            match entry.fact:
                case RunClaimed():
                    await self.leave()
                case CancelRequested() as fact:
                    assert self.run is not None
                    self.run.cancel(fact.reason)
                    await _cancelled()
                case CostReserved(tool_call=None):
                    break
                case _:
                    pass
        assert self.run is not None
        if self.recording.result["status"] == "cancelled":  # its entry came after the ending
            self.run.cancel(self.recording.result["cancel_reason"])
        else:
            self.run.end_time()
        await _cancelled()

    @property
    def ran_out(self) -> bool:
        """Whether the recorded run was ended by its time or a cancel."""
        return self.recording.result["status"] in ("timeout", "cancelled")

    async def run_out(self) -> NoReturn:
        """Do what ended the recorded run between two calls."""
        began = [self.claims[self._claim], *(each.entry for each in self.attempts.values())]
        await self._lost(max(began, key=lambda entry: entry.seq))

    async def leave(self) -> NoReturn:
        """End what this claim does, as if its process were gone."""
        self.scope.cancel()
        await _cancelled()

    async def stop(self, why: str) -> NoReturn:
        """End the replay, because the recording does not go on."""
        self.ended = why
        await self.leave()


async def _cancelled() -> NoReturn:
    """Wait for a cancellation that is on its way."""
    await anyio.sleep_forever()
    raise AssertionError("nobody has cancelled it")


def _generation(claim: Entry) -> int:
    return claim.fact.generation if isinstance(claim.fact, RunClaimed) else 0


def _begins(fact: Fact | None, turn: int, call_id: str) -> bool:
    return isinstance(fact, ToolCall) and (fact.turn, fact.call_id) == (turn, call_id)


def _filling(fact: ToolResult, chars: int) -> str:
    """Return a text of this length that is the same for the same output, and looks like no secret."""
    words = " ".join((fact.output_sha or "")[at : at + 4] for at in range(0, 64, 4)) + " "
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
        """Return no results, with the recorded usage and cost."""
        reserved = self.tape.history.search
        key = (reserved.turn, reserved.tool_call or "") if reserved is not None else (0, "")
        attempt = self.tape.searches.get(key)
        paid = attempt.paid.cost_micros if attempt is not None and attempt.paid is not None else None
        raw: dict[str, Any] = {"rows": [], "fault": "", "searches": 1}
        usage = attempt.usage if attempt is not None else None
        await check()
        yield LocalStream(Completion("", (), raw, usage, paid))


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
        call = next((each for each in history.calls if each.name == spec.name and each.args == args), None)
        found = self._tape.results.get((history.turn, call.call_id)) if call is not None else None
        if found is not None and found.fact.output_sha is None and has_placeholder(args):
            raise SecretRefused(found.fact.output.removeprefix("Refused: "))
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
                played = self._tape.attempts.get((fact.turn, fact.attempt or 1))
                printed = played.said.printed if played is not None and played.said is not None else None
                super().add(-seq, fact.model_copy(update={"printed": printed}), usage, fenced=fenced)
            case ToolResult() if fenced and fact.call_id is not None:
                super().add(*self._placed(seq, fact), usage, fenced=fenced)
            case UserMessage():
                super().add(seq, fact, usage, fenced=fenced)
            case _:  # its place is not that of a result
                super().add(-seq, fact, usage, fenced=fenced)

    def place(self, seq: int, result: ToolResult) -> None:
        """Do nothing: a result has its place before it is written."""

    def _placed(self, seq: int, fact: ToolResult) -> tuple[int, ToolResult]:
        found = self._tape.results.get((fact.turn or 0, fact.call_id or ""))
        if found is None:
            return _UNKNOWN_SEQ + len(self.outputs), fact
        sha, own = found.fact.output_sha, fact.output_sha
        if sha is not None and own is not None and sha != own:
            output = fact.output.replace(f"read_tool_result R-{own[:8]} ", f"read_tool_result R-{sha[:8]} ")
            fact = fact.model_copy(update={"output": output, "output_sha": sha})
        return found.entry.seq, fact


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
        found = self._tape.recording.facts(WorktreeReady)
        if not found:
            result = self._tape.recording.result
            error: Mapping[str, Any] = result.get("error") or {}
            return RunResult(result["status"], result["stop_reason"], error_kind=error.get("kind"))
        await self._log.record(found[0])
        return None

    def place(self, place: ToolContext) -> ToolContext:
        return place

    async def check(self, call_id: str | None) -> WorkChecked | RunResult:
        if self._history.check is not None:
            return self._history.check
        number = 1 if self._history.last_check is None else self._history.last_check.number + 1
        found = next((each for each in self._tape.recording.facts(WorkChecked) if each.number == number), None)
        if found is None:
            await self._tape.stop(f"the recording has no check {number} of the work")
        told = "" if found.verify.passed else self._failed_words(found.verify, number)
        checked = found.model_copy(update={"call_id": call_id, "turn": self._history.turn, "told": told})
        await self._log.record(checked)
        return checked

    async def keep(self, ended: RunResult) -> KeptChanges:
        """Keep nothing."""
        changes: Mapping[str, Any] = self._tape.recording.result.get("changes") or {}
        return KeptChanges(fault=changes.get("not_kept") or "")
