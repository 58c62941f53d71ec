"""Ava's tools for another agent: an MCP server bound to one run, behind the run's gateway.

Every call goes through the run's own `ToolCalls`: recorded before it starts, redacted, wrapped as untrusted. Only what
came through here counts as a source of quotes.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from itertools import count
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from ava_audit.events import ToolCall
from ava_server.models.base import ToolUse
from ava_server.runs.submit import NAME as SUBMIT
from ava_server.runs.submit import SubmitArgs, accept

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from starlette.types import Receive, Scope, Send

    from ava_server.runs.context import ActiveRun
    from ava_server.runs.tool_calls import ToolCalls

HANDED = "Handed over. End your turn now; you are told if something has to be fixed."

MOST_REFUSED = 50  # calls beyond the run's cap that are on the record: they cost the agent nothing
AT_HAND = {"anthropic/alwaysLoad": True}
"""Claude Code otherwise has its model search for a tool before it can be called."""


class RunTools:
    """The tools of one run.

    `submitted` has what was handed over, and its call's id; `news` goes with the next result.
    """

    def __init__(
        self, run: ActiveRun, calls: ToolCalls, on_submit: Callable[[], None], news: Callable[[], Awaitable[str]]
    ) -> None:
        self._run = run
        self._calls = calls
        self._on_submit = on_submit
        self._news = news
        self._numbers = count(1)
        prefix = run.log.history.prefix or run.context.started
        self._tools = [
            types.Tool(
                name=str(tool["name"]), description=tool["description"], input_schema=tool["parameters"], _meta=AT_HAND
            )
            for tool in prefix.tools
        ]
        self.names = frozenset(tool.name for tool in self._tools)
        self.submitted: tuple[SubmitArgs, str] | None = None
        server: Server[Any] = Server(
            "ava", version=version("ava-subagents"), on_list_tools=self._list, on_call_tool=self._call
        )
        self._manager = StreamableHTTPSessionManager(server, json_response=True, stateless=True)

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        async with self._manager.run():
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request: an ASGI application."""
        await self._manager.handle_request(scope, receive, send)

    async def _list(
        self, _ctx: ServerRequestContext[Any, Any], _params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=self._tools)

    async def _call(
        self, _ctx: ServerRequestContext[Any, Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        args = params.arguments or {}
        number = next(self._numbers)
        if number > self._run.config.max_tool_calls + MOST_REFUSED:
            over = types.TextContent(type="text", text="Not taken: far more calls than this run may make.")
            return types.CallToolResult(content=[over], is_error=True)
        call_id = f"ava-{self._run.log.fence.generation}-{number}"
        call = ToolUse(call_id, params.name, args, json.dumps(args, ensure_ascii=False))
        text, failed = await (self._submit(call) if params.name == SUBMIT else self._other(call))
        if news := await self._news():
            text = f"{text}\n\n{news}"
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=failed)

    async def _other(self, call: ToolUse) -> tuple[str, bool]:
        await self._calls.run((call,))
        result = self._run.log.history.results.get(call.call_id)
        return ("The run is over.", True) if result is None else (result.output, not result.success)

    async def _submit(self, call: ToolUse) -> tuple[str, bool]:
        run, hide = self._run, self._run.context.redactor.redact_json
        if self.submitted is not None:
            return HANDED, False
        history = run.log.history
        args = hide(dict(call.args or {}))
        await run.log.record(ToolCall(tool=SUBMIT, args=args, call_id=call.call_id, turn=history.turn))
        accepted = await anyio.to_thread.run_sync(accept, call, run.config.output_schema, hide)
        if isinstance(accepted, str):
            await self._calls.refuse(call, accepted, unusable=True)
            history.drafts.append(dict(call.args or {}))
            return f"Refused: {accepted}", True
        self.submitted = accepted, call.call_id
        self._on_submit()
        return HANDED, False
