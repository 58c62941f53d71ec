"""The audit log beside what is below it and what else could be used: writing, searching, verifying, redacting.

    python benchmarks/audit.py [--events 1000000] [--only NAME] [--keep FOLDER] [--out FILE] [--json FILE]

Everything is made in a temporary folder and removed, but with `--keep` the built log (2.5 GB for a million events),
so that the next time is quick. What makes a disk slow to sync counts: choose the disk with TMPDIR.
"""

from __future__ import annotations

import argparse
import os
import platform
import sqlite3
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from audit_parts import killing, memory, processes, redacting, searching, verifying, writing
from audit_parts.building import Log
from audit_parts.report import Report
from figures import write_json


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--events", type=int, default=1_000_000, help="in the log that is searched and verified")
    options.add_argument("--keep", type=Path, help="where the built log is kept, and found again")
    options.add_argument("--out", type=Path, help="write the tables here too, as Markdown")
    options.add_argument("--json", type=Path, help="write each figure with its floor and goal here")
    options.add_argument("--only", action="append", metavar="NAME", help="of the parts; may be repeated")
    chosen = options.parse_args()
    report = Report()
    with tempfile.TemporaryDirectory() as folder:
        log = Log(chosen.keep or Path(folder), chosen.events, report)
        parts: dict[str, Callable[[], None]] = {
            "writing": partial(writing.show, report, chosen.events),
            "processes": partial(processes.show, report, chosen.events),
            "killing": partial(killing.show, report),
            "searching": partial(searching.show, report, log),
            "memory": partial(memory.show, report, log),
            "verifying": partial(verifying.show, report, log),
            "redacting": partial(redacting.show, report),
        }
        wrong = sorted({*(chosen.only or ())} - {*parts})
        if wrong:
            options.error(f"--only {wrong[0]}: the parts are {', '.join(parts)}")
        report.say(
            f"{platform.system()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
            f"SQLite {sqlite3.sqlite_version}; {_load()}."
        )
        for name in chosen.only or parts:
            print(f"\n== {name} ({_load()}) ==", flush=True)
            parts[name]()
    if chosen.out is not None:
        chosen.out.write_text("\n".join(report.markdown), "utf-8")
    if chosen.json is not None:
        write_json(chosen.json, report.figures)


def _load() -> str:
    """Return what else the machine is doing: figures taken on a busy one tell little."""
    average = getattr(os, "getloadavg", None)
    load = f"load {average()[0]:.1f}" if average is not None else "load unknown"
    try:
        ticks = [int(each) for each in Path("/proc/stat").read_text("utf-8").splitlines()[0].split()[1:]]
    except (OSError, ValueError, IndexError):  # not on this system
        return load
    busy, stolen = sum(ticks) - ticks[3] - ticks[4], ticks[7]
    return f"{load}; of the time that it wanted since its start, other machines took {stolen / busy:.0%}"


if __name__ == "__main__":
    main()
