"""The desk: what the six tools do, in words of the domain. It knows nothing of MCP.

Every call of a tool is on the record: a `ToolCall` before it acts, a `ToolResult` with the text that was answered.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, cast

import anyio
import anyio.to_thread

from ava_audit.errors import BadQuery
from ava_audit.events import Event, ToolCall, ToolResult, UserMessage, Who
from ava_audit.money import cents, format_usd, micros_from_cents
from ava_audit.search import LogQuery, search
from ava_audit.store import Command, Outcome
from ava_audit.times import iso_utc, parse_time
from ava_audit.view import QUEUED, RUNNING, UNENDED, RunRow, View
from ava_roles.errors import RolesError
from ava_server.answers import (
    FAILED,
    Answer,
    CancelAnswer,
    CheckAnswer,
    ConfirmAnswer,
    LogAnswer,
    MessageAnswer,
    Minutes,
    OneDecision,
    RunAnswer,
    SpawnAnswer,
)
from ava_server.approval import AGENT, Approval, Declined, Proposed, approve, propose, reject, texts_of
from ava_server.arguments import (
    CancelArgs,
    Changes,
    CheckArgs,
    ConfirmArgs,
    LogArgs,
    MessageArgs,
    SpawnArgs,
    parse,
    shown,
)
from ava_server.errors import AvaError, BadInput, Refused
from ava_server.house import House
from ava_server.ids import new_id, parse_id
from ava_server.log_lines import entry_line
from ava_server.run_config import RunConfig, Texts
from ava_server.session import Session
from ava_server.spawning import resolve
from ava_server.status import INTERRUPTED, carried, json_chars, label, room_for, run_answer
from ava_server.words import text_of

HOUR_US = 3_600_000_000
LOG_CHARS = 9_000
"""Characters of entries that one answer of `read_ava_logs` carries; with all around them it stays under 10,000."""
LINE_CHARS = 900
RUNS_CHARS, NAMED = 8_200, 20
"""Characters, as JSON, of the runs in one answer; and how many of the others are named with their state."""
CANDIDATES = 4
"""Ids that a proposal may choose from: that all of them are taken happens once in 10^20 spawns."""
NOTICES = 5
PROGRESS_EVERY_S = 5.0

Progress = Callable[[str], Awaitable[None]]
"""Tells the host that a wait goes on, with a status line."""


class Desk:
    """The six tools for one session."""

    def __init__(self, house: House, session: Session) -> None:
        self._house = house
        self._store = house.store
        self._session = session

    async def call(self, tool: str, given: dict[str, Any], progress: Progress, *, raises: bool = False) -> Answer:
        """Do what a tool was called for; a mistake of the caller is an answer, not an exception.

        Args:
            tool: Its name.
            given: Its arguments.
            progress: Told how a wait goes on.
            raises: Once it is on the record, raise a mistake, for a caller who tells kinds of them apart.

        Raises:
            AvaError: There is no such tool; with `raises`, any other mistake too.
            RolesError: With `raises`.
        """
        handlers: dict[str, Callable[[dict[str, Any], Progress], Awaitable[Answer]]] = {
            "spawn_subagent": self._spawn,
            "confirm_spawn": self._confirm,
            "check_subagent": self._check,
            "message_subagent": self._message,
            "cancel_subagent": self._cancel,
            "read_ava_logs": self._logs,
        }
        handler = handlers.get(tool)
        if handler is None:
            raise BadInput(f"there is no tool {shown(tool)}; there are {', '.join(handlers)}")
        reading = tool in ("check_subagent", "read_ava_logs")
        call = Event(self._session.who, ToolCall(tool=tool, args=self._redacted(given)), run_id=_run_in(given))
        if not reading:
            self._store.post(_append(call))
        began = time.monotonic()
        mistake: AvaError | RolesError | None = None
        try:
            answer = await handler(given, progress)
        except (AvaError, RolesError) as error:
            mistake = error
            answer = _FAILURES[tool](status=FAILED, message=str(error))
        answer.notices = await self._notices(answer) or None
        await self._record(call, tool, answer, began, reading=reading)
        if raises and mistake is not None:
            raise mistake
        return answer

    # -- the six tools --------------------------------------------------------------------------------------------

    async def _spawn(self, given: dict[str, Any], _progress: Progress) -> Answer:
        retried: RunRow | None = None
        if isinstance(given.get("retry_of"), str):
            retried, given = await self._retry(given)
        args = parse(SpawnArgs, "spawn_subagent", given)
        return await self._propose(args, retried.id if retried else None)

    async def _propose(self, args: SpawnArgs, retry_of: str | None = None) -> SpawnAnswer:
        around = await self._house.surroundings(self._session.roots)
        config, texts = await anyio.to_thread.run_sync(resolve, args, around)
        candidates = tuple((new_id("pending_id"), new_id("subagent_id")) for _ in range(CANDIDATES))
        command = propose(config, texts, self._session.who, candidates, self._house.spawn_limits, retry_of=retry_of)
        made = await self._store.do(command)
        if isinstance(made, Declined):
            raise Refused(made.why)
        return _proposal(made)

    async def _retry(self, given: dict[str, Any]) -> tuple[RunRow, dict[str, Any]]:
        """Return the run that is repeated, and its arguments with the given ones laid over."""
        run = await self._run(str(given["retry_of"]), "retry_of")
        if not run.ended:
            raise BadInput(f"retry_of: {run.id} has not ended; wait for it, or cancel it first")
        texts = await self._store.read(lambda view: texts_of(view, run))
        if texts is None:
            raise BadInput(f"retry_of: the task of {run.id} was erased; propose it anew")
        before = _arguments(run, texts)
        before.pop("task_id", None)
        return run, {**before, **given}

    async def _confirm(self, given: dict[str, Any], progress: Progress) -> Answer:
        args = parse(ConfirmArgs, "confirm_spawn", given)
        ids = tuple(dict.fromkeys(parse_id("pending_id", pending_id) for pending_id in args.pending_ids))
        who = self._session.who
        if args.decision == "reject":
            decided = await self._store.do(reject(ids, who, self._session.channel))
        else:
            settings = self._house.settings
            if not settings.enabled:
                raise Refused("subagents are switched off here (enabled = false in config.toml); nothing was started")
            if settings.approval == "human":
                raise Refused('approval = "human" is set in config.toml, so no MCP call can approve: a person must')
            changes = {parse_id("pending_id", key): _caps_of(value) for key, value in (args.changes or {}).items()}
            _refuse_what_hits_nothing(args, ids, changes)
            asked = Approval(
                pending_ids=ids,
                approving=tuple(args.approving) if args.approving is not None else None,
                changes=changes,
                group_max_micros=micros_from_cents(args.group_max_cost_cents) if args.group_max_cost_cents else None,
                group_timeout_s=args.group_timeout,
                group_id=new_id("group_id"),
            )
            decided = await self._store.do(approve(asked, who, self._session.channel, self._house.spawn_limits))
        self._house.manager.poke()
        decisions = [OneDecision(**_plain(decision)) for decision in decided.decisions]
        for decision, made in zip(decisions, decided.decisions, strict=True):
            if made.expired and made.subagent_id and args.decision == "approve":
                fresh = await self._fresh(made.subagent_id)
                decision.fresh = fresh.structured() if fresh is not None else None
        started = [made.subagent_id for made in decided.decisions if made.status == "approved" and made.subagent_id]
        answer = ConfirmAnswer(
            status="approved" if started else ("rejected" if args.decision == "reject" else "refused"),
            decisions=decisions,
            group_id=decided.group_id,
            approval_lines=list(decided.approval_lines) or None,
            next=_next(started, decided.group_id),
        )
        if started:
            await self._after_approval(answer, started, args.wait_seconds, progress)
        return answer

    async def _after_approval(
        self, answer: ConfirmAnswer, started: list[str], wait_s: float, progress: Progress
    ) -> None:
        rows = await self._wait(started, wait_s, progress)
        shown_runs = await self._answers(rows)
        for decision in answer.decisions:
            run = next((run for run in shown_runs if run.subagent_id == decision.subagent_id), None)
            if run is not None:
                decision.status = run.state
                decision.queue_position = run.queue_position
        ended = [run for run, row in zip(shown_runs, rows, strict=True) if row.ended]
        if ended:
            fitting, answer.message = _fitting(ended)
            answer.runs = _dumped(fitting)
        if len(ended) == len(started):
            answer.next = "It has ended." if len(started) == 1 else "All of them have ended."

    async def _fresh(self, run_id: str) -> SpawnAnswer | None:
        """Make a fresh proposal, with new figures, of one that has expired."""
        run = await self._store.read(lambda view: view.run(run_id))
        texts = await self._store.read(lambda view: texts_of(view, run)) if run else None
        if run is None or texts is None:
            return None
        return await self._propose(parse(SpawnArgs, "spawn_subagent", _arguments(run, texts)))

    async def _check(self, given: dict[str, Any], progress: Progress) -> Answer:
        args = parse(CheckArgs, "check_subagent", given)
        offset = _cursor(args.cursor)
        if args.subagent_id is None and args.group_id is None:
            if args.wait_seconds:
                raise BadInput("wait_seconds: only with subagent_id or group_id, there is nothing else to wait for")
            runs, message = _fitting(await self._going_on())
            if not runs:
                message = "No subagents: none waits, runs, or ended in the last 60 minutes."
            return CheckAnswer(status="list", message=message, runs=runs)
        if args.group_id is not None:
            members = await self._group(args.group_id)
            rows = await self._wait([row.id for row in members], args.wait_seconds, progress)
        else:
            run = await self._run(args.subagent_id or "", "subagent_id")
            rows = await self._wait([run.id], args.wait_seconds, progress)
        runs = await self._answers(rows, offset=offset)
        status = runs[0].state if len(runs) == 1 else "group"
        runs, message = _fitting(runs)
        return CheckAnswer(status=status, message=message, runs=runs)

    async def _message(self, given: dict[str, Any], _progress: Progress) -> Answer:
        args = parse(MessageArgs, "message_subagent", given)
        run = await self._run(args.subagent_id, "subagent_id")
        text, _count = self._house.redactor.redact(args.message)
        shapes = self._house.redactor.find_shapes(args.message)
        if shapes:
            raise BadInput(f"message: it contains what looks like a key ({shapes[0].name}); leave it out")
        event = Event(self._agent_of(run), UserMessage(text=text, kind="message"), run_id=run.id)
        delivered = await self._store.do(_deliver(run.id, event))
        if delivered == "waiting":
            raise Refused(f"{run.id} waits for approval; change the proposal with spawn_subagent instead")
        if delivered == "ended":
            raise Refused(f"{run.id} has ended; ask on with spawn_subagent and context_from")
        return MessageAnswer(
            status="delivered",
            subagent_id=run.id,
            message=f"{label(run)} reads it before its next turn. It may steer the work; limits and tools stay.",
        )

    async def _cancel(self, given: dict[str, Any], _progress: Progress) -> Answer:
        args = parse(CancelArgs, "cancel_subagent", given)
        given_ids = [value for value in (args.subagent_id, args.group_id, args.pending_id) if value is not None]
        if len(given_ids) != 1:
            raise BadInput("cancel_subagent: give exactly one of subagent_id, group_id and pending_id")
        if args.group_id is not None:
            targets = [row.id for row in await self._group(args.group_id)]
        elif args.pending_id is not None:
            pending_id = parse_id("pending_id", args.pending_id)
            row = await self._store.read(lambda view: view.proposal(pending_id))
            if row is None or row.user_id != self._session.user:
                raise BadInput(f"pending_id: no proposal {pending_id} of yours; check_subagent lists what waits")
            targets = [row.run_id]
        else:
            targets = [(await self._run(args.subagent_id or "", "subagent_id")).id]
        async with anyio.create_task_group() as tasks:
            for run_id in targets:
                tasks.start_soon(self._house.manager.cancel, run_id, self._session.who, args.reason)
        rows = [row for row in await self._rows(targets) if row is not None]
        runs = await self._answers(rows)
        status = runs[0].state if len(runs) == 1 else "cancelled"
        runs, message = _fitting(runs)
        return CancelAnswer(status=status, message=message, runs=_dumped(runs))

    async def _logs(self, given: dict[str, Any], _progress: Progress) -> Answer:
        args = parse(LogArgs, "read_ava_logs", given)
        now_us = time.time_ns() // 1000
        agents: tuple[str, ...] = ()
        if args.subagent_id is not None:
            agents = ((await self._run(args.subagent_id, "subagent_id")).id,)
        elif args.search is None and args.types is None:
            agents = (AGENT,)
        before, upto = _log_cursor(args.cursor)
        query = LogQuery(
            agents=agents,
            users=(self._session.user,),
            sessions=(args.session,) if args.session else (),
            types=tuple(args.types or ()),
            since_us=_time("since", args.since, now_us),
            until_us=_time("until", args.until, now_us),
            search=args.search,
            limit=args.last_n,
            before_seq=before,
            upto_seq=upto,
        )
        try:
            page = await search(self._store.path, query)
        except BadQuery as error:
            raise BadInput(f"types: {error}") from error
        lines: list[str] = []
        size, older = 0, page.next
        for entry in page.entries:
            line = entry_line(entry, utc=True, width=LINE_CHARS)
            size += json_chars(line) + 2
            if lines and size > LOG_CHARS:
                break
            lines.append(line)
            older = entry.seq if entry is not page.entries[-1] else page.next
        cursor = f"{older}.{upto or page.upto}" if older is not None else None
        return LogAnswer(status="entries", untrusted_entries=lines[::-1], cursor=cursor)

    # -- what they share ------------------------------------------------------------------------------------------

    async def _run(self, given: str, field: str) -> RunRow:
        """Return a run of this user.

        Raises:
            BadInput: There is none; another user's does not exist for this one.
        """
        run_id = parse_id("subagent_id", given)
        run = await self._store.read(lambda view: view.run(run_id))
        if run is None or run.user_id != self._session.user:
            raise BadInput(f"{field}: no subagent {run_id} of yours is known; check_subagent without an id lists them")
        return run

    async def _rows(self, run_ids: list[str]) -> list[RunRow | None]:
        return await self._store.read(lambda view: [view.run(run_id) for run_id in run_ids])

    async def _group(self, given: str) -> list[RunRow]:
        group_id = parse_id("group_id", given)
        rows = await self._store.read(lambda view: view.group_runs(group_id))
        own = [row for row in rows if row.user_id == self._session.user]
        if not own:
            raise BadInput(f"group_id: no group {group_id} of yours is known; confirm_spawn of two or more makes one")
        return own

    async def _going_on(self) -> list[RunAnswer]:
        """Return everything that waits, is queued, runs, ended in the last 60 minutes or was never fetched."""
        now_us = time.time_ns() // 1000
        user, alive = self._session.user, self._house.instances.alive

        def query(view: View) -> list[RunAnswer]:
            rows = view.runs(user=user, states=UNENDED)[::-1]  # the newest first: an answer may not carry them all
            rows += view.runs(user=user, ended_since_us=now_us - HOUR_US)[::-1]
            rows += [row for row in view.unfetched(user) if row.ended_us and row.ended_us < now_us - HOUR_US]
            answers = [run_answer(view, row, alive, now_us, result=False) for row in rows]
            stale = now_us - HOUR_US - int(self._house.settings.proposal_lifetime_s * 1e6)
            expired = {row.id for row in rows if row.created_us < stale}
            return [run for run in answers if run.state != "expired" or run.subagent_id not in expired]

        return await self._store.read(query)

    async def _answers(self, rows: list[RunRow], *, offset: int = 0) -> list[RunAnswer]:
        now_us = time.time_ns() // 1000
        alive = self._house.instances.alive

        room = room_for(sum(row.ended for row in rows))

        def query(view: View) -> list[RunAnswer]:
            return [run_answer(view, view.run(row.id) or row, alive, now_us, offset=offset, room=room) for row in rows]

        answers = await self._store.read(query)
        for answer in answers:
            if answer.state in (QUEUED, INTERRUPTED):
                answer.waits_for = self._house.manager.waiting_for.get(answer.subagent_id)
            answer.untrusted_activity = self._house.manager.activity(answer.subagent_id) or answer.untrusted_activity
        return answers

    async def _wait(self, run_ids: list[str], wait_s: float, progress: Progress) -> list[RunRow]:
        """Wait until all of these runs have ended or the time is over; a host's cancellation ends only the wait."""
        deadline = anyio.current_time() + wait_s
        while True:
            seen = self._store.head
            rows = [row for row in await self._rows(run_ids) if row is not None]
            left = deadline - anyio.current_time()
            if left <= 0 or all(row.ended for row in rows):
                return rows
            with anyio.move_on_after(min(left, PROGRESS_EVERY_S)):
                await self._news_of(run_ids, seen)
                continue
            running = next((row for row in rows if not row.ended), None)
            if running is not None:
                await progress(f"{label(running)}: {self._house.manager.activity(running.id) or running.state}")

    async def _news_of(self, run_ids: list[str], seen: int) -> None:
        """Return when one of these runs may have ended: polled at the log's pace, not at every commit."""
        while True:
            seen = await self._store.newer_than(seen)
            rows = await self._rows(run_ids)
            if all(row is None or row.ended for row in rows):
                return
            await anyio.sleep(0.05)

    async def _notices(self, answer: Answer) -> list[str]:
        """Return a line for each run of this user that ended in the last hour and that nobody has fetched."""
        in_it = {run["subagent_id"] for run in _runs_in(answer)}
        since = time.time_ns() // 1000 - HOUR_US
        rows = await self._store.read(lambda view: view.unfetched(self._session.user))
        return [
            f"{label(row)} ended: {row.state}, {format_usd(row.cost_micros)}; call check_subagent for its result"
            for row in rows
            if row.id not in in_it and (row.ended_us or 0) >= since
        ][:NOTICES]

    async def _record(self, call: Event, tool: str, answer: Answer, began: float, *, reading: bool) -> None:
        """Log the answer: before it is given if it carries a result, not at all if a poll saw nothing new."""
        results = [run for run in _runs_in(answer) if run.get("untrusted_result")]
        failed = answer.status == FAILED
        text = text_of(answer)
        took_ms = round((time.monotonic() - began) * 1000)
        if tool == "check_subagent" and not failed and not results:
            looks = {run["subagent_id"]: (run["state"], run.get("iteration")) for run in _runs_in(answer)}
            if looks and all(self._session.seen.get(run_id) == look for run_id, look in looks.items()):
                return
            self._session.seen.update(looks)
        if isinstance(answer, LogAnswer) and not failed:  # what was read is in the log already
            text = f"{len(answer.untrusted_entries)} entries"
        stored, _count = self._house.redactor.redact(text)
        result = Event(self._session.who, ToolResult(tool=tool, success=not failed, output=stored), duration_ms=took_ms)
        events = (call, result) if reading else (result,)
        fetched = tuple(carried(self._session.who, tool, str(run["subagent_id"])) for run in results)
        if results or not reading:
            await self._store.do(_append(*events, *fetched))
        else:
            self._store.post(_append(*events))

    def _redacted(self, value: Any) -> Any:
        if isinstance(value, str):
            text, _count = self._house.redactor.redact(value)
            return text
        if isinstance(value, dict):
            members = cast("dict[str, Any]", value)
            return {str(key): self._redacted(item) for key, item in members.items()}
        if isinstance(value, list):
            return [self._redacted(item) for item in cast("list[Any]", value)]
        return value

    def _agent_of(self, run: RunRow) -> Who:
        return Who(self._session.id, run.id, run.user_id, parent_agent_id=AGENT)


