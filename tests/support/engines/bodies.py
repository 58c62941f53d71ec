"""What stands for a worker in tests of an engine's adapter."""

from __future__ import annotations

from dataclasses import dataclass, field

import anyio


@dataclass
class Worker:
    """A body that notes what it is given, and answers when it is told to."""

    answer: bool = True
    alive: bool = True
    taking: bool = True
    settled_s: float = 0.0
    runs: list[str] = field(default_factory=list)
    woken: int = 0
    bad_messages: int = 0
    faults: dict[str, str] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)
    held: set[str] = field(default_factory=set)
    most: int = 0
    gate: anyio.Event = field(default_factory=anyio.Event)

    def wake(self) -> None:
        self.woken += 1

    def is_alive(self) -> bool:
        return self.alive

    def takes_runs(self) -> bool:
        return self.taking and self.alive

    def show_fault(self, queue: str, why: str) -> None:
        self.faults[queue] = why
        if not why:
            del self.faults[queue]

    def show_missing(self, queue: str, *, missing: bool) -> None:
        self.missing.discard(queue)
        if missing:
            self.missing.add(queue)

    def count_bad_message(self) -> None:
        self.bad_messages += 1

    async def __call__(self, run_id: str) -> bool:
        self.runs.append(run_id)
        self.held.add(run_id)
        self.most = max(self.most, len(self.held))
        await self.gate.wait()
        self.held.discard(run_id)
        return self.answer


def instant_worker(answer: bool = True) -> Worker:
    worker = Worker(answer=answer)
    worker.gate.set()
    return worker
