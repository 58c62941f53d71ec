"""Interrupted runs as the commands of a terminal see them: taken over, followed and left."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.model_server import Gate
from support.runtime import hand_over, open_lab, wait_for

from ava_server.cli.steer import _take_over
from ava_server.cli.wait import FollowedRuns
from ava_server.core.errors import Refused


async def test_a_run_that_ended_before_it_could_be_resumed_is_no_refusal(tmp_path: Path) -> None:
    """A server, or the manager of `ava resume` itself, may be faster; the command then shows the result."""
    gate = Gate()
    async with open_lab(tmp_path, [replace(hand_over(), gate=gate)]) as lab:
        run_id = await lab.start()
        await wait_for(gate.arrived)
        running = await lab.run(run_id)
        gate.released.set()
        ended = await lab.ended(run_id)
        await _take_over(lab.runtime, lab.session, running, force=False)
        with pytest.raises(Refused, match="has ended"):
            await _take_over(lab.runtime, lab.session, ended, force=False)


async def test_ctrl_c_tells_the_runs_of_this_process_from_those_of_the_worker(tmp_path: Path) -> None:
    gate = Gate()
    async with open_lab(tmp_path, [replace(hand_over(), gate=gate)]) as lab:
        run = await lab.run(await lab.start())
        await wait_for(gate.arrived)
        here = await lab.run(run.id)
        elsewhere = replace(here, id="S-aaaaaa", instance="another")
        lab.runtime.manager.driver = "the worker"
        followed = FollowedRuns(lab.runtime, lab.service, [here.id, elsewhere.id])
        assert await followed._when_left([elsewhere]) == "If left, it will go on."
        only, both = await followed._when_left([here]), await followed._when_left([here, elsewhere])
        assert only.startswith("If left, it will be interrupted until ") and f"`ava resume {here.id}`" in only
        assert both.startswith(f"If left, {here.id} (the others go on) will be interrupted until ")
        assert elsewhere.id not in both
        lab.runtime.manager._notes[here.id].why_with_host = "model: no model is configured."
        told = await followed._when_left([here])
        assert told.endswith("No worker runs it, because model: no model is configured.")
        gate.released.set()
        await lab.ended(here.id)
