"""Results of earlier subagents: which a spawn may name in `context_from`, and the tool that reads them.

Another subagent's result is its own text about what it read: untrusted data, and not a source. So the tool names no
source, and a quote that only such a result contains counts as not found.
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


def check_context_from(view: View, rows: Sequence[RunRow]) -> tuple[EarlierRun, ...]:
    """Return the runs whose results a proposal names, as its configuration has them.

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


def list_earlier(runs: Sequence[EarlierRun]) -> str:
    """Return runs by id, role and ending, without anything that they wrote."""
    return ", ".join(
        f"{run.id} ({run.role}{'' if run.ending == 'success' else f', {run.ending}: may be incomplete'})"
        for run in runs
    )
