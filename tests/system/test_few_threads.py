"""A server whose system starts no more threads says so, ends no run, and goes on once there are some again."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from support.model_server import Gate, Say, run_model_server
from support.processes import catches
from support.sandboxes.plain_user import PLAIN
from support.stdio import assert_intact, make_root, model_env, serve_stdio, until

AS_PLAIN_USER = (
    "setpriv", f"--reuid={PLAIN}", f"--regid={PLAIN}", "--clear-groups",
    "--inh-caps=-all,+dac_override", "--ambient-caps=-all,+dac_override", "--",
)  # fmt: skip
"""Root has no limit on threads. This user has, and may read the files of root's interpreter all the same."""


NEEDS_A_USER = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0 or not shutil.which("setpriv"),
    reason="needs a user without other processes",
)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of the plain user's; the one that pytest makes is closed to it."""
    with tempfile.TemporaryDirectory(prefix="ava-threads-") as name:
        os.chown(name, PLAIN, PLAIN)
        yield Path(name)


@pytest.mark.slow
@NEEDS_A_USER
async def test_a_paid_run_goes_on_once_threads_can_be_started_again(folder: Path) -> None:
    root, workspace = folder / "data", folder / "project"
    workspace.mkdir()
    for number in range(12):
        (workspace / f"{number}.txt").write_text("twelve cents")
    make_root(root)
    for path in (workspace, root, root / "config.toml"):
        os.chown(path, PLAIN, PLAIN)
    gate = Gate()
    reads = [("read_file", {"path": f"{number}.txt"}) for number in range(12)]
    done = Say(calls=[("submit_result", {"summary": "done", "output": "twelve cents"})])
    with run_model_server([Say(calls=reads, gate=gate), done]) as models:
        async with serve_stdio(
            root, env={**model_env(models.base_url), "HOME": str(folder)}, before=AS_PLAIN_USER
        ) as server:
            run = await server.start_run(role="code_reviewer", task="Look", workspace=str(workspace))
            await until(gate.arrived.is_set)
            limit_threads(server.process, "1")
            gate.released.set()
            await until(lambda: re.search(r"no more threads can be started", server.stderr))
            await anyio.sleep(2)  # whatever else the server does, it tries meanwhile
            assert server.process.returncode is None, server.stderr
            limit_threads(server.process, "1000")
            ended = await server.tool("check_subagent", subagent_id=run, wait_seconds=30)
            assert ended["status"] == "success", ended
            assert len(models.requests) == 2, "an answer that was paid for was asked for again"
            assert "Traceback" not in server.stderr
    assert_intact(root)


@pytest.mark.slow
@NEEDS_A_USER
async def test_a_server_that_cannot_open_its_log_says_what_to_raise_and_opens_it_later(folder: Path) -> None:
    async with serve_stdio(
        folder / "data", initialize=False, env={"HOME": str(folder)}, before=AS_PLAIN_USER
    ) as server:
        await until(lambda: catches(server.process.pid, signal.SIGTERM))
        limit_threads(server.process, "1")
        await server.initialize()
        refused = await server.tool_result("check_subagent")
        assert refused["isError"] and "`ulimit -u`" in refused["content"][0]["text"], refused
        limit_threads(server.process, "1000")
        assert (await server.tool("check_subagent"))["status"] == "list"


def limit_threads(process: anyio.abc.Process, most: str) -> None:
    """Limit the threads that the user of a process may have, as far as it starts any."""
    limit = ("prlimit", f"--pid={process.pid}", f"--nproc={most}:")
    subprocess.run(limit, check=True, user=PLAIN, group=PLAIN, extra_groups=())
