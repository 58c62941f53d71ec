"""Bad moments: a log out of reach, entries that cannot be folded, files that are not what they were."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from support.log import child
from support.model_server import Fail, Gate, ModelServer, Say, running_model_server
from support.models.search_formats import ANTHROPIC
from support.runtime import PRICED, Lab, arrived, check_budgets, connect, hand_over, open_lab, scopes_used
from support.stdio import logged

from ava_audit.errors import StoreUnavailable
from ava_audit.events import (
    AssistantMessage,
    CostReserved,
    CostUpdate,
    ErrorOccurred,
    Event,
    Fence,
    RunClaimed,
    ToolResult,
    Who,
)
from ava_audit.store import store
from ava_audit.store.locks import WriteLock
from ava_audit.store.schema import SCHEMA_VERSION
from ava_audit.view import View
from ava_server.runs.loop import AgentRun
from ava_server.runs.manager import Manager
from ava_server.runs.mode import SERVER
from ava_server.service.spawn import Spawns

NOTE = Say(calls=[("scratchpad", {"note": "half of it"})])
OWN_WORDS = "a fault of Ava itself"


@contextmanager
def held_by_another(root: Path) -> Generator[None]:
    """Hold the queue of writers, as another program would: whatever is to be written waits."""
    lock = WriteLock(root / "write.lock")
    try:
        with lock.held():
            yield
    finally:
        lock.close()


@contextmanager
def warned(logger: str, words: str) -> Generator[anyio.Event]:
    """An event that is set by a warning with these words from the event loop's thread."""
    heard = anyio.Event()

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if words in record.getMessage():
                heard.set()

    ear = Ear()
    logging.getLogger(logger).addHandler(ear)
    try:
        yield heard
    finally:
        logging.getLogger(logger).removeHandler(ear)


# -- money ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_books_an_unsettled_paid_answer_as_unknown_before_reserving_the_wrap_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    paid = Say("long work", NOTE.calls, usage={"prompt_tokens": 5_000, "completion_tokens": 900}, gate=gate)
    async with open_lab(tmp_path, [paid, hand_over()], config=PRICED) as lab:
        run_id = await lab.start(timeout=8)
        await arrived(gate.arrived)
        claimed_us = (await lab.run(run_id)).claimed_us or 0
        with held_by_another(lab.root):
            monkeypatch.setattr(store, "ANSWER_S", 0.2)
            gate.released.set()
            # The work has four fifths of the time; what it was writing then is given up 0.2 s later.
            await until_clock(claimed_us / 1e6 + 8 * 0.8 + 0.5)
            assert await lab.facts(run_id, CostUpdate) == [], "nothing of it could be written"
        monkeypatch.undo()
        run = await lab.ended(run_id)
        assert run.state == "timeout"
        money = [entry for entry in await lab.entries(run_id) if isinstance(entry.fact, CostReserved | CostUpdate)]
        assert [entry.type for entry in money] == ["CostReserved", "CostUpdate", "CostReserved", "CostUpdate"]
        reserved, settled = await lab.facts(run_id, CostReserved), await lab.facts(run_id, CostUpdate)
        assert [fact.settlement for fact in settled] == ["unknown", "billed"]
        assert round(settled[0].cost_cents * 10_000) == reserved[0].micros > 0, (
            "what may have been billed is booked in full"
        )
        assert reserved[1].last is not None
        assert run.cost_micros == round(sum(fact.cost_cents for fact in settled) * 10_000)
        assert (await lab.result(run_id))["uncosted"] is True
        await lab.store.read(check_budgets)
        for scope in await lab.store.read(lambda view: scopes_used(view, run)):
            bucket = await lab.store.read(lambda view, scope=scope: view.bucket(scope))  # type: ignore[misc]
            assert (bucket.spent_micros, bucket.held_micros) == (run.cost_micros, 0), scope
        assert len(await lab.store.read(lambda view: scopes_used(view, run))) >= 3, "run, user-day, installation-day"


