"""What a round of a suite has shown: verdicts, columns with their intervals, and two of them case by case.

`SuiteResult` is the JSON of `ava eval run --json`, and what `ava eval compare` reads. Money is in whole micro-USD, as
the log has it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict
from pydantic_evals import Case as EvalsCase
from pydantic_evals import Dataset
from pydantic_evals.evaluators import EvaluationReason, Evaluator, EvaluatorContext

from ava_audit.rows import RunRow
from ava_audit.units import US_PER_S
from ava_server.models.prices import Price
from ava_server.run_config.config import config_of
from ava_server.suites.cells import Cell, Round

# -- intervals --------------------------------------------------------------------------------------------------------
#
# Confidence intervals for small suites, of 95 %: pure functions of counts and sums, the same each time.
#
# Shares have Wilson's interval (1927), which holds for few cases and for 0 and 100 %. Tries of the same case resemble
# each other, so a share over tries counts as fewer: the effective number is p(1-p) over the variance between cases
# (Dean and Pagano, 2015), but no fewer than the cases and no more than the tries. It is the number of cases where that
# variance is not known: one case, or all or none solved. Ratios (cost per solved try) have the percentile bootstrap
# over cases (Efron, 1979) with a fixed seed. Two columns are compared by the exact sign test (McNemar), without the
# cases in which they are equal.

Z = 1.959963984540054
"""The 97.5th percentile of the normal distribution."""
RESAMPLES = 2_000
TAIL = 0.025
SEED = 1


@dataclass(frozen=True)
class Proportion:
    """A share with its interval; `of` is the number of observations behind it, 0 where nothing is known."""

    value: float
    low: float
    high: float
    of: int


@dataclass(frozen=True)
class Ratio:
    """A sum per solved try with its interval; None where nothing was solved, or no upper end is known."""

    value: float | None
    low: float | None
    high: float | None


def wilson(solved: float, of: float) -> tuple[float, float]:
    """Return the ends of Wilson's interval; `solved` and `of` may be effective numbers."""
    if of <= 0:
        return 0.0, 1.0
    share, weight = solved / of, Z * Z / of
    middle = (share + weight / 2) / (1 + weight)
    half = Z / (1 + weight) * math.sqrt(share * (1 - share) / of + weight / (4 * of))
    low = 0.0 if share == 0 else middle - half
    high = 1.0 if share == 1 else middle + half
    return low, high


def pass_at_1(cases: Sequence[tuple[int, int]]) -> Proportion:
    """Return how often one try solves a case: the mean over cases of their share of solved tries.

    Args:
        cases: Of each case, its solved tries and all its tries.
    """
    shares = [solved / tries for solved, tries in cases if tries]
    if not shares:
        return Proportion(0.0, 0.0, 1.0, 0)
    number = len(shares)
    tries = sum(each for _solved, each in cases)
    mean = sum(shares) / number
    effective = float(number)
    if number > 1 and 0 < mean < 1:
        variance = sum((share - mean) ** 2 for share in shares) / (number * (number - 1))
        effective = mean * (1 - mean) / variance if variance else math.inf
    effective = min(max(effective, number), tries)
    low, high = wilson(mean * effective, effective)
    return Proportion(mean, low, high, tries)


def pass_all(cases: Sequence[tuple[int, int]], tries: int) -> Proportion:
    """Return the share of cases all of whose `tries` are solved; a case that may still become one does not count.

    Args:
        cases: Of each case, its solved tries and its tries with a verdict.
        tries: How often each case is tried.
    """
    are_solved = [solved >= tries for solved, known in cases if known >= tries or solved < known]
    number = len(are_solved)
    if not number:
        return Proportion(0.0, 0.0, 1.0, 0)
    low, high = wilson(sum(are_solved), number)
    return Proportion(sum(are_solved) / number, low, high, number)


def per_solved(cases: Sequence[tuple[float, float]]) -> Ratio:
    """Return a sum (cost, seconds) per solved try; what was spent on the unsolved ones counts.

    Args:
        cases: Of each case, its solved tries and the sum over all its tries; or both per try.
    """
    ratio = _ratio(cases)
    if ratio == math.inf:
        return Ratio(None, None, None)
    random = Random(SEED)  # noqa: S311  (a fixed seed: the same numbers each time)
    ratios = sorted(_ratio(random.choices(cases, k=len(cases))) for _number in range(RESAMPLES))
    low = ratios[int(TAIL * RESAMPLES)]
    high = ratios[math.ceil((1 - TAIL) * RESAMPLES) - 1]
    return Ratio(ratio, _finite(low), _finite(high))


def _finite(value: float) -> float | None:
    if value == math.inf:
        return None
    return value


def _ratio(cases: Sequence[tuple[float, float]]) -> float:
    """Return the sum per solved try; infinite where nothing is solved."""
    solved = sum(each for each, _sum in cases)
    if not solved:
        return math.inf
    return sum(each for _solved, each in cases) / solved


def sign_test(better: int, worse: int) -> float:
    """Return the two-sided exact p-value that one of two is not better, by the cases in which they differ."""
    of = better + worse
    tail = sum(math.comb(of, number) for number in range(min(better, worse) + 1)) / 2.0**of
    return min(1.0, 2 * tail)


