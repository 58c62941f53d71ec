"""A log that somebody has changed, and what verification says of it."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

from ava_audit.entries import ENTRY_COLUMNS, HEADER, VerifyReport, content_sha, entry_hash


def renumber(db: Any, first: int, by: int) -> None:
    """Move the entries from one number on by so many places."""
    db.execute("UPDATE events SET seq = -(seq + ?) WHERE seq >= ?", (by, first))
    db.execute("UPDATE events SET seq = -seq WHERE seq < 0")


def only_fault(report: VerifyReport) -> tuple[str, int]:
    """Return the kind and the entry of the one fault of a report, which names that entry."""
    assert len(report.faults) == 1, report
    assert str(report.faults[0].seq) in report.faults[0].text
    return report.faults[0].kind, report.faults[0].seq


def insert_entry(db: Any, seq: int, *, hashed: bool) -> None:
    """Put an entry at a place and renumber what follows; a careful forger gives it a right hash."""
    renumber(db, seq, 1)
    row = list(db.execute(f"SELECT {ENTRY_COLUMNS} FROM events WHERE seq = ?", (seq - 1,)).fetchone())
    content = len(HEADER)  # where the content stands, before its hash and the entry's
    before = row[content + 2]
    row[0], row[content] = seq, '{"text":"forged","kind":"message"}'
    row[content + 1] = content_sha(row[content].encode())
    row[content + 2] = entry_hash(before, row[:content], row[content + 1]) if hashed else bytes(range(32))
    db.execute(f"INSERT INTO events ({ENTRY_COLUMNS}) VALUES ({', '.join('?' * len(row))})", row)


def bytes_of_entry(path: Path, raw: bytes, seq: int) -> range:
    """Return where an entry stands in its file: the kinds and lengths of its columns, and all their values."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        session, digest = db.execute("SELECT session_id, hash FROM events WHERE seq = ?", (seq,)).fetchone()
    end = raw.index(digest) + len(digest)
    begin = raw.rindex(session.encode(), 0, end)
    assert end - begin < 2_000
    return range(begin - 27, end)
