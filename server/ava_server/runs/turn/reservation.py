"""Reservations: builds the next request and holds its worst case in every cap, smaller or as the wrap-up if need be.

`Outliner` writes the requests of the turns that outline the work.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from ava_audit.events import Activity, CostReserved, LastTurn, OutlinePhase
from ava_audit.units import format_usd
from ava_audit.view import Command
from ava_server.budget.caps import (
    CapAnswer,
    CapReached,
    CapRequest,
    Reservation,
    RunStopped,
    UnreadMessages,
    messages_first,
    reserve_in_line,
)
from ava_server.budget.money_line import MoneyWait, Patience
from ava_server.core.prompts import prompts
from ava_server.models.base import Bound, Completion, Request
from ava_server.models.prices import billed_words, reserve_micros
from ava_server.run_config.config import config_of
from ava_server.runs.asking.extension import CapExtensions
from ava_server.runs.journal.log import RunLog
from ava_server.runs.record.claims import Paused
from ava_server.runs.record.endings import stopped_result
from ava_server.runs.record.history import Recipe
from ava_server.runs.record.result import RunResult
from ava_server.runs.turn.context import ActiveRun
from ava_server.runs.turn.money_wait import MoneyQueue

DOING: Mapping[OutlinePhase, str] = {
    "analysis": "Analysing the task",
    "plan": "Planning",
    "review": "Reviewing the plan",
}
"""The sentence in the status line."""
NO_OUTLINE = "Working without a plan: none could be made"


class Outliner:
    """The outline of one run."""

    def __init__(self, run_log: RunLog, *, wanted: bool) -> None:
        self.wanted = wanted
        self._log = run_log
        self._history = run_log.history

    def phase(self) -> OutlinePhase | None:
        if self._history.turn == 0:
            return "analysis" if self.wanted else None
        return self._history.outline.next_phase()

    async def settle(self, *, leaving: bool = False) -> None:
        """Record the outline once it is known, or at once where it cannot go on (`leaving`)."""
        ready = self._history.outline.outcome(leaving=leaving)
        if ready is None:
            return
        if ready.plan:
            await self._log.record(ready)
        else:
            await self._log.record(Activity(activity=NO_OUTLINE), ready)

    async def takes(self, answer: Completion | RunResult) -> bool:
        """Take the answer of a call for the outline, or the error in its place; False for an answer of the work."""
        if not self._history.outline.is_on:
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
"""Output tokens with which a call is still sent."""
GOOD_OUTPUT = 1_024
"""Output tokens below which a call leaves out results rather than shorten its answer further."""
OUTPUT_SHARE = 4
"""A call's answer may cost a quarter of what the run has left, so that one long answer does not use up a small cap."""
LEAST_SHOWN = 500
"""Characters of a result that are worth showing."""
RATIO_MARGIN = 2
"""Where the bound by bytes does not fit, each byte counts as this many times the measured tokens per byte."""
LEAST_BYTE_TOKENS = 0.25
"""A byte never counts as less: a provider that reports too little must not make text free. English has 0.2."""
TRIM_SHARE = 0.7
"""The share of its room from which a prompt is trimmed."""
TRIM_TO = 0.5
"""The share of its room to which a prompt is trimmed: well below, because each trim costs the provider's cache."""
TRIM_LEAST = 0.1
"""The share of a prompt that leaving out results must free: below that, losing the provider's cache costs more."""
NEARLY = 0.8
"""The share of a cap from which the model gets a notice."""
UNKNOWN_ATTEMPTS = 2
"""Attempts of one turn, over all owners, that may lose their connection; each books its full reservation."""
UNKNOWN = "two attempts of this turn ended without an answer, and what they cost is not known"
UNKNOWN_ADVICE = "See whether the provider answers, then propose it again with retry_of."
WRAP_UP = "wrap_up"
LAST_WORDS = (
    "This is the last turn: {cap} is reached. Only submit_result is accepted now. Call it with what you have, and say"
    " in caveats what is missing."
)
TO_WORK = "plan:work"


@dataclass(frozen=True)
class _Notice:
    """The notice of a request to the model, its topics, and the step of the outline that it asks for."""

    text: str | None = None
    about: tuple[str, ...] = ()
    phase: OutlinePhase | None = None


