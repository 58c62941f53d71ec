"""An ordinary user for tests that root runs, and an interpreter that such a user can run our sources with."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

PLAIN = 58_500
_TESTS = Path(__file__).parents[2]


@cache
def plain_python() -> tuple[str, str] | None:
    """An interpreter that an ordinary user can run our sources with, and its path; None where there is none."""
    path = os.pathsep.join(entry for entry in (str(_TESTS), *sys.path) if entry)
    for program in (sys.executable, "/usr/bin/python3"):
        ours = f"import sys; assert sys.version_info[:2] == {sys.version_info[:2]}; import anyio, ava_roles, support"
        if Path(program).exists():
            try:
                done = subprocess.run(
                    [program, "-c", ours], user=PLAIN, group=PLAIN, extra_groups=(), env={"PYTHONPATH": path}, cwd="/",
                    capture_output=True, check=False,
                )  # fmt: skip
            except PermissionError:
                continue
            if done.returncode == 0:
                return program, path
    return None
