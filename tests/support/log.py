"""Sample events, and the commands that write them: what a run leaves in the log, without a run."""

from __future__ import annotations

import contextlib
import sqlite3
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ava_audit.events import (
    Answered,
    Asked,
    AssistantMessage,
    CostReserved,
    CostUpdate,
    Ending,
    ErrorOccurred,
    Event,
    Fact,
    Fence,
    RunClaimed,
    RunEnded,
    RunPaused,
    RunResumed,
    SpawnDecided,
    SpawnProposed,
    SubagentComplete,
    ToolCall,
    ToolResult,
    Usage,
    UserMessage,
    Who,
)
from ava_audit.store.connection import connect
from ava_audit.store.sqlite import SqliteBackend, backend_of
from ava_audit.store.store import Command, Outcome, Store
from ava_audit.view import View

AVA = Who("sess-1", "ava", "ben")


def run_who(run_id: str, user: str = "ben", session: str = "sess-1") -> Who:
    """Return who writes for a run."""
    return Who(session, run_id, user, "ava")


def message(text: str, who: Who = AVA) -> Event:
    """Return a message of the orchestrator."""
    return Event(who, UserMessage(text=text))


def write_command(*events: Event) -> Command[int]:
    """A command that appends events and answers with how many."""

    def command(_view: View, _now_us: int) -> Outcome[int]:
        return Outcome(len(events), events)

    return command


async def write(store: Store, *events: Event) -> None:
    """Write events as one command."""
    await store.do(write_command(*events))


async def write_texts(store: Store, texts: Iterable[str], who: Who = AVA) -> None:
    """Write a message for each text, as one command."""
    await write(store, *(message(text, who) for text in texts))


_CONFIG: dict[str, Any] = {
    "role": "researcher", "model": "test:model", "runner": "in-process", "input_bytes": 30,
    "price": {"input": 3_000, "output": 15_000, "cache_read": 300, "cache_write": 3_750, "source": "config.toml"},
}  # fmt: skip
"""Of a configuration, what the log itself shows and what estimates read."""


def plan_events(
    plan_id: str, cap_micros: int = 5_000_000, *, user: str = "ben", timeout_s: float = 3_600
) -> tuple[Event, Event]:
    """The proposal and approval of a plan whose runs are proposed by themselves."""
    pending_id = "P-" + plan_id.removeprefix("G-")
    config = {**_CONFIG, "role": "plan", "max_cost_micros": cap_micros, "timeout_s": timeout_s}
    proposed = SpawnProposed(
        pending_id=pending_id, subagent_id=plan_id, digest="d" * 64, expires_us=2**50, config=config
    )
    decided = SpawnDecided(pending_id=pending_id, decision="approved", channel="host_call")
    who = Who("sess-1", "ava", user)
    return Event(who, proposed, run_id=plan_id), Event(who, decided, run_id=plan_id)


