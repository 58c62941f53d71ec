"""The line for money: which run goes next where a cap's money is held by other runs.

Held money is not spent: it is for calls in flight, which mostly cost less, and for the last turns of running runs,
which return it when they end. So a call that does not fit only because others hold money waits. The rules:

1. The oldest goes first. A younger run leaves what an older one waits for, while calls are in flight in that scope.
2. With nothing in flight, whoever fits goes, the oldest first: nobody waits while money lies about.
3. Where all that hold money in a scope wait themselves, first the oldest goes on in a smaller form, if that fits; else
   the youngest that has a last turn reserved gives way: it hands in its result and returns what it held.

Only runs that can go on by themselves are waited for: not paused ones, and none whose owner is gone. All of it follows
from the log, so each process on it, and each run, comes to the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from ava_audit.events import MoneyAwaited
from ava_audit.rows import RunRow
from ava_audit.units import format_usd
from ava_audit.view import MoneyHolder, View, loads

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
    if fact.over:
        return "waits for money no longer"
    return f"waits for {_awaited_words(fact.missing, fact.runs)}"


def _awaited_words(missing: int, runs: int) -> str:
    """Return what is waited for: `$0.12 that 2 other runs hold`; without other runs it is free, but an older waits."""
    money = format_usd(missing)
    if runs == 0:
        return f"{money}, behind an older run"
    return f"{money} that {runs} other {'run holds' if runs == 1 else 'runs hold'}"


def awaited_money(view: View, run: RunRow, is_alive: Callable[[str], bool]) -> str | None:
    """Return what a running run waits for now: `$0.12 that 2 other runs hold`. None: it waits for no money.

    `is_alive` tells whether an instance lives. The amounts are those of this moment, not those of the entry.
    """
    wait = loads(run.money_wait)
    if wait is None:
        return None
    scope, need = str(wait["scope"]), int(wait["micros"])
    missing = need - (int(wait["limit"]) - view.bucket(scope).committed + run.wrap_in(scope))
    if missing <= 0:
        return _awaited_words(need, 0)
    others = [each for each in view.money_holders() if each.id != run.id and each.held_in(scope) > 0]
    holders = sum(each.instance is not None and is_alive(each.instance) for each in others)
    if holders == 0:  # it asks again within a second, and does not wait for runs that nobody works on
        return f"{format_usd(missing)} that paused runs hold"
    return _awaited_words(missing, holders)


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
        self._least = need if patience.least is None else min(patience.least, need)
        self._order = (run.queued_us or 0, run.id)
        self._others = [
            each for each in view.money_holders() if each.id != run.id and each.instance not in patience.gone
        ]

    def decide(self) -> MoneyWait | NoRoom | None:
        """Return None where the call may be reserved now."""
        short = [each for each in self._lefts if self._need > each.left]
        if not short:
            behind = self._behind()
            return None if behind is None else self._wait(behind)
        if any(self._need > each.left + self._coming(each.scope) for each in short):
            tightest = min(self._lefts, key=lambda each: each.left + self._coming(each.scope))
            return NoRoom(tightest.cap, max(tightest.left + self._coming(tightest.scope), 0))
        where = self._where(short)
        reached = self._reached(where.scope)
        if reached is None:
            return self._wait(where)
        return self._at_standstill(where, reached)

    # -- what others hold ---------------------------------------------------------------------------------------------

    def _coming(self, scope: str) -> int:
        """Return what other runs hold in a scope and will return in time."""
        return sum(each.held_in(scope) for each in self._others)

    def _where(self, short: Sequence[CapLeft]) -> CapLeft:
        """Return the scope in which the run waits: the same as before while that is short, else the shortest."""
        noted = loads(self._run.money_wait)
        for each in short:
            if noted is not None and noted["scope"] == each.scope:
                return each
        return max(short, key=lambda each: self._need - each.left)

    def _wait(self, where: CapLeft) -> MoneyWait:
        missing = max(self._need - where.left, 0)
        holders = sum(each.held_in(where.scope) > 0 for each in self._others) if missing else 0
        fact = MoneyAwaited(
            scope=where.scope,
            limit=where.limit,
            micros=self._need,
            least=self._least,
            missing=missing or self._need,
            runs=holders,
        )
        return MoneyWait(where.cap, fact, max(where.left, 0))

    # -- the order ----------------------------------------------------------------------------------------------------

    def _behind(self) -> CapLeft | None:
        """Return the scope in which this run, which fits, has to leave its money to an older one that waits."""
        older = [each for each in self._others if each.wait is not None and each.order < self._order]
        for each in self._lefts:
            taken = self._need - self._run.wrap_in(each.scope)
            if taken <= 0:  # it holds that much already
                continue
            in_flight = any(holder.calls_in(each.scope) for holder in self._others)
            for other in older:
                if not self._shares(each, other):
                    continue
                need = self._waiter(other).micros
                if need <= self._left_of(each, other) - taken:
                    continue
                if in_flight or self._goes_next(other):
                    return each
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
        return cap.limit - self._view.bucket(cap.scope).committed + other.wrap_in(cap.scope)

    def _goes_next(self, other: MoneyHolder) -> bool:
        """Tell whether a waiter fits now, by what it waits for and by the caps that it shares with this run."""
        waiter = self._waiter(other)
        shared = [each for each in self._lefts if self._shares(each, other)]
        return waiter.micros <= min([waiter.left, *(self._left_of(each, other) for each in shared)])

    def _waiter(self, holder: MoneyHolder) -> _Waiter:
        wait = holder.wait
        assert wait is not None
        wrap = holder.wrap_in(wait["scope"])
        left = int(wait["limit"]) - self._view.bucket(wait["scope"]).committed + wrap
        return _Waiter(holder.id, holder.order, int(wait["micros"]), int(wait["least"]), left, wrap)

    def _reached(self, scope: str) -> frozenset[str] | None:
        """Return the scopes on which a wait in this one depends; None while a run that holds money there goes on."""
        reached = {scope}
        while True:
            before = len(reached)
            for other in self._others:
                if not any(other.held_in(each) for each in reached):
                    continue
                if other.wait is None or other.calls:
                    return None
                reached.add(str(other.wait["scope"]))
            if len(reached) == before:
                return frozenset(reached)

    def _at_standstill(self, where: CapLeft, reached: frozenset[str]) -> MoneyWait | NoRoom:
        """Decide who goes on where all that hold the money wait: the first that fits, or the youngest gives way."""
        if self._only_asks:
            return self._wait(where)
        own = _Waiter(self._run.id, self._order, self._need, self._least, where.left, self._run.wrap_in(where.scope))
        line = sorted((own, *self._waiters(reached)), key=lambda each: each.order)
        if any(each.micros <= each.left for each in line):  # it goes on by itself
            return self._wait(where)
        smaller = next((each for each in line if each.least <= each.left), None)
        if smaller is not None:
            return self._wait(where) if smaller is not own else self._no_room()
        last = next((each for each in reversed(line) if each.wrap), None)
        if last is not own:
            return self._wait(where)
        return NoRoom(where.cap, max(where.left, 0), gives_way=True)

    def _waiters(self, reached: frozenset[str]) -> Iterator[_Waiter]:
        for other in self._others:
            if other.wait is not None and other.wait["scope"] in reached:
                yield self._waiter(other)

    def _no_room(self) -> NoRoom:
        tightest = min(self._lefts, key=lambda each: each.left)
        return NoRoom(tightest.cap, max(tightest.left, 0))
