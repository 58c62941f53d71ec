"""The verdicts of a suite's tries, by pydantic-evals: its cases, its evaluators, its report. Ava is the task.

The task is done before: what it returns is the result that the log has. So scoring calls no model, costs nothing, and
is the same each time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic_evals import Case as EvalsCase
from pydantic_evals import Dataset
from pydantic_evals.evaluators import EvaluationReason, Evaluator, EvaluatorContext

from ava_server.suites.plan import Cell

PASSED = "passed"


class Score(NamedTuple):
    """Whether a try has passed, and why not; `passed` is None where that could not be told."""

    passed: bool | None
    why: str


class ResultErased(Exception):
    """Raised where the log no longer has a result."""


@dataclass(repr=False)
class CaseChecks(Evaluator[Cell, Mapping[str, Any], None]):
    """All checks of the case itself; the reason has a sentence for each that failed."""

    def evaluate(self, ctx: EvaluatorContext[Cell, Mapping[str, Any], None]) -> dict[str, EvaluationReason]:
        failures = ctx.inputs.case.failures(ctx.output)
        return {PASSED: EvaluationReason(not failures, "; ".join(failures) or None)}


async def score(suite: str, results: Sequence[tuple[Cell, Mapping[str, Any] | None]]) -> list[Score]:
    """Return the score of each try, in order.

    `results`: the cells, each with the stored result of its run; None where that was erased.
    """
    if not results:
        return []
    stored = {cell.id: result for cell, result in results}

    async def ava(cell: Cell) -> Mapping[str, Any]:
        result = stored[cell.id]
        if result is None:
            raise ResultErased("its result was erased")
        return result

    names = [f"{cell.case.id} {cell.column} {cell.id}" for cell, _result in results]
    cases = [
        EvalsCase[Cell, Mapping[str, Any], None](name=name, inputs=cell)
        for name, (cell, _result) in zip(names, results, strict=True)
    ]
    dataset = Dataset[Cell, Mapping[str, Any], None](name=suite, cases=cases, evaluators=[CaseChecks()])
    report = await dataset.evaluate(ava, progress=False)
    scores: dict[str, Score] = {}
    for case in report.cases:
        if (found := case.assertions.get(PASSED)) is not None:
            scores[case.name] = Score(found.value, found.reason or "")
        else:
            scores[case.name] = Score(None, "; ".join(failure.error_message for failure in case.evaluator_failures))
    for failed in report.failures:
        scores[failed.name] = Score(None, failed.error_message.removeprefix(f"{ResultErased.__name__}: "))
    return [scores[name] for name in names]
