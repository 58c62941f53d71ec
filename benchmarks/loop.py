"""The agent loop beside a bare one and beside other people's: what a turn costs, and a run that waits; and spans.

    python benchmarks/loop.py [--rounds 5] [--runs 1000] [--only turns] [--peers PYTHON] [--out FILE] [--json FILE]

Everybody has the same tool, the same endpoint in another process, which answers at once, and the same number of
turns; each runs in a process of its own. The peers are installed into a temporary environment; `--peers` names the
Python of one that has them already, `--no-peers` leaves them out. Goals: a turn takes at most 3, 2.5 and 2 times the
bare loop's CPU time with 1, 10 and 100 runs at once, streaming 4, 3 and 2.5 times; a waiting run takes 55 KiB.
"""

from __future__ import annotations

import argparse
import os
import platform
import sqlite3
import tempfile
from pathlib import Path

from audit_parts.report import Report
from figures import Figure, write_json
from loop_parts import tracing, turns, waiting
from loop_parts.children import peers_in, versions

PARTS = ("turns", "waiting", "spans")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--runs", type=int, default=1_000, help="that wait for a model, in one process")
    options.add_argument("--only", action="append", choices=PARTS, help="of the parts; may be repeated")
    options.add_argument("--peers", type=Path, help="a Python that has loop_parts/requirements.txt")
    options.add_argument("--no-peers", action="store_true", help="the floor and Ava alone")
    options.add_argument("--out", type=Path, help="write the tables here too, as Markdown")
    options.add_argument("--json", type=Path, help="write the figures that have a goal here")
    chosen = options.parse_args()
    report = Report()
    load = f"; load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    report.say(
        f"{platform.system()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"SQLite {sqlite3.sqlite_version}{load}."
    )
    with tempfile.TemporaryDirectory() as folder:
        peers = None if chosen.no_peers else chosen.peers or peers_in(Path(folder))
        if isinstance(peers, str):
            report.say(peers)
            peers = None
        if peers is not None:
            report.say(f"Peers: {versions(peers)}.")
        figures: list[Figure] = []
        if "turns" in (chosen.only or PARTS):
            figures += turns.show(report, chosen.rounds, peers)
        if "waiting" in (chosen.only or PARTS):
            figures += waiting.show(report, chosen.runs, peers)
        if "spans" in (chosen.only or PARTS):
            figures += tracing.show(report, chosen.rounds)
    if chosen.json is not None:
        write_json(chosen.json, figures)
    if chosen.out is not None:
        chosen.out.write_text("\n".join(report.markdown), "utf-8")


if __name__ == "__main__":
    main()
