"""What budgets and ownership must come to, kept by a test beside the product: plain sums, none of its code.

Here too: what a command does to a run, compared with the table of transitions (`runs/record/lifecycle.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from ava_audit.events import Event, Fact
from ava_audit.rows import UNENDED, RunRow
from ava_audit.view import View
from ava_server.runs.record.lifecycle import (
    OPTIONAL,
    TRANSITIONS,
    Cause,
    Situation,
    Transition,
    situation,
    transition,
)


@dataclass
class Account:
    """A scope: what it has spent and holds, the highest cap that was ever in force over it, and what was overrun."""

    spent: int = 0
    held: int = 0
    highest: int = 0
    overrun: int = 0

    @property
    def committed(self) -> int:
        return self.spent + self.held


@dataclass(frozen=True)
class Call:
    """A call in flight: its worst case in money and tokens, and the scopes in which that is held."""

    turn: int
    attempt: int
    micros: int
    tokens: int
    scopes: tuple[str, ...]


@dataclass
class Run:
    id: str
    pending_id: str
    user: str
    cap: int
    max_tokens: int
    expires_us: int
    line: str
    state: str = "awaiting_approval"
    generation: int = 0
    instance: str | None = None
    group: str | None = None
    cancel_asked: bool = False
    not_before_us: int = 0
    asks_for: int = 0
    question: str = ""
    tokens: int = 0
    cost: int = 0
    uncosted: int = 0
    overrun: bool = False
    call: Call | None = None
    wrap: int = 0
    wrap_scopes: tuple[str, ...] = ()


@dataclass
class Ledger:
    """All runs, and every scope's account.

    `days` are the caps of a user's day and of the installation's, as they are in force now.
    """

    days: tuple[int, int]
    runs: dict[str, Run] = field(default_factory=dict[str, Run])
    plans: dict[str, int] = field(default_factory=dict[str, int])
    accounts: dict[str, Account] = field(default_factory=dict[str, Account])

    def in_state(self, *states: str) -> list[Run]:
        return [run for run in self.runs.values() if run.state in states]

    def account(self, scope: str) -> Account:
        return self.accounts.setdefault(scope, Account())

    def covering(self, run: Run, now_us: int) -> Iterator[tuple[str, int]]:
        """Yield each scope that covers a call of a run made now, with its cap."""
        yield run.id, run.cap
        if run.group is not None:
            yield run.group, self.plans[run.group]
        yield from self.day_scopes(run.user, now_us)

    def day_scopes(self, user: str, now_us: int) -> Iterator[tuple[str, int]]:
        day = _day(now_us)
        yield f"user:{user}:{day}", self.days[0]
        yield f"all:{day}", self.days[1]

    def exhausted(self, user: str, now_us: int) -> bool:
        """Whether nothing may be proposed or approved any more today."""
        return any(
            cap == 0 or self.accounts.get(scope, Account()).spent >= cap for scope, cap in self.day_scopes(user, now_us)
        )

    def fits(self, run: Run, micros: int, tokens: int, now_us: int) -> bool:
        """Whether a call and the wrap-up after it fit every cap; the run's own wrap-up gives way to the new one."""
        if run.overrun:
            return False
        for scope, cap in self.covering(run, now_us):
            own = run.wrap if scope in run.wrap_scopes else 0
            if micros and self.accounts.get(scope, Account()).committed - own + micros > cap:
                return False
        return run.tokens + tokens <= run.max_tokens

    def hold(self, run: Run, call: Call, wrap: int, now_us: int) -> None:
        self.release_wrap(run)
        for scope, cap in self.covering(run, now_us):
            account = self.account(scope)
            account.held += call.micros + wrap
            account.highest = max(account.highest, cap)
        run.call, run.wrap, run.wrap_scopes = call, wrap, call.scopes

    def book(self, run: Run, cost: int, tokens: int, *, unknown: bool = False) -> None:
        call = run.call
        assert call is not None
        for scope in call.scopes:
            account = self.account(scope)
            account.held -= call.micros
            account.spent += cost
            account.overrun += max(cost - call.micros, 0)
        run.cost += cost
        run.tokens += tokens
        run.uncosted += cost if unknown else 0
        run.overrun = run.overrun or cost > call.micros or tokens > call.tokens
        run.call = None

    def lose(self, run: Run) -> None:
        """Nobody knows what the call in flight has cost: all of it."""
        if run.call is not None:
            self.book(run, run.call.micros, run.call.tokens, unknown=True)

    def release_wrap(self, run: Run) -> None:
        for scope in run.wrap_scopes:
            self.account(scope).held -= run.wrap
        run.wrap, run.wrap_scopes = 0, ()

    def end(self, run: Run, status: str) -> None:
        self.lose(run)
        self.release_wrap(run)
        run.state = status

    def room(self, run: Run, now_us: int) -> int:
        """How high the cap of a run may be without a promise that its group or the day cannot keep."""
        left = [
            cap - self.accounts.get(scope, Account()).committed + (run.wrap if scope in run.wrap_scopes else 0)
            for scope, cap in self.covering(run, now_us)
            if scope != run.id
        ]
        return run.cost + min(left)

    # -- what must hold --------------------------------------------------------------------------------------------

    def check_accounts(self, found: Mapping[str, tuple[int, int]]) -> None:
        """The buckets are these accounts, to the micro-dollar, and none has passed its cap but by an overrun."""
        assert found == {scope: (account.spent, account.held) for scope, account in self.accounts.items()}
        for scope, account in self.accounts.items():
            assert account.held >= 0 and account.spent >= 0
            assert account.committed <= account.highest + account.overrun, f"{scope} has passed its cap"

    def check_nothing_held(self) -> None:
        """After the last ending nothing is held, and each dollar stands once in every kind of scope."""
        assert {scope: account.held for scope, account in self.accounts.items() if account.held} == {}
        total = sum(run.cost for run in self.runs.values())
        for kind in ("S-", "user:", "all:"):
            assert sum(account.spent for scope, account in self.accounts.items() if scope.startswith(kind)) == total


