"""Which runs of an earlier plan a new one need not pay for again.

A run is marked with an HMAC, under a key of the data root, over everything that decides what it does: its instructions
and Ava's own, the model and who runs it, its tools, its task with what earlier runs handed over, the form of its
result, and the state of its folder. The mark is in the run's first entry, so it is erased with the run. Equal marks
mean the same work; nothing is looked up by a hash across the log.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ava_audit.events import RunStarted
from ava_roles.role import parse_role, system_prompt
from ava_server.run_config.config import RunConfig
from ava_server.run_config.run_cap import CAPS

MOST_FILES = 200_000
"""Files of a folder whose state is compared; a larger folder counts as changed."""
LOOK_S = 5.0
"""Seconds that reading this state may take; a slower folder counts as changed."""
_SAME_LIMITS: Mapping[str, str] = {cap.limited: "as approved" for cap in CAPS}
"""Limits in the prompt say nothing about what was done within them."""


def run_mark(
    key: str,
    config: RunConfig,
    prefix: RunStarted,
    words: Mapping[str, Any],
    inputs: Sequence[Mapping[str, str]],
    earlier: Sequence[str],
    folder: str,
) -> str:
    """Return the mark of a run.

    Args:
        key: The key of the data root.
        config: What was approved.
        prefix: How the run starts; of its prompt, only what does not depend on limits counts.
        words: Its task, context and system prompt, as the run reads them.
        inputs: What its task brings of earlier runs.
        earlier: The ids of all runs whose results it may read, in their order.
        folder: The state of its folder, from `folder_state`.
    """
    role = parse_role(config.role_text, config.role_source, config.role)
    own = system_prompt(role, system_prompt=None, context=None, tools=(), limits=_SAME_LIMITS, output_schema=None)
    parts: dict[str, Any] = {
        "prompt": own,
        "model": config.model,
        "endpoint": config.base_url,
        "runner": [config.runner, config.agent],
        "thinking": config.extended_thinking,
        "plan": config.plan,
        "tools": list(prefix.tools),
        "hosts": list(config.hosts),
        "search": config.search,
        "foreign": {name: use.digest for name, use in config.foreign.items()},
        "words": dict(words),
        "inputs": [dict(each) for each in inputs],
        "output_schema": config.output_schema,
        "verify": None,
        "earlier": list(earlier),
        "workspace": config.workspace,
        "folder": folder,
    }
    if config.skills:
        parts["skills"] = [skill.sha256 for skill in config.skills]
    coding = config.coding
    if coding is not None:
        parts["verify"] = [coding.base, coding.verify, list(coding.namespace)]
    line = json.dumps(parts, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hmac.new(f"ava plan {key}".encode(), line.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


def folder_state(folder: str | None) -> str | None:
    """Return a hash of every path in a folder with its size and time; "" without a folder. Blocking.

    None where it is too large or too slow to be looked at, or cannot be read: its state then equals no other. Of a git
    folder, only the checked-out commit counts.
    """
    if folder is None:
        return ""
    state = hashlib.sha256()
    until = time.monotonic() + LOOK_S
    count = 0
    try:
        for place, folders, files in os.walk(folder, onerror=_raise):
            folders.sort()
            if ".git" in folders:
                folders.remove(".git")
                state.update(_checked_out(Path(place) / ".git"))
            for name in sorted(files):
                path = Path(place) / name
                info = path.lstat()
                state.update(f"{path}\0{info.st_size}\0{info.st_mtime_ns}\0".encode("utf-8", "surrogateescape"))
                count += 1
            if count > MOST_FILES or time.monotonic() > until:
                return None
    except OSError:
        return None
    return state.hexdigest()


def _checked_out(git: Path) -> bytes:
    """Return bytes that identify the checked-out commit: HEAD, and if it names a branch, that branch's commit."""
    head = (git / "HEAD").read_bytes()
    if not head.startswith(b"ref: "):
        return head
    branch = git / os.fsdecode(head[5:].strip())
    packed = git / "packed-refs"
    for file in (branch, packed):
        if file.is_file():
            head += file.read_bytes()
    return head


def _raise(error: OSError) -> None:
    raise error
