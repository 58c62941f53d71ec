"""Reading the log: `read_ava_logs`."""

from __future__ import annotations

import time
from typing import Any

from ava_audit.errors import BadQuery
from ava_audit.search import LogQuery, search
from ava_audit.times import parse_time
from ava_server.answers import Answer, LogAnswer
from ava_server.arguments import LogArgs, parse, shown
from ava_server.desk.looking import Progress
from ava_server.desk.own import Own
from ava_server.errors import BadInput
from ava_server.ids import AGENT
from ava_server.log_lines import entry_line
from ava_server.status import json_chars

LOG_CHARS = 9_000
"""Characters of entries that one answer carries; with all around them it stays under 10,000."""
LINE_CHARS = 900
SEQ_DIGITS = 18


class Reading:
    """Reads entries back, newest last, a page at a time."""

    def __init__(self, own: Own) -> None:
        self._own = own

    async def read(self, given: dict[str, Any], _progress: Progress) -> Answer:
        """Do `read_ava_logs`.

        Raises:
            BadInput: An argument cannot be used.
        """
        args = parse(LogArgs, "read_ava_logs", given)
        now_us = time.time_ns() // 1000
        agents: tuple[str, ...] = ()
        if args.subagent_id is not None:
            agents = ((await self._own.run(args.subagent_id, "subagent_id")).id,)
        elif args.search is None and args.types is None:
            agents = (AGENT,)
        before, upto = _cursor(args.cursor)
        query = LogQuery(
            agents=agents,
            users=(self._own.session.user,),
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
            page = await search(self._own.store.path, query)
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


def _cursor(given: str | None) -> tuple[int | None, int | None]:
    if given is None:
        return None, None
    before, _, upto = given.partition(".")
    if not all(part.isdecimal() and len(part) <= SEQ_DIGITS for part in (before, upto)):
        raise BadInput(f"cursor: {shown(given)} is not a cursor of the log; give the one that the last answer had")
    return int(before), int(upto)


def _time(field: str, given: str | None, now_us: int) -> int | None:
    if given is None:
        return None
    try:
        return parse_time(given, now_us)
    except ValueError as error:
        raise BadInput(f"{field}: {error}") from error
