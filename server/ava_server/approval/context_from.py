"""Results of earlier subagents: which a spawn may name in `context_from`, and the tool that reads them.

What another subagent handed over is its own words about what it read: data like a page, and less than a page, for it
is no source. So the tool names nothing that was read, and a quote that stands nowhere else is not found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ava_audit.events import SubagentComplete
from ava_audit.rows import RunRow
from ava_audit.view import View
from ava_roles.tools.run_tools import READ_SUBAGENT_RESULT
from ava_server.budget.run_config import EarlierRun
from ava_server.core.errors import BadInput

NAME = READ_SUBAGENT_RESULT.name


def check_earlier(view: View, rows: Sequence[RunRow]) -> tuple[EarlierRun, ...]:
    """Return what a proposal says of the runs whose results it names.

    Raises:
        BadInput: One of them has not ended, never had a result, or was erased.
    """
    for row in rows:
        if not row.ended:
            raise BadInput(f"context_from: {row.id} has not ended; wait for it, or cancel it first")
        if row.result_seq is None:
            raise BadInput(f"context_from: {row.id} has no result, because its proposal was {row.state}; leave it out")
        if stored_result(view, row) is None:
            raise BadInput(f"context_from: the result of {row.id} was erased; leave it out")
    return tuple(EarlierRun(id=row.id, role=row.role, ending=row.state) for row in rows)


def stored_result(view: View, row: RunRow) -> dict[str, Any] | None:
    """Return the result that a run handed over, or None where it has none or was erased."""
    entry = view.entry(row.result_seq) if row.result_seq is not None else None
    return entry.fact.result if entry is not None and isinstance(entry.fact, SubagentComplete) else None


def listed(runs: Sequence[EarlierRun]) -> str:
    """Return runs by id, role and ending: nothing that one of them wrote."""
    return ", ".join(
        f"{run.id} ({run.role}{'' if run.ending == 'success' else f', {run.ending}: may be incomplete'})"
        for run in runs
    )
