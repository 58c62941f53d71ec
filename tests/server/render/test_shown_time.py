"""The time of a run as people see it: no faster than what counts, and never backwards."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from support.model_server import Gate, Say
from support.runtime import DONE, open_lab, wait_for
from support.told import ToldProcesses

from ava_audit.events import Who
from ava_audit.units import now_us
from ava_server.budget.user_limits import Slots
from ava_server.core.ids import AGENT
from ava_server.render.run_view import view_run
from ava_server.runs.record.claims import claim


async def test_the_time_that_is_shown_stands_still_and_never_runs_backwards_when_a_run_is_taken_over(
    tmp_path: Path,
) -> None:
    """Its owner hangs: that is noticed later, and a successor goes on from when the owner was last seen."""
    gate = Gate()
    async with open_lab(tmp_path, [Say(calls=[DONE], gate=gate), Say(calls=[DONE])], check=False) as lab:
        run_id = await lab.start()
        await wait_for(gate.arrived)
        row = await lab.run(run_id)
        await anyio.sleep(1.5)

        processes = ToldProcesses(seen_every_s=0.4)

        async def shown(at_us: int) -> float:
            found = await lab.run(run_id)
            return await lab.store.read(lambda view: view_run(view, found, processes, at_us).elapsed_s)

        processes.seen_us = seen_us = now_us()
        times = [await shown(seen_us), await shown(seen_us + 200_000)]
        assert times[1] - times[0] == pytest.approx(0.2)
        times += [await shown(seen_us + 900_000)]
        processes.lives = False
        times += [await shown(seen_us + 900_000)]
        assert times[2] == times[3] == pytest.approx(times[0] + 0.4, abs=0.01)
        await anyio.sleep(0.9)
        who = Who(row.session_id, AGENT, row.user_id)
        lab.runtime.manager.offers.stop_taking()
        taken = claim(run_id, "another", who, frozenset({str(row.instance)}), Slots(9, 9), seen_us=seen_us)
        got = await lab.store.do(taken)
        assert not isinstance(got, str)
        claimed_us = (await lab.run(run_id)).claimed_us or 0
        processes.seen_us, processes.lives = claimed_us + 600_000, True
        times += [await shown(claimed_us + each) for each in (0, 300_000, 600_000)]
        assert times == sorted(times), "it never runs backwards"
        assert times[4] == pytest.approx(times[3], abs=0.01)
        assert times[6] == pytest.approx(times[0] + 0.6, abs=0.01), "what counts goes on from when the owner was seen"
        gate.released.set()