@pytest.mark.slow
async def test_books_an_unsettled_web_search_as_unknown_before_reserving_the_wrap_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    look = Say(calls=[("web_search", {"query": "podcast prices"})])
    with running_model_server([Fail(200, ANTHROPIC, gate=gate)]) as provider:
        config = f'[search]\nengine = "anthropic"\n[providers.anthropic]\nbase_url = "{provider.base_url}"\n{PRICED}'
        async with open_lab(tmp_path, [look, hand_over()], config=config) as lab:
            run_id = await lab.start(role="web_crawler", workspace=None, timeout=8)
            await arrived(gate.arrived)
            claimed_us = (await lab.run(run_id)).claimed_us or 0
            with held_by_another(lab.root):
                monkeypatch.setattr(store, "ANSWER_S", 0.2)
                gate.released.set()
                await until_clock(claimed_us / 1e6 + 8 * 0.8 + 0.5)
            monkeypatch.undo()
            run = await lab.ended(run_id)
            assert run.state == "timeout"
            reserved, settled = await lab.facts(run_id, CostReserved), await lab.facts(run_id, CostUpdate)
            assert [fact.tool_call is not None for fact in reserved] == [False, True, False]
            assert [fact.settlement for fact in settled] == ["billed", "unknown", "billed"]
            assert settled[1].cost_by == {"search": reserved[1].micros}
            assert run.cost_micros == round(sum(fact.cost_cents for fact in settled) * 10_000)
            await lab.store.read(check_budgets)


async def until_clock(at_s: float) -> None:
    """Wait for a moment that is itself what the test is about: the end of a run's time."""
    await anyio.sleep(max(0.0, at_s - time.time()))


# -- a log that cannot be written -----------------------------------------------------------------------------------


async def test_a_call_during_a_log_outage_is_answered_after_one_wait_and_recorded_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "ANSWER_S", 1.0)
    async with open_lab(tmp_path, [], check=False) as lab:
        with held_by_another(lab.root):
            began = time.monotonic()
            answer = await lab.call("spawn_subagent", role="custom", task="look it up")
            took = time.monotonic() - began
            assert "the log did not answer in time" in answer.message
            assert 1.0 <= took < 1.9, "the caller is not kept waiting a second time for the record of the refusal"
        with anyio.fail_after(20):
            head = lab.store.head  # before the look: what is written after it wakes the wait
            while not await lab.store.read(lambda view: list(view.rows("type = 'ToolResult'"))):
                head = await lab.store.wait_for_entry_after(head)


async def test_a_newer_program_takes_over_runs_of_an_older_one_that_still_runs(tmp_path: Path) -> None:
    gate = Gate()
    with running_model_server([NOTE, Say("lost", gate=gate), hand_over()]) as server:
        async with open_lab(tmp_path, server=server, config=PRICED, check=False) as older:
            run_id = await older.start()
            await arrived(gate.arrived)
            with user_version(older.root, SCHEMA_VERSION + 1), warned("ava.manager", "left to the newer") as left:
                gate.released.set()
                await left.wait()
            assert (await older.run(run_id)).state == "running", "it is nobody's, and not ended"
            async with open_lab(tmp_path, server=server, config=PRICED, check=False) as newer:
                with anyio.fail_after(40):
                    run = await newer.ended(run_id)
                assert (run.state, run.generation) == ("success", 2)
                assert [fact.settlement for fact in await newer.facts(run_id, CostUpdate)] == [
                    "billed", "unknown", "billed",
                ]  # fmt: skip
                assert await newer.facts(run_id, ErrorOccurred) == []


@contextmanager
def user_version(root: Path, version: int) -> Generator[None]:
    """The log as if a program that knows this version of the schema had migrated it."""
    with contextlib.closing(sqlite3.connect(root / "ava.db", isolation_level=None)) as db:
        (before,) = db.execute("PRAGMA user_version").fetchone()
        db.execute(f"PRAGMA user_version = {version}")
        yield
        db.execute(f"PRAGMA user_version = {before}")