_FAILURES: dict[str, type[Answer]] = {
    "spawn_subagent": SpawnAnswer,
    "confirm_spawn": ConfirmAnswer,
    "check_subagent": CheckAnswer,
    "message_subagent": MessageAnswer,
    "cancel_subagent": CancelAnswer,
    "read_ava_logs": LogAnswer,
}


def _append(*events: Event) -> Command[None]:
    def command(_view: View, _now_us: int) -> Outcome[None]:
        return Outcome(None, events)

    return command


def _deliver(run_id: str, event: Event) -> Command[str]:
    def command(view: View, _now_us: int) -> Outcome[str]:
        run = view.run(run_id)
        if run is None or run.ended:
            return Outcome("ended")
        if run.state == "awaiting_approval":
            return Outcome("waiting")
        return Outcome(RUNNING, (event,))

    return command


def _proposal(made: Proposed) -> SpawnAnswer:
    config = made.config
    return SpawnAnswer(
        status=made.state,
        pending_id=made.pending_id,
        subagent_id=made.subagent_id,
        name=config.name,
        task_id=config.task_id,
        approval_line=made.line,
        message=made.message,
        estimated_minutes=Minutes(min=config.estimated_minutes[0], max=config.estimated_minutes[1]),
        max_cost_cents=cents(config.max_cost_micros),
        model=config.model,
        tools=list(config.tools),
        unavailable_tools=list(config.unavailable_tools) or None,
        limits={
            "timeout": config.timeout_s,
            "max_cost_cents": cents(config.max_cost_micros),
            "max_tokens": config.max_tokens,
            "max_iterations": config.max_iterations,
            "max_tool_calls": config.max_tool_calls,
        },
        expires_at=iso_utc(made.expires_us),
        next=(
            "Requested, not started. Show the person the message; when they agree, call confirm_spawn with "
            f'pending_ids ["{made.pending_id}"] and approving [the approval_line].'
        ),
    )


