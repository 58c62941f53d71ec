"""The statistics of suites, against values of scipy 1.17.1."""

from __future__ import annotations

import pytest

from ava_server.suites.round_results import (
    Proportion,
    Ratio,
    pass_all,
    pass_at_1,
    per_solved,
    sign_test,
    wilson,
)

# binomtest(solved, of).proportion_ci(method="wilson")
WILSON = [
    (0, 2, 0.0, 0.6576197724933469),
    (0, 10, 0.0, 0.27753279986288926),
    (1, 10, 0.017876213095072896, 0.4041500267952385),
    (7, 12, 0.31951131254954973, 0.8067396863412435),
    (9, 24, 0.21159367559548775, 0.5729003755732573),
    (12, 12, 0.7575059933447592, 1.0),
    (50, 200, 0.19508168006817497, 0.31434098312045833),
]
# binomtest(better, better + worse).pvalue
SIGN = [(3, 1, 0.625), (8, 1, 0.0390625), (5, 5, 1.0), (0, 7, 0.015625), (14, 4, 0.0308837890625)]


@pytest.mark.parametrize(("solved", "of", "low", "high"), WILSON)
def test_the_interval_of_a_share_is_that_of_scipy(solved: int, of: int, low: float, high: float) -> None:
    assert wilson(solved, of) == pytest.approx((low, high), abs=1e-12)


@pytest.mark.parametrize(("better", "worse", "p_value"), SIGN)
def test_the_sign_test_is_that_of_scipy(better: int, worse: int, p_value: float) -> None:
    assert sign_test(better, worse) == pytest.approx(p_value, abs=1e-15)


def test_two_that_never_differ_may_be_equal_by_chance() -> None:
    assert sign_test(0, 0) == 1


def test_the_interval_of_a_ratio_agrees_with_scipy() -> None:
    solved = (1, 0, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1)
    cost = (1200, 5200, 900, 1500, 7000, 1100, 1250, 980, 3000, 1430, 1700, 1010)
    found = per_solved(list(zip(solved, cost, strict=True)))
    assert found == per_solved(list(zip(solved, cost, strict=True))), "the seed is fixed"
    assert found.value == pytest.approx(2918.8888888888887)
    assert found.low is not None and found.high is not None
    # bootstrap(…, paired=True, method="percentile", n_resamples=200_000): 1285.0 to 6696.67
    assert found.low == pytest.approx(1285.0, rel=0.05)
    assert found.high == pytest.approx(6696.666666666667, rel=0.1)


def test_a_ratio_without_a_solved_try_is_unknown_and_a_rare_one_has_no_upper_end() -> None:
    assert per_solved([(0, 5.0), (0, 7.0)]) == Ratio(None, None, None)
    rare = per_solved([(1, 5.0), (0, 5.0)])
    assert rare.value == 10 and rare.low == 5 and rare.high is None


def test_with_one_try_pass_at_1_is_the_share_of_cases() -> None:
    found = pass_at_1([(1, 1)] * 7 + [(0, 1)] * 5)
    assert found.value == pytest.approx(7 / 12) and found.of == 12
    assert (found.low, found.high) == pytest.approx(wilson(7, 12))


def test_tries_of_a_case_that_go_alike_count_as_one() -> None:
    alike = pass_at_1([(4, 4)] * 6 + [(0, 4)] * 6)
    assert (alike.low, alike.high) == pytest.approx(wilson(6, 12))
    for solved in (0, 5):
        edge = pass_at_1([(solved, 5)] * 10)
        assert (edge.low, edge.high) == wilson(solved * 2, 10), "all of them, and none"
    for solved in (0, 25, 50):
        one = pass_at_1([(solved, 50), (0, 0)])
        assert (one.low, one.high) == wilson(solved / 50, 1), "one case says nothing of others"
    apart = pass_at_1([(2, 4)] * 12)
    assert (apart.low, apart.high) == pytest.approx(wilson(24, 48))


def test_pass_all_counts_cases_of_which_each_try_is_solved_and_leaves_out_unfinished_ones() -> None:
    found = pass_all([(3, 3), (2, 3), (0, 3), (2, 2)], 3)
    assert found.value == pytest.approx(1 / 3) and found.of == 3
    assert (found.low, found.high) == pytest.approx(wilson(1, 3))
    assert pass_all([(3, 3), (0, 2), (1, 2)], 3) == found, "a failed try decides, also without the others"


def test_nothing_is_known_without_a_try() -> None:
    assert pass_at_1([]) == pass_all([(0, 0)], 2) == Proportion(0.0, 0.0, 1.0, 0)