# -- verdicts ---------------------------------------------------------------------------------------------------------
#
# By pydantic-evals: its cases, its evaluators, its report. Ava is the task, and it is done before: what it returns is
# the result that the log has. So scoring calls no model, costs nothing, and is the same each time.

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

    names: list[str] = []
    cases: list[EvalsCase[Cell, Mapping[str, Any], None]] = []
    for cell, _result in results:
        name = f"{cell.case.id} {cell.column} {cell.id}"
        names.append(name)
        cases.append(EvalsCase(name=name, inputs=cell))
    dataset = Dataset[Cell, Mapping[str, Any], None](name=suite, cases=cases, evaluators=[CaseChecks()])
    report = await dataset.evaluate(ava, progress=False)
    scores: dict[str, Score] = {}
    for case in report.cases:
        assertion = case.assertions.get(PASSED)
        if assertion is not None:
            scores[case.name] = Score(assertion.value, assertion.reason or "")
        else:
            messages = [failure.error_message for failure in case.evaluator_failures]
            scores[case.name] = Score(None, "; ".join(messages))
    for failure in report.failures:
        scores[failure.name] = Score(None, failure.error_message.removeprefix(f"{ResultErased.__name__}: "))
    return [scores[name] for name in names]


# -- results ----------------------------------------------------------------------------------------------------------


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")  # a newer Ava may have written it


class TryVerdict(_Model):
    """One try.

    Attributes:
        number: The try, from 1.
        run: Its run, the newest if it was made again; None where it was never approved.
        ending: How that ended; else its state.
        passed: Whether it passed the case's checks; None without a verdict.
        why: Why it did not, or has no verdict.
        cost_micros: What this run has cost.
        seconds: Its active time.
    """

    case: str
    column: str
    number: int
    run: str | None
    ending: str
    passed: bool | None
    why: str
    cost_micros: int
    seconds: float


class ColumnScore(_Model):
    """One model or role over all cases; intervals are of 95 %.

    Attributes:
        tries: Its tries with a verdict.
        without: Its tries without one.
        pass_1: How often one try solves a case.
        pass_all: The share of cases of which every try is solved.
        cost_micros: What all its runs have cost, those without a verdict too.
        cost_per_solved: What its tries with a verdict have cost per solved one, in micro-USD.
        seconds_per_solved: Their active time per solved one.
        price: What a token of it costs, in words; several where that has changed.
    """

    name: str
    tries: int
    without: int
    solved: int
    pass_1: Proportion
    pass_all: Proportion
    cost_micros: int
    cost_per_solved: Ratio
    seconds_per_solved: Ratio
    price: tuple[str, ...]


class Comparison(_Model):
    """Two columns case by case.

    Attributes:
        cases: How many cases have a verdict in both.
        better: Those that the second does better, with the share of solved tries before and after; and worse.
        p_value: Of the sign test: how likely such a difference is by chance.
        before, after: The cost per solved try in those cases, of equal weight, in micro-USD.
    """

    first: str
    second: str
    cases: int
    better: dict[str, tuple[float, float]]
    worse: dict[str, tuple[float, float]]
    p_value: float
    before: Ratio
    after: Ratio
    notes: tuple[str, ...] = ()


class SuiteResult(_Model):
    """A round of a suite."""

    format: Literal[1] = 1
    suite: str
    about: str
    round: int
    tries: int
    cost_micros: int
    columns: tuple[ColumnScore, ...]
    verdicts: tuple[TryVerdict, ...]
    comparisons: tuple[Comparison, ...] = ()
    notes: tuple[str, ...]


def result_of(
    suite: str, about: str, current: Round, cells: Sequence[Cell], scores: Mapping[str, Score]
) -> SuiteResult:
    """Return what a round has shown; `scores` has those of the ended tries, by `Cell.id`."""
    verdicts = [_verdict(cell, current.newest(cell), scores.get(cell.id)) for cell in cells]
    tries = max(cell.number for cell in cells)
    runs: dict[str, list[RunRow]] = {}
    for cell in cells:
        runs.setdefault(cell.column, []).extend(current.runs.get(cell.id, ()))
    columns = [_column(name, verdicts, tries, runs_of_column) for name, runs_of_column in runs.items()]
    result = SuiteResult(
        suite=suite,
        about=about,
        round=current.number,
        tries=tries,
        cost_micros=sum(column.cost_micros for column in columns),
        columns=tuple(columns),
        verdicts=tuple(verdicts),
        notes=tuple(_notes(verdicts, columns)),
    )
    first, *others = [column.name for column in columns]
    comparisons = [compare_columns((result, first), (result, name)) for name in others]
    return result.model_copy(update={"comparisons": tuple(comparisons)})


