"""Reservations: builds the next request and holds its worst case in every cap, smaller or as the wrap-up if need be.

`Planner` writes the requests of the planning turns.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass

from ava_audit.events import Activity, CostReserved, LastTurn, PlanPhase
from ava_audit.units import format_usd
from ava_server.budget.caps import (
    CapReached,
    CapRequest,
    Reservation,
    UnreadMessages,
    messages_first,
    reserve,
    settle_unknown,
)
from ava_server.budget.run_config import RunConfig
from ava_server.models.base import Bound, Completion, Request
from ava_server.models.prices import reserve_micros
from ava_server.runs.context import RunContext
from ava_server.runs.history import Recipe
from ava_server.runs.log import RunLog
from ava_server.runs.prompts import prompts
from ava_server.runs.result import RunResult

DOING: Mapping[PlanPhase, str] = {
    "analysis": "Analysing the task",
    "plan": "Planning",
    "review": "Reviewing the plan",
}
"""The sentence in the status line."""
NO_PLAN = "Working without a plan: none could be made"


class Planner:
    """The planning of one run.

    Attributes:
        wanted: The run plans before it works.
    """

    def __init__(self, run_log: RunLog, *, wanted: bool) -> None:
        self.wanted = wanted
        self._log = run_log
        self._history = run_log.history

    def phase(self) -> PlanPhase | None:
        """Return the step of the next call; None for a call of the work."""
        if self._history.turn == 0:
            return "analysis" if self.wanted else None
        return self._history.planning.next_phase()

    async def settle(self, *, leaving: bool = False) -> None:
        """Record the outcome of planning once it is known, or at once where planning cannot go on (`leaving`)."""
        ready = self._history.planning.outcome(leaving=leaving)
        if ready is not None:
            await self._log.record(*([] if ready.plan else [Activity(activity=NO_PLAN)]), ready)

    def prompt_of(self, phase: PlanPhase) -> str:
        """Return the prompt of a planning call, with the names of the run's tools."""
        assert self._history.prefix is not None, "a run starts with its prefix"
        tools = ", ".join(str(tool["name"]) for tool in self._history.prefix.tools)
        return prompts("planning")[phase].replace("{tools}", tools)

    async def record_start(self, reserved: CostReserved) -> None:
        """Record that a step has begun, where the reserved call is one."""
        if reserved.phase is not None and reserved.attempt == 1:
            await self._log.record(Activity(activity=DOING[reserved.phase]))

    async def takes(self, answer: Completion | RunResult) -> bool:
        """Take the answer of a planning call, or the error in its place; False for an answer of the work."""
        if not self._history.planning.on:
            return False
        if isinstance(answer, Completion):
            return True
        await self.settle(leaving=True)
        return answer.status == "error"


LEAST_TO_THINK = 2_048
"""Output tokens below which a call does not think; above, it may think for half of them."""
WRAP_PROMPT = 1_280
"""Tokens of a wrap-up's prompt beyond this prompt and this answer: its notice, and a line for each later result."""
LEAST_OUTPUT = 512
TRIM_SHARE, TRIM_TO = 0.7, 0.5
"""Trimming begins at 70 % of the room and ends at 50 %, so that it is rare: each one costs the provider's cache."""
TRIM_LEAST = 0.1
"""The share of a prompt that leaving out results must free: below that, losing the provider's cache costs more."""
NEARLY = 0.8
UNKNOWN_ATTEMPTS = 2
"""Attempts of one turn whose cost may stay unknown, over all owners; each books its full reservation."""
UNKNOWN = "two attempts of this turn ended without an answer, and what they cost is not known"
UNKNOWN_ADVICE = "See whether the provider answers, then propose it again with retry_of."
WRAP_UP = "wrap_up"
TO_WORK = "plan:work"


@dataclass(frozen=True)
class _Notice:
    """What a request tells the model, the topics of that, and the step of planning that it asks for."""

    text: str | None = None
    about: tuple[str, ...] = ()
    phase: PlanPhase | None = None


