"""Why a run is not taken, as a process notes it for others in `live`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import cast

_BLOCKED, _UNABLE, _BESIDE = "blocked", "unable", "beside"
"""The fields of a note."""


@dataclass(frozen=True)
class Blocker:
    """Why a run was not taken, according to the process that tried last.

    Attributes:
        why: The reason; None where nobody has given one.
        unable: The instance of the worker that cannot run it, e.g. without a key; empty if it waits for its turn.
        beside: The name of that worker, if it is one beside the first.
    """

    why: str | None = None
    unable: str = ""
    beside: str = ""


def blocked_note(blocker: Blocker) -> str:
    """Return the note in `live` of a run that no process can take now: JSON, where an activity is plain text."""
    note = {_BLOCKED: blocker.why}
    if blocker.unable:
        note[_UNABLE] = blocker.unable
    if blocker.beside:
        note[_BESIDE] = blocker.beside
    return json.dumps(note)


def blocker_in(note: str) -> Blocker:
    """Return why a run could not be taken, from its note in `live`."""
    if not note.startswith("{"):
        return Blocker()
    try:
        stored: object = json.loads(note)
    except ValueError:
        return Blocker()
    if not isinstance(stored, dict):
        return Blocker()
    fields = cast("dict[str, object]", stored)
    return Blocker(str(fields.get(_BLOCKED, "")), str(fields.get(_UNABLE, "")), str(fields.get(_BESIDE, "")))
