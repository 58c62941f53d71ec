"""Asking a person through the client, in both eras of the protocol.

Up to 2025-11-25 the server sends the question inside the call, and waits 45 seconds for the answer, or longer if the
host is known to allow it. From 2026-07-28 on the call ends with the question, and the client calls again with the
answer and with what it was given to keep (the request state): the question's hash and the proposal that the call has
made, sealed under a key in the data root, so that a new server of the same data root recognizes them. Without it, or
where the question has changed since, the person is asked again.

A question that a person answers on a page is only an address for the client. Its answer says whether the page was
opened; the call then waits for the decision in the log.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable, Container, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import mcp_types as types
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types.methods import is_input_required
from pydantic import ValidationError

from ava_audit.units import now_us
from ava_server.config.root_key import root_key
from ava_server.core.errors import AvaError, BadInput
from ava_server.mcp_server.app import can_ask, can_open
from ava_server.mcp_server.call_pages import CallLinks
from ava_server.render.responses import FAILED, Answer

if TYPE_CHECKING:
    from anyio import CancelScope
    from mcp.server.request_state import RequestStateBoundary

    from ava_server.approval.decisions import NotAgreed
    from ava_server.approval.start_form import AnsweredLater, PageQuestion, Question, Reply
    from ava_server.hosts.clients import McpClient
    from ava_server.mcp_server.app import App

log = logging.getLogger("ava.eliciting")
ASK_S = 45.0
"""Seconds that a call with a question may take, unless the host is known to wait longer: some end a call at 60 s."""
LEAST_ASK_S = 15.0
"""Seconds that a person has for a question even where what came before it has taken long."""
ANSWER_S = 600.0
"""Seconds that a client may keep a question: as long as a proposal waits."""
ASKED_AGAIN = 2
"""How often a person is asked again within one question: for an empty or unusable form, or a too fast answer."""
READ_S = 1.0
"""An answer that comes sooner after the question is nobody's who has read it.

