"""Workers on several machines share the runs of a log in Postgres. Each data root of its own is a machine."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from support.engines.worker_machines import (
    DONE,
    LEASE_S,
    NOTE,
    claim_reasons,
    make_machine,
    run_worker,
    take_over_late,
    told_of_run,
    wait_for_success,
)
from support.model_server import Fail, Gate, Say, Step, run_model_server
from support.stdio import assert_intact, model_env, read_log, serve_stdio, state_of, until

psycopg = pytest.importorskip("psycopg", reason="the driver is not installed")

from support.postgres import PostgresServer, postgres_server  # noqa: E402

from ava_audit.postgres.server import LOCK  # noqa: E402

pytestmark = pytest.mark.slow


async def test_a_worker_on_another_machine_runs_what_a_server_has_approved(
    root: Path, tmp_path: Path, url: str
) -> None:
    with run_model_server([NOTE, DONE]) as models:
        async with serve_stdio(root, env=model_env(models.base_url)) as host:
            run = await host.start_run(workspace=None)
            await until(lambda: "no worker is running" in str(told_of_run(root, run)), within_s=60)
            async with run_worker(make_machine(tmp_path, "worker", url), url, models.base_url):
                await until(lambda: state_of(root, run) == "success", within_s=60)
            answer = await host.tool("check_subagent", subagent_id=run)
            assert answer["runs"][0]["untrusted_result"]["output"] == "twelve cents"
    assert [reason for _owner, reason in claim_reasons(root, run)] == ["start"]
    assert_intact(root)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_another_worker_takes_over_within_the_lease_and_two_seconds(
    root: Path, tmp_path: Path, url: str, how: signal.Signals
) -> None:
    gate = Gate()
    script: list[Step] = [NOTE, Say("slow", gate=gate), DONE]
    with run_model_server(script) as models:
        async with (
            serve_stdio(root, env=model_env(models.base_url)) as host,
            run_worker(make_machine(tmp_path, "one", url), url, models.base_url) as first,
        ):
            run = await host.start_run(workspace=None)
            await until(gate.arrived.is_set, within_s=60)
            async with run_worker(make_machine(tmp_path, "two", url), url, models.base_url):
                first.send_signal(how)
                began = anyio.current_time()
                await until(lambda: len(claim_reasons(root, run)) == 2, within_s=LEASE_S + 10)
                assert anyio.current_time() - began < LEASE_S + 2
                await until(lambda: state_of(root, run) == "success", within_s=60)
                gate.released.set()
                if how == signal.SIGSTOP:
                    first.send_signal(signal.SIGCONT)
                    await anyio.sleep(LEASE_S)
                    assert first.returncode is None, "it goes on with other runs"
    (one, start), (other, takeover) = claim_reasons(root, run)
    assert one != other and (start, takeover) == ("start", "takeover")
    assert len(read_log(root, "RunEnded", run=run)) == 1
    assert_intact(root)


BATCH = 12
MANY = f"\n[limits]\nrunning = {BATCH}\nrunning_per_user = {BATCH}\nspawns_per_hour = 100\n"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_every_run_of_a_batch_is_done_though_the_worker_that_claimed_them_dies_or_stops(
    tmp_path: Path, url: str, how: signal.Signals
) -> None:
    gone = anyio.Event()

    def answer(_request: object) -> Say:
        return DONE if gone.is_set() else replace(DONE, gate=Gate(within_s=120))

    roots = [make_machine(tmp_path, name, url, MANY) for name in ("s", "1", "2")]
    with run_model_server(answer) as models:
        async with serve_stdio(roots[0], env=model_env(models.base_url)) as host:
            runs = [await host.start_run(workspace=None) for _ in range(BATCH)]
            async with run_worker(roots[1], url, models.base_url) as first:
                await until(lambda: len(read_log(roots[0], "RunClaimed")) > 1, within_s=60)
                first.send_signal(how)
                gone.set()
                async with run_worker(roots[2], url, models.base_url):
                    await wait_for_success(roots[0], runs)
                    if how == signal.SIGSTOP:
                        first.send_signal(signal.SIGCONT)
                        await anyio.sleep(LEASE_S)
    assert len(read_log(roots[0], "RunEnded")) == BATCH
    taken = {run: [reason for _owner, reason in claim_reasons(roots[0], run)] for run in runs}
    assert all(reasons in (["start"], ["start", "takeover"]) for reasons in taken.values()), taken
    assert ["start", "takeover"] in taken.values()
    assert_intact(roots[0])


SLOW_S, HELD_S, TURN_S = 60.0, 0.5, 3.0


async def test_a_database_that_answers_ten_times_as_slowly_for_a_minute_costs_time_and_no_run(
    tmp_path: Path, url: str
) -> None:
    over = threading.Event()

    def answer(_request: object) -> Say:
        return DONE if over.is_set() else replace(NOTE, gate=Gate(within_s=TURN_S))

    def slow() -> None:
        with psycopg.connect(url) as conn:
            end_s = time.monotonic() + SLOW_S
            while time.monotonic() < end_s:
                conn.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
                conn.execute("SELECT pg_sleep(%s)", (HELD_S,))
                conn.commit()
        over.set()

    roots = [make_machine(tmp_path, name, url, MANY) for name in ("s", "1", "2")]
    with run_model_server(answer) as models:
        async with serve_stdio(roots[0], env=model_env(models.base_url)) as host:
            more = {"max_iterations": 60, "max_cost_cents": 200, "workspace": None}
            runs = [await host.start_run(**more) for _ in range(BATCH)]
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(anyio.to_thread.run_sync, slow)
                async with run_worker(roots[1], url, models.base_url), run_worker(roots[2], url, models.base_url):
                    await wait_for_success(roots[0], runs)
    assert [claim_reasons(roots[0], run)[0][1:] for run in runs] == [("start",)] * BATCH
    assert len(read_log(roots[0], "RunClaimed")) == len(read_log(roots[0], "RunEnded")) == BATCH
    assert len(models.requests) > 4 * BATCH, "they went on meanwhile"
    assert_intact(roots[0])


def leases(root: Path) -> list[int]:
    """The pids of the workers whose leases have not expired."""
    from support.log import look_at

    with look_at(root) as db:
        sql = "SELECT pid FROM leases WHERE kind = 'worker' AND renewed_at + lease_ms * interval '1 ms' > now()"
        return [pid for (pid,) in db.execute(sql).fetchall()]


async def test_a_worker_that_wakes_up_cannot_complete_a_run_that_was_taken_over(
    root: Path, tmp_path: Path, url: str
) -> None:
    done = Say(calls=[("submit_result", {"summary": "late", "output": "of the worker that was stopped"})])
    async with take_over_late(root, tmp_path, url, done) as taken:
        await taken.keeps_its_owner()
        assert taken.woken.returncode is None
        await taken.finish()


async def test_a_worker_that_wakes_up_and_renews_its_lease_does_not_get_its_run_back(
    root: Path, tmp_path: Path, url: str
) -> None:
    async with take_over_late(root, tmp_path, url, NOTE) as taken:
        await until(lambda: taken.woken.pid in leases(root), within_s=LEASE_S + 2)
        await taken.keeps_its_owner()
        assert taken.woken.pid in leases(root), "it goes on to renew it, for other runs"
        await taken.finish()


async def test_a_worker_that_wakes_up_does_not_repeat_its_failed_call(root: Path, tmp_path: Path, url: str) -> None:
    async with take_over_late(root, tmp_path, url, Fail(500)) as taken:
        await taken.keeps_its_owner()
        await taken.finish()


async def test_a_worker_that_wakes_up_and_dies_takes_no_run_with_it(root: Path, tmp_path: Path, url: str) -> None:
    async with take_over_late(root, tmp_path, url, NOTE) as taken:
        await until(lambda: taken.woken.pid in leases(root), within_s=LEASE_S + 2)
        taken.woken.kill()
        await taken.woken.wait()
        await taken.keeps_its_owner()
        await taken.finish()


async def test_a_worker_that_is_stopped_hands_its_runs_over_and_loses_no_answer(
    root: Path, tmp_path: Path, url: str
) -> None:
    gate = Gate()
    with run_model_server([Say("slow", NOTE.calls, gate=gate), DONE]) as models:
        async with (
            serve_stdio(root, env=model_env(models.base_url)) as host,
            run_worker(make_machine(tmp_path, "one", url), url, models.base_url) as first,
        ):
            run = await host.start_run(workspace=None)
            await until(gate.arrived.is_set, within_s=60)
            first.send_signal(signal.SIGTERM)
            await anyio.sleep(0.5)
            async with run_worker(make_machine(tmp_path, "two", url), url, models.base_url):
                assert len(claim_reasons(root, run)) == 1, "the first one waits for the answer that is being paid for"
                gate.released.set()
                assert await first.wait() == 0
                await until(lambda: state_of(root, run) == "success", within_s=60)
        assert len(models.requests) == 2, "no call was repeated"
    assert [reason for _owner, reason in claim_reasons(root, run)] == ["start", "takeover"]
    assert_intact(root)


async def test_a_worker_without_the_key_says_so_and_leaves_the_run_to_one_that_has_it(
    root: Path, tmp_path: Path, url: str
) -> None:
    with run_model_server([DONE]) as models:
        async with (
            serve_stdio(root, env=model_env(models.base_url)) as host,
            run_worker(make_machine(tmp_path, "poor", url), url, ""),
        ):
            run = await host.start_run(workspace=None)
            waits = await until(lambda: (words := told_of_run(root, run)) and "custom" in words and words, within_s=60)
            assert os.uname().nodename in waits
            status = await host.tool("check_subagent", subagent_id=run)
            assert "custom" in str(status)
            async with run_worker(make_machine(tmp_path, "rich", url), url, models.base_url):
                await until(lambda: state_of(root, run) == "success", within_s=60)
    assert_intact(root)


async def test_a_role_that_asks_for_a_label_runs_where_it_is(root: Path, tmp_path: Path, url: str) -> None:
    (root / "roles").mkdir()
    text = "---\ndescription: Needs a special machine.\nlabels: [gpu]\n---\nLook it up.\n"
    (root / "roles" / "special.md").write_text(text)
    with run_model_server([DONE]) as models:
        async with (
            serve_stdio(root, env=model_env(models.base_url)) as host,
            run_worker(make_machine(tmp_path, "plain", url), url, models.base_url),
        ):
            shown = await host.tool("spawn_subagent", role="special", task="Look it up")
            assert 'It runs only on a machine with these labels: "gpu".' in shown["message"]
            run = await host.start_run(role="special")
            await until(lambda: "a machine with the label gpu" in str(told_of_run(root, run)), within_s=60)
            async with run_worker(make_machine(tmp_path, "gpu", url), url, models.base_url, "--label", "gpu"):
                await until(lambda: state_of(root, run) == "success", within_s=60)
    assert_intact(root)


@pytest.fixture
def url(tmp_path: Path) -> Generator[str]:
    """The address of a database, without a password."""
    server: PostgresServer = postgres_server()
    yield server.database(tmp_path).replace(f":{server.password}@", "@")
    server.empty_databases()


@pytest.fixture
def root(tmp_path: Path, url: str) -> Path:
    """The data root of a server."""
    return make_machine(tmp_path, "server", url)
