"""A server with three users, an auditor and an administrator."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from mcp import Client

from support.http_server import HttpServer, serve_http, token
from support.model_server import Gate, ModelServer, Say, run_model_server
from support.stdio import AVA, environment, make_root, model_env, read_answer

CONFIG = '[prices."custom:scripted"]\ninput = 3.0\noutput = 15.0\n'
SPAWN = {"role": "custom", "task": "Think", "system_prompt": "Think."}


@dataclass
class AdminTeam:
    """A server with three users, an auditor and an administrator."""

    root: Path
    server: HttpServer
    model: ModelServer
    ana: Client
    ben: Client
    auditor: Client
    admin: Client

    async def start(self, client: Client) -> str:
        """Start a run that waits for its model, and return its id."""
        proposed, _text = read_answer(await client.call_tool("spawn_subagent", SPAWN))
        given = {"pending_ids": [proposed["pending_id"]], "approving": [proposed["approval_line"]]}
        answer, text = read_answer(await client.call_tool("confirm_spawn", given))
        assert answer["status"] == "approved", text
        return str(proposed["subagent_id"])

    async def ava(self, *words: str) -> tuple[int, str, str]:
        """Run a command as the data root's owner."""
        env = {**environment(self.root), **model_env(self.model.base_url)}
        with anyio.fail_after(60):
            done = await anyio.run_process([AVA[0], *words], env=env, check=False)
        return done.returncode, done.stdout.decode(), done.stderr.decode()


@asynccontextmanager
async def open_admin_team(tmp: Path, *, config: str = "", script: Any = None) -> AsyncGenerator[tuple[AdminTeam, Gate]]:
    """Open a server with a client for each of the team."""
    gate = Gate(within_s=300)  # longer than all commands of a test take on a busy machine
    root = make_root(tmp / "data", config_toml=config + CONFIG)
    texts = {
        "ana": token(root, "ana"),
        "ben": token(root, "ben"),
        "auditor": token(root, "eve", "audit", name="auditor"),
        "admin": token(root, "ops", "admin", name="admin"),
    }
    with run_model_server(script or (lambda _asked: Say("thinking", gate=gate))) as model:
        async with (
            serve_http(root, env=model_env(model.base_url), cwd=tmp) as server,
            server.client(texts["ana"]) as ana,
            server.client(texts["ben"]) as ben,
            server.client(texts["auditor"]) as auditor,
            server.client(texts["admin"]) as admin,
        ):
            try:
                yield AdminTeam(root, server, model, ana, ben, auditor, admin), gate
            finally:
                gate.released.set()


async def refusal_of(client: Client, tool: str, **given: Any) -> str:
    """Call a tool that refuses, and return its reason."""
    result = await client.call_tool(tool, given)
    answer, text = read_answer(result)
    assert answer["status"] == "failed", text
    return text
