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
from ava_server.budget.run_config import config_of
from ava_server.models.prices import Price
from ava_server.suites.plan import Cell, Round

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
    return (0.0 if share == 0 else middle - half), (1.0 if share == 1 else middle + half)


def pass_at_1(cases: Sequence[tuple[int, int]]) -> Proportion:
    """Return how often one try solves a case: the mean over cases of their share of solved tries.

    Args:
        cases: Of each case, its solved tries and all its tries.
    """
    shares = [solved / tries for solved, tries in cases if tries]
    if not shares:
        return Proportion(0.0, 0.0, 1.0, 0)
    number, tries = len(shares), sum(tries for _solved, tries in cases)
    mean = sum(shares) / number
    effective = float(number)
    if number > 1 and 0 < mean < 1:
        spread = sum((share - mean) ** 2 for share in shares) / (number * (number - 1))
        effective = mean * (1 - mean) / spread if spread else math.inf
    effective = min(max(effective, number), tries)
    return Proportion(mean, *wilson(mean * effective, effective), tries)


def pass_all(cases: Sequence[tuple[int, int]], tries: int) -> Proportion:
    """Return the share of cases of which each of so many tries is solved; where that is open, a case does not count."""
    whole = [solved >= tries for solved, done in cases if done >= tries or solved < done]
    if not whole:
        return Proportion(0.0, 0.0, 1.0, 0)
    return Proportion(sum(whole) / len(whole), *wilson(sum(whole), len(whole)), len(whole))


def per_solved(cases: Sequence[tuple[float, float]]) -> Ratio:
    """Return a sum (cost, seconds) per solved try; what was spent on the unsolved ones counts.

    Args:
        cases: Of each case, its solved tries and the sum over all its tries; or both per try.
    """
    solved, total = sum(one for one, _sum in cases), sum(each for _one, each in cases)
    if not solved:
        return Ratio(None, None, None)
    random, found = Random(SEED), list[float]()  # noqa: S311  (a fixed seed: the same numbers each time)
    for _number in range(RESAMPLES):
        drawn = random.choices(cases, k=len(cases))
        count = sum(one for one, _sum in drawn)
        found.append(sum(each for _one, each in drawn) / count if count else math.inf)
    found.sort()
    low, high = found[int(TAIL * RESAMPLES)], found[math.ceil((1 - TAIL) * RESAMPLES) - 1]
    return Ratio(total / solved, low if low < math.inf else None, high if high < math.inf else None)


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


def result_of(suite: str, about: str, done: Round, cells: Sequence[Cell], scores: Mapping[str, Score]) -> SuiteResult:
    verdicts = [_verdict(cell, done, scores.get(cell.id)) for cell in cells]
    names = list(dict.fromkeys(cell.column for cell in cells))
    tries = max(cell.number for cell in cells)
    runs = {
        name: [run for cell in cells if cell.column == name for run in done.runs.get(cell.id, ())] for name in names
    }
    columns = [_column(name, verdicts, tries, runs[name]) for name in names]
    result = SuiteResult(
        suite=suite,
        about=about,
        round=done.number,
        tries=tries,
        cost_micros=sum(column.cost_micros for column in columns),
        columns=tuple(columns),
        verdicts=tuple(verdicts),
        notes=tuple(_notes(verdicts, columns)),
    )
    pairs = [((result, names[0]), (result, name)) for name in names[1:]]
    return result.model_copy(update={"comparisons": tuple(compare_columns(*pair) for pair in pairs)})


def _verdict(cell: Cell, done: Round, scored: Score | None) -> TryVerdict:
    run = done.newest(cell)
    passed, why = scored or (Score(False, cell.refusal) if cell.refusal else Score(None, "it was not approved"))
    if scored is None and run is not None:
        why = run.stop_reason or run.state.replace("_", " ")
    return TryVerdict(
        case=cell.case.id,
        column=cell.column,
        number=cell.number,
        run=run.id if run is not None else None,
        ending=run.state if run is not None else "",
        passed=passed,
        why=why,
        cost_micros=run.cost_micros if run is not None else 0,
        seconds=run.active_us / US_PER_S if run is not None else 0.0,
    )


def _column(name: str, verdicts: Sequence[TryVerdict], tries: int, runs: Sequence[RunRow]) -> ColumnScore:
    known = known_tries(verdicts, name).values()
    counts = [(_solved(tried), len(tried)) for tried in known]
    number = sum(map(len, known))
    return ColumnScore(
        name=name,
        tries=number,
        without=sum(one.column == name for one in verdicts) - number,
        solved=sum(map(_solved, known)),
        pass_1=pass_at_1(counts),
        pass_all=pass_all(counts, tries),
        cost_micros=sum(run.cost_micros for run in runs),
        cost_per_solved=per_solved([(_solved(tried), sum(one.cost_micros for one in tried)) for tried in known]),
        seconds_per_solved=per_solved([(_solved(tried), sum(one.seconds for one in tried)) for tried in known]),
        price=tuple(dict.fromkeys(map(_price_text, (config_of(run.config).price for run in runs)))),
    )


def _price_text(price: Price) -> str:
    return "free" if price.free else f"${price.input / 1000:g} in, ${price.output / 1000:g} out per million tokens"


def _notes(verdicts: Sequence[TryVerdict], columns: Sequence[ColumnScore]) -> Iterator[str]:
    for column in columns:
        if len(column.price) > 1:
            yield (
                f"The price of {column.name} has changed during this round: {', then '.join(column.price)}. Each run"
                " counts with what it has cost."
            )
        if column.without:
            why = next(one.why for one in verdicts if one.column == column.name and one.passed is None)
            yield f"{column.name}: {column.without} of {column.tries + column.without} tries have no verdict ({why})."


def compare_columns(first: tuple[SuiteResult, str], second: tuple[SuiteResult, str]) -> Comparison:
    """Return two columns case by case, each given by its result and its name."""
    before, after = (_per_try(known_tries(result.verdicts, name)) for result, name in (first, second))
    one, other = (_column_of(result, name) for result, name in (first, second))
    cases = [case for case in before if case in after]
    both = {case: (before[case][0], after[case][0]) for case in cases}
    better = {case: pair for case, pair in both.items() if pair[1] > pair[0]}
    worse = {case: pair for case, pair in both.items() if pair[1] < pair[0]}
    notes: list[str] = []
    if only := before.keys() ^ after.keys():
        notes.append(f"{len(only)} cases are only in one of them.")
    if one.name == other.name and one.price != other.price:
        notes.append(f"The price of {one.name} has changed from {_last(one.price)} to {_last(other.price)}.")
    return Comparison(
        first=one.name,
        second=other.name,
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
    return prices[-1] if prices else "an unknown one"


def known_tries(verdicts: Sequence[TryVerdict], column: str) -> dict[str, list[TryVerdict]]:
    """Return the tries of each case that have a verdict in a column; cases without one are left out."""
    tried: dict[str, list[TryVerdict]] = {}
    for one in verdicts:
        if one.column == column and one.passed is not None:
            tried.setdefault(one.case, []).append(one)
    return tried


def _solved(tried: Sequence[TryVerdict]) -> int:
    return sum(one.passed is True for one in tried)


def _per_try(known: Mapping[str, Sequence[TryVerdict]]) -> dict[str, tuple[float, float]]:
    """Return the share of solved tries of each case, and what one has cost: two columns may differ in their number."""
    return {
        case: (_solved(tried) / len(tried), sum(one.cost_micros for one in tried) / len(tried))
        for case, tried in known.items()
    }
