"""The files of a mirror, as a new keeper leaves them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ava_audit.mirror import Mirror
from ava_audit.store.store import Store


async def mirror_log(log: Store) -> dict[str, bytes]:
    """Take the mirror over as a new keeper would, bring it up to date, and return its files."""
    folder = log.path.parent / "logs"
    mirror = Mirror(log, folder)
    await mirror.repair_all()
    await mirror.catch_up()
    return mirror_files(folder)


def mirror_files(folder: Path) -> dict[str, bytes]:
    """Return the content of each file of a mirror by its path in the folder."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.jsonl")}


def parse_lines(file: bytes) -> list[dict[str, Any]]:
    """Return the lines of a mirror's file as objects."""
    return [json.loads(line) for line in file.splitlines()]


def file_of_today() -> str:
    """Return the path of the orchestrator's file of this day."""
    return f"ava/{datetime.now(UTC):%Y-%m-%d}.jsonl"
