"""Money that a run holds whose process is gone: whoever waits for it settles that, and continues nothing."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from support.budget import waits
from support.databases import POSTGRES
from support.model_server import Gate, run_model_server
from support.runtime import open_lab, wait_for

from ava_audit.events import MoneyAwaited, RunClaimed
from ava_audit.rows import RUNNING
from ava_server.runs.owner.mode import OWN_RUNS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(POSTGRES, reason="the killed process is another machine's there, and is waited for longer"),
]

LEASE = "lease_s = 5\n"


@pytest.mark.parametrize("where", ["before it starts", "before a call"])
async def test_whoever_waits_settles_what_a_dead_process_held_and_continues_nothing(tmp_path: Path, where: str) -> None:
    held = await waits.micros_of_first_call(waits.new_folder(tmp_path, "first"))
    share = {"before it starts": 17, "before a call": 19}[where]
    config = f"{LEASE}{waits.day_limits(held * share // 100_000)}"
    tmp, gate = waits.new_folder(tmp_path, "second"), Gate()
    with run_model_server([waits.spend(gate), *[waits.spend()] * 3]) as server:
        async with open_lab(tmp, server=server, config=config, runs=False, check=False) as lab:
            first = await lab.start(max_cost_cents=50)
            async with waits.owning_process(lab.root, server) as process:
                await wait_for(gate.arrived)
                process.kill()
                await process.wait()
        gate.released.set()
        async with open_lab(tmp, server=server, config=config, mode=OWN_RUNS, check=False) as lab:
            second = await lab.start(max_cost_cents=50)
            says = f"; {first} holds $"
            shown = await lab.check(second)
            with anyio.fail_after(20):
                while says not in str(shown.waits_for):
                    await anyio.sleep(0.05)
                    shown = await lab.check(second)
            assert " and is interrupted: that comes back within a minute, or with `" in shown.waits_for
            assert f"ava resume {first}` or `ava cancel {first}`" in shown.waits_for
            assert (await lab.ended(second, within_s=60)).state == "success"
            dead = await lab.run(first)
            assert (dead.state, dead.in_flight, dead.wrap_micros) == (RUNNING, None, 0)
            assert (await waits.view_of_run(lab, first)).state == "interrupted"
            assert await lab.settlements(first) == ["unknown"]
            [returned] = await lab.facts(first, MoneyAwaited)
            assert returned.over and returned.returned > 0
            assert [claim.reason for claim in await lab.facts(first, RunClaimed)] == ["start"]
        ample = f"{LEASE}{waits.day_limits(1_000)}"
        async with open_lab(tmp, server=server, config=ample, check=False) as lab:
            assert (await lab.ended(first, within_s=60)).state == "success", "who can continue it does"
            assert await lab.settlements(first) == ["unknown", "billed"]
