"""Meters what another agent asks of a model: each request is reserved in every cap, settled, and on the record.

Several calls may be in flight at once; each is a turn of its own. What the agent does is read from what passes here:
an answer's tool calls are its own, and the next request shows their results.
The most tokens that a request can use are what providers have reported of its beginning, and the rest by its bytes.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, cast

import anyio
import anyio.to_thread

from ava_audit.errors import AuditError, EntryTooLarge, StoreUnavailable
from ava_audit.events import (
    AgentNote,
    AgentRequest,
    AssistantMessage,
    CostReserved,
    CostUpdate,
    ErrorOccurred,
    Event,
    ExtendedThinking,
    Fact,
    LastTurn,
    Settlement,
    ToolCall,
    ToolResult,
    Usage,
)
from ava_audit.sanitize import sanitize_json
from ava_audit.view import Command, Outcome, View
from ava_roles.wrap import clean
from ava_server.agents.bodies import own_id
from ava_server.agents.seam import MOST_NEW_BYTES, Admitted, AgentCall, Bounds, CallRefused, is_to_repeat
from ava_server.agents.unpaid import UnpaidBytes, note_bytes
from ava_server.budget.caps import CapAnswer, CapReached, CapRequest, Reservation, RunStopped, reserve_in_line
from ava_server.budget.money_line import MoneyWait, Patience
from ava_server.core.untrusted import hide_apart
from ava_server.models.base import Bound, Completion
from ava_server.models.json_text import as_object, as_text, objects_in
from ava_server.models.prices import reserve_micros
from ava_server.models.tokens import FIXED_TOKENS, MESSAGE_TOKENS, TOOL_TOKENS, TOOLS_TOKENS, escaped_bound, text_bound
from ava_server.runs.turn.money_wait import MoneyQueue
from ava_server.runs.turn.reservation import (
    GOOD_OUTPUT,
    LEAST_OUTPUT,
    WRAP_PROMPT,
    affordable_output,
    cap_words,
    counted_cap,
    largest,
    measured_byte_tokens,
)

if TYPE_CHECKING:
    from ava_server.core.errors import ModelError
    from ava_server.runs.turn.context import ActiveRun


log = logging.getLogger("ava.agents")
TRIES = 4
"""How often a call is made smaller until it fits what other runs leave of a cap."""
MONEY_WAIT_S = 60.0
"""Seconds for which a request waits for money that other runs hold; then its agent is asked to repeat it."""
_OVER = "this run is over"
_BUSY = "Ava has not sent this request yet: {what}. Repeat it in a few seconds."
FAILED_CALLS = 6
"""Calls in a row without an answer after which the agent is stopped: some agents try for ever."""
HAND_OVER_CALLS = 4
"""Calls after a cap, for what hands the work over: the agent calls a tool, reads its answer, and may repeat that."""
MOST_REFUSED = 50  # refusals that are recorded: an agent can think of ever new ones, and they cost nothing
IN_LOG_ALONE = "in the log alone: "
MOST_TAKEN_NAMES = 1_000  # of what was taken out of the requests of a run
SHOWN_CHARS = 2_000
"""Characters of a tool's result that its own entry has; the request that shows it has all of it."""
RECORD_WITHIN_S = 2.0
"""Seconds for hiding the secrets of an answer, of those within which its call is settled (`gateway.SETTLE_S`)."""
_NOT_RECORDED = f"[not in the log: the secrets of this answer were not found within {RECORD_WITHIN_S:g} s]"
_SHORT_NAME_CHARS, _MOST_NAMED_CALLS = 200, 20
_OWN_TOOL = re.compile(r"(?:(?:mcp_{1,2})?ava_{1,2})?(\w+)")
"""Claude Code and opencode put the server's name before a tool's, Codex into a field beside it."""


@dataclass(frozen=True)
class _Seen:
    """A request as far as earlier ones have shown it: their turn, how many messages are equal, and the new ones."""

    after: int | None
    known: int
    fresh: tuple[bytes, ...]