A yes counts as a key press that was meant for something else, a no as the host's own, which has no person.
"""
TOO_FAST = "A yes came less than a second after the question, so nothing was decided."
TOLD_S = 1.0
"""Seconds for telling a client that a page is no longer needed."""
_ANSWER = "approval"
_STATE = "requestState"
_RESPONSES = "inputResponses"


def client_of_call(ctx: ServerRequestContext[App, Any]) -> McpClient:
    from ava_server.hosts.clients import UNKNOWN, client_of  # not needed before `initialize` was answered

    client = ctx.session.client_params
    if client is None:
        return UNKNOWN
    return client_of(client.client_info.name, client.client_info.version)


def asks_alone(ctx: ServerRequestContext[App, Any]) -> bool:
    """Tell whether Ava's question can be the only one before a start: the host needs no hint to ask as well.

    That is the handshake era over stdio: the connection that lists the tools calls them. Elsewhere others may.
    """
    from ava_server.mcp_server.app import HTTP

    connected = ctx.session.can_send_request and ctx.lifespan_context.transport != HTTP
    return connected and can_ask(ctx) and client_of_call(ctx).hints


class ClientPerson:
    """The person behind one call: a `Person` for a client that shows forms, a `PageOpener` for one that opens pages."""

    def __init__(self, ctx: ServerRequestContext[App, Any], params: types.CallToolRequestParams, began: float) -> None:
        """`began` is when the call came, as `anyio.current_time` tells it."""
        self._ctx = ctx
        self._params = params
        self._began = began
        self._client = client_of_call(ctx)
        self.fills_forms = self._client.question != "yes or no"
        self.lines = self._client.question_lines
        self._answered_s = READ_S
        self.opens = can_open(ctx) and self._client.pages
        self.links = CallLinks(ctx, began)

    @property
    def proposal(self) -> str | None:
        """The proposal that the same call has made before it ended with a question; see `AnsweredLater`."""
        return (self._params.request_state or "").partition(" ")[2] or None

    async def ask(self, question: Question, use: Callable[[Reply], object]) -> Reply:
        """Ask, and again where the form cannot be used or was answered before anybody could read it.

        Only a person's own no is a `decline`: nobody has seen a question that the client declines at once.
        """
        from ava_server.approval.start_form import CHOICE, NO, YES, Reply

        if not self.fills_forms:
            question = question.as_yes_or_no()
        reply = await self._ask(question)
        for again in range(1, ASKED_AGAIN + 1):
            wrong = self._refusal(reply, use)
            if wrong is None:
                break
            reply = await self._ask(replace(question, wrong=wrong), again)
        if self._is_too_fast(reply):
            return Reply("cancel")
        if not self.fills_forms and reply.action == "accept":
            choice = reply.content.get(CHOICE)
            if choice == YES:
                return reply
            # An answer without the choice is the client's own.
            reply = Reply("decline" if choice == NO else "cancel")
        if reply.action == "decline" and self._answered_s < READ_S:
            return Reply("cancel")
        return reply

    def _refusal(self, reply: Reply, use: Callable[[Reply], object]) -> str | None:
        """Return why the person is asked again, in a sentence, or None."""
        if self._is_too_fast(reply):
            return TOO_FAST
        try:
            if reply.action == "accept":
                use(reply)
        except BadInput as error:
            return f"{error}."
        return None

    def _is_too_fast(self, reply: Reply) -> bool:
        """Tell whether a yes came too soon from a client that has the yes marked when it asks (Codex 0.169 does)."""
        from ava_server.approval.start_form import CHOICE, YES

        says_yes = reply.action == "accept" and reply.content.get(CHOICE) == YES
        return says_yes and not self.fills_forms and self._answered_s < READ_S

    async def _ask(self, question: Question, again: int = 0) -> Reply:
        from ava_server.approval.start_form import AnsweredLater, Reply

        if self._ctx.session.can_send_request:
            closing = self._ctx.lifespan_context.runtime.closing
            left_s = self._began + self._question_s - anyio.current_time()
            least_s = min(LEAST_ASK_S, self._question_s)
            asked_s = anyio.current_time()
            with anyio.move_on_after(max(left_s, least_s)) as asking, closing.question(asking):
                form = self._ctx.session.elicit_form(question.message, question.schema(), self._ctx.request_id)
                answer = await _await_answer(form)
                self._answered_s = anyio.current_time() - asked_s
                return reply_of(answer)
            return Reply("silent")
        kept_answer = self._answer(question, again)
        if kept_answer is None:
            raise AnsweredLater(question, again=again)
        return reply_of(kept_answer)

    # -- pages --------------------------------------------------------------------------------------------------------

    async def address(self) -> str | None:
        return await self.links.address()

    def knows(self, question: PageQuestion, opened: Container[str]) -> bool:
        return question.sha() in opened or self._answer(question) is not None

    async def open(
        self, question: PageQuestion, decided: Callable[[], Awaitable[None]], opened: set[str]
    ) -> NotAgreed | None:
        """Send the person to a page, and wait while the call may last; see `PageOpener`."""
        from ava_server.approval.start_form import AnsweredLater

        pushes = self._ctx.session.can_send_request
        answer = None if pushes else self._answer(question)
        if answer is not None and answer.action != "accept":
            return answer.action
        if answer is not None:
            opened.add(question.sha())
        known = question.sha() in opened
        if not known and not pushes:
            raise AnsweredLater(question)
        closing = self._ctx.lifespan_context.runtime.closing
        wait_s = self._wait_s if known else self._question_s
        until = self._began + wait_s
        with anyio.move_on_after(until - anyio.current_time()) as waiting, closing.question(waiting):
            if known:
                await decided()
                return None
            return await self._open_and_wait(question, decided, opened, waiting)
        return "silent"

    async def _open_and_wait(
        self, question: PageQuestion, decided: Callable[[], Awaitable[None]], opened: set[str], waiting: CancelScope
    ) -> NotAgreed | None:
        """Have the client open the page while the log is watched for the decision; None once that is made."""
        from ava_audit.errors import AuditError

        ended: list[NotAgreed | None] = []
        failed: list[AuditError] = []
        session = self._ctx.session
        elicitation_id = secrets.token_hex(16)
        async with anyio.create_task_group() as tasks:

            async def wait() -> None:
                try:
                    await decided()
                    ended.append(None)
                except AuditError as error:  # raised below, not inside a group
                    failed.append(error)
                with (
                    anyio.move_on_after(TOLD_S),
                    suppress(MCPError, anyio.BrokenResourceError, anyio.ClosedResourceError),
                ):
                    await session.send_elicit_complete(elicitation_id, self._ctx.request_id)
                tasks.cancel_scope.cancel()

            tasks.start_soon(wait)
            answer = await _await_answer(
                session.elicit_url(question.message, question.url, elicitation_id, self._ctx.request_id)
            )
            if answer.action == "accept":
                opened.add(question.sha())
                waiting.deadline = min(waiting.deadline, anyio.current_time() + self._wait_s)
            elif not ended:
                ended.append(answer.action)
                tasks.cancel_scope.cancel()
        if failed:
            raise failed[0]
        return ended[0] if ended else "silent"

    # -- what the client answers --------------------------------------------------------------------------------------

    @property
    def _question_s(self) -> float:
        return self._client.question_s or ASK_S

    @property
    def _wait_s(self) -> float:
        from ava_server.approval.requests import WAIT_LIMIT_S

        return self._client.wait_s or WAIT_LIMIT_S

    def _answer(self, question: Question | PageQuestion, again: int = 0) -> types.ElicitResult | None:
        """Return the answer that the call came with, if it is to this question, asked again at least `again` times.

        The request state is `HASH+++@MICROSECONDS PROPOSAL`, with a plus for each time that the person was asked again.
        """
        state, _, _proposal = (self._params.request_state or "").partition(" ")
        asked, _, asked_us = state.partition("@")
        if asked_us.isdecimal():
            self._answered_s = (now_us() - int(asked_us)) / 1_000_000
        if asked.rstrip("+") != question.sha() or asked.count("+") < again:
            return None
        answer = (self._params.input_responses or {}).get(_ANSWER)
        return answer if isinstance(answer, types.ElicitResult) else None


async def _await_answer(question: Awaitable[types.ElicitResult]) -> types.ElicitResult:
    """Return the client's answer. If it cannot ask after all, or the answer is invalid, the question was closed."""
    try:
        return await question
    except (MCPError, ValidationError) as error:
        log.warning("the client could not ask: %s", type(error).__name__)
        return types.ElicitResult(action="cancel")


