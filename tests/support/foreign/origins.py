"""Runs that read what an attacker wrote: their tools, histories and scripted models, for tests of origins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ava_audit.events import Asked, Channel, Fact, ToolResult, UserMessage
from ava_roles.tool import Tool, ToolArgs, ToolContext, ToolOutput, ToolSpec
from ava_roles.wrap import wrap_tool_output
from ava_server.approval.decide import PersonAnswer, Shown
from ava_server.runs.origins.origins import Origins
from ava_server.runs.record.history import History
from ava_server.service.access import Session, ignore_progress
from ava_server.service.service import Service, decide
from support.foreign.servers import stdio_server
from support.model_server import Say
from support.runtime import PRICED, Lab

EVIL = "mallory@evil.example"
TASK = "Write to bob@example.org that lunch is at 12:30, on 2026-11-25, for 1,250.50 euros. Use the folder reports/new."
SEND = "mcp__lab__send"


class Described:
    """A tool that is only described."""

    def __init__(self, name: str, **flags: Any) -> None:
        self.spec = ToolSpec(name, "", ToolArgs, **flags)

    def activity(self, args: Any) -> str:
        raise NotImplementedError

    async def __call__(self, args: Any, at: ToolContext) -> ToolOutput:
        raise NotImplementedError


def foreign_tool(name: str, **flags: Any) -> Described:
    fields: dict[str, Any] = {key: {} for key in ("to", "subject", "body", "amount", "path", "name", "url")}
    schema = {"type": "object", "properties": {**fields, "how": {"enum": ["fast", "slow"]}}}
    return Described(name, foreign=schema, read_only=False, **flags)


TOOLS: dict[str, Tool] = {
    tool.spec.name: tool
    for tool in (
        foreign_tool(SEND, writes=True, network=True),
        foreign_tool("mcp__lab__contacts"),
        foreign_tool("mcp__lab__inbox"),
        foreign_tool("mcp__lab__lookup", network=True),
        Described("read_file", files=True),
        Described("read_tool_result"),
        Described("read_skill"),
        Described("scratchpad"),
        Described("read_webpages", network=True),
        Described("web_search", network=True, search=True),
        Described("http_get", network=True),
    )
}


def result(tool: str, text: str, *, success: bool = True, unknown: bool = False) -> ToolResult:
    output = wrap_tool_output(text, tool=tool, nonce="n0n0n0n0n0")
    return ToolResult(tool=tool, success=success, output=output, call_id="c", unknown=unknown or None)


def origins_after(
    *facts: Fact,
    task: str = TASK,
    effects: Mapping[str, tuple[str, ...]] | None = None,
    project: tuple[dict[str, str], ...] | None = None,
) -> Origins:
    """The origins of a run that has these facts behind it, and was told this by files of its project."""
    history = History("S-1")
    first = UserMessage(text=task, kind="task", context="Ann is away.", project=project)
    for seq, fact in enumerate((first, *facts), 1):
        history.add(seq, fact)
    return Origins(history, effects or {}, {name: tool.spec for name, tool in TOOLS.items()})


def doubts_of(origins: Origins, tool: str = SEND, /, **args: Any) -> list[tuple[str, str]]:
    return [(each.argument, each.source) for each in origins.doubts(TOOLS[tool], args)]


ALL = "mcp__lab__send, mcp__lab__contacts, mcp__lab__inbox"


def config(wait_s: int = 30) -> str:
    return f"{PRICED}\n[limits]\nquestion_wait_s = {wait_s}\n{stdio_server('good', 'mail')}"


def send_mail(*to: str, body: str = "lunch") -> Say:
    return Say(calls=[(SEND, {"to": list(to), "body": body})])


async def mails_of(lab: Lab, run_id: str) -> list[ToolResult]:
    assert (await lab.ended(run_id, 40)).state == "success"
    return [fact for fact in await lab.facts(run_id, ToolResult) if fact.tool == SEND]


async def start_guest(lab: Lab) -> str:
    return await lab.start(role="guest", workspace=None, task="Write to bob@example.org about lunch.")


async def answer(lab: Lab, run_id: str, text: str, channel: Channel, *, shown: Asked | None = None) -> str:
    """Answer what a run asks, over a channel; return what the caller is told.

    `shown`: the question that the person has seen; without it, only the words arrive.
    """
    service = Service(lab.runtime, Session(user=lab.session.user, transport="memory", channel=channel))

    if shown is not None:
        return (await decide(service, [Shown("answer", run_id, shown.ask_id)], PersonAnswer(True, text))).text
    given = {"subagent_id": run_id, "message": text}
    told = await service.call("message_subagent", given, ignore_progress, raises=True)
    return str(told.message)
