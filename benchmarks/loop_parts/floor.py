"""The floor: a loop over a bare httpx2 client, which logs nothing."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from loop_parts.child import DESCRIPTION, SYSTEM, TASK, Tasks, noted, serve

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "scratchpad",
            "description": DESCRIPTION,
            "parameters": {"type": "object", "properties": {"note": {"type": "string"}}, "required": ["note"]},
        },
    }
]
HEADERS = {"content-type": "application/json", "authorization": "Bearer none"}


@asynccontextmanager
async def floor(url: str) -> AsyncGenerator[Tasks]:
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx2.AsyncClient(timeout=None, limits=limits) as client:

        async def run() -> None:
            notes: list[str] = []
            messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": TASK}]
            while True:
                body = json.dumps({"model": "test", "messages": messages, "tools": TOOLS}).encode()
                response = await client.post(f"{url}/chat/completions", content=body, headers=HEADERS)
                message = json.loads(response.content)["choices"][0]["message"]
                if not message.get("tool_calls"):
                    return
                messages.append(message)
                for call in message["tool_calls"]:
                    result = noted(notes, **json.loads(call["function"]["arguments"]))
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})

        yield Tasks(run)


if __name__ == "__main__":
    serve(floor)