class RunMeter:
    """The meter of one run: see `seam.Meter`.

    `cap` is why nothing more is sent but what hands the work over. `on_stop` is called when the agent has to be
    stopped: a cap was reached, or what the run stands on is gone (`error`). `is_done` tells whether the work is handed
    over: what an agent asks then, a title for one, buys nothing. `called` has the tool calls that have passed, by id.
    """

    def __init__(
        self,
        run: ActiveRun,
        bounds: Bounds,
        own_tools: Iterable[str],
        on_stop: Callable[[], None],
        is_done: Callable[[], bool],
        unpaid: UnpaidBytes,
    ) -> None:
        self._run = run
        self._log = run.log
        self._config = run.config
        self._bounds = bounds
        self._own_tools = frozenset(own_tools)
        self._one = anyio.Lock()
        self._line = MoneyQueue(run)
        self._turn = run.log.history.turn
        self._shown: dict[str, int] = {}  # a chain of messages, and the turn whose request had it first
        self._heads: set[str] = set()
        self._wrap_prompts: dict[str, int] = {}  # tokens of a wrap-up's prompt, by the head of its conversation
        self._results: set[str] = set()
        self._taken: set[str] = set()  # the names of what was taken out that the log has
        self._refused: set[str] = set()
        self._left_to_hand_over: int | None = None  # the calls that may still be sent after a cap; None before that
        self._unpaid = unpaid
        self._open_bytes: dict[int, int] = {}  # what the log has of calls in flight, by turn
        self._open: set[int] = set()  # the turns of calls in flight
        self._settled = anyio.Event()
        self.called: dict[str, str] = {}
        self.last_text = ""
        self.fault: ModelError | None = None
        self._failed_in_a_row = 0
        self.cap: LastTurn | None = None
        self._on_stop = on_stop
        self._is_done = is_done
        self.error: Exception | None = None

    @property
    def hands_over(self) -> bool:
        """Whether the agent wraps up: only calls that hand its work over are sent."""
        return self._left_to_hand_over is not None

    def hand_over(self, why: LastTurn) -> None:
        """Let the agent go on for what hands its work over: a few calls, within the caps."""
        self.cap = self.cap or why
        if not self.hands_over:
            self._left_to_hand_over = HAND_OVER_CALLS

    def recall(self, facts: Iterable[Fact]) -> None:
        """Take over what earlier owners of the run have logged, so that it is logged once for the run."""
        for fact in facts:
            match fact:
                case AgentRequest():
                    self._taken.update(name for name in fact.dropped if not name.startswith(IN_LOG_ALONE))
                case AgentNote(kind="refused"):
                    self._refused.add(fact.text)
                case _:
                    pass

    # -- the seam -----------------------------------------------------------------------------------------------------

    async def admit(self, call: AgentCall) -> Admitted:
        """Reserve a call. Raises CallRefused if it does not fit, or the run is over."""
        until = time.monotonic() + MONEY_WAIT_S
        with anyio.move_on_after(MONEY_WAIT_S) as waiting:
            await self._one.acquire()  # so that each is compared with all that were shown before
        if waiting.cancelled_caught:
            raise CallRefused("busy", _BUSY.format(what="an earlier request of this run waits for money"))
        try:
            try:
                return await self._reserve_that_fits(call, until)
            finally:
                self._one.release()
        except AuditError as error:
            self.fail(error)
            raise CallRefused("over", _OVER) from error

    async def refuse(self, why: CallRefused) -> None:
        """Record once why a request was refused; not if the log has too many of these, or no room is left."""
        sentence = f"a model request was not sent: {self._hide(str(why))}"
        if sentence in self._refused or len(self._refused) >= MOST_REFUSED:
            return
        note = AgentNote(kind="refused", text=sentence)
        if not self._unpaid.take(note_bytes(note), hands_over=True):
            return
        self._refused.add(sentence)
        try:
            await self._log.record(note)
        except AuditError as error:
            self.fail(error)

    async def check(self) -> None:
        """Check that this process still owns the run. Raises StaleOwner, StoreUnavailable: nothing may be sent."""
        try:
            await self._log.check_owner()
        except StoreUnavailable:  # it may answer again: the run does not fail for it
            raise
        except AuditError as error:
            self.fail(error)
            raise

    async def answered(self, admitted: Admitted, completion: Completion, took_ms: int) -> None:
        """Settle a call with its answer, and record what the agent will do next."""
        reserved = cast("Reservation", admitted.key)
        turn = reserved.fact.turn
        settlement = self._settlement(reserved, "billed", took_ms, completion)
        if settlement.usage is not None:
            self._bounds.report(admitted.call, settlement.usage)
        self.fault, self._failed_in_a_row = None, 0
        if completion.text.strip():
            self.last_text = completion.text
        work = partial(self._answer_facts, completion, turn)
        try:
            facts = await hide_apart(work, _chars_of(completion), RECORD_WITHIN_S, waits=False)
        except TimeoutError:
            log.warning("the log has no text of an answer: its secrets were not found within %g s", RECORD_WITHIN_S)
            facts = self._answer_facts(_without_text(completion), turn)
        await self._write([settlement, *map(self._log.event, facts)], settlement)

    def _answer_facts(self, completion: Completion, turn: int) -> list[Fact]:
        """Return what the log has of an answer: its secrets are hidden, which takes long if the answer is long."""
        calls: list[dict[str, Any]] = []
        tool_calls: list[ToolCall] = []
        for call in completion.calls:
            name = self._hide(call.name)
            call_id = own_id(call.call_id, self._hide)
            calls.append({"call_id": call_id, "name": name, "raw_args": self._hide(call.raw_args)})
            self.called[call_id] = call.name
            if not self.is_own(call.name):  # Ava's own tools are recorded where they are carried out
                args = self._run.context.redactor.redact_json(dict(call.args or {}))
                tool_calls.append(ToolCall(tool=name[:100], args=args, call_id=call_id, turn=turn))
        message = AssistantMessage(
            text=self._hide(completion.text),
            turn=turn,
            attempt=1,
            calls=tuple(calls),
            stop_reason=completion.stop_reason,
            request_id=completion.request_id,
            notes=tuple(map(self._hide, completion.notes)),
        )
        facts: list[Fact] = [message]
        if completion.thinking:
            facts.append(ExtendedThinking(thinking=self._hide(completion.thinking), turn=turn))
        return [*facts, *tool_calls]

    async def failed(
        self, admitted: Admitted, settlement: Literal["not_billed", "unknown"], error: ModelError | None, took_ms: int
    ) -> None:
        reserved = cast("Reservation", admitted.key)
        settled = self._settlement(reserved, settlement, took_ms, error)
        events = [settled]
        if settlement == "not_billed":
            self._unpaid.total += self._open_bytes.get(reserved.fact.turn, 0)
        if error is not None:
            self.fault = error
            if not is_to_repeat(admitted, error):
                self._failed_in_a_row += 1
            if self._failed_in_a_row >= FAILED_CALLS:
                self._on_stop()
            fact = ErrorOccurred(
                error=self._hide(str(error)), kind=error.kind, what_to_do=error.what_to_do,
                turn=reserved.fact.turn, attempt=1, request_id=error.request_id,
            )  # fmt: skip
            events.append(self._log.event(fact))
        await self._write(events, settled)

    # -- reserving ----------------------------------------------------------------------------------------------------

    async def _reserve_that_fits(self, call: AgentCall, until: float) -> Admitted:
        """Reserve a call with the longest answer that fits the caps. Raises CallRefused if none does."""
        await self._refuse_at_end()
        seen = self._compare(call)
        fresh_bytes = sum(map(len, seen.fresh))
        if fresh_bytes + len(call.head) > MOST_NEW_BYTES:
            await self._refuse_form(f"it has more than {MOST_NEW_BYTES:,} bytes that no earlier request had")
        unpaid_bytes = fresh_bytes
        if call.head_sha not in self._shown:
            unpaid_bytes += len(call.head)
        if not self._unpaid.has_room(unpaid_bytes + sum(self._open_bytes.values())):
            await self._refuse_form(self._unpaid.refusal)
        shown = await anyio.to_thread.run_sync(self._shown_by, call, seen, self._turn + 1)
        most = self._most_output(call)
        tries, output = 0, most
        ratio: float | None = None
        while True:
            request = self._request(call, output, ratio)
            answer = await self._reserve(request, shown, until)
            if isinstance(answer, Reservation):
                self._remember(call, shown, request)
                self._open.add(answer.fact.turn)
                self._open_bytes[answer.fact.turn] = unpaid_bytes
                if self._left_to_hand_over is not None:
                    self._left_to_hand_over -= 1
                return Admitted(call, output, answer.fact.turn, answer, asks_tier=bool(self._log.history.pinned))
            if isinstance(answer, RunStopped):
                raise CallRefused("over", _OVER)
            if isinstance(answer, MoneyWait):
                raise CallRefused("busy", _BUSY.format(what=f"this run {answer.words}"))
            tries += 1
            is_overrun = answer.cap == "overrun"
            may_be_smaller = tries < TRIES and not is_overrun and not answer.gives_way
            smaller = None
            if may_be_smaller:
                smaller = self._fitting(answer, call, most)
            if smaller is not None:
                output, ratio = smaller
                continue
            if self._open and not is_overrun:  # the calls in flight may hold more than they will cost
                await self._settled.wait()
                tries, output, ratio = 0, most, None
                continue
            cap = self.cap
            if cap is None:
                cap = LastTurn(status=answer.status, reason=cap_words(answer, request, self._run))
                await self._reach(cap)
            raise CallRefused("cap", self._refusal(cap))

    async def _refuse_form(self, sentence: str) -> NoReturn:
        """Record why a request cannot be sent as it is, and raise CallRefused."""
        why = CallRefused("form", sentence)
        await self.refuse(why)
        raise why

    async def _refuse_at_end(self) -> None:
        """Raises CallRefused if the run is over, or a cap leaves no call for handing over."""
        if self.error is not None:
            raise CallRefused("over", _OVER)
        if self._is_done():
            raise CallRefused("over", "the result is handed over")
        if self.cap is None:
            cap = counted_cap(self._run, self._turn)
            if cap is not None:
                await self._reach(cap)
        if self.cap is not None and not self._left_to_hand_over:
            raise CallRefused("cap", self._refusal(self.cap))

    def _most_output(self, call: AgentCall) -> int:
        most = call.asked_output or self._config.max_output
        if self.hands_over:
            most = min(most, max(self._config.wrap_output, GOOD_OUTPUT))
        return affordable_output(self._run, most)

    async def _reach(self, cap: LastTurn) -> None:
        self.cap = cap
        self._on_stop()
        await self._log.record(AgentNote(kind="refused", text=f"a model request was not sent: {cap.reason}"))

    def _refusal(self, cap: LastTurn) -> str:
        return f"Ava has not sent this request: {cap.reason}. Stop here and hand in what you have."

    def _request(self, call: AgentCall, output: int, byte_tokens: float | None) -> CapRequest:
        """Return what a call needs of the caps: its worst case, and that of the wrap-up, which hands the work over.

        `output`: most tokens of its answer. `byte_tokens`: what a byte that no report covers counts as; None for one
        token.
        """
        bound = self._bounds.bound(call, output)
        if byte_tokens is not None:
            bound = bound.by_ratio(byte_tokens)
        price = self._run.reserve_price
        wrap_micros = wrap_tokens = 0
        if not self.hands_over:  # any conversation may be the one that hands the work over: the longest counts
            wrap_prompts = {**self._wrap_prompts, call.head_sha: bound.prompt_tokens + output + WRAP_PROMPT}
            wrap = Bound(max(wrap_prompts.values()), self._config.wrap_output)
            wrap_micros = reserve_micros(price, wrap)
            wrap_tokens = wrap.prompt_tokens + wrap.output_tokens
        fact = CostReserved(
            turn=self._turn + 1,
            attempt=1,
            scopes=(),
            micros=reserve_micros(price, bound),
            wrap_micros=wrap_micros,
            prompt_tokens=bound.prompt_tokens,
            max_output=output,
            upto_seq=self._log.history.last_message_seq,
            new_bytes=bound.new_bytes,
            byte_tokens=byte_tokens,
            last=self.cap,  # once a cap is reached, each call is one of the last
            beside=True,  # the agent may have other calls in flight
            # These three tell one request from another; its body is the agent's own.
            request_sha=hashlib.sha256(f"{call.model} {output} {call.prompt_sha}".encode()).hexdigest(),
        )
        return CapRequest(fact, tokens=bound.prompt_tokens + output, wrap_tokens=wrap_tokens)

    def _fitting(self, reached: CapReached, call: AgentCall, most: int) -> tuple[int, float | None] | None:
        """Return the longest answer that fits what a cap has left, and the tokens of a byte; None if none does."""
        measured = measured_byte_tokens(self._run)

        def fits(output: int, ratio: float | None) -> bool:
            return self._request(call, output, ratio).needs(reached.cap) <= reached.left

        ratios: list[float | None] = [None]
        if measured is not None:
            ratios.append(measured)
        for ratio in ratios:
            output = largest(partial(fits, ratio=ratio), min(LEAST_OUTPUT, most), most)
            if output is not None:
                return output, ratio
        return None

    async def _reserve(self, request: CapRequest, shown: list[Fact], until: float) -> CapAnswer:
        """Reserve a call and record what it shows, in one transaction; wait for money of others, at most `until`."""
        events = [self._log.event(fact) for fact in shown]

        def command(patience: Patience) -> Command[CapAnswer]:
            reserve = reserve_in_line(self._log.fence, self._log.who, request, self._run.context.caps, patience)

            def reserve_and_record(view: View, now_us: int) -> Outcome[CapAnswer]:
                outcome = reserve(view, now_us)
                if not isinstance(outcome.value, Reservation):
                    return outcome
                return Outcome(outcome.value, (*outcome.events, *events))

            return reserve_and_record

        def fold(answer: CapAnswer) -> None:
            if isinstance(answer, Reservation):
                for number, fact in enumerate((answer.fact, *shown)):
                    self._log.history.add(answer.seq + number, fact)

        least_micros = request.fact.micros + request.fact.wrap_micros
        most_s = max(until - time.monotonic(), 0.0)
        return await self._line.ask(command, fold, lambda: least_micros, most_s=most_s)

    # -- what a request shows -----------------------------------------------------------------------------------------

    def _compare(self, call: AgentCall) -> _Seen:
        """Return what of a call an earlier request has shown already, and the items that are new."""
        chain = call.chain
        known = next((count for count in range(len(call.items), 0, -1) if chain[count] in self._shown), 0)
        return _Seen(self._shown.get(chain[known]), known, call.items[known:])

    def _shown_by(self, call: AgentCall, seen: _Seen, turn: int) -> list[Fact]:
        """Return what a call shows. Blocks for a long one, as finding its bound does, which is kept."""
        self._bounds.bound(call, 1)
        content: dict[str, Any] = {"items": [json.loads(item) for item in seen.fresh]}
        if call.head_sha not in self._shown:
            content["head"] = json.loads(call.head)
        clean_content, cut = sanitize_json(content)
        cut_in_log = [f"{IN_LOG_ALONE}{name}" for name in cut]
        request = AgentRequest(
            turn=turn,
            model=call.model,
            head_sha=call.head_sha,
            head=clean_content.get("head"),
            after=seen.after,
            known=seen.known,
            items=tuple(clean_content["items"]),
            dropped=(*self._newly_taken(call), *cut_in_log),
        )
        return [request, *self._new_results(seen, turn)]

    def _newly_taken(self, call: AgentCall) -> tuple[str, ...]:
        """Return the names of what was taken out of a call, but for those that the log has by now."""
        new = [name for name in call.dropped if name not in self._taken]
        return tuple(new[: max(MOST_TAKEN_NAMES - len(self._taken), 0)])

    def _remember(self, call: AgentCall, shown: list[Fact], request: CapRequest) -> None:
        """Note a reserved call: what follows it is compared with it, and its turn is taken."""
        self._turn = request.fact.turn
        for link in call.chain:
            self._shown.setdefault(link, self._turn)
        self._taken.update(self._newly_taken(call))
        self._wrap_prompts[call.head_sha] = request.fact.prompt_tokens + request.fact.max_output + WRAP_PROMPT
        self._results.update(str(fact.call_id) for fact in shown if isinstance(fact, ToolResult))

    def _new_results(self, seen: _Seen, turn: int) -> Iterator[ToolResult]:
        """Yield the results of the agent's own tools that a request shows for the first time."""
        answered = set(self._results)
        for item in seen.fresh:
            for result in results_in(json.loads(item)):
                call_id = call_answered(result, self.called, answered)
                name = self.called.get(call_id)
                if name is None or call_id in answered:
                    continue
                answered.add(call_id)
                if self.is_own(name):
                    continue
                text = clean(result.text)[0]
                yield ToolResult(
                    tool=name[:100],
                    success=not result.failed,
                    output=text[:SHOWN_CHARS],
                    call_id=call_id,
                    turn=turn,
                    output_sha=hashlib.sha256(result.text.encode()).hexdigest()[:32],
                    chars=len(text),
                )

    def is_own(self, name: str) -> bool:
        """Tell whether a tool is one of Ava's, by the names that agents give the tools of a server `ava`."""
        match = _OWN_TOOL.fullmatch(name)
        return match is not None and match[1] in self._own_tools

    # -- settling -----------------------------------------------------------------------------------------------------

    def _settlement(
        self, reserved: Reservation, settlement: Settlement, took_ms: int,
        reported: Completion | ModelError | None = None,
    ) -> Event:  # fmt: skip
        config, held = self._config, reserved.held
        if not held.reported_tokens:  # what a provider adds to a first prompt is of no length here
            held = replace(held, new_bytes=0)
        account = self._run.context.account
        return self._log.settlement(held, settlement, took_ms, reported, config.model, config.price, None, account)

    async def _write(self, events: list[Event], settlement: Event) -> None:
        """Commit a settlement with what belongs to it; an answer that is too large for the log is paid for anyway."""
        try:
            try:
                await self._log.append(events)
            except EntryTooLarge as error:
                fact = ErrorOccurred(error=str(error), kind="bad_answer")
                await self._log.append([settlement, self._log.event(fact)])
        except AuditError as error:
            self.fail(error)
        finally:
            if isinstance(settlement.fact, CostUpdate):
                self._open.discard(settlement.fact.turn)
                self._open_bytes.pop(settlement.fact.turn, None)
            self._settled.set()
            self._settled = anyio.Event()

    def fail(self, error: Exception) -> None:
        """Note that what the run stands on is gone, and stop the agent."""
        self.error = self.error or error
        self._on_stop()

    def _hide(self, text: str) -> str:
        return self._run.context.redactor.redact(clean(text)[0])[0]