@dataclass
class Life:
    """The events of one run, step by step; every step is an event that a running run would write."""

    run_id: str
    user: str = "ben"
    generation: int = 1
    turn: int = 1

    @property
    def pending_id(self) -> str:
        """The id of the run's proposal."""
        return "P-" + self.run_id.removeprefix("S-") + "00"

    @property
    def scopes(self) -> tuple[str, ...]:
        """The budgets of the run: its own, its user's day and the day of all."""
        return (f"run:{self.run_id}", f"user:{self.user}:2026-01-31", "all:2026-01-31")

    def proposal(self, **config: Any) -> Event:
        """The proposal, with changes of its configuration."""
        fact = SpawnProposed(
            pending_id=self.pending_id,
            subagent_id=self.run_id,
            digest="d" * 64,
            expires_us=2**50,
            config={**_CONFIG, **config},
        )
        return Event(Who("sess-1", "ava", self.user), fact, run_id=self.run_id)

    def task(self, text: str = "Look it up") -> Event:
        """The task."""
        return Event(run_who(self.run_id, self.user), UserMessage(text=text, kind="task"), run_id=self.run_id)

    def approval(self, plan: str | None = None) -> Event:
        """The approval, alone or as a step of a plan that stands in the log (`plan_events`)."""
        step = None if plan is None else self.run_id[2:]
        fact = SpawnDecided(
            pending_id=self.pending_id, decision="approved", channel="host_call", group_id=plan, step=step
        )
        return Event(Who("sess-1", "ava", self.user), fact, run_id=self.run_id)

    def claim(self) -> Event:
        """The claim of the present generation."""
        fact = RunClaimed(instance="abc", generation=self.generation)
        return Event(run_who(self.run_id, self.user), fact, run_id=self.run_id)

    def pause(self, until_us: int = 2**50, active_us: int = 0) -> Event:
        """A pause; whoever claims the run next has the next generation."""
        event = self.entry(RunPaused(not_before_us=until_us, why="the provider's limit", active_us=active_us))
        self.generation += 1
        return event

    def request(self, until_us: int = 2**50, active_us: int = 0) -> Event:
        """A request for more; whoever claims the run next has the next generation."""
        event = self.entry(
            Asked(
                kind="money", ask_id="E-00000001", limit=500_000, proposed=700_000, used=480_000,
                needed=200_000, expires_us=until_us, digest="d" * 64, active_us=active_us,
            )
        )  # fmt: skip
        self.generation += 1
        return event

    def request_answer(self, cap_micros: int | None) -> Event:
        """A person's answer to it: a new cap, or a no."""
        fact = Answered(
            kind="money",
            ask_id="E-00000001",
            decision="declined" if cap_micros is None else "approved",
            channel="terminal",
            digest="d" * 64,
            decision_digest="d" * 64,
            changes={} if cap_micros is None else {"max_cost_micros": cap_micros},
        )
        return Event(Who("sess-1", "ava", self.user), fact, run_id=self.run_id)

    def question(self, until_us: int = 2**50) -> Event:
        """A question to the person; whoever claims the run next has the next generation."""
        event = self.entry(Asked(kind="question", ask_id="Q-00000001", expires_us=until_us, call_id="c1"))
        self.generation += 1
        return event

    def question_answer(self) -> Event:
        """A person's answer to the question."""
        fact = Answered(kind="question", ask_id="Q-00000001", decision="answered", channel="terminal")
        return Event(Who("sess-1", "ava", self.user), fact, run_id=self.run_id)

    def resume(self) -> Event:
        """A resume, which fences the owner out; whoever claims the run next has the generation after its own."""
        self.generation += 2
        who = Who("sess-2", "ava", self.user)
        return Event(who, RunResumed(channel="terminal", force=True), run_id=self.run_id)

    def entry(self, fact: Fact, **more: Any) -> Event:
        """An entry under the present claim."""
        fence = Fence(self.run_id, self.generation)
        return Event(run_who(self.run_id, self.user), fact, fence=fence, **more)

    def reservation(self, turn: int = 1, micros: int = 5_000, wrap: int = 1_000) -> Event:
        """What a call of a turn holds, and its last turn after it, in micro-USD."""
        self.turn = turn
        fact = CostReserved(
            turn=turn,
            attempt=1,
            scopes=self.scopes,
            micros=micros,
            wrap_micros=wrap,
            prompt_tokens=100,
            max_output=50,
            upto_seq=0,
            request_sha="0" * 64,
        )
        return self.entry(fact)

    def settlement(
        self, turn: int | None = None, cost: int = 3_000, reserved: int = 5_000, unknown: bool = False
    ) -> Event:
        """What a call has cost, by default the last reserved one, in micro-USD."""
        fact = CostUpdate(
            turn=self.turn if turn is None else turn,
            attempt=1,
            settlement="unknown" if unknown else "billed",
            tokens=30,
            cost_cents=cost / 10_000,
            reserved_micros=reserved,
            overrun=cost > reserved,
        )
        return self.entry(fact, usage=Usage(input_tokens=20, output_tokens=10), cost_micros=cost, model="test:model")

    def tool(self, output: str = "found it", success: bool = True) -> tuple[Event, Event]:
        """A call of a tool, and its result."""
        call = self.entry(ToolCall(tool="web_search", args={"query": "prices"}))
        return call, self.entry(ToolResult(tool="web_search", success=success, output=output), duration_ms=12)

    def answer(self, text: str = "Here it is") -> Event:
        """An answer of the model."""
        return self.entry(AssistantMessage(text=text))

    def error(self, text: str = "no answer") -> Event:
        """An error of a model call."""
        return self.entry(ErrorOccurred(error=text, kind="model"))

    def ending(self, status: Ending = "success", reason: str | None = None, **more: Any) -> tuple[Event, Event]:
        """The result and the ending."""
        complete = SubagentComplete(
            status=status, summary="done", tokens=30, cost_cents=0.3, duration=1.5, subagent_id=self.run_id
        )
        # The ending is the last entry that the claim may write.
        return (
            Event(Who("sess-1", "ava", self.user), complete, run_id=self.run_id),
            self.entry(RunEnded(status=status, stop_reason=status if reason is None else reason, **more)),
        )

    def all_events(self, status: Ending = "success") -> list[Event]:
        """Everything from the proposal to the ending."""
        return [
            *self.beginning(),
            self.reservation(),
            self.settlement(),
            *self.tool(),
            self.answer(),
            *self.ending(status),
        ]

    def beginning(self) -> list[Event]:
        """Everything up to the claim."""
        return [self.proposal(), self.task(), self.approval(), self.claim()]


async def write_each(store: Store, events: Iterable[Event]) -> None:
    """Write events one command each, as they would come: a fence is checked against what stands before it."""
    for event in events:
        await write(store, event)


@contextmanager
def look_at(root: Path) -> Iterator[Any]:
    """A connection to the log of a data root, wherever it is, that only reads."""
    at = backend_of(root)
    opened = connect(at.path, readonly=True) if isinstance(at, SqliteBackend) else at.connect(readonly=True)
    with contextlib.closing(opened) as db:
        yield db


@contextmanager
def tamper_with(root: Path) -> Iterator[Any]:
    """The same for the log of a data root, wherever it is."""
    at = backend_of(root)
    if isinstance(at, SqliteBackend):
        with without_triggers(at.path) as db:
            yield db
        return
    with contextlib.closing(at.connect()) as other:
        other.execute("SET session_replication_role = replica")  # no trigger fires
        yield other


@contextmanager
def without_triggers(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection of somebody who knows the file: the triggers are out of the way, and back when it is done."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        triggers = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _sql in triggers:
            db.execute(f"DROP TRIGGER {name}")
        try:
            yield db
        finally:
            for _name, sql in triggers:
                db.execute(sql)


def child(code: str, *args: str | Path) -> list[str]:
    """The command line of a child process that runs Python code with the same interpreter and import path."""
    return [sys.executable, "-c", code, *map(str, args)]
