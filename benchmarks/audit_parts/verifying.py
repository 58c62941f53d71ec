"""Verification as `ava verify` does it, beside the least that any check must do: read every entry and hash it."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from pathlib import Path

from audit_parts.building import Log
from audit_parts.report import Report, median
from ava_audit.entries import ENTRY_COLUMNS, GENESIS, HEADER, content_sha, entry_hash
from ava_audit.verify import verify

ROUNDS = 3
RATIO = 1.25
"""Of reading and hashing alone."""


def show(report: Report, log: Log) -> None:
    """Do both, turn and turn about."""
    took: dict[str, list[float]] = {"read and hash": [], "verify, projections compared": []}
    _read_and_hash(log.database)
    for _ in range(ROUNDS):
        for name, work in (("read and hash", _read_and_hash), ("verify, projections compared", _verify)):
            began = time.perf_counter()
            work(log.database)
            took[name].append(time.perf_counter() - began)
    floor = median(took["read and hash"])
    rows = [
        [name, f"{median(times):.1f}", f"{median(times) / log.entries * 1e6:.1f}", f"{median(times) / floor:.2f}"]
        for name, times in took.items()
    ]
    report.table(f"Verifying {log.entries:,} entries", ("", "s", "µs/entry", "× read and hash"), rows)
    whole = median(took["verify, projections compared"])
    report.verdict(f"verifying {log.entries:,} entries, projections compared", whole, RATIO, unit=" s", floor=floor)


def _read_and_hash(path: Path) -> None:
    before = GENESIS
    sha, digest = len(HEADER) + 1, len(HEADER) + 2
    with contextlib.closing(sqlite3.connect(path)) as db:
        for row in db.execute(f"SELECT {ENTRY_COLUMNS} FROM events ORDER BY seq"):
            assert content_sha(row[len(HEADER)].encode()) == row[sha]
            before = entry_hash(before, row[: len(HEADER)], row[sha])
            assert before == row[digest]


def _verify(path: Path) -> None:
    report = verify(path)
    assert report.ok, report.faults
    assert report.projections
