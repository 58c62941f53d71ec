"""`ava resume`: an interrupted run goes on at a terminal, and what cannot go on is said."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from support.model_server import Fail, Gate, ModelServer, Say, Step, run_model_server
from support.runtime import PRICED, check_requests, hand_over, open_lab, wait_for
from support.stdio import AVA, assert_intact, environment, model_env, read_log, state_of
from support.terminal import CONTROLLED, run_on_terminal

from ava_audit.units import iso_utc, parse_time
from ava_server.config.pin import PinFile
from ava_server.core.data_root import DataRoot

pytestmark = pytest.mark.slow

PIN = "73-heron-92"
NOTE = Say(calls=[("scratchpad", {"note": "half of it"})])


@asynccontextmanager
async def interrupted(tmp: Path) -> AsyncGenerator[tuple[ModelServer, str]]:
    """A run whose owner is gone."""
    gate = Gate()
    with run_model_server([NOTE, Say("lost", gate=gate), hand_over(), hand_over()]) as server:
        async with open_lab(tmp, server=server, config=PRICED, check=False) as lab:
            run_id = await lab.start(name="prices")
            await wait_for(gate.arrived)
        yield server, run_id
        await check_requests(tmp / "data", server.requests)


async def ava(tmp: Path, server: ModelServer, *words: str, **more: str) -> tuple[int, str, str]:
    """Run a command as a person without a terminal does; return exit code, output and errors."""
    env = {**environment(tmp / "data"), **model_env(server.base_url), "AVA_MODEL": "test", **more}
    done = await anyio.run_process([AVA[0], *words], env=env, check=False)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


async def test_continues_a_run_and_shows_its_result(tmp_path: Path) -> None:
    async with interrupted(tmp_path) as (server, run_id):
        code, out, err = await ava(tmp_path, server, "resume", run_id.removeprefix("S-").upper(), "--json")
        assert code == 0, err
        answer = json.loads(out)
        assert answer["state"] == "success" and answer["untrusted_result"]["output"] == "the answer"
        assert len(server.requests) == 3, "what was answered is not asked again"
        again = await ava(tmp_path, server, "resume", run_id)
        assert again[0] == 10 and "has ended" in again[2] and "propose it again" in again[2]
    settled = [entry.content["settlement"] for entry in read_log(tmp_path / "data", "CostUpdate", run=run_id)]
    assert settled == ["billed", "unknown", "billed"]
    assert_intact(tmp_path / "data")


SCRIPT = ["run", "researcher", "What is it?", "--yes", "--max-cost", "0.50", "--task-id", "mine"]


async def test_a_script_that_passes_takes_over_no_run_of_another_process(tmp_path: Path) -> None:
    """It ends with its own runs: another one would be left again in the middle of a call, which is paid."""
    async with interrupted(tmp_path) as (server, run_id):
        code, _out, err = await ava(tmp_path, server, *SCRIPT, "-w", str(tmp_path / "workspace"))
        assert code == 0, err
        claims = read_log(tmp_path / "data", "RunClaimed", run=run_id)
        assert [entry.content["reason"] for entry in claims] == ["start"]
        assert len(server.requests) == 3, "two of the run that was left, and one of the script's own"
        code, out, err = await ava(tmp_path, server, "resume", run_id)
        assert code == 0 and "the answer" in out, err


async def test_the_same_script_goes_on_with_its_run_after_it_was_killed(tmp_path: Path) -> None:
    gate = Gate()
    with run_model_server([Say("lost", gate=gate), hand_over()]) as server:
        (tmp_path / "workspace").mkdir()
        env = {**environment(tmp_path / "data"), **model_env(server.base_url), "AVA_MODEL": "test"}
        words = [*SCRIPT, "-w", str(tmp_path / "workspace")]
        async with await anyio.open_process([AVA[0], *words], env=env, stdin=subprocess.DEVNULL) as first:
            await wait_for(gate.arrived)
            first.kill()
        code, out, err = await ava(tmp_path, server, *words)
        assert code == 0 and "the answer" in out, err
        claims = read_log(tmp_path / "data", "RunClaimed")
        assert [entry.content["reason"] for entry in claims] == ["start", "takeover"]


async def test_shows_the_remaining_budget_when_an_old_run_continues(tmp_path: Path) -> None:
    """It has been interrupted for long: nobody takes it over by himself, and the log says who had it go on."""
    async with interrupted(tmp_path) as (server, run_id):
        root = tmp_path / "data"
        command = [
            "import sys, time; import ava_server.runs.record.claims as claims; claims.TAKEOVER_WITHIN_US = 0",
            "from ava_server.cli import run; run(sys.argv[1:])",
        ]
        env = {**environment(root), **model_env(server.base_url), "AVA_MODEL": "test"}
        python = Path(AVA[0]).with_name("python")
        done = await anyio.run_process([str(python), "-c", "\n".join(command), "resume", run_id], env=env, check=False)
        said = done.stdout.decode() + done.stderr.decode()
        assert done.returncode == 0, said
        assert ", resumed with $0.4" in said and "researcher, at most $0.50" in said
        [resumed] = read_log(root, "RunResumed", run=run_id)
        assert resumed.content["channel"] == "host_call" and not resumed.content["force"], "nobody was at a terminal"
        assert [entry.content["reason"] for entry in read_log(root, "RunClaimed", run=run_id)] == ["start", "resume"]


@pytest.mark.parametrize(
    ("words", "more", "code", "says"),
    [
        (["S-000000"], {}, 2, "There is no subagent S-000000"),
        (["what"], {}, 2, "what"),
        (["{run_id}"], {"AVA_RUN_ID": "S-7f3a2b"}, 2, "a subagent starts no subagents"),
        (["{run_id}"], {"AVA_ENABLED": "false"}, 10, "switched off"),
        (["{run_id}"], {"AVA_APPROVAL": "human"}, 10, "only a person at a terminal"),
    ],
)
async def test_explains_why_a_run_cannot_be_resumed(
    tmp_path: Path, words: list[str], more: dict[str, str], code: int, says: str
) -> None:
    async with interrupted(tmp_path) as (server, run_id):
        given = [word.format(run_id=run_id) for word in words]
        got, _out, err = await ava(tmp_path, server, "resume", *given, **more)
        assert (got, says in err) == (code, True), err
        assert "Traceback" not in err
        assert state_of(tmp_path / "data", run_id) == "running" and len(server.requests) == 2


async def test_the_first_pin_is_chosen_where_resuming_takes_one(tmp_path: Path) -> None:
    async with interrupted(tmp_path) as (server, run_id):
        root, env = tmp_path / "data", {**model_env(server.base_url), "AVA_MODEL": "test", "AVA_APPROVAL": "human"}

        def resume() -> tuple[int, str]:
            with run_on_terminal(root, "resume", run_id, env=env, command=CONTROLLED) as screen:
                chosen = [("New approval PIN (not shown)", PIN), ("once more", PIN)]
                return screen.ended_after(chosen), screen.text

        code, text = await anyio.to_thread.run_sync(resume)
        assert code == 0 and "the answer" in text, text
        PinFile(DataRoot(root).approval_file).check(PIN)
    assert_intact(tmp_path / "data")


async def test_leaves_a_run_owned_elsewhere_alone_and_mentions_force(tmp_path: Path) -> None:
    gate = Gate()
    with run_model_server([Say("x", gate=gate), hand_over()]) as server:
        async with open_lab(tmp_path, server=server, config=PRICED, check=False) as lab:
            run_id = await lab.start()
            await wait_for(gate.arrived)
            began = time.monotonic()
            code, _out, err = await ava(tmp_path, server, "resume", run_id)
            assert code == 10 and f"ava resume --force {run_id}" in err and time.monotonic() - began < 10
            gate.released.set()
            assert (await lab.ended(run_id)).state == "success"
            assert (await lab.run(run_id)).generation == 1


async def test_shows_what_each_run_is_waiting_for(tmp_path: Path) -> None:
    gate = Gate()
    config = "[limits]\nrunning_per_user = 1\n" + PRICED
    script: list[Step] = [Fail(429, retry_after="3600"), Say("x", gate=gate)]
    with run_model_server(script) as server:
        async with open_lab(tmp_path, server=server, config=config, check=False) as lab:
            paused = await lab.start(name="limited")
            await lab.logged(paused, "RunPaused")
            running = await lab.start(name="long ago")
            await wait_for(gate.arrived)
            queued = await lab.start(name="patient")
            with anyio.fail_after(20):
                while not (await lab.call("check_subagent", subagent_id=queued)).runs[0].waits_for:
                    await lab.store.wait_for_entry_after(lab.store.head - 1)
            _code, out, _err = await ava(tmp_path, server, "status", "--once")
            assert "paused: the model takes no more calls until " in out
            assert "number 1 in the queue: all 1 slots of " in out
        code, out, err = await ava(tmp_path, server, "status", "--once")
        assert code == 0 and "no server is running it: the next Ava server of this user resumes it" in out, out + err
        for run_id, waits in ((queued, "Waits for: all 1 slots of "), (running, "interrupted")):
            _code, out, _err = await ava(tmp_path, server, "show", run_id)
            assert waits in out and "Ended as" not in out, out
        words = "import sys; import ava_server.runs.record.claims as c; c.TAKEOVER_WITHIN_US = 0"
        words += "; from ava_server.cli import run"
        later = [str(Path(AVA[0]).with_name("python")), "-c", f"{words}; run(sys.argv[1:])", "status", "--once"]
        done = await anyio.run_process(later, env=environment(tmp_path / "data"), check=False)
        assert f"no server is running it; resume it with `ava resume {running}`" in done.stdout.decode()
        assert all(len(line) <= 160 for line in done.stdout.decode().splitlines()[1:])


async def test_shows_until_when_a_run_waits_for_a_usage_limit(tmp_path: Path) -> None:
    until_s = int(time.time()) + 5 * 3600
    said = {"error": {"type": "rate_limit_error", "message": f"Claude AI usage limit reached|{until_s}"}}
    with run_model_server([Fail(429, said)]) as server:
        async with open_lab(tmp_path, server=server, check=False) as lab:
            run_id = await lab.start(name="limited")
            await lab.logged(run_id, "RunPaused")
            paused = await lab.run(run_id)
            until = iso_utc(paused.waits_until_us or 0)
            assert 0 <= parse_time(until, 0) - until_s * 1_000_000 < 10e6
            waits = f"the model takes no more calls until {until}"
            [run] = (await lab.call("check_subagent", subagent_id=run_id)).runs
            assert run.waits_for == waits and run.not_before == until
            _code, status, _err = await ava(tmp_path, server, "status", "--once")
            _code, shown, _err = await ava(tmp_path, server, "show", run_id)
            assert f"paused: {waits}" in status and f"Waits for: {waits}" in shown, status + shown
