"""`jq` where there is none: as much of its command line as the documentation uses, over the library of the same name.

python tests/support/commands/jq.py [-r] [-c] [-s] FILTER FILE...
"""

from __future__ import annotations

import argparse
import json
import stat
import sys
from pathlib import Path
from typing import cast


def on_path(folder: Path) -> Path:
    """Write a program `jq` into a folder, and return it."""
    program = folder / "jq"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).resolve()} "$@"\n', "utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def main() -> None:
    sys.path.remove(str(Path(__file__).resolve().parent))  # else this file is found in place of the library
    import jq

    asked = argparse.ArgumentParser()
    for option in ("-r", "-c", "-s"):
        asked.add_argument(option, action="store_true")
    asked.add_argument("filter")
    asked.add_argument("files", nargs="*")
    given = asked.parse_args()
    text = "".join(Path(name).read_text("utf-8") for name in given.files) if given.files else sys.stdin.read()
    program = jq.compile(given.filter)
    found = cast("list[object]", list(program.input_text(text, slurp=given.s)))
    for value in found:
        raw = given.r and isinstance(value, str)
        separators = (",", ":") if given.c else None
        shown = json.dumps(value, ensure_ascii=False, separators=separators, indent=None if given.c else 2)
        sys.stdout.write(f"{value if raw else shown}\n")


if __name__ == "__main__":
    main()
