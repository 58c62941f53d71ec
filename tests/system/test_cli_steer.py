"""`ava cancel`, `ava send` and `ava wait`: runs of other processes, steered, ended and waited for at the terminal."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from support.log import child
from support.model_server import Gate, Say, Step, run_model_server
from support.stdio import assert_intact, make_root, model_env, read_log, serve_stdio, state_of, until
from support.terminal import COMMAND, ava, environment, run_on_terminal

pytestmark = pytest.mark.slow

NOTE = Say("I look.", [("scratchpad", {"note": "first note"})])
DONE = Say(calls=[("submit_result", {"summary": "All looked up.", "output": "Twelve cents a minute."})])
HOLD = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
db.execute("ROLLBACK")
"""


# -- cancel -----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("S4-15")
def test_cancel_ends_a_run_of_another_process_and_shows_partial_results(root: Path, workspace: Path) -> None:
    gate = Gate()
    with (
        run_model_server([NOTE, Say("x", gate=gate)]) as models,
        running(
            root, models.base_url, "--workspace", str(workspace), "--name", "prices", "--task-id", "T-1"
        ) as process,
    ):
        assert gate.arrived.wait(20)
        run_id = started(root)
        done = ava(root, "cancel", run_id.removeprefix("S-").upper(), "--reason", "found it myself")
        out, errors = process.communicate(timeout=20)
        again = ava(root, "cancel", run_id)
        as_json = json.loads(ava(root, "cancel", run_id, "--json").stdout)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f'Data root: {root}\n# researcher "prices" ({run_id}): cancelled')
    assert "Ended as cancelled: cancelled on request" in done.stdout
    assert "first note" in done.stdout
    assert (process.returncode, "Ended as cancelled" in out, errors.count("Traceback")) == (15, True, 0)
    [request] = [entry.content for entry in read_log(root, "CancelRequested")]
    assert (request["by"], request["reason"]) == ("person", "found it myself")
    assert again.returncode == 0
    assert f'researcher "prices" ({run_id}) had ended before: cancelled.' in again.stderr
    assert (as_json["ended_before"], as_json["runs"][0]["task_id"]) == ([run_id], "T-1")
    assert len(read_log(root, "RunEnded")) == 1
    assert_intact(root)


async def test_cancel_ends_runs_and_proposals_itself_when_no_server_is_left(root: Path, workspace: Path) -> None:
    gate = Gate()
    make_root(root, config_toml="[limits]\nrunning = 1\n")
    with run_model_server([NOTE, Say("x", gate=gate)]) as models:
        async with serve_stdio(root, env=model_env(models.base_url)) as host:
            run = await host.start_run(workspace=str(workspace))
            await until(gate.arrived.is_set)
            queued = await host.start_run(workspace=str(workspace))
            asked = {"role": "researcher", "task": "Another", "workspace": str(workspace)}
            waiting = await host.tool("spawn_subagent", **asked)
            host.signal(signal.SIGKILL)
            await host.exited()
        began = time.monotonic()
        done = await told(root, "cancel", run, queued, waiting["pending_id"], env=model_env(models.base_url))
        took_s = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    assert [state_of(root, one) for one in (run, queued, waiting["subagent_id"])] == ["cancelled"] * 3
    assert "first note" in done.stdout
    ended = {entry.run_id: entry.seq for entry in read_log(root, "RunEnded")}
    asked_seq = {entry.run_id: entry.seq for entry in read_log(root, "CancelRequested")}
    assert set(ended) == set(asked_seq) == {run, queued, waiting["subagent_id"]}
    assert took_s < 12, "5 s for the ending, and what a process takes to start and to end"
    assert_intact(root)


