"""Runs that this process cannot drive: they wait and say why, end with the reason, or are left to a newer program."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from support.model_server import Gate, Say, run_model_server
from support.runs.owners import approve_runs, future_run_events, wait_reason
from support.runtime import hand_over, open_lab, wait_for

from ava_audit.events import Event, RunEnded, Who
from ava_audit.store.store import append
from ava_server.models.factory import model_of, parameters
from ava_server.runs.record.history import History
from ava_server.runs.turn import setup
from ava_server.runs.turn.context import ConfigNotSupported


async def test_a_run_whose_endpoint_differs_from_the_approved_one_waits_and_says_why(tmp_path: Path) -> None:
    with run_model_server([hand_over()]) as server, run_model_server([]) as elsewhere:
        [run_id] = await approve_runs(tmp_path, server)
        async with open_lab(tmp_path, server=elsewhere, check=False) as lab:
            found = await wait_reason(lab, run_id)
            assert server.base_url in found and "approved" in found
            assert (await lab.run(run_id)).state == "queued"
        assert elsewhere.requests == []


async def test_a_run_with_a_wire_unknown_to_this_version_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    with run_model_server([Say(calls=[("scratchpad", {"note": "x"})]), Say("x", gate=gate)]) as server:
        with monkeypatch.context() as other:
            other.setattr(setup, "parameters", lambda choice: {**parameters(choice), "wire": "telepathy"})
            spoken = {"wire": "chat_completions"}
            other.setattr(setup, "model_of", lambda name, stored, *more: model_of(name, {**stored, **spoken}, *more))
            async with open_lab(tmp_path, server=server, check=False) as lab:
                run_id = await lab.start()
                await wait_for(gate.arrived)
        async with open_lab(tmp_path, server=server, check=False) as lab:
            found = await wait_reason(lab, run_id)
            assert "This version of Ava cannot call custom:test as its run began (wire 'telepathy'" in found
            run = await lab.run(run_id)
            assert (run.state, run.generation) == ("running", 1), "nobody has taken it"


async def test_a_run_waits_for_its_missing_workspace_without_blocking_others(tmp_path: Path) -> None:
    with run_model_server([hand_over()]) as server:
        async with open_lab(tmp_path, server=server, runs=False, check=False) as lab:
            gone = lab.workspace / "gone"
            gone.mkdir()
            waiting = await lab.start(task="one", workspace=str(gone))
            fine = await lab.start(task="two")
            shutil.rmtree(gone)
        async with open_lab(tmp_path, server=server, check=False) as lab:
            assert (await lab.ended(fine)).state == "success"
            assert "gone" in str((await lab.check(waiting)).waits_for)


def open_files() -> set[Path]:
    return set(Path("/proc/self/fd").iterdir())


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="only there it can be seen what is open")
@pytest.mark.parametrize("missing", ["search", "artifacts"])
async def test_a_failed_run_setup_leaves_no_files_open(tmp_path: Path, missing: str) -> None:
    async with open_lab(tmp_path, runs=False) as lab:
        run = await lab.run((await lab.propose()).subagent_id)
        if missing == "search":  # it was set up when this was approved, and is not any more
            run = replace(run, config=json.dumps({**json.loads(run.config), "search": "kagi"}))
        else:
            (lab.root / "artifacts").mkdir(exist_ok=True)
            (lab.root / "artifacts" / run.id).write_text("in the folder's place")
        open_before = open_files()
        for _ in range(5):
            with suppress(ConfigNotSupported, FileExistsError):
                await lab.runtime.run_setup.prepare(run, History(run.id))
                raise AssertionError("it cannot be prepared")
        assert len(open_files() - open_before) < 5


async def test_lists_an_unreadable_run_and_never_cleans_it_up(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hand_over()], check=False) as lab:
        ended = await lab.ended(await lab.start())
        await lab.store.do(append(*future_run_events(lab.runtime.user)))
        listed = await lab.call("check_subagent")
        assert {run.subagent_id: run.state for run in listed.runs} == {ended.id: "success", "S-000001": "queued"}
        assert "a newer Ava has proposed it" in next(run for run in listed.runs if run.state == "queued").status_line
        over = RunEnded(status="error", stop_reason="of a version to come")
        await lab.store.do(append(Event(Who("s", "S-000001", lab.runtime.user), over, run_id="S-000001")))
        (lab.root / "worktrees" / "S-000001").mkdir(parents=True)
        await lab.runtime.sweep()
        assert (await lab.call("read_ava_logs")).status == "entries"


@pytest.mark.slow
@pytest.mark.parametrize("when", ["queued", "overdue"])
async def test_an_unreadable_run_does_not_affect_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    monkeypatch.setattr("ava_server.runs.owner.run_notes.TRY_AGAIN_MOST_S", 0.1)
    async with open_lab(tmp_path, [hand_over()], everybody=True, check=False) as lab:
        manager = lab.runtime.manager
        if when == "overdue":
            monkeypatch.setattr("ava_server.runs.record.endings.ABANDONED_US", 0)
        await lab.store.do(append(*future_run_events("ben")))
        tries = 2 if when == "queued" else 0
        with anyio.fail_after(40):
            while manager._notes["S-000001"].faults < tries or "S-000001" not in manager.waiting_for:  # noqa: ASYNC110
                await anyio.sleep(0.02)
        monkeypatch.undo()
        assert "a fault of Ava itself" in manager.waiting_for["S-000001"]
        ended = await lab.ended(await lab.start())
        assert ended.state == "success"
