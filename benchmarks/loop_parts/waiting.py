"""Memory of a run that waits for its model: a thousand in one process."""

from __future__ import annotations

from pathlib import Path

from audit_parts.report import Report
from figures import Figure

from loop_parts.children import AVA, FLOOR, PEERS, endpoint, started

MOST_KIB = 55


def show(report: Report, runs: int, peers: Path | None) -> list[Figure]:
    """Let runs wait, in a fresh process each, and see how much it grows; return the figure that has a goal."""
    rows = []
    ours = 0.0
    with endpoint(1) as port:
        for name in (FLOOR, AVA, *(PEERS if peers is not None else ())):
            child = started(name, port, peers)
            try:
                answer = child.measured("waiting", runs, 1, 1)
            finally:
                child.end()
            print(f"{name}: {answer['kib']:.0f} KiB", flush=True)
            rows.append([name, f"{answer['kib']:.0f}", f"{answer['base_mib']:.0f}"])
            if name == AVA:
                ours = answer["kib"]
    columns = ("", "KiB per run", "MiB before them")
    report.table(f"Resident memory while {runs:,} runs wait for their model's answer", columns, rows)
    report.verdict("Ava's memory per waiting run", ours, MOST_KIB, unit=" KiB")
    return [Figure("Ava: memory of a waiting run", ours, "KiB", MOST_KIB)]
