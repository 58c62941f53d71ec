"""What an entry says of a model call: that it may be sent, or what it cost."""

from __future__ import annotations

from typing import NamedTuple

from ava_audit.events import CostReserved, CostUpdate, Event

IN_FLIGHT = "in_flight"
CALL_TYPES = frozenset({"CostReserved", "CostUpdate"})


class ModelCall(NamedTuple):
    """A model call as its reservation or its settlement says it; `micros` is what it cost, or can cost (micro-USD)."""

    at_us: int
    user: str
    run: str
    turn: int
    attempt: int
    model: str
    micros: int
    settlement: str  # `in_flight`: it was reserved, and nothing says how it ended

    @property
    def key(self) -> tuple[str, int, int]:
        return self.run, self.turn, self.attempt


class LoggedCall(NamedTuple):
    """What an entry with this number and hash says of a model call."""

    seq: int
    hash: bytes
    call: ModelCall


def call_of(event: Event, at_us: int) -> ModelCall | None:
    """Return the call that an event reserves or settles; None if it does neither."""
    run = event.fence.run_id if event.fence is not None else event.run_id or ""
    match event.fact:
        case CostReserved() as fact:
            micros, settlement = fact.micros, IN_FLIGHT
        case CostUpdate() as fact:
            micros, settlement = event.cost_micros or 0, str(fact.settlement)
        case _:
            return None
    user, model = event.who.user_id, event.model or ""
    return ModelCall(at_us, user, run, fact.turn, fact.attempt, model, micros, settlement)
