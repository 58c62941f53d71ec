"""`background`, the default: runs go on in a worker of their own, and outlive the host that asked for them."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from support.background import default_env, descendants_of, end_workers, workers_of
from support.model_server import Fail, Gate, Say, Step, run_model_server
from support.runtime import Lab, hand_over, open_lab
from support.stdio import AVA, assert_intact, environment, make_root, model_env, read_log, serve_stdio, state_of, until
from support.terminal import run_on_terminal

from ava_audit.events import Event, Fence, RunClaimed, RunEnded
from ava_audit.store.locks import HeldLock, try_hold
from ava_audit.store.schema import SCHEMA_VERSION
from ava_audit.units import now_us
from ava_audit.view import append
from ava_server.cli import serve
from ava_server.config.settings import load_settings
from ava_server.core import background
from ava_server.core.background import WorkerProcesses, hold_worker_lock, pages_server
from ava_server.core.data_root import DataRoot
from ava_server.render.host_text import text_of
from ava_server.runs import manager
from ava_server.runs import mode as modes
from ava_server.runs.claims import claim
from ava_server.service.background import Listeners
from ava_server.service.runtime import open_runtime

pytestmark = pytest.mark.slow

NOTE = Say("I look.", [("scratchpad", {"note": "half of it"})])
DONE = Say(calls=[("submit_result", {"summary": "done", "output": "twelve cents"})])


PATIENT = (
    "import sys; from ava_server.core import background; background.WORKER_IDLE_S = 600.0;"
    " from ava_server.cli.app import main; main(sys.argv[1:])"
)
"""A worker that does not end by itself while a slow test needs it."""


@pytest.mark.requirement("N-11")
async def test_a_run_outlives_its_host_and_the_next_host_learns_of_it(root: Path, workspace: Path) -> None:
    gate = Gate()
    with run_model_server([NOTE, Say(DONE.text, DONE.calls, gate=gate)]) as models:
        env = default_env(models.base_url)
        async with end_workers(root):
            async with serve_stdio(root, env=env) as host:
                run = await host.start_run(workspace=str(workspace))
                await until(gate.arrived.is_set)
                [pid] = workers_of(root)
                assert os.getsid(pid) != os.getsid(host.pid), (
                    "it has a session of its own: no terminal and no host ends it"
                )
                assert pid not in descendants_of(host.pid), "opencode ends all of a server's descendants"
                host.process.kill()
            gate.released.set()
            await until(lambda: state_of(root, run) == "success")
            async with serve_stdio(root, env=env) as host:
                answer = await host.tool("check_subagent", subagent_id=run)
                assert answer["runs"][0]["untrusted_result"]["output"] == "twelve cents"
        assert len(models.requests) == 2
    assert [entry.content["reason"] for entry in read_log(root, "RunClaimed", run=run)] == ["start"]
    assert (root / "worker.log").read_text() == "", "it has nothing to complain of"
    assert_intact(root)


@pytest.mark.requirement("N-11")
async def test_two_hosts_share_one_worker_and_a_killed_worker_is_replaced(root: Path, workspace: Path) -> None:
    gates = [Gate(), Gate(), Gate()]
    script: list[Step] = [*(Say("x", gate=gate) for gate in gates), DONE, DONE, DONE]
    with run_model_server(script) as models:
        env = default_env(models.base_url)
        async with end_workers(root), serve_stdio(root, env=env) as one, serve_stdio(root, env=env) as other:
            runs = [await host.start_run(workspace=str(workspace)) for host in (one, other, one)]
            for gate in gates:
                await until(gate.arrived.is_set)
            await until(lambda: len(workers_of(root)) == 1)  # one that came too late finds the post taken, and goes
            [pid] = workers_of(root)
            os.kill(pid, signal.SIGKILL)
            for run in runs:
                await until(partial(_ended, root, run), within_s=60)
                reasons = [entry.content["reason"] for entry in read_log(root, "RunClaimed", run=run)]
                assert reasons == ["start", "takeover"]
            await until(lambda: len(workers_of(root)) == 1)
            assert workers_of(root) != [pid]
    assert_intact(root)


def _ended(root: Path, run: str) -> bool:
    return state_of(root, run) == "success"


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


async def test_a_run_that_no_worker_takes_runs_in_the_server_and_every_surface_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No worker can start."""
    monkeypatch.setattr(manager, "WORKER_TAKES_S", 1.0)
    monkeypatch.setattr(WorkerProcesses.__init__, "__defaults__", ((sys.executable, "-c", "raise SystemExit('no')"),))
    gate = Gate()
    async with open_lab(tmp_path, [Say(DONE.text, DONE.calls, gate=gate)], background=True) as lab:
        run_id = await lab.start()
        await until(gate.arrived.is_set)
        await _says_with_host(lab, run_id, "no background process has taken it within 1 s")
        gate.released.set()
        assert (await lab.ended(run_id)).state == "success"
        [seen] = (await lab.call("check_subagent", subagent_id=run_id)).runs
        assert seen.ends_with_host is None
    assert f"{run_id} runs in this process" in caplog.text
    words = tmp_path / "data" / "worker.log"
    assert words.read_text() == "no\n" and words.stat().st_mode & 0o777 == 0o600


