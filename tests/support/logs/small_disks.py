"""A disk of a few hundred kilobytes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from support.log import child

TESTS = Path(__file__).parents[2]
SMALL_DISK = 'mount -t tmpfs -o size="$1" none "$2"; shift 2; exec "$@"'
MOUNT = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", SMALL_DISK, "sh")
"""Starts a program with a small disk of its own: size, folder, command."""


def run_on_small_disk(folder: Path, code: str, size: str = "700k") -> list[str]:
    """Run code in a process that has a small disk at a folder, and return the lines that it printed."""
    folder.mkdir()
    if (
        shutil.which("unshare") is None
        or subprocess.run([*MOUNT, size, folder, "true"], capture_output=True).returncode
    ):
        pytest.skip("needs a user namespace in which a disk can be mounted")
    command = [*MOUNT, size, str(folder), *child(code, TESTS, folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr[-3_000:]
    return done.stdout.splitlines()
