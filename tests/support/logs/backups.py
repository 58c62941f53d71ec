"""A data root with a run in each state, and its backup."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from support.hosts.extensions import CAP, keep_noting
from support.model_server import Fail, Gate, ModelServer, Say
from support.runtime import PRICED, Lab, hand_over, open_lab, wait_for
from support.stdio import AVA, environment

QUESTION = Say(calls=[("ask", {"question": "In which currency?"})])


async def run_ava(root: Path, *words: str, **env: str) -> tuple[int, str, str]:
    """Run a command; return exit code, output and errors."""
    whole = {**environment(root), **env}
    with anyio.fail_after(60):
        done = await anyio.run_process([AVA[0], *words], env=whole, check=False)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


class StateScript:
    """What the model answers, by the task that it reads."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.finish = False

    def __call__(self, asked: dict[str, Any]) -> Any:
        said = json.dumps(asked["messages"])
        if self.finish or "TASK-done" in said:
            return hand_over()
        if "TASK-limit" in said:
            return Fail(429, retry_after="3600")
        if "TASK-question" in said:
            return QUESTION
        if "TASK-money" in said:
            return keep_noting(asked)
        return Say("lost", gate=self.gate)


@asynccontextmanager
async def run_in_each_state(
    tmp: Path, server: ModelServer, script: StateScript
) -> AsyncGenerator[tuple[Lab, dict[str, str]]]:
    """A server at work, with a run in each state."""
    config = "[limits]\nrunning_per_user = 1\n" + PRICED
    async with open_lab(tmp, server=server, config=config, check=False) as lab:
        runs = {"ended": await lab.start(task="TASK-done")}
        await lab.ended(runs["ended"])
        runs["paused"] = await lab.start(task="TASK-limit")
        await lab.logged(runs["paused"], "RunPaused")
        runs["awaiting_answer"] = await lab.start(task="TASK-question")
        await lab.logged(runs["awaiting_answer"], "Asked")
        proposal = await lab.propose(task="TASK-money", **CAP)
        runs["awaiting_extension"] = proposal.subagent_id
        lab.session.channel = "terminal"  # only a run that a person approved asks for more
        await lab.approve(proposal)
        lab.session.channel = "host_call"
        await lab.logged(runs["awaiting_extension"], "Asked")
        runs["running"] = await lab.start(task="TASK-running")
        await wait_for(script.gate.arrived)
        runs["queued"] = await lab.start(task="TASK-queued")
        runs["proposed"] = (await lab.propose(task="TASK-proposed")).subagent_id
        yield lab, runs
        script.gate.released.set()


async def back_up(tmp: Path, server: ModelServer, script: StateScript) -> dict[str, str]:
    """Back up a data root beside its working server; return the runs by their states."""
    root = tmp / "data"
    async with run_in_each_state(tmp, server, script) as (lab, runs):
        (root / "keys.toml").write_text('openrouter = "sk-or-v1-kept"\n')
        (root / "keys.toml").chmod(0o600)
        (root / "artifacts" / runs["ended"]).mkdir(parents=True, exist_ok=True)
        (root / "artifacts" / runs["ended"] / "table.csv").write_text("a,b\n")
        (root / "secrets").mkdir(mode=0o700, exist_ok=True)
        (root / "secrets" / "local_token").write_text("of this machine")
        (root / "secrets" / "browser.toml").write_text("sessions of browsers")
        (root / "artifacts" / runs["ended"] / "browser.toml").write_text("of a subagent")
        code, out, err = await run_ava(root, "backup", str(tmp / "copy"))
        assert code == 0 and "It contains your keys" in out, err
        assert (await lab.run(runs["running"])).state == "running", "the server goes on"
    script.finish = True
    return runs
