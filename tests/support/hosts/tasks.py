"""A host that declares tasks, step by step.

async with hosting(tmp_path, [hand_over()]) as host:
    started = await host.start()
    await host.ended(started.task_id)
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import anyio
import mcp_types as types
from mcp import Client
from mcp.client.extension import ClaimContext, ClientExtension, NotificationBinding, ResultClaim
from pydantic import ConfigDict

from support.model_server import ModelServer
from support.runtime import connect
from support.stdio import read_answer

TASKS = "io.modelcontextprotocol/tasks"


class TaskStart(types.Result):
    """A task, as `tools/call` is answered with."""

    result_type: Literal["task"]
    task_id: str
    status: str
    status_message: str
    created_at: str
    last_updated_at: str
    ttl_ms: int | None
    poll_interval_ms: int


class TaskChange(types.NotificationParams):
    """A task, as `notifications/tasks` has it."""

    model_config = ConfigDict(extra="allow")

    task_id: str
    status: str
    status_message: str


class Tasks(ClientExtension):
    """A client that takes tasks, and leaves it to the test what becomes of them."""

    identifier = TASKS

    def __init__(self) -> None:
        self.started: list[TaskStart] = []
        self.heard: list[TaskChange] = []

    def claims(self) -> list[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=TaskStart, resolve=self._resolve)]

    def notifications(self) -> list[NotificationBinding[Any]]:
        return [NotificationBinding(method="notifications/tasks", params_type=TaskChange, handler=self._hear)]

    async def _resolve(self, started: TaskStart, _ctx: ClaimContext) -> types.CallToolResult:
        self.started.append(started)
        return types.CallToolResult(content=[], structured_content={"status": "approved"})

    async def _hear(self, changed: TaskChange) -> None:
        self.heard.append(changed)


class TaskRequest(types.Request[dict[str, Any], str]):
    method: str
    params: dict[str, Any]


class TaskResult(types.Result):
    model_config = ConfigDict(extra="allow")


class Host:
    def __init__(self, client: Client, models: ModelServer, tasks: Tasks | None = None) -> None:
        self.client = client
        self.models = models
        self.tasks = tasks or Tasks()

    async def propose(self, **more: Any) -> dict[str, Any]:
        given = {"role": "researcher", "task": "What does it cost?", **more}
        proposed, _text = read_answer(await self.client.call_tool("spawn_subagent", given))
        assert proposed["status"] == "awaiting_approval", proposed
        return proposed

    async def confirm(self, *proposals: dict[str, Any], **more: Any) -> Any:
        given = {
            "pending_ids": [each["pending_id"] for each in proposals],
            "approving": [each["approval_line"] for each in proposals],
            **more,
        }
        before = len(self.tasks.started)
        answer = await self.client.call_tool("confirm_spawn", given)
        return self.tasks.started[-1] if len(self.tasks.started) > before else answer

    async def start(self, **more: Any) -> TaskStart:
        started = await self.confirm(await self.propose(**more))
        assert isinstance(started, TaskStart), started
        return started

    async def ask(self, method: str, task_id: str, **more: Any) -> dict[str, Any]:
        return await self.request(method, {"taskId": task_id, **more})

    async def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        result = await self.client.session.send_request(TaskRequest(method=method, params=params), TaskResult)
        return result.model_dump(by_alias=True)

    async def input_required(self, task_id: str) -> dict[str, Any]:
        """Wait until a task needs its person, and return it."""
        with anyio.fail_after(40):
            while (task := await self.ask("tasks/get", task_id))["status"] != "input_required":  # noqa: ASYNC110
                await anyio.sleep(0.05)
        return task

    async def ended(self, task_id: str, within_s: float = 60) -> dict[str, Any]:
        with anyio.fail_after(within_s):
            while (task := await self.ask("tasks/get", task_id))["status"] == "working":  # noqa: ASYNC110
                await anyio.sleep(0.05)  # as a client does
        return task


@asynccontextmanager
async def task_host(tmp: Path, script: Any, **more: Any) -> AsyncGenerator[Host]:
    tasks = Tasks()
    async with connect(tmp, script, mode="2026-07-28", extensions=[tasks], **more) as (client, models):
        yield Host(client, models, tasks)
