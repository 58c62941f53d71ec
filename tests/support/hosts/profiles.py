"""The hosts as they behave: who they say they are, what they hand on, what they show their model, how they leave.

What each does was seen with real ones, whose versions stand in the profiles. Claude Desktop's way of leaving is the
one of the SDK that it is built with.

async with open_host(CODEX, root, workspace, env=model_env(models.base_url)) as host:
    proposal = host.proposal(await host.call("spawn_subagent", role="researcher", task="Prices"))
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import anyio

from ava_server.mcp_server.elicitation import READ_S
from support.stdio import MODERN, Wire, serve_stdio

OTHERS_KEYS = {
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMIexampleBvIq5nAAsecretSECRET",
    "GITHUB_TOKEN": "another-programs-github-token-8812",
    "ANTHROPIC_API_KEY": "another-programs-anthropic-key-4471",
    "OPENROUTER_API_KEY": "another-programs-openrouter-key-2093",
    "DATABASE_URL": "postgres://somebody:another-programs-password@db.example/main",
    "NPM_CONFIG__AUTH": "another-programs-npm-auth-3302",
}
"""What a person's shell holds for other programs, and a host that hands everything on gives to its servers."""

Leave = Callable[[Wire], Awaitable[None]]


async def gone_within(wire: Wire, seconds: float) -> bool:
    with anyio.move_on_after(seconds):
        await wire.process.wait()
    return wire.process.returncode is not None


async def leave_like_claude_code(wire: Wire) -> None:
    wire.signal(signal.SIGINT)
    if not await gone_within(wire, 0.1):
        wire.signal(signal.SIGTERM)
        if not await gone_within(wire, 0.4):
            wire.signal(signal.SIGKILL)


async def leave_like_codex(wire: Wire) -> None:
    await wire.close_stdin()
    os.killpg(wire.pid, signal.SIGTERM)
    if not await gone_within(wire, 0.015):
        os.killpg(wire.pid, signal.SIGKILL)


async def leave_like_opencode(wire: Wire) -> None:
    await wire.close_stdin()
    for number in (signal.SIGTERM, signal.SIGKILL):
        if await gone_within(wire, 2):
            return
        wire.signal(number)


async def leave_like_gemini(wire: Wire) -> None:
    wire.signal(signal.SIGTERM)


class Proposal(NamedTuple):
    pending_id: str
    run: str
    line: str


class Structured:
    """A host that shows its model the structured form alone."""

    def proposal(self, result: Mapping[str, Any]) -> Proposal:
        form = result["structuredContent"]
        return Proposal(form["pending_id"], form["subagent_id"], form["approval_line"])

    def right_lines(self, result: Mapping[str, Any], number: int) -> list[str]:
        lines = list(result["structuredContent"]["approval_lines"])
        assert len(lines) == number
        return lines

    def decision(self, result: Mapping[str, Any], pending_id: str) -> str:
        decisions = result["structuredContent"]["decisions"]
        return str(next(one["status"] for one in decisions if one["pending_id"] == pending_id))

    def state(self, result: Mapping[str, Any]) -> str:
        return str(result["structuredContent"]["runs"][0]["state"])

    def output(self, result: Mapping[str, Any]) -> str:
        return str(result["structuredContent"]["runs"][0]["untrusted_result"]["output"])

    def failure(self, result: Mapping[str, Any]) -> str | None:
        form = result["structuredContent"]
        return str(form["message"]) if form["status"] == "failed" else None

    def entries(self, result: Mapping[str, Any]) -> str:
        return "\n".join(result["structuredContent"]["untrusted_entries"])


class Text:
    """A host that shows its model the text alone, without the flag that says whether a call failed."""

    def proposal(self, result: Mapping[str, Any]) -> Proposal:
        text = _text(result)
        ids = re.search(r"^pending_id: (P-\w+) +subagent_id: (S-\w+)", text, re.MULTILINE)
        line = re.search(r"^approval_line: (.+)$", text, re.MULTILINE)
        assert ids and line, text
        return Proposal(ids[1], ids[2], line[1])

    def right_lines(self, result: Mapping[str, Any], number: int) -> list[str]:
        return _text(result).partition("\napproval_lines:\n")[2].splitlines()[:number]

    def decision(self, result: Mapping[str, Any], pending_id: str) -> str:
        found = re.search(rf"^{pending_id} \(S-\w+\): (\w+)", _text(result), re.MULTILINE)
        assert found, _text(result)
        return found[1]

    def state(self, result: Mapping[str, Any]) -> str:
        text = _text(result)
        ended = re.match(r"\[S-\w+ (\w+)", text)
        return ended[1] if ended else "going on"

    def output(self, result: Mapping[str, Any]) -> str:
        framed = _text(result).partition("\n│ Output:\n")[2].partition("\n</subagent_result>")[0]
        return "\n".join(line.removeprefix("│ ") for line in framed.split("\n"))

    def failure(self, result: Mapping[str, Any]) -> str | None:
        text = _text(result)
        return text.removeprefix("Failed: ") if text.startswith("Failed: ") else None

    def entries(self, result: Mapping[str, Any]) -> str:
        return _text(result)


def _text(result: Mapping[str, Any]) -> str:
    return "\n".join(content["text"] for content in result["content"])


