"""The MCP Inspector with Ava: its command line, run once or connected for a while."""

from __future__ import annotations

import json
import secrets
import subprocess
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ava_server.mcp_server import card
from support.hosts.extensions import CAP
from support.hosts.real_hosts import NODE, PROGRAMS, SPAWN, data_root, http_server, priced_model_env
from support.http_server import token
from support.model_server import ModelServer
from support.runtime import PRICED
from support.stdio import AVA, assert_intact, environment

ASKED = "elicitationPending"
"""What mcpdo answers with where the server asks its person."""


@dataclass(frozen=True)
class Inspector:
    """The Inspector with Ava over stdio, or over HTTP where `entry` names a server."""

    home: Path
    root: Path
    env: Mapping[str, str]
    entry: Mapping[str, Any]

    def run(self, program: str, *args: str) -> dict[str, Any]:
        """Run one of its programs, and return what it printed."""
        printed: dict[str, Any] = json.loads(self.printed(program, *args))
        return printed

    def printed(self, program: str, *args: str) -> str:
        done = subprocess.run(
            [str(NODE), str(PROGRAMS / program), *args], env=dict(self.env), cwd=self.home, timeout=60,
            capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @property
    def catalog(self) -> str:
        """The file that says how Ava is reached."""
        path = self.home / "mcp.json"
        path.write_text(json.dumps({"mcpServers": {"ava": self.entry, "other": self.entry}}))
        return str(path)

    def once(self, era: str, method: str, *args: str) -> dict[str, Any]:
        """Connect with the CLI, send one request, and leave."""
        how = ("--config", self.catalog, "--server", "ava", "--protocol-era", era, "--format", "json", "-q")
        result: dict[str, Any] = self.run("mcp-inspector", "--cli", *how, "--method", method, *args)["result"]
        return result

    def pages(self, era: str, *args: str) -> dict[str, str | None]:
        """Return each tool's page, as the CLI finds it."""
        how = ("--config", self.catalog, "--server", "ava", "--protocol-era", era)
        lines = self.printed("mcp-inspector", "--cli", *how, "--method", "tools/list", "--app-info", *args).splitlines()
        found = [json.loads(line) for line in lines]
        assert all(each["resourceMimeType"] == card.MIME for each in found if each["hasApp"])
        return {each["toolName"]: each.get("resourceUri") for each in found}

    def tool_once(self, era: str, tool: str, **arguments: Any) -> dict[str, Any]:
        given = ("--tool-name", tool, "--tool-args-json", json.dumps(arguments))
        content: dict[str, Any] = self.once(era, "tools/call", *given)["structuredContent"]
        return content

    def mcpdo(self, *args: str) -> dict[str, Any]:
        return self.run("mcpdo", "--format", "json", *args)

    def tool(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool over the connection that is kept."""
        return self.mcpdo("@ava", "tools/call", tool, json.dumps(arguments))

    def propose(self) -> dict[str, Any]:
        content: dict[str, Any] = self.tool("spawn_subagent", **{**SPAWN, **CAP})["structuredContent"]
        return content

    def confirm(self, proposal: Mapping[str, Any]) -> dict[str, Any]:
        return self.tool("confirm_spawn", **confirm_arguments(proposal))

    def accept(self, asked: Mapping[str, Any], shows: str) -> dict[str, Any]:
        """Answer a form as it is, and return what comes next."""
        question = asked[ASKED]
        assert shows in question["message"], question
        fields = question["requestedSchema"]["properties"]
        values = [f"{name}:={field['default']}" for name, field in fields.items()]
        return self.mcpdo("elicitation/respond", question["elicitationId"], *values)


def confirm_arguments(proposal: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `confirm_spawn` for a proposal."""
    return {"pending_ids": [proposal["pending_id"]], "approving": [proposal["approval_line"]]}


@contextmanager
def open_inspector(tmp_path: Path, models: ModelServer, transport: str) -> Generator[Inspector]:
    """Prepare the Inspector with a home and a daemon of its own."""
    home = tmp_path / "home"
    home.mkdir()
    root = data_root(tmp_path, PRICED)
    ava = {"AVA_DATA_ROOT": str(root), **priced_model_env(models)}
    env = {
        **environment(root),
        "HOME": str(home),
        "MCP_INSPECTOR_SECRET_STORE": "file",
        "MCP_INSPECTOR_DAEMON_DIR": str(home / "daemon"),
        "MCP_INSPECTOR_DAEMON_TOKEN": secrets.token_urlsafe(32),
    }
    with ExitStack() as stack:
        if transport == "stdio":
            entry: dict[str, Any] = {"type": "stdio", "command": AVA[0], "args": ["serve"], "env": ava}
        else:
            entry = stack.enter_context(http_server(root, models)).entry(token(root, "ana"))
        yield Inspector(home, root, env, entry)
    assert_intact(root)


@contextmanager
def keep_connected(inspector: Inspector, *names: str) -> Generator[None]:
    """Keep connections open, each over stdio with a server of its own, in the stateless era."""
    try:
        for name in names:
            made = inspector.mcpdo("connect", "--config", inspector.catalog, "--era", "modern", name)
            assert made["protocolEra"] == "modern"
        yield
    finally:
        inspector.mcpdo("daemon", "stop")
