"""What a run is likely to cost and take, from the user's own log, and how good such estimates were."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from support.approval import past_runs
from support.log import Life, write, write_each
from support.logs.past import own_user
from support.runtime import PRICED, open_lab
from support.terminal import ava

from ava_audit.events import Ending, RunEnded, SpawnProposed
from ava_audit.store.store import Store
from ava_audit.view import PAST_RUNS
from ava_server.approval.estimates import COUNTED, SIMILAR, bound_of, past_estimates, with_estimate
from ava_server.approval.proposals import ProposalSummary, together_note
from ava_server.approval.start_form import question
from ava_server.models.prices import PriceStep
from ava_server.run_config.brief import Brief
from ava_server.run_config.digest import digest

# -- the bound --------------------------------------------------------------------------------------------------------


def test_the_bound_is_the_lowest_rank_that_holds_the_next_value_with_nine_tenths() -> None:
    """Of n values and the next one, each order is equally likely: the next is within the k-th lowest k times in n + 1.

    The ranks are those of published tables of distribution-free prediction bounds: 9 of 9, 18 of 19, 27 of 29.
    """
    ranks = {count: int(bound_of(range(1, count + 1))) for count in range(1, 60)}
    assert [ranks[count] for count in (9, 10, 14, 18, 19, 20, 28, 29, 39, 49)] == [
        9,
        10,
        14,
        18,
        18,
        19,
        27,
        27,
        36,
        45,
    ]
    for count, rank in ranks.items():
        if count >= 9:
            assert Fraction(rank - 1, count + 1) < Fraction(9, 10) <= Fraction(rank, count + 1)
        else:
            assert rank == count, "the highest, which is no bound of nine in ten"


@pytest.mark.parametrize("count", [9, 19, 29, 39])
def test_the_bound_is_the_ninth_decile_where_that_is_a_value(count: int) -> None:
    """`statistics` has Hyndman and Fan's sixth definition (scipy: `mquantiles(alphap=0, betap=0)`)."""
    values = [value * value % 101 for value in range(1, count + 1)]
    assert bound_of(values) == statistics.quantiles(values, n=10, method="exclusive")[8]


@pytest.mark.parametrize("name", past_runs.DISTRIBUTIONS)
def test_nine_in_ten_held_back_runs_stay_within_the_bound_whatever_the_distribution(name: str) -> None:
    half, most = past_runs.coverage(name, seed=7, runs=1_500)
    assert 0.87 <= most <= 0.93
    assert 0.47 <= half <= 0.53


@pytest.mark.parametrize("name", past_runs.DISTRIBUTIONS)
@pytest.mark.parametrize("size", [2, 20])
def test_groups_stay_below_the_sum_of_their_bounds_and_not_often_below_that_of_their_halves(
    name: str, size: int
) -> None:
    half, most = past_runs.group_coverage(name, seed=7, times=300, size=size)
    assert most >= 0.85 and half <= 0.55


# -- which runs -------------------------------------------------------------------------------------------------------


def test_the_narrowest_group_with_five_runs_counts() -> None:
    same = [past_runs.run(80_000) for _ in range(5)]
    longer = [past_runs.run(300_000, input_bytes=30_000) for _ in range(5)]
    longest = [past_runs.run(200_000, input_bytes=3_000_000) for _ in range(2)]
    other = [past_runs.run(60_000, model="custom:other") for _ in range(20)]
    reader = [past_runs.run(0, 5_000, model="offline/extractive") for _ in range(20)]
    rest = [*other, *reader, *longest]
    assert (found := past_runs.estimate([*same, *longer, *rest])).group == "size" and (
        found.runs,
        found.half_micros,
    ) == (
        5,
        80_000,
    )
    assert (found := past_runs.estimate([*same[1:], *longer, *rest])).group == "model" and found.runs == 11
    assert (found := past_runs.estimate([*same[1:], *rest[:20]])).group == "role" and found.runs == 24
    assert with_estimate(past_runs.config(), [*same[1:], *reader]).estimate is None, "fewer than five"
    assert with_estimate(past_runs.config(), same[1:]).estimated_minutes == (3, 8), "the role file's"


