"""The command that starts an agent: its variables and files, with the address and the secret of its gateway in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import anyio.to_thread

from ava_roles.sandbox.command_workspace import HOME, agent_command, find_agent
from ava_roles.sandbox.path_access import make_folders
from ava_roles.sandbox.sandbox import Command, LocalServer

if TYPE_CHECKING:
    from ava_roles.sandbox.command_workspace import CommandSandbox
    from ava_roles.sandbox.toolchains import HostFolders
    from ava_server.config.agents import AgentSpec

PORT = 8123
"""Of the gateway on 127.0.0.1 in the agent's own network, where nothing else is."""
API_TYPES = {"messages": "anthropic", "responses": "openai", "chat_completions": "openai"}
PACKAGES = {
    "messages": "@ai-sdk/anthropic",
    "responses": "@ai-sdk/openai",
    "chat_completions": "@ai-sdk/openai-compatible",
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
        local = LocalServer(PORT, scratch / "gateway")
        return agent_command(argv, bench, home, local, host, variables=variables, project=project)

    return await anyio.to_thread.run_sync(make)
