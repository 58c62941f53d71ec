"""Whether an agent works here: a turn in the sandbox, with a model on loopback that says one sentence, for nothing.

The command that starts an agent: its variables and files, with the address and the secret of its gateway in them.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from ava_roles.sandbox.command_workspace import HOME, CopiedWorkspace, agent_command, find_agent
from ava_roles.sandbox.path_access import make_folders, remove_tree
from ava_roles.sandbox.sandbox import Command, ReachableServer
from ava_roles.sandbox.toolchains import HostFolders
from ava_server.agents.acp import AcpAgent, PermissionRequest, Update
from ava_server.agents.gateway import listening
from ava_server.core.data_root import home_folder
from ava_server.models.wires.google import STREAM

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from ava_roles.sandbox.command_workspace import CommandSandbox
    from ava_roles.sandbox.sandbox import Sandbox
    from ava_roles.sandbox.toolchains import HostFolders
    from ava_server.config.agents import AgentSpec
    from ava_server.config.settings import Settings

PORT = 8123
"""Of the gateway on 127.0.0.1 in the agent's own network, where nothing else is."""
API_TYPES: Mapping[str, str] = {
    "messages": "anthropic",
    "responses": "openai",
    "chat_completions": "openai",
    "google": "google",
}
PACKAGES: Mapping[str, str] = {
    "messages": "@ai-sdk/anthropic",
    "responses": "@ai-sdk/openai",
    "chat_completions": "@ai-sdk/openai-compatible",
    "google": "@ai-sdk/google",
}
"""What opencode calls the formats."""


async def start_command(
    spec: AgentSpec,
    wire: str,
    model: str,
    secret: str,
    bench: CommandSandbox,
    scratch: Path,
    host: HostFolders,
    project: Path | None,
) -> Command:
    """Return the command that starts an agent, with its home, and its gateway's socket, in `scratch`.

    Raises RolesError.
    """
    words = {
        "{url}": f"http://127.0.0.1:{PORT}/v1",
        "{base}": f"http://127.0.0.1:{PORT}",
        "{secret}": secret,
        "{model}": model,
        "{home}": str(HOME),
        "{package}": PACKAGES[wire],
        "{off}": json.dumps(spec.off),
    }

    def filled(text: str) -> str:
        for word, value in words.items():
            text = text.replace(word, value)
        return text

    def make() -> Command:
        home, root = scratch / "agent", scratch.parent.parent
        make_folders(home, root)
        for name, content in spec.files.items():
            make_folders((home / name).parent, root)
            (home / name).write_text(filled(content), "utf-8")
        argv = [str(find_agent(spec.command[0], project)), *map(filled, spec.command[1:])]
        variables = {name: filled(value) for name, value in spec.variables.items()}
        local = ReachableServer(PORT, scratch / "gateway")
        return agent_command(argv, bench, home, local, host, variables=variables, project=project)

    return await anyio.to_thread.run_sync(make)


WORDS = "It works."
MODEL = "ava-check"
TURN_S = 90.0


async def check_agent(spec: AgentSpec, settings: Settings, sandbox: Sandbox) -> Mapping[str, Any]:
    """Return what an agent calls itself, how long its first turn took, and what its first request had.

    Raises AgentFailed, RolesError if it cannot take a turn; TimeoutError if it took more than 90 s.
    """
    here = settings.paths.scratch / f"check-{secrets.token_hex(4)}"
    bench = CopiedWorkspace(
        mounts=sandbox.mounts, here=here / "workbench", files=None, run_id="check",
        host=HostFolders(home_folder(), settings.sandbox.read_only, (settings.data_root,)),
    )  # fmt: skip
    model, said, began = _Model(), list[str](), anyio.current_time()

    def on_update(update: Update) -> None:
        if update.kind == "text":
            said.append(update.text)

    async def refused(_ask: PermissionRequest) -> bool:
        return False

    try:
        await anyio.to_thread.run_sync(make_folders, here, settings.data_root)
        made, _new = await bench.ready()
        wire, secret = spec.wires[0], secrets.token_urlsafe(16)
        async with listening(model, here / "gateway"):
            command = await start_command(spec, wire, MODEL, secret, made, here, bench.host, None)
            with anyio.fail_after(TURN_S):
                async with sandbox.start(command) as pipes, AcpAgent(spec.title, pipes, on_update, refused) as agent:
                    await agent.initialize()
                    if agent.takes_provider and spec.providers:
                        await agent.set_provider(f"http://127.0.0.1:{PORT}/v1", secret, API_TYPES[wire])
                    await agent.open_session(str(command.folder), None)
                    stop, _usage = await agent.prompt("Say that it works.")
                    return {
                        "calls_itself": f"{agent.name} {agent.version}".strip(),
                        "works": stop == "end_turn" and WORDS in "".join(said),
                        "stop": stop,
                        "seconds": round(anyio.current_time() - began, 1),
                        "requests": len(model.sizes),
                        "first_bytes": max(model.sizes, default=0),
                        "tools": model.tools,
                        "resumes": agent.resumes,
                        "tools_over_http": agent.takes_tools,
                    }
    finally:
        with suppress(OSError), anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(remove_tree, here)