@dataclass(frozen=True)
class Profile:
    name: str  # what it calls itself, with its version
    version: str
    protocol: str  # the version that it speaks; with the newest it sends no `initialize`
    reads: Structured | Text  # what its model sees of an answer
    leave: Leave  # how it ends its server
    capabilities: Mapping[str, Any] = field(default_factory=dict)  # what it says that it can do
    # What it adds to the few variables that every host leaves its servers.
    hands_on: Mapping[str, str] = field(default_factory=dict)
    token: Callable[[int], int | str] | None = None  # the progress token of its calls; None sends none
    lists_first: bool = True  # it lists the tools before it calls any
    cancels: bool = False  # it sends `notifications/cancelled` after every call, also when that has been answered
    from_root: bool = False  # it starts its servers in `/`
    own_group: bool = False  # its servers are the first of a process group of their own


ASKS: Mapping[str, Any] = {"elicitation": {"form": {}, "url": {}}}
YES: Mapping[str, Any] = {"action": "accept", "content": {"decision": "Yes"}}
ROOTS: Mapping[str, Any] = {"roots": {"listChanged": True}}
CLAUDE_CODE = Profile(
    "claude-code", "2.1.328", MODERN, Structured(), leave_like_claude_code, {**ROOTS, **ASKS}, OTHERS_KEYS,
    token=lambda number: number, lists_first=False,
)  # fmt: skip
CODEX = Profile(
    "codex-mcp-client", "0.169.0", "2025-06-18", Structured(), leave_like_codex, ASKS, token=lambda number: 0,
    own_group=True,
)  # fmt: skip
OPENCODE = Profile(
    "opencode", "1.18.33", "2025-11-25", Text(), leave_like_opencode, ROOTS, OTHERS_KEYS,
    token=lambda number: number, cancels=True,
)  # fmt: skip
GEMINI = Profile("gemini-cli-mcp-client", "0.61.0", "2025-06-18", Text(), leave_like_gemini, ROOTS)
CLAUDE_DESKTOP = Profile(
    "claude-ai", "0.1.0", "2025-06-18", Structured(), leave_like_opencode,
    {"extensions": {"io.modelcontextprotocol/ui": {}}}, token=lambda number: f"claude-{number}", from_root=True,
)  # fmt: skip
HOSTS = (CLAUDE_CODE, CODEX, OPENCODE, GEMINI, CLAUDE_DESKTOP)


class Host:
    def __init__(self, profile: Profile, wire: Wire, workspace: Path) -> None:
        self.profile = profile
        self.wire = wire
        self.tools: list[str] = []
        self.calls = 0
        self.reads = profile.reads
        wire.replies["roots/list"] = lambda: {"roots": [{"uri": workspace.as_uri(), "name": "project"}]}
        if "elicitation" in profile.capabilities:  # its person says yes to everything
            wire.replies["elicitation/create"] = lambda: YES
            wire.reads_s = READ_S + 0.1

    async def greet(self) -> None:
        profile, wire = self.profile, self.wire
        who = {"name": profile.name, "version": profile.version}
        if profile.protocol == MODERN:
            wire.meta = {
                "io.modelcontextprotocol/protocolVersion": MODERN,
                "io.modelcontextprotocol/clientInfo": who,
                "io.modelcontextprotocol/clientCapabilities": profile.capabilities,
            }
            assert MODERN in (await wire.request("server/discover"))["result"]["supportedVersions"]
        else:
            hello = {"protocolVersion": profile.protocol, "capabilities": profile.capabilities, "clientInfo": who}
            assert (await wire.request("initialize", hello))["result"]["protocolVersion"] == profile.protocol
            await wire.notify("notifications/initialized")
        if profile.lists_first:
            await self.list_tools()

    async def list_tools(self) -> list[str]:
        listed = (await self.wire.request("tools/list"))["result"]["tools"]
        self.tools = [tool["name"] for tool in listed]
        return self.tools

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        self.calls += 1
        params: dict[str, Any] = {"name": tool, "arguments": arguments}
        if self.profile.token is not None:
            params["_meta"] = {"progressToken": self.profile.token(self.calls)}
        request = await self.wire.ask("tools/call", params)
        answer = await self.wire.answer(request)
        if answer.get("result", {}).get("resultType") == "input_required":  # asked, and called again with the answer
            asked = answer["result"]
            given = {
                "inputResponses": dict.fromkeys(asked["inputRequests"], YES),
                "requestState": asked["requestState"],
            }
            request = await self.wire.ask("tools/call", {**params, **given})
            answer = await self.wire.answer(request)
        if self.profile.cancels:
            await self.wire.notify("notifications/cancelled", {"requestId": request, "reason": "AbortError"})
        result: dict[str, Any] = answer["result"]
        return result

    async def leave(self) -> None:
        with suppress(ProcessLookupError):
            await self.profile.leave(self.wire)
        await self.wire.exited()


@asynccontextmanager
async def open_host(
    profile: Profile, root: Path, workspace: Path, *, env: Mapping[str, str] | None = None
) -> AsyncGenerator[Host]:
    """A host that has greeted its server; the server is killed if the test has not ended it."""
    async with serve_stdio(
        root,
        cwd=Path("/") if profile.from_root else workspace,
        env={**profile.hands_on, **(env or {})},
        initialize=False,
        own_group=profile.own_group,
    ) as wire:
        host = Host(profile, wire, workspace)
        await host.greet()
        yield host
