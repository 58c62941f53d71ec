"""The entry point of the six tools: records every call, and turns a caller's mistake into an answer."""

from __future__ import annotations

import logging
import time
from typing import Any

from ava_audit.errors import AuditError, SchemaNewer, StoreUnavailable
from ava_audit.events import Event, ToolCall, ToolResult
from ava_audit.sanitize import sanitize_json
from ava_audit.store.store import Command, Outcome, append
from ava_audit.units import HOUR_US
from ava_audit.view import View
from ava_roles.errors import RolesError
from ava_server.approval.questions import AnsweredLater, PageOpener, Person
from ava_server.approval.requests import refuse_deep, shown
from ava_server.config.tokens import Scope
from ava_server.core.errors import AvaError, BadInput
from ava_server.core.ids import parse_id
from ava_server.service.access import Access, CallContext, News, Progress, Session
from ava_server.service.check import RunChecks, RunSteering
from ava_server.service.confirm import Confirmations
from ava_server.service.extensions import Extensions
from ava_server.service.logs import LogReader
from ava_server.service.render_text import text_of
from ava_server.service.responses import (
    FAILED,
    Answer,
    CancelAnswer,
    CheckAnswer,
    ConfirmAnswer,
    LogAnswer,
)
from ava_server.service.run_tasks import RunTasks
from ava_server.service.run_view import Notice, carried
from ava_server.service.runtime import Runtime
from ava_server.service.spawn import Spawns
from ava_server.service.tools import TOOLS, Handlers

log = logging.getLogger("ava.service")
NOTICES = 5
MENTIONED_DAYS = 7
"""Days after its end in which a new session mentions a run whose result nobody has fetched."""


