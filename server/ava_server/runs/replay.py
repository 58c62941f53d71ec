"""Rebuilding: a request that was sent, made again from nothing but the log."""

from __future__ import annotations

from collections.abc import Iterable

from ava_audit.entries import Entry
from ava_audit.events import CostReserved
from ava_server.models.clients import ClientPool
from ava_server.models.factory import model_of
from ava_server.runs.history import History, Recipe


def rebuilt(entries: Iterable[Entry], run_id: str, turn: int, attempt: int) -> bytes | None:
    """Return the request of one attempt, byte for byte, from nothing but a run's entries.

    None when it was never reserved. The model is made again from the parameters in the log; it is not asked.
    """
    history = History(run_id)
    for entry in entries:
        fact = entry.fact
        if isinstance(fact, CostReserved) and (fact.turn, fact.attempt) == (turn, attempt):
            assert history.prefix is not None, "a run starts with its prefix"
            model = model_of(history.prefix.model, history.prefix.parameters, None, ClientPool())
            return model.encode(
                history.request(Recipe(fact.upto_seq, fact.elide, fact.notice), fact.max_output, fact.thinking)
            )
        if fact is not None:
            history.add(entry.seq, fact, entry.usage, fenced=entry.generation is not None)
    return None
