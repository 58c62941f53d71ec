"""The line for money: which run goes next where a cap's money is held by other runs.

Held money is not spent: it is for calls in flight, which mostly cost less, and for the last turns of running runs,
which return it when they end. So a call that does not fit only because others hold money waits. The rules:

1. The oldest goes first. While calls are in flight in a scope, a younger run does not take what an older one waits for.
2. With nothing in flight, the oldest call that fits goes: no money stays unused while calls wait.
3. If every run that holds money in a scope waits itself, the oldest goes on in a smaller form, if that fits; else the
   youngest that has a last turn reserved gives way: it hands in its result and returns what it held.

A call waits only for runs that can go on by themselves: not for paused ones, nor for those whose owner is gone. All of
it follows from the log, so every process and every run comes to the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from ava_audit.events import MoneyAwaited
from ava_audit.rows import RunRow
from ava_audit.units import format_usd
from ava_audit.view import MoneyHolder, View, loads
from ava_server.budget.kept_parts import kept_micros

MoneyCapName = Literal["max_cost_cents", "group_max_cost", "user_daily_cents", "installation_daily_cents"]


@dataclass(frozen=True)
class CapLeft:
    """A money cap of a run: its scope, its limit, and what is left of it, in micro-USD.

    What the run itself holds for its last turn counts as left.
    """

    cap: MoneyCapName
    scope: str
    limit: int
    left: int


@dataclass(frozen=True)
class Patience:
    """How a call waits for money that other runs hold.

    Attributes:
        gone: Instances that are no longer alive: their runs are not waited for.
        least: The worst case, in micro-USD, of the smallest form in which the call is still useful; None only asks
            whether it has to wait, and records nothing.
    """

    gone: frozenset[str] = frozenset()
    least: int | None = None


@dataclass(frozen=True)
class MoneyWait:
    """The call has to wait: a cap would have room for it if other runs did not hold money.

    Attributes:
        fact: What the log says of the wait.
        left: What is left of the cap now.
    """

    cap: MoneyCapName
    fact: MoneyAwaited
    left: int

    @property
    def words(self) -> str:
        return money_wait_words(self.fact)


@dataclass(frozen=True)
class NoRoom:
    """The call does not fit, and waiting does not help. `gives_way`: the run hands in what it has."""

    cap: MoneyCapName
    left: int
    gives_way: bool = False


def money_wait_words(fact: MoneyAwaited) -> str:
    """Return an entry in words: `waits for $0.12 that 2 other runs hold`."""
    if fact.returned:
        return f"returned {format_usd(fact.returned)}, held for its last turn: its process is gone, and others wait"
    if fact.over:
        return "waits for money no longer"
    money = format_usd(fact.missing)
    if fact.runs == 0:
        return f"waits for {money}, behind an older run"
    others = "run holds" if fact.runs == 1 else "runs hold"
    return f"waits for {money} that {fact.runs} other {others}"


@dataclass(frozen=True)
class _Waiter:
    """A run in the line: what it needs in its scope, and what is left for it there."""

    id: str
    order: tuple[int, str]
    micros: int
    least: int
    left: int
    wrap: int


class MoneyLine:
    """The line as one run that asks for `need` micro-USD finds it; `lefts` are its caps."""

    def __init__(self, view: View, run: RunRow, need: int, lefts: Sequence[CapLeft], patience: Patience) -> None:
        self._view = view
        self._run = run
        self._need = need
        self._lefts = lefts
        self._only_asks = patience.least is None
        self._least = need
        if patience.least is not None:
            self._least = min(patience.least, need)
        self._order = (run.queued_us or 0, run.id)
        self._others: list[MoneyHolder] = []
        for holder in view.money_holders():
            if holder.id != run.id and holder.instance not in patience.gone:
                self._others.append(holder)

    def decide(self) -> MoneyWait | NoRoom | None:
        """Return None where the call may be reserved now."""
        short = [cap for cap in self._lefts if self._need > cap.left]
        if not short:
            cap = self._cap_of_older_waiter()
            if cap is None:
                return None
            return self._wait(cap)
        if any(self._need > self._left_in_time(cap) for cap in short):
            tightest = min(self._lefts, key=self._left_in_time)
            return NoRoom(tightest.cap, max(self._left_in_time(tightest), 0))
        cap = self._cap_to_wait_for(short)
        scopes = self._standstill_scopes(cap.scope)
        if scopes is None:
            return self._wait(cap)
        return self._at_standstill(cap, scopes)

    # -- what others hold ---------------------------------------------------------------------------------------------

    def _left_in_time(self, cap: CapLeft) -> int:
        """Return what is left of a cap once other runs have returned what they hold."""
        return cap.left + sum(other.held_in(cap.scope) for other in self._others)

    def _cap_to_wait_for(self, short: Sequence[CapLeft]) -> CapLeft:
        """Return the cap for which the run waits: the same as before while that is short, else the shortest."""
        wait = loads(self._run.money_wait)
        if wait is not None:
            for cap in short:
                if wait["scope"] == cap.scope:
                    return cap
        return max(short, key=lambda cap: self._need - cap.left)

    def _wait(self, cap: CapLeft) -> MoneyWait:
        missing = max(self._need - cap.left, 0)
        holders = 0
        if missing:
            holders = sum(other.held_in(cap.scope) > 0 for other in self._others)
        fact = MoneyAwaited(
            scope=cap.scope,
            limit=cap.limit,
            micros=self._need,
            least=self._least,
            missing=missing or self._need,
            runs=holders,
        )
        return MoneyWait(cap.cap, fact, max(cap.left, 0))

    # -- the order ----------------------------------------------------------------------------------------------------

    def _cap_of_older_waiter(self) -> CapLeft | None:
        """Return the cap of which this run, which fits, has to leave the money to an older one that waits."""
        older = [other for other in self._others if other.wait is not None and other.order < self._order]
        for cap in self._lefts:
            extra = self._need - self._run.wrap_in(cap.scope)
            if extra <= 0:  # it holds that much already
                continue
            in_flight = any(other.calls_in(cap.scope) for other in self._others)
            for other in older:
                if not self._shares(cap, other):
                    continue
                if self._waiter(other).micros <= self._left_of(cap, other) - extra:
                    continue
                if in_flight or self._goes_next(other):
                    return cap
        return None

    def _shares(self, cap: CapLeft, other: MoneyHolder) -> bool:
        """Tell whether another run spends from one of this run's caps."""
        match cap.cap:
            case "max_cost_cents":
                return False
            case "group_max_cost":
                return other.plan_id == self._run.plan_id
            case "user_daily_cents":
                return other.user == self._run.user_id
            case "installation_daily_cents":
                return True

    def _left_of(self, cap: CapLeft, other: MoneyHolder) -> int:
        """Return what is left of a shared cap for another run; what that holds for its own last turn counts."""
        limit = self._limit_for(other, cap.scope)
        if limit is None:
            limit = cap.limit
        return limit - self._view.bucket(cap.scope).committed + other.wrap_in(cap.scope)

    def _limit_for(self, other: MoneyHolder, scope: str) -> int | None:
        """Return a scope's limit for another run that waits; None where it waits in another one.

        That of its plan is known wherever it waits: the cap as it is now, without what this run leaves to later steps.
        """
        assert other.wait is not None
        if scope == other.plan_id:
            plan = self._view.plan_caps(other.plan_id)
            run = self._view.run(other.id)
            if plan is not None and run is not None:
                return plan.cap_micros - kept_micros(self._view, run)
        if other.wait["scope"] == scope:
            return int(other.wait["limit"])
        return None

    def _goes_next(self, other: MoneyHolder) -> bool:
        """Tell whether a waiter fits now, by what it waits for and by the caps that it shares with this run."""
        waiter = self._waiter(other)
        left = waiter.left
        for cap in self._lefts:
            if self._shares(cap, other):
                left = min(left, self._left_of(cap, other))
        return waiter.micros <= left

    def _waiter(self, holder: MoneyHolder) -> _Waiter:
        wait = holder.wait
        assert wait is not None
        scope = wait["scope"]
        wrap = holder.wrap_in(scope)
        limit = self._limit_for(holder, scope)
        assert limit is not None
        left = limit - self._view.bucket(scope).committed + wrap
        return _Waiter(holder.id, holder.order, int(wait["micros"]), int(wait["least"]), left, wrap)

    def _standstill_scopes(self, scope: str) -> frozenset[str] | None:
        """Return the scopes on which a wait in this one depends; None while a run that holds money there goes on."""
        scopes = {scope}
        while True:
            before = len(scopes)
            for other in self._others:
                if not any(other.held_in(each) for each in scopes):
                    continue
                if other.wait is None or other.calls:
                    return None
                scopes.add(str(other.wait["scope"]))
            if len(scopes) == before:
                return frozenset(scopes)

    def _at_standstill(self, cap: CapLeft, scopes: frozenset[str]) -> MoneyWait | NoRoom:
        """Decide who goes on if all that hold the money wait: the first that fits, or the youngest gives way."""
        if self._only_asks:
            return self._wait(cap)
        own = _Waiter(self._run.id, self._order, self._need, self._least, cap.left, self._run.wrap_in(cap.scope))
        line = sorted((own, *self._waiters(scopes)), key=lambda waiter: waiter.order)
        if any(waiter.micros <= waiter.left for waiter in line):  # that one goes on by itself
            return self._wait(cap)
        for waiter in line:
            if waiter.least <= waiter.left:  # the first that goes on in a smaller form
                if waiter is own:
                    return self._no_room()
                return self._wait(cap)
        for waiter in reversed(line):
            if waiter.wrap:  # the youngest with a last turn
                if waiter is own:
                    return NoRoom(cap.cap, max(cap.left, 0), gives_way=True)
                break
        return self._wait(cap)

    def _waiters(self, scopes: frozenset[str]) -> Iterator[_Waiter]:
        for other in self._others:
            if other.wait is not None and other.wait["scope"] in scopes:
                yield self._waiter(other)

    def _no_room(self) -> NoRoom:
        tightest = min(self._lefts, key=lambda cap: cap.left)
        return NoRoom(tightest.cap, max(tightest.left, 0))
