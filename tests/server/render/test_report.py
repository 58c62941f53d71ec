"""`ava report`: its sums are those of the budgets and of the runs, to the micro-dollar."""

import contextlib
import json
import re
import sqlite3
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.log import plan_events
from support.logs.histories import spending_in_log
from support.logs.past import DAY_S, BookedLife, Past, own_user
from support.properties import BUSY_OR_SHARED
from support.terminal import ava, run_on_terminal

from ava_audit.events import ErrorOccurred
from ava_audit.store.store import Store
from ava_audit.totals import plan_sum, spending
from ava_audit.units import DAY_US
from ava_audit.view import View
from ava_server.budget.user_limits import installation_scope, user_scope
from ava_server.cli.report import days_of
from ava_server.core.errors import BadInput
from ava_server.render.report import report_of

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
FIRST = 20_450
"""A day, from 1970 on: 2025-12-28."""
START_S = FIRST * DAY_S


async def test_daily_sums_match_the_budgets_and_run_sums_match_their_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await week(tmp_path, Past(monkeypatch))

    def compare(view: View) -> None:
        for user in (own_user(), "ana", None):
            found = spending(view, FIRST, FIRST + 6, user)
            shown = report_of(found, FIRST, FIRST + 6, user)
            for day in shown.days:
                scope = installation_scope(day.name) if user is None else user_scope(user, day.name)
                assert view.bucket(scope).spent_micros == day.cost, day.name
            for sums in shown.by.values():
                assert sum(one.cost for one in sums) == shown.total.cost == sum(day.cost for day in shown.days)
        for run in view.runs():
            own = {step.id for step in view.step_runs(run.id)} or {run.id}
            mine = [each for each in found.spent if each.run_id in own]
            assert sum(each.cost_micros for each in mine) == run.cost_micros == view.bucket(run.id).spent_micros
            assert sum(each.uncosted_micros for each in mine) == run.uncosted_micros
            assert run.is_plan or bool(sum(each.overruns for each in mine)) == bool(run.overrun)

    async with Store.open(tmp_path) as store:
        await store.read(compare)


def settled(how: str) -> dict[str, Any]:
    if how in ("retries", "plan"):
        return {"cost_by": {how: 1_000}}
    return {"settlement": how} if how in ("unknown", "not_billed") else {}


