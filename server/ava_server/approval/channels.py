"""The channels over which decisions come: what each is called, and whether it is certain that a person has decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ava_audit.events import Channel


@dataclass(frozen=True)
class Way:
    """One channel.

    Attributes:
        where: Where a decision was made, after "was approved".
        how: How it came, in reports.
        by_person: A person decides there. The hourly limit counts only what started over the others.
    """

    where: str
    how: str
    by_person: bool


WAYS: Mapping[Channel, Way] = {
    "elicitation": Way("in the host", "by a person, asked by the server through the host", by_person=True),
    "terminal": Way("in a terminal", "by a person at the terminal", by_person=True),
    "browser": Way("in the browser", "by a person in the browser", by_person=True),
    "http": Way("over HTTP", "by a person over HTTP", by_person=True),
    "host_call": Way(
        "by a call of the host",
        "by the host's call or a script's --yes; the log has no answer of a person",
        by_person=False,
    ),
    "auto": Way("by the policy auto", "by the policy auto, without a question", by_person=False),
}
PERSON_CHANNELS: frozenset[Channel] = frozenset(name for name, way in WAYS.items() if way.by_person)
COUNTED_CHANNELS: tuple[Channel, ...] = tuple(name for name, way in WAYS.items() if not way.by_person)
"""Those that the hourly limit counts."""
