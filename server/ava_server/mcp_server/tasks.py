"""Runs as tasks of the extension `io.modelcontextprotocol/tasks` (SEP-2663), from protocol 2026-07-28 on.

A client that declares the extension on a request gets a task in place of the answer of a call that has started runs. It
then asks for the task's state, and wakes its model with the result. `service.run_tasks` knows what a task is; this
module has the wire format.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import Field, ValidationError

from ava_server.mcp_server.app import can_ask
from ava_server.mcp_server.elicitation import reply_of, request_of, result_of

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

    from ava_server.approval.start_form import Reply
    from ava_server.mcp_server.app import App
    from ava_server.render.responses import Answer
    from ava_server.service.run_tasks import Task
    from ava_server.service.service import Service

    Ctx = ServerRequestContext[App, Any]

log = logging.getLogger("ava.tasks")
MOST_TASKS = 200
"""Most tasks that one stream follows."""
EXTENSION = "io.modelcontextprotocol/tasks"
MISSING_CAPABILITY = -32021
"""The code for a client that has not declared an extension; it is part of the protocol."""


class TaskParams(types.RequestParams):
    """The parameters of `tasks/get` and `tasks/cancel`."""

    task_id: str


class UpdateParams(TaskParams):
    """The parameters of `tasks/update`. Responses are read one by one: an invalid one answers no question."""

    input_responses: dict[str, Any] = Field(default_factory=dict)


def declares_tasks(ctx: Ctx) -> bool:
    capabilities = ctx.session.client_capabilities
    declared = capabilities.extensions if capabilities is not None else None
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS and declared is not None and EXTENSION in declared


def serve_tasks(server: Server[App]) -> None:
    server.extensions[EXTENSION] = {}
    server.add_request_handler("tasks/get", TaskParams, get_task)
    server.add_request_handler("tasks/update", UpdateParams, update_task)
    server.add_request_handler("tasks/cancel", TaskParams, cancel_task)


async def as_task(ctx: Ctx, service: Service, answer: Answer) -> dict[str, Any] | None:
    """Return the task that a call has started, as the answer of the call; None where the answer itself is needed."""
    from ava_audit.errors import AuditError
    from ava_server.core.errors import AvaError
    from ava_server.service.run_tasks import started_task

    task_id = started_task(answer) if declares_tasks(ctx) else None
    if task_id is None:
        return None
    try:
        task = await service.tasks.task(task_id, asks=False)
    except (AvaError, AuditError) as error:  # the answer says what has started, and is not lost with it
        log.warning("%s has started, and cannot be shown as a task: %s", task_id, error)
        return None
    return {"resultType": "task", **_fields(task, "working", before=answer.message)}


async def get_task(ctx: Ctx, params: TaskParams) -> dict[str, Any]:
    service = await _service_of_task(ctx, params)
    task = await _task(service, params.task_id, asks=can_ask(ctx))
    return {"resultType": "complete", **await detailed(service, task)}


async def detailed(service: Service, task: Task) -> dict[str, Any]:
    """Return a task with its questions, or with its result."""
    fields = _fields(task, task.status)
    if task.status == "input_required":
        requests: dict[str, Any] = {}
        for key, question in task.questions.items():
            requests[key] = request_of(question).model_dump(mode="json", by_alias=True, exclude_none=True)
        fields["inputRequests"] = requests
    if task.status == "completed":
        answer = await service.call("check_subagent", task.arguments, _no_progress)
        fields["result"] = result_of(answer).model_dump(mode="json", by_alias=True, exclude_none=True)
    return fields


async def followed_tasks(ctx: Ctx, params: types.SubscriptionsListenRequestParams) -> list[str]:
    """Return the ids of the user's tasks that a stream names. Raises MCPError if the extension is undeclared."""
    from ava_server.core.errors import BadInput

    names = (params.notifications.model_extra or {}).get("taskIds") or ()
    if not isinstance(names, list) or not names:
        return []
    _refuse_undeclared(ctx)
    service = await _service(ctx)
    task_ids: list[str] = []
    for name in cast("list[object]", names)[:MOST_TASKS]:
        with suppress(BadInput):
            task_ids.append(await service.tasks.id_of(str(name)))
    return task_ids


async def task_now(ctx: Ctx, task_id: str) -> dict[str, Any] | None:
    from ava_server.core.errors import AvaError

    service = await _service(ctx)
    try:
        return await detailed(service, await service.tasks.task(task_id, asks=can_ask(ctx)))
    except AvaError:
        return None


async def update_task(ctx: Ctx, params: UpdateParams) -> dict[str, Any]:
    """Carry out answers to a task's questions; one to no open question is ignored."""
    from ava_server.core.errors import AvaError

    service = await _service_of_task(ctx, params)
    replies: dict[str, Reply] = {}
    for key, response in params.input_responses.items():
        with suppress(ValidationError):
            replies[key] = reply_of(types.ElicitResult.model_validate(response))
    try:
        service.refuse_without("spawn")
        await service.tasks.answer(params.task_id, replies)
    except AvaError as error:
        raise MCPError(code=types.INVALID_PARAMS, message=str(error)) from error
    return {"resultType": "complete"}


async def cancel_task(ctx: Ctx, params: TaskParams) -> dict[str, Any]:
    from ava_server.render.responses import FAILED

    service = await _service_of_task(ctx, params)
    task = await _task(service, params.task_id, asks=False)
    answer = await service.call("cancel_subagent", task.arguments, _no_progress)
    if answer.status == FAILED:
        raise MCPError(code=types.INVALID_PARAMS, message=answer.message or "it cannot be cancelled")
    return {"resultType": "complete"}


async def _service(ctx: Ctx) -> Service:
    if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        raise MCPError(code=types.METHOD_NOT_FOUND, message=f"{ctx.method} needs protocol 2026-07-28 or later")
    return await ctx.lifespan_context.service(ctx)


async def _service_of_task(ctx: Ctx, params: TaskParams) -> Service:
    """Return the service for a request about one task.

    Raises MCPError if this version has no such tasks, the client has not declared them, or the header names another.
    """
    service = await _service(ctx)
    _refuse_undeclared(ctx)
    if ctx.request is not None and decode_header_value(ctx.request.headers.get(MCP_NAME_HEADER)) != params.task_id:
        message = f"{MCP_NAME_HEADER} header does not match the request body's 'taskId' parameter"
        raise MCPError(code=types.HEADER_MISMATCH, message=message)
    return service


def _refuse_undeclared(ctx: Ctx) -> None:
    if not declares_tasks(ctx):
        needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
        raise MCPError(code=MISSING_CAPABILITY, message=f"the client has not declared {EXTENSION}", data=needed)


async def _task(service: Service, task_id: str, *, asks: bool) -> Task:
    from ava_server.core.errors import BadInput, Refused

    try:
        service.refuse_without("read")
        return await service.tasks.task(task_id, asks=asks)
    except (BadInput, Refused) as error:
        raise MCPError(code=types.INVALID_PARAMS, message=str(error)) from error


def _fields(task: Task, status: str, *, before: str | None = None) -> dict[str, Any]:
    from ava_audit.units import iso_utc

    return {
        "taskId": task.id,
        "status": status,
        "statusMessage": " ".join(filter(None, (before, task.message))),
        "createdAt": iso_utc(task.created_us),
        "lastUpdatedAt": iso_utc(task.updated_us),
        "ttlMs": task.ttl_ms,
        "pollIntervalMs": task.poll_ms,
    }


async def _no_progress(_line: str) -> None: ...
