"""`background`, the default: runs go on in a worker of their own, and outlive the host that asked for them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from support.background import default_env, descendants_of, end_workers, lock_is_held, workers_of
from support.model_server import Gate, Say, Step, run_model_server
from support.runtime import Lab, hand_over, open_lab
from support.stdio import AVA, assert_intact, environment, make_root, model_env, read_log, serve_stdio, state_of, until
from support.terminal import run_on_terminal

from ava_audit.events import Event, Fence, RunClaimed, RunEnded
from ava_audit.units import now_us
from ava_audit.view import append
from ava_server.core import background
from ava_server.core.background import WorkerProcesses
from ava_server.core.data_root import DataRoot
from ava_server.render.host_text import text_of
from ava_server.runs.owner import manager, workers
from ava_server.runs.owner import mode as modes
from ava_server.runs.record.claims import claim

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


async def test_a_run_that_no_worker_takes_runs_in_the_server_and_every_surface_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No worker can start."""
    monkeypatch.setattr(workers, "WORKER_TAKES_S", 1.0)
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
            await until(lambda: (root / "worker.lock").exists() and lock_is_held(root / "worker.lock"))
            async with serve_stdio(root, env=env) as host:
                run = await host.start_run(workspace=str(workspace))
                await until(gate.arrived.is_set)
                [_, beside] = DataRoot(root).worker_locks
                await until(lambda: len(workers_of(root)) == 2)
                [killed] = set(workers_of(root)) - {worker.pid}
                os.kill(killed, signal.SIGKILL)
                await until(lambda: len(read_log(root, "RunClaimed", run=run)) == 2)
                assert lock_is_held(beside)
            gate.released.set()
            await until(lambda: state_of(root, run) == "success")
        assert all(each.headers["authorization"] == "Bearer none-needed" for each in models.requests)
    reasons = [(entry.content["reason"], entry.content["with_host"]) for entry in read_log(root, "RunClaimed", run=run)]
    assert reasons == [("start", ""), ("takeover", "")]


async def test_a_host_without_background_leaves_a_worker_time_and_says_what_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert workers.WORKER_TAKES_S > 5 * modes.GRACE_S
    monkeypatch.setattr(workers, "WORKER_TAKES_S", 3.0)
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
    monkeypatch.setattr(workers, "WORKER_TAKES_S", 2.0)
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


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_root(tmp_path / "data")
