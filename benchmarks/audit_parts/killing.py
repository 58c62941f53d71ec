"""Kill -9 of the writer under load, again and again on the same data root: acknowledged entries that are lost."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from audit_parts.processes import PRODUCERS, WRITER
from audit_parts.report import Report
from ava_audit.verify import verify

KILLS = 20
ACKNOWLEDGED = 1_500
"""Commands before a kill, a few more each time, so that it meets the writer at different work."""
ENOUGH = "20000"
"""Events that the writer has to write: more than it comes to."""


def show(report: Report) -> None:
    """Kill it, look, and go on with the next one."""
    acknowledged: Counter[str] = Counter()
    faults: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for kill in range(KILLS):
            acknowledged += written_until_killed(root, kill)
            report_of = verify(root / "ava.db")
            faults += [fault.text for fault in report_of.faults]
        stored = _stored(root / "ava.db")
    lost = sum(max(0, count - stored[run]) for run, count in acknowledged.items())
    report.table(
        f"Kill -9 of the writer, {KILLS} times",
        ("", "entries acknowledged", "lost", "faults of the chain or the projections"),
        [["under load", f"{acknowledged.total():,}", str(lost), str(len(faults))]],
    )
    for fault in faults:
        report.say(fault)
    report.verdict("acknowledged entries lost", lost, 0)


def written_until_killed(root: Path, kill: int) -> Counter[str]:
    """Return how many entries of each run were acknowledged before a writer was killed."""
    command = [sys.executable, str(WRITER), str(root), str(kill * 100_000), ENOUGH, str(PRODUCERS), "--tell"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        writer.stdin.write(b"go\n")
        writer.stdin.flush()
        heard = b""
        while heard.count(b"\n") < ACKNOWLEDGED + kill * 37:
            more = writer.stdout.read1()
            assert more, "the writer ended by itself"
            heard += more
        writer.kill()
        heard += writer.stdout.read()
    told = [line.split() for line in heard.decode().splitlines(keepends=True)[1:] if line.endswith("\n")]
    counted: Counter[str] = Counter()
    for run, count in told:
        counted[run] += int(count)
    del counted["None"]
    return counted


def _stored(path: Path) -> Counter[str]:
    with contextlib.closing(sqlite3.connect(path)) as db:
        return Counter(dict(db.execute("SELECT run_id, count(*) FROM events WHERE run_id IS NOT NULL GROUP BY run_id")))
