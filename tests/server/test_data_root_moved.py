"""While a running server's data root is removed, moved or replaced, nothing is written and nothing is paid."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.model_server import Gate, Say
from support.runtime import Lab, hand_over, open_lab, wait_for
from support.stdio import model_env, serve_stdio, until

from ava_audit.errors import LogMoved
from ava_audit.store.store import Store
from ava_roles.sandbox.path_access import make_folders

NOTE = Say(calls=[("scratchpad", {"note": "half of it"})])


def removed(root: Path) -> None:
    moved(root)  # first: the server may be writing a file
    shutil.rmtree(root.with_name("elsewhere"))


def moved(root: Path) -> None:
    root.rename(root.with_name("elsewhere"))


def replaced(root: Path) -> None:
    """Put another log at the same path, as a second server would."""
    moved(root)
    root.mkdir(mode=0o700)
    (root / "ava.db").touch()


def without_log(root: Path) -> None:
    for path in root.glob("ava.db*"):
        path.unlink()


WAYS = [removed, moved, replaced, without_log]
Way = Callable[[Path], None]


@pytest.mark.parametrize("way", WAYS)
async def test_no_command_runs_and_no_model_is_called_after_the_data_root_is_gone(tmp_path: Path, way: Way) -> None:
    gate = Gate()
    async with open_lab(tmp_path, [NOTE, Say("lost", gate=gate), hand_over()], check=False) as lab:
        await lab.start()
        waiting = await lab.propose(task="another")
        await wait_for(gate.arrived)
        way(lab.root)
        there = files(lab.root)
        gate.released.set()
        approve = {"pending_ids": [waiting.pending_id], "approving": [waiting.approval_line]}
        await refused(lab, "confirm_spawn", **approve)
        await refused(lab, "spawn_subagent", role="researcher", task="a third")
        await noticed(lab)
        await refused(lab, "check_subagent")
        await refused(lab, "read_ava_logs", last_n=5)
        if not lab.runtime.membership.holds():
            with pytest.raises(LogMoved):
                lab.runtime.membership.renew()
        await anyio.sleep(0.5)
        assert len(lab.server.requests) == 2, "no model is called"
        assert files(lab.root) == there, "nothing is created in its place"


async def test_a_run_continues_when_the_data_root_is_back_and_loses_no_paid_answer(tmp_path: Path) -> None:
    gate = Gate()
    async with open_lab(tmp_path, [NOTE, Say("kept", calls=NOTE.calls, gate=gate), hand_over()]) as lab:
        run_id = await lab.start()
        await wait_for(gate.arrived)
        moved(lab.root)
        gate.released.set()
        await noticed(lab)
        assert len(lab.server.requests) == 2
        lab.root.with_name("elsewhere").rename(lab.root)
        assert (await lab.ended(run_id)).state == "success"
        assert await lab.settlements(run_id) == ["billed"] * 3
        assert (await lab.result(run_id))["status"] == "success"
    assert len(lab.server.requests) == 3


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
async def test_a_host_and_stderr_are_told(tmp_path: Path, way: Way) -> None:
    root = tmp_path / "data"
    async with serve_stdio(root, env=model_env("http://127.0.0.1:9/v1")) as wire:
        await wire.tool("check_subagent")
        way(root)
        result = await wire.tool_result("spawn_subagent", role="researcher", task="x", workspace=str(tmp_path))
        assert result["isError"] and f"the data root {root} was" in str(result["content"])
        await until(lambda: f"the data root {root} was" in wire.stderr)
        await wire.close_stdin()
        assert await wire.exited() == 0


async def test_an_idle_log_also_notices_and_says_when_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "data"
    root.mkdir()
    async with Store.open(root) as store:
        moved(root)
        with anyio.fail_after(20):
            while True:
                try:
                    await store.read(lambda view: view.head())
                except LogMoved:
                    break
                await anyio.sleep(0.01)
        with pytest.raises(LogMoved):
            await store.checkpoint()
        root.with_name("elsewhere").rename(root)
        with anyio.fail_after(20):
            while "is back" not in caplog.text:  # noqa: ASYNC110 - nothing tells
                await anyio.sleep(0.01)
        await store.read(lambda view: view.head())
        await store.checkpoint()


def test_folders_are_not_made_below_a_folder_that_is_gone(tmp_path: Path) -> None:
    root = tmp_path / "data"
    with pytest.raises(FileNotFoundError):
        make_folders(root / "scratch" / "S-1" / "bench", root)
    assert not root.exists()
    root.mkdir()
    make_folders(root / "scratch" / "S-1" / "bench", root)
    make_folders(root / "scratch" / "S-1" / "bench", root)
    assert (root / "scratch" / "S-1" / "bench").is_dir()


async def test_a_run_whose_result_is_long_makes_no_folder_in_place_of_the_data_root(tmp_path: Path) -> None:
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "long.md").write_text("twelve cents\n" * 20_000)
    gate = Gate()
    long = Say(calls=[("read_file", {"path": "long.md"})], gate=gate)
    async with open_lab(tmp_path, [long, hand_over()], check=False) as lab:
        await lab.start()
        await wait_for(gate.arrived)
        moved(lab.root)
        gate.released.set()
        await noticed(lab)
        await anyio.sleep(0.5)
        assert not lab.root.exists()


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*")) if root.exists() else ["gone"]


async def noticed(lab: Lab) -> None:
    """Wait until not even reading works, and the manager has met that."""
    with anyio.fail_after(20):
        while True:
            with suppress(LogMoved):
                await lab.store.read(lambda view: view.head())
                await anyio.sleep(0.02)
                continue
            break
        while lab.runtime.manager.out_of_reach is None:  # noqa: ASYNC110 - nothing tells
            await anyio.sleep(0.02)


async def refused(lab: Lab, tool: str, **given: Any) -> None:
    answer = await lab.call(tool, **given)
    assert answer.status == "failed" and f"the data root {lab.root} was" in answer.message, answer
    assert "restart this server" in answer.message
