"""What the log says of a plan: how far its steps are, which of their runs count, and what these have handed over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ava_audit.events import WHOLE, StepChanged
from ava_audit.rows import StepRunRow
from ava_audit.view import View
from ava_server.approval.output_schema import find_mismatch
from ava_server.approval.requests import stored_result
from ava_server.run_config.config import RunConfig, StepConfig
from ava_server.run_config.run_cap import CAP_OF_ENDING
from ava_server.runs.record.plan_moves import StepProgress


def reused_rows(view: View, step: StepConfig) -> list[StepRunRow]:
    """Return the runs of an earlier plan that count for a step, as rows of it.

    One that was erased since counts as not done: it was not approved to run again.
    """
    rows: list[StepRunRow] = []
    for reused in step.reused:
        row = view.step_run(reused.id)
        if row is None:
            continue
        state = row.state if result_of(view, row) is not None else "erased"
        rows.append(replace(row, state=state, step=step.id, item=reused.item))
    return rows


def all_rows(view: View, plan_id: str, steps: Sequence[StepConfig]) -> dict[str, list[StepRunRow]]:
    """Return the runs of each step of a plan, those included that are reused from an earlier one."""
    rows = {step.id: reused_rows(view, step) for step in steps}
    for row in view.step_runs(plan_id):
        rows.setdefault(row.step, []).append(row)
    return rows


def step_progress(view: View, plan_id: str) -> dict[str, StepProgress]:
    """Return how far each step of a plan is that has begun."""
    progress: dict[str, StepProgress] = {}
    for entry in view.entries(plan_id, 0, ("StepChanged",)):
        fact = entry.fact
        if isinstance(fact, StepChanged):
            progress[fact.step] = StepProgress(fact.state, fact.items, fact.left_out, fact.not_done, fact.why)
    return progress


def result_of(view: View, row: StepRunRow) -> dict[str, Any] | None:
    """Return the result that a run of a step handed over, or None where it has none or was erased."""
    run = view.run(row.id)
    return stored_result(view, run) if run is not None else None


def ended_well(row: StepRunRow, config: RunConfig, result: dict[str, Any] | None) -> bool:
    """Tell whether a run of a step counts: it succeeded, or handed over a result at a cap that fits its schema.

    What a run that changes files has handed over at a cap counts only if its verify command has passed.
    """
    if row.state in WHOLE:
        return True
    if row.state not in CAP_OF_ENDING or result is None or not result.get("handed_over"):
        return False
    if config.coding is not None and not result.get("changes", {}).get("verified"):
        return False
    if config.output_schema is None:
        return True
    return find_mismatch(result.get("untrusted_result", {}).get("output"), config.output_schema) is None