class Reservations:
    """Reserves the calls of one run.

    Attributes:
        cap: The cap that was reached: from then on only the wrap-up is sent.
    """

    def __init__(
        self,
        run_log: RunLog,
        config: RunConfig,
        context: RunContext,
        began: float,
        planner: Planner,
    ) -> None:
        self.cap = run_log.history.last  # a run that was resumed in its wrap-up stays there
        self._log = run_log
        self._history = run_log.history
        self._config = config
        self._price = config.price
        self._model = context.model
        self._caps = context.caps
        self._window = context.window
        self._began = began
        self._planner = planner
        self._wrap_output = config.wrap_output
        self._looked = run_log.history.last_message_seq  # up to here, messages to the run have been read

    @property
    def active_s(self) -> float:
        """Seconds that the run has been active, over all its claims."""
        return time.monotonic() - self._began

    async def next(self) -> tuple[Reservation, Request] | RunResult:
        """Build the next request and hold its worst case; a smaller one, or the wrap-up, if that is all that fits."""
        history = self._history
        if not history.answered:
            await self._settle_lost()
        await self._planner.settle(leaving=self.last_turn(self._next_turn()) is not None)
        turn = self._next_turn()
        attempt = 1 if history.answered else history.attempt + 1
        if not history.answered and history.unknown_attempts >= UNKNOWN_ATTEMPTS:
            return RunResult("error", UNKNOWN, error_kind="dropped", error_message=UNKNOWN, what_to_do=UNKNOWN_ADVICE)
        notice = self._notice(attempt)
        most, bare = self._config.max_output, False
        while True:
            last = self.last_turn(turn)
            if last is not None:  # the wrap-up may leave out any result, and refers to its place in the log
                await self._log.write_kept()
            request, asked = self._ask_for(turn, attempt, self._wrap_output if last else most, last, notice, bare)
            command = reserve(self._log.fence, self._log.who, asked, self._caps)
            answer = await self._log.do(messages_first(self._log.run.id, self._looked, command), self._granted)
            if isinstance(answer, UnreadMessages):
                continue
            if isinstance(answer, Reservation):
                await self._planner.record_start(answer.fact)
                return answer, request
            if last is not None and bare:  # not even the wrap-up fits: the run ends with what it has
                return RunResult(last.status, last.reason)
            if last is not None:  # a long message can make it too large for what was held: try without old results
                bare = True
                continue
            smaller = self._fitting(asked.fact, answer)
            if smaller is None:
                self.cap = LastTurn(status=answer.status, reason=_cap_words(answer, asked))
                if history.planning.on:  # the plan so far is used, and the wrap-up is a turn of its own
                    return await self.next()
            else:
                most = smaller

    def _next_turn(self) -> int:
        return self._history.turn + 1 if self._history.answered else self._history.turn

    async def _settle_lost(self) -> None:
        """Settle as unknown a call whose settlement was lost: the log was out of reach until the time was over."""
        run = await self._log.read(lambda view: view.run(self._log.run.id))
        if run is not None and run.in_flight is not None:
            await self._log.append(settle_unknown(run, self._log.who, self._log.fence, purpose=self._history.purpose))

    def _ask_for(
        self, turn: int, attempt: int, output: int, last: LastTurn | None, notice: _Notice, bare: bool
    ) -> tuple[Request, CapRequest]:
        """Return a request and what to reserve for it; a `bare` one leaves out every result that it may."""
        history = self._history
        upto = history.last_message_seq
        if last is not None:
            # It is said once: a second attempt of the wrap-up finds it in the history.
            notice = _Notice() if WRAP_UP in history.notices_sent else _Notice(_last_words(last), (WRAP_UP,))
        elide = history.fresh_results() if last else self._trimmed(upto)
        if bare:
            elide += tuple(seq for seq, _saved in history.elidable())
        recipe = Recipe(upto, elide, notice.text)
        thinking = 0 if last else self._thinking(output, recipe)
        request = history.request(recipe, output, thinking)
        bound = self._model.bound(request, history.known)
        if recipe.elide:  # the reported count includes what is left out now: both are upper bounds, use the lower
            bound = min(bound, self._model.bound(request, None), key=lambda both: both.prompt_tokens)
        prompt = bound.prompt_tokens
        wrap = Bound(prompt + output + WRAP_PROMPT, self._wrap_output)
        fact = CostReserved(
            turn=turn,
            attempt=attempt,
            scopes=(),
            micros=reserve_micros(self._price, bound),
            wrap_micros=0 if last else reserve_micros(self._price, wrap),
            prompt_tokens=prompt,
            max_output=output,
            upto_seq=upto,
            elide=recipe.elide,
            notice=notice.text,
            notices=notice.about,
            last=last,
            phase=notice.phase,
            thinking=thinking,
            request_sha=hashlib.sha256(self._model.encode(request)).hexdigest(),
        )
        return request, CapRequest(fact, prompt + output, 0 if last else wrap.prompt_tokens + wrap.output_tokens)

    def _thinking(self, output: int, recipe: Recipe) -> int:
        """Return how many of a call's output tokens may be thinking.

        Once it is off it stays off: providers want one mode within a conversation of calls and results, and the prompt
        size that a call without thinking reports says nothing about a call with it.
        """
        if not self._config.extended_thinking or not self._history.thinks or output < LEAST_TO_THINK:
            return 0
        return output // 2 if self._model.may_think(self._history.turns(recipe)) else 0

    def _granted(self, answer: Reservation | CapReached | UnreadMessages) -> None:
        """Fold what the log has now: the reservation, or the messages to the run that have to go first."""
        if isinstance(answer, Reservation):
            self._looked = answer.seq
            self._history.add(answer.seq, answer.fact)
        elif isinstance(answer, UnreadMessages):
            for entry in answer.entries:
                self._looked = entry.seq
                if entry.fact is not None:
                    self._history.add(entry.seq, entry.fact)

    def last_turn(self, turn: int | None = None) -> LastTurn | None:
        """Return why a turn (by default the current one) is the last, or None."""
        if self.cap is not None:
            return self.cap
        turn = self._history.turn if turn is None else turn
        if turn >= self._config.max_iterations:
            return LastTurn(status="iteration_limit", reason=f"max_iterations of {self._config.max_iterations}")
        if self._history.tool_calls >= self._config.max_tool_calls:
            return LastTurn(status="tool_limit", reason=f"max_tool_calls of {self._config.max_tool_calls}")
        return None

    def _notice(self, attempt: int) -> _Notice:
        """Return what the next request tells the model; further attempts of a turn repeat what the first said."""
        phase = self._planner.phase()
        if attempt > 1:
            return _Notice(phase=phase)
        if phase is not None:
            return _Notice(self._planner.prompt_of(phase), (f"plan:{phase}",), phase)
        ready = self._history.planning.ready
        if ready is not None and ready.plan and TO_WORK not in self._history.notices_sent:
            left = self._eighty()
            return _Notice(
                "\n\n".join([prompts("planning")["work"], *([left.text] if left.text else [])]), (TO_WORK, *left.about)
            )
        fault = self._history.invalid_answer
        if fault is not None and fault.notice:
            return _Notice(fault.notice, (fault.kind,))
        return self._eighty()

    def _eighty(self) -> _Notice:
        """Return the notice that 80 % of a cap is used, once for each cap."""
        config, run = self._config, self._log.run
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
                format_usd(config.max_cost_micros - run.cost_micros),
            ),
        }
        near = [
            name
            for name, (have, cap, _left) in used.items()
            if have >= NEARLY * cap and f"left:{name}" not in self._history.notices_sent
        ]
        if not near:
            return _Notice()
        left = ", ".join(used[name][2] for name in near)
        text = f"Left of your limits: {left}. Come to an end; call submit_result in time."
        return _Notice(text, tuple(f"left:{name}" for name in near))

    def _trimmed(self, upto: int) -> tuple[int, ...]:
        """Return the oldest tool results to leave out once the prompt exceeds 70 % of its room."""
        elidable = self._history.elidable()
        if not elidable:
            return ()
        left = max(self._config.max_tokens - self._log.run.tokens, 0)
        # Of the tokens left, the prompt is needed twice: by this call and by the wrap-up after it.
        twice = max(left - self._config.max_output - WRAP_PROMPT - self._wrap_output, 0) // 2
        room = int(TRIM_SHARE * min(self._window, twice))
        elide: list[int] = []
        freed = 0
        recipe = Recipe(upto)
        bound = self._model.bound(self._history.request(recipe, LEAST_OUTPUT), self._history.known).prompt_tokens
        if bound <= room:
            return ()
        for seq, saved in elidable:
            if bound - freed <= room * TRIM_TO / TRIM_SHARE:
                break
            elide.append(seq)
            freed += saved // 4  # a cautious estimate; the reservation uses the real bound
        return tuple(elide) if freed >= bound * TRIM_LEAST else ()

    def _fitting(self, asked: CostReserved, reached: CapReached) -> int | None:
        """Return the most output tokens with which call and wrap-up fit what is left; None below the useful minimum."""
        if reached.cap == "overrun":  # after an overrun no call is sent, not even a free one
            return None
        low, high = LEAST_OUTPUT, asked.max_output - 1
        best = None
        while low <= high:
            middle = (low + high) // 2
            prompt = asked.prompt_tokens
            wrap = Bound(prompt + middle + WRAP_PROMPT, self._wrap_output)
            if reached.cap == "max_tokens":
                need = prompt + middle + wrap.prompt_tokens + wrap.output_tokens
            else:
                need = reserve_micros(self._price, Bound(prompt, middle)) + reserve_micros(self._price, wrap)
            if need <= reached.left:
                best, low = middle, middle + 1
            else:
                high = middle - 1
        return best


def _last_words(cap: LastTurn) -> str:
    return (
        f"This is the last turn: {cap.reason} is reached. Only submit_result is accepted now. Call it with what you"
        " have, and say in caveats what is missing."
    )


def _cap_words(reached: CapReached, asked: CapRequest) -> str:
    """Return which cap the next call does not fit, its worst case, and what is left."""
    if reached.cap == "overrun":
        return "a call cost more than it could by the provider's own limits"
    caps = {
        "max_cost_cents": "the run's max_cost_cents",
        "max_tokens": "the run's max_tokens",
        "group_max_cost": "the group's group_max_cost_cents",
        "user_daily_cents": "the user's budget of the day",
        "installation_daily_cents": "the installation's budget of the day",
    }
    if reached.cap == "max_tokens":
        need, left = f"{asked.tokens + asked.wrap_tokens:,} tokens", f"{reached.left:,} are"
    else:
        need = format_usd(asked.fact.micros + asked.fact.wrap_micros)
        left = f"{format_usd(reached.left)} is"
    return f"{caps[reached.cap]} was reached: the next call and a last one can take {need}, and {left} left"
