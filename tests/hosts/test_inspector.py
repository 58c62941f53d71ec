"""The MCP Inspector's two programs: the CLI, with a connection for each call, and mcpdo, which keeps one."""

from __future__ import annotations

import json
import secrets
import subprocess
from collections.abc import Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.hosts.extensions import CAP, keep_noting
from support.hosts.real_hosts import NODE, PROGRAMS, SPAWN, data_root, entries, http_server, needs, priced_model_env
from support.http_server import token
from support.model_server import Gate, ModelServer, Say, run_model_server
from support.runtime import PRICED
from support.stdio import AVA, assert_intact, environment

from ava_server.mcp_server import card

pytestmark = [pytest.mark.slow, needs()]

OUTPUT = "twelve cents"
DONE = Say(calls=[("submit_result", {"summary": "done", "output": OUTPUT})])
TOOLS = [
    "spawn_subagent",
    "confirm_spawn",
    "check_subagent",
    "message_subagent",
    "cancel_subagent",
    "read_ava_logs",
]
ASKED = "elicitationPending"
"""What mcpdo answers with where the server asks its person."""


@pytest.fixture(params=["stdio", "http"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_the_cli_proposes_confirms_and_checks(tmp_path: Path, transport: str, era: str) -> None:
    with run_model_server([DONE]) as models, inspecting(tmp_path, models, transport) as inspector:
        assert [tool["name"] for tool in inspector.once(era, "tools/list")["tools"]] == TOOLS
        proposal = inspector.tool_once(era, "spawn_subagent", **SPAWN)
        confirmed = inspector.tool_once(era, "confirm_spawn", **confirming(proposal))
        # In the stateless era the CLI has tasks: it follows this one, and prints its result as the call's.
        assert ("runs" in confirmed) == (era == "modern") and ("decisions" in confirmed) == (era == "legacy")
        checked = inspector.tool_once(era, "check_subagent", subagent_id=proposal["subagent_id"], wait_seconds=20)
        for answer in (checked, confirmed) if era == "modern" else (checked,):
            assert answer["runs"][0]["untrusted_result"]["output"] == OUTPUT


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_the_cli_finds_the_card_only_where_it_says_that_it_shows_pages(
    tmp_path: Path, transport: str, era: str
) -> None:
    with run_model_server([]) as models, inspecting(tmp_path, models, transport) as inspector:
        assert inspector.pages(era) == dict.fromkeys(TOOLS)
        shown = dict.fromkeys(("confirm_spawn", "check_subagent"), card.URI)
        assert inspector.pages(era, "--advertise-apps") == {**dict.fromkeys(TOOLS), **shown}


def test_mcpdo_approves_in_a_form_raises_a_cap_in_another_and_gets_the_result(tmp_path: Path, transport: str) -> None:
    with (
        run_model_server(keep_noting) as models,
        inspecting(tmp_path, models, transport) as inspector,
        connected(inspector, "ava"),
    ):
        asked = inspector.confirm(inspector.propose())
        assert asked[ASKED]["origin"] == "input-required"
        asked = inspector.accept(asked, "Ava wants to start")
        assert asked[ASKED]["origin"] == "task-input-required"
        result = inspector.accept(asked, "Raise the cost cap to $0.28?")
        [run] = result["structuredContent"]["runs"]
        assert run["state"] == "success" and run["untrusted_result"]["output"] == "the answer"
        [decided] = entries(inspector.root, "Answered")
        assert decided["content"]["channel"] == "elicitation"


def test_another_connection_of_mcpdo_cancels_a_task(tmp_path: Path, transport: str) -> None:
    gate = Gate(60)
    with (
        run_model_server([Say("x", gate=gate)]) as models,
        inspecting(tmp_path, models, transport) as inspector,
        connected(inspector, "ava", "other"),
        ThreadPoolExecutor() as threads,
    ):
        proposal = inspector.propose()
        run_id = proposal["subagent_id"]
        asked = inspector.confirm(proposal)
        waiting = threads.submit(inspector.accept, asked, "Ava wants to start")
        assert gate.arrived.wait(20)
        assert inspector.mcpdo("@other", "tasks/get", run_id)["task"]["status"] == "working"
        inspector.mcpdo("@other", "tasks/cancel", run_id)
        assert gate.client_left.wait(10), "the call of the model was given up"
        assert inspector.mcpdo("@other", "tasks/get", run_id)["task"]["status"] == "cancelled"
        assert "was cancelled" in str(waiting.exception(30))


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
        return self.tool("confirm_spawn", **confirming(proposal))

    def accept(self, asked: Mapping[str, Any], shows: str) -> dict[str, Any]:
        """Answer a form as it is, and return what comes next."""
        question = asked[ASKED]
        assert shows in question["message"], question
        fields = question["requestedSchema"]["properties"]
        values = [f"{name}:={field['default']}" for name, field in fields.items()]
        return self.mcpdo("elicitation/respond", question["elicitationId"], *values)


def confirming(proposal: Mapping[str, Any]) -> dict[str, Any]:
    return {"pending_ids": [proposal["pending_id"]], "approving": [proposal["approval_line"]]}


@contextmanager
def inspecting(tmp_path: Path, models: ModelServer, transport: str) -> Generator[Inspector]:
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
def connected(inspector: Inspector, *names: str) -> Generator[None]:
    """Keep connections open, each over stdio with a server of its own, in the stateless era."""
    try:
        for name in names:
            made = inspector.mcpdo("connect", "--config", inspector.catalog, "--era", "modern", name)
            assert made["protocolEra"] == "modern"
        yield
    finally:
        inspector.mcpdo("daemon", "stop")
