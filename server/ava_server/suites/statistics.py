"""Confidence intervals for small suites, of 95 %: pure functions of counts and sums, the same each time.

Shares have Wilson's interval (1927), which holds for few cases and for 0 and 100 %. Tries of the same case resemble
each other, so a share over tries counts as fewer: the effective number is p(1-p) over the variance between cases (Dean
and Pagano, 2015), but no fewer than the cases and no more than the tries. It is the number of
cases where that variance is not known: one case, or all or none solved. Ratios (cost per solved try) have the
percentile bootstrap over cases (Efron, 1979) with a fixed seed. Two columns are compared by the exact sign test
(McNemar), without the cases in which they are equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

Z = 1.959963984540054
"""The 97.5th percentile of the normal distribution."""
RESAMPLES = 2_000
TAIL = 0.025
SEED = 1


@dataclass(frozen=True)
class Share:
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


def pass_at_1(cases: Sequence[tuple[int, int]]) -> Share:
    """Return how often one try solves a case: the mean over cases of their share of solved tries.

    Args:
        cases: Of each case, its solved tries and all its tries.
    """
    shares = [solved / tries for solved, tries in cases if tries]
    if not shares:
        return Share(0.0, 0.0, 1.0, 0)
    number, tries = len(shares), sum(tries for _solved, tries in cases)
    mean = sum(shares) / number
    effective = float(number)
    if number > 1 and 0 < mean < 1:
        spread = sum((share - mean) ** 2 for share in shares) / (number * (number - 1))
        effective = mean * (1 - mean) / spread if spread else math.inf
    effective = min(max(effective, number), tries)
    return Share(mean, *wilson(mean * effective, effective), tries)


def pass_all(cases: Sequence[tuple[int, int]], tries: int) -> Share:
    """Return the share of cases of which each of so many tries is solved; where that is open, a case does not count."""
    whole = [solved >= tries for solved, done in cases if done >= tries or solved < done]
    if not whole:
        return Share(0.0, 0.0, 1.0, 0)
    return Share(sum(whole) / len(whole), *wilson(sum(whole), len(whole)), len(whole))


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
