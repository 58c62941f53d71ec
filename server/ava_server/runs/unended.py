"""The runs without an ending, as a manager knows them: read whole once, and then only those that have new entries.

With many waiting runs, reading all of them after each entry would cost more than running them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ava_audit.rows import QUEUED, RUNNING, GroupRow, RunRow
from ava_audit.view import View

STATES = (QUEUED, RUNNING)
MOST_NEW = 2_000
"""New entries above which everything is read again."""


@dataclass(frozen=True)
class Unended:
    """The runs that wait or are running, at one moment.

    Attributes:
        head: The newest `seq` at that moment.
        runs: The runs by id, oldest first.
        groups: Their groups by id.
    """

    head: int
    runs: Mapping[str, RunRow]
    groups: Mapping[str, GroupRow]


def read_unended(view: View, known: Unended | None = None) -> Unended:
    """Return the runs without an ending.

    Args:
        view: The log.
        known: What was read before. A row changes only with an entry of its run.
    """
    head = view.head()
    if known is None or not 0 <= head - known.head <= MOST_NEW:
        rows = view.runs(states=STATES, limit=-1)
        return Unended(head, {row.id: row for row in rows}, _groups(view, rows))
    if head == known.head:
        return known
    changed = view.runs_with_entries_after(known.head)
    runs = {**known.runs, **{row.id: row for row in changed}}
    runs = {row.id: row for row in sorted(runs.values(), key=lambda row: row.created_us) if row.state in STATES}
    groups = {**known.groups, **_groups(view, changed)}
    named = {row.group_id for row in runs.values()}
    return Unended(head, runs, {name: group for name, group in groups.items() if name in named})


def _groups(view: View, rows: list[RunRow]) -> dict[str, GroupRow]:
    found = {name: view.group(name) for name in {row.group_id for row in rows} if name is not None}
    return {name: group for name, group in found.items() if group is not None}
