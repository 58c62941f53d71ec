"""`read_ava_logs`: entries of the log as lines, a page at a time; a cursor begins the next page of the same query."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ava_audit.entries import Entry
from ava_audit.errors import BadQuery
from ava_audit.search import LogQuery, search
from ava_audit.units import now_us
from ava_roles.wrap import escape_result
from ava_server.approval.requests import LogArgs, parse, show_value
from ava_server.core.errors import BadInput
from ava_server.core.ids import AGENT, read_span
from ava_server.render.answer_size import (
    json_chars,
)
from ava_server.render.entry_lines import entry_line, names_of
from ava_server.render.responses import Answer, LogAnswer
from ava_server.service.access import Operations
from ava_server.service.record import CallContext

LOG_CHARS = 9_000
"""Characters of entries in one answer; with everything around them it stays under 10,000."""
LINE_CHARS = 900
SEQ_DIGITS = 18


class LogReader(Operations):
    """Reads entries back, newest last, a page at a time."""

    async def read(self, arguments: dict[str, Any], _caller: CallContext) -> Answer:
        """Answer `read_ava_logs`. Raises BadInput if an argument cannot be used."""
        args = parse(LogArgs, arguments)
        at_us = now_us()
        agents: tuple[str, ...] = ()
        if args.subagent_id is not None:
            run = await self._access.run(args.subagent_id, "subagent_id", reading=True)
            agents = (run.id,)
        elif args.search is None and args.types is None:
            agents = (AGENT,)
        # All pages use the times of the first: "1h" would mean another hour on each.
        digest = _query_digest(args)
        place = _Place(None, None, *read_span(args.since, args.until, at_us))
        if args.cursor is not None:
            place = _parse_cursor(args.cursor, digest)
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
            cursor = _format_cursor(replace(place, before=older, upto=place.upto or page.upto), digest)
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
    """Where the next page of a query begins, and the bounds that the first page set."""

    before: int | None
    upto: int | None
    since_us: int | None
    until_us: int | None


def _query_digest(args: LogArgs) -> str:
    """Return a digest of the query without its page size: a cursor continues the same query only."""
    query = json.dumps(args.model_dump(exclude={"cursor", "last_n"}, exclude_none=True))
    return hashlib.blake2s(query.encode(), digest_size=3).hexdigest()


def _format_cursor(place: _Place, digest: str) -> str:
    """Return `before.upto.since.until.digest`; a bound that is not set is empty."""
    parts: list[str] = []
    for number in (place.before, place.upto, place.since_us, place.until_us):
        parts.append("" if number is None else str(number))
    return ".".join([*parts, digest])


def _parse_cursor(cursor: str, digest: str) -> _Place:
    """Return the place of a cursor. Raises BadInput if it is not a cursor, or belongs to another query."""
    *parts, cursor_digest = cursor.strip().split(".")
    has_bounds = len(parts) == 4 and parts[0] != "" and parts[1] != ""
    if not has_bounds or not all(map(_is_number_or_empty, parts)):
        raise BadInput(
            f"cursor: {show_value(cursor)} is not a cursor of the log; give the one that the last answer had"
        )
    if cursor_digest != digest:
        raise BadInput(
            "cursor: it belongs to another query; give the same subagent_id, search, since, until, types and session "
            "as for the first page"
        )
    before, upto, since_us, until_us = (int(part) if part else None for part in parts)
    return _Place(before, upto, since_us, until_us)


def _is_number_or_empty(text: str) -> bool:
    if not text:
        return True
    return text.isascii() and text.isdecimal() and len(text) <= SEQ_DIGITS