def _day(now_us: int) -> str:
    return datetime.fromtimestamp(now_us // 1_000_000, UTC).date().isoformat()


def kinds_of(row: Transition) -> Iterator[type[Fact]]:
    """Yield every type of entry that a row of the table has."""
    for entry in row.entries:
        yield from entry if isinstance(entry, tuple) else (entry,)


MOVING: frozenset[type[Fact]] = frozenset(
    kind for row in TRANSITIONS.values() for kind in kinds_of(row) if kind not in OPTIONAL
)
"""The types of entries that move a run, or announce that."""
MOVES: Counter[tuple[Situation, Cause]] = Counter()
"""How often each row of the table was seen to happen in this process."""


@dataclass(frozen=True)
class RunBefore:
    """A run just before a command, and the cause by which the command would move it."""

    run: RunRow
    where: Situation
    cause: Cause


def run_before(
    view: View, run_id: str, cause: Cause, now_us: int, gone: frozenset[str] = frozenset(), instance: str | None = None
) -> RunBefore:
    """Return a run as it stands, with the situation that it is in by `now_us`."""
    run = view.run(run_id)
    assert run is not None
    proposal = view.proposal(run.pending_id)
    assert proposal is not None
    where = situation(run, now_us, gone=gone, instance=instance, expires_us=proposal.expires_us)
    return RunBefore(run, where, cause)


def fact_types(run_id: str, events: Sequence[Event]) -> list[type[Fact]]:
    """Return the types of those entries of a run that a transition can have."""
    known = {kind for row in TRANSITIONS.values() for kind in kinds_of(row)}
    mine = (event for event in events if (event.fence.run_id if event.fence is not None else event.run_id) == run_id)
    return [type(event.fact) for event in mine if type(event.fact) in known]


def compare(was: RunBefore, written: Sequence[type[Fact]], after: RunRow) -> bool:
    """Assert that what was written and the new state are what the table has; return whether the run moved.

    A row that allows a transition does not force it: a day's budget, the slots or a wrong line may refuse it.
    """
    where, cancel_asked = f"{was.where} ({was.run.waits_for})", was.run.cancel_seq is not None
    about = f"{was.cause} of a run that is {where}, cancel asked: {cancel_asked}"
    row = transition(was.run, was.cause, was.where)
    if not MOVING.intersection(written):
        assert (after.state, after.generation, after.instance) == (was.run.state, was.run.generation, was.run.instance)
        return False
    assert row is not None, f"{about} is not in the table, and wrote {[kind.__name__ for kind in written]}"
    wanted = [kind for kind in row.entries if kind not in OPTIONAL or kind in written]
    assert len(written) == len(wanted), f"{about} wrote {[kind.__name__ for kind in written]}"
    for kind, allowed in zip(written, wanted, strict=True):
        assert kind in (allowed if isinstance(allowed, tuple) else (allowed,)), f"{about} wrote {kind.__name__}"
    if row.after is None:
        assert after.ended, about
    else:
        assert after.state == row.after, about
    assert was.where != "ended", "a run that has ended does not move"
    assert after.ended is (after.state not in UNENDED)
    MOVES[was.where, was.cause] += 1
    return True
