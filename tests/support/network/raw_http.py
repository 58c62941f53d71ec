"""An HTTP server that is spoken to byte by byte."""

from __future__ import annotations

import contextlib
import json
import socket
from pathlib import Path
from typing import Any

from support.http_server import HttpServer
from support.stdio import MODERN, Logged, read_log

BOTH = {"Accept": "application/json, text/event-stream"}


def client_meta(name: str = "x", **more: Any) -> dict[str, Any]:
    """Return what a client of the stateless era says of itself with each request."""
    return {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientInfo": {"name": name, "version": "1", **more},
        "io.modelcontextprotocol/clientCapabilities": {},
    }


async def call_by_hand(server: HttpServer, text: str, tool: str, given: Any, **client: Any) -> dict[str, Any]:
    """Call a tool in the stateless era, as whatever client."""
    params = {"name": tool, "arguments": given, "_meta": client_meta(**client)}
    body = json.dumps({"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": params})
    headers = {**BOTH, "MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": tool,
               "Content-Type": "application/json"}  # fmt: skip
    answer = await server.post("/mcp", text, content=body.encode(), headers=headers)
    result: dict[str, Any] = answer.json()["result"]
    return result


def start_by_hand(root: Path, number: int) -> list[Logged]:
    """The sessions on the record, once there are so many."""
    found = read_log(root, "SessionStart")
    return found if len(found) >= number else []


def send_raw(port: int, *pieces: bytes) -> bytes:
    """Send pieces one after the other, and return what comes until the server closes or is silent."""
    got = b""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as line, contextlib.suppress(OSError):
        for piece in pieces:
            line.sendall(piece)
            line.settimeout(0.4)
            with contextlib.suppress(TimeoutError):
                while data := line.recv(65_536):
                    got += data
    return got
