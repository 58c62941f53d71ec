"""The entry point of the six tools: records every call, and turns a caller's mistake into an answer.

What a person has decided on a screen of Ava's own is carried out by such a call too, so it is checked and recorded like
any other; `client_approval.py` and `run_questions.py` have what a host's client asks its person.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ava_audit.errors import AuditError, SchemaNewer, StoreUnavailable
from ava_audit.rows import WAITING
from ava_roles.errors import RolesError
from ava_server.approval.decide import Decided, FoldedScreen, PersonAnswer, Shown, tool_call
from ava_server.approval.proposals import changed_since
from ava_server.approval.requests import refuse_deep, show_value
from ava_server.approval.start_form import AnsweredLater
from ava_server.approval.steps import with_plain_steps
from ava_server.config.tokens import Scope
from ava_server.core.errors import AvaError, BadInput, Refused
from ava_server.core.shortage import shortage_in
from ava_server.core.untrusted import HIDE_WITHIN_S, count_chars, hide_apart, shorten
from ava_server.render.host_text import text_of
from ava_server.render.responses import FAILED, Answer
from ava_server.service.access import NOBODY, Access, Asking, Progress, Session, ignore_progress
from ava_server.service.check import RunChecks, RunSteering
from ava_server.service.confirm import Confirmations
from ava_server.service.log_reader import LogReader
from ava_server.service.page_links import PageDecisions
from ava_server.service.record import CallContext, CallRecord
from ava_server.service.run_questions import PersonQuestions
from ava_server.service.run_tasks import RunTasks
from ava_server.service.runtime import Runtime
from ava_server.service.spawn import Spawns
from ava_server.service.tool_registry import TOOLS, ServiceTool

if TYPE_CHECKING:
    from ava_audit.view import Readable

MOST_CHARS = 1_000_000
"""Characters of a call's arguments: more than the schema of any tool allows."""
log = logging.getLogger("ava.service")


class Service:
    """The six tools for one session.

    Attributes:
        extensions: Decides on what runs ask for, where a person does so in this session; it is not a tool.
    """

    def __init__(self, runtime: Runtime, session: Session) -> None:
        self._runtime = runtime
        self.store = runtime.store
        self.session = session
        self._access = access = Access(runtime, session)
        self.questions = PersonQuestions(access)
        self.tasks = RunTasks(access)
        checks = RunChecks(access)
        self._pages = PageDecisions(access)
        spawns = Spawns(access)
        steering = RunSteering(access, checks)
        self._handlers: Mapping[str, Callable[[dict[str, Any], CallContext], Awaitable[Answer]]] = {
            "spawn_subagent": spawns.spawn,
            "confirm_spawn": Confirmations(access, checks, spawns).confirm,
            "check_subagent": checks.check,
            "message_subagent": steering.message,
            "cancel_subagent": steering.cancel,
            "read_ava_logs": LogReader(access).read,
        }

    def refuse_without(self, scope: Scope) -> None:
        """Refuse what needs a scope that the session's token lacks. Raises Refused: names the missing scope."""
        self._access.refuse_without(scope)

    async def call(
        self,
        tool: str,
        arguments: dict[str, Any],
        progress: Progress,
        *,
        asking: Asking = NOBODY,
        raises: bool = False,
        degraded: bool = False,
        screens: Mapping[str, FoldedScreen] | None = None,
    ) -> Answer:
        """Call a tool; a caller's mistake is an answer, not an exception.

        `progress`: called with a sentence while the call waits. `raises`: raise a mistake once it is recorded, for a
        caller that handles kinds of mistakes. `degraded`: a proposal may miss tools that its role needs: a person at a
        terminal has accepted that. `screens`: what was on a person's screen, by proposal, where some of it was folded.

        Raises:
            AvaError: There is no such tool, or its arguments are nested too deeply; with `raises`, any mistake.
            RolesError: With `raises`.
            AuditError: With `raises`.
            AnsweredLater: The client asks the person and calls again with the answer.
        """
        if tool not in TOOLS:
            raise BadInput(f"there is no tool {show_value(tool)}; there are {', '.join(TOOLS)}")
        spec = TOOLS[tool]
        checked = await self._check_arguments(spec, arguments)
        record = CallRecord(self._access, tool, checked.arguments, checked.redacted)
        caller = CallContext(progress, record, asking, degraded, screens or {})
        mistake: Exception | None = None
        try:
            await record.start()
            answer = await self._answer(tool, checked, caller)
            if record.answer is not None:
                return answer
        except AnsweredLater as later:
            record.end(f"Nothing was decided: {later}.", success=True)
            raise
        except Exception as error:
            if record.answer is not None:  # it is done and answered: a caller who tries again would have it twice
                fault = error if _mistake_in(error) is None else None
                log.warning("%s is done, but not what comes after it: %s", tool, error, exc_info=fault)
                return record.answer
            mistake = _callers_mistake(error, record)
            answer = self._failure(spec, mistake)
        answer, mistake = await self._put_on_record(spec, answer, mistake, caller)
        if mistake is None:
            await self._pages.show_new(answer, caller)
        elif raises:
            raise mistake
        return answer

    async def _answer(self, tool: str, checked: _CheckedArguments, caller: CallContext) -> Answer:
        """Have a tool's handler answer. Raises the refusal of the arguments, if there is one."""
        if checked.refusal is not None:
            raise checked.refusal
        arguments = checked.arguments
        if checked.redacted != arguments:  # else nothing in them looks like a key
            await hide_apart(partial(self._access.refuse_keys, arguments), count_chars(arguments))
        handler = self._handlers[tool]
        return await handler(checked.redacted, caller)

    async def _check_arguments(self, spec: ServiceTool, arguments: dict[str, Any]) -> _CheckedArguments:
        """Return the arguments of a call without secrets, and why it is refused before its handler sees it.

        Raises BadInput if they are nested too deeply.
        """
        refuse_deep(arguments)
        arguments = with_plain_steps(arguments)  # a key must not pass because its text is escaped
        await self._runtime.credentials.refresh()
        hide = self._runtime.credentials.redactor.redact_json
        refusal: AvaError
        try:
            self._access.refuse_without(spec.scope, admin=spec.admin)
            chars = count_chars(arguments)
            if chars > MOST_CHARS:
                raise BadInput(
                    f"the arguments have {chars:,} characters, at most {MOST_CHARS:,} are allowed; send less"
                )
            return _CheckedArguments(arguments, await hide_apart(partial(hide, arguments), chars))
        except TimeoutError:
            sentence = f"the arguments could not be searched for secrets within {HIDE_WITHIN_S:g} s; shorten them"
            refusal = Refused(f"{sentence}, or call again when this server does less")
        except AvaError as error:
            refusal = error
        return _CheckedArguments(arguments, hide(shorten(arguments)), refusal)

    async def _put_on_record(
        self, spec: ServiceTool, answer: Answer, mistake: Exception | None, caller: CallContext
    ) -> tuple[Answer, Exception | None]:
        """Record an answer; return it and its mistake, or another if it decides something and cannot be recorded."""
        record = caller.record
        news = caller.news[0] if caller.news else None
        reachable = not isinstance(mistake, StoreUnavailable | SchemaNewer)
        try:
            await record.finish(answer, news, reachable=reachable)
        except AuditError as error:
            log.warning("the answer of %s is not on the record: %s", record.tool, error)
            if record.is_undone:
                answer = self._failure(spec, error)
                record.end(text_of(answer), success=False)
                return answer, error
        return answer, mistake

    def _failure(self, spec: ServiceTool, error: Exception) -> Answer:
        return spec.answer(status=FAILED, message=self._access.redact(self._access.explain(error)))


