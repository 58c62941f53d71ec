"""Runs whose owners are killed, stopped or started in a namespace of their own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from support import owner
from support.model_server import ModelServer, Say, Step
from support.runtime import PRICED, open_lab
from support.stdio import environment, read_log

NOTES = ("scratchpad", {"note": "half of it"})
LOOK = [("read_file", {"path": "a.md"}), ("search_codebase", {"query": "tw.lve", "regex": True}), NOTES]
SCRIPT = (
    Say("I look.", calls=LOOK),
    Say("I save it.", calls=[("save_artifact", {"name": "a.csv", "content": "otter,12"})]),
    Say(calls=[("submit_result", {"summary": "done", "output": "twelve cents"})]),
)
LEASE_S = 300
"""With the log in Postgres, a stopped process owns its runs for longer than any of these tests."""


@asynccontextmanager
async def run_owner(
    root: Path, server: ModelServer, prefix: tuple[str, ...] = (), env: Mapping[str, str] | None = None
) -> AsyncGenerator[subprocess.Popen[str]]:
    """A process of its own that claims the runs of a data root, perhaps started by another program."""
    command = [*prefix, sys.executable, owner.__file__, str(root), server.base_url]
    with subprocess.Popen(  # noqa: ASYNC220 - it is only started here
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            line = await anyio.to_thread.run_sync(process.stdout.readline)
            assert line.startswith("open ")
            yield process
        finally:
            os.killpg(process.pid, signal.SIGCONT)
            os.killpg(process.pid, signal.SIGKILL)


def namespace_prefix() -> tuple[str, ...] | None:
    """What starts a program in a pid namespace of its own, or None: this system does not let us."""
    for flags in (
        ("--pid", "--fork", "--mount-proc"),
        ("--user", "--map-root-user", "--pid", "--fork", "--mount-proc"),
    ):
        command = ("unshare", *flags, "--kill-child")
        if (
            shutil.which("unshare")
            and subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0
        ):
            return command
    return None


def answer_turn(request: dict[str, Any]) -> Step:
    """Answer by the turn that a request stands at."""
    return SCRIPT[sum(message["role"] == "assistant" for message in request["messages"])]


async def approve_run(tmp: Path, server: ModelServer, **more: Any) -> str:
    """A run that is approved, and that nobody has claimed."""
    (tmp / "workspace").mkdir(parents=True)
    (tmp / "workspace" / "a.md").write_text("Otter charges twelve cents.\n")
    async with open_lab(tmp, server=server, config=f"lease_s = {LEASE_S}\n{PRICED}", runs=False, check=False) as lab:
        return await lab.start(**more)


def count_answers(root: Path, run: str) -> int:
    """How many answers of the model the log has."""
    return sum(entry.agent == run for entry in read_log(root, "AssistantMessage", run=run))


def files_left_in(folder: Path) -> list[str]:
    """Return the names of all files below a folder."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


async def kill_owner_behind(tmp: Path, server: ModelServer, kill_behind: int) -> tuple[str, Path, int]:
    """An approved run whose owner was killed behind a commit, or never (0); its id, data root and the exit code."""
    run_id = await approve_run(tmp, server)
    scratch, root = tmp / "tmp", tmp / "data"
    scratch.mkdir()
    command = [sys.executable, owner.__file__, str(root), server.base_url, "killed", str(kill_behind)]
    env = {**environment(root), "TMPDIR": str(scratch)}
    ended = await anyio.run_process(command, env=env, check=False, stderr=None)
    return run_id, root, ended.returncode
