"""The record of a call: when it is written to the log, with what, and which runs its answer mentions besides."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ava_audit.errors import EntryTooLarge, OutcomeUnknown
from ava_audit.events import Event, ToolCall, ToolResult
from ava_audit.sanitize import sanitize_json
from ava_audit.units import HOUR_US
from ava_audit.view import Command, Outcome, T, View, append
from ava_server.approval.decide import FoldedScreen
from ava_server.core.errors import BadInput
from ava_server.core.ids import parse_id
from ava_server.render.host_text import text_of
from ava_server.render.plan_view import whole_plans
from ava_server.render.responses import FAILED, Answer, CancelAnswer, CheckAnswer, ConfirmAnswer, LogAnswer
from ava_server.render.run_view import Notice, carried
from ava_server.runs.journal.log import ms_since
from ava_server.service.access import NOBODY, Access, Asking, News, Progress

When = Literal["before", "with", "meanwhile", "after"]
WHEN: Mapping[str, When] = {
    "spawn_subagent": "with",
    "confirm_spawn": "with",
    "check_subagent": "after",
    "message_subagent": "before",
    "cancel_subagent": "meanwhile",
    "read_ava_logs": "after",
}
"""When a call of each tool is written to the log.

`before`: before it acts. `with`: in one transaction with what it decides, so a crash leaves all of it or nothing; it
calls `begin` before it acts on anything else. `meanwhile`: while it acts, even while the log is out of reach. `after`:
with its answer, and not at all if it is a poll without news. An answer that carries a result is in the log before it is
given.
"""
NOTICES = 5
MENTIONED_DAYS = 7
"""Days after its end in which a new session mentions a run whose result nobody has fetched."""


@dataclass(frozen=True)
class Mentions:
    """What an answer mentions besides: a line for each run, and those runs that a session mentions only once."""

    lines: list[str] | None
    once: frozenset[str]


def mentions_in(access: Access, news: News, shown: Sequence[str] = ()) -> Mentions:
    """Return what an answer mentions of the news, at most `NOTICES` lines, without the runs that it shows anyway.

    First come runs that wait for a person, to allow them more or to answer, and interrupted ones. Then ended runs whose
    result was not fetched yet, those of this workspace first. A run that ended more than an hour ago, perhaps while no
    host was open, is mentioned once in a session.
    """
    hour_ago_us = news.at_us - HOUR_US
    days_ago_us = news.at_us - MENTIONED_DAYS * 24 * HOUR_US
    notices = [Notice(row) for row in news.asking if row.id not in shown]
    for row in news.interrupted:
        notices.append(Notice(row, interrupted_us=news.at_us - (row.last_us or 0)))
    here = [row for row in news.ended if access.is_here(row)]
    elsewhere = [row for row in news.ended if not access.is_here(row)]
    for row in here + elsewhere:
        was_mentioned = row.id in access.session.mentioned
        oldest_us = hour_ago_us if was_mentioned else days_ago_us
        if row.id not in shown and (row.ended_us or 0) >= oldest_us:
            notices.append(Notice(row))
    notices = notices[:NOTICES]

    once: set[str] = set()
    for notice in notices:
        ended_us = notice.row.ended_us
        if ended_us and ended_us < hour_ago_us:
            once.add(notice.row.id)
    lines = [access.adapt_text(notice.text()) for notice in notices]
    return Mentions(lines or None, frozenset(once))


class CallRecord:
    """The record of one call: the call is written once, without keys, before or with anything else."""

    def __init__(self, access: Access, tool: str, arguments: Mapping[str, Any], redacted: Mapping[str, Any]) -> None:
        self.tool = tool
        self.answer: Answer | None = None
        self._access = access
        self._session = access.session
        self._store = access.store
        self._arguments = arguments
        self._redacted = redacted
        self._written = False
        self._began = time.monotonic()

    @property
    def is_undone(self) -> bool:
        """Whether a call that decides has decided nothing: nothing of it is in the log, or on its way there."""
        return WHEN[self.tool] == "with" and not self._written

    async def start(self) -> None:
        """Write the call, if it is written before or while it acts."""
        if WHEN[self.tool] == "before":
            await self.begin()
        elif WHEN[self.tool] == "meanwhile":
            self._post()

    async def begin(self) -> None:
        """Write the call to the log unless it is there already. Do so before anything happens outside the log."""
        if not self._written:
            await self.do(append())

    def end(self, text: str, *, success: bool) -> None:
        """Write an answer without waiting for the log, and the call with it unless it is there already."""
        self._post(self._result(text, ms_since(self._began), success=success))

    async def do(self, command: Command[T], answer_of: Callable[[T], Answer | None] | None = None) -> T:
        """Run a command, and return its value.

        One transaction also writes the call, unless it is written already, and the answer that `answer_of` makes from
        the value; it may return None for no answer yet.
        """
        mentions = Mentions(None, frozenset())
        if answer_of is not None:
            mentions = mentions_in(self._access, await self._store.look(self._access.news))
        took_ms = ms_since(self._began)
        answer: Answer | None = None

        def result(value: T) -> tuple[Event, ...]:
            nonlocal answer
            if answer_of is not None:
                answer = answer_of(value)
            if answer is None:
                return ()
            answer.notices = mentions.lines
            return (self._result(text_of(answer), took_ms, success=True),)

        try:
            value = await self._store.do(self._with_call(command, result))
        except OutcomeUnknown:  # the call may be in the log
            self._written = True
            raise
        except EntryTooLarge:  # the call itself may fit
            if not self._written:
                call = self._with_call(append())
                self._written = True
                await self._store.do(call)
            raise
        self._written = True
        self.answer = answer
        self._session.mentioned |= mentions.once
        return value

    async def finish(self, answer: Answer, news: News | None, *, reachable: bool) -> None:
        """Add the news to an answer, and record it. If the log is not `reachable`, do not wait until it is recorded.

        `news` is None if the handler has not read them.
        """
        if news is None:
            news = await self._store.look(self._access.news)
        fetched = await self._fetched_ids(answer)
        mentions = mentions_in(self._access, news, [*_run_ids(answer), *fetched])
        answer.notices = mentions.lines
        self._session.mentioned |= mentions.once

        failed = answer.status == FAILED
        states = {} if failed else _poll_states(answer)
        changed = [run_id for run_id, state in states.items() if self._session.seen.get(run_id) != state]
        if states and not changed:
            return  # a poll that learned nothing is not recorded
        text = text_of(answer)
        if isinstance(answer, LogAnswer) and not failed:  # what was read is in the log already
            text = f"{len(answer.untrusted_entries)} entries"
        result = self._result(text, ms_since(self._began), success=not failed)
        notes = await self._delivery_notes(fetched)
        if reachable and (fetched or WHEN[self.tool] != "after"):
            await self.do(append(result, *notes))
        else:
            self._post(result)
        self._session.seen.update(states)

    async def _fetched_ids(self, answer: Answer) -> list[str]:
        """Return the runs whose results an answer carries, with the plans that it carries whole."""
        ids = _run_ids_with_result(answer)
        if not ids:
            return []
        return await self._store.look(lambda view: [*ids, *whole_plans(view, ids)])

    async def _delivery_notes(self, run_ids: list[str]) -> list[Event]:
        """Return the events that an answer carries these results to their user; an auditor's answer does not."""
        if not run_ids:
            return []
        rows = await self._access.rows(run_ids)
        return [carried(self._session.who, self.tool, row.id) for row in rows if self._access.owns(row)]

    def _result(self, text: str, took_ms: int, *, success: bool) -> Event:
        fact = ToolResult(tool=self.tool, success=success, output=self._access.redact(text))
        return Event(self._session.who, fact, duration_ms=took_ms)

    def _post(self, *events: Event) -> None:
        self._store.post(self._with_call(append(*events)))
        self._written = True

    def _with_call(self, command: Command[T], result: Callable[[T], tuple[Event, ...]] | None = None) -> Command[T]:
        """Return a command that also writes the call, unless it is there, and then the events of its result."""
        written = self._written
        run_id = _run_id_in(self._arguments)
        # What is too long to store is also too long to accept.
        fact = ToolCall(tool=self.tool, args=sanitize_json(self._redacted)[0])

        def command_with_call(view: View, now_us: int) -> Outcome[T]:
            events: list[Event] = []
            if not written:
                run = view.run(run_id) if run_id is not None else None
                is_own = run is not None and run.user_id == self._session.user
                events.append(Event(self._session.who, fact, run_id=run_id if is_own else None))
            outcome = command(view, now_us)
            events.extend(outcome.events)
            if result is not None:
                events.extend(result(outcome.value))
            return Outcome(outcome.value, tuple(events))

        return command_with_call


