"""The entry point of the six tools: records every call, and turns a caller's mistake into an answer."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from ava_audit.errors import AuditError, EntryTooLarge, OutcomeUnknown, SchemaNewer, StoreUnavailable
from ava_audit.events import Event, ToolCall, ToolResult
from ava_audit.sanitize import sanitize_json
from ava_audit.units import HOUR_US
from ava_audit.view import Command, Outcome, T, View, append
from ava_roles.errors import RolesError
from ava_server.approval.questions import AnsweredLater, PageOpener, Person
from ava_server.approval.requests import refuse_deep, shown
from ava_server.config.tokens import Scope
from ava_server.core.errors import AvaError, BadInput, Refused
from ava_server.core.ids import parse_id
from ava_server.core.shortage import shortage_in
from ava_server.render.host_text import text_of
from ava_server.render.responses import (
    FAILED,
    Answer,
    CancelAnswer,
    CheckAnswer,
    ConfirmAnswer,
    LogAnswer,
)
from ava_server.render.run_view import Notice, carried
from ava_server.service.access import Access, CallContext, News, Progress, Session
from ava_server.service.check import RunChecks, RunSteering
from ava_server.service.confirm import Confirmations
from ava_server.service.logs import LogReader
from ava_server.service.questions import Extensions
from ava_server.service.run_tasks import RunTasks
from ava_server.service.runtime import Runtime
from ava_server.service.spawn import Spawns
from ava_server.service.tools import TOOLS, Handlers, ServiceTool

log = logging.getLogger("ava.service")
NOTICES = 5
MENTIONED_DAYS = 7
"""Days after its end in which a new session mentions a run whose result nobody has fetched."""


class Service:
    """The six tools for one session.

    Attributes:
        session: The host connection that it serves.
        store: The log.
        extensions: Decides on what runs ask for, where a person does so in this session; it is not a tool.
    """

    def __init__(self, runtime: Runtime, session: Session) -> None:
        self._runtime = runtime
        self.store = self._store = runtime.store
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
        proposal: str | None = None,
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
            proposal: The proposal that this call made before it ended with a question that is answered now.

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
        redacted = self._redactor.redact_json(given)
        record = _Record(self, tool, self._called(tool, given, redacted))
        caller = CallContext(progress, record, person, degraded, wakes, pages, proposal)
        mistake: Exception | None = None
        try:
            if spec.recorded == "meanwhile":
                record.post()
            elif spec.recorded == "before":
                await record.begin()
            self._access.refuse_without(spec.scope, admin=spec.admin)
            if redacted != given:  # else nothing in them looks like a key
                self._access.refuse_keys(given)
            answer = await handler(redacted, caller)
            if record.given is not None:
                return answer
        except AnsweredLater as asked:
            record.post(record.answer(f"Nothing was decided: {asked}.", success=True))
            raise
        except Exception as error:
            if record.given is not None:  # it is done and answered: a caller who tries again would have it twice
                log.warning("%s is done, but not what comes after it: %s", tool, error, exc_info=error)
                return record.given
            if isinstance(error, AvaError | RolesError | AuditError):
                mistake = error
            elif short := shortage_in(error):
                mistake = Refused(short)
            else:
                record.post(record.answer("a fault of Ava itself", success=False))
                raise
            answer = self._failed(spec, mistake)
        try:
            news = caller.news[0] if caller.news else await self.store.look(self._access.news)
            notices = self.notices(news, _run_ids(answer))
            answer.notices = self.mention(notices)
            self.note_mentioned(notices)
            out_of_reach = isinstance(mistake, StoreUnavailable | SchemaNewer)  # the caller has waited for it once
            await self._record(record, answer, reading=spec.recorded == "after", waits=not out_of_reach)
        except AuditError as error:
            log.warning("the answer of %s is not on the record: %s", tool, error)
            if spec.recorded == "with" and not record.is_begun:  # so nothing was done either
                mistake, answer = error, self._failed(spec, error)
                record.post(record.answer(text_of(answer), success=False))
        if raises and mistake is not None:
            raise mistake
        return answer

    def _failed(self, spec: ServiceTool, error: Exception) -> Answer:
        message, _count = self._redactor.redact(self._access.explained(error))
        return spec.answer(status=FAILED, message=message)

    def notices(self, news: News, shown: Sequence[str] = ()) -> list[Notice]:
        """Return a notice for each run of this user that ended and whose result was not fetched yet.

        One that ended more than an hour ago, perhaps while no host was open, is mentioned once in a session. Runs of
        this workspace come first; before them, those that wait for a person: to allow them more, to answer, or to
        resume.
        """
        now_us = news.at_us
        interrupted = [Notice(row, interrupted_us=now_us - (row.last_us or 0)) for row in news.interrupted]
        ended = [
            Notice(row)
            for row in sorted(news.ended, key=lambda row: not self._access.is_here(row))
            if row.id not in shown and (row.ended_us or 0) >= now_us - self._mentioned_for_us(row.id)
        ]
        waiting = [Notice(row) for row in news.asking if row.id not in shown]
        return [*waiting, *interrupted, *ended][:NOTICES]

    async def current_notices(self) -> list[Notice]:
        """Return the notices for an answer that shows no run."""
        return self.notices(await self.store.look(self._access.news))

    def mention(self, notices: Sequence[Notice]) -> list[str] | None:
        """Return the lines of notices for an answer."""
        return [self._access.adapt_text(notice.text()) for notice in notices] or None

    def note_mentioned(self, notices: Sequence[Notice]) -> None:
        """Note what an answer has mentioned."""
        hour_ago_us = time.time_ns() // 1000 - HOUR_US
        self._session.told.update(notice.row.id for notice in notices if 0 < (notice.row.ended_us or 0) < hour_ago_us)

    def _mentioned_for_us(self, run_id: str) -> int:
        """Return for how long after its end a run is mentioned."""
        return HOUR_US if run_id in self._session.told else MENTIONED_DAYS * 24 * HOUR_US

    async def _record(self, record: _Record, answer: Answer, *, reading: bool, waits: bool) -> None:
        """Record the answer: before it is given if it carries a result, not at all for a poll without news."""
        failed = answer.status == FAILED
        states = _poll_states(answer) if not failed else {}
        if states and all(self._session.seen.get(run_id) == state for run_id, state in states.items()):
            return
        text, results = text_of(answer), _run_ids(answer, with_result=True)
        if isinstance(answer, LogAnswer) and not failed:  # what was read is in the log already
            text = f"{len(answer.untrusted_entries)} entries"
        result = record.answer(text, success=not failed)
        # A result that an auditor reads is still news for its user.
        own = await self._access.rows(results) if results else []
        fetched = tuple(carried(self._session.who, record.tool, row.id) for row in own if self._access.owns(row))
        if waits and (results or not reading):
            await record.do(append(result, *fetched))
        else:
            record.post(result)
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

    def answered(self, tool: str, text: str, took_s: float, *, success: bool) -> Event:
        """Return the entry of an answer."""
        stored, _count = self._redactor.redact(text)
        took_ms = round(took_s * 1000)
        return Event(self._session.who, ToolResult(tool=tool, success=success, output=stored), duration_ms=took_ms)


class _Record:
    """The record of one call: the call is written once, before or with anything else.

    Attributes:
        tool: The tool.
        given: The answer, once it is in the log too.
    """

    def __init__(self, service: Service, tool: str, called: Command[None]) -> None:
        self.tool = tool
        self.given: Answer | None = None
        self._service = service
        self._called: Command[None] | None = called
        self._began = time.monotonic()

    @property
    def is_begun(self) -> bool:
        """The call is in the log, or on its way there."""
        return self._called is None

    async def begin(self) -> None:
        """Write the call to the log now, unless it is there."""
        if self._called is not None:
            await self.do(append())

    def answer(self, text: str, *, success: bool) -> Event:
        """Return the entry of the answer."""
        return self._service.answered(self.tool, text, time.monotonic() - self._began, success=success)

    def post(self, *events: Event) -> None:
        """Write the call, unless it is there, and events, without waiting."""
        self._service.store.post(self._with_call(append(*events), None))
        self._called = None

    async def do(self, command: Command[T], answered: Callable[[T], Answer | None] | None = None) -> T:
        """Run a command whose transaction also writes the call, unless it is there, and the answer.

        Args:
            command: The command.
            answered: Returns the answer that follows from its value; None where that comes later.
        """
        service = self._service
        notices = await service.current_notices() if answered is not None else []
        lines = service.mention(notices)
        took_s = time.monotonic() - self._began
        answer: Answer | None = None

        def result(value: T) -> tuple[Event, ...]:
            nonlocal answer
            answer = answered(value) if answered is not None else None
            if answer is None:
                return ()
            answer.notices = lines
            return (service.answered(self.tool, text_of(answer), took_s, success=True),)

        try:
            value = await service.store.do(self._with_call(command, result))
        except OutcomeUnknown:  # the call may be in the log
            self._called = None
            raise
        except EntryTooLarge:  # the call itself may fit
            called, self._called = self._called, None
            if called is not None:
                await service.store.do(called)
            raise
        self._called, self.given = None, answer
        service.note_mentioned(notices)
        return value

    def _with_call(self, command: Command[T], result: Callable[[T], tuple[Event, ...]] | None) -> Command[T]:
        called = self._called

        def together(view: View, now_us: int) -> Outcome[T]:
            before = called(view, now_us).events if called is not None else ()
            outcome = command(view, now_us)
            after = result(outcome.value) if result is not None else ()
            return Outcome(outcome.value, (*before, *outcome.events, *after))

        return together


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
