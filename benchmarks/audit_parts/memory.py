"""Resident memory of a process that has the log open and has answered a hundred searches."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from audit_parts.building import Log
from audit_parts.report import Report

ASK = """
import json, resource, sys
from pathlib import Path
import anyio
from ava_audit.search import LogQuery, search
from ava_audit.store.store import Store

def resident():
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6
    except OSError:  # not on this system: the peak, which is in bytes on macOS
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)

async def main():
    figures = [resident()]
    async with Store.open(Path(sys.argv[1])) as store:
        figures.append(resident())
        for number in range(100):
            words = ("value", "function", "statement", None)[number % 4]
            await search(store, LogQuery(search=words, users=("ana", "ben", "eve")[number % 3 :][:1], limit=100))
        figures.append(resident())
    print(json.dumps(figures))

anyio.run(main)
"""


def show(report: Report, log: Log) -> None:
    """Ask a process with the log, and one with an empty log."""
    rows = []
    with tempfile.TemporaryDirectory() as empty:
        for name, folder in (("an empty log", Path(empty)), (f"{log.entries:,} entries", log.folder)):
            asked = subprocess.run(
                [sys.executable, "-c", ASK, str(folder)], check=True, stdout=subprocess.PIPE, text=True
            )
            rows.append([name, *(f"{figure:.0f}" for figure in json.loads(asked.stdout))])
    report.table("Resident memory, MB", ("", "imported", "log open", "after 100 searches"), rows)