class _Model:
    """An ASGI application that answers in the format of each path. `sizes` are the bytes of the requests."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.tools: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while True:
            message = await receive()
            if message["type"] != "http.request":
                break
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        path = str(scope["path"])
        endpoint = path.rpartition("/v1")[2]
        if path.endswith(f":{STREAM}"):
            endpoint = GOOGLE_EVENTS
        if scope["method"] == "POST" and endpoint in _EVENTS:
            self._note_request(body)
            status, content_type, content = 200, b"text/event-stream", _EVENTS[endpoint]
        else:
            status, content_type, content = 404, b"application/json", b"{}"
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", content_type)]})
        await send({"type": "http.response.body", "body": content})

    def _note_request(self, body: bytes) -> None:
        """Note the size of a request, and its tools if no earlier one had more."""
        self.sizes.append(len(body))
        with suppress(ValueError, AttributeError):
            names: list[str] = []
            for tool in json.loads(body).get("tools", []):
                for declared in tool.get("functionDeclarations", [tool]):  # Google's stand in lists
                    names.append(str(declared.get("name") or declared.get("function", {}).get("name")))
            self.tools = max(self.tools, names, key=len)


def _stream(*events: dict[str, Any], end: str = "") -> bytes:
    stream = ""
    for event in events:
        if "type" in event:
            stream += f"event: {event['type']}\n"
        stream += f"data: {json.dumps(event)}\n\n"
    return (stream + end).encode()


_ITEM: dict[str, Any] = {"type": "message", "id": "m1", "role": "assistant", "status": "completed",
         "content": [{"type": "output_text", "text": WORDS, "annotations": []}]}  # fmt: skip
_USAGE = {"input_tokens": 9, "output_tokens": 3, "total_tokens": 12, "input_tokens_details": {"cached_tokens": 0},
          "output_tokens_details": {"reasoning_tokens": 0}}  # fmt: skip
_RESPONSE: dict[str, Any] = {
    "id": "r1",
    "object": "response",
    "created_at": 0,
    "model": MODEL,
    "output": [_ITEM],
    "status": "completed",
}
_CHUNK = {"id": "c1", "object": "chat.completion.chunk", "created": 0, "model": MODEL}
GOOGLE_EVENTS = "google"
_EVENTS: Mapping[str, bytes] = {
    GOOGLE_EVENTS: _stream(
        {"candidates": [{"index": 0, "finishReason": "STOP", "content": {"role": "model", "parts": [{"text": WORDS}]}}],
         "usageMetadata": {"promptTokenCount": 9, "candidatesTokenCount": 3, "totalTokenCount": 12},
         "modelVersion": MODEL, "responseId": "r1"},
    ),
    "/messages": _stream(
        {"type": "message_start", "message": {
            "id": "m1", "type": "message", "role": "assistant", "model": MODEL, "content": [], "stop_reason": None,
            "stop_sequence": None, "usage": {"input_tokens": 9, "output_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": WORDS}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None},
         "usage": {"output_tokens": 3}},
        {"type": "message_stop"},
    ),
    "/responses": _stream(
        {"type": "response.created", "response": {**_RESPONSE, "output": [], "status": "in_progress"}},
        {"type": "response.output_item.done", "output_index": 0, "item": _ITEM},
        {"type": "response.completed", "response": {**_RESPONSE, "usage": _USAGE}},
    ),
    "/chat/completions": _stream(
        {**_CHUNK, "choices": [{"index": 0, "delta": {"role": "assistant", "content": WORDS}}]},
        {**_CHUNK, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {**_CHUNK, "choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}},
        end="data: [DONE]\n\n",
    ),
}  # fmt: skip
"""The answer in each format, by the path under /v1."""
