"""The entry point of the six tools: records every call, and turns a caller's mistake into an answer.

What a person has decided on a screen of Ava's own is carried out by such a call too, so it is checked and recorded like
any other; `client_approval.py` and `questions.py` have what a host's client asks its person.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ava_audit.entries import Entry
from ava_audit.errors import AuditError, BadQuery, SchemaNewer, StoreUnavailable
from ava_audit.rows import WAITING
from ava_audit.search import LogQuery, search
from ava_audit.units import now_us
from ava_roles.errors import RolesError
from ava_roles.wrap import escape_result
from ava_server.approval.decide import Decided, FoldedScreen, PersonAnswer, Shown, tool_call
from ava_server.approval.proposals import changed_since
from ava_server.approval.questions import AnsweredLater
from ava_server.approval.requests import LogArgs, parse, refuse_deep, shown
from ava_server.approval.steps import with_plain_steps
from ava_server.config.tokens import Scope
from ava_server.core.errors import AvaError, BadInput, Refused
from ava_server.core.ids import AGENT, read_span
from ava_server.core.shortage import shortage_in
from ava_server.core.untrusted import HIDE_WITHIN_S, count_chars, hide_apart, shorten
from ava_server.render.entries import entry_line, names_of
from ava_server.render.host_text import text_of
from ava_server.render.responses import FAILED, Answer, LogAnswer
from ava_server.render.run_view import json_chars
from ava_server.service.access import NOBODY, Access, Asking, Operations, Progress, Session, ignore_progress
from ava_server.service.check import RunChecks, RunSteering
from ava_server.service.confirm import Confirmations
from ava_server.service.pages import PageDecisions
from ava_server.service.questions import PersonQuestions
from ava_server.service.record import CallContext, CallRecord
from ava_server.service.run_tasks import RunTasks
from ava_server.service.runtime import Runtime
from ava_server.service.spawn import Spawns
from ava_server.service.tools import TOOLS, ServiceTool

if TYPE_CHECKING:
    from ava_audit.view import Readable

MOST_CHARS = 1_000_000
"""Characters of a call's arguments: more than the schema of any tool allows."""
LOG_CHARS = 9_000
"""Characters of entries in one answer; with everything around them it stays under 10,000."""
LINE_CHARS = 900
SEQ_DIGITS = 18


class LogReader(Operations):
    """Reads entries back, newest last, a page at a time."""

    async def read(self, given: dict[str, Any], _caller: CallContext) -> Answer:
        """Answer `read_ava_logs`. Raises BadInput: an argument cannot be used."""
        args = parse(LogArgs, given)
        at_us = now_us()
        agents: tuple[str, ...] = ()
        if args.subagent_id is not None:
            agents = ((await self._access.run(args.subagent_id, "subagent_id", reading=True)).id,)
        elif args.search is None and args.types is None:
            agents = (AGENT,)
        # All pages use the times of the first: "1h" would mean another hour on each.
        asked = _mark(args)
        place = _Place(None, None, *read_span(args.since, args.until, at_us))
        if args.cursor is not None:
            place = _place(args.cursor, asked)
        query = LogQuery(
            agents=agents,
            users=() if self._session.audits else (self._session.user,),
            sessions=(args.session,) if args.session else (),
            types=tuple(args.types or ()),
            since_us=place.since_us,
            until_us=place.until_us,
            search=args.search,
            limit=args.last_n,
            before_seq=place.before,
            upto_seq=place.upto,
        )
        try:
            page = await search(self._store, query)
        except BadQuery as error:
            raise BadInput(f"types: {error}") from error
        names = await self._store.read(lambda view: names_of(view, page.entries))
        lines = self._fitting_lines(page.entries, names)
        older = page.next if len(lines) == len(page.entries) else page.entries[len(lines) - 1].seq
        cursor = None
        if older is not None:
            cursor = _cursor(replace(place, before=older, upto=place.upto or page.upto), asked)
        return LogAnswer(status="entries", untrusted_entries=lines[::-1], cursor=cursor)

    def _fitting_lines(self, entries: Sequence[Entry], names: Mapping[str, str]) -> list[str]:
        """Return the lines of as many entries as fit into one answer, at least one."""
        lines: list[str] = []
        size = 0
        for entry in entries:
            line = entry_line(entry, names=names, utc=True, width=LINE_CHARS)
            if entry.who.user_id != self._session.user:  # an auditor reads entries of other users
                line = f"[{entry.who.user_id}] {line}"
            size += max(json_chars(line) + 2, len(escape_result(line)) + 1)
            if lines and size > LOG_CHARS:
                break
            lines.append(line)
        return lines


@dataclass(frozen=True)
class _Place:
    """How far the pages of one query have come, and the bounds that the first page set."""

    before: int | None
    upto: int | None
    since_us: int | None
    until_us: int | None


