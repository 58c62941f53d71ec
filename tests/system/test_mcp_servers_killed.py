"""A process that is killed with foreign MCP servers running: nothing of them is left, and no call is made twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from support import owner
from support.foreign.servers import stdio_server, write_role
from support.model_server import Say, run_model_server
from support.processes import processes_of_run
from support.runtime import PRICED, hand_over, open_lab
from support.stdio import environment, read_log, until

from ava_audit.events import RunStarted, ToolResult

pytestmark = pytest.mark.slow

CONFIG = PRICED + stdio_server("forks")
UNCONFINED = '[sandbox]\nmode = "none"\n'
CALLS = [
    Say(calls=[("mcp__lab__wait", {"seconds": 50})]),
    Say(calls=[("mcp__lab__add", {"a": 1, "b": 1})]),
    hand_over(),
]


@pytest.mark.parametrize("sandbox", ["", UNCONFINED], ids=["confined", "unconfined"])
async def test_a_kill_leaves_no_mcp_server_and_an_open_call_is_never_repeated(tmp_path: Path, sandbox: str) -> None:
    """The server says that its tool only reads; that is its word, not ours, so the outcome is told as unknown."""
    root = tmp_path / "data"
    write_role(root, "mcp__lab__wait, mcp__lab__add")
    with run_model_server(CALLS) as server:
        async with open_lab(tmp_path, server=server, config=CONFIG + sandbox, runs=False, check=False) as lab:
            run_id = await lab.start(role="guest", workspace=None)
        command = [sys.executable, owner.__file__, str(root), server.base_url]
        with subprocess.Popen(  # noqa: ASYNC220 - it is only started here
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(root), start_new_session=True
        ) as process:
            try:
                await until(lambda: read_log(root, "ToolCall", run=run_id), within_s=60)
                assert len(processes_of_run(run_id)) > 3, "the server, and what it has started"
            finally:
                os.killpg(process.pid, signal.SIGKILL)
        await until(lambda: not processes_of_run(run_id), within_s=5)
        async with open_lab(tmp_path, server=server, config=CONFIG + sandbox, check=False) as lab:
            with anyio.fail_after(30):
                assert (await lab.ended(run_id, 30)).state == "success"
            unknown, added, _submitted = await lab.facts(run_id, ToolResult)
            assert not unknown.success and "outcome unknown" in unknown.output
            assert added.success and "2" in added.output, "the server was started anew"
            assert len(await lab.facts(run_id, RunStarted)) == 1
        assert processes_of_run(run_id) == [] and list((root / "scratch").glob("**/mcp-*")) == []
