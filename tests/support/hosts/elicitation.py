"""A host whose client can ask its person, in both eras of the protocol, and the person who answers.

async with host(tmp_path, "legacy", accept()) as at:
    made = await at.propose()
    await at.confirm(made)
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import anyio
from mcp import Client
from mcp.client.context import ClientRequestContext
from mcp_types import (
    CallToolResult,
    ElicitRequestFormParams,
    ElicitRequestParams,
    ElicitResult,
    ErrorData,
    InputRequiredResult,
)

from ava_audit.events import Fact, RunClaimed, SpawnDecided
from ava_audit.rows import WAITING, PlanCaps
from ava_audit.store.store import Store
from ava_audit.view import View
from ava_server.core.background import READY_S, pages_server
from ava_server.core.data_root import DataRoot
from ava_server.mcp_server.elicitation import READ_S
from support.model_server import ModelServer, Script
from support.processes import end_started_pages
from support.runtime import PRICED, connect, hand_over
from support.stdio import until

F = TypeVar("F", bound=Fact)
ERAS = ("legacy", "auto")
Answering = Callable[[ElicitRequestFormParams], ElicitResult | ErrorData | Awaitable[ElicitResult]]


def accept(**content: Any) -> Answering:
    """Return a person who accepts each form with these values."""
    return lambda _question: ElicitResult(action="accept", content=content)


def read_and_accept(**content: Any) -> Answering:
    """Accept as a person does who reads the question first."""

    async def answer(_question: ElicitRequestFormParams) -> ElicitResult:
        await anyio.sleep(READ_S + 0.1)
        return ElicitResult(action="accept", content=content)

    return answer


async def decline(_question: ElicitRequestFormParams) -> ElicitResult:
    """Decline a form as a person does who reads the question first."""
    await anyio.sleep(READ_S + 0.1)
    return ElicitResult(action="decline")


def decline_at_once(_question: ElicitRequestFormParams) -> ElicitResult:
    """Decline a form as a host without a person does."""
    return ElicitResult(action="decline")


def cancel(_question: ElicitRequestFormParams) -> ElicitResult:
    """Close a form."""
    return ElicitResult(action="cancel")


@dataclass
class Person:
    """Whoever sits at the client: gives one answer to each form, opens no page, and remembers what was asked."""

    answers: Answering
    asked: list[ElicitRequestFormParams] = field(default_factory=list[ElicitRequestFormParams])
    pages: list[str] = field(default_factory=list[str])

    async def __call__(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        if not isinstance(params, ElicitRequestFormParams):
            self.pages.append(params.url)
            return ElicitResult(action="decline")
        self.asked.append(params)
        answer = self.answers(params)
        return answer if isinstance(answer, ElicitResult | ErrorData) else await answer


@dataclass
class Host:
    """A client, the person at it, and the data root as any process can read it."""

    client: Client
    person: Person
    models: ModelServer
    root: Path
    workspace: Path

    async def call(self, tool: str, **given: Any) -> dict[str, Any]:
        """Call a tool and return its structured answer."""
        with anyio.fail_after(READY_S + 40):  # on a busy machine, the pages may not start in time
            answer = await self.client.call_tool(tool, given)
        return structured(answer)

    async def propose(self, **more: Any) -> dict[str, Any]:
        """Propose a researcher that may read the workspace."""
        given = {"role": "researcher", "task": "What does it cost?", "workspace": str(self.workspace), **more}
        made = await self.call("spawn_subagent", **given)
        assert made["status"] == WAITING, made
        return made

    async def confirm(self, *made: dict[str, Any], last: str | None = None, **more: Any) -> dict[str, Any]:
        """Confirm proposals with their lines, of which `last` is the group's."""
        return await self.call("confirm_spawn", **approval(*made, last=last, **more))

    async def by_hand(
        self, given: dict[str, Any], state: str | None = None, answer: ElicitResult | None = None
    ) -> InputRequiredResult | dict[str, Any]:
        """Call confirm_spawn as a modern client does that keeps nothing to itself."""
        with anyio.fail_after(30):
            found = await self.client.session.call_tool(
                "confirm_spawn",
                given,
                input_responses={"approval": answer} if answer is not None else None,
                request_state=state,
                allow_input_required=True,
            )
        return found if isinstance(found, InputRequiredResult) else structured(found)

    async def question(self, given: dict[str, Any]) -> str:
        """Have the server ask; return what the client has to keep."""
        asked = await self.by_hand(given)
        assert isinstance(asked, InputRequiredResult) and asked.request_state is not None
        return asked.request_state

    async def facts(self, made: dict[str, Any], kind: type[F]) -> list[F]:
        """Return the facts of this kind that a run's entries have."""
        async with Store.open(self.root) as store:
            entries = await store.read(lambda view: view.entries(made["subagent_id"]))
        return [entry.fact for entry in entries if isinstance(entry.fact, kind)]

    async def nothing_started(self, *, waiting: int = 1) -> None:
        """Every proposal still waits, no decision was taken, and no model was asked."""
        async with Store.open(self.root) as store:
            runs = await store.read(View.runs)
            decided = await store.read(
                lambda view: [
                    entry for run in runs for entry in view.entries(run.id, 0, ("SpawnDecided", "RunClaimed"))
                ]
            )
        assert [run.state for run in runs] == [WAITING] * waiting
        assert decided == [] and self.models.requests == []

    async def started_once(self, made: dict[str, Any], *, requests: int = 1) -> SpawnDecided:
        """Wait until a run has succeeded, which was started once; return the decision on it."""
        ended = await self.call("check_subagent", subagent_id=made["subagent_id"], wait_seconds=20)
        assert ended["status"] == "success", ended
        assert len(await self.facts(made, RunClaimed)) == 1
        with anyio.fail_after(20):  # another run of the group may be a moment behind
            while len(self.models.requests) < requests:  # noqa: ASYNC110
                await anyio.sleep(0.02)
        assert len(self.models.requests) == requests
        [decided] = await self.facts(made, SpawnDecided)
        return decided

    async def plan_of(self, decided: SpawnDecided) -> PlanCaps:
        """Return the caps of the plan as whose step something was approved."""
        plan_id = decided.group_id
        assert plan_id is not None
        async with Store.open(self.root) as store:
            plan = await store.read(lambda view: view.plan_caps(plan_id))
        assert plan is not None
        return plan


