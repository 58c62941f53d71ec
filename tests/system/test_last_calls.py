"""A host that asks to cancel or message a subagent and leaves at once: the call is carried out, however it leaves."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.model_server import Gate, Say, run_model_server
from support.stdio import (
    Wire,
    assert_intact,
    instance_locks,
    make_root,
    model_env,
    read_log,
    serve_stdio,
    state_of,
    until,
)

from ava_audit.store.locks import WriteLock, is_held
from ava_server.mcp_server.app import CARRY_OUT_S

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals as POSIX has them")

CLIENT = {"name": "wire", "version": "1.0"}
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": CLIENT}


async def _eof(wire: Wire) -> None:
    await wire.close_stdin()


async def _both_ends(wire: Wire) -> None:
    await wire.close_stdout()
    await wire.close_stdin()


async def _eof_and_sigterm(wire: Wire) -> None:
    await wire.close_stdin()
    wire.signal(signal.SIGTERM)


async def _sigint_and_sigterm(wire: Wire) -> None:
    wire.signal(signal.SIGINT)
    await anyio.sleep(0.1)
    wire.signal(signal.SIGTERM)


Leave = Callable[[Wire], Awaitable[None]]
LEAVES: dict[str, Leave] = {"end of stdin": _eof, "both ends": _both_ends}
SIGNALS = (_eof_and_sigterm, _sigint_and_sigterm)
"""A signal does not wait for what is still in the pipe, but for what has been read."""


@pytest.mark.slow
@pytest.mark.parametrize("leave", LEAVES.values(), ids=LEAVES)
async def test_a_call_to_a_server_that_is_still_starting_is_carried_out(
    root: Path, workspace: Path, leave: Leave
) -> None:
    async with left_behind(root, workspace) as (run, proposed, env):
        async with serve_stdio(root, env=env, initialize=False) as wire:
            calls = (
                call("message_subagent", 2, subagent_id=run, message="look in notes.md"),
                call("cancel_subagent", 3, subagent_id=proposed),
            )
            await wire.send(in_one_piece(*calls))
            await leave(wire)
            assert await wire.exited() == 0
            assert "Traceback" not in wire.stderr
        said = [entry.content["text"] for entry in read_log(root, "UserMessage", run=run)]
        assert said[-1] == "look in notes.md"
        assert state_of(root, proposed) == "cancelled"
        assert not any(is_held(root / "instances" / name) for name in instance_locks(root))
    assert_intact(root)


@pytest.mark.slow
async def test_a_call_to_a_warm_server_is_carried_out_each_time(root: Path) -> None:
    leaves: list[Leave] = [_eof, _both_ends, *SIGNALS] * 2
    for number, leave in enumerate(leaves):
        async with serve_stdio(root) as wire:
            task = {"role": "researcher", "task": f"Look up https://example.org/{number}"}
            proposed = await wire.tool("spawn_subagent", **task)
            await wire.send(call("cancel_subagent", 77, pending_id=proposed["pending_id"]))
            if leave in SIGNALS:
                await until(partial(has_calls, root, 2 * number + 2))
            await leave(wire)
            assert await wire.exited() in (0, 130)
        assert state_of(root, proposed["subagent_id"]) == "cancelled", number
    assert len(read_log(root, "SessionEnd")) == len(leaves)
    assert_intact(root)


@pytest.mark.slow
async def test_a_cancel_of_a_running_subagent_ends_it_before_the_server_ends(root: Path, workspace: Path) -> None:
    gate = Gate()
    with run_model_server([Say("never said", gate=gate)]) as models:
        async with serve_stdio(root, env=model_env(models.base_url)) as wire:
            run = await wire.start_run(workspace=str(workspace))
            await until(gate.arrived.is_set)
            await wire.send(call("cancel_subagent", 77, subagent_id=run))
            await wire.close_stdin()
            assert await wire.exited() == 0
    assert state_of(root, run) == "cancelled"
    assert_intact(root)


@pytest.mark.slow
async def test_the_server_ends_although_a_last_call_cannot_be_carried_out(root: Path) -> None:
    other = WriteLock(root / "write.lock")
    try:
        with other.held():
            async with serve_stdio(root) as wire:
                await wire.send(call("cancel_subagent", 77, pending_id="P-00000000"))
                assert (await wire.request("ping"))["result"] == {}
                await wire.close_stdin()
                assert await wire.exited() == 0
    finally:
        other.close()


@pytest.mark.slow
async def test_a_last_call_that_the_host_takes_back_is_not_waited_for(root: Path) -> None:
    other = WriteLock(root / "write.lock")
    try:
        with other.held():
            async with serve_stdio(root) as wire:
                asked = await wire.ask(
                    "tools/call", {"name": "cancel_subagent", "arguments": {"pending_id": "P-00000000"}}
                )
                await wire.notify("notifications/cancelled", {"requestId": asked})
                assert (await wire.request("ping"))["result"] == {}
                await wire.close_stdin()
                with anyio.fail_after(CARRY_OUT_S - 1):
                    assert await wire.process.wait() == 0
    finally:
        other.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_root(tmp_path / "data")


@asynccontextmanager
async def left_behind(root: Path, workspace: Path) -> AsyncGenerator[tuple[str, str, dict[str, str]]]:
    """Leave a run in the middle of its first call, and a proposal; give their ids, and the server's variables."""
    gate = Gate()
    with run_model_server([Say("never said", gate=gate)]) as models:
        env = model_env(models.base_url)
        async with serve_stdio(root, env=env) as wire:
            run = await wire.start_run(workspace=str(workspace))
            await until(gate.arrived.is_set)
            proposed = await wire.tool("spawn_subagent", role="researcher", task="Another", workspace=str(workspace))
            await wire.close_stdin()
            assert await wire.exited() == 0
        yield run, proposed["subagent_id"], env


def call(tool: str, request_id: int, **arguments: Any) -> dict[str, Any]:
    params = {"name": tool, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}


def has_calls(root: Path, count: int) -> bool:
    return len(read_log(root, "ToolCall")) >= count


def in_one_piece(*messages: Mapping[str, Any]) -> bytes:
    """Return what a host writes that comes only for this: the handshake and its calls, without waiting."""
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}
    known = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    return b"".join(json.dumps(each).encode() + b"\n" for each in (hello, known, *messages))
