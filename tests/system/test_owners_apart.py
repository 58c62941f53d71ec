"""Runs in namespaces of their own, where no process sees the others: one owner at a time."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from support.model_server import Gate, Say, Step, run_model_server
from support.runs.killed import (
    NOTES,
    SCRIPT,
    namespace_prefix,
    run_owner,
)
from support.runtime import PRICED, Lab, check_requests, open_lab, wait_for

from ava_audit.events import RunClaimed, RunEnded
from ava_audit.store.locks import LockedInstances


@pytest.mark.slow
async def test_owners_in_separate_pid_namespaces_never_own_the_same_run(tmp_path: Path) -> None:
    """Each in a pid namespace of its own, as in two containers: to each the other's pid means nothing."""
    prefix = namespace_prefix()
    if prefix is None:
        pytest.skip("no pid namespaces here")
    gates = [Gate() for _ in range(3)]

    def scripted(request: dict[str, Any]) -> Step:
        turn = sum(message["role"] == "assistant" for message in request["messages"])
        number = int(request["messages"][1]["content"][-1])
        return Say("x", calls=[NOTES], gate=gates[number]) if turn == 0 else SCRIPT[2]

    with run_model_server(scripted) as server:
        root = tmp_path / "data"
        async with open_lab(tmp_path, server=server, config=PRICED, runs=False, check=False) as lab:
            run_ids = [await lab.start(task=f"number {number}") for number in range(3)]
            async with run_owner(root, server, prefix) as one, run_owner(root, server, prefix):
                for gate in gates:
                    await wait_for(gate.arrived)
                await anyio.sleep(2.5)  # both have looked at each other's runs, more than once
                assert len(server.requests) == 3, "no run runs twice"
                owners = {(await lab.run(run_id)).instance for run_id in run_ids}
                alive = LockedInstances(root / "instances").alive
                assert all(alive(str(instance)) for instance in owners)
                os.killpg(one.pid, signal.SIGKILL)
                for gate in gates:
                    gate.released.set()
                for run_id in run_ids:
                    assert (await lab.ended(run_id)).state == "success"
                    await _owned_by_one_at_a_time(lab, run_id)
        await check_requests(root, server.requests)


async def _owned_by_one_at_a_time(lab: Lab, run_id: str) -> None:
    generations = [fact.generation for fact in await lab.facts(run_id, RunClaimed)]
    assert generations == list(range(1, len(generations) + 1)) and len(generations) <= 2
    assert len(await lab.facts(run_id, RunEnded)) == 1
