"""`read_ava_logs`: entries of the log as lines, a page at a time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ava_audit.entries import Entry
from ava_audit.errors import BadQuery
from ava_audit.search import LogQuery, search
from ava_audit.units import now_us, parse_time
from ava_roles.wrap import escape_result
from ava_server.approval.requests import LogArgs, parse, shown
from ava_server.core.errors import BadInput
from ava_server.core.ids import AGENT
from ava_server.render.entries import entry_line, names_of
from ava_server.render.responses import Answer, LogAnswer
from ava_server.render.run_view import json_chars
from ava_server.service.access import Operations
from ava_server.service.record import CallContext

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
        since_us, until_us = _time("since", args.since, at_us), _time("until", args.until, at_us)
        if since_us is not None and until_us is not None and until_us < since_us:
            raise BadInput(f"until: {shown(args.until)} is before since ({shown(args.since)}); give a later time")
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


def _time(field: str, given: str | None, now_us: int) -> int | None:
    if given is None:
        return None
    try:
        return parse_time(given, now_us)
    except ValueError as error:
        raise BadInput(f"{field}: {error}") from error
