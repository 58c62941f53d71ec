"""Values that a shell offers: roles, ids, models and names, each read in the cheapest way that tells them."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from ava_server.cli.complete import FILES, FOLDERS, MOST, Offer

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

Source = Callable[[], Iterable[Offer]]

TIERS = ("fast", "balanced", "deep")
EVENT_TYPES = (
    "error", "tool", "cost", "thinking", "spawn", "complete", "message", "session",
    "UserMessage", "AssistantMessage", "ToolCall", "ToolResult", "SubagentSpawn", "SubagentComplete",
    "ExtendedThinking", "CostUpdate", "ErrorOccurred", "SessionStart", "SessionEnd", "SpawnProposed", "SpawnDecided",
    "RunClaimed", "RunPaused", "RunResumed", "RunStarted", "CostReserved", "Activity", "GuardrailTripped", "PlanReady",
    "WorktreeReady", "WorkChecked", "CancelRequested", "RunEnded", "SettingsChanged", "LogErased",
)  # fmt: skip
"""Short names, then exact ones. To import them and the tiers takes longer than a person waits; a test compares."""
_NAME = re.compile(r"^name:\s*[\"']?([A-Za-z0-9_-]{1,80})[\"']?\s*$", re.MULTILINE)
_HEAD_CHARS = 4_000
_BUSY_S = 0.1
_UNENDED = ("queued", "running")
_WAITING = "awaiting_approval"


def source_of(path: tuple[str, ...], name: str, metavar: str) -> Source | str | None:
    """Return where the values of a command's parameter come from; `FILES` and `FOLDERS` are the shell's own."""
    source = _BY_PLACE.get((*path, name)) or _BY_METAVAR.get(metavar.strip("[]…"))
    return source


# -- the log ----------------------------------------------------------------------------------------------------------


def _runs(where: str) -> Iterator[Offer]:
    """Yield one's own runs, newest first, with role and state."""
    sql = f"SELECT id, role || ', ' || state FROM runs WHERE user_id = ? AND {where} ORDER BY created_us DESC LIMIT ?"  # noqa: S608 - conditions of ours
    yield from _ask(sql)


def _proposals() -> Iterator[Offer]:
    yield from _ask(
        "SELECT p.pending_id, r.role FROM proposals AS p JOIN runs AS r ON r.id = p.run_id"
        " WHERE p.user_id = ? AND p.state = 'awaiting_approval'"
        " AND p.expires_us > 1000000 * CAST(strftime('%s', 'now') AS INTEGER) ORDER BY p.created_us DESC LIMIT ?"
    )


def _groups() -> Iterator[Offer]:
    yield from _ask(
        "SELECT g.id, (SELECT count(*) FROM runs WHERE group_id = g.id) || ' runs' FROM groups AS g"
        " WHERE g.user_id = ? ORDER BY g.created_us DESC LIMIT ?"
    )


def _and_groups(where: str) -> Iterator[Offer]:
    yield from _runs(where)
    yield from _groups()


def _agents() -> Iterator[Offer]:
    yield "ava", "the orchestrator"
    yield from _runs("1")


def _ask(sql: str) -> list[tuple[str, str]]:
    """Ask the log for what is this user's; it is not opened for anything but that, and no file is made beside it."""
    from ava_server.core.data_root import find_data_root, os_user

    db = find_data_root().db
    if not db.is_file():
        return []
    in_use = all(db.with_name(db.name + end).is_file() for end in ("-wal", "-shm"))
    uri = f"{db.absolute().as_uri()}?mode=ro{'' if in_use else '&immutable=1'}"
    with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=_BUSY_S)) as connection:
        return list(connection.execute(sql, (os_user(), MOST)))


# -- roles ------------------------------------------------------------------------------------------------------------


def _roles() -> Iterator[Offer]:
    """Yield the names of built-in roles, the data root's, and the project's."""
    for file in resources.files("ava_roles").iterdir():
        yield from _role_in(file)
    for folder in _role_folders():
        with contextlib.suppress(OSError):
            for file in sorted(folder.iterdir())[:MOST]:
                if file.is_file():
                    yield from _role_in(file)


def _role_folders() -> Iterator[Path]:
    from ava_server.core.data_root import find_data_root

    with contextlib.suppress(Exception):
        yield find_data_root().roles
    with contextlib.suppress(OSError):
        here = Path.cwd()
        project = next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)
        yield project / ".ava" / "roles"


def _role_in(file: Traversable) -> Iterator[Offer]:
    if not file.name.endswith(".md"):
        return
    with contextlib.suppress(OSError, UnicodeDecodeError), file.open("r", encoding="utf-8") as text:
        head = text.read(_HEAD_CHARS)
        found = _NAME.search(head) if head.startswith("---") else None
        if found is not None:
            yield found[1], ""


# -- names ------------------------------------------------------------------------------------------------------------


def _tiers() -> Iterator[Offer]:
    return ((tier, "") for tier in TIERS)


def _hosts() -> Iterator[Offer]:
    from ava_server.hosts.known import HOSTS

    return ((name, host.title) for name, host in HOSTS.items())


def _event_types() -> Iterator[Offer]:
    return ((name, "") for name in EVENT_TYPES)


def _providers() -> Iterator[Offer]:
    from ava_server.models.providers import PROVIDERS

    return ((name, "") for name in PROVIDERS)


def _notes() -> Iterator[Offer]:
    from ava_server.core.data_root import find_data_root

    with contextlib.suppress(OSError):
        for file in sorted(find_data_root().memory.glob("*.md"))[:MOST]:
            yield file.stem, ""


def _shells() -> Iterator[Offer]:
    return ((name, "") for name in ("bash", "zsh", "fish"))


def _states(*states: str) -> str:
    return f"state IN ({', '.join(repr(state) for state in states)})"


_ALL, _ENDED = "1", "ended_us IS NOT NULL"
_GOES_ON = _states(*_UNENDED, _WAITING)
_BY_PLACE: dict[tuple[str, ...], Source | str] = {
    ("run", "role"): _roles,
    ("run", "retry"): partial(_runs, _ENDED),
    ("run", "context_from"): partial(_runs, "result_seq IS NOT NULL"),
    ("run", "model"): _tiers,
    ("run", "namespace"): FILES,
    ("approve", "ids"): _proposals,
    ("reject", "ids"): _proposals,
    ("cancel", "ids"): partial(_and_groups, _GOES_ON),
    ("wait", "ids"): partial(_and_groups, _GOES_ON),
    ("send", "subagent"): partial(_runs, _states(*_UNENDED)),
    ("resume", "subagent"): partial(_runs, _states(*_UNENDED)),
    ("erase", "subagent"): partial(_runs, _ENDED),
    ("show", "subagent"): partial(_runs, _ALL),
    ("report", "group"): _groups,
    ("logs", "agent"): _agents,
    ("logs", "export", "agent"): _agents,
    ("init", "host"): _hosts,
    ("models", "provider"): _providers,
    ("key", "set", "provider"): _providers,
    ("key", "remove", "provider"): _providers,
    ("roles", "show", "name"): _roles,
    ("roles", "new", "from_role"): _roles,
    ("memory", "show", "name"): _notes,
    ("memory", "edit", "name"): _notes,
    ("memory", "remove", "name"): _notes,
    ("completion", "shell"): _shells,
}
"""By the command and the name of its parameter."""
_BY_METAVAR: dict[str, Source | str] = {
    "FILE": FILES,
    "FOLDER": FOLDERS,
    "S-ID": partial(_runs, _ALL),
    "TYPE": _event_types,
}
