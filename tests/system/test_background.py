"""`background = true`: runs go on in a worker of their own, and outlive the host that asked for them."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import anyio
import pytest
from support.model_server import Fail, Gate, Say, Step, running_model_server
from support.processes import environment_of, lives
from support.runtime import hand_over, open_lab
from support.stdio import AVA, assert_intact, environment, logged, serving, state_of, until, using

from ava_audit.store.locks import try_hold
from ava_server.cli import serve
from ava_server.config.settings import load_settings
from ava_server.core.data_root import DataRoot
from ava_server.runs import worker_process
from ava_server.runs.context import ConfigNotSupported
from ava_server.runs.worker_process import WorkerProcesses, hold_worker_lock
from ava_server.service.runtime import open_runtime

pytestmark = pytest.mark.slow

NOTE = Say("I look.", [("scratchpad", {"note": "half of it"})])
DONE = Say(calls=[("submit_result", {"summary": "done", "output": "twelve cents"})])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    (data / "config.toml").write_text("background = true\n")
    return data


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def workers_of(root: Path) -> list[int]:
    """The processes that are a worker of a data root."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and lives(int(entry.name)):
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if b"worker" in words and environment_of(int(entry.name)).get("AVA_DATA_ROOT") == str(root):
                    found.append(int(entry.name))
    return found


@asynccontextmanager
async def no_worker_left(root: Path) -> AsyncGenerator[None]:
    """End the workers of a data root, each within 5 s."""
    try:
        yield
    finally:
        for pid in workers_of(root):
            os.kill(pid, signal.SIGTERM)
    await until(lambda: not workers_of(root), within_s=5)


@pytest.mark.requirement("N-11")
async def test_a_run_outlives_its_host_and_the_next_host_learns_of_it(root: Path, workspace: Path) -> None:
    gate = Gate()
    with running_model_server([NOTE, Say(DONE.text, DONE.calls, gate=gate)]) as models:
        env = using(models.base_url)
        async with no_worker_left(root):
            async with serving(root, env=env) as host:
                run = await host.start_run(workspace=str(workspace))
                await until(gate.arrived.is_set)
                [pid] = workers_of(root)
                assert os.getsid(pid) == pid, "it has a session of its own: no terminal and no host ends it"
                host.process.kill()
            gate.released.set()
            await until(lambda: state_of(root, run) == "success")
            async with serving(root, env=env) as host:
                answer = await host.tool("check_subagent", subagent_id=run)
                assert answer["runs"][0]["untrusted_result"]["output"] == "twelve cents"
        assert len(models.requests) == 2
    assert [entry.content["reason"] for entry in logged(root, "RunClaimed", run=run)] == ["start"]
    assert (root / "worker.log").read_text() == "", "it has nothing to complain of"
    assert_intact(root)


@pytest.mark.requirement("N-11")
async def test_two_hosts_share_one_worker_and_a_killed_worker_is_replaced(root: Path, workspace: Path) -> None:
    gates = [Gate(), Gate(), Gate()]
    script: list[Step] = [*(Say("x", gate=gate) for gate in gates), DONE, DONE, DONE]
    with running_model_server(script) as models:
        env = using(models.base_url)
        async with no_worker_left(root), serving(root, env=env) as one, serving(root, env=env) as other:
            runs = [await host.start_run(workspace=str(workspace)) for host in (one, other, one)]
            for gate in gates:
                await until(gate.arrived.is_set)
            await until(lambda: len(workers_of(root)) == 1)  # one that came too late finds the post taken, and goes
            [pid] = workers_of(root)
            os.kill(pid, signal.SIGKILL)
            for run in runs:
                await until(partial(_ended, root, run), within_s=30)
                reasons = [entry.content["reason"] for entry in logged(root, "RunClaimed", run=run)]
                assert reasons == ["start", "takeover"]
            await until(lambda: len(workers_of(root)) == 1)
            assert workers_of(root) != [pid]
    assert_intact(root)


def _ended(root: Path, run: str) -> bool:
    return state_of(root, run) == "success"


async def test_a_second_worker_exits_and_a_subagent_starts_none(root: Path) -> None:
    env = environment(root)
    command = [AVA[0], "worker"]
    async with no_worker_left(root), await anyio.open_process(command, env=env, stderr=None) as first:
        await until(lambda: (root / "ava.db").exists())
        second = await anyio.run_process(command, env=env)
        assert second.returncode == 0 and b"already has a worker" in second.stderr
        inside = await anyio.run_process(command, env={**env, "AVA_RUN_ID": "S-7f3a2b"}, check=False)
        assert inside.returncode == 2 and b"a subagent starts no subagents" in inside.stderr
        first.terminate()
        with anyio.fail_after(5):
            assert await first.wait() == 0


async def test_a_worker_exits_when_idle_but_stays_for_paused_runs(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert worker_process.IDLE_S == 60
    monkeypatch.setattr(worker_process, "IDLE_S", 1.0)
    with running_model_server([Fail(429, retry_after="4"), hand_over()]) as models:
        async with open_lab(tmp_path, server=models, runs=False, check=False) as lab:
            run_id = await lab.start(timeout=3)
        settings = load_settings(root, env=using(models.base_url) | {"AVA_MODEL": "test"})
        async with open_runtime(settings, worker=True) as runtime:
            with anyio.fail_after(15):
                await serve._until_idle(runtime)
            row = await runtime.store.read(lambda view: view.run(run_id))
            assert row is not None and row.state == "success", "it waited for the pause, and ended the run"


async def test_reports_a_worker_that_cannot_start_and_names_its_log_file(tmp_path: Path) -> None:
    root = DataRoot(tmp_path)
    start_worker = WorkerProcesses(root, (sys.executable, "-c", "raise SystemExit('no such thing')"))
    await start_worker()
    await until(lambda: (tmp_path / "worker.log").read_text() != "")
    with pytest.raises(ConfigNotSupported, match=r"ended at once with code 1; see .*worker\.log"):
        for _ in range(50):
            await start_worker()
            await anyio.sleep(0.1)
    assert (tmp_path / "worker.log").read_text() == "no such thing\n"
    assert (tmp_path / "worker.log").stat().st_mode & 0o777 == 0o600


async def test_starts_no_worker_for_a_run_that_the_server_cannot_continue(tmp_path: Path, root: Path) -> None:
    """The worker is given this server's keys, and would have to leave the run as well."""
    with running_model_server([]) as models, running_model_server([]) as elsewhere:
        async with open_lab(tmp_path, server=models, runs=False, check=False) as lab:
            run_id = await lab.start()
        async with open_lab(tmp_path, server=elsewhere, config="background = true", check=False) as lab:
            with anyio.fail_after(10):
                while not (await lab.call("check_subagent", subagent_id=run_id)).runs[0].waits_for:
                    await lab.store.wait_for_entry_after(lab.store.head - 1)
            assert workers_of(root) == []


def test_takes_the_worker_lock_even_if_another_process_just_checks_it(tmp_path: Path) -> None:
    root = DataRoot(tmp_path)
    first = hold_worker_lock(root)
    assert first is not None and hold_worker_lock(root) is None
    first.release()
    with try_hold(root.worker_lock) as held:  # type: ignore[union-attr]  # nobody has it
        release = threading.Timer(0.2, held.release)
        release.start()
        second = hold_worker_lock(root)
        assert second is not None
        second.release()
