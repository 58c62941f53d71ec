"""Which runs of an earlier plan a new one need not pay for again, and why not.

A run is marked with HMACs, under a key of the data root, over everything that decides what it does: its instructions
and Ava's own, the model and who runs it, its tools, its task with what earlier runs handed over, the form of its
result, and all that it can read: its folder and the notes in memory. The mark is in the run's first entry, so it is
erased with the run. Equal marks mean the same work, and a part that differs says why it is not; nothing is looked up by
a hash across the log.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import stat
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ava_audit.events import RunStarted
from ava_roles.errors import ToolFailed
from ava_roles.memory import Memory
from ava_roles.role import parse_role, system_prompt
from ava_server.run_config.config import RunConfig
from ava_server.run_config.run_cap import CAPS

MOST_FILES = 200_000
"""Files of a folder whose state is compared; a larger folder counts as changed."""
HMAC_CHARS = 32
LOOK_S = 5.0
"""Seconds that reading this state may take; a slower folder counts as changed."""
CHANGED: Mapping[str, str] = {
    "instructions": "its instructions have changed",
    "model": "its model has changed",
    "tools": "its tools have changed",
    "task": "its task has changed",
    "inputs": "what it gets of other runs has changed",
    "result": "the form of its result, or the commit that it starts from, has changed",
    "memory": "the notes in memory have changed",
    "folder": "the folder has changed",
}
"""What is said of each part of a mark that differs."""
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
    notes: str,
) -> str:
    """Return the mark of a run: for each part of `CHANGED` its name and an HMAC.

    Args:
        key: The key of the data root.
        config: What was approved.
        prefix: How the run starts; of its prompt, only what does not depend on limits counts.
        words: Its task, context and system prompt, as the run reads them.
        inputs: What its task brings of earlier runs.
        earlier: The ids of all runs whose results it may read, in their order.
        folder: The state of its folder, from `folder_state`.
        notes: The state of the notes that it can read, from `notes_state`.
    """
    role = parse_role(config.role_text, config.role_source, config.role)
    own = system_prompt(role, system_prompt=None, context=None, tools=(), limits=_SAME_LIMITS, output_schema=None)
    coding = config.coding
    parts: dict[str, list[Any]] = {
        "instructions": [
            own, config.plan, {name: words[name] for name in words if name != "task"},
            [skill.sha256 for skill in config.skills],
        ],
        "model": [config.model, config.base_url, config.runner, config.agent, config.extended_thinking],
        "tools": [
            list(prefix.tools), list(config.hosts), config.search,
            {name: use.digest for name, use in config.foreign.items()},
        ],
        "task": [words.get("task")],
        "inputs": [[each["text"] for each in inputs], list(earlier)],  # a step's name decides nothing
        "result": [config.output_schema, coding and [coding.base, coding.verify, list(coding.namespace)]],
        "memory": [notes],
        "folder": [config.workspace, folder],
    }  # fmt: skip
    return " ".join(f"{name}:{_hmac(key, name, parts[name])}" for name in CHANGED)


def _hmac(key: str, name: str, part: Sequence[Any]) -> str:
    line = json.dumps([name, *part], ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    digest = hmac.new(f"ava plan {key}".encode(), line.encode("utf-8", "surrogatepass"), hashlib.sha256)
    return digest.hexdigest()[:HMAC_CHARS]


def differing_parts(mark: str, other: str) -> list[str]:
    """Return the names of the parts in which two marks differ, in the order of `CHANGED`."""
    ours = dict(part.split(":") for part in mark.split(" ") if ":" in part)
    theirs = dict(part.split(":") for part in other.split(" ") if ":" in part)
    return [name for name in CHANGED if ours.get(name) != theirs.get(name)]


def notes_state(memory: Memory | None) -> str | None:
    """Return a hash of all notes in memory; "" without a memory, None where it cannot be read. Blocking."""
    if memory is None:
        return ""
    state = hashlib.sha256()
    try:
        notes = memory.read().notes
    except ToolFailed:
        return None
    for note in notes:
        state.update(f"{note.name}\0{len(note.text)}\0{note.text}".encode())
    return state.hexdigest()


def folder_state(folder: str | None, left_out: Collection[str] = ()) -> str | None:
    """Return a hash of every path in a folder: files with size and time, links with their target. Blocking.

    "" without a folder; None where it is too large or too slow to be looked at, or cannot be read: its state then
    equals no other. Of a git folder, only the checked-out commit counts. `left_out` has the paths of files that do not
    count.
    """
    if folder is None:
        return ""
    state = hashlib.sha256(os.path.realpath(folder).encode("utf-8", "surrogateescape"))
    try:
        for path, info in _walk(folder, left_out):
            if info is None:
                state.update(_checked_out(path))
                continue
            what = f"{info.st_size}\0{info.st_mtime_ns}"
            if stat.S_ISLNK(info.st_mode):
                what = f"link\0{path.readlink()}"
            elif stat.S_ISDIR(info.st_mode):
                what = "folder"
            state.update(f"{path}\0{what}\0".encode("utf-8", "surrogateescape"))
    except (OSError, TimeoutError):
        return None
    return state.hexdigest()


def changed_paths(folder: str, left_out: Collection[str], since_us: int) -> list[str]:
    """Return the paths in a folder, relative to it, that have changed since a time in microseconds UTC. Blocking.

    Files first; folders, in which something was added or removed, only where no file has. Empty where none can be
    named.
    """
    files: list[str] = []
    folders: list[str] = []
    try:
        for path, info in _walk(folder, left_out):
            if info is None or max(info.st_mtime_ns, info.st_ctime_ns) <= since_us * 1_000:
                continue
            kind = folders if stat.S_ISDIR(info.st_mode) else files
            kind.append(str(path.relative_to(folder)))
    except (OSError, TimeoutError):
        return []
    return files or folders


def _walk(folder: str, left_out: Collection[str]) -> Iterator[tuple[Path, os.stat_result | None]]:
    """Yield every path in a folder in a fixed order with what it is; a git folder with None.

    Raises OSError where one cannot be read, TimeoutError where there are too many or it takes too long.
    """
    until = time.monotonic() + LOOK_S
    count = 0
    for place, folders, files in os.walk(folder, onerror=_raise):
        folders.sort()
        if ".git" in folders:
            folders.remove(".git")
            yield Path(place) / ".git", None
        for name in sorted([*folders, *files]):
            path = Path(place) / name
            if str(path) not in left_out:
                yield path, path.lstat()
            count += 1
        if count > MOST_FILES or time.monotonic() > until:
            raise TimeoutError


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
