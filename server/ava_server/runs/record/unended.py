"""The runs of a log that wait or are running, as a manager looks through them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ava_audit.rows import QUEUED, RUNNING, PlanCaps, RunRow
from ava_audit.view import View

STATES = (QUEUED, RUNNING)
MOST_NEW = 2_000
"""New entries above which everything is read again."""


@dataclass(frozen=True)
class Unended:
    """The runs that wait or are running, at one moment.

    They are read whole once, and then only those that have new entries: with many waiting runs, reading all of them
    after each entry would cost more than running them.

    Attributes:
        head: The newest `seq` at that moment.
        runs: The runs by id, about in the order in which they were approved.
    """

    head: int
    runs: Mapping[str, RunRow]
    plans: Mapping[str, PlanCaps]


def read_unended(view: View, head: int, known: Unended | None = None) -> Unended:
    """Return the runs without an ending; of `known`, only those with new entries and their plans: no other can change.

    `head`: the newest `seq` that this process knew before. Later entries may be read now, and are read again.
    """
    if known is None or not 0 <= head - known.head <= MOST_NEW:
        rows = view.runs(states=STATES, limit=-1)
        return Unended(head, {row.id: row for row in rows}, _caps_of_plans(view, rows))
    changed = view.runs_with_entries_after(known.head)
    if not changed and head == known.head:
        return known
    plan_ids = {row.plan_id for row in changed if row.plan_id is not None}
    changed_ids = {row.id for row in changed}
    for plan_id in plan_ids - changed_ids:
        plan = view.run(plan_id)
        if plan is not None:
            changed.append(plan)
    runs = dict(known.runs)
    for row in sorted(changed, key=lambda row: row.queued_us or 0):  # what was approved last comes last
        share_texts(row, known.runs.get(row.id))
        if row.state in STATES:
            runs[row.id] = row
        else:
            runs.pop(row.id, None)
    known_plans = {**known.plans, **_caps_of_plans(view, changed)}
    unended_plan_ids = {row.plan_id for row in runs.values()}
    plans = {plan_id: caps for plan_id, caps in known_plans.items() if plan_id in unended_plan_ids}
    return Unended(head, runs, plans)


def share_texts(row: RunRow, known: RunRow | None) -> None:
    """Give a row the long texts of one that was read before, if they are the same: each takes up to some KiB."""
    if known is None or known.config != row.config:
        return
    row.config = known.config
    if known.terms == row.terms:
        row.terms = known.terms


def _caps_of_plans(view: View, rows: list[RunRow]) -> dict[str, PlanCaps]:
    plans: dict[str, PlanCaps] = {}
    for plan_id in {row.plan_id for row in rows}:
        caps = view.plan_caps(plan_id)
        if plan_id is not None and caps is not None:
            plans[plan_id] = caps
    return plans
