"""Four processes at once on one data root: what is lost, what fails, and how long the worst wait is."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from audit_parts.report import Report, median, ms, quantile
from ava_audit.verify import verify

PROCESSES = 4
PRODUCERS = 25
"""In each of them: a hundred in all."""
MOST = 40_000
ROUNDS = 5
WORST_MS = 60
WRITER = Path(__file__).with_name("writer.py")
DEADLINE_S = 300


def show(report: Report, events: int) -> None:
    """Let them write, as fast as they can and one command at a time, and look at what stands in the log."""
    rows = []
    for producers, share in ((1, 20), (PRODUCERS, 1)):
        rounds = [_round(min(events, MOST) // share // PROCESSES, producers) for _ in range(ROUNDS)]
        worst = median([one.worst_ms for one in rounds])
        rows.append(
            [
                f"{PROCESSES} processes, {producers} producer{'s' * (producers > 1)} each",
                f"{median([one.rate for one in rounds]):,.0f}",
                *(ms(median([quantile(one.waits, part) for one in rounds])) for part in (0.5, 0.99, 1.0)),
                str(sum(one.lost for one in rounds)),
                str(sum(one.failed for one in rounds)),
                "yes" if all(one.verified for one in rounds) else "NO",
            ]
        )
    report.table(
        f"{PROCESSES} processes on one data root, each with a keeper at hand; medians of {ROUNDS} rounds",
        ("", "events/s", "p50 ms", "p99 ms", "worst ms", "lost", "failed", "verified"),
        rows,
    )
    report.verdict("the worst wait of all", worst, WORST_MS, unit=" ms")


@dataclass
class Round:
    """Events acknowledged a second, how long (s) each command waited, how many entries were lost, how many failed."""

    rate: float
    waits: list[float]
    lost: int
    failed: int
    verified: bool

    @property
    def worst_ms(self) -> float:
        return max(self.waits) * 1000


def _round(events: int, producers: int) -> Round:
    with tempfile.TemporaryDirectory() as folder:
        ended = write_at_once(Path(folder), events, producers)
        verified = verify(Path(folder) / "ava.db")
    failed = sum(len(one["failures"]) for one in ended)
    acknowledged = sum(one["events"] for one in ended) - failed
    waits = [wait for one in ended for wait in one["waits"]]
    rate = acknowledged / max(one["seconds"] for one in ended)
    return Round(rate, waits, acknowledged - verified.entries, failed, verified.ok)


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