def structured(answer: CallToolResult) -> dict[str, Any]:
    """Return the structured content of an answer."""
    content: dict[str, Any] | None = answer.structured_content
    assert content is not None
    return content


def refusal_reason(answer: dict[str, Any]) -> str:
    """Return why an approval was refused, as the answer says of its first proposal."""
    assert answer["status"] == "refused", answer
    return str(answer["decisions"][0]["refused_because"])


def approval(*made: dict[str, Any], last: str | None = None, **more: Any) -> dict[str, Any]:
    """Return the arguments of confirm_spawn with the lines of these proposals, and `last` for the group's."""
    lines = [each["approval_line"] for each in made] + ([last] if last else [])
    return {"pending_ids": [each["pending_id"] for each in made], "approving": lines, **more}


@asynccontextmanager
async def host(
    tmp: Path,
    mode: str,
    answers: Answering,
    script: Script = (),
    *,
    config: str = PRICED,
    server: ModelServer | None = None,
    name: str | None = None,
) -> AsyncGenerator[Host]:
    """Open a server in memory, and a client whose person gives these answers."""
    person = Person(answers)
    given = script or [hand_over(), hand_over()]
    opening = connect(tmp, given, config=config, mode=mode, asks=person, server=server, name=name)
    try:
        async with opening as (client, models):
            yield Host(client, person, models, tmp / "data", tmp / "workspace")
    finally:
        await end_pages(DataRoot(tmp / "data"))


async def end_pages(root: DataRoot) -> None:
    """End the server of the pages that a host has started."""
    end_started_pages(root.path)
    await until(lambda: pages_server(root).port() is None, within_s=10)