@settings(max_examples=12, suppress_health_check=BUSY_OR_SHARED)
@given(
    calls=st.lists(
        st.tuples(
            st.integers(0, 2),
            st.sampled_from([0, 1, DAY_S // 2, DAY_S - 1, DAY_S, 3 * DAY_S]),
            st.sampled_from([-DAY_S, 0, 1, DAY_S]),
            st.integers(0, 60_000),
            st.sampled_from(
                ["billed", "unknown", "not_billed", "stray", "after a stray", "twice", "retries", "plan", "given up"]
            ),
        ),
        max_size=12,
    )
)
async def test_daily_sums_match_the_budget_despite_midnight_calls_and_clock_jumps(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    calls: list[tuple[int, int, int, int, str]],
) -> None:
    root = tmp_path_factory.mktemp("log")
    past = Past(monkeypatch)
    lives = [BookedLife(f"S-00000{number}", user="ben" if number else "ana") for number in range(3)]
    async with Store.open(root) as store:
        for life in lives:
            await past.at(store, START_S, *life.beginning())
        now_s = START_S
        for turn, (which, wait_s, jump_s, cost, how) in enumerate(calls, 1):
            life, now_s = lives[which], now_s + wait_s
            await past.at(store, now_s, partial(life.call, turn))
            now_s = max(START_S, now_s + jump_s)
            if "stray" in how:  # a settlement of a call that is not in flight books nothing
                await past.at(store, now_s, replace(life, turn=turn + 50).payment(cost))
            if how in ("stray", "given up"):
                continue
            for _again in range(2 if how == "twice" else 1):
                await past.at(store, now_s, life.payment(0 if how == "not_billed" else cost, **settled(how)))

        def compare(view: View) -> None:
            for user in ("ana", "ben", None):
                found = spending(view, 0, FIRST + 99, user)
                for day in report_of(found, FIRST, FIRST + 99, user).days:
                    scope = installation_scope(day.name) if user is None else user_scope(user, day.name)
                    assert view.bucket(scope).spent_micros == day.cost
                for run in view.runs(user=user):
                    assert run.cost_micros == sum(each.cost_micros for each in found.spent if each.run_id == run.id)
            assert {(each.run_id, each.day): each for each in found.spent} == spending_in_log(view)

        await store.read(compare)


async def test_a_report_covers_days_roles_models_endings_and_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        await week(tmp_path, Past(patch))

    mine, everybody = report(tmp_path), report(tmp_path, "--all")
    assert (mine["user"], mine["since"], mine["through"]) == (own_user(), "2025-12-28", "2026-01-09")
    days = named(mine["by_day"], "day")
    assert (days["2025-12-28"], days["2025-12-29"], days["2025-12-30"]) == (2.7001, 6.05, 0)
    assert named(everybody["by_day"], "day")["2025-12-30"] == 0.0007
    assert named(mine["by_role"], "role") == {"coder": 13.95, "researcher": 2.9006}
    assert named(mine["by_model"], "model") == {"anthropic:claude-sonnet-5": 8.8006, "openai:gpt-5": 8.05}
    assert named(mine["by_ending"], "ending") == {
        "error": 8.05, "timeout": 5.9, "success": 2.9001, "not ended": 0.0005,
    }  # fmt: skip
    assert "by_user" not in mine
    assert named(everybody["by_user"], "user") == {own_user(): 16.8506, "ana": 0.0007}
    total = mine["total"]
    assert (total["model_calls"], total["runs_ended"], total["runs_failed"]) == (9, 7, 4)
    assert (total["retries_cents"], total["uncosted_cents"]) == (0.9, 5.0)
    assert (total["overruns"], total["overrun_cents"]) == (1, 1.05)
    assert [(each["runs"], each["reason"], each["look"]) for each in mine["failed"]] == [
        (3, "30 s are over", "ava show S-000008"),
        (1, "the provider is down", "ava show S-000002"),
    ]
    assert [(each["kind"], each["look"]) for each in mine["errors"]] == [("lost", "ava logs S-000006 --type error")]


async def test_the_time_of_an_interrupted_run_of_a_plan_stands_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        past = Past(patch)
        async with Store.open(tmp_path) as store:
            lost = BookedLife("S-000001", user=own_user(), plan="G-4e1b2c3")
            await past.at(store, START_S, *plan_events("G-4e1b2c3", user=own_user()), *lost.beginning())
            await past.at(store, START_S + 20, partial(lost.call, 1))
    done = ava(tmp_path, "report", "--group", "g-4e1b2c3", "--json")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert [(run["state"], run["active_seconds"]) for run in shown["runs"]] == [("interrupted", 20)], shown
    plain = ava(tmp_path, "report", "--group", "4e1b2c3").stdout
    assert "Runs: 1 (1 interrupted)" in plain and re.search(r"S-000001 .* interrupted .* 20 s", plain), plain


async def test_shows_a_plan_with_its_cap_time_and_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        await week(tmp_path, Past(patch))

    done = ava(tmp_path, "report", "--group", "g-4E1B2C3", "--json")
    shown = json.loads(done.stdout)
    assert (shown["spent_cents"], shown["cap_cents"], shown["elapsed_seconds"]) == (8.1, 100.0, 61)
    assert {run["subagent_id"]: run["cost_cents"] for run in shown["runs"]} == {
        "S-000004": 1.1, "S-000005": 1.1, "S-000006": 5.9,
    }  # fmt: skip
    assert shown["endings"] == {"success": 2, "timeout": 1}
    async with Store.open(tmp_path) as store:
        found = await store.read(lambda view: plan_sum(view, "G-4e1b2c3"))
    assert found is not None and sum(run.cost_micros for run in found.runs) == found.bucket.spent_micros

    plain = ava(tmp_path, "report", "--group", "4e1b2c3").stdout
    assert "Cap: $0.08 of $1.00 spent (8 %)" in plain and "S-000006 timeout: 60 s are over" in plain
    nobody = ava(tmp_path, "report", "--group", "G-0000000")
    assert (nobody.returncode, nobody.stderr) == (
        2, "ava: --group: there is no plan G-0000000 of yours; --all looks at those of all users in this data root.\n",
    )  # fmt: skip


async def test_the_screen_fits_a_narrow_terminal_and_has_no_bars_in_a_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        await week(tmp_path, Past(patch))
    asked = ("report", "--since", "2025-12-28", "--until", "2026-01-10", "--all")

    piped = ava(tmp_path, *asked).stdout
    assert "█" not in piped and "\x1b" not in piped
    for line in ("2025-12-28 ", "$0.000007      1      1       -", "S-000008"):
        assert line in piped
    assert "\nSpent $" in piped, "the head line is a sentence"
    assert "2025-12-31" in piped, "a day without spending is shown as one"
    assert "2026-01-04 to 2026-01-09" in piped, "and many of them are one line"
    with run_on_terminal(tmp_path, *asked, columns=80) as screen:
        assert screen.ended() == 0
    assert "█" in screen.text
    with run_on_terminal(tmp_path, *asked, columns=80, env={"PYTHONIOENCODING": "ascii"}) as ascii_only:
        assert ascii_only.ended() == 0
    assert "###" in ascii_only.text and "█" not in ascii_only.text
    with run_on_terminal(tmp_path, *asked, columns=48) as narrow:
        assert narrow.ended() == 0
    assert "\n2025-12-28 " in narrow.text and "\ntimeout " in narrow.text, "each line has its name"
    with run_on_terminal(tmp_path, *asked, columns=40) as narrowest:
        assert narrowest.ended() == 0
    _root, *lines = _ANSI.sub("", narrowest.text).splitlines()
    assert max(map(len, lines)) <= 40, lines
    for shown in (screen, ascii_only, narrow, narrowest):
        blanks = [line for line in _ANSI.sub("", shown.text).splitlines() if line.endswith(" ")]
        assert not blanks, blanks


async def test_an_empty_report_says_so_and_creates_nothing(tmp_path: Path) -> None:
    nowhere, empty = tmp_path / "none", tmp_path / "empty"
    empty.mkdir(mode=0o700)
    async with Store.open(empty):
        pass
    for root in (nowhere, empty):
        done = ava(root, "report")
        assert (done.returncode, done.stdout) == (0, f"Data root: {root}\nNothing is in the log yet.\n")
        shown = json.loads(ava(root, "report", "--json").stdout)
        assert (shown["total"]["cost_cents"], shown["by_role"]) == (0, [])
    assert not nowhere.exists()


async def test_a_report_works_while_another_process_holds_the_write_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        await week(tmp_path, Past(patch))
    with contextlib.closing(sqlite3.connect(tmp_path / "ava.db", isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        assert report(tmp_path)["total"]["model_calls"] == 9


def test_days_are_in_utc_and_the_last_one_is_today() -> None:
    now_us = FIRST * DAY_US + 3_600_000_000
    assert days_of(None, None, now_us) == (FIRST - 29, FIRST)
    assert days_of("2025-12-01", "2025-12-28", now_us) == (FIRST - 27, FIRST - 1)
    assert days_of("1h", None, now_us) == (FIRST, FIRST)
    assert days_of("2h", None, now_us) == (FIRST - 1, FIRST)
    for since, until in (("2099-01-01", None), ("2025-12-28", "2025-12-28"), ("noon-ish", None)):
        with pytest.raises(BadInput):
            days_of(since, until, now_us)


def report(root: Path, *args: str) -> Mapping[str, Any]:
    done = ava(root, "report", "--since", "2025-12-28", "--until", "2026-01-10", "--json", *args)
    assert (done.returncode, done.stderr) == (0, "")
    shown: Mapping[str, Any] = json.loads(done.stdout)
    return shown


def named(sums: list[dict[str, Any]], what: str) -> dict[str, Any]:
    return {one[what]: one["cost_cents"] for one in sums}


async def week(root: Path, past: Past) -> None:
    """Nine runs of two users over a week, one of them over midnight, one plan, and one that has not ended."""
    async with Store.open(root) as store:
        plain = BookedLife("S-000001", user=own_user())
        await past.write_run(store, plain, START_S + 3_600, costs=(3_000, 4_001))
        # Reserved on the first day, settled on the second: it counts on the first.
        late = BookedLife("S-000002", user=own_user(), role="coder", model="openai:gpt-5")
        await past.at(store, START_S + DAY_S - 10, *late.beginning(), partial(late.call, 1))
        await past.at(store, START_S + DAY_S + 5, partial(late.payment, 20_000), partial(late.call, 2))
        await past.at(
            store,
            START_S + DAY_S + 6,
            partial(late.payment, 60_500),
            *late.final_events("error", "the provider is down", "api"),
        )
        others = BookedLife("S-000003", user="ana")
        await past.write_run(store, others, START_S + 2 * DAY_S, costs=(7,))
        await past.at(store, START_S + 4 * DAY_S, *plan_events("G-4e1b2c3", 1_000_000, user=own_user()))
        for number in (4, 5):
            of_plan = BookedLife(f"S-00000{number}", user=own_user(), plan="G-4e1b2c3")
            await past.write_run(store, of_plan, START_S + 4 * DAY_S + number, costs=(11_000,))
        again = BookedLife("S-000006", user=own_user(), role="coder", plan="G-4e1b2c3")
        await past.at(store, START_S + 4 * DAY_S + 60, *again.beginning(), partial(again.call, 1))
        await past.at(store, START_S + 4 * DAY_S + 61, again.payment(50_000, settlement="unknown"))
        await past.at(store, START_S + 4 * DAY_S + 62, again.entry(ErrorOccurred(error="no answer", kind="lost")))
        await past.at(store, START_S + 4 * DAY_S + 63, partial(again.call, 1, 2))
        await past.at(store, START_S + 4 * DAY_S + 64, again.payment(9_000, attempt=2, cost_by={"retries": 9_000}))
        await past.at(store, START_S + 4 * DAY_S + 65, *again.final_events("timeout", "60 s are over"))
        for number, seconds in ((7, 90), (8, 30)):
            slow = BookedLife(f"S-00000{number}", user=own_user())
            await past.write_run(
                store, slow, START_S + 6 * DAY_S, costs=(), ending="timeout", reason=f"{seconds} s are over"
            )
        await past.write_run(
            store, BookedLife("S-000009", user=own_user()), START_S + 6 * DAY_S + 9, costs=(5,), ending=None
        )
