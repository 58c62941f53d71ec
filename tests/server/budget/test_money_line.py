"""Money that other runs hold makes a run wait, not end: the line for money, and what a run does in it.

Nothing passes a cap in any schedule, and nobody waits while nothing is in flight and somebody fits.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from hypothesis import settings
from support.budget import waits
from support.commands.dashboard import look, run_detail
from support.databases import POSTGRES
from support.model_server import Fail, Gate, run_model_server
from support.repository import REPOSITORY
from support.runs import faults
from support.runtime import open_lab, wait_for
from support.schedules.money import play_schedules

from ava_audit.errors import StoreUnavailable
from ava_audit.events import CostReserved, CostUpdate, MoneyAwaited, RunClaimed
from ava_audit.rows import QUEUED
from ava_audit.units import DAY_US, day_of, format_usd, now_us
from ava_audit.view import View, loads
from ava_server.cli.status_page import Page
from ava_server.dashboard.live import LivePage
from ava_server.dashboard.screens import detail_lines
from ava_server.render.host_text import text_of
from ava_server.service.access import Access
from ava_server.service.run_tasks import RunTasks
from ava_server.web.context import environment as templates

SCHEDULES, LONG_SCHEDULES, BLOCKS = 200, 2_500, 40
CAME = (
    "granted", "waits", "asked again, nothing written", "gives way", "refused", "went with nothing in flight",
    "overrun", "dead", "settled", "pause", "midnight", "ended",
)  # fmt: skip


@pytest.mark.parametrize("block", range(BLOCKS))
def test_no_schedule_passes_a_cap_or_leaves_money_that_somebody_waits_for(block: int) -> None:
    long = settings.get_current_profile_name() == "long"
    if block and not long:
        pytest.skip("further schedules are for the long profile")
    came = play_schedules(block * LONG_SCHEDULES, LONG_SCHEDULES if long else SCHEDULES)
    assert [kind for kind in CAME if not came[kind]] == [], "what is to be shown was played"


async def test_a_run_waits_until_the_call_of_another_run_is_settled(tmp_path: Path) -> None:
    async with waits.open_waiting_run(tmp_path) as (lab, gate, first, second):
        [fact] = await lab.facts(second, MoneyAwaited)
        assert fact.runs == 1 and fact.scope == loads((await lab.run(second)).money_wait)["scope"]
        checked = await lab.call("check_subagent", subagent_id=second, wait_seconds=2.5)  # it asks again every second
        assert len(await lab.facts(second, MoneyAwaited)) == 1, "and writes nothing"
        assert checked.runs[0].elapsed_seconds < 2
        awaited = await waits.holder_words(lab, first, second)
        assert any(f"waits for {awaited}" in line for line in lab.progress)
        gate.released.set()
        rows = [await lab.ended(run_id) for run_id in (first, second)]
        assert [each.state for each in rows] == ["success", "success"]
        assert rows[1].money_wait is None and rows[1].active_us < 2_000_000, "its clock stood still"


@pytest.mark.slow
async def test_a_log_that_cannot_be_read_for_a_while_ends_no_waiting_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with waits.open_waiting_run(tmp_path) as (lab, gate, first, second):
        with faults.make_unreadable(lab.store.path):
            for _ in range(4):  # meanwhile it asks who has gone, as it does every second
                with pytest.raises(StoreUnavailable):
                    await lab.store.read(View.head)
        gate.released.set()
        rows = [await lab.ended(run_id) for run_id in (first, second)]
    assert [each.state for each in rows] == ["success", "success"]
    assert "Traceback" not in caplog.text


async def test_every_surface_says_in_avas_own_words_what_a_run_waits_for(tmp_path: Path) -> None:
    async with waits.open_waiting_run(tmp_path) as (lab, gate, first, second):
        awaited = await waits.holder_words(lab, first, second)
        checked = await lab.call("check_subagent", subagent_id=second)
        assert checked.runs[0].waits_for == awaited and checked.runs[0].untrusted_activity is None
        assert f"waits for: {awaited}" in text_of(checked)
        shown = await waits.view_of_run(lab, second)
        assert shown.doing == f"running: waits for {awaited}" and shown.activity == ""
        overview = await look(lab)
        status = Page("", overview.now, (), 100).whole()
        live = LivePage("", overview.now, (), 100, selected=second).live(30)
        detail = await run_detail(lab, second)
        screens = {
            "ava status": status,
            "dashboard": [*live.head, *(row.line for row in live.rows), *live.foot],
            "dashboard, one run": detail_lines(detail, LivePage("", overview.now, (), 100)),
        }
        for name, lines in screens.items():
            assert f"waits for {awaited}" in "\n".join(map(str, lines)), name
        task = await RunTasks(Access(lab.runtime, lab.session)).task(second, asks=False)
        assert f"waits for {awaited}" in task.message
        table = templates().from_string('{% import "parts.html" as parts %}{{ parts.rows(runs, false) }}')
        assert f"waits for {awaited}" in table.render(runs=[shown])
        gate.released.set()


async def test_a_run_that_waits_is_not_told_the_names_of_other_users_runs(tmp_path: Path) -> None:
    held = await waits.micros_of_first_call(waits.new_folder(tmp_path, "first"))
    gate, tmp = Gate(), waits.new_folder(tmp_path, "second")
    config = f"{waits.day_limits(held * 19 // 100_000)}\n[users.ben]\nworkspaces = ['{tmp}']\n"
    async with open_lab(tmp, [waits.spend(gate), waits.spend()], config=config, everybody=True) as lab:
        bens = replace(lab, service=lab.as_user("ben"))
        first = await bens.start(max_cost_cents=50)
        await wait_for(gate.arrived)
        second = await lab.start(max_cost_cents=50)
        await waits.wait_for_money(lab, second)
        words = str((await lab.check(second)).waits_for)
        holds = format_usd((await lab.run(first)).held_in(first))
        assert words.endswith(f"; runs of other users that are at work hold {holds}")
        assert first not in words
        gate.released.set()
        assert [(await lab.ended(run_id)).state for run_id in (first, second)] == ["success", "success"]


async def test_at_midnight_a_run_that_waits_spends_from_the_new_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with waits.open_waiting_run(tmp_path) as (lab, gate, first, second):
        monkeypatch.setattr("ava_audit.store.writer.now_us", lambda: now_us() + DAY_US)
        assert (await lab.ended(second)).state == "success"
        [reserved] = await lab.facts(second, CostReserved)
        assert f"all:{day_of(now_us() + DAY_US)}" in reserved.scopes
        assert not await lab.facts(first, CostUpdate), "the other call is still in flight"
        gate.released.set()
        await lab.ended(first)


async def test_a_wait_lasts_at_most_the_runs_own_time_limit(tmp_path: Path) -> None:
    async with waits.open_waiting_run(tmp_path, timeout=1) as (lab, gate, first, second):
        ended = await lab.ended(second, within_s=20)
        assert ended.state == "cost_exceeded" and "other runs hold the rest" in str(ended.stop_reason)
        assert not gate.released.is_set() and not await lab.facts(first, CostUpdate), "nothing was returned meanwhile"
        assert [fact.over for fact in await lab.facts(second, MoneyAwaited)] == [False, True]
        gate.released.set()
        assert (await lab.ended(first)).state == "success"


@pytest.mark.parametrize("how", ["cancel", "message"])
async def test_a_wait_ends_with_a_cancel_and_takes_a_message(tmp_path: Path, how: str) -> None:
    async with waits.open_waiting_run(tmp_path) as (lab, gate, first, second):
        if how == "cancel":
            await lab.call("cancel_subagent", subagent_id=second)
            assert (await lab.ended(second, within_s=10)).state == "cancelled"
            gate.released.set()
        else:
            await lab.call("message_subagent", subagent_id=second, message="only the last part, please")
            await lab.logged(second, "MoneyAwaited", 2)
            gate.released.set()
            assert (await lab.ended(second)).state == "success"
            assert "only the last part, please" in json.dumps(lab.server.requests[-1].json)
        assert (await lab.ended(first)).state == "success"


@pytest.mark.slow
@pytest.mark.skipif(POSTGRES, reason="there a process counts as alive until its lease ends")
async def test_a_run_whose_owner_is_killed_while_it_waits_goes_on_elsewhere(tmp_path: Path) -> None:
    held = await waits.micros_of_first_call(waits.new_folder(tmp_path, "first"))
    tmp, gate = waits.new_folder(tmp_path, "second"), Gate()
    cap = waits.day_limits(held * 19 // 100_000)
    with run_model_server([waits.spend(gate), *[waits.spend()] * 3]) as server:
        async with open_lab(tmp, server=server, config=cap, runs=False, check=False) as lab:
            runs = [await lab.start(max_cost_cents=50) for _run in range(2)]
            async with waits.owning_process(lab.root, server) as process:
                await wait_for(gate.arrived)
                [second] = [run_id for run_id in runs if not await lab.facts(run_id, CostReserved)]
                await waits.wait_for_money(lab, second)
                process.kill()
                await process.wait()
        gate.released.set()
        async with open_lab(tmp, server=server, config=cap, check=False) as lab:
            rows = [await lab.ended(run_id) for run_id in runs]
            assert [row.state for row in rows] == ["success", "success"]
            assert [row.money_wait for row in rows] == [None, None]
            claims = await lab.facts(second, RunClaimed)
            assert [claim.reason for claim in claims] == ["start", "takeover"]
            [first] = [run_id for run_id in runs if run_id != second]
            assert await lab.settlements(first) == ["unknown", "billed"]


@pytest.mark.slow
async def test_runs_of_two_processes_wait_for_each_other(tmp_path: Path) -> None:
    held = await waits.micros_of_first_call(waits.new_folder(tmp_path, "first"))
    tmp, gate = waits.new_folder(tmp_path, "second"), Gate()
    cap = waits.day_limits(held * 19 // 100_000)
    async with open_lab(tmp, [waits.spend(gate), waits.spend()], config=cap, runs=False, check=False) as lab:
        first = await lab.start(max_cost_cents=50)
        async with waits.owning_process(lab.root, lab.server):
            await wait_for(gate.arrived)
            async with open_lab(tmp, server=lab.server, config=cap, check=False) as here:
                second = await here.start(max_cost_cents=50)
                await waits.wait_for_money(here, second)
                owners = {(await here.run(run_id)).instance for run_id in (first, second)}
                assert len(owners) == 2
                words = f"{first} holds $"
                assert words in (await waits.view_of_run(lab, second)).doing, "each process shows it"
                gate.released.set()
                rows = [await here.ended(run_id) for run_id in (first, second)]
                assert [row.state for row in rows] == ["success", "success"]


@pytest.mark.slow
async def test_runs_of_two_machines_on_postgres_wait_for_each_other(tmp_path: Path) -> None:
    pytest.importorskip("psycopg", reason="the driver is not installed")
    from support.postgres import postgres_server

    held = await waits.micros_of_first_call(waits.new_folder(tmp_path, "first"))
    url, gate = postgres_server().address(tmp_path), Gate()
    config = f'database_url = "{url}"\n{waits.day_limits(held * 19 // 100_000)}'
    with run_model_server([waits.spend(gate), waits.spend()]) as server:
        async with (
            open_lab(waits.new_folder(tmp_path, "one"), server=server, config=config, check=False) as one,
            open_lab(waits.new_folder(tmp_path, "two"), server=server, config=config, check=False) as two,
        ):
            first = await one.start(max_cost_cents=50)
            await wait_for(gate.arrived)
            second = await two.start(max_cost_cents=50)
            await waits.wait_for_money(two, second)
            assert len({(await one.run(run_id)).instance for run_id in (first, second)}) == 2
            for lab in (one, two):
                assert f"{first} holds $" in (await waits.view_of_run(lab, second)).doing
            gate.released.set()
            rows = [await one.ended(run_id) for run_id in (first, second)]
            assert [row.state for row in rows] == ["success", "success"]


async def test_an_approval_queues_until_what_others_hold_is_free(tmp_path: Path) -> None:
    held = await waits.micros_of_first_call(waits.new_folder(tmp_path, "first"))
    gate = Gate()
    async with open_lab(
        waits.new_folder(tmp_path, "second"),
        [waits.spend(gate), waits.spend()],
        config=waits.day_limits(-(-held // 10_000)),
    ) as lab:
        first = await lab.start(max_cost_cents=50)
        await wait_for(gate.arrived)
        proposal = await lab.propose(max_cost_cents=50)
        assert "it starts when $" in proposal.message and "cannot start" not in proposal.message
        assert (await lab.approve(proposal)).status == "approved"
        second = proposal.subagent_id
        shown = await lab.check(second)
        with anyio.fail_after(20):
            while "starts when $" not in str(shown.waits_for):
                await anyio.sleep(0.05)
                shown = await lab.check(second)
        holds = format_usd((await lab.run(first)).held_in(first))
        says = f" is free; {first} holds {holds} and is at work: wait for it, or `ava cancel {first}`"
        assert shown.state == QUEUED and shown.waits_for.endswith(says)
        gate.released.set()
        assert [(await lab.ended(run_id)).state for run_id in (first, second)] == ["success", "success"]


async def test_an_approval_says_which_paused_run_holds_what_it_waits_for(tmp_path: Path) -> None:
    """It may be paused for a day, or for a person: nobody would know why the other does not start."""
    held = await waits.micros_of_first_call(waits.new_folder(tmp_path, "first"))
    later = Fail(429, retry_after="3600")
    async with open_lab(
        waits.new_folder(tmp_path, "second"), [later, waits.spend()], config=waits.day_limits(-(-held // 10_000))
    ) as lab:
        first = await lab.start(max_cost_cents=50)
        await lab.logged(first, "RunPaused")
        proposal = await lab.propose(max_cost_cents=50)
        assert (await lab.approve(proposal)).status == "approved", "held money refuses no approval"
        second = proposal.subagent_id
        shown = await lab.check(second)
        with anyio.fail_after(20):
            while "starts when $" not in str(shown.waits_for):
                await anyio.sleep(0.05)
                shown = await lab.check(second)
        holds = format_usd((await lab.run(first)).wrap_micros)
        assert shown.waits_for.endswith(
            f" is free; {first} holds {holds} and is paused: let it go on, or `ava cancel {first}`"
        )
        await lab.call("cancel_subagent", subagent_id=first)
        assert (await lab.ended(second)).state == "success"


@pytest.mark.slow
def test_eight_runs_side_by_side_spend_what_the_day_has() -> None:
    program = REPOSITORY / "benchmarks" / "starvation.py"
    command = [sys.executable, str(program), "--at-once", "3", "8"]
    out = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout
    three, eight = [json.loads(line) for line in out.splitlines()[1:]]
    for played in (three, eight):
        assert played["refused_at_start"] == 0 and played["results"] == 8, played
        assert played["spent_share"] >= 0.84, played
    assert three["endings"] == {"success": 8}
    assert eight["endings"]["success"] >= 7, eight
