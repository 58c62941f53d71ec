"""Newer versions of Ava beside this one, made of these sources, and what they leave of a data root."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import anyio

from ava_server.core.background import ProcessRecord
from support.model_server import Say
from support.repository import REPOSITORY
from support.stdio import environment

RESULT = Say(calls=[("submit_result", {"summary": "found", "output": "twelve cents", "confidence": 0.5})])
LATER = "99.0"
"""The version of an Ava with the same schema."""
ALL = ("logs", "--json", "--last", "100000")


class ProcessChanges:
    """Each process that was one background process of a data root, in order: its id and its version."""

    def __init__(self, record: Path) -> None:
        self._record = record
        self.seen: list[tuple[int, str]] = []

    def look(self) -> None:
        found = ProcessRecord.read(self._record)
        if found is not None and (found.process, found.version) not in self.seen[-1:]:
            self.seen.append((found.process, found.version))

    async def watch(self) -> None:
        while True:
            self.look()
            await anyio.sleep(0.02)


NEWER = """
def novelty(db):
    db.execute("CREATE TABLE novelty (a integer)")


MIGRATIONS = (novelty, reducers_changed)
SCHEMA_VERSION = FIRST_SCHEMA + 2
NEEDED_PROGRAM = "0.9.0"
"""
"""What the schema's module of the newer version has at its end: two migrations."""


def make_python(folder: Path) -> Path:
    """Return a Python with a copy of these sources, in which to change them, and the packages of this environment."""
    for source in ("server", "roles", "audit"):
        shutil.copytree(REPOSITORY / source, folder / source, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    paths = [*(str(folder / root) for root in ("server", "roles", "audit")), sysconfig.get_path("purelib")]
    (packages_of(folder) / "newer.pth").write_text("\n".join(paths) + "\n")
    return folder / "venv" / "bin" / "python"


def packages_of(folder: Path) -> Path:
    """Return the folder of a Python's packages."""
    return folder / "venv" / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)


def run_newer(python: Path, root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the newer version."""
    command = [str(python), "-m", "ava_server", *words]
    return subprocess.run(command, env=environment(root), capture_output=True, text=True, timeout=200, check=False)


def log_lines(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """Every entry that `ava logs --json` prints."""
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def file_digests(root: Path) -> dict[str, str]:
    """The bytes of the log and of all that belongs to runs, without locks."""
    found = (path for path in root.rglob("*") if path.is_file() and path.suffix not in (".lock", ".db-shm"))
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}
