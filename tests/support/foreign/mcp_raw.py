"""A foreign MCP server of the handshake era, written by hand, so that it can do what no SDK would.

python mcp_raw.py mute      does not answer a request that it does not know, `server/discover` among them
python mcp_raw.py pages     lists its tools page after page, without end
"""

from __future__ import annotations

import json
import sys
from typing import Any

WAYS = set(sys.argv[1:])
ASKS = ("sampling/createMessage", "elicitation/create", "roots/list", "ping")


def say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def ask_client() -> str:
    """Ask the client for everything that it may not give; return what it answered."""
    told: list[str] = []
    for number, method in enumerate(ASKS):
        say({"id": f"s{number}", "method": method, "params": {}})
        answer: dict[str, Any] = json.loads(sys.stdin.readline())
        told.append(f"{method}: {answer['error']['code'] if 'error' in answer else answer.get('result')}")
    return "; ".join(told)


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    if method == "initialize":
        info = {"name": "raw", "version": "1"}
        told = {"capabilities": params["capabilities"], "client": params["clientInfo"]["name"]}
        sys.stderr.write(f"{told}\n")
        return {"protocolVersion": "2025-03-26", "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        cursor = int(params.get("cursor", 0)) if isinstance(params, dict) else 0
        schema = {"type": "object", "properties": {"what": {"type": "string"}}}
        hints = {"readOnlyHint": True}
        tool = {"name": f"ask{cursor or ''}", "inputSchema": schema, "annotations": hints}
        return {"tools": [tool], **({"nextCursor": str(cursor + 1)} if "pages" in WAYS else {})}
    if method == "tools/call":
        if params["arguments"].get("what") == "noise":
            for number in range(50):
                say({"method": "notifications/message", "params": {"level": "info", "data": f"{number}\u001b[31m"}})
            return {"content": [{"type": "text", "text": "noisy"}]}
        if params["arguments"].get("what") == "refuse":
            return None
        if params["arguments"].get("what") == "nonsense":
            return {"content": "nonsense", "isError": "perhaps"}
        return {"content": [{"type": "text", "text": ask_client()}], "isError": False}
    return None


def main() -> None:
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        if "id" not in request:
            continue
        result = answer(request["method"], request.get("params", {}))
        if result is not None:
            say({"id": request["id"], "result": result})
        elif "mute" not in WAYS:
            say({"id": request["id"], "error": {"code": -32601, "message": "no such method: ask the quokka"}})


if __name__ == "__main__":
    main()
