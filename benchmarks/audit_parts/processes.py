"""Four processes at once on one data root: what is lost, what fails, and how long the worst wait is."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from audit_parts.report import Report, ms, quantile
from ava_audit.verify import verify

PROCESSES = 4
PRODUCERS = 25
"""In each of them: a hundred in all."""
MOST = 40_000
WORST_MS = 60
WRITER = Path(__file__).with_name("writer.py")
DEADLINE_S = 300


def show(report: Report, events: int) -> None:
    """Let them write, as fast as they can and one command at a time, and look at what stands in the log."""
    rows = []
    for producers, share in ((1, 20), (PRODUCERS, 1)):
        total = min(events, MOST) // share
        with tempfile.TemporaryDirectory() as folder:
            ended = write_at_once(Path(folder), total // PROCESSES, producers)
            verified = verify(Path(folder) / "ava.db")
        failed = sum(len(one["failures"]) for one in ended)
        acknowledged = sum(one["events"] for one in ended) - failed
        waits = [wait for one in ended for wait in one["waits"]]
        rows.append(
            [
                f"{PROCESSES} processes, {producers} producer{'s' * (producers > 1)} each",
                f"{acknowledged / max(one['seconds'] for one in ended):,.0f}",
                *(ms(quantile(waits, part)) for part in (0.5, 0.99, 1.0)),
                str(acknowledged - verified.entries),
                str(failed),
                "yes" if verified.ok else "NO",
            ]
        )
        worst = max(waits) * 1000
    report.table(
        f"{PROCESSES} processes on one data root, each with a keeper at hand",
        ("", "events/s", "p50 ms", "p99 ms", "worst ms", "lost", "failed", "verified"),
        rows,
    )
    report.verdict("the worst wait of all", worst, WORST_MS, unit=" ms")


def write_at_once(root: Path, events: int, producers: int) -> list[dict[str, Any]]:
    """Start the writers, let them begin together, and return what each of them measured."""
    writers = [
        subprocess.Popen(
            [sys.executable, str(WRITER), str(root), str(number * 100_000), str(events), str(producers)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for number in range(PROCESSES)
    ]  # fmt: skip
    try:
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
        return [json.loads(output) for output in _together(writers)]
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()


def _together(writers: list[subprocess.Popen[str]]) -> list[str]:
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    return [writer.communicate(timeout=DEADLINE_S)[0] for writer in writers]
