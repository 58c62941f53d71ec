"""A server that may open too few files says so at its start, refuses new work, and ends no run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.model_server import Gate, Say, run_model_server
from support.stdio import assert_intact, model_env, read_log, serve_stdio, state_of, until

DONE = Say(calls=[("submit_result", {"summary": "done", "output": "twelve cents"})])


def at_most(files: int, soft: int | None = None) -> tuple[str, ...]:
    """Return the command that starts a program with a limit on open files."""
    hard = f"ulimit -Hn {files}; " if soft is None else ""
    return ("/bin/sh", "-c", f'ulimit -Sn {soft or files}; {hard}exec "$@"', "sh")


@pytest.mark.slow
@pytest.mark.parametrize("files", [35, 45])
async def test_refuses_new_work_and_leaves_approved_runs_to_a_server_that_can(tmp_path: Path, files: int) -> None:
    root, workspace = tmp_path / "data", tmp_path / "project"
    workspace.mkdir()
    gate = Gate()
    spawn = {"role": "code_reviewer", "task": "Look", "workspace": str(workspace)}
    with run_model_server([Say(calls=DONE.calls, gate=gate), DONE]) as models:
        env = model_env(models.base_url)
        async with serve_stdio(root, env=env) as other:
            run = await other.start_run(**spawn)
            await until(gate.arrived.is_set)
            other.process.kill()  # its run waits for the next server
            await other.process.wait()
        async with serve_stdio(root, env=env, before=at_most(files)) as short:
            await until(lambda: re.search(rf"this server may open only {files} files", short.stderr))
            refused = await short.tool_result("spawn_subagent", **spawn)
            assert refused["isError"] and f"only {files} files" in refused["content"][0]["text"], refused
            assert (await short.tool("check_subagent", subagent_id=run))["status"] in ("interrupted", "running")
            assert read_log(root, "RunEnded", run=run) == []
            assert "Traceback" not in short.stderr
        gate.released.set()
        async with serve_stdio(root, env=env) as other:
            ended = await other.tool("check_subagent", subagent_id=run, wait_seconds=30)
            assert ended["status"] == "success", ended
            assert state_of(root, run) == "success"
    assert_intact(root)


async def test_raises_a_low_limit_as_far_as_the_system_allows(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    with run_model_server([DONE]) as models:
        async with serve_stdio(
            tmp_path / "data", env=model_env(models.base_url), before=at_most(45, soft=45)
        ) as server:
            run = await server.start_run(role="code_reviewer", task="Look", workspace=str(tmp_path / "project"))
            ended = await server.tool("check_subagent", subagent_id=run, wait_seconds=30)
            assert ended["status"] == "success", ended
            assert "may open only" not in server.stderr