@dataclass(frozen=True)
class _Shape:
    """How a call is made to fit.

    Attributes:
        output: Most tokens of its answer.
        byte_tokens: What a byte that no report covers counts as; None for one token.
        elide: Results that it leaves out besides those that every call of its kind leaves out.
        most_shown: Most characters of each new result; None for all.
    """

    output: int
    byte_tokens: float | None = None
    elide: tuple[int, ...] = ()
    most_shown: int | None = None


@dataclass(frozen=True)
class _Call:
    """A call in some shape, with its bound and that of the wrap-up after it (None for the wrap-up itself)."""

    recipe: Recipe
    request: Request
    bound: Bound
    wrap: Bound | None


class Reservations:
    """Reserves the calls of one run.

    Attributes:
        cap: The cap that was reached: from then on only the wrap-up is sent.
    """

    def __init__(self, run: ActiveRun, outliner: Outliner) -> None:
        self._run = run
        self._log = run.log
        self._history = run.log.history
        self._config = run.config
        self._model = run.context.model
        self._outliner = outliner
        self._line = MoneyQueue(run)
        self.cap = self._history.last  # a run that was resumed in its wrap-up stays there
        self.extensions = CapExtensions(run.log, run.config, run.context.extensions)
        self._messages_read_to = self._history.last_message_seq  # messages to the run up to this `seq` are read
        self._sized: dict[Recipe, tuple[Request, Bound]] = {}  # of this reservation: the fold so far decides both

    async def next(self) -> tuple[Reservation, Request] | RunResult | Paused:
        """Build the next request and hold its worst case; a smaller one, or the wrap-up, if that is all that fits.

        Where the wrap-up would begin, the run may first ask a person for more, and is paused for that.
        """
        history = self._history
        if not history.answered or history.search is not None:
            await self._log.settle_lost()
        is_wrap_up = self.last_turn(self._next_turn()) is not None
        await self._outliner.settle(leaving=is_wrap_up)
        turn = self._next_turn()
        attempt = 1
        if not history.answered:
            attempt = history.attempt + 1
            if history.unknown_attempts >= UNKNOWN_ATTEMPTS:
                return RunResult(
                    "error", UNKNOWN, error_kind="dropped", error_message=UNKNOWN, what_to_do=UNKNOWN_ADVICE
                )
        notice = self._notice(attempt)
        self._sized.clear()
        shape: _Shape | None = None
        while True:
            last = self.last_turn(turn)
            if last is not None:
                await self._log.write_kept()  # the wrap-up may leave out any result, and refers to its place in the log
                notice = self._wrap_up_notice(last)
            if shape is None:
                shape = _Shape(self._most_output(last))
            call = self._call(shape, last, notice)
            request = self._cap_request(turn, attempt, shape, call, last, notice)
            answer = await self._reserve(request, shape, last, notice)
            if isinstance(answer, UnreadMessages):
                continue
            if isinstance(answer, RunStopped):
                return await self._log.read(partial(stopped_result, run=self._log.run, stopped=answer))
            if isinstance(answer, Reservation):
                if notice.phase is not None and attempt == 1:
                    await self._log.record(Activity(activity=DOING[notice.phase]))
                return answer, call.request
            shape = self._smaller_shape(answer, last, notice, shape)
            if shape is not None:
                continue
            if last is not None:  # not even the wrap-up fits: the run ends with what it has
                return RunResult(last.status, last.reason)
            pause = await self.extensions.more_of(answer, request, self._run.active_s)
            if pause is not None:
                return pause
            self.cap = LastTurn(status=answer.status, reason=cap_words(answer, request, self._run))
            if history.outline.is_on:  # the outline so far is used, and the wrap-up is a turn of its own
                return await self.next()

    def _wrap_up_notice(self, last: LastTurn) -> _Notice:
        """Return the notice of the last turn; empty for a second attempt, which finds it in the history."""
        if WRAP_UP in self._history.notices_sent:
            return _Notice()
        return _Notice(LAST_WORDS.format(cap=last.reason), (WRAP_UP,))

    def _most_output(self, last: LastTurn | None) -> int:
        """Return the most output tokens of the next call, before it is made smaller."""
        if last is not None:
            return self._config.wrap_output
        return affordable_output(self._run, self._config.max_output)

    async def _reserve(
        self, request: CapRequest, shape: _Shape, last: LastTurn | None, notice: _Notice
    ) -> Reservation | CapReached | UnreadMessages | RunStopped:
        """Reserve a call, or return the cap that it does not fit; wait for money that other runs hold.

        Returns UnreadMessages if messages to the run have come since the request was built: it has to show them.
        """

        def command(patience: Patience) -> Command[CapAnswer | UnreadMessages]:
            in_line = reserve_in_line(self._log.fence, self._log.who, request, self._run.context.caps, patience)
            return messages_first(self._log.run.id, self._messages_read_to, in_line)

        def least_micros() -> int:  # the queue asks for it only if the call has to wait
            return self._least_micros(request, shape, last, notice)

        # While it waits, nothing of the run is in flight: this process may leave it, and another one take it.
        answer = await self._line.ask(command, self._fold_answer, least_micros, may_leave=True)
        if isinstance(answer, MoneyWait):  # it has waited as long as it may: it leaves the money to the other runs
            return CapReached(answer.cap, answer.left, gives_way=True)
        return answer

    def _least_micros(self, request: CapRequest, shape: _Shape, last: LastTurn | None, notice: _Notice) -> int:
        """Return what a call can take, in micro-USD, with a shorter answer and its bytes as measured."""
        need = request.fact.micros + request.fact.wrap_micros
        if last is not None:
            return need
        ratio = shape.byte_tokens if shape.byte_tokens is not None else measured_byte_tokens(self._run)
        smaller = replace(shape, output=min(GOOD_OUTPUT, shape.output), byte_tokens=ratio)
        return min(need, self._micros(self._call(smaller, last, notice)))

    def _micros(self, call: _Call) -> int:
        """Return the worst case of a call and of the wrap-up after it, in micro-USD."""
        micros = reserve_micros(self._run.reserve_price, call.bound)
        if call.wrap:
            micros += reserve_micros(self._run.reserve_price, call.wrap)
        return micros

    def _next_turn(self) -> int:
        return self._history.turn + 1 if self._history.answered else self._history.turn

    def _call(self, shape: _Shape, last: LastTurn | None, notice: _Notice) -> _Call:
        upto = self._history.last_message_seq
        fresh = self._history.fresh_results()
        fresh_seqs = tuple(seq for seq, _text in fresh)
        elide = fresh_seqs if last is not None else self._results_to_trim(upto)
        elide += tuple(seq for seq in shape.elide if seq not in elide)
        cut: tuple[tuple[int, int], ...] = ()
        if shape.most_shown is not None:
            cut = tuple((seq, shape.most_shown) for seq, text in fresh if len(text) > shape.most_shown)
        recipe = Recipe(upto, elide, cut, notice.text)
        request, bound = self._sized_for(recipe, shape)
        if last is not None:
            return _Call(recipe, request, bound, None)
        request = replace(request, thinking=self._thinking(request))
        # The wrap-up may leave out every result.
        old_seqs = [seq for seq, _saved in self._history.elidable()]
        bare_elide = {*elide, *fresh_seqs, *old_seqs}
        bare = recipe
        if bare_elide != set(elide) or cut:
            bare = Recipe(upto, tuple(bare_elide), (), notice.text)
        bare_bound = self._sized_for(bare, shape)[1]
        prompt = min(bare_bound.prompt_tokens, bound.prompt_tokens)
        wrap = Bound(prompt + shape.output + WRAP_PROMPT, self._config.wrap_output)
        return _Call(recipe, request, bound, wrap)

    def _sized_for(self, recipe: Recipe, shape: _Shape) -> tuple[Request, Bound]:
        """Return the request of a recipe, without thinking, and its bound, both for an answer of the shape's length."""
        if recipe not in self._sized:
            request = self._history.request(recipe, shape.output)
            self._sized[recipe] = request, self._model.bound(request, self._history.reported(recipe))
        request, bound = self._sized[recipe]
        if request.max_output != shape.output:
            request = replace(request, max_output=shape.output)
            bound = replace(bound, output_tokens=shape.output)
        if shape.byte_tokens is not None:
            bound = bound.by_ratio(shape.byte_tokens)
        return request, bound

    def _cap_request(
        self, turn: int, attempt: int, shape: _Shape, call: _Call, last: LastTurn | None, notice: _Notice
    ) -> CapRequest:
        prompt = call.bound.prompt_tokens
        wrap_micros = wrap_tokens = 0
        if call.wrap is not None:
            wrap_micros = reserve_micros(self._run.reserve_price, call.wrap)
            wrap_tokens = call.wrap.prompt_tokens + call.wrap.output_tokens
        fact = CostReserved(
            turn=turn,
            attempt=attempt,
            scopes=(),
            micros=reserve_micros(self._run.reserve_price, call.bound),
            wrap_micros=wrap_micros,
            prompt_tokens=prompt,
            max_output=shape.output,
            upto_seq=call.recipe.upto_seq,
            elide=call.recipe.elide,
            cut=call.recipe.cut,
            new_bytes=call.bound.new_bytes,
            byte_tokens=shape.byte_tokens,
            notice=notice.text,
            notices=notice.about,
            last=last,
            phase=notice.phase,
            thinking=call.request.thinking,
            request_sha=hashlib.sha256(self._model.encode(call.request)).hexdigest(),
        )
        return CapRequest(fact, tokens=prompt + shape.output, wrap_tokens=wrap_tokens)

    def _thinking(self, request: Request) -> int:
        """Return how many of a call's output tokens may be thinking.

        Once it is off it stays off: providers want one mode within a conversation of calls and results, and the prompt
        size that a call without thinking reports says nothing about a call with it.
        """
        if not self._config.extended_thinking or not self._history.thinks:
            return 0
        if request.max_output < LEAST_TO_THINK or not self._model.may_think(request.turns):
            return 0
        return request.max_output // 2

    def _fold_answer(self, answer: CapAnswer | UnreadMessages) -> None:
        """Fold what the log has now: the reservation, or the messages to the run that have to go first."""
        if isinstance(answer, Reservation):
            self._messages_read_to = answer.seq
            self._history.add(answer.seq, answer.fact)
        elif isinstance(answer, UnreadMessages):
            for entry in answer.entries:
                self._messages_read_to = entry.seq
                if entry.fact is not None:
                    self._history.add(entry.seq, entry.fact)

    def last_turn(self, turn: int | None = None) -> LastTurn | None:
        """Return why a turn (by default the current one) is the last, or None."""
        if self.cap:
            return self.cap
        if turn is None:
            turn = self._history.turn
        return counted_cap(self._run, turn)

    def _notice(self, attempt: int) -> _Notice:
        """Return the notice of the next request; further attempts of a turn repeat that of the first."""
        phase = self._outliner.phase()
        if attempt > 1:
            return _Notice(phase=phase)
        if phase is not None:
            assert self._history.prefix is not None, "a run starts with its prefix"
            tools = ", ".join(str(tool["name"]) for tool in self._history.prefix.tools)
            return _Notice(_outline_prompts()[phase].replace("{tools}", tools), (f"plan:{phase}",), phase)
        ready = self._history.outline.ready
        if ready is not None and ready.plan and TO_WORK not in self._history.notices_sent:
            text = _outline_prompts()["work"]
            left = self._notice_of_caps()
            if left.text:
                text = f"{text}\n\n{left.text}"
            return _Notice(text, (TO_WORK, *left.about))
        raised = self.extensions.notice(self._run.active_s)
        if raised is not None:
            return _Notice(*raised)
        fault = self._history.invalid_answer
        if fault is not None and fault.notice:
            return _Notice(fault.notice, (fault.kind,))
        return self._notice_of_caps()

    def _notice_of_caps(self) -> _Notice:
        """Return the notice that 80 % of a cap is used, once for each cap."""
        config, run, history = self._config, self._log.run, self._history
        caps: list[tuple[str, float, float, Callable[[float], str]]] = [
            ("time", self._run.active_s, config.timeout_s, "{:.0f} s".format),
            ("turns", history.turn, config.max_iterations, "{} turns".format),
            ("tool calls", history.tool_calls, config.max_tool_calls, "{} tool calls".format),
            ("tokens", run.tokens, config.max_tokens, "{} tokens".format),
            ("money", run.cost_micros, config.max_cost_micros, lambda micros: format_usd(int(micros))),
        ]
        topics: list[str] = []
        lefts: list[str] = []
        for name, used, cap, words in caps:
            topic = f"left:{name}"
            if used >= NEARLY * cap and topic not in history.notices_sent:
                topics.append(topic)
                lefts.append(words(cap - used))
        if not topics:
            return _Notice()
        text = f"Left of your limits: {', '.join(lefts)}. Come to an end; call submit_result in time."
        return _Notice(text, tuple(topics))

    def _results_to_trim(self, upto: int) -> tuple[int, ...]:
        """Return the oldest tool results to leave out once the prompt exceeds 70 % of its room."""
        elidable = self._history.elidable()
        if not elidable:
            return ()
        left = max(self._config.max_tokens - self._log.run.tokens, 0)
        room = int(TRIM_SHARE * min(self._run.context.window, left))
        _request, bound = self._sized_for(Recipe(upto), _Shape(LEAST_OUTPUT))
        prompt_tokens = bound.prompt_tokens
        if prompt_tokens <= room:
            return ()
        elide: list[int] = []
        freed = 0
        for seq, saved in elidable:
            if prompt_tokens - freed <= room * TRIM_TO / TRIM_SHARE:
                break
            elide.append(seq)
            freed += saved // 4  # a cautious estimate; the reservation uses the real bound
        if freed < prompt_tokens * TRIM_LEAST:
            return ()
        return tuple(elide)

    def _smaller_shape(
        self, reached: CapReached, last: LastTurn | None, notice: _Notice, tried: _Shape
    ) -> _Shape | None:
        """Return the best shape in which a call fits what a cap has left; None where none does.

        A call first gets a shorter answer; then the measured ratio in place of one token per byte; then it leaves out
        old results, and shows only the beginning of new ones. A call that gives way to other runs is not made smaller:
        the wrap-up follows.
        """
        gives_way_to_wrap_up = reached.gives_way and last is None
        if reached.cap == "overrun" or gives_way_to_wrap_up:
            return None
        most = tried.output
        ratio = measured_byte_tokens(self._run)
        least = min(GOOD_OUTPUT, most)
        old = tuple(seq for seq, _saved in self._history.elidable())

        def fits(shape: _Shape, share: float = 1.0) -> bool:
            call = self._call(shape, last, notice)
            if reached.cap != "max_tokens":
                return self._micros(call) <= reached.left * share
            tokens = call.bound.prompt_tokens + shape.output
            if call.wrap:
                tokens += call.wrap.prompt_tokens + call.wrap.output_tokens
            return tokens <= reached.left * share

        def longest(shape: _Shape) -> _Shape | None:
            """Return the shape with the longest answer that fits, or None."""
            output = largest(lambda output: fits(replace(shape, output=output)), shape.output, most)
            if output is None:
                return None
            return replace(shape, output=output)

        for output in dict.fromkeys((least, min(LEAST_OUTPUT, most))):
            shapes = [_Shape(output)]
            by_ratio = _Shape(output, ratio)
            if ratio is not None:
                shapes.append(by_ratio)
            for shape in shapes:
                fitting = longest(shape)
                if fitting is not None and fitting != tried:
                    return fitting
            fitting = self._shape_with_less(replace(by_ratio, elide=old), fits, last)
            if fitting is not None:
                return fitting
        return None

    def _shape_with_less(
        self, bare: _Shape, fits: Callable[[_Shape, float], bool], last: LastTurn | None
    ) -> _Shape | None:
        """Return a shape that fits without the oldest results, or without all and with parts of the new ones."""
        old = bare.elide

        def keeping(kept: int) -> _Shape:
            return replace(bare, elide=old[: len(old) - kept])

        if old and fits(bare, 1.0):
            share = 1.0
            if last is None:  # some room is left free for later turns: each trim costs the provider's cache
                share = TRIM_SHARE
            most_kept = largest(lambda kept: fits(keeping(kept), share), 0, len(old) - 1)
            return keeping(most_kept or 0)
        if last is not None:
            return None
        longest = max((len(text) for _seq, text in self._history.fresh_results()), default=0)
        shown = largest(lambda shown: fits(replace(bare, most_shown=shown), 1.0), LEAST_SHOWN, longest)
        if shown is None:
            return None
        return replace(bare, most_shown=shown)


