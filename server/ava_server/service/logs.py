"""Entries of the log as lines, and `read_ava_logs`."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from ava_audit.entries import Entry
from ava_audit.errors import BadQuery
from ava_audit.events import (
    AssistantMessage,
    CancelRequested,
    CostReserved,
    CostUpdate,
    ErrorOccurred,
    SettingsChanged,
    SpawnDecided,
    SpawnProposed,
    SubagentComplete,
    SubagentSpawn,
    ToolCall,
    ToolResult,
    UserMessage,
)
from ava_audit.redaction import Redactor
from ava_audit.search import LogQuery, search
from ava_audit.units import format_ts, format_usd, micros_from_cents, parse_time
from ava_audit.view import View
from ava_roles.wrap import clean, escape_result
from ava_server.approval.requests import LogArgs, parse, shown
from ava_server.core.errors import BadInput
from ava_server.core.ids import AGENT
from ava_server.service.access import CallContext, Operations
from ava_server.service.render_text import compact
from ava_server.service.responses import Answer, LogAnswer
from ava_server.service.run_view import json_chars

BOOKKEEPING = (
    "SessionStart",
    "SessionEnd",
    "SpawnProposed",
    "RunClaimed",
    "RunStarted",
    "CostReserved",
    "Activity",
    "RunEnded",
)
"""Entries that a person's log leaves out until asked for: others tell the same, or nothing is in them."""
VALUE_CHARS = 80
_SHAPES = Redactor({})
_NO_NAMES: Mapping[str, str] = {}
_ID = re.compile(r"(?<!\()\bS-[0-9a-f]{6}\b")
"""The id of a run without its name; an id in parentheses has its name before it."""
_MARKED = re.compile(r"<(?P<tag>tool_output_\w+)[^>]*>\n(?P<body>.*)\n</(?P=tag)>", re.DOTALL)


def entry_line(entry: Entry, *, names: Mapping[str, str] = _NO_NAMES, utc: bool = False, width: int = 160) -> str:
    """Return an entry on one line, without control and invisible characters.

    Args:
        entry: The entry.
        names: The names of runs, from `names_of`; each is put beside its id.
        utc: Times in UTC.
        width: Characters at most.
    """
    line = f"[{format_ts(entry.ts_us, utc)}] {_named(entry.who.agent_id, names)} {entry_text(entry, names)}"
    return line if len(line) <= width else line[: max(width - 1, 1)] + "…"


def entry_text(entry: Entry, names: Mapping[str, str] = _NO_NAMES) -> str:
    """Return an entry's type and what happened, on one line; see `entry_line`."""
    cost = f" {format_usd(entry.cost_micros)}" if entry.cost_micros else ""
    what = _what(entry)
    if entry.who.agent_id == AGENT:  # a run's own text stays as it is
        what = _ID.sub(lambda found: _named(found[0], names), what)
    return f"{entry.type} {compact(clean(what)[0], 10_000)}{cost}".rstrip()


def names_of(view: View, entries: Iterable[Entry]) -> dict[str, str]:
    """Return the names of the runs that these entries mention, by id; runs without a name are left out."""
    users: dict[str, str] = {}
    for entry in entries:
        mentioned = _ID.findall(_what(entry)) if entry.who.agent_id == AGENT else ()
        for run_id in (entry.who.agent_id, entry.run_id, *mentioned):
            if run_id is not None and run_id != AGENT:
                users[run_id] = entry.who.user_id
    found = {run_id: view.run(run_id) for run_id in users}
    return {
        run_id: compact(clean(run.name)[0], VALUE_CHARS)
        for run_id, run in found.items()
        if run is not None and run.name and run.user_id == users[run_id]
    }


def _named(run_id: str, names: Mapping[str, str]) -> str:
    name = names.get(run_id)
    return f"{name} ({run_id})" if name else run_id


def is_trouble(entry: Entry) -> bool:
    """Tell whether an entry reports an error or a warning, so that its line is shown whole."""
    match entry.fact:
        case None:
            return False
        case SubagentComplete(status=status):
            return status not in ("success", "cancelled")
        case fact:
            return fact.severity != "info"