def _arguments(run: RunRow, texts: Texts) -> dict[str, Any]:
    """Return the arguments with which a run was proposed."""
    config = RunConfig.model_validate_json(run.config)
    return {**config.asked, **texts.model_dump(exclude_none=True)}


def _caps_of(changes: Changes) -> dict[str, Any]:
    caps = changes.caps.model_dump(exclude_none=True) if changes.caps else {}
    if "timeout" in caps:
        caps["timeout_s"] = caps.pop("timeout")
    if "max_cost_cents" in caps:
        caps["max_cost_micros"] = micros_from_cents(caps.pop("max_cost_cents"))
    if changes.blocked_tools:
        caps["blocked_tools"] = list(changes.blocked_tools)
    return caps


def _refuse_what_hits_nothing(args: ConfirmArgs, ids: tuple[str, ...], changes: dict[str, Any]) -> None:
    """Refuse limits that would be passed over in silence.

    Raises:
        BadInput: A change is of another proposal, or a group's limit was given for one.
    """
    for pending_id in changes:
        if pending_id not in ids:
            raise BadInput(f"changes: {pending_id} is not among pending_ids; give it there too, or leave it out")
    for field in ("group_max_cost_cents", "group_timeout"):
        if len(ids) == 1 and getattr(args, field) is not None:
            raise BadInput(
                f"{field}: it is for two or more together, and one was given; lower its own caps with"
                f' changes {{"{ids[0]}": {{"caps": …}}}}'
            )


