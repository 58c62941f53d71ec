"""What an engine still has to be told: each queue in a task of its own, so that one that fails holds up no other.

Telling never holds up the process either: an engine that is away is tried again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Container, Mapping
from dataclasses import dataclass

import anyio
import anyio.abc

from ava_server.delivery import Delivery, DeliveryFailed, is_repeat, same_claim

log = logging.getLogger("ava.delivery")

TRY_AGAIN_S = 1.0
"""Seconds until an engine that failed is told again."""
TELLS_S = 10.0
"""Seconds that an engine has for one message."""
_CANCELS = ""
"""What stands for the cancels where queues are named."""
REPEATED = "repeated"
"""What a server tells others: how many deliveries it has made again, as the run showed no sign of life (rule 3)."""


@dataclass(frozen=True)
class Message:
    """That a run may start."""

    run_id: str
    queue: str
    attempt: str


class Outbox:
    """Tells the engine of runs and cancels, each once.

    Attributes:
        repeated: How many deliveries were made again after four leases without a sign of life.
    """

    def __init__(self, delivery: Delivery, tell: Callable[[Mapping[str, int]], None]) -> None:
        """`tell`: lets other processes know what is counted here."""
        self.repeated = 0
        self._tell = tell
        self._delivery = delivery
        self._told: dict[str, str] = {}
        self._waiting: dict[str, dict[str, Message]] = {}
        self._cancels: dict[str, None] = {}
        self._faults: dict[str, str] = {}
        self._busy: set[str] = set()
        self._changed = anyio.Event()

    @property
    def fault(self) -> str | None:
        """Why something could not be told the last time; None while all could."""
        return next(iter(self._faults.values()), None)

    def fault_of(self, queue: str) -> str | None:
        """Return why the engine could not be told of a queue's runs the last time; None while it can."""
        return self._faults.get(queue)

    def put(self, message: Message) -> None:
        """Tell the engine of a run, unless it was told of this attempt."""
        waiting = self._waiting.setdefault(message.queue, {})
        if self._told.get(message.run_id) != message.attempt and waiting.get(message.run_id) != message:
            waiting[message.run_id] = message
            self._changed.set()

    def put_cancel(self, run_id: str) -> None:
        self._cancels[run_id] = None
        self._changed.set()

    def keep_only(self, runs: Container[str]) -> None:
        """Forget what was told of other runs: they have ended."""
        for run_id in [run_id for run_id in self._told if run_id not in runs]:
            del self._told[run_id]
        for waiting in self._waiting.values():
            for run_id in [run_id for run_id in waiting if run_id not in runs]:
                del waiting[run_id]

    async def run(self) -> None:
        """Tell the engine, until cancelled."""
        async with anyio.create_task_group() as tasks:
            while True:
                self._changed = anyio.Event()
                if self._cancels:
                    self._start(_CANCELS, tasks)
                for queue, waiting in self._waiting.items():
                    if waiting:
                        self._start(queue, tasks)
                await self._changed.wait()

    def _start(self, queue: str, tasks: anyio.abc.TaskGroup) -> None:
        if queue not in self._busy:
            self._busy.add(queue)
            tasks.start_soon(self._tell_cancels if queue == _CANCELS else self._tell_runs, queue)

    async def _tell_cancels(self, _queue: str) -> None:
        while self._cancels:
            run_id = next(iter(self._cancels))
            del self._cancels[run_id]
            if not await self._is_told(_CANCELS, self._delivery.cancel(run_id)):
                self._cancels[run_id] = None  # after the others
        self._busy.discard(_CANCELS)

    async def _tell_runs(self, queue: str) -> None:
        waiting = self._waiting[queue]
        while waiting:
            message = next(iter(waiting.values()))
            told = await self._is_told(queue, self._deliver(message))
            if told:
                self._told[message.run_id] = message.attempt
            if waiting.get(message.run_id) == message:
                del waiting[message.run_id]
                if not told:
                    waiting[message.run_id] = message  # after the others
        self._faults.pop(queue, None)  # what could not be told has ended
        self._busy.discard(queue)

    async def _deliver(self, message: Message) -> None:
        is_new = await self._delivery.deliver(message.run_id, message.queue, message.attempt)
        before = self._told.get(message.run_id)
        # What is no news waits still, or another server has told the engine, and counts it. A run that was silent for
        # long before its first delivery under a claim, or before this server's, is not delivered again by that.
        if is_new and is_repeat(message.attempt) and before is not None and same_claim(before, message.attempt):
            self.repeated += 1
            self._tell({REPEATED: self.repeated})

    async def _is_told(self, queue: str, telling: Awaitable[None]) -> bool:
        """Tell the engine, and return whether that worked; where it did not, wait until it is tried again."""
        try:
            with anyio.fail_after(TELLS_S):
                await telling
        except DeliveryFailed as error:
            fault = str(error)
        except TimeoutError:
            fault = f"{self._delivery.name} has not answered for {TELLS_S:.0f} s; runs wait until it does"
        else:
            self._faults.pop(queue, None)
            return True
        if fault not in self._faults.values():
            log.warning("%s", fault)
        self._faults[queue] = fault
        await anyio.sleep(TRY_AGAIN_S)
        return False
