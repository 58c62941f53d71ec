"""An engine in memory that takes nobody at their word: late acknowledgements count, and what is silent comes again."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio

from ava_server.delivery import ANY, PLANS, Body, DeliveryFailed, EngineState, is_repeat
from ava_server.delivery.message import signs_of_life


@dataclass
class _Message:
    run_id: str
    queue: str
    visible_s: float = 0.0
    given: int = 0


@dataclass
class MemoryEngine:
    """The engine of all labs of a test.

    Attributes:
        wait_s: After how long without a sign of life a message goes to another worker.
        naive: A worker acknowledges when its part is over, whatever the log says.
        answers: What workers said of the runs they were given, in order.
    """

    wait_s: float = 0.6
    naive: bool = False
    is_down: bool = False
    messages: list[_Message] = field(default_factory=list)
    seen: set[tuple[str, str]] = field(default_factory=set)
    answers: list[tuple[str, bool]] = field(default_factory=list)
    bodies: list[Body] = field(default_factory=list)

    def wipe(self) -> None:
        self.messages.clear()
        self.seen.clear()

    def delivery(self) -> MemoryDelivery:
        return MemoryDelivery(self)


class MemoryDelivery:
    """The adapter of one process."""

    name = "memory"
    carries = True

    def __init__(self, engine: MemoryEngine) -> None:
        self._engine = engine

    @asynccontextmanager
    async def connected(self) -> AsyncGenerator[None]:
        yield

    async def deliver(self, run_id: str, queue: str, attempt: str) -> bool:
        self._check()
        if (run_id, attempt) in self._engine.seen:
            return False
        waiting = any(one.run_id == run_id and not one.given for one in self._engine.messages)
        if waiting and is_repeat(attempt):
            return False
        self._engine.seen.add((run_id, attempt))
        self._engine.messages.append(_Message(run_id, queue))
        return True

    async def cancel(self, run_id: str) -> None:
        self._check()
        for body in self._engine.bodies:
            body.wake()

    async def work(self, name: str, queues: Sequence[str], slots: int, body: Body) -> None:
        engine, held = self._engine, list[_Message]()
        engine.bodies.append(body)

        async def give(message: _Message) -> None:
            async def show_life() -> None:
                message.visible_s = anyio.current_time() + engine.wait_s

            async with signs_of_life(body, show_life, engine.wait_s):
                forget = await body(message.run_id)
            engine.answers.append((message.run_id, forget))
            if (forget or engine.naive) and message in engine.messages:
                engine.messages.remove(message)
            held.remove(message)

        async with anyio.create_task_group() as tasks:
            while True:
                await anyio.sleep(0.02)
                now = anyio.current_time()
                for message in [] if engine.is_down or not body.takes_runs() else list(engine.messages):
                    full = message.queue != PLANS and sum(one.queue != PLANS for one in held) >= slots
                    if message.queue in queues and message.visible_s <= now and message not in held and not full:
                        message.visible_s = now + engine.wait_s
                        message.given += 1
                        held.append(message)
                        tasks.start_soon(give, message)

    async def state(self) -> EngineState:
        if self._engine.is_down:
            return EngineState("the engine is down")
        again = sum(message.given > 1 for message in self._engine.messages)
        return EngineState(waiting={ANY: len(self._engine.messages)}, again=again)

    def _check(self) -> None:
        if self._engine.is_down:
            raise DeliveryFailed("the engine is down; runs wait until it is back")