class Service:
    """The six tools for one session.

    Attributes:
        session: The host connection that it serves.
        extensions: Decides on what runs ask for, where a person does so in this session; it is no tool.
    """

    def __init__(self, runtime: Runtime, session: Session) -> None:
        self._runtime = runtime
        self._store = runtime.store
        self._redactor = runtime.credentials.redactor
        self.session = self._session = session
        self._access = access = Access(runtime, session)
        self.extensions, self.tasks = Extensions(access), RunTasks(access)
        checks, spawns = RunChecks(access), Spawns(access)
        handlers = Handlers(
            spawns, Confirmations(access, checks, spawns), checks, RunSteering(access, checks), LogReader(access)
        )
        self._handlers = {name: tool.handler(handlers) for name, tool in TOOLS.items()}

    def refuse_without(self, scope: Scope) -> None:
        """Refuse what needs a scope that the session's token lacks.

        Raises:
            Refused: Names the missing scope.
        """
        self._access.refuse_without(scope)

    async def call(
        self,
        tool: str,
        given: dict[str, Any],
        progress: Progress,
        *,
        person: Person | None = None,
        raises: bool = False,
        degraded: bool = False,
        wakes: bool = False,
        pages: PageOpener | None = None,
    ) -> Answer:
        """Call a tool; a caller's mistake is an answer, not an exception.

        Args:
            tool: Its name.
            given: Its arguments.
            progress: Called with a sentence while the call waits.
            person: Who can be asked in the middle of the call; None where nobody can.
            raises: Raise a mistake once it is recorded, for a caller that handles kinds of mistakes.
            degraded: A proposal may miss tools that its role needs: a person at a terminal has accepted that.
            wakes: The client takes an approval as a task.
            pages: Opens a page for that person; None where the client cannot.

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
        reading = spec.recorded == "after"
        redacted = self._redactor.redact_json(given)
        called = self._called(tool, given, redacted)
        caller = CallContext(progress, person, degraded, wakes, pages)
        began = time.monotonic()
        mistake: Exception | None = None
        try:
            if spec.recorded == "meanwhile":
                self._store.post(called)
            elif spec.recorded == "before":
                await self._store.do(called)
            self._access.refuse_without(spec.scope, admin=spec.admin)
            if redacted != given:  # else nothing in them looks like a key
                self._access.refuse_keys(given)
            answer = await handler(redacted, caller)
        except (AvaError, RolesError, AuditError) as error:
            mistake = error
            message, _count = self._redactor.redact(self._access.explained(error))
            answer = spec.answer(status=FAILED, message=message)
        except AnsweredLater as asked:
            if reading:
                self._store.post(called)
            self._store.post(append(self._answered(tool, f"Nothing was decided: {asked}.", began, success=True)))
            raise
        except Exception:
            self._store.post(append(self._answered(tool, "a fault of Ava itself", began, success=False)))
            raise
        try:
            news = caller.news[0] if caller.news else await self._store.read(self._access.news)
            answer.notices = self._notices(answer, news) or None
            out_of_reach = isinstance(mistake, StoreUnavailable | SchemaNewer)  # the caller has waited for it once
            await self._record(called, tool, answer, began, reading=reading, waits=not out_of_reach)
        except AuditError as error:  # what was done is done: the answer is given
            log.warning("the answer of %s is not on the record: %s", tool, error)
        if raises and mistake is not None:
            raise mistake
        return answer

    def _notices(self, answer: Answer, news: News) -> list[str]:
        """Return a line for each run of this user that ended and whose result was not fetched yet.

        One that ended more than an hour ago, perhaps while no host was open, is mentioned once in a session. Runs of
        this workspace come first; before them, those that wait for a person: to allow them more, to answer, or to
        resume.
        """
        in_it, now_us = set(_run_ids(answer)), news.at_us
        interrupted = [Notice(row, interrupted_us=now_us - (row.last_us or 0)) for row in news.interrupted]
        ended = [
            Notice(row)
            for row in sorted(news.ended, key=lambda row: not self._access.is_here(row))
            if row.id not in in_it and (row.ended_us or 0) >= now_us - self._mentioned_for_us(row.id)
        ]
        waiting = [Notice(row) for row in news.asking if row.id not in in_it]
        notices = [*waiting, *interrupted, *ended][:NOTICES]
        hour_ago_us = now_us - HOUR_US
        self._session.told.update(notice.row.id for notice in notices if 0 < (notice.row.ended_us or 0) < hour_ago_us)
        return [self._access.adapt_text(notice.text()) for notice in notices]

    def _mentioned_for_us(self, run_id: str) -> int:
        """Return for how long after its end a run is mentioned."""
        return HOUR_US if run_id in self._session.told else MENTIONED_DAYS * 24 * HOUR_US

    async def _record(
        self, called: Command[None], tool: str, answer: Answer, began: float, *, reading: bool, waits: bool
    ) -> None:
        """Record the answer: before it is given if it carries a result, not at all for a poll without news."""
        failed = answer.status == FAILED
        states = _poll_states(answer) if not failed else {}
        if states and all(self._session.seen.get(run_id) == state for run_id, state in states.items()):
            return
        text, results = text_of(answer), _run_ids(answer, with_result=True)
        if isinstance(answer, LogAnswer) and not failed:  # what was read is in the log already
            text = f"{len(answer.untrusted_entries)} entries"
        result = self._answered(tool, text, began, success=not failed)
        if reading:
            self._store.post(called)
        # A result that an auditor reads is still news for its user.
        own = await self._access.rows(results) if results else []
        fetched = tuple(carried(self._session.who, tool, row.id) for row in own if self._access.owns(row))
        if waits and (results or not reading):
            await self._store.do(append(result, *fetched))
        else:
            self._store.post(append(result))
        self._session.seen.update(states)

    def _called(self, tool: str, given: dict[str, Any], redacted: dict[str, Any]) -> Command[None]:
        """Return the command that records a call; its header names a run only if that is this user's."""
        # What is too long to store is also too long to accept.
        args, _changes = sanitize_json(redacted)
        fact = ToolCall(tool=tool, args=args)

        def command(view: View, _now_us: int) -> Outcome[None]:
            run_id = _run_in(given)
            run = view.run(run_id) if run_id is not None else None
            own = run is not None and run.user_id == self._session.user
            return Outcome(None, (Event(self._session.who, fact, run_id=run_id if own else None),))

        return command

    def _answered(self, tool: str, text: str, began: float, *, success: bool) -> Event:
        stored, _count = self._redactor.redact(text)
        took_ms = round((time.monotonic() - began) * 1000)
        return Event(self._session.who, ToolResult(tool=tool, success=success, output=stored), duration_ms=took_ms)


def _poll_states(answer: Answer) -> dict[str, tuple[object, ...]]:
    """Return what a poll shows of each run, by which a repeated poll is recognised. Empty for other answers."""
    if not isinstance(answer, CheckAnswer):
        return {}
    states: dict[str, tuple[object, ...]] = {
        run.subagent_id: (run.state, run.iteration, run.untrusted_result is None, run.cursor) for run in answer.runs
    }
    return {"": (len(states),), **states}


def _run_ids(answer: Answer, *, with_result: bool = False) -> list[str]:
    """Return the ids of an answer's runs, or only of those that it shows the result of."""
    if isinstance(answer, CheckAnswer):
        return [run.subagent_id for run in answer.runs if not with_result or run.untrusted_result is not None]
    runs = (answer.runs or []) if isinstance(answer, ConfirmAnswer | CancelAnswer) else []
    return [str(run["subagent_id"]) for run in runs if not with_result or run.get("untrusted_result")]


def _run_in(given: dict[str, Any]) -> str | None:
    value = given.get("subagent_id")
    try:
        return parse_id("subagent_id", value) if isinstance(value, str) else None
    except BadInput:
        return None
