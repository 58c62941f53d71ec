"""Money that other runs hold makes a run wait, not end: the line for money, and what a run does in it.

Nothing passes a cap in any schedule, and nobody waits while nothing is in flight and somebody fits.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import settings
from support.model_server import Gate, Say
from support.runtime import DONE, Lab, arrived, open_lab
from support.schedules.money import play_schedules

from ava_audit.events import CostReserved, MoneyAwaited
from ava_audit.rows import QUEUED, RUNNING, RunRow
from ava_audit.view import loads

SCHEDULES, LONG_SCHEDULES = 150, 100_000
CAME = (
    "granted", "waits", "asked again, nothing written", "gives way", "refused", "went with nothing in flight",
    "overrun", "dead", "pause", "midnight", "ended",
)  # fmt: skip
PRICES = """
[prices."custom:test"]
input = 3.0
output = 15.0
cache_read = 3.0
cache_write = 3.0
"""


def test_no_schedule_passes_a_cap_or_leaves_money_that_somebody_waits_for() -> None:
    long = settings.get_current_profile_name() == "long"
    came = play_schedules(0, LONG_SCHEDULES if long else SCHEDULES)
    assert [kind for kind in CAME if not came[kind]] == [], "what is to be shown was played"


def limits(day_cents: int, more: str = "") -> str:
    return f"{PRICES}\n[limits]\nuser_daily_cents = {day_cents}\ninstallation_daily_cents = {day_cents}\n{more}"


def spends(gate: Gate | None = None, tokens: int = 100) -> Say:
    usage = {"prompt_tokens": 1_000, "completion_tokens": tokens, "total_tokens": 1_000 + tokens}
    return Say(calls=[DONE], usage=usage, gate=gate)


async def waits(lab: Lab, run_id: str) -> RunRow:
    """Return a run once the log says that it waits for money."""
    await lab.logged(run_id, "MoneyAwaited")
    row = await lab.run(run_id)
    assert row.state == RUNNING and row.money_wait is not None
    return row


def folder(tmp_path: Path, name: str) -> Path:
    made = tmp_path / name
    made.mkdir()
    return made


async def reserved_by_first_call(tmp: Path) -> int:
    """Return what the first call of these runs holds with the last turn after it, in micro-USD."""
    async with open_lab(tmp, [spends()], config=limits(1_000)) as lab:
        run_id = await lab.start(max_cost_cents=50)
        await lab.ended(run_id)
        [fact] = await lab.facts(run_id, CostReserved)
        return fact.micros + fact.wrap_micros


async def test_a_run_waits_until_the_call_of_another_run_is_settled(tmp_path: Path) -> None:
    held = await reserved_by_first_call(folder(tmp_path, "first"))
    gate = Gate()
    async with open_lab(
        folder(tmp_path, "second"), [spends(gate), spends()], config=limits(held * 19 // 100_000)
    ) as lab:
        first = await lab.start(max_cost_cents=50)
        await arrived(gate.arrived)
        second = await lab.start(max_cost_cents=50)
        row = await waits(lab, second)
        [fact] = await lab.facts(second, MoneyAwaited)
        assert fact.runs == 1 and fact.scope == loads(row.money_wait)["scope"]
        checked = await lab.call("check_subagent", subagent_id=second)
        words = f"Waits for ${fact.missing / 1_000_000:.2f} that 1 other run holds"
        assert checked.runs[0].untrusted_activity == words, checked.runs[0]
        with anyio.move_on_after(2.5):  # it asks again every second, and writes nothing
            await lab.logged(second, "CostReserved")
        assert len(await lab.facts(second, MoneyAwaited)) == 1
        assert (await lab.call("check_subagent", subagent_id=second)).runs[0].elapsed_seconds < 2
        gate.released.set()
        rows = [await lab.ended(run_id) for run_id in (first, second)]
        assert [each.state for each in rows] == ["success", "success"]
        assert rows[1].money_wait is None and rows[1].active_us < 2_000_000, "its clock stood still"


@pytest.mark.parametrize("how", ["cancel", "message"])
async def test_a_wait_ends_with_a_cancel_and_takes_a_message(tmp_path: Path, how: str) -> None:
    held = await reserved_by_first_call(folder(tmp_path, "first"))
    gate = Gate()
    async with open_lab(
        folder(tmp_path, "second"), [spends(gate), spends()], config=limits(held * 19 // 100_000)
    ) as lab:
        first = await lab.start(max_cost_cents=50)
        await arrived(gate.arrived)
        second = await lab.start(max_cost_cents=50)
        await waits(lab, second)
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


async def test_an_approval_queues_until_what_others_hold_is_free(tmp_path: Path) -> None:
    held = await reserved_by_first_call(folder(tmp_path, "first"))
    gate = Gate()
    async with open_lab(folder(tmp_path, "second"), [spends(gate), spends()], config=limits(-(-held // 10_000))) as lab:
        first = await lab.start(max_cost_cents=50)
        await arrived(gate.arrived)
        proposal = await lab.propose(max_cost_cents=50)
        assert "it starts when $" in proposal.message and "cannot start" not in proposal.message
        assert (await lab.approve(proposal)).status == "approved"
        second = proposal.subagent_id
        shown = await checked_run(lab, second)
        with anyio.fail_after(20):
            while "starts when $" not in str(shown.waits_for):
                await anyio.sleep(0.05)
                shown = await checked_run(lab, second)
        assert shown.state == QUEUED and shown.waits_for.endswith(" is free")
        gate.released.set()
        assert [(await lab.ended(run_id)).state for run_id in (first, second)] == ["success", "success"]


async def checked_run(lab: Lab, run_id: str) -> Any:
    return (await lab.call("check_subagent", subagent_id=run_id)).runs[0]


@pytest.mark.slow
def test_eight_runs_side_by_side_spend_what_the_day_has() -> None:
    program = Path(__file__).parents[2] / "benchmarks" / "starvation.py"
    command = [sys.executable, str(program), "--at-once", "3", "8"]
    out = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout
    three, eight = [json.loads(line) for line in out.splitlines()[1:]]
    for played in (three, eight):
        assert played["refused_at_start"] == 0 and played["results"] == 8, played
        assert played["spent_share"] >= 0.84, played
    assert three["endings"] == {"success": 8}
    assert eight["endings"]["success"] >= 7, eight