def _chars_of(completion: Completion) -> int:
    texts = [completion.text, completion.thinking, *completion.notes]
    for call in completion.calls:
        texts += (call.call_id, call.name, call.raw_args)
    return sum(map(len, texts))


def _without_text(completion: Completion) -> Completion:
    """Return an answer with nothing but the names of its calls, as far as these are short."""
    calls = [call for call in completion.calls if len(call.call_id) + len(call.name) <= _SHORT_NAME_CHARS]
    named = tuple(replace(call, args=None, raw_args="") for call in calls[:_MOST_NAMED_CALLS])
    return replace(completion, text=_NOT_RECORDED, thinking="", calls=named, notes=())


class ShownResult(NamedTuple):
    """A tool's result in a request; `name` is the tool's, where the wire says it."""

    call_id: str
    text: str
    failed: bool
    name: str = ""


def call_answered(result: ShownResult, called: Mapping[str, str], answered: Collection[str]) -> str:
    """Return the id under which a result's call is known.

    Where Google gives a call no id, clients make one up: the result is then of the oldest call of its name without one.
    """
    if result.call_id in called or not result.name:
        return result.call_id
    open_calls = (known for known, name in called.items() if name == result.name and known not in answered)
    return next(open_calls, result.call_id)


def results_in(item: Any) -> Iterator[ShownResult]:
    """Yield the tool results in a message of any wire."""
    message = as_object(item) or {}
    if message.get("role") == "tool" and "tool_call_id" in message:  # chat completions
        yield ShownResult(str(message["tool_call_id"]), _text(message.get("content")), False)
    elif str(message.get("type", "")).endswith("_call_output") and "call_id" in message:  # responses
        yield ShownResult(str(message["call_id"]), _text(message.get("output")), message.get("status") == "failed")
    for part in objects_in(message.get("parts")):  # Google's
        answer = as_object(part.get("functionResponse"))
        if answer is not None:
            response = answer.get("response")
            failed = "error" in (as_object(response) or {})
            call_id = str(answer.get("id", ""))
            name = as_text(answer.get("name"))
            yield ShownResult(call_id, _text(_response_text(response)), failed, name)
    for block in objects_in(message.get("content")):  # Anthropic's
        if block.get("type") == "tool_result":
            failed = block.get("is_error") is True
            yield ShownResult(str(block.get("tool_use_id", "")), _text(block.get("content")), failed)