async def test_cancel_and_wait_accept_a_plan_id(root: Path, workspace: Path) -> None:
    def script(_request: dict[str, Any]) -> Step:
        return Say("x", gate=Gate())

    with run_model_server(script) as models:
        async with serve_stdio(root, env=model_env(models.base_url)) as host:
            asked = {"role": "researcher", "workspace": str(workspace)}
            made = [await host.tool("spawn_subagent", task=name, **asked) for name in ("one", "two")]
            lines = [each["approval_line"] for each in made]
            ids = [each["pending_id"] for each in made]
            refused = await host.tool_result("confirm_spawn", pending_ids=ids, approving=lines)
            lines = refused["structuredContent"]["approval_lines"]
            group = (await host.tool("confirm_spawn", pending_ids=ids, approving=lines))["group_id"]
            await until(lambda: len(models.requests) == 2)
            waiting = await anyio.to_thread.run_sync(lambda: ava(root, "wait", group, "--timeout", "1"))
            done = await told(root, "cancel", group.lower().removeprefix("g-"))
            waited = await told(root, "wait", group, "--json")
    assert waiting.returncode == 130
    assert waiting.stderr.count(f"Still there: plan {group}") == 1
    assert (done.returncode, done.stdout.count("Ended as cancelled")) == (0, 1)
    assert waited.returncode == 15
    (plan,) = json.loads(waited.stdout)["runs"]
    assert plan["state"] == "cancelled" and plan["plan"]["runs"] == {"not done": 2}


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("cancel", "S-000000"), "There is no subagent S-000000"),
        (("cancel", "G-0000000"), "There is no plan G-0000000"),
        (("cancel", "seven"), "'seven' is not an id: a subagent's looks like S-7f3a2b"),
        (("wait", "seven"), "a plan's like G-4e1b2c3"),
        (("send", "P-00000000", "hello"), "There is no subagent P-00000000"),
        (("wait", "S-000000", "--timeout", "soon"), "--timeout: 'soon' is not a duration"),
    ],
)
def test_a_wrong_id_prints_one_sentence_and_creates_no_data_root(root: Path, args: tuple[str, ...], says: str) -> None:
    done = ava(root, *args)
    assert (done.returncode, done.stderr.count("\n"), says in done.stderr) == (2, 1, True), done.stderr
    assert not root.exists()


@pytest.mark.parametrize("command", [("cancel", "S-7f3a2b"), ("send", "S-7f3a2b", "go on")])
def test_a_subagent_cannot_steer_subagents(root: Path, command: tuple[str, ...]) -> None:
    done = ava(root, *command, env={"AVA_RUN_ID": "S-7f3a2b"})
    assert (done.returncode, "(AVA_RUN_ID is set)" in done.stderr) == (2, True)


# -- send -------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("S4-13")
async def test_a_sent_message_is_read_before_the_next_turn_and_logged_with_its_source(
    root: Path, workspace: Path
) -> None:
    gate = Gate()
    with run_model_server([Say("", NOTE.calls, gate=gate), DONE]) as models:
        async with serve_stdio(root, env=model_env(models.base_url)) as host:
            asked = {"role": "researcher", "task": "Prices", "workspace": str(workspace), "name": "prices"}
            proposed = await host.tool("spawn_subagent", **asked)
            run = proposed["subagent_id"]
            early = await told(root, "send", run, "too early")
            approving = [proposed["approval_line"]]
            await host.tool("confirm_spawn", pending_ids=[proposed["pending_id"]], approving=approving)
            await until(gate.arrived.is_set)
            key = await told(root, "send", run, "use sk-ant-api03-" + "a1B2" * 20)
            sent = await told(root, "send", proposed["pending_id"], "Only this year, \x1b[31mplease.")
            gate.released.set()
            waited = await told(root, "wait", run)
            late = await told(root, "send", run, "too late", "--json")
    assert (early.returncode, key.returncode, late.returncode) == (10, 2, 10)
    assert (
        f'researcher "prices" ({run}) waits for approval; to change it, cancel it and propose it again' in early.stderr
    )
    assert f'researcher "prices" ({run}) has ended; ask on with `ava run --context-from`' in late.stderr
    assert "message: it contains what looks like a key" in key.stderr
    assert sent.returncode == 0, sent.stderr
    assert f'researcher "prices" ({run}) reads it before its next turn.' in sent.stdout
    assert "Only this year, " in json.dumps(models.requests[1].json["messages"])
    assert (waited.returncode, "Twelve cents a minute." in waited.stdout) == (0, True)
    terminals = [entry.session for entry in read_log(root, "SessionStart") if entry.content["transport"] == "terminal"]
    messages = [entry for entry in read_log(root, "UserMessage", run=run) if entry.content["kind"] == "message"]
    assert len(messages) == 1 and messages[0].session in terminals
    calls = [entry for entry in read_log(root, "ToolCall") if entry.content["tool"] == "message_subagent"]
    assert {entry.session for entry in calls} <= set(terminals)
    assert not any("sk-ant" in json.dumps(entry.content) for entry in read_log(root))
    assert_intact(root)


