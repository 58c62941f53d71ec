"""How a run's state looks to people: its own sign and colour, the same in a terminal and in a browser."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from ava_audit.rows import ASKING, EXPIRED, HELD, INTERRUPTED, QUEUED, RUNNING, WAITING

Kind = Literal["running", "queued", "good", "unanswered", "waiting", "stuck", "failed", "stopped"]


class StateLook(NamedTuple):
    """How a state is drawn.

    Attributes:
        kind: What the colour follows: the CSS class of pages, and the key of `STYLES`.
        sign: Stands before its name, so that the colour is never the only difference.
        plain: The sign where only ASCII can be written.
    """

    kind: Kind
    sign: str
    plain: str


_GOOD = StateLook("good", "✓", "+")
_WAITING = StateLook("waiting", "?", "?")
_STUCK = StateLook("stuck", "‖", "=")
_FAILED = StateLook("failed", "✗", "x")
_STOPPED = StateLook("stopped", "–", "-")
LOOKS: Mapping[str, StateLook] = {
    RUNNING: StateLook("running", "▶", ">"),
    QUEUED: StateLook("queued", "…", "."),
    **dict.fromkeys((WAITING, *ASKING), _WAITING),
    **dict.fromkeys((INTERRUPTED, HELD), _STUCK),
    "success": _GOOD,
    "no_answer": StateLook("unanswered", "∅", "0"),
    "partial": StateLook("failed", "◐", "~"),
    **dict.fromkeys(("cancelled", "rejected", EXPIRED, "superseded"), _STOPPED),
}
"""The look of each state; every other is an ending that failed."""
STYLES: Mapping[Kind, str] = {
    "running": "bold blue",
    "queued": "cyan",
    "good": "green",
    "unanswered": "yellow",
    "waiting": "bold yellow",
    "stuck": "bold magenta",
    "failed": "red",
    "stopped": "dim",
}
"""The colours in a terminal; pages have those of the same names in `ava.css`."""


def look_of(state: str) -> StateLook:
    return LOOKS.get(state, _FAILED)
