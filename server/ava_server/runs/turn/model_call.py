"""Calls of model providers: each is reserved, sent once, and settled.

`ModelCalls` makes one attempt of a turn; the loop retries, and each attempt has a reservation of its own.
`PaidSearches` makes the web searches of a run by a model provider. They go one after the other, because a run has one
call in flight: so a small cap is never held by several at once.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

import anyio
import anyio.lowlevel

from ava_audit.errors import EntryTooLarge, StoreUnavailable
from ava_audit.events import (
    AssistantMessage,
    CostReserved,
    ErrorOccurred,
    Event,
    ExtendedThinking,
    Fact,
    RunPaused,
    Settlement,
)
from ava_audit.units import US_PER_S, format_duration, format_usd, iso_second, iso_utc, now_us
from ava_audit.view import Command
from ava_roles.errors import ToolFailed
from ava_roles.net.search_engines import WITHOUT, SearchResults
from ava_roles.wrap import clean
from ava_server import telemetry
from ava_server.budget.caps import (
    CapAnswer,
    CapReached,
    CapRequest,
    Reservation,
    RunStopped,
    reserve_in_line,
)
from ava_server.budget.money_line import MoneyWait, Patience
from ava_server.core.errors import ModelError
from ava_server.core.ids import IN_PROCESS
from ava_server.models.base import NOT_SENT, Bound, Completion, Delta, Request, ToolUse
from ava_server.models.errors import may_have_been_billed
from ava_server.models.model_choice import with_fee
from ava_server.models.prices import cost_micros, dearest_price, price_named, reserve_micros
from ava_server.models.search_model import read_results, search_request, searches_in
from ava_server.models.surcharges import pinned_at
from ava_server.models.text_tool_calls import with_calls
from ava_server.run_config.config import config_of
from ava_server.runs.journal.log import ms_since
from ava_server.runs.record.claims import Paused
from ava_server.runs.record.invalid_answers import CUT, REFUSED
from ava_server.runs.record.result import RunResult
from ava_server.runs.turn.context import ActiveRun, SearchModel
from ava_server.runs.turn.money_wait import MoneyQueue
from ava_server.runs.turn.reservation import DOING, UNKNOWN_ATTEMPTS, WRAP_PROMPT

EVERY_S = 0.4
"""Seconds between two updates; the log writes what runs are doing every 0.2 s, so the display is under a second old."""
CHARS_PER_TOKEN = 4
"""An estimate for the display, for thinking and arguments too; what is booked is what the provider counts."""


class StreamProgress:
    """Counts the tokens of one answer while it streams, and shows the count after each piece, also after the last.

    A timer runs only while something is not shown yet.
    """

    def __init__(self, doing: str, say: Callable[[str], None]) -> None:
        self._doing = doing
        self._say = say
        self._chars = 0
        self._due: asyncio.TimerHandle | None = None

    def add(self, delta: Delta) -> None:
        chars = len(delta.text) + len(delta.thinking) + len(delta.arguments)
        if not chars:
            return
        self._chars += chars
        if self._due is None:
            self._due = asyncio.get_running_loop().call_later(EVERY_S, self._show)

    def _show(self) -> None:
        self._due = None
        tokens = max(self._chars // CHARS_PER_TOKEN, 1)
        count = "1 token" if tokens == 1 else f"{tokens} tokens"
        self._say(f"{self._doing} ({count})")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._due is not None:  # the next step has a sentence of its own
            self._due.cancel()


ATTEMPTS = 4
"""Attempts of one turn before a pause, or between two pauses."""
PAUSE_FROM_S = 60.0
"""Seconds: for a longer wait the run pauses and frees its slot."""
PAUSE_MOST_S = 24 * 3600.0
"""Seconds: a provider that takes no calls for longer ends the run."""
PAUSED_ATTEMPTS = 24
"""Attempts of one turn over all its pauses: a limit that does not end counts as a refusal."""
SETTLE_S = 3.0


class ModelCalls:
    """Makes the model calls of one run.

    The provider's own message is recorded unchanged, because it is sent back. In everything else that is recorded of an
    answer or made from its text, secrets are replaced.
    """

    def __init__(self, run: ActiveRun, start_facts: Callable[[Sequence[ToolUse]], Sequence[Fact]]) -> None:
        """`start_facts`: returns the facts to commit with an answer, before its tools start."""
        self._run = run
        self._log = run.log
        self._config = run.config
        self._price = run.config.price
        self._model = run.context.model
        self._start_facts = start_facts
        self._tried = (0, 0)  # the current turn, and its attempts under this claim

    async def attempt(self, reserved: Reservation, request: Request) -> Completion | RunResult | Paused | None:
        """Make one attempt and settle it; None where another attempt has to follow."""
        began = time.monotonic()
        doing = "Thinking"
        if reserved.fact.phase:
            doing = DOING[reserved.fact.phase]
        self._run.say(doing)
        prefix = self._run.context.prompt_prefix

        async def settle(settlement: Settlement) -> None:
            await self._log.append([self._settlement(reserved, settlement, ms_since(began))])

        try:
            async with _SettledIfCancelled(settle):
                with telemetry.chat(self._log.run, self._log.history.prefix, reserved.fact) as span:
                    async with self._model.stream(request, self._log.check_owner) as stream:
                        with StreamProgress(doing, self._run.say) as progress:
                            async for delta in stream:
                                if prefix is not None and (delta.text or delta.thinking or delta.arguments):
                                    prefix.answer_began()
                                    prefix = None
                                progress.add(delta)
                    if prefix is not None:
                        prefix.answer_began()
                    completion = stream.completion
                    span.answered(completion)
                    cut = await self._run.context.find_cut(request, completion)
                    if cut is not None:
                        raise cut
        except ModelError as error:
            return await self._settle_failure(reserved, error, ms_since(began))
        except StoreUnavailable:  # nobody knows who owns the run, so nothing was sent; the next reservation waits
            await settle("not_billed")
            return None
        return await self._record(reserved, completion, ms_since(began))

    async def _record(self, reserved: Reservation, completion: Completion, took_ms: int) -> Completion | RunResult:
        """Commit an answer with its settlement and the start of its tool calls."""
        held = reserved.fact
        is_whole = completion.stop_reason not in CUT | REFUSED
        has_printed_calls = False
        if held.phase is None and not completion.calls and is_whole:
            printed = self._log.history.printed_calls(completion.text)
            if printed is not None and printed.calls:
                has_printed_calls = True
                completion = with_calls(completion, printed, held.turn, self._model.assistant_message)
        completion = replace(completion, text=self._hide(completion.text))
        settlement = self._settlement(reserved, "billed", took_ms, completion)
        message = AssistantMessage(
            text=completion.text,
            turn=held.turn,
            attempt=held.attempt,
            raw=dict(completion.raw),
            calls=tuple(
                {"call_id": call.call_id, "name": call.name, "raw_args": call.raw_args} for call in completion.calls
            ),
            stop_reason=completion.stop_reason,
            request_id=completion.request_id,
            notes=completion.notes,
            printed=has_printed_calls or None,
        )
        events = [settlement, self._log.event(message, model=self._config.model)]
        if completion.thinking:
            events.append(self._log.event(ExtendedThinking(thinking=self._hide(completion.thinking), turn=held.turn)))
        calls_tools = held.last is None and held.phase is None
        if calls_tools and completion.stop_reason not in CUT:  # the last call of a cut answer may be incomplete
            events += [self._log.event(fact) for fact in self._start_facts(completion.calls)]
        try:
            await self._log.append(events)
        except EntryTooLarge as error:  # it is paid for, at what the provider said it cost
            fact = ErrorOccurred(error=str(error), kind="bad_answer", turn=held.turn, attempt=held.attempt)
            await self._log.append([settlement, self._log.event(fact)])
            return RunResult(
                "error", "an answer too large to be kept", error_kind="bad_answer", error_message=str(error)
            )
        return completion

    async def _settle_failure(
        self, reserved: Reservation, error: ModelError, took_ms: int
    ) -> Completion | RunResult | Paused | None:
        """Settle a failed attempt, and wait for the next one where that can help.

        Returns None where another attempt has to follow, and an empty answer where the provider refused the model's:
        the model then gets a notice.
        """
        settlement: Settlement = "not_billed"
        if may_have_been_billed(error):
            settlement = "unknown"
        held = reserved.fact
        # Before this error is folded, which may change each.
        history = self._log.history
        tried = {"thinking": history.thinking_dropped, "limit_name": history.other_limit, "tier": not history.pinned}
        text = self._hide(str(error))
        fact = ErrorOccurred(
            error=text,
            kind=error.kind,
            what_to_do=error.what_to_do,
            turn=held.turn,
            attempt=held.attempt,
            request_id=error.request_id,
        )
        events = [self._settlement(reserved, settlement, took_ms, error), self._log.event(fact)]
        if error.kind == "rejected":  # it counts as an answer: the model gets a notice, as for an invalid call
            written = self._hide(clean(error.written)[0])
            rejected = "\n".join(filter(None, (text, written)))
            answer = AssistantMessage(text="", turn=held.turn, attempt=held.attempt, rejected=rejected)
            await self._log.append([*events, self._log.event(answer, model=self._config.model)])
            return Completion(text="", calls=(), raw={}, usage=None)
        await self._log.append(events)
        self._count_try(held.turn)
        wait_s = error.again_after_s
        may_retry = error.retryable or (error.kind == "usage_limit" and wait_s is not None)
        if tried.get(error.kind):
            may_retry = False
        if may_retry and self._log.history.unknown_attempts < UNKNOWN_ATTEMPTS:
            outcome = await self._wait(wait_s, held.attempt)
            if isinstance(outcome, Paused):
                return outcome
            if outcome:
                return None
        reason = "the model failed"
        if held.attempt > 1:
            reason = f"the model failed {held.attempt} times"
        if may_retry and wait_s is not None and wait_s > PAUSE_MOST_S:
            until_us = now_us() + round(wait_s * US_PER_S)
            reason = f"{self._config.provider} takes no more calls until {iso_second(until_us)}; no run waits so long"
        return RunResult("error", reason, error_kind=error.kind, error_message=text, what_to_do=error.what_to_do)

    def _count_try(self, turn: int) -> None:
        """Count an attempt of a turn under this claim."""
        counted_turn, tries = self._tried
        if counted_turn != turn:
            tries = 0
        self._tried = (turn, tries + 1)

    async def _wait(self, wait_s: float | None, attempt: int) -> Paused | bool:
        """Return the pause in which the run waits for its next attempt, or whether it has waited and may make it.

        `wait_s` is how long the provider takes no calls, where it has said so.
        """
        if wait_s is not None and (wait_s > PAUSE_FROM_S or wait_s >= self._run.left_s):
            if wait_s > PAUSE_MOST_S or attempt >= PAUSED_ATTEMPTS:
                return False
            # Spread out: runs that one limit stopped would otherwise meet it again together.
            until_us = now_us() + round((wait_s + random.uniform(0, min(wait_s / 20, 5.0))) * 1e6)  # noqa: S311
            why = f"{self._config.provider} takes no more calls until {iso_utc(until_us)}"
            return Paused(RunPaused(not_before_us=until_us, why=why))
        if self._tried[1] >= ATTEMPTS:
            return False
        if wait_s is None:  # about 1, 2, 4 s
            wait_s = float(2 ** (self._tried[1] - 1)) * random.uniform(0.75, 1.25)  # noqa: S311
        if wait_s >= self._run.left_s:
            return False
        until_us = now_us() + round(wait_s * US_PER_S)
        self._run.say(f"Waiting {format_duration(wait_s)} for the model, until {iso_second(until_us)}")
        await anyio.sleep(wait_s)
        return True

    def _hide(self, text: str) -> str:
        return self._run.context.redactor.redact(text)[0]

    def _settlement(
        self, reserved: Reservation, settlement: Settlement, took_ms: int,
        reported: Completion | ModelError | None = None,
    ) -> Event:  # fmt: skip
        history = self._log.history
        measures = history.has_report and not history.thought
        held = reserved.held if measures else replace(reserved.held, new_bytes=0)
        model, price = self._config.model, self._price
        account = self._run.context.account
        return self._log.settlement(held, settlement, took_ms, reported, model, price, history.purpose, account)


class PaidSearches:
    """Makes the web searches of one run."""

    def __init__(self, search: SearchModel, run: ActiveRun) -> None:
        self._search = search
        self._call = search.call
        self._log = run.log
        self._caps = run.context.caps
        self._line = MoneyQueue(run)
        self._one = anyio.Lock()
        self._tier_refused = False

    async def search(self, call_id: str, query: str, count: int) -> SearchResults:
        """Search once, for a call of a tool. Raises ToolFailed if it had no results, or does not fit a cap."""
        async with self._one:
            try:
                completion = await self._search_once(call_id, query)
            except _TierRefused:
                self._tier_refused = True
                completion = await self._search_once(call_id, query)
        return read_results(self._search.name, completion, count)

    @property
    def _pinned(self) -> Mapping[str, str]:
        """The fields of a search that keep the account's own settings from changing its price."""
        if self._tier_refused:
            return {}
        return pinned_at(self._call.base_url)

    async def _search_once(self, call_id: str, query: str) -> Completion:
        model_id = self._call.model.partition(":")[2]
        request = search_request(self._search.name, model_id, query, self._call.output_tokens)
        request = replace(request, tier_refused=self._tier_refused)
        reserved = await self._reserve(call_id, request)
        return await self._send(reserved, request)

    async def _reserve(self, call_id: str, request: Request) -> Reservation:
        """Hold the worst case of a search. Raises ToolFailed if it does not fit a cap."""
        history, call, config = self._log.history, self._call, config_of(self._log.run.config)
        lost = history.search
        if lost is not None:
            await self._log.settle_lost((lost.turn, lost.attempt))
        bound = Bound(call.prompt_tokens, call.output_tokens)
        fact = CostReserved(
            turn=history.turn,
            attempt=history.attempt + 1,
            scopes=(),
            micros=reserve_micros(dearest_price(call.price, self._search.named, self._pinned), bound),
            wrap_micros=0,
            prompt_tokens=bound.prompt_tokens,
            max_output=bound.output_tokens,
            upto_seq=history.last_message_seq,
            tool_call=call_id,
            no_tier=request.tier_refused or None,
            beside=config.runner != IN_PROCESS or None,  # calls of another agent may be in flight, and stay so
            request_sha=hashlib.sha256(self._search.model.encode(request)).hexdigest(),
        )
        last = history.reserved
        wrap = last.prompt_tokens + last.max_output if last is not None else history.longest_tokens
        if wrap:  # the last prompt and its answer, the notice of the wrap-up, and its own answer
            wrap += WRAP_PROMPT + config.wrap_output
        cap_request = CapRequest(
            fact, tokens=bound.prompt_tokens + bound.output_tokens, wrap_tokens=wrap, model=call.model
        )

        def command(patience: Patience) -> Command[CapAnswer]:
            return reserve_in_line(self._log.fence, self._log.who, cap_request, self._caps, patience)

        least = fact.micros + self._log.run.wrap_micros
        answer = await self._line.ask(command, self._fold_reservation, lambda: least)
        if isinstance(answer, RunStopped):
            raise ToolFailed("no search was made: this run is over")
        if isinstance(answer, MoneyWait):
            answer = CapReached(answer.cap, answer.left)
        if isinstance(answer, CapReached):
            raise ToolFailed(self._refusal(answer, cap_request))
        return answer

    def _fold_reservation(self, answer: CapAnswer) -> None:
        if isinstance(answer, Reservation):
            self._log.history.add(answer.seq, answer.fact)

    def _refusal(self, reached: CapReached, request: CapRequest) -> str:
        if reached.cap == "overrun":
            return (
                f"no search was made: an earlier call cost more than it could by the provider's own limits; {WITHOUT}"
            )
        need = format_usd(request.fact.micros, exact=True)
        left = format_usd(reached.left, exact=True)
        if reached.cap == "max_tokens":
            need = f"{request.tokens:,} tokens"
            left = f"{reached.left:,} tokens"
        return (
            f"no search was made: it can take {need}, and {reached.cap} has {left} left, with a last turn reserved;"
            f" {WITHOUT}"
        )

    async def _send(self, reserved: Reservation, request: Request) -> Completion:
        """Make the call and settle it. Raises ToolFailed if no answer came."""
        began = time.monotonic()

        async def settle(settlement: Settlement) -> None:
            await self._settle(reserved, settlement, began)

        try:
            async with _SettledIfCancelled(settle):
                async with self._search.model.stream(request, self._log.check_owner) as stream:
                    async for _delta in stream:
                        pass
                completion = stream.completion
        except ModelError as error:
            failed: Settlement = "unknown" if may_have_been_billed(error) else "not_billed"
            await self._settle(reserved, failed, began, error)
            if error.kind == "tier" and self._pinned:
                raise _TierRefused from error
            raise ToolFailed(f"{self._search.title} did not search: {error}; {WITHOUT}") from error
        except StoreUnavailable as error:
            await settle("not_billed")
            raise ToolFailed(f"no search was made: the log was out of reach; {WITHOUT}") from error
        await self._settle(reserved, "billed", began, completion)
        return completion

    async def _settle(
        self, reserved: Reservation, settlement: Settlement, began: float,
        reported: Completion | ModelError | None = None,
    ) -> None:  # fmt: skip
        """Settle a search."""
        held, price = reserved.held, self._call.price
        if isinstance(reported, Completion) and reported.usage is not None:
            price = with_fee(price, self._call.fee * (searches_in(reported) - 1))
            if reported.cost_micros:  # a gateway's may leave out the search's fee: the higher one counts
                higher = max(reported.cost_micros, cost_micros(price_named(price, reported.named), reported.usage))
                reported = replace(reported, cost_micros=higher)
        event = self._log.settlement(
            held, settlement, ms_since(began), reported, self._call.model, price, "search", self._search.account
        )
        await self._log.append([event])


class _TierRefused(Exception):
    """Raised when a search was refused for the tier that it asked for: the next one asks for none."""


class _SettledIfCancelled:
    """Settles a call whose caller is cancelled: before it is sent it costs nothing, after that its cost is unknown."""

    __slots__ = ("_settle",)

    def __init__(self, settle: Callable[[Settlement], Awaitable[None]]) -> None:
        self._settle = settle

    async def __aenter__(self) -> None:
        try:
            await anyio.lowlevel.checkpoint_if_cancelled()
        except anyio.get_cancelled_exc_class():
            await self._end("not_billed")
            raise

    async def __aexit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, anyio.get_cancelled_exc_class()):
            await self._end("not_billed" if NOT_SENT in getattr(error, "__notes__", ()) else "unknown")

    async def _end(self, settlement: Settlement) -> None:
        with anyio.CancelScope(shield=True), anyio.move_on_after(SETTLE_S):
            await self._settle(settlement)