async def test_a_message_to_a_queued_run_is_read_when_it_starts(root: Path, workspace: Path) -> None:
    gate = Gate()
    make_root(root, config_toml="[limits]\nrunning = 1\n")
    with run_model_server([Say("", DONE.calls, gate=gate), DONE]) as models:
        async with serve_stdio(root, env=model_env(models.base_url)) as host:
            await host.start_run(workspace=str(workspace))
            await until(gate.arrived.is_set)
            queued = await host.start_run(workspace=str(workspace))
            sent = await told(root, "send", queued, "Only this year.")
            waits = await told(root, "wait", queued, "--timeout", "1")
            gate.released.set()
            waited = await told(root, "wait", queued)
    assert f"researcher {queued} reads it when it starts." in sent.stdout
    assert waits.returncode == 130
    assert f"researcher {queued}: queued: number 1 in the queue: all 1 slots are taken" in waits.stderr
    assert waited.returncode == 0
    assert "Only this year." in json.dumps(models.requests[1].json["messages"])


# -- wait -------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("S4-01")
async def test_wait_prints_the_results_and_exits_with_the_worst_code(root: Path, workspace: Path) -> None:
    first, second = Gate(), Gate()

    def script(request: dict[str, Any]) -> Step:
        if "fails" in json.dumps(request["messages"]):
            return Say("", NOTE.calls, gate=second)
        return Say("", DONE.calls, gate=first)

    with run_model_server(script) as models:
        async with serve_stdio(root, env=model_env(models.base_url)) as host:
            good = await host.start_run(workspace=str(workspace), task="succeeds")
            bad = await host.start_run(workspace=str(workspace), task="fails", max_iterations=1)
            await until(lambda: first.arrived.is_set() and second.arrived.is_set())
            waiting = await anyio.open_process(
                [*COMMAND, "wait", good, bad.removeprefix("S-"), good], env=environment(root), stdin=subprocess.DEVNULL
            )
            assert waiting.stdout is not None and waiting.stderr is not None
            first_line = (await waiting.stderr.receive()).decode()
            assert waiting.returncode is None
            first.released.set()
            second.released.set()
            out = b"".join([piece async for piece in waiting.stdout]).decode()
            more = b"".join([piece async for piece in waiting.stderr]).decode()
            code = await waiting.wait()
            await waiting.aclose()
            alone = await told(root, "wait", good, "--json")
            last = await told(root, "wait", "--json")
            told_of = (await host.tool("check_subagent", subagent_id=good)).get("notices")
    assert code == 13, more
    assert out.count("Twelve cents a minute.") == 1
    assert "Ended as iteration limit" in out
    assert first_line.startswith("2 subagents, 0 ended, ")
    assert (first_line + more).count("\n") <= 3, "a plain line at most every ten seconds"
    assert (alone.returncode, json.loads(alone.stdout)["runs"][0]["subagent_id"]) == (0, good)
    assert (last.returncode, json.loads(last.stdout)["runs"][0]["subagent_id"]) == (13, bad), "without an id"
    assert told_of is None, "who waited for it has seen it"
    fetched = [entry.content for entry in read_log(root, "ToolResult", run=good) if entry.agent == "ava"]
    assert "ava wait" in [content["tool"] for content in fetched]


def test_ctrl_c_ends_only_the_wait_and_a_terminal_shows_the_activity(root: Path, workspace: Path) -> None:
    gate = Gate()
    with (
        run_model_server([NOTE, Say("", DONE.calls, gate=gate)]) as models,
        running(root, models.base_url, "--workspace", str(workspace), "--name", "prices") as process,
    ):
        assert gate.arrived.wait(20)
        run_id = started(root)
        with run_on_terminal(root, "wait", run_id) as screen:
            shown = screen.until_shown(lambda lines: any(line.endswith(" Thinking") for line in lines))
            assert f'researcher "prices" ({run_id})' in shown
            assert "  Taking a note" in shown, "what it did before, too"
            screen.interrupt()
            assert screen.ended() == 130
        assert "The wait was ended; the runs were not." in screen.text
        assert process.poll() is None
        gate.released.set()
        with run_on_terminal(root, "wait", run_id) as screen:
            assert screen.ended() == 0
        assert "Twelve cents a minute." in screen.text
        process.communicate(timeout=20)
    assert process.returncode == 0


