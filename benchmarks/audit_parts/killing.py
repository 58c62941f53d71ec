"""Kill -9 of the writer under load, again and again on the same data root: acknowledged entries that are lost."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from audit_parts.report import Report

KILLS = 20


def show(report: Report) -> None:
    """Do what a test does a few times, more often."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
    from support.logs.killing import TASKS, kill_the_writer

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "data"
        root.mkdir()
        killed = kill_the_writer(root, rounds=KILLS)
    report.table(
        f"Kill -9 of the writer, {killed.rounds} times on one log, {TASKS} tasks writing and a keeper at work",
        ("", "acknowledged", "lost", "faults of log and mirror"),
        [["entries", f"{killed.acknowledged:,}", str(len(killed.lost)), str(len(killed.faults))]],
    )
    for fault in (*killed.lost[:3], *killed.faults[:3]):
        report.say(fault)
    report.verdict("acknowledged entries lost", len(killed.lost), 0)