def _plain(decision: Any) -> dict[str, Any]:
    return {
        "pending_id": decision.pending_id,
        "subagent_id": decision.subagent_id,
        "status": decision.status,
        "refused_because": decision.refused_because,
    }


def _next(started: list[str], group_id: str | None) -> str:
    if not started:
        return "Nothing was started."
    whom = f'group_id "{group_id}"' if group_id else f'subagent_id "{started[0]}"'
    return (
        f"Started in the background. You are not woken when it ends: tell the person to ask for news, then call"
        f" check_subagent with {whom}, not more often than every 30 s."
    )


def _fitting(runs: list[RunAnswer]) -> tuple[list[RunAnswer], str | None]:
    """Return as many runs as one answer carries, and a sentence about the others."""
    kept: list[RunAnswer] = []
    used = 0
    for run in runs:
        used += json_chars(run.model_dump(mode="json", exclude_none=True))
        if kept and used > RUNS_CHARS:
            break
        kept.append(run)
    others = runs[len(kept) :]
    if not others:
        return kept, None
    named = ", ".join(f"{run.subagent_id} {run.state}" for run in others[:NAMED])
    more = f" and {len(others) - NAMED} more" if len(others) > NAMED else ""
    return kept, (
        f"{len(runs)} in all. Not shown here: {named}{more}. Call check_subagent with the subagent_id of one."
    )


