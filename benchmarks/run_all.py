"""Every figure that people feel, beside its floor and its goal: one table, and JSON to compare later changes with.

    python benchmarks/run_all.py [--only NAME] [--packages FOLDER] [--keep FOLDER] [--compare OLD.json] [--out NEW.json]

Runs the other scripts one after the other, which takes fifteen minutes on an idle machine, and five more without a log
that `--keep` finds. What they print goes to stderr. Ends with 1 if one of them fails; a goal that is missed is only
shown. `latest.json` has the figures of the last run that was committed. `tokens.py` needs `--packages`, a folder with
tokenizers from npm, and is left out without it; `--keep` is for `audit.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SCRIPTS: dict[str, tuple[str, ...]] = {
    "tokens": (),
    "startup": (),
    "first_run": (),
    "spawn": (),
    "confinement": (),
    "loop": ("--no-peers", "--only", "turns", "--only", "waiting"),
    "http_load": ("--quick",),
    "audit": ("--only", "writing", "--only", "processes", "--only", "searching", "--only", "verifying"),
}
LONGEST_S = 1_800.0
COLUMNS = ("figure", "Ava", "floor", "ratio", "goal", "", "before")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--only", action="append", choices=SCRIPTS, help="one of the scripts; may be repeated")
    options.add_argument("--packages", type=Path, metavar="FOLDER", help="the tokenizers for tokens.py")
    options.add_argument("--keep", type=Path, metavar="FOLDER", help="where audit.py keeps its log")
    options.add_argument("--compare", type=Path, metavar="OLD.json", help="show the figures of an earlier run too")
    options.add_argument("--out", type=Path, metavar="NEW.json", help="write the figures here")
    chosen = options.parse_args()
    if chosen.only and "tokens" in chosen.only and not chosen.packages:
        options.error("--only tokens needs --packages FOLDER; `python benchmarks/tokens.py --help` tells what is in it")
    before = json.loads(chosen.compare.read_text("utf-8"))["figures"] if chosen.compare else []
    found = {"machine": machine(), "figures": [], "failed": []}
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen.only or (name for name in SCRIPTS if name != "tokens" or chosen.packages):
            folders = {"tokens": ("--packages", chosen.packages), "audit": ("--keep", chosen.keep)}
            option, given = folders.get(name, ("", None))
            more = (option, str(given)) if given is not None else ()
            figures = run(name, more, Path(folder) / f"{name}.json")
            if figures is None:
                found["failed"].append(name)
            else:
                found["figures"] += figures
    print(table(found["figures"], before))
    if chosen.out is not None:
        chosen.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    if found["failed"]:
        sys.exit(f"Failed: {', '.join(found['failed'])}. What each printed is above.")


def machine() -> dict[str, Any]:
    """Return what the figures depend on."""
    commit = subprocess.run(
        ("git", "describe", "--always", "--dirty"), cwd=HERE, capture_output=True, text=True, check=False
    )
    return {
        "commit": commit.stdout.strip() or None,
        "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "system": platform.system(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }


def run(name: str, more: Sequence[str], written: Path) -> list[dict[str, Any]] | None:
    """Run a script and return its figures; None if it failed."""
    print(f"\n== {name} ==", file=sys.stderr, flush=True)
    command = (sys.executable, str(HERE / f"{name}.py"), *SCRIPTS[name], *more, "--json", str(written))
    try:
        ended = subprocess.run(command, stdout=sys.stderr, timeout=LONGEST_S, check=False)
    except subprocess.TimeoutExpired:
        print(f"{name} took longer than {LONGEST_S:.0f} s", file=sys.stderr)
        return None
    if ended.returncode or not written.exists():
        print(f"{name} ended with {ended.returncode}", file=sys.stderr)
        return None
    figures: list[dict[str, Any]] = json.loads(written.read_text("utf-8"))
    return figures


def table(figures: Sequence[dict[str, Any]], before: Sequence[dict[str, Any]]) -> str:
    """Return the figures as a Markdown table."""
    earlier = {each["figure"]: each for each in before}
    rows = [COLUMNS, ("---", *["---:"] * (len(COLUMNS) - 1))]
    for each in figures:
        sign = "≥" if each["least"] else "≤"
        old = earlier.get(each["figure"])
        rows.append(
            (
                each["figure"],
                f"{each['value']:,.4g} {each['unit']}",
                "" if each["floor"] is None else f"{each['floor']:,.4g}",
                "" if each["ratio"] is None else f"{each['ratio']:.2f}",
                f"{sign} {each['goal']:,g}",
                "reached" if each["reached"] else "MISSED",
                "" if old is None else compared(old),
            )
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def compared(each: dict[str, Any]) -> str:
    """Return what the goal is about: the ratio to the floor, or the value where there is no floor."""
    return f"{each['value']:,.4g} {each['unit']}" if each["ratio"] is None else f"{each['ratio']:.2f}"


if __name__ == "__main__":
    main()
