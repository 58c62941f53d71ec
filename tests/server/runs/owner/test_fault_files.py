"""Files and folders around runs that are not what they were, and descriptors that run out."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from support.model_server import Gate, Say, run_model_server
from support.runs import faults
from support.runs.owners import NOTE
from support.runtime import PRICED, hand_over, open_lab, wait_for

from ava_audit.events import ErrorOccurred
from ava_server.runs.turn.loop import AgentRun


@pytest.mark.slow
@pytest.mark.parametrize("begun", [False, True], ids=["queued", "interrupted"])
async def test_a_run_waits_without_busy_looping_while_its_workspace_is_missing(tmp_path: Path, begun: bool) -> None:
    gate = Gate()
    script = [NOTE, Say("lost", gate=gate), hand_over()] if begun else [hand_over()]
    with run_model_server(script) as server:
        async with open_lab(tmp_path, server=server, runs=begun, check=False) as lab:
            folder = lab.workspace / "project"
            folder.mkdir()
            run_id = await lab.start(workspace=str(folder))
            if begun:
                await wait_for(gate.arrived)
        away = folder.rename(tmp_path / "unmounted")
        async with open_lab(tmp_path, server=server) as lab:
            assert await faults.claims_within(lab, run_id, 3) == 0, "it is looked at before it is claimed"
            away.rename(folder)
            assert (await lab.ended(run_id)).state == "success"


@pytest.mark.slow
async def test_a_file_in_place_of_the_artifact_folder_costs_few_claims_and_no_other_run(tmp_path: Path) -> None:
    config = "[limits]\nrunning_per_user = 2\n"
    async with open_lab(tmp_path, [hand_over()] * 2, config=config, runs=False) as lab:
        run_id = await lab.start()
        in_the_way = lab.root / "artifacts" / run_id
        in_the_way.parent.mkdir(exist_ok=True)
        in_the_way.write_text("in the way")
        async with faults.manage_runs(lab):
            assert await faults.claims_within(lab, run_id, 3) <= 3
            assert (await lab.ended(await lab.start(task="another"))).state == "success"
            in_the_way.unlink()
            assert (await lab.ended(run_id)).state == "success"


async def test_a_server_starts_despite_odd_files_among_the_lock_files(tmp_path: Path) -> None:
    async with open_lab(tmp_path):
        pass
    instances = tmp_path / "data" / "instances"
    (instances / "0123456789ab.lock").mkdir()
    (instances / "0123456789ac.lock").symlink_to(instances / "0123456789ac.lock")
    (instances / "0123456789ad.lock").symlink_to(tmp_path / "nowhere" / "at-all")
    (instances / ("x" * 240 + ".lock")).write_bytes(b"\x00" * 100)
    (instances / "note\n\x1b[2J.lock").touch()
    (instances / "README").write_text("not a lock")
    dead = [instances / f"{number:012x}.lock" for number in range(20)]
    for path in dead:
        path.touch()
    with anyio.fail_after(40):
        async with open_lab(tmp_path, [hand_over()]) as lab:
            await lab.runtime.sweep()
            assert (await lab.outcome())["status"] == "success"
    assert (instances / "0123456789ab.lock").is_dir() and (instances / "README").exists()
    assert not [path for path in dead if path.exists()], "they do not keep dead ones from being swept either"


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
async def test_cancels_a_plan_even_if_the_files_of_one_member_cannot_be_listed(tmp_path: Path) -> None:
    gates = [Gate() for _ in range(3)]
    async with open_lab(tmp_path, [Say("x", gate=gate) for gate in gates], config=PRICED) as lab:
        proposals = [await lab.propose(task=f"number {number}") for number in range(3)]
        first = await lab.approve(*proposals)
        decided = first if first.status == "approved" else await lab.approve(*proposals, last=first.approval_lines[-1])
        assert decided.status == "approved", decided
        for gate in gates:
            await wait_for(gate.arrived)
        odd, *others = [proposal.subagent_id for proposal in proposals]
        with faults.make_unlistable(lab.root / "artifacts" / odd), anyio.fail_after(8):
            with contextlib.suppress(OSError):  # that one's fault may be told; it is not in the way of the others
                await lab.call("cancel_subagent", group_id=decided.group_id)
            assert [(await lab.run(run_id)).state for run_id in others] == ["cancelled", "cancelled"]


FEW_DESCRIPTORS = """
import os, resource, sys, threading, anyio
from pathlib import Path
from support.runtime import wait_for, hand_over, open_lab
from ava_audit.store.store import READERS
async def main():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with open_lab(Path(sys.argv[1]), [hand_over()] * 2) as lab, anyio.create_task_group() as slow:
        waiting = await lab.propose()
        over, begun = threading.Event(), [threading.Event() for _ in range(READERS - 1)]
        def long_look(event):
            event.set()
            over.wait(30)
        for event in begun:  # every connection that is open is in use: the next look needs a new one
            slow.start_soon(lab.store.read, lambda view, event=event: long_look(event))
        for event in begun:
            await wait_for(event)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 8, hard))
        taken = []
        try:
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        except OSError as error:
            print(error.strerror)
        said = []
        async def ask():
            said.append((await lab.call("check_subagent")).status)
        async with anyio.create_task_group() as tasks:
            for _ in range(12):
                tasks.start_soon(ask)
        print(len(said), set(said) <= {"failed", "list"})  # one that found a free connection is served
        await anyio.sleep(2.5)  # the manager and the keeper look in vain meanwhile
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        over.set()
        print((await lab.approve(waiting)).status, (await lab.ended(waiting.subagent_id)).state)
        print((await lab.outcome(task="afterwards"))["status"])
