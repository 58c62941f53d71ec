"""The entry point of the six tools: records every call, and turns a caller's mistake into an answer."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ava_audit.errors import AuditError, SchemaNewer, StoreUnavailable
from ava_roles.errors import RolesError
from ava_server.approval.questions import AnsweredLater
from ava_server.approval.requests import refuse_deep, shown
from ava_server.config.tokens import Scope
from ava_server.core.errors import AvaError, BadInput, Refused
from ava_server.core.shortage import shortage_in
from ava_server.render.host_text import text_of
from ava_server.render.responses import FAILED, Answer
from ava_server.service.access import NOBODY, Access, Asking, Progress, Session
from ava_server.service.check import RunChecks, RunSteering
from ava_server.service.confirm import Confirmations
from ava_server.service.logs import LogReader
from ava_server.service.questions import PersonQuestions
from ava_server.service.record import CallContext, CallRecord
from ava_server.service.run_tasks import RunTasks
from ava_server.service.runtime import Runtime
from ava_server.service.spawn import Spawns
from ava_server.service.tools import TOOLS, ServiceTool

log = logging.getLogger("ava.service")


class Service:
    """The six tools for one session.

    Attributes:
        session: The host connection that it serves.
        store: The log.
        extensions: Decides on what runs ask for, where a person does so in this session; it is not a tool.
    """

    def __init__(self, runtime: Runtime, session: Session) -> None:
        self._runtime = runtime
        self.store = runtime.store
        self.session = session
        self._access = access = Access(runtime, session)
        self.extensions, self.tasks = PersonQuestions(access), RunTasks(access)
        checks, spawns = RunChecks(access), Spawns(access)
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
        given: dict[str, Any],
        progress: Progress,
        *,
        asking: Asking = NOBODY,
        raises: bool = False,
        degraded: bool = False,
    ) -> Answer:
        """Call a tool; a caller's mistake is an answer, not an exception.

        Args:
            tool: Its name.
            given: Its arguments.
            progress: Called with a sentence while the call waits.
            asking: Who can answer a proposal through this client.
            raises: Raise a mistake once it is recorded, for a caller that handles kinds of mistakes.
            degraded: A proposal may miss tools that its role needs: a person at a terminal has accepted that.

        Raises:
            AvaError: There is no such tool, or its arguments are nested too deeply; with `raises`, any mistake.
            RolesError: With `raises`.
            AuditError: With `raises`.
            AnsweredLater: The client asks the person and calls again with the answer.
        """
        if tool not in TOOLS:
            raise BadInput(f"there is no tool {shown(tool)}; there are {', '.join(TOOLS)}")
        spec, handler = TOOLS[tool], self._handlers[tool]
        refuse_deep(given)
        await self._runtime.credentials.refresh()
        redacted = self._runtime.credentials.redactor.redact_json(given)
        record = CallRecord(self._access, tool, given, redacted)
        caller = CallContext(progress, record, asking, degraded)
        mistake: Exception | None = None
        try:
            await record.start()
            self._access.refuse_without(spec.scope, admin=spec.admin)
            if redacted != given:  # else nothing in them looks like a key
                self._access.refuse_keys(given)
            answer = await handler(redacted, caller)
            if record.answer is not None:
                return answer
        except AnsweredLater as later:
            record.end(f"Nothing was decided: {later}.", success=True)
            raise
        except Exception as error:
            if record.answer is not None:  # it is done and answered: a caller who tries again would have it twice
                log.warning("%s is done, but not what comes after it: %s", tool, error, exc_info=error)
                return record.answer
            if isinstance(error, AvaError | RolesError | AuditError):
                mistake = error
            elif short := shortage_in(error):
                mistake = Refused(short)
            else:
                record.end("a fault of Ava itself", success=False)
                raise
            answer = self._failed(spec, mistake)
        try:
            reachable = not isinstance(mistake, StoreUnavailable | SchemaNewer)
            await record.finish(answer, caller.news[0] if caller.news else None, reachable=reachable)
        except AuditError as error:
            log.warning("the answer of %s is not on the record: %s", tool, error)
            if record.is_undone:
                mistake, answer = error, self._failed(spec, error)
                record.end(text_of(answer), success=False)
        if raises and mistake is not None:
            raise mistake
        return answer

    def _failed(self, spec: ServiceTool, error: Exception) -> Answer:
        return spec.answer(status=FAILED, message=self._access.redact(self._access.explained(error)))