def test_runs_of_another_runner_and_of_the_offline_reader_do_not_count() -> None:
    agent = [past_runs.run(900_000, runner="acp:claude-code") for _ in range(9)]
    reader = [past_runs.run(0, 5_000, model="offline/extractive") for _ in range(9)]
    assert with_estimate(past_runs.config(), [*agent, *reader]).estimate is None
    assert past_runs.estimate([*agent, *reader], runner="acp:claude-code", max_cost_micros=10**6).half_micros == 900_000


def test_one_outlier_among_ten_runs_changes_neither_the_middle_nor_promises_more_than_the_cap() -> None:
    runs = [past_runs.run(80_000 + 1_000 * number) for number in range(9)]
    outlier = past_runs.run(30_000_000, 9_000_000_000)
    alone, beside = past_runs.estimate(runs), past_runs.estimate([*runs, outlier])
    assert (alone.half_micros, alone.most_micros) == (84_000, 88_000)
    assert (beside.half_micros, beside.most_micros, beside.most_us) == (84_500, None, None), "its cap"
    assert past_runs.estimate([*runs, *runs, outlier]).most_micros == 88_000, "one of 19 is no longer the bound"
    proposed = with_estimate(past_runs.config(), [*runs, outlier])
    assert "nine in ten within $0.50 (its cap) and 10 min (its cap)" in past_runs.line(proposed)
    assert proposed.estimated_minutes == (2, 10)


# -- caps -------------------------------------------------------------------------------------------------------------


def test_what_ended_at_a_cap_counts_as_reaching_the_cap_of_the_proposal() -> None:
    whole = [past_runs.run(80_000) for _ in range(7)]
    capped = [past_runs.run(95_000, state="cost_exceeded", max_cost_micros=100_000) for _ in range(3)]
    found = past_runs.estimate([*whole, *capped])
    assert (found.runs, found.half_micros, found.most_micros) == (10, 80_000, None)
    assert past_runs.estimate([*whole[:4], *capped, *capped]).half_micros is None, "most of them would have gone on"
    slow = [past_runs.run(80_000, 600_000_000, state="timeout") for _ in range(3)]
    found = past_runs.estimate([*whole, *slow])
    assert (found.most_micros, found.half_us, found.most_us) == (80_000, 120_000_000, None)


def test_a_cap_that_is_higher_now_says_nothing_about_what_a_run_would_have_cost() -> None:
    whole = [past_runs.run(80_000) for _ in range(7)]
    short = [past_runs.run(20_000, state="iteration_limit", max_iterations=10) for _ in range(3)]
    assert past_runs.estimate([*whole, *short]).most_micros is None
    assert past_runs.estimate([*whole, *short], max_iterations=10).most_micros == 80_000


# -- prices -----------------------------------------------------------------------------------------------------------


