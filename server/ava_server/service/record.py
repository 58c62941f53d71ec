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
from ava_server.runs.log import ms_since
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


def mentions(access: Access, news: News, shown: Sequence[str] = ()) -> Mentions:
    """Return a line for each run of this user that ended and whose result was not fetched yet.

    One that ended more than an hour ago, perhaps while no host was open, is mentioned once in a session. Runs of this
    workspace come first; before them, those that wait for a person: to allow them more, to answer, or to resume.
    """

    def mentioned_for_us(run_id: str) -> int:
        return HOUR_US if run_id in access.session.mentioned else MENTIONED_DAYS * 24 * HOUR_US

    interrupted = [Notice(row, interrupted_us=news.at_us - (row.last_us or 0)) for row in news.interrupted]
    ended = [
        Notice(row)
        for row in sorted(news.ended, key=lambda row: not access.is_here(row))
        if row.id not in shown and (row.ended_us or 0) >= news.at_us - mentioned_for_us(row.id)
    ]
    waiting = [Notice(row) for row in news.asking if row.id not in shown]
    notices = [*waiting, *interrupted, *ended][:NOTICES]
    return Mentions(
        [access.adapt_text(notice.text()) for notice in notices] or None,
        frozenset(notice.row.id for notice in notices if 0 < (notice.row.ended_us or 0) < news.at_us - HOUR_US),
    )


class CallRecord:
    """The record of one call: the call is written once, without keys, before or with anything else."""

    def __init__(self, access: Access, tool: str, given: Mapping[str, Any], redacted: Mapping[str, Any]) -> None:
        self.answer: Answer | None = None
        self._access, self._tool, self._session, self._store = access, tool, access.session, access.store
        self._given, self._redacted = given, redacted
        self._written = False
        self._began = time.monotonic()

    @property
    def is_undone(self) -> bool:
        """Whether nothing of a call that decides is in the log, nor on its way there: so nothing was decided."""
        return WHEN[self._tool] == "with" and not self._written

    async def start(self) -> None:
        """Write the call, if it is written before or while it acts."""
        if WHEN[self._tool] == "before":
            await self.begin()
        elif WHEN[self._tool] == "meanwhile":
            self._post()

    async def begin(self) -> None:
        """Write the call to the log now, unless it is there: something outside of the log is about to happen."""
        if not self._written:
            await self.do(append())

    def end(self, text: str, *, success: bool) -> None:
        """Write an answer, and the call unless it is there, without waiting."""
        self._post(self._result(text, ms_since(self._began), success=success))

    async def do(self, command: Command[T], answer_of: Callable[[T], Answer | None] | None = None) -> T:
        """Run a command in one transaction with the call, unless it is written, and the answer that follows, if any."""
        mentioned = Mentions(None, frozenset())
        if answer_of is not None:
            mentioned = mentions(self._access, await self._store.look(self._access.news))
        took_ms, answer = ms_since(self._began), None

        def result(value: T) -> tuple[Event, ...]:
            nonlocal answer
            answer = answer_of(value) if answer_of is not None else None
            if answer is None:
                return ()
            answer.notices = mentioned.lines
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
        self._written, self.answer = True, answer
        self._session.mentioned |= mentioned.once
        return value

    async def finish(self, answer: Answer, news: News | None, *, reachable: bool) -> None:
        """Say in an answer what else is `news`, and record it; without waiting, if the log could not be reached."""
        if news is None:
            news = await self._store.look(self._access.news)
        with_result = _run_ids(answer, with_result=True)
        fetched: list[str] = []
        if with_result:
            fetched = await self._store.look(lambda view: [*with_result, *whole_plans(view, with_result)])
        mentioned = mentions(self._access, news, [*_run_ids(answer), *fetched])
        answer.notices = mentioned.lines
        self._session.mentioned |= mentioned.once
        failed = answer.status == FAILED
        states = _poll_states(answer) if not failed else {}
        if states and all(self._session.seen.get(run_id) == state for run_id, state in states.items()):
            return
        text = text_of(answer)
        if isinstance(answer, LogAnswer) and not failed:  # what was read is in the log already
            text = f"{len(answer.untrusted_entries)} entries"
        result = self._result(text, ms_since(self._began), success=not failed)
        # A result that an auditor reads is still news for its user.
        own = [row for row in await self._access.rows(fetched) if self._access.owns(row)] if fetched else []
        if reachable and (fetched or WHEN[self._tool] != "after"):
            await self.do(append(result, *(carried(self._session.who, self._tool, row.id) for row in own)))
        else:
            self._post(result)
        self._session.seen.update(states)

    def _result(self, text: str, took_ms: int, *, success: bool) -> Event:
        fact = ToolResult(tool=self._tool, success=success, output=self._access.redact(text))
        return Event(self._session.who, fact, duration_ms=took_ms)

    def _post(self, *events: Event) -> None:
        self._store.post(self._with_call(append(*events)))
        self._written = True

    def _with_call(self, command: Command[T], result: Callable[[T], tuple[Event, ...]] | None = None) -> Command[T]:
        """Return a command that also writes the call, unless it is there, and then the events of its result."""
        written, run_id = self._written, _run_in(self._given)
        # What is too long to store is also too long to accept.
        fact = ToolCall(tool=self._tool, args=sanitize_json(self._redacted)[0])

        def together(view: View, now_us: int) -> Outcome[T]:
            call: tuple[Event, ...] = ()
            if not written:
                run = view.run(run_id) if run_id is not None else None
                own = run is not None and run.user_id == self._session.user
                call = (Event(self._session.who, fact, run_id=run_id if own else None),)
            outcome = command(view, now_us)
            after = result(outcome.value) if result is not None else ()
            return Outcome(outcome.value, (*call, *outcome.events, *after))

        return together


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


def _run_in(given: Mapping[str, Any]) -> str | None:
    """Return the run that arguments name; the call's header names it only if that is this user's."""
    value = given.get("subagent_id")
    try:
        return parse_id("subagent_id", value) if isinstance(value, str) else None
    except BadInput:
        return None
