"""The registry of the six tools: the arguments, answer and scope of each.

The list that hosts get, the reference page and the checks of `Service.call` are derived from this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ava_server.approval import requests
from ava_server.render import responses

if TYPE_CHECKING:
    from ava_server.config.tokens import Scope


@dataclass(frozen=True)
class ServiceTool:
    """One of the six tools.

    Attributes:
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
            idempotent=False,
            loaded=True,
            asks=True,
        ),
        ServiceTool(
            "Start approved subagents",
            "Start (or reject) proposed subagents. Only when the person has agreed: this spends money. Two or more ids"
            " become one plan under one cost cap.",
            requests.ConfirmArgs,
            responses.ConfirmAnswer,
            "spawn",
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
            "Status of a subagent or plan, or its result; without an id, all that wait, run or ended lately.",
            requests.CheckArgs,
            responses.CheckAnswer,
            "read",
            read_only=True,
            loaded=True,
            asks=True,
            card=True,
        ),
        ServiceTool(
            "Message a subagent",
            "Send a running subagent a message, read before its next turn.",
            requests.MessageArgs,
            responses.MessageAnswer,
            "spawn",
        ),
        ServiceTool(
            "Cancel a subagent",
            "End a subagent, plan or proposal within 5 s.",
            requests.CancelArgs,
            responses.CancelAnswer,
            "spawn",
            idempotent=True,
            admin=True,
        ),
        ServiceTool(
            "Read Ava's log",
            "For diagnosis: one subagent's log, the last entries, or a search.",
            requests.LogArgs,
            responses.LogAnswer,
            "read",
            read_only=True,
        ),
    )
}
"""The six tools by name, in the order in which hosts list them."""
