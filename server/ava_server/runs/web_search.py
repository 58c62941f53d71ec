"""The web searches of a run by a model provider: each is reserved in every cap, sent once, and settled.

They go one after the other, because a run has one call in flight: so a small cap is never held by several at once.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence

import anyio
import anyio.lowlevel

from ava_audit.events import CostReserved, Event, Settlement
from ava_audit.rows import RunRow
from ava_audit.units import format_usd
from ava_roles.errors import ToolFailed
from ava_roles.net.search_engines import WITHOUT, SearchResults
from ava_server.budget.caps import CapReached, CapRequest, DayCaps, Reservation, is_in_flight, reserve, settlement_event
from ava_server.budget.run_config import config_of
from ava_server.core.errors import ModelError
from ava_server.models.base import Bound, Completion, Request
from ava_server.models.errors import may_have_been_billed
from ava_server.models.prices import cost_micros, reserve_micros
from ava_server.models.search_model import read_results, search_request, searches_in
from ava_server.models.web_search import with_fee
from ava_server.runs.context import SearchModel
from ava_server.runs.log import RunLog, ms_since
from ava_server.runs.model_call import SETTLE_S
from ava_server.runs.reservation import WRAP_PROMPT


class PaidSearches:
    """Makes the web searches of one run."""

    def __init__(self, search: SearchModel, run_log: RunLog, caps: DayCaps) -> None:
        self._search = search
        self._call = search.call
        self._log = run_log
        self._caps = caps
        self._one = anyio.Lock()

    async def search(self, call_id: str, query: str, count: int) -> SearchResults:
        """Search once, for a call of a tool.

        Raises:
            ToolFailed: It brought no results, or does not fit a cap; says why and what to do.
        """
        async with self._one:
            model_id = self._call.model.partition(":")[2]
            request = search_request(self._search.name, model_id, query, self._call.output_tokens)
            reserved = await self._reserve(call_id, request)
            completion = await self._send(reserved, request)
        return read_results(self._search.name, completion, count)

    async def _reserve(self, call_id: str, request: Request) -> Reservation:
        """Hold the worst case of a search.

        Raises:
            ToolFailed: It does not fit a cap.
        """
        history, call = self._log.history, self._call
        if history.search is not None:
            await self._log.settle_lost()
        bound = Bound(call.prompt_tokens, call.output_tokens)
        fact = CostReserved(
            turn=history.turn,
            attempt=history.attempt + 1,
            scopes=(),
            micros=reserve_micros(call.price, bound),
            wrap_micros=0,
            prompt_tokens=bound.prompt_tokens,
            max_output=bound.output_tokens,
            upto_seq=history.last_message_seq,
            tool_call=call_id,
            request_sha=hashlib.sha256(self._search.model.encode(request)).hexdigest(),
        )
        asked = CapRequest(fact, bound.prompt_tokens + bound.output_tokens, self._wrap_tokens(), call.model)
        answer = await self._log.do(reserve(self._log.fence, self._log.who, asked, self._caps), self._granted)
        if isinstance(answer, CapReached):
            raise ToolFailed(self._refusal(answer, asked))
        return answer

    def _granted(self, answer: Reservation | CapReached) -> None:
        if isinstance(answer, Reservation):
            self._log.history.add(answer.seq, answer.fact)

    def _wrap_tokens(self) -> int:
        """Return the most tokens of the wrap-up: of the last prompt, its answer, its notice, and its own answer."""
        last = self._log.history.reserved
        if last is None:
            return 0
        return last.prompt_tokens + last.max_output + WRAP_PROMPT + config_of(self._log.run.config).wrap_output

    def _refusal(self, reached: CapReached, asked: CapRequest) -> str:
        if reached.cap == "overrun":
            return (
                f"no search was made: an earlier call cost more than it could by the provider's own limits; {WITHOUT}"
            )
        need, left = format_usd(asked.fact.micros, exact=True), format_usd(reached.left, exact=True)
        if reached.cap == "max_tokens":
            need, left = f"{asked.tokens:,} tokens", f"{reached.left:,} tokens"
        return (
            f"no search was made: it can take {need}, and {reached.cap} has {left} left, with a last turn reserved;"
            f" {WITHOUT}"
        )

    async def _send(self, reserved: Reservation, request: Request) -> Completion:
        """Make the call and settle it.

        Raises:
            ToolFailed: No answer came.
        """
        began, sending = time.monotonic(), False
        try:
            await anyio.lowlevel.checkpoint_if_cancelled()  # cancelled before anything was sent: costs nothing
            sending = True
            async with self._search.model.stream(request) as stream:
                async for _delta in stream:
                    pass
            completion = stream.completion
        except ModelError as error:
            await self._settle(reserved, "unknown" if may_have_been_billed(error) else "not_billed", began)
            raise ToolFailed(f"{self._search.title} did not search: {error}; {WITHOUT}") from error
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True), anyio.move_on_after(SETTLE_S):
                await self._settle(reserved, "unknown" if sending else "not_billed", began)
            raise
        await self._settle(reserved, "billed" if completion.usage is not None else "unknown", began, completion)
        return completion

    async def _settle(
        self, reserved: Reservation, settlement: Settlement, began: float, completion: Completion | None = None
    ) -> None:
        """Settle a search, unless the run has settled it as lost by now."""
        held, price = reserved.held, self._call.price
        reported = completion.cost_micros if completion is not None else None
        if completion is not None and completion.usage is not None:
            price = with_fee(price, self._call.fee * (searches_in(completion) - 1))
            if reported:  # a gateway's figure may leave out the fee of the search: the higher one counts
                reported = max(reported, cost_micros(price, completion.usage))
        event = settlement_event(
            self._log.fence, self._log.run.id, self._log.who, self._call.model, price, held, settlement,
            usage=completion.usage if completion is not None else None,
            reported_micros=reported,
            request_id=completion.request_id if completion is not None else None,
            duration_ms=ms_since(began), purpose="search",
        )  # fmt: skip

        def unless_settled(run: RunRow | None) -> Sequence[Event]:
            return (event,) if is_in_flight(run, held) else ()

        await self._log.append_for(unless_settled)