def _response_text(response: Any) -> Any:
    """Return what a function gave back: Google's clients put it into one field of an object."""
    fields = as_object(response) or {}
    if len(fields) == 1:
        return next(iter(fields.values()))
    return response


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    texts = [str(block["text"]) for block in objects_in(content) if "text" in block]
    if texts:
        return "\n".join(texts)
    return json.dumps(content, ensure_ascii=False)


def _count_tools(tool: Mapping[str, Any]) -> int:
    return len(objects_in(tool.get("functionDeclarations"))) or 1


class CountedBounds:
    """The bounds of one run (`seam.Bounds`): what a request begins with as reported, and then a token for each byte."""

    def __init__(self) -> None:
        self._reported: dict[str, int] = {}
        self._last: tuple[AgentCall, Bound] | None = None

    def bound(self, call: AgentCall, output: int) -> Bound:
        """Return an upper bound of a call. The same call is asked about again and again."""
        if self._last is None or self._last[0] is not call:
            self._last = call, self._of(call)
        return replace(self._last[1], output_tokens=output)

    def report(self, call: AgentCall, usage: Usage) -> None:
        """Take the usage of a call; of two reports about one prompt, the higher counts."""
        end = call.prompt_sha
        self._reported[end] = max(self._reported.get(end, 0), usage.prompt_tokens)
        self._last = None

    def _of(self, call: AgentCall) -> Bound:
        shown = range(len(call.items), 0, -1)
        known = next((count for count in shown if call.chain[count] in self._reported), 0)
        new = sum(escaped_bound(item.decode()) for item in call.items[known:])
        around = MESSAGE_TOKENS * (len(call.items) - known)
        if known:
            return Bound(self._reported[call.chain[known]] + around + new, 0, new)
        tools = sum(_count_tools(tool) for tool in objects_in(call.body.get("tools")))
        head = text_bound(call.head.decode()) + escaped_bound(call.head.decode()) - len(call.head)
        around += FIXED_TOKENS + MESSAGE_TOKENS
        if tools:
            around += TOOLS_TOKENS + TOOL_TOKENS * tools
        return Bound(around + head + new, 0, head + new)
