"""Several processes on one log, as tests play them: each action does what the product does, and a ledger books it too.

After each action every bucket and every run of the log is compared with the ledger (`check`).
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Generic, Literal, TypeVar, cast
from unittest.mock import patch

import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis.stateful import RuleBasedStateMachine

from ava_audit.errors import StaleOwner
from ava_audit.events import Activity, Asked, AssistantMessage, CostReserved, Ending, Event, Fact, RunPaused, Usage, Who
from ava_audit.redaction import Redactor, RunRedactor
from ava_audit.rows import RunRow
from ava_audit.store.backend import Membership
from ava_audit.store.locks import LockedInstances
from ava_audit.store.sqlite import backend_of
from ava_audit.store.store import Command, Outcome, Store
from ava_audit.verify import verify
from ava_audit.view import View
from ava_server.approval.decisions import Approval, approve, reject
from ava_server.approval.proposals import Proposal, SpawnLimits, propose
from ava_server.approval.summary import several_line
from ava_server.budget.caps import (
    CapReached,
    CapRequest,
    Reservation,
    RunStopped,
    reserve,
    settle_unknown,
    settlement_event,
)
from ava_server.budget.user_limits import DayCaps, Slots
from ava_server.config.settings import Limits
from ava_server.models.base import Bound, Completion, Request
from ava_server.models.offline import LocalModel, complete
from ava_server.models.prices import Price, reserve_micros
from ava_server.run_config.brief import Brief
from ava_server.run_config.config import RunConfig
from ava_server.runs.asking import extension
from ava_server.runs.asking.extension import ExtensionLimits, Shortage, extension_request
from ava_server.runs.asking.pending_questions import asked_of, decide_question
from ava_server.runs.asking.question_kinds import Decider
from ava_server.runs.journal.clock import RunClock
from ava_server.runs.journal.log import RunLog
from ava_server.runs.record.claims import NotResumed, claim, pause, resume
from ava_server.runs.record.endings import cancel, end_for_owner, end_overdue, ending_events
from ava_server.runs.record.history import History
from ava_server.runs.record.lifecycle import Cause
from ava_server.runs.record.result import RunResult, build_result
from ava_server.runs.turn.context import ActiveRun, RunContext
from ava_server.runs.turn.model_call import ModelCalls
from support.databases import POSTGRES, empty_databases, write_config
from support.schedules.ledger import Call, Ledger, Run, RunBefore, compare, fact_types, run_before
from support.schedules.store_process import ProcessStore, StoreProcess

T = TypeVar("T")
PRICE = Price(input=1_000, output=2_000, cache_read=100, cache_write=1_250, source="the test")
DAY_US = 86_400_000_000
MIDNIGHT_US = (time.time_ns() // 1000 // DAY_US + 1) * DAY_US
"""The next midnight: entries have the time of the machine, and a schedule must not be behind it."""
TTL_US = 600_000_000
USERS = ("ann", "bob")
DAY_CAPS = ((20_000, 30_000), (6_000, 9_000), (2_500, 4_000), (0, 9_000), (6_000, 0))
SETTLEMENTS = (
    *["billed"] * 7, *["reported"] * 2, "reported in full", "not billed", "unknown", "unknown, and dear",
    "overrun in money", "overrun in tokens",
)  # fmt: skip
"""How a call is settled; how often each stands here is how often it comes."""
MOST_RUNS = 14
ASK_S, HARD_CAP = 600, 40_000
PROCESSES = 3
UNITS = {"max_cost_cents": 100}
"""The runs of these schedules cost less than a cent each, and caps are proposed in whole cents."""
LEASE_S = 3_600.0
"""Instances of these schedules do not renew their leases; those that are to die give them back."""
played: Counter[str] = Counter()
"""How often each kind of step was taken in this process."""
came: Counter[str] = Counter()
"""What came of them: calls refused by each cap, and whether a claim was the first."""


def config(cap: int, max_tokens: int) -> RunConfig:
    return RunConfig(
        role="researcher", role_source="built in", role_text="", model="far:model", provider="far", model_id="model",
        price=PRICE, timeout_s=600, max_cost_micros=cap, max_tokens=max_tokens, max_iterations=20,
        max_tool_calls=20, tools=(), reach="can reach nothing", estimated_minutes=(1, 2), input_bytes=1,
    )  # fmt: skip


REQUEST = Request("model", "", (), (), 100)


@dataclass
class Owner:
    """A run in the hands of an instance, under one claim; it may have lost the run without knowing."""

    run_id: str
    log: RunLog
    instance: str
    turn: int = 0
    held: Reservation | None = None


@dataclass
class Instance:
    """A process: the store that it has open, and the lock that says that it lives."""

    name: str
    lock: Membership
    store: ProcessStore
    alive: bool = True


@dataclass(frozen=True)
class Seen:
    buckets: Mapping[str, tuple[int, int]]
    runs: Mapping[str, RunRow]


def look(view: View) -> Seen:
    buckets = view.select("SELECT scope, spent_micros, held_micros FROM budgets")
    return Seen({scope: (spent, held) for scope, spent, held in buckets}, {run.id: run for run in view.runs()})


@dataclass(frozen=True)
class Watched(Generic[T]):
    """The value of a command, what it did to some runs, and how these were before."""

    value: T
    acts: list[tuple[RunBefore, list[type[Fact]]]]


def _at(now_us: int, command: Command[T]) -> Command[T]:
    return lambda view, _now_us: command(view, now_us)


def _watched(
    cause: Cause, command: Command[T], runs: list[str], gone: frozenset[str], instance: str | None
) -> Command[Watched[T]]:
    def watched(view: View, now_us: int) -> Outcome[Watched[T]]:
        was = [run_before(view, run_id, cause, now_us, gone, instance) for run_id in runs]
        outcome = command(view, now_us)
        acts = [(each, fact_types(each.run.id, outcome.events)) for each in was]
        return Outcome(Watched(outcome.value, acts), outcome.events)

    return watched


def _set_units() -> None:
    cast("dict[str, int]", extension.UNITS).update(UNITS)


class Processes(RuleBasedStateMachine):
    """Several processes and two users on one data root; the rules are a test's.

    `running` has the processes, each with the log open. An instance is a lock or a lease, and one of the processes.
    """

    running: ClassVar[list[StoreProcess]] = []

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.stack.enter_context(patch.dict(extension.UNITS, UNITS))
        self.root = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        write_config(self.root, "")
        self.stack.callback(empty_databases)
        self.portal = self.stack.enter_context(start_blocking_portal())
        self.stores = [self.portal.call(process.open, self.root) for process in self.running]
        for process in self.running:
            self.stack.callback(self.portal.call, process.close)
            self.portal.call(process.call, _set_units)
        folder = self.root / "instances"
        self.locks = backend_of(self.root).instances(folder, LEASE_S) if POSTGRES else LockedInstances(folder)
        self.stack.callback(self.locks.close)
        self.instances: list[Instance] = []
        self.owners: dict[str, Owner] = {}
        self.stale: list[Owner] = []
        self.ledger = Ledger(DAY_CAPS[0])
        self.slots = Slots(2, 3)
        self.now_us = MIDNIGHT_US - 120_000_000
        self.generations: dict[str, int] = {}
        self.made = 0
        self.sound = False
        self.acts: list[tuple[RunBefore, list[type[Fact]]]] = []

    # -- how an action is taken ----------------------------------------------------------------------------------------

    def at(self, command: Command[T]) -> Command[T]:
        """The command at the machine's time of day."""
        return _at(self.now_us, command)

    def do(self, kind: str, command: Command[T], store: ProcessStore | None = None) -> T:
        self.begin(kind)
        return self.noted(self.portal.call((store or self.stores[self.made % len(self.stores)]).do, self.at(command)))

    def noted(self, value: T) -> T:
        """The value of a command; what it did to watched runs is kept for `check`."""
        while isinstance(value, Watched):
            self.acts += value.acts
            value = value.value
        return value

    def moving(
        self,
        cause: Cause,
        command: Command[T],
        *runs: Run,
        gone: frozenset[str] = frozenset(),
        instance: str | None = None,
    ) -> Command[T]:
        """The command; what it does to these runs is compared with the table of transitions by `check`."""

        return cast("Command[T]", _watched(cause, command, [run.id for run in runs], gone, instance))

    def begin(self, kind: str) -> None:
        played[kind] += 1
        self.sound = False

    def limits(self) -> SpawnLimits:
        return SpawnLimits(10**6, "[limits]", DayCaps(*self.ledger.days), ("[budgets]", "[budgets]"), TTL_US)

    def who(self, user: str) -> Who:
        return Who("sess-1", "ava", user)

    def pick(self, number: int, *states: str) -> Run:
        found = self.ledger.in_state(*states)
        return found[number % len(found)]

    def waiting_of(self, user: str, count: int) -> list[Run]:
        """The proposals that a user made last."""
        return [run for run in self.ledger.in_state("awaiting_approval") if run.user == user][-count:]

    def owner(self, number: int) -> Owner:
        return list(self.owners.values())[number % len(self.owners)]

    def living(self) -> list[Instance]:
        return [each for each in self.instances if each.alive]

    def has(self, *states: str) -> bool:
        return bool(self.ledger.in_state(*states))

    # -- proposals and decisions ---------------------------------------------------------------------------------------

    def proposes(self, user: str, cap: int, max_tokens: int) -> None:
        self.made += 1
        ids = [(f"P-{number:08x}", f"S-{number:06x}") for number in (max(self.made - 1, 1), self.made)]
        brief = Brief(task=f"number {self.made}")
        answer = self.do("propose", propose(config(cap, max_tokens), brief, self.who(user), tuple(ids), self.limits()))
        assert isinstance(answer, str) is self.ledger.exhausted(user, self.now_us)
        if isinstance(answer, Proposal):
            run = Run(answer.subagent_id, answer.pending_id, user, cap, max_tokens, self.now_us + TTL_US, answer.line)
            assert run.id not in self.ledger.runs
            self.ledger.runs[run.id] = run

    def approves(
        self, runs: list[Run], plan_share: float | None, *, lowered: float | None = None, right: bool = True
    ) -> None:
        """Approve runs of one user, alone or together. `plan_share` is of what its members may cost together.

        `lowered` is the first one's cap as a share of what it was; `right`: with the right lines.
        """
        user = runs[0].user
        total = sum(run.cap for run in runs)
        asked_cap = None if plan_share is None else int(total * plan_share)
        cap = total if asked_cap is None else asked_cap
        lines = [run.line for run in runs] + ([several_line(len(runs), cap, None)] if len(runs) > 1 else [])
        changed = runs[0] if lowered is not None else None
        new_cap = max(int(changed.cap * (lowered or 1)), 1) if changed else 0
        number = len(self.ledger.plans) + 1
        asked = Approval(
            tuple(run.pending_id for run in runs), tuple(lines if right else lines[:-1]),
            changes={changed.pending_id: {"max_cost_micros": new_cap}} if changed else {},
            plan_max_micros=asked_cap, plan_ids=((f"P-9{number:07x}", f"G-{number:07x}"),),
        )  # fmt: skip
        late = [run for run in runs if run.expires_us <= self.now_us]
        command = approve(asked, self.who(user), "terminal", self.limits())
        in_time = [run for run in runs if run not in late]
        command = self.moving("expire", self.moving("approve", command, *in_time), *late)
        decided = self.do("approve", command)
        if late:
            assert all(decision.status == "refused" for decision in decided.decisions)
            for run in late:
                self.ledger.end(run, "expired")
            return
        too_much = len(runs) > 1 and cap > total
        raised = changed is not None and new_cap > changed.cap
        refused = too_much or raised or not right or self.ledger.exhausted(user, self.now_us)
        assert {decision.status for decision in decided.decisions} == {"refused" if refused else "approved"}
        if refused:
            return
        if len(runs) > 1:
            assert decided.plan_id is not None
            self.ledger.plans[decided.plan_id] = cap
        for run in runs:
            run.state, run.group = "queued", decided.plan_id
        if changed:
            changed.cap = new_cap

    def rejects(self, run: Run) -> None:
        command = reject((run.pending_id,), self.who(run.user), "terminal")
        self.do("reject", self.moving("reject", command, run))
        self.ledger.end(run, "rejected")

    # -- instances, claims, endings by others --------------------------------------------------------------------------

    def joins(self) -> None:
        self.begin("join")
        own = self.locks.join()
        self.instances.append(Instance(own.name, own, self.stores[len(self.instances) % len(self.stores)]))

    def dies(self, instance: Instance) -> None:
        """Its lock is free. What it had in flight stays so, until somebody takes its runs over."""
        self.begin("crash")
        instance.lock.release()
        instance.alive = False

    def loses_its_lock(self, instance: Instance) -> None:
        """Its lock file is removed while it lives; it owns nothing at the moment."""
        if not POSTGRES and not any(run.instance == instance.name for run in self.ledger.in_state("running")):
            self.begin("lock removed")
            (self.root / "instances" / f"{instance.name}.lock").unlink(missing_ok=True)

    def claims(self, run: Run, instance: Instance, *, looked: bool = True) -> None:
        if not instance.lock.holds():
            instance.lock.renew()
        gone = frozenset(each.name for each in self.instances if looked and not self.locks.alive(each.name))
        paused = run.state == "queued" and run.not_before_us > self.now_us
        mine = (run.state == "queued" and not paused) or run.instance in gone or run.instance == instance.name
        others = [other for other in self.ledger.in_state("running") if other.instance not in gone and other is not run]
        room = len(others) < self.slots.total and sum(o.user == run.user for o in others) < self.slots.per_user
        command = claim(run.id, instance.name, self.who(run.user), gone, self.slots)
        command = self.moving("claim", command, run, gone=gone, instance=instance.name)
        answer = self.do("claim", command, instance.store)
        assert isinstance(answer, str) is not (mine and room)
        if isinstance(answer, str):
            return
        assert self.locks.alive(instance.name), "others would take the run at once"
        came["start" if not run.generation else "resume" if run.state == "queued" else "takeover"] += 1
        self.dispossess(run)
        self.ledger.lose(run)
        run.state, run.instance, run.generation = "running", instance.name, run.generation + 1
        run.not_before_us = run.asks_for = 0
        row = self.portal.call(instance.store.read, lambda view: view.run(run.id))
        assert row is not None
        agent = Who("sess-1", run.id, run.user, "ava")
        turn = self.stale[-1].turn if self.stale and self.stale[-1].run_id == run.id else row.turns
        self.owners[run.id] = Owner(
            run.id,
            RunLog(cast("Store", instance.store), row, agent, History(run.id)),
            instance.name,
            max(turn, row.turns),
        )

    def dispossess(self, run: Run) -> None:
        """A claim is over; its owner may not know."""
        if (owner := self.owners.pop(run.id, None)) is not None:
            self.stale.append(owner)

    def cancels(self, run: Run, user: str) -> None:
        found = self.do("cancel", self.moving("cancel", cancel(run.id, self.who(user), "enough", "person"), run))
        if user != run.user:
            assert found.run is None
            return
        assert found.run is not None and found.pending is (run.state == "running")
        if run.state == "running":
            run.cancel_asked = True
        elif run.state in ("awaiting_approval", "queued"):
            run.cancel_asked = True
            self.ledger.end(run, "cancelled")

    def forces(self, run: Run, instance: Instance, cause: Literal["cancel unanswered", "give up"]) -> None:
        """An instance ends a run over its owner's head: the owner has not answered a cancel, or met a fault."""
        ended = RunResult("cancelled", "cancelled on request", reason="enough")
        command = end_for_owner(run.id, instance.name, ended, cause)
        done = self.do("forced end", self.moving(cause, command, run, instance=instance.name), instance.store)
        asked = run.state == "queued" and run.cancel_asked
        own = run.instance in (None, instance.name)
        theirs = own if cause == "give up" else run.state == "running" or asked
        assert done is theirs
        if done:
            self.dispossess(run)
            run.generation, run.instance = run.generation + 1, instance.name
            self.ledger.end(run, "cancelled")

    def resumes(self, run: Run, user: str, *, looked: bool, force: bool) -> None:
        """Somebody has a run go on whose owner is gone, or over its head; also one that cannot."""
        gone = frozenset(each.name for each in self.instances if looked and not self.locks.alive(each.name))
        may = user == run.user and run.state == "running" and (run.instance in gone or force)
        may = may and not self.ledger.exhausted(user, self.now_us)
        command = resume(run.id, self.who(user), "terminal", gone, self.limits(), force=force)
        command = self.moving("force resume" if force else "resume", command, run, gone=gone)
        assert isinstance(self.do("resume", command), NotResumed) is not may
        if may:
            came["resumed by force" if run.instance not in gone else "resumed"] += 1
            self.dispossess(run)
            self.ledger.lose(run)
            run.state, run.instance, run.generation = "queued", None, run.generation + 1

    def nobody_comes(self, run: Run, ahead_us: int) -> None:
        """A run that nobody has is looked at, now or much later."""
        gone = frozenset(each.name for each in self.instances if not self.locks.alive(each.name))
        row = self.portal.call(self.stores[0].read, lambda view: view.run(run.id))
        assert row is not None
        now_us = self.now_us + ahead_us
        since_us = max(row.queued_us or 0, row.last_us or 0, run.not_before_us)
        nobody = run.state == "queued" or (run.state == "running" and run.instance in gone)
        command = self.moving("abandon", end_overdue(run.id, gone), run, gone=gone)
        self.begin("abandon")
        done = self.noted(self.portal.call(self.stores[0].do, _at(now_us, command)))
        assert done is (nobody and now_us - since_us >= DAY_US)
        if done:
            came["abandoned"] += 1
            self.dispossess(run)
            self.ledger.end(run, "abandoned")

    # -- what owners do ------------------------------------------------------------------------------------------------

    def asked(self, owner: Owner, prompt: int, output: int, last: bool) -> CapRequest:
        """A call and its wrap-up at their worst, by the product's price."""
        wrap = Bound(0, 0) if last else Bound(prompt + output, 100)
        fact = CostReserved(
            turn=owner.turn + 1, attempt=1, scopes=(), micros=reserve_micros(PRICE, Bound(prompt, output)),
            wrap_micros=0 if last else reserve_micros(PRICE, wrap), prompt_tokens=prompt, max_output=output,
            upto_seq=0, request_sha="0" * 64,
        )  # fmt: skip
        return CapRequest(fact, prompt + output, wrap.prompt_tokens + wrap.output_tokens)

    def reserving(self, owner: Owner, asked: CapRequest) -> Reservation | CapReached | RunStopped:
        command = self.at(reserve(owner.log.fence, owner.log.who, asked, DayCaps(*self.ledger.days)))
        answer: Reservation | CapReached | RunStopped = self.portal.call(owner.log.do, command)
        return answer

    def heads(self) -> int:
        return self.portal.call(self.stores[0].read, View.head)

    def reserves(self, owner: Owner, prompt: int, output: int, *, last: bool) -> None:
        """A call with the wrap-up after it; where the pair does not fit, the wrap-up alone, and then the end."""
        run = self.ledger.runs[owner.run_id]
        self.begin("reserve")
        asked = self.asked(owner, prompt, output, last)
        before = self.heads()
        answer = self.reserving(owner, asked)
        both = asked.fact.micros + asked.fact.wrap_micros
        if isinstance(answer, RunStopped):
            assert run.cancel_asked and self.heads() == before, "only a run that was cancelled pays for nothing more"
            self.ends(owner, answer.status)
            return
        assert not run.cancel_asked, "a run that was cancelled pays for nothing more"
        granted = self.ledger.fits(run, both, asked.tokens + asked.wrap_tokens, self.now_us)
        assert isinstance(answer, Reservation) is granted
        if isinstance(answer, CapReached):
            came[f"refused: {answer.cap}"] += 1
            assert self.heads() == before, "a refused call leaves no trace"
            self.check()
            if last or answer.cap == "overrun":  # as the loop goes on: not even a wrap-up fits, so the run ends
                self.ends(owner, answer.status)
            else:
                self.reserves(owner, prompt // 10 + 1, output // 10 + 1, last=True)
            return
        owner.turn, owner.held = answer.fact.turn, answer
        scopes = tuple(scope for scope, _cap in self.ledger.covering(run, self.now_us))
        call = Call(answer.fact.turn, 1, answer.fact.micros, asked.tokens, scopes)
        self.ledger.hold(run, call, asked.fact.wrap_micros, self.now_us)
        for scope, cap in self.ledger.covering(run, self.now_us):
            assert both == 0 or self.ledger.account(scope).committed <= cap, f"{scope} is granted beyond its cap"

    def settling(self, owner: Owner, how: str, share: float) -> tuple[Event, int, int]:
        """A settlement as the loop makes it, and what money and tokens it has to book."""
        assert owner.held is not None
        held = owner.held.fact
        fresh, written = int(held.prompt_tokens * share), int(held.prompt_tokens * (1 - share) * share)
        read, out = held.prompt_tokens - fresh - written, int(held.max_output * share)
        if how == "overrun in tokens":
            out = held.max_output + 1 + int(100 * share)
        usage = Usage(input_tokens=fresh, cache_write_tokens=written, cache_read_tokens=read, output_tokens=out)
        reported = {
            "reported": int(held.micros * share), "reported in full": held.micros,
            "overrun in money": held.micros + 1 + int(3_000 * share), "unknown, and dear": held.micros + 7,
        }.get(how)  # fmt: skip
        event = settlement_event(
            owner.log.fence, owner.run_id, owner.log.who, "far:model", PRICE, owner.held.held,
            "not_billed" if how == "not billed" else "unknown" if how.startswith("unknown") else "billed",
            usage=usage, reported_micros=reported,
        )  # fmt: skip
        if how == "not billed":
            return event, 0, 0
        if how.startswith("unknown"):
            return event, max(held.micros, reported or 0), owner.held.tokens
        by_table = ceil((fresh * 1_000 + written * 1_250 + read * 100 + out * 2_000) / 1_000)
        return event, reported or by_table, fresh + written + out

    def settles(self, owner: Owner, how: str, share: float) -> None:
        run = self.ledger.runs[owner.run_id]
        self.begin(f"settle: {how}")
        event, cost, tokens = self.settling(owner, how, share)
        answered = not how.startswith(("unknown", "not billed"))
        said = owner.log.event(AssistantMessage(text="an answer", turn=owner.turn, attempt=1))
        self.portal.call(owner.log.append, [event, said] if answered else [event])
        if share > 0.9:  # of a call that is not in flight any more: it changes nothing
            self.portal.call(owner.log.append, [event])
        self.ledger.book(run, cost, tokens, unknown=how.startswith("unknown"))
        owner.held = None

    def pauses(self, owner: Owner, seconds: int) -> None:
        """A provider takes no more calls for a while: the run is given back, and its wrap-up keeps its share."""
        run = self.ledger.runs[owner.run_id]
        self.begin("pause")
        until_us = self.now_us + seconds * 1_000_000
        fact = RunPaused(not_before_us=until_us, why="the provider's limit", active_us=1)
        command = self.moving("wait", pause(owner.log.fence, owner.log.who, fact), run, instance=owner.instance)
        assert self.noted(self.portal.call(owner.log.do, self.at(command))) is not run.cancel_asked
        if not run.cancel_asked:
            run.state, run.instance, run.not_before_us = "queued", None, until_us
            self.dispossess(run)

    def decider(self, who: Who) -> Decider:
        return Decider(who, who, "terminal", self.extensions())

    def extensions(self) -> ExtensionLimits:
        hard = Limits(
            extension_wait_s=ASK_S, max_cost_cents=HARD_CAP // 10_000, max_tokens=10**6, max_tokens_deep=10**6
        )
        return ExtensionLimits(hard, DayCaps(*self.ledger.days))

    def able_to_ask(self) -> list[Owner]:
        """Owners whose run has made a call, and has none in flight."""
        return [each for each in self.owners.values() if each.turn and each.held is None]

    def asks(self, owner: Owner, step: int) -> None:
        """A run that cannot make its next call asks a person for more: never more than the other caps have left."""
        run = self.ledger.runs[owner.run_id]
        self.begin("ask")
        short = Shortage("max_cost_cents", step, 1.0)
        self.made += 1
        number, limits, now_us = f"E-{self.made:08x}", self.extensions(), self.now_us

        def query(view: View) -> Asked | None:
            row = view.run(run.id)
            assert row is not None
            return extension_request(view, row, short, limits, number, now_us)

        fact = self.portal.call(owner.log.read, query)
        if fact is None:
            came["asks nobody"] += 1
            return
        assert run.cap < fact.proposed <= min(HARD_CAP, self.ledger.room(run, self.now_us))
        assert fact.proposed >= run.cost + step, "less would help nothing"
        command = self.moving("wait", pause(owner.log.fence, owner.log.who, fact), run, instance=owner.instance)
        assert self.noted(self.portal.call(owner.log.do, self.at(command))) is not run.cancel_asked
        if not run.cancel_asked:
            came["asks"] += 1
            run.state, run.instance, run.not_before_us = "queued", None, fact.expires_us
            run.asks_for = int(fact.proposed)
            self.dispossess(run)

    def answers(self, run: Run, user: str, share: float | None, *, shown: bool) -> None:
        """Somebody answers a run that asks, or one that does not: with a share of what it asks for, or with a no."""
        row = self.portal.call(self.stores[0].read, lambda view: view.run(run.id))
        asked = asked_of(row) if row is not None else None
        seen = asked.digest if asked is not None and shown else "0" * 64
        allow = None if share is None else max(int(run.cap + (run.asks_for - run.cap) * share), 1)
        waits = run.state == "queued" and run.asks_for > 0 and run.not_before_us > self.now_us
        may = waits and user == run.user and shown
        if allow is not None:
            may = may and run.cap < allow <= min(run.asks_for, HARD_CAP, self.ledger.room(run, self.now_us))
        command = decide_question(run.id, seen, allow, self.decider(self.who(user)))
        answer = self.do("answer", self.moving("answer", command, run))
        assert (answer.status != "refused") is may, answer
        came[f"answer {answer.status}"] += 1
        if may:
            run.cap = run.cap if allow is None else allow
            run.not_before_us, run.asks_for, run.question = 0, 0, ""

    def asks_a_question(self, owner: Owner) -> None:
        run = self.ledger.runs[owner.run_id]
        self.begin("question")
        self.made += 1
        expires_us = self.now_us + ASK_S * 1_000_000
        fact = Asked(kind="question", ask_id=f"Q-{self.made:08x}", call_id="c1", expires_us=expires_us, active_us=1)
        command = self.moving("wait", pause(owner.log.fence, owner.log.who, fact), run, instance=owner.instance)
        assert self.noted(self.portal.call(owner.log.do, self.at(command))) is not run.cancel_asked
        if not run.cancel_asked:
            came["asks a question"] += 1
            run.state, run.instance, run.not_before_us = "queued", None, expires_us
            run.question = fact.ask_id
            self.dispossess(run)

    def answers_a_question(self, run: Run, text: str | None, *, shown: bool) -> None:
        waits = run.state == "queued" and bool(run.question) and run.not_before_us > self.now_us
        which = run.question if shown and run.question else "Q-ffffffff"
        who = self.who(run.user)
        command = decide_question(run.id, which, text, self.decider(who))
        answered = self.do("answer", self.moving("answer", command, run)).status != "refused"
        assert answered is (waits and shown)
        came[f"question {'answered' if answered else 'not answered'}"] += 1
        if answered:
            run.not_before_us, run.question = 0, ""

    def ends(self, owner: Owner, status: Ending) -> None:
        """As the loop does: what is in flight is settled as unknown, then the ending is written under the claim."""
        run = self.ledger.runs[owner.run_id]
        self.begin(f"end: {status}")
        events = tuple(self.ending(owner, status))
        command: Command[None] = lambda _view, _now_us: Outcome(None, events)  # noqa: E731
        command = self.moving("end", command, run, instance=owner.instance)
        self.noted(self.portal.call(owner.log.do, self.at(command)))
        self.ledger.end(run, status)
        self.dispossess(run)

    def ending(self, owner: Owner, status: Ending) -> list[Event]:
        run_id = owner.run_id
        row = self.portal.call(owner.log.read, lambda view: view.run(run_id))
        assert row is not None
        ended = RunResult(status, status)
        result = build_result(row, owner.log.history, ended, [], 1.0)
        lost = settle_unknown(row, owner.log.who, owner.log.fence)
        return [*lost, *ending_events(row, result, ended, owner.log.who, owner.log.fence, 10**6)]

    def comes_back(self, owner: Owner, what: str, share: float) -> None:
        """An owner that was paused while another took its run, or ended it, can neither write nor spend."""
        self.begin(f"stale: {what}")
        before = self.heads()
        if what == "reserve":
            assert self.refused(lambda: self.reserving(owner, self.asked(owner, 1, 1, True)))
        elif what == "settle" and owner.held is not None:
            event, _cost, _tokens = self.settling(owner, "billed", share)
            assert self.refused(lambda: self.portal.call(owner.log.append, [event]))
        elif what == "end":
            events = self.ending(owner, "success")
            assert self.refused(lambda: self.portal.call(owner.log.append, events))
        elif what == "send" and owner.held is not None:
            self.sends_nothing(owner, owner.held)
        else:
            assert self.refused(lambda: self.portal.call(owner.log.record, Activity(activity="still here")))
        assert self.heads() == before

    def sends_nothing(self, owner: Owner, held: Reservation) -> None:
        """Its reservation is in the log, and its request would go to the provider now."""
        sent: list[Request] = []

        def answer(request: Request) -> Completion:
            sent.append(request)
            return complete("an answer", [], request)

        context = SimpleNamespace(
            model=LocalModel("far:model", answer), redactor=RunRedactor(Redactor({})), prompt_prefix=None
        )
        active = ActiveRun(
            owner.log,
            config(1, 1),
            cast("RunContext", context),
            RunClock(),
            lambda _doing: None,
            cast("Any", None),
        )
        calls = ModelCalls(active, lambda _calls: [])
        assert self.refused(lambda: self.portal.call(calls.attempt, held, REQUEST))
        assert not sent, "it has spent, and nobody gets the answer"

    def refused(self, act: Callable[[], object]) -> bool:
        with pytest.raises(StaleOwner):
            act()
        return True

    # -- what must hold ------------------------------------------------------------------------------------------------

    def check(self) -> None:
        seen = self.portal.call(self.stores[self.made % len(self.stores)].read, look)
        self.ledger.check_accounts(seen.buckets)
        for was, written in self.acts:
            compare(was, written, seen.runs[was.run.id])
        self.acts.clear()
        assert {run.id for run in seen.runs.values() if run.is_plan} == set(self.ledger.plans)
        assert {run.id for run in seen.runs.values() if not run.is_plan} == set(self.ledger.runs)
        for run_id, run in self.ledger.runs.items():
            row = seen.runs[run_id]
            assert (row.state, row.generation, row.instance) == (run.state, run.generation, run.instance)
            assert (row.cost_micros, row.tokens, row.uncosted_micros) == (run.cost, run.tokens, run.uncosted)
            assert (bool(row.overrun), row.wrap_micros) == (run.overrun, run.wrap)
            assert (row.in_flight is not None) is (run.call is not None)
            assert (row.cancel_seq is not None) is run.cancel_asked
            assert row.generation >= self.generations.get(run_id, 0), "a generation only rises"
            self.generations[run_id] = row.generation
        alive = {instance.name for instance in self.living()}
        running = Counter(run.user for run in self.ledger.in_state("running") if run.instance in alive)
        assert running.total() <= self.slots.total
        assert all(count <= self.slots.per_user for count in running.values())
        self.sound = True

    def teardown(self) -> None:
        try:
            if self.sound:
                self.everything_ends()
        finally:
            for instance in self.instances:
                instance.lock.release()
            self.stack.close()

    def everything_ends(self) -> None:
        for run in self.ledger.in_state("awaiting_approval", "queued"):
            self.do("cancel", self.moving("cancel", cancel(run.id, self.who(run.user), None, "person"), run))
            run.cancel_asked = True
            self.ledger.end(run, "cancelled")
        for run in self.ledger.in_state("running"):
            ended = RunResult("cancelled", "the test is over")
            command = end_for_owner(run.id, "the test", ended, "cancel unanswered")
            assert self.do("forced end", self.moving("cancel unanswered", command, run))
            run.generation, run.instance = run.generation + 1, "the test"
            self.ledger.end(run, "cancelled")
        self.check()
        self.ledger.check_nothing_held()
        endings = self.portal.call(self.stores[0].read, lambda view: list(view.select(
            "SELECT run_id, count(*) FROM events WHERE type = 'RunEnded' GROUP BY run_id"
        )))  # fmt: skip
        assert sorted(endings) == [(run_id, 1) for run_id in sorted(self.ledger.runs)], "a run ends once"
        report = verify(self.root)
        assert report.ok, report
