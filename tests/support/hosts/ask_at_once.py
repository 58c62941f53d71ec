"""A host whose model proposes a run and has its person asked in the same call."""

from __future__ import annotations

from typing import Any

from mcp_types import CallToolResult, ElicitResult, InputRequiredResult

from ava_audit.store.store import Store
from ava_audit.view import View
from support.hosts.elicitation import Host


async def spawn_and_ask(at: Host, **more: Any) -> dict[str, Any]:
    """Propose a run and have the person asked in the same call; return the answer."""
    return await at.call("spawn_subagent", **spawn_arguments(at, **more))


def spawn_arguments(at: Host, **more: Any) -> dict[str, Any]:
    """Return the arguments of such a call."""
    given = {"role": "researcher", "task": "What does it cost?", "workspace": str(at.workspace), "ask": True}
    return {**given, **more}


async def proposal_states(at: Host) -> list[str]:
    """The states of everything that was proposed."""
    async with Store.open(at.root) as store:
        return [run.state for run in await store.read(View.runs)]


async def spawn_by_hand(
    at: Host, given: dict[str, Any], state: str | None = None, answer: ElicitResult | None = None
) -> CallToolResult | InputRequiredResult:
    """Call spawn_subagent as a modern client does that keeps nothing to itself."""
    return await at.client.session.call_tool(
        "spawn_subagent",
        given,
        input_responses={"approval": answer} if answer is not None else None,
        request_state=state,
        allow_input_required=True,
    )


async def question_state(at: Host, given: dict[str, Any]) -> str:
    """Have the server ask; return what the client has to keep."""
    asked = await spawn_by_hand(at, given)
    assert isinstance(asked, InputRequiredResult) and asked.request_state is not None
    return asked.request_state