def question_result(later: AnsweredLater) -> types.InputRequiredResult:
    """Return the result of a call that ends with a question."""
    return types.InputRequiredResult(input_requests={_ANSWER: request_of(later.question)}, request_state=later.state)


def request_of(question: Question | PageQuestion) -> types.ElicitRequest:
    from ava_server.approval.start_form import PageQuestion

    if isinstance(question, PageQuestion):
        return types.ElicitRequest(params=types.ElicitRequestURLParams(message=question.message, url=question.url))
    form = types.ElicitRequestFormParams(message=question.message, requested_schema=question.schema())
    return types.ElicitRequest(params=form)


def reply_of(answer: types.ElicitResult) -> Reply:
    from ava_server.approval.start_form import Reply

    return Reply(answer.action, dict(answer.content or {}) if answer.action == "accept" else {})


def result_of(answer: Answer, client: McpClient | None = None) -> types.CallToolResult:
    """Return an answer in both forms; for a client that passes both to its model, the text is only the first line."""
    from ava_server.render.host_text import text_of

    text = text_of(answer)
    if client is not None and client.results == "both":
        text = f"{text.partition(chr(10))[0]}\n(complete in the structured form)"
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text)],
        structured_content=answer.structured(),
        is_error=answer.status == FAILED,
    )


class QuestionSeal:
    """Middleware that seals what a client keeps with a question, and opens it when the answer comes."""

    def __init__(self) -> None:
        self._boundary: RequestStateBoundary | None = None
        self._opening = anyio.Lock()

    async def __call__(self, ctx: ServerRequestContext[App, Any], call_next: CallNext) -> HandlerResult:
        if ctx.method != "tools/call" or ctx.params is None:
            return await call_next(ctx)
        from ava_server.service.tool_registry import TOOLS  # not needed before `initialize` was answered

        tool = TOOLS.get(ctx.params.get("name", ""))
        if tool is None or not tool.asks:
            return await call_next(ctx)
        if ctx.session.can_send_request or not (can_ask(ctx) or can_open(ctx)):  # the client has nothing to keep
            return await call_next(_without_answer(ctx, ctx.params))
        try:
            boundary = await self._open(ctx)
        except AvaError as error:
            result = await call_next(_without_answer(ctx, ctx.params))
            # Without the key no answer could be recognized, and the person would be asked again and again.
            if not is_input_required(result):
                return result
            message = f"the person cannot be asked, so nothing was decided: {error}"
            return result_of(Answer(status=FAILED, message=message))
        try:
            return await boundary(ctx, call_next)
        except MCPError as error:
            if error.error.data != {"reason": "invalid_request_state"}:
                raise
        return await boundary(_without_answer(ctx, ctx.params), call_next)  # they are asked again, and nothing starts

    async def _open(self, ctx: ServerRequestContext[App, Any]) -> RequestStateBoundary:
        from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity

        async with self._opening:
            if self._boundary is None:
                await ctx.lifespan_context.service(ctx)
                path = ctx.lifespan_context.runtime.settings.paths.question_key
                key = await anyio.to_thread.run_sync(root_key, path)
                security = RequestStateSecurity(keys=[key], ttl=ANSWER_S)
                self._boundary = RequestStateBoundary(security, default_audience="ava")
            return self._boundary


def _without_answer(ctx: ServerRequestContext[App, Any], params: Mapping[str, Any]) -> ServerRequestContext[App, Any]:
    others = {name: value for name, value in params.items() if name not in (_STATE, _RESPONSES)}
    return replace(ctx, params=others)