# -- entries that cannot be folded ----------------------------------------------------------------------------------


async def poisoned(tmp: Path, server: ModelServer, gate: Gate) -> str:
    """Leave a run behind that was cut off, with an entry in its log that cannot be folded."""
    async with open_lab(tmp, server=server, check=False) as lab:
        run_id = await lab.start(task="the poisoned one")
        await arrived(gate.arrived)
        agent = Who(lab.session.id, run_id, lab.runtime.user, parent_agent_id="ava")
        fact = AssistantMessage(text="", turn=2, attempt=1, calls=({"name": "scratchpad"},))
        await lab.write(Event(agent, fact, fence=Fence(run_id, 1)))
    return run_id


async def test_a_run_with_unreadable_entries_ends_with_our_own_error_and_others_continue(tmp_path: Path) -> None:
    gate = Gate()
    with running_model_server([NOTE, Say("lost", gate=gate), *[hand_over()] * 4]) as server:
        run_id = await poisoned(tmp_path, server, gate)
        async with open_lab(tmp_path, server=server, check=False) as lab:
            other = await lab.start(task="a sound one")
            assert (await lab.ended(other)).state == "success"
            run = await lab.ended(run_id)
            assert (run.state, run.stop_reason, run.error_kind) == ("error", OWN_WORDS, "internal")
            result = await lab.result(run_id)
            assert "dropped twice" in str(result) and "KeyError" not in str(result)
            assert len(await lab.facts(run_id, RunClaimed)) <= 4
            await lab.store.read(check_budgets)
        requests = len(server.requests)
        async with open_lab(tmp_path, server=server, check=False) as lab:
            checked = await lab.call("check_subagent", subagent_id=run_id)
            assert checked.status == "error"
            assert (await lab.ended(await lab.start(task="after a restart"))).state == "success"
            assert (await lab.run(run_id)).state == "error"
        assert len(server.requests) == requests + 1, "nothing more is asked for the one that ended"


# -- folders that are no longer what they were ----------------------------------------------------------------------


async def claims_within(lab: Lab, run_id: str, seconds: float) -> int:
    """Count a run's claims while nothing but time passes."""
    before = len(await lab.facts(run_id, RunClaimed))
    await anyio.sleep(seconds)
    return len(await lab.facts(run_id, RunClaimed)) - before


@pytest.mark.slow
@pytest.mark.parametrize("begun", [False, True], ids=["queued", "interrupted"])
async def test_a_run_waits_without_busy_looping_while_its_workspace_is_missing(tmp_path: Path, begun: bool) -> None:
    gate = Gate()
    script = [NOTE, Say("lost", gate=gate), hand_over()] if begun else [hand_over()]
    with running_model_server(script) as server:
        async with open_lab(tmp_path, server=server, runs=begun, check=False) as lab:
            folder = lab.workspace / "project"
            folder.mkdir()
            run_id = await lab.start(workspace=str(folder))
            if begun:
                await arrived(gate.arrived)
        away = folder.rename(tmp_path / "unmounted")
        async with open_lab(tmp_path, server=server) as lab:
            assert await claims_within(lab, run_id, 3) == 0, "it is looked at before it is claimed"
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
        async with looked_after(lab):
            assert await claims_within(lab, run_id, 3) <= 3
            assert (await lab.ended(await lab.start(task="another"))).state == "success"
            in_the_way.unlink()
            assert (await lab.ended(run_id)).state == "success"


@asynccontextmanager
async def looked_after(lab: Lab) -> AsyncGenerator[None]:
    """Let a runtime that was opened to look only run what it has."""
    lab.runtime.manager.mode = SERVER
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lab.runtime.manager.run)
        try:
            yield
        finally:
            tasks.cancel_scope.cancel()


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


async def run_child(code: str, *args: Path, within_s: float = 30) -> list[str]:
    """Run code that may use `support` in a process of its own, and return what it printed."""
    path = (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", ""))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
    command = child(code, *args)

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=within_s, check=False)

    done = await anyio.to_thread.run_sync(run)
    assert done.returncode == 0, done.stderr[-3_000:]
    return done.stdout.splitlines()