def test_a_run_at_another_price_is_priced_again_by_its_tokens() -> None:
    half = replace(past_runs.PRICE, input=1_500, output=7_500, source="another table")
    dearer = [past_runs.run(80_000) for _ in range(9)]
    found = past_runs.estimate(dearer, price=half)
    assert (found.runs, found.left_out) == (9, 0)
    assert found.most_micros == pytest.approx(40_000, rel=0.001)
    assert past_runs.estimate(dearer, price=replace(past_runs.PRICE, source="another table")).half_micros == 80_000, (
        "the same price"
    )
    [one] = {replace(run, terms="") for run in dearer}
    assert found.most_micros == -(-(one.input_tokens * 1_500 + one.output_tokens * 7_500) // 1_000)


@pytest.mark.parametrize(
    "then",
    [
        {"price": replace(past_runs.PRICE, input=1, steps=(PriceStep(1_000, 1, 1, 1, 1),))},
        {"price": replace(past_runs.PRICE, input=1, per_request=5_000_000)},
        {"price": replace(past_runs.PRICE, input=90_000, output=90_000)},  # its cost is not that of its tokens
    ],
    ids=["steps", "per request", "searches or a reported cost"],
)
def test_a_run_whose_cost_at_todays_price_is_not_known_is_left_out_and_that_is_said(then: dict[str, Any]) -> None:
    known = [past_runs.run(80_000) for _ in range(5)]
    proposed = with_estimate(past_runs.config(), [*known, *(past_runs.run(70_000, **then) for _ in range(2))])
    assert proposed.estimate is not None and (proposed.estimate.runs, proposed.estimate.left_out) == (5, 2)
    assert "without 2 of unknown cost at today's price." in past_runs.line(proposed)


def test_a_free_run_has_an_estimate_of_its_time_alone() -> None:
    free = replace(past_runs.PRICE, input=0, output=0, cache_read=0, cache_write=0, free=True)
    proposed = with_estimate(past_runs.config(price=free), [past_runs.run(0, 90_000_000, price=free) for _ in range(9)])
    assert "Likely 1 min 30 s (half of 9 such runs took less), nine in ten within 1 min 30 s;" in past_runs.line(
        proposed
    )


# -- what is shown ----------------------------------------------------------------------------------------------------


def test_the_sentence_says_how_many_runs_and_which() -> None:
    runs = [past_runs.run(10_000 * number, 60_000_000 + 10_000_000 * number) for number in range(1, 15)]
    assert past_runs.line(with_estimate(past_runs.config(), runs)) == (
        "It takes about 1 to 4 minutes, at most 10 min, and costs at most $0.50. Likely $0.08 and 2 min 15 s (half of"
        " 14 such runs took less), nine in ten within $0.14 and 3 min 20 s; such runs are yours with this role, this"
        " model and about as much input."
    )
    few = past_runs.line(with_estimate(past_runs.config(), runs[:6]))
    assert "(half of 6 such runs took less), all within $0.06 and 2 min;" in few


def test_a_cap_that_an_approval_lowers_is_not_below_the_estimate_that_is_shown() -> None:
    proposed = with_estimate(past_runs.config(), [past_runs.run(80_000) for _ in range(9)])
    assert "Likely $0.05 (its cap) and 2 min" in past_runs.line(proposed.model_copy(update={"max_cost_micros": 50_000}))


def test_an_estimate_changes_no_digest() -> None:
    brief = Brief(task="Look")
    proposed = with_estimate(past_runs.config(), [past_runs.run(80_000) for _ in range(9)])
    assert proposed.estimate is not None and digest(proposed, brief) == digest(past_runs.config(), brief)


# -- from the log -----------------------------------------------------------------------------------------------------


async def lived(
    log: Store, number: int, cost: int, ending: Any = "success", user: str = "", why: str = "done", **changes: Any
) -> None:
    """Put a run on record that was approved as one that is proposed now, and cost so much."""
    life = Life(f"S-{number:06x}", user=user or own_user())
    given = {"role": "researcher", "model": past_runs.MODEL, "input_bytes": 30, **changes}
    steps = [life.proposal(**given), life.task(), life.approval(), life.claim()]
    steps += [life.reservation(micros=cost), life.settlement(cost=cost, reserved=cost)]
    ended = life.entry(RunEnded(status=ending, stop_reason=why, active_us=120_000_000))
    await write_each(log, [*steps, ended])


CONFIG = f"{PRICED}\n[limits]\nspawns_per_hour = 1000"


SHARED: list[tuple[Ending, str]] = [
    ("cost_exceeded", "the plan's cost cap was reached: $0.05 is left"),
    ("cost_exceeded", "the user's budget of the day was reached: $0.05 is left"),
    ("cost_exceeded", "the installation's budget of the day was reached: $0.05 is left"),
    ("timeout", "the plan's time is over"),
]


async def test_a_proposal_has_the_estimate_of_the_users_own_runs_on_each_surface(tmp_path: Path) -> None:
    async with open_lab(tmp_path, config=CONFIG, runs=False, check=False) as lab:
        price = (await lab.facts((await lab.propose()).subagent_id, SpawnProposed))[0].config["price"]
        for number in range(9):
            await lived(lab.store, number, 80_000, price=price)
            await lived(lab.store, 100 + number, 400_000, user="eve", price=price)
            await lived(lab.store, 200 + number, 1_000, "cancelled", price=price)
            await lived(lab.store, 300 + number, 1_000, "error", price=price)
        shared = [Life(f"S-{number:06x}", user=own_user()) for number in range(1024, 1024 + PAST_RUNS)]
        terms = {"role": "researcher", "model": past_runs.MODEL, "input_bytes": 30, "price": price}
        await write(
            lab.store,
            *(each for one in shared for each in (one.proposal(**terms), one.task(), one.approval(), one.claim())),
        )
        endings = (RunEnded(status=status, stop_reason=why) for status, why in SHARED * (PAST_RUNS // len(SHARED)))
        await write(lab.store, *map(Life.entry, shared, endings))
        made = await lab.propose()
        assert "Likely $0.08 and 2 min (half of 9 such runs took less), nine in ten within $0.08" in made.message
        (fact,) = await lab.facts(made.subagent_id, SpawnProposed)
        assert fact.config["estimate"]["most_micros"] == 80_000
        [waiting] = [one for one in await past_runs.pending_of(lab) if one.pending_id == made.pending_id]
        assert waiting.message == made.message
        assert isinstance(waiting.summary, ProposalSummary) and waiting.summary.limits == "$0.50 (likely $0.08), 10 min"
        shown = await lab.approve(made)
        assert shown.decisions[0].status == "queued"


async def test_a_plan_has_one_figure_for_all_together_on_each_surface(tmp_path: Path) -> None:
    async with open_lab(tmp_path, config=CONFIG, runs=False, check=False) as lab:
        price = (await lab.facts((await lab.propose()).subagent_id, SpawnProposed))[0].config["price"]
        for number in range(9):
            await lived(lab.store, number, 80_000 + 10_000 * number, price=price)
        made = [await lab.propose(), await lab.propose(), await lab.propose(role="data_extractor")]
        asked = question(await past_runs.check_approval_of(lab, *made)).text
        ids = {one.pending_id for one in made}
        waiting = [one for one in await past_runs.pending_of(lab) if one.pending_id in ids]
    says = "Likely $0.24 to $0.32 together, without 1 for which there are no similar runs."
    assert says in asked and together_note(waiting, None) == says
    assert together_note(waiting[:2], 300_000).startswith("Likely $0.24 to $0.30 together. Their caps add up to")
    assert together_note(waiting[2:], None) == ""


async def test_estimates_read_no_texts_of_earlier_runs(tmp_path: Path) -> None:
    async with Store.open(tmp_path) as log:
        await lived(log, 9, 10_000, price=asdict(past_runs.PRICE), role_text="long")
        [run] = await log.read(lambda view: view.past_runs(own_user(), "researcher", past_runs.MODEL, COUNTED, SIMILAR))
    assert "role_text" not in json.loads(run.terms)


async def test_the_report_says_how_many_runs_stayed_within_their_estimates(tmp_path: Path) -> None:
    said = {"runs": 12, "group": "size", "half_micros": 50_000, "most_micros": 90_000, "half_us": 60_000_000}
    async with Store.open(tmp_path) as log:
        for number in range(10):
            await lived(log, number, 10_000 * (number + 1), estimate=said)
        await lived(log, 20, 200_000, estimate={**said, "runs": 6}, role="coder")
        await lived(log, 21, 200_000)
        await lived(log, 22, 200_000, "cancelled", estimate=said)
        await lived(log, 23, 200_000, estimate=said, user="eve")
        for number, (ending, why) in enumerate(SHARED):
            await lived(log, 30 + number, 1_000, ending, why=why, estimate=said)
        found = await log.read(lambda view: past_estimates(view, 0, 2**52, own_user()))
    everybody = json.loads(ava(tmp_path, "report", "estimates", "--all", "--json").stdout)
    screen = ava(tmp_path, "report", "estimates")
    first, coder = found.roles
    assert (first.role, first.runs, first.without) == ("researcher", 10, 1)
    kinds = [(kept.of, kept.within) for kept in first.kinds]
    assert kinds == [(10, 5), (10, 9), (10, 0), (0, 0)], "without a bound of the time, none is counted"
    assert (coder.runs, coder.half_cost.of, coder.most_cost.of) == (1, 1, 0), "six runs have no bound of nine in ten"
    assert (everybody["total"]["runs"], everybody["total"]["most_cost"]) == (12, {"of": 11, "within": 9})
    assert screen.returncode == 0 and "11 runs with an estimate, 1 without" in screen.stdout
    assert "5 of 10 (50 %)" in screen.stdout and "9 of 10 (90 %)" in screen.stdout


def test_the_report_of_an_empty_data_root_says_so(tmp_path: Path) -> None:
    done = ava(tmp_path, "report", "estimates")
    assert (done.returncode, done.stderr) == (0, "") and "0 runs with an estimate" in done.stdout
