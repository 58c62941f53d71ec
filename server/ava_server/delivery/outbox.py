"""What an engine still has to be told. Telling it never holds up the process: an engine that is away is tried again."""

from __future__ import annotations

import logging
from collections.abc import Container
from dataclasses import dataclass

import anyio

from ava_server.delivery import Delivery, DeliveryFailed

log = logging.getLogger("ava.delivery")

TRY_AGAIN_S = 1.0
"""Seconds until an engine that failed is told again."""
TELLS_S = 10.0
"""Seconds that an engine has for one message."""


@dataclass(frozen=True)
class Message:
    """That a run may start."""

    run_id: str
    queue: str
    attempt: str


class Outbox:
    """Tells the engine of runs and cancels, each once, in a task of its own.

    Attributes:
        fault: Why the engine could not be told the last time; None while it can.
    """

    def __init__(self, delivery: Delivery) -> None:
        self.fault: str | None = None
        self._delivery = delivery
        self._told: dict[str, str] = {}
        self._waiting: dict[str, Message] = {}
        self._cancels: set[str] = set()
        self._changed = anyio.Event()

    def put(self, message: Message) -> None:
        """Tell the engine of a run, unless it was told of this attempt."""
        if self._told.get(message.run_id) != message.attempt and self._waiting.get(message.run_id) != message:
            self._waiting[message.run_id] = message
            self._changed.set()

    def put_cancel(self, run_id: str) -> None:
        self._cancels.add(run_id)
        self._changed.set()

    def keep_only(self, runs: Container[str]) -> None:
        """Forget what was told of other runs: they have ended."""
        for noted in (self._told, self._waiting):
            for run_id in [run_id for run_id in noted if run_id not in runs]:
                del noted[run_id]

    async def run(self) -> None:
        """Tell the engine, until cancelled."""
        while True:
            self._changed = anyio.Event()
            try:
                await self._tell_all()
                self.fault = None
            except DeliveryFailed as error:
                if self.fault is None:
                    log.warning("%s", error)
                self.fault = str(error)
                await anyio.sleep(TRY_AGAIN_S)
                continue
            if not self._waiting and not self._cancels:
                await self._changed.wait()

    async def _tell_all(self) -> None:
        try:
            while self._cancels:
                run_id = next(iter(self._cancels))
                with anyio.fail_after(TELLS_S):
                    await self._delivery.cancel(run_id)
                self._cancels.discard(run_id)
            while self._waiting:
                message = next(iter(self._waiting.values()))
                with anyio.fail_after(TELLS_S):
                    await self._delivery.deliver(message.run_id, message.queue, message.attempt)
                if self._waiting.get(message.run_id) == message:
                    del self._waiting[message.run_id]
                self._told[message.run_id] = message.attempt
        except TimeoutError:
            raise DeliveryFailed(
                f"{self._delivery.name} has not answered for {TELLS_S:.0f} s; runs wait until it does"
            ) from None