def affordable_output(run: ActiveRun, most: int) -> int:
    """Return the most tokens of the next answer: `most`, or fewer where little money is left.

    Fewer than `GOOD_OUTPUT` would not be a usable answer, so it is not cut below that; whether the call then fits the
    caps is decided when it is reserved.
    """
    nanos_per_token = run.reserve_price.output
    if not nanos_per_token:
        return most
    left_micros = run.config.max_cost_micros - run.log.run.cost_micros
    most_micros = left_micros // OUTPUT_SHARE
    affordable = most_micros * 1000 // nanos_per_token
    return min(most, max(affordable, GOOD_OUTPUT))


def counted_cap(run: ActiveRun, turn: int) -> LastTurn | None:
    """Return the cap of turns or tool calls that a turn has reached, or None."""
    config = run.config
    if turn >= config.max_iterations:
        return LastTurn(status="iteration_limit", reason=f"max_iterations of {config.max_iterations}")
    if run.log.history.tool_calls >= config.max_tool_calls:
        return LastTurn(status="tool_limit", reason=f"max_tool_calls of {config.max_tool_calls}")
    return None


def measured_byte_tokens(run: ActiveRun) -> float | None:
    """Return what a byte counts as by the highest ratio that was measured with the run's model, or None."""
    measured = (run.log.history.tokens_per_byte, run.context.tokens_per_byte)
    known = [ratio for ratio in measured if ratio is not None]
    if not known:
        return None
    return byte_tokens(max(known))


