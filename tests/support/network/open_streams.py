"""Every kind of request that stays open at the HTTP server."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2

from support.http_server import BOTH, HELLO, META, HttpServer, bearer, serve_http, token
from support.model_server import Gate, Say, run_model_server
from support.stdio import MODERN, model_env, read_answer, until

DONE = Say(calls=[("submit_result", {"summary": "marmalade", "output": "marmalade"})])
SPAWN = {"role": "custom", "system_prompt": "Look.", "task": "Look it up"}


class OpenRequest:
    """A request that is open: what came of it, and when it was over."""

    def __init__(self, name: str, status: int) -> None:
        self.name = name
        self.status = status
        self.got = b""
        self.over = anyio.Event()


class OpenStreams:
    """Every kind of request that stays open, each with the same token."""

    def __init__(self, server: HttpServer, text: str, run: str, http: httpx2.AsyncClient) -> None:
        self._server, self._text, self._run, self._http = server, text, run, http
        self.open: list[OpenRequest] = []

    async def all(self, tasks: anyio.abc.TaskGroup) -> None:
        session = await self.session()
        legacy = {**BOTH, **session}
        await tasks.start(self._read, "get", "GET", legacy, None)
        wait = {"name": "check_subagent", "arguments": {"subagent_id": self._run, "wait_seconds": 45}}
        call = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": wait}
        await tasks.start(self._read, "wait of the handshake era", "POST", legacy, call)
        follows = {"resourcesListChanged": True, "resourceSubscriptions": [f"ava://runs/{self._run}"]}
        listen = {"jsonrpc": "2.0", "id": 8, "method": "subscriptions/listen",
                  "params": {"notifications": follows, "_meta": META}}  # fmt: skip
        modern = {**BOTH, "MCP-Protocol-Version": MODERN, "Mcp-Method": "subscriptions/listen"}
        await tasks.start(self._read, "listen", "POST", modern, listen)
        modern = {**modern, "Mcp-Method": "tools/call", "Mcp-Name": "check_subagent"}
        call = {**call, "params": {**wait, "_meta": {**META, "progressToken": 1}}}
        tasks.start_soon(self._read, "wait", "POST", modern, call)

    async def session(self) -> dict[str, str]:
        headers = {**BOTH, **bearer(self._text)}
        opened = await self._http.post(self._server.url, json=HELLO, headers=headers)
        session = {"Mcp-Session-Id": opened.headers["mcp-session-id"]}
        said = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        assert (await self._http.post(self._server.url, json=said, headers={**headers, **session})).status_code == 202
        follow = {"jsonrpc": "2.0", "id": 2, "method": "resources/subscribe",
                  "params": {"uri": f"ava://runs/{self._run}"}}  # fmt: skip
        assert (await self._http.post(self._server.url, json=follow, headers={**headers, **session})).status_code == 200
        return session

    async def _read(
        self,
        name: str,
        method: str,
        headers: dict[str, str],
        body: Any,
        *,
        task_status: Any = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        more = {} if body is None else {"json": body}
        headers = {**headers, **bearer(self._text)}
        async with self._http.stream(method, self._server.url, headers=headers, **more) as answer:
            found = OpenRequest(name, answer.status_code)
            self.open.append(found)
            task_status.started()
            async for piece in answer.aiter_bytes():  # raises where it is not ended as it should be
                found.got += piece
        found.over.set()


@asynccontextmanager
async def open_waiting_run(root: Path) -> AsyncGenerator[tuple[HttpServer, Gate, str, Any]]:
    """Open a server with a run that waits for its model, until the gate opens."""
    gate = Gate()
    other = token(root, "ana", name="other")
    with run_model_server([Say("x", gate=gate), DONE]) as model:
        async with serve_http(root, env=model_env(model.base_url)) as server, server.client(other) as client:
            proposed, _text = read_answer(await client.call_tool("spawn_subagent", SPAWN))
            given = {"pending_ids": [proposed["pending_id"]], "approving": [proposed["approval_line"]]}
            read_answer(await client.call_tool("confirm_spawn", given))
            await until(gate.arrived.is_set)
            try:
                yield server, gate, proposed["subagent_id"], client
            finally:
                gate.released.set()