def _verdict(cell: Cell, run: RunRow | None, score: Score | None) -> TryVerdict:
    if score is not None:
        passed, why = score
    elif cell.refusal:
        passed, why = False, cell.refusal
    else:
        passed, why = None, "it was not approved"
    if run is None:
        return TryVerdict(
            case=cell.case.id,
            column=cell.column,
            number=cell.number,
            run=None,
            ending="",
            passed=passed,
            why=why,
            cost_micros=0,
            seconds=0.0,
        )
    if score is None:
        why = run.stop_reason or run.state.replace("_", " ")
    return TryVerdict(
        case=cell.case.id,
        column=cell.column,
        number=cell.number,
        run=run.id,
        ending=run.state,
        passed=passed,
        why=why,
        cost_micros=run.cost_micros,
        seconds=run.active_us / US_PER_S,
    )


def _column(name: str, verdicts: Sequence[TryVerdict], tries: int, runs: Sequence[RunRow]) -> ColumnScore:
    counts: list[tuple[int, int]] = []
    costs: list[tuple[float, float]] = []
    seconds: list[tuple[float, float]] = []
    for case_verdicts in known_tries(verdicts, name).values():
        solved = _count_solved(case_verdicts)
        counts.append((solved, len(case_verdicts)))
        costs.append((solved, sum(verdict.cost_micros for verdict in case_verdicts)))
        seconds.append((solved, sum(verdict.seconds for verdict in case_verdicts)))
    with_verdict = sum(number for _solved, number in counts)
    prices = [_price_text(config_of(run.config).price) for run in runs]
    return ColumnScore(
        name=name,
        tries=with_verdict,
        without=sum(verdict.column == name for verdict in verdicts) - with_verdict,
        solved=sum(solved for solved, _number in counts),
        pass_1=pass_at_1(counts),
        pass_all=pass_all(counts, tries),
        cost_micros=sum(run.cost_micros for run in runs),
        cost_per_solved=per_solved(costs),
        seconds_per_solved=per_solved(seconds),
        price=tuple(dict.fromkeys(prices)),
    )


def _price_text(price: Price) -> str:
    if price.free:
        return "free"
    return f"${price.input / 1000:g} in, ${price.output / 1000:g} out per million tokens"


def _notes(verdicts: Sequence[TryVerdict], columns: Sequence[ColumnScore]) -> Iterator[str]:
    for column in columns:
        if len(column.price) > 1:
            yield (
                f"The price of {column.name} has changed during this round: {', then '.join(column.price)}. Each run"
                " counts with what it has cost."
            )
        if column.without:
            why = next(each.why for each in verdicts if each.column == column.name and each.passed is None)
            yield f"{column.name}: {column.without} of {column.tries + column.without} tries have no verdict ({why})."


def compare_columns(first: tuple[SuiteResult, str], second: tuple[SuiteResult, str]) -> Comparison:
    """Return two columns case by case, each given by its result and its name."""
    result_before, name_before = first
    result_after, name_after = second
    before = _shares_and_costs(known_tries(result_before.verdicts, name_before))
    after = _shares_and_costs(known_tries(result_after.verdicts, name_after))
    better: dict[str, tuple[float, float]] = {}
    worse: dict[str, tuple[float, float]] = {}
    cases = [case for case in before if case in after]
    for case in cases:
        shares = before[case][0], after[case][0]
        if shares[1] > shares[0]:
            better[case] = shares
        elif shares[1] < shares[0]:
            worse[case] = shares

    notes: list[str] = []
    in_one_only = before.keys() ^ after.keys()
    if in_one_only:
        notes.append(f"{len(in_one_only)} cases are only in one of them.")
    price_before = _column_of(result_before, name_before).price
    price_after = _column_of(result_after, name_after).price
    if name_before == name_after and price_before != price_after:
        notes.append(f"The price of {name_before} has changed from {_last(price_before)} to {_last(price_after)}.")
    return Comparison(
        first=name_before,
        second=name_after,
        cases=len(cases),
        better=better,
        worse=worse,
        p_value=sign_test(len(better), len(worse)),
        before=per_solved([before[case] for case in cases]),
        after=per_solved([after[case] for case in cases]),
        notes=tuple(notes),
    )


def _column_of(result: SuiteResult, name: str) -> ColumnScore:
    return next(each for each in result.columns if each.name == name)


def _last(prices: Sequence[str]) -> str:
    if not prices:
        return "an unknown one"
    return prices[-1]


def known_tries(verdicts: Sequence[TryVerdict], column: str) -> dict[str, list[TryVerdict]]:
    """Return the tries of each case that have a verdict in a column; cases without one are left out."""
    tries: dict[str, list[TryVerdict]] = {}
    for verdict in verdicts:
        if verdict.column == column and verdict.passed is not None:
            tries.setdefault(verdict.case, []).append(verdict)
    return tries


def _count_solved(verdicts: Sequence[TryVerdict]) -> int:
    return sum(verdict.passed is True for verdict in verdicts)


def _shares_and_costs(tries: Mapping[str, Sequence[TryVerdict]]) -> dict[str, tuple[float, float]]:
    """Return the share of solved tries of each case, and what one has cost: two columns may differ in their number."""
    shares: dict[str, tuple[float, float]] = {}
    for case, verdicts in tries.items():
        cost = sum(verdict.cost_micros for verdict in verdicts)
        shares[case] = _count_solved(verdicts) / len(verdicts), cost / len(verdicts)
    return shares
