"""How long a folder of recorded runs takes as a regression test: `ava eval replay` on 50 copies of one run.

    python benchmarks/replay.py [--json FILE]

The run is a real one of the offline reader over `examples/notes`; the time is that of the whole command.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from figures import Figure, write_json

RUNS, GOAL_S = 50, 5.0
NOTES = Path(__file__).parent.parent / "examples" / "notes"


def ava(root: Path, *args: str) -> str:
    """Run a command of Ava's, and return what it prints."""
    env = {**os.environ, "AVA_DATA_ROOT": str(root)}
    command = [sys.executable, "-m", "ava_server", *args]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"ava {' '.join(args)} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def main() -> None:
    """Measure, and print the seconds."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, help="write the figure here")
    to = parser.parse_args().json
    with tempfile.TemporaryDirectory() as made:
        root, folder = Path(made) / "data", Path(made) / "runs"
        asked = (
            "What does Otter Pay charge?",
            "--workspace",
            str(NOTES),
            "--model",
            "offline",
            "--yes",
            "--max-cost",
            "0.01",
        )
        run_id = json.loads(ava(root, "run", "researcher", *asked, "--json"))["subagent_id"]
        ava(root, "eval", "add", run_id, "--to", str(folder), "--id", "run-0", "--no-workspace", "--contains", "otter")
        for number in range(1, RUNS):
            shutil.copy(folder / "run-0.jsonl", folder / f"run-{number}.jsonl")
        began = time.monotonic()
        said = ava(root, "eval", "replay", str(folder))
        took_s = time.monotonic() - began
    print(f"{said.strip()} {took_s:.2f} s for the whole command (goal {GOAL_S:g} s)")
    if to is not None:
        write_json(to, [Figure(f"replay of {RUNS} recorded runs", took_s, "s", GOAL_S)])


if __name__ == "__main__":
    main()
