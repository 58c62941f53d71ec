"""A client that asks over HTTP to cancel or message a subagent and closes its socket at once: it is carried out."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from support.http_server import BOTH, HELLO, META, PARSERS, HttpServer, bearer, changed_command, serve_http, token
from support.model_server import Gate, Say, run_model_server
from support.runtime import PRICED
from support.stdio import MODERN, assert_intact, make_root, model_env, read_log, state_of, until

pytestmark = pytest.mark.slow

SPAWN = {"role": "custom", "system_prompt": "Look.", "task": "Look"}


def _close(line: socket.socket) -> None:
    line.close()


def _reset(line: socket.socket) -> None:
    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    line.close()


def _end_of_input(line: socket.socket) -> None:
    line.shutdown(socket.SHUT_WR)


LEAVES: tuple[Callable[[socket.socket], None], ...] = (_close, _reset, _end_of_input)


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize("era", ["handshake", "stateless"])
async def test_a_call_is_carried_out_after_its_client_has_gone(tmp_path: Path, era: str, parser: str) -> None:
    root, gate = make_root(tmp_path / "data", config_toml=f'approval = "ask"\n{PRICED}'), Gate()
    with run_model_server([Say("never said", gate=gate)]) as models:
        env = {**model_env(models.base_url), "AVA_MODEL": "test"}
        async with serve_http(root, env=env, program=changed_command(parser=parser)) as server:
            text = token(root, "ana", "spawn", "read", "approve")
            run = await _started(server, text)
            await until(gate.arrived.is_set)
            host = Host(server, text, await _session(server, text) if era == "handshake" else "")
            words = {f"look at {number}" for number in range(9)}
            for number, message in enumerate(sorted(words)):
                await host.call(LEAVES[number % 3], "message_subagent", subagent_id=run, message=message)
            await until(lambda: words <= _said(root, run))
            for leave in LEAVES:
                async with server.client(text) as client:
                    proposed = (await client.call_tool("spawn_subagent", SPAWN)).structured_content
                assert proposed is not None
                await host.call(leave, "cancel_subagent", pending_id=proposed["pending_id"])
                await until(partial(_is_cancelled, root, str(proposed["subagent_id"])))
            await host.call(_close, "cancel_subagent", subagent_id=run)
            await until(partial(_is_cancelled, root, run))
    assert_intact(root)


def _send_and_leave(
    port: int, headers: Mapping[str, str], body: Mapping[str, Any], leave: Callable[[socket.socket], None]
) -> None:
    data = json.dumps(body).encode()
    framing = {"Host": f"127.0.0.1:{port}", "Content-Type": "application/json", "Content-Length": str(len(data))}
    lines = "".join(f"{name}: {value}\r\n" for name, value in {**framing, **BOTH, **headers}.items())
    with socket.create_connection(("127.0.0.1", port), timeout=20) as line:
        line.sendall(f"POST /mcp HTTP/1.1\r\n{lines}\r\n".encode() + data)
        leave(line)


class Host:
    """A client of one era of the protocol, which leaves after each call."""

    def __init__(self, server: HttpServer, text: str, session: str = "") -> None:
        self._port = server.port
        self._headers = bearer(text)
        self._session = session

    async def call(self, leave: Callable[[socket.socket], None], tool: str, **arguments: Any) -> None:
        params: dict[str, Any] = {"name": tool, "arguments": arguments}
        headers = {"Mcp-Session-Id": self._session, "Mcp-Protocol-Version": "2025-11-25"}
        if not self._session:
            headers = {"Mcp-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": tool}
            params["_meta"] = META
        body = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}
        await anyio.to_thread.run_sync(_send_and_leave, self._port, {**self._headers, **headers}, body, leave)


async def _session(server: HttpServer, text: str) -> str:
    answer = await server.post("/mcp", text, json=HELLO, headers=BOTH)
    assert answer.status_code == 200, answer.text
    return str(answer.headers["mcp-session-id"])


async def _started(server: HttpServer, text: str) -> str:
    async with server.client(text) as client:
        proposed = (await client.call_tool("spawn_subagent", SPAWN)).structured_content
        assert proposed is not None
        given = {"pending_ids": [proposed["pending_id"]], "approving": [proposed["approval_line"]]}
        answer = (await client.call_tool("confirm_spawn", given)).structured_content
        assert answer is not None and answer["status"] == "approved", answer
        return str(proposed["subagent_id"])


def _said(root: Path, run: str) -> set[str]:
    return {entry.content["text"] for entry in read_log(root, "UserMessage", run=run)}


def _is_cancelled(root: Path, run: str) -> bool:
    return state_of(root, run) == "cancelled"