anyio.run(main)
"""


@pytest.mark.slow
async def test_running_out_of_file_descriptors_briefly_does_not_end_the_server(tmp_path: Path) -> None:
    said = await faults.run_child(FEW_DESCRIPTORS, tmp_path, within_s=60)
    assert said == ["Too many open files", "12 True", "approved success", "success"]


@pytest.mark.slow
@pytest.mark.parametrize("together", [False, True], ids=["alone", "in a plan"])
async def test_a_run_without_free_file_descriptors_continues_and_counts_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    tries: list[str] = []
    starts = AgentRun._start_servers

    async def short(run: AgentRun, within_s: float) -> Any:
        tries.append(run.id)
        if len(tries) <= 3:  # more often than Ava tolerates a fault
            error = OSError(errno.EMFILE, "Too many open files")
            raise ExceptionGroup("of a tool", [error]) if together else error
        return await starts(run, within_s)

    monkeypatch.setattr(AgentRun, "_start_servers", short)
    monkeypatch.setattr("ava_server.runs.owner.run_notes.TRY_AGAIN_MOST_S", 0.2)
    async with open_lab(tmp_path, [hand_over()]) as lab:
        run_id = await lab.start()
        assert (await lab.ended(run_id)).state == "success"
        assert len(tries) == 4 and await lab.facts(run_id, ErrorOccurred) == []


async def test_cancels_a_run_whose_files_cannot_be_listed(tmp_path: Path) -> None:
    gates = [Gate() for _ in range(2)]
    async with open_lab(tmp_path, [Say("x", gate=gate) for gate in gates], config=PRICED) as lab:
        proposals = [await lab.propose(task=f"number {number}") for number in range(2)]
        first = await lab.approve(*proposals)
        decided = first if first.status == "approved" else await lab.approve(*proposals, last=first.approval_lines[-1])
        for gate in gates:
            await wait_for(gate.arrived)
        odd = proposals[0].subagent_id
        with faults.make_unlistable(lab.root / "artifacts" / odd), anyio.fail_after(8):
            answer = await lab.call("cancel_subagent", group_id=decided.group_id)
            assert answer.status == "cancelled"
            assert [(await lab.run(p.subagent_id)).state for p in proposals] == ["cancelled"] * 2


async def test_a_good_result_is_not_lost_because_the_files_cannot_be_listed(tmp_path: Path) -> None:
    gate = Gate()
    async with open_lab(tmp_path, [Say(calls=hand_over().calls, gate=gate), hand_over(), hand_over()]) as lab:
        run_id = await lab.start()
        await wait_for(gate.arrived)
        with faults.make_unlistable(lab.root / "artifacts" / run_id):
            gate.released.set()
            run = await lab.ended(run_id)
        assert run.state == "success"


async def test_does_not_touch_links_and_pipes_among_the_lock_files(tmp_path: Path) -> None:
    async with open_lab(tmp_path):
        pass
    outside = tmp_path / "outside"
    (tmp_path / "data" / "instances" / "0123456789ae.lock").symlink_to(outside)
    async with open_lab(tmp_path) as lab:
        await lab.runtime.sweep()
    assert not outside.exists(), "a file was made where the link leads"


@pytest.mark.slow
async def test_a_pipe_among_the_lock_files_does_not_keep_a_server_from_ending(tmp_path: Path) -> None:
    async with open_lab(tmp_path):
        pass
    os.mkfifo(tmp_path / "data" / "instances" / "0123456789ab.lock")
    code = """
import sys, anyio
from pathlib import Path
from support.runtime import hand_over, open_lab
async def main():
    async with open_lab(Path(sys.argv[1]), [hand_over()]) as lab:
        print((await lab.outcome())["status"])
anyio.run(main)
"""
    assert await faults.run_child(code, tmp_path, within_s=60) == ["success"]
