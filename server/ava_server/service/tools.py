"""The registry of the six tools: the arguments, answer, scope and handler of each.

The list that hosts get, the reference page and the checks of `Service.call` are derived from this table.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ava_server.approval import requests
from ava_server.render import responses

if TYPE_CHECKING:
    from ava_server.config.tokens import Scope
    from ava_server.service.access import CallContext
    from ava_server.service.check import RunChecks, RunSteering
    from ava_server.service.confirm import Confirmations
    from ava_server.service.logs import LogReader
    from ava_server.service.spawn import Spawns

Handler = Callable[[dict[str, Any], "CallContext"], Awaitable[responses.Answer]]
Recorded = Literal["before", "with", "meanwhile", "after"]
"""When a call is recorded: before it acts; in one transaction with what it writes, where it acts on nothing but the
log; while it acts (even while the log is out of reach); or with its answer, if that is news."""


@dataclass(frozen=True)
class Handlers:
    """What handles the tools for one caller."""

    spawns: Spawns
    confirmations: Confirmations
    checks: RunChecks
    steering: RunSteering
    logs: LogReader


@dataclass(frozen=True)
class ServiceTool:
    """One of the six tools.

    Attributes:
        title: Its name for a person.
        description: What hosts tell the model.
        args: Its arguments; they know its name.
        answer: Its answer.
        scope: The scope that a token needs.
        handler: Returns the method that handles it.
        recorded: When a call is written to the log.
        read_only: It changes nothing.
        destructive: Hosts should ask a person before it is called.
        idempotent: A second call changes nothing more; None where that is not stated.
        open_world: It reaches beyond this machine.
        loaded: Hosts that load tools on demand should always load it.
        approves: A person decides in it.
        asks: A person may be asked in it.
        admin: The scope `admin` is enough: it reaches the runs of other users.
        card: Hosts with MCP Apps show its answer as a card.
    """

    title: str
    description: str
    args: type[requests.Arguments]
    answer: type[responses.Answer]
    scope: Scope
    handler: Callable[[Handlers], Handler]
    recorded: Recorded = "before"
    read_only: bool = False
    destructive: bool = False
    idempotent: bool | None = None
    open_world: bool = False
    loaded: bool = False
    approves: bool = False
    asks: bool = False
    admin: bool = False
    card: bool = False

    @property
    def name(self) -> str:
        """The tool's name."""
        return self.args.tool


TOOLS: Mapping[str, ServiceTool] = {
    tool.name: tool
    for tool in (
        ServiceTool(
            "Propose a subagent",
            "Propose a subagent. Starts nothing before the person agrees to the proposal; then call confirm_spawn.",
            requests.SpawnArgs,
            responses.SpawnAnswer,
            "spawn",
            lambda handlers: handlers.spawns.spawn,
            recorded="with",
            idempotent=False,
            loaded=True,
            asks=True,
        ),
        ServiceTool(
            "Start approved subagents",
            "Start (or reject) proposed subagents. Only when the person has agreed: this spends money. Two or more ids"
            " become a group under one cost cap.",
            requests.ConfirmArgs,
            responses.ConfirmAnswer,
            "spawn",
            lambda handlers: handlers.confirmations.confirm,
            recorded="with",
            destructive=True,
            idempotent=False,
            open_world=True,
            loaded=True,
            approves=True,
            asks=True,
            admin=True,
            card=True,
        ),
        ServiceTool(
            "Look after subagents",
            "Status of a subagent, or its result when ended; without an id, all that wait, run or ended lately.",
            requests.CheckArgs,
            responses.CheckAnswer,
            "read",
            lambda handlers: handlers.checks.check,
            recorded="after",
            read_only=True,
            loaded=True,
            asks=True,
            card=True,
        ),
        ServiceTool(
            "Message a subagent",
            "Send a running subagent a message, read before its next turn. Steers the work, never widens it.",
            requests.MessageArgs,
            responses.MessageAnswer,
            "spawn",
            lambda handlers: handlers.steering.message,
        ),
        ServiceTool(
            "Cancel a subagent",
            "End a subagent, group or proposal within 5 s. Returns what it has.",
            requests.CancelArgs,
            responses.CancelAnswer,
            "spawn",
            lambda handlers: handlers.steering.cancel,
            recorded="meanwhile",
            idempotent=True,
            admin=True,
        ),
        ServiceTool(
            "Read Ava's log",
            "For diagnosis: one subagent's log, the last entries, or a search.",
            requests.LogArgs,
            responses.LogAnswer,
            "read",
            lambda handlers: handlers.logs.read,
            recorded="after",
            read_only=True,
        ),
    )
}
"""The six tools by name, in the order in which hosts list them."""