def cap_words(reached: CapReached, request: CapRequest, run: ActiveRun) -> str:
    """Return which cap the next call does not fit, its worst case, and what is left."""
    log = run.log
    if reached.cap == "overrun":
        billed = sum(micros for part, micros in log.history.cost_by.items() if part != "search")
        if config_of(log.run.config).price.free and billed:
            return billed_words(log.run.model, billed)
        return "a call cost more than it could by the provider's own limits"
    caps = {
        "max_cost_cents": "the run's max_cost_cents",
        "max_tokens": "the run's max_tokens",
        "group_max_cost": "the plan's cost cap",
        "user_daily_cents": "the user's budget of the day",
        "installation_daily_cents": "the installation's budget of the day",
    }
    if reached.cap == "max_tokens":
        need = f"{request.needs(reached.cap):,} tokens"
        left = f"{reached.left:,} are"
    else:
        need = f"{format_usd(request.needs(reached.cap))}{run.surcharge_words}"
        left = f"{format_usd(reached.left)} is"
    others = "; other runs hold the rest" if reached.gives_way else ""
    if reached.cap == "group_max_cost" and config_of(log.run.config).leaves:
        caps[reached.cap] += " without what is kept for later steps"
    return f"{caps[reached.cap]} was reached: {left} left, and the next call with the last one may cost {need}{others}"


def byte_tokens(tokens_per_byte: float) -> float:
    """Return what a byte counts as, by a measured ratio."""
    return min(max(RATIO_MARGIN * tokens_per_byte, LEAST_BYTE_TOKENS), 1.0)


def largest(fits: Callable[[int], bool], low: int, high: int) -> int | None:
    """Return the largest number from `low` to `high` that fits, where all smaller ones fit too; None if none does."""
    if low > high or not fits(low):
        return None
    best, low = low, low + 1
    while low <= high:
        middle = (low + high) // 2
        if fits(middle):
            best, low = middle, middle + 1
        else:
            high = middle - 1
    return best


def _outline_prompts() -> Mapping[str, str]:
    return prompts("ava_server.runs.turn", "outline")
