"""Cursors of lists: each marks where a page ended, so the next page continues there whatever was added since."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence

import mcp_types as types
from mcp.shared.exceptions import MCPError

from ava_audit.rows import RunRow

PAGE = 50
_PLACE = re.compile(r"(\d{1,18})/(S-[0-9a-f]{6})")


def refuse_cursor(params: types.PaginatedRequestParams | None) -> None:
    """Refuse a cursor for a list of one page, which never gives one."""
    if params is not None and params.cursor is not None:
        raise _bad(params.cursor)


def page_of(rows: Sequence[RunRow], cursor: str | None) -> tuple[list[RunRow], str | None]:
    """Return the runs of a page, newest first, and the cursor of the next page, if there is one.

    A cursor names the last run of its page by its age, so later runs do not shift it.
    """
    newest_first = sorted(rows, key=_place, reverse=True)
    if cursor is not None:
        place = _read(cursor)
        newest_first = [row for row in newest_first if _place(row) < place]
    page = newest_first[:PAGE]
    return page, _cursor(page[-1]) if len(newest_first) > PAGE else None


def _place(row: RunRow) -> tuple[int, str]:
    return row.created_us, row.id


def _cursor(row: RunRow) -> str:
    return base64.urlsafe_b64encode(f"{row.created_us}/{row.id}".encode()).decode().rstrip("=")


def _read(cursor: str) -> tuple[int, str]:
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode("ascii")
    except (binascii.Error, ValueError):
        raise _bad(cursor) from None
    match = _PLACE.fullmatch(text)
    if match is None:
        raise _bad(cursor)
    return int(match[1]), match[2]


def _bad(cursor: str) -> MCPError:
    return MCPError(
        code=types.INVALID_PARAMS,
        message=f"cursor: {cursor[:40]!r} is not a cursor of this list; give the nextCursor of its last page, or none",
    )
