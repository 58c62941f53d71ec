"""The end of a server, whoever brings it about: within 5 s, on record, and nothing of it left behind."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest
from support.model_server import Gate, Raw, Say, run_model_server
from support.processes import catches, children_of, lives
from support.stdio import Wire, assert_intact, make_root, model_env, read_log, serve_stdio, state_of, stray_locks, until

from ava_audit.store.locks import WriteLock

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals as POSIX has them")

DONE = Say(calls=[("submit_result", {"summary": "done", "output": "done"})])


End = Callable[[Wire], Awaitable[None]]


@pytest.mark.slow
async def test_an_idle_server_ends_and_logs_the_end_of_its_session(root: Path, end: tuple[End, int]) -> None:
    async with serve_stdio(root) as wire:
        await wire.tool("check_subagent")
        await _ends(wire, end, root)
    mirrored = "".join(file.read_text() for file in (root / "logs" / "ava").glob("*.jsonl"))  # two around midnight
    assert '"SessionEnd"' in mirrored  # the keeper has finished what it had begun


@pytest.mark.slow
async def test_a_run_with_a_hanging_model_call_is_left_to_the_next_server(
    root: Path, workspace: Path, end: tuple[End, int]
) -> None:
    gate = Gate()
    with run_model_server([Say("never said", gate=gate), DONE]) as models:
        async with serve_stdio(root, env=model_env(models.base_url)) as wire:
            run = await wire.start_run(workspace=str(workspace))
            await until(gate.arrived.is_set)
            await _ends(wire, end, root)
        assert state_of(root, run) == "running"
        await until(gate.client_left.is_set)

        async with serve_stdio(root, env=model_env(models.base_url)) as wire:
            ended = await wire.tool("check_subagent", subagent_id=run, wait_seconds=20)
            assert ended["status"] == "success"
            assert len(models.requests) == 2
        settled = [entry.content["settlement"] for entry in read_log(root, "CostUpdate", run=run)]
        assert settled == ["unknown", "billed"]  # what the call in flight cost is not known
    assert_intact(root)


@pytest.mark.slow
async def test_a_stalled_answer_does_not_delay_the_shutdown(root: Path, workspace: Path) -> None:
    stall = Gate()
    half = Raw([b'data: {"choices":[{"index":0,"delta":{"content":"half an ans'], chunked=True, cut=True, stall=stall)
    with run_model_server([half]) as models:
        async with serve_stdio(root, env=model_env(models.base_url)) as wire:
            run = await wire.start_run(workspace=str(workspace))
            await until(stall.arrived.is_set)
            await _ends(wire, (_sigterm, 0), root)
    assert state_of(root, run) == "running"


@pytest.mark.slow
async def test_ending_the_server_ends_the_child_process_of_a_running_tool(
    root: Path, workspace: Path, end: tuple[End, int]
) -> None:
    endless = Say(calls=[("search_codebase", {"query": "(a+)+$", "regex": True})])
    with run_model_server([endless, DONE]) as models:
        async with serve_stdio(root, env=model_env(models.base_url)) as wire:
            run = await wire.start_run(workspace=str(workspace))
            await until(lambda: children_of(wire.pid))
            children = children_of(wire.pid)
            await _ends(wire, end, root)
            await until(lambda: not any(map(lives, children)))
    assert state_of(root, run) == "running"
    assert [entry.content["tool"] for entry in read_log(root, "ToolCall", run=run) if entry.agent == run] == [
        "search_codebase"
    ]


@pytest.mark.slow
async def test_the_server_can_end_before_the_first_message(root: Path, end: tuple[End, int]) -> None:
    bring_about, code = end
    async with serve_stdio(root, initialize=False) as wire:
        await until(lambda: catches(wire.pid, signal.SIGTERM))
        await bring_about(wire)
        assert await wire.exited() == code
        assert wire.stderr == ""
    assert not await anyio.Path(root).exists()


@pytest.mark.slow
async def test_initialize_is_answered_and_the_server_can_end_while_the_store_is_locked(
    root: Path, end: tuple[End, int]
) -> None:
    other = WriteLock(make_root(root) / "write.lock")
    try:
        with other.held():
            async with serve_stdio(root, initialize=False) as wire:
                with anyio.fail_after(40):
                    assert (await wire.initialize())["result"]["serverInfo"]["name"] == "ava"
                    assert len((await wire.request("tools/list"))["result"]["tools"]) == 6
                waiting = await wire.ask("tools/call", {"name": "check_subagent", "arguments": {}})
                assert (await wire.request("ping"))["result"] == {}  # the call waits, the connection does not
                bring_about, code = end
                await bring_about(wire)
                assert await wire.exited() == code
                assert "Traceback" not in wire.stderr
                assert waiting
    finally:
        other.close()


@pytest.mark.slow
async def test_a_call_made_before_the_store_is_open_is_answered_once_it_is(root: Path) -> None:
    other = WriteLock(make_root(root) / "write.lock")
    try:
        with other.held():
            async with serve_stdio(root) as wire:
                waiting = await wire.ask("tools/call", {"name": "check_subagent", "arguments": {}})
                assert (await wire.request("ping"))["result"] == {}
                other.close()  # lets go of the lock
                answer = await wire.answer(waiting)
                assert answer["result"]["structuredContent"]["status"] == "list"
    except ValueError:  # `held` cannot unlock the file that is closed already
        pass


@pytest.mark.slow
async def test_a_kill_10_ms_after_stdin_closes_loses_nothing_acknowledged(root: Path, workspace: Path) -> None:
    gate = Gate()
    with run_model_server([Say("never said", gate=gate), DONE]) as models:
        async with serve_stdio(root, env=model_env(models.base_url)) as wire:
            run = await wire.start_run(workspace=str(workspace))
            await until(gate.arrived.is_set)
            proposed = await wire.tool("spawn_subagent", role="researcher", task="Another", workspace=str(workspace))
            await wire.close_stdin()
            await anyio.sleep(0.01)
            wire.signal(signal.SIGKILL)
            await wire.exited()
        assert_intact(root)
        assert state_of(root, run) == "running"
        assert state_of(root, proposed["subagent_id"]) == "awaiting_approval"
        async with serve_stdio(root, env=model_env(models.base_url)) as wire:
            ended = await wire.tool("check_subagent", subagent_id=run, wait_seconds=20)
            assert ended["status"] == "success"
            confirmed = await wire.tool("confirm_spawn", pending_ids=[proposed["pending_id"]], decision="reject")
            assert confirmed["status"] == "rejected"
    assert_intact(root)


@pytest.mark.slow
async def test_a_finished_run_and_its_result_outlive_the_server(root: Path, workspace: Path) -> None:
    with run_model_server([DONE]) as models:
        async with serve_stdio(root, env=model_env(models.base_url)) as wire:
            run = await wire.start_run(workspace=str(workspace))
            await wire.tool("check_subagent", subagent_id=run, wait_seconds=20)
            await _ends(wire, (_eof, 0), root)
        async with serve_stdio(root, env=model_env(models.base_url)) as wire:
            again = await wire.tool("check_subagent", subagent_id=run)
            assert again["runs"][0]["untrusted_result"]["output"] == "done"
        assert len(models.requests) == 1


async def _eof(wire: Wire) -> None:
    await wire.close_stdin()


async def _sigterm(wire: Wire) -> None:
    wire.signal(signal.SIGTERM)


async def _sigint(wire: Wire) -> None:
    wire.signal(signal.SIGINT)


async def _like_claude_code(wire: Wire) -> None:
    wire.signal(signal.SIGINT)
    await anyio.sleep(0.1)
    with contextlib.suppress(ProcessLookupError):  # the first signal was enough
        wire.signal(signal.SIGTERM)


async def _like_opencode(wire: Wire) -> None:
    await wire.close_stdin()
    with contextlib.suppress(ProcessLookupError):
        wire.signal(signal.SIGTERM)


ENDS = {
    "end of stdin": (_eof, 0),
    "SIGTERM": (_sigterm, 0),
    "SIGINT": (_sigint, 130),
    "SIGINT and SIGTERM within 0.1 s": (_like_claude_code, 130),
    "end of stdin and SIGTERM at once": (_like_opencode, 0),
}


@pytest.fixture(params=list(ENDS.values()), ids=list(ENDS))
def end(request: pytest.FixtureRequest) -> tuple[End, int]:
    chosen: tuple[End, int] = request.param
    return chosen


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "notes.md").write_text("a" * 60 + "b\n")
    return folder


async def _ends(wire: Wire, end: tuple[End, int], root: Path) -> None:
    """End the server, and look at what every end leaves: a clean record, no lock, a quiet stderr."""
    bring_about, code = end
    await bring_about(wire)
    assert await wire.exited() == code
    assert wire.stderr == ""
    assert stray_locks(root) == []
    assert len(read_log(root, "SessionEnd")) == len(read_log(root, "SessionStart")) == 1
    assert_intact(root)