@dataclass(frozen=True)
class CallContext:
    """What a tool's handler knows of its call besides the arguments.

    Attributes:
        progress: Called with a status line while the call waits.
        record: Writes the call, unless it is in the log.
        degraded: A proposal may miss tools that its role needs.
        screens: What was on a person's screen, by proposal, where some of it stayed folded.
        news: The news, where it was read together with the answer.
    """

    progress: Progress
    record: CallRecord
    asking: Asking = NOBODY
    degraded: bool = False
    screens: Mapping[str, FoldedScreen] = field(default_factory=dict[str, FoldedScreen])
    news: list[News] = field(default_factory=list[News])


def _poll_states(answer: Answer) -> dict[str, tuple[object, ...]]:
    """Return what a poll shows of each run, to recognise a repeated poll. Empty for other answers."""
    if not isinstance(answer, CheckAnswer):
        return {}
    states: dict[str, tuple[object, ...]] = {}
    for run in answer.runs:
        states[run.subagent_id] = (run.state, run.iteration, run.untrusted_result is None, run.cursor)
    return {"": (len(states),), **states}


def _run_ids(answer: Answer) -> list[str]:
    if isinstance(answer, CheckAnswer):
        return [run.subagent_id for run in answer.runs]
    if isinstance(answer, ConfirmAnswer | CancelAnswer):
        return [str(run["subagent_id"]) for run in answer.runs or ()]
    return []


def _run_ids_with_result(answer: Answer) -> list[str]:
    if isinstance(answer, CheckAnswer):
        return [run.subagent_id for run in answer.runs if run.untrusted_result is not None]
    if isinstance(answer, ConfirmAnswer | CancelAnswer):
        return [str(run["subagent_id"]) for run in answer.runs or () if run.get("untrusted_result")]
    return []


def _run_id_in(arguments: Mapping[str, Any]) -> str | None:
    """Return the run that arguments name; the call's header names it only if that is this user's."""
    value = arguments.get("subagent_id")
    if not isinstance(value, str):
        return None
    try:
        return parse_id("subagent_id", value)
    except BadInput:
        return None
