"""A server, a host of Ana's on it, and Ana at a terminal elsewhere with her own token."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio.from_thread
import anyio.to_thread
from mcp import Client

from support.http_server import HttpServer, serve_http, token
from support.model_server import Say, run_model_server
from support.stdio import make_root, model_env, read_answer
from support.terminal import CONTROLLED, run_on_terminal

DONE = Say(calls=[("submit_result", {"summary": "done", "output": "done"})])
HUMAN = '[users.ana]\napproval = "human"\n'


@dataclass
class DistantPerson:
    """A server, a host of Ana's, and her own token to decide with."""

    server: HttpServer
    root: Path
    client: Client
    text: str

    async def propose(self, task: str = "What does it cost?") -> dict[str, Any]:
        return read_answer(await self.client.call_tool("spawn_subagent", {"role": "researcher", "task": task}))[0]

    async def shown(self) -> list[dict[str, Any]]:
        answer = await self.server.get("/approvals", self.text)
        assert answer.status_code == 200 and answer.headers["cache-control"] == "no-store"
        found: list[dict[str, Any]] = answer.json()["proposals"]
        return found

    async def decide(self, **given: Any) -> tuple[int, dict[str, Any]]:
        return await self.decide_as(self.text, **given)

    async def decide_as(self, text: str, **given: Any) -> tuple[int, dict[str, Any]]:
        answer = await self.server.post("/approvals", text, json=given)
        return answer.status_code, answer.json()

    async def typed(self, *args: str, answers: list[tuple[str, str]] | None = None, **env: str) -> tuple[int, str]:
        """`ava --url …` on a terminal, on a machine that has no data root."""

        def run() -> tuple[int, str]:
            words = ("--url", self.server.base, *args)
            own = {"AVA_TOKEN": self.text, **env}
            elsewhere = self.root.parent / "elsewhere"
            with run_on_terminal(elsewhere, *words, env=own, columns=200, command=CONTROLLED) as screen:
                code = screen.ended_after(answers or [])
            assert self.text not in screen.text and "Traceback" not in screen.text
            assert not elsewhere.exists()
            return code, screen.text

        return await anyio.to_thread.run_sync(run)


@asynccontextmanager
async def open_distant_person(root: Path, settings: str = HUMAN, *scopes: Any) -> AsyncGenerator[DistantPerson]:
    """Open a server on which Ana has a host, and a token with these scopes."""
    make_root(root, config_toml=settings)
    hosts, own = token(root, "ana"), token(root, "ana", *(scopes or ("approve",)), name="phone")
    with run_model_server([DONE] * 5) as model:
        async with serve_http(root, env=model_env(model.base_url)) as server, server.client(hosts) as client:
            yield DistantPerson(server, root, client, own)
