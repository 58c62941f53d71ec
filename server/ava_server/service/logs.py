"""Reading the log: `read_ava_logs`."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass, replace
from typing import Any

from ava_audit.errors import BadQuery
from ava_audit.search import LogQuery, search
from ava_audit.times import parse_time
from ava_roles.wrap import escape_result
from ava_server.approval.requests import LogArgs, parse, shown
from ava_server.core.errors import BadInput
from ava_server.core.ids import AGENT
from ava_server.service.access import Own
from ava_server.service.call_context import Caller
from ava_server.service.log_lines import entry_line, names_of
from ava_server.service.responses import Answer, LogAnswer
from ava_server.service.status import json_chars

LOG_CHARS = 9_000
"""Characters of entries that one answer carries; with all around them it stays under 10,000."""
LINE_CHARS = 900
SEQ_DIGITS = 18


class Reading:
    """Reads entries back, newest last, a page at a time."""

    def __init__(self, own: Own) -> None:
        self._own = own

    async def read(self, given: dict[str, Any], _caller: Caller) -> Answer:
        """Do `read_ava_logs`.

        Raises:
            BadInput: An argument cannot be used.
        """
        args = parse(LogArgs, "read_ava_logs", given)
        now_us = time.time_ns() // 1000
        agents: tuple[str, ...] = ()
        if args.subagent_id is not None:
            agents = ((await self._own.run(args.subagent_id, "subagent_id", reading=True)).id,)
        elif args.search is None and args.types is None:
            agents = (AGENT,)
        # The times of the first page hold for all of them: "1h" would mean another hour on each.
        asked = _mark(args)
        since_us, until_us = _time("since", args.since, now_us), _time("until", args.until, now_us)
        place = _Place(None, None, since_us, until_us)
        if args.cursor is not None:
            place = _place(args.cursor, asked)
        query = LogQuery(
            agents=agents,
            users=() if self._own.session.audits else (self._own.session.user,),
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
            page = await search(self._own.store, query)
        except BadQuery as error:
            raise BadInput(f"types: {error}") from error
        names = await self._own.store.read(lambda view: names_of(view, page.entries))
        lines: list[str] = []
        size, older = 0, page.next
        for entry in page.entries:
            line = entry_line(entry, names=names, utc=True, width=LINE_CHARS)
            if entry.who.user_id != self._own.session.user:  # an auditor reads what is another's
                line = f"[{entry.who.user_id}] {line}"
            size += max(json_chars(line) + 2, len(escape_result(line)) + 1)
            if lines and size > LOG_CHARS:
                break
            lines.append(line)
            older = entry.seq if entry is not page.entries[-1] else page.next
        cursor = None
        if older is not None:
            cursor = _cursor(replace(place, before=older, upto=place.upto or page.upto), asked)
        return LogAnswer(status="entries", untrusted_entries=lines[::-1], cursor=cursor)


@dataclass(frozen=True)
class _Place:
    """How far the pages of one question have come, and what the first of them fixed."""

    before: int | None
    upto: int | None
    since_us: int | None
    until_us: int | None


def _mark(args: LogArgs) -> str:
    """Return a short mark of what is asked, without how much of it: a cursor goes on with the same question only."""
    asked = json.dumps(args.model_dump(exclude={"cursor", "last_n"}, exclude_none=True))
    return hashlib.blake2s(asked.encode(), digest_size=3).hexdigest()


def _cursor(place: _Place, asked: str) -> str:
    numbers = (place.before, place.upto, place.since_us, place.until_us)
    return ".".join([*("" if number is None else str(number) for number in numbers), asked])


def _place(given: str, asked: str) -> _Place:
    """Return the place of a cursor.

    Raises:
        BadInput: It is none, or one of another question.
    """
    *parts, mark = given.strip().split(".")
    plain = all(part.isascii() and part.isdecimal() and len(part) <= SEQ_DIGITS for part in parts if part)
    if len(parts) != 4 or not plain or not (parts[0] and parts[1]):
        raise BadInput(f"cursor: {shown(given)} is not a cursor of the log; give the one that the last answer had")
    if mark != asked:
        raise BadInput(
            "cursor: it goes on with another question; give the same subagent_id, search, since, until, types and "
            "session with it as for the first page"
        )
    return _Place(*(int(part) if part else None for part in parts))


def _time(field: str, given: str | None, now_us: int) -> int | None:
    if given is None:
        return None
    try:
        return parse_time(given, now_us)
    except ValueError as error:
        raise BadInput(f"{field}: {error}") from error