async def _says_with_host(lab: Lab, run_id: str, why: str) -> None:
    """Check that the log, `check_subagent` and `ava show` say that a run ends with its host, and why."""
    claimed = (await lab.facts(run_id, RunClaimed))[-1]
    assert claimed.with_host == why and why in claimed.search_text()
    answer = await lab.call("check_subagent", subagent_id=run_id)
    said = f"It is interrupted when its host or terminal closes, because {why}"
    assert answer.runs[0].ends_with_host == said
    assert f"not as approved: {said}" in text_of(answer)
    shown = await anyio.run_process([AVA[0], "show", run_id], env=environment(lab.root))
    assert f"Not as approved: {said}" in " ".join(shown.stdout.decode().split())


async def test_a_run_that_not_even_a_worker_with_its_own_environment_can_run_says_why(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both workers are older than the host: they have the settings of another moment."""
    without = "import os; [os.environ.pop(name) for name in list(os.environ) if name.startswith('AVA_MODEL')]"
    stale = (sys.executable, "-c", f"{without}; {PATIENT}", "worker")
    monkeypatch.setattr(WorkerProcesses.__init__, "__defaults__", (stale,))
    gate = Gate()
    async with end_workers(root):
        script = [Say(DONE.text, DONE.calls, gate=gate)]
        async with open_lab(tmp_path, script, background=True) as lab:
            run_id = await lab.start()
            await until(gate.arrived.is_set)
            await until(lambda: len(workers_of(root)) == 2)
            [claimed] = await lab.facts(run_id, RunClaimed)
            assert claimed.with_host.startswith("the background process cannot run it: model: "), claimed
            await _says_with_host(lab, run_id, claimed.with_host)
            gate.released.set()
            assert (await lab.ended(run_id)).state == "success"


@pytest.mark.requirement("N-31")
async def test_two_hosts_with_different_endpoints_have_a_worker_each_and_neither_run_needs_its_host(
    root: Path, workspace: Path
) -> None:
    gates = [Gate(), Gate()]
    scripts = [[NOTE, Say(DONE.text, DONE.calls, gate=gate)] for gate in gates]
    with run_model_server(scripts[0]) as models, run_model_server(scripts[1]) as elsewhere:
        async with end_workers(root), serve_stdio(root, env=default_env(models.base_url)) as host:
            first = await host.start_run(workspace=str(workspace))
            await until(gates[0].arrived.is_set)
            assert len(workers_of(root)) == 1
            async with serve_stdio(root, env=default_env(elsewhere.base_url)) as other:
                proposed = await other.tool("spawn_subagent", role="researcher", task="x", workspace=str(workspace))
                assert "It continues within these limits if you close the host" in proposed["message"]
                second = await other.start_run(workspace=str(workspace))
                await until(gates[1].arrived.is_set)
                await until(lambda: len(workers_of(root)) == 2)
                answer = await other.tool("check_subagent", subagent_id=second)
                assert "ends_with_host" not in answer["runs"][0]
                assert second not in other.stderr
            gates[1].released.set()
            await until(partial(_ended, root, second))
            gates[0].released.set()
            await until(partial(_ended, root, first))
        assert len(models.requests) == len(elsewhere.requests) == 2, "each was asked by its own run alone"
    for run in (first, second):
        [claimed] = read_log(root, "RunClaimed", run=run)
        assert (claimed.content["reason"], claimed.content["with_host"]) == ("start", "")
    assert DataRoot(root).worker_locks == [root / "worker.lock"], "the second one leaves nothing behind"
    assert_intact(root)


async def test_a_run_goes_on_where_its_hosts_key_is_although_a_worker_without_it_is_running(
    root: Path, workspace: Path
) -> None:
    """At the same endpoint a worker without the key would run it, and be refused there."""
    gate = Gate()
    with run_model_server([Say("x", gate=gate), DONE]) as models:
        env = default_env(models.base_url)
        keyless = environment(root, **{name: value for name, value in env.items() if name != "AVA_MODEL_API_KEY"})
        command = [sys.executable, "-c", PATIENT, "worker"]
        async with await anyio.open_process(command, env=keyless, stderr=None) as worker, end_workers(root):
            await until(lambda: (root / "worker.lock").exists() and held(root / "worker.lock"))
            async with serve_stdio(root, env=env) as host:
                run = await host.start_run(workspace=str(workspace))
                await until(gate.arrived.is_set)
                [_, beside] = DataRoot(root).worker_locks
                await until(lambda: len(workers_of(root)) == 2)
                [killed] = set(workers_of(root)) - {worker.pid}
                os.kill(killed, signal.SIGKILL)
                await until(lambda: len(read_log(root, "RunClaimed", run=run)) == 2)
                assert held(beside)
            gate.released.set()
            await until(lambda: state_of(root, run) == "success")
        assert all(each.headers["authorization"] == "Bearer none-needed" for each in models.requests)
    reasons = [(entry.content["reason"], entry.content["with_host"]) for entry in read_log(root, "RunClaimed", run=run)]
    assert reasons == [("start", ""), ("takeover", "")]


async def test_a_host_without_background_leaves_a_worker_time_and_says_what_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert manager.WORKER_TAKES_S > 5 * modes.GRACE_S
    monkeypatch.setattr(manager, "WORKER_TAKES_S", 3.0)
    monkeypatch.setattr(WorkerProcesses.__init__, "__defaults__", ((sys.executable, "-c", "raise SystemExit('no')"),))
    gate = Gate()
    with run_model_server([Say(DONE.text, DONE.calls, gate=gate)]) as models:
        async with open_lab(tmp_path, server=models, background=True, check=False) as lab:
            run_id = await lab.start()
        began_us = now_us()
        async with open_lab(tmp_path, server=models, mode=modes.SERVER) as lab:
            entry = await lab.logged(run_id, "RunClaimed")
            assert entry.ts_us - began_us >= 3_000_000
            await _says_with_host(lab, run_id, manager.KEEPS_RUNS)
            gate.released.set()
            assert (await lab.ended(run_id)).state == "success"


async def test_a_worker_has_its_whole_time_once_a_slot_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "WORKER_TAKES_S", 2.0)
    monkeypatch.setattr(WorkerProcesses.__init__, "__defaults__", ((sys.executable, "-c", "raise SystemExit('no')"),))
    one_slot = "[limits]\nrunning_per_user = 1\n"
    async with open_lab(tmp_path, [hand_over()], background=True, config=one_slot, check=False) as lab:
        first, second = await lab.start(task="one"), await lab.start(task="two")
        own = await anyio.to_thread.run_sync(lab.runtime.instances.join)
        none = frozenset[str]()
        await lab.store.do(claim(first, own.name, lab.session.who, none, lab.runtime.manager.slots), first)
        await until(lambda: "slots" in lab.runtime.manager.waiting_for.get(second, ""))
        await anyio.sleep(2)
        ended = RunEnded(status="error", stop_reason="")
        await lab.store.do(append(Event(lab.session.who, ended, run_id=first, fence=Fence(first, 1))))
        free = await lab.logged(first, "RunEnded")
        claimed = await lab.logged(second, "RunClaimed")
        assert claimed.ts_us - free.ts_us >= 2_000_000
        assert (await lab.ended(second)).state == "success"
        await anyio.to_thread.run_sync(own.remove)


async def test_a_run_that_the_worker_cannot_run_goes_on_when_its_terminal_is_left(root: Path, workspace: Path) -> None:
    """It is in a worker beside the first one, as Ctrl-C says."""
    gate = Gate()
    words = ("run", "custom", "Look it up", "--system-prompt", "Look.", "-w", str(workspace))
    with run_model_server([Say("x", gate=gate), DONE]) as models:
        env, command = default_env(models.base_url), [sys.executable, "-c", PATIENT, "worker"]
        async with await anyio.open_process(command, env=environment(root)), end_workers(root):
            await until(lambda: (root / "ava.db").exists())
            text = await anyio.to_thread.run_sync(_leave, root, words, env, gate)
            assert "If left, it will go on." in text
            gate.released.set()
            [run] = {entry.run_id for entry in read_log(root, "RunClaimed")}
            await until(partial(_ended, root, str(run)))


def _leave(root: Path, words: Sequence[str], env: Mapping[str, str], gate: Gate) -> str:
    with run_on_terminal(root, *words, env=env) as screen:
        screen.until("Start it? [y/N]")
        screen.type("yes\n")
        assert gate.arrived.wait(40)
        screen.interrupt()
        screen.until("[c]ancel or [l]eave:")
        screen.type("l\n")
        assert screen.ended() == 130
        return " ".join(screen.text.split())


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
        await until(lambda: not held(tmp_path / "worker.lock"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "removed" / "python"))
    with pytest.raises(OSError, match="removed"):
        await WorkerProcesses(DataRoot(tmp_path))()


def post_at(root: Path) -> HeldLock:
    """The lock of a data root's worker."""
    post = hold_worker_lock(DataRoot(root))
    assert post is not None
    return post


def held(path: Path) -> bool:
    with try_hold(path) or nullcontext() as lock:
        return lock is None


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


async def test_a_server_that_crashes_says_so_and_its_run_goes_on(root: Path, workspace: Path) -> None:
    gate = Gate()
    with run_model_server([NOTE, Say(DONE.text, DONE.calls, gate=gate)]) as models:
        env = default_env(models.base_url)
        async with end_workers(root):
            async with serve_stdio(root, env=env) as host:
                run = await host.start_run(workspace=str(workspace))
                await until(gate.arrived.is_set)
                os.kill(host.pid, signal.SIGSEGV)
                await host.process.wait()
                assert "Fatal Python error: Segmentation fault" in host.stderr
            gate.released.set()
            await until(lambda: state_of(root, run) == "success")
            async with serve_stdio(root, env=env) as host:
                [notice] = (await host.tool("read_ava_logs"))["notices"]
                assert run in notice and "success" in notice
        assert len(models.requests) == 2, "no call was lost"


async def test_a_run_that_ends_its_worker_again_and_again_waits_for_a_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "WORKER_READY_S", 1.0)
    poisoned = (
        "import os; from ava_roles.tools.files import ReadFile;"
        " ReadFile.__call__ = lambda *_given: os.abort(); from ava_server.cli.app import main; main(['worker'])"
    )
    monkeypatch.setattr(WorkerProcesses.__init__, "__defaults__", ((sys.executable, "-c", poisoned),))
    with run_model_server([Say("x", [("read_file", {"path": "."})])]) as models:
        for name, value in model_env(models.base_url).items():
            monkeypatch.setenv(name, value)
        async with open_lab(
            tmp_path, server=models, background=True, env=model_env(models.base_url), check=False
        ) as lab:
            run_id = await lab.start()
            last = await lab.logged(run_id, "RunClaimed", 4, within_s=60)
            await until(lambda: not workers_of(lab.root), within_s=60)
            await anyio.sleep(3)
            assert (await lab.logged(run_id, "RunClaimed", 4)).seq == last.seq
            assert len(await lab.facts(run_id, RunClaimed)) == 4
            assert "interrupted" in (await lab.call("read_ava_logs")).notices[0]


@pytest.mark.parametrize(("yes", "worker"), [(False, True), (True, False)])
async def test_only_what_a_person_approved_at_a_terminal_goes_on_without_it(
    root: Path, workspace: Path, yes: bool, worker: bool
) -> None:
    gate = Gate()
    with run_model_server([NOTE, Say(DONE.text, DONE.calls, gate=gate)]) as models:
        env = default_env(models.base_url)
        given = ["run", "researcher", "Look it up", "--workspace", str(workspace), "--max-cost", "0.50"]
        async with end_workers(root):
            with run_on_terminal(root, *given, *(["--yes"] if yes else []), env=env) as screen:
                if not yes:
                    screen.until("Start it? [y/N] (more: m)")
                    screen.type("m\n")
                    screen.until("if you close the host or terminal")
                    screen.type("y\n")
                await until(gate.arrived.is_set)
                assert len(workers_of(root)) == int(worker)
                screen.process.kill()
            gate.released.set()
            run = read_log(root, "RunClaimed")[0].run_id or ""
            if worker:
                await until(lambda: state_of(root, run) == "success")
            else:
                assert state_of(root, run) == "running" and not workers_of(root)


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