# -- deciding and ending while the log is out of reach --------------------------------------------------------------


@contextmanager
def unlistable(folder: Path) -> Generator[None]:
    """Put something in a folder's place that says it is one and cannot be listed: a dead process's view of the net."""
    with subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.DEVNULL) as dead:
        os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)  # it is dead, and not yet forgotten
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(exist_ok=True)
        folder.symlink_to(f"/proc/{dead.pid}/net")
        assert folder.is_dir()
        with pytest.raises(OSError):
            list(folder.iterdir())
        try:
            yield
        finally:
            folder.unlink()


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
async def test_cancels_a_group_even_if_the_files_of_one_member_cannot_be_listed(tmp_path: Path) -> None:
    gates = [Gate() for _ in range(3)]
    async with open_lab(tmp_path, [Say("x", gate=gate) for gate in gates], config=PRICED) as lab:
        proposals = [await lab.propose(task=f"number {number}") for number in range(3)]
        first = await lab.approve(*proposals)
        decided = first if first.status == "approved" else await lab.approve(*proposals, last=first.approval_lines[-1])
        assert decided.status == "approved", decided
        for gate in gates:
            await arrived(gate.arrived)
        odd, *others = [proposal.subagent_id for proposal in proposals]
        with unlistable(lab.root / "artifacts" / odd), anyio.fail_after(8):
            with contextlib.suppress(OSError):  # that one's fault may be told; it is not in the way of the others
                await lab.call("cancel_subagent", group_id=decided.group_id)
            assert [(await lab.run(run_id)).state for run_id in others] == ["cancelled", "cancelled"]


@contextmanager
def unreadable(path: Path) -> Generator[None]:
    """Leave the log's index as it is while another process recovers it: nobody can read until that one is gone."""
    code = """
import fcntl, sys
with open(sys.argv[1] + "-shm", "r+b", buffering=0) as index:
    fcntl.lockf(index, fcntl.LOCK_EX, 3, 120)  # as SQLite does: write, checkpoint and recover
    index.seek(8)
    index.write(b"\\xff\\xff\\xff\\xff")
    print("held", flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen(child(code, path), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "held\n"
            yield
        finally:
            process.kill()


@pytest.mark.slow
async def test_a_confirm_is_answered_as_approved_even_if_reading_the_run_fails(tmp_path: Path) -> None:
    async with open_lab(tmp_path, runs=False) as lab:
        proposal = await lab.propose()
        answers: list[Any] = []
        answered = anyio.Event()

        async def confirm() -> None:
            answers.append(await lab.approve(proposal, wait_seconds=2))
            answered.set()

        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(confirm)
                await lab.logged(proposal.subagent_id, "SpawnDecided")
                with unreadable(lab.store.path):
                    with pytest.raises(StoreUnavailable):
                        await lab.store.read(View.head)
                    await answered.wait()
        [answer] = answers
        assert answer.status == "approved"
        assert answer.decisions[0].status == "approved"
        assert answer.message.startswith("Approved; its state cannot be read")
        assert (await lab.run(proposal.subagent_id)).state == "queued"
        again = await lab.approve(proposal)
        assert again.status != "failed" and len(await lab.store.read(lambda view: view.runs())) == 1


@pytest.mark.slow
async def test_a_cancel_that_the_log_could_not_record_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ava_server.runs.loop.END_S", 1.0)
    gate = Gate()
    async with open_lab(tmp_path, [Say("x", NOTE.calls, gate=gate), hand_over(), hand_over()], config=PRICED) as lab:
        run_id = await lab.start()
        await arrived(gate.arrived)
        manager = lab.runtime.manager
        with held_by_another(lab.root):
            monkeypatch.setattr(store, "ANSWER_S", 0.3)
            with pytest.raises(StoreUnavailable):
                await manager.cancel(run_id, lab.session.who, "enough")
            with anyio.fail_after(40):
                # Its owner cannot write its ending, and lets go of it; nor can it be claimed again.
                while manager.activity(run_id) is not None or manager.out_of_reach is None:  # noqa: ASYNC110
                    await anyio.sleep(0.02)
            assert (await lab.run(run_id)).state == "running"
        monkeypatch.setattr(store, "ANSWER_S", 5.0)
        run = await lab.ended(run_id)
        assert run.state == "cancelled"
        assert len(lab.server.requests) == 1
        await lab.store.read(check_budgets)


# -- polls, descriptors ---------------------------------------------------------------------------------------------


async def test_twenty_polls_with_nothing_to_list_log_at_most_once(tmp_path: Path) -> None:
    async with open_lab(tmp_path, runs=False) as lab:
        before = await lab.store.read(View.head)
        for _ in range(20):
            assert (await lab.call("check_subagent")).status == "list"
        await lab.write()  # what was posted before it is written by now
        new = await lab.store.read(lambda view: [view.entry(seq) for seq in range(before + 1, view.head() + 1)])
        types = [entry.type for entry in new if entry is not None]
        assert types in ([], ["ToolCall", "ToolResult"])


@pytest.mark.parametrize(
    "error", [OSError(errno.EMFILE, "Too many open files"), StoreUnavailable("out of reach"), RuntimeError("a bug")]
)
async def test_what_fails_after_a_proposal_is_recorded_does_not_make_the_caller_propose_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def fails(*_given: Any) -> None:
        raise error

    monkeypatch.setattr(Spawns, "_release", fails)
    async with open_lab(tmp_path, runs=False) as lab:
        proposal = await lab.propose()
        [run] = await lab.store.read(lambda view: view.runs())
        assert run.id == proposal.subagent_id
        await lab.write()
        results = await lab.store.read(lambda view: view.of_type("ToolResult"))
        assert [entry.fact.success for entry in results if isinstance(entry.fact, ToolResult)] == [True]


@pytest.mark.slow
async def test_running_out_of_file_descriptors_briefly_does_not_end_the_server(tmp_path: Path) -> None:
    code = """