def _what(entry: Entry) -> str:
    match entry.fact:
        case None:
            return "(erased)"
        case ToolCall(tool=tool, args=args):
            return f"{tool} {arguments_text(args)}"
        case ToolResult() as result:
            count = "" if result.count is None else f", {result.count} {'result' if result.count == 1 else 'results'}"
            return f"{result.tool} ({'success' if result.success else 'failed'}{count}) {unmarked(result.output)}"
        case CostUpdate() as spent:
            return f"turn {spent.turn}: {spent.tokens} tokens, {spent.settlement}{', overrun' if spent.overrun else ''}"
        case CostReserved() as held:
            return f"turn {held.turn} attempt {held.attempt}: at most {format_usd(held.micros)} reserved"
        case SubagentSpawn() as spawn:
            run = f"{spawn.name} ({spawn.subagent_id})" if spawn.name else spawn.subagent_id
            return f"{spawn.role} {run}: {spawn.task}"
        case SubagentComplete() as done:
            cost = format_usd(micros_from_cents(done.cost_cents))
            return f"{done.subagent_id} {done.status} {done.tokens} tokens, {cost}, {done.duration:g} s: {done.summary}"
        case SettingsChanged() as changed:
            return f"{changed.setting}: {json.dumps(changed.before)} → {json.dumps(changed.after)}"
        case SpawnProposed() as proposed:
            about = f"{proposed.config.get('role', '')} {proposed.subagent_id}"
            task_id = proposed.config.get("task_id")
            return f"{proposed.pending_id} {about}{f', task_id {task_id}' if task_id else ''}"
        case SpawnDecided() as decided:
            return f"{decided.pending_id} {entry.run_id or ''} {decided.decision} {decided.channel or ''}".rstrip()
        case CancelRequested() as asked:
            return f"{asked.subagent_id} by {asked.by}{f': {asked.reason}' if asked.reason else ''}"
        case ErrorOccurred() as error:
            return f"{error.kind}: {error.error}"
        case UserMessage() as said:
            return f"({said.kind}) {said.text}"
        case AssistantMessage() as answer:
            names = ", ".join(str(call.get("name")) for call in answer.calls)
            calls = _SHAPES.redact(names)[0]  # the model wrote these names
            return f"{answer.text}{f' → {calls}' if calls else ''}"
        case fact:
            return fact.search_text()


def unmarked(output: str) -> str:
    """Return a tool's output without the words and tags around it, which only the model needs."""
    output = output.strip().removeprefix("Failed.\n")
    found = _MARKED.match(output)
    return found["body"] + output[found.end() :] if found else output


def arguments_text(args: Any) -> str:
    """Return the two most telling arguments: texts and lists first, then numbers, then switches."""
    if not isinstance(args, dict):
        return compact(args, VALUE_CHARS)
    given = cast("dict[str, Any]", args)
    telling = [(name, value) for name, value in given.items() if value not in (None, "", [], {})]
    telling.sort(key=lambda item: 2 if isinstance(item[1], bool) else isinstance(item[1], int | float))
    return " ".join(f"{name}={compact(value, VALUE_CHARS)}" for name, value in telling[:2])


LOG_CHARS = 9_000
"""Characters of entries in one answer; with everything around them it stays under 10,000."""
LINE_CHARS = 900
SEQ_DIGITS = 18


class LogReader(Operations):
    """Reads entries back, newest last, a page at a time."""

    async def read(self, given: dict[str, Any], _caller: CallContext) -> Answer:
        """Answer `read_ava_logs`.

        Raises:
            BadInput: An argument cannot be used.
        """
        args = parse(LogArgs, given)
        now_us = time.time_ns() // 1000
        agents: tuple[str, ...] = ()
        if args.subagent_id is not None:
            agents = ((await self._access.run(args.subagent_id, "subagent_id", reading=True)).id,)
        elif args.search is None and args.types is None:
            agents = (AGENT,)
        # All pages use the times of the first: "1h" would mean another hour on each.
        asked = _mark(args)
        since_us, until_us = _time("since", args.since, now_us), _time("until", args.until, now_us)
        place = _Place(None, None, since_us, until_us)
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
    """Return the place of a cursor.

    Raises:
        BadInput: It is not a cursor, or belongs to another query.
    """
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


def _time(field: str, given: str | None, now_us: int) -> int | None:
    if given is None:
        return None
    try:
        return parse_time(given, now_us)
    except ValueError as error:
        raise BadInput(f"{field}: {error}") from error