def _mark(args: LogArgs) -> str:
    """Return a digest of the query without its page size: a cursor continues the same query only."""
    asked = json.dumps(args.model_dump(exclude={"cursor", "last_n"}, exclude_none=True))
    return hashlib.blake2s(asked.encode(), digest_size=3).hexdigest()


def _cursor(place: _Place, asked: str) -> str:
    numbers = (place.before, place.upto, place.since_us, place.until_us)
    return ".".join([*("" if number is None else str(number) for number in numbers), asked])


def _place(given: str, asked: str) -> _Place:
    """Return the place of a cursor. Raises BadInput: it is not a cursor, or belongs to another query."""
    *parts, mark = given.strip().split(".")
    plain = all(part.isascii() and part.isdecimal() and len(part) <= SEQ_DIGITS for part in parts if part)
    if len(parts) != 4 or not plain or not (parts[0] and parts[1]):
        raise BadInput(f"cursor: {shown(given)} is not a cursor of the log; give the one that the last answer had")
    if mark != asked:
        raise BadInput(
            "cursor: it belongs to another query; give the same subagent_id, search, since, until, types and session "
            "as for the first page"
        )
    return _Place(*(int(part) if part else None for part in parts))


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
        self.questions, self.tasks = PersonQuestions(access), RunTasks(access)
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
        given: dict[str, Any],
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
            raise BadInput(f"there is no tool {shown(tool)}; there are {', '.join(TOOLS)}")
        spec, handler = TOOLS[tool], self._handlers[tool]
        refuse_deep(given)
        given = with_plain_steps(given)  # a key must not pass because its text is escaped
        await self._runtime.credentials.refresh()
        refused, redacted = await self._let_in(spec, given)
        record = CallRecord(self._access, tool, given, redacted)
        caller = CallContext(progress, record, asking, degraded, screens or {})
        mistake: Exception | None = None
        try:
            await record.start()
            if refused is not None:
                raise refused
            if redacted != given:  # else nothing in them looks like a key
                await hide_apart(partial(self._access.refuse_keys, given), count_chars(given))
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
        if mistake is None:
            await self._pages.show_new(answer, caller)
        return answer

    async def _let_in(self, spec: ServiceTool, given: dict[str, Any]) -> tuple[AvaError | None, dict[str, Any]]:
        """Return why a call is refused as it is, if it is, and its arguments without secrets; of that one, a part."""
        hide = self._runtime.credentials.redactor.redact_json
        refused: AvaError
        try:
            self._access.refuse_without(spec.scope, admin=spec.admin)
            chars = count_chars(given)
            if chars > MOST_CHARS:
                raise BadInput(
                    f"the arguments have {chars:,} characters, at most {MOST_CHARS:,} are allowed; send less"
                )
            return None, await hide_apart(partial(hide, given), chars)
        except TimeoutError:
            sentence = f"the arguments could not be searched for secrets within {HIDE_WITHIN_S:g} s; shorten them"
            refused = Refused(f"{sentence}, or call again when this server does less")
        except AvaError as error:
            refused = error
        return refused, hide(shorten(given))

    def _failed(self, spec: ServiceTool, error: Exception) -> Answer:
        return spec.answer(status=FAILED, message=self._access.redact(self._access.explained(error)))


async def decide(service: Service, shown: Sequence[Shown], answer: PersonAnswer) -> Decided:
    """Carry out a decision.

    `shown`: what they were shown: one, or several proposals, which are approved as one plan.

    Raises:
        AvaError: It was not accepted, or is about something else than what was shown.
        AuditError: The log cannot be written.
        RolesError: It was not accepted.
    """
    one, user = shown[0], service.session.user
    if one.kind in ("extend", "answer"):
        service.refuse_without("spawn")
        made = await service.questions.decide(one.id, one.digest, approve=answer.agrees, words=answer.words)
        status = "delivered" if one.kind == "answer" else made.status
        return Decided({"status": status, "subagent_id": one.id, "message": made.text})
    if one.kind == "start" and answer.agrees:
        await refuse_changed(service.store, user, shown)
    if one.kind == "resume":
        run = await service.store.read(lambda view: view.run(one.id))
        if run is not None and run.state == WAITING:  # the call would start it
            raise Refused(f"{one.id} does not wait to be resumed; nothing was done")
    tool, given = tool_call(shown, answer)
    done = await service.call(tool, given, ignore_progress, raises=True, screens=answer.screens)
    return Decided(done.structured())


async def refuse_changed(store: Readable, user: str, shown: Sequence[Shown]) -> None:
    """Refuse an approval of anything but what was shown: a digest differs."""
    digests = {one.id: one.digest for one in shown}
    if why := await store.read(lambda view: changed_since(view, user, digests)):
        raise Refused(why)