import os, resource, sys, threading, anyio
from pathlib import Path
from support.runtime import arrived, hand_over, open_lab
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
            await arrived(event)
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
    said = await run_child(code, tmp_path, within_s=60)
    assert said == ["Too many open files", "12 True", "approved success", "success"]


@pytest.mark.slow
@pytest.mark.parametrize("grouped", [False, True], ids=["alone", "in a group"])
async def test_a_run_without_free_file_descriptors_continues_and_counts_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grouped: bool
) -> None:
    tries: list[str] = []
    starts = AgentRun._start_servers

    async def short(run: AgentRun, within_s: float) -> Any:
        tries.append(run.id)
        if len(tries) <= 3:  # more often than Ava tolerates a fault
            error = OSError(errno.EMFILE, "Too many open files")
            raise ExceptionGroup("of a tool", [error]) if grouped else error
        return await starts(run, within_s)

    monkeypatch.setattr(AgentRun, "_start_servers", short)
    monkeypatch.setattr("ava_server.runs.manager.TRY_AGAIN_MOST_S", 0.2)
    async with open_lab(tmp_path, [hand_over()]) as lab:
        run_id = await lab.start()
        assert (await lab.ended(run_id)).state == "success"
        assert len(tries) == 4 and await lab.facts(run_id, ErrorOccurred) == []


async def test_cancels_a_run_with_unreadable_entries(tmp_path: Path) -> None:
    gate = Gate()
    with running_model_server([NOTE, Say("lost", gate=gate)]) as server:
        run_id = await poisoned(tmp_path, server, gate)
        async with open_lab(tmp_path, server=server, runs=False, check=False) as lab:
            with anyio.fail_after(6):
                answer = await lab.call("cancel_subagent", subagent_id=run_id)
            assert answer.status == "cancelled"
            await lab.store.read(check_budgets)


