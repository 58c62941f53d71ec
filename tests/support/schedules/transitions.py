"""Compares what a command does to a run with the table of transitions (`runs/lifecycle.py`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ava_audit.events import Event, Fact
from ava_audit.rows import UNENDED, RunRow
from ava_audit.view import View
from ava_server.runs.lifecycle import OPTIONAL, TRANSITIONS, Cause, Situation, situation, transition

MOVING: frozenset[type[Fact]] = frozenset(
    kind for row in TRANSITIONS.values() for kind in row.entries if kind not in OPTIONAL
)
"""The types of entries that move a run, or announce that."""
moved: Counter[tuple[Situation, Cause]] = Counter()
"""How often each row of the table was seen to happen in this process."""


@dataclass(frozen=True)
class Before:
    """A run just before a command, and the cause by which the command would move it."""

    run: RunRow
    where: Situation
    cause: Cause


def before(
    view: View, run_id: str, cause: Cause, now_us: int, gone: frozenset[str] = frozenset(), instance: str | None = None
) -> Before:
    run = view.run(run_id)
    assert run is not None
    proposal = view.proposal(run.pending_id)
    assert proposal is not None
    where = situation(run, now_us, gone=gone, instance=instance, expires_us=proposal.expires_us)
    return Before(run, where, cause)


def facts_of(run_id: str, events: Sequence[Event]) -> list[type[Fact]]:
    """The types of the entries of a run among these that a transition can have."""
    known = {kind for row in TRANSITIONS.values() for kind in row.entries}
    mine = (event for event in events if (event.fence.run_id if event.fence is not None else event.run_id) == run_id)
    return [type(event.fact) for event in mine if type(event.fact) in known]


def compare(was: Before, written: Sequence[type[Fact]], after: RunRow) -> bool:
    """Assert that what was written and the new state are what the table has; return whether the run moved.

    A row that allows a transition does not force it: a day's budget, the slots or a wrong line may refuse it.
    """
    about = f"{was.cause} of a run that is {was.where}, cancel asked: {was.run.cancel_seq is not None}"
    row = transition(was.run, was.cause, was.where)
    if not MOVING.intersection(written):
        assert (after.state, after.generation, after.instance) == (was.run.state, was.run.generation, was.run.instance)
        return False
    assert row is not None, f"{about} is not in the table, and wrote {[kind.__name__ for kind in written]}"
    wanted = [kind for kind in row.entries if kind not in OPTIONAL or kind in written]
    assert list(written) == wanted, f"{about} wrote {[kind.__name__ for kind in written]}"
    if row.after is None:
        assert after.ended, about
    else:
        assert after.state == row.after, about
    assert was.where != "ended", "a run that has ended does not move"
    assert after.ended is (after.state not in UNENDED)
    moved[was.where, was.cause] += 1
    return True