async def test_wait_shows_what_a_run_is_waiting_for(root: Path, workspace: Path) -> None:
    gate = Gate()
    make_root(root, config_toml="proposal_ttl_s = 12\n[limits]\nrunning = 1\n")
    with run_model_server([Say("x", gate=gate)]) as models:
        async with serve_stdio(root, env=model_env(models.base_url)) as host:
            run = await host.start_run(workspace=str(workspace))
            await until(gate.arrived.is_set)
            queued = await host.start_run(workspace=str(workspace))
            proposed = await host.tool("spawn_subagent", role="researcher", task="x", workspace=str(workspace))
            waiting = await told(root, "wait", proposed["subagent_id"], "--timeout", "0.5")
            host.signal(signal.SIGKILL)
            await host.exited()
        alone = await told(root, "wait", run, "--timeout", "0.5")
        in_queue = await told(root, "wait", queued, "--timeout", "0.5")
        sent = await told(root, "send", run, "Only this year.")
        expired = await told(root, "wait", proposed["pending_id"])
    assert f"to approve: a person has to approve it ({proposed['pending_id']})" in waiting.stderr
    assert f"researcher {run}: interrupted: no server is running it: the next Ava server" in alone.stderr
    assert "The wait ended after 0.5 s; the runs did not." in alone.stderr
    assert "queued: number 1 in the queue: no Ava server is running" in in_queue.stderr
    assert f"researcher {run} reads it when an Ava server has taken it over; no server is running it" in sent.stdout
    assert (waiting.returncode, alone.returncode, in_queue.returncode) == (130, 130, 130)
    assert (expired.returncode, "has expired" in expired.stdout) == (10, True), expired.stdout


# -- ava run and a log that is held -----------------------------------------------------------------------------------


def test_run_without_a_terminal_reports_that_it_waits_for_the_log(root: Path, workspace: Path) -> None:
    gate = Gate()
    with (
        run_model_server([Say("", NOTE.calls, gate=gate), DONE]) as models,
        running(root, models.base_url, "--workspace", str(workspace)) as process,
    ):
        assert process.stderr is not None
        assert gate.arrived.wait(20)
        with subprocess.Popen(child(HOLD, root / "ava.db"), stdin=-1, stdout=-1, text=True) as holder:
            assert holder.stdout is not None and holder.stdin is not None
            assert holder.stdout.readline() == "held\n"
            gate.released.set()
            lines: list[str] = []
            while "another program may hold ava.db" not in "".join(lines):
                line = process.stderr.readline()
                assert line, lines
                lines.append(line)
            holder.stdin.close()
        out, _errors = process.communicate(timeout=40)
    assert process.returncode == 0, out


def test_run_without_a_terminal_reports_a_damaged_log_and_can_be_interrupted(root: Path, workspace: Path) -> None:
    gate = Gate()
    with (
        run_model_server([Say("", NOTE.calls, gate=gate)]) as models,
        running(root, models.base_url, "--workspace", str(workspace)) as process,
    ):
        assert process.stderr is not None
        assert gate.arrived.wait(20)
        for path in (root / "ava.db-wal", root / "ava.db"):
            path.write_bytes(b"garbage!" * 12 + path.read_bytes()[96:] if path.name == "ava.db" else b"")
        gate.released.set()
        lines: list[str] = []
        while "damaged" not in "".join(lines):
            line = process.stderr.readline()
            assert line, lines
            lines.append(line)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=40)
    assert process.returncode == 130


async def told(root: Path, *args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """What a command says, in a process of its own, without a terminal."""
    return await anyio.to_thread.run_sync(lambda: ava(root, *args, env=env))


@contextmanager
def running(root: Path, base_url: str, *more: str) -> Iterator[subprocess.Popen[str]]:
    """`ava run` in a process of its own."""
    args = ("run", "researcher", "What does it cost?", "--yes", "--max-cost", "1", *more)
    process = subprocess.Popen(
        [*COMMAND, *args], env=environment(root, **model_env(base_url)), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def started(root: Path) -> str:
    """The id of the only run."""
    [entry] = read_log(root, "SpawnProposed")
    run_id: str = entry.content["subagent_id"]
    return run_id
