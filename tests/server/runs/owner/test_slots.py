"""Who may run: slots, turns between users, and one owner for each run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from support.log import Life, write
from support.model_server import Gate, Say, run_model_server
from support.runs.owners import approve_run_as, approve_runs, claim_as
from support.runtime import hand_over, open_lab, wait_for
from support.stdio import until

from ava_audit.events import Event, Fence, RunEnded
from ava_audit.rows import RunRow
from ava_audit.store.store import append
from ava_server.runs.owner import manager
from ava_server.runs.owner.manager import Manager
from ava_server.runs.record import endings
from ava_server.runs.record.history import History
from ava_server.runs.turn import setup


async def test_three_runs_of_a_user_run_at_once_and_the_fourth_waits(tmp_path: Path) -> None:
    gates = [Gate() for _ in range(4)]
    said = [*(Say("done", gate=gate) for gate in gates), Say("done"), Say("done")]
    async with open_lab(tmp_path, said) as lab:
        run_ids = [await lab.start(task=f"number {number}") for number in range(4)]
        for gate in gates[:3]:
            await wait_for(gate.arrived)
        states = sorted([(await lab.run(run_id)).state for run_id in run_ids])
        assert states == ["queued", "running", "running", "running"]
        [queued] = [run_id for run_id in run_ids if (await lab.run(run_id)).state == "queued"]
        run_ids += [await lab.start(task=f"later {number}") for number in range(2)]
        checked = await lab.call("check_subagent")
        positions = {run.subagent_id: run.queue_position for run in checked.runs if run.queue_position is not None}
        assert positions == {queued: 1, run_ids[4]: 2, run_ids[5]: 3}
        gates[0].released.set()
        await wait_for(gates[3].arrived)
        for gate in gates:
            gate.released.set()
        for run_id in run_ids:
            assert (await lab.ended(run_id)).state == "success"


@pytest.mark.slow
async def test_runs_are_taken_at_once_so_that_their_claims_share_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked, all_there = 0, anyio.Event()
    check = setup.RunSetup.check_config

    async def held(self: setup.RunSetup, run: Any) -> None:
        nonlocal checked
        checked += 1
        if checked == 3:
            all_there.set()
        await all_there.wait()
        await check(self, run)

    with run_model_server(lambda _request: hand_over()) as server:
        runs = await approve_runs(tmp_path, server, count=3)
        monkeypatch.setattr(setup.RunSetup, "check_config", held)
        async with open_lab(tmp_path, server=server) as lab:
            for run in runs:
                assert (await lab.ended(run, 60)).state == "success"


async def test_a_run_that_takes_long_to_make_ready_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended, prepare = anyio.Event(), anyio.Event(), setup.RunSetup.prepare

    async def held(self: setup.RunSetup, run: Any, history: History) -> Any:
        if not begun.is_set():
            begun.set()
            await ended.wait()
        return await prepare(self, run, history)

    monkeypatch.setattr(setup.RunSetup, "prepare", held)
    async with open_lab(tmp_path, lambda _request: hand_over()) as lab:
        first = await lab.start(task="the first")
        with anyio.fail_after(30):
            await begun.wait()
        second = await lab.start(task="the second")
        assert (await lab.ended(second, 60)).state == "success"
        assert (await lab.run(first)).state == "running"
        await anyio.sleep(1.2)  # the next look does not take it again
        ended.set()
        assert (await lab.ended(first, 60)).generation == 1


@pytest.mark.parametrize("ahead", [manager.AHEAD, 1])
async def test_users_take_turns_even_if_one_queued_many_runs_first(
    tmp_path: Path, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "AHEAD", ahead)
    gates = [Gate() for _ in range(7)]
    script = [Say("done", gate=gate) for gate in gates]
    config = "[limits]\nrunning = 3\nrunning_per_user = 3\nspawns_per_hour = 20\n"
    config += "".join(f'[users.{user}]\nworkspaces = ["{tmp_path}"]\n' for user in ("ada", "ben", "eve"))
    with run_model_server(script) as server:
        async with open_lab(tmp_path, server=server, config=config, runs=False, check=False) as lab:
            for user, count in (("ada", 4), ("ben", 2), ("eve", 1)):
                for number in range(count):
                    await approve_run_as(lab, user, f"{user} {number}")
        async with open_lab(tmp_path, server=server, config=config, everybody=True) as lab:
            order: list[str] = []
            for gate in gates[:3]:
                await wait_for(gate.arrived)
            running = await lab.store.read(lambda view: view.runs(states=["running"]))
            assert sorted(run.user_id for run in running) == ["ada", "ben", "eve"], "one each, though ada was first"
            for gate in gates:
                gate.released.set()
            for run in await lab.store.read(lambda view: view.runs()):
                await lab.ended(run.id)
            claims = await lab.store.read(lambda view: list(view.rows("type = 'RunClaimed'")))
            order = [str(row[4]) for row in claims]
            assert Counter(order) == {"ada": 4, "ben": 2, "eve": 1} and set(order[:3]) == {"ada", "ben", "eve"}


async def test_news_cost_the_same_however_many_runs_one_user_has_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "WHOLE_TIMES", 1_000_000)
    seen: list[list[str]] = []
    look, overdue = Manager._look, endings.overdue

    async def looked(self: Manager, tasks: Any) -> None:
        seen.append([])
        await look(self, tasks)

    def noted(run: RunRow, *given: Any) -> Any:
        seen[-1].append(run.user_id)
        return overdue(run, *given)

    monkeypatch.setattr(Manager, "_look", looked)
    monkeypatch.setattr(manager, "overdue", noted)

    gate, one_slot = Gate(), "[limits]\nrunning = 1\n"
    async with open_lab(tmp_path, [Say("done", gate=gate)], config=one_slot, everybody=True, check=False) as lab:
        await lab.start(task="keeps the only slot")
        await wait_for(gate.arrived)
        many = [Life(f"S-1000{number:03}") for number in range(4 * manager.AHEAD)]
        await write(lab.store, *(event for life in many for event in (life.proposal(), life.task(), life.approval())))
        await until(lambda: any(len(each) == len(many) for each in seen))
        one = Life("S-200000", user="eve")
        await write(lab.store, one.proposal(), one.task(), one.approval())
        await until(lambda: "eve" in seen[-1])
        assert len(seen[-1]) <= manager.AHEAD + 1, "as many of ben as ever, and eve's"


async def test_a_claim_counts_slots_over_all_live_owners(tmp_path: Path) -> None:
    with run_model_server([]) as server:
        first, second = await approve_runs(tmp_path, server, count=2)
        async with open_lab(tmp_path, server=server, runs=False, check=False) as lab:
            assert isinstance(await claim_as(lab, first, "other", per_user=1), RunRow)
            full = await claim_as(lab, second, "me", per_user=1)
            assert isinstance(full, str) and "1 slots" in full
            free = await claim_as(lab, second, "me", gone={"other"}, per_user=1)
            assert isinstance(free, RunRow), "a dead owner's run takes no slot"
            assert isinstance(await claim_as(lab, first, "me", gone={"other"}, total=1), str)


async def test_claims_in_one_commit_count_each_other_and_what_ended_before_them(tmp_path: Path) -> None:
    async with open_lab(tmp_path, runs=False) as lab:
        runs = [await lab.start(task=str(number)) for number in range(6)]
        taken: list[str] = []

        async def take(run: str) -> None:
            if not isinstance(await claim_as(lab, run, "mine", per_user=2), str):
                taken.append(run)

        async def end(run: str) -> None:
            ended = RunEnded(status="error", stop_reason="")
            await lab.store.do(append(Event(lab.session.who, ended, run_id=run, fence=Fence(run, 1))))

        async with anyio.create_task_group() as tasks:
            for run in runs[:4]:
                tasks.start_soon(take, run)
        assert len(taken) == 2
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(end, taken[0])
            for run in runs[4:]:
                tasks.start_soon(take, run)
        assert len(taken) == 3


async def test_only_one_owner_can_claim_a_run(tmp_path: Path) -> None:
    with run_model_server([]) as server:
        [run_id] = await approve_runs(tmp_path, server)
        async with open_lab(tmp_path, server=server, runs=False, check=False) as lab:
            # Neither knew of the other when it looked: what is not known to be gone is alive.
            first, second = [await claim_as(lab, run_id, name) for name in ("one", "two")]
            assert isinstance(first, RunRow)
            assert isinstance(second, str) and "one" in second
            assert (await lab.run(run_id)).generation == 1