def _callers_mistake(error: Exception, record: CallRecord) -> Exception:
    """Return the mistake that a call's exception is. Raises the exception where it is a fault of Ava itself."""
    mistake = _mistake_in(error)
    if mistake is None:
        record.end("a fault of Ava itself", success=False)
        raise error
    return mistake


def _mistake_in(error: Exception) -> Exception | None:
    """Return what an answer says of an error; None if it is a fault of Ava itself."""
    if isinstance(error, AvaError | RolesError | AuditError):
        return error
    shortage = shortage_in(error)
    if shortage:
        return Refused(shortage)
    return None


async def decide(service: Service, shown: Sequence[Shown], answer: PersonAnswer) -> Decided:
    """Carry out a person's decision.

    `shown`: what they saw: one thing, or several proposals, which are approved as one plan.

    Raises:
        AvaError: It was not accepted, or is about something else than what was shown.
        AuditError: The log cannot be written.
        RolesError: It was not accepted.
    """
    first = shown[0]
    if first.kind in ("extend", "answer"):
        service.refuse_without("spawn")
        decision = await service.questions.decide(first.id, first.digest, approve=answer.agrees, words=answer.words)
        status = "delivered" if first.kind == "answer" else decision.status
        return Decided({"status": status, "subagent_id": first.id, "message": decision.text})
    if first.kind == "start" and answer.agrees:
        await refuse_changed(service.store, service.session.user, shown)
    if first.kind == "resume":
        run = await service.store.read(lambda view: view.run(first.id))
        if run is not None and run.state == WAITING:  # the call would start it
            raise Refused(f"{first.id} does not wait to be resumed; nothing was done")
    tool, arguments = tool_call(shown, answer)
    result = await service.call(tool, arguments, ignore_progress, raises=True, screens=answer.screens)
    return Decided(result.structured())


async def refuse_changed(store: Readable, user: str, shown: Sequence[Shown]) -> None:
    """Refuse an approval of anything but what was shown: a digest differs."""
    digests = {one.id: one.digest for one in shown}
    why = await store.read(lambda view: changed_since(view, user, digests))
    if why:
        raise Refused(why)


@dataclass(frozen=True)
class _CheckedArguments:
    """The arguments of a call, and without secrets; `refusal` is why no handler sees them."""

    arguments: dict[str, Any]
    redacted: dict[str, Any]
    refusal: AvaError | None = None