def _dumped(runs: list[RunAnswer]) -> list[dict[str, Any]]:
    return [run.model_dump(mode="json", exclude_none=True) for run in runs]


def _runs_in(answer: Answer) -> list[dict[str, Any]]:
    if isinstance(answer, CheckAnswer):
        return _dumped(answer.runs)
    return (answer.runs or []) if isinstance(answer, ConfirmAnswer | CancelAnswer) else []


def _run_in(given: dict[str, Any]) -> str | None:
    value = given.get("subagent_id")
    try:
        return parse_id("subagent_id", value) if isinstance(value, str) else None
    except BadInput:
        return None


def _cursor(given: str | None) -> int:
    if given is None:
        return 0
    if not given.isdecimal():
        raise BadInput(f"cursor: {shown(given)} is not a cursor of a result; give the one that the last answer had")
    return int(given)


def _log_cursor(given: str | None) -> tuple[int | None, int | None]:
    if given is None:
        return None, None
    before, _, upto = given.partition(".")
    if not (before.isdecimal() and upto.isdecimal()):
        raise BadInput(f"cursor: {shown(given)} is not a cursor of the log; give the one that the last answer had")
    return int(before), int(upto)


def _time(field: str, given: str | None, now_us: int) -> int | None:
    if given is None:
        return None
    try:
        return parse_time(given, now_us)
    except ValueError as error:
        raise BadInput(f"{field}: {error}") from error