async def test_cancels_a_run_whose_files_cannot_be_listed(tmp_path: Path) -> None:
    gates = [Gate() for _ in range(2)]
    async with open_lab(tmp_path, [Say("x", gate=gate) for gate in gates], config=PRICED) as lab:
        proposals = [await lab.propose(task=f"number {number}") for number in range(2)]
        first = await lab.approve(*proposals)
        decided = first if first.status == "approved" else await lab.approve(*proposals, last=first.approval_lines[-1])
        for gate in gates:
            await arrived(gate.arrived)
        odd = proposals[0].subagent_id
        with unlistable(lab.root / "artifacts" / odd), anyio.fail_after(8):
            answer = await lab.call("cancel_subagent", group_id=decided.group_id)
            assert answer.status == "cancelled"
            assert [(await lab.run(p.subagent_id)).state for p in proposals] == ["cancelled"] * 2


async def test_a_good_result_is_not_lost_because_the_files_cannot_be_listed(tmp_path: Path) -> None:
    gate = Gate()
    async with open_lab(tmp_path, [Say(calls=hand_over().calls, gate=gate), hand_over(), hand_over()]) as lab:
        run_id = await lab.start()
        await arrived(gate.arrived)
        with unlistable(lab.root / "artifacts" / run_id):
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
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]) + os.pathsep + os.environ.get("PYTHONPATH", "")}
    done = await anyio.to_thread.run_sync(
        lambda: subprocess.run(child(code, tmp_path), env=env, capture_output=True, text=True, timeout=60)
    )
    assert done.stdout == "success\n", done.stderr[-2000:]


async def test_a_cancel_call_ends_the_run_while_the_log_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    async with open_lab(tmp_path, [Say("x", NOTE.calls, gate=gate), hand_over(), hand_over()], config=PRICED) as lab:
        run_id = await lab.start()
        await arrived(gate.arrived)
        with held_by_another(lab.root):
            monkeypatch.setattr(store, "ANSWER_S", 0.3)
            answer = await lab.call("cancel_subagent", subagent_id=run_id)
            assert answer.status == "failed" and "log" in answer.message
        monkeypatch.setattr(store, "ANSWER_S", 5.0)
        gate.released.set()
        run = await lab.ended(run_id)
        assert run.state == "cancelled"
        assert len(lab.server.requests) == 1


# -- a clock that jumps ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jump_s", [-3_600, 3_600])
async def test_a_clock_jump_of_an_hour_neither_ends_a_run_nor_changes_its_duration(
    jump_s: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, off_s = time.time_ns, 0
    monkeypatch.setattr(time, "time_ns", lambda: real() + off_s * 10**9)
    gate = Gate()
    async with open_lab(tmp_path, [Say("x", NOTE.calls, gate=gate), *[hand_over()] * 2], config=PRICED) as lab:
        run_id = await lab.start(timeout=60)
        await arrived(gate.arrived)
        off_s = jump_s
        gate.released.set()
        run = await lab.ended(run_id)
        assert (run.state, (await lab.result(run_id))["duration_seconds"] < 30) == ("success", True)
        assert 0 <= run.active_us < 30_000_000
        assert (await lab.outcome(task="and the next one"))["status"] == "success"
        assert (await lab.call("read_ava_logs", last_n=5)).status == "entries"
        off_s = 0
        assert (await lab.call("check_subagent", subagent_id=run_id)).status == "success"


async def test_a_fault_that_ends_the_server_is_on_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(_self: Manager, _tasks: object) -> None:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        async with connect(tmp_path) as (client, _models):
            await client.call_tool("check_subagent", {})
            monkeypatch.setattr(Manager, "_look", broken)
            with anyio.fail_after(40):
                while True:
                    await client.call_tool("check_subagent", {})
                    await anyio.sleep(0.1)
    assert [entry.content["reason"] for entry in logged(tmp_path / "data", "SessionEnd")] == [
        "a fault of Ava itself ended the server; its standard error has the details"
    ]
