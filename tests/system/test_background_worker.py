"""A worker by itself: when it is started, when it ends, and who has its lock."""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from support.background import end_workers, lock_is_held, workers_of
from support.model_server import Fail, Gate, Say, run_model_server
from support.runtime import hand_over, open_lab
from support.stdio import AVA, environment, make_root, model_env, until

from ava_audit.store.locks import HeldLock, try_hold
from ava_audit.store.schema import SCHEMA_VERSION
from ava_server.cli import serve
from ava_server.config.settings import load_settings
from ava_server.core import background
from ava_server.core.background import WorkerProcesses, hold_worker_lock, pages_server
from ava_server.core.data_root import DataRoot
from ava_server.runs.owner import mode as modes
from ava_server.service.background_servers import Listeners
from ava_server.service.runtime import open_runtime

pytestmark = pytest.mark.slow


async def test_a_second_worker_exits_and_a_subagent_starts_none(root: Path) -> None:
    env = environment(root)
    command = [AVA[0], "worker"]
    async with end_workers(root), await anyio.open_process(command, env=env, stderr=None) as first:
        await until(lambda: (root / "ava.db").exists())
        second = await anyio.run_process(command, env=env)
        assert second.returncode == 0 and b"already runs the subagents of" in second.stderr
        inside = await anyio.run_process(command, env={**env, "AVA_RUN_ID": "S-7f3a2b"}, check=False)
        assert inside.returncode == 2 and b"a subagent starts no subagents" in inside.stderr
        first.terminate()
        with anyio.fail_after(20):
            assert await first.wait() == 0


async def test_a_worker_started_by_hand_says_when_the_background_process_only_listens(root: Path) -> None:
    env = environment(root)
    pages_server(DataRoot(root)).want(0)
    listening = await anyio.open_process([AVA[0], "worker", "--listen"], env=env, stderr=None)
    async with end_workers(root), listening as first:
        await until(lambda: pages_server(DataRoot(root)).port() is not None)
        second = await anyio.run_process([AVA[0], "worker"], env=env)
        said = second.stderr.decode()
        assert f"process {first.pid}) only serves `ava ui`" in said and "`ava worker --stay`" in said, said
        first.terminate()


async def test_a_worker_exits_when_idle_but_stays_for_paused_runs(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert background.WORKER_IDLE_S == 60
    monkeypatch.setattr(background, "WORKER_IDLE_S", 1.0)
    with run_model_server([Fail(429, retry_after="4"), hand_over()]) as models:
        async with open_lab(tmp_path, server=models, runs=False, check=False) as lab:
            run_id = await lab.start(timeout=3)
        settings = load_settings(root, env=model_env(models.base_url) | {"AVA_MODEL": "test"})
        async with open_runtime(settings, modes.working(settings)) as runtime:
            with post_at(root) as post, anyio.fail_after(40):
                await serve._until_idle(runtime, post, Listeners(runtime))
            row = await runtime.store.read(lambda view: view.run(run_id))
            assert row is not None and row.state == "success", "it waited for the pause, and ended the run"


async def test_a_worker_is_started_once_and_again_when_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    takes = (
        "import sys, time; from pathlib import Path; from ava_audit.store.locks import try_hold;"
        f" h = try_hold(Path({str(tmp_path / 'worker.lock')!r}));"
        " print('up', file=sys.stderr, flush=True); time.sleep(1)"
    )
    words = tmp_path / "worker.log"
    start_worker = WorkerProcesses(DataRoot(tmp_path), (sys.executable, "-c", takes))
    for times in (1, 2):
        await start_worker()
        await start_worker()
        await until(lambda: words.read_text() == "up\n" * times)  # noqa: B023 - awaited in this turn
        await start_worker()
        await until(lambda: not lock_is_held(tmp_path / "worker.lock"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "removed" / "python"))
    with pytest.raises(OSError, match="removed"):
        await WorkerProcesses(DataRoot(tmp_path))()


def post_at(root: Path) -> HeldLock:
    """The lock of a data root's worker."""
    post = hold_worker_lock(DataRoot(root))
    assert post is not None
    return post


async def test_starts_no_worker_for_a_run_that_the_server_cannot_continue(tmp_path: Path, root: Path) -> None:
    """The worker is given this server's keys, and would have to leave the run as well."""
    with run_model_server([]) as models, run_model_server([]) as elsewhere:
        async with open_lab(tmp_path, server=models, runs=False, check=False) as lab:
            run_id = await lab.start()
        async with open_lab(tmp_path, server=elsewhere, background=True, check=False) as lab:
            with anyio.fail_after(40):
                while not (await lab.call("check_subagent", subagent_id=run_id)).runs[0].waits_for:
                    await lab.store.wait_for_entry_after(lab.store.head - 1)
            assert workers_of(root) == []


async def test_a_worker_ends_when_its_data_root_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "WORKER_IDLE_S", 1.0)
    gate = Gate()
    with run_model_server([Say("x", gate=gate), hand_over()]) as models:
        async with open_lab(tmp_path, server=models, mode=modes.BACKGROUND, check=False) as lab:
            await lab.start()
            await until(gate.arrived.is_set)
            with post_at(lab.root) as post, anyio.fail_after(20):
                lab.root.rename(tmp_path / "elsewhere")
                gate.released.set()
                await serve._until_idle(lab.runtime, post, Listeners(lab.runtime))


async def test_a_worker_ends_when_a_newer_program_has_the_log(tmp_path: Path) -> None:
    gate = Gate()
    async with open_lab(tmp_path, [Say("x", gate=gate)], mode=modes.BACKGROUND, check=False) as lab:
        await lab.start()
        await until(gate.arrived.is_set)
        await anyio.to_thread.run_sync(_migrate, lab.root / "ava.db")
        gate.released.set()
        with post_at(lab.root) as post, anyio.fail_after(40):
            await serve._until_idle(lab.runtime, post, Listeners(lab.runtime))


def _migrate(db: Path) -> None:
    with closing(sqlite3.connect(db, isolation_level=None)) as log:
        log.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")


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


def test_an_older_version_waits_while_a_newer_one_takes_over_and_no_longer(tmp_path: Path) -> None:
    """Else an older host would start the next process at once, and the newer one take over again."""
    root = DataRoot(tmp_path)
    root.worker_leave.write_text("99.0")
    assert hold_worker_lock(root) is None
    root.worker_leave.write_text("0.0.1")
    with hold_worker_lock(root) as held:  # type: ignore[union-attr]  # nobody has it
        assert held is not None and not root.worker_leave.exists()
    root.worker_leave.write_text("99.0")
    long_ago_s = time.time() - 60
    os.utime(root.worker_leave, (long_ago_s, long_ago_s))
    with hold_worker_lock(root) as held:  # type: ignore[union-attr]  # nobody has it
        assert held is not None, "the newer one has never come"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_root(tmp_path / "data")
