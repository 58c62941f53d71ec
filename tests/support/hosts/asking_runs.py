"""Runs that ask for more while a person is at a terminal, here or away from the server."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio.to_thread
from mcp import Client

from support.hosts.extensions import CAP, keep_noting
from support.http_server import HttpServer, serve_http, token
from support.model_server import run_model_server
from support.runtime import PRICED
from support.stdio import Wire, make_root, model_env, read_answer, read_log, serve_stdio, until
from support.terminal import CONTROLLED, ava, run_on_terminal

HUMAN = f'[users.ana]\napproval = "human"\n{PRICED}'
HERE = "hands in what it has. [y/N]"
START = ("[y/N]", "y")


def start_own_run(root: Path, url: str, *answers: tuple[str, str]) -> tuple[int, str]:
    """Start a run at a terminal, and give these answers there."""
    args = ("run", "researcher", "What does it cost?", "--max-cost", "0.20")
    return answer_at_terminal(root, *args, answers=[START, *answers], **{**model_env(url), "AVA_MODEL": "test"})


START_AVA = "\nimport sys; from ava_server.cli import run; run(sys.argv[1:])"


def ask_with_fault(tmp_path: Path, fault: str) -> tuple[str, list[dict[str, Any]]]:
    """Run `ava run` with a fault where its run asks for more; decline elsewhere where the fault asks nobody."""
    root = make_root(tmp_path / "data", config_toml=PRICED)
    with run_model_server(keep_noting) as model:
        env = {**model_env(model.base_url), "AVA_MODEL": "test"}
        args = ("run", "researcher", "What does it cost?", "--max-cost", "0.20")
        with run_on_terminal(
            root, *args, env=env, columns=200, command=(sys.executable, "-c", fault + START_AVA)
        ) as screen:
            screen.until(START[0])
            screen.type("y\r")
            if "LOOKED" in fault:
                screen.until("LOOKED")
                [asked] = read_log(root, "Asked")
                assert ava(root, "reject", asked.run_id or "").returncode == 0
            else:
                screen.until(HERE)
                screen.type("y\r")
            screen.ended()
    return screen.text, decisions_of(root)


@dataclass
class DistantRun:
    """A server, a run of Ana's on it that asks for more, and her own token."""

    server: HttpServer
    root: Path
    client: Client
    text: str
    run_id: str

    async def shown(self, text: str | None = None) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self.server.get("/approvals", text or self.text)).json()["extensions"]
        return found

    async def decide(self, text: str | None = None, **given: Any) -> tuple[int, dict[str, Any]]:
        answer = await self.server.post("/approvals", text or self.text, json=given)
        return answer.status_code, answer.json()


@asynccontextmanager
async def open_distant_run(tmp: Path) -> AsyncGenerator[DistantRun]:
    """Open a server with a run of Ana's that asks for more."""
    root = make_root(tmp / "data", config_toml=HUMAN)
    hosts, own = token(root, "ana"), token(root, "ana", "approve", name="phone")
    with run_model_server(keep_noting) as model:
        async with (
            serve_http(root, env={**model_env(model.base_url), "AVA_MODEL": "test"}) as server,
            server.client(hosts) as client,
        ):
            given = {"role": "researcher", "task": "What does it cost?", **CAP}
            run = read_answer(await client.call_tool("spawn_subagent", given))[0]
            [shown] = (await server.get("/approvals", own)).json()["proposals"]
            decision = {
                "decision": "approve", "pending_ids": [run["pending_id"]], "approving": [shown["approval_line"]],
                "digests": {run["pending_id"]: shown["digest"]},
            }  # fmt: skip
            assert (await server.post("/approvals", own, json=decision)).status_code == 200
            await wait_until_asked(root, run["subagent_id"])
            yield DistantRun(server, root, client, own, run["subagent_id"])


def answer_at_terminal(root: Path, *args: str, answers: Sequence[tuple[str, str]] = (), **env: str) -> tuple[int, str]:
    """Run a command at a terminal, with an answer to each thing that it asks; return its exit code and the screen."""
    with run_on_terminal(root, *args, env=env, columns=200, command=CONTROLLED) as screen:
        code = screen.ended_after(answers)
    assert "Traceback" not in screen.text
    return code, screen.text


def decisions_of(root: Path) -> list[dict[str, Any]]:
    """Return the answers that were given, in order."""
    return [entry.content for entry in read_log(root, "Answered")]


async def wait_until_asked(root: Path, run_id: str) -> None:
    """Wait until a run has asked for more."""
    await until(lambda: bool(read_log(root, "Asked", run=run_id)), 20)


@asynccontextmanager
async def open_asking_run(tmp: Path) -> AsyncGenerator[tuple[Path, Wire, str, str]]:
    """A server with a run that a person has started at the terminal and that asks for more."""
    root = make_root(tmp / "data", config_toml=PRICED)
    with run_model_server(keep_noting) as model:
        async with serve_stdio(root, env={**model_env(model.base_url), "AVA_MODEL": "test"}, cwd=tmp) as wire:
            run = await wire.tool("spawn_subagent", role="researcher", task="What does it cost?", **CAP)
            started = await anyio.to_thread.run_sync(
                lambda: answer_at_terminal(root, "approve", run["pending_id"], answers=[("Start it? [y/N]", "y")])
            )
            assert started[0] == 0, started
            await wait_until_asked(root, run["subagent_id"])
            yield root, wire, run["subagent_id"], model.base_url
